"""Dense sums of the fast path: a place for every possible cell, and records that wait for them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.kernels.common import compiled
from reweigh.log.states import END, UNKNOWN
from reweigh.sums.engines.base import SPARE_CELLS
from reweigh.sums.engines.stream_kernels import (
    AFTER_END,
    AFTER_STATES,
    BESIDE,
    IN_LINE,
    NARROW,
    WIDE,
    drain,
)
from reweigh.sums.transitions import NO_ACTION, TransitionMoments

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
FEW_CELLS, MOST_CELLS = 1 << 21, 1 << 24  # of 96 bytes: for any log; for one of as many rows
CELLS_PER_ROW = 4
WAITING = 12 << 20  # numbers in all lines: 96 MiB
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


class TooManyCells(Exception):
    """There is no room for a place per possible cell."""


@dataclass(frozen=True)
class Shape:
    """What the cells are of: blocks, steps, and the room for states and actions.

    `in_key`: the action is a part of the key; `spare`: if that takes little room. `by_row`: records
    hold π. `rows`: of the log.
    """

    blocks: int
    horizon: int
    states: int
    actions: int
    in_key: bool
    by_row: bool
    rows: int
    spare: bool = False

    @property
    def slots(self) -> int:
        return self.blocks * self.horizon

    @property
    def keys(self) -> tuple[int, int, int]:
        """Of a step's cells: s, a, s'."""
        return self.states, self.actions if self.in_key else 1, self.states + AFTER_STATES

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
        places = shape.slots * shape.cells
        most = max(FEW_CELLS, min(MOST_CELLS, CELLS_PER_ROW * shape.rows))
        if places > (SPARE_CELLS if shape.spare else most):
            raise TooManyCells
        self.shape = shape
        self.line, self.beside = aligned(places * IN_LINE), aligned(places * BESIDE)
        self.record = WIDE if shape.by_row else NARROW
        room = min(max(WAITING // (shape.slots * self.record), FEWEST_WAITING), MOST_WAITING)
        # an odd number of cache lines: else the ends of all lines would fall into the same sets
        self.room = room // 16 * 16 + (2 if shape.by_row else 8)
        self.records = aligned(shape.slots * self.room * self.record)
        self.waiting = np.zeros(shape.slots, np.uint64)  # numbers
        numbers = (shape.horizon, shape.states, shape.actions, shape.in_key)
        self.sizes = tuple(map(np.uint64, (*numbers, self.record, self.room, shape.cells)))
        self.arrays = self._arrays()
        self.aside: tuple[Floats, Floats] | None = None
        self.rows = 0

    def _arrays(self) -> tuple[Any, ...]:
        """See stream_kernels.follow."""
        words = self.records.view(np.uint64)
        return words, self.records, self.waiting, self.line, self.beside

    def settle(self, table: Floats, max_ratio: float) -> None:
        """Add all that waits; `table` is π by (step or 0, s·A + a)."""
        words, numbers, waiting, line, beside = self.arrays
        size, record = self.shape.cells, self.record
        for slot in np.flatnonzero(waiting).tolist():
            policy = table[slot % self.shape.horizon if len(table) > 1 else 0]
            first, base = np.uint64(slot * self.room * record), np.uint64(slot * size)
            count = waiting[slot] // np.uint64(record)
            drain(words, numbers, np.uint64(record), first, count, policy, max_ratio, line, beside,
                  base, np.uint64(size))  # fmt: skip
        waiting[:] = 0

    def grown(self, shape: Shape) -> Cells:
        """The same sums with more room; nothing must wait."""
        larger = Cells(shape)
        of, (states, actions, _) = self.shape, self.shape.keys
        for mine, theirs in zip(self._total(), (larger.line, larger.beside), strict=True):
            by_key = theirs.reshape(shape.slots, *shape.keys, -1)
            by_key[:, :states, :actions, : of.keys[2]] = mine.reshape(of.slots, *of.keys, -1)
        return larger

    def _total(self) -> tuple[Floats, Floats]:
        if self.aside is None:
            return self.line, self.beside
        return self.line + self.aside[0], self.beside + self.aside[1]

    def count(self, rows: int) -> None:
        """Put the sums aside now and then: a long sum loses the digits of what is added to it."""
        self.rows += rows
        if self.rows < FOLD * self.shape.slots * self.shape.cells:
            return
        self.aside = self._total()
        self.line, self.beside = aligned(self.line.size), aligned(self.beside.size)
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
        line, beside = self._total()
        if "transitions" in kinds:
            keys = (shape.keys[0], 1, shape.keys[2])
            sums = (self._over_actions(line), self._over_actions(beside))
            made["transitions"] = self._observed(keys, *sums, states, NO_CODES)
            del sums
        if "model" in kinds:
            made["model"] = self._observed(shape.keys, line, beside, states, actions)
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
