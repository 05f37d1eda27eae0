"""Worlds together with the rest of the library: their logs are evaluated close to their truth."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import reweigh as rw
from reweigh.errors import ReweighWarning
from reweigh.worlds import (
    Bandit,
    HiddenMDP,
    ModelFail,
    ModelWin,
    MountainCar,
    RandomWorld,
    TimeVarying,
    World,
    random_mdp,
)

WORLDS = [
    ModelWin(4),
    ModelFail(4),
    TimeVarying(4, 0),
    random_mdp(0, horizon=4),
    random_mdp(1, horizon=4, terminal=1, reward_sd=0.5, discount=0.9),
    random_mdp(2, horizon=6, time_varying=False),
    MountainCar(),
    Bandit.random(0),
    RandomWorld(1, horizon=4, tilt=3.0).build(),
    RandomWorld(2, horizon=4, rare=0.1, reward_sd=0.5).build(),
    RandomWorld(3, horizon=4, hidden=2, tilt=2.0).build(),
    RandomWorld(4, n_states=5, horizon=4, hidden=1, terminal=1, time_varying=False).build(),
]


@pytest.mark.parametrize("world", WORLDS, ids=repr)
def test_is_of_a_simulated_log_is_close_to_the_truth(world: World) -> None:
    log = world.simulate(500, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReweighWarning)  # overlap is low after 100 steps
        estimate = rw.evaluate(log, world.target, rw.is_())
        logged = rw.evaluate(log, rw.ColumnPolicy("target_prob"), rw.is_())
        behavior = rw.evaluate(log, world.behavior, rw.is_())
    for result, truth in ((estimate, world.value()), (behavior, world.behavior_value())):
        assert result.standard_error is not None
        assert result.standard_error > 0
        assert abs(result.value - truth) < 5 * result.standard_error
    # the policy object and the logged probabilities are the same policy
    assert estimate.value == pytest.approx(logged.value, rel=1e-9)


@pytest.mark.parametrize("world", WORLDS, ids=repr)
def test_a_log_has_the_world_s_shape_and_follows_the_seed(world: World) -> None:
    log, again = world.simulate(20, 3), world.simulate(20, np.random.default_rng(3))
    assert (log.n_episodes, log.horizon, log.discount) == (20, world.horizon, world.discount)
    assert log.has_hidden == isinstance(world, ModelFail | HiddenMDP)
    assert log.continuous_actions == isinstance(world, TimeVarying)
    assert log.digest() == again.digest()
    assert log.digest() != world.simulate(20, 4).digest()
