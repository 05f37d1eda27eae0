"""Sums by cell of a log without one block of its episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.kernels.groups import tally

Array = npt.NDArray[Any]


def left_out(starts: Array, block: Array, weights: Array, found: Array) -> None:
    """See `reweigh.kernels.mixtures.left_out`."""
    cells, m = found.shape
    cell = np.repeat(np.arange(cells), np.diff(starts))
    parts = tally(block * cells + cell, weights, (m + 1) * cells).reshape(m + 1, cells)
    found[:] = without_one(parts).T


def without_one(parts: Array) -> Array:
    """(m, k) what all of the parts (m + 1, k) but one add up to, for each but the last: from both
    sides, since subtracting the one would leave nothing but noise where it is nearly all."""
    found = np.empty_like(parts[:-1])
    before, after = np.zeros_like(parts[0]), parts[-1].copy()
    for part, all_but in zip(parts, found, strict=False):
        all_but[:] = before
        before += part
    for part, all_but in zip(parts[-2::-1], found[::-1], strict=True):
        all_but += after
        after += part
    return found
