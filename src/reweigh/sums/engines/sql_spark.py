"""Where the rows of a log are for SQL: Spark, local, a standalone cluster or Spark Connect."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import socket
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from reweigh.errors import InputError, ResourceError, UsageError
from reweigh.log.parquet_files import ParquetSource
from reweigh.log.sources import FileSource, TableSource
from reweigh.log.states import is_text, plain_schema, plain_table
from reweigh.sums.engines.sql_connect import (
    Home,
    arrow_rows,
    files_alike,
    ibis_kind,
    judged,
    refuse_twins,
)
from reweigh.sums.read import Reading

LOCAL = ("local", "spark://127.0.0.1:", "spark://localhost:")


@dataclass(eq=False)
class SparkHome(Home):
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
        raise UsageError(f"Spark does not understand what it was asked: {error}") from error
    except PySparkException as error:
        raise ResourceError(f"Spark could not finish: {error}") from error


def open_spark(
    engine: str, data: Any, reading: Reading, policy: str | None, stack: contextlib.ExitStack
) -> SparkHome:
    """The log as a view of a Spark session, with numbers for names."""
    is_parquet = isinstance(data, ParquetSource)
    if is_parquet:  # before a session, which may take long to start
        united, alike = files_alike(data, reading, policy)
        for held, paths in alike:
            otherwise = ", or read the log with engine='stream' or 'arrays'"
            refuse_twins(held, paths[0].name, "Spark", otherwise)
    session = spark_session(engine)
    given: pa.Schema | None = None  # as Arrow tells it
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
        frame = session.createDataFrame(pa.table(columns, [f"c{i}" for i in range(len(columns))]))
    else:
        with _spark_errors():
            frame = session.table(str(reading.table))
    columns = list(frame.columns) if given is None else given.names
    numbered = frame.toDF(*[f"c{i}" for i in range(len(columns))])
    kinds = list(numbered.limit(0).toArrow().schema.types)
    source, names = f"table {reading.table!r} of Spark", columns
    if given is not None:
        source, names, kinds = data.describe(), data.names, judged(given.types, kinds)
    log = f"reweigh_log_{uuid.uuid4().hex}"
    home = SparkHome(source, names, columns, kinds, "spark", log, session=session, stack=stack)
    home.view(log, numbered)
    return home


def _chosen(frame: Any, united: pa.Schema) -> Any:
    """These columns, by position: a name may hold what Spark reads as something else. Spark reads
    unsigned integers of 64 bits as decimals, which beside signed ones they are not."""
    known = frame.columns
    numbered = frame.toDF(*[f"c{i}" for i in range(len(known))])
    columns = [numbered[f"c{known.index(kept.name)}"] for kept in united]
    signed = [pa.types.is_int64(kept.type) for kept in united]
    return numbered.select(
        *[c.cast("bigint") if whole else c for c, whole in zip(columns, signed, strict=True)]
    )


def _literal(path: Path) -> str:
    """A path that Spark takes as it is, although it holds what Spark reads as a pattern."""
    return "file://" + re.sub(r"[*?\[\]{}\\]", r"\\\g<0>", os.fspath(path.absolute()))


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
