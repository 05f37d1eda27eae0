"""Verdicts of many replicates at once, from the gates' values that the cells hold.

The rules are those of `trust/gates/`, for arrays, so that other
limits can be tried without running the study again. A test holds both to the same levels. By how
much a placebo is off the cells do not hold: here it is red by its errors alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from reweigh.trust.gates import GATES, LIMITS, Limit
from reweigh_studies.coverage.measures import (
    AGREES,
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
HINTS = {gate.name for gate in GATES if gate.hint}


def limit_of(gate: str, kind: str, limits: Mapping[str, Limit] = LIMITS) -> Limit:
    """The limit of a gate for estimators of this kind (`Recipe.limits`), among these."""
    return limits.get(f"{gate}, {kind}", limits[gate])


def gates_of_log(name: str) -> set[str]:
    """The gates of the log that concern an estimator."""
    traits = recipe_of(name).traits
    return {g.name for g in GATES if g.name in LOG_GATES and g.concerns(traits)}


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
    if recipe.limits == "model" and column(name, SIZE) in columns:
        values["effective size"] = columns[column(name, SIZE)]  # older cells hold it as no gate
    for gate in sorted(gates_of_log(name)):
        if column(LOG, GATE, gate) in columns:
            values[gate] = columns[column(LOG, GATE, gate)]
    tail = limits["Pareto k"]
    usual = min(1 - 1 / math.log10(max(n, 11)), tail.amber if tail.amber is not None else math.inf)
    found = {
        gate: judged(
            value,
            replace(tail, amber=usual)
            if gate == "Pareto k"
            else limit_of(gate, recipe.limits, limits),
        )
        for gate, value in values.items()
    }
    if "history" in found:  # not red where the estimate agrees with one that needs no state
        agrees = _column(columns, name, APART) <= AGREES
        found["history"] = np.where(agrees, np.minimum(found["history"], AMBER), found["history"])
    if "total mass" in found:  # a hint, never more
        found["total mass"] = np.minimum(found["total mass"], AMBER)
    softened = not recipe.traits & {"model", "within states"}
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
    if low is not None:  # without an interval it is amber, unless dependence has the reason
        found["interval"] = np.where(np.isnan(low) & (depends == GREEN), AMBER, GREEN)
    return found


def verdicts(columns: Columns, name: str, n: int, limits: Mapping[str, Limit] = LIMITS) -> Levels:
    """(R,) the worst level of an estimator's gates, REFUSED where it gave no value."""
    levels = gate_levels(columns, name, n, limits)
    value = columns[column(name, VALUE)]
    deciding = (level for gate, level in levels.items() if gate not in HINTS)
    worst = np.max([np.full(len(value), GREEN), *deciding], axis=0)
    return np.where(np.isfinite(value), worst, REFUSED)


def _column(columns: Columns, name: str, part: str) -> Floats:
    """all nan for an estimator that always refused."""
    none = np.full(len(columns[column(name, VALUE)]), np.nan)
    return columns.get(column(name, part), none)


def judged(values: Floats, limit: Limit) -> Levels:
    """`Limit.judge` of each; nan is green."""
    level = np.full(len(values), GREEN)
    for at, name in ((limit.amber, AMBER), (limit.red, RED)):
        if at is not None:
            level[values > at if limit.above else values < at] = name
    return level
