"""Probabilities of a log's rows, out of a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def look_up(offsets: Array, state: Array, action: Array, table: Array, found: Array) -> None:
    """See `reweigh.kernels.rows.look_up`."""
    steps, states, actions = table.shape
    for t in range(len(offsets) - 1):
        rows = slice(offsets[t], offsets[t + 1])
        s = np.where(state[rows] < 0, states - 1, state[rows]).astype(np.int64)
        here = table[t if steps > 1 else 0].reshape(-1)
        # The places are all inside the table: "wrap" spares the check that copies.
        np.take(here, s * actions + action[rows], out=found[rows], mode="wrap")
