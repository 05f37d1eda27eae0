"""ψ_i = n ∂v/∂ω_i, of every estimator, against differences of the estimator itself on logs in which
the episodes count K ± 1 times, or K times."""

from __future__ import annotations

import functools
import itertools
import random
from dataclasses import replace
from fractions import Fraction as F

import numpy as np
import pytest
import reference as ref
from build import TARGET, random_log, to_reweigh
from repeated import VARIANTS, derivative, repeated

import reweigh as rw
from reweigh.estimate import stationary
from reweigh.estimate.doubly_robust import shape_log
from reweigh.estimate.influence import behavior_values, influence_values
from reweigh.estimate.shaped_influence import fixed_q_values
from reweigh.evaluation.evaluate import point_values
from reweigh.sums.engines import ArraysEngine, Request
from reweigh.worlds import random_mdp

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
EPISODES, CHOSEN = 5, 2
DIRECTIONS = np.array([[1, 0, 1, 0, 0], [0, 1, 0, 0, 1]])  # which episodes count more or less
EARLY = ("complete", "terminated")
LOGS = {
    "complete": {"discount": F(1)},
    "early-end": {"ends": EARLY},
    "cut": {"ends": (*EARLY, "truncated")},
    "cut-known": {"ends": (*EARLY, "truncated"), "next": 0},
    "partly-known": {"with_next": True},  # the state at the horizon, of some episodes
    "hidden": {"hide": 0.4},
    "hidden-early-end": {"hide": 0.4, "ends": EARLY},
    "impossible": {"zeros": True},  # ratios of 0
    "impossible-early-end": {"zeros": True, "ends": EARLY},
    "varying": {"function_ratios": False, "noise": True},  # μ and π that (t, s, a) do not tell
    "discounted": {"ends": EARLY, "discount": F(1, 2)},
}
TABLE = {**{name: make() for name, make in rw.ESTIMATORS.items()}, **VARIANTS}
# what takes a part as given that is of the same rows: those have tests of their own
TABLE = {
    name: recipe
    for name, recipe in TABLE.items()
    if not recipe.weights.holds_others and "blended" not in recipe.traits
}


@functools.cache
def small_logs(kind: str) -> list[rw.EpisodeLog]:
    """The first random logs that show what their kind is about."""
    made = (small_log(kind, seed) for seed in itertools.count())
    return list(itertools.islice((log for log in made if shows(kind, log)), CHOSEN))


def small_log(kind: str, seed: int) -> rw.EpisodeLog:
    options = dict(LOGS[kind])
    noise, following = options.pop("noise", False), options.pop("next", None)
    rng = random.Random(seed)
    log = random_log(rng, n=EPISODES, horizon=4, **options)
    if following is not None:
        log = replace(log, episodes=tuple(replace(e, next_state=0) for e in log.episodes))
    if noise:
        log = log.map_rows(lambda e, t, row: noisy(row, rng))
    return to_reweigh(log)


def shows(kind: str, log: rw.EpisodeLog) -> bool:
    steps = log.steps
    ends = "ends" in LOGS[kind] and "truncated" not in LOGS[kind]["ends"]
    return (
        len(log.states) > 1
        and len(log.actions) > 1
        and len(np.unique(steps.episode_hash % 2)) == 2
        and ends_early(log) == ends
        and (log.n_truncated > 0) == kind.startswith("cut")
        and log.has_hidden == kind.startswith("hidden")
        and bool(np.any(TARGET.probabilities(log) == 0)) == kind.startswith("impossible")
        and (kind != "partly-known" or len(np.unique(steps.ending < 0)) == 2)
    )


def noisy(row: ref.Row, rng: random.Random) -> ref.Row:
    return replace(row, pi=row.pi * F(rng.randint(2, 4), 4))


def value_of(log: rw.EpisodeLog, target: rw.Policy, recipe: rw.Recipe) -> float:
    [found] = point_values(log, target, [recipe])
    if isinstance(found, rw.Refusal):
        raise found.error
    return found


def check(log: rw.EpisodeLog, target: rw.Policy, recipe: rw.Recipe, by: np.ndarray) -> None:
    """Σ_i by_i ψ_i/n against the difference; a Q of the other half is held as it is."""
    psi = influence_values(log, target, recipe)
    assert psi.shape == (log.n_episodes,)
    assert abs(psi.mean()) <= 1e-12 * (1 + abs(psi).max())
    used, plain, weights = log, recipe, by
    if recipe.control is not None and recipe.control.blocks > 1:
        folds = recipe.control.blocks
        request = Request(frozenset({"model"}), folds, policy=True)
        sums = ArraysEngine().moments(log, target, request)
        used = shape_log(log, target, recipe, sums).log
        plain = replace(recipe, control=None)
        if used.n_episodes < log.n_episodes:  # split
            sums_up = log.steps.episode_hash % 2 == 0
            assert np.all(psi[~sums_up] == 0)
            weights = by[sums_up]
    moved = derivative(lambda part: value_of(part, target, plain), used, weights)
    assert by @ psi / log.n_episodes == pytest.approx(moved, abs=1e-5 * (1 + abs(moved)))


def refusal_of(call) -> str | None:
    try:
        call()
    except rw.RefusedError as error:
        return error.code
    return None


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("kind", LOGS)
def test_they_are_the_derivative_by_an_episodes_weight(kind: str, name: str) -> None:
    """Where the estimator refuses, so do they, and for the same reason."""
    recipe, refused = TABLE[name], []
    for log, by in zip(small_logs(kind), DIRECTIONS, strict=True):
        why = refusal_of(lambda log=log: value_of(log, TARGET, recipe))
        if ends_early(log) and name in ("ssd-is", "ssd-is-plugin") and why is None:
            why = "stationary"  # a value of 0, on which nobody has an influence
        if why is None:
            check(log, TARGET, recipe, by)
        else:
            assert refusal_of(lambda log=log: influence_values(log, TARGET, recipe)) == why
            refused.append(why)
    assert (len(refused) < CHOSEN) == answers(kind, name), refused


def ends_early(log: rw.EpisodeLog) -> bool:
    return bool(np.any((log.steps.lengths < log.horizon) & ~log.steps.truncated))


def answers(kind: str, name: str) -> bool:
    """Whether an estimator answers on that kind of log."""
    recipe = TABLE[name]
    pools = recipe.weights == rw.mis(pooled=True).weights or recipe.reward != "logged"
    if name.startswith("ssd-is"):
        return kind in ("complete", "partly-known", "hidden", "impossible", "varying")
    if kind.startswith("hidden") and pools:
        return False
    if kind == "cut":
        return not recipe.uses_trajectories and recipe.control is None
    if kind == "cut-known":
        return not recipe.uses_trajectories
    return True


@pytest.mark.parametrize("kind", ["complete", "cut", "hidden-early-end", "varying"])
def test_the_behaviors_own_value_moves_by_its_influence(kind: str) -> None:
    log = small_logs(kind)[0]
    by = np.array([1, 0, 1, 1, 0])

    def value(part: rw.EpisodeLog) -> float:
        return value_of(part, rw.ColumnPolicy("mu"), rw.mis("none"))

    moved = derivative(value, log, by)
    assert by @ behavior_values(log) / EPISODES == pytest.approx(moved, abs=1e-5)


OWN = {
    "array": np.random.default_rng(8).normal(size=(3, 4, 2)),
    "callable": lambda state, action, step: 1.0 + state - 0.5 * action * step,
}


@pytest.mark.parametrize("make", [rw.dr, rw.wdr, rw.mdr])
@pytest.mark.parametrize("q", OWN)
@pytest.mark.parametrize("terminal", [0, 1])
def test_with_a_q_of_ones_own(make, q: str, terminal: int) -> None:
    world = random_mdp(
        np.random.default_rng(2), n_states=4, n_actions=2, horizon=3, overlap=0.6,
        reward_sd=0.5, discount=0.9, terminal=terminal,
    )  # fmt: skip
    log = world.simulate(6, 1)
    check(log, world.target, make(OWN[q]), np.array([1, 0, 0, 1, 1, 0]))


@pytest.mark.parametrize("name", ["mis", "mis-pooled", "dm", "dr", "mdr-crossfit", "ssd-is"])
def test_each_episode_has_its_own(name: str) -> None:
    """One at a time, in the order of the log's episodes."""
    log = small_logs("complete")[0]
    for i in range(EPISODES):
        check(log, TARGET, TABLE[name], np.eye(EPISODES, dtype=int)[i])


@pytest.mark.parametrize("name", ["ssd-is", "ssd-is-plugin", "ssd-is-selfnorm"])
def test_the_stationary_distribution_of_many_states(name: str, monkeypatch) -> None:
    """An iterative solver takes over where there are many; it finds the same."""
    world = random_mdp(
        np.random.default_rng(5), n_states=12, n_actions=2, horizon=6, overlap=0.6,
        reward_sd=0.5, time_varying=False,
    )  # fmt: skip
    log, recipe = world.simulate(200, 3), rw.estimator(name)
    dense = influence_values(log, world.target, recipe)
    monkeypatch.setattr(stationary, "DENSE_UP_TO", 1)
    found = influence_values(log, world.target, recipe)
    assert found == pytest.approx(dense, rel=1e-7, abs=1e-7 * abs(dense).max())
    monkeypatch.setattr(stationary, "SOLVED", -1.0)
    with pytest.raises(rw.RefusedError, match="nearly not unique"):
        influence_values(log, world.target, recipe)


@pytest.mark.parametrize("name", ["ssd-is", "ssd-is-plugin", "ssd-is-selfnorm"])
def test_a_state_that_only_the_last_step_shows(name: str) -> None:
    """It is not of the chain: moves to it are lost, and its rows have no weight."""
    rng = np.random.default_rng(3)
    states = np.array([[0, 1, 0, 2], [1, 0, 0, 1], [0, 0, 1, 2], [1, 1, 0, 0], [0, 1, 1, 1]])
    log = rw.log_from_arrays(
        states, rng.integers(0, 2, states.shape), rng.normal(size=states.shape),
        rng.uniform(0.4, 0.6, states.shape), target_prob=rng.uniform(0.2, 0.8, states.shape),
        discount=0.9,
    )  # fmt: skip
    for by in DIRECTIONS:
        check(log, rw.ColumnPolicy("target_prob"), rw.estimator(name), by)


def test_a_stationary_vector_that_turns_is_refused() -> None:
    """P̂ is nearly a circulant whose eigenvalues are 2.1 and 0.9 ± 0.35i."""
    wanted = np.array([[1.3, 0.6, 0.2], [0.25, 1.3, 0.6], [0.6, 0.2, 1.4]])
    s, after = (index.reshape(-1) for index in np.indices((3, 3)))
    ratio = np.stack([3 * wanted[s, after], np.ones(9)], axis=1)
    log = rw.log_from_arrays(
        states=np.stack([s, after], axis=1),
        actions=np.zeros((9, 2), np.int64),
        rewards=np.ones((9, 2)),
        behavior_prob=np.full((9, 2), 0.2),
        target_prob=0.2 * ratio,
    )
    with pytest.raises(rw.RefusedError, match="next to 1 is complex") as refused:
        influence_values(log, rw.ColumnPolicy("target_prob"), rw.ssd_is())
    assert refused.value.code == "stationary"


def test_mdr_with_an_in_sample_q_is_dm_to_first_order_too() -> None:
    """Their values are the same number, so every episode moves both alike; with Q taken for
    fixed this is lost."""
    log = small_logs("early-end")[0]
    model = influence_values(log, TARGET, rw.dm())
    assert influence_values(log, TARGET, rw.mdr("in-sample")) == pytest.approx(model, abs=1e-12)
    assert not np.allclose(fixed_q_values(log, TARGET, rw.mdr("in-sample")), model, atol=1e-3)


def test_copies_change_no_value() -> None:
    """What the differences above rest on; a Q of other episodes is shrunken less by more rows."""
    log = small_logs("early-end")[0]
    copied = repeated(log, np.full(EPISODES, 3))
    for name in ("mis", "dm", "wdr", "mdr-in-sample", "mis-pooled"):
        value = value_of(log, TARGET, TABLE[name])
        assert value_of(copied, TARGET, TABLE[name]) == pytest.approx(value, rel=1e-12)
    assert copied.n_episodes == 3 * EPISODES
    assert np.array_equal(np.repeat(log.steps.episode_hash % 2, 3), copied.steps.episode_hash % 2)
