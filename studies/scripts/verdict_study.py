"""Run the study of verdicts and make its page, docs/trust/verdicts.md, and its tables.

    python verdict_study.py                     run the missing cells, tables into the folder
    python verdict_study.py --small             two worlds and eight logs, in seconds
    python verdict_study.py --half setting --sizes 200 --replicates 60
    python verdict_study.py --tables            run nothing: the tables of the existing cells
    python verdict_study.py … --write           the same, and put them into docs/trust
    python verdict_study.py --check             does the page match its tables?

Every finished cell (a world at a size) is kept, and a run goes on where an earlier one ended, also
with more logs a cell; `--overwrite` starts again, which a change of a gate or an interval needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from reweigh_studies.by_world.command import Published
from reweigh_studies.coverage.tables import write_csv
from reweigh_studies.verdicts.cells import VerdictCell
from reweigh_studies.verdicts.page import GATE_TABLE, NAME, TABLE, VerdictStudy, page
from reweigh_studies.verdicts.study import VERDICTS
from reweigh_studies.verdicts.tables import GATES, NAMES, all_rows

from reweigh.paper.cells import CellResult


def tables(results: Mapping[VerdictCell, CellResult], to: Path) -> None:
    estimators, gates = all_rows(results)
    write_csv(to / TABLE, NAMES, estimators)
    write_csv(to / GATE_TABLE, GATES, gates)


STUDY = Published(NAME, VERDICTS, tables, lambda folder: page(VerdictStudy.read(folder)))

if __name__ == "__main__":
    STUDY.script(__doc__)
