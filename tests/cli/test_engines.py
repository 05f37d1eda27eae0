"""The engines on the command line: the same answers as in memory."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import ibis
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

import reweigh as rw

from .commands import Command, log_table

ESTIMATORS = "mis,mis-plain,mis-state,dm,is,wis,ssd-is,mdr"


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    path = tmp_path / "log.parquet"
    pq.write_table(log_table(400), path)
    return path


@pytest.mark.parametrize("engine", ["stream", "duckdb"])
def test_engines_print_what_memory_prints(
    command: Command, parquet: Path, policy: Path, engine: str
) -> None:
    base = ("evaluate", parquet, "--target", policy, "--estimators", ESTIMATORS, "--json")
    memory = command(*base, "--engine", "arrays").json()["estimates"]
    found = command(*base, "--engine", engine).json()["estimates"]
    assert [e["estimator"] for e in found] == ESTIMATORS.split(",")
    for mine, theirs in zip(found, memory, strict=True):
        assert mine["value"] == pytest.approx(theirs["value"], rel=1e-9)
        # the error of wis comes from blocks here, and from the rows again in memory
        close = 0.3 if theirs["estimator"] == "wis" else 1e-7
        assert mine["standard_error"] == pytest.approx(theirs["standard_error"], rel=close)


@pytest.mark.parametrize("engine", ["stream", "duckdb"])
@pytest.mark.parametrize("names", ["mis", "wis", "is", "mis,wis,dm"])
def test_a_log_that_was_scanned_is_told_as_far_as_it_is_known(
    command: Command, parquet: Path, policy: Path, engine: str, names: str
) -> None:
    base = ("evaluate", parquet, "--target", policy, "--estimators", names, "--json")
    memory = command(*base, "--engine", "arrays").json()["log"]
    found = command(*base, "--engine", engine).json()["log"]
    assert (found.pop("engine"), found.pop("columns")["state"]) == (engine, ["state"])
    assert found == {key: memory[key] for key in found}
    assert {"source", "episodes", "rows", "horizon", "discount", "states"} <= found.keys()


@pytest.mark.parametrize("engine", ["stream", "duckdb"])
def test_before_a_scan_a_log_knows_how_it_is_read(parquet: Path, engine: str) -> None:
    log = rw.read_log(parquet, engine=engine, horizon=2, discount=0.5)
    assert repr(log) == f"ScannedLog(parquet file log.parquet, engine={engine!r})"
    found = log.description()
    assert (found["source"], found["horizon"], found["discount"]) == (
        "parquet file log.parquet",
        2,
        0.5,
    )
    assert "rows" not in found


@pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")  # of Ibis
def test_a_log_in_a_database_is_named_in_words(parquet: Path, tmp_path: Path) -> None:
    path = tmp_path / "lake.duckdb"
    with duckdb.connect(str(path)) as lake:
        lake.register("rows", log_table(20))
        lake.execute("CREATE TABLE steps AS SELECT * FROM rows")
    log = rw.read_log(path, engine="duckdb", table="steps")
    assert repr(log) == "ScannedLog(table 'steps' of lake.duckdb, engine='duckdb')"
    table = ibis.duckdb.connect().read_parquet(parquet)
    assert rw.read_log(table).description()["source"] == "Ibis table of duckdb"


@pytest.mark.parametrize("engine", ["stream", "duckdb"])
def test_moments_of_any_engine_serve(
    command: Command, parquet: Path, policy: Path, tmp_path: Path, engine: str
) -> None:
    out = tmp_path / "m.parquet"
    options = ("--target", policy, "--engine", engine, "-o", out)
    assert command("moments", parquet, *options).code == 0
    told = command("evaluate", out, "--json").json()["estimates"][0]
    memory = command("evaluate", parquet, "--target", policy, "--json").json()["estimates"][0]
    assert told["value"] == pytest.approx(memory["value"], rel=1e-9)


@pytest.mark.parametrize("engine", ["stream", "duckdb"])
def test_check_describes_and_refuses_alike(
    command: Command, parquet: Path, tmp_path: Path, engine: str
) -> None:
    good = command("check", parquet, "--engine", engine, "--json").json()["log"]
    memory = command("check", parquet, "--json").json()["log"]
    for key in ("episodes", "rows", "horizon", "states", "actions", "reward_range"):
        assert good[key] == pytest.approx(memory[key]), key
    bad = log_table(20)
    bad = bad.set_column(5, "behavior_prob", [[1.5] + [0.5] * 59])
    pq.write_table(bad, tmp_path / "bad.parquet")
    ran = command("check", tmp_path / "bad.parquet", "--engine", engine, "--json")
    assert ran.code == 3
    codes = [fault["code"] for fault in json.loads(ran.out)["faults"]]
    assert codes == [
        fault["code"]
        for fault in command("check", tmp_path / "bad.parquet", "--json").json()["faults"]
    ]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_missing_target_column_is_refused_alike(
    command: Command, parquet: Path, tmp_path: Path, kind: str
) -> None:
    path = parquet
    if kind == "csv":
        path = tmp_path / "log.csv"
        pacsv.write_csv(pq.read_table(parquet), path)
    ran = [
        command("evaluate", path, "--target-prob", "nowhere", "--engine", engine)
        for engine in ("arrays", "stream", "duckdb")
    ]
    assert [one.code for one in ran] == [3, 3, 3]
    assert "there is no column 'nowhere' for the role target_prob" in ran[0].err
    assert ran[0].err == ran[1].err == ran[2].err


@pytest.mark.parametrize("engine", ["stream", "duckdb"])
def test_a_plan_from_any_engine(command: Command, parquet: Path, policy: Path, engine: str) -> None:
    base = ("plan", parquet, "--target", policy, "--half-width", "0.1", "--json")
    memory = command(*base, "--engine", "arrays").json()
    found = command(*base, "--engine", engine).json()
    needs = [(n["estimator"], n["episodes"]) for n in found["estimators"]]
    assert needs == [(n["estimator"], n["episodes"]) for n in memory["estimators"]]
    ran = command("plan", parquet, "--target", policy, "--difference", "0.5", "--engine", engine)
    assert ran.code == 4


def test_sql_is_shown(command: Command, parquet: Path, policy: Path) -> None:
    ran = command("evaluate", parquet, "--target", policy, "--engine", "duckdb", "--show-sql")
    assert ran.code == 0
    assert "SELECT" in ran.out.upper()
    assert "behavior_prob" not in ran.out  # names of the user's columns never reach SQL
    for engine in ("arrays", "stream"):
        ran = command("evaluate", parquet, "--target", policy, "--engine", engine, "--show-sql")
        assert ran.code == 2


def test_the_sql_that_was_run_is_the_one_that_is_shown(
    command: Command, parquet: Path, policy: Path, tmp_path: Path
) -> None:
    base = ("evaluate", parquet, "--target", policy, "--estimators", "mis,wis", "--engine")
    shown = command(*base, "duckdb", "--show-sql").out
    found = command(*base, "duckdb", "--json").json()["estimates"]
    assert [entry["sql"] + "\n" for entry in found] == [shown, shown]
    for engine in ("arrays", "stream"):
        found = command(*base, engine, "--json").json()["estimates"]
        assert [entry["sql"] for entry in found] == [None, None]
    sums = tmp_path / "sums.parquet"
    made = command("moments", parquet, "--target", policy, "--engine", "duckdb", "-o", sums)
    assert made.code == 0
    ran = command("evaluate", sums, "--show-sql")
    assert ran.code == 2
    assert "--show-sql needs an engine with SQL" in ran.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--engine", "sparkle"), "there is no engine 'sparkle'"),
        (("--engine", "stream", "--cut-episodes", "drop"), "needs the log in memory"),
        (("--engine", "stream", "--fit-behavior"), "needs the log in memory"),
        (("--table", "steps"), "needs an engine"),
    ],
)
def test_what_an_engine_cannot_do_is_told(
    command: Command, parquet: Path, policy: Path, options: tuple[str, ...], message: str
) -> None:
    ran = command("evaluate", parquet, "--target", policy, *options)
    assert ran.code == 2
    assert message in ran.err


SPARK = ("--engine", "spark://127.0.0.1:9")


@pytest.mark.parametrize("name", ["evaluate", "moments", "check", "plan"])
@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ((), 2, "there is no LOG: give its files"),
        (SPARK, 2, "there is no LOG: give its files"),
        (("--table", "steps"), 2, "needs a database"),
        (("--table", "steps", "--engine", "duckdb"), 2, "give a DuckDB database as LOG"),
        # a table of Spark is a log, and only Spark is missing
        pytest.param(("--table", "steps", *SPARK), 6, "does not answer", marks=pytest.mark.spark),
    ],
)
def test_a_command_without_a_log(
    command: Command, policy: Path, tmp_path: Path, name: str, options: tuple[str, ...], code: int,
    message: str,
) -> None:  # fmt: skip
    more: dict[str, tuple[object, ...]] = {
        "evaluate": ("--target", policy),
        "moments": ("--target", policy, "-o", tmp_path / "m.parquet"),
        "check": (),
        "plan": ("--target", policy, "--half-width", "0.1"),
    }
    ran = command(name, *options, *more[name])
    assert ran.code == code
    assert message in ran.err


def test_files_and_a_table_of_spark_are_not_one_log(
    command: Command, parquet: Path, policy: Path
) -> None:
    ran = command("evaluate", parquet, "--target", policy, "--table", "steps", *SPARK)
    assert ran.code == 2
    assert "the table 'steps' of Spark is the log" in ran.err
    files = (parquet, parquet)
    ran = command("evaluate", *files, "--target", policy, "--table", "t", "--engine", "duckdb")
    assert ran.code == 2
    assert "from a database: give the database file as the log" in ran.err


def test_a_table_of_a_database(command: Command, tmp_path: Path, policy: Path) -> None:
    with duckdb.connect(str(tmp_path / "lake.duckdb")) as lake:
        lake.register("rows", log_table(400))
        lake.execute("CREATE TABLE steps AS SELECT * FROM rows")
    options = ("--target", policy, "--json")
    table = ("--table", "steps", "--engine", "duckdb")
    found = command("evaluate", tmp_path / "lake.duckdb", *table, *options).json()
    pq.write_table(log_table(400), tmp_path / "log.parquet")
    memory = command("evaluate", tmp_path / "log.parquet", *options).json()
    value = memory["estimates"][0]["value"]
    assert found["estimates"][0]["value"] == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize("name", ["lake.duckdb", "lake.csv"])
@pytest.mark.parametrize("engine", ["auto", "arrays", "stream", "duckdb", SPARK[1]])
def test_a_database_without_a_table_asks_for_one(
    command: Command, tmp_path: Path, policy: Path, engine: str, name: str
) -> None:
    with duckdb.connect(str(tmp_path / name)) as lake:
        lake.execute("CREATE TABLE steps AS SELECT 1 AS step")
    ran = command("evaluate", tmp_path / name, "--target", policy, "--engine", engine)
    assert ran.code == 2
    assert "is a DuckDB database" in ran.err
    assert "--table NAME --engine duckdb" in " ".join(ran.err.split())


def test_a_deterministic_log_is_refused_by_every_engine(
    command: Command, tmp_path: Path, policy: Path
) -> None:
    table = log_table(100)
    table = table.set_column(5, "behavior_prob", [[1.0] * 300])
    pq.write_table(table, tmp_path / "log.parquet")
    for engine in ("arrays", "stream", "duckdb"):
        ran = command("evaluate", tmp_path / "log.parquet", "--target", policy, "--engine", engine)
        assert ran.code == 4
        assert "either the logged policy is deterministic" in ran.err, engine
