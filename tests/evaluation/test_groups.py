"""Values by groups of episodes: sums add up, engines agree, small groups are refused."""

from __future__ import annotations

from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

import reweigh as rw

N, H = 400, 3
TARGET = {s: {0: 0.3, 1: 0.7} for s in range(2)}
SIZES = {"ICU": 200, "ER": 150, None: 40, "tiny": 10}


@pytest.fixture(scope="module")
def table() -> pa.Table:
    """The ward of an episode stands in its first row; later rows name another one."""
    rng = np.random.default_rng(5)
    wards = [ward for ward, size in SIZES.items() for _ in range(size)]
    order = rng.permutation(N)
    step = np.tile(np.arange(H), N)
    ward = [wards[order[e]] if t == 0 else "moved" for e in range(N) for t in range(H)]
    action = rng.integers(0, 2, N * H)
    return pa.table({
        "episode": np.repeat(np.arange(N), H),
        "step": step,
        "state": rng.integers(0, 2, N * H),
        "action": action,
        "reward": action + rng.normal(0, 0.5, N * H),
        "behavior_prob": np.full(N * H, 0.5),
        "ward": pa.array(ward),
        "age": np.repeat(np.arange(N), H),
        "score": np.repeat(np.where(np.arange(N) % 2 == 0, 1.5, np.nan), H),
    })  # fmt: skip


@pytest.fixture(scope="module")
def estimate(table: pa.Table) -> rw.Estimate:
    return rw.evaluate(table, TARGET, rw.mis())


def test_an_episode_belongs_to_the_group_of_its_first_row(estimate: rw.Estimate) -> None:
    groups = estimate.by("ward")
    assert [(g.value, g.n_episodes) for g in groups] == [
        ("ER", 150), ("ICU", 200), ("tiny", 10), (None, 40),
    ]  # fmt: skip
    assert [g.name for g in groups][-1] == "(missing)"
    assert "(missing): 40 episodes have no ward" in str(groups)
    assert sum(g.share for g in groups) == pytest.approx(1)


def test_a_group_is_what_its_own_episodes_answer(table: pa.Table, estimate: rw.Estimate) -> None:
    first = np.array(table["ward"].to_pylist(), object).reshape(N, H)[:, 0]
    own = table.filter(pa.array(np.repeat(first == "ICU", H)))
    alone, group = rw.evaluate(own, TARGET, rw.mis()), estimate.by("ward")["ICU"]
    assert group.record.value == pytest.approx(alone.value, abs=1e-12)
    assert group.record.verdict == alone.verdict.level
    interval = alone.interval(1 - 0.05 / 4)  # four groups
    assert interval is not None
    assert tuple(group.record.interval) == pytest.approx(tuple(interval))
    assert group.record.gain == pytest.approx(alone.gain().value)
    gain = group.record.gain_interval
    assert gain is not None
    assert gain.level == pytest.approx(1 - 0.05 / 4)


def test_the_sums_of_the_groups_add_up_to_the_whole(table: pa.Table) -> None:
    kept = table.filter(pa.array(np.array(table["age"]) < 300))
    log = rw.read_log(kept)
    estimate = rw.evaluate(log, TARGET, rw.is_())
    groups = estimate.by("state")
    assert len(groups) == 2
    total = reduce(add, (rw.moments(own, TARGET_POLICY) for own in _parts(log)))
    whole = rw.moments(log, TARGET_POLICY)
    assert total.n_episodes == whole.n_episodes == sum(g.n_episodes for g in groups)
    for name in ["is", "mis", "dm"]:
        assert rw.evaluate(total, None, name).value == pytest.approx(
            rw.evaluate(whole, None, name).value, abs=1e-12
        )
    assert groups.together == pytest.approx(estimate.value, abs=1e-12)
    earned = sum(g.share * g.record.behavior_value for g in groups)
    assert earned == pytest.approx(estimate.behavior_value)


TARGET_POLICY = rw.TablePolicy(TARGET)


def _parts(log: Any) -> list[Any]:
    first = log.steps.first_states()
    return [log.select(first == code) for code in np.unique(first)]


@pytest.mark.parametrize("engine", ["stream", "duckdb"])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("column", ["ward", "state", "score"])
def test_engines_agree(
    table: pa.Table, estimate: rw.Estimate, tmp_path: Path, engine: str, kind: str, column: str
) -> None:
    path = tmp_path / f"log.{kind}"
    (pa_csv.write_csv if kind == "csv" else pq.write_table)(table, path)
    if kind == "csv":  # an empty cell is a missing value
        path.write_text(path.read_text().replace("nan", ""))
    found, expected = (
        rw.evaluate(path, TARGET, rw.mis(), engine=engine).by(column),
        estimate.by(column),
    )
    for one, other in zip(found, expected, strict=True):
        assert (one.value, one.n_episodes) == (other.value, other.n_episodes)
        assert one.record.level == other.record.level
        if isinstance(other.result, rw.Refusal):
            assert one.record.refused is not None
            continue
        for name in ("value", "gain", "behavior_value"):
            assert getattr(one.record, name) == pytest.approx(
                getattr(other.record, name), abs=1e-10
            ), name
        assert tuple(one.record.interval) == pytest.approx(tuple(other.record.interval), abs=1e-9)


def test_a_group_of_few_episodes_is_refused(estimate: rw.Estimate) -> None:
    groups = estimate.by("ward")
    tiny = groups["tiny"]
    assert isinstance(tiny.result, rw.Refusal)
    assert tiny.to_dict()["result"]["refused"]["code"] == "small-group"
    assert tiny.to_dict()["result"]["interval"] is None
    assert "tiny: 10 episodes in this group, and 30 are needed" in str(groups)
    assert groups.together is None
    frame = groups.to_frame("arrow")
    assert frame["group"].to_pylist() == ["ER", "ICU", "tiny", "(missing)"]
    assert frame["estimate"].to_pylist()[2] is None
    assert "10 episodes" in frame["refused"].to_pylist()[2]


def test_what_makes_no_groups_is_refused(estimate: rw.Estimate, table: pa.Table) -> None:
    with pytest.raises(rw.UsageError, match="no column 'wrad'; did you mean 'ward'"):
        estimate.by("wrad")
    with pytest.raises(rw.RefusedError, match=r"400 different values .* at most 50 groups"):
        estimate.by("age")
    with pytest.raises(rw.UsageError, match="'level'"):
        estimate.by("ward", level=95)
    with pytest.raises(rw.UsageError, match="no group 'ICUU' of ward; did you mean 'ICU'"):
        estimate.by("ward")["ICUU"]
    sums = rw.moments(rw.read_log(table), TARGET_POLICY)
    with pytest.raises(rw.RefusedError, match=r"moments .* hold no groups"):
        rw.evaluate(sums, estimator=rw.mis()).by("ward")


def test_arrays_have_groups_of_their_states() -> None:
    states = np.tile([[0, 1, 1]], (80, 1))
    states[:40, 0] = 1
    half = np.full((80, 2), 0.5)
    log = rw.log_from_arrays(states, np.tile([[0, 1], [1, 0]], (40, 1)), half, half)
    groups = rw.evaluate(log, TARGET, rw.mis()).by("state")
    assert [(g.value, g.n_episodes) for g in groups] == [(0, 40), (1, 40)]


@pytest.mark.parametrize("engine", ["stream", "duckdb"])
def test_groups_by_a_state_that_a_rule_reads(engine: Any, table: pa.Table, tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(table, path)
    rule = rw.RulePolicy("if state == 0: 0=0.3, 1=0.7; else: 0=0.6, 1=0.4")
    groups = rw.evaluate(path, rule, rw.mis(), engine=engine).by("state")
    expected = rw.evaluate(table, rule, rw.mis()).by("state")
    assert [g.value for g in groups] == [g.value for g in expected] == [0, 1]
    for one, other in zip(groups, expected, strict=True):
        assert one.record.value == pytest.approx(other.record.value, abs=1e-9)
