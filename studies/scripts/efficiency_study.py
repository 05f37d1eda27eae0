"""Run the study of efficiency and make its page, docs/trust/efficiency.md, and its table.

    python efficiency_study.py                 run the missing cells, the table into the folder
    python efficiency_study.py --small         two worlds and eight logs, in seconds
    python efficiency_study.py --half setting --sizes 200,1000 --replicates 40
    python efficiency_study.py --tables        run nothing: the table of the existing cells
    python efficiency_study.py … --write       the same, and put it into docs/trust
    python efficiency_study.py --check         does the page match its table?

Every finished cell (a world at a size) is kept, and a run goes on where an earlier one ended, also
with more logs a cell; `--overwrite` starts again. Run the reporting half only after the rule of
`auto` is fixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reweigh_studies.by_world.command import Published
from reweigh_studies.coverage.tables import write_csv
from reweigh_studies.efficiency.cells import EfficiencyCell
from reweigh_studies.efficiency.page import TABLE, EfficiencyStudy, page
from reweigh_studies.efficiency.study import EFFICIENCY
from reweigh_studies.efficiency.tables import NAMES, rows_of

from reweigh.evaluation import auto
from reweigh.paper.cells import CellResult


def tables(results: Mapping[EfficiencyCell, CellResult], to: Path) -> None:
    write_csv(to / TABLE, NAMES, (row for cell, of in results.items() for row in rows_of(cell, of)))


def told() -> dict[str, Any]:
    limits = {"rare": auto.RARE, "enough": auto.ENOUGH, "contradicted": auto.CONTRADICTED}
    return {"rule": limits | {"gates": ", ".join(f"*{name}*" for name in auto.HOLDS)}}


STUDY = Published(
    "efficiency", EFFICIENCY, tables, lambda folder: page(EfficiencyStudy.read(folder)), told
)

if __name__ == "__main__":
    STUDY.script(__doc__)
