"""Large (n, H) arrays of 64-bit numbers as time-major columns, each of them read once, in tiles."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.kernels.choose import pick
from reweigh.log.borrowed_arrays import Lent, LentSteps
from reweigh.log.rules import LARGEST_REWARD, LEAST_PROBABILITY
from reweigh.log.states import UNKNOWN, Labels
from reweigh.log.steps import Steps

Array = npt.NDArray[Any]
FEW_CODES, MANY_CODES = 1 << 12, 1 << 24


@dataclass(frozen=True, eq=False)
class ReadColumns:
    """What was read column by column, as `Paired` is of pairs: `numbers` are the columns, or are
    `lent`."""

    numbers: dict[str, Array | None]
    lent: Lent | None
    state: Array
    action: Array
    last: Array
    states: Labels
    actions: Labels

    def steps(self, **others: Any) -> Steps:
        if self.lent is not None:
            return LentSteps.of(self.lent, state=self.state, action=self.action, **others)
        reward, mu = self.numbers["reward"], self.numbers["behavior_prob"]
        assert reward is not None
        return Steps(
            state=self.state, action=self.action, reward=reward, behavior_prob=mu, **others
        )

    @property
    def held(self) -> dict[str, Array]:
        """The columns of the probabilities that were given."""
        if self.lent is not None:
            return {}
        numbers = {name: values for name, values in self.numbers.items() if name != "reward"}
        return {name: values for name, values in numbers.items() if values is not None}


def read_columns(
    arrays: tuple[Any, ...], order: Array, offsets: Array, threads: int, *, copy: bool = True
) -> ReadColumns | None:
    """The columns; without `copy` rewards and probabilities stay where they are."""
    states, actions, rewards, behavior_prob, target_prob = arrays
    n_rows = int(offsets[-1])
    # One piece of memory for all columns: a system hands out a large piece far faster than many.
    numbers = sum(a is not None for a in (rewards, behavior_prob, target_prob)) if copy else 0
    room = _Room(np.empty(n_rows * (2 * 4 + 8 * numbers), np.uint8))
    ranges = {
        "reward": (rewards, -LARGEST_REWARD, LARGEST_REWARD),
        "behavior_prob": (behavior_prob, LEAST_PROBABILITY, 1.0),
        "target_prob": (target_prob, 0.0, 1.0),
    }
    last = np.full(len(order), UNKNOWN, np.int32)
    jobs: list[Callable[[], Any]] = [
        partial(_transposed, values, order, offsets, low, high, room.take(n_rows, np.float64))
        if copy
        else partial(_checked, values, order, offsets, low, high)
        for values, low, high in ranges.values()
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
    given = [name for name, (values, _, _) in ranges.items() if values is not None]
    columns = dict.fromkeys(ranges) | dict(zip(given, made, strict=True))
    lent = None if copy else Lent({name: ranges[name][0] for name in given}, order, offsets)
    return ReadColumns(columns, lent, state, action, last, labels, action_labels)


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
    values: Array, order: Array, offsets: Array, low: float, high: float, rows: Array
) -> Array | None:
    """`rows`, filled time-major; None if a value is outside [low, high]."""
    run = pick("ingest.transpose_numbers", len(rows))
    return rows if run(values, order, offsets, low, high, rows) else None


def _checked(values: Array, order: Array, offsets: Array, low: float, high: float) -> Array | None:
    """The array itself; None if a value is outside [low, high]."""
    run = pick("ingest.within", int(offsets[-1]))
    return values if run(values, order, offsets, low, high) else None


def _coded(
    values: Array, order: Array, offsets: Array, last: Array, rows: Array
) -> tuple[Array, Labels] | None:
    """`rows`, filled with time-major codes, and their labels; `last` gets the codes at H.

    None if a value is negative, or so large that a table of all values would be larger than the
    rows.
    """
    run = pick("ingest.transpose_codes", len(rows))
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
