"""Run the study of continuous states and make its page, docs/trust/continuous.md, and its table.

    python continuous_study.py --small             two tasks and two logs, in seconds
    python continuous_study.py --half setting --sizes 125 --replicates 10
    python continuous_study.py --tables            run nothing: the tables of the existing cells
    python continuous_study.py … --write           the same, and put them into docs/trust
    python continuous_study.py --check             does the page match its table?

Every finished cell (a task at a size) is kept, and a run goes on where an earlier one ended, also
with more logs a cell.
"""

from __future__ import annotations

from reweigh_studies.by_world.command import Published
from reweigh_studies.continuous.study import CONTINUOUS, page, tables

STUDY = Published("continuous", CONTINUOUS, tables, page)

if __name__ == "__main__":
    STUDY.script(__doc__)
