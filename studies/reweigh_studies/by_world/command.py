"""The command of a study of worlds: it runs cells, and makes tables and a page of them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

from reweigh.errors import ReweighError, UsageError
from reweigh.paper.cells import CellResult
from reweigh.paper.sweep import Backend
from reweigh.trust.gates import GATES
from reweigh_studies.by_world.progress import Telling, names, numbers
from reweigh_studies.by_world.study import C, Study
from reweigh_studies.coverage.goals import read_csv
from reweigh_studies.coverage.published import about

DOCS = Path(__file__).parents[3] / "docs" / "trust"


@dataclass(frozen=True)
class Published(Generic[C]):
    """A study's files in docs/trust.

    name    of the page, the main table and the description of both: `memory`
    tables  writes the tables of the finished cells into a folder
    page    the page of the tables in a folder
    facts   what the page says that the tables do not, beside seed, limits, gates and remarks
    """

    name: str
    study: Study[C]
    tables: Callable[[Mapping[C, CellResult], Path], None]
    page: Callable[[Path], str]
    facts: Callable[[], dict[str, Any]] = dict

    def publish(self, cells: Path, to: Path, seed: int, remarks: list[str]) -> None:
        """The tables of the existing cells, and the page."""
        results = self.study.finished(cells, seed=seed)
        if not results:
            raise SystemExit(f"{cells}: no cell exists, so there is no page")
        self._check_none_lost(results, to)
        to.mkdir(parents=True, exist_ok=True)
        self.tables(results, to)
        gates = [gate.name for gate in GATES]
        saved = about(seed) | self.facts() | {"gates": gates, "remarks": remarks}
        (to / f"{self.name}.json").write_text(f"{json.dumps(saved, indent=1)}\n", encoding="utf-8")
        page = to / f"{self.name}.md"
        page.write_text(self.page(to), encoding="utf-8")
        print(page)

    def _check_none_lost(self, results: Mapping[C, CellResult], to: Path) -> None:
        """Refuse to replace published cells by fewer logs."""
        table = DOCS / f"{self.name}.csv"
        if to != DOCS or not table.exists():
            return
        logs = {cell.name: of.replicates for cell, of in results.items()}
        for row in read_csv(table):
            name = self.study.cell(row["world"], row["n"]).name
            if logs.get(name, 0) < row["replicates"]:
                raise UsageError(
                    f"{name} is published with {row['replicates']} logs, and the folder has "
                    f"{logs.get(name, 0)}: run it first (--worlds, --sizes, --replicates), or "
                    "leave out --write"
                )

    def check(self) -> int:
        """0 if the published page is that of its tables."""
        if (DOCS / f"{self.name}.md").read_text(encoding="utf-8") == self.page(DOCS):
            return 0
        print(f"{self.name}.md does not match its tables; make it again with --tables --write")
        return 1

    def main(self, arguments: list[str], description: str | None = None) -> int:
        options = _options(arguments, description)
        if options.check:
            return self.check()
        small = "-small" if options.small else ""
        folder = options.folder or Path("build") / f"study-{self.name}{small}"
        failed: Mapping[C, str] = {}
        if not options.tables:
            plan = self.study.plan(
                options.worlds,
                sizes=options.sizes,
                half=options.half,
                replicates=options.replicates,
                small=options.small,
            )
            failed = self.study.run(
                plan,
                folder,
                seed=options.seed,
                backend=Backend(options.backend, options.jobs),
                overwrite=options.overwrite,
                report=Telling(),
            )
        to = DOCS if options.write else folder / "tables"
        self.publish(folder, to, options.seed, options.remark)
        for cell, why in failed.items():
            print(f"{cell.name} failed: {why}", file=sys.stderr)
        return 5 if failed else 0

    def script(self, description: str | None) -> None:
        """As a program: its exit code, and one line where it ends early."""
        try:
            sys.exit(self.main(sys.argv[1:], description))
        except KeyboardInterrupt:
            print(
                "interrupted; every finished cell is kept: run it again to continue",
                file=sys.stderr,
            )
            sys.exit(130)
        except ReweighError as error:
            sys.exit(f"{Path(sys.argv[0]).name}: {error}")


def _options(arguments: list[str], description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="of the cells (default: build/study-…)")
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
