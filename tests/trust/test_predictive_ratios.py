"""Ratios that differ within a step, state and action: a fault if that predicts what follows."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from reweigh_studies.coverage.worlds import WORLDS as COVERAGE
from reweigh_studies.verdicts.worlds import WORLDS
from scipy import stats

import reweigh as rw
from reweigh import kernels
from reweigh.trust.gates import Context, GateResult
from reweigh.trust.gates.predictive_ratios import LEAST_FREEDOM, prediction, prediction_p
from reweigh.trust.gates.states import StateValues

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
Rng = np.random.Generator


def policies(log: rw.EpisodeLog, target: rw.Policy, name: str = "mis") -> GateResult:
    [gate] = [g for g in rw.evaluate(log, target, name).verdict.gates if g.name == "policies"]
    return gate


def test_the_test_by_loops_over_the_groups() -> None:
    log = WORLDS["two-loggers"].world().simulate(150, np.random.default_rng(5))
    target, discount = rw.ColumnPolicy("target_prob"), 0.9
    sums = rw.moments(log, target, ["mis", "dm"])
    horizon, states = log.horizon, len(log.states)
    t, s = (k.reshape(-1) for k in np.indices((horizon + 1, states)))
    v = np.random.default_rng(1).standard_normal(t.shape) * (t < horizon)
    found = prediction_p(sums.model, StateValues(t, s, v), discount, sums.states)
    steps, V = log.steps, v.reshape(horizon + 1, states)
    rho = target.probabilities(log) / steps.behavior_prob
    f = steps.reward + discount * V[steps.step + 1, np.maximum(steps.next_state, 0)]
    total, square, log_p, groups = 0.0, 0.0, 0.0, 0
    for key in product(range(horizon), range(states), range(3)):
        rows = (steps.step == key[0]) & (steps.state == key[1]) & (steps.action == key[2])
        n = rows.sum()
        if n < 3 or np.ptp(rho[rows]) < 1e-9:
            continue
        x, y = rho[rows] - rho[rows].mean(), f[rows] - f[rows].mean()
        total += x @ y
        square += (x @ x) * (y @ y) / (n - 1)
        if n >= 12:
            log_p += np.log(stats.linregress(x, y).pvalue)
            groups += 1
    p = [2 * stats.norm.sf(abs(total) / np.sqrt(square)), stats.chi2.sf(-2 * log_p, 2 * groups)]
    assert groups > 10
    assert found == pytest.approx(min(2 * min(p), 1.0), rel=1e-6)


@pytest.mark.parametrize("name", ["two-loggers", "adaptive-long"])
@pytest.mark.parametrize("n", [200, 1000])
def test_loggers_that_recorded_their_own_propensities_are_right(name: str, n: int) -> None:
    """In 60 logs p < 0.01 happens 4 times or more with a chance of 0.4 %."""
    world, alarms = WORLDS[name].world(), 0
    for k in range(60):
        log = world.simulate(n, np.random.default_rng([3, n, k]))
        p = prediction(Context(rw.moments(log, world.target, ["mis"]))).p
        alarms += p is not None and p < 0.01
    assert alarms <= 3
    gate = policies(world.simulate(n, np.random.default_rng([3, n, 0])), world.target)
    assert gate.value is not None
    assert gate.value > 0.1
    assert (gate.level, gate.advice) == ("green", "")
    assert "predicts nothing of what follows (p = " in gate.text


@pytest.mark.parametrize("engine", ["arrays", "stream", "duckdb"])
def test_the_verdict_is_the_same_on_every_engine(engine: str) -> None:
    for world in (WORLDS["two-loggers"], COVERAGE["coarse-better"]):
        log, _ = world.log(400, np.random.default_rng(2))
        target = rw.ColumnPolicy("target_prob")
        roles = {"behavior_prob": "behavior_prob", "target_prob": "target_prob"}
        there = rw.read_log(log.to_table(), engine=engine, **roles)
        expected, gate = policies(log, target), policies(there, target)
        assert (gate.level, gate.text) == (expected.level, expected.text)
        sums = rw.moments(there, target, ["mis"])
        assert policies(sums, None).text == expected.text
        assert expected.level == ("green" if world.name == "two-loggers" else "red")


def test_hidden_information_that_matters_is_red() -> None:
    """Power: two true states look the same, and both policies tell them apart."""
    world = COVERAGE["coarse-better"]
    for k in range(10):
        gate = policies(*world.log(200, np.random.default_rng([1, k])))
        assert gate.level == "red"
        assert "; that predicts what follows (p" in gate.text


def test_with_too_few_rows_the_ratios_alone_decide() -> None:
    rng = np.random.default_rng(0)
    n = LEAST_FREEDOM // 2
    state, action = np.zeros((n, 2), int), rng.integers(0, 2, (n, 2))
    mu = rng.uniform(0.3, 0.7, (n, 2))
    log = rw.log_from_arrays(state, action, rng.random((n, 2)), mu, np.full((n, 2), 0.5))
    gate = policies(log, rw.ColumnPolicy("target_prob"))
    assert gate.level == "red"
    assert gate.text.endswith("is unknown: too few rows share a step, state and action")


def test_where_nothing_follows_nothing_is_predicted() -> None:
    rng = np.random.default_rng(0)
    log = WORLDS["two-loggers"].world().simulate(300, rng)
    log = log.with_rewards(np.ones(log.steps.n_rows), None)
    sums = rw.moments(log, rw.ColumnPolicy("target_prob"), ["mis"])
    t, s = (k.reshape(-1) for k in np.indices((log.horizon + 1, len(log.states))))
    same = StateValues(t, s, np.where(t < log.horizon, 1.0, 0.0))
    assert prediction_p(sums.model, same, 1.0, sums.states) == 1.0


ONE_NUMBER = ("is", "trajectory-is", "mis", "mis-plain", "mis-pooled")


@pytest.mark.parametrize("name", ["two-loggers-1", "clicks", "side-effect", "lognormal-1",
                                  "clean-bandit", "counted-bandit"])  # fmt: skip
@pytest.mark.parametrize("n", [50, 200, 1000])
def test_one_number_has_one_verdict(name: str, n: int) -> None:
    """On a one-step log importance sampling and MIS are one number: policies cannot bias one of
    them, and products cannot have heavy tails in the other."""
    log, target = WORLDS[name].log(n, np.random.default_rng(0))
    results = rw.evaluate(log, target, ONE_NUMBER)
    assert np.ptp([each.value for each in results]) < 1e-12
    reasons = [
        {gate.name.removeprefix("marginal "): gate.level for gate in each.verdict.reasons}
        for each in results
    ]
    assert all(each == reasons[0] for each in reasons)
    assert len({each.verdict.level for each in results}) == 1
    assert not {"policies", "Pareto k", "rare states"} & reasons[0].keys()


def test_propensities_seen_beyond_the_state_are_no_fault_with_one_step() -> None:
    """As in the Open Bandit logs: each row has its own propensity, of more than the context."""
    rng = np.random.default_rng(4)
    n = 2000
    x = rng.random(n)
    mu1 = 0.2 + 0.6 * x
    a = (rng.random(n) < mu1).astype(int)
    y = rng.random(n) + x
    log = rw.log_from_arrays(
        np.zeros((n, 1), int), a[:, None], y[:, None],
        np.where(a == 1, mu1, 1 - mu1)[:, None], np.full((n, 1), 0.5),
    )  # fmt: skip
    target = rw.ColumnPolicy("target_prob")
    mis, is_, dm = rw.evaluate(log, target, ["mis", "is", "dm"])
    assert (mis.verdict.level, is_.verdict.level) == ("green", "green")
    assert dm.verdict.level == "red"  # x moves the actions and the rewards: dm is wrong
    assert abs(mis.value - 1.0) < 3 * mis.standard_error
    assert abs(dm.value - 1.0) > 3 * dm.standard_error or dm.verdict.reasons


@pytest.mark.parametrize("name", ["two-loggers", "adaptive-long"])
def test_sums_with_the_outcome_as_reward_give_the_same(name: str) -> None:
    """A large log in memory is summed by action alone, its rewards being f."""
    world = WORLDS[name].world()
    log = world.simulate(300, np.random.default_rng(4))
    expected = policies(log, world.target)
    with kernels.compiled():
        again = replace(log, _cache={})
        estimate = rw.evaluate(again, world.target, "mis")
        assert estimate.context().with_rewards is not None
        [gate] = [g for g in estimate.verdict.gates if g.name == "policies"]
    assert "predicts nothing of what follows (p = " in gate.text
    assert (gate.level, gate.text) == (expected.level, expected.text)


def test_too_many_possible_cells_are_left_out_in_memory_too(monkeypatch) -> None:
    world = WORLDS["two-loggers"].world()
    log = world.simulate(300, np.random.default_rng(4))
    monkeypatch.setattr("reweigh.trust.gates.predictive_ratios.SPARE_CELLS", 100)
    text = policies(log, world.target).text
    assert text.endswith("unknown: there are too many cells by action and next state")
