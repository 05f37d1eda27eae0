"""The study of verdicts: 300 logs of every world at every size."""

from __future__ import annotations

from reweigh_studies.by_world.study import Study
from reweigh_studies.verdicts.cells import VerdictCell
from reweigh_studies.verdicts.worlds import SIZES, WORLDS

VERDICTS = Study(WORLDS, SIZES, VerdictCell, 300, (("clean", "emergency"), (200,), 8))
