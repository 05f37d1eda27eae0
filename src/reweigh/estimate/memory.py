"""MIS with a memory of k steps: between marginalized weights (k = 0) and step-wise WIS (k ≥ H - 1).

The weight of a row at step t begins at a = max(t - k, 0), or at the last observed state before it:

    w_t = m_a(s_a) ρ_a ⋯ ρ_t        m_{t+1}(s) = mean of w_t over the rows whose next state is s
    v̂ = Σ_t γ^t Σ w_t r_t / Σ w_t

m is divided by its mean at every step at which all living episodes are observed. An episode that
has ended goes on with ρ = 1 and r = 0, and stays in both sums. The sums are those of windows
(`sums/products.py`): with d_a(s) = n_a(s) m_a(s)/n, and over the windows from (a, s) to t + 1

    Σ w_t r_t / n = Σ_{a,s} d_a(s) W^r/N      Σ w_t / n = Σ_{a,s} d_a(s) W/N + d_{t-k}(END)
    d_{t+1}(s') = Σ_{a,s} d_a(s) W[s']/M,     d_{t+1}(END) = the same + d_{t-k}(END)

where W = Σ ρ_a ⋯ ρ_t, W^r = Σ ρ_a ⋯ ρ_t r_t, N the windows from (a, s) that are still observed at
step t, and M those whose next state is known. Where states are hidden a later step has fewer
windows from (a, s), since others have been observed meanwhile: N and M are then all of its visits.

The windows of one episode overlap, so that the variances of cells do not add up: the error is that
of the influence values, or of blocks of episodes. With k = 0 every row is in one window, and the
sums tell the error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reweigh.errors import RefusedError, SelectionWarning, check_whole
from reweigh.estimate.estimator import Nodes, Place, Recipe, Replicated, Solution, value_alone
from reweigh.estimate.marginal import refuse_cut_stretches
from reweigh.estimate.operators import SEEN_ENOUGH, covered_by
from reweigh.estimate.refusals import cut_off, no_support, overflow
from reweigh.estimate.solution import worst_node
from reweigh.estimate.standard_error import LOST, Freedom
from reweigh.estimate.table_weights import TableSums, TableWeights
from reweigh.estimate.window_sums import (
    Flow,
    SquaredError,
    WindowSums,
    backward,
    earned,
    effective_sizes,
    ended_by,
    forward,
    placebo_error,
    squared_error,
    value_slopes,
)
from reweigh.kernels import Floats, Ints, tally
from reweigh.log.states import END
from reweigh.sums.moments import Moments
from reweigh.sums.tables import Table

COLUMNS = {"w": "ratio", "w2": "ratio * ratio", "wy": "weighted_reward"}
SQUARES = {"w2y": "ratio * weighted_reward", "w2y2": "weighted_reward * weighted_reward"}
KEYS = ("t", "s", "t_next", "s_next")


def window_table(memory: int) -> Table:
    """The sums of windows of this memory; those of one row tell their squares too."""
    columns = COLUMNS | SQUARES if memory == 0 else COLUMNS
    return Table(f"windows_{memory}", KEYS, columns, "window", memory=memory)


@dataclass(frozen=True)
class Memory(TableWeights):
    """w_t = m_a(s_a) ρ_a ⋯ ρ_t with a = t - memory, each step's rewards divided by the weights."""

    memory: int
    formula = (
        "v̂ = Σₜ γᵗ Σᵢ wₜ rₜ / Σᵢ wₜ,  wₜ = mₐ(sₐ) ρₐ…ρₜ,  a = max(t − k, 0),"
        "  mₜ₊₁(s) = the mean of wₜ over the rows that lead to s"
    )

    def __post_init__(self) -> None:
        check_whole("memory", self.memory, 0)
        object.__setattr__(self, "tables", (window_table(self.memory),))
        object.__setattr__(self, "further_traits", frozenset({"memory"} if self.memory else ()))

    @property
    def remembers(self) -> int:
        return self.memory

    def limits(self, recipe: Recipe) -> str:
        return "plain" if self.memory else "states"

    def may_exceed_rewards(self, recipe: Recipe) -> bool:
        return False

    def description(self, recipe: Recipe) -> str:
        text = "marginalized importance sampling, each step divided by the sum of its weights"
        if not self.memory:
            return text
        steps = f"the last {self.memory} steps" if self.memory > 1 else "the last step"
        return f"{text}; the ratios of {steps} are multiplied, not averaged by state"

    def read(self, sums: Moments) -> TableSums:
        if sums.truncated and self.memory >= sums.about.horizon - 1:
            raise cut_off(sums.truncated)
        if sums.truncated and sums.hidden and self.memory:
            raise RefusedError(
                "hidden-truncated",
                "cut-off episodes together with hidden states cannot be used with a memory: which "
                "windows were cut is not known. Leave the cut episodes out (truncated='drop'), or "
                "use mis()",
            )
        read = super().read(sums)
        refuse_cut_stretches(
            read.tables[self.tables[0].name],  # type: ignore[arg-type]
            sums.about.horizon,
            sums.hidden,
        )
        return read

    def windows(self, sums: TableSums) -> WindowSums:
        return WindowSums(sums, sums.tables[self.tables[0].name], self.memory)

    def per_step(self, sums: TableSums) -> Floats:
        return earned(self.windows(sums)).T

    def effective_sizes(self, sums: TableSums) -> Floats:
        windows = self.windows(sums)
        return effective_sizes(windows, forward(windows)).T

    def solve_replicates(self, recipe: Recipe, sums: Moments, *, errors: bool) -> Replicated:
        windows = self.windows(self.read(sums))
        flow = forward(windows)
        values = earned(windows, flow).sum(axis=0)
        square = error_by_cells(windows, flow) if errors else None
        return Replicated.of(
            values, None if square is None else square.errors, ("no-overlap", np.isnan(values))
        )

    def derivatives(self, sums: TableSums) -> dict[str, dict[str, Floats]]:
        windows = self.windows(sums)
        flow = forward(windows)
        slopes = backward(windows, flow, *value_slopes(windows, flow))
        by_column = {"n": slopes.n + slopes.start, "w": slopes.w, "wy": slopes.wy}
        none = np.zeros_like(slopes.w)
        columns = {c: by_column.get(c, none) for c in ("n", *self.tables[0].columns)}
        back = np.empty(len(windows.order), np.int64)
        back[windows.order] = np.arange(len(back))
        return {self.tables[0].name: {c: values[back].T for c, values in columns.items()}}

    def solve(self, recipe: Recipe, sums: Moments, *, errors: bool = True) -> Solution:
        windows = self.windows(self.read(sums))
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            flow = forward(windows)
            per_step = earned(windows, flow)[:, 0]
            unknown = np.flatnonzero(np.isnan(per_step) & ~(flow.weight[:, 0] > 0))
            if len(unknown):
                raise no_support(int(unknown[0]))
            if not np.isfinite(per_step).all():
                raise overflow()
            if not errors:
                return value_alone(per_step)
            return solution(windows, flow, per_step, sums)


def error_by_cells(x: WindowSums, flow: Flow) -> SquaredError | None:
    """SE² where cells tell it: with k = 0, and no stretch longer than a row."""
    if x.memory or x.late:
        return None
    return squared_error(x, backward(x, flow, *value_slopes(x, flow)))


# ---- values by step and state ------------------------------------------------------------------


def solution(x: WindowSums, flow: Flow, per_step: Floats, sums: Moments) -> Solution:
    """With what it rests on; and with the error, where cells tell it."""
    plain, memory = forward(x, normalized=False), x.memory
    count, visits, nodes = ended_by(x)[:, 0], x.visits[:, 0], x.nodes
    d = flow.d[:, 0]
    error, method, variance, start, freedom = None, "delta", None, None, None
    square = error_by_cells(x, flow)
    if square is not None:
        variance, start = square.by_node[:, 0], float(square.start[0])
        method = LOST if square.lost[0] else "analytic"
        error = None if square.lost[0] else float(square.errors[0])
        freedom = Freedom.of(
            np.append(variance, start), np.append(square.rows[:, 0], float(x.sums.n[0, 0]))
        )
    of_group = np.unique(x.group, return_index=True)[1]  # a cell of each (a, s, t)
    step, begin = x.t_next[of_group] - 1, x.source[of_group]
    # where states were hidden, those of one visit are spread over several steps
    reached = d[begin] * tally(x.group, x.n[:, 0])[x.group[of_group]] / visits[of_group]
    rare = np.where(visits[of_group] < SEEN_ENOUGH, reached, 0.0)
    rare_by_step = tally(step, rare, x.horizon)
    for t in range(x.horizon):
        at = x.end_begins(t)
        if at is not None and 0 < count[at] < SEEN_ENOUGH:
            rare_by_step[t] += flow.ended[at, 0]
    worst = worst_node(nodes[1], tally(begin, rare, len(d)))
    unseen, unseen_at = (None, None) if memory else escaping(x, plain, of_group)
    return Solution(
        value=float(per_step.sum()),
        standard_error=error,
        error_method=method,
        per_step=per_step,
        ess=effective_sizes(x, flow)[:, 0],
        unseen_mass=unseen,
        placebo=float((x.powers * flow.weight[:, 0]).sum()),
        placebo_error=placebo_error(x, flow),
        placebo_by_step=x.powers * flow.weight[:, 0],
        rare_mass=float(rare_by_step.sum()) / x.horizon,
        rare_by_step=rare_by_step,
        rare_at=None if worst is None else Place(int(nodes[0][worst]), int(nodes[1][worst])),
        unseen_at=unseen_at,
        total_mass=_total_mass(x, plain),
        by_node=_nodes(x, flow, variance, count),
        variance_of_start=start,
        freedom=freedom,
        normalized_at=flow.complete[: x.horizon, 0],
        warnings=_remarks(sums, memory),
    )


def _remarks(sums: Moments, memory: int) -> tuple[Warning, ...]:
    if not (sums.truncated and memory):
        return ()
    text = (
        f"episodes were cut off, and windows of {memory + 1} steps are divided by those that were "
        "still observed: right only if being cut off does not depend on what happened inside the "
        "window either"
    )
    return (SelectionWarning(text),)


def escaping(x: WindowSums, plain: Flow, of_group: Ints) -> tuple[Floats, Place | None]:
    """With k = 0: (H,) the target's mass that a step loses, since the log does not show what it
    does there; and the place that loses the most at the worst step."""
    known = x.known[:, None]
    n, w, w2 = (
        tally(x.group, np.where(known, values, 0.0))[x.group[of_group], 0]
        for values in (x.n, x.w, x.column("w2"))
    )
    begin, step = x.source[of_group], x.t_next[of_group] - 1
    shown = np.zeros(len(x.nodes[0]), bool)
    shown[begin] = True
    lost = plain.d[begin, 0] * np.maximum(1 - covered_by(n, w, w2), 0.0)
    inside = x.nodes[0] < x.horizon
    unseen = tally(step, lost, x.horizon)
    gone = np.where(inside & ~shown, plain.d[:, 0], 0.0)  # reached, and no row begins there
    unseen += tally(x.nodes[0], gone, x.horizon + 1)[: x.horizon]
    unseen = np.where(unseen > 1e-9, unseen, 0.0)
    if not unseen.any():
        return unseen, None
    worst = int(np.argmax(unseen))
    by_node = tally(begin[step == worst], lost[step == worst], len(gone))
    by_node += np.where(x.nodes[0] == worst, gone, 0.0)
    node = int(np.argmax(by_node))
    return unseen, Place(int(x.nodes[0][node]), int(x.nodes[1][node]))


def _total_mass(x: WindowSums, plain: Flow) -> Floats:
    """(H,) Σ_s d_t(s) without any normalization, nan where states are hidden."""
    total = tally(x.nodes[0], plain.d[:, 0], x.horizon + 1) + plain.ended[:, 0]
    return np.where(plain.complete[:, 0], total, np.nan)[: x.horizon]


def _nodes(x: WindowSums, flow: Flow, variance: Floats | None, ended: Floats) -> Nodes:
    """The values by step and state; an episode that has ended is in END from there on."""
    inside, first = x.arriving < len(x.nodes[0]), x.t_next == 1
    rows = tally(x.arriving[inside], x.n[inside, 0], len(x.nodes[0]))
    rows += tally(x.source[first], x.n[first, 0], len(rows))
    at = np.flatnonzero(ended > 0)
    t, s = np.append(x.nodes[0], at), np.append(x.nodes[1], np.full(len(at), END))
    order = np.lexsort([s, t])
    visits = np.append(rows, ended[at])
    seen = tally(t, visits, x.horizon + 1)
    seen = np.where(flow.complete[:, 0] & (seen > 0), seen, float(x.sums.n[0, 0]))
    parts = None if variance is None else np.append(variance, np.zeros(len(at)))
    return Nodes(
        t[order],
        s[order],
        np.append(flow.d[:, 0], flow.ended[at, 0])[order],
        (visits / seen[t])[order],
        visits[order],
        None if parts is None else parts[order],
    )
