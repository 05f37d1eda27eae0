"""The compiled kernels, which of them does the work over rows, and the same in NumPy for few rows.

Every module of this package imports Numba, which takes about 0.7 s to import and to load its
compiled kernels, once per process. Below COMPILED_FROM rows it would be loaded in vain more often
than not: `pick` and `kernel` import a module when a log is large enough.

Rows are time-major, the longest episodes first (`log/steps.py`), so row k of step t + 1 is what
follows row k of step t, and work vectors hold one step: O(S) memory beside the results. A state's
column is its code, and END's is the last, `width - 1`. Every sum is a float64 and is taken in the
order of the rows; nothing depends on threads.

Group-by on integer keys is NumPy's for any size: places are counted where few keys are possible;
elsewhere one sort, then sums over the runs. Values may have a second axis, that of replicates: it
stays.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.errors import ReweighWarning

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
LARGE_LOG, ADVISED_FROM = 100_000, 1_000_000  # rows
HAS_NUMBA = importlib.util.find_spec("numba") is not None  # an optional package
COMPILED_FROM = LARGE_LOG if HAS_NUMBA else sys.maxsize  # rows; without Numba NumPy does the work
LARGEST_KEY = 2**62
SMALL_GROUPS = 8  # rows: below that, counting is faster than adding up runs
PLACES_PER_ROW = 4  # possible keys, up to which they are counted

# Codes that are not states of a log: END absorbs (reward 0, ratio 1); UNKNOWN is a next state that
# was not logged; START is a hidden first state.
HIDDEN, END, UNKNOWN, START = -1, -2, -3, -4

# Of the marks that identify logs (log/steps.py).
SPREAD = 316.4334022399462  # 2^9 / golden ratio: fractions of its multiples lie everywhere
MIX = 648055.6077874098  # 2^20 / golden ratio
MARKS = 2.0**24  # values of a mark: 2^39 rows add up to less than 2^63
LARGE, FOLD = 2.0**20, 2.0**-30
GOLDEN, FIRST, SECOND = (
    np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


@contextmanager
def compiled(rows: int = 0) -> Iterator[None]:
    """Inside, compiled kernels are used from so many rows on: for work on many small logs."""
    global COMPILED_FROM
    before, COMPILED_FROM = COMPILED_FROM, rows if HAS_NUMBA else sys.maxsize
    try:
        yield
    finally:
        COMPILED_FROM = before


def pick(name: str, size: int, plain: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled function `module.function`, or this one in NumPy for few rows."""
    return kernel(name) if size >= COMPILED_FROM else plain


def advise_numba(rows: int) -> None:
    """Warn where a log is so large that Numba, which is not installed, would save time."""
    if rows >= ADVISED_FROM and not HAS_NUMBA:
        warnings.warn(
            f"a log of {rows:,} rows is read faster, and in less memory, with Numba: "
            "pip install 'reweigh[fast]'",
            ReweighWarning,
            stacklevel=2,
        )


@cache
def kernel(name: str) -> Callable[..., Any]:
    """The compiled function `module.function`."""
    module, _, function = name.rpartition(".")
    found: Callable[..., Any]
    found = getattr(importlib.import_module(f"reweigh.kernels.{module}"), function)
    return found


def draw(seed: int, block: int, thresholds: Array, counts: Array) -> None:
    """See `reweigh.kernels.resample.draw`: the same draws, to the bit."""
    width = counts.shape[1]
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64
        key = _mixed(np.array([seed], np.uint64) + GOLDEN)
        key = _mixed(key + np.arange(len(counts), dtype=np.uint64))
        replicate = np.arange(block * width, (block + 1) * width, dtype=np.uint64)
        x = _mixed(key[:, None] + replicate[None, :] * GOLDEN)
    counts[:] = np.searchsorted(thresholds, x, side="right")


def _mixed(x: Array) -> Array:
    x = (x ^ (x >> np.uint64(30))) * FIRST
    x = (x ^ (x >> np.uint64(27))) * SECOND
    return np.asarray(x ^ (x >> np.uint64(31)))


def look_up(offsets: Array, state: Array, action: Array, table: Array, found: Array) -> None:
    """found = table[t, state, action] of the rows; table (1, S, A) is the same at every step. The
    last of the states is the hidden one."""
    steps, states, actions = table.shape
    for t in range(len(offsets) - 1):
        rows = slice(offsets[t], offsets[t + 1])
        s = np.where(state[rows] < 0, states - 1, state[rows]).astype(np.int64)
        here = table[t if steps > 1 else 0].reshape(-1)
        # The places are all inside the table: "wrap" spares the check that copies.
        np.take(here, s * actions + action[rows], out=found[rows], mode="wrap")


@dataclass(frozen=True, eq=False)
class Groups:
    """Rows that share their keys. `keys[j]` holds key j of each group, in increasing order."""

    sorting: Ints | None  # (N,) rows sorted by group, None if already sorted
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
        if SMALL_GROUPS * len(self) > self.size:
            return tally(self._sorted_index, values).astype(values.dtype, copy=False)
        return np.add.reduceat(values, self.starts)

    def max(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if len(self) == 0:
            return np.zeros(0, values.dtype)
        if self.counted is not None:
            largest = np.empty(len(self), values.dtype)
            largest[self.counted] = values  # any of the group
            np.maximum.at(largest, self.counted, values)
            return largest
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
    if weights.shape[1] == 1:  # the same additions in the same order, without a matrix
        return np.asarray(np.bincount(index, weights[:, 0], size), np.float64)[:, None]
    from scipy import sparse

    size = max(size, int(index.max(initial=-1)) + 1)
    places = np.arange(len(index) + 1)
    adding = sparse.csc_array((np.ones(len(index)), index, places), (size, len(index)))
    return np.asarray(adding @ weights, np.float64)


def rowwise(of_rows: npt.NDArray[Any], like: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """(N,) counts of rows as (N, 1) for use with an array (N, m) of replicates."""
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
    O(N) where the rows are in the order of their keys already, or few keys are possible."""
    columns = [np.asarray(key, np.int64) for key in keys]
    size = len(columns[0])
    if size == 0:
        return Groups(None, np.zeros(0, np.int64), 0, tuple(columns))
    lows = [int(column.min()) for column in columns]
    widths = [int(column.max()) - low + 1 for column, low in zip(columns, lows, strict=True)]
    places, order = math.prod(widths), None
    if places == 1:
        return Groups(None, np.zeros(1, np.int64), size, tuple(column[:1] for column in columns))
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
    if order is None and changed.all():  # every row is a group, already in place
        return Groups(None, np.arange(size), size, tuple(columns))
    starts = np.flatnonzero(np.concatenate([[True], changed]))
    first = starts if order is None else order[starts]
    return Groups(order, starts, size, tuple(column[first] for column in columns))


def _counted(joint: Ints, lows: list[int], widths: list[int]) -> Groups:
    """The groups of rows with these joint keys of few."""
    count = np.bincount(joint, minlength=math.prod(widths))
    rest = np.flatnonzero(count > 0)
    number = np.zeros(len(count), np.int64)
    number[rest] = np.arange(len(rest))
    sizes, keys = count[rest], []
    for low, width in zip(reversed(lows), reversed(widths), strict=True):
        quotient = rest // width
        keys.append(rest - quotient * width + low)
        rest = quotient
    return Groups(None, np.cumsum(sizes) - sizes, len(joint), tuple(keys[::-1]), number[joint])
