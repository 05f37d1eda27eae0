"""What the twins share: the rows of a log as the kernels are given them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.kernels.codes import END

Array = npt.NDArray[Any]
CHUNK = 1 << 13  # rows: pieces of 64 KiB, which a system hands out again without clearing them
BLOCK = 1 << 15  # rows of steps that are taken together: of few rows, calls cost more than they do


@dataclass(frozen=True, eq=False)
class Rows:
    """The first arguments of the recursions, see `reweigh.kernels.forward.forward`, and the
    steps that they are run over: reward, and rho by row, are those of the steps from `since` on."""

    offsets: Array
    code: Array
    bits: int
    ending: Array
    rho: Array
    by_code: bool
    reward: Array
    since: int
    until: int

    @cached_property
    def bounds(self) -> list[int]:
        """The offsets: a number at a time, lists are faster than arrays."""
        found: list[int] = self.offsets.tolist()
        return found

    @property
    def horizon(self) -> int:
        return len(self.offsets) - 1

    def at(self, t: int) -> int:
        """How many rows step t has."""
        return self.bounds[t + 1] - self.bounds[t] if t < self.horizon else 0

    def alike(self, t: int) -> int:
        """How many steps from t on, of up to BLOCK rows or one, have as many rows, all of which
        another row follows."""
        m, k = self.at(t), 0
        while t + k < self.until and t + k + 1 < self.horizon and self.at(t + k + 1) == m:
            k += 1
            if (k + 1) * m > BLOCK:
                break
        return k

    def alike_before(self, t: int) -> int:
        """How many steps before t, of up to BLOCK rows, have as many rows as t."""
        m, k = self.at(t), 0
        while k < t - self.since and self.at(t - k - 1) == m and (k + 1) * m <= BLOCK:
            k += 1
        return k

    def chunks(self, t: int) -> Iterator[slice]:
        """The rows of step t in pieces that stay in a processor's cache."""
        low, high = self.bounds[t], self.bounds[t + 1]
        for start in range(low, high, CHUNK):
            yield slice(start, min(start + CHUNK, high))

    def ratios(self, rows: slice) -> Array:
        return self.rho.take(self.code[rows]) if self.by_code else self.rho[self._held(rows)]

    def rewards(self, rows: slice) -> Array:
        return self.reward[self._held(rows)]

    def _held(self, rows: slice) -> slice:
        before = self.bounds[self.since]
        return slice(rows.start - before, rows.stop - before)

    def columns(self, rows: slice) -> Array:
        """The states of these rows, as places in an array."""
        code = self.code[rows]
        return np.asarray(code >> code.dtype.type(self.bits) if self.bits else code, np.intp)

    def lines(self, steps: slice) -> tuple[Array, Array, Array]:
        """Of k steps with m rows each: (k + 1, m) the states of the rows, and of what follows them;
        (k, m) ratios and rewards."""
        k, m, low = steps.stop - steps.start, self.at(steps.start), self.bounds[steps.start]
        own = slice(low, low + k * m)
        columns = self.columns(slice(low, own.stop + m)).reshape(k + 1, m)
        return columns, self.ratios(own).reshape(k, m), self.rewards(own).reshape(k, m)

    def after(self, t: int, rows: slice, end: int) -> Array:
        """The column of what follows these rows of step t, -1 where that is not known."""
        low, high, going = self.bounds[t], self.bounds[t + 1], self.at(t + 1)
        first, stop = rows.start - low, rows.stop - low
        after = self.columns(slice(high + first, high + max(first, min(stop, going))))
        if stop <= going:
            return after
        last = self.ending[max(first, going) : stop]
        last = np.where(last == END, end, np.where(last < 0, -1, last))
        return np.concatenate([after, last]) if first < going else last


def by_line(columns: Array, width: int) -> Array:
    """Columns (k, m) as places in arrays (k, width)."""
    return columns + width * np.arange(len(columns))[:, None] if len(columns) > 1 else columns


def inverse(values: Array) -> Array:
    """1/x, and 0 where x is 0."""
    return np.where(values > 0, 1.0 / np.where(values > 0, values, 1.0), 0.0)
