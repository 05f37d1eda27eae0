"""The engine that keeps rows where they are, on DuckDB: the same sums, faults and refusals."""

from __future__ import annotations

import datetime
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import build
import duckdb
import fixture
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from log.samples import COLUMNS, EVERY_ROLE, ROLES, table, with_cell
from log.test_contract import BROKEN
from population import TARGET, population_log, random_world

import reweigh as rw
from reweigh.evaluation.scans import scanned_sql
from reweigh.sums.engines import ArraysEngine, Request
from reweigh.sums.engines.sql import IbisEngine
from reweigh.sums.engines.sql_connect import open_database, quoted
from reweigh.sums.engines.sql_databases import DuckDatabase
from reweigh.sums.read import ScannedLog

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")

ALL = Request(frozenset({"transitions", "model", "trajectories"}))
KINDS = ("table", "parquet", "csv")
NAN, INF = float("nan"), float("inf")


def both(data: Any, target: Any, reading: dict[str, Any], **options: Any) -> Any:
    """The sums in memory and those of DuckDB, which must agree."""
    expected = rw.moments(rw.read_log(data, engine="arrays", **reading), target, **options)
    found = rw.moments(rw.read_log(data, engine="duckdb", **reading), target, **options)
    fixture.assert_same(found, expected)
    assert found.about == expected.about
    return found


CASES = [
    (variant, policy, KINDS[(i + j) % 3])
    for i, variant in enumerate(fixture.VARIANTS)
    for j, policy in enumerate(("table", "steps", "column"))
]


@pytest.mark.parametrize(("variant", "policy", "kind"), CASES)
def test_the_sums_are_those_in_memory(variant, policy, kind, tmp_path) -> None:
    data = fixture.table(variant) if kind == "table" else fixture.write(tmp_path, variant, kind)
    sums = both(data, fixture.policies(variant)[policy], fixture.READING[variant], blocks=7)
    assert sums.n_episodes == 3 * fixture.EPISODES
    assert len(np.unique(sums.start.block)) == 7


@pytest.mark.parametrize(
    "change",
    [
        {"horizon": 4},  # rows after it tell the state at the horizon
        {"horizon": 9, "short_episodes": "terminal", "terminated": None, "truncated": None},
        {"horizon": 9, "short_episodes": "truncated", "truncated": None},
    ],
    ids=["cut", "longer", "open"],
)
@pytest.mark.parametrize("variant", ["everything", "integers"])
def test_horizons_and_endings(variant, change) -> None:
    reading = fixture.READING[variant] | change
    both(fixture.table(variant), rw.ColumnPolicy("pi"), reading, max_ratio=1.5)


@pytest.mark.parametrize("seed", range(8))
def test_random_logs(seed) -> None:
    rng = random.Random(seed)
    small = build.random_log(
        rng,
        ends=("complete", "terminated", *(["truncated"] if seed % 2 else [])),
        hide=0.4 if seed % 4 < 2 else 0.0,
        zeros=True,
        with_next=True,
        n=6,
    )
    memory = build.to_reweigh(small)
    reading = {
        "behavior_prob": "mu",
        "target_prob": "pi",
        "next_state": "next_state",
        **fixture.FLAGS,
        "horizon": small.horizon,
        "discount": float(small.discount),
        "hidden": "allow",
    }
    rows = memory.source.table
    shuffled = rows.take(rng.sample(range(rows.num_rows), k=rows.num_rows))
    both(shuffled, build.TARGET, reading, blocks=2)


def test_every_estimator_meets_the_exactly_enumerated_value() -> None:
    world = random_world(3, horizon=2, ends=1)
    memory = population_log(world)
    log = rw.read_log(
        memory.source.table,
        engine="duckdb",
        target_prob="target_prob",
        next_state="next_state",
        **fixture.FLAGS,
        horizon=world.horizon,
        hidden="allow",
    )
    for result in rw.evaluate_all(log, TARGET, ["mis", "mis-plain", "is", "wis", "dm"]):
        assert isinstance(result, rw.Estimate)
        assert result.value == pytest.approx(float(world.value(world.target)), rel=1e-12)
        assert result.behavior_value == pytest.approx(float(world.value(world.behavior)), rel=1e-12)


@pytest.mark.parametrize(("variant", "most"), [("everything", 1), ("whole", 5), ("integers", 5)])
def test_the_same_estimates_errors_and_refusals(variant, most) -> None:
    names = ["mis", "mis-plain", "mis-state", "mis-pooled", "is", "wis", "dm", "ssd-is", "dr"]
    target = fixture.policies(variant)["table"]
    data, reading = fixture.table(variant), fixture.READING[variant]
    found = rw.evaluate_all(rw.read_log(data, engine="duckdb", **reading), target, names)
    [blocks] = {mine.moments.about.blocks for mine in found if isinstance(mine, rw.Estimate)}
    sums = rw.moments(rw.read_log(data, **reading), target, blocks=blocks)
    answered = 0
    for mine, other in zip(found, rw.evaluate_all(sums, None, names), strict=True):
        assert type(mine) is type(other)
        if isinstance(mine, rw.Estimate):
            answered += 1
            assert mine.value == pytest.approx(other.value, rel=1e-9)
            assert mine.error_method == other.error_method
            if other.standard_error is not None:
                assert mine.standard_error == pytest.approx(other.standard_error, rel=1e-9)
        else:
            assert mine.error.code == other.error.code
    assert answered >= most  # cut-off episodes with hidden states answer little


def test_products_of_four_hundred_steps_neither_overflow_nor_vanish() -> None:
    rng = np.random.default_rng(0)
    n, steps = 12, 400
    length = [steps if e % 3 else int(rng.integers(1, steps)) for e in range(n)]
    rows = [(e, t) for e in range(n) for t in range(length[e])]
    ratio = [0.0 if e == 5 and t > 50 else (20.0 if e % 2 else 0.05) for e, t in rows]
    data = pa.table(
        {
            "episode": [e for e, _ in rows],
            "step": [t for _, t in rows],
            "state": [0] * len(rows),
            "action": [0] * len(rows),
            "reward": rng.normal(size=len(rows)),
            "behavior_prob": [0.05 if r > 1 else 1.0 for r in ratio],
            "pi": [min(r, 1.0) for r in ratio],
        }
    )
    reading = {"short_episodes": "terminal"}
    with np.errstate(over="ignore", invalid="ignore"):
        expected = rw.moments(rw.read_log(data, **reading), rw.ColumnPolicy("pi"), ["is"], blocks=3)
        log = rw.read_log(data, engine="duckdb", **reading)
        found = rw.moments(log, rw.ColumnPolicy("pi"), ["is"], blocks=3)
    mine, other = found.trajectories.steps, expected.trajectories.steps
    for name in ("block", "t", "n"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(other, name))
    for name in ("log_scale", "w", "w2", "wy", "wmax"):
        np.testing.assert_allclose(getattr(mine, name), getattr(other, name), rtol=1e-10, atol=1e-9)
    for name in ("log_scale", "w", "wg", "wg2", "w2g", "ret"):
        mine, other = (getattr(m.trajectories.episodes, name) for m in (found, expected))
        np.testing.assert_allclose(mine, other, rtol=1e-10)
    assert other.max() < 1e6 < np.exp(expected.trajectories.episodes.log_scale.max() / 2)


# ---- states from numbers -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "abstraction",
    [rw.Rounding(2.0), rw.Rounding([2.0, 0.5]), rw.Grid([[-1.0, 0.25, 3.0], [0.0]])],
    ids=str,
)
def test_rounding_and_grid_are_those_of_numpy(abstraction) -> None:
    """Halves go to the even number, edges belong to the cell above, large numbers stay exact."""
    x = [
        0.25,
        -0.25,
        0.75,
        -0.75,
        1.25,
        0.49999999999999994,
        -1e-20,
        0.0,
        3.0,
        -1.0,
        2.0**52,
        -4e15,
    ]
    pairs = isinstance(abstraction, rw.Grid) or not isinstance(abstraction.scale, float)
    n = len(x)
    data = pa.table(
        {
            "episode": list(range(n)),
            "step": [0] * n,
            "x": x,
            "y": pa.array([*x[1:], None]),
            "action": ["a"] * n,
            "reward": [1.0] * n,
            "behavior_prob": [0.5] * n,
        }
    )
    reading = {"state": ["x", "y"] if pairs else "x", "hidden": "allow", "abstraction": abstraction}
    sums = both(data, rw.ColumnPolicy("behavior_prob"), reading)
    assert len(sums.states) > 3


SOME = {name: [*values] for name, values in EVERY_ROLE.items()}
TYPES: dict[str, tuple[dict[str, Any], Any]] = {
    "truth values": (
        {"state": [True, False, True, True, True, False], "action": [True, False] * 3,
         "next_state": [False, True, None, True, False, None]},
        rw.TablePolicy({1: {0: 0.5, 1: 0.5}, 0: {1: 1.0}}),
    ),
    "unsigned": (
        {"episode": pa.array([2**64 - 1] * 3 + [7] * 3, pa.uint64()),
         "step": pa.array([0, 1, 2] * 2, pa.uint8()),
         "state": pa.array([2**64 - 1, 9, 10, 9, 10, 9], pa.uint64()),
         "action": pa.array([2**64 - 1, 5] * 3, pa.uint64()),
         "next_state": pa.array([9, 10, None, 10, 9, None], pa.uint64())},
        rw.TablePolicy({s: {2**64 - 1: 0.25, 5: 0.75} for s in (2**64 - 1, 9, 10)}),
    ),
    "texts beside numbers": (
        {"state": [10, 9, -1, 10, -1, 9], "next_state": ["9", "-1", "new", "-1", "9", "010"]},
        rw.TablePolicy({"10": {"l": 1.0}, "9": {"r": 1.0}, "-1": {"l": 0.5, "r": 0.5},
                        "x": {"l": 1.0}}),
    ),
    "categories": (
        {"state": pa.array([*"xyzxzy"]).dictionary_encode(),
         "reward": pa.array([1, 2, 3, 4, 5, 6], pa.int32()),
         "behavior_prob": pa.array([0.5] * 6, pa.float32())},
        rw.TablePolicy({s: {"l": 0.25, "r": 0.75} for s in "xyz"}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TYPES)
def test_labels_of_every_type(case) -> None:
    """Labels are the same where their texts are, and come in the order that they have in memory."""
    changes, target = TYPES[case]
    both(table(SOME, **changes), target, ROLES, blocks=3)


def test_continuous_actions_have_densities() -> None:
    data = table(COLUMNS, action=[0.5, 1.5, 2.5, 0.1, 0.2, 0.3], pi=[2.0, 0.0, 1.0, 3.0, 0.5, 0.25])
    reading = {"continuous_actions": True}
    sums = both(data, rw.ColumnPolicy("pi"), reading)
    assert sums.actions is None
    policy = rw.TablePolicy({"x": {"l": 1.0}})
    with pytest.raises(rw.UsageError, match="no densities"):
        rw.moments(rw.read_log(data, engine="duckdb", **reading), policy)


@pytest.mark.parametrize("variant", ["everything", "integers"])
def test_a_log_is_described_as_in_memory(variant) -> None:
    reading = fixture.READING[variant] | {"horizon": 4}
    data = fixture.table(variant)
    assert told(data, "duckdb", reading) == told(data, "arrays", reading)


def test_functions_of_rows_are_refused_with_the_way_out() -> None:
    data, reading = fixture.table("pairs"), fixture.READING["pairs"]
    log = rw.read_log(data, engine="duckdb", **reading)
    with pytest.raises(rw.RefusedError, match="engine='stream'") as caught:
        rw.moments(log, fixture.policies("pairs")["function"])
    assert caught.value.code == "rows-needed"
    binned = rw.read_log(table(), engine="duckdb", abstraction=lambda x: x)
    with pytest.raises(rw.RefusedError, match="Rounding, Grid or Quantiles"):
        binned.describe()


# ---- faults ------------------------------------------------------------------------------------


def told(data: Any, engine: str, reading: dict[str, Any], numbered: bool = True) -> Any:
    """Every fault with its places: row and line, episode, step, value and note. Without numbers,
    which the rows of a database or of Spark do not have: episode, step and value, in any order."""
    try:
        log = rw.read_log(data, engine=engine, **reading)
        about = log.describe()
    except rw.InputError as error:
        return sorted(
            (
                fault.code,
                fault.rule,
                fault.fix,
                fault.count,
                fault.total,
                [str(place) for place in fault.places]
                if numbered
                else sorted(str((p.column, p.value, p.episode, p.step)) for p in fault.places),
            )
            for fault in error.faults
        )  # fmt: skip
    except rw.ReweighError as error:
        return type(error), str(error).split(" fix:")[0]
    return {name: round(v, 12) if isinstance(v, float) else v for name, v in about.items()}


FEW = {name: values[:5] for name, values in COLUMNS.items()}
FLAGGED = {name: values[:5] for name, values in EVERY_ROLE.items()}
OTHER_FAULTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "no fault": (table(EVERY_ROLE), ROLES),
    "rows after the end": (table(with_cell(EVERY_ROLE, "terminated", 3, True)), ROLES),
    "rows after the cut": (table(with_cell(EVERY_ROLE, "truncated", 3, True)), ROLES),
    "steps from 1": (table(COLUMNS, step=[0, 1, 2, 1, 2, 3]), {}),
    "negative step": (table(with_cell(COLUMNS, "step", 3, -1)), {}),
    "short": (table(FEW), {}),
    "short for the horizon": (table(), {"horizon": 5}),
    "short with an unknown flag": (table(with_cell(FLAGGED, "terminated", 4, None)), ROLES),
    "continuous states": (table(COLUMNS, state=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]), {}),
    "float actions": (table(COLUMNS, action=[0.1] * 6), {}),
    "float ids": (table(COLUMNS, episode=[0.5] * 6), {}),
    "float steps": (table(COLUMNS, step=[0.0, 1.0, 2.0] * 2), {}),
    "steps as text": (table(COLUMNS, step=list("012012")), {}),
    "no step": (table(COLUMNS, step=list("01x012")), {}),
    "numbers as text": (table(COLUMNS, reward=list("012012")), {}),
    "no numbers": (table(COLUMNS, reward=["1", "nan", "x", None, "1,5", "-2e3"]), {}),
    "truth values as rewards": (table(COLUMNS, reward=[True] * 6), {}),
    "log-probabilities": (table(COLUMNS, behavior_prob=[-1.0, -0.5, -2.0, -1.0, -1.0, -1.0]), {}),
    "percentages": (table(COLUMNS, behavior_prob=[10.0, 50.0, 20.0, 10.0, 1.0, 1.0]), {}),
    "no flags": (table(EVERY_ROLE, terminated=["no"] * 6), ROLES),
    "flags as text": (table(EVERY_ROLE, terminated=["FALSE"] * 5 + ["True"]), ROLES),
    "flags as numbers": (table(EVERY_ROLE, terminated=[0, 0, 0, 0, 0, 1]), ROLES),
    "missing columns": (table(), {"reward": "rewrad", "state": "sate"}),
    "no rows": (table().slice(0, 0), {}),
    "dates": (table(COLUMNS, state=[datetime.date(2020, 1, 1)] * 6), {}),
    "several": (
        table(with_cell(with_cell(with_cell(COLUMNS, "step", 4, 0), "reward", 0, None),
                        "behavior_prob", 1, 0.0)), {},
    ),
    "duplicate and unknown": (
        table(with_cell(with_cell(COLUMNS, "step", 1, 0), "step", 4, None)), {},
    ),
    "no step at all": (table(COLUMNS, step=pa.nulls(6)), {}),
    "no reward at all": (table(COLUMNS, reward=pa.nulls(6)), {}),
    "a step far away": (table(with_cell(COLUMNS, "step", 1, 2**62)), {}),
    "the last step of all": (table(with_cell(EVERY_ROLE, "step", 1, 2**63 - 1)), ROLES),
    "the first step of all": (table(with_cell(COLUMNS, "step", 1, -(2**63))), {"discount": 0.9}),
    "no flags of short episodes": (table(FLAGGED, terminated=["yes"] * 5), ROLES),
    "other numbers as flags": (table(FLAGGED, truncated=[0, 0, 2, 0, 0]), ROLES),
    "no state at all": (table(COLUMNS, state=pa.nulls(6)), {}),
    "categories": (table(COLUMNS, state=pa.array([*"xy", None, *"xzy"]).dictionary_encode()), {}),
    "not finite": (
        table(COLUMNS, reward=[1.0, NAN, INF, None, -INF, 0.0],
              behavior_prob=pa.array([NAN, 0.5, None, 0.5, INF, 0.5], pa.float32())), {},
    ),
    "NaN as a flag": (table(EVERY_ROLE, terminated=[0.0, 0.0, NAN, 0.0, 0.0, 1.0]), ROLES),
    "NaN under Rounding": (
        table(COLUMNS, state=[0.1, NAN, 0.3, None, 0.5, 0.6]), {"abstraction": rw.Rounding(2.0)},
    ),
    "too large for Rounding": (
        table(COLUMNS, state=[0.1, 1e300, 0.3, 0.2, 0.5, 0.6]), {"abstraction": rw.Rounding(2.0)},
    ),
    "other columns than Rounding": (
        table(COLUMNS, state=[0.5] * 6), {"abstraction": rw.Rounding([2.0, 3.0])},
    ),
}  # fmt: skip
FIRST = {(case.code, case.rule): case for case in reversed(BROKEN)}.values()
EVERY_FAULT = {str(case): (table(with_cell(EVERY_ROLE, case.column, case.row, case.value)), ROLES)
               for case in FIRST} | OTHER_FAULTS  # fmt: skip


@pytest.mark.parametrize("case", EVERY_FAULT)
def test_the_faults_are_those_in_memory(case) -> None:
    data, reading = EVERY_FAULT[case]
    assert told(data, "duckdb", reading) == told(data, "arrays", reading)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_faults_in_files_name_file_row_and_line(tmp_path: Path, kind: str) -> None:
    """Of several files, in which the columns stand in another order; the faults in the second."""
    columns = fixture.table("integers").to_pydict()
    cut = len(columns["step"]) // 2
    columns["reward"][cut + 7] = columns["reward"][-1] = None
    columns["mu"][-5] = 1.5
    again = next(i for i in range(cut + 20, 2 * cut) if columns["step"][i] > 0)
    columns["step"][again] = columns["step"][again - 1]
    bad = pa.table(columns, schema=fixture.table("integers").schema)
    for name, part in (("a", bad[:cut]), ("b", bad[cut:].select(sorted(bad.column_names)))):
        if kind == "csv":
            pacsv.write_csv(part, tmp_path / f"{name}.csv")
        else:
            pq.write_table(part, tmp_path / f"{name}.parquet", row_group_size=64)
    found = told(tmp_path, "duckdb", fixture.READING["integers"])
    assert found == told(tmp_path, "arrays", fixture.READING["integers"])
    text = str(found)
    assert f"file 'b.{kind}', row " in text
    assert (" (line " in text) == (kind == "csv")
    assert "as in row" in text


def test_a_column_with_duckdbs_own_name_is_a_column_like_others(tmp_path: Path) -> None:
    data = table(with_cell(COLUMNS, "reward", 1, None))
    data = data.append_column("File_Row_Number", [[7] * 6])
    pq.write_table(data, tmp_path / "log.parquet")
    with pytest.raises(rw.InputError, match="column 'reward', row 2, episode 'a', step 1"):
        rw.read_log(tmp_path / "log.parquet", engine="duckdb").describe()


def test_faults_of_the_target() -> None:
    data = table(EVERY_ROLE, pi=[0.5, NAN, 2.0, None, 0.5, 0.5])
    log = rw.read_log(data, engine="duckdb")
    with pytest.raises(rw.InputError, match="the target policy") as caught:
        rw.moments(log, rw.ColumnPolicy("pi"))
    assert [(f.code, f.count) for f in caught.value.faults] == [
        ("not-finite", 2),
        ("probability-range", 1),
    ]
    with pytest.raises(rw.UsageError, match="did you mean 'pi'"):
        rw.moments(log, rw.ColumnPolicy("Pi"))
    with pytest.raises(rw.InputError, match="must be a number"):
        rw.moments(log, rw.ColumnPolicy("state"))
    policy = rw.TablePolicy({"x": {"l": 1.0}, "zz": {"l": 1.0}})
    messages = []
    for engine in ("arrays", "duckdb"):
        with pytest.raises(rw.InputError) as caught:
            rw.moments(rw.read_log(data, engine=engine), policy)
        [fault] = caught.value.faults
        places = [str(place) for place in fault.places]
        messages.append((fault.code, fault.rule, fault.fix, fault.count, fault.total, places))
    assert messages[0] == messages[1]
    with pytest.raises(rw.UsageError, match="behavior_prob"):
        rw.moments(rw.read_log(data, engine="duckdb", behavior_prob=None), rw.ColumnPolicy("pi"))


def test_target_faults_name_the_rows_of_the_log(tmp_path: Path) -> None:
    """In the order of the rows, which is not that of episodes and steps."""
    data = table(EVERY_ROLE, pi=[0.5, NAN, 2.0, 7.0, 0.5, -1.0]).take([3, 4, 5, 0, 1, 2])
    pq.write_table(data, tmp_path / "log.parquet")
    messages = []
    for engine in ("arrays", "stream", "duckdb"):
        with pytest.raises(rw.InputError) as caught:
            rw.moments(rw.read_log(tmp_path / "log.parquet", engine=engine), rw.ColumnPolicy("pi"))
        messages.append(sorted(map(str, caught.value.faults)))
    assert messages[0] == messages[1] == messages[2]
    assert "row 1, " in str(messages[0])


@pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")
def test_the_rows_of_a_table_in_a_database_have_no_numbers(tmp_path: Path) -> None:
    """SQL gives them no order; the message says so, and names episode and step."""
    data, reading = EVERY_FAULT["several"]
    path = database(tmp_path / "rows.duckdb", data, "steps")
    ibis = pytest.importorskip("ibis")
    for way in ("database", "ibis"):
        if way == "database":
            log = rw.read_log(path, engine="duckdb", table="steps", **reading)
        else:
            log = rw.read_log(ibis.duckdb.connect(path, read_only=True).table("steps"), **reading)
        with pytest.raises(rw.InputError) as caught:
            log.describe()
        assert all(p.row is None for fault in caught.value.faults for p in fault.places)
        assert ", row" not in str(caught.value)
        assert "have no numbers: find them by episode and step" in str(caught.value)


def test_a_log_without_faults_is_read_by_duckdb_alone(monkeypatch) -> None:
    def fail(*args: Any) -> None:
        raise AssertionError("rows were numbered")

    monkeypatch.setattr("reweigh.sums.engines.stream.StreamEngine.describe", fail)
    rw.read_log(table(EVERY_ROLE), engine="duckdb", **ROLES).describe()


# ---- where rows are ----------------------------------------------------------------------------

HOSTILE = {
    "episode": 'a"; drop table x;--',
    "step": "step'); select 1;--",
    "state": "Zustand mit Ö und \u202e\n",
    "action": "c0",
    "reward": "`r`.\\",
    "mu": "select",
    "pi": "${pi}%s{}",
    "terminated": "t0].[t1",
    "truncated": "  ",
}
HOSTILE_READING = {
    "episode": HOSTILE["episode"],
    "step": HOSTILE["step"],
    "state": HOSTILE["state"],
    "action": HOSTILE["action"],
    "reward": HOSTILE["reward"],
    "behavior_prob": HOSTILE["mu"],
    "terminated": HOSTILE["terminated"],
    "truncated": HOSTILE["truncated"],
    "hidden": "allow",
    "discount": fixture.DISCOUNT,
}


def database(path: Path, rows: pa.Table, name: str) -> Path:
    connection = duckdb.connect(str(path))
    connection.register("rows", rows)
    connection.execute(f"CREATE TABLE {quoted(name)} AS SELECT * FROM rows")
    connection.execute("CREATE TABLE x AS SELECT 1 AS one")
    connection.close()
    return path


# Ibis itself calls what DuckDB 2 has renamed
@pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")
@pytest.mark.parametrize("way", ["table", "parquet", "database", "ibis"])
def test_hostile_names_are_only_names(way, tmp_path) -> None:
    rows = fixture.table("whole").rename_columns(
        [HOSTILE[name] for name in fixture.table("whole").column_names]
    )
    target = rw.ColumnPolicy(HOSTILE["pi"])
    expected = rw.moments(rw.read_log(rows, **HOSTILE_READING), target)
    hostile_table = 'my"; drop table x;-- table'
    if way == "table":
        log = rw.read_log(rows, engine="duckdb", **HOSTILE_READING)
    elif way == "parquet":
        path = tmp_path / "a'b [x]*;--.parquet"
        pq.write_table(rows, path)
        pq.write_table(rows, tmp_path / "a'b xyz;--.parquet")  # what the name would match
        log = rw.read_log(path, engine="duckdb", **HOSTILE_READING)
    elif way == "database":
        path = database(tmp_path / "rows.duckdb", rows, hostile_table)
        log = rw.read_log(path, engine="duckdb", table=hostile_table, **HOSTILE_READING)
    else:
        ibis = pytest.importorskip("ibis")
        path = database(tmp_path / "rows.duckdb", rows, hostile_table)
        log = rw.read_log(ibis.duckdb.connect(path).table(hostile_table), **HOSTILE_READING)
    assert isinstance(log, ScannedLog)
    fixture.assert_same(rw.moments(log, target), expected)
    if way == "database":
        left = duckdb.connect(str(path)).execute("SELECT one FROM x").fetchall()
        assert left == [(1,)]
    if way != "ibis":
        sql = log.sql(target, ALL) + str(rw.evaluate(log, target, rw.wis()).sql)
        assert not any(name in sql for name in (*HOSTILE.values(), hostile_table) if name != "c0"
                       and name.strip() and name != "select")  # fmt: skip


@pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")
def test_nothing_is_left_in_a_connection_that_was_handed_in() -> None:
    import ibis

    connection = ibis.duckdb.connect()
    connection.con.register("visits", fixture.table("pairs"))
    log = rw.read_log(connection.table("visits"), **fixture.READING["pairs"])
    target = fixture.policies("pairs")["steps"]
    expected = rw.moments(rw.read_log(fixture.table("pairs"), **fixture.READING["pairs"]), target)
    fixture.assert_same(rw.moments(log, target), expected)
    left = connection.con.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal")
    assert left.fetchall() == [("visits",)]


def test_sql_of_the_sums_has_an_explicit_frame() -> None:
    log = rw.read_log(fixture.table("whole"), engine="duckdb", **fixture.READING["whole"])
    assert isinstance(log, ScannedLog)
    sql = log.sql(rw.ColumnPolicy("pi"), ALL)
    parts = [line for line in sql.splitlines() if line.startswith("-- ")]
    assert parts == ["-- rows", "-- model", "-- transitions", "-- steps", "-- episodes"]
    assert "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW" in " ".join(sql.split())


@pytest.mark.parametrize("names", [["mis"], ["mis", "wis"], ["dm", "is"]])
def test_the_queries_stay_with_the_result(names, monkeypatch) -> None:
    """Their text is what DuckDB was sent, and what is told without running it."""
    ran = []
    run = DuckDatabase.run
    monkeypatch.setattr(
        DuckDatabase, "run", lambda home, e, sql=None: (ran.append(sql), run(home, e, sql))[1]
    )
    reading, target = fixture.READING["pairs"], fixture.policies("pairs")["steps"]
    log = rw.read_log(fixture.table("pairs"), engine="duckdb", **reading)
    assert isinstance(log, ScannedLog)
    recipes = [rw.estimator(name) for name in names]
    found = rw.evaluate_all(log, target, recipes)
    sent = [sql for sql in ran if sql is not None]  # the log's checks are not its sums
    told = scanned_sql(log, target, recipes)
    assert ";\n".join(sent) + ";" == "\n".join(
        line for line in told.splitlines() if line and not line.startswith("-- ")
    )
    for result in found:
        assert isinstance(result, rw.Estimate)
        assert result.sql == result.moments.sql == result.to_dict()["sql"] == told
    wis = "wis" in names  # its products are summed apart, by blocks
    assert [line for line in told.splitlines() if line.startswith("-- steps")] == ["-- steps"] * (
        "is" in names or wis
    )
    assert told.rfind("-- start") > told.find("-- largest") if wis else "-- start" not in told


def test_where_no_sql_was_run_there_is_none(tmp_path: Path) -> None:
    reading, target = fixture.READING["pairs"], fixture.policies("pairs")["steps"]
    path = fixture.write(tmp_path, "pairs", "parquet")
    for engine in ("arrays", "stream"):
        found = rw.evaluate(rw.read_log(path, engine=engine, **reading), target, rw.mis())
        assert found.sql is None
        assert found.to_dict()["sql"] is None
        assert found.moments.sql is None
    sums = rw.moments(rw.read_log(path, engine="duckdb", **reading), target, ["mis"], gates=False)
    log = rw.read_log(path, engine="duckdb", **reading)
    assert isinstance(log, ScannedLog)
    assert sums.sql == log.sql(target, rw.mis().needs) == rw.evaluate(sums, estimator=rw.mis()).sql
    sums.save(tmp_path / "sums.parquet")
    assert rw.evaluate(rw.load_moments(tmp_path / "sums.parquet"), estimator=rw.mis()).sql is None


def test_sums_of_one_question_keep_its_queries() -> None:
    """Other queries, or none, made a part of the others: then nothing is told."""
    reading, target = fixture.READING["pairs"], fixture.policies("pairs")["steps"]
    halves = [fixture.site_table("pairs", site) for site in fixture.SITES[:2]]
    duck = [rw.read_log(half, engine="duckdb", **reading) for half in halves]
    first, second = (rw.moments(log, target, ["mis"], gates=False) for log in duck)
    assert (first + second).sql == first.sql
    memory = rw.moments(rw.read_log(halves[1], **reading), target, ["mis"], gates=False)
    assert (first + memory).sql is None
    assert (memory + first).sql is None


@pytest.mark.parametrize(
    ("kinds", "asked"),
    [
        ({"transitions", "model"}, ["model"]),  # the cells without the action follow from it
        ({"transitions"}, ["transitions"]),
        ({"trajectories"}, ["start", "steps", "episodes"]),
    ],
)
def test_what_follows_from_another_table_is_not_asked_for(kinds, asked) -> None:
    """Every query reads the log."""
    reading, target = fixture.READING["pairs"], fixture.policies("pairs")["steps"]
    log = rw.read_log(fixture.table("pairs"), engine="duckdb", **reading)
    assert isinstance(log, ScannedLog)
    request = Request(frozenset(kinds))
    sql = log.sql(target, request)
    assert [line for line in sql.splitlines() if line.startswith("-- ")] == [
        f"-- {name}"
        for name in ("rows", *asked)  # the log is put into order once
    ]
    memory = rw.read_log(fixture.table("pairs"), **reading)
    fixture.assert_same(
        log.moments(target, request), ArraysEngine().moments(memory, target, request)
    )


@pytest.mark.parametrize("kinds", [{"model"}, {"transitions"}, {"trajectories"}])
@pytest.mark.parametrize("variant", ["everything", "whole", "pairs"])
def test_states_that_a_table_does_not_know_are_refused_as_in_memory(variant, kinds) -> None:
    """Whichever sums are asked for, also where cut-off episodes leave nothing to sum."""
    data, reading = fixture.table(variant), fixture.READING[variant]
    rows = fixture.policies(variant)["steps"].to_table()
    names = [name for name in rows.column_names if name.startswith("state")]
    some = rw.TablePolicy(rows.slice(0, rows.num_rows - 4), state=names)
    said = []
    for engine in ("arrays", "duckdb"):
        log = rw.read_log(data, engine=engine, **reading)
        with pytest.raises(rw.InputError) as caught:
            rw.moments(log, some, [{"model": "dm", "transitions": "mis"}.get(*kinds, "is")])
        [fault] = caught.value.faults
        said.append((fault.code, fault.rule, fault.fix, fault.count, fault.total))
    assert said[0] == said[1]


def test_a_database_and_its_tables(tmp_path) -> None:
    rows, reading = fixture.table("integers"), fixture.READING["integers"]
    path = database(tmp_path / "rows.duckdb", rows, "steps")
    for name in ("steps", "main.steps"):
        log = rw.read_log(path, engine="duckdb", table=name, **reading)
        assert log.describe()["rows"] == rows.num_rows
    with pytest.raises(rw.UsageError, match=r"did you mean 'steps'.*\(tables: "):
        rw.read_log(path, engine="duckdb", table="stepps", **reading).describe()
    with pytest.raises(rw.ResourceError, match="no DuckDB database"):
        rw.read_log(tmp_path / "none", engine="duckdb", table="steps", **reading).describe()
    pq.write_table(rows, tmp_path / "rows.parquet")
    (tmp_path / "text").write_text("no database")
    for name in ("text", "rows.parquet"):
        with pytest.raises(rw.UsageError, match=r"not a DuckDB database, and table='steps' names"):
            rw.read_log(tmp_path / name, engine="duckdb", table="steps", **reading).describe()
    (tmp_path / "damaged").write_bytes(path.read_bytes()[:100])
    with pytest.raises(rw.InputError, match="cannot open"):
        rw.read_log(tmp_path / "damaged", engine="duckdb", table="steps", **reading).describe()


@pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")
@pytest.mark.parametrize("engine", ["arrays", "stream", "duckdb", "local[1]"])
def test_an_ibis_table_has_its_own_engine(engine) -> None:
    import ibis

    connection = ibis.duckdb.connect()
    connection.con.register("visits", fixture.table("pairs"))
    with pytest.raises(rw.UsageError, match="its own backend: omit engine="):
        rw.read_log(connection.table("visits"), engine=engine, **fixture.READING["pairs"])


AS_THEY_ARE = {
    "collation": ("VARCHAR COLLATE NOCASE", {"e1": "e1", "e2": "E1", "x": "x", "y": "X", "z": "z"}),
    "uuid": (
        "UUID",
        {t: f"{i:08x}-0000-4000-8000-000000000000" for i, t in enumerate(("e1", "e2", *"xyz"))},
    ),
}


@pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")
@pytest.mark.parametrize("way", ["database", "ibis"])
@pytest.mark.parametrize("case", AS_THEY_ARE)
def test_labels_of_a_table_are_compared_by_their_whole_text(case, way, tmp_path) -> None:
    """Whatever a collation takes for the same; a UUID is its text."""
    import ibis

    kind, called = AS_THEY_ARE[case]
    names = {"episode": ["e1"] * 3 + ["e2"] * 3, "state": list("xyzxzy")}
    rows = table(COLUMNS, **{c: [called[cell] for cell in cells] for c, cells in names.items()})
    path = database(tmp_path / "rows.duckdb", rows, "steps")
    with duckdb.connect(str(path)) as connection:
        for column in names:
            connection.execute(f"ALTER TABLE steps ALTER {column} TYPE {kind}")
    target = rw.TablePolicy({called[s]: {"l": 0.25, "r": 0.75} for s in "xyz"})
    if way == "database":
        log = rw.read_log(path, engine="duckdb", table="steps")
    else:
        log = rw.read_log(ibis.duckdb.connect(path).table("steps"))
    expected = rw.moments(rw.read_log(rows), target, ["mis", "is"])
    found = rw.moments(log, target, ["mis", "is"])
    fixture.assert_same(found, expected)
    assert found.about.sources == expected.about.sources


def test_a_name_with_a_nul_is_refused() -> None:
    with pytest.raises(rw.UsageError, match="NUL"):
        quoted("a\0b")


def test_files_that_differ_or_change_are_refused(tmp_path) -> None:
    reading = fixture.READING["pairs"]
    paths = fixture.write(tmp_path, "pairs")
    pq.write_table(pq.read_table(paths[1]).drop_columns(["mu"]), paths[1])
    with pytest.raises(rw.InputError, match="has no column 'mu', but other files"):
        rw.read_log(paths, engine="duckdb", **reading).describe()
    log = rw.read_log(paths[0], engine="duckdb", **reading)
    pq.write_table(pq.read_table(paths[0]).slice(0, 6), paths[0])
    with pytest.raises(rw.ResourceError, match="changed"):
        log.describe()


def test_the_connection_reads_the_log_and_nothing_else(tmp_path) -> None:
    [path, other, _] = fixture.write(tmp_path, "pairs")
    log = rw.read_log(path, engine="duckdb", **fixture.READING["pairs"])
    assert isinstance(log, ScannedLog)
    with open_database("duckdb", log.data, log.reading, {}) as home:
        connection = home.connection  # type: ignore[attr-defined]
        assert connection.execute("SELECT count(*) FROM reweigh_log").fetchone()[0] > 0
        shown = connection.execute("SELECT current_setting('enable_progress_bar_print')").fetchone()
        assert shown == (False,)  # JSON on standard output stays JSON
        for statement in (
            f"SELECT * FROM read_parquet('{other}')",
            f"COPY (SELECT 1) TO '{tmp_path / 'out.csv'}'",
            "SET enable_external_access = true",
            "INSTALL httpfs",
        ):
            with pytest.raises(duckdb.Error):
                connection.execute(statement)
    assert not (tmp_path / "out.csv").exists()


LIMITED = """
import sys
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
import reweigh as rw
n, H = 60_000, 10
rng = np.random.default_rng(0)
order = rng.permutation(n * H)
data = pa.table({
    "episode": [f"episode number {e:012d}" for e in np.repeat(np.arange(n), H)[order]],
    "step": np.tile(np.arange(H), n)[order], "state": rng.integers(0, 20, n * H),
    "action": rng.integers(0, 3, n * H), "reward": rng.random(n * H),
    "behavior_prob": np.full(n * H, 0.25), "pi": rng.random(n * H)})
pq.write_table(data, sys.argv[1])
log = rw.read_log(sys.argv[1], engine="duckdb")
print(rw.moments(log, rw.ColumnPolicy("pi"), ["mis"]).n_episodes)
"""


@pytest.mark.parametrize(("limit", "done"), [("70MB", True), ("1MB", False)])
def test_the_memory_limit_is_respected(limit, done, tmp_path) -> None:
    """Within the limit it spills to the directory it was given, and leaves nothing there."""
    spill = tmp_path / "spill"
    spill.mkdir()
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", LIMITED, str(tmp_path / "log.parquet")],
        capture_output=True,
        text=True,
        env={
            "REWEIGH_MEMORY_LIMIT": limit,
            "REWEIGH_TEMP_DIRECTORY": str(spill),
            "PATH": "",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        },
    )
    if done:
        assert result.stdout == "60000\n", result.stderr
    else:
        assert "ResourceError" in result.stderr
        assert "REWEIGH_MEMORY_LIMIT" in result.stderr.splitlines()[-1]  # and no more advice
    assert list(spill.iterdir()) == []


def test_a_spill_directory_that_is_none_is_refused(monkeypatch) -> None:
    monkeypatch.setenv("REWEIGH_TEMP_DIRECTORY", "/nowhere/at/all")
    with pytest.raises(rw.ResourceError, match="REWEIGH_TEMP_DIRECTORY"):
        rw.read_log(table(), engine="duckdb").describe()


@pytest.mark.parametrize("limit", ["-5", "-5GB", "0GB", "0%", "5", "none", "nanGB", "a lot", "4XB"])
def test_a_memory_limit_that_is_no_size_is_refused(limit, monkeypatch) -> None:
    monkeypatch.setenv("REWEIGH_MEMORY_LIMIT", limit)
    with pytest.raises(rw.UsageError, match=f"REWEIGH_MEMORY_LIMIT={limit!r} is not a size"):
        rw.read_log(table(), engine="duckdb").describe()


@pytest.mark.parametrize("limit", ["400MB", " 0.4 gib", "20%", "400000000 bytes"])
def test_a_memory_limit_is_a_size_or_a_share(limit, monkeypatch) -> None:
    monkeypatch.setenv("REWEIGH_MEMORY_LIMIT", limit)
    assert rw.read_log(table(), engine="duckdb").describe()["rows"] == 6


def test_the_advice_about_memory_is_what_a_user_can_follow(monkeypatch) -> None:
    monkeypatch.setenv("REWEIGH_MEMORY_LIMIT", "1KiB")
    with pytest.raises(rw.ResourceError, match="raise REWEIGH_MEMORY_LIMIT") as caught:
        rw.read_log(table(), engine="duckdb").describe()
    assert "SET " not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_importing_reweigh_imports_neither_ibis_nor_duckdb() -> None:
    code = (
        "import sys, reweigh; print([m for m in ('ibis', 'duckdb', 'pyspark') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


PLAIN = """
import sys
sys.modules["pyarrow_hotfix"] = None  # importing it fails
import fixture
import reweigh as rw
log = rw.read_log(fixture.table("whole"), engine="duckdb", **fixture.READING["whole"])
print(rw.moments(log, fixture.policies("whole")["table"], ["mis", "is"]).n_episodes)
"""


def test_plain_ibis_is_enough() -> None:
    """Without what Ibis's own backends need."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PLAIN],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
    )
    assert done.stdout == f"{3 * fixture.EPISODES}\n", done.stderr


# ---- sites -------------------------------------------------------------------------------------


def test_sites_add_up_to_the_whole_and_none_counts_twice() -> None:
    target, reading = rw.ColumnPolicy("pi"), fixture.READING["pairs"]
    parts = [
        rw.moments(
            rw.read_log(fixture.site_table("pairs", site), engine="duckdb", **reading), target
        )
        for site in fixture.SITES
    ]
    whole = rw.moments(rw.read_log(fixture.table("pairs"), **reading), target)
    total = parts[0] + parts[1] + parts[2]
    for name in ("mis", "is", "dm"):
        together = rw.evaluate(total, estimator=name)
        assert together.value == pytest.approx(rw.evaluate(whole, estimator=name).value, rel=1e-12)
    rows = fixture.site_table("pairs", "north")
    turned = rows.take(np.arange(rows.num_rows)[::-1])
    again = rw.moments(rw.read_log(turned, engine="duckdb", **reading), target)
    assert again.about.sources == parts[0].about.sources
    with pytest.raises(rw.InputError, match="count twice"):
        parts[0] + again
    reward = rows.column("reward").to_numpy().copy()
    reward[-1] += 1e-9
    changed = rows.set_column(rows.column_names.index("reward"), "reward", pa.array(reward))
    other = rw.moments(rw.read_log(changed, engine="duckdb", **reading), target)
    assert other.about.sources != again.about.sources


def test_the_engine_has_the_name_that_it_was_asked_by() -> None:
    assert IbisEngine("duckdb").name == "duckdb"
    assert IbisEngine(None).name == "ibis"
    with pytest.raises(rw.UsageError, match="no engine 'duck'"):
        rw.read_log(table(), engine="duck")
