"""A log with sampling weights: weight 2 is the episode twice, but one draw."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from repeated import VARIANTS, repeated
from reweigh_studies.coverage.worlds import WORLDS

import reweigh as rw
from reweigh.estimate.influence import influence_values
from reweigh.evaluation.resampling import resample

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
ESTIMATORS = {name: rw.estimator(name) for name in rw.ESTIMATORS} | VARIANTS
del ESTIMATORS["mdr-loo"]  # leaves out a row, which a weight is not
ESTIMATORS |= {"mis-memory-1": rw.mis(memory=1), "dm-clipped": rw.dm()}
N = 240


def weighted(log: rw.EpisodeLog, weight: np.ndarray) -> rw.EpisodeLog:
    columns = replace(log.columns, weight="weight")
    steps = replace(log.steps, weight=np.asarray(weight, float))
    return replace(log, steps=steps, columns=columns, _cache={})


def logs(name: str) -> tuple[rw.EpisodeLog, rw.Policy]:
    return WORLDS[name].log(N, np.random.default_rng(5))


COUNTS = np.random.default_rng(1).integers(1, 4, N)


@pytest.mark.parametrize("world", ["default", "ending", "hidden", "bandit", "noisy"])
def test_weight_two_is_the_episode_twice(world: str) -> None:
    """And weights that are all equal are none, for every estimator. A Q of other episodes is drawn
    towards the state's value by a row: copies are more rows, weights are not."""
    log, target = logs(world)
    recipes = list(ESTIMATORS.values())
    by_weight = rw.point_values(weighted(log, COUNTS), target, recipes)
    by_copies = rw.point_values(repeated(log, COUNTS), target, recipes)
    plain = rw.point_values(log, target, recipes)
    alike = rw.point_values(weighted(log, np.full(N, 3.7)), target, recipes)
    answered = 0
    pairs = zip(ESTIMATORS, by_weight, by_copies, alike, plain, strict=True)
    for name, a, b, c, d in pairs:
        assert isinstance(a, float) == isinstance(b, float), (name, a, b)
        if isinstance(a, float):
            answered += 1
            size = max(1.0, abs(b))
            control = ESTIMATORS[name].control
            # a blend weighs by a variance among episodes, of which copies are more
            if control is None or (control.blocks == 1 and not control.blends):
                assert a == pytest.approx(b, abs=1e-12 * size), name
            assert c == pytest.approx(d, abs=1e-12 * size), name
    assert answered >= 12


@pytest.mark.parametrize("name", ["mis", "dm", "wis", "is", "dr", "mis-hajek"])
def test_large_logs_take_weights(name: str) -> None:
    """Beyond 100,000 rows the compiled scan makes the sums, by weight."""
    world = rw.worlds.random_mdp(2, 4, 2, 6)
    n = 18_000
    log, counts = world.simulate(n, 1), np.random.default_rng(2).integers(1, 3, n)
    a = rw.evaluate(weighted(log, counts), world.target, name)
    b = rw.evaluate(repeated(log, counts), world.target, name)
    assert a.value == pytest.approx(b.value, rel=1e-11)
    assert a.behavior_value == pytest.approx(b.behavior_value, rel=1e-11)


@pytest.mark.parametrize("name", sorted(set(rw.ESTIMATORS) - {"ssd-is-plugin"}))
def test_equal_weights_have_the_error_of_none(name: str) -> None:
    log, target = logs("noisy")
    plain = rw.evaluate(log, target, name)
    alike = rw.evaluate(weighted(log, np.full(N, 0.2)), target, name)
    assert alike.standard_error == pytest.approx(plain.uncertainty.cluster_error(), rel=1e-9)
    if "split" not in name and name != "mdr":  # a split's behavior is that of all episodes
        assert alike.gain().standard_error == pytest.approx(plain.gain().standard_error, rel=1e-9)


@pytest.mark.parametrize("name", ["is", "wis", "mis", "dm", "mis-hajek", "dr", "wdr", "ssd-is"])
def test_influence_is_the_derivative_by_the_weight(name: str) -> None:
    """ψ_i = n ∂v̂/∂log w_i: the episode is one draw, whatever its weight."""
    log, target = logs("noisy")
    recipe, weight = rw.estimator(name), COUNTS.astype(float)
    psi = influence_values(weighted(log, weight), target, recipe)
    for i in (0, 17, 100):
        ends = []
        for step in (1e-5, -1e-5):
            moved = weight.copy()
            moved[i] *= 1 + step
            ends.append(rw.point_values(weighted(log, moved), target, [recipe])[0])
        slope = N * (ends[0] - ends[1]) / 2e-5
        assert psi[i] == pytest.approx(slope, rel=1e-4, abs=1e-4)
    # SE² = (n - 1)/n Σ (ψ_i/(n - ω_i))²
    omega = weight / weight.mean()
    expected = np.sqrt((N - 1) / N * np.sum((psi / (N - omega)) ** 2))
    estimate = rw.evaluate(weighted(log, weight), target, name)
    assert estimate.standard_error == pytest.approx(expected, rel=1e-9)
    assert "240 weighted episodes" in estimate.error_method


def test_an_episode_of_weight_two_is_one_draw() -> None:
    """The error of weighted episodes is larger than that of as many copies."""
    log, target = logs("default")
    weight = np.where(np.arange(N) < 20, 50.0, 1.0)
    a = rw.evaluate(weighted(log, weight), target, rw.mis())
    b = rw.evaluate(repeated(log, weight.astype(int)), target, rw.mis())
    assert a.value == pytest.approx(b.value, rel=1e-12)
    assert a.standard_error > 3 * b.standard_error
    [gate] = [gate for gate in a.verdict.gates if gate.name == "clusters"]
    assert gate.value == pytest.approx(weight.sum() ** 2 / np.sum(weight**2))
    assert gate.level == "amber"
    unknown = {gate.name for gate in a.verdict.unchecked}
    assert {"propensities", "history", "drift"} <= unknown


def test_clusters_and_weights_together() -> None:
    """A cluster of weighted episodes is the cluster with copies of them."""
    log, target = logs("default")
    site = log.steps.episode % 15
    columns = replace(log.columns, cluster="site")
    named = replace(log, steps=replace(log.steps, cluster=site), columns=columns, _cache={})
    a = rw.evaluate(weighted(named, COUNTS), target, rw.mis())
    b = rw.evaluate(replace(named, steps=named.steps.repeated(COUNTS), _cache={}), target, rw.mis())
    assert a.value == pytest.approx(b.value, rel=1e-12)
    assert a.standard_error == pytest.approx(b.standard_error, rel=1e-9)
    assert a.gain().standard_error == pytest.approx(b.gain().standard_error, rel=1e-9)
    assert a.uncertainty.jackknife()[0] == pytest.approx(b.uncertainty.jackknife()[0], rel=1e-9)
    compared = [
        rw.compare(x, {"new": target}, [rw.mis()], seed=1)
        for x in (
            weighted(named, COUNTS),
            replace(named, steps=named.steps.repeated(COUNTS), _cache={}),
        )
    ]
    one, two = (c.contenders[0].over_behavior for c in compared)
    assert one.standard_error == pytest.approx(two.standard_error, rel=1e-9)


def test_replicates_are_of_the_weighted_log() -> None:
    log, target = logs("default")
    some = weighted(log, COUNTS)
    estimate = rw.evaluate(some, target, rw.mis())
    made = resample(some, [(target, rw.mis())], 200, seed=1)
    assert np.std(made.values) == pytest.approx(estimate.standard_error, rel=0.2)
    assert np.mean(made.values) == pytest.approx(estimate.value, abs=3 * estimate.standard_error)


def test_sampling_is_undone() -> None:
    """Episodes that earn are kept, of others one in five: without weights the value is wrong."""
    world = rw.worlds.random_mdp(4, 3, 2, 3, reward_sd=1.0)
    hits = wrong = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        log = world.simulate(2500, rng)
        steps = log.steps
        earned = np.bincount(steps.episode_index, steps.reward)
        rate = np.where(earned > np.median(earned), 1.0, 0.2)
        keep = rng.random(log.n_episodes) < rate
        kept = log.select(keep)
        estimate = rw.evaluate(weighted(kept, 1 / rate[keep]), world.target, rw.mis())
        low, high = estimate.interval()
        hits += low <= world.value() <= high
        low, high = rw.evaluate(kept, world.target, rw.mis()).interval()
        wrong += low <= world.value() <= high
    assert hits >= 52  # of 60 at 95 %: fewer in one run of a hundred
    assert wrong <= 5


# ---- reading and refusals ----------------------------------------------------------------------


def rows_of(weight: dict[int, float | None]) -> pa.Table:
    log, _ = WORLDS["default"].log(30, np.random.default_rng(5))
    rows = log.to_table()
    values = [1.0 + e % 2 for e in rows["episode"].to_pylist()]
    for row, value in weight.items():
        values[row] = value  # type: ignore[assignment]
    return rows.append_column("w", pa.array(values))


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (0.0, "weight-range"), (-1.0, "weight-range"), (None, "null"), (float("nan"), "not-finite"),
        (float("inf"), "not-finite"), (5.0, "two-weights"),
    ],
)  # fmt: skip
def test_bad_weights_are_refused(value: float | None, code: str) -> None:
    with pytest.raises(rw.InputError) as caught:
        rw.read_log(rows_of({8: value}), weight="w")
    said = str(caught.value)
    assert f"{code}: " in said
    assert "column 'w', row 9, episode " in said
    assert f"value {value!r}" in said
    assert "fix: " in said


def test_what_does_not_take_weights_says_so() -> None:
    rows = rows_of({})
    log = rw.read_log(rows, weight="w")
    assert log.steps.weight.tolist() == [1.0 + e % 2 for e in log.steps.episode.tolist()]
    target = WORLDS["default"].world().target
    for engine in ("stream", "duckdb"):
        with pytest.raises(rw.UsageError, match="engine='arrays'"):
            rw.read_log(rows, weight="w", engine=engine)
    refused = (
        lambda: rw.moments(log, target),
        lambda: rw.evaluate(log, target, rw.mis()).moments,
        lambda: rw.certify(log, target, (-9.0, 9.0)),
        lambda: rw.theory.plan(log, target, half_width=0.1),
        lambda: rw.fit_behavior(log),
    )
    for call in refused:
        with pytest.raises(rw.RefusedError, match=r"sampling weights \(w\)"):
            call()


def test_the_scale_of_weights_does_not_matter() -> None:
    log, target = logs("default")
    for a, b in itertools.pairwise((1e-3, 1.0, 1e6)):
        one, two = (rw.evaluate(weighted(log, COUNTS * c), target, rw.mis()) for c in (a, b))
        assert one.value == pytest.approx(two.value, rel=1e-12)
        assert one.standard_error == pytest.approx(two.standard_error, rel=1e-12)
        assert one.n_episodes == two.n_episodes == N


def test_an_estimator_that_leaves_out_rows_refuses_weights() -> None:
    log, target = logs("default")
    with pytest.raises(rw.RefusedError, match=r"mdr-loo.*sampling weights"):
        rw.evaluate(weighted(log, COUNTS), target, "mdr-loo")
