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
from repeated import VARIANTS

import reweigh as rw
from reweigh.estimate.influence import (
    behavior_parts,
    behavior_values,
    has_parts,
    influence_parts,
    influence_values,
)
from reweigh.worlds import random_mdp

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
RECURSIVE = ["mis", "mis-plain", "mis-state"]
PRODUCTS = ["is", "wis", "trajectory-is", "trajectory-wis"]
MODELS = ["dm", "dm-renorm"]
SHAPED = ["dr", "wdr", "mdr-in-sample"]  # their Q is the true one: its own influence vanishes
ALL = [*RECURSIVE, *PRODUCTS, *MODELS, *SHAPED, "mis-averaged"]
POOLED = ["mis-pooled", "mis-pooled-plain", "mis-pooled-state"]
WORLDS = {
    "observed": (population.random_world(1), {}, ALL),
    "discounted": (population.random_world(2, discount=F(1, 2)), {}, ALL),
    "early-end": (population.random_world(6, ends=1, discount=F(9, 10)), {}, ALL),
    "cut": (population.random_world(8, discount=F(1, 2)), {"cut": True}, RECURSIVE + MODELS),
    "cut-early-end": (
        population.random_world(9, ends=1),
        {"cut": True},
        [*RECURSIVE, *MODELS, "mis-averaged"],
    ),
    "stationary": (
        population.random_world(4, stationary=True, discount=F(1, 2)),
        {},
        [*POOLED, "mis-all-pooled"],
    ),
    "stationary-early-end": (population.random_world(5, stationary=True, ends=1), {}, POOLED),
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
    "one-step": (population.random_world(14, horizon=1), {}, ALL),
}
CASES = [(name, estimator) for name, (_, _, listed) in WORLDS.items() for estimator in listed]


def recipe_of(name: str) -> rw.Recipe:
    return VARIANTS[name] if name in VARIANTS else rw.estimator(name)


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
    found = rw.evaluate(log, population.TARGET, recipe_of(estimator))
    psi = influence_values(log, population.TARGET, recipe_of(estimator))
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
    solution = recipe.weights.solve(recipe, rw.moments(log, population.TARGET, [recipe]))
    nodes = solution.nodes
    assert nodes is not None
    assert np.array_equal(parts.node_t, nodes.t)
    assert np.array_equal(parts.node_s, nodes.s)
    start, by_node = parts.variances()
    n = log.n_episodes
    assert solution.variance_of_start is not None
    assert nodes.variance is not None
    assert start == pytest.approx(n * solution.variance_of_start, rel=1e-9, abs=1e-12)
    assert by_node == pytest.approx(n * nodes.variance, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", WORLDS)
def test_the_behaviors_own_value(name: str) -> None:
    """The recursion with every ratio 1 telescopes to the return, unless episodes were cut off."""
    log = population_log(name)
    psi = behavior_values(log)
    assert psi == pytest.approx(behavior_parts(log).values(), abs=1e-12)
    assert abs(psi.mean()) < 1e-12
    if not log.n_truncated:
        powers = log.discount ** log.steps.step.astype(float)
        returns = np.bincount(log.steps.episode_index, powers * log.steps.reward)
        assert psi == pytest.approx(returns - returns.mean(), abs=1e-12)


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


@pytest.mark.parametrize("estimator", [*RECURSIVE, "wis", "trajectory-wis"])
def test_a_target_equal_to_the_behavior_differs_in_no_episode(estimator: str) -> None:
    log = population.population_log(population.random_world(6, ends=1, discount=F(9, 10)))
    same = rw.ColumnPolicy("behavior_prob")
    difference = influence_values(log, same, rw.estimator(estimator)) - behavior_values(log)
    assert difference == pytest.approx(np.zeros(log.n_episodes), abs=1e-12)


def test_the_order_is_that_of_the_logs_episodes() -> None:
    log = to_reweigh(random_log(random.Random(5), n=6, horizon=4, ends=ENDS["early"]))
    for recipe in (rw.is_(), rw.trajectory_is()):
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
    "estimator",
    ["is", "wis", "trajectory-is", "trajectory-wis", "dr-split", "dr-crossfit", "wdr-split",
     "wdr-crossfit", "own-dr", "own-wdr"],
)  # fmt: skip
def test_their_square_is_the_error_of_products_on_any_log(estimator: str) -> None:
    """Nothing is Markov here: the error is that of a mean, or of a ratio of means."""
    world = random_mdp(
        np.random.default_rng(3), n_states=3, n_actions=2, horizon=4, overlap=0.6, terminal=1
    )
    log = world.simulate(80, 5)
    q = np.random.default_rng(1).normal(size=(4, 4, 2))
    own = {"own-dr": rw.dr(q), "own-wdr": rw.wdr(q)}
    recipe = own.get(estimator) or rw.estimator(estimator)
    psi = influence_values(log, world.target, recipe)
    error = rw.evaluate(log, world.target, recipe).standard_error
    assert np.mean(psi**2) / 80 == pytest.approx(error**2, rel=1e-10)


def test_parts_are_told_where_a_state_owns_them() -> None:
    log = to_reweigh(random_log(random.Random(2), n=6, horizon=3))
    for recipe in (rw.mis(pooled=True), rw.mis(reward="averaged"), rw.mdr(), rw.dm(), rw.is_()):
        assert not has_parts(recipe)
        with pytest.raises(rw.RefusedError, match="has no influence values by step") as refused:
            influence_parts(log, TARGET, recipe)
        assert refused.value.code == "no-parts"
    for estimator in RECURSIVE:
        parts = influence_parts(log, TARGET, rw.estimator(estimator))
        psi = influence_values(log, TARGET, rw.estimator(estimator))
        assert parts.values() == pytest.approx(psi, abs=1e-12)


def test_what_cannot_be_told_is_refused() -> None:
    cut = to_reweigh(random_log(random.Random(1), n=8, horizon=4, ends=ENDS["cut"]))
    assert cut.n_truncated
    with pytest.raises(rw.RefusedError, match="running products need complete episodes"):
        influence_values(cut, TARGET, rw.is_())
    both = to_reweigh(random_log(random.Random(1), n=8, horizon=4, ends=ENDS["cut"], hide=0.5))
    with pytest.raises(rw.RefusedError, match="hidden states cannot be combined"):
        influence_values(both, TARGET, rw.mis())
    log = to_reweigh(random_log(random.Random(1), n=4, horizon=3))
    impossible = log.with_rewards(np.full(log.steps.n_rows, 1.7e308), np.zeros(4))
    with pytest.raises(rw.SupportError, match="overflow"):
        influence_values(impossible, TARGET, rw.mis("none"))
