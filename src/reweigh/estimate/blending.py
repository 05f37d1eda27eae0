"""MAGIC (Thomas and Brunskill 2016): estimates that weigh j steps and leave the rest to a model.

With the shaped rewards y = r - Q + γV' of WDR (or MDR), p_t what step t adds to it and ḡ the mean
of V_0(s_0), the value of the model,

    g_j = ḡ + Σ_{t<j} p_t        j = 0: the model;  j = H: WDR
    v̂   = Σ_j x_j g_j = ḡ + Σ_t X_t p_t,   X_t = Σ_{j>t} x_j
    x   = argmin xᵀ(Ω̂ + b̂b̂ᵀ)x  over x ≥ 0, Σ x = 1

so that a blend is WDR on the rewards X_t y_t. b̂_j is the signed distance of g_j to the 50 %
interval of g_H, normal with the error of Ω̂ (the paper draws it by a bootstrap). Ω̂ is the covariance
of the g_j: with running products that of what the episodes add, as in the paper; with marginalized
weights that of their influence values, computed from the sums by cell.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reweigh.errors import RefusedError, SupportError
from reweigh.estimate.operators import cells_of, importance_operator
from reweigh.estimate.recursion import forward
from reweigh.estimate.refusals import overflow
from reweigh.estimate.solution import earned
from reweigh.kernels import Floats, Ints, tally
from reweigh.log.log import EpisodeLog
from reweigh.sums.keyed import StartMoments
from reweigh.sums.moments import Moments

MOST_LENGTHS = 25
HALF = 0.6744897501960817  # the normal's quantile of 75 %: of an interval of 50 %
RIDGE = 1e-9  # of the mean variance: estimates that are the same have no unique blend


def steps_blended(lengths: tuple[float, ...], horizon: int) -> Ints:
    """(J,) the j, increasing; at most the horizon."""
    if lengths:
        return np.unique(np.minimum(lengths, horizon).astype(np.int64))
    return np.unique(np.linspace(0, horizon, min(horizon + 1, MOST_LENGTHS)).round().astype(int))


@dataclass(frozen=True, eq=False)
class Lengths:
    """The estimates (J,) by how many steps they weigh, and their covariance (J, J). The last one
    weighs all steps, whether it is blended or not."""

    value: Floats
    covariance: Floats

    def shares(self, steps: Ints, blended: Ints, horizon: int) -> Floats:
        """(H,) X_t of the blend of those of the `steps` (J,) that are `blended`."""
        from scipy.optimize import nnls

        center, error = self.value[-1], np.sqrt(max(self.covariance[-1, -1], 0.0))
        off = self.value - center
        bias = np.sign(off) * np.maximum(np.abs(off) - HALF * error, 0.0)
        at = np.searchsorted(steps, blended)
        square = (self.covariance + np.outer(bias, bias))[np.ix_(at, at)]
        if not np.isfinite(square).all():
            raise overflow()
        scale = float(np.trace(square)) / len(at)
        if not scale > 0:  # they do not differ, and none varies
            return np.where(np.arange(horizon) < blended[-1], 1.0, 0.0)
        root, turn = np.linalg.eigh(square / scale + RIDGE * np.eye(len(at)))
        # min |Ly|² + (Σy - 1)² over y ≥ 0 has its minimum at a multiple of x
        rows = np.vstack([np.sqrt(np.maximum(root, 0.0))[:, None] * turn.T, np.ones(len(at))])
        y = nnls(rows, np.append(np.zeros(len(at)), 1.0))[0]
        return np.asarray((blended[:, None] > np.arange(horizon)).T @ (y / y.sum()), np.float64)


def shares_of(
    lengths: tuple[float, ...], horizon: int, estimates: Callable[[Ints], Lengths]
) -> Floats:
    """(H,) X_t, from the estimates of these lengths and of the horizon."""
    blended = steps_blended(lengths, horizon)
    steps = np.union1d(blended, horizon)
    return estimates(steps).shares(steps, blended, horizon)


def of_sums(lengths: tuple[float, ...], shaped: Moments) -> Floats:
    """(H,) X_t of sums with shaped rewards; of replicates (H, m)."""
    horizon, n = shaped.about.horizon, shaped.start.n
    if n.ndim == 1:
        return shares_of(lengths, horizon, lambda steps: by_cells(shaped, steps))
    kept = np.ones((horizon, n.shape[1]))
    for b in np.flatnonzero(n.sum(axis=0) > 0):
        with suppress(SupportError):  # the solver says so
            kept[:, b] = of_sums(lengths, _replicate(shaped, int(b)))
    return kept


def _replicate(shaped: Moments, b: int) -> Moments:
    def one(table: Any) -> Any:
        across = {name: v for name, v in table.arrays().items() if v.ndim == 2}
        column = {name: v[:, min(b, v.shape[1] - 1)] for name, v in across.items()}
        return table.holding(table.arrays() | column)

    return replace(shaped, transitions=one(shaped.transitions), start=one(shaped.start))


def by_products(log: EpisodeLog, weight: Floats, steps: Ints) -> Lengths:
    """Of a log with shaped rewards, and (N,) n times the weight of every row: γ^t ρ_{0:t} over its
    mean. An episode adds G_j = g + Σ_{t<j} n w_t y_t; Ω̂ is the covariance of G over n."""
    n, earned = log.n_episodes, weight * log.steps.reward
    assert log.steps.start_value is not None
    total, columns = log.steps.start_value.copy(), []
    for t in range(log.horizon + 1):
        if t in steps:
            columns.append(total.copy())
        if t < log.horizon:
            rows = log.steps.rows(t)
            total[: rows.stop - rows.start] += earned[rows]
    G = np.stack(columns)
    omega = np.ones(n) if log.steps.relative_weight is None else log.steps.relative_weight
    value = G @ omega / n
    off = omega * (G - value[:, None])
    return Lengths(value, off @ off.T / (n * max(n - 1, 1)))


def by_cells(shaped: Moments, steps: Ints) -> Lengths:
    """Of sums with shaped rewards. The estimate of j steps is MIS whose rewards are 0 from step j
    on; the sums tell their covariance as they tell the square of one (`recursion.py`): a row adds
    γ^t d_t(s)/n_t(s) [1{t < j} z + γ ρ u'_j(s')], less its mean in (t, s)."""
    if shaped.hidden:
        text = "the steps of a stretch of hidden states share one sum, and MAGIC cuts between them;"
        raise RefusedError("hidden", f"{text} use magic(), or mdr()")
    cells, start = cells_of(shaped, "transitions")
    op = importance_operator(cells, start, shaped.about.horizon, shaped.about.discount)
    flow, bounds, c = forward(op, simplex=True), op.edge_offsets, op.cells
    assert bounds is not None
    g = op.start.g.sum() / op.n_episodes
    parts = np.concatenate([[g], earned(op, flow, op.reward)])
    covariance = np.zeros((len(steps), len(steps)))
    last = op.nodes(op.horizon)
    none = np.zeros((1, len(steps)))  # after the horizon, and where the next state is not known
    ahead = np.repeat(none, last.stop - last.start + 1, axis=0)  # u'_j of the step after, and none
    for t in range(op.horizon - 1, -1, -1):
        e, k = slice(int(bounds[t]), int(bounds[t + 1])), op.nodes(t)
        node, to, weighs = op.src[e] - k.start, op.dst[e], (steps > t).astype(np.float64)
        a = ahead[np.where(to >= 0, to - k.stop, -1)] * op.discount
        size = k.stop - k.start
        u = op.reward[k][:, None] * weighs + tally(node, op.prob[e][:, None] * a, size)
        if op.ended_to[t] >= 0:
            u[op.ended_to[t] - k.start] += op.discount * ahead[op.ended_to[t + 1] - k.stop]
        per_row = op.discount**t * flow.d[k] / np.maximum(op.visits[k], 1.0)
        w2 = (per_row**2)[node]
        mixed = np.outer(weighs, (w2 * c.rhoz[e]) @ a)
        covariance += mixed + mixed.T + (w2 * c.z2[e]).sum() * np.outer(weighs, weighs)
        covariance += (a * (w2 * c.rho2[e])[:, None]).T @ a
        total = tally(node, c.z[e][:, None] * weighs + c.rho[e][:, None] * a, size)
        total *= (per_row / np.sqrt(np.maximum(op.visits[k], 1.0)))[:, None]
        covariance -= total.T @ total
        ahead = np.vstack([u if t == 0 else (u - flow.d[k] @ u) / flow.mass[t], none])
    covariance += _of_start(op.start, ahead[op.start_node], op.n_episodes)
    return Lengths(np.cumsum(parts)[steps], covariance)


def _of_start(start: StartMoments, u: Floats, n: int) -> Floats:
    """(J, J) the covariance of u_0(s_0) + g over n, u (S, J) of the first states."""
    mean = (start.n @ u + start.g.sum()) / n
    mixed = np.broadcast_to(start.g @ u, (len(mean),) * 2)
    square = (u * start.n[:, None]).T @ u + mixed + mixed.T + start.g2.sum()
    return np.asarray((square / n - np.outer(mean, mean)) / n)
