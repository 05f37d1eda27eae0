"""Estimates of one target on one log that differ by more than chance allows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from reweigh.errors import RefusedError
from reweigh.evaluation.result import Estimate, Refusal
from reweigh.system.number_format import two_digits
from reweigh.trust.joint import Joint

BY_CHANCE = 0.01  # of all the differences together


def disagreement(results: Sequence[Estimate | Refusal]) -> str | None:
    """Which estimates differ from the first, in words, None where none does.

    Differences are paired: their errors come from the influence values of the same episodes, each
    for a share of BY_CHANCE. Sums hold no episodes: there an error of a difference is not known,
    but it is at most both errors together, and what is beyond that is told. Nothing is said of
    estimates without an error, or whose episodes show no spread.
    """
    told = [(result, _influence(result)) for result in results if isinstance(result, Estimate)]
    if len(told) < 2 or told[0][0].n_episodes < 2:
        return None
    (first, own), *others = told
    critical = float(stats.t.ppf(1 - BY_CHANCE / 2 / len(others), first.n_episodes - 1))
    found = []
    for other, psi in others:
        apart = other.value - first.value
        if own is not None and psi is not None:
            if len(psi) != len(own):
                continue
            of = np.stack([psi, own], axis=1)
            with np.errstate(over="ignore", invalid="ignore"):  # no number is no error either
                [error] = Joint.of(of, 1, 0).errors(np.array([[1.0, -1.0]]))
            words = "joint error"
        else:
            error = (first.standard_error or math.nan) + (other.standard_error or math.nan)
            words = "joint error at most"
        if 0 < error < np.inf and abs(apart) > critical * error:
            found.append(f"{other.estimator} by {apart:+.4g} ({words} {two_digits(error)})")
    if not found:
        return None
    return (
        f"more than chance allows differ from {first.estimator}: {', '.join(found)}. Some of these "
        "are biased here, or their errors are not to be trusted: see the verdicts"
    )


def _influence(result: Estimate) -> np.ndarray | None:
    try:
        return result.grounds.influence()
    except RefusedError:
        return None
