"""Tables of pandas, polars, pyarrow, Ibis and DuckDB, and Arrow files: one log, one answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import ibis
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pyarrow.feather as feather
import pytest
from cli.commands import Command, log_table

import reweigh as rw

TABLES: dict[str, Callable[[pa.Table], Any]] = {
    "pandas": lambda t: t.to_pandas(),
    "polars": pl.from_arrow,
    "polars LazyFrame": lambda t: pl.from_arrow(t).lazy(),
    "pyarrow batches": lambda t: t.to_batches(max_chunksize=50),
    "pyarrow reader": lambda t: pa.RecordBatchReader.from_batches(t.schema, t.to_batches()),
    "pyarrow dataset": pa_dataset.dataset,
    "pyarrow scanner": lambda t: pa_dataset.dataset(t).scanner(),
    "DuckDB relation": lambda t: duckdb.connect().from_arrow(t),
    "Ibis memtable": ibis.memtable,
    "Ibis table": lambda t: _in_a_database(t),
}


def _in_a_database(table: pa.Table) -> Any:
    connection = ibis.duckdb.connect()
    connection.con.register("given", table)
    connection.con.execute("CREATE TABLE steps AS SELECT * FROM given")
    return connection.table("steps")


def value(data: Any, **options: Any) -> float:
    log = rw.read_log(data, target_prob="pi", **options)
    [result] = rw.evaluate_all(log, rw.ColumnPolicy("pi"), [rw.mis()])
    assert isinstance(result, rw.Estimate)
    return result.value


@pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")  # of Ibis
@pytest.mark.parametrize("kind", TABLES)
def test_every_kind_of_table_gives_the_same_answer(kind: str) -> None:
    table = log_table()
    assert value(TABLES[kind](table)) == pytest.approx(value(table), rel=1e-12)


@pytest.mark.parametrize("engine", ["arrays", "stream", "duckdb"])
@pytest.mark.parametrize("compression", ["uncompressed", "lz4"])
def test_arrow_files(engine: str, compression: Any, tmp_path: Path) -> None:
    table = log_table()
    feather.write_feather(table.slice(0, 90), tmp_path / "a.feather", compression=compression)
    feather.write_feather(table.slice(90), tmp_path / "b.arrow", compression=compression)
    assert value(tmp_path, engine=engine) == pytest.approx(value(table), rel=1e-12)


def test_broken_arrow_files(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    feather.write_feather(log_table(), path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    with pytest.raises(rw.InputError, match="not a complete Arrow file"):
        rw.read_log(path)
    (tmp_path / "b.csv").write_bytes(whole)
    with pytest.raises(rw.InputError, match="named like csv but contains arrow"):
        rw.read_log(tmp_path / "b.csv")
    path.write_text("episode,step\n")
    with pytest.raises(rw.InputError, match="named like arrow but contains csv"):
        rw.read_log(path)


def test_the_command_line_reads_arrow_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.arrow"
    feather.write_feather(log_table(), path)
    command = Command(capsys)
    assert command("init", path, "-o", tmp_path / "c.toml").code == 0
    told = command(
        "evaluate", "--config", tmp_path / "c.toml", "--estimators", "mis", "--json"
    ).json()
    assert told["estimates"][0]["value"] == pytest.approx(value(log_table()), rel=1e-12)
