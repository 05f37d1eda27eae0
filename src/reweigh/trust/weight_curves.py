"""The curse of horizon on this log: running products of ratios against marginalized weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reweigh.estimate.estimator import Solution
from reweigh.log.states import END
from reweigh.sums.engines.arrays import ratios
from reweigh.sums.moments import Moments
from reweigh.trust.breakdown import NO_SUMS, Missing, Sources, node_of_each

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
PRODUCTS = "running products (is, wis)"
MARGINAL = "marginalized weights (mis)"
SAME = 1e-9  # relative: ratios of a cell that differ by less are one ratio


@dataclass(frozen=True, eq=False)
class Curve:
    """One kind of weights, step by step; nan where a step has none.

    ess      (H,) effective number of episodes
    largest  (H,) the largest weight as a multiple of the mean weight, None with `why`
    """

    name: str
    ess: Floats
    largest: Floats | None
    why: str = ""


@dataclass(frozen=True, eq=False)
class Weights:
    """Running products against marginalized weights; a kind that is not there has its reason."""

    n_episodes: int
    curves: tuple[Curve, ...]
    missing: tuple[str, ...]


def weight_curves(sources: Sources) -> Weights | Missing:
    """Effective sizes and largest weights of both kinds, as far as there are sums."""
    sums = sources.sums
    if sums is None:
        return Missing(NO_SUMS)
    kinds = [_products(sums), _marginal(sources, sums)]
    curves = tuple(curve for curve in kinds if isinstance(curve, Curve))
    missing = tuple(kind.why for kind in kinds if isinstance(kind, Missing))
    return Weights(sums.n_episodes, curves, missing) if curves else Missing("; ".join(missing))


def _products(sums: Moments) -> Curve | Missing:
    """ESS_t = (Σ_i ρ_{0:t})² / Σ_i ρ_{0:t}²"""
    if sums.trajectories is None:
        why = "the sums hold none (evaluate with is or wis as well)"
        why = "episodes were cut off" if sums.truncated else why
        return Missing(f"the running products are not shown: {why}")
    steps = sums.trajectories.steps.total()
    alive = steps.w > 0
    if not alive.any():
        return Missing("the running products are all 0: no episode is possible under the target")
    w, w2 = np.where(alive, steps.w, 1.0), np.where(alive, steps.w2, 1.0)
    ess = np.where(alive, w**2 / w2, np.nan)
    return Curve(PRODUCTS, ess, np.where(alive, sums.n_episodes * steps.wmax / w, np.nan))


def _marginal(sources: Sources, sums: Moments) -> Curve | Missing:
    solved = sources.solved(sources.marginal)
    if isinstance(solved, Missing):
        return Missing(f"the marginalized weights are not shown: {solved.why}")
    if sums.hidden:
        why = "with hidden states a weight belongs to a stretch of steps, not to one step"
        return Curve(MARGINAL, solved[0].ess, None, why)
    rows = _rows(sources, sums)
    if rows is None:
        why = "the sums do not tell the largest ratio of a cell"
        return Curve(MARGINAL, solved[0].ess, None, why)
    return Curve(MARGINAL, solved[0].ess, _largest(solved[0], sums.n_episodes, *rows))


def _largest(solution: Solution, n: int, t: Ints, s: Ints, rho: Floats, count: Ints) -> Floats:
    """max over the rows of step t of ω = d_t(s) ρ/N_t(s), times n over Σω: the largest weight as a
    multiple of the mean; an episode that has ended weighs d_t(END)/N_t(END)."""
    nodes, horizon = solution.nodes, len(solution.ess)
    assert nodes is not None
    seen = nodes.visits > 0
    per_row = np.divide(nodes.target, nodes.visits, out=np.zeros_like(nodes.target), where=seen)
    omega = per_row[node_of_each(nodes, t, s)] * rho
    total = np.bincount(t, omega * count, horizon)[:horizon]
    most = np.zeros(horizon)
    np.maximum.at(most, t, omega)
    ended = (nodes.s == END) & (nodes.t < horizon)
    total[nodes.t[ended]] += nodes.target[ended]
    np.maximum.at(most, nodes.t[ended], per_row[ended])
    return np.where(total > 0, n * most / np.where(total > 0, total, 1.0), np.nan)


def _rows(sources: Sources, sums: Moments) -> tuple[Ints, Ints, Floats, Ints] | None:
    """(t, s, ρ, how often): the rows, or cells with the action where all rows of a cell have one
    ratio."""
    if sources.log is not None and sources.target is not None:
        steps = sources.log.steps
        rho = ratios(sources.log, sources.target, sums.about.max_ratio)[1]
        return steps.step, steps.state.astype(np.int64), rho, np.ones(steps.n_rows, np.int64)
    cells = sums.model
    if cells is None:
        return None
    mean = cells.rho / cells.n
    if np.any(np.abs(cells.rho2 - cells.rho * mean) > SAME * np.maximum(cells.rho2, 1e-300)):
        return None
    return cells.t, cells.s, mean, cells.n
