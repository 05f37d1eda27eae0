"""Rewards by bucket of ids and step, while a log streams (`PacedMoments`).

How far the ids reach is known at the end only. The sums have the buckets that the ids so far ask
for, each at its number modulo MOST_PACED: no two of them share a place. Where an id asks for wider
ones, those that become one are added up; that happens at most once for every bit of an id.

The rewards of an episode stand in sequence, and so do their sums: several are added at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.kernels.common import inlined
from reweigh.sums.diagnostic_tables import MOST_PACED, PacedMoments

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Word = np.uint64
PLACE, U1 = Word(MOST_PACED - 1), Word(1)
HALVES = Word((2 * MOST_PACED).bit_length() - 1)


@inlined
def pace(
    number: int, first: int, y: Any, begin: int, end: int, sums: Any, ahead: Any, shift: int
) -> None:
    """Add the rewards y[begin:end] of an episode with this id, from step `first` on.

    sums    Σy by (bucket, t), then Σy²
    ahead   by (bucket, t) up to the horizon: how many more rows a step has than the one before it
    """
    place, many = Word(number >> shift) & PLACE, Word(end - begin)
    square, horizon = Word(len(sums)) >> U1, Word(len(sums)) >> HALVES
    at = place * (horizon + U1) + Word(first)
    ahead[at] += 1
    ahead[at + many] -= 1
    at, row = place * horizon + Word(first), Word(begin)
    for k in range(many):
        value = y[row + k]
        sums[at + k] += value
        sums[square + at + k] += value * value


class Paced:
    """The sums so far; `arrays` is what `pace` takes, empty where none are wanted."""

    def __init__(self, wanted: bool, horizon: int) -> None:
        self.horizon, self.shift = horizon, 0
        self.ids: tuple[int, int] | None = None  # the least and the largest
        self._take(MOST_PACED if wanted else 0)

    def _take(self, buckets: int) -> None:
        self.sums = np.zeros(2 * buckets * self.horizon)
        self.ahead = np.zeros(buckets * (self.horizon + 1), np.int64)

    @property
    def arrays(self) -> tuple[Any, ...]:
        return self.sums, self.ahead, self.shift

    def drop(self) -> None:
        """Without an order of the ids, nothing is wanted."""
        self._take(0)

    def make_room(self, ids: Ints) -> None:
        """For rewards of episodes with these ids."""
        if not len(self.sums):
            return
        low, high = int(ids.min()), int(ids.max())
        if self.ids is not None:
            low, high = min(low, self.ids[0]), max(high, self.ids[1])
        shift = PacedMoments.shift_of(low, high)
        if shift > self.shift:
            self._widen(shift)
        self.ids = low, high

    def _buckets(self) -> Ints:
        low, high = self.ids or (0, -1)
        return np.arange(low >> self.shift, (high >> self.shift) + 1)

    def _by_place(self) -> tuple[Floats, Ints]:
        """(2, places, H) and (places, H + 1) views."""
        return self.sums.reshape(2, MOST_PACED, -1), self.ahead.reshape(MOST_PACED, -1)

    def _widen(self, shift: int) -> None:
        bucket, (held, begun) = self._buckets(), self._by_place()
        self._take(MOST_PACED)
        sums, ahead = self._by_place()
        wide = (bucket >> (shift - self.shift)) % MOST_PACED
        for old, new in zip((bucket % MOST_PACED).tolist(), wide.tolist(), strict=True):
            sums[:, new] += held[:, old]
            ahead[new] += begun[old]
        self.shift = shift

    def moments(self) -> PacedMoments | None:
        if self.ids is None or not len(self.sums):
            return None
        bucket, (sums, ahead) = self._buckets(), self._by_place()
        y, y2 = sums[:, bucket % MOST_PACED]
        n = np.cumsum(ahead[bucket % MOST_PACED], axis=1)[:, :-1]
        return PacedMoments.dense(self.shift, bucket, n.ravel(), y.ravel(), y2.ravel())
