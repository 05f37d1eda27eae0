"""Influence values of estimators with running products of ratios.

    IS                ψ = Σ_t γ^t ρ_{0:t} y_t + g - v
    WIS               ψ = Σ_t γ^t ρ_{0:t} (y_t - v_t)/mean(ρ_{0:t}) + g - mean(g)
    trajectory IS     ψ = W G - v                W = ρ_{0:H-1},  G = Σ_t γ^t y_t
    trajectory WIS    ψ = W (G - v)/mean(W)

An episode that has ended keeps its product and earns 0.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError
from reweigh.estimate.recursion import no_support
from reweigh.kernels.groups import tally
from reweigh.log.log import EpisodeLog

Floats = npt.NDArray[np.float64]


def stepwise_values(log: EpisodeLog, rho: Floats, *, weighted: bool) -> Floats:
    """(n,) ψ of step-wise IS or WIS, not yet centred."""
    refuse_cut(log)
    g = log.steps.start_value
    psi = np.zeros(log.n_episodes) if g is None else g.copy()
    for t, log_w in _log_products(log, rho):
        rows = log.steps.rows(t)
        y = np.zeros(log.n_episodes)
        y[: rows.stop - rows.start] = log.steps.reward[rows]
        if weighted:
            w = _relative(log_w)
            psi += log.discount**t * w * (y - float(w @ y) / log.n_episodes)
        else:  # a reward of 0 earns 0, also under a weight that overflows
            earning = np.flatnonzero(y)
            psi[earning] += log.discount**t * np.exp(log_w[earning]) * y[earning]
    return psi


def stepwise_weights(log: EpisodeLog, rho: Floats, *, weighted: bool) -> Floats:
    """(N,) n ∂v/∂y of every row: γ^t ρ_{0:t}, for WIS over its mean."""
    refuse_cut(log)
    found = np.empty(log.steps.n_rows)
    for t, log_w in _log_products(log, rho):
        rows = log.steps.rows(t)
        w = _relative(log_w) if weighted else np.exp(log_w)
        found[rows] = log.discount**t * w[: rows.stop - rows.start]
    return found


def trajectory_values(log: EpisodeLog, rho: Floats, *, weighted: bool) -> Floats:
    """(n,) ψ of trajectory-wise IS or WIS, not yet centred."""
    refuse_cut(log)
    steps = log.steps
    *_, (_, log_w) = _log_products(log, rho)
    powers = log.discount ** steps.step.astype(np.float64)
    G = tally(steps.episode_index, powers * steps.reward, log.n_episodes)
    if not weighted:
        return np.where(G == 0, 0.0, np.exp(log_w) * G)
    w = _relative(log_w)
    return np.asarray(w * (G - float(w @ G) / log.n_episodes), np.float64)


def refuse_cut(log: EpisodeLog) -> None:
    if log.n_truncated:
        raise RefusedError(
            "truncated",
            f"{log.n_truncated:,} episodes were cut off, and running products need whole ones; "
            "use mis(), or leave the cut ones out: log.drop_truncated()",
        )


def _log_products(log: EpisodeLog, rho: Floats) -> Iterator[tuple[int, Floats]]:
    """t and (n,) log ρ_{0:t}, one array that is carried on; refuses where all are 0."""
    steps = log.steps
    log_w = np.zeros(steps.n_episodes)
    with np.errstate(divide="ignore"):
        log_rho = np.log(rho)
    for t in range(steps.horizon):
        rows = steps.rows(t)
        log_w[: rows.stop - rows.start] += log_rho[rows]
        if log_w.max() == -np.inf:
            raise no_support(t)
        yield t, log_w


def _relative(log_w: Floats) -> Floats:
    """(n,) ρ_{0:t}/mean(ρ_{0:t})."""
    w = np.exp(log_w - log_w.max())
    return np.asarray(w / w.mean(), np.float64)
