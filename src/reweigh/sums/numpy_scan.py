"""The NumPy scan: the sums of any declared table, from the rows of a log in memory.

For tables of a user, and where the compiled scan is not for a log (`scan.why_not`)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.kernels import group_by, tally
from reweigh.log.log import EpisodeLog
from reweigh.log.states import HIDDEN, START, UNKNOWN, Labels
from reweigh.log.steps import NUMBER, Steps
from reweigh.sums.diagnostic_tables import (
    UNORDERED,
    Buckets,
    LaggedMoments,
    LargestWeights,
    OrderedMoments,
    PacedMoments,
    thinned,
)
from reweigh.sums.gather import moves_of
from reweigh.sums.keyed import (
    NO_ACTION,
    DeclaredSums,
    StartMoments,
    TransitionMoments,
    keys_with_block,
)
from reweigh.sums.tables import BUILT_IN, CHOICES, Operations, Table, evaluated

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
NUMPY = Operations(np.minimum, np.maximum, lambda condition: np.where(condition, 1.0, 0.0))
DENSE = 4  # cells per row, up to which sums are counted by place and not sorted
Names = dict[str, Callable[[], Any]]


@dataclass(frozen=True, eq=False)
class NumpyScan:
    """A log with one target: what its rows show, by the names of tables.

    pi     (N,) π(a|s) of the rows; their ratios are clipped at `max_ratio`
    block  (n,) of the episodes
    """

    log: EpisodeLog
    pi: Floats
    max_ratio: float | None
    block: Ints

    @cached_property
    def rho(self) -> Floats:
        """(N,) ρ = π/μ, clipped."""
        mu = self.log.steps.behavior_prob
        assert mu is not None
        rho = self.pi / mu
        return rho if self.max_ratio is None else np.minimum(rho, self.max_ratio)

    def starts(self, kind: str) -> StartMoments:
        """`start` or `start_model`."""
        return StartMoments(**self.sums(BUILT_IN[kind]))

    def cells(self, kind: str) -> TransitionMoments:
        """`transitions`, `model` or `choices`."""
        sums = self.sums(CHOICES if kind == "choices" else BUILT_IN[kind])
        size = len(sums["n"])
        if kind == "choices":
            sums |= {"t_next": sums["t"] + 1, "s_next": np.full(size, UNKNOWN)}
        return TransitionMoments(**{"a": np.full(size, NO_ACTION)} | sums)

    def lagged(self, states: Labels) -> LaggedMoments:
        return thinned(LaggedMoments(**self.sums(LaggedMoments.TABLE)), states)

    def ordered(self) -> OrderedMoments:
        """Logged returns by the episodes' ids. Ids that are not whole numbers have no order: all
        are in one bucket."""
        ids = self.ids
        shift, bucket = (UNORDERED, None) if ids is None else buckets_of(ids, OrderedMoments)
        return OrderedMoments(shift=shift, **self.sums(OrderedMoments.TABLE, bucket=bucket))

    def paced(self) -> PacedMoments | None:
        """Logged rewards by the episodes' ids and the step; None if an id is not a number."""
        if self.ids is None:
            return None
        shift, bucket = buckets_of(self.ids, PacedMoments)
        return PacedMoments(shift=shift, **self.sums(PacedMoments.TABLE, bucket=bucket))

    def largest(self) -> LargestWeights:
        return LargestWeights.of(LargestWeights.even(log_weights(self.log, self.rho)))

    def sums(
        self, table: Table, keys: tuple[str, ...] | None = None, bucket: Ints | None = None
    ) -> dict[str, Any]:
        """Keys, n and columns of a table; `bucket` (n,) that of the episodes' ids, else 0."""
        keys = table.keys if keys is None else keys
        return summed_rows(table, self.rows(table, keys, bucket), keys)

    def rows(
        self, table: Table, keys: tuple[str, ...], bucket: Ints | None = None
    ) -> dict[str, Any]:
        """What the rows that a table sums show, by the names that it uses."""
        bucket = np.zeros(self.log.n_episodes, np.int64) if bucket is None else bucket
        names = self._names(table, bucket)
        used = {name: names[name]() for name in {*keys, *table.names_used}}
        if table.where is not None:
            rows = np.flatnonzero(evaluated(table.where, used, NUMPY))
            used = {n: v[rows] if np.ndim(v) else v for n, v in used.items()}
        return used

    def declared(self, table: Table) -> DeclaredSums:
        """The sums of a table from outside of the package."""
        return DeclaredSums(table, self.sums(table, keys_with_block(table)))

    def terms(self, table: Table) -> dict[str, Any]:
        """What the rows add to such a table: its keys and its columns, not summed."""
        keys = keys_with_block(table)
        used = self.rows(table, keys)
        return {key: used[key] for key in keys} | _columns(table, used, len(used["block"]))

    def _names(self, table: Table, bucket: Ints) -> Names:
        with_state = table.hidden == "state" and self.log.has_hidden
        as_state = len(self.log.states) if with_state else HIDDEN
        if table.rows == "stretch" and self.log.has_hidden:
            return self._of_stretches()
        if table.memory is not None:
            return self._of_windows(table.memory, as_state)
        if table.rows == "episode":
            return self._of_episodes(as_state if with_state else START, bucket)
        return self._of_steps() if table.rows == "step" else self._of_rows(as_state, bucket)

    def _of_rows(self, as_state: int, bucket: Ints) -> Names:
        log, steps, rho = self.log, self.log.steps, self.rho
        before = self._row_before

        def state(codes: Array) -> Array:
            return _states(codes, as_state)

        def action() -> Array:
            return np.full(steps.n_rows, NO_ACTION) if log.continuous_actions else steps.action

        first = steps.step == 0
        return {
            "block": lambda: self.block[steps.episode_index],
            "t": lambda: steps.step,
            "t_next": lambda: steps.step + 1,
            "s": lambda: state(steps.state),
            "s_next": lambda: self._following(as_state),
            "s_before": lambda: np.where(first, START, state(steps.state)[before]),
            "a": action,
            "a_before": lambda: np.where(first, NO_ACTION, action()[before]),
            "bucket": lambda: bucket[steps.episode_index],
            "reward": lambda: steps.reward,
            "behavior_prob": lambda: steps.behavior_prob,
            "target_prob": lambda: self.pi,
            "ratio": lambda: rho,
            "weighted_reward": lambda: rho * steps.reward,
            "weighted_one": lambda: rho,
            "discount": lambda: self._powers,
            "running_product": lambda: self._running(rho, np.multiply),
            "return_so_far": lambda: self._running(self._powers * steps.reward, np.add),
            "observed": lambda: np.where(steps.state == HIDDEN, 0.0, 1.0),
            "observed_before": lambda: np.where(first | (steps.state[before] == HIDDEN), 0.0, 1.0),
        }

    def _following(self, as_state: int) -> Array:
        """(N,) the state after each row; a hidden one after the horizon is not a separate state."""
        steps = self.log.steps
        hidden = steps.next_state == HIDDEN
        hidden &= (steps.step == self.log.horizon - 1) | (as_state == HIDDEN)
        return _states(np.where(hidden, UNKNOWN, steps.next_state), as_state)

    def _of_windows(self, memory: int, as_state: int) -> Names:
        from reweigh.sums.products import windows_of

        steps, windows = self.log.steps, windows_of(self.log.steps, self.rho, memory)
        reward = np.where(windows.is_last, steps.reward[windows.last_row], 0.0)
        following = self._following(as_state)
        return {
            "block": lambda: self.block[windows.episode],
            "t": lambda: windows.begin,
            "s": lambda: _states(steps.state[windows.first_row], as_state),
            "t_next": lambda: windows.t_next,
            "s_next": lambda: following[windows.last_row],
            "reward": lambda: reward,
            "ratio": lambda: windows.ratio,
            "weighted_reward": lambda: windows.ratio * reward,
        }

    def _of_stretches(self) -> Names:
        moves = moves_of(self.log, self.rho, "stretches")
        of, size = moves.of, len(moves.t)
        assert of is not None
        return {
            "block": lambda: self.block[moves.episode],
            "t": lambda: moves.t,
            "s": lambda: moves.s,
            "t_next": lambda: moves.t_next,
            "s_next": lambda: moves.s_next,
            "reward": lambda: moves.y,
            "ratio": lambda: moves.rho,
            "weighted_reward": lambda: moves.z,
            "weighted_one": lambda: tally(of, moves.within, size),
            "target_prob": lambda: np.zeros(size),
            "behavior_prob": lambda: np.zeros(size),
        }

    def _of_episodes(self, hidden: int, bucket: Ints) -> Names:
        steps = self.log.steps
        first = steps.state[steps.rows(0)]
        start = 0.0 if steps.start_value is None else steps.start_value

        def total(values: Floats) -> Floats:
            return tally(steps.episode_index, values, steps.n_episodes)

        def weighted() -> Floats:
            return start + total(self._powers * self._running(self.rho, np.multiply) * steps.reward)

        return {
            "block": lambda: self.block,
            "t": lambda: np.zeros(steps.n_episodes, np.int64),
            "s": lambda: np.where(first == HIDDEN, hidden, first),
            "bucket": lambda: bucket,
            "length": lambda: np.bincount(steps.episode_index, minlength=steps.n_episodes),
            "running_product": lambda: self._last(self._running(self.rho, np.multiply)),
            "log_product": lambda: log_weights(self.log, self.rho),
            "total_return": lambda: total(self._powers * steps.reward),
            "weighted_return": weighted,
            "start_value": lambda: start,
        }

    def _of_steps(self) -> Names:
        """Every step of every episode, step by step; an episode that has ended continues."""
        steps = self.log.steps
        n, horizon = steps.n_episodes, steps.horizon
        t = np.minimum(np.arange(horizon)[:, None], self._lengths - 1)
        row = steps.offsets[t] + np.arange(n)
        alive = np.arange(horizon)[:, None] < self._lengths
        return {
            "block": lambda: np.tile(self.block, horizon),
            "t": lambda: np.repeat(np.arange(horizon), n),
            "running_product": lambda: self._running(self.rho, np.multiply)[row].reshape(-1),
            "reward": lambda: np.where(alive, steps.reward[row], 0.0).reshape(-1),
        }

    @cached_property
    def ids(self) -> Ints | None:
        """(n,) numbers in whose order the episodes are."""
        return order_of(self.log.steps)

    @cached_property
    def _lengths(self) -> Ints:
        steps = self.log.steps
        return np.bincount(steps.episode_index, minlength=steps.n_episodes)

    @cached_property
    def _powers(self) -> Floats:
        return np.asarray(self.log.discount ** self.log.steps.step.astype(np.float64))

    @cached_property
    def _row_before(self) -> Ints:
        """(N,) the row of the step before; that of step 0 is the row itself. Row k of a step
        belongs to episode k."""
        steps = self.log.steps
        return steps.offsets[np.maximum(steps.step - 1, 0)] + steps.episode_index

    def _running(self, values: Floats, join: Callable[[Any, Any], Any]) -> Floats:
        """(N,) products or sums of an episode's values up to the row."""
        steps, total = self.log.steps, np.array(values, np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            for t in range(1, steps.horizon):
                rows = steps.rows(t)
                count = rows.stop - rows.start
                before = steps.rows(t - 1).start
                total[rows] = join(total[before : before + count], total[rows])
        return total

    def _last(self, values: Floats) -> Floats:
        """(n,) of the episodes' last rows."""
        steps = self.log.steps
        return np.asarray(values[steps.offsets[self._lengths - 1] + np.arange(steps.n_episodes)])


def _states(codes: Array, as_state: int) -> Array:
    """With this code for the hidden state."""
    return codes if as_state == HIDDEN else np.where(codes == HIDDEN, as_state, codes)


def summed_rows(table: Table, used: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """Keys, n and columns of a table over the rows that these names are of."""
    columns = _columns(table, used, len(used[keys[0]]))
    with np.errstate(over="ignore", invalid="ignore"):
        return grouped({key: used[key] for key in keys}, columns, table.largest_of)


def _columns(table: Table, used: dict[str, Any], size: int) -> dict[str, Floats]:
    """By name, a number of each of these rows."""
    with np.errstate(over="ignore", invalid="ignore"):
        values = table.values(used, NUMPY)
        return {n: np.broadcast_to(np.asarray(v, float), size) for n, v in values.items()}


def grouped(
    keys: dict[str, Array], columns: dict[str, Floats], largest_of: tuple[str, ...] = ()
) -> dict[str, Any]:
    """One row per key: keys, n and sums. Where the keys span few cells, places are counted and
    nothing is sorted."""
    size = len(next(iter(keys.values())))
    lows = {key: int(values.min()) if size else 0 for key, values in keys.items()}
    widths = {key: int(v.max()) - lows[key] + 1 if size else 1 for key, v in keys.items()}
    places = math.prod(widths.values())
    if largest_of or places > DENSE * size:
        groups = group_by(list(keys.values()))
        sums = {
            name: groups.max(values) if name in largest_of else groups.sum(values)
            for name, values in columns.items()
        }
        return dict(zip(keys, groups.keys, strict=True)) | {"n": groups.count()} | sums
    place = np.zeros(size, np.int64)
    for key, values in keys.items():
        if widths[key] > 1:
            place = place * widths[key] + (values - lows[key])
    count = np.bincount(place, minlength=places)
    cells = np.flatnonzero(count)
    of_key, rest = {}, cells
    for key in reversed(keys):
        rest, code = np.divmod(rest, widths[key])
        of_key[key] = code + lows[key]
    sums = {
        # a number that all rows share is broadcast
        name: values[0] * count[cells] if values.strides == (0,) else tally(place, values)[cells]
        for name, values in columns.items()
    }
    return {key: of_key[key] for key in keys} | {"n": count[cells]} | sums


def buckets_of(ids: Ints, of: type[Buckets]) -> tuple[int, Ints]:
    """The shift of a log's buckets, and (n,) those of its episodes."""
    shift = of.shift_of(int(ids.min()), int(ids.max()))
    return shift, ids >> shift


def order_of(steps: Steps) -> Ints | None:
    """(n,) when the episodes began, where the log has times; else their ids, None where one is no
    whole number."""
    return whole_numbers(steps.episode) if steps.began is None else steps.began


def whole_numbers(ids: Array) -> Ints | None:
    """Ids that are whole numbers, or texts of such, as `log/steps.py` has them."""
    if ids.dtype.kind in "iu":
        return ids.astype(np.int64) if ids.dtype.kind == "i" or np.all(ids < 2**63) else None
    is_number = re.compile(NUMBER).fullmatch
    texts = [str(value) for value in ids.tolist()]
    if not all(map(is_number, texts)):
        return None
    return np.array(texts, object).astype(np.int64)


def log_weights(log: EpisodeLog, rho: Floats) -> Floats:
    """(n,) the logarithms of the episodes' whole products."""
    steps = log.steps
    with np.errstate(divide="ignore"):
        log_rho = np.log(rho)
    # Σ log ρ by episode; a ratio of 0 makes it -inf
    return tally(steps.episode_index, log_rho, steps.n_episodes)
