"""Many logs at once: the same numbers as one log at a time, and the same as all logs together."""

from __future__ import annotations

import numpy as np
import pytest
from reweigh_studies import theorems

import reweigh as rw
from reweigh import theory
from reweigh.worlds import ModelWin, TabularMDP, random_mdp
from reweigh.worlds.world import Rollout

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
WORLDS = {
    "observed": random_mdp(1, reward_sd=0.3),
    "discounted": random_mdp(2, n_states=3, n_actions=2, horizon=6, discount=0.8),
    "early-end": random_mdp(3, terminal=1, reward_sd=0.2),
    "one-step": random_mdp(4, horizon=1),
    "model-win": ModelWin(7),
}


def part(rollout: Rollout, episodes: slice) -> Rollout:
    """Some episodes of a roll-out."""
    arrays = (rollout.states, rollout.actions, rollout.rewards,
              rollout.behavior_prob, rollout.target_prob)  # fmt: skip
    lengths = None if rollout.lengths is None else rollout.lengths[episodes]
    return Rollout(*(array[episodes] for array in arrays), lengths)


@pytest.mark.parametrize("name", WORLDS)
def test_values_are_those_of_evaluate(name: str) -> None:
    """Two implementations of MIS (plain, on the simplex) and DM: one over rows of a log with
    sparse sums, one dense over counts of many logs. 40 episodes leave states without visits."""
    world, n, R = WORLDS[name], 40, 6
    rollout = world._rollout(n * R, 5)
    found = theorems.replicates(world, theorems.counted_logs(world, rollout, R))
    columns = {"mis-plain": found.plain, "mis": found.simplex, "dm": found.dm}
    for k in range(R):
        log = part(rollout, slice(k * n, (k + 1) * n)).log(discount=world.discount)
        for estimate in rw.evaluate_all(log, world.target, list(columns)):
            assert isinstance(estimate, rw.Estimate)
            assert estimate.value == pytest.approx(columns[estimate.estimator][k], rel=1e-10)


def test_counts_add_up() -> None:
    world = WORLDS["early-end"]
    drawn = theorems.drawn_logs(world, 25, 50, 0)
    counted = theorems.counted_logs(world, world._rollout(25 * 50, 0), 50)
    for logs in (drawn, counted, theorems.every_log(random_mdp(0, 2, 2, 2), 3)):
        n = logs.n
        np.testing.assert_array_equal(logs.visits.sum(axis=2), n)
        np.testing.assert_array_equal(logs.moves.sum(axis=(3, 4)), logs.visits[:-1])
        np.testing.assert_array_equal(logs.moves.sum(axis=(2, 3)), logs.visits[1:])
        assert logs.probability.sum() == pytest.approx(1, rel=1e-12)
    with pytest.raises(rw.UsageError, match="divisor"):
        theorems.counted_logs(world, world._rollout(7, 0), 2)


@pytest.mark.parametrize("terminal", [0, 1])
def test_all_logs_have_the_moments_of_the_world(terminal: int) -> None:
    """E[n_t(s)] = n d_t^μ(s), and the number of logs is the number of multisets."""
    world = random_mdp(8, n_states=2 + terminal, n_actions=2, horizon=2, terminal=terminal)
    q = theory.quantities(world)
    logs = theorems.every_log(world, 2)
    p, path = theorems.every_trajectory(world)
    assert p.sum() == pytest.approx(1, rel=1e-12)
    assert path.shape == (len(p), 2, 3)
    assert len(logs.probability) == len(p) * (len(p) + 1) // 2
    expected = np.einsum("trs,r->ts", logs.visits, logs.probability)
    np.testing.assert_allclose(expected, 2 * q.d_mu, rtol=1e-11)


def test_drawn_logs_are_distributed_as_all_logs_are() -> None:
    """Mean, mean square and visits of 40,000 drawn logs, within five standard errors."""
    world = random_mdp(11, n_states=2, n_actions=2, horizon=2)
    exact, drawn = theorems.every_log(world, 3), theorems.drawn_logs(world, 3, 40_000, 1)
    truth, found = theorems.replicates(world, exact), theorems.replicates(world, drawn)
    for name in ("plain", "clipped", "simplex", "dm"):
        for power in (1, 2):
            measured = drawn.mean(getattr(found, name) ** power)
            wanted = exact.mean(getattr(truth, name) ** power)
            assert wanted.error == 0 < measured.error
            assert abs(measured.value - wanted.value) < 5 * measured.error


def test_drawn_rewards_have_the_noise_of_the_world() -> None:
    """Var[Σ r | moves] = Σ sd² over the rows; one state, one action, so nothing else varies."""
    sd = np.array([0.5, 2.0]).reshape(2, 1, 1, 1)
    world = TabularMDP([1], np.ones((1, 1, 1)), np.ones((1, 1, 1)), [[1]], [[1]], sd, horizon=2)
    rewards = theorems.drawn_logs(world, 10, 40_000, 2).rewards[:, :, 0, 0]
    np.testing.assert_allclose(rewards.mean(axis=1), 10, atol=0.15)
    np.testing.assert_allclose(rewards.var(axis=1), 10 * sd.ravel() ** 2, rtol=0.05)


def test_what_cannot_be_listed_is_refused() -> None:
    with pytest.raises(rw.UsageError, match="noisy"):
        theorems.every_log(random_mdp(0, reward_sd=0.1), 2)
    with pytest.raises(rw.UsageError, match="too many"):
        theorems.every_log(random_mdp(0, 3, 2, 3), 4)
