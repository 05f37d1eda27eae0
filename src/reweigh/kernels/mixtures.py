"""Sums by cell of a log without one block of its episodes."""

from __future__ import annotations

import numpy as np

from reweigh.kernels.common import Array, compiled


@compiled
def left_out(starts: Array, block: Array, weights: Array, found: Array) -> None:
    """found (K, m): the weights of each cell's rows, starts[c] to starts[c + 1], added up without
    those of block b. From both sides, since subtracting the one would leave nothing but noise where
    it is nearly all. Rows of the block m are never left out."""
    m = found.shape[1]
    parts = np.zeros(m + 1)
    for c in range(len(found)):
        low, high = starts[c], starts[c + 1]
        line = found[c]
        if high - low == 1:  # most cells: all but the row's own block have it
            line[:] = weights[low]
            if block[low] < m:
                line[block[low]] = 0.0
            continue
        for k in range(low, high):
            parts[block[k]] += weights[k]
        before, after = 0.0, parts[m]
        for b in range(m):
            line[b] = before
            before += parts[b]
        for b in range(m - 1, -1, -1):
            line[b] += after
            after += parts[b]
        for k in range(low, high):
            parts[block[k]] = 0.0
