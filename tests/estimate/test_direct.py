"""MIS straight from rows: the same Solution as from the sums, field by field, for every kind."""

from __future__ import annotations

import random
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from build import TARGET, random_log, to_reweigh

import reweigh as rw
from reweigh import kernels
from reweigh.estimate import direct, marginal
from reweigh.estimate.estimator import Nodes, Place, Solution
from reweigh.estimate.influence import influence_values
from reweigh.estimate.marginal import behavior_value
from reweigh.sums.engines import mean_return
from reweigh.worlds import ModelFail, random_mdp

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
KINDS: dict[str, dict[str, Any]] = {
    "complete": {},
    "known-next": {"with_next": True},
    "varying-ratios": {"function_ratios": False},
    "zeros": {"zeros": True},
    "terminated": {"ends": ("complete", "terminated"), "with_next": True},
    "truncated-known": {"ends": ("complete", "truncated"), "with_next": True},
    "one-episode": {"n": 1},
    "larger": {
        "n": 60,
        "horizon": 6,
        "ends": ("complete", "terminated"),
        "with_next": True,
        "zeros": True,
    },
}
NAMES = ("mis", "mis-plain")
ERRORS = ("standard_error", "placebo_error")


def assert_same_nodes(found: Solution, expected: Solution, largest: float) -> None:
    mine, theirs = found.nodes, expected.nodes
    if mine is None or theirs is None:
        assert mine is theirs
        return
    for field in fields(Nodes):
        noise = 1e-14 * largest ** (2 if field.name == "variance" else 1)
        one, other = getattr(mine, field.name), getattr(theirs, field.name)
        if one is None or other is None:
            assert one is other, field.name
            continue
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=noise, err_msg=field.name)


def assert_same(found: Solution, expected: Solution) -> None:
    largest = max(1.0, abs(expected.value), expected.placebo)
    for field in fields(Solution):
        if field.name == "influence":
            continue
        if field.name == "by_node":
            assert_same_nodes(found, expected, largest)
            continue
        mine, theirs = getattr(found, field.name), getattr(expected, field.name)
        if field.name == "mean_return" and theirs is None:
            continue  # the sums have not read the rows; tests/logs/test_pairs.py asks for it
        if theirs is None or isinstance(theirs, str | bool | tuple | Place):
            assert mine == theirs, field.name
        elif field.name == "freedom":
            if min(mine.error, theirs.error) > 1e-6 * largest:  # else rounding decides
                assert mine.error == pytest.approx(theirs.error, rel=1e-6)
                assert mine.df == pytest.approx(theirs.df, rel=1e-6)
        elif field.name in ERRORS:  # roots of differences of sums
            noise = 1e-14 * largest**2
            assert mine**2 == pytest.approx(theirs**2, rel=1e-9, abs=noise), field.name
        else:
            noise = 1e-14 * largest ** (2 if field.name.startswith("variance") else 1)
            np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=noise, err_msg=field.name)


def both(
    log: rw.EpisodeLog, target: rw.Policy, recipe: rw.Recipe
) -> tuple[Solution | str, Solution | str]:
    """The Solution, or the code of the refusal: from rows, and from sums."""
    made: list[Solution | str] = []
    for solve in (
        lambda: direct.solve_rows(direct.Rows.of(log, target, recipe.max_ratio), recipe),
        lambda: recipe.weights.solve(recipe, rw.moments(log, target, [recipe])),
    ):
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                made.append(solve())
        except rw.RefusedError as error:
            made.append(f"{error.code}: {error.reason}")
    return made[0], made[1]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_and_sums_give_one_solution(kind: str, name: str) -> None:
    rng = random.Random(f"{kind}/{name}")
    answered = 0
    for _ in range(40):
        log = to_reweigh(random_log(rng, **KINDS[kind]))
        if log.steps.unknown_before_horizon():
            continue  # solved on its sums
        found, expected = both(log, TARGET, rw.estimator(name))
        if isinstance(expected, str) or isinstance(found, str):
            assert found == expected
            continue
        answered += 1
        assert_same(found, expected)
    assert answered > 4


WORLD = random_mdp(3, n_states=6, n_actions=3, horizon=12, terminal=1, discount=0.9)
LOG = WORLD.simulate(400, 1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("max_ratio", [None, 1.2])
def test_a_simulated_world(name: str, max_ratio: float | None) -> None:
    recipe = rw.mis(rw.estimator(name).normalize, max_ratio=max_ratio)
    found, expected = both(LOG, WORLD.target, recipe)
    assert isinstance(found, Solution)
    assert isinstance(expected, Solution)
    assert_same(found, expected)
    assert found.unseen_mass is not None
    assert (found.unseen_mass.sum() > 0.01) == (max_ratio is not None)  # clipping loses mass


@pytest.mark.parametrize("name", NAMES)
def test_a_controls_start_value_counts_in_value_and_error(name: str) -> None:
    rng = np.random.default_rng(0)
    shaped = LOG.with_rewards(rng.normal(size=LOG.steps.n_rows), rng.normal(size=LOG.n_episodes))
    found, expected = both(shaped, WORLD.target, rw.estimator(name))
    assert isinstance(found, Solution)
    assert isinstance(expected, Solution)
    assert_same(found, expected)


def test_a_target_that_no_row_can_follow_is_refused_alike() -> None:
    states, actions = np.zeros((5, 4), int), np.zeros((5, 3), int)
    pi = np.full((5, 3), 0.5)
    pi[:, 1] = 0.0
    log = rw.log_from_arrays(states, actions, np.ones((5, 3)), np.full((5, 3), 0.5), pi)
    for name in NAMES:
        found, expected = both(log, rw.ColumnPolicy("target_prob"), rw.estimator(name))
        assert isinstance(found, str)
        assert found == expected
        assert "from step 1 on" in found


def test_ratios_beyond_all_numbers_do_not_warn() -> None:
    mu = np.full((4, 2), 1e-200)
    log = rw.log_from_arrays(np.zeros((4, 3), int), np.zeros((4, 2), int), mu + 1, mu, mu * 0 + 1)
    found, expected = both(log, rw.ColumnPolicy("target_prob"), rw.mis("none"))
    assert isinstance(found, Solution)
    assert isinstance(expected, Solution)
    assert found.value == expected.value
    assert not np.isfinite(found.value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_influence_values_are_those_of_the_general_way(kind: str, name: str) -> None:
    rng = random.Random(f"{name}/{kind}")
    compared = 0
    for _ in range(40):
        log = to_reweigh(random_log(rng, **KINDS[kind]))
        recipe = rw.estimator(name)
        if log.steps.unknown_before_horizon():
            continue
        try:
            solution = direct.solve_rows(direct.Rows.of(log, TARGET, None), recipe)
        except rw.RefusedError:
            continue
        assert solution.influence is not None
        expected = influence_values(log, TARGET, recipe)
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(solution.influence(), expected, atol=1e-10 * scale)
        compared += 1
    assert compared > 3


def test_the_mean_return_of_a_log() -> None:
    rng = random.Random(8)
    for _ in range(20):
        log = to_reweigh(random_log(rng, ends=("complete", "terminated"), n=5))
        expected = behavior_value(rw.moments(log, TARGET, ["mis"]))
        assert mean_return(log) == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_which_logs_and_recipes_take_this_road(monkeypatch: pytest.MonkeyPatch) -> None:
    def solved(log: rw.EpisodeLog, target: rw.Policy, recipe: rw.Recipe) -> bool:
        return recipe.weights.solve_rows(recipe, log, target) is not None

    assert not solved(LOG, WORLD.target, rw.mis())  # small
    monkeypatch.setattr(kernels, "COMPILED_FROM", 0)
    assert solved(LOG, WORLD.target, rw.mis())
    others = (rw.mis("state"), rw.mis(pooled=True), rw.mis(reward="averaged"), rw.dm(), rw.is_())
    for recipe in others:
        assert not solved(LOG, WORLD.target, recipe)
    hidden = ModelFail(4)
    assert not solved(hidden.simulate(50, 0), hidden.target, rw.mis())
    cut = to_reweigh(random_log(random.Random(1), n=9, horizon=4, ends=("complete", "truncated")))
    assert not solved(cut, TARGET, rw.mis())
    unlogged = rw.log_from_arrays(
        np.zeros((3, 3), int), np.zeros((3, 2), int), np.ones((3, 2)), None
    )
    assert not solved(unlogged, rw.TablePolicy([[1.0]]), rw.mis())
    monkeypatch.setattr(marginal, "FEW_NODES", 0)
    monkeypatch.setattr(marginal, "NODES_PER_ROW", 0)
    assert not solved(LOG, WORLD.target, rw.mis())  # too many (t, s)


def test_a_checked_column_is_not_checked_again_but_a_selection_of_it_is() -> None:
    rng = np.random.default_rng(0)
    n, horizon = 500, 50
    pi = rng.uniform(0.1, 0.4, (n, horizon))
    log = rw.log_from_arrays(
        rng.integers(0, 4, (n, horizon + 1)),
        rng.integers(0, 2, (n, horizon)),
        rng.random((n, horizon)),
        np.full((n, horizon), 0.5),
        pi,
    )
    target = rw.ColumnPolicy("target_prob")
    rows = direct.Rows.of(log, target, None)
    np.testing.assert_array_equal(rows.rho, pi.T.reshape(-1) / 0.5)
    np.testing.assert_array_equal(log.column("target_prob"), pi.T.reshape(-1))  # not divided itself
    part = direct.Rows.of(log.select(np.arange(n) < 100), target, None)
    np.testing.assert_array_equal(part.rho, pi[:100].T.reshape(-1) / 0.5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("simplex", [False, True])
def test_two_lines_are_enough_for_the_value(kind: str, simplex: bool) -> None:
    """To the bit: what is not kept was not needed."""
    log = to_reweigh(random_log(random.Random(5), **KINDS[kind]))
    rows = direct.Rows.of(log, TARGET, None)
    whole, short = (direct.forward(rows, simplex, keep=keep) for keep in (True, False))
    assert whole.d.shape == (log.horizon + 1, rows.width)
    assert short.d.shape == short.visits.shape == (2, rows.width)
    for name in ("mass", "total", "earned", "placebo", "first"):
        assert getattr(short, name).tobytes() == getattr(whole, name).tobytes(), name
    assert np.isnan([short.second, short.logged]).all()
    last = log.horizon
    assert short.d[last % 2].tobytes() == whole.d[last].tobytes()
    assert short.visits[last % 2].tobytes() == whole.visits[last].tobytes()
