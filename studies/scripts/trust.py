"""Run the coverage study and make docs/trust from it: tables, charts and the page.

    python trust.py                        run the missing cells, tables into the folder
    python trust.py --small                a small version, in minutes
    python trust.py --parts faults,best --worlds default,rare-5 --replicates 100
    python trust.py --sizes 50,200,1000    the cheaper three quarters of the cells first
    python trust.py --replicates coverage=300,faults=100       others as many as usual
    python trust.py --tables               run nothing: the tables of the existing cells
    python trust.py --missing              only cells that docs/trust lacks
    python trust.py … --write              the same, and put them into docs/trust
    python trust.py --check      does the page of docs/trust match its tables?

A run continues where an earlier one ended; `--overwrite` starts again. Ctrl-C keeps every finished
cell. Limits can be changed afterwards: verdicts are made again from the gates' values. `--write`
replaces the rows of the same cells; those of others stay, if the limits are the same, so the study
can continue without its cells.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from reweigh_studies.by_world.progress import Telling, names, numbers
from reweigh_studies.coverage import study as coverage
from reweigh_studies.coverage.charts import coverage_chart, faults_chart, green_chart
from reweigh_studies.coverage.page import page
from reweigh_studies.coverage.power import in_faulty_worlds
from reweigh_studies.coverage.published import (
    Study,
    check_alike,
    joined,
    lacking,
    write_about,
)

from reweigh.errors import ReweighError
from reweigh.paper.sweep import Backend
from reweigh.show.charts import save

DOCS = Path(__file__).parents[2] / "docs" / "trust"
PAGE = "README.md"


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    if options.check:
        return _check()
    parts = coverage.plan(
        options.worlds,
        parts=options.parts,
        sizes=options.sizes,
        faults=options.faults,
        replicates=options.replicates,
        small=options.small,
    )
    beside = options.write and not options.overwrite
    if beside:
        check_alike(DOCS, options.seed)
    if options.missing:
        parts = lacking(parts, DOCS, options.seed)
    folder = options.folder or Path("build") / ("study-small" if options.small else "study")
    failed: dict[str, str] = {}
    if options.tables:
        found, there, of = coverage.finished(parts, folder, seed=options.seed)
        print(f"{there} of {of} cells exist", file=sys.stderr)
    else:
        found, failed = coverage.run(
            parts,
            folder,
            seed=options.seed,
            backend=Backend(options.backend, options.jobs, options.address),
            overwrite=options.overwrite,
            report=Telling(),
        )
    remarks: tuple[str, ...] = ()
    if beside:
        found, remarks = joined(found, DOCS, options.seed), Study.read(DOCS).remarks
    if not found.coverage:
        print("no cell of the study's intervals exists: nothing is written", file=sys.stderr)
        return 1
    to = DOCS if options.write else folder / "tables"
    found.write(to)
    write_about(to, options.seed, remarks)
    _publish(to)
    for cell, why in failed.items():
        print(f"{cell} failed: {why}", file=sys.stderr)
    return 5 if failed else 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="of the cells (default: build/study)")
    parser.add_argument("--parts", type=names, help=f"of {', '.join(coverage.PARTS)}")
    parser.add_argument("--worlds", type=names, help="names of worlds (default: all)")
    parser.add_argument("--sizes", type=numbers, help="of the logs, in episodes (default: all)")
    parser.add_argument("--faults", type=names, help="of the part faults (default: all)")
    parser.add_argument(
        "--replicates",
        type=_replicates,
        help="the most that any part has, or by part: coverage=300,faults=100",
    )
    parser.add_argument("--small", action="store_true", help="few worlds, sizes and replicates")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, help="workers (default: one per core)")
    parser.add_argument("--backend", default="loky", help="loky, sequential, dask or ray")
    parser.add_argument("--address", help="of a Dask or Ray cluster")
    parser.add_argument(
        "--overwrite", action="store_true", help="start again, also replacing docs/trust"
    )
    parser.add_argument(
        "--missing", action="store_true", help=("only the parts missing in docs/trust")
    )
    parser.add_argument("--tables", action="store_true", help="run nothing")
    parser.add_argument("--write", action="store_true", help="into docs/trust")
    parser.add_argument("--check", action="store_true", help="of the page in docs/trust")
    return parser.parse_args(arguments)


def _replicates(text: str) -> int | dict[str, int]:
    if "=" not in text:
        return int(text)
    pairs = (part.partition("=") for part in names(text))
    return {name.strip(): int(count) for name, _, count in pairs}


def _publish(folder: Path) -> None:
    study = Study.read(folder)
    if not study.usual:
        print(f"{folder}: no cell of the part coverage exists, so there is no page")
        return
    (folder / PAGE).write_text(page(study), encoding="utf-8")
    charts = {"coverage": coverage_chart(study.coverage), "green": green_chart(study.coverage)}
    if in_faulty_worlds(study.gates):
        middle = 1000 if 1000 in study.sizes else study.sizes[-1]
        charts["faults"] = faults_chart(study.gates, middle)
    for name, chart in charts.items():
        save(chart, folder / name, ("svg",), overwrite=True)
    print(folder / PAGE)


def _check() -> int:
    if (DOCS / PAGE).read_text(encoding="utf-8") == page(Study.read(DOCS)):
        return 0
    print(f"{PAGE} does not match the tables; run studies/scripts/trust.py --tables --write")
    return 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("interrupted; every finished cell is kept: run it again to continue", file=sys.stderr)
        sys.exit(130)
    except ReweighError as error:
        sys.exit(f"trust.py: {error}")
