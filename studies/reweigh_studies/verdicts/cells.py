"""Cells of the study of verdicts: of a log every estimator's value, interval, verdict, gates."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from reweigh.errors import RefusedError
from reweigh.evaluation.evaluate import evaluate_all
from reweigh.evaluation.result import Estimate
from reweigh.kernels import compiled
from reweigh.paper.cells import STEP_COST, Row
from reweigh.policy import RowsPolicy
from reweigh.trust.gates.gate import ORDER
from reweigh_studies.coverage.measures import LEVEL, LEVELS, VALUE, column, interval_columns, number
from reweigh_studies.coverage.worlds import StudyWorld
from reweigh_studies.verdicts.worlds import WORLDS, declared

STUDY = 3  # version of the measurements: a cell of another one is refused
ESTIMATORS = ("mis", "mis-hajek", "mdr-loo", "dm", "mdr", "wis", "is")
COLOR, INTERVAL, GATE, FIRED, ERROR = "level", "auto", "gate", "fired", "error"
LOG, SECONDS = "log", "seconds"


@dataclass(frozen=True)
class VerdictCell:
    """n episodes of a world of WORLDS, as a user evaluates them."""

    world: str
    n: int

    @property
    def of(self) -> StudyWorld:
        return WORLDS[self.world]

    @property
    def estimators(self) -> tuple[str, ...]:
        return ESTIMATORS

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
        known = {"study": STUDY, "world": self.of.describe(), "n": self.n, "level": LEVEL}
        ends = declared(self.world)
        return known | {"reward_range": None if ends is None else list(ends)}  # as JSON has them

    def replicate(self, estimators: Sequence[str], sequence: np.random.SeedSequence) -> Row:
        """All columns of one log: values of gates, so that limits can be changed afterwards, and
        their levels as places in ORDER (0: unknown)."""
        began = time.process_time()
        found: dict[str, Any] = {}
        with compiled():
            log, target = self.of.log(self.n, np.random.default_rng(sequence))
            results = evaluate_all(
                log,
                RowsPolicy(target, log),
                list(estimators),
                reward_range=declared(self.world),
            )
            for name, result in zip(estimators, results, strict=True):
                if not isinstance(result, Estimate):
                    found[column(name, VALUE)] = result
                    continue
                verdict = result.verdict
                found[column(name, VALUE)] = result.value
                found[column(name, ERROR)] = result.standard_error
                found[column(name, COLOR)] = float(LEVELS.index(verdict.level))
                for gate in verdict.gates:
                    found[column(name, GATE, gate.name)] = gate.value
                    fired = 0 if gate.hint else ORDER.index(gate.level)
                    found[column(name, FIRED, gate.name)] = float(fired)
                with suppress(RefusedError):
                    found |= interval_columns(name, INTERVAL, result.interval(LEVEL))
        found = {name: number(value) for name, value in found.items()}
        return found | {column(LOG, SECONDS): time.process_time() - began}
