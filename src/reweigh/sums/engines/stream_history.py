"""Cells by what came before, while a log streams (`LaggedMoments`).

There is no place for every possible cell: their number is H·S³·A. They are found by a hash of their
keys. Of a log that shows more cells than are kept, those of some (t, s) alone are held
(`diagnostic_tables.thinned`).

A cell takes one cache line, six sums and its key, at the place that a hash of the key names, or at
the next free one after it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.kernels.common import compiled
from reweigh.kernels.vectors import add_at, prefetch
from reweigh.log.states import END, UNKNOWN, Label, Labels
from reweigh.sums import diagnostic_tables as extras
from reweigh.sums.diagnostic_tables import BITS, WEYL, LaggedMoments, label_hashes, thinned
from reweigh.sums.engines.stream_cells import AFTER_END, AFTER_STATES, Shape, TooManyCells, aligned

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
FULL = 0.75  # of the places: beyond that, a free one is far
FEWEST = 1 << 12  # places
FOLD = 4096  # rows per cell after which sums are put aside, so that small numbers still count
Word = np.uint64
LINE, KEY = 8, 6  # numbers per cell, and which of them is the key (plus 1: 0 is a free place)
U0, U1, U4, U8 = Word(0), Word(1), Word(4), Word(8)
U_KEY, BY_32, LOW = Word(KEY), Word(32), Word(0xFFFFFFFF)
SPREAD = Word(0x9E3779B97F4A7C15)
AHEAD = 16  # rows: how much earlier a cell is asked for
U_WEYL = Word(WEYL)


@compiled
def shift_of(places: Any) -> Any:
    """How many bits of a hash are left off where there are so many places, a power of 2."""
    shift = Word(64)
    while places > U1:
        places >>= U1
        shift -= U1
    return shift


@compiled
def place_of(key: Any, words: Any, shift: Any, mask: Any) -> Any:
    """Where the cell of this key is, or where it will be."""
    i = (key * SPREAD) >> shift
    while words[U8 * i + U_KEY] != U0 and words[U8 * i + U_KEY] != key:
        i = (i + U1) & mask
    return i


@compiled
def name_cells(
    count: int, t: Any, s: Any, slots: Any, places: Any, sizes: Any, keys: Any, rows: Any,
    hashes: Any, limit: Any,
) -> Any:  # fmt: skip
    """The keys of rows, and which rows they are; how many. Those at step 0 have none, nor those
    from the horizon on, or whose (t, s) is not held.

    key = ((t·SA + s_before·A + a_before)·S + s)·(S + 2) + s' + 1
    a (t, s) is held if (h(s) + t·WEYL) mod 2^32 < limit   (diagnostic_tables.thinned)

    `slots` and `places` begin with those of the row that waited (see stream_kernels.trace)
    """
    _, states, actions, in_key, _, _, _ = sizes
    width, pairs, found = states + Word(2), states * actions, U0
    for k in range(1, count):
        step, here = Word(t[k - 1]), Word(s[k - 1])
        if (step == U0) | (slots[k] < 0) | ((hashes[here] + step * U_WEYL) & LOW >= limit):
            continue
        of = places[k] >> BY_32
        after = (places[k] & LOW) - (of if in_key > U0 else here) * width
        key = (step * pairs + (places[k - 1] >> BY_32)) * states + here
        keys[found], rows[found] = key * width + after + U1, Word(k - 1)
        found += U1
    return found


@compiled
def name_first(slot: int, place: Any, before: Any, sizes: Any, hashes: Any, limit: Any) -> Any:
    """The same of the row that waited; 0 for none. `before`: s·A + a of the row before it."""
    horizon, states, actions, in_key, _, _, _ = sizes
    width, step = states + Word(2), Word(slot) % horizon
    of = place >> BY_32
    here = of // actions
    if (slot < 0) | (step == U0) or (hashes[here] + step * U_WEYL) & LOW >= limit:
        return U0
    after = (place & LOW) - (of if in_key > U0 else here) * width
    return ((step * states * actions + before) * states + here) * width + after + U1


@compiled
def add_cells(keys: Any, rows: Any, y: Any, ratio: Any, numbers: Any, words: Any) -> int:
    """Add rows to the cells of their keys; returns how many cells are new."""
    size, last, new = Word(len(numbers) // LINE), len(keys) - 1, 0
    shift, mask = shift_of(size), size - U1
    for k in range(len(keys)):
        prefetch(numbers, U8 * ((keys[min(k + AHEAD, last)] * SPREAD) >> shift))
        key, rho = keys[k], ratio[rows[k]]
        z = rho * y[rows[k]]
        i = U8 * place_of(key, words, shift, mask)
        if words[i + U_KEY] == U0:
            words[i + U_KEY] = key
            new += 1
        add_at(numbers, i, (1.0, rho, rho * rho, z))
        add_at(numbers, i + U4, (rho * z, z * z))
    return new


@compiled
def add_before(
    count: int, rows: Any, held: Any, slots: Any, places: Any, before: Any, sizes: Any, lagged: Any
) -> None:
    """Add the row that waited, and then all but the last of `rows` (t, s, y, ρ), which waits.

    held    see stream_kernels.Carry
    lagged  room for keys and rows, the table of cells as numbers and as words, how many cells there
            are, the hashes of the states, and the limit of the (t, s) that are held
    """
    t, s, y, rho = rows
    keys, which, numbers, words, used, hashes, limit = lagged
    keys[0] = name_first(slots[0], places[0], before, sizes, hashes, limit[0])
    if keys[0] != U0:
        waited = held.view(np.float64)
        which[0] = U0
        used[0] += add_cells(keys[:1], which[:1], waited[:1], waited[3:], numbers, words)
    found = name_cells(count, t, s, slots, places, sizes, keys, which, hashes, limit[0])
    used[0] += add_cells(keys[:found], which[:found], y, rho, numbers, words)


@compiled
def move(cells: Any, words: Any, numbers: Any) -> None:
    """Cells, LINE numbers each, into a table that is empty."""
    size, keys = Word(len(words) // LINE), cells.view(np.uint64)
    shift, mask = shift_of(size), size - U1
    for k in range(len(cells)):
        i = U8 * place_of(keys[k, KEY], words, shift, mask)
        for j in range(LINE):
            numbers[i + Word(j)] = cells[k, j]


class Lagged:
    """The cells so far. `arrays` is what `add_before` takes; empty where none are wanted."""

    def __init__(self, shape: Shape, wanted: bool, piece: int) -> None:
        self.wanted, self.level, self.rows = wanted, 0, 0
        self.labels, self.hashes = Labels(()), np.zeros(0, np.uint64)
        self.limit = np.array([1 << BITS], np.uint64)
        self.aside: list[LaggedMoments] = []
        self.room, self.used = np.zeros((2, piece + 1), np.uint64), np.zeros(1, np.int64)
        self.numbers = np.zeros(0)
        self._take(np.zeros((0, LINE)), FEWEST if wanted else 0)
        self.shape = shape
        self._check(shape)

    def _take(self, cells: Floats, places: int) -> None:
        """A table of that many places with these cells, LINE numbers each."""
        if len(self.numbers) == places * LINE:
            self.numbers[:] = 0.0
        else:
            self.arrays: tuple[Any, ...] = ()
            self.numbers = np.zeros(0)  # so that the new one may take its memory
            self.numbers = aligned(places * LINE)
        words = self.numbers.view(np.uint64)
        move(cells, words, self.numbers)
        self.used[0] = len(cells)
        self.arrays = (*self.room, self.numbers, words, self.used, self.hashes, self.limit)

    def name_states(self, labels: list[Label]) -> None:
        """The states by code, as far as they are known."""
        if self.wanted:
            self.labels = Labels(tuple(labels))
            self.hashes = label_hashes(self.labels)
            self.arrays = (*self.arrays[:5], self.hashes, self.limit)

    def _check(self, shape: Shape) -> None:
        """Keys must fit into a word, and places within a step into half of one."""
        pairs, width = shape.states * shape.actions, shape.states + AFTER_STATES
        if self.wanted and (
            shape.horizon * pairs * shape.states * width >= 2**63 or pairs * width >= 2**32
        ):
            raise TooManyCells

    def make_room(self, rows: int) -> None:
        """For as many new cells as there are rows."""
        if not self.wanted:
            return
        places = len(self.numbers) // LINE
        while int(self.used[0]) > extras.MOST_LAGGED:  # hold half of the (t, s)
            self.level += 1
            self.limit[0] = 1 << BITS >> self.level
            cells = self._cells()
            t, _, _, s, _ = self._keys(cells)
            place = self.hashes[s] + t.astype(np.uint64) * np.uint64(WEYL)
            self._take(cells[place % np.uint64(1 << BITS) < self.limit[0]], places)
        more = places
        while int(self.used[0]) + rows + 1 > FULL * more:
            more *= 2
        if more > places:
            self._take(self._cells(), more)

    def _cells(self) -> Floats:
        by_place = self.numbers.reshape(-1, LINE)
        return np.asarray(by_place[by_place[:, KEY].view(np.uint64) != 0])

    def _keys(self, cells: Floats) -> tuple[Ints, ...]:
        """t, s_before, a_before, s and the place of s' of cells."""
        shape, left = self.shape, cells[:, KEY].view(np.int64) - 1
        found = []
        for size in (shape.states + AFTER_STATES, shape.states, shape.actions, shape.states):
            left, part = np.divmod(left, size)
            found.append(part)
        after, s, a_before, s_before = found
        return left, s_before, a_before, s, after

    def count(self, rows: int) -> None:
        """Put the sums aside now and then: a long sum loses the digits of what is added to it."""
        self.rows += rows
        if self.wanted and self.rows >= FOLD * max(int(self.used[0]), 1):
            self.aside.append(self._moments())
            self.numbers.reshape(-1, LINE)[:, :KEY] = 0.0
            self.rows = 0

    def grown(self, shape: Shape) -> None:
        """The same cells with keys for more states and actions."""
        self._check(shape)
        cells = self._cells()
        t, s_before, a_before, s, after = self._keys(cells)
        key = (t * shape.states + s_before) * shape.actions + a_before
        key = (key * shape.states + s) * (shape.states + AFTER_STATES) + after + 1
        cells[:, KEY] = key.view(np.float64)
        self._take(cells, len(self.numbers) // LINE)
        self.shape = shape

    def _moments(self) -> LaggedMoments:
        """The cells that are held, in their order."""
        cells = self._cells()
        t, s_before, a_before, s, after = self._keys(cells)
        special = np.where(after == AFTER_END, END, UNKNOWN)
        return LaggedMoments(
            t=t,
            s_before=s_before,
            a_before=a_before,
            s=s,
            s_next=np.where(after >= AFTER_STATES, after - AFTER_STATES, special),
            n=cells[:, 0].astype(np.int64),
            **dict(zip(LaggedMoments.SUMS[1:], cells.T[1:KEY], strict=True)),
            level=self.level,
        )

    def moments(self, states: Ints, actions: Ints) -> LaggedMoments | None:
        """The cells in new codes."""
        if not self.wanted:
            return None
        self.make_room(0)
        made = LaggedMoments.together([*self.aside, self._moments()])
        return thinned(made, self.labels, self.level).recode(states, actions).summed()
