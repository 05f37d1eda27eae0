"""The compiled scan: sums by cell, returns and rewards of time-major rows (`sums/scan.py`).

The rows of a step are adjacent, and row k of a step is that of episode k. A step's cells are
summed in a table that stays in the cache: one line per possible cell, or per cell that occurs where
far more are possible. Sums are taken in the order of the rows.
"""

from __future__ import annotations

import numpy as np

from reweigh.kernels.common import END, Array, compiled
from reweigh.kernels.products import multiply
from reweigh.kernels.vectors import add_at, prefetch

WIDTH = 12  # numbers of a cell: n, ρ, ρ², z, ρz, z², y, y², π, π², μ, and 0
CHUNK = 1 << 13  # rows: short steps are sorted together
DIGIT = 11  # bits
AHEAD = 96  # rows: how much earlier a cell is prefetched
U1, U4, U8, U12 = np.uint64(1), np.uint64(4), np.uint64(8), np.uint64(WIDTH)


@compiled
def add_rows(
    key: Array, low: int, rows: Array, pi: Array, mu: Array, reward: Array, limit: float,
    table: Array,
) -> None:  # fmt: skip
    """Adds to the cells `key` what these rows, or those from `low` on, sum up: ρ = π/μ up to the
    limit, and z = ρy. Numbers, not arrays, are handed on in the loop: references would be counted.
    """
    chosen, last = len(rows) > 0, len(key) - 1
    for k in range(len(key)):
        soon = np.uint64(key[min(k + AHEAD, last)]) * U12
        prefetch(table, soon)
        prefetch(table, soon + U8)
        i = rows[k] if chosen else low + k
        p, m, y = pi[i], mu[i], reward[i]
        rho = p / m
        rho = rho if rho < limit else limit
        z, at = rho * y, np.uint64(key[k]) * U12
        add_at(table, at, (1.0, rho, rho * rho, z))
        add_at(table, at + U4, (rho * z, z * z, y, y * y))
        add_at(table, at + U8, (p, p * p, m, 0.0))


@compiled
def step_keys(
    offsets: Array, state: Array, action: Array, ending: Array, block: Array, sizes: Array, t: int,
    key: Array,
) -> None:  # fmt: skip
    """Fills key with ((block·S + s)·A + a)·W + s' of the rows of step t. sizes: S, A, W; without
    actions A is 1, without s' W is 1. The place of s' is 0 if it is not known, 1 if it is END."""
    low, high = offsets[t], offsets[t + 1]
    alive = high - low
    going = offsets[t + 2] - high if t + 2 < len(offsets) else 0
    states, actions, after = sizes
    for k in range(alive):
        key[k] = state[low + k]
    if len(block) > 0:
        for k in range(alive):
            key[k] += block[k] * states
    if len(action) > 0:
        for k in range(alive):
            key[k] = key[k] * actions + action[low + k]
    if after > 1:
        for k in range(going):
            key[k] = key[k] * after + state[high + k] + 2
        for k in range(going, alive):
            last = ending[k]
            key[k] = key[k] * after + (last + 2 if last >= 0 else 1 if last == END else 0)


@compiled
def move_keys(
    offsets: Array, state: Array, action: Array, ending: Array, block: Array, sizes: Array,
    key: Array,
) -> None:  # fmt: skip
    """Fills key (N,) with the cells of all rows."""
    for t in range(len(offsets) - 1):
        here = key[offsets[t] : offsets[t + 1]]
        step_keys(offsets, state, action, ending, block, sizes, t, here)


@compiled
def emit(table: Array, at: int, code: Array, n: Array, sums: Array) -> int:
    """Writes the cells of a step that hold rows from place `at` on: code (C,), n (C,) and as many
    of their sums as `sums` (10 or 5, C) has room for. The table is 0 afterwards. Returns the next
    free place."""
    for cell in range(len(table) // WIDTH):
        i = cell * WIDTH
        if table[i] == 0.0:
            continue
        code[at], n[at] = cell, np.int64(table[i])
        for j in range(len(sums)):
            sums[j, at] = table[i + 1 + j]
        for j in range(WIDTH):
            table[i + j] = 0.0
        at += 1
    return at


@compiled
def add_moves(
    offsets: Array, state: Array, action: Array, ending: Array, block: Array, sizes: Array,
    pi: Array, mu: Array, reward: Array, limit: float, lines: Array, counts: Array, code: Array,
    n: Array, sums: Array,
) -> None:  # fmt: skip
    """The steps of a batch to their cells: lines (H, cells), which stay; or, of the only batch, one
    line, whose cells `emit` writes after each step: fills counts (H,) and the others as it does."""
    key, every, at = np.empty(len(ending), np.uint32), np.empty(0, np.int64), 0
    for t in range(len(offsets) - 1):
        low, alive = offsets[t], offsets[t + 1] - offsets[t]
        line = lines[0 if len(n) > 0 else t]
        step_keys(offsets, state, action, ending, block, sizes, t, key)
        add_rows(key[:alive], low, every, pi, mu, reward, limit, line)
        if len(n) > 0:
            after = emit(line, at, code, n, sums)
            counts[t], at = after - at, after


@compiled
def emit_all(lines: Array, counts: Array, code: Array, n: Array, sums: Array) -> None:
    """The cells of all steps of all batches."""
    at = 0
    for t in range(len(lines)):
        after = emit(lines[t], at, code, n, sums)
        counts[t], at = after - at, after


@compiled
def sum_ranked(
    begins: Array, rows: Array, rank: Array, pi: Array, mu: Array, reward: Array, limit: float,
    table: Array, counts: Array, code: Array, n: Array, sums: Array,
) -> None:  # fmt: skip
    """The same of `rows`, those of step t being begins[t]:begins[t+1] (all rows where it is empty),
    by their ranks among the counts[t] cells of the step."""
    at = 0
    for t in range(len(begins) - 1):
        here = slice(begins[t], begins[t + 1])
        chosen = rows[here] if len(rows) > 0 else rows
        add_rows(rank[here], begins[t], chosen, pi, mu, reward, limit, table)
        at = emit(table[: counts[t] * WIDTH], at, code, n, sums)


@compiled
def count_visits(offsets: Array, state: Array, visits: Array) -> None:
    """Fills visits (H, S)."""
    for t in range(len(offsets) - 1):
        here = visits[t]
        for k in range(offsets[t], offsets[t + 1]):
            here[np.uint32(state[k])] += 1


@compiled
def hold_rows(
    offsets: Array, state: Array, action: Array, ending: Array, actions: int, level_of: Array,
    level: int, below: int, begins: Array, rows: Array, key: Array,
) -> None:  # fmt: skip
    """Of the rows from step 1 on those at a (t, s) of this level_of (H, S) or more, and apart from
    them those of less, but of at least `below`: fills begins (2, H+1), rows (2, …), and the rows'
    keys ((s·S + s₋)·A + a₋)·(S+2) + s' with s₋, a₋ of the step before. There is room for one more.
    """
    horizon, states = level_of.shape
    held, apart, chosen = 0, 0, np.empty(len(ending) + 1, np.int64)
    for t in range(1, horizon):
        begins[0, t], begins[1, t] = held, apart
        low, high, before, here = offsets[t], offsets[t + 1], offsets[t - 1], level_of[t]
        going = offsets[t + 2] - high if t + 1 < horizon else 0
        many = 0
        for k in range(high - low):  # written always, kept if it is held
            chosen[many] = k
            many += here[np.uint32(state[low + k])] >= below
        for j in range(many):
            k = chosen[j]
            s = np.int64(state[low + k])
            past = (s * states + state[before + k]) * actions
            past += action[before + k] if len(action) > 0 else 0
            follows = np.int64(state[high + k] if k < going else ending[k])
            after = follows + 2 if follows >= 0 else 1 if follows == END else 0
            rows[0, held] = rows[1, apart] = low + k  # written twice, kept once
            key[0, held] = key[1, apart] = past * (states + 2) + after
            here_too = here[np.uint32(s)] >= level
            held, apart = held + here_too, apart + 1 - here_too
    begins[0, horizon], begins[1, horizon] = held, apart


@compiled
def rank_keys(
    offsets: Array, key: Array, size: int, most: int, counts: Array, cells: Array
) -> None:
    """Replaces the keys of each step's rows, all below size, by their ranks among the different
    ones; fills counts (H,), how many these are, and `cells` with them. By digits (a radix sort);
    short steps are sorted together. Ends where there are more than `most` cells."""
    horizon = len(offsets) - 1
    room = CHUNK
    for t in range(horizon):
        room = max(room, offsets[t + 1] - offsets[t])
    code, other = np.empty(room, np.uint64), np.empty(room, np.uint64)
    row, moved = np.empty(room, np.int32), np.empty(room, np.int32)
    together = max((1 << 62) // size, 1)  # steps whose keys fit into one number
    start, at = 0, 0
    while start < horizon and at <= most:
        stop, low = start + 1, offsets[start]
        while stop < min(horizon, start + together) and offsets[stop + 1] - low <= CHUNK:
            stop += 1
        rows = offsets[stop] - low
        for t in range(start, stop):
            base = np.uint64(t - start) * np.uint64(size)
            for k in range(offsets[t], offsets[t + 1]):
                code[k - low] = base + np.uint64(key[k])
                row[k - low] = k - low
        many = np.uint64(stop - start) * np.uint64(size)
        code, other, row, moved = _sort(rows, code, other, row, moved, many)
        for t in range(start, stop):
            rank, base = -1, np.uint64(t - start) * np.uint64(size)
            for k in range(offsets[t] - low, offsets[t + 1] - low):
                if rank < 0 or code[k] != code[k - 1]:
                    rank += 1
                    cells[at] = code[k] - base
                    at += 1
                key[low + row[k]] = rank
            counts[t] = rank + 1
        start = stop


@compiled
def _sort(
    rows: int, code: Array, other: Array, row: Array, moved: Array, size: np.uint64
) -> tuple[Array, Array, Array, Array]:
    """The first rows of `code` (all below size) in their order, and `row` with them; the arrays
    change places."""
    bits = 0
    while bits < 64 and (size - U1) >> np.uint64(bits) > 0:
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
def earn(
    offsets: Array, reward: Array, gamma: float, bucket: Array, returns: Array, paced: Array
) -> None:
    """Adds to returns (n,) Σ_t γ^t y_t, and where episodes have a bucket (n,) to paced (H, B, 3)
    the number of their rows, Σy and Σy²."""
    for t in range(len(offsets) - 1):
        low, alive, power = offsets[t], offsets[t + 1] - offsets[t], gamma**t
        y = reward[low : low + alive]
        for k in range(alive):
            returns[k] += power * y[k]
        if len(bucket) > 0:
            here, k = paced[t], 0
            while k < alive:  # runs of one bucket: in most logs ids rise
                b, first, total, square = bucket[k], k, 0.0, 0.0
                while k < alive and bucket[k] == b:
                    total += y[k]
                    square += y[k] * y[k]
                    k += 1
                here[b, 0] += k - first
                here[b, 1] += total
                here[b, 2] += square


@compiled
def whole_products(offsets: Array, pi: Array, mu: Array, limit: float, m: Array, e: Array) -> None:
    """m·2^(256 e) times the ratios of the episodes' rows (`products.multiply`)."""
    rho = np.empty(len(m))
    for t in range(len(offsets) - 1):
        low, alive = offsets[t], offsets[t + 1] - offsets[t]
        for k in range(alive):
            ratio = pi[low + k] / mu[low + k]
            rho[k] = ratio if ratio < limit else limit
        multiply(rho[:alive], m, e)


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
