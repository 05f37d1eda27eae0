"""Rewards and probabilities that stay where the user has them: (n, H) arrays, which may lie in a
file that is larger than memory. Who needs a whole column gets a copy of it; the recursions of MIS
read a few steps at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.kernels.choose import pick
from reweigh.log.steps import Steps

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
LARGEST = float(np.finfo(np.float64).max)
TOGETHER = 8  # steps: as many numbers of an episode lie in one line of a processor's cache
SHARE = 4  # of the steps at most one in so many is held at a time


@dataclass(frozen=True, eq=False)
class Lent:
    """Arrays (n, H) by the name of their column, all of them checked; row k of step t is that of
    episode order[k], as in `Steps`."""

    numbers: Mapping[str, Floats]
    order: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]

    @property
    def n_rows(self) -> int:
        return int(self.offsets[-1])

    @property
    def together(self) -> int:
        """How many steps are read at a time."""
        return min(TOGETHER, max((len(self.offsets) - 1) // SHARE, 1))

    def column(self, name: str) -> Floats:
        """(N,) a copy, in the order of the steps."""
        rows = np.empty(self.n_rows)
        run = pick("ingest.transpose_numbers", len(rows))
        run(self.numbers[name], self.order, self.offsets, -LARGEST, LARGEST, rows)
        return rows

    def some(
        self, since: int, until: int, limit: float | None, room: Floats
    ) -> tuple[Floats, Floats]:
        """(m,) ratios, up to `limit`, and rewards of the rows of these steps, in `room`."""
        m = int(self.offsets[until] - self.offsets[since])
        ratios, rewards = room[:m], room[m : 2 * m]
        mu, pi, reward = (self.numbers[k] for k in ("behavior_prob", "target_prob", "reward"))
        run = pick("ingest.some_steps", self.n_rows)
        most = np.inf if limit is None else limit
        run(mu, pi, reward, self.order, self.offsets, since, until, most, ratios, rewards)
        return ratios, rewards


class LentSteps(Steps):
    """Steps whose reward and behavior_prob are copied when they are asked for.

    `dataclasses.replace` asks for them: what it makes holds columns of its own.
    """

    @classmethod
    def of(cls, lent: Lent, **others: Any) -> Steps:
        made = object.__new__(cls)
        vars(made).update(others, _lent=lent)
        return made

    @property
    def lent(self) -> Lent | None:
        return vars(self).get("_lent")

    @property
    def n_rows(self) -> int:
        return int(self.offsets[-1])

    @property
    def has_propensities(self) -> bool:
        lent = self.lent
        return super().has_propensities if lent is None else "behavior_prob" in lent.numbers

    def surely_taken(self) -> bool:
        lent = self.lent
        if lent is not None and self.has_propensities:
            first = lent.numbers["behavior_prob"][lent.order[0], 0]
            return bool(first == 1.0) and super().surely_taken()
        return super().surely_taken()

    @cached_property
    def reward(self) -> Floats:
        return self._own.column("reward")

    @cached_property
    def behavior_prob(self) -> Floats | None:
        return self._own.column("behavior_prob") if self.has_propensities else None

    @property
    def _own(self) -> Lent:
        lent = self.lent
        assert lent is not None
        return lent
