"""What the paper's theory speaks of, computed exactly on a tabular world.

All variances are asymptotic per-episode variances: divide by n for the variance of an estimate.
With discount γ a step-t term carries γ^{2t}.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reweigh.errors import SupportError, UsageError
from reweigh.system.numbers import divided
from reweigh.worlds.tabular import TabularMDP

Floats = npt.NDArray[np.float64]
Return = tuple[Floats, Floats]  # ratios (H,S,A) and mean rewards (H,S,A,S)


@dataclass(frozen=True, eq=False)
class Quantities:
    """The exact quantities of one world. Arrays of H+1 parts: the start first, then every step.

    d_pi, d_mu              (H+1, S) state distributions of target and behaviour
    V, Q                    (H+1, S), (H, S, A) values under the target
    tau_a, tau_s            largest π/μ, largest d^π/d^μ
    leading                 leading term of Theorem 4.1 (n times the MSE of plain MIS)
    leading_simplex         the same for MIS normalised to the simplex
    cramer_rao              Cramér–Rao bound (DM attains it), the start's variance included
    gap                     leading - cramer_rao: Var_μ[ρ Q]
    is_variance             exact variance of one episode's step-wise IS (may be infinite)
    wis_variance            asymptotic variance of step-wise WIS (may be infinite)
    """

    value: float
    behavior_value: float
    horizon: int
    discount: float
    d_pi: Floats
    d_mu: Floats
    V: Floats
    Q: Floats
    tau_a: float
    tau_s: float
    leading_parts: Floats
    leading_simplex_parts: Floats
    cramer_rao_parts: Floats
    gap_parts: Floats
    is_variance: float
    wis_variance: float
    reward_max: float
    reward_min: float
    noise: float

    @property
    def leading(self) -> float:
        return float(self.leading_parts.sum())

    @property
    def leading_simplex(self) -> float:
        return float(self.leading_simplex_parts.sum())

    @property
    def cramer_rao(self) -> float:
        return float(self.cramer_rao_parts.sum())

    @property
    def gap(self) -> float:
        return float(self.gap_parts.sum())


def quantities(mdp: TabularMDP) -> Quantities:
    """Exact quantities of a world that is fully observed."""
    if type(mdp)._observe is not TabularMDP._observe:
        raise UsageError(f"{type(mdp).__name__} hides states; the theory is of observed worlds")
    T, r, sd = mdp.transition, mdp.reward, mdp.reward_sd
    pi, mu, gamma, H = mdp.target_array, mdp.behavior_array, mdp.discount, mdp.horizon
    d_pi, d_mu = mdp.state_marginals(pi), mdp.state_marginals(mu)
    _refuse_without_support(d_pi[:H], pi, mu)
    rho = divided(pi, mu)
    V = mdp.state_values(pi)
    total = r + gamma * V[1:, None, None, :]
    Q = np.sum(T * total, axis=3)
    value = float(mdp.initial @ V[0])
    # d^π(s)²/d^μ(s)
    reach = divided(d_pi, d_mu)[:H] * d_pi[:H]
    power = gamma ** (2 * np.arange(H))
    start = float(mdp.initial @ V[0] ** 2) - value**2

    def steps(variance: Floats) -> Floats:
        return np.concatenate([[start], power * np.sum(reach * variance, axis=1)])

    # Var_μ[ρ (r + γV') | s] = Σ_a π²/μ E[(r + γV')² | s,a] - V²
    second = np.sum(T * (total**2 + sd**2), axis=3)
    leading = np.sum(pi * rho * second, axis=2) - V[:H] ** 2
    # Var[r + γV' | s,a], and Var_μ[ρ Q | s]
    within = np.sum(pi * rho * (second - Q**2), axis=2)
    between = np.sum(pi * rho * Q**2, axis=2) - V[:H] ** 2
    # Normalising centres V' at its mean under the target: u' - <d', u'> = V' - <d', V'>
    level = np.sum(d_pi * V, axis=1)
    centred = r + gamma * (V - level[:, None])[1:, None, None, :]
    u = np.sum(pi * np.sum(T * centred, axis=3), axis=2)
    second_centred = np.sum(T * (centred**2 + sd**2), axis=3)
    simplex = np.sum(pi * rho * second_centred, axis=2) - u**2
    products = (product_return(mdp, d_pi, weighted=weighted) for weighted in (False, True))
    is_variance, wis_variance = (covariance(mdp, own, own) for own in products)
    alive = np.broadcast_to(T > 0, r.shape) & (mu[..., None] > 0) & (d_mu[:H, :, None, None] > 0)
    return Quantities(
        value=value,
        behavior_value=float(mdp.behavior_value()),
        horizon=H,
        discount=gamma,
        d_pi=d_pi,
        d_mu=d_mu,
        V=V,
        Q=Q,
        tau_a=float(rho[d_mu[:H] > 0].max()),
        tau_s=float(divided(d_pi, d_mu)[:H].max()),
        leading_parts=steps(leading),
        leading_simplex_parts=steps(simplex),
        cramer_rao_parts=steps(within),
        gap_parts=np.concatenate([[0.0], power * np.sum(reach * between, axis=1)]),
        is_variance=is_variance,
        wis_variance=wis_variance,
        reward_max=float(r[alive].max()),
        reward_min=float(r[alive].min()),
        noise=float(sd.max()),
    )


def _refuse_without_support(d_pi: Floats, pi: Floats, mu: Floats) -> None:
    """Where the target goes the behaviour must go too (assumptions A2 and A3)."""
    bad = (d_pi > 0)[:, :, None] & (pi > 0) & ~(mu > 0)
    if np.any(bad):
        t, s, a = (int(i[0]) for i in np.nonzero(bad))
        raise SupportError(
            "no-overlap",
            f"the target takes action {a} in state {s} at step {t}, and the behaviour never "
            "does: no estimator is consistent here",
        )


def product_return(mdp: TabularMDP, d_pi: Floats, *, weighted: bool) -> Return:
    """What one episode adds to step-wise IS, Σ_t γ^t ρ_{0:t} y_t; to WIS with y_t - E_π[y_t]."""
    rho, r = divided(mdp.target_array, mdp.behavior_array), mdp.reward
    if not weighted:
        return rho, r
    joint = mdp.target_array[..., None] * mdp.transition
    mean = np.einsum("ts,tsax->t", d_pi[: mdp.horizon], joint * r)
    return rho, r - mean[:, None, None, None]


def plain_return(mdp: TabularMDP) -> Return:
    """G = Σ_t γ^t y_t, the episode's own return."""
    return np.ones_like(mdp.behavior_array), mdp.reward


def covariance(mdp: TabularMDP, one: Return, other: Return) -> float:
    """Cov of two returns X_t = α_t (r_t + γ X_{t+1}), Y_t = β_t (r'_t + γ Y_{t+1}) of one episode:

    E[X_t Y_t|s] = Σ_a μ α β Σ_{s'} P [ r r' + sd² + γ r E[Y'|s'] + γ r' E[X'|s'] + γ² E[X'Y'|s'] ]

    Of IS with itself it is the curse of horizon in one number; beyond what a number can hold it
    is infinite.
    """
    gamma, mu, d = mdp.discount, mdp.behavior_array, mdp.initial
    X, Y, XY = np.zeros((3, mdp.n_states))
    with np.errstate(over="ignore", invalid="ignore"):
        for t in reversed(range(mdp.horizon)):
            P, a, b, x, y = mdp.transition[t], one[0][t], other[0][t], one[1][t], other[1][t]
            inner = x * y + mdp.reward_sd[t] ** 2 + gamma * (x * Y + y * X) + gamma**2 * XY
            XY = _weighted(mu[t] * a * b, _weighted(P, inner).sum(axis=2)).sum(axis=1)
            X = np.sum(mu[t] * a * np.sum(P * (x + gamma * X), axis=2), axis=1)
            Y = np.sum(mu[t] * b * np.sum(P * (y + gamma * Y), axis=2), axis=1)
        return float(_weighted(d, XY).sum()) - float(d @ X) * float(d @ Y)


def _weighted(weight: Floats, value: Floats) -> Floats:
    """Products in which an infinite value of no weight counts for nothing."""
    return np.where(weight > 0, weight * value, 0.0)
