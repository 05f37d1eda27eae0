"""Exact theory against population logs: n·SE² of an estimator is its asymptotic variance."""

from __future__ import annotations

from fractions import Fraction as F

import numpy as np
import pytest
from population import TARGET, TinyWorld, population_log, random_world

import reweigh as rw
from reweigh import theory
from reweigh.worlds import ModelWin, TabularMDP, random_mdp

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
WORLDS = {
    "observed": random_world(1),
    "discounted": random_world(2, discount=F(1, 2)),
    "early-end": random_world(6, ends=1, discount=F(9, 10)),
    "one-step": random_world(14, horizon=1),
}


def tabular(world: TinyWorld) -> TabularMDP:
    as_floats = (np.array(x, dtype=float) for x in (
        world.initial, world.transition, world.reward, world.target, world.behavior))  # fmt: skip
    return TabularMDP(
        *as_floats, discount=float(world.discount), terminal=sorted(world.ends) or None
    )


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize(
    ("estimator", "quantity"),
    [
        ("mis-plain", "leading"),
        ("mis", "leading_simplex"),
        ("dm", "cramer_rao"),
        ("is", "is_variance"),
        ("wis", "wis_variance"),
    ],
)
def test_errors_are_the_exact_asymptotic_variances(name, estimator, quantity) -> None:
    world = WORLDS[name]
    q = theory.quantities(tabular(world))
    found = rw.evaluate(population_log(world), TARGET, estimator)
    assert found.standard_error is not None
    scaled = found.n_episodes * found.standard_error**2
    assert scaled == pytest.approx(getattr(q, quantity), rel=1e-9)
    assert q.value == pytest.approx(float(world.value(world.target)), rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_leading_is_cramer_rao_plus_gap(seed: int) -> None:
    q = theory.quantities(random_mdp(np.random.default_rng(seed), reward_sd=0.4, discount=0.9))
    assert q.leading == pytest.approx(q.cramer_rao + q.gap, rel=1e-12)
    assert q.gap > 0
    assert np.all(q.leading_parts >= q.cramer_rao_parts - 1e-12)


def test_the_curse_of_horizon_in_one_number() -> None:
    """On ModelWin the variance of IS doubles with each step or so; that of MIS does not."""
    short, long = (theory.quantities(ModelWin(H)) for H in (10, 50))
    assert long.is_variance / short.is_variance > 1e4
    assert long.leading_simplex / short.leading_simplex == pytest.approx(5, rel=0.01)


def test_a_variance_beyond_all_numbers_is_infinite() -> None:
    """At H = 2500 the second moment of IS on ModelWin is about 1.36^2500, over 1e308."""
    q = theory.quantities(ModelWin(2500))
    assert q.is_variance == np.inf
    assert q.wis_variance == np.inf
    assert np.isfinite([q.leading, q.leading_simplex, q.cramer_rao]).all()
    short, long = (theory.quantities(ModelWin(H)).is_variance for H in (1000, 1500))
    assert np.log(long / short) / 500 == pytest.approx(np.log(1.36), rel=0.01)


def test_n_times_the_squared_error_of_plain_mis_is_the_leading_term() -> None:
    """400 replicates: the mean of squares has a relative Monte-Carlo error of sqrt(2/400) = 7 %."""
    world = random_mdp(np.random.default_rng(3), n_states=3, n_actions=2, horizon=3, overlap=0.7)
    q = theory.quantities(world)
    n, replicates = 400, 400
    values = np.empty(replicates)
    for seed in range(replicates):
        [found] = rw.evaluate_all(world.simulate(n, seed), world.target, ["mis-plain"])
        assert isinstance(found, rw.Estimate)
        values[seed] = found.value
    ratio = n * np.mean((values - q.value) ** 2) / q.leading
    assert abs(ratio - 1) < 3 * np.sqrt(2 / replicates)


def test_bounds_say_which_condition_fails() -> None:
    world = random_mdp(np.random.default_rng(0), reward_sd=0.1)
    q = theory.quantities(world)
    small, large = theory.theorem_bound(q, 50), theory.theorem_bound(q, 10**6)
    assert not small.holds
    assert len(small.failing) == 2
    assert large.holds
    assert large.failing == ()
    assert q.leading / 10**6 < large.value < theory.corollary_bound(q, 10**6).value
    with pytest.raises(rw.UsageError, match="rewards of at least 0"):
        theory.theorem_bound(theory.quantities(ModelWin(4)), 100)


def test_a_world_without_support_is_refused() -> None:
    world = TabularMDP([1.0], np.ones((1, 2, 1)), np.ones((1, 2, 1)), [[0.5, 0.5]], [[1.0, 0.0]],
                       horizon=2)  # fmt: skip
    with pytest.raises(rw.SupportError, match="action 1 in state 0 at step 0"):
        theory.quantities(world)


def test_clipping() -> None:
    assert theory.clipped(3.0, 0.0, 2.0) == 2.0
    assert theory.clipped(-1.0, 0.0, 2.0) == 0.0
    with pytest.raises(rw.UsageError):
        theory.clipped(1.0, 2.0, 2.0)
