"""The second scan: the influence of each episode on a value that is a function of sums.

A value is a smooth function of sums over episodes, v = f(Σ_i x_i). The influence of an episode is
∇f · x_i, gathered over its rows: here are the tables of gradients by cell and by step, and the one
place where they meet rows. The estimators make the tables.

A move is a row, or a hidden stretch of rows from one observed state to the next. Moves are ordered
by the rows that they begin with, so that the first n of them are the episodes' first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from reweigh import kernels
from reweigh.kernels import Array, Floats, Ints, group_by, tally
from reweigh.log.log import EpisodeLog
from reweigh.log.states import HIDDEN, START, UNKNOWN
from reweigh.policy import Policy
from reweigh.sums.keyed import NO_ACTION, DeclaredSums, TransitionMoments

MoveKind = Literal["stretches", "rows", "actions"]
DENSE_CELLS = 1 << 22  # up to so many possible cells have a place each; else keys are searched


@dataclass(frozen=True, eq=False)
class PolicyGradient:
    """n ∂v/∂Σπ(a|x) by (t, s, a), where a policy sees more than the state.

    node    (E,) the (t, s) of each cell, of `nodes`
    at, action, value  (G,) node and action of an entry, and the derivative
    """

    nodes: int
    node: Ints
    at: Ints
    action: Ints
    value: Floats

    def terms(self, log: EpisodeLog, target: Policy, cell: Ints) -> Floats:
        """(N,) Σ_a π(a|x) n ∂v/∂Σπ(a|x) of each row, action by action."""
        assert log.actions is not None
        found, node = np.zeros(len(cell)), self.node[cell]
        for code, action in enumerate(log.actions.values):
            of = self.action == code
            by_node = np.zeros(self.nodes)
            by_node[self.at[of]] = self.value[of]
            found += target.of_action(log, action) * by_node[node]
        return found


@dataclass(frozen=True, eq=False)
class CellGradient:
    """n ∂v/∂(sum) by cell.

    moves  the unit of the cells' sums: "stretches" (no action), "rows" (no action, the hidden state
           is a state) or "actions" (the same with the action)
    cells  their keys; `block` is the fold of the episode with `folds`, else 0
    one, rho, z, y  (E,) by the count of the cell, Σρ, Σz and Σy
    start  (E,) by the count of the first state, for cells of step 0; else 0
    """

    moves: MoveKind
    cells: TransitionMoments
    one: Floats
    rho: Floats
    z: Floats
    y: Floats
    start: Floats
    policy: PolicyGradient | None = None
    folds: int = 0

    @cached_property
    def has_stretches(self) -> bool:
        """Whether a cell leads further than to the next step."""
        return self.moves == "stretches" and bool(np.any(self.cells.t_next - self.cells.t != 1))

    @cached_property
    def _derivatives(self) -> Floats:
        """By cell, one after the other, those of the count, Σρ, Σz and Σy; of none 0."""
        columns = (self.one, self.rho, self.z, self.y)
        found = np.zeros((len(self.one) + 1, len(columns)))
        for j, column in enumerate(columns):
            found[:-1, j] = column
        return found.reshape(-1)

    @cached_property
    def _starts(self) -> Floats:
        return _extended(self.start)

    @cached_property
    def _sizes(self) -> tuple[int, int, int]:
        """Places of a state (special codes included), of an action, and of a step."""
        c = self.cells
        states = max(int(v.max(initial=0)) for v in (c.s, c.s_next)) + 1 - START
        return states, int(c.a.max(initial=0)) + 1 - NO_ACTION, int(c.t_next.max(initial=0)) + 1

    def _keys(self, moves: Moves | TransitionMoments, block: Ints | None) -> Ints:
        """One number per cell: block, t, s, a, t', s'."""
        states, actions, steps = self._sizes
        key = moves.t.astype(np.int64) if block is None else block * steps + moves.t
        key = key * states + moves.s
        key -= START
        if self.moves == "actions":
            key *= actions
            key += moves.a
            key -= NO_ACTION
        elif self.has_stretches:
            key *= steps
            key += moves.t_next
        key *= states
        key += moves.s_next
        key -= START
        return np.asarray(key, np.int64)

    @cached_property
    def _sorted(self) -> tuple[Ints, Ints]:
        keys = self._keys(self.cells, self.cells.block if self.folds else None)
        order = np.argsort(keys, kind="stable")
        return keys[order], order

    @cached_property
    def _place(self) -> npt.NDArray[np.int32] | None:
        keys, order = self._sorted
        size = int(keys[-1]) + 1
        if size > max(DENSE_CELLS, 8 * len(keys)):
            return None
        place = np.full(size, len(keys), np.int32)
        place[keys] = order
        return place

    def cell_of(self, moves: Moves) -> Ints:
        """(L,) the cell of each move; E, beyond the last, where the table has none."""
        keys = self._keys(moves, moves.fold[moves.episode] if self.folds else None)
        if self._place is not None:
            inside = np.minimum(keys, len(self._place) - 1)
            return np.where(keys == inside, self._place[inside], len(self.cells))
        known, order = self._sorted
        at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
        return np.where(known[at] == keys, order[at], len(self.cells))

    def terms(self, moves: Moves, cell: Ints) -> Floats:
        """(L,) the term of each move, without the episode's start."""
        found = _extended(self.one)[cell]
        for of_cell, of_move in ((self.rho, moves.rho), (self.z, moves.z), (self.y, moves.y)):
            if np.any(of_cell):
                found += _extended(of_cell)[cell] * of_move
        return found


def _extended(values: Floats) -> Floats:
    return np.append(values, 0.0)


@dataclass(frozen=True, eq=False)
class ProductGradient:
    """Of a value from running products w_t = ρ_{0:t}, or whole ones W = ρ_{0:H-1}:

        step-wise        Σ_t γ^t w_t (y_t - center_t)/exp(log_mean_t) + g + constant
        trajectory-wise  W (G - center)/exp(log_mean) + constant,   G = Σ_t γ^t y_t

    with ∂v/∂Σw_t y_t = γ^t/Σw_t and ∂v/∂Σw_t = - γ^t v_t/Σw_t; not weighted, both centers and the
    logarithms are 0.
    """

    whole: bool
    weighted: bool
    center: Floats
    log_mean: Floats
    constant: float


@dataclass(frozen=True, eq=False)
class TableGradient:
    """Of a value from declared tables: in place of their sums n ∂v/∂(sum), by cell.

    constant   a constant for every episode
    max_ratio  the clipping of ratios
    """

    by_table: tuple[DeclaredSums, ...]
    constant: float
    max_ratio: float | None


Gradient = CellGradient | ProductGradient | TableGradient


@dataclass(frozen=True, eq=False)
class Moves:
    """L moves (t, s) → (t', s'); ρ, z, y as in `TransitionMoments`, of one move each.

    fold        (n,) of the episodes
    within, of  (N,) per row: ρ_{t:t+j} γ^j since its move began, and the move (None: row k is
                move k, and within is ρ)
    """

    fold: Ints
    episode: Ints
    t: Ints
    s: Array
    a: Array
    t_next: Ints
    s_next: Array
    rho: Floats
    z: Floats
    y: Floats
    within: Floats
    of: Ints | None = None

    def by_row(self, values: Floats) -> Floats:
        """(N,) of (L,) values by move."""
        return values if self.of is None else values[self.of]


def moves_of(log: EpisodeLog, rho: Floats, kind: MoveKind, *, folds: int = 0) -> Moves:
    """The moves of a log: one per row, or from each observed state to the next."""
    fold = log.steps.blocks(folds) if folds else np.zeros(0, np.int64)
    if kind == "stretches" and log.has_hidden:
        return _stretch_moves(log, rho, fold)
    steps, as_state = log.steps, len(log.states)
    state, after = steps.state, steps.next_state
    if log.has_hidden:  # the hidden state is a separate state, except after the horizon
        final = steps.step == steps.horizon - 1
        state = np.where(state == HIDDEN, as_state, state)
        after = np.where(after == HIDDEN, np.where(final, UNKNOWN, as_state), after)
    elif np.any(after[steps.rows(steps.horizon - 1)] == HIDDEN):
        after = np.where(after == HIDDEN, UNKNOWN, after)
    return Moves(
        fold=fold,
        episode=steps.episode_index,
        t=steps.step,
        s=state,
        a=steps.action if kind == "actions" else np.zeros(0, np.int64),
        t_next=steps.step + 1,
        s_next=after,
        rho=rho,
        z=rho * steps.reward,
        y=steps.reward,
        within=rho,
    )


def _stretch_moves(log: EpisodeLog, rho: Floats, fold: Ints) -> Moves:
    """From each observed state to the next; a hidden first state is START.

    R = ρ_{t:t+j},   z = Σ_j γ^j ρ_{t:t+j} y_{t+j}
    """
    steps = log.steps
    begins = steps.state != HIDDEN
    begins[steps.rows(0)] = True
    of, product = np.cumsum(begins) - 1, rho.copy()
    for t in range(1, steps.horizon):
        hidden = np.flatnonzero(~begins[steps.rows(t)])
        here, before = steps.offsets[t] + hidden, steps.offsets[t - 1] + hidden
        # what cannot happen counts 0, however large the rest
        product[here] = np.where(product[here] == 0, 0.0, product[here] * product[before])
        of[here] = of[before]
    begin = np.flatnonzero(begins)
    last = np.zeros(len(begin), np.int64)
    np.maximum.at(last, of, np.arange(steps.n_rows))
    power = log.discount ** (steps.step - steps.step[begin][of]).astype(np.float64)
    within = power * product
    state, after = steps.state[begin], steps.next_state[last]
    return Moves(
        fold=fold,
        episode=steps.episode_index[begin],
        t=steps.step[begin],
        s=np.where(state == HIDDEN, START, state),
        a=np.zeros(0, np.int64),
        t_next=steps.step[last] + 1,
        s_next=np.where(after == HIDDEN, UNKNOWN, after),
        rho=product[last],
        z=tally(of, within * steps.reward, len(begin)),
        y=tally(of, power * steps.reward, len(begin)),
        within=within,
        of=of,
    )


def gathered(gradient: Gradient, log: EpisodeLog, target: Policy, rho: Floats) -> Floats:
    """(n,) ∇f · x_i of the episodes of a log, times n of the whole log."""
    if isinstance(gradient, ProductGradient):
        return _of_products(gradient, log, rho)
    if isinstance(gradient, TableGradient):
        return _of_tables(gradient, log, target)
    if _row_by_row(gradient, log):
        return _gathered_by_rows(gradient, log, rho)
    moves = moves_of(log, rho, gradient.moves, folds=gradient.folds)
    cell, n = gradient.cell_of(moves), log.n_episodes
    terms = gradient.terms(moves, cell)
    if gradient.policy is not None:
        terms += gradient.policy.terms(log, target, cell)
    return _extended(gradient.start)[cell[:n]] + tally(moves.episode, terms, n)


def _row_by_row(gradient: CellGradient, log: EpisodeLog) -> bool:
    """Whether one compiled loop gathers it: every move is a row, and a cell's place is known."""
    return (
        log.steps.n_rows >= kernels.COMPILED_FROM
        and not log.has_hidden
        and gradient.policy is None
        and not gradient.folds
        and not gradient.has_stretches
        and gradient._place is not None
    )


def _gathered_by_rows(gradient: CellGradient, log: EpisodeLog, rho: Floats) -> Floats:
    steps, psi = log.steps, np.zeros(log.n_episodes)
    states, actions, _ = gradient._sizes
    by_action = gradient.moves == "actions"
    kernels.kernel("rows.gather_cells")(
        steps.offsets,
        steps.state,
        steps.action if by_action else steps.state,
        steps.ending,
        rho,
        steps.reward,
        states,
        actions if by_action else 0,
        gradient._place,
        gradient._derivatives,
        gradient._starts,
        psi,
    )
    return psi


def _of_products(gradient: ProductGradient, log: EpisodeLog, rho: Floats) -> Floats:
    from reweigh.sums import products

    steps, constant = log.steps, gradient.constant
    if gradient.weighted and not gradient.whole:
        center, log_mean = gradient.center, gradient.log_mean
        psi = products.weighted_residuals(steps, rho, log.discount, center, log_mean)
        return psi + constant if steps.start_value is None else psi + steps.start_value + constant
    log_w, earned, returns = products.of_episodes(steps, rho, log.discount)
    if not gradient.whole:
        return earned + constant
    centered = returns - gradient.center
    weight = np.exp(np.where(centered == 0, -np.inf, log_w - gradient.log_mean))
    return np.where(centered == 0, 0.0, weight * centered) + constant


def _of_tables(gradient: TableGradient, log: EpisodeLog, target: Policy) -> Floats:
    from reweigh.sums.numpy_scan import NumpyScan

    n = log.n_episodes
    scan = NumpyScan(log, target.probabilities(log), gradient.max_ratio, np.arange(n))
    psi = np.full(n, gradient.constant)
    for slopes in gradient.by_table:
        rows = scan.terms(slopes.table)
        keys = [np.append(getattr(slopes, key), rows[key]) for key in slopes.keys[1:]]
        size = len(slopes) + len(rows["block"])
        index = group_by(keys).index() if keys else np.zeros(size, np.int64)
        cell = np.zeros(int(index.max()) + 1, np.int64)
        cell[index[: len(slopes)]] = np.arange(len(slopes))
        at = cell[index[len(slopes) :]]
        terms = slopes.n[at]
        for column in slopes.table.columns:
            slope = getattr(slopes, column)
            if np.any(slope):
                terms += slope[at] * rows[column]
        psi += tally(rows["block"], terms, n)
    return psi
