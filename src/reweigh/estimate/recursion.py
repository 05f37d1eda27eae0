"""The recursions: forward for the target's state distribution, backward for its values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reweigh.errors import SupportError
from reweigh.estimate.operators import OneStep
from reweigh.kernels.groups import inner, tally

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Forward:
    """d_t^π over the nodes.

    d     (K,) the distribution, normalised where asked
    mass  (H,) c_t, the sum of d_t before dividing by it; 1 where nothing was divided
    total (H,) what Σ_s d_t(s) would be without any normalisation (nan where not complete)
    """

    d: Floats
    mass: Floats
    total: Floats


def forward(op: OneStep, *, simplex: bool) -> Forward:
    """d_{t+1}(s') = Σ_s P̂_t(s'|s) d_t(s), divided by its sum c_{t+1} if `simplex`."""
    d = op.initial.copy()
    mass = np.ones(op.horizon)
    total = np.full(op.horizon, np.nan)
    scale = 1.0
    short = op.short_edges
    for t in range(op.horizon):
        here = op.nodes(t)
        if op.complete[t]:
            c = float(d[here].sum())
            total[t] = scale * c
            if simplex and t > 0 and c > 0:
                d[here] /= c
                mass[t] = c
                scale *= c
        if op.complete[t] and not inner(d[here], op.placebo[here]) > 0:
            raise no_support(t)  # no row here that the target could have made
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
    alive = np.zeros(op.horizon + 2)
    np.add.at(alive, op.node_t, d)
    flow = d[op.src] * op.prob
    change = np.zeros(op.horizon + 2)
    np.add.at(change, op.node_t[op.src] + 1, flow)
    np.add.at(change, op.node_t[op.src] + op.gap, -flow)
    left = alive + np.cumsum(change)
    for t in range(op.horizon):
        if not left[t] > 1e-300:
            raise no_support(t)


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
    u = np.zeros(len(op.node_t))
    arriving = np.zeros(len(op.node_t))
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
                ahead = (op.prob[e] * op.discount ** op.gap[e])[to] * arriving[dst]
            u[here] = op.reward[here] + tally(src, ahead, here.stop - here.start)
            if op.ended_to[t] >= 0:
                u[op.ended_to[t]] += op.discount * arriving[op.ended_to[t + 1]]
        if normalized is not None and 0 < t < op.horizon and op.complete[t]:
            d, c = normalized.d[here], normalized.mass[t]
            arriving[here] = (u[here] - inner(d, u[here])) / c
        else:
            arriving[here] = u[here]
    return Backward(u, arriving)
