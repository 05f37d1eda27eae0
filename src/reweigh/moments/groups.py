"""Group-by on integer keys with NumPy: one sort, then sums over the runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
LARGEST_KEY = 2**62


@dataclass(frozen=True, eq=False)
class Groups:
    """Rows that share their keys. `keys[j]` holds key j of each group, in increasing order."""

    order: Ints  # (N,) rows sorted by group
    starts: Ints  # (G,) first place of each group in `order`
    keys: tuple[Ints, ...]

    def __len__(self) -> int:
        return len(self.starts)

    def count(self) -> Ints:
        return np.diff(np.append(self.starts, len(self.order)))

    def sum(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if len(self.starts) == 0:
            return np.zeros(0, values.dtype)
        return np.add.reduceat(values[self.order], self.starts)

    def max(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if len(self.starts) == 0:
            return np.zeros(0, values.dtype)
        return np.maximum.reduceat(values[self.order], self.starts)

    def index(self) -> Ints:
        """(N,) group of each row."""
        index = np.empty(len(self.order), np.int64)
        index[self.order] = np.repeat(np.arange(len(self)), self.count())
        return index


def tally(index: npt.NDArray[Any], weights: npt.NDArray[Any], size: int = 0) -> Floats:
    """Sums of weights by index, as float64."""
    return np.asarray(np.bincount(index, weights, size), np.float64)


def group_by(keys: Sequence[npt.NDArray[Any]]) -> Groups:
    """Group rows by several integer keys, the first being the slowest. O(N log N), O(N) memory."""
    columns = [np.asarray(key, np.int64) for key in keys]
    if len(columns[0]) == 0:
        return Groups(np.zeros(0, np.int64), np.zeros(0, np.int64), tuple(columns))
    joint = _joint_key(columns)
    if joint is not None:
        order = np.argsort(joint, kind="stable")
        changed = joint[order][1:] != joint[order][:-1]
    else:
        order = np.lexsort(columns[::-1])
        changed = np.zeros(len(order) - 1, bool)
        for column in columns:
            changed |= column[order][1:] != column[order][:-1]
    starts = np.flatnonzero(np.concatenate([[True], changed]))
    return Groups(order, starts, tuple(column[order][starts] for column in columns))


def _joint_key(columns: list[Ints]) -> Ints | None:
    """One integer per row in the order of the keys, None where it would not fit."""
    size = 1
    joint = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        low, high = int(column.min()), int(column.max())
        size *= high - low + 1
        if size > LARGEST_KEY:
            return None
        joint = joint * (high - low + 1) + (column - low)
    return joint
