"""Cells of the coverage study: a world at one size, perhaps with a fault; the best of many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np

from reweigh.decide.compare import compare
from reweigh.evaluation.result import Estimate
from reweigh.kernels import compiled
from reweigh.log.log import EpisodeLog
from reweigh.paper.cells import PART, STEP_COST, Row
from reweigh.policy import ColumnPolicy, Policy
from reweigh.policy.table import TablePolicy
from reweigh.worlds import RandomWorld, TabularMDP
from reweigh_studies.coverage.faults import FAULTS, Grid
from reweigh_studies.coverage.measures import LEVEL, Measure
from reweigh_studies.coverage.worlds import WORLDS, StudyWorld

STUDY = 1  # version of the measurements: a cell of another one is refused
CLEAN = "clean"
CHEAP = Measure()


@dataclass(frozen=True)
class TrustCell:
    """n episodes of a world of WORLDS, with a fault of FAULTS put in unless it is clean."""

    world: str
    n: int
    fault: str = CLEAN
    measure: Measure = CHEAP

    @property
    def of(self) -> StudyWorld:
        return WORLDS[self.world]

    @property
    def name(self) -> str:
        fault = "" if self.fault == CLEAN else f"-{self.fault}"
        return f"{self.world}-n{self.n}{fault}"

    @property
    def suffix(self) -> str:
        return ".json.gz"

    @property
    def cost(self) -> float:
        return self.of.horizon * (STEP_COST + self.n)

    def describe(self) -> dict[str, Any]:
        measure = asdict(self.measure)
        lists = {key: list(value) for key, value in measure.items() if isinstance(value, tuple)}
        return {
            "study": STUDY,
            "world": self.of.describe(),
            "n": self.n,
            "fault": self.fault,
            "level": LEVEL,
            "measure": measure | lists,
        }

    def replicate(self, estimators: Sequence[str], sequence: np.random.SeedSequence) -> Row:
        for_log, for_fault, for_draws = sequence.spawn(3)
        log, target = self.log(for_log, for_fault)
        return self.measure.row(log, target, estimators, int(for_draws.generate_state(1)[0]))

    def log(
        self, for_log: np.random.SeedSequence, for_fault: np.random.SeedSequence
    ) -> tuple[EpisodeLog, Policy]:
        log, target = self.of.log(self.n, np.random.default_rng(for_log))
        if self.fault == CLEAN:
            return log, target
        faulty = FAULTS[self.fault](Grid.of(log), np.random.default_rng(for_fault))
        return faulty.log(), ColumnPolicy("target_prob")


# The best of many

BEST = "best"
EQUALS = RandomWorld(91, n_states=4, n_actions=3, horizon=5, reward_sd=0.5)
SHARE_HELD_OUT = 0.5


@cache
def equal_policies(policies: int) -> tuple[TabularMDP, dict[str, TablePolicy]]:
    """A world in which actions change nothing, and policies for it: they are worth the same."""
    base = EQUALS.build()
    H, S, A = base.horizon, base.n_states, base.n_actions
    transition = np.repeat(base.transition[:, :, :1], A, axis=2)
    reward = np.repeat(base.reward[:, :, :1], A, axis=2)
    mu = base.behavior_array
    world = TabularMDP(base.initial, transition, reward, mu, mu, base._reward_sd)
    rng = np.random.default_rng(EQUALS.seed)
    drawn = 0.5 / A + 0.5 * rng.dirichlet(np.ones(A), (policies, H, S))
    return world, {f"policy {k}": TablePolicy(pi) for k, pi in enumerate(drawn)}


@dataclass(frozen=True)
class BestCell:
    """The best of many equal policies on n episodes, by the requested estimator: its own interval,
    the simultaneous one, and that of the episodes held out."""

    n: int
    policies: int = 50

    @property
    def name(self) -> str:
        return f"best-of-{self.policies}-n{self.n}"

    @property
    def suffix(self) -> str:
        return ".json.gz"

    @property
    def cost(self) -> float:
        return EQUALS.horizon * (STEP_COST + self.n) * self.policies

    @property
    def truth(self) -> float:
        return float(equal_policies(self.policies)[0].value())

    def describe(self) -> dict[str, Any]:
        world = asdict(EQUALS)
        return {"study": STUDY, "world": world, "n": self.n, "policies": self.policies}

    def replicate(self, estimators: Sequence[str], sequence: np.random.SeedSequence) -> Row:
        world, targets = equal_policies(self.policies)
        for_log, for_draws = sequence.spawn(2)
        log = world.simulate(self.n, np.random.default_rng(for_log))
        seed = int(for_draws.generate_state(1)[0])
        found: dict[str, float | None] = {}
        with compiled():
            for name in estimators:
                whole = compare(log, targets, name, level=LEVEL, seed=seed)
                best = whole.best
                assert best is not None
                assert isinstance(best.result, Estimate)
                apart = compare(log, targets, name, level=LEVEL, seed=seed, holdout=SHARE_HELD_OUT)
                assert apart.held_out is not None
                intervals = {
                    "plain": best.result.interval(LEVEL),
                    "corrected": best.interval,
                    "held out": apart.held_out.interval,
                }
                found[f"{name}{PART}value"] = best.result.value
                for kind, interval in intervals.items():
                    assert interval is not None
                    found[f"{name}{PART}{kind} low"] = interval.low
                    found[f"{name}{PART}{kind} high"] = interval.high
        return found
