"""Large (n, H) arrays of 64-bit numbers as time-major columns, each of them read once, in tiles; or
borrowed: they stay where they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.kernels import kernel
from reweigh.log.rules import REWARDS, Range, probability_range
from reweigh.log.states import UNKNOWN, Labels

Array = npt.NDArray[Any]
FEW_CODES, MANY_CODES = 1 << 12, 1 << 24
Floats = npt.NDArray[np.float64]
LARGEST = float(np.finfo(np.float64).max)
TOGETHER = 8  # steps: as many numbers of an episode lie in one line of a processor's cache
SHARE = 4  # of the steps at most one in so many is held at a time


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
    *made, coded_states, coded_actions = side_by_side(jobs, threads)
    if any(column is None for column in (*made, coded_states, coded_actions)):
        return None
    (state, labels), (action, action_labels) = coded_states, coded_actions
    given = [name for name, (values, _) in ranges.items() if values is not None]
    columns: dict[str, Any] = {"state": state, "action": action}
    if copy:
        columns |= {"behavior_prob": None} | dict(zip(given, made, strict=True))
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
    found = np.flatnonzero(present)
    if found[-1] + 1 != len(found):  # codes are the ranks of the values that occur
        code = np.cumsum(present, dtype=np.int32) - 1
        rows[:] = code[rows]
        last[:] = np.where(last >= 0, code[np.maximum(last, 0)], last)
    return rows, Labels(tuple(found.tolist()))


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
