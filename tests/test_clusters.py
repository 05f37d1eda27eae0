"""A log with clusters of episodes: errors, intervals, gains and comparisons are by cluster."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from reweigh_studies.verdicts.worlds import WORLDS
from scipy.stats import t as student

import reweigh as rw
from reweigh.estimate.clusters import Count, deviations, error_without
from reweigh.evaluation.resampling import delete_blocks
from reweigh.evaluation.uncertainty import BEHAVIOR

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
WORLD = rw.worlds.random_mdp(1, 4, 2, 5, reward_sd=0.3)
N, G = 600, 12
ENGINES = ("arrays", "stream", "duckdb")


def table(clusters: int = G, n: int = N, seed: int = 1, uneven: bool = False) -> pa.Table:
    made = WORLD.simulate(n, seed).to_table()
    ids = made["episode"].to_numpy()
    site = np.minimum(ids % clusters, ids % (clusters + 5)) if uneven else ids % clusters
    made = made.append_column("site", pa.array([f"site {k}" for k in site]))
    return made.append_column("own", pa.array(ids + 7))


def episodes_of(log: rw.EpisodeLog) -> tuple[np.ndarray, np.ndarray]:
    return np.unique(log.steps.cluster, return_inverse=True)


# ---- identities --------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_clusters_of_one_episode_give_the_error_by_episodes(engine: str) -> None:
    """SE² = Σψ²/n² times n/(n - 1), of values and of gains."""
    log = table()
    names = ["is", "wis", "dm", "ssd-is", "mis", "mis-pooled", "mis-hajek"]
    plain = rw.evaluate_all(rw.read_log(log, engine=engine), WORLD.target, names)
    own = rw.evaluate_all(rw.read_log(log, cluster="own", engine=engine), WORLD.target, names)
    for a, b in zip(plain, own, strict=True):
        assert b.value == pytest.approx(a.value, rel=1e-12)
        assert b.standard_error == pytest.approx(a.uncertainty.cluster_error(), rel=1e-12)
        assert b.gain().standard_error == pytest.approx(a.gain().standard_error, rel=1e-9)
        assert b.gain().df == a.gain().df == N - 1


@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_error_of_a_mean_is_that_of_deleting_each_cluster(engine: str, uneven: bool) -> None:
    rows = table(uneven=uneven)
    log = rw.read_log(rows, cluster="site")
    _, code = episodes_of(log)
    estimate = rw.evaluate(rw.read_log(rows, cluster="site", engine=engine), WORLD.target, "is")
    x = values_of_is(log)
    without = np.array([x[code != g].mean() for g in range(G)])
    # SE² = (G - 1)/G Σ_g (v̂_(g) - v̂)²
    expected = math.sqrt((G - 1) / G * np.sum((without - x.mean()) ** 2))
    assert estimate.standard_error == pytest.approx(expected, rel=1e-9)
    interval = estimate.interval(method="cluster")
    assert interval.df == G - 1
    margin = student.ppf(0.975, G - 1) * expected
    assert tuple(interval) == pytest.approx((x.mean() - margin, x.mean() + margin), rel=1e-9)
    assert interval.method.endswith(f"by {G} clusters (site)")
    exact = estimate.uncertainty.jackknife()[0] if engine == "arrays" else expected
    assert exact == pytest.approx(expected, rel=1e-9)


def values_of_is(log: rw.EpisodeLog) -> np.ndarray:
    """(n,) Σ_t ρ_{0:t} r_t of the episodes."""
    steps = log.steps
    rho = WORLD.target.probabilities(log) / steps.behavior_prob
    x, product = np.zeros(log.n_episodes), np.ones(log.n_episodes)
    for t in range(log.horizon):
        product = product * rho[steps.rows(t)]
        x += product * steps.reward[steps.rows(t)]
    return x


def test_every_estimator_has_its_error_by_cluster_on_every_engine() -> None:
    rows, names = table(), list(rw.ESTIMATORS)
    by_engine = {
        engine: rw.evaluate_all(
            rw.read_log(rows, cluster="site", engine=engine), WORLD.target, names
        )
        for engine in ENGINES
    }
    for k, name in enumerate(names):
        first = by_engine["arrays"][k]
        assert first.standard_error > 0, name
        assert first.uncertainty.clusters.number <= G
        for engine in ENGINES[1:]:
            other = by_engine[engine][k]
            if hasattr(other, "value") and "mdr" not in name:  # its Q has an influence of its own
                assert other.standard_error == pytest.approx(first.standard_error, rel=1e-8), name
                assert other.verdict.level == first.verdict.level
                assert other.gain().standard_error == pytest.approx(
                    first.gain().standard_error, rel=1e-7
                )


def test_a_split_keeps_clusters_together() -> None:
    log = rw.read_log(table(40), cluster="site")
    _, code = episodes_of(log)
    for blocks in (2, 20, 50):
        block = log.steps.blocks(blocks)
        assert all(len(np.unique(block[code == g])) == 1 for g in range(40))
    estimate = rw.evaluate(log, WORLD.target, "mdr")
    in_half = np.unique(code[log.steps.blocks(2) == 0])
    assert estimate.uncertainty.clusters.number == len(in_half)
    assert estimate.interval(method="cluster").df == len(in_half) - 1


@pytest.mark.parametrize("engine", ENGINES)
def test_blocks_are_of_clusters_on_every_engine(engine: str) -> None:
    rows = table(40)
    log = rw.read_log(rows, cluster="site")
    expected = np.bincount(log.steps.blocks(10), minlength=10)
    made = rw.moments(rw.read_log(rows, cluster="site", engine=engine), WORLD.target, blocks=10)
    blocks, sizes = made.block_sizes()
    assert sizes.tolist() == expected[blocks].tolist()
    assert made.about.cluster == "site"


# ---- the jackknife, the bootstrap, sums --------------------------------------------------------


def test_the_jackknife_deletes_clusters() -> None:
    log = rw.read_log(table(), cluster="site")
    _, code = episodes_of(log)
    estimate = rw.evaluate(log, WORLD.target, rw.mis())
    without = [rw.point_values(log.select(code != g), WORLD.target, ["mis"])[0] for g in range(G)]
    expected = error_without(estimate.value, np.array(without))
    error, blocks = estimate.uncertainty.jackknife()
    assert (error, blocks) == (pytest.approx(expected, rel=1e-9), G)
    assert error == pytest.approx(estimate.standard_error, rel=0.1)
    many = rw.read_log(table(300), cluster="site")  # too many to delete each
    assert len(delete_blocks(many, [(WORLD.target, rw.mis())]).sizes) == 50


def test_the_bootstrap_draws_clusters() -> None:
    """Each replicate is the log in which clusters are repeated: its value is that of the counts."""
    log = rw.read_log(table(), cluster="site")
    estimate = rw.evaluate(log, WORLD.target, rw.mis())
    assert estimate.interval(method="percentile", seed=1, replicates=799).low < estimate.value
    drawn = estimate.uncertainty._kept["replicates"]
    spread = np.nanstd(drawn.values)
    assert spread == pytest.approx(estimate.standard_error, rel=0.15)
    studentized = estimate.interval(method="bootstrap-t", seed=1, replicates=799)
    made = estimate.uncertainty._kept["replicates"]
    assert np.nanmedian(made.errors) == pytest.approx(estimate.standard_error, rel=0.15)
    assert studentized.high - studentized.low > 2 * 1.96 * spread * 0.9


def test_sums_alone_need_blocks_of_clusters(tmp_path: Path) -> None:
    log = rw.read_log(table(40), cluster="site")
    whole = rw.moments(log, WORLD.target)
    estimate = rw.evaluate(whole, estimator=rw.mis())
    assert estimate.standard_error is None
    assert "blocks of clusters (site)" in estimate.error_method
    assert "blocks=100" in estimate.error_method
    assert estimate.verdict.level != "green"
    path = tmp_path / "sums.parquet"
    rw.moments(log, WORLD.target, blocks=400).save(path)
    estimate = rw.evaluate(rw.load_moments(path), estimator=rw.mis())
    direct = rw.evaluate(log, WORLD.target, rw.mis())
    count = estimate.uncertainty.clusters
    assert count.of_blocks
    assert count.number >= 36
    assert estimate.standard_error == pytest.approx(direct.standard_error, rel=0.1)
    assert estimate.gain().standard_error == pytest.approx(direct.gain().standard_error, rel=0.15)
    assert estimate.gain().df == count.number - 1
    few = rw.evaluate(rw.moments(log, WORLD.target, blocks=8), estimator=rw.mis())
    assert "clusters" in [gate.name for gate in few.verdict.reasons]


def test_sums_of_other_clusters_are_not_merged() -> None:
    rows = table()
    first = rw.moments(rw.read_log(rows, cluster="site"), WORLD.target, blocks=20)
    second = rw.moments(rw.read_log(rows), WORLD.target, blocks=20)
    with pytest.raises(rw.InputError, match="cluster: 'site' and None"):
        first + second


# ---- verdict, comparison, what assumes independent episodes ------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_below_ten_clusters_nothing_is_green(engine: str) -> None:
    for clusters, level in ((9, "amber"), (10, "green")):
        log = rw.read_log(table(clusters), cluster="site", engine=engine)
        verdict = rw.evaluate(log, WORLD.target, rw.mis()).verdict
        assert verdict.level == level
        [gate] = [gate for gate in verdict.gates if gate.name == "clusters"]
        assert (gate.level, gate.value) == (level, pytest.approx(clusters, rel=0.01))
        assert f"{clusters} clusters (site)" in gate.text


def test_unequal_clusters_count_for_fewer() -> None:
    assert Count.of("site", [100, 100, 100]).effective == pytest.approx(3)
    assert Count.of("site", [1000, *[1] * 50]).effective < 1.2
    # one site that holds nearly all: its own spread is in the error
    sums, sizes = np.array([10.0, -5.0, -5.0]), np.array([80.0, 10.0, 10.0])
    assert np.sum(deviations(sums, sizes) ** 2) > 3 / 2 * np.sum(sums**2) / 100**2


def test_one_cluster_has_no_interval() -> None:
    estimate = rw.evaluate(rw.read_log(table(1), cluster="site"), WORLD.target, rw.mis())
    assert estimate.interval() is None
    assert "one cluster" in estimate.error_method
    assert estimate.verdict.level != "green"


def test_comparisons_are_by_cluster() -> None:
    log = rw.read_log(table(), cluster="site")
    made = rw.compare(log, {"new": WORLD.target, "old": WORLD.behavior}, [rw.mis()], seed=1)
    new = made.contenders[0]
    estimate = rw.evaluate(log, WORLD.target, rw.mis())
    error = math.sqrt(estimate.uncertainty.draws(BEHAVIOR).square)
    assert new.over_behavior.standard_error == pytest.approx(error, rel=1e-9)
    p = student.sf(new.over_behavior.value / error, G - 1)
    assert new.over_behavior.p_value == pytest.approx(p, rel=1e-9)
    low, high = new.interval
    assert high - low >= 2 * student.ppf(0.975, G - 1) * estimate.standard_error * (1 - 1e-9)


def test_what_needs_independent_episodes_refuses() -> None:
    log = rw.read_log(table(), cluster="site")
    with pytest.raises(rw.RefusedError, match="those of a cluster"):
        rw.certify(log, WORLD.target, (-3.0, 3.0))
    with pytest.raises(rw.RefusedError, match="those of a cluster"):
        rw.theory.plan(log, WORLD.target, half_width=0.1)


# ---- reading -----------------------------------------------------------------------------------


def refused(rows: pa.Table, engine: str) -> str:
    with pytest.raises(rw.InputError) as caught:
        rw.evaluate(rw.read_log(rows, cluster="site", engine=engine), WORLD.target, rw.mis())
    return str(caught.value)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_episode_in_two_clusters_is_refused(engine: str) -> None:
    rows = table(n=40)
    at, site = rows.column_names.index("site"), rows["site"].to_pylist()
    said = refused(rows.set_column(at, "site", pa.array([*site[:7], "site 9", *site[8:]])), engine)
    assert "two-clusters" in said
    assert "row 8, episode 1, step 2: value 'site 9' (its first row has 'site 1')" in said
    assert "write the cluster of the episode in each of its rows" in said
    said = refused(rows.set_column(at, "site", pa.array([*site[:7], None, *site[8:]])), engine)
    assert "null: 'site' must not be null" in said
    assert "row 8, episode 1, step 2" in said
    said = refused(rows.set_column(at, "site", pa.array(np.linspace(0, 1, len(site)))), engine)
    assert "column 'site' (cluster) contains double" in said


def test_readers_agree_on_clusters(tmp_path: Path) -> None:
    rows = table(11, n=60)
    rows = rows.set_column(rows.column_names.index("site"), "site", pa.array(
        rows["episode"].to_numpy() % 11))  # fmt: skip
    pacsv.write_csv(rows, tmp_path / "log.csv")
    pq.write_table(rows, tmp_path / "log.parquet")
    lines = [str(row).replace("'", '"') for row in rows.to_pylist()]
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    values = {
        (kind, engine): rw.evaluate(
            tmp_path / f"log.{kind}", WORLD.target, rw.mis(), cluster="site", engine=engine
        ).standard_error
        for kind in ("csv", "parquet", "jsonl")
        for engine in ENGINES
    }
    first = values["csv", "arrays"]
    assert all(value == pytest.approx(first, rel=1e-9) for value in values.values())
    again = rw.read_log(rw.read_log(rows, cluster="site").to_table(), cluster="cluster")
    assert again.steps.cluster.tolist() == rw.read_log(rows, cluster="site").steps.cluster.tolist()


def test_arrays_take_clusters() -> None:
    rng = np.random.default_rng(3)
    n, horizon = 200, 4
    states, actions = rng.integers(0, 3, (n, horizon)), rng.integers(0, 2, (n, horizon))
    half, rewards = np.full((n, horizon), 0.5), rng.random((n, horizon))
    lengths = rng.integers(1, horizon + 1, n)
    site = np.array([f"s{k}" for k in rng.integers(0, 15, n)])
    log = rw.log_from_arrays(states, actions, rewards, half, half, lengths=lengths, cluster=site)
    assert log.steps.cluster.tolist() == site[log.steps.episode].tolist()
    estimate = rw.evaluate(log, rw.ColumnPolicy("target_prob"), rw.mis())
    assert "15 clusters (cluster)" in estimate.interval().method
    with pytest.raises(rw.InputError, match="'cluster' must not be null"):
        rw.log_from_arrays(states, actions, rewards, half, cluster=[None, *site[1:]])
    with pytest.raises(rw.UsageError, match=r"cluster.* an array of shape \(200,\)"):
        rw.log_from_arrays(states, actions, rewards, half, cluster=site[1:])


# ---- coverage ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sites-12-named", "sites-30-named", "sites-12-treated-named"])
def test_intervals_cover_where_sites_have_effects(name: str) -> None:
    """Of 100 logs at least 88 cover: 95 % would fall below once in a hundred."""
    world, hits, errors, gains = WORLDS[name], 0, [], 0
    truth, today = world.truth()
    for seed in range(100):
        log, target = world.log(500, np.random.default_rng(seed))
        estimate = rw.evaluate(log, target, rw.mis())
        low, high = estimate.interval()
        hits += low <= truth <= high
        gain = estimate.gain()
        margin = student.ppf(0.975, gain.df) * gain.standard_error
        gains += abs(gain.value - (truth - today)) <= margin
        errors.append(estimate.standard_error)
    assert hits >= 88
    assert gains >= 88
