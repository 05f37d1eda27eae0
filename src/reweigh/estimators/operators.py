"""One-step operators: how the target moves and what it earns, from the sums.

MIS:  P̂_t(s'|s) = Σρ(s,s') / n_t(s)          r̂_t(s) = Σ ρ r / n_t(s)
DM:   P̂_t(s'|s) = Σ_a π(a|s) n(s,a,s')/n(s,a)  r̂_t(s) = Σ_a π(a|s) Σr/n(s,a)

Both are sums over *groups* of rows that share a divisor: (t, s) for MIS, (t, s, a) with the share
π(a|s) for DM, (s) when pooled over time. The recursion does not know which one it runs on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError
from reweigh.logs.states import END, UNKNOWN
from reweigh.moments.groups import group_by, tally
from reweigh.moments.transitions import StartMoments, TransitionMoments, summed

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
SEEN_ENOUGH, DEFICIT_ERRORS = 10, 4.0


@dataclass(frozen=True, eq=False)
class Groups:
    """Rows that share a divisor, G of them; E cells (edges) belong to them.

    of         (E,) group of each edge
    share      (G,) probability with which the target uses the group: π(a|s), else 1
    visits     (G,) N, rows of the group: the divisor of rewards
    moves      (G,) M, rows whose next state is known: the divisor of transitions
    reward_by  (G,) what reward sums are divided by: N, or Σρ when self-normalised
    move_by    (G,) likewise for transitions
    """

    of: Ints
    share: Floats
    visits: Floats
    moves: Floats
    reward_by: Floats
    move_by: Floats

    def sum(self, values: Floats) -> Floats:
        return tally(self.of, values, len(self.share))


@dataclass(frozen=True, eq=False)
class OneStep:
    """The one-step operator over nodes: the observed (t, s), END and the states at H included.

    node_t, node_s  (K,) in increasing order of t; offsets (H+2,) nodes of step t
    initial         (K,) d_0
    reward          (K,) r̂_t(s)
    placebo         (K,) r̂_t(s) if every reward were 1
    visits          (K,) logged rows (or ended episodes) at the node
    covered         (K,) share of the target's mass at the node that the log can carry on: for
                    MIS the mean ratio where it is below 1 beyond its error (0 where no row is
                    possible under the target), for a model the probability of the actions seen
    step_cells      pooled: the cells before the steps were forgotten, for what is told per step
    conserves       True where d_t does not shrink by what is not covered (self-normalised)
    src, dst        (E,) nodes of an edge (dst -1: the next state is not known); pooled: states
    prob            (E,) P̂(dst|src), the target's share included
    gap             (E,) t' - t
    complete        (H+1,) True where every living episode is observed: only there is d_t a
                    distribution that may be normalised
    """

    horizon: int
    discount: float
    node_t: Ints
    node_s: Ints
    offsets: Ints
    initial: Floats
    start: StartMoments
    start_node: Ints
    reward: Floats
    placebo: Floats
    visits: Floats
    covered: Floats
    cells: TransitionMoments
    groups: Groups
    known: npt.NDArray[np.bool_]
    src: Ints
    dst: Ints
    prob: Floats
    gap: Ints
    edge_offsets: Ints | None  # None: pooled, the same edges at every step
    ended_to: Ints  # (H+1,) node of END at step t, -1 where there is none
    complete: npt.NDArray[np.bool_]
    self_normalized: bool
    conserves: bool
    step_cells: TransitionMoments | None = None

    def nodes(self, t: int) -> slice:
        return slice(int(self.offsets[t]), int(self.offsets[t + 1]))

    def edges(self, t: int) -> tuple[slice, Ints, Ints]:
        """Edges that leave step t: their places, and their nodes."""
        if self.edge_offsets is None:
            base, after = int(self.offsets[t]), int(self.offsets[t + 1])
            return slice(0, len(self.src)), self.src + base, _shifted(self.dst, after)
        e = slice(int(self.edge_offsets[t]), int(self.edge_offsets[t + 1]))
        return e, self.src[e], self.dst[e]

    @property
    def n_episodes(self) -> int:
        return int(self.start.n.sum())


def _shifted(nodes: Ints, by: int) -> Ints:
    return np.where(nodes >= 0, nodes + by, nodes)


def importance_operator(
    cells: TransitionMoments,
    start: StartMoments,
    horizon: int,
    discount: float,
    *,
    per_state: bool = False,
    reward_sums: Floats | None = None,
) -> OneStep:
    """The paper's operator (MIS). `reward_sums` replaces Σρr per cell (averaged rewards)."""
    groups = group_by([cells.t, cells.s]).index()
    share = np.ones(int(groups.max()) + 1)
    return _operator(cells, start, horizon, discount, groups, share, per_state, reward_sums)


def model_operator(
    cells: TransitionMoments, start: StartMoments, horizon: int, discount: float, *, renorm: bool
) -> OneStep:
    """The model's operator (DM): every ratio is 1 within (t, s, a), whose share is π(a|s)."""
    found = group_by([cells.t, cells.s, cells.a])
    groups = found.index()
    share = probability = found.sum(cells.pi) / found.sum(cells.n)
    if renorm:
        at = group_by([found.keys[0], found.keys[1]])
        total = at.sum(share)[at.index()]
        share = np.where(total > 0, share / np.where(total > 0, total, 1), 0.0)
    n = cells.n.astype(np.float64)
    counted = replace(cells, rho=n, rho2=n, one=n, z=cells.y, rhoz=cells.y, z2=cells.y2)
    op = _operator(counted, start, horizon, discount, groups, share, False, None, probability)
    return replace(op, conserves=renorm)


def _operator(
    cells: TransitionMoments,
    start: StartMoments,
    horizon: int,
    discount: float,
    group_of: Ints,
    share: Floats,
    per_state: bool,
    reward_sums: Floats | None,
    probability: Floats | None = None,
) -> OneStep:
    order = np.lexsort((cells.s, cells.t))
    cells = _reordered(cells, order)
    group_of = group_of[order]
    rewards = cells.z if reward_sums is None else reward_sums[order]
    # A tail that is hidden or not logged up to the horizon is known to end there, with value 0.
    known = (cells.s_next != UNKNOWN) | (cells.t_next >= horizon)
    groups = _groups(cells, group_of, share, known, per_state)

    at_end = np.flatnonzero(cells.s_next == END)
    first_end = int(cells.t_next[at_end].min()) if len(at_end) else horizon + 1
    end_t = np.arange(first_end, horizon + 1)
    reached = cells.s_next != UNKNOWN
    keys = np.concatenate(
        [
            np.stack([cells.t, cells.s], axis=1),
            np.stack([cells.t_next, cells.s_next], axis=1)[reached],
            np.stack([end_t, np.full(len(end_t), END)], axis=1),
            np.stack([np.zeros(len(start.s), np.int64), start.s], axis=1),
        ]
    )
    found = group_by([keys[:, 0], keys[:, 1]])
    node_t, node_s = found.keys
    index = found.index()
    src = index[: len(cells)]
    dst = np.full(len(cells), -1, np.int64)
    dst[reached] = index[len(cells) : len(cells) + int(reached.sum())]
    after = len(cells) + int(reached.sum())
    end_node = index[after : after + len(end_t)]
    start_node = index[after + len(end_t) :]
    n_nodes = len(found)
    ended_to = np.full(horizon + 1, -1, np.int64)
    ended_to[end_t] = end_node
    weight = groups.share[group_of]
    prob = weight * np.where(known, cells.rho, 0.0) * _inverse(groups.move_by)[group_of]
    scale = weight * _inverse(groups.reward_by)[group_of]
    placebo = tally(src, cells.one * scale, n_nodes)
    placebo[end_node] = 1.0  # END earns the placebo's 1 at every step, END included
    visits = tally(src, cells.n.astype(float), n_nodes)
    visits[end_node] = _ended_by(cells, end_t)
    covered = _covered(cells, known, src, n_nodes)
    if probability is not None:
        used = groups.moves > 0
        node_of = np.zeros(len(share), np.int64)
        node_of[group_of] = src
        covered = tally(node_of[used], probability[used], n_nodes)
    covered[(node_s == END) | (node_t == horizon)] = 1.0
    return OneStep(
        horizon=horizon,
        discount=discount,
        node_t=node_t,
        node_s=node_s,
        offsets=np.searchsorted(node_t, np.arange(horizon + 2)),
        initial=tally(start_node, start.n / start.n.sum(), n_nodes),
        start=start,
        start_node=start_node,
        reward=tally(src, rewards * scale, n_nodes),
        placebo=placebo,
        visits=visits,
        covered=covered,
        cells=cells,
        groups=groups,
        known=known,
        src=src,
        dst=dst,
        prob=prob,
        gap=cells.t_next - cells.t,
        edge_offsets=np.searchsorted(cells.t, np.arange(horizon + 1)),
        ended_to=ended_to,
        complete=_complete(cells, horizon),
        self_normalized=per_state,
        conserves=per_state,
    )


def pooled_operator(
    cells: TransitionMoments,
    start: StartMoments,
    horizon: int,
    discount: float,
    *,
    per_state: bool = False,
    reward_sums: Floats | None = None,
) -> OneStep:
    """MIS pooled over time: one P̂(s'|s) and one r̂(s) from all steps, run for H steps.

    Transitions of the last step count only if all of their next states are known, since they
    would otherwise be a selection.
    """
    if np.any(cells.t_next - cells.t != 1):
        raise RefusedError(
            "hidden", "pooling over time needs every state observed; use mis() without pooled"
        )
    final = cells.t == horizon - 1
    use_final = not np.any(final & (cells.s_next == UNKNOWN))
    at_step, ended_by = cells, _ended_by(cells, np.arange(horizon + 1))
    # From here on a cell is (s, [a,] s') at any step: the work of a step is that of the states.
    followed = (cells.s_next != UNKNOWN) & (use_final | ~final)
    key = [cells.s, cells.a, np.where(followed, cells.s_next, UNKNOWN)]
    if reward_sums is not None:
        reward_sums = group_by(key).sum(reward_sums)
    zero = np.zeros(len(cells), np.int64)
    cells = summed(replace(cells, block=zero, t=zero, t_next=zero + 1, s_next=key[2]))
    known = cells.s_next != UNKNOWN
    seen = np.unique(np.concatenate([cells.s, cells.s_next[known], start.s, [END]]))
    n_states = len(seen)
    src = np.searchsorted(seen, cells.s)
    dst = np.where(known, np.searchsorted(seen, cells.s_next), -1)
    groups = _groups(cells, group_by([src]).index(), None, known, per_state)
    prob = np.where(known, cells.rho, 0.0) * _inverse(groups.move_by)[groups.of]
    rewards = cells.z if reward_sums is None else reward_sums
    scale = _inverse(groups.reward_by)[groups.of]
    placebo = tally(src, cells.one * scale, n_states)
    end = int(np.searchsorted(seen, END))
    placebo[end] = 1.0
    # At the last step nothing needs to be carried on; before it a state without moves loses all.
    last = _covered(cells, np.ones(len(cells), bool), src, n_states)
    covered = np.tile(np.where(tally(src, prob, n_states) > 0, last, 0.0), (horizon + 1, 1))
    covered[horizon - 1] = last
    covered[:, end] = covered[horizon] = 1.0
    start_node = np.searchsorted(seen, start.s)
    steps = horizon + 1
    visits = np.zeros((steps, n_states))
    np.add.at(visits, (at_step.t, np.searchsorted(seen, at_step.s)), at_step.n)
    visits[:, end] = ended_by
    initial = np.zeros(steps * n_states)
    initial[:n_states] = tally(start_node, start.n / start.n.sum(), n_states)
    return OneStep(
        horizon=horizon,
        discount=discount,
        node_t=np.repeat(np.arange(steps), n_states),
        node_s=np.tile(seen, steps),
        offsets=np.arange(horizon + 2) * n_states,
        initial=initial,
        start=start,
        start_node=start_node,
        reward=np.tile(tally(src, rewards * scale, n_states), steps),
        placebo=np.tile(placebo, steps),
        visits=visits.reshape(-1),
        covered=covered.reshape(-1),
        cells=cells,
        groups=groups,
        known=known,
        src=src,
        dst=dst,
        prob=prob,
        gap=np.ones(len(cells), np.int64),
        edge_offsets=None,
        ended_to=np.arange(steps) * n_states + end,
        complete=np.ones(steps, bool),
        self_normalized=per_state,
        conserves=per_state,
        step_cells=at_step,
    )


def _groups(
    cells: TransitionMoments,
    of: Ints,
    share: Floats | None,
    known: npt.NDArray[np.bool_],
    per_state: bool,
) -> Groups:
    size = int(of.max()) + 1
    if share is None:
        share = np.ones(size)
    visits = tally(of, cells.n, size)
    moves = tally(of, np.where(known, cells.n, 0), size)
    reward_by, move_by = visits, moves
    if per_state:
        reward_by = tally(of, cells.rho, size)
        move_by = tally(of, np.where(known, cells.rho, 0.0), size)
    return Groups(of, share, visits, moves, reward_by, move_by)


def _covered(
    cells: TransitionMoments, known: npt.NDArray[np.bool_], node: Ints, size: int
) -> Floats:
    """E[ρ|s] = 1 where the log shows all that the target does. A mean ratio that stays below 1
    by more than DEFICIT_ERRORS errors (of at least SEEN_ENOUGH rows) tells what it does not."""
    n, first, second = (
        tally(node, np.where(known, v, 0), size) for v in (cells.n, cells.rho, cells.rho2)
    )
    inverse = _inverse(n)
    mean = first * inverse
    error = np.sqrt(np.maximum(second * inverse - mean**2, 0.0) * inverse)
    covered = np.where(n >= SEEN_ENOUGH, np.minimum(mean + DEFICIT_ERRORS * error, 1.0), 1.0)
    return np.where(mean > 0, covered, 0.0)


def _inverse(values: Floats) -> Floats:
    """1/x, and 0 where x is 0: such a group passes nothing on, which the mass lost there tells."""
    return np.where(values > 0, 1.0 / np.where(values > 0, values, 1.0), 0.0)


def _ended_by(cells: TransitionMoments, t: Ints) -> Floats:
    """Episodes that have ended by step t."""
    to_end = cells.s_next == END
    ends = np.sort(np.repeat(cells.t_next[to_end], cells.n[to_end]))
    return np.searchsorted(ends, t, side="right").astype(float)


def _complete(cells: TransitionMoments, horizon: int) -> npt.NDArray[np.bool_]:
    """(H+1,) True where no stretch is in flight: no edge with t < step < t'."""
    change = np.zeros(horizon + 2, np.int64)
    long = cells.t_next - cells.t > 1
    np.add.at(change, cells.t[long] + 1, 1)
    np.add.at(change, cells.t_next[long], -1)
    return np.asarray(np.cumsum(change)[: horizon + 1] == 0, bool)


def _reordered(cells: TransitionMoments, order: Ints) -> TransitionMoments:
    if np.array_equal(order, np.arange(len(order))):
        return cells
    return TransitionMoments(**{name: values[order] for name, values in vars(cells).items()})
