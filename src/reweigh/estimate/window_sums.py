"""The sums of windows, and the recursions over them: forward for the target's distribution and what
every step weighs and earns, backward for derivatives, and the errors that cells tell.

The equations are in `memory.py`. Arrays are (cells, m) for m replicates; m = 1 for the log itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace

import numpy as np

from reweigh.estimate.operators import inverse
from reweigh.estimate.standard_error import lost_in_rounding
from reweigh.estimate.table_weights import TableSums
from reweigh.kernels import Bools, Floats, Ints, group_by, stable_order, tally
from reweigh.log.states import END, START, UNKNOWN


@dataclass(frozen=True, eq=False)
class WindowSums:
    """The sums of windows in the order of their steps; K cells, G groups (a, s, t), m replicates.

    Nodes are the (t, s) that windows begin at or lead to, END left out. `late`: some windows are
    longer than the memory, since states were hidden.
    """

    sums: TableSums
    table: SimpleNamespace
    memory: int

    @property
    def horizon(self) -> int:
        return self.sums.horizon

    @cached_property
    def powers(self) -> Floats:
        """(H,) γ^t"""
        return np.asarray(self.sums.discount ** np.arange(self.horizon), np.float64)

    @cached_property
    def order(self) -> Ints:
        """(K,) the cells by their step."""
        return stable_order(self.table.t_next, self.horizon + 2)

    def _key(self, name: str) -> Ints:
        values: Ints = getattr(self.table, name)[self.order]
        return values

    @cached_property
    def t(self) -> Ints:
        """(K,) the step a."""
        return self._key("t")

    @cached_property
    def s(self) -> Ints:
        return self._key("s")

    @cached_property
    def t_next(self) -> Ints:
        """(K,) the step t + 1."""
        return self._key("t_next")

    @cached_property
    def s_next(self) -> Ints:
        return self._key("s_next")

    def column(self, name: str) -> Floats:
        """(K, m)"""
        return np.ascontiguousarray(getattr(self.table, name)[:, self.order].T)

    @cached_property
    def n(self) -> Floats:
        return self.column("n")

    @cached_property
    def w(self) -> Floats:
        return self.column("w")

    @cached_property
    def wy(self) -> Floats:
        return self.column("wy")

    @cached_property
    def bounds(self) -> Ints:
        """(H+1,) the first cell of each step t."""
        return np.searchsorted(self.t_next, np.arange(self.horizon + 1) + 1)

    def cells(self, t: int) -> slice:
        """Those of the windows of step t."""
        return slice(int(self.bounds[t]), int(self.bounds[t + 1]))

    @cached_property
    def group(self) -> Ints:
        """(K,) the (a, s, t) of each cell."""
        return group_by([self.t_next, self.t, self.s]).index()

    @cached_property
    def late(self) -> bool:
        return bool(np.any(self.t_next - 1 - self.t > self.memory))

    @cached_property
    def first(self) -> Bools:
        """(K,) the first windows from their (a, s): every visit of it has one."""
        later = self.t_next == self.t + self.memory + 1
        return np.asarray(np.where(self.t == 0, self.t_next == 1, later), bool)

    @cached_property
    def known(self) -> Bools:
        """(K,) whether the next state is known, or none is needed."""
        return np.asarray((self.s_next != UNKNOWN) | (self.t_next >= self.horizon), bool)

    @cached_property
    def to_hidden(self) -> Bools:
        """(K,) whether the next state is hidden."""
        hidden = self.sums.hidden_state
        return np.zeros(len(self.t), bool) if hidden is None else self._key("s_next") == hidden

    @cached_property
    def _codes(self) -> tuple[Ints, Ints, Bools, int]:
        """(K,) begin and end of each cell as one number, whether it ends at a node, the width."""
        width = int(max(self.s.max(initial=0), self.s_next.max(initial=0))) + 1 - START
        arrives = (self.s_next >= 0) & ~self.to_hidden
        begin = self.t * width + self.s - START
        return begin, self.t_next * width + self.s_next - START, arrives, width

    @cached_property
    def nodes(self) -> tuple[Ints, Ints]:
        """(V,) step and state of the nodes, by their step."""
        begin, end, arrives, width = self._codes
        codes = np.unique(np.concatenate([begin, end[arrives]]))
        return codes // width, codes % width + START

    @cached_property
    def node_bounds(self) -> Ints:
        """(H+2,) the first node of each step."""
        return np.searchsorted(self.nodes[0], np.arange(self.horizon + 2))

    def nodes_at(self, t: int) -> slice:
        return slice(int(self.node_bounds[t]), int(self.node_bounds[t + 1]))

    @cached_property
    def source(self) -> Ints:
        """(K,) the node at which a window begins."""
        begin, _, _, width = self._codes
        node = self.nodes[0] * width + self.nodes[1] - START
        return np.searchsorted(node, begin)

    @cached_property
    def arriving(self) -> Ints:
        """(K,) the node that it leads to, V (beyond the last) where it leads to none."""
        _, end, arrives, width = self._codes
        node = self.nodes[0] * width + self.nodes[1] - START
        return np.where(arrives, np.searchsorted(node, end), len(node))

    @cached_property
    def visits(self) -> Floats:
        """(K, m) N, of each cell's group."""
        return self._of_groups(np.ones(len(self.t), bool))

    @cached_property
    def moves(self) -> Floats:
        """(K, m) M, of each cell's group."""
        return self.visits if self.known.all() else self._of_groups(self.known)

    def _of_groups(self, which: Bools) -> Floats:
        by, which = (self.source, which & self.first) if self.late else (self.group, which)
        return tally(by, np.where(which[:, None], self.n, 0.0))[by]

    def spread_counts(self, slopes: Floats, which: Bools) -> Floats:
        """(K, m) derivatives by the counts of cells, from (K, m) those by `_of_groups`."""
        by, which = (self.source, which & self.first) if self.late else (self.group, which)
        return np.where(which[:, None], tally(by, slopes)[by], 0.0)

    def end_begins(self, t: int) -> int | None:
        """The step at which END is the begin of windows of step t; None where it cannot be."""
        return t - self.memory if t > self.memory else None


@dataclass(frozen=True, eq=False)
class Flow:
    """The forward recursion; every array has a last axis of replicates.

    d, ended   (V,) d_t(s) over the nodes, and (H+1,) d_t(END)
    mass       (H+1,) what was divided by, 1 where nothing was
    complete   (H+1,) whether all living episodes are observed
    normalized whether d is divided by its sum there
    weight, reward   (H,) Σ w_t / n and Σ w_t r_t / n
    """

    d: Floats
    ended: Floats
    mass: Floats
    complete: Bools
    normalized: bool
    weight: Floats
    reward: Floats


def forward(x: WindowSums, *, normalized: bool = True) -> Flow:
    """d, and the sums of every step; not normalized for the mass that is lost or gained."""
    m, horizon, last = x.n.shape[1], x.horizon, len(x.nodes[0])
    d, ended = np.zeros((last, m)), np.zeros((horizon + 1, m))
    mass, complete = np.ones((horizon + 1, m)), np.ones((horizon + 1, m), bool)
    weight, reward = np.zeros((horizon, m)), np.zeros((horizon, m))
    # d_0(s) = n_0(s)/n
    here = x.cells(0)
    count = tally(x.source[here], x.n[here], x.nodes_at(0).stop)
    d[: len(count)] = count / count.sum(axis=0)
    per_visit, per_move = inverse(x.visits), inverse(x.moves) * x.known[:, None]
    for t in range(horizon):
        here, after = x.cells(t), x.nodes_at(t + 1)
        begin = x.end_begins(t)
        at_end = np.zeros(m) if begin is None else ended[begin]
        mass_of = d[x.source[here]]
        share = mass_of * per_visit[here]
        weight[t] = (share * x.w[here]).sum(axis=0) + at_end
        reward[t] = (share * x.wy[here]).sum(axis=0)
        moved = mass_of * per_move[here] * x.w[here]
        inside = x.arriving[here] < last
        d[after] = tally(
            x.arriving[here][inside] - after.start, moved[inside], after.stop - after.start
        )
        to_end = x.s_next[here] == END
        ended[t + 1] = moved[to_end].sum(axis=0) + at_end
        complete[t + 1] = x.n[here][x.to_hidden[here]].sum(axis=0) == 0
        if normalized and t + 1 < horizon:
            c = d[after].sum(axis=0) + ended[t + 1]
            mass[t + 1] = np.where(complete[t + 1] & (c > 0), c, 1.0)
            d[after] /= mass[t + 1]
            ended[t + 1] /= mass[t + 1]
    return Flow(d, ended, mass, complete, normalized, weight, reward)


def earned(x: WindowSums, flow: Flow | None = None) -> Floats:
    """(H, m) γ^t Σ w_t r_t / Σ w_t, nan where no weight is left."""
    flow = forward(x) if flow is None else flow
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        per_step = x.powers[:, None] * flow.reward / flow.weight
    return np.where(flow.weight > 0, per_step, np.nan)


@dataclass(frozen=True, eq=False)
class Slopes:
    """(K, m) derivatives by the sums of each cell: its windows n, Σw, Σwr; `start` is what the
    windows of step 0 add as first states."""

    n: Floats
    w: Floats
    wy: Floats
    start: Floats


def value_slopes(x: WindowSums, flow: Flow) -> tuple[Floats, Floats]:
    """(H, m) ∂v/∂(Σ w_t/n) and ∂v/∂(Σ w_t r_t/n)."""
    by_reward = x.powers[:, None] / flow.weight
    return -by_reward * flow.reward / flow.weight, by_reward


def backward(x: WindowSums, flow: Flow, by_weight: Floats, by_reward: Floats) -> Slopes:
    """The adjoint of `forward`, of what has these derivatives (H, m) by the steps' sums.

    u = the derivative by d_t(s). Where d was divided by its sum c it gives way to (u - <d, u>)/c.
    """
    m, horizon, last = x.n.shape[1], x.horizon, len(x.nodes[0])
    u, u_end = np.zeros((last + 1, m)), np.zeros((horizon + 1, m))  # u[last] is of no node
    w_slope, wy_slope = np.zeros_like(x.w), np.zeros_like(x.w)
    by_visits, by_moves = np.zeros_like(x.w), np.zeros_like(x.w)
    per_visit, per_move = inverse(x.visits), inverse(x.moves) * x.known[:, None]
    for t in range(horizon - 1, -1, -1):
        here, after, begin = x.cells(t), x.nodes_at(t + 1), x.end_begins(t)
        divided = flow.complete[t + 1] & (flow.normalized and t + 1 < horizon)
        along = (flow.d[after] * u[after]).sum(axis=0) + flow.ended[t + 1] * u_end[t + 1]
        mean = np.where(divided, along, 0.0)
        u[after] = (u[after] - mean) / flow.mass[t + 1]
        u_end[t + 1] = (u_end[t + 1] - mean) / flow.mass[t + 1]
        ahead = u[x.arriving[here]]
        ahead[x.s_next[here] == END] = u_end[t + 1]
        mass = flow.d[x.source[here]]
        now = (by_reward[t] * x.wy[here] + by_weight[t] * x.w[here]) * per_visit[here]
        later = x.w[here] * ahead * per_move[here]
        wy_slope[here] = mass * per_visit[here] * by_reward[t]
        w_slope[here] = mass * (per_visit[here] * by_weight[t] + per_move[here] * ahead)
        by_visits[here] = -mass * now * per_visit[here]
        by_moves[here] = -mass * later * per_move[here]
        nodes = x.source[here]
        u[:last] += tally(nodes, now + later, last)
        if begin is not None:
            u_end[begin] += by_weight[t] + u_end[t + 1]
    first = (x.t_next == 1)[:, None]
    start_nodes = x.nodes_at(0)
    mean = (flow.d[start_nodes] * u[start_nodes]).sum(axis=0)
    return Slopes(
        x.spread_counts(by_visits, np.ones(len(x.t), bool)) + x.spread_counts(by_moves, x.known),
        w_slope,
        wy_slope,
        np.where(first, u[x.source] - mean, 0.0) / x.sums.n.T,
    )


def effective_sizes(x: WindowSums, flow: Flow) -> Floats:
    """(H, m) (Σω)²/Σω² of the weights ω = d_a(s) ρ_a ⋯ ρ_t / N; the ended have equal ones."""
    share = flow.d[x.source] * inverse(x.visits)
    first = tally(x.t_next - 1, share * x.w, x.horizon)
    second = tally(x.t_next - 1, share**2 * x.column("w2"), x.horizon)
    count = ended_by(x)
    for t in range(x.horizon):
        begin = x.end_begins(t)
        if begin is not None:
            first[t] += flow.ended[begin]
            second[t] += flow.ended[begin] ** 2 * inverse(count[begin])
    return np.where(second > 0, first**2 / np.where(second > 0, second, 1.0), np.nan)


def product_sizes(x: WindowSums) -> Floats:
    """(H,) (ΣΠ)²/ΣΠ² of the products ρ_a ⋯ ρ_t alone, whatever the state that they begin in; that
    of a window which begins after the end is 1."""
    first = tally(x.t_next - 1, x.w[:, 0], x.horizon)
    second = tally(x.t_next - 1, x.column("w2")[:, 0], x.horizon)
    count = ended_by(x)[:, 0]
    begins = [x.end_begins(t) for t in range(x.horizon)]
    ended = np.array([0.0 if begin is None else count[begin] for begin in begins])
    first, second = first + ended, second + ended
    return np.where(second > 0, first**2 / np.where(second > 0, second, 1.0), np.nan)


def ended_by(x: WindowSums) -> Floats:
    """(H+1, m) episodes that have ended by step t."""
    count = tally(x.t_next, np.where((x.s_next == END)[:, None], x.n, 0.0), x.horizon + 1)
    for t in range(x.horizon):
        begin = x.end_begins(t)
        if begin is not None:
            count[t + 1] += count[begin]
    return count


# ---- errors ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SquaredError:
    """SE² with k = 0: (V, m) of the nodes with the rows behind each, (m,) of the start, and whether
    rounding has destroyed it."""

    by_node: Floats
    rows: Floats
    start: Floats
    lost: Bools

    @property
    def errors(self) -> Floats:
        """(m,) nan where rounding has destroyed it."""
        return np.sqrt(np.where(self.lost, np.nan, self.by_node.sum(axis=0) + self.start))


def squared_error(x: WindowSums, slopes: Slopes) -> SquaredError:
    """Σ over the windows of (∂v/∂n + w ∂v/∂Σw + w r ∂v/∂Σwr)², and the same of the first states.

    The terms of a (t, s) add up to 0, and where the state is Markov no two of an episode depend on
    each other. Of a placebo Σwr has no part.
    """
    a, b, c, n = slopes.n, slopes.w, slopes.wy, x.n
    sizes = n * a**2 + b**2 * x.column("w2")
    each = sizes + 2 * a * b * x.w
    if np.any(c):
        w2y2 = c**2 * x.column("w2y2")
        each = each + 2 * a * c * x.wy + 2 * b * c * x.column("w2y") + w2y2
        sizes = sizes + w2y2
    size = len(x.nodes[0])
    by_node, largest = tally(x.source, each, size), tally(x.source, sizes, size)
    by_node = np.where(lost_in_rounding(by_node, largest), 0.0, by_node)
    start = (n * slopes.start**2).sum(axis=0)
    lost = lost_in_rounding(by_node.sum(axis=0) + start, largest.sum(axis=0) + start)
    return SquaredError(by_node, tally(x.source, n, size), start, lost)


def placebo_error(x: WindowSums, flow: Flow) -> float | None:
    """A bound on the error of Σ_t γ^t Σ w_t / n: the sum over the steps of the errors of what their
    windows add, of which each episode has one; with k = 0 the error itself."""
    if x.late:
        return None
    by_weight = np.broadcast_to(x.powers[:, None], (x.horizon, 1))
    slopes = backward(x, flow, by_weight, np.zeros((x.horizon, 1)))
    a, b, n = slopes.n[:, 0], slopes.w[:, 0], x.n[:, 0]
    each = n * a**2 + 2 * a * b * x.w[:, 0] + b**2 * x.column("w2")[:, 0]
    steps = np.maximum(tally(x.t_next - 1, each, x.horizon), 0.0)
    start = float(np.sum(n * slopes.start[:, 0] ** 2))
    if x.memory == 0:
        return float(np.sqrt(steps.sum() + start))
    return float(np.sqrt(steps).sum() + np.sqrt(start))
