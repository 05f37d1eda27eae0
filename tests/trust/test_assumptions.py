"""Tests of assumptions: exact on tiny sums, right sizes on clean logs, power on faulty ones."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy import stats

import reweigh as rw
from reweigh.estimate.operators import importance_operator
from reweigh.estimate.recursion import backward
from reweigh.sums.diagnostic_tables import OrderedMoments, PacedMoments
from reweigh.sums.engines import ArraysEngine, Request
from reweigh.trust.gates.episodes import drift_by_step, drift_test
from reweigh.trust.gates.propensities import ratio_test
from reweigh.trust.gates.states import Outcome, StateValues, history_test, steadiness_test
from reweigh.worlds.random_worlds import RandomWorld

KINDS = Request(frozenset({"transitions", "model", "lagged", "ordered"}))
REPLICATES = 200
WORLDS = {
    "modelwin": rw.worlds.ModelWin(12),
    "few states": rw.worlds.random_mdp(1, 5, 3, 8, reward_sd=0.3),
    "early ends": rw.worlds.random_mdp(2, 8, 3, 10, reward_sd=0.3, terminal=2, discount=0.9),
}


def worth(m: rw.Moments) -> StateValues:
    assert m.transitions is not None
    op = importance_operator(m.transitions, m.start, m.about.horizon, m.about.discount)
    return StateValues(op.node_t, op.node_s, backward(op).u)


def outcomes(log: rw.EpisodeLog, target: rw.Policy) -> dict[str, Outcome]:
    m = ArraysEngine().moments(log, target, KINDS)
    assert m.transitions is not None
    assert m.lagged is not None
    assert m.ordered is not None
    horizon, discount = m.about.horizon, m.about.discount
    return {
        "ratio": ratio_test(m.transitions, horizon, m.states),
        "history": history_test(m.lagged, worth(m), horizon, discount),
        "drift": drift_test(m.ordered),
    }


@cache
def clean(name: str) -> dict[str, np.ndarray]:
    world = WORLDS[name]
    found = [outcomes(world.simulate(300, seed), world.target) for seed in range(REPLICATES)]
    return {
        test: np.array([1.0 if f[test].p is None else f[test].p for f in found])
        for test in ("ratio", "history", "drift")
    }


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("test", ["ratio", "history", "drift"])
def test_a_clean_log_is_seldom_suspected(name: str, test: str) -> None:
    """At 1 % at most 5 % false alarms. The bound is passed with probability 1e-4 by a test whose
    size is 2 %: what is asserted does not hang on luck."""
    alarms = int(np.sum(clean(name)[test] <= 0.01))
    assert alarms <= stats.binom.ppf(1 - 1e-4, REPLICATES, 0.02)


def off(log: rw.EpisodeLog, factor: float) -> rw.EpisodeLog:
    mu = log.steps.behavior_prob
    assert mu is not None
    return replace(
        log, steps=replace(log.steps, behavior_prob=np.minimum(mu * factor, 1.0)), _cache={}
    )


@pytest.mark.parametrize("factor", [0.85, 1.1])
@pytest.mark.parametrize("name", WORLDS)
def test_wrong_propensities_are_seen(name: str, factor: float) -> None:
    world = WORLDS[name]
    found = [
        outcomes(off(world.simulate(2000, seed), factor), world.target)["ratio"].p
        for seed in range(10)
    ]
    assert all(p is not None and p <= 0.01 for p in found)


def test_a_state_that_forgets_is_seen() -> None:
    """The true state, with the half of it that matters left out."""
    world = rw.worlds.random_mdp(5, 6, 2, 10, reward_sd=0.1, time_varying=False)
    full = world.simulate(2000, 0)
    steps = full.steps
    states = np.array([0, 0, 1, 1, 2, 2], np.int32)
    ending = np.where(steps.ending >= 0, states[np.maximum(steps.ending, 0)], steps.ending)
    half = replace(
        full,
        steps=replace(steps, state=states[steps.state], ending=ending.astype(np.int32)),
        states=type(full.states)((0, 1, 2)),
        _cache={},
    )
    forgetting = outcomes(half, _Given(world.target.probabilities(full)))["history"]
    assert forgetting.p is not None
    assert forgetting.p <= 1e-6
    assert forgetting.step is not None
    clean_p = outcomes(full, world.target)["history"].p
    assert clean_p is not None
    assert clean_p > 1e-3


class _Given(rw.TablePolicy):
    """π(a|s) of the rows, as they were."""

    def __init__(self, values: np.ndarray) -> None:
        super().__init__(np.array([[1.0]]))
        self.values = values

    def probabilities(self, log: rw.EpisodeLog) -> np.ndarray:
        return self.values.copy()


def test_drift_is_seen_and_told_from_noise() -> None:
    rng = np.random.default_rng(0)
    ids = np.arange(1000)
    steady = rng.normal(size=1000)
    moved = steady + 0.5 * (ids >= 500)
    assert (drift_test(OrderedMoments.of(ids, moved)).p or 0) < 1e-8
    assert (drift_test(OrderedMoments.of(ids, steady)).p or 0) > 0.01
    expected = stats.ttest_ind(moved[:500], moved[500:], equal_var=False).pvalue
    assert drift_test(OrderedMoments.of(ids, moved)).p == pytest.approx(expected, rel=1e-9)


def by_step(rewards: np.ndarray, lengths: np.ndarray | None = None) -> PacedMoments:
    """(n, H) rewards of episodes 0, 1, …, of which only the first `lengths` steps have rows."""
    n, horizon = rewards.shape
    lengths = np.full(n, horizon) if lengths is None else lengths
    ids, t = np.nonzero(np.arange(horizon) < lengths[:, None])
    y = rewards[ids, t]
    return PacedMoments(0, ids, np.ones(len(ids), np.int64), t, y, y * y).summed()


def test_drift_by_step_is_the_test_of_every_step() -> None:
    """Two halves of 512 episodes; those that are over earn 0."""
    rng = np.random.default_rng(3)
    rewards = rng.normal(1.0, 1.0, (1024, 4))
    lengths = rng.integers(1, 5, 1024)
    rewards[:, 1] = 0.0
    rewards[512:, 3] /= 2
    found = drift_by_step(by_step(rewards, lengths), 5)
    earned = np.where(np.arange(4) < lengths[:, None], rewards, 0.0)
    expected = stats.ttest_ind(earned[:512], earned[512:], equal_var=False).pvalue
    assert found.per_step is not None
    np.testing.assert_allclose(found.per_step[[0, 2, 3]], expected[[0, 2, 3]], rtol=1e-9)
    assert np.isnan(found.per_step[[1, 4]]).all()  # nobody earned anything there
    assert found.step == 3
    assert (found.p, found.why) == (None, "")


def test_a_drift_beyond_doubt_and_one_that_is_none() -> None:
    """Steps whose rewards are the same for all, or for all of a half."""
    rewards = np.random.default_rng(4).normal(size=(128, 4))
    rewards[:, 0] = 0.1
    rewards[64:, 1] += 1e3
    rewards[:, 2] = np.where(np.arange(128) < 64, 0.3, 0.2)
    found = drift_by_step(by_step(rewards), 4)
    assert found.per_step is not None
    assert np.isnan(found.per_step[0])
    assert found.per_step[1] < 1e-100
    assert found.per_step[2] < 1e-100
    assert found.per_step[3] > 0.01
    assert found.step == 2
    none = drift_by_step(by_step(np.ones((128, 2))), 2)
    assert (none.per_step, none.step) == (None, None)
    assert "are equal" in none.why


def test_drift_by_step_of_a_clean_log_is_uniform() -> None:
    """A tenth of the p-values is below 0.1: 40 logs of 8 steps, error 0.017 if independent."""
    world = WORLDS["few states"]
    kinds = Request(frozenset({"transitions", "paced"}))
    sums = [ArraysEngine().moments(world.simulate(300, k), world.target, kinds) for k in range(40)]
    p = np.array([drift_by_step(m.paced, 8).per_step for m in sums])
    assert 0.05 < np.mean(p < 0.1) < 0.15
    assert 0.42 < np.mean(p < 0.5) < 0.58


def test_what_cannot_be_tested_says_why() -> None:
    assert "fewer than" in drift_by_step(by_step(np.ones((5, 2))), 2).why
    far = by_step(np.random.default_rng(0).normal(size=(200, 2)))
    far = replace(far, bucket=np.where(far.bucket == far.bucket.max(), 10**6, far.bucket // 99))
    assert "so uneven" in drift_by_step(far.summed(), 2).why  # 4 of 200 are beyond the others
    outlier = np.append(-(10**12), np.arange(1, 600))
    assert "so uneven" in drift_test(OrderedMoments.of(outlier, np.arange(600.0))).why
    assert drift_test(OrderedMoments.of(np.zeros(5, np.int64), np.ones(5))).p is None
    few = drift_test(OrderedMoments.of(np.arange(5), np.arange(5.0)))
    assert few.p is None
    assert "fewer than" in few.why
    same = drift_test(OrderedMoments.of(np.arange(50), np.full(50, 2.0)))
    assert same.p is None
    assert "are equal" in same.why
    world = WORLDS["few states"]
    on_policy = outcomes(world.simulate(100, 0), world.behavior)["ratio"]
    assert on_policy.p is None  # every ratio is 1: nothing to test
    two = outcomes(world.simulate(3, 0), world.target)
    assert two["history"].p is None
    assert two["history"].why


def test_the_history_test_is_an_analysis_of_variance_by_what_came_before() -> None:
    world = rw.worlds.random_mdp(4, 2, 2, 3, reward_sd=0.5)
    log = world.simulate(500, 1)
    m = ArraysEngine().moments(log, world.target, KINDS)
    v, steps = worth(m), log.steps
    rho = world.target.probabilities(log) / steps.behavior_prob
    least = []
    for before in (steps.state, steps.action):
        score, count = 0.0, 0
        for t in (1, 2):
            rows, past = steps.rows(t), steps.rows(t - 1)
            after = steps.next_state[rows].astype(np.int64)
            q = rho[rows] * (steps.reward[rows] + v.at(np.full(500, t + 1), after))
            for s in (0, 1):
                here = steps.state[rows] == s
                groups = [q[here & (before[past] == b)] for b in np.unique(before[past][here])]
                score -= 2 * np.log(stats.f_oneway(*groups).pvalue)
                count += 2
        least.append(stats.chi2.sf(score, count))
    assert m.lagged is not None
    found = history_test(m.lagged, v, 3, 1.0)
    assert found.p == pytest.approx(min(2 * min(least), 1.0), rel=1e-6)


def steady(log: rw.EpisodeLog, target: rw.Policy) -> Outcome:
    m = ArraysEngine().moments(log, target, KINDS)
    assert m.transitions is not None
    return steadiness_test(m.transitions, worth(m), m.about.horizon, m.about.discount)


def described(seed: int, *, time_varying: bool) -> rw.worlds.TabularMDP:
    return RandomWorld(seed, horizon=8, reward_sd=0.3, time_varying=time_varying).build()


@pytest.mark.parametrize("world", [rw.worlds.ModelWin(12), described(5, time_varying=False)])
def test_a_steady_world_is_seldom_suspected(world: rw.worlds.World) -> None:
    """As above: a test of size 2 % passes with probability 0.9999."""
    found = [steady(world.simulate(300, seed), world.target).p for seed in range(REPLICATES)]
    alarms = sum(p is not None and p <= 0.01 for p in found)
    assert alarms <= stats.binom.ppf(1 - 1e-4, REPLICATES, 0.02)


def test_a_world_that_changes_with_the_step_is_seen() -> None:
    world = described(7, time_varying=True)
    found = [steady(world.simulate(2000, seed), world.target).p for seed in range(10)]
    assert all(p is not None and p < 1e-4 for p in found)


def test_the_steadiness_test_is_an_analysis_of_variance_by_step() -> None:
    world = rw.worlds.random_mdp(4, 2, 2, 4, reward_sd=0.5)
    log = world.simulate(500, 1)
    m = ArraysEngine().moments(log, world.target, KINDS)
    v, steps = worth(m), log.steps
    mean = np.array([v.v[v.s == s].mean() for s in (0, 1)])
    rho = world.target.probabilities(log) / steps.behavior_prob
    q = rho * (steps.reward + mean[np.maximum(steps.next_state, 0)])
    score = 0.0
    for s in (0, 1):
        groups = [q[(steps.state == s) & (steps.step == t)] for t in range(3)]
        score -= 2 * np.log(stats.f_oneway(*groups).pvalue)
    found = steady(log, world.target)
    assert found.p == pytest.approx(stats.chi2.sf(score, 4), rel=1e-6)
    assert found.step is None  # all steps are compared: none is the place
    assert found.state in (0, 1)


def test_one_step_tells_nothing_about_steadiness() -> None:
    world = rw.worlds.Bandit.random(1)
    found = steady(world.simulate(200, 0), world.target)
    assert found.p is None
    assert found.why


def test_a_difference_without_any_noise_is_beyond_doubt() -> None:
    """The paper's time-varying world: state 0 pays 1 in the second half, and only there."""
    world = rw.worlds.TimeVarying(8, 0)
    p = steady(world.simulate(500, 0), world.target).p
    assert p is not None
    assert p < 1e-10


def test_what_a_state_is_worth_is_read_from_its_own_node() -> None:
    """END and what is not known stand among the nodes, with codes below 0."""
    worth = StateValues(
        np.array([0, 0, 0, 1, 1, 1, 1, 2, 2]),
        np.array([0, 1, 2, -2, 0, 1, 2, -2, 1]),
        np.array([1.0, 2.0, 3.0, 0.0, 4.0, 5.0, 6.0, 0.0, 7.0]),
    )
    t = np.array([0, 0, 0, 1, 1, 1, 2, 2, 1, 2, 3])
    s = np.array([0, 1, 2, 0, 1, 2, 1, 0, -2, -3, 1])
    expected = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 0.0, 0.0, 0.0, 0.0]
    for order in (np.arange(len(t)), np.random.default_rng(0).permutation(len(t))):
        np.testing.assert_array_equal(worth.at(t[order], s[order]), np.array(expected)[order])


def test_ends_raise_no_alarm_of_history() -> None:
    """Where the target is the behavior, whose ratios are all 1, nothing hides a wrong value."""
    world = rw.worlds.random_mdp(5, 5, 2, 6, reward_sd=0.1, terminal=1)
    p = [outcomes(world.simulate(1500, seed), world.behavior)["history"].p for seed in range(60)]
    assert np.mean([value is not None and value <= 0.01 for value in p]) <= 0.07
