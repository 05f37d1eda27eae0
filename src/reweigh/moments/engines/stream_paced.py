"""Rewards by bucket of ids and step, while a log streams (`PacedMoments`).

How far the ids reach is known at the end only. The sums have the buckets that the ids so far ask
for, each at its number modulo MOST_PACED: no two of them share a place. Where an id asks for wider
ones, those that become one are added up; that happens at most once for every bit of an id.

The rewards of an episode stand in sequence, and so do their sums: several are added at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from reweigh.moments.extras import MOST_PACED, PacedMoments
from reweigh.moments.kernels.common import compiled, inlined

Word = np.uint64
SHIFT, LOW, HIGH, SOME = 0, 1, 2, 3  # places in `span`
PLACE, MOST, U1 = Word(MOST_PACED - 1), Word(MOST_PACED), Word(1)
HALVES = Word((2 * MOST_PACED).bit_length() - 1)


@inlined
def too_far(low: int, high: int, shift: int) -> bool:
    """Whether buckets span too many that are wider by this shift; as words, for their difference
    may have 64 bits."""
    return bool(Word(high >> shift) - Word(low >> shift) >= MOST)


@compiled
def widen(bucket: int, sums: Any, ahead: Any, span: Any) -> None:
    """Make the buckets so wide that there is room for one more; for the first, there is."""
    low, high, more = min(span[LOW], bucket), max(span[HIGH], bucket), 0
    if span[SOME] == 0:
        span[LOW], span[HIGH], span[SOME] = bucket, bucket, 1
        return
    while too_far(low, high, more):
        more += 1
    horizon = len(sums) // (2 * MOST_PACED)
    held, begun = sums.copy().reshape(-1, horizon), ahead.copy().reshape(-1, horizon + 1)
    sums[:], ahead[:] = 0.0, 0
    total, rows = sums.reshape(-1, horizon), ahead.reshape(-1, horizon + 1)
    for one in range(span[LOW], span[HIGH] + 1):
        old, new = one % MOST_PACED, (one >> more) % MOST_PACED
        total[new] += held[old]
        total[MOST_PACED + new] += held[MOST_PACED + old]
        rows[new] += begun[old]
    span[SHIFT] += more
    span[LOW], span[HIGH] = low >> more, high >> more


@inlined
def pace(
    number: int, first: int, y: Any, begin: int, end: int, sums: Any, ahead: Any, span: Any
) -> None:
    """Add the rewards y[begin:end] of an episode with this id, from step `first` on.

    sums    Σy by (bucket, t), then Σy²
    ahead   by (bucket, t) up to the horizon: how many more rows a step has than the one before it
    span    the shift, the least and the largest bucket, and whether there is any
    """
    bucket = number >> span[SHIFT]
    low, high = min(span[LOW], bucket), max(span[HIGH], bucket)
    if span[SOME] == 0 or too_far(low, high, 0):
        widen(bucket, sums, ahead, span)
        bucket = number >> span[SHIFT]
    else:
        span[LOW], span[HIGH] = low, high
    place, many = Word(bucket) & PLACE, Word(end - begin)
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
        self.horizon, self.span = horizon, np.zeros(4, np.int64)
        self._take(MOST_PACED if wanted else 0)

    def _take(self, buckets: int) -> None:
        self.sums = np.zeros(2 * buckets * self.horizon)
        self.ahead = np.zeros(buckets * (self.horizon + 1), np.int64)
        self.arrays = (self.sums, self.ahead, self.span)

    def drop(self) -> None:
        """Without an order of the ids, nothing is wanted."""
        self._take(0)

    def moments(self) -> PacedMoments | None:
        if not self.span[SOME] or not len(self.ahead):
            return None
        bucket = np.arange(self.span[LOW], self.span[HIGH] + 1)
        place = bucket % MOST_PACED
        ahead = self.ahead.reshape(MOST_PACED, -1)[place]
        y, y2 = self.sums.reshape(2, MOST_PACED, -1)[:, place]
        n = np.cumsum(ahead, axis=1)[:, :-1]
        return PacedMoments.dense(int(self.span[SHIFT]), bucket, n.ravel(), y.ravel(), y2.ravel())
