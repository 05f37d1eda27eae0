"""What is tried on Spark, by a process of its own: a process has one Spark session.

    python on_spark.py ENGINE FOLDER PART…

runs the parts, each of which returns how many things it found right, and writes that as JSON to
FOLDER/said.json; then it waits for the end of standard input, so that others can use its session.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import fixture
import ibis
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import test_ibis
import test_ibis_files
import test_scanned_extras
from population import TARGET, population_log, random_world

import reweigh as rw
from reweigh.cli.app import run
from reweigh.estimate import memory_rows
from reweigh.sums.engines.sql_databases import spark_session

ESTIMATORS = ["mis", "mis-plain", "is", "wis", "dm", "dr"]


OF_EPISODES = ("history", "incomplete state")  # gates that compare with longer memories


def same_estimates(found: list[Any], expected: list[Any], leave_out: tuple[str, ...] = ()) -> None:
    """The same values, standard errors, refusals and gates but those to `leave_out`."""
    for mine, other in zip(found, expected, strict=True):
        assert type(mine) is type(other)
        if isinstance(mine, rw.Refusal):
            assert mine.error.code == other.error.code
            continue
        assert mine.value == pytest.approx(other.value, rel=1e-9)
        assert mine.error_method == other.error_method
        assert (mine.standard_error is None) == (other.standard_error is None)
        if other.standard_error is not None:
            assert mine.standard_error == pytest.approx(other.standard_error, rel=1e-9)
        gates = (
            [gate.to_dict() for gate in each.verdict.gates if gate.name not in leave_out]
            for each in (mine, other)
        )
        fixture.assert_alike(*gates)


def agree(engine: str, folder: Path) -> int:
    """Every variant, from files and from memory, has the sums that it has in memory, and so has
    what follows from them; and a log whose ids are numbers, which tell an order."""
    for i, variant in enumerate(fixture.VARIANTS):
        reading = fixture.READING[variant]
        data = fixture.table(variant) if i % 2 else fixture.write(folder, variant)
        target = fixture.policies(variant)[("table", "steps", "column")[i % 3]]
        expected = rw.moments(rw.read_log(fixture.table(variant), **reading), target, blocks=7)
        found = rw.moments(rw.read_log(data, engine=engine, **reading), target, blocks=7)
        fixture.assert_same(found, expected)
        assert found.about == expected.about
        assert found.lagged is not None
        assert found.largest is not None
        same_estimates(*(rw.evaluate_all(sums, target, ESTIMATORS) for sums in (found, expected)))
    rows, target = test_scanned_extras.simulated(120), test_scanned_extras.TARGET
    logs = [rw.read_log(rows, engine=e, terminated="terminated") for e in (engine, "arrays")]
    found, expected = (rw.moments(log, target, ["mis"]) for log in logs)
    assert found.paced is not None
    fixture.assert_same(found, expected)
    same_estimates(*(rw.evaluate_all(sums, target, ["mis"]) for sums in (found, expected)))
    return len(fixture.VARIANTS) + 1


def exact(engine: str, folder: Path) -> int:
    """The exactly enumerated value of a tiny world, and the estimates that memory gives."""
    world = random_world(3, horizon=2, ends=1)
    rows = population_log(world).source.table
    reading = {**fixture.FLAGS, "target_prob": "target_prob", "next_state": "next_state"}
    reading |= {"horizon": world.horizon, "hidden": "allow"}
    found = rw.evaluate_all(rw.read_log(rows, engine=engine, **reading), TARGET, ESTIMATORS)
    *results, refusal = found
    assert isinstance(refusal, rw.Refusal)
    for result in results:
        assert isinstance(result, rw.Estimate)
        assert result.value == pytest.approx(float(world.value(world.target)), rel=1e-12)
    blocks = max(result.moments.about.blocks for result in results)  # those of wis
    sums = rw.moments(rw.read_log(rows, **reading), TARGET, blocks=blocks)
    same_estimates(found, rw.evaluate_all(sums, TARGET, ESTIMATORS), OF_EPISODES)
    return len(results)


def history(engine: str, folder: Path) -> int:
    """Whether estimates move when they remember more, on all episodes and on a sample of them."""
    whole = memory_rows.MOST_ROWS
    rng, n, horizon = np.random.default_rng(1), 600, 8
    action, state = rng.integers(0, 2, (n, horizon)), rng.integers(0, 2, (n, horizon + 1))
    later = np.hstack([np.zeros((n, 2)), action[:, :-2]]) + 0.1 * rng.normal(size=(n, horizon))
    table = rw.log_from_arrays(state, action, later, np.full((n, horizon), 0.5)).to_table()
    ids = pa.array([f"patient {k}" for k in table.column("episode").to_pylist()])
    table = table.set_column(table.schema.get_field_index("episode"), "episode", ids)
    target = rw.TablePolicy([[0.3, 0.7]] * 2)
    names = ["mis", "dm", "mdr", "mis-hajek", "mis-memory-2"]
    for most in (whole, 2400):
        memory_rows.MOST_ROWS = most
        found, expected = (
            [
                next(gate.to_dict() for gate in each.verdict.gates if gate.name == "history")
                for each in rw.evaluate_all(rw.read_log(table, engine=e), target, names)
            ]
            for e in (engine, "arrays")
        )
        fixture.assert_alike(found, expected)
        assert [gate["level"] for gate in found] == ["red"] * 4 + ["green"]
    memory_rows.MOST_ROWS = whole
    return len(names)


def faults(engine: str, folder: Path) -> int:
    """The same faults in the same words."""
    names = ("rows after the end", "short", "several", "no numbers", "no fault")
    names += ("not finite", "NaN as a flag", "NaN under Rounding")
    for name in names:
        data, reading = test_ibis.EVERY_FAULT[name]
        mine = test_ibis.told(data, engine, reading, numbered=False)
        assert mine == test_ibis.told(data, "arrays", reading, numbered=False), (name, mine)
    return len(names)


def names(engine: str, folder: Path) -> int:
    """Hostile names of columns and files."""
    rows = fixture.table("whole")
    rows = rows.rename_columns([test_ibis.HOSTILE[name] for name in rows.column_names])
    target = rw.ColumnPolicy(test_ibis.HOSTILE["pi"])
    pq.write_table(rows, folder / "a [x]{y}*;--.parquet")
    pq.write_table(rows, folder / "a xy;--.parquet")
    log = rw.read_log(folder / "a [x]{y}*;--.parquet", engine=engine, **test_ibis.HOSTILE_READING)
    expected = rw.moments(rw.read_log(rows, **test_ibis.HOSTILE_READING), target, ["mis"])
    fixture.assert_same(rw.moments(log, target, ["mis"]), expected)
    return 1


def tables(engine: str, folder: Path) -> int:
    """A table of Spark's catalog, from the command line, which then has no LOG."""
    session = spark_session(engine)
    session.createDataFrame(fixture.table("integers")).createOrReplaceTempView("steps")
    memory = rw.read_log(fixture.table("integers"), **fixture.READING["integers"])
    target = fixture.policies("integers")["table"]
    pq.write_table(target.to_table(), folder / "policy.parquet")
    options = {"engine": engine, "table": "steps", "target": folder / "policy.parquet"}
    options |= {"behavior-prob": "mu", "next-state": "next_state", "discount": fixture.DISCOUNT}
    options |= {**fixture.FLAGS, "output": folder / "sums.parquet"}
    said = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    assert run(["moments", *said]) == 0
    found = rw.load_moments(folder / "sums.parquet")
    expected = rw.moments(memory, target)
    fixture.assert_same(found, expected)
    assert found.about == expected.about
    assert [t.name for t in session.catalog.listTables()] == ["steps"]  # nothing of ours is left
    absent = rw.read_log(None, engine=engine, table="stepps", **fixture.READING["integers"])
    with pytest.raises(rw.UsageError, match="stepps"):
        absent.describe()
    return 1


def handed(engine: str, folder: Path) -> int:
    """An Ibis table of Spark."""
    session = spark_session(engine)
    session.createDataFrame(fixture.table("pairs")).createOrReplaceTempView("visits")
    table = ibis.pyspark.connect(session).table("visits")
    target = fixture.policies("pairs")["table"]
    found = rw.moments(rw.read_log(table, **fixture.READING["pairs"]), target, ["mis"])
    memory = rw.read_log(fixture.table("pairs"), **fixture.READING["pairs"])
    fixture.assert_same(found, rw.moments(memory, target, ["mis"]))
    return 1


def kinds(engine: str, folder: Path) -> int:
    """Integers with and without a sign in two files are one kind; what memory does not read is
    refused, although Spark would read it."""
    apart = folder / "kinds"
    apart.mkdir()
    last = pa.array([0, 1, 2**63 - 1, 0], pa.uint64())
    ids = pa.array([2, 2, 3, 3], pa.uint64())
    paths = test_ibis_files.two_files(apart, state=last, episode=ids)
    found = rw.read_log(paths, engine=engine).describe()
    expected = rw.read_log(paths, engine="arrays").describe()
    assert found["state_examples"] == expected["state_examples"] == ["0", "1", str(2**63 - 1)]
    assert found["mean_return"] == pytest.approx(expected["mean_return"], rel=1e-12)
    roles, odd = test_ibis.ROLES, test_ibis_files.ODD
    for kind, column in (("duration", "reward"), ("bool8", "state"), ("uuid", "episode")):
        rows = test_ibis.table(test_ibis.EVERY_ROLE, **{column: odd[kind]})
        pq.write_table(rows, apart / "odd.parquet")
        for data in (rows,) if kind == "uuid" else (rows, apart / "odd.parquet"):
            mine, memory = (test_ibis.told(data, e, roles, False) for e in (engine, "arrays"))
            assert mine == memory
    return 1


def executors(engine: str, folder: Path) -> int:
    """How many workers took part: both, because each has one core."""
    status = spark_session(engine).sparkContext._jsc.sc().statusTracker()
    return len(status.getExecutorInfos()) - 1  # the driver is listed too


def main(engine: str, folder: Path, parts: list[str]) -> None:
    said = {part: globals()[part](engine, folder) for part in parts}
    written = folder / "said.part"
    written.write_text(json.dumps(said))
    written.rename(folder / "said.json")
    sys.stdin.read()
    spark_session(engine).stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
