"""Which engine reads a log: by name, or by what the log is."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reweigh.errors import UsageError

if TYPE_CHECKING:
    from reweigh.sums.scanned_log import Scanner

IN_MEMORY = "arrays"
NAMES = ("auto", IN_MEMORY, "stream", "duckdb", "spark://host:port", "sc://host:port", "local[2]")
STREAM_FROM = 1 << 29  # bytes of files from which reading all into memory is no longer sensible
SPARK = ("spark://", "sc://", "local[", "local")


def find_engine(engine: str, data: Any, paths: tuple[Path, ...] | None) -> Scanner | None:
    """The scanner for a log, None for the engine in memory; `paths` are the log's files, if any."""
    if not isinstance(engine, str):
        raise unknown(engine)
    if engine == "auto":
        if is_ibis_table(data):
            return _ibis(None)
        large = sum(path.stat().st_size for path in paths or ()) >= STREAM_FROM
        return _stream() if large else None
    known = engine in (IN_MEMORY, "stream", "duckdb") or is_spark(engine)
    if known and is_ibis_table(data):
        raise UsageError(
            f"an Ibis table is read by its own backend: leave engine={engine!r} out, or give a file"
        )
    if engine == IN_MEMORY:
        return None
    if engine == "stream":
        return _stream()
    if engine == "duckdb" or is_spark(engine):
        return _ibis(engine)
    raise unknown(engine)


def check_table(engine: str, data: Any, table: str | None) -> None:
    """A table stands in a DuckDB database, whose file is the log, or in Spark's catalogue."""
    if table is None or not isinstance(engine, str):
        return
    if engine == "duckdb" and not isinstance(data, str | os.PathLike):
        given = "nothing" if data is None else type(data).__name__
        raise UsageError(
            f"engine='duckdb' reads the table {table!r} from a database: give its file as the log; "
            f"got {given}"
        )
    if is_spark(engine) and data is not None:
        raise UsageError(
            f"the table {table!r} of Spark is the log: give no files with it, or leave it out"
        )


def is_spark(engine: str) -> bool:
    return engine.startswith(SPARK)


def is_ibis_table(data: Any) -> bool:
    """Without importing Ibis, which takes a second."""
    module = type(data).__module__
    return module.split(".")[0] == "ibis" and type(data).__name__ == "Table"


def in_memory(data: Any) -> Any:
    """A table that Ibis only holds (`ibis.memtable`) as an Arrow table; all else as it is."""
    if not is_ibis_table(data):
        return data
    held = importlib.import_module("ibis.expr.operations").InMemoryTable
    return data.to_pyarrow() if data.op().find(held) else data


def _stream() -> Scanner:
    return importlib.import_module("reweigh.sums.engines.stream").StreamEngine()  # type: ignore[no-any-return]


def _ibis(engine: str | None) -> Scanner:
    return importlib.import_module("reweigh.sums.engines.ibis").IbisEngine(engine)  # type: ignore[no-any-return]


def unknown(engine: object) -> UsageError:
    return UsageError(f"there is no engine {engine!r} (engines: {', '.join(NAMES)})")
