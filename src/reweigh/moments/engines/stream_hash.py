"""Inner loops for cells by what came before (`stream_lagged.py`): a hash table of sums.

A cell takes one cache line, six sums and its key, at the place that a hash of the key names, or at
the next free one after it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from reweigh.moments.kernels.common import compiled
from reweigh.moments.kernels.vectors import add_at, prefetch

Word = np.uint64
LINE, KEY = 8, 6  # numbers per cell, and which of them is the key (plus 1: 0 is a free place)
U0, U1, U4, U8 = Word(0), Word(1), Word(4), Word(8)
U_KEY, BY_32, LOW = Word(KEY), Word(32), Word(0xFFFFFFFF)
SPREAD = Word(0x9E3779B97F4A7C15)
AHEAD = 16  # rows: how much earlier a cell is asked for


@compiled
def place_of(key: Any, words: Any, mask: Any) -> Any:
    """Where the cell of this key is, or where it will be."""
    i = key * SPREAD
    i = (i ^ (i >> BY_32)) & mask
    while words[U8 * i + U_KEY] != U0 and words[U8 * i + U_KEY] != key:
        i = (i + U1) & mask
    return i


@compiled
def name_cells(
    count: int, t: Any, s: Any, slots: Any, places: Any, before: Any, sizes: Any, keys: Any
) -> None:
    """The keys of rows, 0 for those at step 0 and from the horizon on.

    key = ((t·SA + s_before·A + a_before)·S + s)·(S + 2) + s' + 1

    t, s      of the rows; `slots` and `places` begin with those of the row that waited (see
              stream_kernels.trace), and so do the keys
    before    s·A + a of the row before the one that waited
    """
    horizon, states, actions, in_key, _, _, _ = sizes
    width, pairs = states + Word(2), states * actions
    keys[0] = U0
    if slots[0] >= 0 and Word(slots[0]) % horizon != U0:
        of = places[0] >> BY_32
        here = of // actions
        after = (places[0] & LOW) - (of if in_key > U0 else here) * width
        step = Word(slots[0]) % horizon
        keys[0] = ((step * pairs + before) * states + here) * width + after + U1
    for k in range(1, count):
        of, here = places[k] >> BY_32, Word(s[k - 1])
        after = (places[k] & LOW) - (of if in_key > U0 else here) * width
        key = (Word(t[k - 1]) * pairs + (places[k - 1] >> BY_32)) * states + here
        shown = (slots[k] >= 0) & (t[k - 1] > 0)
        keys[k] = key * width + after + U1 if shown else U0


@compiled
def add_cells(
    keys: Any, slots: Any, places: Any, y: Any, mu: Any, pi: Any, table: Any, horizon: Any,
    max_ratio: float, numbers: Any, words: Any,
) -> int:  # fmt: skip
    """Add rows to the cells of their keys; returns how many cells are new."""
    mask, last, new = Word(len(numbers) // LINE - 1), len(keys) - 1, 0
    by_row, by_step = len(pi) > 0, table.shape[0] > 1
    for k in range(len(keys)):
        soon = keys[min(k + AHEAD, last)] * SPREAD
        prefetch(numbers, U8 * ((soon ^ (soon >> BY_32)) & mask))
        key = keys[k]
        if key == U0:
            continue
        step = Word(slots[k]) % horizon if by_step else U0
        rho = (pi[k] if by_row else table[step, places[k] >> BY_32]) / mu[k]
        if rho > max_ratio:
            rho = max_ratio
        z = rho * y[k]
        i = U8 * place_of(key, words, mask)
        if words[i + U_KEY] == U0:
            words[i + U_KEY] = key
            new += 1
        add_at(numbers, i, (1.0, rho, rho * rho, z))
        add_at(numbers, i + U4, (rho * z, z * z))
    return new


@compiled
def add_before(
    count: int, rows: Any, table: Any, held: Any, slots: Any, places: Any, before: Any,
    sizes: Any, max_ratio: float, lagged: Any,
) -> None:  # fmt: skip
    """Add the row that waited, and then all but the last of `rows` (t, s, y, μ, π), which waits.

    table   π by (step or 0, s·A + a); empty if the rows hold π
    held    the bits of y, μ, π of the row that waited
    lagged  room for keys, the table of cells as numbers and as words, and how many cells there are
    """
    t, s, y, mu, pi = rows
    keys, numbers, words, used = lagged
    count = max(count, 1)  # at the end of the log only the row that waited
    name_cells(count, t, s, slots, places, before, sizes, keys)
    waited = held.view(np.float64)
    own, horizon = waited[2:3] if table.shape[1] == 0 else waited[:0], sizes[0]
    used[0] += add_cells(keys[:1], slots[:1], places[:1], waited[:1], waited[1:2], own, table,
                         horizon, max_ratio, numbers, words)  # fmt: skip
    used[0] += add_cells(keys[1:count], slots[1:count], places[1:count], y, mu, pi, table, horizon,
                         max_ratio, numbers, words)  # fmt: skip


@compiled
def move(words: Any, numbers: Any, to_words: Any, to_numbers: Any) -> None:
    """Cells into another table, with the keys of `words`."""
    mask = Word(len(to_words) // LINE - 1)
    for k in range(len(words) // LINE):
        key = words[k * LINE + KEY]
        if key != U0:
            i = U8 * place_of(key, to_words, mask)
            to_words[i + U_KEY] = key
            for j in range(KEY):
                to_numbers[i + Word(j)] += numbers[k * LINE + j]
