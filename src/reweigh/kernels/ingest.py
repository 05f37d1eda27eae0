"""Checking and transposing a user's (n, H) arrays into time-major rows, in tiles.

The episodes of a tile are read one after the other, up to their length: a memory reads fastest
what lies in sequence. Numbers of 64 bits are then written eight episodes at a time, which fills a
line of memory; shorter ones are collected, and written in runs of EPISODES.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from reweigh.kernels.common import Array, compiled, inlined
from reweigh.kernels.vectors import prefetch, turn

EPISODES, STEPS = 128, 128
READ, TOO_LARGE, WRONG = 0, 1, 2
PADDING = 8  # a power of two as the distance of a tile's rows would crowd them in the cache
Word = np.uint64
ACROSS, ALONG = Word(EPISODES + PADDING), Word(STEPS)
SHORT = Word(8)  # steps
ONE, TWO, EIGHT, SIGN = Word(1), Word(2), Word(8), Word(1 << 63)
AHEAD, LINE = 16, Word(7)  # episodes; to the last number of a line


@compiled
def within(values: Array, order: Array, offsets: Array, low: float, high: float) -> bool:
    """Whether all numbers of the episodes' steps are in [low, high]."""
    length = len(offsets) - 1
    for k in range(len(order)):
        while length > 0 and offsets[length] - offsets[length - 1] <= k:
            length -= 1
        line, bad = values[order[k], :length], 0
        for t in range(length):
            bad |= not (line[t] >= low and line[t] <= high)
        if bad:
            return False
    return True


@compiled
def some_steps(
    mu: Array,
    pi: Array,
    rewards: Array,
    order: Array,
    offsets: Array,
    since: int,
    until: int,
    limit: float,
    ratios: Array,
    rows: Array,
) -> None:
    """π/μ, up to `limit`, and the rewards of the rows of the steps from `since` to `until`. The
    memory lines of some episodes ahead are prefetched: an episode is too short for the processor to
    do that automatically."""
    mus, pis, earned = mu.reshape(-1), pi.reshape(-1), rewards.reshape(-1)
    across, alive = Word(mu.shape[1]), offsets[since + 1] - offsets[since]
    first, last = Word(since), until
    for k in range(alive):
        while offsets[last] - offsets[last - 1] <= k:
            last -= 1
        ahead = Word(order[min(k + AHEAD, alive - 1)]) * across + first
        for array in (mus, pis, earned):
            prefetch(array, ahead)
            prefetch(array, ahead + LINE)
        place = Word(order[k]) * across + first
        for j in range(last - since):
            at = Word(offsets[since + j] - offsets[since] + k)
            found = pis[place] / mus[place]
            ratios[at] = found if found < limit else limit
            rows[at] = earned[place]
            place += ONE


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
    states: Array,
    s: Any,
    actions: Array,
    a: Any,
    bits: int,
    codes: Array,
    to: Any,
    count: Any,
    line: Any,
    across: Any,
) -> tuple[Any, Any]:
    """codes = (s << bits) | a of `count` steps from these places on, and all bits that occur in
    the states, and in the actions. The states of one episode are `line` numbers, those of the
    next come `across` later."""
    of_states, of_actions = np.int64(0), np.int64(0)
    if line >= count:
        for t in range(count):
            state, action = states[s + t], actions[a + t]
            of_states |= state
            of_actions |= action
            codes[to + t] = (state << bits) | action
        return of_states, of_actions
    for t in range(line):  # short lines: the loop over the episodes is the longer one
        for k in range(count // line):
            state, action = states[s + k * across + t], actions[a + k * line + t]
            of_states |= state
            of_actions |= action
            codes[to + k * line + t] = (state << bits) | action
    return of_states, of_actions


@inlined
def _any_outside(
    values: Array,
    places: Array,
    counts: Array,
    episodes: int,
    together: bool,
    low: float,
    high: float,
) -> Any:
    """Whether one of the numbers of these lines, which may lie in sequence, is outside
    [low, high], or NaN."""
    bad: Any = 0
    for k in range(1 if together else episodes):
        at, count = places[k], Word(counts[k] * episodes if together else counts[k])
        for t in range(count):
            bad |= not (values[at + t] >= low and values[at + t] <= high)
    return bad


@inlined
def _matches_table(
    codes: Array, first: Any, count: Any, mu: Array, pi: Array, at: Any, table: Array
) -> bool:
    """Whether the table has the same numbers for these codes, compared by their bits. Of a
    code that was not seen it never does: its sign is that of no probability. A jump at every row,
    or a comparison of floats, would cost more than everything else here."""
    other, unseen = Word(0), Word(0)
    if len(pi):
        for t in range(count):
            row = TWO * codes[first + t]
            of_log = table[row]
            other |= (of_log ^ mu[at + t]) | (table[row + ONE] ^ pi[at + t])
            unseen |= of_log
    else:
        for t in range(count):
            of_log = table[TWO * codes[first + t]]
            other |= of_log ^ mu[at + t]
            unseen |= of_log
    return bool((other == 0) & (unseen < SIGN))


@compiled
def _learn(
    codes: Array, first: Any, count: Any, mu: Array, pi: Array, at: Any, table: Array
) -> bool:
    """Enter the codes that the table lacks; False if it has another number for one, or if one is
    NaN. Zeros of both signs are the same."""
    for t in range(count):
        row, of_log = table[codes[first + t]], mu[at + t]
        of_target = pi[at + t] if len(pi) else 0.0
        if np.isnan(row[0]):
            row[0], row[1] = of_log, of_target
        if row[0] != of_log or row[1] != of_target:
            return False
    return True


@inlined
def _lines(
    order: Array,
    offsets: Array,
    k0: int,
    k1: int,
    t0: int,
    t1: int,
    width: Any,
    places: Array,
    counts: Array,
) -> bool:
    """Where the steps t0:t1 of the episodes k0:k1 begin in an array with lines of `width`, and how
    many of these steps each has. Returns whether they all lie in sequence."""
    for k in range(k1 - k0):
        places[k] = Word(order[k0 + k]) * width + Word(t0)
    if offsets[t1] - offsets[t1 - 1] >= k1:  # none of them has ended
        for k in range(k1 - k0):
            counts[k] = t1 - t0
        apart: Any = width ^ Word(t1 - t0)
        for k in range(1, k1 - k0):
            apart |= (places[k] - places[k - 1]) ^ width
        return bool(apart == 0)
    length = t1
    for k in range(k0, k1):
        while length > t0 and offsets[length] - offsets[length - 1] <= k:
            length -= 1
        counts[k - k0] = length - t0
    return False


@inlined
def _across(
    values: Array, places: Array, counts: Array, episodes: int, to: Array, starts: Array, first: Any
) -> None:
    """to[starts[t] + first + k] = values[places[k] + t]: eight episodes by eight steps at a time,
    and what is left of the steps as numbers that lie side by side. A later episode is no longer
    than an earlier one."""
    eights = episodes - episodes % 8
    for k in range(0, eights, 8):
        shared, at = Word(counts[k + 7]), first + Word(k)
        a, b, c, d = places[k], places[k + 1], places[k + 2], places[k + 3]
        e, f, g, h = places[k + 4], places[k + 5], places[k + 6], places[k + 7]
        whole = shared - shared % EIGHT
        for t in range(Word(0), whole, EIGHT):
            for j in range(t, t + EIGHT):  # where the next eight episodes go
                prefetch(to, Word(starts[j]) + at + EIGHT)
            turn(
                values,
                (a + t, b + t, c + t, d + t, e + t, f + t, g + t, h + t),
                to,
                (
                    Word(starts[t]) + at,
                    Word(starts[t + Word(1)]) + at,
                    Word(starts[t + Word(2)]) + at,
                    Word(starts[t + Word(3)]) + at,
                    Word(starts[t + Word(4)]) + at,
                    Word(starts[t + Word(5)]) + at,
                    Word(starts[t + Word(6)]) + at,
                    Word(starts[t + Word(7)]) + at,
                ),
            )
        for t in range(whole, shared):
            here = Word(starts[t]) + at
            to[here] = values[a + t]
            to[here + Word(1)] = values[b + t]
            to[here + Word(2)] = values[c + t]
            to[here + Word(3)] = values[d + t]
            to[here + Word(4)] = values[e + t]
            to[here + Word(5)] = values[f + t]
            to[here + Word(6)] = values[g + t]
            to[here + Word(7)] = values[h + t]
        for j in range(k, k + 7):
            for t in range(shared, Word(counts[j])):
                to[Word(starts[t]) + first + Word(j)] = values[places[j] + t]
    for k in range(eights, episodes):
        for t in range(Word(counts[k])):
            to[Word(starts[t]) + first + Word(k)] = values[places[k] + t]


@inlined
def _write_codes(
    coded: Array, codes: Array, offsets: Array, k0: int, k1: int, t0: int, t1: int
) -> None:
    """The codes of a tile, in runs of the episodes that have a row at a step."""
    for t in range(t0, t1):
        alive = min(k1, offsets[t + 1] - offsets[t]) - k0
        if alive <= 0:
            break
        count = Word(alive)
        start, part = Word(offsets[t] + k0), Word(t - t0) * ACROSS
        for k in range(count):
            codes[start + k] = coded[part + k]


@compiled
def transpose_numbers(
    values: Array, order: Array, offsets: Array, low: float, high: float, rows: Array
) -> bool:
    """rows[offsets[t] + k] = values[order[k], t]; False if one is outside [low, high] or NaN."""
    longest, width, numbers = len(offsets) - 1, Word(values.shape[1]), values.ravel()
    places, counts = np.zeros(EPISODES, np.uint64), np.zeros(EPISODES, np.int64)
    for k0 in range(0, len(order), EPISODES):
        k1 = min(k0 + EPISODES, len(order))
        while longest > 0 and offsets[longest] - offsets[longest - 1] <= k0:
            longest -= 1
        for t0 in range(0, longest, STEPS):
            t1, many = min(t0 + STEPS, longest), k1 - k0
            together = _lines(order, offsets, k0, k1, t0, t1, width, places, counts)
            if _any_outside(numbers, places, counts, many, together, low, high):
                return False
            _across(numbers, places, counts, many, rows, offsets[t0:], Word(k0))
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
    and π if given, are functions of the code: `table` (2^k, 2) holds them, or a negative NaN.

    READ; TOO_LARGE if a state or an action is for its bits; WRONG if μ or π are not, if a number
    is negative, or if a reward is outside [low, high] or NaN.

    Of a tile one array after the other is read, so that the table stays in the cache while it is
    used. Arrays are read by their place in memory: a slice for every episode would cost as much as
    a tenth of its rows. Places are unsigned, so that none is checked for counting from the end.
    """
    longest = len(offsets) - 1
    most_actions, most_states = np.int64(1) << bits, len(table) >> bits
    coded, found = np.zeros(ALONG * ACROSS, codes.dtype), np.zeros(EPISODES * STEPS, codes.dtype)
    in_tile = np.arange(STEPS) * np.int64(ACROSS)
    places, counts = np.zeros(EPISODES, np.uint64), np.zeros(EPISODES, np.int64)
    lines = np.zeros(EPISODES, np.uint64)  # of `found`
    state_width, width = Word(states.shape[1]), Word(actions.shape[1])
    states, actions, rewards = states.ravel(), actions.ravel(), rewards.ravel()
    mu, pi = mu.ravel(), pi.ravel()
    mu_bits, pi_bits, table_bits = mu.view(Word), pi.view(Word), table.ravel().view(Word)
    for k0 in range(first, stop, EPISODES):
        k1 = min(k0 + EPISODES, stop)
        while longest > 0 and offsets[longest] - offsets[longest - 1] <= k0:
            longest -= 1
        for t0 in range(0, longest, STEPS):
            t1, many = min(t0 + STEPS, longest), k1 - k0
            together = _lines(order, offsets, k0, k1, t0, t1, width, places, counts)
            line = Word(t1 - t0)
            whole = Word(many) * line
            for k in range(many):
                lines[k] = Word(k) * line
            # Lines that lie in sequence are read as one, those of the states if they are short.
            as_one = together and line < SHORT
            for k in range(1 if as_one else many):
                s, a = _codes(
                    states,
                    Word(order[k0 + k]) * state_width + Word(t0),
                    actions,
                    places[k],
                    bits,
                    found,
                    lines[k],
                    whole if as_one else Word(counts[k]),
                    line,
                    state_width,
                )
                if s < 0 or a < 0:
                    return WRONG
                if s >= most_states or a >= most_actions:
                    return TOO_LARGE
            for k in range(1 if together else many):
                at, count = places[k], whole if together else Word(counts[k])
                same = _matches_table(found, lines[k], count, mu_bits, pi_bits, at, table_bits)
                if not (same or _learn(found, lines[k], count, mu, pi, at, table)):
                    return WRONG
            if _any_outside(rewards, places, counts, many, together, low, high):
                return WRONG
            # Eight rewards fill a line of memory, which is written once; codes are collected.
            _across(rewards, places, counts, many, rows, offsets[t0:], Word(k0))
            _across(found, lines, counts, many, coded, in_tile, Word(0))
            _write_codes(coded, codes, offsets, k0, k1, t0, t1)
    return READ
