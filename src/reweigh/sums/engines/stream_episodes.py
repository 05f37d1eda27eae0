"""Sums of episodes while a log streams: whole products, returns, and rewards by their ids.

For the largest weights and the log's order (`LargestWeights`, `OrderedMoments`, `PacedMoments`).
Episodes end in the order in which they began, so that ids and ends go together by their number.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.kernels.common import inlined
from reweigh.log.steps import NUMBER
from reweigh.sums.diagnostic_tables import (
    MOST_PACED,
    UNORDERED,
    LargestWeights,
    OrderedMoments,
    PacedMoments,
)
from reweigh.sums.products import LOG_UNIT

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
NO_EPISODES = np.zeros(0, np.int64)
Word = np.uint64
PLACE, U1 = Word(MOST_PACED - 1), Word(1)
HALVES = Word((2 * MOST_PACED).bit_length() - 1)


class Tail:
    """The largest weights of a log of at most so many episodes: the list that sorting all of them
    would give, whatever the parts in which they come."""

    def __init__(self, episodes: int) -> None:
        # one more than may be kept, which says where the list ends
        self.room = LargestWeights.kept(episodes) + 1
        self.held: list[Floats] = []
        self.waiting = self.n = 0
        self.least = -math.inf  # below it nothing is among the largest

    def add(self, log_w: Floats) -> None:
        self.n += len(log_w)
        even = LargestWeights.even(log_w)
        larger = even[even > self.least]
        self.held.append(larger)
        self.waiting += len(larger)
        if self.waiting > self.room:
            self._sort()

    def _sort(self) -> None:
        joined = np.sort(np.concatenate([np.zeros(0), *self.held]))[::-1][: self.room]
        self.held, self.waiting = [joined.copy()], 0
        if len(joined) == self.room:
            self.least = float(joined[-1])

    def total(self) -> LargestWeights:
        self._sort()
        return LargestWeights(self.held[0], -math.inf, self.n).trimmed()


class Ends:
    """Episodes that are over, of a log of at most so many.

    `arrays`: room for m, e and Σγ^t y_t of each, ρ_{0:H-1} = m·2^(256 e), how many there are, and
    γ^t; empty where neither kind is wanted.
    """

    def __init__(
        self, kinds: frozenset[str], room: int, episodes: int, horizon: int, gamma: float
    ) -> None:
        self.tail = Tail(episodes) if "largest" in kinds else None
        self.wants_returns, self.in_order = "ordered" in kinds, True
        self.ordered: OrderedMoments | None = None
        self.wanted = self.tail is not None or self.wants_returns
        self.open = NO_EPISODES
        self.found = np.zeros((room + 2 if self.wanted else 0, 3))
        self.count = np.zeros(1, np.int64)
        power = np.array([gamma**t for t in range(horizon if self.wanted else 0)])
        self.arrays = (self.found, self.count, power)

    def take(self, begun: Ints) -> bool:
        """Add what has ended, given the ids of what has begun; False if a product is no number."""
        if not self.wanted:
            return True
        ids, done = np.concatenate([self.open, begun]), int(self.count[0])
        m, e, g = self.found[:done].T
        self.open, self.count[0] = ids[done:], 0
        if not np.all(np.isfinite(m)):
            return False
        if self.tail is not None:
            with np.errstate(divide="ignore"):
                self.tail.add(np.log(m) + e * LOG_UNIT)
        if self.wants_returns:
            part = OrderedMoments.of(ids[:done] if self.in_order else None, g.copy())
            self.ordered = part if self.ordered is None else self.ordered + part
        return True

    def look_at(self, texts: list[str]) -> None:
        """Ids that are no whole numbers tell no order."""
        is_number = re.compile(NUMBER).fullmatch
        self.in_order = self.in_order and all(map(is_number, texts))

    def moments(self, cut_off: int) -> dict[str, Any]:
        """The returns are known where no episode was cut off, their order where ids are numbers:
        those that came before the first other id have none, either."""
        ordered = self.ordered
        if ordered is not None and not self.in_order:
            ordered = ordered.coarser(UNORDERED).summed()
        return {
            "largest": None if self.tail is None else self.tail.total(),
            "ordered": None if cut_off else ordered,
        }


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
    """Rewards by bucket of ids and step; `arrays` is what `pace` takes, empty if none are wanted.

    How far the ids reach is known at the end only. The sums have the buckets that the ids so far
    ask for, each at its number modulo MOST_PACED: no two of them share a place. Where an id asks
    for wider ones, those that become one are added up, at most once for every bit of an id.
    """

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
