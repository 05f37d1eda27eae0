"""The diagnostics' own sums: what they hold, that they add up, and that files keep them."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from build import TARGET, random_log, to_reweigh

import reweigh as rw
from reweigh.sums.diagnostic_tables import Buckets, LargestWeights, OrderedMoments, PacedMoments
from reweigh.sums.engines import ArraysEngine, Request, ratios
from reweigh.sums.numpy_scan import whole_numbers
from reweigh.sums.store import load_moments

KINDS = frozenset({"transitions", "lagged", "ordered", "paced", "largest"})


def made(log: rw.EpisodeLog, target: rw.Policy) -> rw.Moments:
    return ArraysEngine().moments(log, target, Request(KINDS))


def simulated(n: int = 60, seed: int = 0) -> tuple[rw.EpisodeLog, rw.Policy]:
    world = rw.worlds.random_mdp(seed, 4, 3, 6, reward_sd=0.3, terminal=1)
    return world.simulate(n, seed), world.target


def test_lagged_cells_by_a_walk_over_the_episodes() -> None:
    log, target = simulated()
    _, rho = ratios(log, target, None)
    steps = log.steps
    expected: dict[tuple[int, ...], list[float]] = {}
    for k in range(log.n_episodes):
        rows = [int(steps.offsets[t]) + k for t in range(int(steps.lengths[k]))]
        for t in range(1, len(rows)):
            row, before = rows[t], rows[t - 1]
            after = steps.state[rows[t + 1]] if t + 1 < len(rows) else steps.ending[k]
            keys = (steps.state[row], steps.state[before], steps.action[before], after)
            key = (t, *map(int, keys))
            r, z = rho[row], rho[row] * steps.reward[row]
            cell = expected.setdefault(key, [0.0] * 6)
            for j, value in enumerate((1.0, r, r * r, z, r * z, z * z)):
                cell[j] += value
    lagged = made(log, target).lagged
    assert lagged is not None
    found = {
        tuple(int(getattr(lagged, key)[i]) for key in lagged.KEYS): [
            float(getattr(lagged, name)[i]) for name in lagged.SUMS
        ]
        for i in range(len(lagged))
    }
    assert found.keys() == expected.keys()
    for key, sums in expected.items():
        np.testing.assert_allclose(found[key], sums, rtol=1e-12, atol=1e-14)


def test_rows_whose_state_or_the_one_before_is_hidden_are_left_out() -> None:
    for seed in range(20):
        log = to_reweigh(random_log(random.Random(seed), n=6, horizon=5, hide=0.3))
        lagged = made(log, TARGET).lagged
        assert lagged is not None
        steps = log.steps
        shown = 0
        for k in range(log.n_episodes):
            states = [
                int(steps.state[int(steps.offsets[t]) + k]) for t in range(int(steps.lengths[k]))
            ]
            shown += sum(a >= 0 and b >= 0 for a, b in pairwise(states))
        assert int(lagged.n.sum()) == shown
        assert np.all(lagged.s >= 0)
        assert np.all(lagged.s_before >= 0)


def test_rewards_by_bucket_and_step_by_a_walk_over_the_episodes() -> None:
    log, target = simulated(400)
    steps = log.steps
    assert int(steps.lengths.min()) < log.horizon  # some end early
    paced = made(log, target).paced
    assert paced is not None
    ids = steps.episode.astype(int)
    assert paced.shift == 3  # 400 ids: 50 buckets of 8
    expected: dict[tuple[int, int], list[float]] = {}
    for k in range(log.n_episodes):
        for t in range(int(steps.lengths[k])):
            y = float(steps.reward[int(steps.offsets[t]) + k])
            cell = expected.setdefault((int(ids[k]) // 8, t), [0.0] * 3)
            for j, value in enumerate((1.0, y, y * y)):
                cell[j] += value
    assert list(zip(paced.bucket.tolist(), paced.t.tolist(), strict=True)) == sorted(expected)
    sums = np.array([expected[key] for key in sorted(expected)])
    np.testing.assert_allclose(np.stack([paced.n, paced.y, paced.y2], 1), sums, rtol=1e-12)


def test_rewards_of_all_steps_are_the_returns() -> None:
    """Without a discount: Σ_t Σy of a bucket is its ΣG, and at step 0 every episode has a row."""
    log, target = simulated(400)
    assert log.discount == 1
    sums = made(log, target)
    assert sums.paced is not None
    assert sums.ordered is not None
    assert sums.ordered.shift < sums.paced.shift
    wide = sums.ordered.coarser(sums.paced.shift).summed()
    buckets, place = np.unique(sums.paced.bucket, return_inverse=True)
    np.testing.assert_array_equal(buckets, wide.bucket)
    np.testing.assert_allclose(np.bincount(place, sums.paced.y), wide.g, rtol=1e-12)
    np.testing.assert_array_equal(sums.paced.n[sums.paced.t == 0], wide.n)


def halves(log: rw.EpisodeLog) -> tuple[rw.EpisodeLog, rw.EpisodeLog]:
    even = np.arange(log.n_episodes) % 2 == 0
    return log.select(even), log.select(~even)


def test_parts_add_up_to_the_whole() -> None:
    log, target = simulated(400)
    one, two = (made(part, target) for part in halves(log))
    whole, added = made(log, target), one + two
    assert whole.lagged is not None
    assert added.lagged is not None
    for name in whole.lagged.KEYS:
        np.testing.assert_array_equal(getattr(added.lagged, name), getattr(whole.lagged, name))
    for name in whole.lagged.SUMS:
        np.testing.assert_allclose(
            getattr(added.lagged, name), getattr(whole.lagged, name), rtol=1e-12, atol=1e-12
        )
    assert whole.ordered is not None
    assert added.ordered is not None
    assert added.ordered.shift == whole.ordered.shift
    np.testing.assert_array_equal(added.ordered.bucket, whole.ordered.bucket)
    np.testing.assert_array_equal(added.ordered.n, whole.ordered.n)
    np.testing.assert_allclose(added.ordered.g, whole.ordered.g, rtol=1e-12, atol=1e-12)
    assert whole.paced is not None
    assert added.paced is not None
    assert added.paced.shift == whole.paced.shift
    for name in ("bucket", "t", "n"):
        np.testing.assert_array_equal(getattr(added.paced, name), getattr(whole.paced, name))
    for name in ("y", "y2"):
        mine, theirs = getattr(added.paced, name), getattr(whole.paced, name)
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-12)
    assert whole.largest is not None
    assert added.largest is not None
    assert added.largest.n == whole.largest.n == 400
    both = min(len(added.largest), len(whole.largest))
    assert both >= 100
    np.testing.assert_allclose(added.largest.log_w[:both], whole.largest.log_w[:both], rtol=1e-12)


def test_sums_without_an_extra_make_sums_without_it() -> None:
    log, target = simulated()
    one, two = (made(part, target) for part in halves(log))
    added = one + replace(two, lagged=None)
    assert added.lagged is None
    assert added.ordered is not None
    assert (replace(two, lagged=None) + one).lagged is None


def test_files_keep_them_and_other_versions_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, target = simulated()
    before = made(log, target)
    before.save(tmp_path / "sums.parquet")
    after = load_moments(tmp_path / "sums.parquet")
    for name in ("lagged", "ordered", "paced", "largest"):
        mine, theirs = getattr(before, name), getattr(after, name)
        assert vars(mine).keys() == vars(theirs).keys()
        for field, value in vars(mine).items():
            np.testing.assert_array_equal(value, getattr(theirs, field))
    monkeypatch.setitem(
        __import__("reweigh.sums.diagnostic_tables", fromlist=["VERSIONS"]).VERSIONS, "lagged", 3
    )
    newer = load_moments(tmp_path / "sums.parquet")
    assert newer.lagged is None
    assert newer.ordered is not None


def test_cells_of_the_version_before_are_those_of_all_steps_and_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = __import__("reweigh.sums.store", fromlist=["SCALARS"])
    monkeypatch.setitem(store.VERSIONS, "lagged", 1)
    monkeypatch.delitem(store.SCALARS, "lagged")
    log, target = simulated()
    made(log, target).save(tmp_path / "sums.parquet")
    monkeypatch.undo()
    older = load_moments(tmp_path / "sums.parquet")
    assert older.lagged is not None
    assert older.lagged.level == 0


def test_a_file_without_rewards_by_step_says_so(tmp_path: Path) -> None:
    """As an older version wrote it; and merged with a file that has them."""
    log, target = simulated(400)
    one, two = (rw.moments(part, target) for part in halves(log))
    replace(one, paced=None).save(tmp_path / "older.parquet")
    older = load_moments(tmp_path / "older.parquet")
    whole = {gate.name: gate for gate in rw.evaluate(one + two, estimator=rw.mis()).verdict.gates}[
        "drift"
    ]
    assert whole.per_step is not None
    for sums in (older, older + two, two + older):
        gate = {gate.name: gate for gate in rw.evaluate(sums, estimator=rw.mis()).verdict.gates}[
            "drift"
        ]
        assert (gate.per_step, gate.step) == (None, None)
        assert "not available by step: the sums do not include the rewards by step" in gate.text
        assert gate.value is not None
    assert gate.value == pytest.approx(whole.value, rel=1e-9)
    assert gate.level == whole.level


def buckets_of(kind: type[Buckets], ids: np.ndarray, values: np.ndarray) -> Buckets:
    if kind is OrderedMoments:
        return OrderedMoments.of(ids, values)
    n = np.ones(len(ids), np.int64)
    return PacedMoments(0, ids, n, ids % 3, values, values * values).summed()


@pytest.mark.parametrize("kind", [OrderedMoments, PacedMoments])
def test_buckets_do_not_depend_on_the_order_of_merging(kind: type[Buckets]) -> None:
    rng = np.random.default_rng(0)
    ids = rng.choice(np.r_[np.arange(-9000, 9000), 10**12, 5 * 10**8], 3000, replace=False)
    returns = rng.normal(size=3000)
    whole = buckets_of(kind, ids, returns)
    assert int(whole.bucket.max()) - int(whole.bucket.min()) < kind.MOST
    for _ in range(5):
        order = rng.permutation(3000)
        parts = [buckets_of(kind, ids[p], returns[p]) for p in np.array_split(order, 7)]
        added = parts[0]
        for part in parts[1:]:
            added = added + part
        assert added.shift == whole.shift
        for name in (*kind.KEYS, "n"):
            np.testing.assert_array_equal(getattr(added, name), getattr(whole, name))
        squares = kind.SUMS[-1]
        np.testing.assert_allclose(getattr(added, squares), getattr(whole, squares), rtol=1e-12)


def test_the_largest_weights_are_complete_above_their_floor() -> None:
    rng = np.random.default_rng(0)
    log_w = np.where(rng.random(20_000) < 0.2, -np.inf, rng.normal(size=20_000))
    log_w[:4000] += 5  # one part holds nearly all of the large ones
    whole = LargestWeights.of(log_w)
    added = LargestWeights.of(log_w[:4000]) + LargestWeights.of(log_w[4000:])
    for found in (whole, added):
        above = np.sort(log_w[log_w > found.floor])[::-1]
        np.testing.assert_array_equal(found.log_w, above)
        assert len(found) >= 3 * np.sqrt(4000)


def test_ids_that_are_numbers() -> None:
    assert whole_numbers(np.array(["7", "-12"])).tolist() == [7, -12]
    assert whole_numbers(np.array([3, 4], np.uint8)).tolist() == [3, 4]
    for ids in (["a1", "2"], ["1.5"], [""], ["-"], ["9" * 30]):
        assert whole_numbers(np.array(ids)) is None
