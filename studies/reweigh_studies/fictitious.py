"""The paper's fictitious estimator, and the statements of its appendix, as numbers.

Wherever a state has fewer visits than (1-δ) times the expected number, the fictitious estimator
uses the true values. It cannot be used on data; the proof of Theorem 4.1 rests on it. The paper
counts steps from 1, here they count from 0: its h is t + 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reweigh.errors import must_be
from reweigh.system import divided
from reweigh.theory.exact import Quantities
from reweigh.worlds.tabular import TabularMDP
from reweigh_studies.theorems import (
    Estimates,
    Floats,
    Logs,
    Steps,
    action_ratio,
    exact_steps,
    forward,
    importance_steps,
)


@dataclass(frozen=True, eq=False)
class Fictitious:
    """ṽ and d̃ of every log, and enough (H, R, S): n_t(s) ≥ (1-δ) n d_t^μ(s)."""

    delta: float
    estimates: Estimates
    enough: Floats

    @property
    def values(self) -> Floats:
        """ṽ, (R,)."""
        return self.estimates.values

    @property
    def marginals(self) -> Floats:
        """d̃_t(s), (H+1, R, S)."""
        return self.estimates.marginals

    @property
    def real(self) -> Floats:
        """1 for the logs in which every state is visited enough, so that ṽ = v̂: (R,)."""
        everywhere: Floats = self.enough.min(axis=(0, 2))
        return everywhere


def fictitious(mdp: TabularMDP, q: Quantities, logs: Logs, delta: float) -> Fictitious:
    """ṽ = Σ_t <d̃_t, r̃_t> with d̃_{t+1} = P̃_t d̃_t and d̃_0 = d̂_0 (paper, appendix B).

    P̃_t(·|s) = P̂_t(·|s) and r̃_t(s) = r̂_t(s) where n_t(s) ≥ n d_t^μ(s) (1-δ), else P^π and r^π.
    The paper's display compares n_{t-1}(s) with d_t^μ; its proof with d_{t-1}^μ, as here.
    """
    if not delta < 1:
        raise must_be("delta", "less than 1", delta)
    # a hair less, so that rounding does not decide where both sides are equal
    threshold = logs.n * q.d_mu[:-1] * (1 - delta) * (1 - 1e-12)
    enough = logs.visits[:-1] >= threshold[:, None]
    found, (P, r) = importance_steps(mdp, logs), exact_steps(mdp)
    steps = Steps(
        np.where(enough[..., None], found.transition, P[:, None]),
        np.where(enough, found.reward, r[:, None]),
    )
    return Fictitious(delta, forward(mdp, logs, steps), enough.astype(float))


def cell_variance(mdp: TabularMDP, V: Floats) -> Floats:
    """Var_μ[ρ_t (r_t + γ V_{t+1}(s_{t+1})) | s_t = s], (H, S)."""
    joint = mdp.behavior_array[..., None] * mdp.transition
    rho = action_ratio(mdp)[..., None]
    total = mdp.reward + mdp.discount * V[1:, None, None, :]
    mean = np.sum(joint * rho * total, axis=(2, 3))
    second = np.sum(joint * rho**2 * (total**2 + mdp.reward_sd**2), axis=(2, 3))
    variance: Floats = second - mean**2
    return variance


def variance_parts(mdp: TabularMDP, q: Quantities, logs: Logs, found: Fictitious) -> Floats:
    """Lemma B.3, (R, H+1): the start's part and every step's; E of their sum is Var[ṽ].

    Var[ṽ] = Var[V_0(s_0)]/n + Σ_t γ^{2t} Σ_s E[d̃_t(s)²/n_t(s) 1(enough)] Var_μ[ρ (r + γV') | s]
    """
    share = divided(found.enough * found.marginals[:-1] ** 2, logs.visits[:-1])
    parts = np.empty((len(logs.probability), mdp.horizon + 1))
    parts[:, 0] = (float(mdp.initial @ q.V[0] ** 2) - q.value**2) / logs.n
    parts[:, 1:] = np.einsum("trs,ts->rt", share, cell_variance(mdp, q.V))
    parts[:, 1:] *= mdp.discount ** (2 * np.arange(mdp.horizon))
    return parts


def covariance_bound(
    mdp: TabularMDP, q: Quantities, n: int, delta: float, variance: Floats
) -> Floats:
    """The lemma on Cov(d̃_t), (H+1, S, S): its right-hand side, given Var[d̃_t(s)] (H+1, S).

    B_0 = diag(d_0)/n,  B_{t+1} = P_t B_t P_tᵀ
        + 1/((1-δ) n) diag[ Σ_s (d_t^π(s)² + Var[d̃_t(s)])/d_t^μ(s) Σ_a π²/μ P_t(·|s,a) ]
    which is the lemma's sum, term by term. Its diagonal is Corollary B.1.
    """
    H, S = mdp.horizon, mdp.n_states
    P = exact_steps(mdp)[0].transpose(0, 2, 1)
    spread = np.einsum("tsa,tsax->tsx", mdp.target_array * action_ratio(mdp), mdp.transition)
    B = np.empty((H + 1, S, S))
    B[0] = np.diag(mdp.initial) / n
    for t in range(H):
        weight = divided(q.d_pi[t] ** 2 + variance[t], q.d_mu[t])
        B[t + 1] = P[t] @ B[t] @ P[t].T + np.diag(weight @ spread[t]) / ((1 - delta) * n)
    return B


@dataclass(frozen=True, eq=False)
class Propagation:
    """The theorem on error propagation: Var[d̃_t(s)] ≤ bound (H, S), if `holds`."""

    bound: Floats
    holds: bool


def propagation(q: Quantities, n: int, delta: float) -> Propagation:
    """Var[d̃_h(s)] ≤ 2 h τ_a τ_s d_h^π(s)/((1-δ) n) for the paper's h = 1..H,

    if n ≥ 2 h τ_a τ_s/((1-δ) max{d_h^π(s), d_h^μ(s)}) for h = 2..H and all s with d_h^π(s) > 0.
    """
    H = q.horizon
    h = np.arange(1, H + 1)[:, None]
    factor = 2 * h * q.tau_a * q.tau_s / (1 - delta)
    larger = np.maximum(q.d_pi, q.d_mu)[:H]
    needed = np.where(q.d_pi[:H] > 0, factor / np.where(larger > 0, larger, 1.0), 0.0)
    return Propagation(factor / n * q.d_pi[:H], bool(np.all(n >= needed[1:])))
