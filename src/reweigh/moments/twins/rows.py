"""Sums over the rows of a log: cells by a sort, and probabilities out of a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.moments.groups import group_by

Array = npt.NDArray[Any]


def count_cells(offsets: Array, key: Array, slot: Array) -> int:
    """See `reweigh.moments.kernels.rows.count_cells`."""
    return sum(len(np.unique(key[offsets[t] : offsets[t + 1]])) for t in range(len(offsets) - 1))


def sum_cells(
    offsets: Array,
    key: Array,
    slot: Array,
    rho: Array,
    y: Array,
    pi: Array,
    mu: Array,
    cell_t: Array,
    cell_key: Array,
    sums: Array,
) -> None:
    """See `reweigh.moments.kernels.rows.sum_cells`."""
    cells = 0
    for t in range(len(offsets) - 1):
        rows = slice(offsets[t], offsets[t + 1])
        groups = group_by([key[rows]])
        r, reward = rho[rows], y[rows]
        z = r * reward
        here = slice(cells, cells + len(groups))
        cell_t[here], cell_key[here] = t, groups.keys[0]
        squares = (r, r * r, z, r * z, z * z, reward, reward * reward, pi[rows], mu[rows])
        sums[here, 0] = groups.count()
        for j, values in enumerate(squares, 1):
            sums[here, j] = groups.sum(values)
        cells = here.stop


def look_up(offsets: Array, state: Array, action: Array, table: Array, found: Array) -> None:
    """See `reweigh.moments.kernels.rows.look_up`."""
    steps, states, actions = table.shape
    for t in range(len(offsets) - 1):
        rows = slice(offsets[t], offsets[t + 1])
        s = np.where(state[rows] < 0, states - 1, state[rows]).astype(np.int64)
        here = table[t if steps > 1 else 0].reshape(-1)
        # The places are all inside the table: "wrap" spares the check that copies.
        np.take(here, s * actions + action[rows], out=found[rows], mode="wrap")
