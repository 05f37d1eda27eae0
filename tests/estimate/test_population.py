"""Exact values: every consistent estimator on logs that hold whole tiny worlds."""

from __future__ import annotations

import math
from fractions import Fraction as F

import pytest
from population import TARGET, TinyWorld, population_log, random_world

import reweigh as rw

RECURSIVE = ["mis", "mis-plain", "mis-state"]
MODEL = ["dm", "dm-renorm"]
PRODUCTS = ["is", "wis", "trajectory-is", "trajectory-wis"]
CONTROLLED = ["dr", "wdr", "mdr-in-sample"]
RECIPES = {"mis-pooled-plain": lambda: rw.mis("none", True),
           "mis-pooled-state": lambda: rw.mis("state", True),
           "mis-averaged": lambda: rw.mis(reward="averaged"),
           "mis-pooled-reward": lambda: rw.mis(reward="pooled"),
           "mis-all-pooled": lambda: rw.mis(pooled=True, reward="pooled"),
           "mdr-in-sample": lambda: rw.mdr("in-sample")}  # fmt: skip
POOLED = ["mis-pooled", "mis-pooled-plain", "mis-pooled-state"]
POOLED_REWARD = ["mis-pooled-reward", "mis-all-pooled"]

CASES: dict[str, tuple[TinyWorld, dict[str, bool], list[str]]] = {
    "observed": (
        random_world(1),
        {},
        RECURSIVE + MODEL + PRODUCTS + CONTROLLED + ["mis-averaged"],
    ),
    "discounted": (
        random_world(2, discount=F(1, 2)),
        {},
        RECURSIVE + MODEL + PRODUCTS + CONTROLLED + ["mis-averaged"],
    ),
    "target-zeros": (
        random_world(3, zeros=True, horizon=2),
        {},
        RECURSIVE + MODEL + PRODUCTS + CONTROLLED,
    ),
    "stationary-discounted": (
        random_world(4, stationary=True, discount=F(9, 10)),
        {},
        RECURSIVE + MODEL + PRODUCTS + POOLED + POOLED_REWARD,
    ),
    "stationary-final-state-unknown": (
        random_world(5, stationary=True, discount=F(1, 2)),
        {"next_state": False},
        POOLED,
    ),
    # Which action is taken decides when an episode ends.
    "early-end": (
        random_world(6, ends=1, discount=F(9, 10)),
        {},
        RECURSIVE + MODEL + PRODUCTS + CONTROLLED,
    ),
    "early-end-stationary": (
        random_world(7, ends=1, stationary=True),
        {},
        RECURSIVE + MODEL + PRODUCTS + POOLED + POOLED_REWARD,
    ),
    "cut": (random_world(8, discount=F(1, 2)), {"cut": True}, RECURSIVE + MODEL),
    "cut-early-end": (random_world(9, ends=1), {"cut": True}, RECURSIVE + MODEL),
    "cut-stationary": (random_world(10, stationary=True), {"cut": True}, POOLED),
    "hidden": (random_world(11, discount=F(1, 2)), {"hide": True}, RECURSIVE + PRODUCTS),
    "hidden-early-end": (
        random_world(12, ends=1, horizon=2),
        {"hide": True},
        RECURSIVE + PRODUCTS,
    ),
    "one-state": (random_world(13, n_states=1), {}, RECURSIVE + MODEL + PRODUCTS + CONTROLLED),
    "one-step": (random_world(14, horizon=1), {}, RECURSIVE + MODEL + PRODUCTS + CONTROLLED),
}


def recipe(name: str) -> rw.Recipe:
    return RECIPES[name]() if name in RECIPES else rw.estimator(name)


@pytest.fixture(scope="module", params=list(CASES))
def case(request: pytest.FixtureRequest) -> tuple[TinyWorld, rw.EpisodeLog, list[str]]:
    world, options, names = CASES[request.param]
    return world, population_log(world, **options), names


def test_every_consistent_estimator_returns_the_exact_value(case) -> None:
    world, log, names = case
    truth = float(world.value(world.target))
    results = rw.evaluate_all(log, TARGET, [recipe(name) for name in names])
    found = {r.estimator: r.value if isinstance(r, rw.Estimate) else r.error for r in results}
    assert found == pytest.approx(dict.fromkeys(found, truth), rel=1e-11, abs=1e-11)


def test_behavior_earns_its_exact_value(case) -> None:
    world, log, _ = case
    if log.has_hidden and log.n_truncated:
        pytest.fail("no case has both")
    estimate = rw.evaluate_all(log, TARGET, [rw.mis()])[0]
    assert isinstance(estimate, rw.Estimate)
    assert estimate.behavior_value == pytest.approx(float(world.value(world.behavior)), abs=1e-11)


def test_placebo_is_the_horizon(case) -> None:
    world, log, names = case
    expected = float(sum(world.discount**t for t in range(world.horizon)))
    for result in rw.evaluate_all(log, TARGET, [recipe(name) for name in names]):
        assert isinstance(result, rw.Estimate)
        assert result.diagnostics.placebo == pytest.approx(expected, rel=1e-11), result.estimator


def test_worlds_tell_target_from_behavior(case) -> None:
    """A world where both earn the same could not see π and μ swapped."""
    world, _, _ = case
    assert world.value(world.target) != world.value(world.behavior)


@pytest.mark.parametrize("name", ["observed", "discounted", "target-zeros", "early-end"])
def test_plain_error_is_the_second_moment_of_the_influence(name: str) -> None:
    """n·SE² of plain MIS = E[ψ²] = the leading term of Theorem 4.1, over all trajectories."""
    world, options, _ = CASES[name]
    log = population_log(world, **options)
    V = world.values(world.target)
    d_pi = _marginals(world, world.target)
    d_mu = _marginals(world, world.behavior)
    v = world.value(world.target)
    second = F(0)
    for p, rows in world.trajectories():
        psi = V[0][rows[0][0]] - v
        for t, (s, a, r, x) in enumerate(rows):
            rho = world.target[t][s][a] / world.behavior[t][s][a]
            ahead = F(0) if x in world.ends else world.discount * V[t + 1][x]
            w = world.discount**t * d_pi[t][s] / d_mu[t][s]
            psi += w * (rho * (r + ahead) - V[t][s])
        second += p * psi**2
    estimate = rw.evaluate(log, TARGET, rw.mis("none"))
    assert estimate.standard_error is not None
    assert estimate.n_episodes * estimate.standard_error**2 == pytest.approx(
        float(second), rel=1e-10
    )


def test_is_error_is_the_exact_variance_of_the_weighted_return() -> None:
    world, options, _ = CASES["early-end"]
    log = population_log(world, **options)
    first = second = F(0)
    for p, rows in world.trajectories():
        x, w = F(0), F(1)
        for t, (s, a, r, _) in enumerate(rows):
            w *= world.target[t][s][a] / world.behavior[t][s][a]
            x += world.discount**t * w * r
        first += p * x
        second += p * x * x
    estimate = rw.evaluate(log, TARGET, rw.is_())
    assert estimate.standard_error == pytest.approx(
        math.sqrt(float(second - first**2) / estimate.n_episodes), rel=1e-10
    )


@pytest.mark.filterwarnings("ignore::reweigh.LowOverlapWarning")
def test_self_normalized_estimators_count_those_who_ended() -> None:
    """Action 1 ends the episode. Dividing by the weights of the living alone would return the
    behavior's survival, whatever the target does."""
    stay, go = (F(1), F(0)), (F(0), F(1))
    reward = ((F(1), F(1)), (F(1), F(1)))
    world = TinyWorld(
        initial=(F(1), F(0)),
        transition=(((stay, go), (go, go)),) * 3,
        reward=((reward, reward),) * 3,
        target=(((F(1, 4), F(3, 4)), (F(1, 2), F(1, 2))),) * 3,
        behavior=(((F(3, 4), F(1, 4)), (F(1, 2), F(1, 2))),) * 3,
        ends=frozenset({1}),
    )
    log = population_log(world)
    truth = float(world.value(world.target))
    behavior = float(world.value(world.behavior))
    assert truth == pytest.approx(1 + 1 / 4 + 1 / 16)
    assert behavior == pytest.approx(1 + 3 / 4 + 9 / 16)
    names = [n for n in rw.ESTIMATORS if "split" not in n and "crossfit" not in n]
    fitted_elsewhere = ("ssd", "mdr", "mrdr", "magic-mis")  # a Q of other folds is not exact
    names = [n for n in names if not n.startswith(fitted_elsewhere)]
    results = rw.evaluate_all(log, TARGET, names)
    for result in results:
        assert isinstance(result, rw.Estimate)
        assert result.value == pytest.approx(truth, rel=1e-12), result.estimator
    for name in ("ssd-is", "ssd-is-plugin"):
        for horizon in (3, 2):  # with two steps, no ended episode is seen to stay
            short = rw.read_log(
                log.to_table(), target_prob="target_prob", terminated="terminated", horizon=horizon
            )
            with pytest.warns(rw.StationaryWarning, match="stationary mass is on END"):
                result = rw.evaluate(short, TARGET, name)
            assert result.standard_error is None
    with pytest.raises(rw.RefusedError, match="stationary mass is on END"):
        rw.evaluate(log, TARGET, "ssd-is-selfnorm")


def test_cut_episodes_need_two_divisors() -> None:
    """Dividing transitions by the rows that were cut off too would lose mass at every step."""
    world, options, _ = CASES["cut"]
    log = population_log(world, **options)
    assert log.n_truncated > 0
    for name in ("is", "wis", "trajectory-is", "trajectory-wis", "dr", "wdr", "ssd-is"):
        with pytest.raises(rw.RefusedError, match="cut off") as caught:
            rw.evaluate(log, TARGET, name)
        assert caught.value.code == "truncated"
    with pytest.warns(rw.SelectionWarning, match="left out"):
        dropped = rw.evaluate(log, TARGET, rw.is_(), truncated="drop")
    assert dropped.n_episodes == log.n_episodes - log.n_truncated


def test_hidden_and_cut_together_are_refused() -> None:
    log = population_log(random_world(15, horizon=2), hide=True, cut=True)
    with pytest.raises(rw.RefusedError) as caught:
        rw.evaluate(log, TARGET, rw.mis())
    assert caught.value.code == "hidden-truncated"


def _marginals(world: TinyWorld, policy) -> list[list[F]]:
    d = [list(world.initial)]
    for t in range(world.horizon):
        d.append(
            [
                sum(
                    d[t][s] * policy[t][s][a] * world.transition[t][s][a][x]
                    for s in range(len(world.initial))
                    if s not in world.ends
                    for a in range(2)
                )
                for x in range(len(world.initial))
            ]
        )
    return d
