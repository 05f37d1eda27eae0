"""Influence values: against exact variances, against derivatives, and against each other."""

from __future__ import annotations

import functools
import random
from dataclasses import replace
from fractions import Fraction as F

import numpy as np
import population
import pytest
from build import TARGET, random_log, to_reweigh

import reweigh as rw
from reweigh.estimators.weights import solve_recursion
from reweigh.inference.influence import (
    behavior_parts,
    behavior_values,
    influence_parts,
    influence_values,
)
from reweigh.moments.transitions import SUMS, concatenate

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
RECURSIVE = ["mis", "mis-plain", "mis-state"]
PRODUCTS = ["is", "wis"]
WORLDS = {
    "observed": (population.random_world(1), {}, RECURSIVE + PRODUCTS),
    "discounted": (population.random_world(2, discount=F(1, 2)), {}, RECURSIVE + PRODUCTS),
    "early-end": (
        population.random_world(6, ends=1, discount=F(9, 10)),
        {},
        RECURSIVE + PRODUCTS,
    ),
    "cut": (population.random_world(8, discount=F(1, 2)), {"cut": True}, RECURSIVE),
    "cut-early-end": (population.random_world(9, ends=1), {"cut": True}, RECURSIVE),
    "hidden": (
        population.random_world(11, discount=F(1, 2)),
        {"hide": True},
        RECURSIVE + PRODUCTS,
    ),
    "hidden-early-end": (
        population.random_world(12, ends=1, horizon=2),
        {"hide": True},
        RECURSIVE + PRODUCTS,
    ),
    "one-step": (population.random_world(14, horizon=1), {}, RECURSIVE + PRODUCTS),
}
CASES = [(name, estimator) for name, (_, _, listed) in WORLDS.items() for estimator in listed]


@functools.cache
def population_log(name: str) -> rw.EpisodeLog:
    world, options, _ = WORLDS[name]
    return population.population_log(world, **options)


ENDS = {
    "complete": ("complete",),
    "early": ("complete", "terminated"),
    "cut": ("complete", "terminated", "truncated"),
}


@pytest.mark.parametrize(("name", "estimator"), CASES)
def test_their_square_is_the_error_of_a_markov_world(name: str, estimator: str) -> None:
    log = population_log(name)
    found = rw.evaluate(log, population.TARGET, estimator)
    psi = influence_values(log, population.TARGET, rw.estimator(estimator))
    assert psi.shape == (log.n_episodes,)
    assert found.standard_error is not None
    scale = np.sqrt(np.mean(psi**2))
    assert np.mean(psi**2) == pytest.approx(log.n_episodes * found.standard_error**2, rel=1e-9)
    assert abs(psi.mean()) < 1e-12 * scale


@pytest.mark.parametrize(
    ("name", "estimator"), [(n, e) for n, e in CASES if e in RECURSIVE and n != "one-step"]
)
def test_parts_by_node_are_those_of_the_sums(name: str, estimator: str) -> None:
    log = population_log(name)
    recipe = rw.estimator(estimator)
    parts = influence_parts(log, population.TARGET, recipe)
    solution = solve_recursion(recipe, rw.moments(log, population.TARGET, [recipe]))
    assert np.array_equal(parts.node_t, solution.node_t)
    assert np.array_equal(parts.node_s, solution.node_s)
    start, nodes = parts.variances()
    n = log.n_episodes
    assert solution.variance_of_start is not None
    assert solution.variance_by_node is not None
    assert start == pytest.approx(n * solution.variance_of_start, rel=1e-9, abs=1e-12)
    assert nodes == pytest.approx(n * solution.variance_by_node, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", WORLDS)
def test_the_behaviours_own_value(name: str) -> None:
    """The recursion with every ratio 1 telescopes to the return, unless episodes were cut off."""
    log = population_log(name)
    psi = behavior_values(log)
    assert psi == pytest.approx(behavior_parts(log).values(), abs=1e-12)
    assert abs(psi.mean()) < 1e-12
    if not log.n_truncated:
        powers = log.discount ** log.steps.step.astype(float)
        returns = np.bincount(log.steps.episode_index, powers * log.steps.reward)
        assert psi == pytest.approx(returns - returns.mean(), abs=1e-12)


@pytest.mark.parametrize(
    ("ends", "hide"),
    [("complete", 0.0), ("early", 0.0), ("cut", 0.0), ("complete", 0.4), ("early", 0.4)],
)
@pytest.mark.parametrize("estimator", RECURSIVE)
def test_they_are_derivatives_of_the_recursion(ends: str, estimator: str, hide: float) -> None:
    """ψ_i = n ∂v/∂w_i, the episode counted w_i = 1 ± 1/K times, on sums."""
    recipe, checked = rw.estimator(estimator), 0
    for seed in range(12):
        log = to_reweigh(
            random_log(random.Random(seed), n=5, horizon=4, ends=ENDS[ends], hide=hide)
        )
        try:
            psi = influence_values(log, TARGET, recipe)
        except rw.SupportError:
            continue
        assert psi == pytest.approx(_derivatives(log, recipe), abs=2e-5 * (1 + abs(psi).max()))
        checked += 1
    assert checked > 8


def _derivatives(log: rw.EpisodeLog, recipe: rw.Recipe, times: int = 1000) -> np.ndarray:
    whole = rw.moments(log, TARGET, [recipe])

    def value(episode: int, change: int) -> float:
        one = rw.moments(log.select(np.arange(log.n_episodes) == episode), TARGET, [recipe])
        cells = concatenate([_times(whole.transitions, times), _times(one.transitions, change)])
        start = _times(whole.start, times) + _times(one.start, change)
        return solve_recursion(recipe, replace(whole, transitions=cells, start=start)).value

    return np.array(
        [(value(i, 1) - value(i, -1)) * times / 2 * log.n_episodes for i in range(log.n_episodes)]
    )


def _times(table, factor: int):
    sums = [name for name in (*SUMS, "g", "g2") if hasattr(table, name)]
    return replace(table, **{name: getattr(table, name) * factor for name in sums})


@pytest.mark.parametrize("estimator", [*RECURSIVE, *PRODUCTS])
@pytest.mark.parametrize("ends", ["complete", "early"])
def test_leaving_one_out_moves_the_value_by_it(ends: str, estimator: str) -> None:
    """v_(-i) = v - ψ_i/(n-1) to first order: on copies of a log the second order vanishes."""
    few = random_log(random.Random(3), n=6, horizon=3, ends=ENDS[ends])
    many = to_reweigh(replace(few, episodes=few.episodes * 60))
    recipe = rw.estimator(estimator)
    psi = influence_values(many, TARGET, recipe)
    value = rw.evaluate(many, TARGET, recipe).value
    n = many.n_episodes
    for i in range(0, n, 37):
        without = rw.evaluate(many.select(np.arange(n) != i), TARGET, recipe).value
        assert (value - without) * (n - 1) == pytest.approx(psi[i], abs=0.05 * abs(psi).max())


@pytest.mark.parametrize("estimator", [*RECURSIVE, "wis"])
def test_a_target_equal_to_the_behaviour_differs_in_no_episode(estimator: str) -> None:
    log = population.population_log(population.random_world(6, ends=1, discount=F(9, 10)))
    same = rw.ColumnPolicy("behavior_prob")
    difference = influence_values(log, same, rw.estimator(estimator)) - behavior_values(log)
    assert difference == pytest.approx(np.zeros(log.n_episodes), abs=1e-12)


def test_the_order_is_that_of_the_logs_episodes() -> None:
    log = to_reweigh(random_log(random.Random(5), n=6, horizon=4, ends=ENDS["early"]))
    for recipe in map(rw.estimator, PRODUCTS[:1]):
        psi = influence_values(log, TARGET, recipe)
        alone = [rw.evaluate(log.select(np.arange(6) == i), TARGET, recipe).value for i in range(6)]
        assert psi == pytest.approx(np.array(alone) - np.mean(alone), abs=1e-12)


def test_ratios_are_clipped_where_the_recipe_says_so() -> None:
    log = to_reweigh(random_log(random.Random(2), n=6, horizon=3))
    clipped = rw.is_(max_ratio=0.5)
    assert not np.allclose(
        influence_values(log, TARGET, clipped), influence_values(log, TARGET, rw.is_())
    )
    alone = [rw.evaluate(log.select(np.arange(6) == i), TARGET, clipped).value for i in range(6)]
    assert influence_values(log, TARGET, clipped) == pytest.approx(np.array(alone) - np.mean(alone))


@pytest.mark.parametrize(
    "recipe",
    [
        rw.mis(pooled=True),
        rw.mis(reward="averaged"),
        rw.dm(),
        rw.dr(),
        rw.mdr(),
        rw.trajectory_is(),
    ],
    ids=str,
)
def test_other_estimators_are_refused_by_name(recipe: rw.Recipe) -> None:
    log = to_reweigh(random_log(random.Random(2), n=6, horizon=3))
    with pytest.raises(rw.RefusedError, match=f"{recipe.name} has no influence"):
        influence_values(log, TARGET, recipe)


def test_what_cannot_be_told_is_refused() -> None:
    cut = to_reweigh(random_log(random.Random(1), n=8, horizon=4, ends=ENDS["cut"]))
    assert cut.n_truncated
    with pytest.raises(rw.RefusedError, match="running products need whole ones"):
        influence_values(cut, TARGET, rw.is_())
    both = to_reweigh(random_log(random.Random(1), n=8, horizon=4, ends=ENDS["cut"], hide=0.5))
    with pytest.raises(rw.RefusedError, match="together with hidden states"):
        influence_values(both, TARGET, rw.mis())
    log = to_reweigh(random_log(random.Random(1), n=4, horizon=3))
    impossible = log.with_rewards(np.full(log.steps.n_rows, 1.7e308), np.zeros(4))
    with pytest.raises(rw.SupportError, match="exceed"):
        influence_values(impossible, TARGET, rw.mis("none"))
