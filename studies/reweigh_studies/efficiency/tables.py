"""From cells to a table: a row for every world, size and contender."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

import numpy as np

from reweigh.errors import ReweighError
from reweigh.paper.cells import CellResult
from reweigh.theory.exact import quantities
from reweigh.worlds.benchmark_worlds import ICUSepsis
from reweigh.worlds.tabular import TabularMDP
from reweigh_studies.coverage.measures import LEVELS, VALUE, column
from reweigh_studies.coverage.tables import Floats, Row, columns_of, share
from reweigh_studies.efficiency.cells import (
    AUTO,
    COLOR,
    CONTENDERS,
    INTERVAL,
    LOG,
    SECONDS,
    STANDARD,
    TAKEN,
    EfficiencyCell,
)
from reweigh_studies.efficiency.worlds import WORLDS, half_of
from reweigh_studies.memory.rule import ratio_of_rmse, rmse

NAMES = (
    "world", "group", "half", "horizon", "n", "replicates", "estimator", "v_target", "v_behavior",
    "rmse", "relative", "mc_relative", "of_mis", "mc_of_mis", "of_bound", "bias", "bias_over_sd",
    "mc_bias_over_sd", "chosen", "coverage", "mc_error", "green", "amber", "red",
    "green_replicates", "coverage_green", "mc_green", "refused", "seconds",
)  # fmt: skip
MOST_REFUSED = 0.05  # of the logs, for the best of a cell


@cache
def bound(world: str) -> float | None:
    """The Cramér–Rao bound on n times the variance, where theory has it and tables are small."""
    of = WORLDS[world].world()
    if not isinstance(of, TabularMDP) or isinstance(of, ICUSepsis):
        return None
    try:
        return quantities(of).cramer_rao
    except ReweighError:  # hidden states
        return None


def best_of(errors: Mapping[str, Floats]) -> str:
    """The estimator of STANDARD with the smallest RMSE, of those that nearly always answer."""
    known = {
        name: rmse(errors[name][np.isfinite(errors[name])])
        for name in STANDARD
        if np.isnan(errors[name]).mean() <= MOST_REFUSED
    }
    return min(known, key=lambda name: known[name])


def rows_of(cell: EfficiencyCell, result: CellResult) -> list[Row]:
    """A row for every contender."""
    columns, (truth, logged) = columns_of(result), cell.of.truth()
    none = np.full(result.replicates, math.nan)

    def part(name: str, *of: str) -> Floats:
        return columns.get(column(name, *of), none)

    errors = {name: part(name, VALUE) - truth for name in CONTENDERS}
    best, least, taken = errors[best_of(errors)], bound(cell.world), part(AUTO, TAKEN)
    about = {
        "world": cell.world,
        "group": cell.of.group,
        "half": half_of(cell.world),
        "horizon": cell.of.horizon,
        "n": cell.n,
        "replicates": result.replicates,
        "v_target": truth,
        "v_behavior": logged,
        "seconds": float(columns[column(LOG, SECONDS)].mean()),
    }
    found = []
    for name in CONTENDERS:
        row: Row = about | {"estimator": name} | _errors(errors[name], best, errors["mis"])
        if least and row["rmse"] is not None:
            row["of_bound"] = row["rmse"] / math.sqrt(least / cell.n)
        if name in STANDARD:
            row["chosen"] = float(np.mean(taken == STANDARD.index(name)))
        if name == AUTO:  # another memory
            row["chosen"] = float(np.mean(taken == len(STANDARD)))
        ends = (part(name, INTERVAL, "low"), part(name, INTERVAL, "high"))
        found.append(row | _colors(truth, *ends, part(name, COLOR)))
    return found


def _errors(error: Floats, best: Floats, mis: Floats) -> Row:
    known = error[np.isfinite(error)]
    row: Row = {"refused": 1 - len(known) / len(error)}
    if len(known) < 2:
        return row | dict.fromkeys(("rmse", "relative", "of_mis", "bias", "bias_over_sd"))
    relative, of_mis, sd = ratio_of_rmse(error, best), ratio_of_rmse(error, mis), known.std(ddof=1)
    numbers = {
        "rmse": rmse(known),
        "relative": relative[0],
        "mc_relative": relative[1],
        "of_mis": of_mis[0],
        "mc_of_mis": of_mis[1],
        "bias": float(known.mean()),
        "bias_over_sd": float(known.mean() / sd) if sd > 0 else math.nan,
        "mc_bias_over_sd": 1 / math.sqrt(len(known)),
    }
    return row | {name: x if math.isfinite(x) else None for name, x in numbers.items()}


def _colors(truth: float, low: Floats, high: Floats, level: Floats) -> Row:
    there = np.isfinite(low) & np.isfinite(high)
    covered = (low <= truth) & (truth <= high)
    row: Row = {color: float(np.mean(level == place)) for place, color in enumerate(LEVELS)}
    if np.isnan(level).all():  # the logged mean has no verdict
        row = dict.fromkeys(LEVELS)
    green = there & (level == LEVELS.index("green"))
    row["coverage"], row["mc_error"] = share(covered[there])
    row["green_replicates"] = int(green.sum())
    row["coverage_green"], row["mc_green"] = share(covered[green])
    return row
