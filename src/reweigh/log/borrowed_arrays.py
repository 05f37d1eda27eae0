"""Rewards and probabilities that stay where the user has them: (n, H) arrays, which may lie in a
file that is larger than memory. Who needs a whole column gets a copy of it; the recursions of MIS
read a few steps at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reweigh.kernels import kernel

Floats = npt.NDArray[np.float64]
LARGEST = float(np.finfo(np.float64).max)
TOGETHER = 8  # steps: as many numbers of an episode lie in one line of a processor's cache
SHARE = 4  # of the steps at most one in so many is held at a time


@dataclass(frozen=True, eq=False)
class BorrowedArrays:
    """Arrays (n, H) by the name of their column, all of them checked; row k of step t is that of
    episode order[k], as in `Steps`."""

    numbers: Mapping[str, Floats]
    order: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]

    @property
    def n_rows(self) -> int:
        return int(self.offsets[-1])

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.numbers)

    def surely_taken(self) -> bool:
        mu = self.numbers["behavior_prob"]
        return bool(mu[self.order[0], 0] == 1.0 and np.all(self.column("behavior_prob") == 1.0))

    @property
    def together(self) -> int:
        """How many steps are read at a time."""
        return min(TOGETHER, max((len(self.offsets) - 1) // SHARE, 1))

    def column(self, name: str) -> Floats:
        """(N,) a copy, in the order of the steps."""
        rows = np.empty(self.n_rows)
        run = kernel("ingest.transpose_numbers")
        run(self.numbers[name], self.order, self.offsets, -LARGEST, LARGEST, rows)
        return rows

    def some(
        self, since: int, until: int, limit: float | None, room: Floats
    ) -> tuple[Floats, Floats]:
        """(m,) ratios, up to `limit`, and rewards of the rows of these steps, in `room`."""
        m = int(self.offsets[until] - self.offsets[since])
        ratios, rewards = room[:m], room[m : 2 * m]
        mu, pi, reward = (self.numbers[k] for k in ("behavior_prob", "target_prob", "reward"))
        run = kernel("ingest.some_steps")
        most = np.inf if limit is None else limit
        run(mu, pi, reward, self.order, self.offsets, since, until, most, ratios, rewards)
        return ratios, rewards
