"""Of a log's rows: probabilities out of a table, and the marks that tell logs apart."""

from __future__ import annotations

import numpy as np

from reweigh.kernels.codes import FOLD, LARGE, MARKS, MIX, SPREAD
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


@compiled
def fraction(x: float) -> float:
    return x - np.floor(x)  # type: ignore[no-any-return]


@compiled
def row_marks(offsets: Array, reward: Array, mu: Array) -> int:
    """Σ of the marks of time-major rows, of which 0 < μ ≤ 1 (log/identity.py has the equations)."""
    total = np.int64(0)
    for t in range(len(offsets) - 1):
        for k in range(offsets[t], offsets[t + 1]):
            y = reward[k] if abs(reward[k]) < LARGE else reward[k] * FOLD
            y = y if abs(y) < LARGE else y * FOLD
            of_reward = fraction((y if abs(y) < LARGE else 0.0) * SPREAD)
            of_mu = fraction(mu[k] * SPREAD)
            d = fraction((of_reward + 1.0) * (of_mu + (float(t) + 2.0)) * SPREAD)
            # by way of 32 bits, which processors convert several at a time
            total += np.int64(np.int32(fraction(d * d * MIX) * MARKS))
    return int(total)
