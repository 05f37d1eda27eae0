"""What MIS straight from the rows tells by step and state: `Nodes` of arrays over all (t, s)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from reweigh.estimate.estimator import Nodes, Place
from reweigh.kernels.choose import kernel
from reweigh.log.states import END

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class DenseNodes:
    """`Nodes` as arrays (H+1, width) over all (t, s), END's being the last column. The nodes are
    picked out when they are asked for: with many states that takes as long as the recursions.

    reached  tells whether it is what an episode's last row led to
    """

    d: Floats
    visits: Floats
    variance: Floats
    reached: Callable[[], npt.NDArray[np.uint8]]
    n_episodes: int

    @cached_property
    def made(self) -> Nodes:
        reached = self.reached()
        size = kernel("nodes.count")(self.visits, reached)
        columns = np.empty((6, size + 1))
        t, s = columns[4:].view(np.int64)
        kernel("nodes.collect")(
            self.d, self.visits, self.variance, reached, self.n_episodes, t, s, columns[:4]
        )
        target, behavior, visits, variance = columns[:4, :-1]
        return Nodes(t[:-1], s[:-1], target, behavior, visits, variance)

    def variance_by_step(self, horizon: int) -> Floats | None:
        return np.asarray(self.variance[:horizon].sum(axis=1))

    @cached_property
    def seldom(self) -> Seldom:
        """See `Seldom`; at the horizon nothing is rare."""
        rare, at = np.zeros(len(self.d) - 1), np.zeros(2, np.int64)
        found = kernel("nodes.seldom")(self.d, self.visits, self.variance, rare, at)
        t, column = at.tolist()
        state = END if column + 1 == self.d.shape[1] else column
        return Seldom(rare, None if t < 0 else Place(t, state), *found)


@dataclass(frozen=True, eq=False)
class Seldom:
    """What few rows mean for an estimate: (H,) the target's mass on nodes seen fewer than 10 times,
    and the node with the most of it; over the nodes seen twice or more the sums of
    C = V N/(N - 1) and of C²/(N - 1), with V the variance."""

    rare: Floats
    rare_at: Place | None
    corrected: float
    spread: float
