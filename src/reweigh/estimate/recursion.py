"""The recursions: forward for the target's state distribution, backward for its values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.errors import SupportError
from reweigh.estimate.operators import OneStep
from reweigh.kernels.groups import rowwise, tally

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Forward:
    """d_t^π over the nodes.

    d     (K,) the distribution, normalised where asked
    mass  (H,) c_t, the sum of d_t before dividing by it; 1 where nothing was divided
    total (H,) what Σ_s d_t(s) would be without any normalisation (nan where not complete)

    Of m replicates all of them have a second axis; a replicate without overlap is nan from the step
    on from which it has none.
    """

    d: Floats
    mass: Floats
    total: Floats


def forward(op: OneStep, *, simplex: bool) -> Forward:
    """d_{t+1}(s') = Σ_s P̂_t(s'|s) d_t(s), divided by its sum c_{t+1} if `simplex`."""
    d = op.initial.copy()
    steps = op.horizon, *d.shape[1:]
    mass, total = np.ones(steps), np.full(steps, np.nan)
    scale = np.ones(d.shape[1:])
    short = op.short_edges
    for t in range(op.horizon):
        here, complete = op.nodes(t), op.complete[t]
        if complete.any():
            c = d[here].sum(axis=0)
            total[t] = np.where(complete, scale * c, np.nan)
            if simplex and t > 0:
                mass[t] = np.where(complete & (c > 0), c, 1.0)
                d[here] /= mass[t]
                scale = scale * mass[t]
            # no row here that the target could have made
            _refuse(t, d[here], complete & ~((d[here] * op.placebo[here]).sum(axis=0) > 0))
        if short is not None:
            src, dst, prob = short.at(t)
            after = op.nodes(t + 1)
            d[after] += tally(dst, d[here][src] * prob, after.stop - after.start)
        else:
            e, src, dst = op.edges(t)
            to = dst >= 0
            np.add.at(d, dst[to], (d[src] * op.prob[e])[to])
        if op.ended_to[t] >= 0:  # END stays END
            d[op.ended_to[t + 1]] += d[op.ended_to[t]]
    if not op.complete[:-1].all():
        _refuse_if_nothing_is_left(op, d)
    return Forward(d, mass, total)


def _refuse(t: int, d: Floats, lost: npt.NDArray[np.bool_]) -> None:
    """Raise where the log has nothing on the target at step t; of replicates those are nan."""
    if d.ndim == 1 and lost:
        raise no_support(t)
    if d.ndim > 1 and lost.any():
        d[:, lost] = np.nan


def no_support(t: int) -> SupportError:
    return SupportError(
        "no-overlap",
        f"from step {t} on, no logged episode is possible under the target policy: nothing in "
        "this log says what it would earn there. Restrict the target, shorten the horizon, or "
        "log more",
    )


def overflow() -> SupportError:
    return SupportError(
        "overflow", "ratios of this size exceed what a number can hold; clip them (max_ratio)"
    )


def _refuse_if_nothing_is_left(op: OneStep, d: Floats) -> None:
    """With hidden states: mass at observed nodes and in stretches under way, at every step."""
    size, leaves = op.horizon + 2, op.node_t[op.src]
    flow = d[op.src] * op.prob
    change = tally(leaves + 1, flow, size) - tally(leaves + op.gap, flow, size)
    left = tally(op.node_t, d, size) + np.cumsum(change, axis=0)
    for t in range(op.horizon):
        _refuse(t, d, ~(left[t] > 1e-300))


@dataclass(frozen=True, eq=False)
class Backward:
    """u over the nodes (V where nothing was normalised) and the value that an edge leads to.

    next_value  value of arriving at a node: V_{t'}(s'), or (u_{t'}(s') - <d_{t'}, u_{t'}>)/c_{t'}
    """

    u: Floats
    next_value: Floats


def backward(op: OneStep, normalized: Forward | None = None) -> Backward:
    """V_t(s) = r_t(s) + Σ_{s'} P̂_t(s'|s) γ^{t'-t} V_{t'}(s'), V_H = 0.

    With a `normalized` forward recursion, its adjoint: V_{t'} gives way to
    (u_{t'}(s') - <d_{t'}, u_{t'}>)/c_{t'} wherever d_{t'} was divided by c_{t'}.
    """
    u, arriving = np.zeros_like(op.initial), np.zeros_like(op.initial)
    short = op.short_edges
    for t in range(op.horizon, -1, -1):
        here = op.nodes(t)
        if t < op.horizon:
            if short is not None:
                src, dst, prob = short.at(t)
                ahead = op.discount * prob * arriving[op.nodes(t + 1)][dst]
            else:
                e, src, dst = op.edges(t)
                to = dst >= 0
                src, dst = src[to] - here.start, dst[to]
                powers = rowwise(op.discount ** op.gap[e], u)
                ahead = (op.prob[e] * powers)[to] * arriving[dst]
            u[here] = op.reward[here] + tally(src, ahead, here.stop - here.start)
            if op.ended_to[t] >= 0:
                u[op.ended_to[t]] += op.discount * arriving[op.ended_to[t + 1]]
        arriving[here] = u[here]
        if normalized is not None and 0 < t < op.horizon:
            d, c = normalized.d[here], normalized.mass[t]
            mean = np.where(op.complete[t], (d * u[here]).sum(axis=0), 0.0)
            arriving[here] = (u[here] - mean) / c
    return Backward(u, arriving)


@dataclass(frozen=True, eq=False)
class Replicated:
    """An estimator on m replicates of a log.

    values   (m,) nan where the replicate is refused
    errors   (m,) standard errors, nan where there is none; None if not asked for
    refused  (m,) the code of the refusal, empty where there is none
    """

    values: Floats
    errors: Floats | None
    refused: npt.NDArray[Any]

    @classmethod
    def of(cls, values: Floats, errors: Floats | None, *reasons: tuple[str, Any]) -> Replicated:
        """With the replicates (m,) that are refused, by code, the first reason first."""
        refused = np.where(np.isfinite(values), "", "overflow").astype(object)
        return cls(values, errors, refused).but(*reasons)

    def but(self, *reasons: tuple[str, Any]) -> Replicated:
        """With other replicates that are refused, for reasons that come before those there are."""
        refused = self.refused.copy()
        for code, which in reversed(reasons):
            refused[which] = code
        fine = refused == ""
        errors = None if self.errors is None else np.where(fine, self.errors, np.nan)
        return Replicated(np.where(fine, self.values, np.nan), errors, refused)
