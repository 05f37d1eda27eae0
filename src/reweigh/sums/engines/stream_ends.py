"""What is known of an episode when it is over: its whole product and its return.

For the largest weights and the log's order (`LargestWeights`, `OrderedMoments`). Episodes end in
the order in which they began, so that ids and ends go together by their number.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.log.identity import NUMBER
from reweigh.sums.diagnostic_tables import UNORDERED, LargestWeights, OrderedMoments
from reweigh.sums.products import LOG_UNIT

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
NO_EPISODES = np.zeros(0, np.int64)


class Tail:
    """The largest weights of a log of at most so many episodes: the list that sorting all of them
    would give, whatever the parts in which they come."""

    def __init__(self, episodes: int) -> None:
        # one more than may be kept, which says where the list ends
        self.room = LargestWeights.kept(episodes) + 1
        self.clear()

    def clear(self) -> None:
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
