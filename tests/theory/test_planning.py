"""Plans: exact on population logs, true in simulation, and honest about what they cannot tell."""

from __future__ import annotations

import functools
import json
import math
import subprocess
import sys
from fractions import Fraction as F
from statistics import NormalDist

import numpy as np
import pytest
from population import TARGET, TinyWorld, population_log, random_world

import reweigh as rw
from reweigh import theory
from reweigh.estimate.influence import behavior_values, influence_values
from reweigh.show.charts import log_ticks
from reweigh.show.text import display_names
from reweigh.theory.exact import spread
from reweigh.worlds import ModelFail, ModelWin, TabularMDP, random_mdp

Z95, Z80 = NormalDist().inv_cdf(0.975), NormalDist().inv_cdf(0.8)
TINY = {
    "observed": random_world(1),
    "discounted": random_world(2, discount=F(1, 2)),
    "early-end": random_world(6, ends=1, discount=F(9, 10)),
    "one-step": random_world(14, horizon=1),
}
EXACT = ["mis", "mis-plain", "mis-state", "dm", "is", "wis"]
WITH_INFLUENCE = [name for name in EXACT if name != "dm"]


def tabular(world: TinyWorld) -> TabularMDP:
    as_floats = (np.array(x, dtype=float) for x in (
        world.initial, world.transition, world.reward, world.target, world.behavior))  # fmt: skip
    return TabularMDP(
        *as_floats, discount=float(world.discount), terminal=sorted(world.ends) or None
    )


@functools.cache
def tiny_log(name: str) -> rw.EpisodeLog:
    return population_log(TINY[name])


def asymptotic_world() -> TabularMDP:
    """Small and well mixed: a few hundred episodes are many."""
    return random_mdp(
        np.random.default_rng(4), n_states=3, n_actions=2, horizon=3, overlap=0.7, reward_sd=0.3
    )


def log_of(world: TabularMDP, n: int, seed: int = 0) -> rw.EpisodeLog:
    return world.simulate(n, seed)


# The exact world, its population log, and the theory agree


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize(
    ("estimator", "quantity"),
    [
        ("mis", "leading_simplex"),
        ("mis-plain", "leading"),
        ("dm", "cramer_rao"),
        ("is", "is_variance"),
        ("wis", "wis_variance"),
    ],
)
def test_spreads_are_the_quantities_of_the_theory(name, estimator, quantity) -> None:
    world = tabular(TINY[name])
    q = theory.quantities(world)
    found = spread(q, estimator)
    assert found.total == pytest.approx(getattr(q, quantity), rel=1e-12)
    if found.by_state is not None:
        parts = np.concatenate([[found.start], found.by_state.sum(axis=1)])
        assert parts == pytest.approx(getattr(q, f"{quantity}_parts"), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("goal", ["half_width", "difference"])
def test_a_world_and_its_population_log_give_one_plan(name: str, goal: str) -> None:
    size = {goal: 0.01}
    exact = theory.plan(tabular(TINY[name]), estimators=EXACT, **size)
    pilot = theory.plan(tiny_log(name), TARGET, estimators=EXACT, **size)
    for estimator in EXACT if goal == "half_width" else WITH_INFLUENCE:
        one, other = exact.need(estimator), pilot.need(estimator)
        assert one.variance == pytest.approx(other.variance, rel=1e-9)
        assert one.times == pytest.approx(other.times, rel=1e-9)
        assert abs(one.episodes - other.episodes) <= 1  # ceil on either side of a whole number
        assert one.value == pytest.approx(other.value, rel=1e-9)
        assert one.difference == pytest.approx(other.difference, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize(
    ("goal", "estimator"),
    [
        *(("half_width", estimator) for estimator in ("mis", "mis-plain", "mis-state", "dm")),
        *(("difference", estimator) for estimator in ("mis", "mis-plain", "mis-state")),
    ],
)
def test_a_world_and_its_population_log_have_one_decomposition(name, goal, estimator) -> None:
    size = {goal: 0.01}
    exact = theory.plan(tabular(TINY[name]), estimators=[estimator], **size).decomposition
    pilot = theory.plan(tiny_log(name), TARGET, estimators=[estimator], **size).decomposition
    assert exact is not None
    assert pilot is not None
    assert exact.estimator == pilot.estimator == estimator
    assert exact.start == pytest.approx(pilot.start, rel=1e-9, abs=1e-12)
    assert exact.by_step == pytest.approx(pilot.by_step, rel=1e-9, abs=1e-12)
    assert exact.start + exact.share.sum() == pytest.approx(1, rel=1e-12)
    assert exact.start + exact.by_step.sum() == pytest.approx(1, rel=1e-12)
    assert np.all(np.diff(exact.share) < 1e-9)
    assert (exact.wanted is None) == (pilot.wanted is None) == (goal == "difference")
    found = []
    for d in (exact, pilot):
        columns = [d.share, d.target, d.visits, *([] if d.wanted is None else [d.wanted])]
        pairs = zip(d.step.tolist(), d.state, strict=True)
        found.append(dict(zip(pairs, np.transpose(columns), strict=True)))
    assert found[0].keys() == found[1].keys()
    for key, numbers in found[0].items():
        assert numbers == pytest.approx(found[1][key], rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("name", TINY)
def test_the_difference_of_dm_is_that_of_its_influence(name: str) -> None:
    """Summed over every trajectory:

    ψ = V_0(s_0) + Σ_t γ^t w_t(s_t) ρ_t (r_t + γ V_{t+1}(s_{t+1}) - Q_t(s_t,a_t)) - G, less its mean
    """
    tiny, world = TINY[name], tabular(TINY[name])
    q = theory.quantities(world)
    mean = square = 0.0
    for p, rows in tiny.trajectories():
        psi = q.V[0, rows[0][0]]
        for t, (s, a, r, x) in enumerate(rows):
            w = q.d_pi[t, s] / q.d_mu[t, s]
            rho = world.target_array[t, s, a] / world.behavior_array[t, s, a]
            error = float(r) + q.discount * q.V[t + 1, x] - q.Q[t, s, a]
            psi += q.discount**t * (w * rho * error - float(r))
        mean, square = mean + float(p) * psi, square + float(p) * psi**2
    plan = theory.plan(world, difference=0.01, estimators=["dm"])
    assert mean == pytest.approx(q.value - q.behavior_value, rel=1e-9, abs=1e-12)
    assert plan.need("dm").variance == pytest.approx(square - mean**2, rel=1e-9)
    assert plan.decomposition is not None
    total = plan.decomposition.start + plan.decomposition.share.sum()
    assert total == pytest.approx(1, rel=1e-12)


def test_wanted_visits_are_the_best_that_a_step_can_have() -> None:
    """Σ_s A²/N of a step, at N = wanted/logged · visits, is below that of any other allocation."""
    world = random_mdp(np.random.default_rng(5), n_states=5, horizon=4, reward_sd=0.2)
    found = theory.plan(world, half_width=0.1, estimators=["mis"]).decomposition
    assert found is not None
    assert found.wanted is not None
    rng = np.random.default_rng(0)
    for t in range(4):
        at = found.step == t
        visits, squares = found.visits[at], found.share[at] * found.visits[at]
        best = visits * found.wanted[at]
        assert best.sum() == pytest.approx(visits.sum(), rel=1e-12)
        least = np.sum(squares / best)
        for other in [visits, *rng.dirichlet(np.ones(len(visits)), 50) * visits.sum()]:
            assert least <= np.sum(squares / other) * (1 + 1e-12)


def test_differences_want_no_other_visits() -> None:
    """State 1 is never the target's, yet has a part of the difference's variance."""
    to_either = np.array([[[1.0, 0.0], [0.0, 1.0]]] * 2)
    rewards = np.broadcast_to([0.0, 1.0], (2, 2, 2))
    world = TabularMDP(
        [1.0, 0.0], to_either, rewards, [[1.0, 0.0]] * 2, [[0.5, 0.5]] * 2, 0.3, horizon=3
    )
    value = theory.plan(world, half_width=0.1, estimators=["mis"])
    difference = theory.plan(world, difference=0.1, estimators=["mis"])
    assert "wanted/logged" in str(value)
    assert all("wanted" in row for row in value.to_dict()["decomposition"]["largest"])
    parts = difference.decomposition
    assert parts is not None
    assert parts.wanted is None
    assert any(parts.share[parts.target == 0] > 0.01)
    for shown in (str(difference), difference.to_dict(), difference.chart().to_dict()):
        assert "wanted" not in str(shown)


# The formulas


def test_half_the_half_width_needs_four_times_the_episodes() -> None:
    world = asymptotic_world()
    for estimator in EXACT:
        wide, narrow = (theory.plan(world, half_width=h, estimators=[estimator]).episodes
                        for h in (0.02, 0.01))  # fmt: skip
        assert abs(narrow - 4 * wide) <= 4
    small, large = (theory.plan(world, difference=d).episodes for d in (0.01, 0.02))
    assert abs(small - 4 * large) <= 4
    powers = [theory.plan(world, difference=0.02, power=p).episodes for p in (0.3, 0.8, 0.99)]
    levels = [theory.plan(world, half_width=0.02, level=x).episodes for x in (0.1, 0.9, 0.99)]
    assert powers == sorted(powers)
    assert levels == sorted(levels)
    assert len({*powers, *levels}) == 6


def test_the_numbers_of_a_plan_are_those_of_the_formulas() -> None:
    world = asymptotic_world()
    log = log_of(world, 500)
    estimate = rw.evaluate(log, world.target, "mis")
    plan = theory.plan(log, world.target, half_width=0.05)
    need = plan.need("mis")
    assert need.variance == pytest.approx(500 * estimate.standard_error**2, rel=1e-12)
    assert need.episodes == math.ceil(need.variance * (Z95 / 0.05) ** 2)
    assert need.now == pytest.approx(Z95 * estimate.standard_error, rel=1e-12)
    assert need.value == estimate.value
    assert plan.need("is").times == plan.need("is").variance / need.variance
    assert plan.goal.reached(need.variance, need.episodes) <= 0.05
    assert plan.goal.reached(need.variance, need.episodes - 1) > 0.05

    plan = theory.plan(log, world.target, difference=0.05)
    need = plan.need("mis")
    psi = influence_values(log, world.target, rw.mis()) - behavior_values(log)
    assert need.variance == pytest.approx(np.mean(psi**2), rel=1e-12)
    assert need.episodes == math.ceil(need.variance * ((Z95 + Z80) / 0.05) ** 2)
    assert need.difference == estimate.value - estimate.behavior_value
    assert plan.goal.reached(need.variance, need.episodes) >= 0.8
    assert plan.goal.reached(need.variance, need.episodes - 1) < 0.8


def test_moments_plan_as_their_log_does() -> None:
    world = asymptotic_world()
    log = log_of(world, 400)
    by_log = theory.plan(log, world.target, half_width=0.05)
    by_sums = theory.plan(rw.moments(log, world.target), half_width=0.05)
    assert by_sums.to_dict() | {"source": "log"} == by_log.to_dict()
    with pytest.raises(rw.RefusedError, match="for each episode") as refused:
        theory.plan(rw.moments(log, world.target), difference=0.05)
    assert refused.value.code == "needs-log"


def test_every_estimator_has_a_row() -> None:
    """Also those that use a half of the episodes: a plan counts what must be logged."""
    world = asymptotic_world()
    log = log_of(world, 600)
    plan = theory.plan(log, world.target, half_width=0.05, estimators=list(rw.ESTIMATORS))
    for estimate in rw.evaluate_all(log, world.target, list(rw.ESTIMATORS)):
        assert isinstance(estimate, rw.Estimate)
        assert estimate.standard_error is not None
        need = plan.need(estimate.estimator)
        assert need.variance == pytest.approx(600 * estimate.standard_error**2, rel=1e-12)
        # plans are for many episodes: the normal quantile, without small-sample corrections
        margin = NormalDist().inv_cdf(0.975) * estimate.standard_error
        assert need.now == pytest.approx(margin, rel=1e-12)
        assert need.episodes == pytest.approx(600 * (need.now / 0.05) ** 2, abs=1)


# In simulation


@pytest.mark.parametrize("estimator", ["mis", "is"])
def test_the_planned_episodes_give_the_half_width(estimator: str) -> None:
    """100 replicates: the mean half-width has a Monte-Carlo error of at most 0.6 %."""
    world = asymptotic_world()
    n = theory.plan(world, half_width=0.07, estimators=[estimator]).episodes
    assert 300 < n < 1000
    _check_half_width(world, estimator, n, 0.07, replicates=100)


@pytest.mark.parametrize("estimator", ["mis", "is"])
def test_the_planned_episodes_give_the_power(estimator: str) -> None:
    """300 replicates: the rate of 0.8 has a Monte-Carlo error of 0.023."""
    world = asymptotic_world()
    difference = abs(float(world.value()) - float(world.behavior_value()))
    n = theory.plan(world, difference=difference, estimators=[estimator]).episodes
    assert 300 < n < 3000
    _check_power(world, estimator, n, replicates=300)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 4, 6, 7])
@pytest.mark.parametrize("estimator", WITH_INFLUENCE)
def test_plans_hold_in_long_simulations(estimator: str, seed: int) -> None:
    world = random_mdp(np.random.default_rng(seed), n_states=3, n_actions=2, horizon=3,
                       overlap=0.7, reward_sd=0.3)  # fmt: skip
    n = theory.plan(world, half_width=0.05, estimators=[estimator]).episodes
    _check_half_width(world, estimator, n, 0.05, replicates=1000)
    # a difference for which some hundred episodes are needed is in the normal range
    difference = abs(float(world.value()) - float(world.behavior_value()))
    n = theory.plan(world, difference=difference, estimators=[estimator]).episodes
    if n > 200:
        _check_power(world, estimator, n, replicates=2000)


def _check_half_width(
    world: TabularMDP, estimator: str, n: int, wanted: float, replicates: int
) -> None:
    widths = np.empty(replicates)
    for seed in range(replicates):
        [found] = rw.evaluate_all(log_of(world, n, seed), world.target, [estimator])
        assert isinstance(found, rw.Estimate)
        interval = found.interval()
        assert interval is not None
        widths[seed] = (interval.high - interval.low) / 2
    off = np.std(widths) / np.sqrt(replicates)
    assert off < 0.006 * wanted
    # the plug-in error itself is off by the order of 1/n, well below 2 %
    assert abs(widths.mean() - wanted) < 3 * off + 0.02 * wanted


def _check_power(world: TabularMDP, estimator: str, n: int, replicates: int) -> None:
    found = 0
    for seed in range(replicates):
        log = log_of(world, n, 10_000 + seed)
        [estimate] = rw.evaluate_all(log, world.target, [estimator])
        assert isinstance(estimate, rw.Estimate)
        psi = influence_values(log, world.target, rw.estimator(estimator)) - behavior_values(log)
        assert estimate.behavior_value is not None
        difference = estimate.value - estimate.behavior_value
        found += abs(difference) > Z95 * np.sqrt(np.mean(psi**2) / n)
    off = math.sqrt(0.8 * 0.2 / replicates)
    assert abs(found / replicates - 0.8) < 3 * off


def test_a_pilot_plans_nearly_what_the_world_does() -> None:
    """A variance of 2,000 episodes has a relative error of some percent."""
    world = asymptotic_world()
    exact = theory.plan(world, half_width=0.02, estimators=["mis", "wis"])
    pilot = theory.plan(log_of(world, 2000), world.target, half_width=0.02,
                        estimators=["mis", "wis"])  # fmt: skip
    for name in ("mis", "wis"):
        assert pilot.need(name).episodes == pytest.approx(exact.need(name).episodes, rel=0.15)


def test_a_pilot_of_is_is_too_hopeful_and_says_so() -> None:
    """On ModelWin the heaviest products are not in a log of 500 episodes."""
    world = ModelWin(40)
    exact = theory.plan(world, half_width=0.5)
    pilot = theory.plan(log_of(world, 500), world.target, half_width=0.5)
    assert exact.need("is").times > 100
    assert pilot.need("is").episodes < exact.need("is").episodes / 5
    assert pilot.need("is").ess < 100
    assert any("usually far too low" in str(w) for w in pilot.need("is").warnings)
    assert not any("too low" in str(w) for w in pilot.need("mis").warnings)


def test_what_the_guide_says_of_the_demo() -> None:
    """docs/planning.md: about 37 times."""
    from reweigh.cli.demo import EPISODES, SEED, demo_world

    world = demo_world()
    exact = theory.plan(world, half_width=0.1).need("is").episodes
    pilot = theory.plan(world.simulate(EPISODES, SEED), world.target, half_width=0.1)
    assert exact / pilot.need("is").episodes == pytest.approx(37, abs=0.5)


# What it says


def test_refused_estimators_are_rows_unless_all_are() -> None:
    world = asymptotic_world()
    pilot = rw.read_log(log_of(world, 200).to_table(), horizon=1)
    name = "ssd-is"  # which needs two steps
    plan = theory.plan(pilot, world.target, difference=0.1, estimators=[name, "mis"])
    assert plan.reference == "mis"
    assert plan.need(name).refused.code == "horizon"
    assert plan.need(name).episodes is None
    assert f"{name}: refused (horizon)" in str(plan)
    with pytest.raises(rw.RefusedError, match=f"no estimator has a plan\n  {name}: "):
        theory.plan(pilot, world.target, difference=0.1, estimators=[name])
    exact = theory.plan(world, half_width=0.1, estimators=["dr", "mis"])
    assert exact.need("dr").refused.code == "no-exact-variance"
    clipped = theory.plan(world, half_width=0.1, estimators=["mis", rw.is_(max_ratio=2)])
    assert clipped.need("is").refused.code == "max-ratio"


def test_cut_off_episodes_leave_mis() -> None:
    log = population_log(random_world(8, discount=F(1, 2)), cut=True)
    for size in ({"half_width": 0.1}, {"difference": 0.1}):
        plan = theory.plan(log, TARGET, **size)
        assert plan.episodes > 1
        refused = plan.need("is").refused
        assert refused.code == "truncated"
        assert "log.drop_truncated()" in refused.reason
    whole = theory.plan(log.drop_truncated(), TARGET, half_width=0.1)
    assert whole.need("is").episodes > 1


def test_the_first_that_answers_is_the_reference_without_mis() -> None:
    plan = theory.plan(asymptotic_world(), half_width=0.05, estimators=["dr", "wis", "is"])
    assert plan.reference == "wis"
    assert plan.need("wis").times == 1
    assert plan.episodes == plan.need("wis").episodes
    assert plan.decomposition is None
    with pytest.raises(rw.UsageError, match="one of dr, wis, is"):
        plan.need("mis")


def test_small_pilots_and_small_plans_are_told() -> None:
    world = asymptotic_world()
    plan = theory.plan(log_of(world, 20), world.target, half_width=2.0, estimators=["mis"])
    told = [str(w) for w in plan.warnings] + [str(w) for w in plan.need("mis").warnings]
    assert any("the pilot has 20 episodes" in text for text in told)
    assert any("not reliable below 30" in text for text in told)
    assert any("fewer than 10 times" in text for text in told)
    large = theory.plan(world, half_width=0.01, estimators=["mis"])
    assert large.warnings == ()
    assert large.need("mis").warnings == ()
    beyond = theory.plan(world, half_width=1000.0, estimators=["mis"])
    assert any("larger than the value" in str(w) for w in beyond.warnings)


def test_estimated_propensities_are_told() -> None:
    world = asymptotic_world()
    log = log_of(world, 300)
    fitted = log.with_behavior(rw.fit_behavior(log))
    plan = theory.plan(fitted, world.target, half_width=0.1, estimators=["mis"])
    assert any("ignores that" in str(w) for w in plan.warnings)


def test_target_and_behavior_that_do_not_differ_need_no_plan() -> None:
    log = log_of(asymptotic_world(), 200)
    with pytest.raises(rw.RefusedError, match="the variance is 0"):
        theory.plan(log, rw.ColumnPolicy("behavior_prob"), difference=0.1, estimators=["mis"])


def test_numbers_that_overflow_are_refused_by_name() -> None:
    world = asymptotic_world()
    with pytest.raises(rw.RefusedError, match="overflows floating point"):
        theory.plan(world, half_width=1e-200)
    with pytest.raises(rw.RefusedError, match="overflows floating point"):
        theory.plan(log_of(world, 100), world.target, difference=1e-200)
    long = theory.plan(ModelWin(2500), half_width=1.0)
    assert long.need("is").refused.code == "overflow"
    assert long.need("mis").episodes > 1


def test_parts_that_are_equal_stand_in_order() -> None:
    parts = theory.plan(ModelWin(40), half_width=0.1, estimators=["mis"]).decomposition
    assert parts is not None
    assert parts.step[:20].tolist() == [*range(0, 40, 2)]
    assert parts.heaviest_steps(3).tolist() == [0, 2, 4]


def test_a_log_without_overlap_is_refused() -> None:
    log = log_of(asymptotic_world(), 200)
    nothing = rw.FunctionPolicy(lambda state, action, step: np.zeros(len(state)))
    with pytest.raises(rw.RefusedError, match="no estimator has a plan"):
        theory.plan(log, nothing, half_width=0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "half_width or difference"),
        ({"half_width": 0.1, "difference": 0.1}, "half_width or difference"),
        ({"half_width": 0}, "'half_width' must be a positive number"),
        ({"half_width": -1.0}, "'half_width' must be a positive number"),
        ({"half_width": math.nan}, "'half_width' must be a positive number"),
        ({"half_width": math.inf}, "'half_width' must be a positive number"),
        ({"half_width": True}, "'half_width' must be a positive number"),
        ({"half_width": "0.1"}, "'half_width' must be a positive number"),
        ({"difference": -0.1}, "'difference' must be a positive number"),
        ({"difference": 0.1, "power": 1.0}, "'power' must be a number between"),
        ({"difference": 0.1, "power": 0.0}, "'power' must be a number between"),
        ({"difference": 0.1, "power": 0.05}, "'power' must be a number between"),
        ({"half_width": 0.1, "level": 1}, "'level' must be a number between 0 and 1"),
        ({"half_width": 0.1, "level": None}, "'level' must be a number between 0 and 1"),
        ({"half_width": 0.1, "estimators": 3}, "'estimators' must be an estimator"),
        ({"half_width": 0.1, "estimators": []}, "'estimators' must be at least one"),
        ({"half_width": 0.1, "estimators": [3]}, "'estimators' must be made of"),
        ({"half_width": 0.1, "estimators": ["mis", "mis"]}, "without repetitions"),
        ({"half_width": 0.1, "estimators": ["miss"]}, "did you mean 'mis'"),
    ],
)
def test_wrong_arguments_are_named(arguments, message: str) -> None:
    with pytest.raises(rw.UsageError, match=message):
        theory.plan(asymptotic_world(), **arguments)


def test_wrong_sources_are_named() -> None:
    world = asymptotic_world()
    with pytest.raises(
        rw.UsageError, match="'source' must be a pilot log, moments or a TabularMDP"
    ):
        theory.plan("log.csv", half_width=0.1)
    with pytest.raises(rw.UsageError, match="a world has its own target"):
        theory.plan(world, world.target, half_width=0.1)
    with pytest.raises(rw.UsageError, match="'target' must be a policy"):
        theory.plan(log_of(world, 50), half_width=0.1)
    with pytest.raises(rw.UsageError, match="hides states"):
        theory.plan(ModelFail(4), half_width=0.1)


def many_states() -> rw.EpisodeLog:
    """40 states with long names that begin alike, one of them hostile."""
    world = random_mdp(np.random.default_rng(1), n_states=40, n_actions=2, horizon=60)
    log = log_of(world, 300)
    table = log.to_table()
    names = [f"a state with a long name, number {k}" for k in range(39)] + ["</script><b>\x1b[1m"]
    column = [names[int(s)] for s in table.column("state").to_pylist()]
    return rw.read_log(table.set_column(2, "state", [column]), target_prob="target_prob")


def test_texts_fit_the_screen() -> None:
    log = many_states()
    assert log.to_table().column_names[2] == "state"
    for size in ({"half_width": 0.05}, {"difference": 0.01, "level": 0.999}):
        plan = theory.plan(log, TARGET, estimators=["mis", "mis-plain", "wis", "is", "dm"], **size)
        lines = str(plan).splitlines()
        assert max(len(line) for line in lines) <= 80
        assert plan.decomposition is not None
        assert f"{len(plan.decomposition.state) - 8:,} others" in str(plan)
        assert "Where the variance of mis" in str(plan)
    world = theory.plan(ModelWin(10), half_width=0.1, estimators=EXACT)
    assert max(len(line) for line in str(world).splitlines()) <= 80
    assert repr(world) == str(world)
    assert "exact, from the world (horizon 10)" in str(world)


def test_names_that_begin_or_end_alike_are_told_apart() -> None:
    beds = [f"intensive care, bed {k}" for k in range(8)]
    sides = [f"{side} side of the long corridor, room 1" for side in ("left", "right")]
    inside = [f"ward of {k} in the main building" for k in range(100, 110)]
    deep = [f"the same beginning, {k}, and the same end" for k in "abc"]
    hostile = ["\x1b", "\\x1b", "\\x1b #2"]
    for names in (beds, sides, inside, deep, hostile, [*beds, *sides, *inside, *deep, *hostile]):
        shown = display_names([*names, names[0]])
        assert list(shown) == names
        assert len(set(shown.values())) == len(names)
        assert max(map(len, shown.values())) <= 20
        assert "\x1b" not in "".join(shown.values())
    assert display_names(beds)[beds[3]] == "intensive…re, bed 3"
    assert display_names(["short", "x" * 20]) == {"short": "short", "x" * 20: "x" * 20}
    assert display_names(deep)[deep[2]] == "the sam…same end #3"


def test_long_names_are_distinct_in_text_and_chart() -> None:
    table = log_of(asymptotic_world(), 100).to_table()
    names = [f"intensive care, bed {s}" for s in table.column("state").to_pylist()]
    log = rw.read_log(table.set_column(2, "state", [names]), target_prob="target_prob")
    plan = theory.plan(log, TARGET, half_width=0.1, estimators=["mis"])
    drawn = json.dumps(plan.chart().to_dict(), ensure_ascii=False)
    pairs, by_state = " ".join(str(plan).split()).split("by state")
    for bed in range(3):
        short = f"intensive…re, bed {bed}"
        assert all(short in text for text in (drawn, pairs, by_state))


def test_names_from_the_data_are_not_obeyed() -> None:
    table = log_of(asymptotic_world(), 100).to_table()
    column = ["\x1b[31mred\nnext" if s == 0 else "</script>" for s in
              table.column("state").to_pylist()]  # fmt: skip
    log = rw.read_log(table.set_column(2, "state", [column]), target_prob="target_prob")
    plan = theory.plan(log, TARGET, half_width=0.1, estimators=["mis"])
    assert "\x1b" not in str(plan)
    assert "\\x1b[31mred\\nnext" in str(plan)
    assert "</script" not in json.dumps(plan.chart().to_dict())


def test_plain_values_are_json() -> None:
    plan = theory.plan(many_states(), TARGET, half_width=0.05, estimators=["mis", "is", "dm"])
    told = json.loads(json.dumps(plan.to_dict(), allow_nan=False))
    assert told["goal"] == {"half_width": 0.05, "difference": None, "power": None, "level": 0.95}
    assert told["episodes"] == plan.episodes
    assert [row["estimator"] for row in told["estimators"]] == ["mis", "is", "dm"]
    parts = told["decomposition"]
    assert len(parts["largest"]) == 20
    assert set(parts["largest"][0]) == {"step", "state", "share", "target", "visits", "wanted"}
    listed = sum(row["share"] for row in parts["largest"])
    assert listed + parts["others"]["share"] + parts["start"] == pytest.approx(1)
    assert len(parts["by_step"]) == 60


def test_charts_hold_every_curve_and_the_heaviest_states() -> None:
    plan = theory.plan(many_states(), TARGET, half_width=0.05, estimators=["mis", "is"])
    drawn = plan.chart().to_dict()
    text = json.dumps(drawn, ensure_ascii=False)
    assert f"mis: {plan.episodes:,}" in text
    assert plan.need("is").warnings
    assert f'"is: {plan.need("is").episodes:,} !"' in text
    assert "; !: with a warning, see the text" in text
    assert "mean of 20 others" in text
    assert "</script" not in text
    assert len(drawn["hconcat"]) == 2
    fields = drawn["datasets"][drawn["hconcat"][1]["data"]["name"]]
    assert len(fields) == 21 * 30  # 60 steps, two to a field
    heat = sum(row["share"] * (20 if "mean of" in row["state"] else 1) for row in fields)
    assert heat == pytest.approx(1 - plan.decomposition.start)
    alone = theory.plan(many_states(), TARGET, half_width=0.05, estimators=["is"]).chart()
    assert "hconcat" not in alone.to_dict()
    power = theory.plan(ModelWin(6), difference=0.3).chart().to_dict()
    assert "power (goal: 80%)" in json.dumps(power)
    assert "with a warning" not in json.dumps(power)


def test_ticks_of_log_axes_are_neither_few_nor_many() -> None:
    assert log_ticks(0.3, 6.0) == [0.5, 1.0, 2.0, 5.0]
    assert log_ticks(1.0, 1e5) == [1.0, 10.0, 100.0, 1e3, 1e4, 1e5]
    for decades in (12, 35, 300):
        assert 5 <= len(log_ticks(1.0, 10.0**decades)) <= 12


def test_planning_draws_only_when_asked_to() -> None:
    code = (
        "import sys; from reweigh import theory, worlds; "
        "str(theory.plan(worlds.ModelWin(3), half_width=0.1)); print('altair' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
