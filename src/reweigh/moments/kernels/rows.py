"""Sums over the rows of a log: cells without a sort, and probabilities out of a table."""

from __future__ import annotations

import numpy as np

from reweigh.moments.kernels.common import Array, compiled


@compiled
def count_cells(offsets: Array, key: Array, slot: Array) -> int:
    """How many different (t, key) there are; slot, one place per key, holds -1 before."""
    cells = 0
    for t in range(len(offsets) - 1):
        first = cells
        for k in range(offsets[t], offsets[t + 1]):
            if slot[key[k]] < first:
                slot[key[k]] = cells
                cells += 1
    return cells


@compiled
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
    """Fills step and key of the cells, in their order, and sums (C, 10): n, Σρ, Σρ², Σz, Σρz, Σz²,
    Σy, Σy², Σπ, Σμ with z = ρy. slot holds -1 before."""
    cells = 0
    for t in range(len(offsets) - 1):
        first, low, high = cells, offsets[t], offsets[t + 1]
        for k in range(low, high):
            if slot[key[k]] < first:
                slot[key[k]] = first
                cell_key[cells] = key[k]
                cells += 1
        if len(slot) < 8 * (cells - first):  # many of the keys: meeting all of them in order
            cells = first
            for place in range(len(slot)):
                if slot[place] >= first:
                    cell_key[cells] = place
                    cells += 1
        else:
            cell_key[first:cells].sort()
        for c in range(first, cells):
            slot[cell_key[c]] = c
            cell_t[c] = t
        for k in range(low, high):
            r, reward = rho[k], y[k]
            z, row = r * reward, sums[slot[key[k]]]
            row[0] += 1.0
            row[1] += r
            row[2] += r * r
            row[3] += z
            row[4] += r * z
            row[5] += z * z
            row[6] += reward
            row[7] += reward * reward
            row[8] += pi[k]
            row[9] += mu[k]


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
