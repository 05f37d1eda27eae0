"""Large (n, H) arrays of 64-bit numbers as time-major columns, each of them read once, in tiles; or
as pairs: where propensities are a function of (state, action), as those of a table are, a row is
one code and its reward, 10 bytes instead of 32; or borrowed: they stay where they are. Columns of
pairs and of borrowed arrays are computed on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.kernels import kernel
from reweigh.log.rules import LARGEST_REWARD, REWARDS, Range, probability_range
from reweigh.log.states import UNKNOWN, Labels

Array = npt.NDArray[Any]
FEW_CODES, MANY_CODES = 1 << 12, 1 << 24
Floats = npt.NDArray[np.float64]
LARGEST = float(np.finfo(np.float64).max)
TOGETHER = 8  # steps: as many numbers of an episode lie in one line of a processor's cache
SHARE = 4  # of the steps at most one in so many is held at a time
BITS = 16  # of a pair's code
SAMPLE = 64  # episodes used to guess how many states and actions there are
READ, TOO_LARGE, WRONG = 0, 1, 2  # as in kernels/ingest.py
UNSEEN = np.copysign(np.nan, -1.0)


@dataclass(frozen=True, eq=False)
class ArrayRows:
    """The content of a user's arrays: the time-major columns of `Steps` by name, or `pairs` or
    `borrowed` instead, and `target_prob`; (n,) the codes of the states at H, UNKNOWN where they are
    not given; and the labels."""

    columns: dict[str, Any]
    last: Array
    states: Labels
    actions: Labels | None


def read_columns(
    arrays: tuple[Any, ...], order: Array, offsets: Array, threads: int, *, copy: bool = True
) -> ArrayRows | None:
    """The columns; without `copy` rewards and probabilities stay where they are."""
    states, actions, rewards, behavior_prob, target_prob = arrays
    n_rows = int(offsets[-1])
    # One piece of memory for all columns: a system hands out a large piece far faster than many.
    numbers = sum(a is not None for a in (rewards, behavior_prob, target_prob)) if copy else 0
    room = _Room(np.empty(n_rows * (2 * 4 + 8 * numbers), np.uint8))
    ranges = {
        "reward": (rewards, REWARDS),
        "behavior_prob": (behavior_prob, probability_range("behavior_prob", density=False)),
        "target_prob": (target_prob, probability_range("target_prob", density=False)),
    }
    last = np.full(len(order), UNKNOWN, np.int32)
    jobs: list[Callable[[], Any]] = [
        partial(_transposed, values, order, offsets, limits, room.take(n_rows, np.float64))
        if copy
        else partial(_checked, values, order, offsets, limits)
        for values, limits in ranges.values()
        if values is not None
    ]
    jobs += [
        partial(_coded, values, order, offsets, ends, room.take(n_rows, np.int32))
        for values, ends in ((states, last), (actions, np.empty(0, np.int32)))
    ]
    *numbers_by_role, coded_states, coded_actions = side_by_side(jobs, threads)
    if any(column is None for column in (*numbers_by_role, coded_states, coded_actions)):
        return None
    (state, labels), (action, action_labels) = coded_states, coded_actions
    given = [name for name, (values, _) in ranges.items() if values is not None]
    columns: dict[str, Any] = {"state": state, "action": action}
    if copy:
        columns |= {"behavior_prob": None} | dict(zip(given, numbers_by_role, strict=True))
    else:
        columns["borrowed"] = BorrowedArrays(
            {name: ranges[name][0] for name in given}, order, offsets
        )
    return ArrayRows(columns, last, labels, action_labels)


def side_by_side(jobs: list[Callable[[], Any]], threads: int) -> list[Any]:
    """What the jobs return, in their order."""
    if threads == 1:
        return [job() for job in jobs]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda job: job(), jobs))


@dataclass
class _Room:
    """Memory to be handed out in pieces, the largest kinds of numbers first."""

    memory: Array
    used: int = 0

    def take(self, count: int, kind: type) -> Array:
        size = count * np.dtype(kind).itemsize
        piece: Array = self.memory[self.used : self.used + size].view(kind)
        self.used += size
        return piece


def _transposed(
    values: Array, order: Array, offsets: Array, limits: Range, rows: Array
) -> Array | None:
    """`rows`, filled time-major; None if a value is outside the limits."""
    run = kernel("ingest.transpose_numbers")
    return rows if run(values, order, offsets, limits.low, limits.high, rows) else None


def _checked(values: Array, order: Array, offsets: Array, limits: Range) -> Array | None:
    """The array itself; None if a value is outside the limits."""
    run = kernel("ingest.within")
    return values if run(values, order, offsets, limits.low, limits.high) else None


def _coded(
    values: Array, order: Array, offsets: Array, last: Array, rows: Array
) -> tuple[Array, Labels] | None:
    """`rows`, filled with time-major codes, and their labels; `last` gets the codes at H.

    None if a value is negative, or so large that a table of all values would be larger than the
    rows.
    """
    run = kernel("ingest.transpose_codes")
    for largest in (FEW_CODES, min(len(rows), MANY_CODES)):
        present = np.zeros(largest, np.uint8)
        if run(values, order, offsets, rows, last, present):
            break
    else:
        return None
    occurring = np.flatnonzero(present)
    if occurring[-1] + 1 != len(occurring):  # codes are the ranks of the values that occur
        code = np.cumsum(present, dtype=np.int32) - 1
        rows[:] = code[rows]
        last[:] = np.where(last >= 0, code[np.maximum(last, 0)], last)
    return rows, Labels(tuple(occurring.tolist()))


@dataclass(frozen=True, eq=False)
class BorrowedArrays:
    """Arrays (n, H) by the name of their column, all of them checked; row k of step t is that of
    episode order[k], as in `Steps`.

    They may lie in a file that is larger than memory. Who needs a whole column gets a copy of it;
    the recursions of MIS read a few steps at a time.
    """

    numbers: Mapping[str, Floats]
    order: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]

    @property
    def n_rows(self) -> int:
        return int(self.offsets[-1])

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.numbers)

    def always_probability_one(self) -> bool:
        mu = self.numbers["behavior_prob"]
        return bool(mu[self.order[0], 0] == 1.0 and np.all(self.column("behavior_prob") == 1.0))

    @property
    def together(self) -> int:
        """How many steps are read at a time."""
        return min(TOGETHER, max((len(self.offsets) - 1) // SHARE, 1))

    def column(self, name: str) -> Floats:
        """(N,) a copy, in the order of the steps."""
        rows = np.empty(self.n_rows)
        run = kernel("ingest.transpose_numbers")
        run(self.numbers[name], self.order, self.offsets, -LARGEST, LARGEST, rows)
        return rows

    def some(
        self, since: int, until: int, limit: float | None, room: Floats
    ) -> tuple[Floats, Floats]:
        """(m,) ratios, up to `limit`, and rewards of the rows of these steps, in `room`."""
        m = int(self.offsets[until] - self.offsets[since])
        ratios, rewards = room[:m], room[m : 2 * m]
        mu, pi, reward = (self.numbers[k] for k in ("behavior_prob", "target_prob", "reward"))
        run = kernel("ingest.some_steps")
        most = np.inf if limit is None else limit
        run(mu, pi, reward, self.order, self.offsets, since, until, most, ratios, rewards)
        return ratios, rewards


@dataclass(frozen=True, eq=False)
class Pairs:
    """`code` (N,) is (state << bits) | action; `action_of` (2^bits,) is the action's label, and
    `columns` hold a number of every code, nan for those that do not occur."""

    code: npt.NDArray[np.uint16]
    bits: int
    action_of: npt.NDArray[np.int32]
    columns: Mapping[str, Floats]

    @cached_property
    def seen(self) -> npt.NDArray[np.int64]:
        """The codes that occur."""
        return np.flatnonzero(~np.isnan(self.columns["behavior_prob"]))

    @property
    def mask(self) -> int:
        """The bits of the action."""
        return (1 << self.bits) - 1

    def spread(self, values: Floats) -> Floats:
        """A number of every code that occurs as one of every code, nan elsewhere."""
        return _scatter(values, len(self.columns["behavior_prob"]), self.seen)

    def state(self, rows: slice = slice(None)) -> npt.NDArray[np.int32]:
        return np.asarray(self.code[rows] >> self.bits, np.int32)

    def action(self) -> npt.NDArray[np.int32]:
        return np.asarray(self.action_of[self.code & self.mask], np.int32)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def column(self, name: str) -> Array:
        """(N,) the column of the rows."""
        if name == "state":
            return self.state()
        return self.action() if name == "action" else self.columns[name][self.code]

    def always_probability_one(self) -> bool:
        return bool(np.all(self.columns["behavior_prob"][self.seen] == 1.0))


def read_pairs(
    states: Array,
    actions: Array,
    rewards: Array,
    mu: Array,
    pi: Array | None,
    order: Array,
    offsets: Array,
    threads: int,
) -> ArrayRows | None:
    """The rows of (n, H) arrays of 64-bit numbers; None where they cannot be held as pairs, or
    where anything is wrong with them."""
    horizon, n_rows = len(offsets) - 1, int(offsets[-1])
    complete = int(offsets[horizon] - offsets[horizon - 1])
    # if all episodes are complete they keep their order
    ends = states[:, horizon:] if complete == len(order) else states[order[:complete], horizon:]
    ends = ends.reshape(-1)
    room = np.empty(n_rows * (8 + 2), np.uint8)  # one piece
    reward, code = room[: 8 * n_rows].view(np.float64), room[8 * n_rows :].view(np.uint16)
    for sample in (slice(0, SAMPLE), slice(None)):
        most = [int(values[sample].max()) for values in (states, actions)]
        of_state, bits = (max(largest, 1).bit_length() for largest in most)
        if of_state + bits > BITS:
            return None
        given = (
            states, actions, rewards, mu, np.empty((0, 0)) if pi is None else pi,
            order, offsets, bits, -LARGEST_REWARD, LARGEST_REWARD, code, reward,
        )  # fmt: skip
        read, table = _read(given, n_rows, 1 << (of_state + bits), threads)
        if read != TOO_LARGE:
            break
    if read != READ or (len(ends) and not 0 <= ends.min() <= ends.max() < 1 << BITS):
        return None
    seen = np.flatnonzero(~np.isnan(table[:, 0]))
    columns = {"behavior_prob": table[:, 0], "target_prob": table[:, 1]}
    if pi is None:
        del columns["target_prob"]
    columns = {name: _scatter(values[seen], len(table), seen) for name, values in columns.items()}
    if not all(probability_range(n, False).holds(v[seen]) for n, v in columns.items()):
        return None
    mask = (1 << bits) - 1
    labels, rank = _ranks(max(len(table) >> bits, int(ends.max(initial=0)) + 1), seen >> bits, ends)
    actions_seen, action_of = _ranks(1 << bits, seen & mask)
    if labels[-1] >= len(labels):  # codes are the ranks of the values that occur
        to = np.arange(len(table))
        to = (rank[to >> bits].astype(np.int64) << bits) | (to & mask)
        code[:] = to.astype(np.uint16)[code]
        columns = {
            name: _scatter(values[seen], len(table), to[seen]) for name, values in columns.items()
        }
    last = rank[ends]
    if len(ends) < len(order):
        last = np.append(last, np.full(len(order) - len(ends), UNKNOWN, np.int32))
    held = Pairs(code, bits, action_of, columns)
    actions_ = Labels(tuple(actions_seen.tolist()))
    return ArrayRows(
        {"reward": reward, "pairs": held}, last, Labels(tuple(labels.tolist())), actions_
    )


def _ranks(limit: int, *values: Array) -> tuple[Array, npt.NDArray[np.int32]]:
    """The numbers below `limit` that occur, and for all of them how many smaller ones do."""
    occurs = np.zeros(limit, bool)
    for some in values:
        occurs[some] = True
    return np.flatnonzero(occurs), np.cumsum(occurs, dtype=np.int32) - occurs


def _read(given: tuple[Any, ...], n_rows: int, codes: int, threads: int) -> tuple[int, Array]:
    """The result of the kernel, and its table; with threads each has its own table."""
    n = len(given[5])
    run = kernel("ingest.pairs")
    tables = np.full((threads, codes, 2), UNSEEN)
    bounds = [n * part // threads for part in range(threads + 1)]
    outcomes = side_by_side(
        [
            partial(run, *given, table, *bounds[part : part + 2])
            for part, table in enumerate(tables)
        ],
        threads,
    )
    table = tables[0]
    for other in tables[1:]:
        lacking = np.isnan(table[:, 0])
        table[lacking] = other[lacking]
        if np.any((other != table) & ~np.isnan(other)):
            outcomes.append(WRONG)
    return max(outcomes), table


def _scatter(values: Floats, size: int, to: Array) -> Floats:
    """The values at these places, nan elsewhere."""
    kept = np.full(size, np.nan)
    kept[to] = values
    return kept
