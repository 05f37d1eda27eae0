"""Logs by time, and logs of one row per episode: the same sums and refusals on every engine."""

from __future__ import annotations

import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from fixture import assert_alike, assert_same

import reweigh as rw
from reweigh.sums.engines import stream

TARGET = rw.TablePolicy({s: {0: 0.3 + 0.2 * s, 1: 0.7 - 0.2 * s} for s in range(3)})
KINDS = ("text", "zoned", "timestamp", "nanoseconds", "with zone", "date", "seconds", "fractions")
READING: dict[str, Any] = {"time": "when", "terminated": "over"}


def as_kind(times: list[datetime], kind: str) -> pa.Array:
    """Times as a log may write them."""
    if kind == "text":
        return pa.array([t.isoformat(sep=" ") for t in times])
    if kind == "zoned":  # some with Z, some an hour ahead: the order is that in UTC
        ahead = [(t + timedelta(hours=k % 2)).isoformat() for k, t in enumerate(times)]
        return pa.array([f"{text}{('Z', '+01:00')[k % 2]}" for k, text in enumerate(ahead)])
    if kind == "with zone":
        return pa.array([t.replace(tzinfo=UTC) for t in times], pa.timestamp("us", "Asia/Kolkata"))
    if kind in ("timestamp", "nanoseconds"):
        return pa.array(times, pa.timestamp("ms" if kind == "timestamp" else "ns"))
    if kind == "date":
        return pa.array([t.date() for t in times])
    seconds = [int((t - datetime(1970, 1, 1)).total_seconds()) for t in times]
    return pa.array([s / 7 for s in seconds] if kind == "fractions" else seconds)


def rows_of(kind: str = "text", seed: int = 5, episodes: int = 60) -> pa.Table:
    """Rows in no order, days or more apart, before and after 1970."""
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for e in range(episodes):
        length = int(rng.integers(1, 6))
        now = datetime(1969, 6, 1) + timedelta(days=int(rng.integers(0, 900)), seconds=e)
        for k in range(length):
            now += timedelta(days=int(rng.integers(1, 9)), seconds=int(rng.integers(0, 9)))
            rows.append(
                {
                    "episode": f"n{e}",
                    "step": k,
                    "when": now,
                    "state": int(rng.integers(3)),
                    "action": int(rng.integers(2)),
                    "reward": float(rng.normal()),
                    "behavior_prob": 0.5,
                    "over": k == length - 1,
                }
            )
    table = pa.Table.from_pylist([rows[k] for k in rng.permutation(len(rows))])
    at = table.column_names.index("when")
    return table.set_column(at, "when", as_kind(table["when"].to_pylist(), kind))


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "BATCH", 50)


def written(table: pa.Table, folder: Path, form: str) -> Path:
    path = folder / f"log.{form}"
    if form == "csv":
        pacsv.write_csv(table, path)
    else:
        pq.write_table(table, path, row_group_size=40)
    return path


def sums_of(log: Any) -> rw.Moments:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rw.InputWarning)  # that rows were sorted
        return rw.moments(log, TARGET, ["mis", "wis", "dm"], blocks=10)


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_engine_puts_rows_into_the_same_order(kind: str, form: str, tmp_path: Path) -> None:
    table = rows_of(kind)
    path = written(table, tmp_path, form)
    in_memory = rw.read_log(path, engine="arrays", **READING)
    by_step = rw.read_log(table, step="step", terminated="over")
    sums = sums_of(in_memory)
    plain = sums_of(by_step)
    assert plain.about.sources == sums.about.sources  # the same rows at the same steps
    assert sums.about.ordered_by == "time"
    assert sums.ordered is not None
    assert len(sums.ordered) > 20
    for engine in ("stream", "duckdb"):
        log = rw.read_log(path, engine=engine, **READING)
        assert_same(sums_of(log), sums)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", rw.InputWarning)
            assert_alike(log.describe(), in_memory.describe())


@pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")
@pytest.mark.parametrize("kind", [k for k in KINDS if k != "nanoseconds"])
def test_a_table_of_a_database_has_the_same_order(kind: str, tmp_path: Path) -> None:
    import duckdb
    import ibis

    table = rows_of(kind)
    path = tmp_path / "log.db"
    with duckdb.connect(str(path)) as connection:
        connection.register("given", table)
        connection.execute("CREATE TABLE visits AS SELECT * FROM given")
    sums = sums_of(rw.read_log(table, **READING))
    held = rw.read_log(path, table="visits", engine="duckdb", **READING)
    assert_same(sums_of(held), sums)
    handed = rw.read_log(ibis.duckdb.connect(path, read_only=True).table("visits"), **READING)
    assert_same(sums_of(handed), sums)


FAULTS: dict[str, tuple[dict[int, Any], set[str]]] = {
    "tie": ({0: 1}, {"tied-times"}),
    "null": ({3: None}, {"null"}),
    "no time": ({3: "soon", 7: "2024-02-30"}, {"not-a-time"}),
    "mixed": ({5: "2024-05-05T05:05:05Z"}, {"mixed-times"}),
    "several": ({0: 1, 9: "soon", 20: None}, {"tied-times", "not-a-time", "null"}),
}


def broken(changes: dict[int, Any]) -> pa.Table:
    """The changed first rows of episodes; a number is the row whose time they get."""
    table = rows_of()
    episode, when = table["episode"].to_pylist(), table["when"].to_pylist()
    long = [e for e in dict.fromkeys(episode) if episode.count(e) > 2]
    for k, value in changes.items():
        rows = [i for i, e in enumerate(episode) if e == long[k % len(long)]]
        when[rows[0]] = when[rows[value]] if isinstance(value, int) else value
    return table.set_column(table.column_names.index("when"), "when", pa.array(when))


def faults_of(log: Any) -> list[tuple[Any, ...]]:
    with pytest.raises(rw.InputError) as caught:
        sums_of(log())
    return [
        (f.code, f.rule, f.fix, f.count, f.total,
         sorted((p.column, p.row, p.line, str(p.episode), str(p.value), p.note) for p in f.places))
        for f in caught.value.faults
    ]  # fmt: skip


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("case", FAULTS)
def test_every_engine_refuses_the_same_rows(case: str, form: str, tmp_path: Path) -> None:
    changes, codes = FAULTS[case]
    path = written(broken(changes), tmp_path, form)
    in_memory = faults_of(lambda: rw.read_log(path, engine="arrays", **READING))
    assert {fault[0] for fault in in_memory} == codes
    for engine in ("stream", "duckdb"):
        found = faults_of(lambda engine=engine: rw.read_log(path, engine=engine, **READING))
        assert found == in_memory


def bandit(again: bool = False) -> pa.Table:
    table = rows_of().drop_columns(["step", "over"])
    ids = [f"i{k}" for k in range(table.num_rows)]
    if again:
        ids[90] = ids[7]
    return table.set_column(0, "episode", pa.array(ids))


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("time", [None, "when"])
def test_one_row_per_episode(time: str | None, form: str, tmp_path: Path) -> None:
    path = written(bandit(), tmp_path, form)
    in_memory = rw.read_log(path, engine="arrays", bandit=True, time=time)
    assert in_memory.horizon == 1
    sums = sums_of(in_memory)
    for engine in ("stream", "duckdb"):
        log = rw.read_log(path, engine=engine, bandit=True, time=time)
        assert_same(sums_of(log), sums)
        assert log.describe()["horizon"] == 1
    path = written(bandit(again=True), tmp_path, form)
    refused = faults_of(lambda: rw.read_log(path, engine="arrays", bandit=True, time=time))
    assert [fault[0] for fault in refused] == ["repeated-episode"]
    for engine in ("stream", "duckdb"):
        found = faults_of(
            lambda engine=engine: rw.read_log(path, engine=engine, bandit=True, time=time)
        )
        assert found == refused


def test_a_drift_that_ids_do_not_show_is_seen_by_time(tmp_path: Path) -> None:
    """Rewards grow with time; the ids were drawn at random."""
    rng = np.random.default_rng(1)
    n = 400
    columns = {
        "episode": rng.permutation(n), "when": np.arange(n) * 3600, "state": rng.integers(0, 3, n),
        "action": rng.integers(0, 2, n), "reward": rng.normal(size=n) + np.arange(n) / n,
        "behavior_prob": np.full(n, 0.5),
    }  # fmt: skip
    path = written(pa.table(columns), tmp_path, "parquet")
    for engine in ("arrays", "stream", "duckdb"):
        told = {}
        for time in (None, "when"):
            log = rw.read_log(path, bandit=True, time=time, engine=engine)
            est = rw.evaluate_all(log, TARGET, [rw.mis()])[0]
            [told[time]] = [gate for gate in est.verdict.gates if gate.name == "drift"]
        assert told[None].level == "green"
        assert "by id" in told[None].text
        assert told["when"].level == "amber"
        assert "by time" in told["when"].text


def test_sums_by_time_and_by_id_are_not_added(tmp_path: Path) -> None:
    first, second = rows_of(seed=1), rows_of(seed=2)
    ids = pa.array([f"m{text}" for text in second["episode"].to_pylist()])
    by_time = sums_of(rw.read_log(first, horizon=5, **READING))
    by_id = sums_of(rw.read_log(second.set_column(0, "episode", ids), step="step", horizon=5,
                                terminated="over"))  # fmt: skip
    with pytest.raises(rw.InputError, match="ordered_by: 'time' and 'id'"):
        _ = by_time + by_id
    saved = tmp_path / "sums.parquet"
    by_time.save(saved)
    assert rw.load_moments(saved).about.ordered_by == "time"


def test_influence_of_a_log_by_time_comes_from_a_second_scan(tmp_path: Path) -> None:
    path = written(rows_of(), tmp_path, "parquet")
    found = []
    for engine in ("arrays", "stream", "duckdb"):
        log = rw.read_log(path, engine=engine, **READING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            interval = rw.evaluate(log, TARGET, rw.mis()).interval(method="cluster")
        found.append((interval.low, interval.high))
    np.testing.assert_allclose(found, [found[0]] * 3, rtol=1e-9)
