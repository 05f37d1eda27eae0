"""The compiled scan: the package's own tables of sums, from batches of time-major rows.

A log in memory is one batch; a stream hands over batches of whole episodes, one after the other:

    scan = CompiledScan(Shape(kinds, states, n_actions, horizon, discount), batches=True)
    for batch in batches:
        scan.add(batch)
    tables = scan.tables()      # {"choices": TransitionMoments, "lagged": LaggedMoments, …}

In a batch the rows of step t are one slice, row k of it is that of the batch's episode k, and the
episodes are ordered from the longest to the shortest (as in `log/steps.py`). States and actions
have codes below len(Shape.states) and Shape.n_actions, the same in all batches.

Kinds: "transitions", "model", "choices", "lagged", "ordered", "paced", "largest". Running products
by block and first states have no loops here (`products.py`, `numpy_scan.py`).

`why_not` names the cases left to the NumPy scan (`numpy_scan.py`), which reads the declarations:
small logs, hidden states, and far more (step, state) pairs than rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh import kernels
from reweigh.kernels import LARGEST_KEY, kernel
from reweigh.log.log import EpisodeLog
from reweigh.log.states import HIDDEN, UNKNOWN, Labels
from reweigh.sums.diagnostic_tables import (
    BITS,
    MOST_LAGGED,
    WEYL,
    LaggedMoments,
    LargestWeights,
    OrderedMoments,
    PacedMoments,
    label_hashes,
    thinned,
)
from reweigh.sums.keyed import NO_ACTION, TransitionMoments

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
WIDTH = 12  # numbers of a cell, as in kernels/scan.py
LINE = 8  # numbers in a line of the cache
SUMS = ("rho", "rho2", "z", "rhoz", "z2", "y", "y2", "pi", "pi2", "mu")
CELLS_PER_ROW, FEW_CELLS = 4, 1 << 12  # of a step: where more are possible, keys are ranked
MOST_CELLS = 1 << 24  # of all steps, where there are several batches: 96 bytes each
FEW_LINES = 1 << 21  # of them even of a log with few rows
MOST_WAITING = 1 << 16  # buckets of returns: those of many batches are added up now and then
NODES_PER_ROW, FEW_NODES = 2, 1 << 16  # (step, state) pairs
LOG_UNIT = 256 * math.log(2.0)  # of an exponent of running products
NO_CODES, NO_BLOCKS = np.zeros(0, np.int32), np.zeros(0, np.int64)
CELLS = {"transitions": (False, True), "model": (True, True), "choices": (True, False)}


class TooManyCells(Exception):
    """There is not enough memory for a place per possible cell."""


@dataclass(frozen=True, eq=False)
class Shape:
    """The tables to sum: kinds; the labels of states, the number of actions (0 if they are
    numbers) and of blocks of episodes; up to which ratio."""

    kinds: frozenset[str]
    states: Labels
    n_actions: int
    horizon: int
    discount: float
    blocks: int = 1
    max_ratio: float | None = None
    rows: int = 1 << 62  # of all batches, at most

    @property
    def limit(self) -> float:
        return math.inf if self.max_ratio is None else self.max_ratio

    @cached_property
    def hashes(self) -> Ints:
        return label_hashes(self.states).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Batch:
    """Time-major rows of whole episodes.

    offsets  (H+1,) rows of step t are offsets[t]:offsets[t+1]
    state, action, reward, behavior_prob, target_prob  (N,); action is empty where they are numbers
    ending   (n,) what follows the last row: a state's code, END, or UNKNOWN
    block    (n,) of the episodes; empty where all are in block 0
    ids      (n,) of the episodes, None if one is not a whole number
    """

    offsets: Ints
    state: Codes
    action: Codes
    reward: Floats
    behavior_prob: Floats
    target_prob: Floats
    ending: Codes
    block: Ints = field(default_factory=lambda: NO_BLOCKS)
    ids: Ints | None = None

    @property
    def n_rows(self) -> int:
        return int(self.offsets[-1])


def why_not(log: EpisodeLog) -> str | None:
    """Why the sums of a log in memory are left to the NumPy scan; None where they are not."""
    steps = log.steps
    if steps.n_rows < kernels.COMPILED_FROM:
        few = steps.n_rows < kernels.LARGE_LOG
        return f"fewer than {kernels.LARGE_LOG:,} rows" if few else "Numba is not installed"
    if log.has_hidden or np.any(steps.ending == HIDDEN):
        return "hidden states"
    if log.horizon * len(log.states) > max(NODES_PER_ROW * steps.n_rows, FEW_NODES):
        return "far more (step, state) pairs than rows"
    if (len(log.states) + 2) ** 3 * len(log.actions or ("",)) >= LARGEST_KEY:
        return "more possible cells than a number can count"
    return None


class CompiledScan:
    """Adds up batches, or one; `tables` returns the requested tables."""

    def __init__(self, shape: Shape, *, batches: bool = False) -> None:
        kinds, self.shape, self.batches = shape.kinds, shape, batches
        self.cells = {k: Cells(shape, *CELLS[k], batches) for k in CELLS if k in kinds}
        self.parts: dict[str, list[Any]] = {kind: [] for kind in kinds - CELLS.keys()}

    @property
    def n_cells(self) -> int:
        """Possible ones, of all steps."""
        return self.shape.horizon * sum(cells.size for cells in self.cells.values())

    def add(self, batch: Batch) -> None:
        for task in self.tasks(batch):
            task()

    def tasks(self, batch: Batch) -> list[Callable[[], None]]:
        """What adds the batch, table by table: they can be done side by side."""
        tasks: list[Callable[[], None]]
        tasks = [partial(cells.add, batch) for cells in self.cells.values()]
        if "lagged" in self.parts:
            tasks.append(partial(self._add_lagged, batch))
        if "largest" in self.parts:
            tasks.append(partial(self._add_largest, batch))
        if self.parts.keys() & {"ordered", "paced"}:
            tasks.append(partial(self._add_returns, batch))
        return tasks

    def _add_largest(self, batch: Batch) -> None:
        log_w = LargestWeights.even(log_products(batch, self.shape))
        self.parts["largest"].append(LargestWeights.of(log_w))

    def _add_returns(self, batch: Batch) -> None:
        for kind, table in returns_of(batch, self.shape).items():
            parts = self.parts[kind]
            parts.append(table)
            if sum(map(len, parts)) > max(MOST_WAITING, 2 * len(parts[0])):
                self.parts[kind] = [table.together(parts)]

    def _add_lagged(self, batch: Batch) -> None:
        level = max((part.level for part in self.parts["lagged"]), default=0)
        self.parts["lagged"].append(lagged_of(batch, self.shape, level))
        self._merge_lagged(MOST_LAGGED + MOST_LAGGED // 2)

    def _merge_lagged(self, most: int) -> None:
        parts = self.parts["lagged"]
        if len(parts) > 1 and sum(map(len, parts)) > most:
            level = max(part.level for part in parts)
            held = thinned(LaggedMoments.together(parts), self.shape.states, level)
            self.parts["lagged"] = [held]

    def tables(self) -> dict[str, Any]:
        """Of all batches; there must be one, and none comes after."""
        if "lagged" in self.parts:
            self._merge_lagged(0)
        parts = {kind: tables for kind, tables in self.parts.items() if tables}
        joined = {k: p[0] if len(p) == 1 else p[0].together(p) for k, p in parts.items()}
        return joined | {kind: self.cells.pop(kind).table() for kind in list(self.cells)}


class Cells:
    """Sums by (block, t, s[, a][, s']): of one batch step by step, each through the same table; of
    several with a line for every possible cell of every step."""

    def __init__(self, shape: Shape, by_action: bool, by_next: bool, batches: bool) -> None:
        self.shape, self.by_next, self.by_action = shape, by_next, by_action and shape.n_actions > 0
        states = len(shape.states)
        actions = shape.n_actions if self.by_action else 1
        self.sizes = (states, actions, states + 2 if by_next else 1)
        self.size = shape.blocks * math.prod(self.sizes)
        self.lines: Floats | None = None
        if batches:
            if self.size * shape.horizon > min(MOST_CELLS, max(shape.rows, FEW_LINES)):
                raise TooManyCells
            self.lines = lines_of(shape.horizon, self.size * WIDTH)

    def add(self, batch: Batch) -> None:
        action = batch.action if self.by_action else NO_CODES
        places = (batch.offsets, batch.state, action, batch.ending, batch.block, self.sizes)
        numbers = numbers_of(batch, self.shape)
        add_moves = kernel("scan.add_moves")
        if self.lines is not None:
            add_moves(*places, *numbers, self.lines, *Room.of(self.shape.horizon, 0).arrays)
        elif self.size <= max(CELLS_PER_ROW * batch.n_rows // self.shape.horizon, FEW_CELLS):
            room = Room.of(self.shape.horizon, min(batch.n_rows, self.shape.horizon * self.size))
            add_moves(*places, *numbers, np.zeros((1, self.size * WIDTH)), *room.arrays)
            self.room = room
        else:
            key = np.empty(batch.n_rows, np.int64)
            kernel("scan.move_keys")(*places, key)
            self.room = Ranks.of(batch.offsets, NO_BLOCKS, key, self.size).sums(numbers)

    def table(self) -> TransitionMoments:
        if self.lines is not None:
            self.room = Room.of(self.shape.horizon, int(np.count_nonzero(self.lines[:, ::WIDTH])))
            kernel("scan.emit_all")(self.lines, *self.room.arrays)
            self.lines = None  # its memory is needed for the columns
        room, total = self.room, self.room.total
        rest, after = split(room.code[:total], self.sizes[2])
        rest, action = split(rest, self.sizes[1])
        block, s = split(rest, self.sizes[0]) if self.shape.blocks > 1 else (same(0, total), rest)
        t = np.repeat(np.arange(self.shape.horizon), room.counts)
        columns = room.columns() | {"block": block, "t": t, "t_next": t + 1, "s": s}
        columns["a"] = action if self.by_action else same(NO_ACTION, total)
        columns["s_next"] = state_after(after) if self.by_next else same(UNKNOWN, total)
        columns["one"] = columns["rho"]  # without stretches the placebo is ρ itself
        table = TransitionMoments(**columns)
        if self.shape.blocks > 1:
            order = np.argsort(table.block, kind="stable")
            table = table.holding({name: values[order] for name, values in table.arrays().items()})
        return table


@dataclass(frozen=True, eq=False)
class Room:
    """What the kernels fill: counts (H,), the cells of each step; code, n (C,) and sums (10, C), or
    the first 5 of them."""

    counts: Ints
    code: Ints
    n: Ints
    sums: Floats

    @classmethod
    def of(cls, horizon: int, cells: int, sums: int = len(SUMS)) -> Room:
        code, n = np.empty(cells, np.int64), np.empty(cells, np.int64)  # n is kept, code is not
        return cls(np.zeros(horizon, np.int64), code, n, np.empty((sums, cells)))

    @property
    def arrays(self) -> tuple[Any, ...]:
        return self.counts, self.code, self.n, self.sums

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def columns(self) -> dict[str, Any]:
        total = self.total
        sums = dict(zip(SUMS, (column[:total] for column in self.sums), strict=False))
        return sums | {"n": self.n[:total]}


def lines_of(count: int, size: int) -> Floats:
    """(count, size) zeros that begin where a line of the cache does. Of NumPy, not of a kernel: it
    asks the system for large pages, which are there much faster than many small ones."""
    room = np.zeros(count * size + LINE - 1)
    first = -(room.ctypes.data // room.itemsize) % LINE
    return room[first : first + count * size].reshape(count, size)


def numbers_of(batch: Batch, shape: Shape) -> tuple[Any, ...]:
    """What the kernels sum."""
    return batch.target_prob, batch.behavior_prob, batch.reward, shape.limit


@dataclass(frozen=True, eq=False)
class Ranks:
    """Rows by their keys within steps: `rows` (empty: all), those of step t being
    begins[t]:begins[t+1], their ranks among the counts[t] cells of the step, and the cells."""

    begins: Ints
    rows: Ints
    rank: Ints
    counts: Ints
    cells: Ints

    @classmethod
    def of(cls, begins: Ints, rows: Ints, key: Ints, size: int, most: int = LARGEST_KEY) -> Ranks:
        """The keys, all below size, become the ranks: of all rows, or of the first steps that have
        more than `most` cells."""
        cells, counts = np.empty(len(key), np.int64), np.zeros(len(begins) - 1, np.int64)
        kernel("scan.rank_keys")(begins, key, size, most, counts, cells)
        return cls(begins, rows, key, counts, cells[: int(counts.sum())])

    def sums(self, numbers: tuple[Any, ...], sums: int = len(SUMS)) -> Room:
        room, table = Room.of(0, len(self.cells), sums), np.zeros(int(self.counts.max()) * WIDTH)
        kernel("scan.sum_ranked")(
            self.begins, self.rows, self.rank, *numbers, table, self.counts, *room.arrays[1:]
        )
        return Room(self.counts, self.cells, room.n, room.sums)


def same(value: int, size: int) -> Ints:
    """A constant column, which takes no memory."""
    return np.broadcast_to(np.int64(value), size)


def split(code: Ints, size: int) -> tuple[Ints, Ints]:
    """Quotient and remainder."""
    if size == 1:
        return code, same(0, len(code))
    quotient = code // size
    return quotient, code - quotient * size


def state_after(place: Ints) -> Ints:
    """s' of its place: UNKNOWN, END, then the states."""
    return np.where(place >= 2, place - 2, place - 3)


def lagged_of(batch: Batch, shape: Shape, level: int) -> LaggedMoments:
    """At most MOST_LAGGED cells, as `thinned` holds them: of one (t, s) in 2^level, with the least
    level, from this one on, that does. Rows bound the cells, so that few are ranked in vain."""
    visits = np.zeros((shape.horizon, len(shape.states)), np.int64)
    kernel("scan.count_visits")(batch.offsets, batch.state, visits)
    visits[0] = 0
    place = (shape.hashes + np.arange(shape.horizon)[:, None] * WEYL) % 2**BITS
    level_of = (BITS - np.frexp(place)[1]).astype(np.int8)  # up to which a (t, s) is held
    rows = np.bincount(level_of.reshape(-1), visits.reshape(-1), BITS + 1)[::-1].cumsum()[::-1]
    fits = level + int(np.argmax(rows[level:] <= MOST_LAGGED))
    ranks, others = _ranks_at(batch, shape, level_of, fits, level, rows)
    while fits > level and len(ranks.cells) + len(others.cells) <= MOST_LAGGED:
        fits -= 1  # cells of other (t, s) are others, and these fit too
        ranks, others = _ranks_at(batch, shape, level_of, fits, level, rows)
    room = ranks.sums(numbers_of(batch, shape), len(LaggedMoments.SUMS) - 1)
    rest, after = split(room.code, len(shape.states) + 2)
    rest, a_before = split(rest, max(shape.n_actions, 1))
    s, s_before = split(rest, len(shape.states))
    if shape.n_actions == 0:
        a_before = same(NO_ACTION, len(s))
    sums = room.columns()
    t = np.repeat(np.arange(shape.horizon), room.counts)
    return LaggedMoments(t, s, s_before, a_before, state_after(after), **sums, level=fits)


def _ranks_at(
    batch: Batch, shape: Shape, level_of: npt.NDArray[Any], level: int, least: int, held: Ints
) -> tuple[Ranks, Ranks]:
    """The rows of the (t, s) held at this level, and those of one less, if that is at least the
    least, by (s, s₋, a₋, s'); at each level so many are `held`. Of the others no more than it takes
    to know that they are too many."""
    below = max(level - 1, least)
    size = int(held[below])
    states, actions = len(shape.states), max(shape.n_actions, 1)
    begins = np.zeros((2, shape.horizon + 1), np.int64)
    rows, key = np.empty((2, 2, size + 1), np.int64)
    kernel("scan.hold_rows")(
        batch.offsets, batch.state, batch.action, batch.ending, actions, level_of, level, below,
        begins, rows, key,
    )  # fmt: skip
    places = states * actions * states * (states + 2)
    ends = begins[:, -1]
    ranks = Ranks.of(begins[0], rows[0, : ends[0]], key[0, : ends[0]], places)
    spare = MOST_LAGGED - len(ranks.cells)
    return ranks, Ranks.of(begins[1], rows[1, : ends[1]], key[1, : ends[1]], places, spare)


def returns_of(batch: Batch, shape: Shape) -> dict[str, Any]:
    """`ordered` and `paced`, if requested and the ids have an order."""
    n, ids = len(batch.ending), batch.ids
    returns, paced = np.zeros(n), "paced" in shape.kinds and ids is not None
    bucket, shift = NO_BLOCKS, 0
    if paced:
        assert ids is not None
        shift = PacedMoments.shift_of(int(ids.min()), int(ids.max()))
        bucket = (ids >> shift) - (int(ids.min()) >> shift)
    sums = np.zeros((shape.horizon, int(bucket.max(initial=0)) + 1, 3))
    kernel("scan.earn")(batch.offsets, batch.reward, shape.discount, bucket, returns, sums)
    tables: dict[str, Any] = {}
    if "ordered" in shape.kinds:
        tables["ordered"] = OrderedMoments.of(ids, returns)
    if paced:
        assert ids is not None
        count, y, y2 = np.moveaxis(sums, 2, 0).transpose(0, 2, 1).reshape(3, -1)
        low = int(ids.min()) >> shift
        every = low + np.arange(sums.shape[1])
        tables["paced"] = PacedMoments.dense(shift, every, count.astype(np.int64), y, y2)
    return tables


def log_products(batch: Batch, shape: Shape) -> Floats:
    """(n,) the logarithms of the episodes' whole products."""
    m, e = np.ones(len(batch.ending)), np.zeros(len(batch.ending), np.int64)
    pi, mu, _, limit = numbers_of(batch, shape)
    kernel("scan.whole_products")(batch.offsets, pi, mu, limit, m, e)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(m) + e * LOG_UNIT)
