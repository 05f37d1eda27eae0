"""Cells of the study of efficiency: of a log every contender's value, interval and verdict, what
`auto` chose, and the gates of the estimators that it chooses from."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from reweigh.errors import RefusedError
from reweigh.evaluation.evaluate import evaluate_in_study
from reweigh.evaluation.result import Estimate
from reweigh.kernels import compiled
from reweigh.paper.cells import STEP_COST, Row
from reweigh.policy import RowsPolicy
from reweigh.trust.gates.gate import ORDER
from reweigh_studies.coverage.measures import (
    BEHAVIOR,
    LEVEL,
    LEVELS,
    VALUE,
    column,
    interval_columns,
    logged_mean,
    number,
)
from reweigh_studies.coverage.worlds import StudyWorld
from reweigh_studies.efficiency.worlds import WORLDS

STUDY = 1  # version of the measurements: a cell of another one is refused
AUTO = "auto"
STANDARD = (
    "mis", "mis-hajek", "dm", "dm-renorm", "mdr", "mdr-crossfit", "mdr-loo", "wis",
)  # fmt: skip
CONTENDERS = (*STANDARD, AUTO, BEHAVIOR)
JUDGED = ("mdr-loo", "mis-hajek")  # whose gates are kept
COLOR, INTERVAL, FIRED, ERROR, TAKEN = "level", "auto", "fired", "error", "taken"
LOG, SECONDS = "log", "seconds"


@dataclass(frozen=True)
class EfficiencyCell:
    """n episodes of a world of WORLDS."""

    world: str
    n: int

    @property
    def of(self) -> StudyWorld:
        return WORLDS[self.world]

    @property
    def estimators(self) -> tuple[str, ...]:
        return CONTENDERS

    @property
    def name(self) -> str:
        return f"{self.world}-n{self.n}"

    @property
    def suffix(self) -> str:
        return ".json.gz"

    @property
    def cost(self) -> float:
        return self.of.horizon * (STEP_COST + self.n)

    def describe(self) -> dict[str, Any]:
        return {"study": STUDY, "world": self.of.describe(), "n": self.n, "level": LEVEL}

    def replicate(self, estimators: Sequence[str], sequence: np.random.SeedSequence) -> Row:
        """All columns of one log. What `auto` took is a place in STANDARD, or their number for
        another estimator; levels of gates are places in ORDER (0: unknown)."""
        began = time.process_time()
        found: dict[str, Any] = {}
        names = (*STANDARD, AUTO)
        with compiled():
            log, target = self.of.log(self.n, np.random.default_rng(sequence))
            results = evaluate_in_study(log, RowsPolicy(target, log), names)
            for name, result in zip(names, results, strict=True):
                if not isinstance(result, Estimate):
                    found[column(name, VALUE)] = result
                    continue
                found[column(name, VALUE)] = result.value
                found[column(name, ERROR)] = result.standard_error
                found[column(name, COLOR)] = float(LEVELS.index(result.verdict.level))
                with suppress(RefusedError):
                    found |= interval_columns(name, INTERVAL, result.interval(LEVEL))
                if name in JUDGED:
                    for gate in result.gates:
                        found[column(name, FIRED, gate.name)] = float(ORDER.index(gate.level))
                if name == AUTO:
                    taken = (*STANDARD, result.estimator).index(result.estimator)
                    found[column(name, TAKEN)] = float(taken)
            found |= logged_mean(log)
        found = {name: number(value) for name, value in found.items()}
        return found | {column(LOG, SECONDS): time.process_time() - began}
