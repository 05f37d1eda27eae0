"""How sure an estimate is where the propensities were estimated from its own episodes: the error
is that of the influence values with what the fit adds (`estimate/estimated_propensities.py`)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from reweigh.errors import RefusedError
from reweigh.estimate.estimator import Recipe, Solution
from reweigh.estimate.standard_error import Freedom
from reweigh.evaluation.data import LogData, RowsData
from reweigh.evaluation.uncertainty import EstimateUncertainty, RowsInfluence, influences_of

IGNORED = "; ignores that the behavior was estimated"
INCLUDED = "; includes that the behavior was estimated"


def includes_fit(data: LogData, recipe: Recipe, dropped: bool) -> bool:
    """Whether the influence values of an estimator hold what the fit of the propensities adds."""
    if not isinstance(data, RowsData) or data.rows(dropped)[0].behavior_fit is None:
        return False
    influences = influences_of(data, dropped)
    assert isinstance(influences, RowsInfluence)
    try:
        return influences.of_fit(recipe) is not None
    except RefusedError:
        return False


@dataclass(frozen=True, eq=False)
class FittedUncertainty(EstimateUncertainty):
    """The corrections for small samples are those of the error that ignores the fit."""

    @classmethod
    def of(
        cls, data: LogData, recipe: Recipe, solution: Solution, dropped: bool, **known: Any
    ) -> EstimateUncertainty:
        plain = super().of(data, recipe, solution, dropped, **known)
        assert isinstance(plain, cls)
        n, before = plain.n_episodes, plain.freedom
        try:
            error = math.sqrt(plain.draws().square)
            widened = plain.cluster_error()
        except RefusedError as refused:
            return replace(plain, error=None, freedom=None, error_method=refused.reason)
        freedom = Freedom(widened, n - 1)
        if before is not None and solution.standard_error:
            freedom = Freedom(error * before.error / solution.standard_error, before.df)
        return replace(plain, error=error, error_method="influence values", freedom=freedom)


def of_fitted(
    data: LogData, recipe: Recipe, dropped: bool
) -> tuple[type[EstimateUncertainty], str]:
    """The uncertainty of an estimate with estimated propensities, and the note beside it."""
    if includes_fit(data, recipe, dropped):
        return FittedUncertainty, INCLUDED
    return EstimateUncertainty, IGNORED
