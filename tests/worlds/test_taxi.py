from __future__ import annotations

import pickle
import sys
import warnings
from collections import deque
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import reweigh as rw
from reweigh.errors import ReweighWarning, UsageError
from reweigh.worlds import TabularMDP, Taxi, World
from reweigh.worlds import benchmark_worlds as module
from reweigh.worlds.benchmark_worlds import ToyText, toy_text_tables

from .extras import needs

needs_gymnasium = needs("gymnasium")


def environment() -> Any:
    return import_module("gymnasium.envs.toy_text.taxi").TaxiEnv()


@needs_gymnasium
def test_tables_are_gymnasium_s() -> None:
    env, world = environment(), Taxi()
    P, r = world.transition[0], world.reward[0]
    assert P.shape == (501, 6, 501)
    assert world.terminal == (500,)
    np.testing.assert_array_equal(world.initial, [*env.initial_state_distrib, 0.0])
    for s in range(500):
        for a in range(6):
            ((probability, after, reward, over),) = env.P[s][a]  # one outcome each
            place = 500 if over else after
            assert probability == P[s, a, place] == P[s, a].sum() == 1
            assert r[s, a, place] == reward


@needs_gymnasium
def test_the_best_policy_drives_the_shortest_way() -> None:
    env = environment()
    before: dict[Any, list[int]] = {}
    for s in range(500):
        for a in range(6):
            _, after, reward, over = env.P[s][a][0]
            if over or reward == -1:  # a fare never pays off
                before.setdefault("end" if over else after, []).append(s)
    steps: dict[Any, int] = {"end": 0}
    queue: deque[Any] = deque(["end"])
    while queue:
        here = queue.popleft()
        for s in before.get(here, []):
            if s not in steps:
                steps[s] = steps[here] + 1
                queue.append(s)
    starts = np.flatnonzero(env.initial_state_distrib)
    shortest = np.mean([21 - steps[s] for s in starts.tolist()])  # 20, and -1 before
    assert Taxi(200, 0.0, 0.3).value() == pytest.approx(shortest, abs=1e-9)
    assert shortest == pytest.approx(7.93)


@needs_gymnasium
def test_gymnasium_drives_the_same_episodes() -> None:
    env, world = environment(), Taxi(60)
    env.reset(seed=0)
    rollout = world._rollout(30, 0)
    assert rollout.lengths is not None
    for i, length in enumerate(rollout.lengths.tolist()):
        env.s = int(rollout.states[i, 0])
        for t in range(length):
            after, reward, over, _, _ = env.step(int(rollout.actions[i, t]))
            assert reward == rollout.rewards[i, t]
            assert rollout.states[i, t + 1] == (500 if over else after)
            assert over == (t == length - 1 and length < 60)


@needs_gymnasium
def test_policies_are_soft_and_logs_tell_the_value() -> None:
    world = Taxi(30, 0.1, 0.3)
    best = Taxi(30, 0.0, 0.3).target_array[0, :500]
    assert set(np.unique(best)) == {0.0, 1.0}
    for array, epsilon in ((world.target_array, 0.1), (world.behavior_array, 0.3)):
        np.testing.assert_allclose(array[0, :500], (1 - epsilon) * best + epsilon / 6)
    log = world.simulate(3_000, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReweighWarning)  # 500 states, few visits to some
        estimate = rw.evaluate(log, world.target, rw.mis())
        behavior = rw.evaluate(log, world.behavior, rw.mis())
    for result, truth in ((estimate, world.value()), (behavior, world.behavior_value())):
        assert result.standard_error is not None
        assert abs(result.value - truth) < 5 * result.standard_error


@needs_gymnasium
def test_it_is_a_world_that_pickles_as_its_arguments() -> None:
    world = Taxi(25)
    assert isinstance(world, World)
    assert repr(world) == "Taxi(horizon=25, target_epsilon=0.1, behavior_epsilon=0.3)"
    assert len(pickle.dumps(world)) < 200
    assert pickle.loads(pickle.dumps(world)).value() == world.value()
    for bad in ({"horizon": 0}, {"target_epsilon": 1.5}, {"behavior_epsilon": "0.3"}):
        with pytest.raises(UsageError, match=f"'{next(iter(bad))}' must be"):
            Taxi(**bad)


def test_without_gymnasium_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_taxi_tables", module._taxi_tables.__wrapped__)
    for name in [name for name in sys.modules if name.split(".")[0] == "gymnasium"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "gymnasium", None)  # importing it fails
    with pytest.raises(UsageError, match=r"the world taxi needs .*pip install 'reweigh\[worlds\]'"):
        Taxi()


def test_outcomes_that_lead_to_the_same_state_add_up() -> None:
    table: ToyText = {
        0: {0: [(0.5, 0, 1.0, False), (0.25, 1, 2.0, False), (0.25, 1, 2.0, False)]},
        1: {0: [(0.75, 1, 0.0, False), (0.25, 1, 5.0, True), (0.0, 0, 7.0, False)]},
    }
    P, r = toy_text_tables(table)
    np.testing.assert_array_equal(P[:, 0], [[0.5, 0.5, 0], [0, 0.75, 0.25], [0, 0, 1]])
    np.testing.assert_array_equal(r[:, 0], [[1, 2, 0], [0, 0, 5], [0, 0, 0]])
    # two steps: 0.5 (1 + 0.5·1 + 0.5·2) + 0.5 (2 + 0.25·5)
    mdp = TabularMDP([1, 0, 0], P, r, np.ones((3, 1)), np.ones((3, 1)), horizon=2, terminal=[2])
    assert mdp.value() == pytest.approx(0.5 * 2.5 + 0.5 * 3.25)


@needs_gymnasium
def test_other_toy_text_tables() -> None:
    lake = import_module("gymnasium.envs.toy_text.frozen_lake").FrozenLakeEnv()
    P, r = toy_text_tables(lake.P)
    assert P.shape == (17, 4, 17)
    np.testing.assert_allclose(P.sum(axis=2), 1)
    # a careful way over the slippery lake that is known to reach the goal in 82.35 % (14/17)
    from reweigh.worlds.improvement import best_policy, lasting_values

    even = np.full((17, 4), 0.25)
    start = np.eye(17)[0]
    mdp = TabularMDP(start, P, r, even, even, horizon=1, terminal=[16])
    assert lasting_values(mdp, best_policy(mdp))[0] == pytest.approx(14 / 17, abs=1e-6)


@pytest.mark.parametrize(("over", "where"), [(False, "state 1"), (True, "the end")])
def test_two_rewards_for_one_transition_are_refused(over: bool, where: str) -> None:
    table: ToyText = {
        0: {0: [(0.5, 1, 1.0, over), (0.5, 1, 2.0, over)]},
        1: {0: [(1.0, 1, 0.0, False)]},
    }
    with pytest.raises(UsageError, match=f"state 0, action 0: two outcomes lead to {where}"):
        toy_text_tables(table)
