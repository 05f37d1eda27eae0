"""Exact per-episode variances of estimators on a tabular world, and where they come from.

An estimate moves by martingale differences under μ, one per step, so that its variance (times n)
is a sum over (t, s). For the difference to the behaviour's own value the same holds:

    X_t = w_t(s_t) ρ_t (y_t + γ u'_{t+1}(s_{t+1}) - b_t(s_t, a_t)) - (y_t + γ V^μ_{t+1}(s_{t+1}))
    σ²  = Var[u_0(s_0) - V^μ_0(s_0)] + Σ_t γ^{2t} Σ_s d_t^μ(s) Var_μ[X_t | s_t = s]

where the parts with V^μ stand only in the difference. What arriving is worth (u') and what is
subtracted (b) tell the estimators apart:

    mis-plain   u' = V                b = 0
    mis         u' = V - <d^π, V>     b = 0       (normalising centres V)
    mis-state   u' = V                b = V(s)
    dm          u' = V                b = Q(s,a)  (the Cramér–Rao bound)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError
from reweigh.log.states import END
from reweigh.system.numbers import divided
from reweigh.theory.exact import Quantities, covariance, plain_return, product_return
from reweigh.trust.variance_parts import Decomposition, decomposed
from reweigh.worlds.tabular import TabularMDP

Floats = npt.NDArray[np.float64]
MARGINAL = ("mis", "mis-plain", "mis-state", "dm", "dm-renorm")
PRODUCTS = ("is", "wis")


@dataclass(frozen=True, eq=False)
class Spread:
    """The asymptotic variance of √n times an estimate.

    total     σ²
    start     part of the first state; None where no state owns a part (running products)
    by_state  (H, S) parts of the (t, s); None likewise
    """

    total: float
    start: float | None = None
    by_state: Floats | None = None


def spread(mdp: TabularMDP, q: Quantities, estimator: str, *, difference: bool) -> Spread:
    """σ² of an estimator's value, or of its difference to the behaviour's mean return."""
    if estimator in MARGINAL:
        return _marginal(mdp, q, estimator, difference)
    if estimator in PRODUCTS:
        return Spread(_products(mdp, q, estimator, difference))
    raise RefusedError(
        "no-exact-variance",
        f"the exact variance of {estimator} is not known here; there are "
        f"{', '.join((*MARGINAL, *PRODUCTS))}. Plan from a simulated log: "
        "plan(world.simulate(n, rng), world.target, …)",
    )


def _marginal(mdp: TabularMDP, q: Quantities, estimator: str, difference: bool) -> Spread:
    H, gamma = q.horizon, q.discount
    mu = mdp.behavior_array
    minus = 1.0 if difference else 0.0
    V_mu = mdp.state_values(mu) * minus
    arriving, base = q.V, np.zeros_like(q.Q)
    if estimator == "mis":
        arriving = q.V - np.sum(q.d_pi * q.V, axis=1, keepdims=True)
    elif estimator == "mis-state":
        base = np.broadcast_to(q.V[:H, :, None], q.Q.shape)
    elif estimator != "mis-plain":
        base = q.Q
    w = divided(q.d_pi, q.d_mu)[:H, :, None] * divided(mdp.target_array, mu)  # w_t(s) ρ_t(s,a)
    # E[X | s,a] and E[X² | s,a]; the reward's own noise enters with its weight in X
    X = w[..., None] * (mdp.reward + gamma * arriving[1:, None, None, :] - base[..., None])
    X = X - minus * mdp.reward - gamma * V_mu[1:, None, None, :]
    noise = ((w - minus)[..., None] * mdp.reward_sd) ** 2
    first = np.sum(mu * np.sum(mdp.transition * X, axis=3), axis=2)
    second = np.sum(mu * np.sum(mdp.transition * (X**2 + noise), axis=3), axis=2)
    power = gamma ** (2 * np.arange(H))[:, None]
    by_state = power * q.d_mu[:H] * np.maximum(second - first**2, 0.0)
    at_start = q.V[0] - V_mu[0]
    start = float(mdp.initial @ (at_start - mdp.initial @ at_start) ** 2)
    return Spread(start + float(by_state.sum()), start, by_state)


def _products(mdp: TabularMDP, q: Quantities, estimator: str, difference: bool) -> float:
    """Var(X) of what an episode adds, or with its own return G Var(X) - 2 Cov(X, G) + Var(G)."""
    weighted = estimator == "wis"
    total = q.wis_variance if weighted else q.is_variance
    if difference:
        own, plain = product_return(mdp, q.d_pi, weighted=weighted), plain_return(mdp)
        total += covariance(mdp, plain, plain) - 2 * covariance(mdp, own, plain)
    return max(total, 0.0)


def decomposition(
    estimator: str, mdp: TabularMDP, q: Quantities, exact: Spread, *, difference: bool
) -> Decomposition | None:
    """The exact variance by step and state; terminal states are END, which has none. None where no
    state owns a part."""
    if exact.start is None or exact.by_state is None:
        return None
    step, state = (index.reshape(-1) for index in np.indices(exact.by_state.shape))
    d_pi, d_mu = (d[: q.horizon].reshape(-1) for d in (q.d_pi, q.d_mu))
    at = step, np.where(np.isin(state, mdp.terminal), END, state), d_pi
    variance = exact.by_state.reshape(-1)
    return decomposed(
        estimator, exact.start, variance, at, d_mu, str, q.horizon, difference=difference
    )
