from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import reweigh as rw
from reweigh.errors import UsageError
from reweigh.worlds import Bandit, World

CONTEXTS = [0.25, 0.75]
CLICKS = [[0.1, 0.5, 0.0], [0.2, 1.0, 0.4]]
TARGET = [[0.0, 1.0, 0.0], [0.5, 0.25, 0.25]]
BEHAVIOR = [[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]]


def test_values_by_hand() -> None:
    world = Bandit(CONTEXTS, CLICKS, TARGET, BEHAVIOR)
    in_second = 0.75 * (0.1 + 0.25 + 0.1)
    assert world.value() == pytest.approx(0.25 * 0.5 + in_second)
    assert world.behavior_value() == pytest.approx(0.25 * (0.05 + 0.125) + in_second)
    assert isinstance(world, World)
    assert (world.horizon, repr(world)) == (1, "Bandit(n_contexts=2, n_actions=3)")


def test_rewards_are_clicks_and_states_are_contexts() -> None:
    world = Bandit(CONTEXTS, CLICKS, TARGET, BEHAVIOR)
    n = 40_000
    rollout = world._rollout(n, 0)
    s, a, y = rollout.states[:, 0], rollout.actions[:, 0], rollout.rewards[:, 0]
    assert set(np.unique(y)) == {0.0, 1.0}
    assert abs((s == 0).mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / n)
    for context, offer in np.ndindex(2, 3):
        here = (s == context) & (a == offer)
        rate = CLICKS[context][offer]
        slack = 5 * np.sqrt(rate * (1 - rate) / here.sum())
        assert abs(y[here].mean() - rate) <= slack
    log = world.simulate(100, 0)
    assert (log.n_episodes, log.horizon) == (100, 1)
    assert {int(value) for value in log.states.values} == {0, 1}


def test_one_step_estimates_are_plain_averages() -> None:
    world = Bandit.random(1)
    log = world.simulate(2_000, 2)
    rollout = world._rollout(2_000, 2)
    weighted = rollout.target_prob * rollout.rewards / rollout.behavior_prob
    for recipe in (rw.is_(), rw.mis(), rw.mis(normalize="none")):  # H = 1: MIS is IS
        estimate = rw.evaluate(log, world.target, recipe)
        assert estimate.value == pytest.approx(weighted.mean(), rel=1e-12)
    assert abs(weighted.mean() - world.value()) < 5 * weighted.std() / np.sqrt(2_000)


@pytest.mark.parametrize("seed", range(5))
def test_random_bandits_have_a_better_target(seed: int) -> None:
    world = Bandit.random(seed, n_contexts=8, n_actions=4, epsilon=0.4, tilt=5.0)
    S = 8
    mu, pi = world.behavior_array[0, :S], world.target_array[0, :S]
    assert world.value() > world.behavior_value()
    np.testing.assert_allclose(np.sort(mu, axis=1)[:, :3], 0.1)
    clicks = world.transition[0, :S, :, S + 1]
    expected = mu * np.exp(5.0 * clicks)
    np.testing.assert_allclose(pi, expected / expected.sum(axis=1, keepdims=True))
    again = Bandit.random(np.random.default_rng(seed), 8, 4, epsilon=0.4, tilt=5.0)
    assert again.value() == world.value()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clicks": [0.5, 0.5]}, r"'clicks' must be a table of shape \(S,A\)"),
        ({"clicks": [[0.1, 1.5, 0.0]] * 2}, r"'clicks' must be probabilities.*1\.5"),
        ({"clicks": [[0.1, float("nan"), 0.0]] * 2}, "'clicks' must be probabilities.*nan"),
        ({"contexts": [1.0]}, r"'contexts' must be of shape \(2,\)"),
        ({"contexts": [0.5, 0.4]}, "'contexts' must be rows of probabilities"),
        ({"target": [[1.0, 0.0]] * 2}, r"'target' must be of shape \(2, 3\)"),
        ({"behavior": [[0.5, 0.6, 0.0]] * 2}, "'behavior' must be rows of probabilities"),
    ],
)
def test_errors_name_the_parameter(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"contexts": CONTEXTS, "clicks": CLICKS}
    good |= {"target": TARGET, "behavior": BEHAVIOR}
    with pytest.raises(UsageError, match=message):
        Bandit(**{**good, **change})


@pytest.mark.parametrize("bad", [{"n_contexts": 0}, {"n_actions": 0}, {"epsilon": 2.0}])
def test_random_bandits_check_their_arguments(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"'{next(iter(bad))}'"):
        Bandit.random(0, **bad)
