"""Run the study of memory and make its page, docs/trust/memory.md, and its tables.

    python memory_study.py                     run the missing cells, tables into the folder
    python memory_study.py --small             two worlds and eight logs, in seconds
    python memory_study.py --half setting --sizes 200 --replicates 60
    python memory_study.py --tables            run nothing: the tables of the existing cells
    python memory_study.py … --write           the same, and put them into docs/trust
    python memory_study.py --check             does the page match its tables?

Every finished cell (a world at a size) is kept, and a run goes on where an earlier one ended, also
with more logs a cell; `--overwrite` starts again. The limits of the rule can be changed afterwards:
choices are made again from the cells.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from reweigh_studies.coverage.published import about
from reweigh_studies.coverage.tables import write_csv
from reweigh_studies.memory import study as memory_study
from reweigh_studies.memory.cells import MemoryCell
from reweigh_studies.memory.page import ABOUT, PAGE, RULE_TABLE, TABLE, MemoryStudy, page
from reweigh_studies.memory.tables import NAMES, RULE, rows_of, rule_rows
from trust import DOCS, Telling, names, numbers

from reweigh.errors import ReweighError, UsageError
from reweigh.evaluation import memories
from reweigh.paper.sweep import Backend
from reweigh.trust.gates import GATES


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    if options.check:
        return _check()
    folder = options.folder or Path("build") / f"study-memory{'-small' if options.small else ''}"
    failed = {}
    if not options.tables:
        plan = memory_study.plan(
            options.worlds,
            sizes=options.sizes,
            half=options.half,
            replicates=options.replicates,
            small=options.small,
        )
        failed = memory_study.run(
            plan,
            folder,
            seed=options.seed,
            backend=Backend(options.backend, options.jobs),
            overwrite=options.overwrite,
            report=Telling(),
        )
    publish(folder, DOCS if options.write else folder / "tables", options.seed, options.remark)
    for cell, why in failed.items():
        print(f"{cell.name} failed: {why}", file=sys.stderr)
    return 5 if failed else 0


def publish(cells: Path, to: Path, seed: int, remarks: Sequence[str] = ()) -> None:
    """The tables of the existing cells, and the page."""
    results = memory_study.finished(cells, seed=seed)
    if not results:
        raise SystemExit(f"{cells}: no cell exists, so there is no page")
    _check_none_lost({cell.name: of.replicates for cell, of in results.items()}, to)
    to.mkdir(parents=True, exist_ok=True)
    write_csv(to / TABLE, NAMES, (row for cell, of in results.items() for row in rows_of(cell, of)))
    write_csv(to / RULE_TABLE, RULE, rule_rows(results))
    told = about(seed) | {
        "rule": {"apart": memories.APART, "least": memories.LEAST_SIZE},
        "gates": [gate.name for gate in GATES],
        "remarks": list(remarks),
    }
    (to / ABOUT).write_text(f"{json.dumps(told, indent=1)}\n", encoding="utf-8")
    (to / PAGE).write_text(page(MemoryStudy.read(to)), encoding="utf-8")
    print(to / PAGE)


def _check_none_lost(logs: dict[str, int], to: Path) -> None:
    """Refuse to replace published cells by fewer logs."""
    if to != DOCS or not (DOCS / TABLE).exists():
        return
    for row in MemoryStudy.read(DOCS).cells:
        name = MemoryCell(row["world"], row["n"]).name
        if logs.get(name, 0) < row["replicates"]:
            raise UsageError(
                f"{name} is published with {row['replicates']} logs, and the folder has "
                f"{logs.get(name, 0)}: run it first (--worlds, --sizes, --replicates), or leave "
                "out --write"
            )


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="of the cells (default: build/study-memory)")
    parser.add_argument("--worlds", type=names, help="names of worlds (default: all)")
    parser.add_argument("--sizes", type=numbers, help="of the logs, in episodes (default: all)")
    parser.add_argument("--half", help="setting or reporting (default: both)")
    parser.add_argument("--replicates", type=int, help="logs of a cell")
    parser.add_argument("--small", action="store_true", help="few worlds, sizes and logs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, help="workers (default: one per core)")
    parser.add_argument("--backend", default="loky", help="loky or sequential")
    parser.add_argument("--overwrite", action="store_true", help="start again")
    parser.add_argument("--tables", action="store_true", help="run nothing")
    parser.add_argument("--write", action="store_true", help="into docs/trust")
    parser.add_argument("--remark", action="append", default=[], help="a sentence for the page")
    parser.add_argument("--check", action="store_true", help="of the page in docs/trust")
    return parser.parse_args(arguments)


def _check() -> int:
    if (DOCS / PAGE).read_text(encoding="utf-8") == page(MemoryStudy.read(DOCS)):
        return 0
    print(f"{PAGE} does not match its tables; run studies/scripts/memory_study.py --tables --write")
    return 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("interrupted; every finished cell is kept: run it again to continue", file=sys.stderr)
        sys.exit(130)
    except ReweighError as error:
        sys.exit(f"memory_study.py: {error}")
