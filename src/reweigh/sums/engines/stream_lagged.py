"""Cells by what came before, while a log streams (`LaggedMoments`).

There is no place for every possible cell: their number is H·S³·A. They are found by a hash of their
keys (`stream_hash.py`). A log that shows more cells than are kept has none of them, and the table
is given back.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from reweigh.log.states import END, UNKNOWN
from reweigh.sums import diagnostic_tables as extras
from reweigh.sums.diagnostic_tables import LaggedMoments
from reweigh.sums.engines.stream_cells import Shape, TooManyCells, aligned
from reweigh.sums.engines.stream_hash import KEY, LINE, move
from reweigh.sums.engines.stream_kernels import AFTER_STATES

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
FULL = 0.75  # of the places: beyond that, a free one is far
FEWEST = 1 << 12  # places
FOLD = 4096  # rows per cell after which sums are put aside, so that small numbers still count


class Lagged:
    """The cells so far. `arrays` is what `add_before` takes; empty where none are wanted."""

    def __init__(self, shape: Shape, wanted: bool, piece: int) -> None:
        self.wanted, self.too_many, self.rows = wanted, False, 0
        self.aside: Floats | None = None
        self.keys, self.used = np.zeros(piece + 1, np.uint64), np.zeros(1, np.int64)
        self._take(aligned(FEWEST * LINE if wanted else 0))
        self.shape = shape
        self._check(shape)

    def _take(self, numbers: Floats) -> None:
        self.numbers = numbers
        self.arrays = (self.keys, numbers, numbers.view(np.uint64), self.used)

    def _check(self, shape: Shape) -> None:
        """Keys must fit into a word, and places within a step into half of one."""
        pairs, width = shape.states * shape.actions, shape.states + AFTER_STATES
        if self.wanted and (
            shape.horizon * pairs * shape.states * width >= 2**63 or pairs * width >= 2**32
        ):
            raise TooManyCells

    def make_room(self, rows: int) -> None:
        """For as many new cells as there are rows."""
        self._stop_if_too_many()
        places = len(self.numbers) // LINE
        if not self.wanted or int(self.used[0]) + rows + 1 <= FULL * places:
            return
        while int(self.used[0]) + rows + 1 > FULL * places:
            places *= 2
        self._move(places, self.numbers.view(np.uint64))

    def _move(self, places: int, words: Words) -> None:
        """Into a table of that many places, with the keys of `words`."""
        held, aside = self.numbers, self.aside
        self._take(aligned(places * LINE))
        move(words, held, self.arrays[2], self.numbers)
        if aside is not None:
            self.aside = aligned(places * LINE)
            self.aside.view(np.uint64)[KEY::LINE] = self.arrays[2][KEY::LINE]
            move(words, aside, self.aside.view(np.uint64), self.aside)

    def _stop_if_too_many(self) -> None:
        if self.wanted and int(self.used[0]) > extras.MOST_LAGGED:
            self.wanted, self.too_many, self.aside = False, True, None
            self._take(aligned(0))

    def count(self, rows: int) -> None:
        """Put the sums aside now and then: a long sum loses the digits of what is added to it."""
        self.rows += rows
        if not self.wanted or self.rows < FOLD * max(int(self.used[0]), 1):
            return
        sums = self.numbers.reshape(-1, LINE)[:, :KEY]
        if self.aside is None:
            self.aside = aligned(self.numbers.size)
        self.aside.reshape(-1, LINE)[:, :KEY] += sums
        sums[:] = 0.0
        self.rows = 0

    def grown(self, shape: Shape) -> None:
        """The same cells with keys for more states and actions."""
        self._check(shape)
        if self.wanted:
            words = np.zeros(len(self.numbers), np.uint64)
            held = self.arrays[2][KEY::LINE]
            some = held != 0
            t, s_before, a_before, s, after = self._keys(held[some])
            pairs, width = shape.states * shape.actions, shape.states + AFTER_STATES
            key = (t * pairs + s_before * shape.actions + a_before) * shape.states + s
            words[KEY::LINE][some] = (key * width + after + 1).astype(np.uint64)
            self._move(len(self.numbers) // LINE, words)
        self.shape = shape

    def _keys(self, words: Words) -> tuple[Ints, ...]:
        """t, s_before, a_before, s and the place of s' of cells."""
        shape, left = self.shape, words.astype(np.int64) - 1
        found = []
        for size in (shape.states + AFTER_STATES, shape.states, shape.actions, shape.states):
            left, part = np.divmod(left, size)
            found.append(part)
        after, s, a_before, s_before = found
        return left, s_before, a_before, s, after

    def moments(self, states: Ints, actions: Ints) -> tuple[LaggedMoments | None, dict[str, str]]:
        """The cells in new codes; or None, and why."""
        self._stop_if_too_many()
        if self.too_many:
            return None, {"lagged": extras.too_many()}
        if not self.wanted:
            return None, {}
        some = self.arrays[2][KEY::LINE] != 0
        t, s_before, a_before, s, after = self._keys(self.arrays[2][KEY::LINE][some])
        sums = self.numbers.reshape(-1, LINE)[some]
        if self.aside is not None:
            sums[:, :KEY] += self.aside.reshape(-1, LINE)[some, :KEY]
        codes = np.append(states, [UNKNOWN, END])
        s_next = codes[np.where(after >= AFTER_STATES, after - AFTER_STATES, len(states) + after)]
        columns = dict(zip(LaggedMoments.SUMS[1:], sums.T[1:KEY], strict=True))
        return LaggedMoments(
            t=t,
            s_before=states[s_before],
            a_before=actions[a_before],
            s=states[s],
            s_next=s_next,
            n=sums[:, 0].astype(np.int64),
            **columns,
        ).summed(), {}
