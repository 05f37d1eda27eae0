"""How often the test of propensities is red: on sparse clean logs, and on the study's own logs.

    python propensity_alarms.py            sparse logs, about 3 CPU-minutes
    python propensity_alarms.py --study    the study's clean and faulty logs, about 8
    python propensity_alarms.py --write    what is there into docs/trust: sparse.csv, and
                                                   the rows of the gate in gates.csv

A run continues where an earlier one ended. The study's logs are made from the same seeds as those
of trust.py, so that of its tables exactly the rows of this gate are replaced; verdicts, which rest
on the other gates too, are those of trust.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from reweigh_studies.coverage.cells import CLEAN, TrustCell
from reweigh_studies.coverage.goals import read_csv
from reweigh_studies.coverage.measures import recipe_of
from reweigh_studies.coverage.study import cells_of
from reweigh_studies.coverage.tables import GATES, mc_error, write_csv
from reweigh_studies.sparse_logs import REFUSED, SETTINGS, WRONG, p_value, propensity_p

from reweigh.kernels import compiled
from reweigh.paper.cells import seed_sequence
from reweigh.trust.gates.propensities import Propensities

DOCS = Path(__file__).parents[2] / "docs" / "trust"
FOLDER = Path("build") / "propensity-alarms"
SEED = 0
STUDY_LOGS = 100  # of each cell, the first ones of studies/scripts/trust.py
LOGS = {CLEAN: 500} | dict.fromkeys(WRONG, 50)
COLUMNS = ("setting", "fault", "logs", "unknown", "red", "mc_error")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--study", action="store_true", help="the logs of the coverage study")
    parser.add_argument("--write", action="store_true", help="run nothing, write into docs/trust")
    options = parser.parse_args(arguments)
    if options.write:
        _write()
        return 0
    for name, count, p in _study_cells() if options.study else _sparse_cells():
        path = FOLDER / f"{name}.json"
        if not path.exists():
            with compiled():
                found = [p(k) for k in range(count)]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(found))
            print(name, f"{_shares(found)['red']:.1%} red", file=sys.stderr, flush=True)
    return 0


Cell = tuple[str, int, Callable[[int], float | None]]


def _sparse_cells() -> Iterator[Cell]:
    for fault, count in LOGS.items():
        for number, setting in enumerate(SETTINGS):
            if (setting, fault) in REFUSED:
                continue
            yield f"sparse/{number}-{fault}", count, _of_setting(setting, fault)


def _of_setting(setting: str, fault: str) -> Callable[[int], float | None]:
    return lambda replicate: p_value(setting, replicate, fault, SEED)


def _study_cells() -> Iterator[Cell]:
    parts = cells_of()
    for part in ("faults", "coverage"):
        for cell in parts[part]:
            assert isinstance(cell, TrustCell)
            if part == "coverage" or cell.fault != CLEAN:
                yield f"study/{cell.name}", STUDY_LOGS, _of_cell(cell)


def _of_cell(cell: TrustCell) -> Callable[[int], float | None]:
    def p(replicate: int) -> float | None:
        for_log, for_fault, _ = seed_sequence(cell, SEED, replicate).spawn(3)
        return propensity_p(*cell.log(for_log, for_fault))

    return p


def _shares(found: list[float | None], estimator: str = "mis") -> dict[str, Any]:
    limit = Propensities().limit(recipe_of(estimator).limits)
    levels = [limit.judge(1.0 if p is None else p) for p in found]
    return {
        "unknown": float(np.mean([p is None for p in found])),
        "amber": levels.count("amber") / len(levels),
        "red": levels.count("red") / len(levels),
        "mc_error": mc_error(float(len(levels) - levels.count("green")), len(levels)),
    }


def _write() -> None:
    rows = []
    for number, setting in enumerate(SETTINGS):
        for fault in LOGS:
            path = FOLDER / f"sparse/{number}-{fault}.json"
            if path.exists():
                found = json.loads(path.read_text())
                rows.append({"setting": setting, "fault": fault, "logs": len(found)})
                rows[-1] |= _shares(found)
    write_csv(DOCS / "sparse.csv", COLUMNS, rows)
    gates, new = read_csv(DOCS / "gates.csv"), 0
    for row in gates:
        name = TrustCell(row["world"], row["n"], row["fault"]).name
        path = FOLDER / f"study/{name}.json"
        if row["gate"] == Propensities.name and path.exists():
            found = json.loads(path.read_text())
            row |= {"replicates": len(found)} | _shares(found, row["estimator"])
            new += 1
    write_csv(DOCS / "gates.csv", GATES, gates)
    print(f"{len(rows)} rows of sparse logs, {new} of the gate {Propensities.name!r} in the study")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
