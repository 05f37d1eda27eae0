"""MIS straight from the rows of a large log in memory: the same Solution as from the sums.

One compiled pass forward and one backward (`kernels/forward.py`, `backward.py`), with work vectors
of one step, instead of a table of cells, which costs a sort; a third pass gives the influence
values. Everything is an array over (t, s), so that this is for logs where most of these occur.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from reweigh.estimate.estimator import Place, Recipe, Solution, value_alone
from reweigh.estimate.operators import covered_by
from reweigh.estimate.refusals import no_support, overflow
from reweigh.estimate.solution import DenseNodes, largest
from reweigh.estimate.standard_error import LOST, Freedom, lost_in_rounding
from reweigh.kernels import Array, Bools, Floats, inner, kernel, tally
from reweigh.log.log import EpisodeLog
from reweigh.log.steps import Steps
from reweigh.policy import ColumnPolicy, Policy
from reweigh.policy.table import TablePolicy

if TYPE_CHECKING:
    from reweigh.log.large_arrays import BorrowedArrays, Pairs

MODES = {"none": 0, "simplex": 1, "state": 2}  # of the kernel that resamples
NO_BITS = np.uint64(0)  # of an action: codes are those of states


def state_values(log: EpisodeLog, target: Policy, max_ratio: float | None) -> tuple[Floats, Bools]:
    """(H+1, S) V_t(s) by MIS without any normalization, and which (t, s) an episode reached, one
    after its last row included."""
    rows = rows_of(log, target, max_ratio)
    values, visits = np.zeros((2, log.horizon + 1, rows.width))
    run = kernel("backward.state_values")
    with np.errstate(over="ignore", invalid="ignore"):
        for columns, since, until in rows.parts(backwards=True):
            run(*columns, rows.gamma, values, visits, since, until)
    reached, going = visits[:, :-1] > 0, np.append(np.diff(log.steps.offsets), 0)
    for t in range(log.horizon):  # episodes are ordered from the longest to the shortest
        after = log.steps.ending[going[t + 1] : going[t]]
        reached[t + 1, after[after >= 0]] = True
    return values[:, :-1], reached


def solve_rows(rows: Rows, recipe: Recipe, *, errors: bool = True) -> Solution:
    """The same for any size."""
    simplex = recipe.normalize == "simplex"
    with np.errstate(over="ignore", invalid="ignore"):
        if not errors:
            return value_alone(_per_step(rows, forward(rows, simplex, keep=False)))
        return _solve(rows, simplex)


def _ratios(log: EpisodeLog, target: Policy) -> Floats:
    """ρ = π/μ of the rows. A log from arrays has checked its column when it was made."""
    mu = log.steps.behavior_prob
    assert mu is not None
    if isinstance(target, ColumnPolicy) and f"checked {target.column}" in log._cache:
        pi = log.column(target.column)
    else:
        pi = target.probabilities(log)
    own = isinstance(target, TablePolicy)  # others may hand out an array that is theirs
    return np.divide(pi, mu, out=pi if own else None)


def _ratios_by_code(log: EpisodeLog, target: Policy) -> Floats | None:
    """The same of every pair of state and action that occurs; None where rows are not held as
    pairs, or where π is not a function of them."""
    pairs = log.steps.pairs
    if pairs is None or log.actions is None:
        return None
    if isinstance(target, ColumnPolicy):
        pi = pairs.columns.get(target.column)
    elif isinstance(target, TablePolicy) and not target.has_steps:
        state, action = pairs.seen >> pairs.bits, pairs.action_of[pairs.seen & pairs.mask]
        known_as = target.all_actions(log).translate(log.actions)
        found, known = target.find(log.states, state, None, known_as[action])
        pi = pairs.spread(found) if known.all() else None
    else:
        return None
    return None if pi is None else pi / pairs.columns["behavior_prob"]


@dataclass(frozen=True, eq=False)
class BorrowedRatios:
    """π/μ of a log whose probabilities are read from the user's arrays."""

    borrowed: BorrowedArrays
    max_ratio: float | None

    @cached_property
    def all(self) -> Floats:
        """(N,) a copy, for those who need every row at once."""
        found = self.borrowed.column("target_prob")
        with np.errstate(over="ignore"):
            found /= self.borrowed.column("behavior_prob")
        return np.asarray(found if self.max_ratio is None else np.minimum(found, self.max_ratio))

    def at(self, t: int) -> Floats:
        """Those of one step."""
        size = int(self.borrowed.offsets[t + 1] - self.borrowed.offsets[t])
        ratios, _ = self.borrowed.some(t, t + 1, self.max_ratio, np.empty(2 * size))
        return ratios

    def parts(self, n: int, *, backwards: bool) -> Iterator[tuple[Floats, Floats, int, int]]:
        """Ratios and rewards of some steps after the other, and which these are."""
        horizon, k = len(self.borrowed.offsets) - 1, self.borrowed.together
        starts, room = range(0, horizon, k), np.empty(2 * k * n)
        for since in reversed(starts) if backwards else starts:
            until = min(since + k, horizon)
            yield *self.borrowed.some(since, until, self.max_ratio, room), since, until


@dataclass(frozen=True, eq=False)
class Rows:
    """What the kernels read. A state's column is its code, END's is the last of `width`. Where
    the rows are `pairs`, rho holds the ratio of every pair, else that of every row."""

    steps: Steps
    ratios: Floats | BorrowedRatios
    gamma: float
    width: int
    pairs: Pairs | None = None

    @classmethod
    def of(cls, log: EpisodeLog, target: Policy, max_ratio: float | None) -> Rows:
        borrowed = log.steps.borrowed
        if (
            borrowed is not None
            and isinstance(target, ColumnPolicy)
            and target.column in borrowed.numbers
        ):
            ratios = BorrowedRatios(borrowed, max_ratio)
            return cls(log.steps, ratios, log.discount, len(log.states) + 1)
        with np.errstate(over="ignore"):
            rho = by_code = _ratios_by_code(log, target)
            if rho is None:
                rho = _ratios(log, target)
            if max_ratio is not None:
                rho = np.minimum(rho, max_ratio)
        pairs = None if by_code is None else log.steps.pairs
        return cls(log.steps, _plain(rho), log.discount, len(log.states) + 1, pairs)

    @property
    def rho(self) -> Floats:
        ratios = self.ratios
        return ratios.all if isinstance(ratios, BorrowedRatios) else ratios

    @cached_property
    def columns(self) -> tuple[Any, ...]:
        """The first arguments of the recursions: see `forward`."""
        s, pairs = self.steps, self.pairs
        if pairs is None:
            return s.offsets, self._states, NO_BITS, s.ending, self.rho, False, _plain(s.reward)
        bits = np.uint64(pairs.bits)
        return s.offsets, _plain(pairs.code, np.uint16), bits, s.ending, self.rho, True, s.reward

    def parts(self, *, backwards: bool = False) -> Iterator[tuple[tuple[Any, ...], int, int]]:
        """The first arguments of the recursions, and the steps that they hold the rows of."""
        s, ratios = self.steps, self.ratios
        if not isinstance(ratios, BorrowedRatios):
            yield self.columns, 0, s.horizon
            return
        for rho, reward, since, until in ratios.parts(s.n_episodes, backwards=backwards):
            yield (s.offsets, self._states, NO_BITS, s.ending, rho, False, reward), since, until

    def of_step(self, t: int) -> tuple[Array, Floats]:
        """States and ratios of the rows of one step."""
        rows = self.steps.rows(t)
        if isinstance(self.ratios, BorrowedRatios):
            return self._states[rows], self.ratios.at(t)
        if self.pairs is None:
            return self._states[rows], self.ratios[rows]
        return self.pairs.state(rows), self.rho[self.pairs.code[rows]]

    @property
    def unpacked(self) -> tuple[Any, ...]:
        """The first arguments of the kernels that resample: states and ratios of the rows."""
        s = self.steps
        return s.offsets, self._states, s.ending, self.row_ratios, _plain(s.reward)

    @property
    def row_ratios(self) -> Floats:
        """(N,) ρ of the rows."""
        return self.rho if self.pairs is None else self.rho[self.pairs.code]

    @property
    def _states(self) -> npt.NDArray[np.uint32]:
        # Unsigned codes: the compiled code need not check for negative indices.
        return _plain(self.steps.state, np.int32).view(np.uint32)


def rows_of(log: EpisodeLog, target: Policy, max_ratio: float | None) -> Rows:
    """The rows with their ratios, computed once for all uses of a solution."""
    held = log._cache.get("rows of mis")
    rows: Rows | None = None if held is None or held[1:] != (target, max_ratio) else held[0]()
    if rows is None or rows.steps is not log.steps:
        rows = Rows.of(log, target, max_ratio)
        log._cache["rows of mis"] = (weakref.ref(rows), target, max_ratio)
    return rows


def _plain(values: Array, kind: type = np.float64) -> Array:
    """The array, or a copy that is one piece and may be written: another kind of array would be
    another kernel to compile."""
    return np.require(values, kind, ["C", "W"])


@dataclass(frozen=True, eq=False)
class Flow:
    """The forward recursion: d, visits (H+1, width), and (H,) what the steps add up to. Where no
    more was kept than the value needs, d and visits have two lines (step t in line t mod 2), and
    `second` and `logged` are nan.

    parts (H+1, width) is room for the backward recursion's parts of SE².
    """

    d: Floats
    visits: Floats
    parts: Floats
    mass: Floats
    total: Floats
    earned: Floats
    placebo: Floats
    first: Floats
    second: Floats
    logged: Floats
    powers: Floats


def forward(rows: Rows, simplex: bool, *, keep: bool = True) -> Flow:
    """Run forward; SupportError where no row is possible under the target. Unless all is to be kept
    it is what the value needs."""
    horizon = rows.steps.horizon
    d, visits, parts = np.empty((3, horizon + 1 if keep else 2, rows.width))
    parts[-1] = 0.0  # of the horizon, where no row is; all else is written
    steps = np.zeros((7, horizon))
    run = kernel("forward.forward")
    for columns, since, until in rows.parts():
        failed = run(*columns, simplex, d, visits, steps, since, until, keep)
        if failed >= 0:
            raise no_support(failed)
    powers = np.asarray(rows.gamma ** np.arange(horizon), np.float64)
    mass, total, earned, placebo, first, second, logged = steps
    return Flow(d, visits, parts, mass, total, earned, placebo, first, second, logged, powers)


def _solve(rows: Rows, simplex: bool) -> Solution:
    flow = forward(rows, simplex)
    horizon, n = rows.steps.horizon, rows.steps.n_episodes
    parts, lost = flow.parts, np.zeros(horizon)
    u, ahead = np.zeros((2, horizon + 1, rows.width, 2))
    scale, of_placebo = 0.0, 0.0
    run = kernel("backward.backward")
    for columns, since, until in rows.parts(backwards=True):
        squares, ones = run(
            *columns, rows.gamma, simplex, flow.d, flow.visits, flow.mass, parts[:-1], lost,
            u, ahead, since, until,
        )  # fmt: skip
        scale, of_placebo = scale + squares, of_placebo + ones
    g = _start_values(rows)
    start = start_variance(u[0, :, 0], flow.visits[0], g)
    square = start + float(parts.sum())
    # What SE² is a difference of: below 1e-12 of it, its digits are noise.
    scale += float(np.sum(u[0, :, 0] ** 2 * flow.visits[0])) / n**2
    per_step = _per_step(rows, flow)
    if g is not None:
        scale += float(np.sum(2 * np.abs(u[0, :, 0] * g[0]) + g[1])) / n**2
    gone = lost_in_rounding(square, scale)
    second = flow.second
    nodes = _nodes(rows.steps, flow)
    seldom = nodes.seldom
    unseen = np.cumprod(flow.mass) * lost
    unseen = np.where(unseen > 1e-9, unseen, 0.0)
    return Solution(
        value=float(per_step.sum()),
        standard_error=None if gone else float(np.sqrt(square)),
        error_method=LOST if gone else "analytic",
        per_step=per_step,
        ess=np.where(second > 0, flow.first**2 / np.where(second > 0, second, 1.0), np.nan),
        unseen_mass=unseen,
        unseen_at=_unseen_at(rows, flow, unseen),
        placebo=float(flow.powers @ flow.placebo),
        placebo_error=float(np.sqrt(of_placebo + start_variance(u[0, :, 1], flow.visits[0]))),
        placebo_by_step=flow.powers * flow.placebo,
        rare_mass=float(seldom.rare.sum()) / horizon,
        rare_by_step=seldom.rare,
        rare_at=seldom.rare_at,
        total_mass=flow.total,
        variance_of_start=start,
        freedom=_freedom(nodes, start, n),
        normalized_at=np.ones(horizon, bool) if simplex else None,
        mean_return=float(flow.powers @ flow.logged) / n,
        by_node=nodes,
        influence=lambda: _influence(rows, flow, u, ahead),
    )


def _influence(rows: Rows, flow: Flow, u: Floats, ahead: Floats) -> Floats:
    """(n,) ψ_i = u_0(s_0) + g_i + Σ_t γ^t n d_t(s)/N_t(s) [ρ (y + γ u'(s')) - u_t(s)], less its
    mean: how much each episode moves the value (`estimate/influence.py`)."""
    psi = u[0, rows.steps.first_states(), 0]
    if rows.steps.start_value is not None:
        psi = psi + rows.steps.start_value
    run = kernel("backward.influence")
    for columns, since, until in rows.parts():
        run(*columns, rows.gamma, flow.d, flow.visits, u, ahead, psi, since, until)
    if not np.all(np.isfinite(psi)):
        raise overflow()
    return np.asarray(psi - psi.mean(), np.float64)


def _per_step(rows: Rows, flow: Flow) -> Floats:
    """(H,) γ^t <d_t, r_t>, at the start with a control's mean start value."""
    per_step = flow.powers * flow.earned
    if rows.steps.start_value is not None:
        per_step[0] += float(rows.steps.start_value.sum()) / rows.steps.n_episodes
    return per_step


def _start_values(rows: Rows) -> Floats | None:
    """(2, width) Σg and Σg² by first state, of a control's start value."""
    g = rows.steps.start_value
    if g is None:
        return None
    first = rows.steps.first_states()
    return np.stack([tally(first, g, rows.width), tally(first, g * g, rows.width)])


def start_variance(u: Floats, count: Floats, g: Floats | None = None) -> float:
    """Var[u_0(s_0) + g(s_0)]/n."""
    n, weighted = float(count.sum()), u * count
    first, second = float(weighted.sum()), inner(weighted, u)
    if g is not None:
        first, second = first + float(g[0].sum()), second + float((2 * u * g[0] + g[1]).sum())
    mean = first / n
    return max(second / n - mean * mean, 0.0) / n


def _unseen_at(rows: Rows, flow: Flow, unseen: Floats) -> Place | None:
    """See `solution.most_unseen`. From the rows of that step alone: the others need not be read."""
    if not unseen.any():
        return None
    t = int(np.argmax(unseen))
    state, ratio = rows.of_step(t)
    count = np.bincount(state, minlength=rows.width).astype(np.float64)
    sums = (tally(state, values, rows.width) for values in (ratio, ratio * ratio))
    lost = flow.d[t] * np.maximum(1 - covered_by(count, *sums), 0.0)
    return Place(t, largest(lost[:-1]))  # END, which loses nothing, is the last


def _freedom(nodes: DenseNodes, start: float, n: int) -> Freedom | None:
    square, spread = nodes.seldom.corrected, nodes.seldom.spread
    if square > 0 and not 0 < spread < np.inf:  # a square is lost: with each part by itself
        parts = np.append(nodes.variance, start)
        return Freedom.of(parts, np.append(nodes.visits, n))
    return Freedom.of_sums(square, spread, start, n)


def _nodes(steps: Steps, flow: Flow) -> DenseNodes:
    """The values of the Solution by (t, s)."""

    def reached() -> npt.NDArray[np.uint8]:
        flags = np.zeros(flow.d.shape, np.uint8)
        last = np.flatnonzero(steps.ending >= 0)
        flags[steps.lengths[last], steps.ending[last]] = 1
        return flags

    return DenseNodes(flow.d, flow.visits, flow.parts, reached, steps.n_episodes)
