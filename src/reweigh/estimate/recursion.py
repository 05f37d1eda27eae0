"""The recursions: forward for the target's state distribution, backward for its values, and the
standard error that follows from both.

An estimate is a smooth function of group means. A row of group g moves it, to first order, by

    R = a0 + a_ρ ρ + a_z z + a_y y   through the reward's mean (over N rows)
    T = b ρ                          through the transition's mean (over the M rows that are known)

so that  SE² = Var[u_0(s_0) + g(s_0)]/n + Σ_g [ N Var(R) + M Var(T) + 2 M Cov_M(R, T) ]
with population variances within the group. Plain MIS: R = γ^t d z/N, T = γ^t d V' ρ/M, which is
Theorem 4.1's leading term over n when N = M. Of replicates (a second axis) every number is one of
each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import combinations_with_replacement
from operator import iadd
from typing import Any

import numpy as np

from reweigh.estimate.operators import OneStep, inverse
from reweigh.estimate.refusals import no_support
from reweigh.estimate.standard_error import lost_in_rounding
from reweigh.kernels import Bools, Floats, Ints, rowwise, tally
from reweigh.sums.keyed import TransitionMoments
from reweigh.system import divided

RewardTerm = Mapping[str, Floats]  # a per edge, by its factor: ONE, RHO, Z or Y
ONE, RHO, Z, Y = "one", "rho", "z", "y"
# The sums over a cell's rows of the products of two of them. Σzy is not among the sums: no term
# has both.
MOMENTS = {
    (ONE, ONE): "n", (ONE, RHO): "rho", (ONE, Z): "z", (ONE, Y): "y",
    (RHO, RHO): "rho2", (RHO, Z): "rhoz", (RHO, Y): "z",
    (Z, Z): "z2", (Y, Y): "y2",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Forward:
    """d_t^π over the nodes.

    d     (K,) the distribution, normalized if requested
    mass  (H,) c_t, the sum of d_t before dividing by it; 1 where nothing was divided
    total (H,) Σ_s d_t(s) without any normalization (nan where not complete)

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
        src, dst, prob, _ = op.edges.at(t)
        passed, first = tally(dst, d[here][src] * prob), here.stop
        d[first : first + len(passed)] += passed
        if op.ended_to[t] >= 0:  # END stays END
            d[op.ended_to[t + 1]] += d[op.ended_to[t]]
    if not op.complete[:-1].all():
        _refuse_if_nothing_is_left(op, d)
    return Forward(d, mass, total)


def _refuse(t: int, d: Floats, lost: Bools) -> None:
    """Raise where the log has nothing on the target at step t; of replicates those are nan."""
    if d.ndim == 1 and lost:
        raise no_support(t)
    if d.ndim > 1 and lost.any():
        d[:, lost] = np.nan


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
    """u over the nodes (V where nothing was normalized) and the value that an edge leads to.

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
    for t in range(op.horizon, -1, -1):
        here = op.nodes(t)
        if t < op.horizon:
            src, dst, prob, power = op.edges.at(t)
            ahead = prob * power * arriving[here.stop :][dst]
            u[here] = op.reward[here] + tally(src, ahead, here.stop - here.start)
            if op.ended_to[t] >= 0:
                u[op.ended_to[t]] += op.discount * arriving[op.ended_to[t + 1]]
        arriving[here] = u[here]
        if normalized is not None and 0 < t < op.horizon:
            d, c = normalized.d[here], normalized.mass[t]
            mean = np.where(op.complete[t], (d * u[here]).sum(axis=0), 0.0)
            arriving[here] = (u[here] - mean) / c
    return Backward(u, arriving)


# ---- the standard error ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Derivatives:
    """How the value moves: per group through its reward (D), per edge through its move (U).

    D_g = Σ_t γ^t d_t(s) share        U_e = Σ_t γ^t d_t(s) share γ^{t'-t} V_{t'}(s')
    """

    reward: Floats  # (G,)
    move: Floats  # (E,)


def derivatives(op: OneStep, flow: Forward, back: Backward) -> Derivatives:
    groups, per_replicate = op.groups, flow.d.shape[1:]
    through_reward = np.zeros((len(groups.share), *per_replicate))
    share = groups.share[groups.of]
    to = rowwise(op.dst >= 0, flow.d)
    if op.edge_offsets is not None:
        powers = op.discount ** np.arange(op.horizon + 1)
        # In place: a log's cells may be as many as memory allows.
        here = flow.d[op.src]
        here *= rowwise(powers[op.node_t[op.src]], here)
        here *= share
        # every edge of a group starts at the group's node: write D once, not once per edge
        through_reward[groups.of] = here
        arriving = np.where(to, back.next_value[op.dst], 0.0)
        arriving *= rowwise(powers[op.gap], here)
        here *= arriving
        return Derivatives(through_reward, here)
    # pooled: the same edges at every step
    visited = np.zeros((op.nodes(0).stop, *per_replicate))
    moved = np.zeros((len(op.src), *per_replicate))
    for t in range(op.horizon):
        now = op.discount**t * flow.d[op.nodes(t)]
        visited += now
        moved += now[op.src] * back.next_value[op.nodes(t + 1)][op.dst]
    through_reward[groups.of] = visited[op.src] * share
    return Derivatives(through_reward, np.where(to, moved * share * op.discount, 0.0))


def logged_reward(op: OneStep, D: Floats) -> RewardTerm:
    """R = D z/N, or D (z - r̂ρ)/Σρ when self-normalized."""
    groups = op.groups
    per_row = divided(D, groups.reward_by)[groups.of]
    if not op.self_normalized:
        return {Z: per_row}
    mean = divided(groups.sum(op.cells.z), groups.reward_by)[groups.of]
    return {RHO: -per_row * mean, Z: per_row}


def pooled_reward(op: OneStep, D: Floats, mean_reward: Floats, cell: Ints) -> RewardTerm:
    """Rewards averaged over (s, a) at all times, r̄: the value is Σ_{s,a} C(s,a) r̄(s,a), with
    C(s,a) = Σ_t γ^t d_t(s) Σρ/N. A row adds D ρ r̄/N, and C/n(s,a) (y - r̄) through r̄ itself.

    `mean_reward` (E,) is r̄ of each edge, `cell` (E,) its (s, a).
    """
    groups = op.groups
    per_row = divided(D, groups.reward_by)[groups.of]
    rho = op.cells.rho
    a_rho = per_row * mean_reward
    if op.self_normalized:
        mean = divided(groups.sum(rho * mean_reward), groups.reward_by)[groups.of]
        a_rho = per_row * (mean_reward - mean)
    use = tally(cell, per_row * rho)  # C(s,a)
    share = divided(use, tally(cell, op.cells.n))[cell]
    return {ONE: -share * mean_reward, RHO: a_rho, Y: share}


@dataclass(frozen=True, eq=False)
class Squared:
    """SE², its parts per group and of the start, and whether rounding has destroyed it."""

    total: Any  # float, of replicates (m,); likewise start and scale
    per_group: Floats
    start: Any
    scale: Any  # the size of the terms it is a difference of

    @property
    def lost(self) -> Any:
        return lost_in_rounding(self.total, self.scale)

    @property
    def error(self) -> float | None:
        return None if self.lost else float(np.sqrt(self.total))

    @property
    def errors(self) -> Floats:
        """(m,) of replicates, nan where rounding has destroyed it."""
        return np.sqrt(np.where(self.lost, np.nan, self.total))


def move_slopes(op: OneStep, moved: Derivatives) -> Floats:
    """(E,) b of T = b ρ: U/M, or (U - mean of U)/Σρ when self-normalized; 0 where s' is unknown."""
    groups, known, move = op.groups, op.known, moved.move
    if op.self_normalized:
        rho = np.where(known, op.cells.rho, 0.0)
        move = move - divided(groups.sum(rho * move), groups.move_by)[groups.of]
    b = move * inverse(groups.move_by)[groups.of]
    return b if known.all() else np.where(known, b, 0.0)


def squared_error(op: OneStep, back: Backward, moved: Derivatives, term: RewardTerm) -> Squared:
    """SE² from the sums."""
    groups, c, known = op.groups, op.cells, op.known
    b = move_slopes(op, moved)
    N, M = groups.visits, groups.moves
    # One array over the edges at a time: a log's cells may be as many as memory allows.
    first = _times(c, term, ONE)
    sum_r = groups.sum(first)
    sum_r_known = sum_r if known.all() else groups.sum(np.where(known, first, 0.0))
    sum_t = groups.sum(b * c.rho)
    del first
    squares = _squared(c, term)
    scale = np.abs(squares).sum(axis=0)
    var_r = groups.sum(squares) - divided(sum_r**2, N)  # N Var(R)
    squares = b * b * c.rho2
    scale = scale + squares.sum(axis=0)
    var_t = groups.sum(squares) - divided(sum_t**2, M)
    del squares
    cov = groups.sum(b * _times(c, term, RHO)) - divided(sum_r_known * sum_t, M)
    # Cancellation may leave a variance of 0 slightly negative.
    per_group = np.maximum(var_r + var_t + 2 * cov, 0.0)
    start = start_variance(op, back)
    square = start + per_group.sum(axis=0)
    u, at = back.u[op.start_node], op.start
    at_start = (u**2 * at.n + 2 * np.abs(u * at.g) + at.g2).sum(axis=0) / op.n_episodes**2
    return Squared(square, per_group, start, scale + at_start)


def with_share_noise(op: OneStep, flow: Forward, back: Backward, square: Squared) -> Squared:
    """SE² of a model whose shares are ratios, π̄(a) = Σ1{a}ρ/R with R = Σρ of the (t, s).

    A row of (t, s, a) changes V_t(s) = Σ_a π̄(a) Q(a) by ρ (Q(a) - V)/R through the shares, besides
    its effect through Q(a). With B = γ^t d_t(s) (Q(a) - V)/R its part of SE² grows by

        B² Σρ² + 2 B γ^t d_t(s) π̄(a) [Σρ(y - r̂)/N + Σρ(γV' - m)/M],   Q = r̂ + m, m = mean γV'
    """
    assert op.plain is not None
    groups, c, ratios = op.groups, op.cells, op.plain.cells
    node = op.node_of_group
    visited = (rowwise(op.discount**op.node_t, flow.d) * flow.d)[node]
    ahead = np.where(rowwise(op.dst >= 0, back.u), back.u[op.dst], 0.0)
    ahead = ahead * rowwise(op.discount**op.gap, ahead)
    ahead = np.where(op.known, ahead, 0.0)
    known_rho = np.where(op.known, ratios.rho, 0.0)
    r = divided(groups.sum(c.y), groups.visits)
    m = divided(groups.sum(c.rho * ahead), groups.moves)
    rho = groups.sum(ratios.rho)
    B = visited * divided(r + m - back.u[node], tally(node, rho, len(op.node_t))[node])
    through_q = divided(groups.sum(ratios.z) - r * rho, groups.visits)
    through_q += divided(groups.sum(known_rho * ahead) - m * groups.sum(known_rho), groups.moves)
    noise = B**2 * groups.sum(ratios.rho2)
    more = noise + 2 * B * visited * groups.share * through_q
    per_group = np.maximum(square.per_group + more, 0.0)
    total = square.start + per_group.sum(axis=0)
    return Squared(total, per_group, square.start, square.scale + noise.sum(axis=0))


def _times(c: TransitionMoments, term: RewardTerm, other: str) -> Floats:
    """(E,) the sums over every cell's rows of R times ONE, or times RHO."""
    return _added(a * moment(c, name, other) for name, a in term.items())


def _squared(c: TransitionMoments, term: RewardTerm) -> Floats:
    """(E,) ΣR² over every cell's rows."""
    return _added(
        (1.0 if one == other else 2.0) * term[one] * term[other] * moment(c, one, other)
        for one, other in combinations_with_replacement(term, 2)
    )


def _added(parts: Iterable[Floats]) -> Floats:
    """Σ parts, written over the first."""
    return reduce(iadd, parts)


def moment(c: TransitionMoments, one: str, other: str) -> Floats:
    """(E,) the sums of the products of two of ONE, RHO, Z and Y."""
    sums: Floats = getattr(c, MOMENTS.get((one, other)) or MOMENTS[other, one])
    return sums


def start_variance(op: OneStep, back: Backward) -> Any:
    """Var[u_0(s_0) + g(s_0)]/n."""
    u, start, n = back.u[op.start_node], op.start, op.n_episodes
    mean = (u * start.n + start.g).sum(axis=0) / n
    square = (u * u * start.n + 2 * u * start.g + start.g2).sum(axis=0) / n
    return np.maximum(square - mean * mean, 0.0) / n
