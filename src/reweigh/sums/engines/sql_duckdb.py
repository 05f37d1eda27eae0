"""Where the rows of a log are for SQL: DuckDB, in this process."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from reweigh.errors import InputError, ResourceError, UsageError, nearest
from reweigh.log.parquet_files import ParquetSource
from reweigh.log.sources import FileSource, TableSource, is_duckdb
from reweigh.log.states import is_text, plain_schema
from reweigh.sums.engines.sql_connect import Home, arrow_rows, files_alike, judged, quoted
from reweigh.sums.read import Reading
from reweigh.system import process

MEMORY_LIMIT = "REWEIGH_MEMORY_LIMIT"  # of DuckDB, such as "4GB"; its own default: 80 % of memory
TEMP_DIRECTORY = "REWEIGH_TEMP_DIRECTORY"  # where DuckDB spills what exceeds the limit
SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(?:%|bytes?|[kmgt]i?b)", re.IGNORECASE)
SHARE = 0.8  # of the memory that the process may use, as DuckDB itself has it
LEAST = 512 << 20  # bytes
WHOLE = {8: "TINYINT", 16: "SMALLINT", 32: "INTEGER", 64: "BIGINT"}  # integers by bits
LOG = "reweigh_log"  # the view of the log


@dataclass(eq=False)
class DuckHome(Home):
    """Rows in DuckDB, in this process."""

    connection: Any = None
    files: FileSource | None = None
    holds: ClassVar[bool] = True

    def put(self, name: str, table: pa.Table) -> Any:
        self.connection.register(name, table)
        return super().put(name, table)

    def answer(self, query: str) -> pa.Table:
        def run() -> pa.Table:
            answer = self.connection.sql(query)
            return pa.table({}) if answer is None else answer.to_arrow_table()

        with duckdb_errors(self.source, self.files):
            return process.wait_for(
                run, self.connection.interrupt, lambda: self.connection.query_progress() / 100
            )


@contextlib.contextmanager
def duckdb_errors(source: str, files: FileSource | None) -> Iterator[None]:
    """What DuckDB raises while it reads the log: a file that Arrow finds damaged too is named."""
    import duckdb

    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise _out_of_memory(error) from error
    except (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException):
        raise  # the query is wrong
    except (duckdb.Error, UnicodeError, RuntimeError) as error:
        if process.is_shortage(error):
            raise
        if isinstance(files, ParquetSource):
            files.refuse_damage()
        elsewhere = isinstance(error, duckdb.IOException | duckdb.PermissionException)
        first = (str(error).splitlines() or [""])[0]
        raise (ResourceError if elsewhere else InputError)(
            f"DuckDB cannot read the log, {source}: {first}"
        ) from error


def _out_of_memory(error: Exception) -> ResourceError:
    """Without DuckDB's further lines, which advise settings of its own connection."""
    return ResourceError(
        "DuckDB needs more memory than its limit, or more disk for what it spills; raise "
        f"{MEMORY_LIMIT}, or name a larger disk in {TEMP_DIRECTORY}: {str(error).splitlines()[0]}"
    )


def memory_limit() -> str | None:
    """The limit that was asked for; DuckDB takes a negative one for none at all."""
    limit = os.environ.get(MEMORY_LIMIT)
    if not limit:
        most, there = process.allowed(), process.physical()
        # DuckDB knows the machine's memory and its control group, not the limit of its addresses
        if most is None or there is None or most >= there:
            return None
        return f"{int(SHARE * most)} bytes"
    size = SIZE.fullmatch(limit.strip())
    if size is None or float(size[1]) <= 0:
        raise UsageError(f"{MEMORY_LIMIT}={limit!r} is no size; write one such as 4GB, 512MiB, 60%")
    return limit


def open_duckdb(
    data: Any, reading: Reading, policy: str | None, stack: contextlib.ExitStack
) -> DuckHome:
    """Connect, and make a view of the log in which columns have numbers for names."""
    in_process = isinstance(data, TableSource | FileSource)
    source = data.describe() if in_process else f"table {reading.table!r} of {Path(data).name}"
    connection = _connect(None if in_process else os.fspath(data), reading, stack)
    rows: int | None = None
    allowed: list[str] = []
    files = data if isinstance(data, FileSource) else None
    with duckdb_errors(source, files):
        # a query tells how far it is only with DuckDB's own bar, which would be among our output
        connection.execute("SET enable_progress_bar_print = false")
        connection.execute("SET enable_progress_bar = true")
        if isinstance(files, ParquetSource):
            given, view, allowed = _parquet_view(connection, files, reading, policy)
            rows = sum(count for count, _ in files.parts)
        elif in_process:
            table = arrow_rows(data, reading, policy)
            given, rows = plain_schema(table.schema), table.num_rows
            connection.register("reweigh_raw", table.rename_columns(_numbered(len(given))))
            view = _select("reweigh_raw", given.names, given)
        else:
            name = _table_name(connection, str(reading.table))
            given = connection.sql(f"SELECT * FROM {name} LIMIT 0").to_arrow_table().schema
            view = _select(name, given.names, given)
        connection.execute(f"CREATE TEMP VIEW {LOG} AS {view}")
        # from here on the connection reads these files and no others, whatever it is told
        connection.execute("SET allowed_paths = ?", [allowed])
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        held = connection.sql(f"SELECT * FROM {LOG} LIMIT 0").to_arrow_table().schema
    names = data.names if in_process else given.names
    kinds = judged(given.types, held.types)
    return DuckHome(source, names, given.names, kinds, "duckdb", LOG, rows, connection, files)


def _connect(path: str | None, reading: Reading, stack: contextlib.ExitStack) -> Any:
    """A connection to the database at this path, or to none."""
    try:
        import duckdb
    except ImportError as error:
        raise UsageError(
            "the engine duckdb needs the package duckdb: pip install duckdb"
        ) from error
    # without as much it would not raise an error, but end the process
    process.require(LEAST, "DuckDB", "raise its limit, or read the log with engine='stream'")
    spill = os.environ.get(TEMP_DIRECTORY) or tempfile.gettempdir()
    if not Path(spill).is_dir():
        raise ResourceError(f"{TEMP_DIRECTORY}={spill!r} is no directory")
    config = {
        "temp_directory": stack.enter_context(
            tempfile.TemporaryDirectory(prefix="reweigh-", dir=spill)
        ),
        "preserve_insertion_order": "false",  # sums do not need it, and it costs memory
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
    }
    if limit := memory_limit():
        config["memory_limit"] = limit
    if path is not None and not Path(path).is_file():
        raise ResourceError(f"there is no DuckDB database {path!r}")
    if path is not None and not is_duckdb(Path(path)):
        raise UsageError(
            f"{path!r} is no DuckDB database, and table={reading.table!r} names a table of a "
            "DuckDB database or of Spark; a file of rows is read without it"
        )
    try:
        connection = duckdb.connect(path or ":memory:", read_only=path is not None, config=config)
    except duckdb.OutOfMemoryException as error:
        raise _out_of_memory(error) from error
    except duckdb.Error as error:
        wrong = UsageError if path is None else InputError
        raise wrong(f"DuckDB cannot open {path or ':memory:'!r}: {error}") from error
    stack.callback(connection.close)
    return connection


def _parquet_view(
    connection: Any, data: ParquetSource, reading: Reading, policy: str | None
) -> tuple[pa.Schema, str, list[str]]:
    """The types of the needed columns over all files, their query, and what it may read.

    Columns are taken by position, from files that have the same ones: DuckDB finds columns of
    several files by name, and tells names that differ in upper and lower case alone not apart.
    """
    united, alike = files_alike(data, reading, policy)
    given, selects, allowed = plain_schema(united), [], set()
    for i, (names, paths) in enumerate(alike):
        literal = [os.fspath(path.absolute()) for path in paths]
        # patterns that match these paths alone, although a name may look like a pattern
        patterns = [re.sub(r"[*?[]", r"[\g<0>]", path) for path in literal]
        allowed |= {*literal, *patterns}
        raw = connection.read_parquet(patterns, hive_partitioning=False)
        raw.create_view(f"reweigh_raw{i}")
        selects.append(_select(f"reweigh_raw{i}", names, given))
    return given, " UNION ALL ".join(selects), sorted(allowed)


def _select(table: str, names: Sequence[str], given: pa.Schema) -> str:
    """Columns of a table, all of whose columns these are, by position and as these types."""
    chosen = [
        f"{_as_kind(f'c{names.index(field.name)}', field.type)} AS c{i}"
        for i, field in enumerate(given)
    ]
    listed = ", ".join(chosen) or "NULL"  # columns that are not there are told later
    return f"SELECT {listed} FROM {table} AS raw({', '.join(_numbered(len(names)))})"


def _as_kind(column: str, kind: pa.DataType) -> str:
    """A column as the type that it has over all files. DuckDB itself would unite integers with and
    without a sign to 128 bits, and large ones with small floats to small floats. What reweigh does
    not read stays as it is."""
    if pa.types.is_floating(kind):
        return f"CAST({column} AS DOUBLE)"
    if pa.types.is_integer(kind):
        unsigned = "U" if pa.types.is_unsigned_integer(kind) else ""
        return f"CAST({column} AS {unsigned}{WHOLE[kind.bit_width]})"
    if is_text(kind) or pa.types.is_null(kind):
        # UUIDs are texts for Arrow; a collation might take two texts for one
        return f'CAST({column} AS VARCHAR) COLLATE "binary"'
    return column


def _numbered(count: int) -> list[str]:
    return [f"c{i}" for i in range(count)]


def _table_name(connection: Any, wanted: str) -> str:
    """A table of a database, given as table or schema.table, as SQL."""
    rows = connection.execute("SELECT table_schema, table_name FROM information_schema.tables")
    tables = rows.fetchall()
    matches = [pair for pair in tables if wanted in (pair[1], ".".join(pair))]
    if len(matches) == 1:
        return ".".join(quoted(part) for part in matches[0])
    if matches:
        raise UsageError(f"several tables are called {wanted!r}: say which, as schema.table")
    known = [name for _, name in tables]
    listed = ", ".join(map(repr, known)) or "none"
    raise UsageError(f"there is no table {wanted!r}{nearest(wanted, known)} (tables: {listed})")
