"""Groups of actions: identities, a slow version, a world of 1,000 actions, and every engine."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reweigh as rw
from reweigh.estimate.influence import influence_values
from reweigh.testing import check_estimator
from reweigh.testing.estimators import _world
from reweigh.trust.gates import GateResult
from reweigh.worlds import TabularMDP

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
SMALL = _world()
ACTIONS, GROUPS, STATES, STEPS = 1000, 20, 3, 2
GROUP = {a: f"g{a % GROUPS:02d}" for a in range(ACTIONS)}


def many_actions(direct: float) -> TabularMDP:
    """1,000 actions in 20 groups; `direct`: what an action earns beside its group."""
    rng, group = np.random.default_rng(0), np.arange(ACTIONS) % GROUPS
    behavior = 0.9 * rng.dirichlet(np.full(ACTIONS, 0.5), STATES) + 0.1 / ACTIONS
    target = 0.98 * rng.dirichlet(np.full(ACTIONS, 0.1), STATES) + 0.02 / ACTIONS
    moves = rng.dirichlet(np.ones(STATES), (STATES, GROUPS))[:, group]
    reward = rng.random((STATES, GROUPS))[:, group] + direct * rng.normal(size=(STATES, ACTIONS))
    start, reward = np.full(STATES, 1 / STATES), np.repeat(reward[:, :, None], STATES, axis=2)
    return TabularMDP(start, moves, reward, target, behavior, reward_sd=0.3, horizon=STEPS)


def groups_of(world: TabularMDP, groups: dict[Any, Any]) -> rw.ActionGroups:
    return rw.ActionGroups(groups, world.target, world.behavior)


def gate(estimate: rw.Estimate, name: str = "action groups") -> GateResult:
    [found] = [gate for gate in estimate.verdict.gates if gate.name == name]
    return found


@pytest.mark.parametrize("make", [rw.mis, rw.dm])
def test_meets_what_every_estimator_must(make: Any) -> None:
    groups = groups_of(SMALL, {0: "left", 1: "right"})
    check_estimator(make(action_group=groups), mean_return=False)


def test_a_group_for_each_action_changes_nothing_and_one_for_all_is_the_mean_return() -> None:
    log = SMALL.simulate(300, 0)
    each, one = groups_of(SMALL, {0: "a", 1: "b"}), groups_of(SMALL, {0: "all", 1: "all"})
    for make in (rw.mis, rw.dm):
        plain, grouped, together = rw.point_values(
            log, SMALL.target, [make(), make(action_group=each), make(action_group=one)]
        )
        assert grouped == pytest.approx(plain, rel=1e-12)
        assert together == pytest.approx(log.describe()["mean_return"], rel=1e-12)
        psi = [influence_values(log, SMALL.target, r) for r in (make(), make(action_group=each))]
        assert np.allclose(*psi)


def slow(world: TabularMDP, log: rw.EpisodeLog) -> float:
    """MIS on the simplex with π(g|s)/μ(g|s), from loops over rows."""
    pi, mu = np.zeros((2, STATES, GROUPS))
    for a in range(ACTIONS):
        pi[:, a % GROUPS] += world.target_array[0, :, a]
        mu[:, a % GROUPS] += world.behavior_array[0, :, a]
    episodes = defaultdict(list)
    for row in log.to_table().to_pylist():
        episodes[row["episode"]].append(row)
    d: dict[int, float] = defaultdict(float)
    for rows in episodes.values():
        d[rows[0]["state"]] += 1 / len(episodes)
    value = 0.0
    for t in range(STEPS):
        total, following = sum(d.values()), defaultdict(float)
        count: dict[int, int] = defaultdict(int)
        for rows in episodes.values():
            count[rows[t]["state"]] += 1
        for rows in episodes.values():
            s, a = rows[t]["state"], rows[t]["action"]
            weight = d[s] / total / count[s] * pi[s, a % GROUPS] / mu[s, a % GROUPS]
            value += weight * rows[t]["reward"]
            if t + 1 < STEPS:
                following[rows[t + 1]["state"]] += weight
        d = following
    return value


def test_the_slow_version() -> None:
    world = many_actions(0.0)
    log = world.simulate(200, 1)
    recipe = rw.mis(action_group=groups_of(world, GROUP))
    assert rw.point_values(log, world.target, recipe) == [
        pytest.approx(slow(world, log), rel=1e-10)
    ]


def test_a_thousand_actions() -> None:
    """12 logs of 2,000 episodes: groups have a sixth of the error of mis, and their intervals hold
    the truth; the gate says that actions act through their groups."""
    world = many_actions(0.0)
    recipes = [rw.is_(), rw.mis(), rw.mis(action_group=groups_of(world, GROUP))]
    off = []
    for seed in range(12):
        log = world.simulate(2000, seed)
        off.append(np.array(rw.point_values(log, world.target, recipes)) - world.value())
    error = np.sqrt(np.mean(np.square(off), axis=0))
    assert error[2] < 0.4 * error[1] < 0.4 * error[0]
    estimate = rw.evaluate(log, world.target, recipes[2])
    assert gate(estimate).level == "green"
    assert gate(estimate).value > 0.01
    assert abs(estimate.value - world.value()) < 4 * estimate.standard_error
    assert estimate.verdict.level == "green"
    assert rw.evaluate(log, world.target, rw.mis()).verdict.level != "green"


def test_the_gate_sees_actions_that_differ_within_their_group() -> None:
    world = many_actions(0.5)
    for make in (rw.mis, rw.dm):
        estimate = rw.evaluate(
            world.simulate(2000, 0), world.target, make(action_group=groups_of(world, GROUP))
        )
        assert gate(estimate).level == "red"
        assert estimate.verdict.level == "red"


def test_the_gate_is_right_at_its_level() -> None:
    """Where the assumption holds p < 0.05 in about 5 % of logs: 4 of 80 expected, Monte-Carlo error
    2; where it fails, always."""
    world = many_actions(0.0)
    recipe = rw.mis(action_group=groups_of(world, GROUP))
    p = [
        gate(rw.evaluate(world.simulate(1000, seed), world.target, recipe)).value
        for seed in range(80)
    ]
    assert np.mean(np.array(p) < 0.05) < 0.05 + 3 * 0.0244
    assert 0.35 < np.mean(p) < 0.65


@pytest.mark.parametrize("direct", [0.0, 0.5])
def test_every_engine_and_saved_sums(direct: float, tmp_path: Path) -> None:
    world = many_actions(direct)
    log, groups = world.simulate(600, 3), groups_of(world, GROUP)
    for make in (rw.mis, rw.dm):
        recipe = make(action_group=groups)
        expected = rw.evaluate(log, world.target, recipe)
        sums = rw.moments(log, world.target, [recipe])
        sums.save(tmp_path / "sums.parquet", overwrite=True)
        data = [rw.load_moments(tmp_path / "sums.parquet")]
        table = log.to_table()
        data += [rw.read_log(table, engine=e, horizon=STEPS) for e in ("stream", "duckdb")]
        for one in data:
            found = rw.evaluate(one, world.target, recipe)
            assert found.value == pytest.approx(expected.value, rel=1e-10)
            assert found.standard_error == pytest.approx(expected.standard_error, rel=1e-8)
            assert gate(found).level == gate(expected).level
            assert gate(found).value == pytest.approx(gate(expected).value, rel=1e-6)


def test_what_is_lacking_is_said() -> None:
    log = SMALL.simulate(50, 0)
    with pytest.raises(rw.UsageError, match="1 of 2 actions have no group, such as 1"):
        groups_of(SMALL, {0: "a"})
    with pytest.raises(rw.UsageError, match="behavior's probabilities of all actions"):
        rw.mis(action_group=rw.ActionGroups({0: "a", 1: "b"}, SMALL.target))
    with pytest.raises(rw.UsageError, match="takes no other option"):
        rw.mis("none", action_group=groups_of(SMALL, {0: "a", 1: "b"}))
    with pytest.raises(rw.UsageError, match="'target' must be a table"):
        rw.ActionGroups({0: "a", 1: "b"}, rw.ColumnPolicy("x"))  # type: ignore[arg-type]
    groups = groups_of(SMALL, {0: "a", 1: "b"})
    with pytest.raises(rw.RefusedError, match="of another target"):
        rw.evaluate(log, SMALL.behavior, rw.mis(action_group=groups))
    never = rw.TablePolicy({s: {0: 1.0} for s in range(4)})
    wrong = replace(groups, behavior=never)
    with pytest.raises(rw.RefusedError, match="never takes group b in state"):
        rw.evaluate(log, SMALL.target, rw.mis(action_group=wrong))
    few = rw.TablePolicy({0: {0: 0.5, 1: 0.5}})
    with pytest.raises(rw.RefusedError, match="has no row for state"):
        rw.evaluate(log, SMALL.target, rw.mis(action_group=replace(groups, behavior=few)))


def test_shares_of_the_log_where_the_behavior_is_not_known() -> None:
    """dm needs no propensities: with all groups seen it is right, whoever logged."""
    world = many_actions(0.0)
    alone = rw.ActionGroups(GROUP, world.target)
    log = world.simulate(3000, 5)
    found = rw.evaluate(log, world.target, rw.dm(action_group=alone))
    assert abs(found.value - world.value()) < 4 * found.standard_error
    both = rw.evaluate(log, world.target, rw.dm(action_group=groups_of(world, GROUP)))
    assert found.value == pytest.approx(both.value, rel=1e-12)
