"""Checking and transposing a user's (n, H) arrays into time-major rows, in tiles.

The episodes of a tile are read one after the other, up to their length: a memory reads fastest
what lies in sequence. A tile's steps are then written in runs of EPISODES numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from reweigh.moments.kernels.common import Array, compiled, inlined

EPISODES, STEPS = 128, 128
READ, TOO_LARGE, WRONG = 0, 1, 2
PADDING = 8  # a power of two as the distance of a tile's rows would crowd them in the cache
Word = np.uint64
ACROSS = Word(EPISODES + PADDING)


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


@inlined
def _codes(
    states: Array, s: Any, actions: Array, a: Any, bits: int, codes: Array, count: Any
) -> tuple[Any, Any]:
    """codes = (s << bits) | a, and all bits that occur in the states, and in the actions."""
    of_states, of_actions = np.int64(0), np.int64(0)
    for t in range(count):
        state, action = states[s + t], actions[a + t]
        of_states |= state
        of_actions |= action
        codes[t] = (state << bits) | action
    return of_states, of_actions


@inlined
def _outside(values: Array, at: Any, count: Any, low: float, high: float) -> Any:
    bad: Any = 0
    for t in range(count):
        bad |= not (values[at + t] >= low and values[at + t] <= high)
    return bad


@inlined
def _known(codes: Array, count: Any, values: Array, at: Any, table: Array, column: int) -> bool:
    """Whether the table says the same of these codes; of a NaN it never does."""
    same = True
    for t in range(count):
        if table[codes[t], column] != values[at + t]:
            same = False
            break
    return same


@compiled
def _learn(codes: Array, count: Any, mu: Array, pi: Array, at: Any, table: Array) -> bool:
    """Enter the codes that the table lacks; False if it says otherwise of one, or if one is NaN."""
    for t in range(count):
        row, of_log = table[codes[t]], mu[at + t]
        of_target = pi[at + t] if len(pi) else 0.0
        if np.isnan(row[0]):
            row[0], row[1] = of_log, of_target
        if row[0] != of_log or row[1] != of_target:
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
    and π if given, are functions of the code: `table` (2^k, 2) holds them, and
    NaN of codes that were not seen yet.

    READ; TOO_LARGE if a state or an action is for its bits; WRONG if μ or π are not, if a number
    is negative, or if a reward is outside [low, high] or NaN.

    Arrays are read by their place in memory: a slice for every episode would cost as much as a
    tenth of its rows. Places are unsigned, so that none is asked whether it counts from the end.
    """
    longest = len(offsets) - 1
    most_actions = np.int64(1) << bits
    most_states, targeted = len(table) >> bits, len(pi) > 0
    tile = np.zeros(STEPS * ACROSS)
    coded = np.zeros(STEPS * ACROSS, codes.dtype)
    found = np.zeros(STEPS, codes.dtype)
    state_width, width = Word(states.shape[1]), Word(actions.shape[1])
    states, actions, rewards = states.ravel(), actions.ravel(), rewards.ravel()
    mu, pi = mu.ravel(), pi.ravel()
    for k0 in range(first, stop, EPISODES):
        k1 = min(k0 + EPISODES, stop)
        while longest > 0 and offsets[longest] - offsets[longest - 1] <= k0:
            longest -= 1  # these episodes are no longer than this
        for t0 in range(0, longest, STEPS):
            length = longest
            for k in range(k0, k1):
                while length > t0 and offsets[length] - offsets[length - 1] <= k:
                    length -= 1
                t1 = min(t0 + STEPS, length)
                if t1 <= t0:
                    break
                e, count = Word(order[k]), Word(t1 - t0)
                at = e * width + Word(t0)
                s, a = _codes(states, e * state_width + Word(t0), actions, at, bits, found, count)
                if s < 0 or a < 0 or _outside(rewards, at, count, low, high):
                    return WRONG
                if s >= most_states or a >= most_actions:
                    return TOO_LARGE
                same = _known(found, count, mu, at, table, 0)
                if same and targeted:
                    same = _known(found, count, pi, at, table, 1)
                if not (same or _learn(found, count, mu, pi, at, table)):
                    return WRONG
                place = Word(k - k0)
                for t in range(count):
                    tile[t * ACROSS + place] = rewards[at + t]
                for t in range(count):
                    coded[t * ACROSS + place] = found[t]
            for t in range(t0, min(t0 + STEPS, longest)):
                alive = min(k1, offsets[t + 1] - offsets[t]) - k0
                if alive <= 0:
                    break
                count = Word(alive)
                start, part = Word(offsets[t] + k0), Word(t - t0) * ACROSS
                for i in range(count):
                    rows[start + i] = tile[part + i]
                for i in range(count):
                    codes[start + i] = coded[part + i]
    return READ
