"""The (t, s) that occur, out of arrays over all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.logs.states import END
from reweigh.moments.twins.backward import SEEN_ENOUGH

Array = npt.NDArray[Any]


def count(visits: Array, reached: Array) -> int:
    """See `reweigh.moments.kernels.nodes.count`."""
    return int(np.count_nonzero((visits > 0) | (reached > 0)))


def collect(
    d: Array,
    visits: Array,
    variance: Array,
    reached: Array,
    n_episodes: int,
    node_t: Array,
    node_s: Array,
    columns: Array,
) -> tuple[float, float, float]:
    """See `reweigh.moments.kernels.nodes.collect`."""
    node_t, node_s, columns = node_t[:-1], node_s[:-1], columns[:, :-1]
    occurs = np.roll((visits > 0) | (reached > 0), 1, axis=1)  # END's code is below all states'
    node_t[:], column = np.divmod(np.flatnonzero(occurs), d.shape[1])
    node_s[:] = np.where(column == 0, END, column - 1)
    at = (node_t, column - 1)
    seen = visits.sum(axis=1)
    columns[0], columns[2], columns[3] = d[at], visits[at], variance[at]
    columns[1] = columns[2] / np.where(seen > 0, seen, n_episodes)[node_t]
    rare = (columns[2] < SEEN_ENOUGH) & (node_t + 1 < len(d))
    some = columns[2] > 1
    left = columns[2][some] - 1
    C = columns[3][some] * columns[2][some] / left
    return float(columns[0][rare].sum()), float(C.sum()), float(np.sum(C * C / left))
