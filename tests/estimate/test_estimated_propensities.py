"""What estimated propensities add to influence values: exact derivatives, and DM by counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import reweigh as rw
from reweigh.estimate.estimated_propensities import influence_of_fit
from reweigh.estimate.estimator import Recipe
from reweigh.estimate.influence import influence_values

WORLD = rw.worlds.random_mdp(3, n_states=3, n_actions=2, horizon=4, terminal=1, reward_sd=0.5)
COPIES = 200
RECIPES = (
    rw.mis(), rw.estimator("mis-plain"), rw.estimator("mis-state"), rw.estimator("mis-pooled"),
    rw.estimator("mis-hajek"), rw.mis(memory=1), rw.mis(memory=2), rw.is_(), rw.wis(),
    rw.trajectory_is(), rw.trajectory_wis(), rw.dr(), rw.wdr(), rw.dr(q=lambda s, a, t: 0.3 * s),
    rw.is_(max_ratio=1.5), rw.mis(max_ratio=1.2),
)  # fmt: skip


def counted(log: rw.EpisodeLog, **options: Any) -> rw.EpisodeLog:
    return log.with_behavior(rw.fit_behavior(log, **options))


def slope(log: rw.EpisodeLog, recipe: Recipe, episode: int, **options: Any) -> float:
    """n ∂v̂/∂ω of an episode by differences, the propensities estimated again. Where every episode
    counts COPIES times, so do pseudo-counts."""
    values = []
    for more in (1, -1):
        copies = np.full(log.n_episodes, COPIES)
        copies[episode] += more
        steps = log.steps.repeated(copies)
        if "smoothing" in options:
            options = options | {"smoothing": COPIES * 1.5}
        moved = counted(replace(log, steps=steps, behavior_fit=None, _cache={}), **options)
        [value] = rw.point_values(moved, WORLD.target, [recipe])
        assert isinstance(value, float)
        values.append(value)
    return (values[0] - values[1]) / 2 * COPIES * log.n_episodes


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
@pytest.mark.parametrize(
    "options",
    [{}, {"per_step": True}, {"smoothing": 1.5}, {"cross_fit": 2}],
    ids=["state", "step and state", "smoothed", "cross-fitted"],
)
def test_it_is_the_derivative_through_the_fit(recipe: Recipe, options: dict[str, Any]) -> None:
    log = counted(WORLD.simulate(40, 1), **options)
    more = influence_of_fit(log, WORLD.target, recipe)
    assert more is not None
    psi = influence_values(log, WORLD.target, recipe) + more
    for episode in (0, 19):
        np.testing.assert_allclose(psi[episode], slope(log, recipe, episode, **options), atol=2e-3)


def test_by_step_and_state_mis_is_dm_with_its_error() -> None:
    world = rw.worlds.random_mdp(5, n_states=2, n_actions=2, horizon=3, reward_sd=0.5)
    log = counted(world.simulate(400, 2), per_step=True)
    mis, dm = rw.evaluate_all(log, world.target, ["mis", "dm"])
    assert mis.value == pytest.approx(dm.value, rel=1e-12)
    np.testing.assert_allclose(
        mis.uncertainty.influence(), dm.uncertainty.influence(), atol=1e-10
    )  # fmt: skip
    assert mis.standard_error == pytest.approx(dm.standard_error, rel=0.1)  # from cells
    logged = rw.evaluate(world.simulate(400, 2), world.target, rw.mis())
    assert mis.standard_error < logged.standard_error


def test_the_interval_says_what_it_includes() -> None:
    log = counted(WORLD.simulate(300, 4))
    est = rw.evaluate(log, WORLD.target, rw.mis())
    for method in ("auto", "analytic", "cluster"):
        assert est.interval(method=method).method.endswith(
            "includes that the behavior was estimated"
        )
    assert est.interval(method="jackknife").method.endswith(
        "ignores that the behavior was estimated"
    )


def gate(log: rw.EpisodeLog, target: Any) -> Any:
    [est] = rw.evaluate_all(log, target, [rw.mis()])
    return next(g for g in est.verdict.gates if g.name == "estimated propensities")


def test_green_where_every_action_was_counted_often() -> None:
    log = WORLD.simulate(1000, 4)
    assert gate(log, WORLD.target).level == "green"
    found = gate(counted(log), WORLD.target)
    assert found.level == "green"
    assert "includes" in found.text


def test_amber_with_actions_that_were_never_seen_or_with_an_error_that_ignores_the_fit() -> None:
    log = WORLD.simulate(1000, 4)
    took = (log.steps.state == 1) & (log.steps.action == 1)
    some = ~np.isin(np.arange(log.n_episodes), log.steps.episode_index[took])
    kept = log.select(some)
    found = gate(counted(kept), WORLD.target)
    assert found.level == "amber"
    assert "never seen" in found.text
    part = counted(log).select(np.arange(log.n_episodes) % 2 == 0)  # estimated from others too
    found = gate(part, WORLD.target)
    assert found.level == "amber"
    assert "ignores" in found.text


def test_intervals_cover_and_are_no_wider_than_needed() -> None:
    """400 logs: SE of the spread 3.5 %, of the coverage 1.1 %."""
    world = rw.worlds.random_mdp(101, n_states=4, n_actions=3, horizon=4, time_varying=False)
    truth, values, errors, covered = float(world.value()), [], [], []
    for seed in range(400):
        est = rw.evaluate(counted(world.simulate(300, seed)), world.target, rw.mis())
        low, high = est.interval()
        values.append(est.value)
        errors.append(est.standard_error)
        covered.append(low <= truth <= high)
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.11)
    assert abs(np.mean(covered) - 0.95) < 0.035
