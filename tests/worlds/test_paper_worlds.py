from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from reweigh.errors import UsageError
from reweigh.worlds import ModelFail, ModelWin, TimeVarying, World
from reweigh.worlds.paper_worlds import behavior_density, target_density


def z_score(sample: Any, expected: float) -> float:
    return float(abs(sample.mean() - expected) / (sample.std() / np.sqrt(len(sample))))


@pytest.mark.parametrize("horizon", [1, 2, 3, 50, 256])
def test_closed_forms(horizon: int) -> None:
    # ModelWin: .2 (.4 - .6) + .8 (.6 - .4) = 0.12 at every visit of s1, at steps 0, 2, …
    assert ModelWin(horizon).value() == pytest.approx(0.12 * ((horizon + 1) // 2))
    assert ModelWin(horizon).behavior_value() == pytest.approx(0.0, abs=1e-12)
    # ModelFail: .2 - .8 = -0.6 at every return to s1, at steps 1, 3, …
    assert ModelFail(horizon).value() == pytest.approx(-0.6 * (horizon // 2))
    assert ModelFail(horizon).behavior_value() == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("kind", [ModelWin, ModelFail])
def test_episodes_alternate_between_the_first_state_and_the_others(kind: Any) -> None:
    rollout = kind(7)._rollout(100, 0)
    assert (rollout.states[:, ::2] == 0).all()
    assert (rollout.states[:, 1::2] > 0).all()
    assert (rollout.behavior_prob == 0.5).all()
    np.testing.assert_array_equal(rollout.target_prob, np.where(rollout.actions == 0, 0.2, 0.8))
    assert rollout.lengths is None


def test_model_win_pays_on_arrival() -> None:
    rollout = ModelWin(6)._rollout(20_000, 0)
    pays = np.array([0.0, 1.0, -1.0])
    np.testing.assert_array_equal(rollout.rewards, pays[rollout.states[:, 1:]])
    first = rollout.actions[:, 0] == 0
    assert z_score((rollout.states[first, 1] == 1).astype(float), 0.4) < 5
    assert z_score((rollout.states[~first, 1] == 1).astype(float), 0.6) < 5


def test_model_fail_pays_on_return_and_hides_the_other_states() -> None:
    world = ModelFail(6)
    rollout = world._rollout(200, 0)
    np.testing.assert_array_equal(rollout.states[:, 1::2], rollout.actions[:, ::2] + 1)
    assert (rollout.rewards[:, ::2] == 0).all()
    np.testing.assert_array_equal(rollout.rewards[:, 1::2], 1 - 2 * rollout.actions[:, ::2])
    seen = world._observe(rollout.states)
    np.testing.assert_array_equal(np.ma.getmaskarray(seen), rollout.states != 0)


@pytest.mark.parametrize(("horizon", "seed"), [(2, 0), (7, 1), (64, 2)])
def test_time_varying_value_by_the_chain_of_its_marginals(horizon: int, seed: int) -> None:
    world = TimeVarying(horizon, seed)
    for value, chance in (
        (world.value(), 1.9 / horizon),
        (world.behavior_value(), 1.0 / horizon),
    ):
        stays, total = 1.0, 0.0
        for t in range(horizon):
            total += (1 - stays) * (t >= horizon / 2)
            stays *= 1 - chance
        assert value == pytest.approx(total, abs=1e-12)
        assert value.standard_error == 0.0


def test_time_varying_windows_are_drawn_once_within_the_lower_half() -> None:
    world = TimeVarying(64, 3)
    assert world.p.shape == (64,)
    assert world.p.min() >= 0.5 / 64
    assert world.p.max() <= 0.5 - 0.5 / 64
    np.testing.assert_array_equal(world.p, TimeVarying(64, 3).p)
    assert (world.p != TimeVarying(64, 4).p).any()
    assert world == TimeVarying(64, 3)


def test_time_varying_episodes_follow_the_rules() -> None:
    H = 16
    world = TimeVarying(H, 0)
    rollout = world._rollout(300, 1)
    for states, actions, rewards in zip(
        rollout.states, rollout.actions, rollout.rewards, strict=True
    ):
        state = 1
        for t in range(H):
            assert states[t] == state
            assert rewards[t] == (state == 0 and t >= H / 2)
            if world.p[t] - 0.5 / H <= actions[t] <= world.p[t] + 0.5 / H:
                state = 0
        assert states[H] == state
    away = rollout.states[:, :-1] == 0
    assert (rollout.target_prob[away] == 1).all()
    assert (rollout.behavior_prob == 1).all()
    expected = np.where(rollout.actions <= 0.5, 1.9, 0.1)[~away]
    np.testing.assert_array_equal(rollout.target_prob[~away], expected)


def test_densities_integrate_to_one() -> None:
    grid = (np.arange(10_000) + 0.5) / 10_000
    for state in (0, 1):
        states = np.full(len(grid), state)
        for density in (target_density, behavior_density):
            assert density(states, grid, states).mean() == pytest.approx(1.0)
            assert not density(states[:2], np.array([-0.1, 1.1]), states[:2]).any()


@pytest.mark.parametrize("world", [ModelWin(9), ModelFail(9), TimeVarying(12, 0)])
def test_simulated_returns_match_both_values(world: Any) -> None:
    rollout = world._rollout(40_000, 5)
    assert z_score(rollout.returns(), world.behavior_value()) < 5
    rho = (rollout.target_prob / rollout.behavior_prob).cumprod(axis=1)
    assert z_score((rho * rollout.rewards).sum(axis=1), world.value()) < 5
    again = world._rollout(40_000, 5)
    np.testing.assert_array_equal(rollout.rewards, again.rewards)
    np.testing.assert_array_equal(rollout.actions, again.actions)


def test_they_are_worlds_and_print_themselves() -> None:
    assert repr(ModelWin(4)) == "ModelWin(horizon=4)"
    assert repr(ModelFail(4)) == "ModelFail(horizon=4)"
    assert repr(TimeVarying(4, 1)) == "TimeVarying(horizon=4, seed=1)"
    for world in (ModelWin(4), ModelFail(4), TimeVarying(4, 1)):
        assert isinstance(world, World)
        assert (world.horizon, world.discount) == (4, 1.0)


@pytest.mark.parametrize(
    ("make", "parameter"),
    [
        (lambda: ModelWin(0), "horizon"),
        (lambda: ModelFail(2.5), "horizon"),  # type: ignore[arg-type]
        (lambda: TimeVarying(1, 0), "horizon"),
        (lambda: TimeVarying(4, -1), "seed"),
        (lambda: TimeVarying(4, 0)._rollout(0, 0), "n"),
        (lambda: TimeVarying(4, 0)._rollout(3, None), "rng"),  # type: ignore[arg-type]
    ],
)
def test_errors_name_the_parameter(make: Any, parameter: str) -> None:
    with pytest.raises(UsageError, match=f"'{parameter}' must be"):
        make()
