"""Verdicts of many replicates at once, from the gates' values that the cells hold.

The rules are those of `trust/gates.py` and `trust/diagnose.py`, for arrays, so that other
limits can be tried without running the study again. A test holds both to the same levels. By how
much a placebo is off the cells do not hold: here it is red by its errors alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from reweigh.estimate.recipe import Model
from reweigh.evaluation.basis import AGREES
from reweigh.trust.diagnose import silent_on
from reweigh.trust.limits import HINTS, LIMITS, Limit, kind_of, limit_of
from reweigh_studies.coverage.measures import (
    APART,
    DEPENDENCE,
    GATE,
    LOG,
    LOG_GATES,
    SIZE,
    VALUE,
    column,
    recipe_of,
)

Floats = npt.NDArray[np.float64]
Levels = npt.NDArray[np.int64]
Columns = Mapping[str, Floats]
REFUSED, GREEN, AMBER, RED = -1, 0, 1, 2


def gate_levels(
    columns: Columns, name: str, n: int, limits: Mapping[str, Limit] = LIMITS
) -> dict[str, Levels]:
    """(R,) the level of every gate of an estimator; a gate without a value is green."""
    recipe = recipe_of(name)
    values = {
        gate: columns[column(name, GATE, gate)]
        for gate in limits
        if column(name, GATE, gate) in columns
    }
    if kind_of(recipe) == "model" and column(name, SIZE) in columns:
        values["effective size"] = columns[column(name, SIZE)]  # older cells hold it as no gate
    speaking = set(LOG_GATES) - silent_on(recipe)
    for gate in sorted(speaking):
        if column(LOG, GATE, gate) in columns:
            values[gate] = columns[column(LOG, GATE, gate)]
    tail = limits["Pareto k"]
    usual = min(1 - 1 / math.log10(max(n, 11)), tail.amber if tail.amber is not None else math.inf)
    from_model = isinstance(recipe.weights, Model)
    kind = kind_of(recipe)
    found = {
        gate: judged(
            value,
            replace(tail, amber=usual) if gate == "Pareto k" else limit_of(gate, kind, limits),
        )
        for gate, value in values.items()
    }
    if "history" in found:  # not red where the estimate agrees with one that needs no state
        agrees = _column(columns, name, APART) <= AGREES
        found["history"] = np.where(agrees, np.minimum(found["history"], AMBER), found["history"])
    if "total mass" in found:  # a hint, never more
        found["total mass"] = np.minimum(found["total mass"], AMBER)
    softened = not from_model and recipe.normalize != "state"
    if "rare states" in found and softened:  # red only with few effective episodes
        size = np.nan_to_num(_column(columns, name, SIZE))
        few = judged(size, limits["effective size"]) == RED
        found["rare states"] = np.where(
            few, found["rare states"], np.minimum(found["rare states"], AMBER)
        )
    depends = np.full(len(columns[column(name, VALUE)]), GREEN)
    if DEPENDENCE in found:  # not to know is as if it were so
        unknown = np.isnan(values[DEPENDENCE]) & np.isfinite(columns[column(name, VALUE)])
        depends = found[DEPENDENCE] = np.where(unknown, AMBER, found[DEPENDENCE])
    low = columns.get(column(name, "auto", "low"))
    if low is not None:  # without an interval it is amber, unless dependence says why
        found["interval"] = np.where(np.isnan(low) & (depends == GREEN), AMBER, GREEN)
    return found


def verdicts(columns: Columns, name: str, n: int, limits: Mapping[str, Limit] = LIMITS) -> Levels:
    """(R,) the worst level of an estimator's gates, REFUSED where it gave no value."""
    levels = gate_levels(columns, name, n, limits)
    value = columns[column(name, VALUE)]
    told = (level for gate, level in levels.items() if gate not in HINTS)
    worst = np.max([np.full(len(value), GREEN), *told], axis=0)
    return np.where(np.isfinite(value), worst, REFUSED)


def _column(columns: Columns, name: str, part: str) -> Floats:
    """nan throughout for an estimator that never answered."""
    none = np.full(len(columns[column(name, VALUE)]), np.nan)
    return columns.get(column(name, part), none)


def judged(values: Floats, limit: Limit) -> Levels:
    """`Limit.judge` of each; nan is green."""
    level = np.full(len(values), GREEN)
    for at, name in ((limit.amber, AMBER), (limit.red, RED)):
        if at is not None:
            level[values > at if limit.above else values < at] = name
    return level
