"""Sums that only diagnostics read: what came before a row, the log's order, the largest weights.

Each is a kind of its own in `Moments`, with a name and a version: a file that was written without
one lacks it, and the diagnostic that needs it says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.moments.groups import group_by

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
VERSIONS = {"lagged": 1, "ordered": 1, "largest": 1}
MOST_BUCKETS = 4096
UNORDERED = 63  # no ids of 64 bits need this shift
MOST_LAGGED = 500_000  # cells: a scan of any log then stays within half a GiB
GRAIN = 2.0**-34


@dataclass(frozen=True, eq=False)
class LaggedMoments:
    """The cells of `transitions` from step 1 on, split by what came before: for the history test.

    Keys: step t, the state and the action of step t-1, the state s, and s' (or END, UNKNOWN).
    n rows, rho Σρ, rho2 Σρ², z Σz, rhoz Σρz, z2 Σz² with z = ρy.
    """

    t: Ints
    s_before: Ints
    a_before: Ints
    s: Ints
    s_next: Ints
    n: Ints
    rho: Floats
    rho2: Floats
    z: Floats
    rhoz: Floats
    z2: Floats

    KEYS = ("t", "s_before", "a_before", "s", "s_next")
    SUMS = ("n", "rho", "rho2", "z", "rhoz", "z2")

    def __len__(self) -> int:
        return len(self.n)

    def __add__(self, other: LaggedMoments) -> LaggedMoments:
        return self.together([self, other])

    @classmethod
    def together(cls, parts: list[LaggedMoments]) -> LaggedMoments:
        """The sum of several, which have the same codes."""
        columns = {f.name: [getattr(part, f.name) for part in parts] for f in fields(cls)}
        return cls(**{name: np.concatenate(column) for name, column in columns.items()}).summed()

    def summed(self) -> LaggedMoments:
        """One cell per key."""
        groups = group_by([getattr(self, key) for key in self.KEYS])
        columns: dict[str, Any] = dict(zip(self.KEYS, groups.keys, strict=True))
        columns |= {name: groups.sum(getattr(self, name)) for name in self.SUMS}
        return LaggedMoments(**columns)

    def recode(self, states: Ints, actions: Ints | None) -> LaggedMoments:
        """The same cells with other codes (special codes stay)."""

        def moved(codes: Ints, table: Ints | None) -> Ints:
            if table is None or not len(table):
                return codes
            return np.where(codes >= 0, table[np.maximum(codes, 0)], codes)

        return replace(
            self,
            s_before=moved(self.s_before, states),
            a_before=moved(self.a_before, actions),
            s=moved(self.s, states),
            s_next=moved(self.s_next, states),
        )


def bounded(lagged: LaggedMoments) -> tuple[LaggedMoments | None, dict[str, str]]:
    """The cells of a log, and why they are left out where they are too many. Every engine leaves
    out the same, because the number of cells is the log's."""
    if len(lagged) <= MOST_LAGGED:
        return lagged, {}
    return None, {"lagged": too_many()}


def too_many() -> str:
    return f"there would be more than {MOST_LAGGED:,} cells of them; coarser states have fewer"


@dataclass(frozen=True, eq=False)
class OrderedMoments:
    """Episodes in the order of their ids, for the drift test: the logged returns by bucket. Also
    how much the returns spread.

    A bucket holds the ids i with i >> shift equal to it. `shift` is the smallest for which the
    ids span at most MOST_BUCKETS buckets: it follows from the least and the largest id alone, so
    that any engine, any chunking and any order of merging give the same buckets. Where an id is
    no whole number they have no order: one bucket, and `shift` is UNORDERED.
    n episodes, g ΣG, g2 ΣG² with G = Σ_t γ^t y_t.
    """

    shift: int
    bucket: Ints
    n: Ints
    g: Floats
    g2: Floats

    @classmethod
    def of(cls, ids: Ints | None, returns: Floats) -> OrderedMoments:
        """ids: None where one is no whole number."""
        shift, bucket = (0, ids) if ids is not None else (UNORDERED, np.zeros(len(returns), int))
        n = np.ones(len(returns), np.int64)
        return cls(shift, bucket, n, returns, returns * returns).summed()

    @property
    def has_order(self) -> bool:
        return self.shift != UNORDERED

    def __len__(self) -> int:
        return len(self.n)

    def __add__(self, other: OrderedMoments) -> OrderedMoments:
        shift = max(self.shift, other.shift)
        parts = [part.coarser(shift) for part in (self, other)]
        joined = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in ("bucket", "n", "g", "g2")
        }
        return OrderedMoments(shift, **joined).summed()

    def coarser(self, shift: int) -> OrderedMoments:
        """The same episodes in wider buckets; not yet one row per bucket."""
        bucket = self.bucket >> (shift - self.shift)
        return replace(self, shift=shift, bucket=0 * bucket if shift == UNORDERED else bucket)

    def summed(self) -> OrderedMoments:
        """One row per bucket, and no more buckets than there may be."""
        more = 0
        if len(self.bucket):
            low, high = int(self.bucket.min()), int(self.bucket.max())
            while (high >> more) - (low >> more) >= MOST_BUCKETS:
                more += 1
        wide = self.coarser(self.shift + more)
        groups = group_by([wide.bucket])
        [bucket] = groups.keys
        return replace(
            wide, bucket=bucket, n=groups.sum(self.n), g=groups.sum(self.g), g2=groups.sum(self.g2)
        )


@dataclass(frozen=True, eq=False)
class LargestWeights:
    """The largest whole products ρ_{0:H-1} of the episodes, as logarithms, falling.

    The list is complete above `floor` (-inf: it holds all positive ones); `n` episodes in all.
    """

    log_w: Floats
    floor: float
    n: int

    @classmethod
    def of(cls, log_w: Floats) -> LargestWeights:
        positive = np.sort(log_w[log_w > -np.inf])[::-1]
        return cls(positive, -math.inf, len(log_w)).trimmed()

    def __len__(self) -> int:
        return len(self.log_w)

    def __add__(self, other: LargestWeights) -> LargestWeights:
        floor = max(self.floor, other.floor)
        joined = np.sort(np.concatenate([self.log_w, other.log_w]))[::-1]
        return LargestWeights(joined[joined > floor], floor, self.n + other.n).trimmed()

    def trimmed(self) -> LargestWeights:
        """Not more than are ever used. Twice what a tail of n needs, so that parts of unequal
        weight can be put together without losing much of it."""
        most = self.kept(self.n)
        if len(self.log_w) <= most:
            return self
        # What equals the first one left out is left out too: the list is complete above it.
        floor = float(self.log_w[most])
        return replace(self, log_w=self.log_w[self.log_w > floor], floor=floor)

    @staticmethod
    def even(log_w: Floats) -> Floats:
        """In steps of 2^-34: products of the same ratios in another order, or by another engine,
        differ in their last digits, and equal weights must be equal to be taken for it."""
        return np.where(np.isfinite(log_w), np.round(log_w / GRAIN) * GRAIN, log_w)

    @staticmethod
    def kept(n: int) -> int:
        return max(200, math.ceil(6 * math.sqrt(n)))
