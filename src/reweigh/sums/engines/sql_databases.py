"""Where the rows of a log are for SQL: DuckDB in this process, and Spark (local, a standalone
cluster or Spark Connect)."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import socket
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from reweigh.errors import InputError, ResourceError, UsageError, nearest
from reweigh.log.parquet_files import ParquetSource
from reweigh.log.sources import FileSource, TableSource, is_duckdb
from reweigh.log.states import is_text, plain_schema, plain_table
from reweigh.log.times import is_temporal, time_values
from reweigh.sums.engines.sql_connect import (
    Database,
    arrow_rows,
    contract_types,
    files_alike,
    ibis_kind,
    numbered,
    quoted,
    refuse_twins,
)
from reweigh.sums.read import Reading
from reweigh.system import optional_module, process

MEMORY_LIMIT = "REWEIGH_MEMORY_LIMIT"  # of DuckDB, such as "4GB"; its own default: 80 % of memory
TEMP_DIRECTORY = "REWEIGH_TEMP_DIRECTORY"  # where DuckDB spills what exceeds the limit
SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(?:%|bytes?|[kmgt]i?b)", re.IGNORECASE)
SHARE = 0.8  # of the memory that the process may use, as DuckDB itself has it
LEAST = 512 << 20  # bytes
WHOLE = {8: "TINYINT", 16: "SMALLINT", 32: "INTEGER", 64: "BIGINT"}  # integers by bits
LOG = "reweigh_log"  # the view of the log
LOCAL = ("local", "spark://127.0.0.1:", "spark://localhost:")


# ---- DuckDB ------------------------------------------------------------------------------------


@dataclass(eq=False)
class DuckDatabase(Database):
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
        "DuckDB needs more memory than its limit, or more disk space for temporary files; "
        f"raise {MEMORY_LIMIT}, or name a larger disk in {TEMP_DIRECTORY}: "
        f"{str(error).splitlines()[0]}"
    )


def memory_limit() -> str | None:
    """The requested limit; DuckDB reads a negative one as no limit."""
    limit = os.environ.get(MEMORY_LIMIT)
    if not limit:
        most, there = process.allowed(), process.physical()
        # DuckDB reads the machine's memory and its control group, not the address-space limit
        if most is None or there is None or most >= there:
            return None
        return f"{int(SHARE * most)} bytes"
    size = SIZE.fullmatch(limit.strip())
    if size is None or float(size[1]) <= 0:
        raise UsageError(
            f"{MEMORY_LIMIT}={limit!r} is not a size; write one such as 4GB, 512MiB, 60%"
        )
    return limit


def open_duckdb(
    data: Any, reading: Reading, policy: Mapping[str, str], stack: contextlib.ExitStack
) -> DuckDatabase:
    """Connect, and make a view of the log in which columns have numbers for names."""
    in_process = isinstance(data, TableSource | FileSource)
    source = data.describe() if in_process else f"table {reading.table!r} of {Path(data).name}"
    connection = _connect(None if in_process else os.fspath(data), reading, stack)
    rows: int | None = None
    allowed: list[str] = []
    files = data if isinstance(data, FileSource) else None
    with duckdb_errors(source, files):
        # a query reports progress only with DuckDB's own bar, which would be in our output
        connection.execute("SET enable_progress_bar_print = false")
        connection.execute("SET enable_progress_bar = true")
        if isinstance(files, ParquetSource):
            given, view, allowed = _parquet_view(connection, files, reading, policy)
            rows = sum(count for count, _ in files.parts)
        elif in_process:
            table = arrow_rows(data, reading, policy)
            given, rows = plain_schema(table.schema), table.num_rows
            connection.register("reweigh_raw", table.rename_columns(numbered(len(given))))
            view = _select("reweigh_raw", given.names, given)
        else:
            name = _table_name(connection, str(reading.table))
            given = connection.sql(f"SELECT * FROM {name} LIMIT 0").to_arrow_table().schema
            view = _select(name, given.names, given)
        connection.execute(f"CREATE TEMP VIEW {LOG} AS {view}")
        # from here on the connection can read only these files
        connection.execute("SET allowed_paths = ?", [allowed])
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        held = connection.sql(f"SELECT * FROM {LOG} LIMIT 0").to_arrow_table().schema
    names = data.names if in_process else given.names
    kinds = contract_types(given.types, held.types)
    return DuckDatabase(source, names, given.names, kinds, "duckdb", LOG, rows, connection, files)


def _connect(path: str | None, reading: Reading, stack: contextlib.ExitStack) -> Any:
    """A connection to the database at this path, or to none."""
    duckdb = optional_module("duckdb", "sql", "the engine duckdb")
    # without as much it would not raise an error, but end the process
    process.require(LEAST, "DuckDB", "raise its limit, or read the log with engine='stream'")
    spill = os.environ.get(TEMP_DIRECTORY) or tempfile.gettempdir()
    if not Path(spill).is_dir():
        raise ResourceError(f"{TEMP_DIRECTORY}={spill!r} is not a directory")
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
            f"{path!r} is not a DuckDB database, and table={reading.table!r} names a table "
            "of a DuckDB database or of Spark; read a file of rows without it"
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
    connection: Any, data: ParquetSource, reading: Reading, policy: Mapping[str, str]
) -> tuple[pa.Schema, str, list[str]]:
    """The types of the needed columns over all files, their query, and what it may read.

    Columns are taken by position, from files that have the same ones: DuckDB finds columns of
    several files by name, and treats names that differ only in case as equal.
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
    listed = ", ".join(chosen) or "NULL"  # missing columns are reported later
    return f"SELECT {listed} FROM {table} AS raw({', '.join(numbered(len(names)))})"


def _as_kind(column: str, kind: pa.DataType) -> str:
    """A column as the type that it has over all files. DuckDB itself would unite integers with and
    without a sign to 128 bits, and large ones with small floats to small floats. What reweigh does
    not read stays as it is."""
    if pa.types.is_floating(kind):
        return f"CAST({column} AS DOUBLE)"
    if pa.types.is_integer(kind):
        unsigned = "U" if pa.types.is_unsigned_integer(kind) else ""
        return f"CAST({column} AS {unsigned}{WHOLE[kind.bit_width]})"
    if is_temporal(kind):  # where there is no zone it is that of UTC
        zoned = pa.types.is_timestamp(kind) and kind.tz is not None
        return f"epoch_us({column if zoned else f'CAST({column} AS TIMESTAMP)'})"
    if is_text(kind) or pa.types.is_null(kind):
        # UUIDs are texts for Arrow; a collation might treat two texts as equal
        return f'CAST({column} AS VARCHAR) COLLATE "binary"'
    return column


def _table_name(connection: Any, wanted: str) -> str:
    """A table of a database, given as table or schema.table, as SQL."""
    rows = connection.execute("SELECT table_schema, table_name FROM information_schema.tables")
    tables = rows.fetchall()
    matches = [pair for pair in tables if wanted in (pair[1], ".".join(pair))]
    if len(matches) == 1:
        return ".".join(quoted(part) for part in matches[0])
    if matches:
        raise UsageError(f"several tables are called {wanted!r}: name one as schema.table")
    known = [name for _, name in tables]
    listed = ", ".join(map(repr, known)) or "none"
    raise UsageError(f"there is no table {wanted!r}{nearest(wanted, known)} (tables: {listed})")


# ---- Spark -------------------------------------------------------------------------------------


@dataclass(eq=False)
class SparkDatabase(Database):
    """Rows in Spark: local, a standalone cluster, or Spark Connect."""

    session: Any = None
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def view(self, name: str, frame: Any) -> None:
        frame.createOrReplaceTempView(name)
        self.stack.callback(self.session.catalog.dropTempView, name)

    def put(self, name: str, table: pa.Table) -> Any:
        name = f"{name}_{self.log.rpartition('_')[2]}"  # a session may serve several at once
        self.view(name, self.session.createDataFrame(table))
        return super().put(name, table)

    def answer(self, query: str) -> pa.Table:
        with _spark_errors():
            return self.session.sql(query).toArrow()


@contextlib.contextmanager
def _spark_errors() -> Iterator[None]:
    from pyspark.errors import AnalysisException, PySparkException

    try:
        yield
    except AnalysisException as error:
        raise UsageError(f"Spark cannot understand the query: {error}") from error
    except PySparkException as error:
        raise ResourceError(f"Spark could not finish: {error}") from error


def open_spark(
    engine: str, data: Any, reading: Reading, policy: Mapping[str, str], stack: contextlib.ExitStack
) -> SparkDatabase:
    """The log as a view of a Spark session, with numbers for names."""
    is_parquet = isinstance(data, ParquetSource)
    if is_parquet:  # before a session, which may take long to start
        united, alike = files_alike(data, reading, policy)
        for held, paths in alike:
            otherwise = ", or read the log with engine='stream' or 'arrays'"
            refuse_twins(held, paths[0].name, "Spark", otherwise)
    session = spark_session(engine)
    given: pa.Schema | None = None  # as Arrow has it
    if is_parquet:
        with _spark_errors():
            frames = [
                _chosen(session.read.parquet(*(_literal(path) for path in paths)), united)
                for _, paths in alike
            ]
            frame = functools.reduce(lambda a, b: a.union(b), frames)
        given = plain_schema(united)
    elif isinstance(data, TableSource | FileSource):
        table = plain_table(arrow_rows(data, reading, policy))
        given = table.schema
        columns = [_for_spark(column) for column in table.columns]
        frame = session.createDataFrame(pa.table(columns, numbered(len(columns))))
    else:
        with _spark_errors():
            frame = session.table(str(reading.table))
    columns = list(frame.columns) if given is None else given.names
    by_number = frame.toDF(*numbered(len(columns)))
    kinds = list(by_number.limit(0).toArrow().schema.types)
    source, names = f"table {reading.table!r} of Spark", columns
    if given is not None:
        source, names, kinds = data.describe(), data.names, contract_types(given.types, kinds)
    log = f"reweigh_log_{uuid.uuid4().hex}"
    db = SparkDatabase(source, names, columns, kinds, "spark", log, session=session, stack=stack)
    db.view(log, by_number)
    return db


def _chosen(frame: Any, united: pa.Schema) -> Any:
    """These columns, by position: a name may hold what Spark reads as something else. Spark reads
    unsigned integers of 64 bits as decimals, which beside signed ones they are not."""
    known = frame.columns
    by_number = frame.toDF(*numbered(len(known)))
    columns = [by_number[f"c{known.index(kept.name)}"] for kept in united]
    signed = [pa.types.is_int64(kept.type) for kept in united]
    return by_number.select(
        *[c.cast("bigint") if whole else c for c, whole in zip(columns, signed, strict=True)]
    )


def _literal(path: Path) -> str:
    """A path that Spark takes as it is, although it holds what Spark reads as a pattern."""
    return "file://" + re.sub(r"[*?\[\]{}\\]", r"\\\g<0>", os.fspath(path.absolute()))


def _for_spark(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Spark has no categories, no unsigned numbers and no column without a type. For types that
    reweigh does not read, only the nulls count."""
    kind = column.type
    if is_temporal(kind):
        values, known, _ = time_values(column)
        return pa.chunked_array([pa.array(values, mask=~known)])
    if ibis_kind(kind) == "binary":
        return pc.if_else(column.is_valid(), True, None)
    if is_text(kind) or pa.types.is_null(kind):
        return column.cast(pa.string())
    if pa.types.is_unsigned_integer(kind):
        try:
            return column.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise InputError(f"Spark has no unsigned numbers of 64 bits: {error}") from error
    return column


def _refuse_absent(engine: str) -> None:
    """Spark tries for minutes to reach a missing server; this reports it at once."""
    scheme, separator, rest = engine.partition("://")
    if not separator:
        return
    errors = []
    for address in rest.partition("/")[0].split(","):  # there may be several masters
        host, _, port = address.rpartition(":") if ":" in address else (address, "", "15002")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=10):
                return
        except (OSError, ValueError) as error:
            errors.append(f"{address}: {error}")
    what = "Spark Connect" if scheme == "sc" else "the Spark master"
    raise ResourceError(f"{what} at {engine} does not answer: {'; '.join(errors)}")


def spark_session(engine: str) -> Any:
    """The session of this master or Spark Connect server: the running one, or a new one."""
    if importlib.util.find_spec("pyspark") is None:
        raise UsageError(
            f"the engine {engine!r} needs Spark: pip install 'reweigh[spark]', and Java 17"
        )
    _refuse_absent(engine)
    from pyspark.sql import SparkSession

    if engine.startswith("sc://"):
        try:
            return SparkSession.builder.remote(engine).getOrCreate()
        except Exception as error:
            raise ResourceError(f"Spark Connect at {engine} does not answer: {error}") from error
    active = SparkSession.getActiveSession()
    if active is not None:
        master = active.sparkContext.master
        if master != engine:
            raise UsageError(
                f"this process already uses the Spark master {master!r}; stop that session "
                f"before you use {engine!r}"
            )
        return active
    builder = SparkSession.builder.master(engine).appName("reweigh")
    builder = builder.config("spark.ui.enabled", "false")
    if engine.startswith(LOCAL):  # nothing outside needs to reach the driver
        builder = builder.config("spark.driver.host", "127.0.0.1")
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
    try:
        return builder.getOrCreate()
    except Exception as error:
        raise ResourceError(
            f"Spark at {engine} does not start (it needs Java 17): {error}"
        ) from error
