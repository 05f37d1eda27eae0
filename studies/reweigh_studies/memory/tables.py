"""From cells of the study of memory to its tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict

import numpy as np

from reweigh.estimate.memory_rows import LEAST_SIZE
from reweigh.evaluation import memories
from reweigh.paper.cells import CellResult
from reweigh_studies.coverage.measures import LEVELS, VALUE, column
from reweigh_studies.coverage.tables import Row, columns_of, share
from reweigh_studies.memory.cells import (
    COLOR,
    INTERVAL,
    LOG,
    MIS,
    SECONDS,
    WIS,
    MemoryCell,
    name_of,
)
from reweigh_studies.memory.rule import (
    ENOUGH,
    Columns,
    Floats,
    Tried,
    all_tried,
    best_fixed,
    chosen,
    of_memory,
    picked,
    ratio_of_rmse,
    rmse,
)
from reweigh_studies.memory.worlds import half_of

AUTO = "auto"
NAMES = (
    "world", "group", "half", "horizon", "n", "replicates", "estimator", "memory", "v_target",
    "rmse", "mc_rmse", "bias", "relative", "mc_relative", "of_mis", "mc_of_mis", "chosen",
    "coverage", "mc_error", "green", "amber", "red", "green_replicates", "coverage_green",
    "mc_green", "refused", "seconds",
)  # fmt: skip
RULE = ("alike", "least", "score", "worst", "relative")
TOLD = (VALUE, f"{INTERVAL} low", f"{INTERVAL} high", COLOR)


def rows_of(
    cell: MemoryCell,
    result: CellResult,
    least: float = LEAST_SIZE,
    alike: float = memories.ALIKE,
) -> list[Row]:
    """A row for every memory, for the choice, for MIS and for WIS."""
    columns, (truth, _) = columns_of(result), cell.of.truth()
    taken = chosen(cell, columns, least, alike)
    summaries = {part: of_memory(cell, columns, *part.split()) for part in TOLD}
    best = summaries[VALUE][best_fixed({k: v - truth for k, v in summaries[VALUE].items()})] - truth
    none = np.full(len(taken), math.nan)
    entries: dict[str, tuple[int | None, dict[str, Floats]]]
    entries = {name_of(k): (k, {part: summaries[part][k] for part in TOLD}) for k in cell.memories}
    entries[AUTO] = None, {part: picked(taken, summaries[part]) for part in TOLD}
    for name in (MIS, WIS):
        entries[name] = None, {part: columns.get(column(name, part), none) for part in TOLD}
    about = {
        "world": cell.world,
        "group": cell.of.group,
        "half": half_of(cell.world),
        "horizon": cell.of.horizon,
        "n": cell.n,
        "replicates": result.replicates,
        "v_target": truth,
        "seconds": float(columns[column(LOG, SECONDS)].mean()),
    }
    mis = columns[column(MIS, VALUE)] - truth
    found = []
    for name, (memory, own) in entries.items():
        row = about | {"estimator": name, "memory": memory} | _errors(own[VALUE] - truth, best, mis)
        row |= _colors(truth, *(own[part] for part in TOLD[1:]))
        found.append(row if memory is None else row | {"chosen": float(np.mean(taken == memory))})
    return found


def _errors(error: Floats, best: Floats, mis: Floats) -> Row:
    known = error[np.isfinite(error)]
    relative, of_mis = ratio_of_rmse(error, best), ratio_of_rmse(error, mis)
    size = rmse(error)
    # of sqrt(mean e²): sd(e²)/(2 sqrt(R) RMSE)
    spread = float(np.std(known**2, ddof=1)) if len(known) > 1 else math.nan
    numbers = {
        "rmse": size,
        "mc_rmse": spread / (2 * math.sqrt(len(known)) * size) if size > 0 else math.nan,
        "bias": float(known.mean()) if len(known) else math.nan,
        "relative": relative[0],
        "mc_relative": relative[1],
        "of_mis": of_mis[0],
        "mc_of_mis": of_mis[1],
    }
    known_ones: Row = {name: None if math.isnan(x) else x for name, x in numbers.items()}
    return known_ones | {"refused": 1 - len(known) / len(error)}


def _colors(truth: float, low: Floats, high: Floats, level: Floats) -> Row:
    there = np.isfinite(low) & np.isfinite(high)
    covered = (low <= truth) & (truth <= high)
    green = there & (level == LEVELS.index("green"))
    row: Row = {color: float(np.mean(level == place)) for place, color in enumerate(LEVELS)}
    row["coverage"], row["mc_error"] = share(covered[there])
    row["green_replicates"] = int(green.sum())
    row["coverage_green"], row["mc_green"] = share(covered[green])
    return row


def setting_cells(results: Mapping[MemoryCell, CellResult]) -> dict[MemoryCell, Columns]:
    """Those on which limits are set."""
    return {
        cell: columns_of(result)
        for cell, result in results.items()
        if half_of(cell.world) == "setting" and result.replicates >= ENOUGH
    }


def rule_rows(results: Mapping[MemoryCell, CellResult]) -> list[Row]:
    """Every pair of limits on the setting half."""
    cells = setting_cells(results)
    pairs: Iterable[Tried] = all_tried(cells) if cells else ()
    return [asdict(pair) for pair in pairs]
