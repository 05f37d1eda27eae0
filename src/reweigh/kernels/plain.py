"""In NumPy, for few rows: the draws of the Poisson bootstrap, and probabilities out of a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
GOLDEN, FIRST, SECOND = (
    np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


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
