"""Group-by on integer keys with NumPy: places are counted where few keys are possible; elsewhere
one sort, then sums over the runs.

Values may have a second axis, that of replicates: it stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
LARGEST_KEY = 2**62
SMALL_GROUPS = 8  # rows: below that, counting is faster than adding up runs
PLACES_PER_ROW = 4  # possible keys, up to which they are counted


@dataclass(frozen=True, eq=False)
class Groups:
    """Rows that share their keys. `keys[j]` holds key j of each group, in increasing order."""

    sorting: Ints | None  # (N,) rows sorted by group, None where they are as they stand
    starts: Ints  # (G,) first place of each group in that order
    size: int  # N
    keys: tuple[Ints, ...]
    counted: Ints | None = None  # (N,) group of each row, where nothing was sorted

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def order(self) -> Ints:
        """(N,) rows sorted by group, those of one group as they stood."""
        if self.counted is not None:
            return np.argsort(self.counted, kind="stable")
        return np.arange(self.size) if self.sorting is None else self.sorting

    def count(self) -> Ints:
        return self._counts

    @cached_property
    def _counts(self) -> Ints:
        ends = np.append(self.starts, self.size)
        return np.asarray(ends[1:] - ends[:-1])

    @cached_property
    def _sorted_index(self) -> Ints:
        return np.repeat(np.arange(len(self)), self._counts)

    def sum(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if len(self) == 0:
            return np.zeros(0, values.dtype)
        if values.ndim > 1:
            return tally(self.index(), values, len(self))
        if self.counted is not None:
            return tally(self.counted, values, len(self)).astype(values.dtype, copy=False)
        values = self._sorted(values)
        if len(self) == self.size:
            return values
        if values.dtype == np.float64 and SMALL_GROUPS * len(self) > self.size:
            return np.bincount(self._sorted_index, values)
        return np.add.reduceat(values, self.starts)

    def max(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if len(self) == 0:
            return np.zeros(0, values.dtype)
        return np.maximum.reduceat(self._sorted(values), self.starts)

    def index(self) -> Ints:
        """(N,) group of each row."""
        if self.counted is not None:
            return self.counted
        if self.sorting is None:
            return self._sorted_index
        index = np.empty(self.size, np.int64)
        index[self.sorting] = self._sorted_index
        return index

    def _sorted(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return values if self.sorting is None and self.counted is None else values[self.order]


def tally(index: npt.NDArray[Any], weights: npt.NDArray[Any], size: int = 0) -> Floats:
    """Sums of weights (N,) by index, as float64; of weights (N, m) those of every column."""
    if weights.ndim == 1:
        return np.asarray(np.bincount(index, weights, size), np.float64)
    from scipy import sparse

    size = max(size, int(index.max(initial=-1)) + 1)
    places = np.arange(len(index) + 1)
    adding = sparse.csc_array((np.ones(len(index)), index, places), (size, len(index)))
    return np.asarray(adding @ weights, np.float64)


def rowwise(of_rows: npt.NDArray[Any], like: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """(N,) numbers of rows as (N, 1) where they stand beside an array (N, m) of replicates."""
    return of_rows if like.ndim == 1 else of_rows[:, None]


def inner(a: Floats, b: Floats) -> float:
    """Σ a b. A BLAS would wake its threads for ten thousand numbers, and by how many there are the
    last digits would differ."""
    return float((a * b).sum())


def stable_order(codes: Ints, size: int) -> Ints:
    """(N,) the rows in the order of their codes (0 to size - 1), equal ones as they stood.

    Sorting whole numbers is several times faster than sorting their places, so the place goes into
    the low bits of the number where both fit.
    """
    bits = max(len(codes) - 1, 1).bit_length()
    if size > 2 ** (63 - bits):
        return np.argsort(codes, kind="stable")
    packed = codes << bits
    packed |= np.arange(len(codes))
    packed.sort()
    packed &= (1 << bits) - 1
    return packed


def group_by(keys: Sequence[npt.NDArray[Any]]) -> Groups:
    """Group rows by several integer keys, the first being the slowest. O(N log N), O(N) memory;
    O(N) where the rows stand in the order of their keys already, or few keys are possible."""
    columns = [np.asarray(key, np.int64) for key in keys]
    size = len(columns[0])
    if size == 0:
        return Groups(None, np.zeros(0, np.int64), 0, tuple(columns))
    lows = [int(column.min()) for column in columns]
    widths = [int(column.max()) - low + 1 for column, low in zip(columns, lows, strict=True)]
    places, order = math.prod(widths), None
    if places > LARGEST_KEY:  # no one number per row
        order = np.lexsort(columns[::-1])
        changed = np.zeros(size - 1, bool)
        for column in columns:
            changed |= column[order][1:] != column[order][:-1]
    else:
        joint = np.zeros(size, np.int64)
        for column, low, width in zip(columns, lows, widths, strict=True):
            if width > 1:
                joint *= width
                joint += column - low if low else column
        if not np.all(joint[1:] >= joint[:-1]):
            if places <= PLACES_PER_ROW * size:
                return _counted(joint, lows, widths)
            order = stable_order(joint, places)
            joint = joint[order]
        changed = joint[1:] != joint[:-1]
    starts = np.flatnonzero(np.concatenate([[True], changed]))
    first = starts if order is None else order[starts]
    return Groups(order, starts, size, tuple(column[first] for column in columns))


def _counted(joint: Ints, lows: list[int], widths: list[int]) -> Groups:
    """The groups of rows with these joint keys of few."""
    count = np.bincount(joint, minlength=math.prod(widths))
    rest = np.flatnonzero(count)
    number = np.zeros(len(count), np.int64)
    number[rest] = np.arange(len(rest))
    sizes, keys = count[rest], []
    for low, width in zip(reversed(lows), reversed(widths), strict=True):
        quotient = rest // width
        keys.append(rest - quotient * width + low)
        rest = quotient
    return Groups(None, np.cumsum(sizes) - sizes, len(joint), tuple(keys[::-1]), number[joint])
