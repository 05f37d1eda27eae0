"""Probabilities of a log's rows, out of a table."""

from __future__ import annotations

import numpy as np

from reweigh.kernels.common import Array, compiled


@compiled
def look_up(offsets: Array, state: Array, action: Array, table: Array, found: Array) -> None:
    """found = table[t, state, action] of the rows; table (1, S, A) is the same at every step. The
    last of the states is the hidden one."""
    steps, states, actions = table.shape
    flat = table.reshape(-1)
    for t in range(len(offsets) - 1):
        base = (t if steps > 1 else 0) * states
        for k in range(offsets[t], offsets[t + 1]):
            s = state[k] if state[k] >= 0 else states - 1
            found[k] = flat[np.uint64((base + s) * actions + action[k])]
