"""The (t, s) that occur, out of arrays over all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.kernels.twins.backward import SEEN_ENOUGH
from reweigh.log.states import END

Array = npt.NDArray[Any]
ROUNDING = 1e-9  # as in estimate/weakest_places.py


def count(visits: Array, reached: Array) -> int:
    """See `reweigh.kernels.nodes.count`."""
    return int(np.count_nonzero((visits > 0) | (reached > 0)))


def seldom(d: Array, visits: Array, variance: Array, rare: Array, at: Array) -> tuple[float, float]:
    """See `reweigh.kernels.nodes.seldom`."""
    d, N = d[:-1], visits[:-1]
    mass = np.where(N < SEEN_ENOUGH, d, 0.0)
    rare[:] = mass.sum(axis=1)
    if mass[:, :-1].any():
        mass[:, -1] = 0.0
    enough = mass.max() * (1 - ROUNDING)
    at[:] = np.unravel_index(np.argmax(mass >= enough), mass.shape) if enough > 0 else -1
    some = N > 1
    left = N[some] - 1
    C = variance[: len(d)][some] * N[some] / left
    return float(C.sum()), float(np.sum(C * C / left))


def collect(
    d: Array,
    visits: Array,
    variance: Array,
    reached: Array,
    n_episodes: int,
    node_t: Array,
    node_s: Array,
    columns: Array,
) -> None:
    """See `reweigh.kernels.nodes.collect`."""
    node_t, node_s, columns = node_t[:-1], node_s[:-1], columns[:, :-1]
    occurs = np.roll((visits > 0) | (reached > 0), 1, axis=1)  # END's code is below all states'
    node_t[:], column = np.divmod(np.flatnonzero(occurs), d.shape[1])
    node_s[:] = np.where(column == 0, END, column - 1)
    at = (node_t, column - 1)
    seen = visits.sum(axis=1)
    columns[0], columns[2], columns[3] = d[at], visits[at], variance[at]
    columns[1] = columns[2] / np.where(seen > 0, seen, n_episodes)[node_t]
