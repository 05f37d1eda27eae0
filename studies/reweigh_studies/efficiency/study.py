"""The study of efficiency: 300 logs of every world at every size."""

from __future__ import annotations

from reweigh_studies.by_world.study import Study
from reweigh_studies.efficiency.cells import EfficiencyCell
from reweigh_studies.efficiency.worlds import SIZES, WORLDS

EFFICIENCY = Study(
    WORLDS, SIZES, EfficiencyCell, 300, (("random-small", "improved-small"), (200,), 8)
)
