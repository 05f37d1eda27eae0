"""One-step operators: the target's transitions and rewards, from the sums.

MIS:  P̂_t(s'|s) = Σρ(s,s') / n_t(s)          r̂_t(s) = Σ ρ r / n_t(s)
DM:   P̂_t(s'|s) = Σ_a π̄(a|s) n(s,a,s')/n(s,a)  r̂_t(s) = Σ_a π̄(a|s) Σr/n(s,a)

Both are sums over *groups* of rows that share a divisor: (t, s) for MIS, (t, s, a) with the share
π̄(a|s) of `sums/policy.py` for DM, (s) when pooled over time. The recursion does not know which one
it runs on.

Columns of the sums may have a second axis, m replicates of the log (`replicates.py`): then every
number of an operator has it too; nodes and edges are common to all. A cell that a replicate lacks
has n = 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from reweigh.estimate.refusals import lacking
from reweigh.kernels import Bools, Floats, Ints, group_by, rowwise, tally
from reweigh.log.states import END, START, UNKNOWN
from reweigh.sums.keyed import StartMoments, TransitionMoments
from reweigh.sums.moments import Moments

SEEN_ENOUGH, DEFICIT_ERRORS = 10, 4.0
PLACES_PER_CELL = 8  # up to so many (t, s) per cell are counted in an array over all of them


@dataclass(frozen=True, eq=False)
class Groups:
    """Rows that share a divisor, G of them; E cells (edges) belong to them.

    of         (E,) group of each edge
    share      (G,) probability with which the target uses the group: π(a|s), else 1
    visits     (G,) N, rows of the group: the divisor of rewards
    moves      (G,) M, rows whose next state is known: the divisor of transitions
    reward_by  (G,) the divisor of reward sums: N, or Σρ when self-normalized
    move_by    (G,) the same for transitions
    """

    of: Ints
    share: Floats
    visits: Floats
    moves: Floats
    reward_by: Floats
    move_by: Floats

    def sum(self, values: Floats) -> Floats:
        return tally(self.of, values, len(self.share))

    def weigh(self, cells: TransitionMoments, known: Bools) -> tuple[Floats, Floats]:
        """(E,) P̂ of the edges, and what their sums of rewards are multiplied by."""
        scale = (self.share * inverse(self.reward_by))[self.of]
        if self.move_by is self.reward_by:  # all next states are known
            return scale * cells.rho, scale
        moved = (self.share * inverse(self.move_by))[self.of]
        return np.where(known, moved * cells.rho, 0.0), scale


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges whose next state is known, their nodes counted from the first of their step (src)
    and of the step after it (dst); P̂, and γ^{t'-t}."""

    src: Ints
    dst: Ints
    prob: Floats
    power: Floats
    bounds: Ints | None  # (H+1,) the edges of a step; None: all of them at every step

    def at(self, t: int) -> tuple[Ints, Ints, Floats, Floats]:
        """Those that leave step t."""
        e = slice(None)
        if self.bounds is not None:
            e = slice(int(self.bounds[t]), int(self.bounds[t + 1]))
        return self.src[e], self.dst[e], self.prob[e], self.power[e]


@dataclass(frozen=True, eq=False)
class OneStep:
    """The one-step operator over nodes: the observed (t, s), END and the states at H included.

    node_t, node_s  (K,) in increasing order of t; offsets (H+2,) nodes of step t
    initial         (K,) d_0
    reward          (K,) r̂_t(s)
    placebo         (K,) r̂_t(s) if every reward were 1
    visits          (K,) logged rows (or ended episodes) at the node
    covered         (K,) share of the target's mass at the node that has data: for
                    MIS the mean ratio where it is below 1 beyond its error (0 where no row is
                    possible under the target), for a model the probability of the actions seen
    at_steps        pooled: the cells before pooling, for values per step
    conserves       True if d_t does not lose the uncovered mass (self-normalized)
    plain           of a model whose shares were divided by their sum: the operator before that,
                    whose placebo shows the lost or gained mass; for shares by ratios that of MIS,
                    with the same edges
    by_ratios       True where a model's shares are Σ1{a}ρ/Σρ, which adds to the error
    src, dst        (E,) nodes of an edge (dst -1: the next state is not known); pooled: states
    prob            (E,) P̂(dst|src), the target's share included
    gap             (E,) t' - t
    complete        (H+1,) True where every living episode is observed: only there is d_t a
                    distribution that may be normalized

    For replicates, floats have a second axis, and with hidden states `complete` has one too; visits
    and covered, which only gates read, are empty.
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
    known: Bools
    src: Ints
    dst: Ints
    prob: Floats
    gap: Ints
    edge_offsets: Ints | None  # None: pooled, the same edges at every step
    ended_to: Ints  # (H+1,) node of END at step t, -1 where there is none
    complete: Bools
    self_normalized: bool
    conserves: bool
    at_steps: TransitionMoments | None = None
    plain: OneStep | None = None
    by_ratios: bool = False

    def nodes(self, t: int) -> slice:
        return slice(int(self.offsets[t]), int(self.offsets[t + 1]))

    @cached_property
    def edges(self) -> Edges:
        known = self.dst >= 0
        src, dst, bounds = self.src, self.dst, self.edge_offsets
        if bounds is not None:
            here = self.node_t[src]
            src, dst = src - self.offsets[here], dst - self.offsets[here + 1]
            bounds = np.concatenate([[0], np.cumsum(known)])[bounds]
        power = np.broadcast_to(self.discount, len(src))
        if np.any(self.gap != 1):
            power = self.discount**self.gap
        keep: Any = np.flatnonzero(known)
        if not known[len(keep) :].any():  # the others come last: views, no copies
            keep = slice(0, len(keep))
        return Edges(
            src[keep], dst[keep], self.prob[keep], rowwise(power[keep], self.initial), bounds
        )

    @property
    def node_of_group(self) -> Ints:
        """(G,) the node of each group: every edge of a group leaves it."""
        node = np.zeros(len(self.groups.share), np.int64)
        node[self.groups.of] = self.src
        return node

    @property
    def n_episodes(self) -> Any:
        """How many there are; of replicates (m,)."""
        n = self.start.n.sum(axis=0)
        return n.item() if n.ndim == 0 else n


def cells_of(
    moments: Moments, kind: Literal["transitions", "model"]
) -> tuple[TransitionMoments, StartMoments]:
    """The cells of a kind and the first states as it sees them, over all blocks."""
    of_model = kind == "model"
    cells = moments.model if of_model else moments.transitions
    start = moments.start_model if of_model else moments.start
    if cells is None or start is None:
        raise lacking(kind)
    return cells.forget("block"), start.forget("block")


def marginal_operator(sums: Moments, *, per_state: bool = False) -> OneStep:
    """The operator of MIS on these sums. It is kept with the cells: estimator, gates and influence
    values share one."""
    cells, start = cells_of(sums, "transitions")
    kept: dict[bool, OneStep] = vars(sums.transitions).setdefault("operators", {})
    if per_state not in kept:
        about = sums.about
        kept[per_state] = importance_operator(
            cells, start, about.horizon, about.discount, per_state=per_state
        )
    return kept[per_state]


def with_ratios_one(cells: TransitionMoments) -> TransitionMoments:
    """The same cells if every ratio were 1: the behavior's own, or a model's within (t, s, a)."""
    n = cells.n.astype(np.float64)
    return replace(cells, rho=n, rho2=n, one=n, z=cells.y, rhoz=cells.y, z2=cells.y2)


def start_term(cells: TransitionMoments, value: Floats) -> Floats:
    """(E,) the value of the first state less its mean over the episodes, for cells of step 0: what
    an episode's start adds to its influence."""
    first = cells.t == 0
    n = np.where(first, cells.n, 0)
    return np.where(first, value - float(np.sum(n * np.where(first, value, 0.0)) / n.sum()), 0.0)


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
    share = rowwise(np.ones(int(groups.max()) + 1), cells.n)
    return build_operator(cells, start, horizon, discount, groups, share, per_state, reward_sums)


def build_operator(
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
    start_t = np.zeros(len(start.s), np.int64)
    width = max(int(v.max(initial=0)) for v in (cells.s, cells.s_next, start.s)) + 1 - START
    by_node = cells.t * width + (cells.s - START)
    if np.any(by_node[1:] < by_node[:-1]):
        order = np.argsort(by_node, kind="stable")
        cells, group_of, by_node = cells.select(order), group_of[order], by_node[order]
        reward_sums = None if reward_sums is None else reward_sums[order]
    rewards = cells.z if reward_sums is None else reward_sums
    # A tail that is hidden or not logged up to the horizon is known to end there, with value 0.
    known = rowwise((cells.s_next != UNKNOWN) | (cells.t_next >= horizon), cells.n)
    groups = rows_of(cells, group_of, share, known, per_state)

    at_end = np.flatnonzero(cells.s_next == END)
    first_end = int(cells.t_next[at_end].min()) if len(at_end) else horizon + 1
    end_t = np.arange(first_end, horizon + 1)
    reached = cells.s_next != UNKNOWN
    after = cells.t_next * width + (cells.s_next - START)
    node, (src, arriving, end_node, start_node) = _nodes(
        [by_node, after[reached], end_t * width + (END - START), start_t * width + start.s - START],
        (horizon + 1) * width,
    )
    node_t, node_s = node // width, node % width + START
    dst = np.full(len(cells), -1, np.int64)
    dst[reached] = arriving
    n_nodes = len(node)
    ended_to = np.full(horizon + 1, -1, np.int64)
    ended_to[end_t] = end_node
    prob, scale = groups.weigh(cells, known)
    placebo = tally(src, cells.one * scale, n_nodes)
    placebo[end_node] = 1.0  # END earns the placebo's 1 at every step, END included
    visits = covered = np.zeros(0)
    if cells.n.ndim == 1:
        visits = tally(src, cells.n.astype(float), n_nodes)
        visits[end_node] = ended_by(cells, end_t)
        covered = covered_share(cells, known, src, n_nodes)
        if probability is not None:
            node_of = np.zeros(len(share), np.int64)
            node_of[group_of] = src
            covered = tally(node_of, np.where(groups.moves > 0, probability, 0.0), n_nodes)
        covered[(node_s == END) | (node_t == horizon)] = 1.0
    gap = cells.t_next - cells.t
    if np.all(gap == 1):  # a constant takes no memory
        gap = np.broadcast_to(np.int64(1), len(gap))
    return OneStep(
        horizon=horizon,
        discount=discount,
        node_t=node_t,
        node_s=node_s,
        offsets=np.searchsorted(node_t, np.arange(horizon + 2)),
        initial=tally(start_node, start.n / start.n.sum(axis=0), n_nodes),
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
        gap=gap,
        edge_offsets=np.searchsorted(cells.t, np.arange(horizon + 1)),
        ended_to=ended_to,
        complete=_complete(cells, horizon),
        self_normalized=per_state,
        conserves=per_state,
    )


def _nodes(codes: list[Ints], size: int) -> tuple[Ints, list[Ints]]:
    """The codes that occur, in their order, and the place of each given code among them."""
    total = sum(len(part) for part in codes)
    if size > PLACES_PER_CELL * total:
        groups = group_by([np.concatenate(codes)])
        bounds = np.cumsum([len(part) for part in codes])[:-1]
        return groups.keys[0], np.split(groups.index(), bounds)
    occurs = np.zeros(size, bool)
    for part in codes:
        occurs[part] = True
    place = np.cumsum(occurs) - 1
    return np.flatnonzero(occurs), [place[part] for part in codes]


def rows_of(
    cells: TransitionMoments,
    of: Ints,
    share: Floats,
    known: Bools,
    per_state: bool,
) -> Groups:
    size = len(share)
    all_known = known.all()
    visits = tally(of, cells.n, size)
    moves = visits if all_known else tally(of, np.where(known, cells.n, 0), size)
    reward_by, move_by = visits, moves
    if per_state:
        reward_by = tally(of, cells.rho, size)
        move_by = reward_by if all_known else tally(of, np.where(known, cells.rho, 0.0), size)
    return Groups(of, share, visits, moves, reward_by, move_by)


def covered_share(cells: TransitionMoments, known: Bools, node: Ints, size: int) -> Floats:
    """(size,) `covered_by` for each node's rows."""
    n, first, second = (
        tally(node, np.where(known, v, 0), size) for v in (cells.n, cells.rho, cells.rho2)
    )
    return covered_by(n, first, second)


def covered_by(n: Floats, first: Floats, second: Floats) -> Floats:
    """E[ρ|s] = 1 if the log covers the target's behavior. A mean ratio below 1 by more than
    DEFICIT_ERRORS errors (of at least SEEN_ENOUGH rows) shows what is missing. The arguments are
    the rows, Σρ and Σρ²."""
    per_row = inverse(n)
    mean = first * per_row
    error = np.sqrt(np.maximum(second * per_row - mean**2, 0.0) * per_row)
    covered = np.where(n >= SEEN_ENOUGH, np.minimum(mean + DEFICIT_ERRORS * error, 1.0), 1.0)
    return np.where(mean > 0, covered, 0.0)


def inverse(values: Floats) -> Floats:
    """1/x, and 0 where x is 0: such a group passes no mass on, and the lost mass shows it."""
    return np.where(values > 0, 1.0 / np.where(values > 0, values, 1.0), 0.0)


def ended_by(cells: TransitionMoments, t: Ints) -> Floats:
    """Episodes that have ended by step t."""
    to_end = cells.s_next == END
    last = int(t.max(initial=0)) + 1
    ends = tally(np.minimum(cells.t_next[to_end], last), cells.n[to_end], last + 1)
    return np.cumsum(ends)[t]


def _complete(cells: TransitionMoments, horizon: int) -> Bools:
    """(H+1,) True where no stretch is in flight: no edge with t < step < t'."""
    long = cells.t_next - cells.t > 1
    if not long.any():
        return np.ones(horizon + 1, bool)
    seen, size = (cells.n[long] > 0).astype(np.float64), horizon + 2
    change = tally(cells.t[long] + 1, seen, size) - tally(cells.t_next[long], seen, size)
    return np.asarray(np.cumsum(change, axis=0)[: horizon + 1] == 0, bool)
