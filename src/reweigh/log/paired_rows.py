"""Rows as pairs: where propensities are a function of (state, action), as those of a table are, a
row is one code and its reward, 10 bytes instead of 32. The columns are computed on first use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.kernels import kernel
from reweigh.log.large_arrays import ArrayRows, side_by_side
from reweigh.log.rules import LARGEST_REWARD, probability_range
from reweigh.log.states import UNKNOWN, Labels

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
BITS = 16  # of a code
SAMPLE = 64  # episodes used to guess how many states and actions there are
READ, TOO_LARGE, WRONG = 0, 1, 2  # as in kernels/ingest.py
UNSEEN = np.copysign(np.nan, -1.0)


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
    room = np.empty(n_rows * (8 + 2), np.uint8)  # one piece, as in arrays.py
    reward, code = room[: 8 * n_rows].view(np.float64), room[8 * n_rows :].view(np.uint16)
    for looked in (slice(0, SAMPLE), slice(None)):
        most = [int(values[looked].max()) for values in (states, actions)]
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
    said = side_by_side(
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
            said.append(WRONG)
    return max(said), table


def _scatter(values: Floats, size: int, to: Array) -> Floats:
    """The values at these places, nan elsewhere."""
    kept = np.full(size, np.nan)
    kept[to] = values
    return kept
