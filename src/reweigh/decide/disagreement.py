"""Estimates of one target on one log that differ by more than chance allows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.special import stdtrit

from reweigh.evaluation.result import Estimate, Refusal
from reweigh.system.numbers import two_digits

BY_CHANCE = 0.01  # of all the differences together


def disagreement(results: Sequence[Estimate | Refusal]) -> str | None:
    """Which estimates differ from the first, in words, None where none does.

    Differences are paired: their errors come from the influence values of the same episodes, each
    for a share of BY_CHANCE. Sums hold no episodes: there an error of a difference is not known,
    but it is at most both errors together, and what is beyond that is told. Nothing is said of
    estimates without an error, or whose episodes show no spread.
    """
    estimates = [result for result in results if isinstance(result, Estimate)]
    if len(estimates) < 2 or estimates[0].n_episodes < 2:
        return None
    first, *others = estimates
    critical = float(stdtrit(first.n_episodes - 1, 1 - BY_CHANCE / 2 / len(others)))
    found = []
    for other in others:
        apart, words = other.value - first.value, "joint error"
        error = first.grounds.joint_error(other.grounds)
        if error is None:
            error = (first.standard_error or math.nan) + (other.standard_error or math.nan)
            words = "joint error at most"
        if 0 < error < math.inf and abs(apart) > critical * error:
            found.append(f"{other.estimator} by {apart:+.4g} ({words} {two_digits(error)})")
    if not found:
        return None
    return (
        f"more than chance allows differ from {first.estimator}: {', '.join(found)}. Some of these "
        "are biased here, or their errors are not to be trusted: see the verdicts"
    )
