"""Cells of the study of memory: from one log every memory, their differences, MIS, WIS, verdicts.

The choice itself is not in a cell: it follows from the sizes and the distances that are, so that
other limits need no new run (`rule.py`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from reweigh.errors import RefusedError
from reweigh.estimate.memory_rows import memories
from reweigh.estimate.presets import mis, wis
from reweigh.evaluation.evaluate import evaluate_in_study
from reweigh.evaluation.memories import paired_difference, size_of_products
from reweigh.evaluation.result import Estimate
from reweigh.kernels import compiled
from reweigh.paper.cells import STEP_COST, Row
from reweigh.policy import RowsPolicy
from reweigh_studies.coverage.measures import LEVEL, LEVELS, VALUE, column, interval_columns, number
from reweigh_studies.coverage.worlds import StudyWorld
from reweigh_studies.memory.worlds import WORLDS

STUDY = 2  # version of the measurements: a cell of another one is refused
MIS, WIS, LOG = "mis", "wis", "log"
SIZE, P, COLOR, INTERVAL, SECONDS = "size", "p", "level", "auto", "seconds"


def name_of(memory: int) -> str:
    """The estimator with this memory."""
    return mis(memory=memory).name


@dataclass(frozen=True)
class MemoryCell:
    """n episodes of a world of WORLDS."""

    world: str
    n: int

    @property
    def of(self) -> StudyWorld:
        return WORLDS[self.world]

    @property
    def memories(self) -> tuple[int, ...]:
        """The candidates, the shortest first."""
        return memories(self.of.horizon)

    @property
    def estimators(self) -> tuple[str, ...]:
        """Those of a log, which are always all of them."""
        return (*map(name_of, self.memories), MIS, WIS)

    @property
    def name(self) -> str:
        return f"{self.world}-n{self.n}"

    @property
    def suffix(self) -> str:
        return ".json.gz"

    @property
    def cost(self) -> float:
        return self.of.horizon * (STEP_COST + self.n) * len(self.memories)

    def describe(self) -> dict[str, Any]:
        return {
            "study": STUDY,
            "world": self.of.describe(),
            "n": self.n,
            "level": LEVEL,
            "memories": list(self.memories),
        }

    def replicate(self, estimators: Sequence[str], sequence: np.random.SeedSequence) -> Row:
        """All columns of one log; estimators share its rows and influence values."""
        began = time.process_time()
        found: dict[str, Any] = {}
        with compiled():
            log, target = self.of.log(self.n, np.random.default_rng(sequence))
            recipes = {name_of(k): mis(memory=k) for k in self.memories} | {MIS: mis(), WIS: wis()}
            results = evaluate_in_study(log, RowsPolicy(target, log), list(recipes.values()))
            by_name = dict(zip(recipes, results, strict=True))
            for name, result in by_name.items():
                if not isinstance(result, Estimate):
                    found[column(name, VALUE)] = result
                    continue
                found[column(name, VALUE)] = result.value
                found[column(name, COLOR)] = float(LEVELS.index(result.verdict.level))
                with suppress(RefusedError):
                    found |= interval_columns(name, INTERVAL, result.interval(LEVEL))
            remembering = {
                k: result
                for k, result in zip(self.memories, results, strict=False)
                if isinstance(result, Estimate)
            }
            sizes = {k: size_of_products(result) for k, result in remembering.items()}
            for k, result in remembering.items():
                found[column(name_of(k), SIZE)] = sizes[k]
                for other in (other for other in remembering if other > k and sizes[other] > 1):
                    p = paired_difference(result, remembering[other]).p(sizes[other])
                    found[column(name_of(k), P, str(other))] = p
        found = {name: number(value) for name, value in found.items()}
        return found | {column(LOG, SECONDS): time.process_time() - began}
