"""MIS with a memory of k steps, slowly and in fractions, from its definition.

As `reference.py`: nothing is shared with the library.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction

from reference import END, ONE, START, UNKNOWN, ZERO, Episode, Log, State

Count = Callable[[int, int], Fraction]  # how often the row (episode, step) counts
SMALL = Fraction(1, 10**6)


def _begin(e: Episode, t: int, k: int) -> tuple[int, State]:
    """Where the window of step t begins: max(t - k, 0), or the last observed state before it."""
    a = max(t - k, 0)
    if a >= len(e.rows):
        return a, END
    while a > 0 and e.rows[a].state is None:
        a -= 1
    state = e.rows[a].state
    return a, START if state is None else state


def _product(e: Episode, a: int, t: int) -> Fraction:
    product = ONE
    for row in e.rows[a : t + 1]:
        product *= row.rho
    return product


def by_weights(log: Log, k: int) -> Fraction:
    """The definition, of logs in which no episode was cut off: w_t = m_a(s_a) ρ_a ⋯ ρ_t, and
    m_{t+1}(s) is the mean of w_t over the episodes that are in s next, divided by the mean of all
    where each of them is seen."""
    n, value = len(log.episodes), ZERO
    m: dict[tuple[int, State], Fraction] = defaultdict(lambda: ONE)
    for t in range(log.horizon):
        weights, nexts = [], []
        for e in log.episodes:
            weights.append(m[_begin(e, t, k)] * _product(e, _begin(e, t, k)[0], t))
            nexts.append(e.after(t, log.horizon) if t < len(e.rows) else END)
        rewards = [e.rows[t].reward if t < len(e.rows) else ZERO for e in log.episodes]
        earned = sum((w * r for w, r in zip(weights, rewards, strict=True)), ZERO)
        value += log.discount**t * earned / sum(weights, ZERO)
        total = sum(weights, ZERO) / n
        for state in set(nexts) - {None}:
            of = [w for w, s in zip(weights, nexts, strict=True) if s == state]
            m[t + 1, state] = sum(of, ZERO) / len(of) / (total if None not in nexts else ONE)
    return value


def value(
    log: Log, k: int, rows: Count = lambda e, t: ONE, starts: Count = lambda e, t: ONE
) -> Fraction:
    """By shares of the target's mass; also of logs with cut-off episodes, and of rows and first
    states that count more or less than once."""
    d: dict[tuple[int, State], Fraction] = defaultdict(Fraction)
    every = sum((starts(i, 0) for i in range(len(log.episodes))), ZERO)
    for i, e in enumerate(log.episodes):
        d[_begin(e, 0, k)] += starts(i, 0) / every
    total_value = ZERO
    for t in range(log.horizon):
        windows = []
        seen: dict[tuple[int, State], Fraction] = defaultdict(Fraction)
        moving: dict[tuple[int, State], Fraction] = defaultdict(Fraction)
        for i, e in enumerate(log.episodes):
            if t >= len(e.rows) and e.end != "terminated":
                continue  # cut off: not observed at this step
            at = _begin(e, t, k)
            if at[1] == END:
                continue
            after = e.after(t, log.horizon) if t < len(e.rows) else END
            reward = e.rows[t].reward if t < len(e.rows) else ZERO
            count = rows(i, min(t, len(e.rows) - 1))
            windows.append((at, after, reward, _product(e, at[0], t), count))
            seen[at] += count
            moving[at] += count if after != UNKNOWN else ZERO
        if log.hidden:  # all visits: some of them have been seen in another state since
            for at in seen:
                seen[at] = moving[at] = sum(
                    (
                        rows(i, at[0])
                        for i, e in enumerate(log.episodes)
                        if at[0] < len(e.rows) and _begin(e, at[0], 0) == at
                    ),
                    ZERO,
                )
        at_end = d[t - k, END] if t > k else ZERO
        weight = at_end + sum((c * d[at] * p / seen[at] for at, _, _, p, c in windows), ZERO)
        earned = sum((c * d[at] * p * r / seen[at] for at, _, r, p, c in windows), ZERO)
        total_value += log.discount**t * earned / weight
        d[t + 1, END] += at_end
        for at, after, _, p, c in windows:
            if after is not None and after != UNKNOWN:
                d[t + 1, after] += c * d[at] * p / moving[at]
        total = sum((mass for (step, _), mass in d.items() if step == t + 1), ZERO)
        if t + 1 < log.horizon and total > 0 and None not in [w[1] for w in windows]:
            for at in [at for at in d if at[0] == t + 1]:
                d[at] /= total
    return total_value


def square(log: Log, k: int) -> Fraction:
    """SE²: the squares of the derivatives by how often what is independent counts. Without memory,
    and hidden states after the first, that is a row, and a first state; else an episode."""
    hidden = any(row.state is None for e in log.episodes for row in e.rows[1:])
    total = ZERO
    if k == 0 and not hidden:
        for i, e in enumerate(log.episodes):
            total += _slope(lambda x, i=i: value(log, k, starts=lambda j, _: ONE + x * (j == i)))
            for t in range(len(e.rows)):
                total += _slope(
                    lambda x, at=(i, t): value(log, k, rows=lambda *row: ONE + x * (row == at))
                )
        return total
    for i in range(len(log.episodes)):
        total += _slope(lambda x, i=i: value(log, k, *[lambda j, _: ONE + x * (j == i)] * 2))
    return total


def _slope(f: Callable[[Fraction], Fraction]) -> Fraction:
    return ((f(SMALL) - f(-SMALL)) / (2 * SMALL)) ** 2
