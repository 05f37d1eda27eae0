"""Errors of an estimate whose episodes come in clusters, such as sites, patients or days.

Episodes of one cluster depend on each other; clusters do not. Without cluster g the estimate moves
by about -Ψ_g/(n - n_g), with Ψ_g = Σ_{i in g} ψ_i the influence values of its n_g episodes (of a
mean by exactly that), so that the jackknife that deletes one of G clusters at a time gives

    SE² = (G - 1)/G Σ_g (Ψ_g/(n - n_g))²,    Student's t with G - 1 degrees of freedom.

Where all clusters have one size this is Σ_g Ψ_g²/n² times G/(G - 1), and where each holds one
episode it is the error by episodes. Where sizes differ, Σ Ψ_g² alone is too small: the largest
clusters pull the estimate to themselves (MacKinnon, Nielsen and Webb, "Cluster-robust inference: a
guide to empirical practice", Journal of Econometrics 2023, where it is called CV3).

With (Σ_g n_g)²/Σ_g n_g² clusters of equal size the mean size would be as uneven: so many the
clusters count for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError
from reweigh.estimate.influence import Spread
from reweigh.kernels import Floats, Ints, tally
from reweigh.log.log import EpisodeLog
from reweigh.log.states import label_text

MOST_DELETED = 200  # clusters that are deleted one by one; of more, blocks of clusters


@dataclass(frozen=True, eq=False)
class Clustering:
    """Which of G clusters each of n episodes belongs to.

    column  the column of the log            code   (n,) of the episodes
    names   (G,) of the clusters             sizes  (G,) their episodes, by weight
    """

    column: str
    names: npt.NDArray[Any]
    code: Ints
    sizes: Floats

    @classmethod
    def of(cls, log: EpisodeLog) -> Clustering:
        """Of a log that has clusters, or weights: then each episode is one."""
        steps = log.steps
        ids = steps.episode if steps.cluster is None else steps.cluster
        names, code = log._once("clusters", lambda: np.unique(ids, return_inverse=True))
        omega = steps.relative_weight
        sizes = np.bincount(code, omega, len(names)).astype(np.float64)
        return cls(log.columns.cluster or "", names, code, sizes)

    def sums(self, psi: Floats) -> Floats:
        """(G,) or (G, k) Ψ."""
        return tally(self.code, psi, len(self.names))

    def blocks(self, by_hash: Ints) -> Ints:
        """(n,) the clusters, to be deleted one by one; if they are too many, blocks of them."""
        return self.code if len(self.names) <= MOST_DELETED else by_hash


@dataclass(frozen=True)
class Count:
    """How many clusters of a column an error is made of: `number`, that count for `effective` ones
    of equal size. `of_blocks`: they are known by blocks of clusters only."""

    column: str
    number: int
    effective: float
    of_blocks: bool = False

    def __str__(self) -> str:
        if not self.column:
            return f"{self.number:,} weighted episodes"
        what = "blocks of clusters" if self.of_blocks else "clusters"
        return f"{self.number:,} {what} ({self.column})"

    @classmethod
    def of(cls, column: str, sizes: Any, *, of_blocks: bool = False) -> Count:
        sizes = np.asarray(sizes, np.float64)
        return cls(column, len(sizes), float(sizes.sum() ** 2 / np.sum(sizes**2)), of_blocks)


def deviations(sums: Floats, sizes: Floats, *, some: bool = False) -> Floats:
    """(G,) or (G, k) x with SE² = Σ_g x_g², from Ψ. `some`: only clusters with Ψ ≠ 0 are in the
    estimate, as where a split leaves half of them to fit Q."""
    used = sums != 0 if some else np.ones_like(sums, bool)
    sizes = sizes.reshape(-1, *[1] * (sums.ndim - 1))
    count, total = used.sum(axis=0), np.sum(used * sizes, axis=0)
    if np.any(count < 2):
        raise RefusedError(
            "one-cluster", "one cluster shows no variation between clusters, which errors rest on"
        )
    # ψ sums to n v̂: where some are in it, each of theirs counts n/Σ n_g times
    root = np.sqrt((count - 1) / count) * total / sizes.sum()
    return np.where(used, root * sums / (total - np.where(used, sizes, 0.0)), 0.0)


def spread_of(sums: Floats, sizes: Floats, names: Any, *, some: bool = False) -> Spread:
    """The spread of G values whose mean square over G is SE²."""
    return Spread.of(len(sums) * deviations(sums, sizes, some=some), names)


def error_without(value: float, without: Floats) -> float:
    """The jackknife's error from the values without each cluster (or block of them)."""
    count = len(without)
    return math.sqrt((count - 1) / count * float(np.sum((without - value) ** 2)))


def resampled_errors(
    sums: Floats, sizes: Floats, value: float, counts: npt.NDArray[Any], values: Floats
) -> Floats:
    """(m,) the errors in replicates in which the clusters occur counts (G, m) times and the values
    are (m,): those of means of ψ + v̂ over the drawn clusters. The errors of other estimators differ
    from these by a term of smaller order, as their values do."""
    times = counts.astype(np.float64)
    n = sizes @ times
    off = sums[:, None] - sizes[:, None] * (values - value)  # Ψ about the replicate's value
    drawn = np.maximum(times.sum(axis=0), 2.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        squares = np.sum(times * (off / (n - sizes[:, None])) ** 2, axis=0)
        return np.asarray(np.sqrt((drawn - 1) / drawn * squares))


@dataclass(eq=False)
class ScannedClusters:
    """Ψ of columns, of a log that comes in parts."""

    place: dict[str, int] = field(default_factory=dict)
    sizes: Floats = field(default_factory=lambda: np.zeros(0))
    sums: dict[Any, Floats] = field(default_factory=dict)

    def add(self, part: EpisodeLog, psi: dict[Any, Floats]) -> None:
        of = Clustering.of(part)
        names = [str(label_text(name)) for name in of.names.tolist()]
        at = np.array([self.place.setdefault(name, len(self.place)) for name in names])
        self.sizes = self._grown(self.sizes)
        self.sizes[at] += of.sizes
        for column, values in psi.items():
            self.sums[column] = self._grown(self.sums.get(column, np.zeros(0)))
            self.sums[column][at] += of.sums(values)

    def _grown(self, values: Floats) -> Floats:
        return np.append(values, np.zeros(len(self.place) - len(values)))

    @property
    def names(self) -> npt.NDArray[Any]:
        return np.array(list(self.place), object)
