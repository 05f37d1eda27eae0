"""The stream's inner loops: columns of a batch as codes, checked, and put time-major.

Every loop goes over columns and has no way out of it, which processors do several rows at a time.
Which row is at fault, the code that reads logs finds out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from reweigh.kernels.common import compiled
from reweigh.kernels.ingest import EPISODES, STEPS, _across
from reweigh.log.rules import LARGEST_REWARD, LEAST_PROBABILITY

Word = np.uint64


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
def in_range(reward: Any, mu: Any) -> bool:
    """Whether rewards and behavior probabilities are as in the contract; NaN fails."""
    bad = False
    for i in range(len(mu)):
        fine = (mu[i] >= LEAST_PROBABILITY) & (mu[i] <= 1.0)
        bad |= not (fine & (abs(reward[i]) <= LARGEST_REWARD))
    return not bad


@compiled
def in_sequence(episode: Any, step: Any) -> bool:
    """Whether every row takes the next step of its episode, or step 0 of another one."""
    bad = step[0] != 0
    for i in range(len(episode) - 1):
        same = episode[i + 1] == episode[i]
        bad |= not ((same & (step[i + 1] == step[i] + 1)) | ((not same) & (step[i + 1] == 0)))
    return not bad


@compiled
def links_hold(step: Any, state: Any, next_state: Any, ended: Any, cut: Any) -> bool:
    """Whether no row follows one that ends its episode, and next states are those of the next rows;
    a column that is not there is empty."""
    bad = False
    for i in range(len(ended) - 1):
        bad |= ended[i] & (step[i + 1] != 0)
    for i in range(len(cut) - 1):
        bad |= cut[i] & (step[i + 1] != 0)
    for i in range(len(next_state) - 1):
        bad |= (step[i + 1] != 0) & (next_state[i] != state[i + 1])
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
