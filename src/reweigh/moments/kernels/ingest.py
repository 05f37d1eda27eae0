"""Checking and transposing a user's (n, H) arrays into time-major rows, in tiles.

The episodes of a tile are read one after the other, up to their length: a memory reads fastest
what lies in sequence. A tile's steps are then written in runs of EPISODES numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from reweigh.moments.kernels.common import Array, compiled

EPISODES, STEPS = 64, 128
PADDING = 8  # a power of two as the distance of a tile's rows would crowd them in the cache


@compiled
def transpose_numbers(
    values: Array, order: Array, offsets: Array, low: float, high: float, rows: Array
) -> bool:
    """rows[offsets[t] + k] = values[order[k], t]; False if one is outside [low, high] or NaN."""
    n, horizon = len(order), len(offsets) - 1
    tile = np.zeros((STEPS, EPISODES + PADDING))
    longest = horizon
    for k0 in range(0, n, EPISODES):
        k1 = min(k0 + EPISODES, n)
        for t0 in range(0, longest, STEPS):
            length = longest
            for k in range(k0, k1):
                while length > t0 and offsets[length] - offsets[length - 1] <= k:
                    length -= 1
                line = values[order[k], t0 : min(t0 + STEPS, length)]
                for t in range(len(line)):
                    tile[t, k - k0] = line[t]
            bad = 0
            for t in range(t0, min(t0 + STEPS, longest)):
                count = min(k1, offsets[t + 1] - offsets[t]) - k0
                if count <= 0:
                    break
                part, run = tile[t - t0], rows[offsets[t] + k0 : offsets[t] + k0 + count]
                for k in range(count):
                    value = part[k]
                    bad |= not (value >= low and value <= high)
                    run[k] = value
            if bad:
                return False
        while longest > 0 and offsets[longest] - offsets[longest - 1] <= k1:
            longest -= 1  # the episodes of the next tile are no longer than this
    return True


@compiled
def transpose_codes(
    values: Array, order: Array, offsets: Array, rows: Array, last: Array, present: Array
) -> bool:
    """The same of integers from 0 to len(present) - 1, which `present` marks as they occur.

    A column H of `values`, if there is one, goes to `last` where an episode has H rows.
    """
    n, horizon, limit = len(order), len(offsets) - 1, np.uint64(len(present))
    tile = np.zeros((STEPS, EPISODES + PADDING), np.uint32)
    longest = horizon
    for k0 in range(0, n, EPISODES):
        k1 = min(k0 + EPISODES, n)
        for t0 in range(0, longest, STEPS):
            length = longest
            for k in range(k0, k1):
                while length > t0 and offsets[length] - offsets[length - 1] <= k:
                    length -= 1
                line = values[order[k], t0 : min(t0 + STEPS, length)]
                bad: Any = 0
                for t in range(len(line)):
                    bad |= np.uint64(line[t]) >= limit  # a negative number is a large unsigned one
                    tile[t, k - k0] = line[t]
                if bad:
                    return False
                for t in range(len(line)):
                    present[tile[t, k - k0]] = 1
            for t in range(t0, min(t0 + STEPS, longest)):
                count = min(k1, offsets[t + 1] - offsets[t]) - k0
                if count <= 0:
                    break
                part, run = tile[t - t0], rows[offsets[t] + k0 : offsets[t] + k0 + count]
                for k in range(count):
                    run[k] = part[k]
        while longest > 0 and offsets[longest] - offsets[longest - 1] <= k1:
            longest -= 1
    if values.shape[1] > horizon:
        for k in range(offsets[horizon] - offsets[horizon - 1]):
            value = np.uint64(values[order[k], horizon])
            if value >= limit:
                return False
            last[k] = value
            present[value] = 1
    return True
