"""Gymnasium: recorded logs, policies of observations, and exact worlds of toy-text tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from worlds.extras import needs

import reweigh as rw
from reweigh.adapters import gym_policy, record, tabular_mdp

pytestmark = needs("gymnasium")
HORIZON = 12


def lake() -> Any:
    import gymnasium

    return gymnasium.make("FrozenLake-v1", map_name="4x4", is_slippery=True)


def table(seed: int, states: int = 16, actions: int = 4) -> Any:
    return np.random.default_rng(seed).dirichlet(np.full(actions, 3.0), states)


def test_what_is_recorded_is_what_was_played() -> None:
    """A counting environment: its observations and rewards say which step and action it was."""
    env, mu = Counting(5), np.array([[0.25, 0.75]] * 6)
    log = record(env, mu, 40, seed=3, horizon=9)
    rows = log.to_table().to_pydict()
    played = [entry for episode in env.played for entry in episode]
    assert list(zip(rows["episode"], rows["step"], rows["action"], strict=True)) == played
    assert rows["state"] == rows["step"]
    assert rows["reward"] == [10 * t + a for _, t, a in played]
    assert rows["behavior_prob"] == [[0.25, 0.75][a - 7] for _, _, a in played]
    assert log.horizon == 9
    described = log.describe()
    assert described["source"] == "episodes of Counting of 200 rows"
    assert described["terminated_early"] + described["truncated"] == 40
    assert described["terminated_early"] == sum(episode[-1][2] == 8 for episode in env.played)


def test_a_seed_repeats_a_log() -> None:
    logs = [record(lake(), table(0), 20, seed=5).digest() for _ in range(2)]
    other = record(lake(), table(0), 20, seed=6).digest()
    assert logs[0] == logs[1] != other


def test_recorded_logs_meet_the_exact_value() -> None:
    """MIS on 3,000 recorded episodes is within 4 standard errors of the table's exact value."""
    mu, pi = table(0), table(1)
    world = tabular_mdp(lake(), pi, mu, horizon=HORIZON)
    log = record(lake(), mu, 3000, seed=1, horizon=HORIZON)
    est = rw.evaluate(log, rw.TablePolicy(pi), rw.mis())
    assert est.standard_error is not None
    assert abs(est.value - world.value()) < 4 * est.standard_error
    assert est.standard_error < 0.3 * world.value()
    assert est.behavior_value == pytest.approx(world.behavior_value(), abs=4 * 0.01)


def test_the_table_is_that_of_the_environment() -> None:
    """One step of Frozen Lake by hand: from state 14, the goal is reached with chance 1/3."""
    right = np.eye(4)[np.full(16, 2)]
    world = tabular_mdp(lake(), right, right, horizon=1)
    start = np.zeros(17)
    start[14] = 1
    assert world.transition[0, 14, 2, 16] == pytest.approx(1 / 3)
    assert world.reward[0, 14, 2, 16] == 1
    assert world.initial[0] == 1
    assert world.value() == 0
    assert tabular_mdp(lake(), right, right).horizon == 100  # the environment's own limit


def test_a_policy_of_observations_is_a_target() -> None:
    pi = table(1)
    log = record(lake(), table(0), 200, seed=2, horizon=HORIZON)
    called: list[Any] = []

    def policy(observation: Any) -> Any:
        called.append(observation)
        return pi[observation]

    by_function = gym_policy(policy).probabilities(log)
    assert np.array_equal(by_function, rw.TablePolicy(pi).probabilities(log))
    logged = np.unique(log.raw_states()).tolist()
    assert called == logged  # once for each state, not for each row


def test_continuous_observations_need_states() -> None:
    import gymnasium

    env = gymnasium.make("CartPole-v1")

    def lean(observation: Any) -> Any:
        p = 0.5 + 0.4 * np.tanh(5 * observation[2])
        return np.array([1 - p, p])

    with pytest.raises(rw.InputError, match="abstraction=Quantiles"):
        record(env, lean, 3, seed=0, horizon=10)
    log = record(env, lean, 100, seed=0, horizon=10, abstraction=rw.Rounding([1, 1, 20, 1]))
    assert log.columns.state == ("state_0", "state_1", "state_2", "state_3")
    # the policy sees observations, not the rounded states: π = μ has ratio 1 everywhere
    target = gym_policy(lean)
    assert target.probabilities(log) == pytest.approx(log.steps.behavior_prob, rel=1e-6)


def test_observations_of_several_parts() -> None:
    import gymnasium

    env = gymnasium.make("Blackjack-v1")
    log = record(env, lambda _: [0.5, 0.5], 50, seed=0, horizon=10)
    assert len(log.columns.state) == 3
    best_only = record(
        env, lambda _: [0.5, 0.5], 50, seed=0, horizon=10, features=lambda o: o[:, 0]
    )
    assert best_only.columns.state == ("state",)
    assert best_only.steps.reward.tolist() == log.steps.reward.tolist()


class Space:
    def __init__(self, n: int, start: int = 0) -> None:
        self.n, self.start = n, start


class Counting:
    """Observation t at step t, reward 10 t + a; ends at step `last` where a = 8, else is cut."""

    action_space = Space(2, start=7)
    spec = None

    def __init__(self, last: int) -> None:
        self.last = last
        self.played: list[list[tuple[int, int, int]]] = []

    def reset(self, seed: int | None = None) -> tuple[int, dict[str, Any]]:
        assert (seed is None) == bool(self.played)  # only the first reset is seeded
        self.played.append([])
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        t = len(self.played[-1])
        self.played[-1].append((len(self.played) - 1, t, action))
        over = t + 1 == self.last
        return t + 1, 10.0 * t + action, over and action == 8, over and action == 7, {}


def test_what_cannot_be_recorded() -> None:
    import gymnasium

    even = np.full((16, 4), 0.25)
    with pytest.raises(rw.UsageError, match="discrete action space"):
        record("Pendulum-v1", even, 1)
    with pytest.raises(rw.UsageError, match="no step limit"):
        record(Counting(3), even, 1)
    with pytest.raises(rw.UsageError, match="'n' must be"):
        record(lake(), even, 0)
    with pytest.raises(rw.UsageError, match=r"4 probabilities.*observation 0 in episode 0, step 0"):
        record(lake(), even[:, :3], 1)
    with pytest.raises(rw.UsageError, match="sum to 1"):
        record(lake(), even * 1.1, 1)
    with pytest.raises(rw.UsageError, match="no transition table"):
        tabular_mdp(gymnasium.make("Blackjack-v1"), even, even)
    with pytest.raises(rw.UsageError, match=r"'target' must be an array of shape \(16, 4\)"):
        tabular_mdp(lake(), even[:3], even)
    log = record(lake(), even, 5, seed=0)
    with pytest.raises(rw.UsageError, match="the policy has only 0 to 1"):
        rw.evaluate(log, gym_policy(lambda _: [0.5, 0.5]), rw.mis())


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(rw.UsageError, match=r"pip install 'reweigh\[worlds\]'"):
        record("FrozenLake-v1", np.full((16, 4), 0.25), 1)
