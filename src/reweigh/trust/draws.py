"""Mixtures of the episodes of a log: how often each occurs, and what that makes of sums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.kernels.twins.mixtures import without_one

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
CHUNK = 1 << 13  # episodes


@dataclass(frozen=True, eq=False)
class Draws:
    """m mixtures of n episodes.

    counts    (n, m) how often each occurs
    left_out  (n,) given where mixture b is the log without one block of its episodes: the number b
              of the episode's block, m if the episode is never left out. Sums are then made once by
              block, and added up without the one, instead of once for every mixture
    """

    counts: npt.NDArray[np.uint8]
    left_out: Ints | None = None

    @property
    def many(self) -> int:
        return int(self.counts.shape[1])

    def parts(self, size: int) -> Iterator[tuple[slice, Draws]]:
        """The mixtures, at most `size` at a time."""
        if self.many <= size:
            yield slice(0, self.many), self
            return
        for start in range(0, self.many, size):
            which = slice(start, min(start + size, self.many))
            counts, left = self.counts[:, which], self.left_out
            if left is not None:
                here = (left >= which.start) & (left < which.stop)
                left = np.where(here, left - which.start, counts.shape[1])
            yield which, Draws(np.ascontiguousarray(counts), left)

    @cached_property
    def times(self) -> Floats:
        return self.counts.astype(np.float64)

    @cached_property
    def episodes(self) -> Floats:
        """(m,) how many there are."""
        return np.asarray(self.counts.sum(axis=0, dtype=np.float64))

    def of_episodes(self, columns: Floats) -> Floats:
        """(k, m) Σ_i c_i columns_i of columns (n, k), some episodes at a time."""
        if self.left_out is not None:
            return without_one(adding(self.left_out, self.many + 1) @ columns).T
        total = np.zeros((columns.shape[1], self.many))
        for start in range(0, len(self.counts), CHUNK):
            k = slice(start, start + CHUNK)
            total += columns[k].T @ self.counts[k].astype(np.float64)
        return total


def adding(of: Ints, size: int) -> Any:
    """The sparse matrix that adds up what has the same number in `of`."""
    from scipy import sparse

    here = np.arange(len(of))
    return sparse.csr_array((np.ones(len(of)), (of, here)), (size, len(of)))
