"""The study as it is published: its tables, read back, and joined with cells that are run later.

The cells hold a number for every log, are a hundred times as large as the tables, and stay where
they were run. A cell's numbers depend on its seed alone, so that its rows can be made anywhere and
put beside those of the others, as long as the verdicts in them were made by the same limits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from reweigh.errors import UsageError
from reweigh.system.files import parse_object, write_atomically
from reweigh.trust.gates import LIMITS
from reweigh_studies.coverage.cells import CLEAN, STUDY, TrustCell
from reweigh_studies.coverage.goals import pick, read_csv
from reweigh_studies.coverage.measures import AGREES, BOOTSTRAPS, JACKKNIFE, LEVEL, MAIN, WIS
from reweigh_studies.coverage.study import ALSO, PARTS, AnyTrust, Part, Tables
from reweigh_studies.coverage.tables import DEFAULT, VERDICT, Row

ABOUT = "study.json"
SPARSE = "sparse.csv"  # by studies/scripts/propensity_alarms.py
ANEW = "With all cells, --tables --write --overwrite makes the tables again"
Key = tuple[str | None, int, str | None]  # world, n, fault
ROW_KEYS = {
    "coverage": ("world", "n", "estimator", "method"),
    "gates": ("gate", "fault", "world", "n", "estimator"),
    "best": ("n", "policies", "estimator", "interval"),
}


@dataclass(frozen=True)
class Study:
    """The tables, read back, with their description."""

    coverage: list[Row]
    gates: list[Row]
    best: list[Row]
    worlds: list[Row]
    remarks: tuple[str, ...] = ()
    sparse: Sequence[Row] = ()
    # by which the verdicts were made
    limits: Mapping[str, str] = field(default_factory=lambda: about(0)["limits"])

    @classmethod
    def read(cls, folder: Path) -> Study:
        names = ("coverage", "gates", "best_of_many", "worlds")
        coverage, gates, best, worlds = (read_csv(folder / f"{name}.csv") for name in names)
        sparse = folder / SPARSE
        return cls(
            coverage,
            gates,
            best,
            worlds,
            tuple(_about(folder).get("remarks", ())),
            read_csv(sparse) if sparse.exists() else (),
            _about(folder).get("limits", {}),
        )

    @property
    def newer_gates(self) -> tuple[str, ...]:
        """Gates, or their limits for some estimators, that these verdicts do not have."""
        return tuple(name for name in LIMITS if name not in self.limits)

    @property
    def changed_limits(self) -> dict[str, tuple[str, str]]:
        """The limit of these verdicts and the present one, where they differ."""
        pairs = {
            name: (self.limits[name], str(LIMITS[name])) for name in LIMITS if name in self.limits
        }
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    @property
    def sizes(self) -> list[int]:
        return sorted({row["n"] for row in self.coverage})

    @property
    def usual(self) -> list[Row]:
        """The rows of the default interval."""
        return pick(self.coverage, method=DEFAULT)

    def logs(self, part: str) -> dict[Key, int]:
        """How many logs each cell of a part has."""
        rows = {
            "coverage": pick(self.coverage, estimator=MAIN, method=DEFAULT),
            "jackknife": pick(self.coverage, estimator=WIS, method=JACKKNIFE),
            "bootstrap": pick(self.coverage, estimator=MAIN, method=BOOTSTRAPS[0]),
            "faults": pick(self.gates, estimator=next(iter(ALSO)), gate=VERDICT),
            "best": self.best,
        }[part]
        return {_key(r.get("world"), r["n"], r.get("fault", CLEAN)): r["replicates"] for r in rows}


def _about(folder: Path) -> dict[str, Any]:
    path = folder / ABOUT
    if not path.exists():
        return {}
    return parse_object(path.read_bytes(), f"the study {str(path)!r}")


def _key(world: str | None, n: int, fault: str = CLEAN) -> Key:
    return world, n, None if fault == CLEAN else fault


def key_of(cell: AnyTrust) -> Key:
    if not isinstance(cell, TrustCell):
        return _key(None, cell.n)
    return _key(cell.world, cell.n, cell.fault)


def about(seed: int) -> dict[str, Any]:
    """What the rows of a study have in common."""
    limits = {name: str(limit) for name, limit in LIMITS.items()}
    return {"study": STUDY, "seed": seed, "level": LEVEL, "limits": limits, "agrees": AGREES}


def write_about(folder: Path, seed: int, remarks: Sequence[str] = ()) -> None:
    saved = about(seed) | {"remarks": list(remarks)}

    def write(stream: BinaryIO) -> None:
        stream.write(f"{json.dumps(saved, indent=1)}\n".encode())

    write_atomically(folder / ABOUT, write, overwrite=True)


def check_alike(folder: Path, seed: int) -> None:
    """Refuse a folder whose tables are of another study."""
    saved, now = _about(folder), about(seed)
    other = [name for name in now if saved.get(name) != now[name]]
    if other:
        raise UsageError(
            f"the published tables are of another study ({', '.join(other)} differ), so its "
            f"cells cannot be combined with them. {ANEW}"
        )


def lacking(parts: Iterable[Part], folder: Path, seed: int) -> list[Part]:
    """The parts without the cells that are published in full, and without those that `joined`
    could not join."""
    check_alike(folder, seed)
    study = Study.read(folder)
    found = []
    for part in parts:
        logs = study.logs(part.name)
        enough = 1 if part.name == "coverage" else min(part.replicates, PARTS[part.name])
        cells = {
            cell: count for cell, count in part.cells.items() if logs.get(key_of(cell), 0) < enough
        }
        if cells:
            found.append(replace(part, cells=cells))
    return found


def joined(found: Tables, folder: Path, seed: int) -> Tables:
    """The published tables with new rows in place of those of the same cells, unless the published
    ones have more logs."""
    check_alike(folder, seed)
    study = Study.read(folder)
    logs = study.logs("coverage")
    bins = read_csv(folder / "bins.csv")
    here = {(row["world"], row["n"], None): row["logs"] for row in found.bins}
    for key, many in here.items():
        if logs.get(key, many) != many:
            raise UsageError(
                f"{key[0]} at {key[1]:,} episodes is published with {logs[key]:,} logs and "
                f"here with {many:,}: the counts of bins.csv cannot separate them. Run the "
                f"cell with {logs[key]:,} logs. {ANEW}"
            )
    known = {row["gate"] for row in bins}  # of another gate no counts are there yet
    bins += [
        row
        for row in found.bins
        if (row["world"], row["n"], None) not in logs or row["gate"] not in known
    ]
    return Tables(
        _joined("coverage", study.coverage, found.coverage),
        _joined("gates", study.gates, found.gates),
        _joined("best", study.best, found.best),
        bins,
    )


def _joined(table: str, published: list[Row], found: list[Row]) -> list[Row]:
    def key(row: Row) -> tuple[Any, ...]:
        return tuple(row[k] for k in ROW_KEYS[table])

    rows = {key(row): row for row in published}
    for row in found:
        there = rows.get(key(row))
        if there is None or there["replicates"] <= row["replicates"]:
            rows[key(row)] = row
    return list(rows.values())
