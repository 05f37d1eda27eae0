"""The Poisson bootstrap of MIS over episodes: exact re-weighting, 64 replicates in one pass.

In a replicate episode i occurs n_i ~ Poisson(1) times, for large n the same as drawing n episodes
with replacement. The draws are a function of (seed, episode, replicate), so that a replicate is
the same whatever the number of replicates or of threads; its value is that of MIS on the log in
which the episodes are repeated, to rounding.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError, must_be
from reweigh.estimators.direct import MODES, Rows, observed
from reweigh.estimators.recipe import Marginal, Recipe
from reweigh.logs.log import EpisodeLog
from reweigh.moments.compute import pick
from reweigh.policies.base import Policy

Floats = npt.NDArray[np.float64]
BLOCK = 64  # as in moments/kernels/resample.py


def bootstrap_values(
    log: EpisodeLog,
    target: Policy,
    recipe: Recipe,
    replicates: int = 1000,
    *,
    seed: int = 0,
    threads: int = 1,
) -> Floats:
    """(replicates,) values of MIS on resampled episodes; NaN where a resampled log says nothing
    about the target. Their standard deviation estimates the standard error."""
    if recipe.weights != Marginal() or recipe.reward != "logged" or recipe.control is not None:
        raise RefusedError(
            "bootstrap", f"the bootstrap is that of mis, mis-plain and mis-state, not {recipe.name}"
        )
    if not observed(log):
        raise RefusedError(
            "bootstrap", "the bootstrap needs every state observed and behaviour probabilities"
        )
    for name, given, least in (
        ("replicates", replicates, 1),
        ("seed", seed, 0),
        ("threads", threads, 1),
    ):
        if not isinstance(given, int) or not least <= given < 2**63:
            raise must_be(name, f"a whole number from {least} on", given)
    rows = Rows.of(log, target, recipe.max_ratio)
    mode, size = MODES[recipe.normalize], rows.steps.n_rows * BLOCK
    draw, run = pick("resample.draw", size), pick("resample.replicate", size)
    g = log.steps.start_value

    def values(block: int) -> Floats:
        counts = np.empty((log.n_episodes, BLOCK), np.uint8)
        draw(seed, block, THRESHOLDS, counts)
        made = np.empty(BLOCK)
        with np.errstate(over="ignore", invalid="ignore"):
            run(*rows.columns, rows.gamma, mode, rows.width, counts, made)
            return made if g is None else made + (g @ counts) / counts.sum(axis=0)

    blocks = range(-(-replicates // BLOCK))
    if threads == 1:
        made = [values(block) for block in blocks]
    else:
        with ThreadPoolExecutor(threads) as pool:
            made = list(pool.map(values, blocks))
    return np.concatenate(made)[:replicates]


def _thresholds() -> npt.NDArray[np.uint64]:
    """2^64 P(X ≤ j) of X ~ Poisson(1): a random 64-bit number passes X of them."""
    found: list[int] = []
    below, j = 0.0, 0
    while True:
        below += math.exp(-1.0) / math.factorial(j)
        if int(below * 2**64) >= 2**64 or (found and int(below * 2**64) <= found[-1]):
            return np.array(found, np.uint64)
        found.append(int(below * 2**64))
        j += 1


THRESHOLDS = _thresholds()
