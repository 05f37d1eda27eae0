"""Whether sqrt(mean(ψ²)/n) is the spread of the estimates, and what computing ψ takes."""

from __future__ import annotations

import functools
import tracemalloc

import numpy as np
import pytest

import reweigh as rw
from reweigh.estimate.influence import influence_values
from reweigh.estimate.shaped_influence import fixed_q_values
from reweigh.evaluation.evaluate import point_values
from reweigh.worlds import TabularMDP, random_mdp

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
REPLICATES, EPISODES = 300, 300
NAMES = ["trajectory-wis", "dm", "mis-pooled", "dr", "mdr", "mdr-crossfit", "ssd-is"]


def world(n_states: int = 3, horizon: int = 4) -> TabularMDP:
    return random_mdp(
        np.random.default_rng(7), n_states=n_states, n_actions=2, horizon=horizon, overlap=0.6,
        reward_sd=0.5, time_varying=False,
    )  # fmt: skip


def error(psi: np.ndarray) -> float:
    return float(np.sqrt(np.mean(psi**2) / len(psi)))


@functools.cache
def replicates() -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Values of every replicate, and the root mean square of the errors of every fifth."""
    values, squares = [], []
    for seed in range(REPLICATES):
        log = world().simulate(EPISODES, seed)
        values.append(point_values(log, world().target, NAMES))
        if seed % 5 == 0:
            recipes = map(rw.estimator, NAMES)
            squares.append([error(influence_values(log, world().target, r)) ** 2 for r in recipes])
    spread = np.sqrt(np.mean(squares, axis=0))
    return (
        dict(zip(NAMES, np.array(values).T, strict=True)),
        dict(zip(NAMES, spread.tolist(), strict=True)),
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_error_is_the_spread_of_the_estimates(name: str) -> None:
    """300 replicates know their standard deviation to 4.1 %; four times that is allowed."""
    values, errors = replicates()
    spread = float(np.std(values[name], ddof=1))
    assert errors[name] / spread == pytest.approx(1, abs=4 / np.sqrt(2 * REPLICATES))


def test_ssd_is_agrees_with_its_jackknife() -> None:
    """The jackknife of 50 blocks knows the error to 1/√98, 10 %; three times that is allowed."""
    log, target = world().simulate(2000, 1), world().target
    for recipe in (rw.ssd_is(), rw.ssd_is("plugin"), rw.ssd_is("selfnorm")):
        jackknife = rw.evaluate(log, target, recipe).standard_error
        found = error(influence_values(log, target, recipe))
        assert found / jackknife == pytest.approx(1, abs=0.3)


@pytest.mark.parametrize("name", ["dr", "wdr"])
def test_a_fitted_q_moves_little_where_cells_have_many_rows(name: str) -> None:
    """An in-sample Q is orthogonal: its own influence is of second order, 1/rows of a cell."""
    target, recipe = world().target, rw.estimator(name)

    def moved(n: int) -> float:
        log = world().simulate(n, 2)
        fixed = fixed_q_values(log, target, recipe)
        return error(influence_values(log, target, recipe) - fixed) / error(fixed)

    assert moved(4000) < 0.1
    assert moved(4000) < 0.5 * moved(100)


@pytest.mark.parametrize(
    "name", ["mis", "mis-state", "mis-pooled", "dm", "dr", "mdr-crossfit", "wis"]
)
def test_memory_is_that_of_rows_and_not_of_states_times_episodes(name: str) -> None:
    """2,000 states and 2,000 episodes: a table of both would take 32 MB, the 10,000 rows need
    some hundred bytes each."""
    rng = np.random.default_rng(1)
    log = rw.log_from_arrays(
        states=np.concatenate([np.arange(2000)[:, None], rng.integers(0, 2000, (2000, 4))], axis=1),
        actions=rng.integers(0, 2, (2000, 5)),
        rewards=rng.normal(size=(2000, 5)),
        behavior_prob=np.full((2000, 5), 0.5),
        target_prob=rng.choice([0.3, 0.7], (2000, 5)),
    )
    target = rw.ColumnPolicy("target_prob")
    influence_values(log, target, rw.estimator(name))  # modules and caches are there
    tracemalloc.start()
    try:
        psi = influence_values(log, target, rw.estimator(name))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert psi.shape == (2000,)
    assert peak < 12e6
