"""Inner loops for cells by what came before (`stream_lagged.py`): a hash table of sums.

A cell takes one cache line, six sums and its key, at the place that a hash of the key names, or at
the next free one after it. The place is the upper bits of the hash: in a table of twice the size
the cells then stand in the same order, so that moving them there goes through both in sequence.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from reweigh.kernels.common import compiled
from reweigh.kernels.vectors import add_at, prefetch

Word = np.uint64
LINE, KEY = 8, 6  # numbers per cell, and which of them is the key (plus 1: 0 is a free place)
U0, U1, U4, U8 = Word(0), Word(1), Word(4), Word(8)
U_KEY, BY_32, LOW = Word(KEY), Word(32), Word(0xFFFFFFFF)
SPREAD = Word(0x9E3779B97F4A7C15)
AHEAD = 16  # rows: how much earlier a cell is asked for


@compiled
def shift_of(places: Any) -> Any:
    """How many bits of a hash are left off where there are so many places, a power of 2."""
    shift = Word(64)
    while places > U1:
        places >>= U1
        shift -= U1
    return shift


@compiled
def place_of(key: Any, words: Any, shift: Any, mask: Any) -> Any:
    """Where the cell of this key is, or where it will be."""
    i = (key * SPREAD) >> shift
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
def add_cells(keys: Any, y: Any, ratio: Any, numbers: Any, words: Any) -> int:
    """Add rows to the cells of their keys; returns how many cells are new."""
    size, last, new = Word(len(numbers) // LINE), len(keys) - 1, 0
    shift, mask = shift_of(size), size - U1
    for k in range(len(keys)):
        prefetch(numbers, U8 * ((keys[min(k + AHEAD, last)] * SPREAD) >> shift))
        key = keys[k]
        if key == U0:
            continue
        rho = ratio[k]
        z = rho * y[k]
        i = U8 * place_of(key, words, shift, mask)
        if words[i + U_KEY] == U0:
            words[i + U_KEY] = key
            new += 1
        add_at(numbers, i, (1.0, rho, rho * rho, z))
        add_at(numbers, i + U4, (rho * z, z * z))
    return new


@compiled
def add_before(
    count: int, rows: Any, held: Any, slots: Any, places: Any, before: Any, sizes: Any, lagged: Any
) -> None:
    """Add the row that waited, and then all but the last of `rows` (t, s, y, ρ), which waits.

    held    see stream_kernels.Carry
    lagged  room for keys, the table of cells as numbers and as words, and how many cells there are
    """
    t, s, y, rho = rows
    keys, numbers, words, used = lagged
    count = max(count, 1)  # at the end of the log only the row that waited
    name_cells(count, t, s, slots, places, before, sizes, keys)
    waited = held.view(np.float64)
    used[0] += add_cells(keys[:1], waited[:1], waited[3:], numbers, words)
    used[0] += add_cells(keys[1:count], y, rho, numbers, words)


@compiled
def move(words: Any, numbers: Any, to_words: Any, to_numbers: Any) -> None:
    """Cells into another table, with the keys of `words`."""
    size = Word(len(to_words) // LINE)
    shift, mask = shift_of(size), size - U1
    for k in range(len(words) // LINE):
        key = words[k * LINE + KEY]
        if key != U0:
            i = U8 * place_of(key, to_words, shift, mask)
            to_words[i + U_KEY] = key
            for j in range(KEY):
                to_numbers[i + Word(j)] += numbers[k * LINE + j]
