"""Resampling: a replicate is the estimator on repeated episodes, whatever road, threads, blocks."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import golden
import numpy as np
import pyarrow as pa
import pytest
from build import random_log, to_reweigh
from repeated import VARIANTS, repeated

import reweigh as rw
from reweigh import kernels as compute
from reweigh.estimate import replicates, resampled_log
from reweigh.estimate.replicates import Draws, UnitTable, without_one
from reweigh.evaluation import resampling
from reweigh.evaluation.resampling import BLOCK, THRESHOLDS, Resampler, delete_blocks, resample
from reweigh.kernels import draw
from reweigh.worlds import ModelFail, TimeVarying, random_mdp

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
KERNEL = ("mis", "mis-plain", "mis-state")
STATIONARY = ("ssd-is", "ssd-is-plugin", "ssd-is-selfnorm")
TARGET = rw.ColumnPolicy("target_prob")
WORLD = random_mdp(4, n_states=3, n_actions=2, horizon=4, discount=0.9, reward_sd=0.4)


def arrays(n: int, seed: int, cut: float = 0.3) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    horizon = 6
    return {
        "states": rng.integers(0, 3, (n, horizon)),
        "actions": rng.integers(0, 2, (n, horizon)),
        "rewards": rng.normal(size=(n, horizon)),
        "behavior_prob": rng.uniform(0.2, 1, (n, horizon)),
        "target_prob": rng.uniform(0, 1, (n, horizon)) * (rng.random((n, horizon)) < 0.8),
        "lengths": rng.integers(1, horizon + 1, n),
        "truncated": rng.random(n) < cut,
    }


def draws(n: int, seed: int, block: int) -> np.ndarray:
    counts = np.empty((n, BLOCK), np.uint8)
    draw(seed, block, THRESHOLDS, counts)
    return counts


def slowly(
    log: rw.EpisodeLog, target: Any, recipe: rw.Recipe, counts: np.ndarray, errors: bool = True
) -> Any:
    """The general way: one replicate after the other."""
    again = Resampler.of(log, [(target, recipe)], errors=errors, runs=1)
    vars(again)["by_kernel"], vars(again)["by_sums"] = {}, []
    return again.run(Draws(counts), counts.shape[1])


def together(again: Resampler, counts: np.ndarray) -> int:
    """How many replicates of the first pair are solved together."""
    [(log, of_pairs)] = again.by_sums
    assert list(of_pairs) == [0]
    with np.errstate(all="ignore"):
        solved = log.solve(again.pairs[0][1], Draws(counts), errors=again.errors)
    assert solved is not None
    assert (solved.errors is not None) == again.errors
    return int(np.sum(solved.refused != "again"))


def same(found: np.ndarray, expected: np.ndarray, rel: float = 1e-9) -> None:
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_allclose(found, expected, rtol=rel, atol=1e-12)


# One log, repeated


@pytest.mark.parametrize("cut", [0.0, 0.3])
def test_steps_repeated_are_those_of_the_episodes_repeated(cut: float) -> None:
    given = arrays(9, 1, cut)
    log = rw.log_from_arrays(**given)
    counts = np.array([2, 0, 1, 3, 0, 1, 1, 0, 2])
    steps = log.steps.repeated(counts)
    again = np.repeat(log.steps.episode, counts)
    assert steps.horizon == log.horizon
    assert steps.episode.tolist() == again.tolist()
    assert steps.lengths.tolist() == [given["lengths"][e] for e in again]
    for t in range(log.horizon):
        alive = [e for e in again if given["lengths"][e] > t]
        rows = steps.rows(t)
        np.testing.assert_array_equal(steps.reward[rows], given["rewards"][alive, t])
        np.testing.assert_array_equal(
            log.states.array()[steps.state[rows]], given["states"][alive, t]
        )
    np.testing.assert_array_equal(steps.episode_hash, np.repeat(log.steps.episode_hash, counts))
    kept = log.steps.select(counts > 0)
    np.testing.assert_array_equal(kept.reward, log.steps.repeated((counts > 0) * 1).reward)


@pytest.mark.parametrize("name", KERNEL)
@pytest.mark.parametrize("n", [3, 40])
def test_a_replicate_is_the_estimate_on_repeated_episodes(code: str, n: int, name: str) -> None:
    """Values with cut-off episodes, errors without: both by hand, through log_from_arrays."""
    given = arrays(n, seed=n)
    whole = {**given, "truncated": np.zeros(n, bool)}
    told = refused = 0
    for columns, errors in ((given, False), (whole, True)):
        log = rw.log_from_arrays(**columns, discount=0.9)
        pairs = [(TARGET, rw.estimator(name))]
        found = resample(log, pairs, 2 * BLOCK, seed=5, errors=errors)
        for b in range(0, 2 * BLOCK, 3):
            counts = draws(n, 5, b // BLOCK)[:, b % BLOCK]
            again = np.repeat(log.steps.episode, counts)
            if len(again) == 0:
                assert np.isnan(found.values[b, 0])
                continue
            copied = rw.log_from_arrays(
                **{role: values[again] for role, values in columns.items()}, discount=0.9
            )
            [expected] = rw.evaluate_all(copied, TARGET, [name])
            if isinstance(expected, rw.Refusal):
                refused += 1
                assert np.isnan(found.values[b, 0])
                continue
            told += 1
            assert found.values[b, 0] == pytest.approx(expected.value, rel=1e-12, abs=1e-12)
            if errors and expected.standard_error is not None:
                assert found.errors is not None
                assert found.errors[b, 0] == pytest.approx(expected.standard_error, rel=1e-9)
    assert told > 10
    assert refused > 0 or n > 3


@pytest.mark.parametrize("name", [*rw.ESTIMATORS, "mis-pooled-plain", "mis-averaged-reward"])
def test_every_estimator_is_run_again_on_the_repeated_log(name: str) -> None:
    """Against the tests' own way to repeat episodes, folds included."""
    log = WORLD.simulate(40, 2)
    recipe = {
        "mis-pooled-plain": rw.mis("none", pooled=True),
        "mis-averaged-reward": rw.mis(reward="averaged"),
    }.get(name) or rw.estimator(name)
    errors = name not in STATIONARY
    found = resample(log, [(WORLD.target, recipe)], 8, seed=1, errors=errors)
    counts = draws(40, 1, 0).astype(np.int64)
    for b in range(8):
        copied = repeated(log, counts[:, b])
        [expected] = rw.evaluate_all(copied, WORLD.target, [recipe])
        if isinstance(expected, rw.Refusal):
            assert np.isnan(found.values[b, 0])
            assert found.reasons[0][expected.error.code] > 0
            continue
        assert found.values[b, 0] == pytest.approx(expected.value, rel=1e-9)
        if errors:
            assert found.errors is not None
            assert found.errors[b, 0] == pytest.approx(expected.standard_error, rel=1e-7)


@pytest.mark.parametrize("name", KERNEL)
@pytest.mark.parametrize("terminal", [0, 1])
def test_the_quick_road_is_the_general_one(code: str, name: str, terminal: int) -> None:
    world = random_mdp(7, horizon=5, terminal=terminal, discount=0.95, reward_sd=0.3)
    log = world.simulate(60, 0)
    g = np.random.default_rng(0).normal(size=60)
    for data in (log, log.with_rewards(log.steps.reward, g)):
        recipe = rw.estimator(name)
        found = resample(data, [(world.target, recipe)], BLOCK, seed=8, errors=True)
        general = slowly(data, world.target, recipe, draws(60, 8, 0))
        assert found.errors is not None
        same(found.values, general.values)
        same(found.errors, general.errors)


AT_ONCE = (
    "is", "wis", "trajectory-is", "trajectory-wis", "dm", "dm-renorm", "mis-pooled", "dr",
    "dr-split", "dr-crossfit", "wdr", "wdr-split", "wdr-crossfit", "mdr",
)  # fmt: skip
OTHERS = {
    **{name: rw.estimator(name) for name in AT_ONCE},
    "mis-pooled-plain": rw.mis("none", pooled=True),
    "mis-pooled-state": rw.mis("state", pooled=True),
    "mdr-in-sample": rw.mdr("in-sample"),
    "mdr-plain": replace(rw.mdr(), normalize="none"),
    "wis-clipped": rw.wis(max_ratio=1.5),
    "dr-clipped": rw.dr(max_ratio=1.5),
    "mdr-clipped": rw.mdr(max_ratio=1.5),
}


@pytest.mark.parametrize("errors", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_sums_of_many_mixtures_give_what_each_gives(name: str, errors: bool) -> None:
    """Worlds that end early and that do not, few episodes and many, rewards with a start value."""
    recipe = OTHERS[name]
    compared = 0
    for seed, n, terminal in ((7, 60, 0), (7, 60, 1), (3, 6, 1), (5, 400, 0)):
        world = random_mdp(seed, horizon=5, terminal=terminal, discount=0.95, reward_sd=0.3)
        log = world.simulate(n, 0)
        g = np.random.default_rng(0).normal(size=n)
        shaped = log.with_rewards(log.steps.reward, g)
        for data in (log, shaped) if name in ("is", "wis") else (log,):
            again = Resampler.of(data, [(world.target, recipe)], errors=errors, runs=1)
            counts = draws(n, seed, 0)
            found = again.run(Draws(counts), 40)
            general = slowly(data, world.target, recipe, counts[:, :40], errors)
            same(found.values, general.values)
            if errors:
                same(found.errors, general.errors, 1e-7)
            assert found.reasons == general.reasons
            compared += together(again, counts)
    # pooled MIS: whether the last step's moves count depends on the replicate
    assert compared >= (3 if recipe.weights.pools_steps else 4) * BLOCK


@pytest.mark.parametrize("discount", [1.0, 0.8])
@pytest.mark.parametrize("terminal", [0, 1])
def test_errors_are_made_without_looking_at_a_mixture(
    terminal: int, discount: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sparse tables: in a mixture, and in each of its halves, many states lack an action."""
    shape = {"n_states": 6, "n_actions": 3, "horizon": 4, "concentration": 0.3}
    world = random_mdp(3, **shape, terminal=terminal, discount=discount, reward_sd=0.2)
    log = world.simulate(50, 1)
    pairs = [(world.target, recipe) for recipe in OTHERS.values()]
    pairs += [(world.target, rw.estimator(name)) for name in KERNEL]

    def refuse(*given: Any) -> None:
        raise AssertionError("the general road")

    with monkeypatch.context() as patch:
        patch.setattr(Resampler, "_evaluate", refuse)
        found = resample(log, pairs, 5, seed=1, errors=True)
    counts = draws(50, 1, 0).astype(np.int64)
    for b in range(5):
        copied = repeated(log, counts[:, b])
        expected = rw.evaluate_all(copied, world.target, [recipe for _, recipe in pairs])
        assert found.errors is not None
        for j, estimate in enumerate(expected):
            assert isinstance(estimate, rw.Estimate)
            assert found.values[b, j] == pytest.approx(estimate.value, rel=1e-11)
            assert found.errors[b, j] == pytest.approx(estimate.standard_error, rel=1e-10)


@pytest.mark.parametrize("errors", [True, False])
def test_mixtures_without_overlap_are_refused_as_ever(errors: bool) -> None:
    """What the sums cannot answer is asked again, so that its reason is told."""
    log = rw.log_from_arrays(**arrays(4, 3, cut=0.0))
    for name, recipe in OTHERS.items():
        again = Resampler.of(log, [(TARGET, recipe)], errors=errors, runs=1)
        found = again.run(Draws(draws(4, 1, 0)), BLOCK)
        general = slowly(log, TARGET, recipe, draws(4, 1, 0), errors)
        same(found.values, general.values)
        if errors:
            same(found.errors, general.errors, 1e-6)
        assert found.reasons == general.reasons, name
        assert sum(found.reasons[0].values()) == np.isnan(found.values).sum()


def test_combinations_that_only_a_recipe_makes_are_solved_together() -> None:
    """Combinations that only a Recipe makes, and rewards with a start value."""
    log = WORLD.simulate(40, 0)
    shaped = log.with_rewards(log.steps.reward, np.random.default_rng(0).normal(size=40))
    control = rw.mdr("split").control
    counts = draws(40, 2, 0)
    for data, recipe in (
        (log, replace(rw.mdr("split"), normalize="state")),
        (log, replace(rw.mis(pooled=True), control=control)),
        (shaped, rw.dm()),
        (shaped, rw.mis(pooled=True)),
    ):
        again = Resampler.of(data, [(WORLD.target, recipe)], errors=False, runs=1)
        assert together(again, counts) > BLOCK // 2
        found = again.run(Draws(counts), 6).values
        same(found, slowly(data, WORLD.target, recipe, counts[:, :6], errors=False).values)


@pytest.mark.parametrize("scale", [1e160, 1e300])
def test_rewards_whose_squares_overflow_are_refused_as_ever(scale: float) -> None:
    log = WORLD.simulate(30, 0)
    large = log.with_rewards(log.steps.reward * scale, None)
    counts = draws(30, 2, 0)
    for name in OTHERS:
        for errors in (True, False):
            pair = (WORLD.target, OTHERS[name])
            found = Resampler.of(large, [pair], errors=errors, runs=1).run(Draws(counts), 6)
            general = slowly(large, *pair, counts[:, :6], errors)
            np.testing.assert_array_equal(np.isnan(found.values), np.isnan(general.values))
            assert found.reasons == general.reasons, (name, errors)


def test_estimators_of_many_targets_give_what_each_gives_alone() -> None:
    log = WORLD.simulate(60, 0)
    uniform = rw.TablePolicy(np.full((3, 2), 0.5))
    names = ("dm", "wdr", "mdr", "wis", "mis-pooled")
    pairs = [(t, rw.estimator(n)) for t in (WORLD.target, uniform) for n in names]
    together = resample(log, pairs, BLOCK + 9, seed=2).values
    for j, pair in enumerate(pairs):
        alone = resample(log, [pair], 7, seed=2).values
        np.testing.assert_array_equal(together[:7, j], alone[:, 0])


def test_products_that_a_float_cannot_hold_take_the_general_road() -> None:
    n, horizon = 12, 400
    rng = np.random.default_rng(0)
    log = rw.log_from_arrays(
        states=np.zeros((n, horizon), int),
        actions=rng.integers(0, 2, (n, horizon)),
        rewards=rng.normal(size=(n, horizon)),
        behavior_prob=np.full((n, horizon), 0.05),
        target_prob=rng.uniform(0.1, 1, (n, horizon)),
    )
    again = Resampler.of(log, [(TARGET, rw.wis()), (TARGET, rw.wdr())], errors=False, runs=1)
    assert again.by_sums == []
    assert np.isfinite(again.run(Draws(draws(n, 0, 0)), 4).values).all()


@pytest.mark.parametrize("name", ["dm", "dm-renorm", "dr", "dr-split", "wdr", "wdr-crossfit"])
def test_hidden_states_are_one_to_a_model(name: str) -> None:
    """Hidden first, inside and last, in episodes that end early and that do not."""
    shown = rw.ColumnPolicy("pi")
    for seed, ends, with_next in ((0, ("complete",), True), (1, ("complete", "terminated"), False)):
        made = random_log(
            random.Random(seed), n=60, horizon=5, hide=0.3, ends=ends, with_next=with_next
        )
        log, recipe, counts = to_reweigh(made), OTHERS[name], draws(60, seed, 0)
        for errors in (False, True):
            again = Resampler.of(log, [(shown, recipe)], errors=errors, runs=1)
            found = again.run(Draws(counts), 40)
            general = slowly(log, shown, recipe, counts[:, :40], errors)
            same(found.values, general.values)
            if errors:
                same(found.errors, general.errors, 1e-7)
            assert together(again, counts) == BLOCK


def test_tables_that_are_too_large_take_the_general_road(monkeypatch: pytest.MonkeyPatch) -> None:
    log = WORLD.simulate(30, 0)
    pairs = [(WORLD.target, OTHERS[name]) for name in ("wis", "dm", "mdr", "mis-pooled")]
    quick = resample(log, pairs, 5, seed=1)
    monkeypatch.setattr(resampled_log, "MOST_KEPT", 0)
    assert Resampler.of(log, pairs, errors=False, runs=5).by_sums == []
    same(resample(log, pairs, 5, seed=1).values, quick.values)


@pytest.mark.parametrize("errors", [False, True])
def test_as_many_mixtures_as_fit_are_run_at_once(
    errors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = WORLD.simulate(30, 0)
    pairs = [(WORLD.target, recipe) for recipe in OTHERS.values()]
    whole = resample(log, pairs, 70, seed=1, errors=errors)  # six of the last 64
    blocks = delete_blocks(log, pairs, 10)
    again = Resampler.of(log, pairs, errors=errors, runs=70)
    of_pairs = [list(together) for _, together in again.by_sums]
    monkeypatch.setattr(resampled_log, "MOST_KEPT", 1 << 17)
    few = Resampler.of(log, pairs, errors=errors, runs=70)
    assert [list(together) for _, together in few.by_sums] == of_pairs
    assert all(min(together.values()) in (4, 8) for _, together in few.by_sums)
    found = resample(log, pairs, 70, seed=1, errors=errors)
    same(found.values, whole.values)
    if errors:
        same(found.errors, whole.errors)
    same(delete_blocks(log, pairs, 10).values, blocks.values)


@pytest.mark.parametrize("normalize", ["none", "simplex", "state"])
def test_hidden_stretches_and_cut_off_episodes_are_solved_together(normalize: Any) -> None:
    """Which steps are complete, and may be normalized, depends on the replicate."""
    hidden = ModelFail(4)
    cut = rw.log_from_arrays(**arrays(30, 2))
    stretches = to_reweigh(random_log(random.Random(3), n=40, horizon=5, hide=0.3))
    for log, target in (
        (hidden.simulate(30, 0), hidden.target),
        (cut, TARGET),
        (stretches, rw.ColumnPolicy("pi")),
    ):
        recipe, counts = rw.mis(normalize), draws(log.n_episodes, 0, 0)
        again = Resampler.of(log, [(target, recipe)], errors=True, runs=1)
        assert not again.by_kernel
        assert together(again, counts) == BLOCK
        found, general = again.run(Draws(counts), 20), slowly(log, target, recipe, counts[:, :20])
        same(found.values, general.values, 1e-10)
        same(found.errors, general.errors, 1e-8)
        assert found.reasons == general.reasons


@pytest.mark.parametrize("kind", [kind for kind in golden.cases() if kind != "one episode"])
def test_all_estimators_on_all_kinds_of_logs(kind: str, tmp_path: Path) -> None:
    """Whatever way answers: the values of the repeated log to 1e-10, and the same refusals."""
    case = golden.cases()[kind]
    log, target = case.log("arrays", tmp_path), case.target
    log = log.select(np.arange(log.n_episodes) < 40)
    recipes = {name: rw.estimator(name) for name in rw.ESTIMATORS} | OTHERS | VARIANTS
    counts = draws(40, 3, 0)[:, :3]
    for errors in (False, True):
        named = {n: r for n, r in recipes.items() if not (errors and n in STATIONARY)}
        pairs = [(target, recipe) for recipe in named.values()]
        found = Resampler.of(log, pairs, errors=errors, runs=1).run(Draws(counts), 3)
        for j, (name, recipe) in enumerate(named.items()):
            expected = slowly(log, target, recipe, counts, errors)
            label = f"{kind}, {name}, errors {errors}"
            np.testing.assert_allclose(
                found.values[:, j], expected.values[:, 0], rtol=1e-10, atol=1e-13, err_msg=label
            )
            assert found.reasons[j] == expected.reasons[0], label
            if errors:
                np.testing.assert_allclose(
                    found.errors[:, j], expected.errors[:, 0], rtol=1e-8, err_msg=label
                )


# Draws


def test_kernel_and_twin_draw_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    for seed, block in ((0, 0), (7, 3), (2**62, 11)):
        monkeypatch.setattr(compute, "COMPILED_FROM", 0)
        first = draws(500, seed, block)
        monkeypatch.setattr(compute, "COMPILED_FROM", 10**18)
        np.testing.assert_array_equal(first, draws(500, seed, block))


def test_draws_are_poisson_and_independent(code: str) -> None:
    counts = draws(20_000, 1, 0)
    size = counts.size
    for k in range(6):
        p = math.exp(-1) / math.factorial(k)
        assert np.mean(counts == k) == pytest.approx(p, abs=5 * math.sqrt(p / size))
    x = counts - 1.0
    assert np.mean(x) == pytest.approx(0, abs=5 / math.sqrt(size))
    # Var[(X - 1)²] = 3
    assert np.mean(x**2) == pytest.approx(1, abs=5 * math.sqrt(3 / size))
    for other in (np.roll(x, 1, axis=0), np.roll(x, 1, axis=1)):  # episodes, replicates
        assert np.mean(x * other) == pytest.approx(0, abs=5 / math.sqrt(size))


def test_replicates_do_not_depend_on_their_number_or_on_threads(code: str) -> None:
    log = rw.log_from_arrays(**arrays(60, 1))
    pairs = [(TARGET, rw.mis()), (TARGET, rw.mis("state"))]
    many = resample(log, pairs, 2 * BLOCK + 5, seed=3).values
    assert many.shape == (2 * BLOCK + 5, 2)
    np.testing.assert_array_equal(many[:10], resample(log, pairs, 10, seed=3).values)
    np.testing.assert_array_equal(many, resample(log, pairs, len(many), seed=3, threads=3).values)
    assert not np.any(many[:10] == resample(log, pairs, 10, seed=4).values)


def test_the_spread_is_the_standard_error(code: str) -> None:
    world = random_mdp(2, terminal=1, reward_sd=0.3, discount=0.9)
    log = world.simulate(1500, 0)
    found = rw.evaluate(log, world.target, rw.mis())
    assert found.standard_error is not None
    values = resample(log, [(world.target, rw.mis())], 512, seed=0).values
    # 512 replicates: the spread's own relative error is about 1/sqrt(2·512) = 3 %
    assert np.std(values) == pytest.approx(found.standard_error, rel=0.15)
    assert np.mean(values) == pytest.approx(found.value, abs=0.3 * found.standard_error)


# Several at once


def test_pairs_share_the_drawn_episodes() -> None:
    log = WORLD.simulate(50, 0)
    uniform = rw.TablePolicy(np.full((3, 2), 0.5))
    pairs = [(t, rw.estimator(n)) for t in (WORLD.target, uniform) for n in ("mis", "wis", "dr")]
    together = resample(log, pairs, 6, seed=2, errors=True)
    for j, pair in enumerate(pairs):
        alone = resample(log, [pair], 6, seed=2, errors=True)
        assert alone.errors is not None
        assert together.errors is not None
        same(together.values[:, j], alone.values[:, 0])
        same(together.errors[:, j], alone.errors[:, 0])


def test_a_policy_is_asked_once() -> None:
    """For the logged actions, and once for each action where a model needs them all."""
    calls = []

    def pi(state: np.ndarray, action: np.ndarray, step: np.ndarray) -> np.ndarray:
        calls.append(len(state))
        return np.full(len(state), 1 / 3)

    log = WORLD.simulate(30, 0)
    target = rw.FunctionPolicy(pi)
    resample(log, [(target, rw.estimator(name)) for name in ("mis", "wis", "dm")], 5)
    assert log.actions is not None
    assert calls == [log.steps.n_rows] * (1 + len(log.actions))


def test_a_column_is_found_for_copied_rows_in_any_order() -> None:
    """The rows of the source stand in another order than those of the steps."""
    table = WORLD.simulate(30, 0).to_table()
    names = {"behavior_prob": "behavior_prob", "target_prob": "pi", "next_state": None}
    rng = np.random.default_rng(0)
    pi = pa.array(rng.uniform(0.2, 0.8, len(table)))
    table = table.append_column("pi", pi)
    log = rw.read_log(table, **names, discount=0.9)
    mixed = rw.read_log(table.take(rng.permutation(len(table))), **names, discount=0.9)
    pairs = [(rw.ColumnPolicy("pi"), rw.estimator(n)) for n in ("mis", "wis", "mdr")]
    same(resample(mixed, pairs, 5, seed=1).values, resample(log, pairs, 5, seed=1).values)


def test_a_q_of_ones_own_is_fixed() -> None:
    log = WORLD.simulate(40, 0)
    q = np.random.default_rng(0).normal(size=(3, 2))
    counts = draws(40, 1, 0).astype(np.int64)
    for recipe in (rw.dr(q), rw.wdr(q), rw.mdr(q)):
        found = resample(log, [(WORLD.target, recipe)], 4, seed=1, errors=True)
        assert found.errors is not None
        for b in range(4):
            copied = repeated(log, counts[:, b])
            expected = rw.evaluate(copied, WORLD.target, recipe)
            assert found.values[b, 0] == pytest.approx(expected.value, rel=1e-9)
            assert found.errors[b, 0] == pytest.approx(expected.standard_error, rel=1e-7)


# Refusals


def test_refused_replicates_are_counted_with_their_reasons() -> None:
    log = rw.log_from_arrays(**arrays(4, 3, cut=0.0))
    pairs = [(TARGET, rw.estimator(name)) for name in ("mis", "wis", "dr-split")]
    found = resample(log, pairs, 200, seed=1)
    for j, reasons in enumerate(found.reasons):
        assert sum(reasons.values()) == np.isnan(found.values[:, j]).sum() > 0
    assert found.reasons[2]["empty-half"] > 0


def test_what_it_refuses() -> None:
    log = rw.log_from_arrays(**arrays(30, 2, cut=0.0))
    with pytest.raises(rw.RefusedError, match="ssd-is has only that of its jackknife"):
        resample(log, [(TARGET, rw.ssd_is())], 5, errors=True)
    for options in ({"replicates": 0}, {"seed": -1}, {"threads": 0}, {"threads": 1.5}):
        with pytest.raises(rw.UsageError, match=next(iter(options))):
            resample(log, [(TARGET, rw.mis())], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [0, True, 1.5, None])
def test_threads_are_checked_whether_or_not_they_are_needed(wrong: object) -> None:
    found = rw.evaluate(WORLD.simulate(40, 0), WORLD.target, rw.mis())
    kept = {"method": "percentile", "replicates": 399, "seed": 1}
    assert found.interval(**kept, threads=np.int64(2)) is not None  # type: ignore[arg-type]
    for options in ({}, {"method": "analytic"}, kept):
        for ask in (found.interval, lambda **given: found.bound("lower", **given)):
            with pytest.raises(rw.UsageError, match="'threads' must be a whole number from 1 on"):
                ask(**options, threads=wrong)  # type: ignore[arg-type]


def test_a_seed_is_drawn_and_kept() -> None:
    log = WORLD.simulate(20, 0)
    first, second = (resample(log, [(WORLD.target, rw.mis())], 5) for _ in range(2))
    assert first.seed != second.seed
    again = resample(log, [(WORLD.target, rw.mis())], 5, seed=first.seed)
    np.testing.assert_array_equal(first.values, again.values)


def test_large_tables_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    log = WORLD.simulate(30, 0)
    quick = resample(log, [(WORLD.target, rw.mis())], 5, seed=1, errors=True)
    monkeypatch.setattr(resampling, "MOST_KEPT", 0)
    slow = resample(log, [(WORLD.target, rw.mis())], 5, seed=1, errors=True)
    assert quick.errors is not None
    assert slow.errors is not None
    same(quick.values, slow.values)
    same(quick.errors, slow.errors)


# Blocks left out


@pytest.mark.parametrize("name", ["mis", "ssd-is", *OTHERS])
def test_blocks_left_out_are_the_log_without_their_episodes(name: str) -> None:
    log, recipe = WORLD.simulate(60, 0), OTHERS.get(name) or rw.estimator(name)
    found = delete_blocks(log, [(WORLD.target, recipe)], 10)
    of = log.steps.episode_hash % 10
    for j, block in enumerate(np.unique(of)):
        assert found.sizes[j] == np.sum(of == block)
        expected = rw.evaluate(log.select(of != block), WORLD.target, recipe)
        assert found.values[j, 0] == pytest.approx(expected.value, rel=1e-9)


def test_blocks_left_out_are_answered_from_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    def again(*_: Any) -> None:
        raise AssertionError("evaluated one by one")

    monkeypatch.setattr(Resampler, "_evaluate", again)
    pairs = [(WORLD.target, recipe) for recipe in (rw.mis(), *OTHERS.values())]
    assert np.isfinite(delete_blocks(WORLD.simulate(300, 0), pairs).values).all()


def test_more_blocks_than_are_run_at_once() -> None:
    log = WORLD.simulate(300, 0)
    recipes = [rw.mis(), rw.wis(), rw.dm(), rw.mdr(), rw.wdr("split")]
    found = delete_blocks(log, [(WORLD.target, recipe) for recipe in recipes], 100)
    assert len(found.sizes) > BLOCK
    of = log.steps.episode_hash % 100
    for at in (0, BLOCK - 1, BLOCK, -1):
        rest = log.select(of != np.unique(of)[at])
        expected = [rw.evaluate(rest, WORLD.target, recipe).value for recipe in recipes]
        assert found.values[at] == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("kind", ["complete", "ragged", "hidden", "cut", "coarse column"])
def test_sums_without_each_block_are_solved_together(kind: str, tmp_path: Path) -> None:
    """The jackknife from sums: one solve gives what `Moments.without` gives one after the other."""
    case = golden.cases()[kind]
    log = case.log("arrays", tmp_path)
    recipes = {name: rw.estimator(name) for name in rw.ESTIMATORS} | VARIANTS
    compared = 0
    for name, recipe in recipes.items():
        if recipe.weights.multiplies and recipe.control is not None:
            continue  # from rows alone
        try:
            sums = rw.moments(log, case.target, [recipe], blocks=20).only(recipe.needs.kinds)
            replicates._value(recipe, sums)
        except rw.RefusedError:
            continue
        blocks, _ = sums.block_sizes()
        with np.errstate(all="ignore"):
            values, reasons = replicates._without_each(recipe, sums, blocks)
        expected = [replicates._value(recipe, sums.without(int(block))) for block in blocks]
        np.testing.assert_allclose(values, expected, rtol=1e-10, err_msg=f"{kind}, {name}")
        assert not reasons
        compared += 1
    assert compared > 3


def test_sums_by_unit_are_those_of_a_loop() -> None:
    """Drawn or left out, by block and by episode."""
    log = WORLD.simulate(30, 0)
    cells = rw.moments(log, WORLD.target, ["dm"], blocks=7).model
    assert cells is not None
    table = UnitTable(cells, cells.block)
    keys = list(zip(*(key.tolist() for key in table.cells.keys), strict=True))
    assert keys == sorted(set(keys))
    blocks = np.array([0, 2, 5])
    drawn = np.random.default_rng(0).poisson(1, (7, 4)).astype(np.uint8)
    for mixture in (Draws(drawn), Draws.without_each(np.arange(7), blocks)):
        found = table.mixed(mixture, ("n", "rho", "z"))
        assert found.y.shape == (len(keys), 1)  # was not asked for
        for name in ("n", "rho", "z"):
            expected = np.zeros((len(keys), mixture.many))
            for row in range(len(cells)):
                own = tuple(int(key[row]) for key in table.keys.values())
                times = mixture.counts[cells.block[row]]
                expected[keys.index(own)] += getattr(cells, name)[row] * times
            np.testing.assert_allclose(getattr(found, name), expected, rtol=1e-13, atol=1e-13)


def test_what_is_left_out_is_not_subtracted() -> None:
    parts = np.array([[1e30, 1.0, 2.0, 4.0], [0.0, 5.0, 0.0, 0.0]])
    assert without_one(parts).tolist() == [[7, 1e30, 1e30], [5, 0, 5]]


def test_continuous_actions_and_estimated_behavior_are_resampled() -> None:
    world = TimeVarying(6, 3)
    found = resample(world.simulate(40, 0), [(world.target, rw.mis())], 5, seed=1)
    assert np.isfinite(found.values).all()
    log = WORLD.simulate(40, 0)
    fitted = log.with_behavior(rw.fit_behavior(log))
    fixed = replace(log, steps=replace(log.steps, behavior_prob=fitted.steps.behavior_prob))
    pairs = [(WORLD.target, rw.wis())]
    same(resample(fitted, pairs, 5, seed=1).values, resample(fixed, pairs, 5, seed=1).values)


def test_labels_that_do_not_occur_cost_no_memory_but_where_they_are_counted() -> None:
    states = np.arange(1200).reshape(400, 3)
    ones = np.ones((400, 2))
    log = rw.log_from_arrays(states, ones.astype(int), ones, ones * 0.5, ones * 0.5)
    few = log.select(np.arange(400) < 5)
    for recipe in (rw.mis(), rw.dm(), rw.mis(pooled=True)):
        units = resampled_log.ResampledLog(few, TARGET, None).units(recipe)
        assert units.largest < 40
