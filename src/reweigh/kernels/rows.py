"""Of a log's rows: gradients by cell gathered over each episode, and marks that tell logs apart."""

from __future__ import annotations

import numpy as np

from reweigh.kernels import FOLD, HIDDEN, LARGE, MARKS, MIX, SPREAD, START, UNKNOWN
from reweigh.kernels.common import Array, compiled
from reweigh.kernels.vectors import prefetch

AHEAD = 24  # rows: how much earlier a cell is asked for
U1, U2, U3, U4 = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)


@compiled
def gather_cells(
    offsets: Array, state: Array, action: Array, ending: Array, rho: Array, reward: Array,
    states: int, actions: int, place: Array, derivatives: Array, start: Array, psi: Array,
) -> None:  # fmt: skip
    """Adds to psi (n,) what the rows of each episode add to a value (sums/gather.py).

    place        the cell of each key ((t·S + s)·A + a)·S + s', all codes counted from START, and
                 without the action where A is 0
    derivatives  by cell, of the count, Σρ, Σz and Σy; start: of the count of the first state; 0 at
                 the last one, which stands for keys that have none
    """
    horizon, none = len(offsets) - 1, len(start) - 1
    cells = np.empty(len(psi) + AHEAD, np.uint64)
    cells[:] = 0
    for t in range(horizon):
        low, high = offsets[t], offsets[t + 1]
        going = offsets[t + 2] - high if t + 1 < horizon else 0
        for k in range(high - low):
            after = state[high + k] if k < going else ending[k]
            after = UNKNOWN if after == HIDDEN else after
            key = np.int64(t) * states + state[low + k] - START
            if actions > 0:
                key = key * actions + action[low + k] + 1
            key = key * states + after - START
            cells[k] = place[np.uint64(key)] if key < len(place) else none
        for k in range(high - low):
            prefetch(derivatives, U4 * cells[k + AHEAD])
            r, y, at = rho[low + k], reward[low + k], U4 * cells[k]
            z = r * y
            psi[k] += (derivatives[at] + derivatives[at + U1] * r) + (
                derivatives[at + U2] * z + derivatives[at + U3] * y
            )
        if t == 0:
            for k in range(high - low):
                psi[k] += start[cells[k]]


@compiled
def fraction(x: float) -> float:
    return x - np.floor(x)  # type: ignore[no-any-return]


@compiled
def row_marks(offsets: Array, reward: Array, mu: Array) -> int:
    """Σ of the marks of time-major rows, of which 0 < μ ≤ 1 (log/steps.py has the equations)."""
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
