"""Logs in which episodes count more than once, and derivatives by the number of times."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

import reweigh as rw
from reweigh.estimate.marginal import Marginal

FOLDS = 10  # two and five of split and cross-fitted estimators divide it
VARIANTS = {
    "mis-averaged": rw.mis(reward="averaged"),
    "mis-state-averaged": rw.mis("state", reward="averaged"),
    "mis-pooled-reward": rw.mis(reward="pooled"),
    "mis-pooled-plain": rw.mis("none", True),
    "mis-pooled-state": rw.mis("state", True),
    "mis-all-pooled": rw.mis(pooled=True, reward="pooled"),
    "mis-all-pooled-state": rw.mis("state", True, "pooled"),
    "mdr-in-sample": rw.mdr("in-sample"),
    "mdr-in-sample-pooled": replace(rw.mdr("in-sample"), weights=Marginal(pooled=True)),
    "dr-clipped": rw.dr(max_ratio=0.8),
    "mis-clipped": rw.mis(max_ratio=0.8),
}


def repeated(log: rw.EpisodeLog, counts: np.ndarray) -> rw.EpisodeLog:
    """The log with episode i `counts[i]` times, each copy in the fold (by its id) of the first."""
    steps = log.steps
    rows = np.concatenate(
        [
            np.repeat(np.arange(int(a), int(b)), counts[: int(b - a)])
            for a, b in itertools.pairwise(steps.offsets)
        ]
    )
    alive = [counts[: int(b - a)].sum() for a, b in itertools.pairwise(steps.offsets)]
    fold = steps.episode_hash % FOLDS
    ids = [_ids(k) for k in range(FOLDS)]
    g = steps.start_value
    made = replace(
        steps,
        offsets=np.concatenate([[0], np.cumsum(alive)]).astype(np.int64),
        state=steps.state[rows],
        action=steps.action[rows],
        reward=steps.reward[rows],
        behavior_prob=None if steps.behavior_prob is None else steps.behavior_prob[rows],
        ending=np.repeat(steps.ending, counts),
        truncated=np.repeat(steps.truncated, counts),
        episode=np.array([next(ids[k]) for k in np.repeat(fold, counts)]),
        source_rows=steps.source_row[rows],
        start_value=None if g is None else np.repeat(g, counts),
    )
    return replace(log, steps=made, _cache={})


def _ids(fold: int) -> Iterator[int]:
    for number in itertools.count():
        if int(hashlib.md5(str(number).encode()).hexdigest()[:8], 16) % FOLDS == fold:
            yield number


def derivative(
    value: Callable[[rw.EpisodeLog], float], log: rw.EpisodeLog, by: np.ndarray, copies: int = 30
) -> float:
    """Σ_i by_i ∂v/∂ω_i at ω = 1, to about 1/copies⁴: episodes count 1 ± by/K times, K = copies and
    2 copies (on logs of K ± by copies), and Richardson's extrapolation takes the error of 1/K²."""

    def central(times: int) -> float:
        above, below = (value(repeated(log, times + sign * by)) for sign in (1, -1))
        return (above - below) * times / 2

    coarse, fine = central(copies), central(2 * copies)
    return fine + (fine - coarse) / 3
