"""What the study is held to, computed from its tables."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reweigh_studies.coverage.measures import MAIN
from reweigh_studies.coverage.tables import DEFAULT, Row

LOW, HIGH, LEAST_AMBER, LEAST_BEST = 0.93, 0.97, 0.90, 0.94
ERRORS = 2  # Monte-Carlo errors that a goal is given
ENOUGH = 50  # replicates of a color before its coverage is judged
TEXTS = {
    "world", "group", "half", "estimator", "method", "gate", "fault", "interval", "description",
    "setting", "worst",
}  # fmt: skip
COUNTS = {
    "n", "replicates", "green_replicates", "amber_replicates", "red_replicates", "policies",
    "horizon", "hits", "logs", "memory",
}  # fmt: skip


def read_csv(path: Path) -> list[Row]:
    """A table as it was written, with numbers as numbers and None where there are none."""
    with path.open(newline="", encoding="utf-8") as stream:
        return [{k: _value(k, v) for k, v in row.items()} for row in csv.DictReader(stream)]


def _value(name: str, text: str) -> Any:
    if name in TEXTS:
        return text
    if text == "":
        return None
    return int(text) if name in COUNTS else float(text)


def pick(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """The rows with these values; a tuple matches any of its values."""
    return [
        row
        for row in rows
        if all(
            row[key] in value if isinstance(value, tuple) else row[key] == value
            for key, value in wanted.items()
        )
    ]


@dataclass(frozen=True)
class Goal:
    """A goal, the result, and the cells that miss it."""

    text: str
    found: str
    met: bool
    misses: tuple[str, ...] = ()


def goals(coverage: Sequence[Row], best: Sequence[Row]) -> list[Goal]:
    """The goals of the study, each for the worlds on which limits were set and for the others."""
    usual = pick(coverage, method=DEFAULT)
    found = []
    for half in ("setting", "checking"):
        rows = pick(usual, half=half)
        found += [_green(rows, half), _amber(rows, half)]
    found += [_no_overlap(usual), _not_silent(usual)]
    return [*found, _best(best)] if best else found


def within(share: float, of: int, low: float, high: float = 1.0) -> bool:
    """Whether a share of so many replicates is between the limits, give or take ERRORS Monte-Carlo
    errors, each that of a share which is exactly at its limit."""
    below, above = (ERRORS * math.sqrt(p * (1 - p) / of) for p in (low, high))
    return low - below <= share <= high + above


def green_misses(row: Row) -> bool:
    return not within(row["coverage_green"], row["green_replicates"], LOW, HIGH)


def amber_misses(row: Row) -> bool:
    return not within(row["coverage_amber"], row["amber_replicates"], LEAST_AMBER)


def _green(rows: Sequence[Row], half: str) -> Goal:
    judged = [row for row in rows if (row["green_replicates"] or 0) >= ENOUGH]
    missed = [row for row in judged if green_misses(row)]
    return Goal(
        f"if the verdict is green, {LOW:.0%} to {HIGH:.0%} of the intervals cover ({half} worlds)",
        f"{len(judged) - len(missed)} of {len(judged)} cells",
        not missed,
        tuple(_place(row, "green") for row in missed),
    )


def _amber(rows: Sequence[Row], half: str) -> Goal:
    judged = [row for row in rows if (row["amber_replicates"] or 0) >= ENOUGH]
    missed = [row for row in judged if amber_misses(row)]
    return Goal(
        f"if it is amber, at least {LEAST_AMBER:.0%} do ({half} worlds)",
        f"{len(judged) - len(missed)} of {len(judged)} cells",
        not missed,
        tuple(_place(row, "amber") for row in missed),
    )


def _place(row: Row, color: str) -> str:
    coverage, error = row[f"coverage_{color}"], row[f"mc_{color}"]
    return (
        f"{row['world']}, n = {row['n']}, {row['estimator']}: {coverage:.1%} ± {error:.1%} of "
        f"{row[f'{color}_replicates']}"
    )


def _no_overlap(rows: Sequence[Row]) -> Goal:
    judged = [row for row in pick(rows, group="none") if row["green"] is not None]
    green = [row for row in judged if row["green"] > 0]
    return Goal(
        "no verdict is green in a world without overlap",
        f"{len(judged) - len(green)} of {len(judged)} cells",
        not green,
        tuple(
            f"{row['world']}, n = {row['n']}, {row['estimator']}: {row['green']:.1%} green"
            for row in green
        ),
    )


def _not_silent(rows: Sequence[Row]) -> Goal:
    judged = pick(rows, group="well", estimator=MAIN)
    green = [row for row in judged if row["green"] >= 0.5]
    return Goal(
        f"at least half of the well-overlapped cells are green ({MAIN}; a cell is green if most "
        "of its replicates are)",
        f"{len(green)} of {len(judged)} cells",
        2 * len(green) >= len(judged),
    )


def _best(rows: Sequence[Row]) -> Goal:
    judged = pick(rows, interval="corrected")
    missed = [r for r in judged if not within(r["coverage"], r["replicates"], LEAST_BEST)]
    reached = ", ".join(f"{row['coverage']:.1%} ± {row['mc_error']:.1%}" for row in judged)
    return Goal(
        f"the best of 50 equal policies, corrected: at least {LEAST_BEST:.0%}", reached, not missed
    )
