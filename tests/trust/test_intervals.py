"""Intervals, bounds and p-values: by hand, by identities, and on every estimator."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from fractions import Fraction as F
from functools import cache
from pathlib import Path
from typing import Any

import build
import numpy as np
import pytest
from repeated import repeated
from scipy import stats

import reweigh as rw
from reweigh.estimate.direct import Rows, solve_rows
from reweigh.estimate.influence import behavior_values, influence_values
from reweigh.estimate.standard_error import Freedom, skewed_quantile
from reweigh.evaluation import resampling
from reweigh.evaluation.evaluate import point_values
from reweigh.evaluation.resampling import BLOCK, THRESHOLDS
from reweigh.kernels import draw
from reweigh.trust import bootstrap, intervals
from reweigh.trust.intervals import METHODS, Auto, IntervalRequest
from reweigh.worlds import ModelFail, TabularMDP, random_mdp

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
WORLD = random_mdp(4, n_states=3, n_actions=2, horizon=4, discount=0.9, reward_sd=0.4)
NAMED = tuple(method for method in METHODS if method != "auto")
STATIONARY = ("ssd-is", "ssd-is-plugin", "ssd-is-selfnorm")
FEW: dict[str, Any] = {"replicates": 399, "seed": 1}


@cache
def log_of(n: int = 150, seed: int = 0) -> rw.EpisodeLog:
    return WORLD.simulate(n, seed)


@cache
def estimate(name: str, n: int = 150) -> rw.Estimate:
    return rw.evaluate(log_of(n), WORLD.target, name)


def ends(interval: rw.Interval | None) -> tuple[float, float]:
    assert interval is not None
    return interval.low, interval.high


# Degrees of freedom and corrected errors, by hand


def test_welch_and_satterthwaite_by_hand_on_a_tiny_log() -> None:
    """Plain MIS in fractions: every (t, s) has its part d² Var(ρ(y + V'))/N, which N/(N-1)
    corrects; the start has Var(V_0)/n."""
    found = 0
    for seed in range(40):
        tiny = build.random_log(random.Random(seed), n=6, horizon=2, discount=F(1))
        cells: dict[tuple[int, object], list[tuple[F, F, object]]] = {}
        for episode in tiny.episodes:
            for t, row in enumerate(episode.rows):
                after = episode.rows[1].state if t == 0 else None
                cells.setdefault((t, row.state), []).append((row.rho, row.reward, after))
        V: dict[tuple[int, object], F] = {}
        x: dict[tuple[int, object], list[F]] = {}
        for t in (1, 0):
            for key in [key for key in cells if key[0] == t]:
                x[key] = [rho * (y + V.get((t + 1, s), F(0))) for rho, y, s in cells[key]]
                V[key] = sum(x[key], F(0)) / len(x[key])
        n = F(6)
        d = {key: F(len(rows)) / n for key, rows in cells.items() if key[0] == 0}
        for key in cells:
            if key[0] == 1:
                moved = [
                    d[0, s] * rho / len(cells[0, s])
                    for (t, s), here in cells.items() if t == 0
                    for rho, _, after in here if after == key[1]
                ]  # fmt: skip
                d[key] = sum(moved, F(0))
        parts = [
            (d[key] ** 2 * _variance(x[key]) / (len(x[key]) - 1), len(x[key]) - 1)
            for key in cells if len(cells[key]) > 1
        ]  # fmt: skip
        start = [V[0, e.rows[0].state] for e in tiny.episodes]
        parts.append((_variance(start) / (n - 1), 5))
        square = sum((part for part, _ in parts), F(0))
        if square == 0:
            continue
        df = square**2 / sum((part**2 / left for part, left in parts), F(0))
        result = rw.evaluate(build.to_reweigh(tiny), build.TARGET, rw.mis("none"))
        if result.standard_error is None:
            continue
        interval = result.interval(0.9, "analytic")
        assert interval is not None
        assert interval.standard_error == pytest.approx(math.sqrt(square), rel=1e-9)
        assert interval.df == pytest.approx(float(df), rel=1e-9)
        margin = stats.t.ppf(0.95, float(df)) * math.sqrt(square)
        value = sum(d[0, s] * V[0, s] for t, s in cells if t == 0)
        assert ends(interval) == pytest.approx((value - margin, value + margin), rel=1e-9)
        found += 1
    assert found > 20


def _variance(values: list[F]) -> F:
    """Over the number of values."""
    mean = sum(values, F(0)) / len(values)
    return sum(((v - mean) ** 2 for v in values), F(0)) / len(values)


def test_freedom_is_that_of_welch_and_satterthwaite() -> None:
    rng = np.random.default_rng(0)
    variance, rows = rng.exponential(size=30), rng.integers(1, 9, 30).astype(float)
    variance[rows == 1] = 0
    found = Freedom.of(variance, rows)
    assert found is not None
    parts = [v * m / (m - 1) for v, m in zip(variance, rows, strict=True) if m > 1]
    left = [m - 1 for m in rows if m > 1]
    assert found.error == pytest.approx(math.sqrt(sum(parts)), rel=1e-12)
    spread = sum(p**2 / k for p, k in zip(parts, left, strict=True))
    assert found.df == pytest.approx(sum(parts) ** 2 / spread, rel=1e-12)
    assert Freedom.of(np.zeros(3), np.ones(3)) is None
    assert Freedom.of(np.array([np.inf, 1.0]), np.full(2, 5.0)) is None


@pytest.mark.parametrize("name", ["mis", "mis-plain"])
def test_rows_and_sums_have_the_same_degrees_of_freedom(name: str) -> None:
    world = random_mdp(3, n_states=4, n_actions=3, horizon=5, terminal=1, reward_sd=0.3)
    log, recipe = world.simulate(400, 0), rw.estimator(name)
    sums = recipe.weights.solve(recipe, rw.moments(log, world.target, [recipe]))
    assert sums.freedom is not None
    rows = solve_rows(Rows.of(log, world.target, None), recipe)
    assert rows.freedom is not None
    found = rows.freedom.error, rows.freedom.df
    assert found == pytest.approx((sums.freedom.error, sums.freedom.df), rel=1e-9)


def test_means_over_episodes_have_the_effective_number() -> None:
    for name in ("is", "wis", "trajectory-wis", "dr", "wdr"):
        found = estimate(name)
        interval = found.interval(0.95, "analytic")
        assert interval is not None
        assert found.standard_error is not None
        assert found.diagnostics.worst_ess is not None
        df = found.diagnostics.worst_ess - 1
        error = found.standard_error * math.sqrt(150 / 149)
        assert interval.df == pytest.approx(df, rel=1e-12)
        assert interval.standard_error == pytest.approx(error, rel=1e-12)
        margin = stats.t.ppf(0.975, df) * error
        assert ends(interval) == pytest.approx(
            (found.value - margin, found.value + margin), rel=1e-12
        )
        assert interval.method == f"analytic, t with {df:,.0f} df"


@pytest.mark.parametrize("name", rw.ESTIMATORS)
def test_cluster_by_hand(name: str) -> None:
    found = estimate(name)
    psi = influence_values(log_of(), WORLD.target, rw.estimator(name))
    m = found.n_episodes  # those that a split leaves
    error = math.sqrt(np.sum(psi**2) / len(psi) ** 2 * m / (m - 1))
    margin = stats.t.ppf(0.95, m - 1) * error
    interval = found.interval(0.9, "cluster")
    assert ends(interval) == pytest.approx((found.value - margin, found.value + margin), rel=1e-9)


@pytest.mark.parametrize("name", ["mis", "wis", "dr-crossfit", "ssd-is", "dm"])
def test_jackknife_by_hand(name: str) -> None:
    """Pseudo-values of blocks of unequal sizes (Busing, Meijer and van der Leeden 1999)."""
    found, log = estimate(name), log_of()
    of = log.steps.episode_hash % 50
    blocks = np.unique(of)
    g, n = len(blocks), 150
    center, pseudo, h = g * found.value, [], []
    for block in blocks:
        m = int(np.sum(of == block))
        [without] = point_values(log.select(of != block), WORLD.target, [name])
        assert isinstance(without, float)
        center -= (1 - m / n) * without
        h.append(n / m)
        pseudo.append(n / m * found.value - (n / m - 1) * without)
    square = sum((p - center) ** 2 / (k - 1) for p, k in zip(pseudo, h, strict=True)) / g
    margin = stats.t.ppf(0.975, g - 1) * math.sqrt(square)
    interval = found.interval(method="jackknife")
    assert ends(interval) == pytest.approx((found.value - margin, found.value + margin), rel=1e-7)
    assert interval is not None
    assert interval.method == f"jackknife ({g} blocks), t with {g - 1} df"
    if name == "ssd-is":
        assert ends(found.interval()) == pytest.approx(ends(interval), rel=1e-9)
        assert found.standard_error == pytest.approx(math.sqrt(square), rel=1e-9)


# Resampling, against sorting by hand


@pytest.mark.parametrize("name", ["mis", "wis", "dr-split"])
def test_bootstraps_by_hand(name: str) -> None:
    """99 logs whose episodes are repeated one by one, sorted as a list."""
    log = log_of(40)
    found = rw.evaluate(log, WORLD.target, name)
    values: list[float] = []
    t: list[float] = []
    for block in range(2):
        counts = np.empty((40, BLOCK), np.uint8)
        draw(9, block, THRESHOLDS, counts)
        for b in range(min(BLOCK, 99 - block * BLOCK)):
            again = rw.evaluate(repeated(log, counts[:, b].astype(int)), WORLD.target, name)
            values.append(again.value)
            assert again.standard_error is not None
            t.append((again.value - found.value) / again.standard_error)
    values.sort()
    t.sort()
    asked: dict[str, Any] = {"replicates": 99, "seed": 9}
    # 100 · 0.1 = 10: the tenth from either end
    by_values = found.interval(0.8, "percentile", **asked)
    assert ends(by_values) == pytest.approx((values[9], values[-10]), rel=1e-9)
    assert found.standard_error is not None
    e = found.standard_error
    studentised = found.interval(0.8, "bootstrap-t", **asked)
    expected = found.value - t[-10] * e, found.value - t[9] * e
    assert ends(studentised) == pytest.approx(expected, rel=1e-7)
    lower = found.bound("lower", 0.8, "bootstrap-t", **asked)
    assert ends(lower) == pytest.approx((found.value - t[-20] * e, math.inf), rel=1e-7)
    upper = found.bound("upper", 0.8, "percentile", **asked)
    assert ends(upper) == pytest.approx((-math.inf, values[-20]), rel=1e-9)
    assert studentised is not None
    assert studentised.method == "bootstrap-t of 99 replicates, seed 9"


def test_another_level_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, bool]] = []
    real = resampling.resample

    def counting(log: Any, pairs: Any, count: int, **options: Any) -> Any:
        calls.append((count, options["errors"]))
        return real(log, pairs, count, **options)

    monkeypatch.setattr(resampling, "resample", counting)
    found = rw.evaluate(log_of(), WORLD.target, "mis")
    first = found.interval(0.95, "bootstrap-t", replicates=399)
    for level in (0.5, 0.8, 0.95):
        found.interval(level, "percentile", replicates=399)
        found.bound("lower", max(level, 0.6), "bootstrap-t", replicates=399)
    assert calls == [(399, True)]
    assert found.interval(0.95, "bootstrap-t", replicates=399) == first
    found.interval(0.9, "percentile", replicates=499)  # another number
    found.interval(0.9, "percentile", replicates=499, seed=3)  # another seed
    assert calls[1:] == [(499, False), (499, False)]
    found.interval(0.9, "bootstrap-t", replicates=499)  # the kept ones have no errors
    assert calls[3:] == [(499, True)]


def test_a_seed_is_drawn_once_and_told() -> None:
    found = rw.evaluate(log_of(), WORLD.target, "mis")
    texts = set()
    for level in (0.9, 0.95):
        interval = found.interval(level, "percentile", replicates=399)
        assert interval is not None
        texts.add(interval.method)
    assert len(texts) == 1
    seed = int(texts.pop().split("seed ")[1])
    again = rw.evaluate(log_of(), WORLD.target, "mis")
    assert ends(again.interval(0.9, "percentile", replicates=399, seed=seed)) == ends(
        found.interval(0.9, "percentile", replicates=399)
    )


# Replicates without an answer


def test_missing_replicates_count_as_beyond_both_ends() -> None:
    values = np.arange(1.0, 400.0)
    whole = bootstrap.percentile(values, 0, {}, IntervalRequest(0.95))
    assert ends(whole) == (10, 390)
    values[[100, 200]] = np.nan
    missing = bootstrap.percentile(values, 0, {"no-overlap": 2}, IntervalRequest(0.95))
    assert ends(missing) == (8, 392)
    assert "(2 without a result)" in missing.method
    errors = np.ones(399)
    errors[300] = np.nan
    t = bootstrap.bootstrap_t(
        200.0, 2.0, values, errors, 0, {"no-overlap": 2}, IntervalRequest(0.95)
    )
    # t* = v* - 200, of which three are missing: the 7th from either end
    assert ends(t) == (200 - 2 * 193, 200 + 2 * 193)


def test_too_many_missing_replicates_are_refused() -> None:
    values = np.arange(399.0)
    values[:5] = np.nan  # 1 % of 399 may be missing at 95 %
    with pytest.raises(rw.RefusedError, match="5 of 399 resampled logs have no estimate") as caught:
        bootstrap.percentile(values, 0, {"no-overlap": 5}, IntervalRequest(0.95))
    assert "no-overlap: 5" in caught.value.reason
    assert bootstrap.percentile(values, 0, {"no-overlap": 5}, IntervalRequest(0.9)).low == 19
    errors = np.ones(399)
    errors[5:10] = 0.0
    with pytest.raises(rw.RefusedError, match="no-error: 5"):
        bootstrap.bootstrap_t(0.0, 1.0, np.arange(399.0), errors, 0, {}, IntervalRequest(0.95))


def test_a_log_of_few_episodes_is_refused_by_its_replicates() -> None:
    found = rw.evaluate(log_of(3), WORLD.target, "mis")
    with pytest.raises(rw.RefusedError) as caught:
        found.interval(0.95, "percentile", **FEW)
    assert caught.value.code == "replicates"


# Invariances


@pytest.mark.parametrize("method", NAMED)
@pytest.mark.parametrize("name", ["mis", "wis", "dm", "mdr", "ssd-is"])
def test_intervals_scale_with_the_rewards(name: str, method: str) -> None:
    if name == "ssd-is" and method in ("analytic", "bootstrap-t"):
        return
    log = log_of(60)
    turned = log.with_rewards(-2 * log.steps.reward, np.zeros(60))
    low, high = ends(rw.evaluate(log, WORLD.target, name).interval(0.9, method, **FEW))
    found = rw.evaluate(turned, WORLD.target, name).interval(0.9, method, **FEW)
    assert ends(found) == pytest.approx((-2 * high, -2 * low), rel=1e-8)


@pytest.mark.parametrize("method", NAMED)
@pytest.mark.parametrize("name", ["wis", "mis-state", "trajectory-wis"])
def test_self_normalized_intervals_shift_with_the_rewards(name: str, method: str) -> None:
    log = log_of(60)
    moved = log.with_rewards(log.steps.reward + 3, np.zeros(60))
    shift = 3 * sum(0.9**t for t in range(4))
    low, high = ends(rw.evaluate(log, WORLD.target, name).interval(0.9, method, **FEW))
    found = rw.evaluate(moved, WORLD.target, name).interval(0.9, method, **FEW)
    assert ends(found) == pytest.approx((low + shift, high + shift), rel=1e-8)


@pytest.mark.parametrize("method", NAMED)
def test_the_order_of_the_rows_is_irrelevant(method: str) -> None:
    table = log_of(60).to_table()
    mixed = table.take(np.random.default_rng(0).permutation(len(table)))
    first, second = (
        ends(rw.evaluate(rw.read_log(rows), WORLD.target, "mis").interval(0.9, method, **FEW))
        for rows in (table, mixed)
    )
    assert first == pytest.approx(second, rel=1e-12)


def test_levels_are_nested_and_bounds_are_ends_of_wider_intervals() -> None:
    for method in NAMED:
        found = estimate("mis")
        narrow, wide = (ends(found.interval(level, method, **FEW)) for level in (0.8, 0.9))
        assert wide[0] < narrow[0] < found.value < narrow[1] < wide[1]
        lower = ends(found.bound("lower", 0.95, method, **FEW))
        upper = ends(found.bound("upper", 0.95, method, **FEW))
        assert (lower[0], upper[1]) == pytest.approx(wide, rel=1e-12)
        assert (lower[1], upper[0]) == (math.inf, -math.inf)


# A declared range


def test_a_declared_range_by_logit_for_averages_and_by_cutting_for_others() -> None:
    low, high = 0.0, 4.0
    for name, logit in (("wis", True), ("dm", True), ("mis-state", True), ("is", False),
                        ("mis", False), ("wdr", False)):  # fmt: skip
        found = estimate(name)
        plain = found.interval(0.95, "analytic")
        assert plain is not None
        assert plain.standard_error is not None
        assert plain.df is not None
        within = found.interval(0.95, "analytic", value_range=(low, high))
        assert within is not None
        if not logit:
            assert ends(within) == (max(plain.low, low), min(plain.high, high))
            assert within.method.endswith("cut to the range")
            continue
        v, e = found.value, plain.standard_error
        margin = stats.t.ppf(0.975, plain.df) * e * high / (v * (high - v))
        share = [1 / (1 + math.exp(-(math.log(v / (high - v)) + s * margin))) for s in (-1, 1)]
        assert ends(within) == pytest.approx((high * share[0], high * share[1]), rel=1e-9)
        assert within.method.endswith("logit scale")


def test_resampled_intervals_are_cut_to_the_range() -> None:
    found = estimate("mis")
    for method in ("percentile", "bootstrap-t"):
        low, high = ends(found.interval(0.95, method, **FEW))
        middle = (low + high) / 2
        assert ends(found.interval(0.95, method, **FEW, value_range=(middle, 99))) == (middle, high)
        with pytest.raises(rw.RefusedError, match="outside the declared range"):
            found.interval(0.95, method, **FEW, value_range=(high + 1, high + 2))
    with pytest.raises(rw.RefusedError) as caught:
        found.interval(value_range=(found.value + 5, found.value + 6))
    assert caught.value.code == "outside-range"


@pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
def test_replicates_without_spread_make_no_interval() -> None:
    ones = np.ones((40, 3))
    log = rw.log_from_arrays(np.arange(120).reshape(40, 3) % 2, ones.astype(int), ones, ones * 0.5)
    found = rw.evaluate(log, rw.TablePolicy([[0.5, 0.5], [0.5, 0.5]]), rw.wis())
    with pytest.raises(rw.RefusedError, match="every replicate has the same value"):
        found.interval(0.8, "percentile", replicates=99, seed=1)


# Every estimator, every method


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", rw.ESTIMATORS)
def test_every_estimator_answers_every_method_or_refuses_by_name(name: str, method: str) -> None:
    found = estimate(name, 60)
    if name in STATIONARY and method in ("analytic", "bootstrap-t"):
        with pytest.raises(rw.RefusedError, match=rf"{name} has (no|only)") as caught:
            found.interval(0.8, method, replicates=99, seed=1)
        assert caught.value.code == "no-error"
        return
    low, high = ends(found.interval(0.8, method, replicates=99, seed=1))
    assert math.isfinite(low)
    assert low < high


@pytest.mark.parametrize("method", NAMED)
def test_hidden_cut_and_dropped_episodes(method: str) -> None:
    hidden = ModelFail(4)
    assert rw.evaluate(hidden.simulate(80, 0), hidden.target, "mis").interval(
        0.8, method, replicates=99, seed=0
    )
    rng = np.random.default_rng(0)
    n, horizon = 80, 4
    cut = rw.log_from_arrays(
        rng.integers(0, 3, (n, horizon + 1)),
        rng.integers(0, 2, (n, horizon)),
        rng.normal(size=(n, horizon)),
        np.full((n, horizon), 0.5),
        rng.uniform(0.3, 0.7, (n, horizon)),
        lengths=rng.integers(2, horizon + 1, n),
        truncated=rng.random(n) < 0.3,
    )
    target = rw.ColumnPolicy("target_prob")
    assert rw.evaluate(cut, target, "mis").interval(0.8, method, replicates=99, seed=0)
    dropped = rw.evaluate(cut, target, "wis", truncated="drop")
    left = rw.evaluate(cut.drop_truncated(), target, "wis")
    assert dropped.n_episodes == left.n_episodes < n
    for found in (dropped, left):
        assert found.interval(0.8, method, replicates=99, seed=0)
    if method in ("analytic", "cluster", "jackknife"):
        assert ends(dropped.interval(0.9, method)) == ends(left.interval(0.9, method))


def test_one_episode_has_no_interval() -> None:
    found = rw.evaluate(log_of(1), WORLD.target, "mis")
    for method in METHODS:
        assert found.interval(method=method) is None
        assert found.bound("lower", method=method) is None
    with pytest.raises(rw.RefusedError, match="one episode"):
        found.p_value()


def test_where_no_method_answers_auto_has_no_interval() -> None:
    """Too few episodes for blocks, and none of them moves the stationary estimate."""
    ones = np.ones((4, 2))
    log = rw.log_from_arrays(np.zeros((4, 3), int), [[0, 1], [1, 0]] * 2, ones, ones / 2)
    found = rw.evaluate(log, rw.TablePolicy([[0.5, 0.5]]), "ssd-is-plugin")
    assert found.standard_error is None
    assert found.interval() is None
    assert found.to_dict()["interval"] is None
    with pytest.raises(rw.RefusedError, match="have the same influence"):
        found.interval(method="cluster")


def test_an_error_lost_in_rounding_is_refused() -> None:
    log = log_of(60)
    flat = log.with_rewards(np.zeros(log.steps.n_rows), np.zeros(60))
    found = rw.evaluate(flat, WORLD.target, "mis")
    assert found.interval() is None
    for method in ("analytic", "cluster", "jackknife", "bootstrap-t"):
        with pytest.raises(rw.RefusedError) as caught:
            found.interval(0.95, method)
        assert caught.value.code == "no-error"


def test_errors_that_overflow_are_refused() -> None:
    rng = np.random.default_rng(0)
    log = rw.log_from_arrays(
        np.zeros((30, 3), int), rng.integers(0, 2, (30, 2)), rng.normal(size=(30, 2)),
        np.tile([1e-200, 0.5], (30, 1)), rng.uniform(0.3, 0.7, (30, 2)),
    )  # fmt: skip
    found = rw.evaluate(log, rw.ColumnPolicy("target_prob"), rw.mis("none"))
    assert abs(found.value) > 1e190
    assert found.interval() is None
    for method in ("analytic", "cluster", "jackknife"):
        with pytest.raises(rw.RefusedError, match="overflow"):
            found.interval(method=method)


def test_the_estimated_behavior_is_told_beside_the_interval() -> None:
    log = log_of(60)
    fitted = log.with_behavior(rw.fit_behavior(log))
    found = rw.evaluate(fitted, WORLD.target, "mis")
    for method in METHODS:
        interval = found.interval(0.8, method, replicates=99, seed=1)
        assert interval is not None
        holds = "ignores" if method in ("jackknife", "percentile") else "includes"
        assert interval.method.endswith(f"; {holds} that the behavior was estimated")


# Sums alone


RESAMPLED = ("cluster", "percentile", "bootstrap-t")


def _from_sums(tmp_path: Path, name: str, blocks: int) -> list[rw.Estimate]:
    """The estimate from moments, from moments that were saved and merged, and from a scan."""
    log, recipe = log_of(), rw.estimator(name)
    halves = [log.select(np.arange(150) % 2 == k) for k in (0, 1)]
    parts = [rw.moments(half, WORLD.target, [recipe], blocks=blocks) for half in halves]
    (parts[0] + parts[1]).save(tmp_path / "sums.parquet")
    import pyarrow.parquet as pq

    pq.write_table(log.to_table(), tmp_path / "log.parquet")
    scanned = rw.read_log(tmp_path / "log.parquet", discount=0.9, engine="stream")
    return [
        rw.evaluate(rw.moments(log, WORLD.target, [recipe], blocks=blocks), None, recipe),
        rw.evaluate(rw.load_moments(tmp_path / "sums.parquet"), None, recipe),
        rw.evaluate(scanned, WORLD.target, recipe),
    ]


@pytest.mark.parametrize("name", ["mis", "dm", "is", "wis", "mdr", "ssd-is"])
def test_sums_give_the_same_intervals(tmp_path: Path, name: str) -> None:
    whole = estimate(name)
    for found in _from_sums(tmp_path, name, 50):
        for method in ("analytic", "jackknife"):
            if method == "analytic" and name in ("wis", "ssd-is"):
                with pytest.raises(rw.RefusedError, match="only that of the jackknife"):
                    found.interval(method=method)
                assert ends(found.interval()) == ends(found.interval(method="jackknife"))
                continue
            expected = whole.interval(method=method)
            assert ends(found.interval(method=method)) == pytest.approx(ends(expected), rel=1e-8)
        scanned = found.uncertainty.has_influence  # a file can be scanned again
        for method in ("percentile", "bootstrap-t") if scanned else RESAMPLED:
            with pytest.raises(rw.RefusedError, match=r"engine='arrays'.*jackknife") as caught:
                found.interval(method=method)
            assert caught.value.code == "needs-log"
        assert found.gain().at_most == (not scanned)
        if scanned:
            expected = ends(whole.interval(method="cluster"))
            assert ends(found.interval(method="cluster")) == pytest.approx(expected, rel=1e-9)
            gain = whole.gain()
            assert found.gain().standard_error == pytest.approx(gain.standard_error, rel=1e-9)


def test_sums_of_one_block_have_no_jackknife_but_a_scanned_log_is_scanned_again(
    tmp_path: Path,
) -> None:
    *stored, scanned = _from_sums(tmp_path, "mis", 1)
    for found in stored:
        with pytest.raises(rw.RefusedError, match=r"at least 10 blocks.*blocks=20"):
            found.interval(method="jackknife")
    expected = ends(estimate("mis").interval(method="jackknife"))
    assert ends(scanned.interval(method="jackknife")) == pytest.approx(expected, rel=1e-8)


# p-values


@pytest.mark.parametrize("name", ["mis", "wis", "dm", "dr-crossfit"])
def test_p_value_by_hand(name: str) -> None:
    found, log = estimate(name), log_of()
    psi = influence_values(log, WORLD.target, rw.estimator(name)) - behavior_values(log)
    assert found.behavior_value is not None
    t = (found.value - found.behavior_value) / math.sqrt(np.sum(psi**2) / 150 / 149)
    assert found.p_value() == pytest.approx(stats.t.sf(t, 149), rel=1e-9)
    turned = log.with_rewards(-log.steps.reward, np.zeros(150))
    opposite = rw.evaluate(turned, WORLD.target, name).p_value()
    assert opposite == pytest.approx(1 - found.p_value(), abs=1e-9)


def test_p_value_of_the_behavior_itself_is_one() -> None:
    n, horizon = 40, 3
    rng = np.random.default_rng(0)
    mu = rng.uniform(0.2, 0.8, (n, horizon))
    log = rw.log_from_arrays(
        rng.integers(0, 2, (n, horizon)), rng.integers(0, 2, (n, horizon)),
        rng.normal(size=(n, horizon)), mu, mu,
    )  # fmt: skip
    for name in ("mis", "wis", "is"):
        assert rw.evaluate(log, rw.ColumnPolicy("target_prob"), name).p_value() == 1.0


def test_p_values_are_uniform_where_nothing_differs_and_small_where_it_does() -> None:
    """Two actions that do the same: every target is worth the behavior's value. 400 logs: the
    share below 10 % has a Monte-Carlo error of 1.5 %."""
    same = np.full((2, 2, 2), 0.5)
    target = np.array([[0.8, 0.2], [0.3, 0.7]])
    half = np.full((2, 2), 0.5)
    reward = np.zeros((2, 2, 2))
    reward[1] = 1.0
    world = TabularMDP(np.array([0.5, 0.5]), same, reward, target, half, reward_sd=0.5, horizon=3)
    found = [
        rw.evaluate(world.simulate(100, seed), world.target, "mis").p_value() for seed in range(400)
    ]
    assert np.mean(np.array(found) < 0.1) == pytest.approx(0.1, abs=0.045)
    assert np.mean(np.array(found) < 0.5) == pytest.approx(0.5, abs=0.075)
    better = reward.copy()
    better[:, :, :] = np.array([1.0, 0.0])[None, :, None]
    good = TabularMDP(
        np.array([0.5, 0.5]), same, better, np.array([[0.9, 0.1]] * 2), half, horizon=3
    )
    assert rw.evaluate(good.simulate(100, 0), good.target, "mis").p_value() < 1e-6


# What is asked wrongly, and what `auto` is


def test_usage() -> None:
    found = estimate("mis")
    for level in (0, 1, 1.5, "high", math.nan):
        with pytest.raises(rw.UsageError, match="level"):
            found.interval(level)  # type: ignore[arg-type]
    with pytest.raises(rw.UsageError, match=r"method.*bootstrap-t.*'normal'"):
        found.interval(method="normal")
    with pytest.raises(rw.UsageError, match=r"above 0\.5"):
        found.bound("lower", 0.4)
    with pytest.raises(rw.UsageError, match="side"):
        found.bound("left")  # type: ignore[arg-type]
    for value_range in ((1, 0), (0, math.inf), 3, (0, 1, 2)):
        with pytest.raises(rw.UsageError, match="value_range"):
            found.interval(value_range=value_range)  # type: ignore[arg-type]
    for level, least in ((0.95, 399), (0.99, 1999), (0.9, 199)):
        assert intervals.check_replicates(least, level) is None  # type: ignore[func-returns-value]
        with pytest.raises(rw.UsageError, match=f"at least {least:,} at the level"):
            found.interval(level, "percentile", replicates=least - 1)


def test_auto_is_the_analytic_one_where_there_is_one() -> None:
    found, freedom = estimate("mis").uncertainty, Freedom(0.1, 9.0)
    for error, analytic, lacks_blocks, influence, method in (
        (0.1, freedom, True, True, "analytic"),
        (0.1, None, True, True, "jackknife"),
        (None, freedom, True, True, "cluster"),
        (None, freedom, True, False, None),
        (None, freedom, False, True, None),
    ):
        here = replace(
            found, error=error, freedom=analytic, lacks_blocks=lacks_blocks, has_influence=influence
        )
        chosen = Auto().choice(here)
        assert (None if chosen is None else chosen.name) == method
    for name in rw.ESTIMATORS:
        wanted = "jackknife" if name in STATIONARY else "analytic"
        default, same = estimate(name).interval(), estimate(name).interval(method=wanted)
        assert default is not None
        assert same is not None
        assert default.standard_error == same.standard_error
        skewed = abs(estimate(name).uncertainty.skewness()) >= intervals.LEAST_SKEWNESS
        assert (ends(default) != ends(same)) == skewed
        assert default.method == same.method + skewed * ", corrected for skewness"
    few = rw.evaluate(log_of(6), WORLD.target, "ssd-is")  # too few blocks for the jackknife
    assert few.standard_error is None
    default, cluster = few.interval(), few.interval(method="cluster")
    assert default is not None
    assert cluster is not None
    assert default.standard_error == cluster.standard_error


# Skewness


@pytest.mark.parametrize("a", [-0.7, -0.05, 0.05, 0.3, 1.5])
@pytest.mark.parametrize("p", [0.005, 0.025, 0.4, 0.95])
def test_skewed_quantiles_invert_halls_polynomial(a: float, p: float) -> None:
    """T + a T²/3 + a² T³/27 + a/6 is standard normal; to the first order T is the quantile by
    Cornish and Fisher, z - a (2z² + 1)/6."""
    z, T = stats.norm.ppf(p), skewed_quantile(p, math.inf, a)
    assert T + a * T**2 / 3 + a**2 * T**3 / 27 + a / 6 == pytest.approx(z, abs=1e-12)
    small = skewed_quantile(p, math.inf, a / 1e4)
    assert small == pytest.approx(z - a / 1e4 * (2 * z**2 + 1) / 6, abs=1e-7)
    assert skewed_quantile(p, 7.0, a) == pytest.approx(stats.t.ppf(p, 7) + T - z, abs=1e-9)
    assert skewed_quantile(p, 7.0, 0.0) == pytest.approx(stats.t.ppf(p, 7), abs=1e-12)


def test_skewness_is_that_of_the_sum_of_influence_values() -> None:
    psi = influence_values(log_of(), WORLD.target, rw.is_())
    by_hand = stats.skew(psi) / math.sqrt(len(psi))  # the mean of ψ is 0
    assert estimate("is").uncertainty.skewness() == pytest.approx(by_hand, rel=1e-9)


def clicks(rng: np.random.Generator) -> tuple[np.ndarray, float]:
    """30 of 3,000 rows."""
    return (rng.random(3000) < 0.01).astype(float), 0.01


def lognormal(rng: np.random.Generator) -> tuple[np.ndarray, float]:
    return rng.lognormal(0, 1.2, 600), math.exp(0.72)


@pytest.mark.parametrize("rewards", [clicks, lognormal])
@pytest.mark.parametrize("name", ["mis", "wis"])
def test_skewed_rewards_miss_alike_on_both_sides(rewards: Any, name: str) -> None:
    """One step, 400 logs at the level 90 %: a side's share of misses has a Monte-Carlo error of
    1.1 %. Symmetric intervals miss twice to nine times as often on the side where there is room."""
    rng, missed, plain = np.random.default_rng(4), np.zeros(2), np.zeros(2)
    for _ in range(400):
        reward, truth = rewards(rng)
        action = rng.integers(2, size=(len(reward), 1))
        log = rw.log_from_arrays(
            states=np.zeros((len(reward), 1), int),
            actions=action,
            rewards=reward[:, None],
            behavior_prob=np.full((len(reward), 1), 0.5),
            target_prob=np.where(action == 1, 0.8, 0.2),
        )
        found = rw.evaluate(log, rw.ColumnPolicy("target_prob"), name)
        for counts, method in ((missed, "auto"), (plain, "analytic")):
            low, high = ends(found.interval(0.9, method))
            counts += truth < low, truth > high
    assert np.all(np.abs(missed / 400 - 0.05) < 0.035)
    assert plain[1] > 1.5 * plain[0]
    assert missed.sum() < 0.135 * 400


def test_a_skewed_interval_is_cut_and_has_one_side() -> None:
    found, log = estimate("is"), log_of()
    whole, lower = found.interval(0.9), found.bound("lower", 0.95)
    assert ends(lower) == pytest.approx((ends(whole)[0], math.inf), rel=1e-12)
    low, high = ends(whole)
    cut = found.interval(0.9, value_range=(low - 1, high - 0.01))
    assert cut is not None
    assert ends(cut) == (low, high - 0.01)
    assert cut.method.endswith("corrected for skewness, cut to the range")
    of_sums = rw.evaluate(rw.moments(log, WORLD.target, ["is"]), None, "is").interval(0.9)
    assert of_sums is not None
    assert ends(of_sums) == pytest.approx(ends(found.interval(0.9, "analytic")), rel=1e-9)
    assert of_sums.method.endswith("; the skewness is unknown without episodes")


def test_intervals_print_and_serialize() -> None:
    found = estimate("mis")
    lower = found.bound("lower")
    upper = found.bound("upper")
    assert lower is not None
    assert upper is not None
    assert str(lower).startswith("≥ ")
    assert str(upper).startswith("≤ ")
    assert lower.to_dict()["high"] is upper.to_dict()["low"] is None
    told = {"low", "high", "level", "method", "standard_error"}
    assert set(found.to_dict()["interval"]) == told
    assert lower.method.endswith("df, one-sided")


# Coverage, small: the study is elsewhere

WORLDS = {
    "plain": random_mdp(11, n_states=3, n_actions=2, horizon=5, reward_sd=0.5),
    "early end": random_mdp(
        12, n_states=4, n_actions=2, horizon=5, reward_sd=0.5, terminal=1, discount=0.9
    ),
    "hidden": ModelFail(4),
}


@pytest.mark.parametrize(
    ("world", "n", "methods"),
    [
        ("plain", 200, NAMED),
        ("early end", 200, ("analytic", "cluster", "jackknife")),
        ("hidden", 500, ("analytic", "cluster")),
    ],
)
def test_intervals_cover(world: str, n: int, methods: tuple[str, ...]) -> None:
    """300 logs at the level 90 %: the share has a Monte-Carlo error of 1.7 %, and with a scale
    that is off by 15 % it would be off by 4 to 5 %."""
    w = WORLDS[world]
    truth = w.value()
    covered = dict.fromkeys(methods, 0)
    for seed in range(300):
        found = rw.evaluate(w.simulate(n, seed), w.target, "mis")
        for method in methods:
            low, high = ends(found.interval(0.9, method, replicates=199, seed=seed))
            covered[method] += low <= truth <= high
    for method, count in covered.items():
        assert count / 300 == pytest.approx(0.9, abs=0.04), (method, count)
