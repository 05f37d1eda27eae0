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

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reweigh_studies.by_world.command import Published
from reweigh_studies.coverage.tables import write_csv
from reweigh_studies.memory.cells import MemoryCell
from reweigh_studies.memory.page import RULE_TABLE, TABLE, MemoryStudy, page
from reweigh_studies.memory.study import MEMORY
from reweigh_studies.memory.tables import NAMES, RULE, rows_of, rule_rows

from reweigh.estimate.memory_rows import LEAST_SIZE
from reweigh.evaluation import memories
from reweigh.paper.cells import CellResult


def tables(results: Mapping[MemoryCell, CellResult], to: Path) -> None:
    write_csv(to / TABLE, NAMES, (row for cell, of in results.items() for row in rows_of(cell, of)))
    write_csv(to / RULE_TABLE, RULE, rule_rows(results))


def facts() -> dict[str, Any]:
    return {"rule": {"alike": memories.ALIKE, "least": LEAST_SIZE}}


STUDY = Published("memory", MEMORY, tables, lambda folder: page(MemoryStudy.read(folder)), facts)

if __name__ == "__main__":
    STUDY.script(__doc__)
