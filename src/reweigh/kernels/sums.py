"""Sums by key within the steps of a log: cells without a sort of the whole log.

The rows of a step stand together, so that only they are brought into the order of their keys, by
digits (a radix sort, which keeps equal keys in the order of the rows). A cell's sums are then taken
one after the other, in the order of its rows, whatever stands around them.
"""

from __future__ import annotations

import numpy as np

from reweigh.kernels.codes import HIDDEN, START, UNKNOWN
from reweigh.kernels.common import Array, compiled

CHUNK = 1 << 13  # rows: short steps are sorted together
DIGIT = 11  # bits


@compiled
def order_rows(
    offsets: Array, key: Array, places: int, blocks: int, order: Array, counts: Array
) -> None:
    """Fills order (N,), the rows of each step (counted from its first) by key, and counts (B, H),
    the different keys by block and step. Keys are below places·blocks; the block comes first."""
    horizon = len(offsets) - 1
    room = CHUNK
    for t in range(horizon):
        room = max(room, offsets[t + 1] - offsets[t])
    code, other = np.empty(room, np.uint64), np.empty(room, np.uint64)
    row, moved = np.empty(room, np.int32), np.empty(room, np.int32)
    size = np.uint64(places * blocks)
    most = max((1 << 62) // (places * blocks), 1)  # steps whose keys fit into one number
    start = 0
    while start < horizon:
        stop, low = start + 1, offsets[start]
        while stop < min(horizon, start + most) and offsets[stop + 1] - low <= CHUNK:
            stop += 1
        rows = offsets[stop] - low
        for t in range(start, stop):
            base = np.uint64(t - start) * size
            for k in range(offsets[t], offsets[t + 1]):
                code[k - low] = base + np.uint64(key[k])
                row[k - low] = k - offsets[t]
        code, other, row, moved = _sort(
            rows, code, other, row, moved, np.uint64(stop - start) * size
        )
        order[low : low + rows] = row[:rows]
        for t in range(start, stop):
            for k in range(offsets[t] - low, offsets[t + 1] - low):
                if k == offsets[t] - low or code[k] != code[k - 1]:
                    b = (code[k] - np.uint64(t - start) * size) // np.uint64(places)
                    counts[b if blocks > 1 else np.uint64(0), t] += 1
        start = stop


@compiled
def _sort(
    rows: int, code: Array, other: Array, row: Array, moved: Array, size: np.uint64
) -> tuple[Array, Array, Array, Array]:
    """The first rows of `code` (all below size) in their order, and `row` with them; the arrays
    change places."""
    bits = 0
    while bits < 64 and (size - np.uint64(1)) >> np.uint64(bits) > 0:
        bits += 1
    passes = (bits + DIGIT - 1) // DIGIT
    digit = (bits + passes - 1) // passes if passes > 0 else 0
    mask = np.uint64((1 << digit) - 1)
    count = np.empty(1 << digit, np.int64)
    for p in range(passes):
        shift = np.uint64(p * digit)
        count[:] = 0
        for k in range(rows):
            count[(code[k] >> shift) & mask] += 1
        place = 0
        for j in range(len(count)):
            count[j], place = place, place + count[j]
        for k in range(rows):
            j = (code[k] >> shift) & mask
            other[count[j]] = code[k]
            moved[count[j]] = row[k]
            count[j] += 1
        code, other, row, moved = other, code, moved, row
    return code, other, row, moved


@compiled
def sum_rows(
    offsets: Array,
    key: Array,
    places: int,
    order: Array,
    starts: Array,
    rho: Array,
    y: Array,
    z: Array,
    one: Array,
    pi: Array,
    mu: Array,
    first: Array,
    n: Array,
    sums: Array,
) -> None:
    """Fills by cell, whose places begin at starts (B, H): first (C,), its first row, n and sums
    (11, C): Σρ, Σρ², Σz, Σρz, Σz², Σy, Σy², Σone, Σπ, Σπ², Σμ. Empty z and one stand for ρy and ρ,
    empty pi and mu for zeros."""
    blocks = len(starts)
    long, plain = len(z) > 0, len(pi) > 0
    for t in range(len(offsets) - 1):
        low, high = offsets[t], offsets[t + 1]
        cell, block, last = -1, -1, np.int64(-1)
        n1, r1, r2, z1, rz, z2, y1, y2, o1, p1, p2, m1 = (
            0,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
        )
        for k in range(low, high + 1):
            i = low + order[k] if k < high else 0
            if k == high or key[i] != last:
                if n1 > 0:
                    n[cell] = n1
                    sums[0, cell], sums[1, cell], sums[2, cell], sums[3, cell] = r1, r2, z1, rz
                    sums[4, cell], sums[5, cell], sums[6, cell], sums[7, cell] = z2, y1, y2, o1
                    sums[8, cell], sums[9, cell], sums[10, cell] = p1, p2, m1
                if k == high:
                    break
                last = key[i]
                here = last // places if blocks > 1 else 0
                cell = starts[here, t] if here != block else cell + 1
                block = here
                first[cell] = i
                n1, r1, r2, z1, rz, z2, y1, y2, o1, p1, p2, m1 = (
                    0,
                    0.0,
                    0.0,
                    0.0,
                    0.0,
                    0.0,
                    0.0,
                    0.0,
                    0.0,
                    0.0,
                    0.0,
                    0.0,
                )
            r, reward = rho[i], y[i]
            value = z[i] if long else r * reward
            n1 += 1
            r1 += r
            r2 += r * r
            z1 += value
            rz += r * value
            z2 += value * value
            y1 += reward
            y2 += reward * reward
            o1 += one[i] if long else r
            if plain:
                p1 += pi[i]
                p2 += pi[i] * pi[i]
                m1 += mu[i]


@compiled
def stretches(
    offsets: Array,
    state: Array,
    ending: Array,
    rho: Array,
    reward: Array,
    gamma: float,
    begins: Array,
    episode: Array,
    s: Array,
    t_next: Array,
    s_next: Array,
    values: Array,
) -> None:
    """From one observed state to the next: a hidden stretch is one long step. A stretch that begins
    at step t stands among begins[t]:begins[t+1]. Fills its episode, s, t', s' and values (4, L):
    R = ρ_{t:t'-1}, z = Σ_j γ^j ρ_{t:t+j} y_{t+j}, Σ_j γ^j y_{t+j}, and z if every reward were 1.
    """
    n = len(ending)
    after_t, after_s = np.empty(n, np.int64), np.empty(n, np.int64)
    work = np.empty((4, n))
    for t in range(len(offsets) - 2, -1, -1):
        low, alive = offsets[t], offsets[t + 1] - offsets[t]
        going = offsets[t + 2] - offsets[t + 1] if t + 2 < len(offsets) else 0
        at = begins[t]
        for k in range(alive):
            if k >= going:
                after_t[k] = t + 1
                after_s[k] = UNKNOWN if ending[k] == HIDDEN else ending[k]
                work[0, k] = 1.0
                work[1, k] = work[2, k] = work[3, k] = 0.0
            r, y = rho[low + k], reward[low + k]
            # R ← ρ_t R,   z ← ρ_t (y_t + γ z); what cannot happen counts 0, however large the rest
            work[0, k] = r * work[0, k] if r != 0.0 else 0.0
            work[1, k] = r * (y + gamma * work[1, k]) if r != 0.0 else 0.0
            work[2, k] = y + gamma * work[2, k]
            work[3, k] = r * (1.0 + gamma * work[3, k]) if r != 0.0 else 0.0
            here = state[low + k]
            if here != HIDDEN or t == 0:
                episode[at], s[at] = k, START if here == HIDDEN else here
                t_next[at], s_next[at] = after_t[k], after_s[k]
                for j in range(4):
                    values[j, at] = work[j, k]
                at += 1
                after_t[k], after_s[k] = t, here
                work[0, k] = 1.0
                work[1, k] = work[2, k] = work[3, k] = 0.0
