"""Exact variances and covariances of returns under running products of ratios."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from reweigh.system.arithmetic import divided
from reweigh.worlds.tabular import TabularMDP

Floats = npt.NDArray[np.float64]
Return = tuple[Floats, Floats]  # ratios (H,S,A) and mean rewards (H,S,A,S)


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
