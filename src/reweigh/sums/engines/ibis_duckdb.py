"""Where the rows of a log are for Ibis: DuckDB, in this process."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from reweigh.errors import InputError, Place, ResourceError, UsageError, nearest
from reweigh.log.column_types import is_text, plain_schema
from reweigh.log.sources import FileSource, TableSource, is_duckdb
from reweigh.sums.engines.ibis_connect import (
    ROW,
    NamedHome,
    arrow_rows,
    judged,
    named_table,
    needed,
    quoted,
)
from reweigh.system import process
from reweigh.system.process import wait_for

if TYPE_CHECKING:
    from reweigh.sums.read import Reading

MEMORY_LIMIT = "REWEIGH_MEMORY_LIMIT"  # of DuckDB, such as "4GB"; its own default: 80 % of memory
SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(?:%|bytes?|[kmgt]i?b)", re.IGNORECASE)
SHARE = 0.8  # of the memory that the process may use, as DuckDB itself has it
LEAST = 512 << 20  # bytes
WHOLE = {8: "TINYINT", 16: "SMALLINT", 32: "INTEGER", 64: "BIGINT"}  # integers by bits
FILE_ROW = "file_row_number"  # DuckDB's; a file with such a column has no other
NUMBERED = "reweigh_numbered"  # the view of the log with the numbers of its rows
TEMP_DIRECTORY = "REWEIGH_TEMP_DIRECTORY"  # where DuckDB spills what exceeds the limit


@dataclass(eq=False)
class DuckHome(NamedHome):
    """Rows in DuckDB, in this process.

    numbering  makes the query of the log with ROW; None for a table of a database, whose rows have
               no order. Made when a fault is to be named: numbers cost memory or time.
    """

    connection: Any = None
    files: FileSource | None = None
    data: TableSource | FileSource | None = None
    numbering: Callable[[], str] | None = None
    numbered: bool = False

    def number_rows(self) -> bool:
        if self.numbering is None or self.numbered:
            return False
        with duckdb_errors(self.describe(), self.files):
            self.connection.execute(f"CREATE TEMP VIEW {NUMBERED} AS {self.numbering()}")
        self.numbered = True
        return True

    def place(self, row: int | None) -> Place:
        return Place(None) if row is None or self.data is None else self.data.place(row)

    def open(self, names: Sequence[str]) -> tuple[Any, list[pa.DataType]]:
        if not self.numbered:
            return super().open(names)
        columns = [*_numbered(len(self.kinds)), ROW]
        whole = named_table(NUMBERED, [*self.kinds, pa.int64()], columns)
        at = [self.columns.index(name) for name in names]
        chosen = {f"c{i}": whole[f"c{j}"] for i, j in enumerate(at)} | {ROW: whole[ROW]}
        return whole.select(**chosen), [self.kinds[j] for j in at]

    def put(self, name: str, table: pa.Table) -> Any:
        self.connection.register(name, table)
        return named_table(name, table.schema.types, table.column_names)

    def run(self, expression: Any, sql: str | None = None) -> pa.Table:
        query = sql or self.sql(expression)
        with duckdb_errors(self.describe(), self.files):
            return wait_for(
                lambda: self._answer(query),
                self.connection.interrupt,
                lambda: self.connection.query_progress() / 100,
            )

    def _answer(self, query: str) -> pa.Table:
        answer = self.connection.sql(query)
        return pa.table({}) if answer is None else answer.to_arrow_table()


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
        if files is not None and files.kind == "parquet":
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


def _memory_limit() -> str | None:
    """The limit that was asked for; DuckDB takes a negative one for none at all."""
    limit = os.environ.get(MEMORY_LIMIT)
    if not limit:
        most, there = process.allowed(), process.physical()
        # DuckDB knows the machine's memory and its control group, not the limit of its addresses
        less = most is not None and there is not None and most < there
        return f"{int(SHARE * most)} bytes" if less and most is not None else None
    size = SIZE.fullmatch(limit.strip())
    if size is None or float(size[1]) <= 0:
        raise UsageError(f"{MEMORY_LIMIT}={limit!r} is no size; write one such as 4GB, 512MiB, 60%")
    return limit


def open_duckdb(
    data: Any, reading: Reading, policy: str | None, stack: contextlib.ExitStack
) -> DuckHome:
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
    if limit := _memory_limit():
        config["memory_limit"] = limit
    is_database = not isinstance(data, TableSource | FileSource)
    path = os.fspath(data) if is_database else ":memory:"
    if is_database and not Path(path).is_file():
        raise ResourceError(f"there is no DuckDB database {path!r}")
    if is_database and not is_duckdb(Path(path)):
        raise UsageError(
            f"{path!r} is no DuckDB database, and table={reading.table!r} names a table of a "
            "DuckDB database or of Spark; a file of rows is read without it"
        )
    try:
        connection = duckdb.connect(path, read_only=is_database, config=config)
    except duckdb.OutOfMemoryException as error:
        raise _out_of_memory(error) from error
    except duckdb.Error as error:
        wrong = InputError if is_database else UsageError
        raise wrong(f"DuckDB cannot open {path!r}: {error}") from error
    stack.callback(connection.close)
    source = data if isinstance(data, FileSource) else None
    with duckdb_errors(_described(data, reading), source):
        # a query tells how far it is only with DuckDB's own bar, which would be among our output
        connection.execute("SET enable_progress_bar_print = false")
        connection.execute("SET enable_progress_bar = true")
        return _duckdb_log(connection, data, reading, policy)


def _duckdb_log(connection: Any, data: Any, reading: Reading, policy: str | None) -> DuckHome:
    """A view of the log in which columns have numbers for names."""
    numbering: Callable[[], str] | None = None
    if isinstance(data, FileSource) and data.kind == "parquet":
        view, given, allowed = _parquet_rows(connection, data, reading, policy)
        rows: int | None = sum(rows for rows, _ in data.parts)
        if not any(name.lower() == FILE_ROW for s in data.parquet_schemas() for name in s.names):
            numbering = partial(_numbered_files, connection, data, given)
    elif isinstance(data, TableSource | FileSource):
        table = arrow_rows(data, reading, policy)
        given, rows, allowed = plain_schema(table.schema), table.num_rows, []
        connection.register("reweigh_raw", table.rename_columns(_numbered(table.num_columns)))
        view = _select("reweigh_raw", given.names, given)
        numbering = partial(_numbered_table, connection, table, given)
    else:
        name = _table_name(connection, str(reading.table))
        described = connection.sql(f"SELECT * FROM {name} LIMIT 0").to_arrow_table().schema
        given, rows, allowed = described, None, []
        view = _select(name, given.names, given)
    connection.execute(f"CREATE TEMP VIEW reweigh_log AS {view}")
    # from here on the connection reads these files and no others, whatever it is told
    connection.execute("SET allowed_paths = ?", [allowed])
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    held = connection.sql("SELECT * FROM reweigh_log LIMIT 0").to_arrow_table().schema.types
    names = data.names if isinstance(data, TableSource | FileSource) else given.names
    return DuckHome(
        _described(data, reading),
        given.names,
        judged(given.types, held),
        "duckdb",
        "reweigh_log",
        names,
        rows,
        holds=True,
        connection=connection,
        files=data if isinstance(data, FileSource) else None,
        data=None if numbering is None else data,
        numbering=numbering,
    )


def _described(data: Any, reading: Reading) -> str:
    if isinstance(data, TableSource | FileSource):
        return data.describe()
    return f"table {reading.table!r} of {Path(data).name}"


def _parquet_rows(
    connection: Any, data: FileSource, reading: Reading, policy: str | None
) -> tuple[str, pa.Schema, list[str]]:
    """The query of the needed columns, their types over all files, and what it may read.

    Columns are taken by position, from files that have the same ones: DuckDB finds columns of
    several files by name, and tells names that differ in upper and lower case alone not apart.
    """
    schemas = data.parquet_schemas()
    united = data.unite(schemas, needed(reading, policy, data.names))
    parts: dict[tuple[tuple[str, ...], tuple[pa.DataType, ...]], list[Path]] = {}
    for path, schema in zip(data.paths, schemas, strict=True):
        kinds = tuple(schema.field(name).type for name in united.names)
        parts.setdefault((tuple(schema.names), kinds), []).append(path)
    given = plain_schema(united)
    selects: list[str] = []
    allowed: set[str] = set()
    for i, ((names, _), paths) in enumerate(parts.items()):
        literal = [os.fspath(path.absolute()) for path in paths]
        patterns = [_only_itself(path) for path in literal]
        allowed |= {*literal, *patterns}
        raw = connection.read_parquet(patterns, hive_partitioning=False)
        raw.create_view(f"reweigh_raw{i}")
        selects.append(_select(f"reweigh_raw{i}", names, given))
    return " UNION ALL ".join(selects), given, sorted(allowed)


def _numbered_files(connection: Any, data: FileSource, given: pa.Schema) -> str:
    """The query of Parquet files with the numbers of their rows, one file after the other."""
    selects = []
    before = 0
    for i, (path, schema) in enumerate(zip(data.paths, data.parquet_schemas(), strict=True)):
        raw = connection.read_parquet(
            _only_itself(os.fspath(path.absolute())), hive_partitioning=False, file_row_number=True
        )
        raw.create_view(f"reweigh_file{i}")  # the number stands after the columns of the file
        selects.append(_select(f"reweigh_file{i}", schema.names, given, before))
        before += data.parts[i][0]
    return " UNION ALL ".join(selects)


def _numbered_table(connection: Any, table: pa.Table, given: pa.Schema) -> str:
    """The query of a table in memory with the numbers of its rows."""
    count = pa.array(np.arange(table.num_rows))
    numbered = table.rename_columns(_numbered(table.num_columns)).append_column(ROW, count)
    connection.register("reweigh_raw_numbered", numbered)
    return _select("reweigh_raw_numbered", given.names, given, 0)


def _select(table: str, names: Sequence[str], given: pa.Schema, before: int | None = None) -> str:
    """Columns of a table, all of whose columns these are, by position and as these types. With
    `before`, a count of rows, the table has one column more: the number of the row."""
    chosen = [
        f"{_as_kind(f'c{names.index(field.name)}', field.type)} AS c{i}"
        for i, field in enumerate(given)
    ]
    columns = _numbered(len(names))
    if before is not None:
        chosen.append(f'{ROW} + {before} AS "{ROW}"')
        columns.append(ROW)
    listed = ", ".join(chosen) or "NULL"  # columns that are not there are told later
    return f"SELECT {listed} FROM {table} AS raw({', '.join(columns)})"


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


def _only_itself(path: str) -> str:
    """A pattern that matches this path alone, although its name may look like a pattern."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in path)


def _table_name(connection: Any, wanted: str) -> str:
    """A table of a database, given as table or schema.table, as SQL."""
    rows = connection.execute("SELECT table_schema, table_name FROM information_schema.tables")
    found = rows.fetchall()
    matches = [pair for pair in found if pair[1] == wanted or ".".join(pair) == wanted]
    if len(matches) == 1:
        return ".".join(quoted(part) for part in matches[0])
    known = [".".join(pair) if len(matches) > 1 else pair[1] for pair in found]
    if matches:
        raise UsageError(f"several tables are called {wanted!r}: say which, as schema.table")
    listed = ", ".join(map(repr, known)) or "none"
    raise UsageError(f"there is no table {wanted!r}{nearest(wanted, known)} (tables: {listed})")
