"""Edges: one episode, no overlap, huge and tiny weights, clipping, many states, SSD-IS by hand."""

from __future__ import annotations

import warnings

import numpy as np
import pyarrow as pa
import pytest
from reweigh_studies.coverage.worlds import WORLDS
from scipy.sparse import csc_matrix

import reweigh as rw
from reweigh import kernels as compute
from reweigh.estimate import stationary
from reweigh.estimate.control import ModelControl
from reweigh.estimate.marginal import Marginal
from reweigh.estimate.model import Model
from reweigh.estimate.products import Stepwise, Trajectory
from reweigh.estimate.stationary import Stationary
from reweigh.evaluation.evaluate import evaluate_in_study
from reweigh.show.text import answer_line
from reweigh.worlds import ModelFail, TimeVarying, random_mdp

TARGET = rw.ColumnPolicy("target_prob")


def one_action_log(ratio: float, horizon: int, n: int = 40) -> rw.EpisodeLog:
    """Two actions with the ratios `ratio` and 1/ratio, alternating; every reward is 1."""
    actions = np.arange(n * horizon).reshape(n, horizon) % 2
    mu = np.where(actions == 0, 0.5, 0.5)
    pi = np.where(actions == 0, min(0.5 * ratio, 1.0), 0.5 / ratio)
    states = np.zeros((n, horizon + 1), int)
    return rw.log_from_arrays(states, actions, np.ones((n, horizon)), mu, pi)


@pytest.mark.filterwarnings("ignore::reweigh.LowOverlapWarning")
def test_one_episode_has_a_value_and_no_interval() -> None:
    world = random_mdp(np.random.default_rng(0))
    with pytest.warns(rw.SmallSampleWarning, match="one episode"):
        found = rw.evaluate(world.simulate(1, 0), world.target, rw.mis())
    assert found.standard_error is None
    assert found.interval() is None
    assert found.to_dict()["interval"] is None
    assert "none" in str(found)


@pytest.mark.filterwarnings("ignore::reweigh.LowOverlapWarning")
def test_few_episodes_warn() -> None:
    world = random_mdp(np.random.default_rng(0))
    with pytest.warns(rw.SmallSampleWarning, match="20 episodes"):
        rw.evaluate(world.simulate(20, 0), world.target, rw.mis())


KNOWS_THE_STEP = [n for n in rw.ESTIMATORS if not n.startswith("ssd") and n != "mis-pooled"]


@pytest.mark.parametrize(
    ("name", "step"),
    [(n, step) for n in KNOWS_THE_STEP for step in (0, 2)] + [(n, None) for n in rw.ESTIMATORS],
)
def test_no_overlap_is_refused_and_never_zero(name: str, step: int | None) -> None:
    """At one step, or at all, the target never takes the action that every episode took.

    Estimators that pool over time do not know the step: the others' rows carry them.
    """
    n, horizon = 64, 3
    rng = np.random.default_rng(0)
    states = rng.integers(0, 2, (n, horizon + 1))
    actions = rng.integers(0, 2, (n, horizon))
    mu = np.full((n, horizon), 0.5)
    pi = np.full((n, horizon), 0.5)
    pi[:, step if step is not None else slice(None)] = 0.0
    log = rw.log_from_arrays(states, actions, np.ones((n, horizon)), mu, pi)
    with pytest.raises(rw.RefusedError) as caught:
        rw.evaluate(log, TARGET, name)
    assert caught.value.code == "no-overlap"


def test_deterministic_propensities_are_refused() -> None:
    states, actions = np.zeros((50, 3), int), np.zeros((50, 2), int)
    ones = np.ones((50, 2))
    log = rw.log_from_arrays(states, actions, ones, ones, 0.5 * ones)
    with pytest.raises(rw.RefusedError, match="deterministic"):
        rw.evaluate(log, TARGET, rw.mis())
    same = rw.log_from_arrays(states, actions, ones, ones, ones)
    assert rw.evaluate(same, TARGET, rw.mis()).value == 2.0


def test_one_endless_episode_is_refused() -> None:
    states = np.zeros((1, 1201), int)
    ones = np.ones((1, 1200))
    log = rw.log_from_arrays(states, np.zeros((1, 1200), int), ones, 0.5 * ones, 0.5 * ones)
    with pytest.raises(rw.RefusedError, match=r"1 episode of 1,200 rows"):
        rw.evaluate(log, TARGET, rw.mis())


def test_a_log_without_propensities_says_what_to_do() -> None:
    log = rw.log_from_arrays([[0, 0]] * 3, [[0]] * 3, [[1.0]] * 3, None, [[0.5]] * 3)
    with pytest.raises(rw.UsageError, match="fit_behavior"):
        rw.evaluate(log, TARGET, rw.mis())


@pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
@pytest.mark.parametrize("name", ["mis-plain", "mis-state"])
def test_ratios_whose_squares_are_beyond_the_range_of_numbers(name: str) -> None:
    """Half of the episodes end early, and with them a mass that has no square."""
    n, horizon = 2000, 4
    mu, lengths = np.full((n, horizon), 0.5), np.full(n, horizon)
    mu[:10, :2], lengths[:1000] = 1e-120, 2
    actions = (np.arange(n) % 2)[:, None].repeat(horizon, axis=1)
    states, ones = np.zeros((n, horizon + 1), int), np.ones((n, horizon))
    log = rw.log_from_arrays(states, actions, ones, mu, ones / 2, lengths=lengths)
    found = rw.evaluate(log, TARGET, name)
    assert np.isfinite(found.value)
    assert found.standard_error is None


@pytest.mark.parametrize("name", ["is", "wis", "ssd-is"])
def test_infinite_ratios_of_densities_are_refused(name: str) -> None:
    n, horizon = 40, 3
    rng = np.random.default_rng(0)
    mu = np.full((n, horizon), 1e-5)
    mu[:5, 0] = 1e-306
    states, actions = rng.integers(0, 2, (n, horizon + 1)), rng.random((n, horizon))
    log = rw.log_from_arrays(
        states, actions, np.ones((n, horizon)), mu, mu * 0 + 1e5, continuous_actions=True
    )
    with pytest.raises(rw.SupportError, match=r"clip them \(max_ratio\)"):
        rw.evaluate(log, TARGET, name)


@pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
@pytest.mark.parametrize("compiled", [True, False])
def test_the_largest_ratios_twice(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """1e-250 once more: their product is beyond any number, and still a weight."""
    monkeypatch.setattr(compute, "COMPILED_FROM", 0 if compiled else 1 << 40)
    mu = np.full((20, 2), 0.5)
    mu[:2] = 1e-250
    rewards = np.arange(40.0).reshape(20, 2)
    states, actions = np.zeros((20, 3), int), np.arange(40).reshape(20, 2) % 2
    log = rw.log_from_arrays(states, actions, rewards, mu, mu * 0 + 0.5)
    found = rw.evaluate(log, TARGET, "wis")
    assert found.value == pytest.approx(rewards[:2].mean(axis=0).sum(), rel=1e-12)


@pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
def test_running_products_beyond_the_range_of_numbers() -> None:
    """2^1500 overflows and 2^-1500 underflows; a ratio of weights does neither."""
    horizon, n = 1500, 40
    rng = np.random.default_rng(0)
    actions = (np.arange(n) % 2)[:, None].repeat(horizon, axis=1)
    pi = np.where(actions == 0, 1.0, 0.25)
    rewards = rng.random((n, horizon))
    states = np.zeros((n, horizon + 1), int)
    log = rw.log_from_arrays(states, actions, rewards, np.full((n, horizon), 0.5), pi)
    with pytest.raises(rw.SupportError) as caught:
        rw.evaluate(log, TARGET, rw.is_())
    assert caught.value.code == "overflow"
    # action 0 has the ratio 2, so those episodes carry all of the weight from some step on
    heavy = rewards[actions[:, 0] == 0]
    wis = rw.evaluate(log, TARGET, rw.wis())
    assert wis.per_step is not None
    assert wis.per_step[-1] == pytest.approx(heavy[:, -1].mean(), rel=1e-12)
    whole = rw.evaluate(log, TARGET, rw.trajectory_wis())
    assert whole.value == pytest.approx(heavy.sum(axis=1).mean(), rel=1e-12)
    small = rw.log_from_arrays(states, actions, rewards, np.full((n, horizon), 0.5), pi / 2.5)
    assert rw.evaluate(small, TARGET, rw.trajectory_wis()).value == pytest.approx(
        heavy.sum(axis=1).mean(), rel=1e-12
    )


@pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
def test_clipping_bounds_every_ratio() -> None:
    world = random_mdp(np.random.default_rng(1), overlap=0.2)
    log = world.simulate(500, 0)
    assert log.steps.behavior_prob is not None
    ratio = log.column("target_prob") / log.steps.behavior_prob
    assert ratio.max() > 1.5
    log.source.columns["clipped"] = np.minimum(ratio, 1.5) * log.steps.behavior_prob
    for name in ("is", "wis", "mis", "trajectory-wis", "mdr"):
        make = rw.estimator(name)
        clipped = type(make)(
            make.name, make.weights, make.normalize, make.reward, make.control, 1.5
        )
        if name != "mdr":
            by_hand = rw.evaluate(log, rw.ColumnPolicy("clipped"), make)
            found = rw.evaluate(log, world.target, clipped)
            assert found.value == pytest.approx(by_hand.value, rel=1e-12)
        plain = rw.evaluate(log, world.target, make)
        assert rw.evaluate(log, world.target, clipped).value != plain.value


@pytest.mark.parametrize("bad", [0, -1.0, float("inf"), float("nan"), "2"])
def test_a_useless_clip_is_a_usage_error(bad: object) -> None:
    for make in (rw.is_, rw.wis, rw.mis, rw.ssd_is, rw.dr, rw.wdr, rw.mdr, rw.trajectory_is):
        with pytest.raises(rw.UsageError, match="max_ratio"):
            make(max_ratio=bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make",
    [
        lambda: rw.dm("maybe"),
        lambda: rw.ssd_is("maybe"),
        lambda: rw.mis("maybe"),
        lambda: rw.mis(reward="maybe"),
        lambda: rw.dr("maybe"),
        lambda: rw.mdr(np.zeros(3)),
        lambda: rw.estimator("miss"),
    ],
)
def test_wrong_options_are_usage_errors(make) -> None:
    with pytest.raises(rw.UsageError):
        make()


def test_unknown_estimator_names_the_nearest() -> None:
    with pytest.raises(rw.UsageError, match="did you mean 'mis-plain'"):
        rw.estimator("mis-plane")


def test_mass_on_unseen_actions_is_told() -> None:
    """In state 0 the log only ever shows action 0, which the target takes half of the time."""
    n = 200
    states = np.zeros((n, 3), int)
    actions = np.zeros((n, 2), int)
    actions[: n // 2, 1] = 1
    log = rw.log_from_arrays(states, actions, np.ones((n, 2)), np.full((n, 2), 0.5))
    target = rw.TablePolicy({0: {0: 0.5, 1: 0.5}})
    [found] = evaluate_in_study(log, target, [rw.dm()])
    assert isinstance(found, rw.Estimate)
    assert any("50.0% of the target's behavior" in str(warning) for warning in found.warnings)
    with pytest.raises(rw.RefusedError, match=r"50\.0% of the target's behavior"):
        rw.evaluate(log, target, rw.dm())
    assert found.diagnostics.unseen_mass == pytest.approx([0.5, 0.0])
    assert found.value == pytest.approx(0.5 + 0.5)
    with pytest.warns(rw.LowOverlapWarning):
        renormed = rw.evaluate(log, target, rw.dm("renorm"))
    assert renormed.value == pytest.approx(2.0)


def test_effective_size_of_equal_weights_is_the_number_of_episodes() -> None:
    world = random_mdp(np.random.default_rng(0), terminal=1)
    found = rw.evaluate(world.simulate(300, 0), world.behavior, rw.is_())
    assert found.diagnostics.ess == pytest.approx(300.0)
    marginal = rw.evaluate(world.simulate(300, 0), world.behavior, rw.mis())
    assert marginal.diagnostics.ess == pytest.approx(300.0)
    assert marginal.diagnostics.placebo == pytest.approx(5.0)
    assert marginal.diagnostics.total_mass == pytest.approx(1.0)


@pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
@pytest.mark.parametrize("use", ["ratio", "plugin", "selfnorm"])
@pytest.mark.parametrize("states", [3, 500])
def test_ssd_is_by_dense_matrices(use: str, states: int) -> None:
    """The paper's appendix with S × S arrays, also where the sparse solver takes over."""
    world = random_mdp(
        np.random.default_rng(2), n_states=states, horizon=6, time_varying=False, discount=0.9
    )
    n = 400 if states == 3 else 3000
    log = world.simulate(n, 1)
    table = log.to_table().to_pandas().sort_values(["episode", "step"])
    s = table["state"].to_numpy().reshape(n, 6)
    rho = (table["target_prob"] / table["behavior_prob"]).to_numpy().reshape(n, 6)
    r = table["reward"].to_numpy().reshape(n, 6)
    A, dbar = np.zeros((states, states)), np.zeros(states)
    np.add.at(A, (s[:, 1:], s[:, :-1]), rho[:, :-1] / (n * 5))
    np.add.at(dbar, s[:, :-1], 1 / (n * 5))
    seen = dbar > 0
    P = A[np.ix_(seen, seen)] / dbar[seen]
    found, vectors = np.linalg.eig(P)
    vector = np.real(vectors[:, np.argmin(np.abs(found - 1))])
    d = np.zeros(states)
    d[seen] = vector / vector.sum()
    w = np.divide(d, dbar, out=np.zeros(states), where=seen)
    powers = 0.9 ** np.arange(6)
    if use == "ratio":
        expected = np.sum(powers * (w[s] * rho * r).mean(axis=0))
    elif use == "selfnorm":
        weight = powers * w[s] * rho
        expected = powers.sum() * np.sum(weight * r) / np.sum(weight)
    else:
        expected = 0.0
        for t in range(6):
            visits = np.bincount(s[:, t], minlength=states)
            earned = np.bincount(s[:, t], rho[:, t] * r[:, t], states)
            expected += powers[t] * np.sum(d * earned / np.maximum(visits, 1))
    assert rw.evaluate(log, world.target, rw.ssd_is(use)).value == pytest.approx(expected, rel=1e-7)


@pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
def test_self_normalized_ssd_is_answers_where_no_episode_starts_in_the_stationary_states() -> None:
    """All stationary mass of this world is on state 0, where the ratios are 1: the value is the
    mean reward of its rows, over all steps, times H."""
    world = TimeVarying(8, 3)
    log = world.simulate(200, 1)
    table = log.to_table().to_pandas()
    inside = table[table["state"] == 0]
    assert inside["step"].min() > 0
    expected = 8 * inside["reward"].mean()
    found = rw.evaluate(log, world.target, rw.ssd_is("selfnorm"))
    assert found.value == pytest.approx(expected, rel=1e-9)
    assert found.standard_error is not None
    assert found.per_step[0] == 0


def test_ssd_is_refuses_a_complex_eigenvalue() -> None:
    """The part of its vector that is real would depend on the phase that a library picks."""
    P = np.array([[0.9, 0.1, 0, 0.3], [0.4, 0.7, 0, 0], [0.7, 1, 1, 0.8], [0.9, 0, 0.4, 0]])
    found = np.linalg.eigvals(P)
    assert abs(found[np.argmin(np.abs(found - 1))].imag) > 0.1
    with pytest.raises(rw.RefusedError, match="next to 1 is complex"):
        stationary._eigenvector(csc_matrix(P))


def test_ssd_is_needs_two_steps() -> None:
    world = random_mdp(np.random.default_rng(0), horizon=1)
    with pytest.raises(rw.RefusedError, match="horizon of at least 2"):
        rw.evaluate(world.simulate(50, 0), world.target, rw.ssd_is())


@pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
def test_a_thousand_states() -> None:
    world = random_mdp(np.random.default_rng(3), n_states=1000, horizon=4, overlap=0.8)
    log = world.simulate(20_000, 0)
    for name in ("mis", "mis-plain", "is", "wis"):
        found = rw.evaluate(log, world.target, name)
        assert abs(found.value - world.value()) < 5 * found.standard_error, name
    assert len(rw.evaluate(log, world.target, rw.mis()).marginals.step) > 3500


@pytest.mark.filterwarnings("ignore:states are hidden")
def test_modelfail_misleads_a_model_and_not_mis() -> None:
    world = ModelFail(6)
    log = world.simulate(4000, 0)
    mis = rw.evaluate(log, world.target, rw.mis())
    with pytest.warns(rw.InputWarning, match="a model treats them all as one state"):
        dm = rw.evaluate(log, world.target, "dm")
    assert abs(mis.value - world.value()) < 5 * mis.standard_error
    assert abs(dm.value - world.value()) > 10 * dm.standard_error


def test_steps_that_cannot_be_normalized_are_told() -> None:
    world = ModelFail(6)
    with pytest.warns(rw.InputWarning, match="normalized at 3 of 6 steps"):
        rw.evaluate(world.simulate(100, 0), world.target, rw.mis())


def test_a_spread_that_rounding_has_eaten_is_not_called_zero() -> None:
    """1e9 + N(0, 1): the variance is 1 beside sums of squares of 1e18."""
    world = random_mdp(np.random.default_rng(0), horizon=2, reward_sd=1.0)
    log = world.simulate(2000, 0)
    large = log.with_rewards(log.steps.reward + 1e9, np.zeros(log.n_episodes))
    for name in ("mis", "mis-state", "is", "trajectory-wis"):
        found = rw.evaluate(large, world.behavior, name)
        assert found.standard_error is None, name
        assert "subtract a constant" in found.error_method
    wis = rw.evaluate(large, world.behavior, "wis")
    assert wis.standard_error == pytest.approx(
        rw.evaluate(log, world.behavior, "wis").standard_error, rel=1e-4
    )


def test_a_target_with_steps_is_no_target_for_pooling() -> None:
    world = random_mdp(np.random.default_rng(0))
    log = world.simulate(500, 0)
    for name in ("mis-pooled", "ssd-is"):
        with pytest.warns(rw.StationaryWarning, match="depends on the step"):
            rw.evaluate(log, world.target, name)


def test_several_closed_classes_have_no_stationary_distribution() -> None:
    states = np.repeat([[0], [1]], 50, axis=0).repeat(5, axis=1)
    actions = np.arange(400).reshape(100, 4) % 2
    half = np.full((100, 4), 0.5)
    log = rw.log_from_arrays(states, actions, states[:, :4].astype(float), half, half)
    with pytest.raises(rw.RefusedError, match="several closed classes"):
        rw.evaluate(log, TARGET, rw.ssd_is())


@pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
def test_actions_that_the_log_never_shows_are_told_with_the_nearest_name() -> None:
    world = random_mdp(np.random.default_rng(0), n_actions=2)
    table = world.simulate(300, 0).to_table().to_pandas()
    table["action"] = table["action"].map({0: "wait", 1: "drug A"})
    log = rw.read_log(table)
    target = rw.TablePolicy({s: {"wait": 0.3, "Drug A": 0.7} for s in range(4)})
    for name in ("mis", "is", "mis-state", "dm"):
        with pytest.warns(rw.LowOverlapWarning, match="did you mean 'drug A'") as caught:
            found = rw.evaluate(log, target, name)
        assert caught
        if name != "is":
            assert 0.7 < found.diagnostics.total_unseen <= 1.0
            assert any("of the target's behavior" in str(w) for w in found.warnings)


def test_wrong_propensities_show_in_the_placebo() -> None:
    world = random_mdp(np.random.default_rng(0), n_actions=2, overlap=0.8)
    log = world.simulate(2000, 0)
    assert not any(
        isinstance(w, rw.PlaceboWarning) for w in rw.evaluate(log, world.target, rw.mis()).warnings
    )
    wrong = np.minimum(log.column("target_prob") * 1.2, 1.0)
    log.source.columns["wrong"] = wrong
    for name in ("mis", "mis-plain", "mis-state", "is", "wis", "trajectory-wis"):
        assert not any(
            isinstance(w, rw.PlaceboWarning) for w in rw.evaluate(log, world.target, name).warnings
        )
        with pytest.warns(rw.PlaceboWarning, match="mass is too large"):
            rw.evaluate(log, rw.ColumnPolicy("wrong"), name)


@pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
@pytest.mark.parametrize("reward", [0.0, 0.1, 1000.1])
def test_a_constant_reward_has_no_made_up_error(reward: float) -> None:
    world = random_mdp(np.random.default_rng(0), horizon=3)
    log = world.simulate(40, 0)
    same = log.with_rewards(np.full(log.steps.n_rows, reward), np.zeros(log.n_episodes))
    for name in ("wis", "mis-state", "trajectory-wis", "dm-renorm", "ssd-is-selfnorm"):
        found = rw.evaluate(same, world.target, name)
        assert found.value == pytest.approx(3 * reward)
        assert found.standard_error is None, name
        assert found.interval() is None


@pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
def test_rewards_near_the_end_of_the_numbers_are_refused_one_by_one() -> None:
    world = random_mdp(np.random.default_rng(0), horizon=2)
    log = world.simulate(60, 0)
    huge = log.with_rewards(log.steps.reward * 1e200, np.zeros(log.n_episodes))
    for result in rw.evaluate_all(huge, world.target, list(rw.ESTIMATORS)):
        if isinstance(result, rw.Estimate):
            assert np.isfinite(result.value)
            assert result.standard_error is None or np.isfinite(result.standard_error)


@pytest.mark.parametrize(
    "parts",
    [
        {"weights": Trajectory(), "control": ModelControl("in-sample")},
        {"weights": Stationary(), "control": ModelControl("in-sample")},
        {"weights": Stationary(), "reward": "averaged"},
        {"weights": Stepwise(), "normalize": "simplex"},
        {"weights": Stepwise(), "normalize": "stpe"},
        {"weights": Marginal(), "normalize": "step"},
        {"weights": Model(), "normalize": "simplex"},
    ],
)
def test_a_recipe_refuses_parts_that_it_would_ignore(parts) -> None:
    with pytest.raises(rw.UsageError):
        rw.Recipe("own", **parts)


def test_estimate_shows_its_marginals() -> None:
    world = random_mdp(np.random.default_rng(0))
    found = rw.evaluate(world.simulate(2000, 0), world.target, rw.mis())
    m = found.marginals
    assert m is not None
    for t in range(5):
        assert m.target[m.step == t].sum() == pytest.approx(1.0)
        assert m.behavior[m.step == t].sum() == pytest.approx(1.0)
    assert np.all(m.weight[m.step == 0] == pytest.approx(1.0))
    assert found.diagnostics.variance_by_step is not None
    assert found.diagnostics.variance_by_step.sum() == pytest.approx(found.standard_error**2)


@pytest.mark.filterwarnings("ignore::reweigh.StationaryWarning")
def test_pooled_rows_of_all_steps_speak_for_a_state() -> None:
    """The state after the last step is not logged, and every state is seen once a step at most:
    neither is missing data to an estimator that pools."""
    rng = np.random.default_rng(0)
    n, horizon = 60, 100
    states = rng.integers(0, 10, (n, horizon))
    actions = rng.integers(0, 2, (n, horizon))
    mu, pi = np.full((n, horizon), 0.5), np.where(actions == 0, 0.45, 0.55)
    log = rw.log_from_arrays(states, actions, rng.random((n, horizon)), mu, pi)
    pooled = rw.evaluate(log, TARGET, rw.mis(pooled=True))
    assert pooled.diagnostics.total_unseen == 0
    assert pooled.diagnostics.rare_mass == 0
    assert pooled.warnings == ()
    with pytest.warns(rw.LowOverlapWarning, match="fewer than 10 times"):
        rw.evaluate(log, TARGET, rw.mis())


def test_a_last_state_of_its_own_is_not_lost_when_pooled() -> None:
    rng = np.random.default_rng(0)
    states = np.stack([rng.integers(0, 2, 400), np.full(400, 2)], axis=1)
    actions = rng.integers(0, 2, (400, 2))
    mu, pi = np.full((400, 2), 0.5), np.where(actions == 0, 0.3, 0.7)
    log = rw.log_from_arrays(states, actions, rng.random((400, 2)), mu, pi)
    mis, pooled = (rw.evaluate(log, TARGET, rw.mis(pooled=p)) for p in (False, True))
    assert pooled.value == pytest.approx(mis.value, rel=1e-12)
    assert pooled.diagnostics.total_unseen == 0


def test_cuts_beside_ends_are_told_where_the_next_state_is_not() -> None:
    """A move that is not known is left out although it was no end: P(END) is overestimated."""
    n = 120
    kind = np.arange(n) % 3  # whole, ended after the first step, cut off after the first step
    rows = {
        "episode": np.repeat(np.arange(n), 2),
        "step": np.tile([0, 1], n),
        "state": np.zeros(2 * n, int),
        "action": np.tile([0, 1], n),
        "reward": np.arange(2.0 * n) % 7,
        "behavior_prob": np.full(2 * n, 0.5),
        "pi": np.full(2 * n, 0.5),
        "done": np.repeat(kind == 1, 2),
        "cut": np.repeat(kind == 2, 2),
        "next_state": np.zeros(2 * n, int),
    }
    kept = (rows["step"] == 0) | np.repeat(kind == 0, 2)
    table = pa.table({name: np.asarray(values)[kept] for name, values in rows.items()})
    roles = {"terminated": "done", "truncated": "cut", "target_prob": "pi"}
    target = rw.ColumnPolicy("pi")
    for given, told in (({}, True), ({"next_state": "next_state"}, False)):
        log = rw.read_log(table, **roles, **given)
        for data, policy in ((log, target), (rw.moments(log, target), None)):
            with pytest.warns(rw.SelectionWarning, match="were cut off") as caught:
                rw.evaluate(data, policy, rw.mis())
            assert any("probability of ending" in str(w.message) for w in caught) == told


def test_a_stationary_zero_is_never_printed_bare() -> None:
    """With all mass on END the value is 0 whatever was earned: where it is printed, it says so."""
    world = WORLDS["ending"]
    log, target = world.log(200, np.random.default_rng(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        est = rw.evaluate(log, target, rw.ssd_is())
        found = rw.compare(log, target, [rw.ssd_is(), rw.mis()], seed=0)
    assert est.value == 0
    assert dict(est.rows())["value"] == "0 (END)"
    assert answer_line(est.record_with(None)).startswith("ssd-is 0 (END) no interval")
    by_name = {row[1]: row[2] for row in found.rows()}
    assert by_name["ssd-is"] == "0 (END)"
    assert "END" not in by_name["mis"]
