"""Checking and transposing a user's (n, H) arrays into time-major rows, in tiles.

The episodes of a tile are read one after the other, up to their length: a memory reads fastest
what lies in sequence. A tile's steps are then written in runs of EPISODES numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from reweigh.moments.kernels.common import Array, compiled

EPISODES, STEPS = 128, 128
READ, TOO_LARGE, WRONG = 0, 1, 2
UNSEEN = -1  # the bits of no number that is given: they are those of a NaN
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


@compiled
def _codes(states: Array, actions: Array, bits: int, codes: Array) -> tuple[Any, Any]:
    """codes = (s << bits) | a, and all bits that occur in the states, and in the actions."""
    of_states, of_actions = np.int64(0), np.int64(0)
    for t in range(len(codes)):
        of_states |= states[t]
        of_actions |= actions[t]
        codes[t] = (states[t] << bits) | actions[t]
    return of_states, of_actions


@compiled
def _outside(values: Array, low: float, high: float) -> Any:
    bad: Any = 0
    for t in range(len(values)):
        bad |= not (values[t] >= low and values[t] <= high)
    return bad


@compiled
def _known(codes: Array, mu: Array, pi: Array, table: Array) -> bool:
    """Whether the table says the same of these codes."""
    if len(pi):
        for t in range(len(codes)):
            if table[codes[t], 0] != mu[t] or table[codes[t], 1] != pi[t]:
                return False
    else:
        for t in range(len(codes)):
            if table[codes[t], 0] != mu[t]:
                return False
    return True


@compiled
def _learn(codes: Array, mu: Array, pi: Array, table: Array) -> bool:
    """Enter the codes that the table lacks; False if it says otherwise of one."""
    for t in range(len(codes)):
        row = table[codes[t]]
        of_target = pi[t] if len(pi) else np.int64(0)
        if row[0] == UNSEEN:
            row[0], row[1] = mu[t], of_target
        if row[0] != mu[t] or row[1] != of_target or mu[t] == UNSEEN:
            return False
    return True


@compiled
def pairs(
    states: Array,
    actions: Array,
    rewards: Array,
    mu: Array,
    pi: Array,
    order: Array,
    offsets: Array,
    bits: int,
    low: float,
    high: float,
    codes: Array,
    rows: Array,
    table: Array,
    first: int,
    stop: int,
) -> int:
    """The rows of the episodes first:stop as codes (state << bits) | action and rewards, where μ,
    and π if given, are functions of the code: `table` (2^k, 2) holds their bits, UNSEEN at first.

    READ; TOO_LARGE if a state or an action is for its bits; WRONG if μ or π are not, if a number
    is negative, or if a reward is outside [low, high] or NaN.
    """
    longest = len(offsets) - 1
    most_actions = np.int64(1) << bits
    most_states = len(table) >> bits
    tile = np.zeros((STEPS, EPISODES + PADDING))
    coded = np.zeros((STEPS, EPISODES + PADDING), codes.dtype)
    line = np.zeros(STEPS, codes.dtype)
    nothing = np.zeros(0, np.int64)
    for k0 in range(first, stop, EPISODES):
        k1 = min(k0 + EPISODES, stop)
        while longest > 0 and offsets[longest] - offsets[longest - 1] <= k0:
            longest -= 1  # these episodes are no longer than this
        for t0 in range(0, longest, STEPS):
            length = longest
            for k in range(k0, k1):
                while length > t0 and offsets[length] - offsets[length - 1] <= k:
                    length -= 1
                e, t1 = order[k], min(t0 + STEPS, length)
                if t1 <= t0:
                    break
                found, y = line[: t1 - t0], rewards[e, t0:t1]
                s, a = _codes(states[e, t0:t1], actions[e, t0:t1], bits, found)
                if s < 0 or a < 0 or _outside(y, low, high):
                    return WRONG
                if s >= most_states or a >= most_actions:
                    return TOO_LARGE
                of_target = pi[e, t0:t1] if len(pi) else nothing
                of_log = mu[e, t0:t1]
                same = _known(found, of_log, of_target, table)
                if not (same or _learn(found, of_log, of_target, table)):
                    return WRONG
                for t in range(len(y)):
                    tile[t, k - k0] = y[t]
                for t in range(len(y)):
                    coded[t, k - k0] = found[t]
            for t in range(t0, min(t0 + STEPS, longest)):
                count = min(k1, offsets[t + 1] - offsets[t]) - k0
                if count <= 0:
                    break
                start = offsets[t] + k0
                part, run = tile[t - t0], rows[start : start + count]
                for k in range(count):
                    run[k] = part[k]
                code_part, code_run = coded[t - t0], codes[start : start + count]
                for k in range(count):
                    code_run[k] = code_part[k]
    return READ
