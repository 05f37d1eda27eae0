"""Where the rows of a log are for Ibis: DuckDB, in this process."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from reweigh.errors import InputError, ResourceError, UsageError, nearest
from reweigh.logs.sources import FileSource, TableSource
from reweigh.moments.engines.ibis_connect import (
    NamedHome,
    arrow_rows,
    named_table,
    needed,
    quoted,
)
from reweigh.progress import asking

if TYPE_CHECKING:
    from reweigh.logs.scanned import Reading

MEMORY_LIMIT = "REWEIGH_MEMORY_LIMIT"  # of DuckDB, such as "4GB"; its own default: 80 % of memory
SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(?:%|bytes?|[kmgt]i?b)", re.IGNORECASE)
TEMP_DIRECTORY = "REWEIGH_TEMP_DIRECTORY"  # where DuckDB spills what exceeds the limit


@dataclass(eq=False)
class DuckHome(NamedHome):
    """Rows in DuckDB, in this process."""

    connection: Any = None

    def put(self, name: str, table: pa.Table) -> Any:
        self.connection.register(name, table)
        return named_table(name, table.schema.types, table.column_names)

    def run(self, expression: Any, sql: str | None = None) -> pa.Table:
        with duckdb_errors(), asking(lambda: self.connection.query_progress() / 100):
            return self.connection.sql(sql or self.sql(expression)).to_arrow_table()


@contextlib.contextmanager
def duckdb_errors() -> Iterator[None]:
    import duckdb

    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise _out_of_memory(error) from error
    except (duckdb.IOException, duckdb.PermissionException) as error:
        raise ResourceError(f"DuckDB cannot read the log: {error}") from error
    except (duckdb.InvalidInputException, duckdb.ConversionException) as error:
        raise InputError(f"DuckDB cannot read the log: {error}") from error


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
        return None
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
    try:
        connection = duckdb.connect(path, read_only=is_database, config=config)
    except duckdb.OutOfMemoryException as error:
        raise _out_of_memory(error) from error
    except duckdb.Error as error:
        wrong = InputError if is_database else UsageError
        raise wrong(f"DuckDB cannot open {path!r}: {error}") from error
    stack.callback(connection.close)
    with duckdb_errors():
        # a query tells how far it is only with DuckDB's own bar, which would be among our output
        connection.execute("SET enable_progress_bar_print = false")
        connection.execute("SET enable_progress_bar = true")
        return _duckdb_log(connection, data, reading, policy)


def _duckdb_log(connection: Any, data: Any, reading: Reading, policy: str | None) -> DuckHome:
    """A view of the log in which columns have numbers for names."""
    allowed: list[str] = []
    columns = names = rows = united = None
    name = "reweigh_raw"
    if isinstance(data, FileSource) and data.kind == "parquet":
        united = data.unite(data.parquet_schemas(), needed(reading, policy, data.names))
        rows = sum(rows for rows, _ in data.parts)
        literal = [os.fspath(path.absolute()) for path in data.paths]
        patterns = [_only_itself(path) for path in literal]
        allowed = sorted({*literal, *patterns})
        raw = connection.read_parquet(patterns, union_by_name=True, hive_partitioning=False)
        raw.create_view(name)
        source = data.describe()
    elif isinstance(data, TableSource | FileSource):
        table = arrow_rows(data, reading, policy)
        columns, names, source = table.column_names, data.names, data.describe()
        rows = table.num_rows
        connection.register(name, table.rename_columns([f"c{i}" for i in range(len(columns))]))
    else:
        source = f"table {reading.table!r} of {Path(data).name}"
        name = _table_name(connection, str(reading.table))
    if columns is None:
        columns = [row[0] for row in connection.execute(f"DESCRIBE {name}").fetchall()]
    numbered = ", ".join(f"c{i}" for i in range(len(columns)))
    chosen = "*" if united is None else _as_united(columns, united)
    view = f"SELECT {chosen} FROM {name} AS raw({numbered})"
    connection.execute(f"CREATE TEMP VIEW reweigh_log AS {view}")
    # from here on the connection reads these files and no others, whatever it is told
    connection.execute("SET allowed_paths = ?", [allowed])
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    kinds = connection.sql("SELECT * FROM reweigh_log LIMIT 0").to_arrow_table().schema.types
    names = columns if names is None else names
    return DuckHome(
        source, columns, list(kinds), "duckdb", "reweigh_log", names, rows, connection=connection
    )


def _as_united(columns: list[str], united: pa.Schema) -> str:
    """All columns, integers of several files as what they are together: of 64 bits with and without
    a sign DuckDB makes one type of 128 bits."""
    signed = [f"c{columns.index(f.name)}" for f in united if pa.types.is_int64(f.type)]
    cast = ", ".join(f"CAST({c} AS BIGINT) AS {c}" for c in signed)
    return f"* REPLACE ({cast})" if cast else "*"


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
