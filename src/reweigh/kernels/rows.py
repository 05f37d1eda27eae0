"""From a log's rows: gradients by cell gathered over each episode, marks that identify logs; and
the stream's inner loops, columns of a batch as codes, checked, and put time-major.

Those loops go over columns and have no way out, which processors do several rows at a time: the
code that reads logs finds the faulty row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from reweigh.kernels import FOLD, HIDDEN, LARGE, MARKS, MIX, SPREAD, START, UNKNOWN
from reweigh.kernels.common import Array, compiled
from reweigh.kernels.ingest import EPISODES, STEPS, _across
from reweigh.kernels.vectors import prefetch

AHEAD = 24  # rows: how much earlier a cell is prefetched
U1, U2, U3, U4 = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
Word = np.uint64


@compiled
def gather_cells(
    offsets: Array, state: Array, action: Array, ending: Array, rho: Array, reward: Array,
    states: int, actions: int, place: Array, derivatives: Array, start: Array, psi: Array,
) -> None:  # fmt: skip
    """Adds to psi (n,) what the rows of each episode add to a value (sums/gather.py).

    place        the cell of each key ((t·S + s)·A + a)·S + s', all codes counted from START, and
                 without the action where A is 0
    derivatives  by cell, of the count, Σρ, Σz and Σy; start: of the count of the first state; 0 at
                 the last one, for keys that have none
    """
    horizon, none = len(offsets) - 1, len(start) - 1
    cells = np.empty(len(psi) + AHEAD, np.uint64)
    cells[:] = 0
    for t in range(horizon):
        low, high = offsets[t], offsets[t + 1]
        going = offsets[t + 2] - high if t + 1 < horizon else 0
        for k in range(high - low):
            after = state[high + k] if k < going else ending[k]
            after = UNKNOWN if after == HIDDEN else after
            key = np.int64(t) * states + state[low + k] - START
            if actions > 0:
                key = key * actions + action[low + k] + 1
            key = key * states + after - START
            cells[k] = place[np.uint64(key)] if key < len(place) else none
        for k in range(high - low):
            prefetch(derivatives, U4 * cells[k + AHEAD])
            r, y, at = rho[low + k], reward[low + k], U4 * cells[k]
            z = r * y
            psi[k] += (derivatives[at] + derivatives[at + U1] * r) + (
                derivatives[at + U2] * z + derivatives[at + U3] * y
            )
        if t == 0:
            for k in range(high - low):
                psi[k] += start[cells[k]]


@compiled
def fraction(x: float) -> float:
    return x - np.floor(x)  # type: ignore[no-any-return]


@compiled
def row_marks(offsets: Array, reward: Array, mu: Array) -> int:
    """Σ of the marks of time-major rows, of which 0 < μ ≤ 1 (log/steps.py has the equations)."""
    total = np.int64(0)
    for t in range(len(offsets) - 1):
        for k in range(offsets[t], offsets[t + 1]):
            y = reward[k] if abs(reward[k]) < LARGE else reward[k] * FOLD
            y = y if abs(y) < LARGE else y * FOLD
            of_reward = fraction((y if abs(y) < LARGE else 0.0) * SPREAD)
            of_mu = fraction(mu[k] * SPREAD)
            d = fraction((of_reward + 1.0) * (of_mu + (float(t) + 2.0)) * SPREAD)
            # by way of 32 bits, which processors convert several at a time
            total += np.int64(np.int32(fraction(d * d * MIX) * MARKS))
    return int(total)


@compiled
def narrow(values: Any, low: int, limit: int, codes: Any) -> bool:
    """codes = values - low; whether all are in 0..limit-1."""
    bad = False
    for i in range(len(values)):
        code = values[i] - low
        bad |= bool(Word(code) >= Word(limit))  # as unsigned numbers, those below 0 are large
        codes[i] = code
    return not bad


@compiled
def copied(values: Any, least: float, most: float, numbers: Any) -> bool:
    """numbers = values; whether all are in least..most. NaN is not."""
    bad = False
    for i in range(len(values)):
        x = values[i]
        bad |= not ((x >= least) & (x <= most))
        numbers[i] = x
    return not bad


@compiled
def in_sequence(episode: Any, step: Any, before: Any, first: Any) -> bool:
    """Whether every row takes the next step of its episode, or step 0 of another one, `before`
    being the episode and the step of the row before them; `first` says which are at step 0."""
    same, expected = episode[0] == before[0], before[1] + 1
    bad = not ((same & (step[0] == expected)) | ((not same) & (step[0] == 0)))
    first[0] = step[0] == 0
    for i in range(len(episode) - 1):
        begins = step[i + 1] == 0
        same = episode[i + 1] == episode[i]
        bad |= not ((same & (step[i + 1] == step[i] + 1)) | ((not same) & begins))
        first[i + 1] = begins
    return not bad


@compiled
def links_hold(first: Any, state: Any, next_state: Any, ended: Any, cut: Any) -> bool:
    """Whether no row follows one that ends its episode, and next states are those of the next rows;
    a column that is not there is empty."""
    bad = False
    for i in range(len(ended) - 1):
        bad |= ended[i] & (not first[i + 1])
    for i in range(len(cut) - 1):
        bad |= cut[i] & (not first[i + 1])
    for i in range(len(next_state) - 1):
        bad |= (not first[i + 1]) & (next_state[i] != state[i + 1])
    return not bad


@compiled
def mark(present: Any, codes: Any) -> None:
    """Which codes there are; nothing to do once all have been seen."""
    if present.all():
        return
    for i in range(len(codes)):
        if codes[i] >= 0:
            present[Word(codes[i])] = True


@compiled
def put_time_major(values: Any, starts: Any, lengths: Any, offsets: Any, rows: Any) -> None:
    """rows[offsets[t] + k] = values[starts[k] + t] for t < lengths[k]; the lengths fall."""
    places, counts = np.zeros(EPISODES, np.uint64), np.zeros(EPISODES, np.int64)
    for k0 in range(0, len(starts), EPISODES):
        k1 = min(k0 + EPISODES, len(starts))
        for t0 in range(0, lengths[k0], STEPS):
            for k in range(k0, k1):
                places[k - k0] = Word(starts[k] + t0)
                counts[k - k0] = min(max(lengths[k] - t0, 0), STEPS)
            _across(values, places, counts, k1 - k0, rows, offsets[t0:], Word(k0))
