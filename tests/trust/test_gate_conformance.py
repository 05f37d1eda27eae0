"""Every gate passes the public conformance check, on the fault that it declares."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reweigh_studies.coverage.faults import FAULTS, Grid
from reweigh_studies.coverage.worlds import WORLDS
from reweigh_studies.verdicts import makers

import reweigh as rw
from reweigh.policy import Policy, RowsPolicy
from reweigh.testing.gates import Logs, check_declaration, check_gate, check_result, clean_log
from reweigh.trust.gates import GATES, Context, Gate, GateResult, Limit, limits_by

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
TARGET = rw.ColumnPolicy("target_prob")
Rng = np.random.Generator
Made = tuple[rw.EpisodeLog, Policy]


def from_world(world: str, fault: str, n: int) -> Logs:
    def make(rng: Rng) -> Made:
        log, _ = WORLDS[world].log(n, rng)
        return FAULTS[fault](Grid.of(log), rng).log(), TARGET

    return make


def few_episodes(rng: Rng) -> Made:
    return from_world("default", "clean", 20)(rng)


def few_clusters(rng: Rng) -> Made:
    log, target = from_world("default", "clean", 200)(rng)
    site = log.steps.episode % 5
    steps = replace(log.steps, cluster=site)
    return replace(log, steps=steps, columns=replace(log.columns, cluster="site")), target


def no_spread(rng: Rng) -> Made:
    log, target = from_world("default", "clean", 100)(rng)
    return log.with_rewards(np.zeros(log.steps.n_rows), None), target


def fitted_behavior(rng: Rng) -> Made:
    log, target = WORLDS["default"].log(200, rng)
    return log.with_behavior(rw.fit_behavior(log)), target


def fine_states(rng: Rng) -> Made:
    """Every state has fifty names."""
    log, _ = WORLDS["default"].log(1000, rng)
    grid = Grid.of(log)
    names = 50 * grid.states + rng.integers(0, 50, grid.states.shape)
    return replace(grid, states=np.where(grid.states >= 0, names, grid.states)).log(), TARGET


def constant_reward(rng: Rng) -> Made:
    """A reward of 1 in every row, of which propensities that are too low make more."""
    log, target = from_world("default", "propensities-low", 1000)(rng)
    return log.with_rewards(np.ones(log.steps.n_rows), None), target


def of_world(world: Any, n: int) -> Logs:
    """Logs of a world of the study of verdicts, and its target by its logged probabilities."""

    def make(rng: Rng) -> Made:
        log = world.simulate(n, rng)
        return log, RowsPolicy(world.target, log)

    return make


def no_reward_follows(rng: Rng) -> Made:
    """Rewards that no action changes."""
    log, target = clean_log(rng)
    return log.with_rewards(rng.normal(size=log.steps.n_rows), None), target


def no_clock(rng: Rng) -> Made:
    """The reward grows with the step, half of the episodes end early, and the feature is noise."""
    n, horizon = 300, 12
    actions = rng.integers(0, 2, (n, horizon))
    rewards = np.arange(horizon) + 0.1 * rng.normal(size=(n, horizon))
    lengths = np.where(rng.random(n) < 0.5, 1, horizon)
    log = rw.log_from_arrays(
        None, actions, rewards, np.full((n, horizon), 0.5), lengths=lengths,
        features=rng.normal(size=(n, horizon)),
    )  # fmt: skip
    return log, rw.FunctionPolicy(lambda x, action, step: np.where(action == 1, 0.6, 0.4))


def elsewhere(rng: Rng) -> Made:
    """The target always takes the action that the log seldom takes, and so leaves its region."""
    n, horizon = 150, 8
    x, actions = np.zeros((n, horizon)), (rng.random((n, horizon)) < 0.1) * 1
    for t in range(1, horizon):
        x[:, t] = x[:, t - 1] + 2.0 * actions[:, t - 1] + 0.3 * rng.normal(size=n)
    mu = np.where(actions == 1, 0.1, 0.9)
    log = rw.log_from_arrays(None, actions, x**2, mu, features=x)
    return log, rw.FunctionPolicy(lambda x, action, step: np.where(action == 1, 0.95, 0.05))


# Faults that the study does not have, by the names that gates declare.
OTHERS: dict[str, Callable[[Rng], Made]] = {
    "few-episodes": few_episodes,
    "few-clusters": few_clusters,
    "no-spread": no_spread,
    "fitted-behavior": fitted_behavior,
    "fine-states": fine_states,
    "constant-reward": constant_reward,
    "action-in-group": clean_log,  # its two actions differ, and are one group
    "emergency": of_world(makers.emergency(0.02, 0.02, 0.9, 60.0, 3), 1000),
    "side-effect": of_world(makers.event(-500, 500, 1.0, 1), 200),
    "no-clock": no_clock,
    "elsewhere": elsewhere,
    "binned-states": of_world(makers.control("level", 20, 6, 2.0, 0.7), 1000),
}
# The range of rewards that evaluations declare.
DECLARED = {"unseen events": (-506.0, 7.0)}
# The worlds of those that the study has; its "default" where none is named.
IN_WORLD = {
    "propensities": "long-better",
    "drift": "long-better",
    "history": "long-better",
    "cut-off episodes": "ending",
    "steadiness": "steady",
    "stationarity": "steady",
}


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)
def test_every_gate_conforms(gate: Gate) -> None:
    world = IN_WORLD.get(gate.name, "default")
    n = 200 if gate.name == "effective size" else 1000
    faulty = OTHERS.get(gate.fault) or from_world(world, gate.fault, n)
    clean = from_world(world, "clean", n)
    if gate.name in DECLARED:  # the effect is as large, and often seen
        clean = of_world(makers.event(-500, 5, 1.0, 1), 200)
    if gate.name == "action groups":
        clean = no_reward_follows
    # of a log without features there is no such estimate, and so no result
    check_gate(gate, faulty, clean=clean, logs=4, reward_range=DECLARED.get(gate.name))


def test_the_page_of_gates_says_what_they_declare() -> None:
    script = Path(__file__).parents[2] / "scripts" / "gates.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


class Careless(Gate, name="careless", question="Is it?", fault="none", needs={"rows"}):
    pass


class Louder(
    Gate,
    name="louder",
    question="Is it red where its limit says amber?",
    fault="none",
    limits=limits_by(Limit(1.0, 2.0)),
):
    def measure(self, context: Context) -> GateResult:
        return self.result("red", 1.5, "a text", advice="none", limit=str(self.limit()))


class Deaf(
    Louder, name="deaf", question="Does it hear?", fault="drift", limits=limits_by(Limit(1, 2))
):
    def measure(self, context: Context) -> GateResult:
        return self.judge(0.0, "all is well")


def test_what_does_not_conform_is_named() -> None:
    with pytest.raises(AssertionError, match=r"needs tables that do not exist: \['rows'\]"):
        check_declaration(Careless())
    with pytest.raises(AssertionError, match=r"louder is red at 1.5, which is amber by amber > 1"):
        check_gate(Louder())
    for text in ("", "two\nlines", "a sentence."):
        with pytest.raises(AssertionError, match="the text"):
            check_result(Deaf(), replace(Deaf().measure(Context(None)), text=text))
    with pytest.raises(AssertionError, match="deaf does not detect drift"):
        check_gate(Deaf(), from_world("default", "drift", 200), logs=2)
