"""The study of memory: 300 logs of every world at every size."""

from __future__ import annotations

from reweigh_studies.by_world.study import Study
from reweigh_studies.memory.cells import MemoryCell
from reweigh_studies.memory.worlds import SIZES, WORLDS

MEMORY = Study(WORLDS, SIZES, MemoryCell, 300, (("delayed-3", "random"), (200,), 8))
