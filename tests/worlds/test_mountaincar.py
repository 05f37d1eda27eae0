from __future__ import annotations

import math
from importlib import resources
from typing import Any

import numpy as np
import pytest

from reweigh.errors import UsageError
from reweigh.worlds import MountainCar, World
from reweigh.worlds import paper_worlds as car


def one_car(x: float, v: float, a: int) -> tuple[float, float]:
    """The dynamics of one car, as in the book."""
    v = min(max(v + 0.001 * (a - 1) - 0.0025 * math.cos(3 * x), -0.07), 0.07)
    x = x + v
    if x <= -1.2:
        return -1.2, 0.0
    return x, v


def test_dynamics_match_the_book_one_car_at_a_time() -> None:
    rng = np.random.default_rng(0)
    x, v = rng.uniform(-1.2, 0.5, 500), rng.uniform(-0.07, 0.07, 500)
    a = rng.integers(0, 3, 500)
    new_x, new_v = car.accelerate(x, v, a)
    expected = np.array([one_car(*state) for state in zip(x, v, a.tolist(), strict=True)])
    np.testing.assert_allclose(np.stack([new_x, new_v], axis=1), expected, atol=1e-15)
    assert (new_v[new_x == -1.2] == 0).all()
    assert (new_x == -1.2).any()


def test_cells_are_the_rounded_scaled_states() -> None:
    rng = np.random.default_rng(1)
    x, v = rng.uniform(-1.2, 0.5, 20_000), rng.uniform(-0.07, 0.07, 20_000)
    states = car.cell_states(car.cell_of(x, v))
    np.testing.assert_array_equal(states[:, 0], np.rint(x * 64))
    np.testing.assert_array_equal(states[:, 1], np.rint(v * 256))
    corners = car.cell_of(np.array([-1.2, 0.5, 0.57]), np.array([-0.07, 0.07, 0.07]))
    n_cells = len(car.X_CELLS) * len(car.V_CELLS)
    assert n_cells == 4070
    assert corners.tolist() == [0, n_cells - 1, n_cells - 1]


def test_episodes_can_be_driven_again_from_their_actions() -> None:
    world = MountainCar()
    rollout = world._rollout(200, 3)
    starts = np.random.default_rng(3).uniform(-1.2, 0.5, 200)  # the first numbers drawn
    assert rollout.lengths is not None
    for x, states, actions, length in zip(
        starts, rollout.states, rollout.actions, rollout.lengths, strict=True
    ):
        v = 0.0
        for t in range(length):
            assert tuple(states[t]) == (round(x * 64), round(v * 256))
            assert x < 0.5
            x, v = one_car(x, v, int(actions[t]))
        assert x >= 0.5 or length == 100
    living = np.arange(100) < rollout.lengths[:, None]
    np.testing.assert_array_equal(rollout.rewards, np.where(living, -1.0, 0.0))


def test_policies_are_softmax_of_one_table() -> None:
    stored = car._stored()
    for rows in (stored.target, stored.behavior):
        assert rows.shape == (4070, 3)
        np.testing.assert_allclose(rows.sum(axis=1), 1)
        assert (rows > 0).all()
    # log π = Q/1 - c, log μ = Q/1.25 - c': 1.25 log μ and log π differ by a constant per row
    difference = 1.25 * np.log(stored.behavior) - np.log(stored.target)
    np.testing.assert_allclose(difference - difference[:, :1], 0, atol=1e-9)
    assert (stored.target / stored.behavior).max() < 1.2


def test_package_data_is_small_and_needs_no_pickle() -> None:
    path = resources.files("reweigh.worlds").joinpath("data").joinpath(car.DATA)
    assert len(path.read_bytes()) < 300_000
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as data:
        assert int(data["episodes"]) >= 1_000_000
        assert set(data) == {
            "q", "target_value", "target_error", "behavior_value", "behavior_error", "episodes",
        }  # fmt: skip


@pytest.mark.parametrize("policy", ["target", "behavior"])
def test_stored_values_match_a_fresh_simulation(policy: str) -> None:
    stored = car._stored()
    rows, truth = getattr(stored, policy), getattr(stored, f"{policy}_value")
    n = 20_000
    lengths = car.drive_episodes(n, np.random.default_rng(7), rows)[2]
    error = math.hypot(lengths.std() / math.sqrt(n), truth.standard_error)
    assert abs(-lengths.mean() - truth) < 5 * error
    assert 0 < truth.standard_error < 0.05
    assert (lengths < 100).mean() > 0.4  # a good share reaches the goal


def test_logged_ratios_turn_the_behavior_into_the_target() -> None:
    world = MountainCar()
    rollout = world._rollout(40_000, 0)
    assert rollout.lengths is not None
    returns = rollout.returns()
    assert abs(returns.mean() - world.behavior_value()) < 5 * returns.std() / math.sqrt(40_000)
    living = np.arange(100) < rollout.lengths[:, None]
    rho = np.where(living, rollout.target_prob / rollout.behavior_prob, 1.0).cumprod(axis=1)
    weighted = (rho * rollout.rewards).sum(axis=1)
    assert abs(weighted.mean() - world.value()) < 5 * weighted.std() / math.sqrt(40_000)


def test_same_seed_same_episodes() -> None:
    a, b = MountainCar()._rollout(50, 4), MountainCar()._rollout(50, np.random.default_rng(4))
    np.testing.assert_array_equal(a.states, b.states)
    np.testing.assert_array_equal(a.actions, b.actions)


def test_it_is_a_world() -> None:
    world = MountainCar()
    assert isinstance(world, World)
    assert (world.horizon, world.discount) == (100, 1.0)
    assert world == MountainCar()
    assert repr(world) == "MountainCar()"


@pytest.mark.parametrize(("n", "rng", "parameter"), [(0, 0, "n"), (2, 1.5, "rng")])
def test_errors_name_the_parameter(n: Any, rng: Any, parameter: str) -> None:
    with pytest.raises(UsageError, match=f"'{parameter}' must be"):
        MountainCar().simulate(n, rng)
