"""Where the rows of a log are for Ibis: Spark, local, a standalone cluster or Spark Connect."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import socket
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from reweigh.errors import InputError, ResourceError, UsageError
from reweigh.log.column_types import is_text, plain_schema, plain_table
from reweigh.log.sources import FileSource, TableSource
from reweigh.sums.engines.ibis_connect import (
    NamedHome,
    arrow_rows,
    ibis_kind,
    judged,
    named_table,
    needed,
    refuse_twins,
)

if TYPE_CHECKING:
    from reweigh.sums.read import Reading

LOCAL = ("local", "spark://127.0.0.1:", "spark://localhost:")


@dataclass(eq=False)
class SparkHome(NamedHome):
    """Rows in Spark: local, a standalone cluster, or Spark Connect."""

    session: Any = None
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def put(self, name: str, table: pa.Table) -> Any:
        name = f"{name}_{self.log.rpartition('_')[2]}"  # a session may serve several at once
        _spark_view(self.session, self.session.createDataFrame(table), name, self.stack)
        return named_table(name, table.schema.types, table.column_names)

    def run(self, expression: Any, sql: str | None = None) -> pa.Table:
        with _spark_errors():
            return self.session.sql(sql or self.sql(expression)).toArrow()


@contextlib.contextmanager
def _spark_errors() -> Iterator[None]:
    from pyspark.errors import AnalysisException, PySparkException

    try:
        yield
    except AnalysisException as error:
        raise UsageError(f"Spark does not understand what it was asked: {error}") from error
    except PySparkException as error:
        raise ResourceError(f"Spark could not finish: {error}") from error


def _spark_view(session: Any, frame: Any, name: str, stack: contextlib.ExitStack) -> None:
    frame.createOrReplaceTempView(name)
    stack.callback(session.catalog.dropTempView, name)


def open_spark(
    engine: str, data: Any, reading: Reading, policy: str | None, stack: contextlib.ExitStack
) -> SparkHome:
    """The log as a view of a Spark session, with numbers for names."""
    is_parquet = isinstance(data, FileSource) and data.kind == "parquet"
    if is_parquet:  # before a session, which may take long to start
        schemas = data.parquet_schemas()
        united = data.unite(schemas, needed(reading, policy, data.names))
        for path, schema in zip(data.paths, schemas, strict=True):
            otherwise = ", or read the log with engine='stream' or 'arrays'"
            refuse_twins(schema.names, path.name, "Spark", otherwise)
        parts = _parts(data, schemas, united.names)
    session = spark_session(engine)
    given: pa.Schema | None = None  # as Arrow tells it
    if is_parquet:
        with _spark_errors():
            frames = [_chosen(session.read.parquet(*paths), united) for paths in parts.values()]
            frame = functools.reduce(lambda a, b: a.union(b), frames)
        given = plain_schema(united)
    elif isinstance(data, TableSource | FileSource):
        table = plain_table(arrow_rows(data, reading, policy))
        given = table.schema
        columns = [_for_spark(column) for column in table.columns]
        frame = session.createDataFrame(pa.table(columns, [f"c{i}" for i in range(len(columns))]))
    else:
        with _spark_errors():
            frame = session.table(str(reading.table))
    columns = frame.columns if given is None else given.names
    numbered = frame.toDF(*[f"c{i}" for i in range(len(columns))])
    log = f"reweigh_log_{uuid.uuid4().hex}"
    _spark_view(session, numbered, log, stack)
    kinds = list(numbered.limit(0).toArrow().schema.types)
    if given is None:
        source, names = f"table {reading.table!r} of Spark", list(columns)
    else:
        source, names, kinds = data.describe(), data.names, judged(given.types, kinds)
    return SparkHome(
        source, list(columns), kinds, "spark", log, names, session=session, stack=stack
    )


def _parts(
    data: FileSource, schemas: list[pa.Schema], columns: list[str]
) -> dict[pa.Schema, list[str]]:
    """The files by the types of these columns: Spark reads files of one type, and unites those of
    several (32 and 64 bits) only after reading."""
    parts: dict[pa.Schema, list[str]] = {}
    for path, schema in zip(data.paths, schemas, strict=True):
        kinds = pa.schema([schema.field(name).remove_metadata() for name in columns])
        parts.setdefault(kinds, []).append(_literal(path))
    return parts


def _chosen(frame: Any, united: pa.Schema) -> Any:
    """These columns, by position: a name may hold what Spark reads as something else. Spark reads
    unsigned integers of 64 bits as decimals, which beside signed ones they are not."""
    known = frame.columns
    numbered = frame.toDF(*[f"c{i}" for i in range(len(known))])
    chosen = []
    for kept in united:
        column = numbered[f"c{known.index(kept.name)}"]
        chosen.append(column.cast("bigint") if pa.types.is_int64(kept.type) else column)
    return numbered.select(*chosen)


def _literal(path: Path) -> str:
    """A path that Spark takes as it is, although it holds what Spark reads as a pattern."""
    text = os.fspath(path.absolute())
    return "file://" + "".join(f"\\{c}" if c in "*?[]{}\\" else c for c in text)


def _for_spark(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Spark knows no categories, no unsigned numbers and no column without a type. Of what reweigh
    does not read, only which cells are null counts."""
    kind = column.type
    if ibis_kind(kind) == "binary":
        return pc.if_else(column.is_valid(), True, None)
    if is_text(kind) or pa.types.is_null(kind):
        return column.cast(pa.string())
    if pa.types.is_unsigned_integer(kind):
        try:
            return column.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise InputError(f"Spark holds no unsigned numbers of 64 bits: {error}") from error
    return column


def _refuse_absent(engine: str) -> None:
    """Spark tries for minutes to reach a server that is not there; this tells at once."""
    scheme, found, rest = engine.partition("://")
    if not found:
        return
    errors = []
    for address in rest.partition("/")[0].split(","):  # several masters may stand by
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
                f"before asking for {engine!r}"
            )
        return active
    builder = SparkSession.builder.master(engine).appName("reweigh")
    builder = builder.config("spark.ui.enabled", "false")
    if engine.startswith(LOCAL):  # nobody outside needs to reach the driver
        builder = builder.config("spark.driver.host", "127.0.0.1")
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
    try:
        return builder.getOrCreate()
    except Exception as error:
        raise ResourceError(
            f"Spark at {engine} does not start (it needs Java 17): {error}"
        ) from error
