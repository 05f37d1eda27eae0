"""From cells of the study of verdicts to its tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.paper.cells import CellResult
from reweigh.trust.gates.gate import ORDER
from reweigh_studies.coverage.measures import LEVELS, VALUE, column
from reweigh_studies.coverage.tables import Row, columns_of, share
from reweigh_studies.verdicts.cells import (
    COLOR,
    ERROR,
    ESTIMATORS,
    FIRED,
    INTERVAL,
    LOG,
    SECONDS,
    VerdictCell,
)
from reweigh_studies.verdicts.worlds import half_of

Floats = npt.NDArray[np.float64]
BY_COLOR = tuple(
    name for c in LEVELS for name in (c, f"{c}_replicates", f"coverage_{c}", f"mc_{c}")
)
NAMES = (
    "world", "group", "half", "horizon", "n", "replicates", "estimator", "v_target", "bias",
    "sd", "error", "refused", "coverage", "mc_error", *BY_COLOR, "seconds",
)  # fmt: skip
GATES = ("world", "n", "estimator", "gate", "amber", "red", "alone")


def rows_of(cell: VerdictCell, result: CellResult) -> list[Row]:
    """A row for every estimator. Shares are of all logs, coverages of those with an interval."""
    columns, (truth, _) = columns_of(result), cell.of.truth()
    none = np.full(result.replicates, math.nan)

    def get(name: str, *parts: str) -> Floats:
        return columns.get(column(name, *parts), none)

    found = []
    for name in ESTIMATORS:
        value, level = get(name, VALUE), get(name, COLOR)
        low, high = get(name, INTERVAL, "low"), get(name, INTERVAL, "high")
        there = np.isfinite(low) & np.isfinite(high)
        covered = (low <= truth) & (truth <= high)
        known = value[np.isfinite(value)]
        row: Row = {
            "world": cell.world,
            "group": cell.of.group,
            "half": half_of(cell.world),
            "horizon": cell.of.horizon,
            "n": cell.n,
            "replicates": result.replicates,
            "estimator": name,
            "v_target": truth,
            "bias": float(known.mean() - truth) if len(known) else None,
            "sd": float(known.std()) if len(known) else None,
            "error": _median(get(name, ERROR)),
            "refused": float(np.mean(~np.isfinite(value))),
            "seconds": float(columns[column(LOG, SECONDS)].mean()),
        }
        row["coverage"], row["mc_error"] = share(covered[there])
        for place, color in enumerate(LEVELS):
            row[color] = float(np.mean(level == place))
            of = there & (level == place)
            row[f"{color}_replicates"] = int(of.sum())
            row[f"coverage_{color}"], row[f"mc_{color}"] = share(covered[of])
        found.append(row)
    return found


def _median(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else None


def gate_rows(cell: VerdictCell, result: CellResult) -> list[Row]:
    """How often each gate was amber or red, and how often it alone kept a log from green; a row
    only where it ever was."""
    columns, found = columns_of(result), []
    for name in ESTIMATORS:
        start = column(name, FIRED, "")
        fired = {key[len(start) :]: of for key, of in columns.items() if key.startswith(start)}
        if not fired:
            continue
        beyond = {gate: of >= ORDER.index("amber") for gate, of in fired.items()}
        many = np.sum(list(beyond.values()), axis=0)
        for gate, of in fired.items():
            if beyond[gate].any():
                about: dict[str, Any] = {
                    "world": cell.world,
                    "n": cell.n,
                    "estimator": name,
                    "gate": gate,
                    "amber": float(np.mean(of == ORDER.index("amber"))),
                    "red": float(np.mean(of == ORDER.index("red"))),
                    "alone": float(np.mean(beyond[gate] & (many == 1))),
                }
                found.append(about)
    return found


def all_rows(results: Mapping[VerdictCell, CellResult]) -> tuple[list[Row], list[Row]]:
    """Those of every cell: of estimators, and of gates."""
    cells = results.items()
    return (
        [row for cell, of in cells for row in rows_of(cell, of)],
        [row for cell, of in cells for row in gate_rows(cell, of)],
    )
