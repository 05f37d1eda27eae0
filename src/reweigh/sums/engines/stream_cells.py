"""Dense sums of the fast path: a place for every possible cell, and records that wait for them.

A log of episodes changes the step with every row, so adding to the cells at once would fetch two
lines of memory per row from a table that no cache holds. Instead a record of each row waits in the
line of its step, and `drain` adds a full line to the cells of that step: these nearly fit, and the
records come in sequence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.kernels.common import compiled
from reweigh.kernels.vectors import add_at, prefetch
from reweigh.log.states import END, UNKNOWN
from reweigh.sums.engines.base import SPARE_CELLS
from reweigh.sums.transitions import NO_ACTION, TransitionMoments

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Word = np.uint64
AFTER_UNKNOWN, AFTER_END, AFTER_STATES = 0, 1, 2  # places of UNKNOWN, END and state 0 in s'
IN_LINE, BESIDE = 8, 4  # sums per cell: one cache line, and Σπ, Σμ, Σπ², 0 in a table of their own
NARROW, WIDE = 3, 4  # numbers per record: a word of two places, y, μ; and π where no table has it
BY_32, LOW = Word(32), Word(0xFFFFFFFF)
U0, U1, U2, U3, U4, U8 = Word(0), Word(1), Word(2), Word(3), Word(4), Word(8)
AHEAD = Word(16)  # records: how much earlier a cell is asked for
LINE_AHEAD = Word(9)  # numbers: the line of memory after the one that is being written
FEW_CELLS, MOST_CELLS = 1 << 21, 1 << 24  # of 96 bytes: for any log; for one of as many rows
CELLS_PER_ROW = 4
WAITING = 3 << 20  # numbers in all lines: 24 MiB
FEWEST_WAITING, MOST_WAITING = 64, 1 << 16  # records per line
FOLD = 4096  # rows per cell after which sums are put aside, so that small numbers still count
CODES = ("block", "t", "s", "a", "t_next", "s_next", "n")
SUMS = (
    "rho",
    "rho2",
    "z",
    "rhoz",
    "z2",
    "y",
    "y2",
    "pi",
    "mu",
    "pi2",
)  # n and the first 7 in a line
NO_CODES = np.zeros(0, np.int64)


@compiled
def touch(values: Any, begin: Any, end: Any) -> float:
    """Read in sequence, which fetches faster than in the order of the records."""
    total, k = 0.0, begin
    while k < end:
        total += values[k]
        k += U8
    return total


@compiled
def drain(
    words: Any, numbers: Any, record: Any, first: Any, count: Any, policy: Any, max_ratio: float,
    sums: Any, slot: Any, cells: Any,
) -> None:  # fmt: skip
    """Add records to the cells of their slot, and to those by action alone, if any.

    words, numbers  the same memory; a record begins with s·A + a and the cell's place, then y, μ
    policy          π by s·A + a; unused if the record holds π itself
    sums            by slot and cell, IN_LINE and BESIDE of each; the same by slot and s·A + a
    """
    line, beside, by_action, beside_it = sums
    wide, base, pairs = record == WIDE, slot * cells, U0
    with_action = len(by_action) > 0
    if with_action:
        pairs = Word(len(by_action) // IN_LINE) // (Word(len(line) // IN_LINE) // cells)
    end, many = base + cells, U2 * count > cells
    if many and touch(line, U8 * base, U8 * end) + touch(beside, U4 * base, U4 * end) < 0.0:
        return  # never: counts and probabilities; the comparison keeps the reads from vanishing
    i, end = first, first + count * record
    last = end - record
    while i < end:
        soon = base + (words[min(i + AHEAD * record, last)] & LOW)
        prefetch(line, U8 * soon)
        if not many:  # else what was touched is still near: it is the smaller table
            prefetch(beside, U4 * soon)
        word = words[i]
        y, mu = numbers[i + U1], numbers[i + U2]
        pi = numbers[i + U3] if wide else policy[word >> BY_32]
        rho = pi / mu
        if rho > max_ratio:
            rho = max_ratio
        z = rho * y
        k = base + (word & LOW)
        add_at(line, U8 * k, (1.0, rho, rho * rho, z))
        add_at(line, U8 * k + U4, (rho * z, z * z, y, y * y))
        add_at(beside, U4 * k, (pi, mu, pi * pi, 0.0))
        if with_action:
            k = slot * pairs + (word >> BY_32)
            add_at(by_action, U8 * k, (1.0, rho, rho * rho, z))
            add_at(by_action, U8 * k + U4, (rho * z, z * z, y, y * y))
            add_at(beside_it, U4 * k, (pi, mu, pi * pi, 0.0))
        i += record


@compiled
def put(
    k: Any, slots: Any, places: Any, y: Any, mu: Any, pi: Any, record: Any, room: Any, words: Any,
    waiting: Any,
) -> Any:  # fmt: skip
    """Put rows from k on into the lines of their steps; y, mu and pi are the bits of numbers.

    Returns how many rows are done: at a line that is full it stops.
    """
    n, line, wide = Word(len(slots)), room * record, record == WIDE
    while k < n:
        slot = Word(slots[k])
        if slots[k] >= 0:
            at = waiting[slot]
            i = slot * line + at
            prefetch(words, i + LINE_AHEAD)
            words[i], words[i + U1], words[i + U2] = places[k], y[k], mu[k]
            if wide:
                words[i + U3] = pi[k]
            at += record
            waiting[slot] = at
            if at == line:
                return k + U1
        k += U1
    return n


@compiled
def add(
    slots: Any, places: Any, y: Any, mu: Any, pi: Any, table: Any, sizes: Any, max_ratio: float,
    cells: Any,
) -> None:  # fmt: skip
    """Put rows into the lines of their steps; one that is full is drained at once."""
    words, numbers, begins, waiting, sums = cells
    horizon, _, _, _, record, room, size = sizes
    done, n = U0, Word(len(slots))
    while done < n:
        done = put(done, slots, places, y, mu, pi, record, room, words, waiting)
        slot = Word(slots[done - U1])
        if slots[done - U1] >= 0 and waiting[slot] == room * record:
            policy = table[slot % horizon if table.shape[0] > 1 else U0]
            first, count = slot * room * record + begins[slot], room - begins[slot] // record
            drain(words, numbers, record, first, count, policy, max_ratio, sums, slot, size)
            begins[slot] = waiting[slot] = U0


class TooManyCells(Exception):
    """There is no room for a place per possible cell."""


@dataclass(frozen=True)
class Shape:
    """What the cells are of: blocks, steps, and the room for states and actions.

    `in_key`: the action is a part of the key; `spare`: if that takes little room. `choices`: there
    are cells by (s, a), too. `by_row`: records hold π. `rows`: of the log.
    """

    blocks: int
    horizon: int
    states: int
    actions: int
    in_key: bool
    by_row: bool
    rows: int
    spare: bool = False
    choices: bool = False

    @property
    def slots(self) -> int:
        return self.blocks * self.horizon

    @property
    def keys(self) -> tuple[int, int, int]:
        """Of a step's cells: s, a, s'."""
        return self.states, self.actions if self.in_key else 1, self.states + AFTER_STATES

    @property
    def choice_keys(self) -> tuple[int, int, int]:
        return (self.states, self.actions, 1) if self.choices else (0, 0, 0)

    @property
    def cells(self) -> int:
        """Per step."""
        return math.prod(self.keys)

    def place(self, s: int, a: int) -> int:
        """As in stream_kernels.lay."""
        of = s * self.actions + a
        return of << 32 | (of if self.in_key else s) * self.keys[2]

    def found(self, place: int) -> tuple[int, int]:
        """Of which state and action a place is."""
        return divmod(place >> 32, self.actions)


class Cells:
    """Dense sums by block, step, s[, a] and s', and the lines of records by block and step."""

    def __init__(self, shape: Shape) -> None:
        places, choices = shape.slots * shape.cells, shape.slots * math.prod(shape.choice_keys)
        most = max(FEW_CELLS, min(MOST_CELLS, CELLS_PER_ROW * shape.rows))
        if places > (SPARE_CELLS if shape.spare else most) or choices > most:
            raise TooManyCells
        self.shape = shape
        sizes = places * IN_LINE, places * BESIDE, choices * IN_LINE, choices * BESIDE
        self.sums = tuple(map(aligned, sizes))  # see stream_kernels.drain
        self.record = WIDE if shape.by_row else NARROW
        room = min(max(WAITING // (shape.slots * self.record), FEWEST_WAITING), MOST_WAITING)
        # an odd number of cache lines: else the ends of all lines would fall into the same sets
        self.room = room // 16 * 16 + (2 if shape.by_row else 8)
        self.records = aligned(shape.slots * self.room * self.record)
        # where episodes are of one length all lines would be full at once, and the rows wait for it
        stagger = np.arange(shape.slots) * self.room // shape.slots * self.record
        self.begins = stagger.astype(np.uint64)  # of the numbers that wait in a line
        self.waiting = self.begins.copy()  # and where they end
        numbers = (shape.horizon, shape.states, shape.actions, shape.in_key)
        self.sizes = tuple(map(np.uint64, (*numbers, self.record, self.room, shape.cells)))
        self.arrays = self._arrays()
        self.aside: tuple[Floats, ...] | None = None
        self.rows = 0

    def _arrays(self) -> tuple[Any, ...]:
        """See stream_kernels.follow."""
        words = self.records.view(np.uint64)
        return words, self.records, self.begins, self.waiting, self.sums

    def settle(self, table: Floats, max_ratio: float) -> None:
        """Add all that waits; `table` is π by (step or 0, s·A + a)."""
        words, numbers, begins, waiting, sums = self.arrays
        size, record = np.uint64(self.shape.cells), np.uint64(self.record)
        for slot in np.flatnonzero(waiting > begins):
            policy = table[slot % self.shape.horizon if len(table) > 1 else 0]
            first = np.uint64(slot * self.room) * record + begins[slot]
            count = (waiting[slot] - begins[slot]) // record
            drain(words, numbers, record, first, count, policy, max_ratio, sums, np.uint64(slot),
                  size)  # fmt: skip
        waiting[:] = begins[:] = 0

    def grown(self, shape: Shape) -> Cells:
        """The same sums with more room; nothing must wait."""
        larger, of = Cells(shape), self.shape
        keys = (of.keys, of.keys, of.choice_keys, of.choice_keys)
        new_keys = (shape.keys, shape.keys, shape.choice_keys, shape.choice_keys)
        for mine, old, theirs, new in zip(self._total(), keys, larger.sums, new_keys, strict=True):
            if len(mine):
                by_key = theirs.reshape(shape.slots, *new, -1)
                by_key[:, : old[0], : old[1], : old[2]] = mine.reshape(of.slots, *old, -1)
        return larger

    def _total(self) -> tuple[Floats, ...]:
        if self.aside is None:
            return self.sums
        return tuple(one + other for one, other in zip(self.sums, self.aside, strict=True))

    def count(self, rows: int) -> None:
        """Put the sums aside now and then: a long sum loses the digits of what is added to it."""
        self.rows += rows
        if self.rows < FOLD * self.shape.slots * self.shape.cells:
            return
        self.aside = self._total()
        self.sums = tuple(aligned(table.size) for table in self.sums)
        self.arrays = self._arrays()
        self.rows = 0

    def tables(
        self, kinds: frozenset[str], states: Ints, actions: Ints
    ) -> dict[str, TransitionMoments] | None:
        """The kinds that were asked for, in new codes; None where the policy lacked a state.

        Nothing must wait, and nothing more can be added.
        """
        del self.records, self.arrays
        shape, made = self.shape, {}
        line, beside, by_action, beside_it = self._total()
        if "transitions" in kinds:
            keys = (shape.keys[0], 1, shape.keys[2])
            sums = (self._over_actions(line), self._over_actions(beside))
            made["transitions"] = self._observed(keys, *sums, states, NO_CODES)
            del sums
        if "model" in kinds:
            made["model"] = self._observed(shape.keys, line, beside, states, actions)
        if shape.choices:
            keys = shape.choice_keys
            made["choices"] = self._observed(keys, by_action, beside_it, states, actions)
        # a policy's NaN shows in the sums of π
        return None if any(np.isnan(table.pi).any() for table in made.values()) else made

    def _over_actions(self, table: Floats) -> Floats:
        if not self.shape.in_key:
            return table
        by_key = table.reshape(self.shape.slots, *self.shape.keys, -1)
        return np.asarray(by_key.sum(axis=2).reshape(-1))

    def _observed(
        self, keys: tuple[int, int, int], line: Floats, beside: Floats, states: Ints, actions: Ints
    ) -> TransitionMoments:
        """The cells that hold rows, in the order of their keys."""
        size = int(np.count_nonzero(line[::IN_LINE]))
        has = {"block": self.shape.blocks > 1, "a": len(actions) > 0}
        codes = [np.empty(size if has.get(name, True) else 0, np.int64) for name in CODES]
        sums = [np.empty(size) for _ in SUMS]
        gather(line, beside, self.shape.horizon, keys, states, actions, tuple(codes), tuple(sums))
        columns: dict[str, Any] = dict(zip((*CODES, *SUMS), (*codes, *sums), strict=True))
        for name, value in (("block", 0), ("a", NO_ACTION)):
            if not has[name]:  # constant columns take no memory
                columns[name] = np.broadcast_to(np.int64(value), size)
        # without stretches the placebo is ρ itself
        return TransitionMoments(**columns, one=columns["rho"])


@compiled
def gather(
    line: Any, beside: Any, horizon: int, keys: Any, states: Any, actions: Any, codes: Any,
    sums: Any,
) -> None:  # fmt: skip
    """The cells that hold rows: their keys, with the states and actions in new codes, and sums."""
    block, t, s, a, t_next, s_next, n = codes
    rho, rho2, z, rhoz, z2, y, y2, pi, mu, pi2 = sums
    n_states, n_actions, n_after = keys
    cell, at = 0, 0
    for slot in range(len(line) // (IN_LINE * n_states * n_actions * n_after)):
        for here in range(n_states):
            for action in range(n_actions):
                for after in range(n_after):
                    i, j = cell * IN_LINE, cell * BESIDE
                    cell += 1
                    if line[i] == 0.0:
                        continue
                    if len(block) > 0:
                        block[at] = slot // horizon
                    if len(a) > 0:
                        a[at] = actions[action]
                    t[at], t_next[at] = slot % horizon, slot % horizon + 1
                    s[at] = states[here]
                    if after >= AFTER_STATES:
                        s_next[at] = states[after - AFTER_STATES]
                    else:
                        s_next[at] = END if after == AFTER_END else UNKNOWN
                    n[at] = int(line[i])
                    rho[at], rho2[at], z[at], rhoz[at] = (
                        line[i + 1], line[i + 2], line[i + 3], line[i + 4],
                    )  # fmt: skip
                    z2[at], y[at], y2[at] = line[i + 5], line[i + 6], line[i + 7]
                    pi[at], mu[at], pi2[at] = beside[j], beside[j + 1], beside[j + 2]
                    at += 1


def aligned(size: int) -> Floats:
    """Zeros that begin where a cache line does."""
    room = np.zeros(size + 8)
    offset = (-room.ctypes.data % 64) // 8
    return room[offset : offset + size]
