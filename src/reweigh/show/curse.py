"""The curse of horizon on this log: running products of ratios against marginalized weights."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from reweigh.estimate.solution import Solution
from reweigh.log.states import END
from reweigh.show.basis import Basis, Missing
from reweigh.show.records import Curve, Weights
from reweigh.sums.engines.arrays import ratios
from reweigh.sums.moments import Moments

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
PRODUCTS = "running products (is, wis)"
MARGINAL = "marginalized weights (mis)"
SAME = 1e-9  # relative: ratios of a cell that differ by less are one ratio


def weights_of(basis: Basis) -> Weights | Missing:
    """Effective sizes and largest weights of both kinds, as far as there are sums."""
    sums = basis.sums
    if sums is None:
        return Missing("there are neither rows nor sums to look at")
    found = [_products(sums), _marginal(basis, sums)]
    curves = tuple(curve for curve in found if isinstance(curve, Curve))
    missing = tuple(part.why for part in found if isinstance(part, Missing))
    if not curves:
        return Missing("; ".join(missing))
    return Weights(sums.n_episodes, curves, missing)


def _products(sums: Moments) -> Curve | Missing:
    """ESS_t = (Σ_i ρ_{0:t})² / Σ_i ρ_{0:t}²"""
    if sums.trajectories is None:
        why = "episodes were cut off" if sums.truncated else "the sums hold none"
        return Missing(
            f"the running products are not shown: {why}"
            + ("" if sums.truncated else " (evaluate with is or wis as well)")
        )
    steps = sums.trajectories.steps.total()
    alive = steps.w > 0
    if not alive.any():
        return Missing("the running products are all 0: no episode is possible under the target")
    w, w2 = np.where(alive, steps.w, 1.0), np.where(alive, steps.w2, 1.0)
    ess = np.where(alive, w**2 / w2, np.nan)
    largest = np.where(alive, sums.n_episodes * steps.wmax / w, np.nan)
    return Curve(PRODUCTS, ess, largest)


def _marginal(basis: Basis, sums: Moments) -> Curve | Missing:
    solution = basis.solution(basis.marginal)
    if isinstance(solution, Missing):
        return Missing(f"the marginalized weights are not shown: {solution.why}")
    largest, why = _largest(basis, sums, solution)
    return Curve(MARGINAL, solution.ess, largest, why)


def _largest(basis: Basis, sums: Moments, solution: Solution) -> tuple[Floats | None, str]:
    """max over the rows of step t of ω = d_t(s) ρ/N_t(s), times n over Σω: the largest weight as a
    multiple of the mean; an episode that has ended weighs d_t(END)/N_t(END)."""
    nodes = solution.nodes
    assert nodes is not None
    horizon, n = len(solution.ess), sums.n_episodes
    if sums.hidden:
        return None, "with hidden states a weight belongs to a stretch of steps, not to one step"
    rows = _rows(basis, sums)
    if rows is None:
        return None, "the sums do not tell the largest ratio of a cell"
    t, s, rho, count = rows
    per_row = np.divide(
        nodes.target, nodes.visits, out=np.zeros_like(nodes.target), where=nodes.visits > 0
    )  # fmt: skip
    span = len(sums.states) + 1  # states and, at the last place, END
    place = {"node": nodes.t * span + np.where(nodes.s == END, span - 1, 0)}
    place["node"] += np.where(nodes.s >= 0, nodes.s, 0)
    order = np.argsort(place["node"], kind="stable")
    at = order[np.searchsorted(place["node"][order], t * span + s)]
    omega = per_row[at] * rho
    total = np.bincount(t, omega * count, horizon)[:horizon]
    most = np.zeros(horizon)
    np.maximum.at(most, t, omega)
    ended = (nodes.s == END) & (nodes.t < horizon)
    total[nodes.t[ended]] += nodes.target[ended]
    np.maximum.at(most, nodes.t[ended], per_row[ended])
    return np.where(total > 0, n * most / np.where(total > 0, total, 1.0), np.nan), ""


def _rows(basis: Basis, sums: Moments) -> tuple[Ints, Ints, Floats, Ints] | None:
    """(t, s, ρ, how often): the rows, or cells with the action where all rows of a cell have one
    ratio."""
    if basis.log is not None and basis.target is not None:
        steps = basis.log.steps
        rho = ratios(basis.log, basis.target, sums.about.max_ratio)[1]
        return steps.step, steps.state.astype(np.int64), rho, np.ones(steps.n_rows, np.int64)
    cells = sums.model
    if cells is None:
        return None
    mean = cells.rho / cells.n
    if np.any(np.abs(cells.rho2 - cells.rho * mean) > SAME * np.maximum(cells.rho2, 1e-300)):
        return None
    return cells.t, cells.s, mean, cells.n
