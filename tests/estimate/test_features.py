"""Estimators on features: identities, a slow reference, influence values, values, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import reweigh as rw
from reweigh.estimate.cluster_weights import (
    Clustered,
    cross_fitted,
    logged_rewards,
    shaped_by,
    solve_clusters,
)
from reweigh.estimate.feature_doubt import Doubt
from reweigh.estimate.linear_q import LinearQ, by_action, examine
from reweigh.log.feature_maps import Clusters, FeatureMap, Fourier, Polynomial, as_map
from reweigh.sums.engines import ratios
from reweigh.sums.feature_sums import FeatureRows, design_of, feature_sums, target_shares
from reweigh.trust.gates.features import BehaviorValue, ChoiceSpread

Floats = npt.NDArray[np.float64]
S, A, H, GAMMA = 3, 2, 4, 0.9
ONE_HOT = as_map(lambda x: x, Fourier())


def tabular(rng: np.random.Generator, n: int = 60, *, cut: bool = False) -> Any:
    """A log with a state and its one-hot features, and a target of the state."""
    s, a = rng.integers(0, S, (n, H)), rng.integers(0, A, (n, H))
    r, lengths = rng.normal(size=(n, H)) + s, rng.integers(1, H + 1, n)
    truncated = rng.random(n) < 0.3 if cut else None
    pi = rng.dirichlet(np.ones(A), S)
    log = rw.log_from_arrays(
        s, a, r, np.full((n, H), 0.5), features=np.eye(S)[s], lengths=lengths, discount=GAMMA,
        truncated=truncated,
    )  # fmt: skip
    return log, rw.FunctionPolicy(lambda state, action, step: pi[state, action], "pi"), pi


def smooth(rng: np.random.Generator, n: int = 40) -> Any:
    x = rng.normal(size=(n, H, 2))
    a, r = rng.integers(0, 2, (n, H)), rng.normal(size=(n, H)) + x[:, :, 0]
    log = rw.log_from_arrays(
        None, a, r, np.full((n, H), 0.5), features=x, lengths=rng.integers(1, H + 1, n),
        discount=GAMMA,
    )  # fmt: skip
    return log, rw.FunctionPolicy(leaning, "leaning")


def leaning(x: Floats, action: Any, step: Any) -> Floats:
    p = 1 / (1 + np.exp(-x[:, 0]))
    return np.where(action == 1, p, 1 - p)


def rows_of(log: Any, target: Any, kind: FeatureMap, **design: Any) -> FeatureRows:
    return FeatureRows(log, design_of(log, kind, **design), target_shares(log, target, None))


def counted(log: rw.EpisodeLog, counts: npt.NDArray[np.int64]) -> rw.EpisodeLog:
    return replace(log, steps=log.steps.repeated(counts), _cache={})


# ---- identities --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("cut", [False, True])
def test_one_hot_features_are_the_model_of_counts(seed: int, cut: bool) -> None:
    log, target, _ = tabular(np.random.default_rng(seed), cut=cut)
    dm = rw.evaluate_all(log, target, ["dm"])[0]
    assert isinstance(dm, rw.Estimate)
    fit = LinearQ.of(
        feature_sums(rows_of(log, target, ONE_HOT, per_step=True)), H, GAMMA, ridge=0.0
    )
    assert fit.value == pytest.approx(dm.value, rel=1e-10)
    found = examine(rows_of(log, target, ONE_HOT, per_step=True), fit)
    assert found.per_step.sum() == pytest.approx(dm.value, rel=1e-10)
    if not cut:
        error = np.sqrt(np.mean(found.psi**2) / log.n_episodes)
        assert np.allclose(found.psi, dm.uncertainty.influence(), atol=1e-9)
        assert error > 0


def pooled_model(log: rw.EpisodeLog, pi: Floats) -> float:
    """The value of one model for all steps, counted in plain loops."""
    steps = log.steps
    rows: list[tuple[int, int, float, int | None]] = []
    first = []
    for k in range(log.n_episodes):
        places = [int(steps.offsets[t]) + k for t in range(int(steps.lengths[k]))]
        mine = [(int(steps.state[i]), int(steps.action[i]), float(steps.reward[i])) for i in places]
        first.append(mine[0][0])
        for j, (s, a, r) in enumerate(mine):
            last = j + 1 == len(mine)
            after = (-1 if len(mine) < H else None) if last else mine[j + 1][0]
            rows.append((s, a, r, after))
    V = np.zeros(S)
    for _ in range(H):
        Q = np.zeros((S, A))
        for s in range(S):
            for a in range(A):
                r = [row[2] for row in rows if row[:2] == (s, a)]
                after = [row[3] for row in rows if row[:2] == (s, a) and row[3] is not None]
                Q[s, a] = np.mean(r) + GAMMA * np.mean([0.0 if s2 < 0 else V[s2] for s2 in after])
        V = (pi * Q).sum(axis=1)
    return float(np.mean([V[s] for s in first]))


@pytest.mark.parametrize("seed", range(3))
def test_pooled_it_is_one_model_of_all_steps(seed: int) -> None:
    log, target, pi = tabular(np.random.default_rng(seed))
    recipe = rw.fqe(lambda x: x, ridge=0)
    [value] = rw.point_values(log, target, [recipe])
    assert value == pytest.approx(pooled_model(log, pi), rel=1e-10)


def test_the_dual_gives_the_same_value_and_weights_of_rows() -> None:
    log, target = smooth(np.random.default_rng(1))
    rows = rows_of(log, target, Polynomial(2))
    fit = LinearQ.of(feature_sums(rows), H, GAMMA, 1e-3)
    found = examine(rows, fit)
    assert found.per_step.sum() == pytest.approx(fit.value, rel=1e-12)
    weights = np.einsum("ade,tae->tad", fit.inverse[0], fit.occupancy())
    total = 0.0
    for part in rows.parts():
        w = by_action(part, weights)
        total += float(log.steps.reward[part.rows] @ (w @ GAMMA ** np.arange(H)))
    assert total == pytest.approx(fit.value, rel=1e-10)


def test_sums_add_up_shard_by_shard() -> None:
    log, target = smooth(np.random.default_rng(2))
    for per_step in (False, True):
        whole = rows_of(log, target, Polynomial(2), folds=3, per_step=per_step)
        parts = [log.select(np.arange(log.n_episodes) % 3 == k) for k in range(3)]
        made = [
            feature_sums(FeatureRows(one, whole.design, target_shares(one, target, None)))
            for one in parts
        ]
        together, expected = made[0] + made[1] + made[2], feature_sums(whole)
        for x, y in zip(together.arrays(), expected.arrays(), strict=True):
            assert np.allclose(x, y, rtol=1e-12, atol=1e-10)
    other = feature_sums(rows_of(log, target, Polynomial(3), folds=3, per_step=True))
    with pytest.raises(rw.InputError, match="same map"):
        _ = expected + other


def test_sums_are_those_of_plain_loops() -> None:
    log, target = smooth(np.random.default_rng(3), 12)
    rows = rows_of(log, target, Polynomial(1))
    sums, phi = feature_sums(rows), rows.phi(np.arange(log.steps.n_rows))
    following, known = rows.following
    G, C, b = np.zeros((2, 3, 3)), np.zeros((2, 3, 6)), np.zeros((2, 3))
    for i in range(log.steps.n_rows):
        a = int(log.steps.action[i])
        G[a] += np.outer(phi[i], phi[i])
        b[a] += phi[i] * log.steps.reward[i]
        if following[i] >= 0:
            after = int(following[i])
            p = rows.shares[after]
            C[a] += np.outer(phi[i], np.concatenate([p[0] * phi[after], p[1] * phi[after]]))
    assert np.allclose(sums.G[0, 0], G)
    assert np.allclose(sums.b[0, 0], b)
    assert np.allclose(sums.C[0, 0], C)
    last = log.steps.lengths == H
    assert (~known).sum() == last.sum()


def test_clusters_of_one_hot_features_are_pooled_mis_within_states() -> None:
    rng = np.random.default_rng(4)
    log, target, _ = tabular(rng, 200)
    whole = log.select(log.steps.lengths == H)
    [expected] = rw.point_values(whole, target, [rw.mis("state", pooled=True)])
    [value] = rw.point_values(whole, target, [rw.mis_clusters(S)])
    assert value == pytest.approx(expected, rel=1e-9)


def test_a_constant_reward_has_its_value() -> None:
    log, target = smooth(np.random.default_rng(5))
    log = log.select(log.steps.lengths == H)
    steps = replace(log.steps, reward=np.full(log.steps.n_rows, 2.0))
    log = replace(log, steps=steps, _cache={})
    total = 2.0 * sum(GAMMA**t for t in range(H))
    exact = rw.fqe(rw.features.Polynomial(1), ridge=0)
    for recipe in (exact, rw.mis_clusters(5)):
        [value] = rw.point_values(log, target, [recipe])
        assert value == pytest.approx(total, rel=1e-9)


# ---- influence values --------------------------------------------------------------------------


@pytest.mark.parametrize("per_step", [False, True])
@pytest.mark.parametrize("ridge", [0.0, 1e-2])
def test_influence_of_fitted_q_is_its_derivative(per_step: bool, ridge: float) -> None:
    log, target = smooth(np.random.default_rng(6), 80)
    design = design_of(log, Polynomial(1), per_step=per_step)

    def fitted(counts: npt.NDArray[np.int64]) -> tuple[LinearQ, FeatureRows]:
        of = counted(log, counts)
        rows = FeatureRows(of, design, target_shares(of, target, None))
        return LinearQ.of(feature_sums(rows), H, GAMMA, ridge), rows

    n, many = log.n_episodes, np.full(log.n_episodes, 50)
    fit, rows = fitted(np.ones(n, np.int64))
    psi = examine(rows, fit).psi
    assert abs(psi.mean()) < 1e-9
    for i in (0, 7, n - 1):
        up, down = many.copy(), many.copy()
        up[i], down[i] = 51, 49
        slope = (fitted(up)[0].value - fitted(down)[0].value) / 2 * n * 50
        close = 1e-3 if ridge == 0 else 0.05 * np.abs(psi).max()  # the ridge's own part is left out
        assert psi[i] == pytest.approx(slope, rel=1e-3, abs=close)


@pytest.mark.parametrize("with_q", [False, True])
def test_influence_of_cluster_weights_is_its_derivative(with_q: bool) -> None:
    log, target = smooth(np.random.default_rng(7))
    n, design = log.n_episodes, design_of(log, Polynomial(1))
    clusters = Clusters(4).fit(log.features)
    base = FeatureRows(log, design, target_shares(log, target, None))
    fits = cross_fitted(replace(base, design=replace(design, folds=2)), 1e-3)[:1]  # a fixed Q

    def solved(counts: npt.NDArray[np.int64]) -> Any:
        of = counted(log, counts)
        rows = FeatureRows(of, design, target_shares(of, target, None))
        z = (of.features - clusters.center) / clusters.scale
        code = Clusters(4).codes(z, *clusters.fitted)
        following, known = rows.following
        after = np.where(following >= 0, code[following], np.where(known, 4, -1))
        held = Clustered(of, code, after, ratios(of, target, None)[1], 4)
        if not with_q:
            return solve_clusters(held, logged_rewards(of), np.zeros(of.n_episodes), all_rows=True)
        shaped, start = shaped_by(rows, fits)
        return solve_clusters(held, shaped, start, all_rows=False)

    psi, many = solved(np.ones(n, np.int64)).psi, np.full(n, 40)
    for i in (0, 5, 20):
        up, down = many.copy(), many.copy()
        up[i], down[i] = 41, 39
        slope = (solved(up).value - solved(down).value) / 2 * n * 40
        assert psi[i] == pytest.approx(slope, rel=1e-4, abs=1e-4)


# ---- right values ------------------------------------------------------------------------------


def drug(n: int, rng: np.random.Generator, horizon: int = 6, *, target: bool = False) -> Any:
    """A linear system with two actions."""
    x, a = np.empty((n, horizon)), np.empty((n, horizon), int)
    x[:, 0] = rng.normal(size=n)
    for t in range(horizon):
        p = 1 / (1 + np.exp(-(2 if target else 0.5) * x[:, t] - (0.5 if target else 0.0)))
        a[:, t] = rng.random(n) < p
        if t + 1 < horizon:
            x[:, t + 1] = 0.8 * x[:, t] + 0.3 - 0.6 * a[:, t] + 0.5 * rng.normal(size=n)
    mu = 1 / (1 + np.exp(-0.5 * x))
    return x, a, -(x**2) - 0.1 * a, np.where(a == 1, mu, 1 - mu)


def more_often(x: Floats, action: Any, step: Any) -> Floats:
    p = 1 / (1 + np.exp(-2 * x[:, 0] - 0.5))
    return np.where(action == 1, p, 1 - p)


ON_FEATURES = ["fqe", "fqe-by-step", "mis-clusters", "mdr-features", "dr-features", "wdr-features"]


def test_all_of_them_find_the_value_of_a_system_that_they_can_represent() -> None:
    rng = np.random.default_rng(8)
    truth = drug(400_000, rng, target=True)[2].sum(axis=1).mean()
    x, a, r, mu = drug(3000, rng)
    log = rw.log_from_arrays(None, a, r, mu, features=x)
    results = rw.evaluate_all(log, rw.FunctionPolicy(more_often), ON_FEATURES)
    for name, result in zip(ON_FEATURES, results, strict=True):
        assert isinstance(result, rw.Estimate), name
        assert result.standard_error is not None
        # 5 errors, and what clusters cannot represent
        bias = 0.1 if name == "mis-clusters" else 0.02
        assert abs(result.value - truth) < 5 * result.standard_error + bias, name


def test_a_column_of_the_targets_probabilities_is_enough() -> None:
    rng = np.random.default_rng(9)
    truth = drug(400_000, rng, target=True)[2].sum(axis=1).mean()
    x, a, r, mu = drug(3000, rng)
    pi = more_often(x.reshape(-1, 1), a.ravel(), None).reshape(x.shape)
    log = rw.log_from_arrays(None, a, r, mu, pi, features=x)
    for name in ("fqe", "mdr-features"):
        found = rw.evaluate(log, rw.ColumnPolicy(), rw.estimator(name))
        assert abs(found.value - truth) < 5 * (found.standard_error or 0) + 0.05


def test_continuous_actions_by_densities() -> None:
    rng = np.random.default_rng(10)
    n, horizon, spread = 4000, 3, 0.5

    def run(gain: float, n: int) -> Any:
        x, a, r = np.empty((n, horizon)), np.empty((n, horizon)), np.empty((n, horizon))
        x[:, 0] = rng.normal(size=n)
        for t in range(horizon):
            a[:, t] = -gain * x[:, t] + spread * rng.normal(size=n)
            r[:, t] = -(x[:, t] ** 2) - 0.1 * a[:, t] ** 2
            if t + 1 < horizon:
                x[:, t + 1] = x[:, t] + a[:, t] + 0.2 * rng.normal(size=n)
        return x, a, r

    def density(gain: float) -> Any:
        def of(x: Floats, action: Floats, step: Any) -> Floats:
            z = (action + gain * x.reshape(len(action))) / spread
            return np.asarray(np.exp(-(z**2) / 2) / (spread * np.sqrt(2 * np.pi)))

        return of

    truth = run(0.6, 400_000)[2].sum(axis=1).mean()
    x, a, r = run(0.3, n)
    mu = density(0.3)(x.ravel(), a.ravel(), None).reshape(x.shape)
    log = rw.log_from_arrays(None, a, r, mu, features=x, continuous_actions=True)
    for recipe in (rw.fqe(rw.features.Polynomial(2), ridge=1e-6), rw.mdr("features")):
        found = rw.evaluate(log, rw.FunctionPolicy(density(0.6)), recipe)
        assert abs(found.value - truth) < 5 * (found.standard_error or 0), recipe.name


def test_a_policy_that_ignores_its_features_is_worth_the_mean_return() -> None:
    rng = np.random.default_rng(11)
    x, a, r, _ = drug(500, rng)
    a = rng.integers(0, 2, a.shape)  # no action matters here
    log = rw.log_from_arrays(None, a, r, np.full(a.shape, 0.5), features=x)
    same = rw.FunctionPolicy(lambda x, action, step: np.full(len(action), 0.5))
    for name in ("fqe-by-step", "mis-clusters"):
        found = rw.evaluate(log, same, rw.estimator(name))
        assert found.value == pytest.approx(found.behavior_value, abs=0.35)
    [value] = rw.point_values(log, same, ["wis"])
    assert value == pytest.approx(r.sum(axis=1).mean())


# ---- doubt -------------------------------------------------------------------------------------


def test_the_error_includes_the_spread_of_choices_and_the_verdict_is_never_green() -> None:
    x, a, r, mu = drug(400, np.random.default_rng(12))
    log = rw.log_from_arrays(None, a, r, mu, features=x)
    found = rw.evaluate(log, rw.FunctionPolicy(more_often))
    assert found.estimator == "mdr-features"
    assert found.verdict.level in ("amber", "red")
    assert "unproven features" in [gate.name for gate in found.verdict.reasons]
    of = found.uncertainty
    psi = of.influence()
    assert np.sqrt(np.mean(psi**2) / len(psi)) == pytest.approx(found.standard_error, rel=1e-9)
    low, high = found.interval() or (0, 0)
    assert (high - low) / 2 == pytest.approx(1.97 * (found.standard_error or 0), rel=0.05)
    assert found.gain().standard_error > 0


def test_poor_features_are_noticed() -> None:
    """The reward depends on x² and the features are x alone: Q is off, and the gates say where."""
    x, a, r, mu = drug(1500, np.random.default_rng(13))
    log = rw.log_from_arrays(None, a, r, mu, features=x)
    poor = rw.evaluate(log, rw.FunctionPolicy(more_often), rw.fqe(rw.features.Polynomial(1)))
    fine = rw.evaluate(log, rw.FunctionPolicy(more_often), rw.fqe(rw.features.Polynomial(2)))
    by_name = {gate.name: gate for gate in poor.verdict.gates}
    assert by_name["Bellman residual"].level in ("amber", "red")
    assert "x near" in by_name["Bellman residual"].text
    assert by_name["spread of choices"].level in ("amber", "red")
    good = {gate.name: gate.level for gate in fine.verdict.gates}
    assert good["Bellman residual"] == "green"
    assert good["behavior value"] == "green"


@pytest.mark.parametrize(("behavior", "level"), [(10.5, "green"), (12.0, "amber"), (14.0, "red")])
def test_the_behaviors_value_is_judged_in_errors(behavior: float, level: str) -> None:
    doubt = Doubt(
        9.0, 1.0, behavior, 10.0, {"half the features": 11.0, "more ridge": 9.0}, None, None
    )
    assert BehaviorValue().of_doubt(doubt).level == level
    assert doubt.spread == pytest.approx(np.sqrt(2.0))
    spread = ChoiceSpread().of_doubt(doubt)
    assert spread.level == "amber"
    assert "half the features (to 11" in spread.text
    assert BehaviorValue().of_doubt(replace(doubt, logged=None)).level == "unknown"
    refused = replace(doubt, others={"more ridge": float("nan")})
    assert ChoiceSpread().of_doubt(refused).level == "unknown"


# ---- refusals ----------------------------------------------------------------------------------


def test_what_they_refuse() -> None:
    log, target = smooth(np.random.default_rng(15))
    for name in ("mis", "dm", "dr", "mdr", "ssd-is", "mis-hajek", "mdr-loo"):
        [found] = rw.evaluate_all(log, target, [name])
        assert isinstance(found, rw.Refusal)
        assert found.error.code == "no-states"
    table = rw.TablePolicy({0: {0: 1.0}})
    with pytest.raises(rw.UsageError, match="lists states"):
        rw.evaluate(log, table, "wis")
    plain = rw.log_from_arrays(
        np.zeros((9, 2), int), np.tile([0, 1], (9, 1)), np.ones((9, 2)), np.full((9, 2), 0.5)
    )
    with pytest.raises(rw.RefusedError, match="no features"):
        rw.evaluate(plain, rw.FunctionPolicy(lambda s, a, t: np.full(len(s), 0.5)), "fqe")
    with pytest.raises(rw.UsageError, match="ridge"):
        rw.fqe(ridge=-1)
    with pytest.raises(rw.UsageError, match="features"):
        rw.mdr("split", clusters=3)
    few = log.select(np.arange(log.n_episodes) < 4)
    [found] = rw.evaluate_all(few, target, ["mdr-features"])
    assert isinstance(found, rw.Refusal)
    assert found.error.code == "empty-half"


def test_too_many_features_are_refused_with_their_size() -> None:
    log, target = smooth(np.random.default_rng(17))
    with pytest.raises(rw.ResourceError, match=r"GiB; use fewer features"):
        rw.evaluate(log, target, rw.fqe(rw.features.Fourier(9000)))


@pytest.mark.filterwarnings("ignore::reweigh.LowOverlapWarning")
def test_a_stream_reads_features_and_other_engines_refuse_them(tmp_path: Any) -> None:
    import pyarrow.parquet as pq

    log, target = smooth(np.random.default_rng(18))
    table = log.to_table().drop_columns(["terminated"])
    path = tmp_path / "log.parquet"
    pq.write_table(table, path)
    options: dict[str, Any] = {
        "features": ["x0", "x1"], "discount": GAMMA, "short_episodes": "terminal"
    }  # fmt: skip
    stream = rw.read_log(path, engine="stream", **options)
    arrays = rw.read_log(path, **options)
    found, expected = (rw.evaluate(one, target, rw.wis()) for one in (stream, arrays))
    assert found.value == pytest.approx(expected.value, rel=1e-12)
    [refused] = rw.evaluate_all(stream, target, ["fqe"])
    assert isinstance(refused, rw.Refusal)
    assert refused.error.code == "needs-log"
    with pytest.raises(rw.UsageError, match="engine='duckdb'"):
        rw.read_log(path, engine="duckdb", **options)


def test_what_else_an_estimate_is_asked() -> None:
    log, target = smooth(np.random.default_rng(21), 60)
    found = rw.evaluate(log, target, rw.fqe(rw.features.Polynomial(1)))
    changes = {change.change: change for change in found.sensitivity().changes}
    assert changes["the first 3 of 4 steps"].value is not None
    for method in ("jackknife", "cluster", "percentile"):
        interval = found.interval(method=method, replicates=399, seed=1)
        assert interval is not None
        assert interval.low < found.value < interval.high
    with pytest.raises(rw.RefusedError, match="features alone"):
        found.confounding()


def test_auto_takes_it_where_there_are_no_states() -> None:
    log, target = smooth(np.random.default_rng(19), 60)
    found = rw.evaluate(log, target, "auto")
    assert found.estimator == "mdr-features"
    assert found.chosen is not None
    assert "features and no states" in found.chosen


def test_functions_see_features_beside_states_if_asked() -> None:
    log, _, _ = tabular(np.random.default_rng(20))
    seen = rw.FunctionPolicy(lambda x, a, t: np.full(len(x), 1 / x.shape[1]), features=True)
    assert np.allclose(seen.probabilities(log), 1 / 3)
