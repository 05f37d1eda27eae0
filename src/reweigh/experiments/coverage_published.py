"""The study as it is published: its tables, read back, and joined with cells that are run later.

The cells hold a number for every log, are a hundred times as large as the tables, and stay where
they were run. A cell's numbers depend on its seed alone, so that its rows can be made anywhere and
put beside those of the others, as long as the verdicts in them were made by the same limits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from reweigh.errors import UsageError
from reweigh.experiments.coverage import PARTS, AnyTrust, Part, Tables
from reweigh.experiments.coverage_cells import CLEAN, STUDY, TrustCell
from reweigh.experiments.coverage_goals import MAIN, pick, read_csv
from reweigh.experiments.coverage_measures import BOOTSTRAPS, JACKKNIFE, LEVEL, WIS
from reweigh.experiments.coverage_tables import DEFAULT, Row
from reweigh.inference.limits import LIMITS
from reweigh.output import write_atomically

ABOUT = "study.json"
Key = tuple[str | None, int, str | None]  # world, n, fault
ROW_KEYS = {
    "coverage": ("world", "n", "estimator", "method"),
    "gates": ("gate", "fault", "world", "n", "estimator"),
    "best": ("n", "policies", "estimator", "interval"),
}


@dataclass(frozen=True)
class Study:
    """The tables, read back."""

    coverage: list[Row]
    gates: list[Row]
    best: list[Row]
    worlds: list[Row]

    @classmethod
    def read(cls, folder: Path) -> Study:
        names = ("coverage", "gates", "best_of_many", "worlds")
        return cls(*(read_csv(folder / f"{name}.csv") for name in names))

    @property
    def sizes(self) -> list[int]:
        return sorted({row["n"] for row in self.coverage})

    @property
    def usual(self) -> list[Row]:
        """The rows of the interval that is given unless another is asked for."""
        return pick(self.coverage, method=DEFAULT)

    def logs(self, part: str) -> dict[Key, int]:
        """How many logs each cell of a part has."""
        rows = {
            "coverage": pick(self.coverage, estimator=MAIN, method=DEFAULT),
            "jackknife": pick(self.coverage, estimator=WIS, method=JACKKNIFE),
            "bootstrap": pick(self.coverage, estimator=MAIN, method=BOOTSTRAPS[0]),
            "faults": [row for row in pick(self.gates, estimator=MAIN) if row["fault"] != CLEAN],
            "best": self.best,
        }[part]
        return {(r.get("world"), r["n"], r.get("fault")): r["replicates"] for r in rows}


def key_of(cell: AnyTrust) -> Key:
    if not isinstance(cell, TrustCell):
        return None, cell.n, None
    return cell.world, cell.n, None if cell.fault == CLEAN else cell.fault


def about(seed: int) -> dict[str, Any]:
    """What the rows of a study have in common."""
    limits = {name: str(limit) for name, limit in LIMITS.items()}
    return {"study": STUDY, "seed": seed, "level": LEVEL, "limits": limits}


def write_about(folder: Path, seed: int) -> None:
    def write(stream: BinaryIO) -> None:
        stream.write(f"{json.dumps(about(seed), indent=1)}\n".encode())

    write_atomically(folder / ABOUT, write, overwrite=True)


def lacking(parts: Iterable[Part], folder: Path) -> list[Part]:
    """The parts without the cells that are published in full."""
    study = Study.read(folder)
    found = []
    for part in parts:
        logs = study.logs(part.name)
        cells = {
            cell: asked
            for cell, asked in part.cells.items()
            if logs.get(key_of(cell), 0) < min(part.replicates, PARTS[part.name])
        }
        if cells:
            found.append(replace(part, cells=cells))
    return found


def joined(found: Tables, folder: Path, seed: int) -> Tables:
    """The published tables with what was found in place of their own rows of the same cells."""
    told = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    now = about(seed)
    other = [name for name in now if told.get(name) != now[name]]
    if other:
        raise UsageError(
            f"the published tables are of another study ({', '.join(other)} differ): cells cannot "
            "be put beside them. Make the tables of all cells again, with --overwrite"
        )
    study = Study.read(folder)
    logs = study.logs("coverage")
    bins = [_counted(row) for row in read_csv(folder / "bins.csv")]
    here = {(row["world"], row["n"], None): row["logs"] for row in found.bins}
    for key, many in here.items():
        if logs.get(key, many) != many:
            raise UsageError(
                f"{key[0]} at {key[1]:,} episodes is published with {logs[key]:,} logs and here "
                f"with {many:,}: the counts of bins.csv cannot tell them apart. Run the cell with "
                f"{logs[key]:,} logs, or make the tables of all cells again, with --overwrite"
            )
    bins += [row for row in found.bins if (row["world"], row["n"], None) not in logs]
    return Tables(
        _joined("coverage", study.coverage, found.coverage),
        _joined("gates", study.gates, found.gates),
        _joined("best", study.best, found.best),
        bins,
    )


def _joined(table: str, published: list[Row], found: list[Row]) -> list[Row]:
    rows = {tuple(row[k] for k in ROW_KEYS[table]): row for row in (*published, *found)}
    return list(rows.values())


def _counted(row: Row) -> Row:
    """A row of bins.csv as what `bin_rows` adds up."""
    return row | {"hits": float(round(row["coverage"] * row["replicates"]))}
