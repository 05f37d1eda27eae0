"""Finite twins of the paper's worlds: the same ratios, the same values, the same variances."""

from __future__ import annotations

import numpy as np
import pytest
from reweigh_studies import theorems

import reweigh as rw
from reweigh import theory
from reweigh.worlds import ModelFail, TabularMDP, TimeVarying

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")


def with_all_states_seen(world: ModelFail) -> TabularMDP:
    return TabularMDP(world.initial, world.transition, world.reward,
                      world.target_array, world.behavior_array)  # fmt: skip


@pytest.mark.parametrize("horizon", [2, 3, 8, 64])
def test_time_varying_world_with_three_actions(horizon: int) -> None:
    """Values and ratios are exact; the p_t do not matter."""
    world = TimeVarying(horizon, 4)
    twin = world.tabular()
    assert twin.horizon == horizon
    assert twin.value() == pytest.approx(world.value(), rel=1e-12)
    assert twin.behavior_value() == pytest.approx(world.behavior_value(), rel=1e-12)
    ratio = theorems.action_ratio(twin)
    taken = twin.behavior_array[:, 1] > 0
    expected = np.broadcast_to([1.9, 1.9, 0.1], (horizon, 3))
    np.testing.assert_allclose(ratio[:, 1][taken], expected[taken], rtol=1e-12)
    np.testing.assert_array_equal(ratio[:, 0][taken], 1)
    np.testing.assert_array_equal(twin.reward, TimeVarying(horizon, 5).tabular().reward)


def test_time_varying_logs_are_logs_of_the_twin() -> None:
    """The continuous log with its actions sorted into three is a log of the twin, row by row, and
    every estimator that does not look at actions says the same of both."""
    world = TimeVarying(8, 1)
    twin, rollout = world.tabular(), world._rollout(500, 2)
    a = rollout.actions
    kind = np.where(a > 0.5, 2, np.where(np.abs(a - world.p) <= 0.5 / 8, 0, 1))
    step, s = np.arange(8), rollout.states
    assert (twin.transition[step, s[:, :-1], kind, s[:, 1:]] == 1).all()
    np.testing.assert_array_equal(rollout.rewards, twin.reward[step, s[:, :-1], kind, s[:, 1:]])
    ratio = theorems.action_ratio(twin)[step, s[:, :-1], kind]
    np.testing.assert_allclose(rollout.target_prob / rollout.behavior_prob, ratio, rtol=1e-12)
    log = rw.log_from_arrays(
        s, kind, rollout.rewards, twin.behavior_array[step, s[:, :-1], kind],
        twin.target_array[step, s[:, :-1], kind])  # fmt: skip
    names = ["is", "wis", "mis", "mis-plain"]
    here = rw.evaluate_all(world.simulate(500, 2), world.target, names)
    for estimate, other in zip(here, rw.evaluate_all(log, twin.target, names), strict=True):
        assert estimate.value == pytest.approx(other.value, rel=1e-10)
        assert estimate.standard_error == pytest.approx(other.standard_error, rel=1e-8)


def test_time_varying_variances_by_simulation() -> None:
    """IS's variance over 400,000 episodes of the continuous world is the twin's, exactly known."""
    world = TimeVarying(4, 0)
    q = theory.quantities(world.tabular())
    rollout = world._rollout(400_000, 3)
    running = np.cumprod(rollout.target_prob / rollout.behavior_prob, axis=1)
    found = np.sum(running * rollout.rewards, axis=1)
    error = np.std((found - q.value) ** 2) / np.sqrt(len(found))
    assert abs(np.mean((found - q.value) ** 2) - q.is_variance) < 5 * error
    assert error < 0.02 * q.is_variance


@pytest.mark.parametrize("horizon", [2, 3, 7, 50])
def test_checkpoints_of_model_fail(horizon: int) -> None:
    """Value, and the variances of IS and WIS, which do not ask what is observed, are those of the
    world with all its states seen. An odd last step pays nothing."""
    world = ModelFail(horizon)
    twin = world.checkpoints()
    assert (twin.n_states, twin.n_actions, twin.horizon) == (1, 4, horizon // 2)
    np.testing.assert_allclose(
        theorems.action_ratio(twin)[0, 0], [0.16, 0.64, 0.64, 2.56], rtol=1e-12
    )
    assert twin.value() == pytest.approx(world.value(), rel=1e-12)
    assert twin.behavior_value() == pytest.approx(world.behavior_value(), abs=1e-12)
    q, seen = theory.quantities(twin), theory.quantities(with_all_states_seen(world))
    assert q.is_variance == pytest.approx(seen.is_variance, rel=1e-10)
    assert q.wis_variance == pytest.approx(seen.wis_variance, rel=1e-10)
    assert q.cramer_rao == pytest.approx(0, abs=1e-12)
    # one state: simplex MIS is a mean per checkpoint, of ρρ'r with r = ±1
    assert q.leading_simplex == pytest.approx((1.36**2 - 0.6**2) * (horizon // 2), rel=1e-12)


@pytest.mark.parametrize("horizon", [6, 7])
def test_mis_on_model_fail_is_mis_on_its_checkpoints(horizon: int) -> None:
    """On a simulated log with hidden states, against the same episodes as pairs of actions."""
    world = ModelFail(horizon)
    twin, rollout = world.checkpoints(), world._rollout(300, 4)
    K = twin.horizon
    pairs = 2 * rollout.actions[:, 0 : 2 * K : 2] + rollout.actions[:, 1 : 2 * K : 2]
    rewards = rollout.rewards[:, 1 : 2 * K : 2]
    np.testing.assert_array_equal(rewards, twin.reward[0, 0, pairs, 0])
    log = rw.log_from_arrays(
        np.zeros((300, K + 1), dtype=int), pairs, rewards,
        twin.behavior_array[0, 0, pairs], twin.target_array[0, 0, pairs])  # fmt: skip
    for name in ("mis", "mis-plain"):
        here = rw.evaluate(world.simulate(300, 4), world.target, name)
        there = rw.evaluate(log, twin.target, name)
        assert here.value == pytest.approx(there.value, rel=1e-10)
        assert here.standard_error == pytest.approx(there.standard_error, rel=1e-8)


def test_model_fail_of_one_step_has_no_checkpoint_to_come_back_to() -> None:
    with pytest.raises(rw.UsageError, match="horizon"):
        ModelFail(1).checkpoints()
