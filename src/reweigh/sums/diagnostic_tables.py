"""Sums that only diagnostics read: the history of a row, the log's order, the largest weights.

Each is a separate kind in `Moments`, with a name and a version: a file written without one lacks
it, and the diagnostic that needs it reports that.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from reweigh.log.states import UNKNOWN, Labels, label_text
from reweigh.sums.keyed import KeyedTable, TransitionMoments, summed
from reweigh.sums.tables import BUILT_IN

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
VERSIONS = {"lagged": 2, "ordered": 1, "paced": 1, "largest": 1, "choices": 1}
EARLIER: dict[tuple[str, int], dict[str, Any]] = {("lagged", 1): {"level": 0}}  # what they lack
MOST_BUCKETS = 4096
MOST_PACED = 64  # buckets by step: enough to find the middle of a log
MOST_STEPS = 1 << 14  # and steps of them: a million cells, 24 MiB of sums
UNORDERED = 63  # no ids of 64 bits need this shift
MOST_LAGGED = 50_000  # cells: as many as rows in the sample of longer memories
GRAIN = 2.0**-34
BITS = 32  # of the hash of a (t, s)
WEYL = 0x9E3779B1  # its multiples modulo 2^32 lie everywhere


@dataclass(frozen=True, eq=False)
class LaggedMoments(KeyedTable):
    """The cells of `transitions` from step 1 on, split by history: for the history test.

    Keys: step t, the state s, the state and the action of step t-1, and s' (or END, UNKNOWN).
    n rows, rho Σρ, rho2 Σρ², z Σz, rhoz Σρz, z2 Σz² with z = ρy.
    level: of the (t, s) one in 2^level is held, with all its rows (see `thinned`).
    """

    TABLE = BUILT_IN["lagged"]

    t: Ints
    s: Ints
    s_before: Ints
    a_before: Ints
    s_next: Ints
    n: Ints
    rho: Floats
    rho2: Floats
    z: Floats
    rhoz: Floats
    z2: Floats
    level: int = 0

    @classmethod
    def together(cls, parts: Sequence[Self]) -> Self:
        """The sum of several, which have the same codes; of one level once it is `thinned`."""
        return replace(super().together(parts), level=min(part.level for part in parts))


def label_hashes(labels: Labels) -> npt.NDArray[np.uint64]:
    """(S,) of each state: the first 8 hex digits of the MD5 of its text, as of a block's id."""
    texts = [label_text(value) for value in labels.values]
    joined = ["\0".join(text) if isinstance(text, tuple) else text or "" for text in texts]
    hashes = [hashlib.md5(text.encode("utf-8", "surrogatepass")) for text in joined]
    return np.array([int(made.hexdigest()[:8], 16) for made in hashes], np.uint64)


def thinned(lagged: LaggedMoments, states: Labels, level: int = 0) -> LaggedMoments:
    """At most MOST_LAGGED cells: those of one (t, s) in 2^level, with the least level that does.

    (t, s) is held if (h(s) + t·WEYL) mod 2^32 < 2^(32 - level), h being its state's hash. Every
    engine then holds the same (t, s), merged sums hold those of the whole log, and a test within
    (t, s) is as sharp at those that are held as if all were.
    """
    level = max(level, lagged.level)
    if level == lagged.level and len(lagged) <= MOST_LAGGED:
        return lagged
    place = places_of(states, lagged.s, lagged.t)
    while np.count_nonzero(place < 2 ** (BITS - level)) > MOST_LAGGED:
        level += 1
    return replace(lagged.select(place < 2 ** (BITS - level)), level=level)


def places_of(states: Labels, s: Ints, t: Ints) -> Ints:
    """(h(s) + t·WEYL) mod 2^32, by which (t, s) are held."""
    return np.asarray((label_hashes(states).astype(np.int64)[s] + t * WEYL) % 2**BITS)


def choices_of(model: TransitionMoments) -> TransitionMoments:
    """The cells of `model` by (block, t, s, a) alone, wherever they led: what tests of the
    policies read, where there are too many cells for all of them to be held."""
    nowhere = np.full(len(model), UNKNOWN)
    return summed(replace(model, t_next=model.t + 1, s_next=nowhere))


@dataclass(frozen=True, eq=False)
class Buckets(KeyedTable):
    """Sums of episodes in the order of their ids, by bucket.

    A bucket holds the ids i with i >> shift equal to it. `shift` is the smallest for which the
    ids span at most MOST buckets: it follows from the least and the largest id alone, so that any
    engine, any chunking and any order of merging give the same buckets.
    """

    MOST: ClassVar[int]

    shift: int
    bucket: Ints
    n: Ints

    @classmethod
    def together(cls, parts: Sequence[Self]) -> Self:
        """The sum of several."""
        shift = max(part.shift for part in parts)
        return super().together([part.coarser(shift) for part in parts])

    @classmethod
    def shift_of(cls, low: int, high: int) -> int:
        """That of ids from low to high, or how much more that of buckets from low to high is."""
        shift = 0
        while (high >> shift) - (low >> shift) >= cls.MOST:
            shift += 1
        return shift

    def coarser(self, shift: int) -> Self:
        """The same episodes in wider buckets; not yet one row per bucket."""
        bucket = self.bucket >> (shift - self.shift)
        bucket = 0 * bucket if shift == UNORDERED else bucket
        return replace(self, shift=shift, bucket=bucket)

    def summed(self) -> Self:
        """One row per key, and no more buckets than there may be."""
        more = 0
        if len(self.bucket):
            more = self.shift_of(int(self.bucket.min()), int(self.bucket.max()))
        wide = self.coarser(self.shift + more)
        return super(Buckets, wide).summed()


@dataclass(frozen=True, eq=False)
class OrderedMoments(Buckets):
    """The logged returns by bucket of ids, for the drift test. Also how much the returns spread.

    If an id is not a whole number they have no order: one bucket, and `shift` is UNORDERED.
    n episodes, g ΣG, g2 ΣG² with G = Σ_t γ^t y_t.
    """

    g: Floats
    g2: Floats

    TABLE = BUILT_IN["ordered"]
    MOST = MOST_BUCKETS

    @classmethod
    def of(cls, ids: Ints | None, returns: Floats) -> OrderedMoments:
        """ids: None if one is not a whole number."""
        shift, bucket = (0, ids) if ids is not None else (UNORDERED, np.zeros(len(returns), int))
        n = np.ones(len(returns), np.int64)
        with np.errstate(over="ignore"):
            squares = returns * returns
        return cls(shift, bucket, n, returns, squares).summed()

    @property
    def has_order(self) -> bool:
        return self.shift != UNORDERED

    @property
    def variance(self) -> float:
        """Of a return; infinite or nan where squares exceed what a number can hold."""
        with np.errstate(over="ignore"):
            n, g, g2 = int(self.n.sum()), float(self.g.sum()), float(self.g2.sum())
        return g2 / n - (g / n) * (g / n)


@dataclass(frozen=True, eq=False)
class PacedMoments(Buckets):
    """The logged rewards by bucket of ids and step: at which steps a log drifts.

    Its buckets are wider than those of returns: that bounds the memory of a long horizon. An
    episode that is over has no rows, and earns 0; every one has a row at step 0. None if an episode
    was cut off, or an id is not a whole number. n rows, y Σy, y2 Σy²; (bucket, t) without rows are
    left out.
    """

    t: Ints
    y: Floats
    y2: Floats

    TABLE = BUILT_IN["paced"]
    MOST = MOST_PACED

    @classmethod
    def dense(cls, shift: int, bucket: Ints, n: Ints, y: Floats, y2: Floats) -> PacedMoments:
        """From arrays over (bucket, t), flat, of buckets that rise."""
        cells = np.flatnonzero(n)
        row, t = np.divmod(cells, max(len(n) // max(len(bucket), 1), 1))
        return cls(shift, bucket[row], n[cells], t, y[cells], y2[cells])


def too_long(horizon: int) -> dict[str, str]:
    """Why the rewards of a log have no table by step; empty if they have one."""
    if horizon <= MOST_STEPS:
        return {}
    return {"paced": f"the log has more than {MOST_STEPS:,} steps"}


@dataclass(frozen=True, eq=False)
class LargestWeights:
    """The largest whole products ρ_{0:H-1} of the episodes, as logarithms, falling.

    The list is complete above `floor` (-inf: it holds all positive ones); `n` episodes in all.
    """

    log_w: Floats
    floor: float
    n: int

    keys: ClassVar[tuple[str, ...]] = ()

    def arrays(self) -> dict[str, Any]:
        return {"log_w": self.log_w}

    @classmethod
    def of(cls, log_w: Floats) -> LargestWeights:
        positive = np.sort(log_w[log_w > -np.inf])[::-1]
        return cls(positive, -math.inf, len(log_w)).trimmed()

    def __len__(self) -> int:
        return len(self.log_w)

    def __add__(self, other: LargestWeights) -> LargestWeights:
        return self.together([self, other])

    @classmethod
    def together(cls, parts: Sequence[LargestWeights]) -> LargestWeights:
        """The largest of several."""
        total = parts[0]
        for part in parts[1:]:
            floor = max(total.floor, part.floor)
            joined = np.sort(np.concatenate([total.log_w, part.log_w]))[::-1]
            total = cls(joined[joined > floor], floor, total.n + part.n).trimmed()
        return total

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
        differ in their last digits, and equal weights must compare equal."""
        return np.where(np.isfinite(log_w), np.round(log_w / GRAIN) * GRAIN, log_w)

    @staticmethod
    def kept(n: int) -> int:
        return max(200, math.ceil(6 * math.sqrt(n)))
