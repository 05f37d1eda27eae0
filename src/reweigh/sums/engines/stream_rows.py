"""The rows of a log, batch after batch: Parquet, CSV and JSON files, and tables in memory.

A batch has the same columns and types throughout, as if all had been read at once. Parquet has its
types in the file. A CSV is read twice: first to see what its columns are (one word among the
numbers makes all of a column's ids texts) and how many rows each file has, then for the rows.

A thread of its own reads the next batches while one is in use. Rows whose episodes do not stand
together are sorted by DuckDB, on disk where they exceed its memory.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv as pacsv

from reweigh.errors import InputError, Place, input_error
from reweigh.log import csv_files as csvfile
from reweigh.log.csv_files import CsvPart, TextStream, bad_byte, open_stream
from reweigh.log.json_files import JsonSource
from reweigh.log.parquet_files import ParquetSource, file_errors
from reweigh.log.sources import FileSource, TableSource
from reweigh.log.states import is_text, plain_table
from reweigh.system import optional_module
from reweigh.system.process import Report

Data = FileSource | TableSource
CSV_BLOCK = 1 << 22
UNREAD = {b"cells": b"numbers, but for some"}  # the log's contract then names the bad ones
PARQUET_BUFFER = 1 << 18
ROW = "row of the log"  # a column of sorted rows: the place where each stood before


@dataclass(frozen=True, eq=False)
class RowSource:
    """The named columns of a log, in batches of at most `size` rows.

    threads  1: each batch is read on demand; 2: the next rows are read meanwhile; more: and
             several columns at a time
    order    the columns by which the rows are sorted, if any; with ROW among them they have that
             column, too
    """

    data: Data
    names: list[str]
    schema: pa.Schema
    rows: int
    size: int
    report: Report | None = None
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)  # of integers, where known
    threads: int = 1
    order: tuple[str, ...] = ()

    @property
    def num_rows(self) -> int:
        return self.rows

    def sorted_by(self, *names: str) -> RowSource:
        return replace(self, order=names)

    def batches(
        self, names: Sequence[str] | None = None, size: int | None = None
    ) -> Iterator[pa.Table]:
        """All rows, of some of the columns; a file that changed meanwhile is refused."""
        chosen = self.names if names is None else list(names)
        schema = pa.schema([self.schema.field(name) for name in chosen])
        done = 0
        tables = _read(self.data, schema, size or self.size, self.threads > 2)
        if self.order and names is None:
            tables = sorted_rows(self, tables, schema, size or self.size)
        for table in tables:
            if table.num_rows == 0:
                continue
            done += table.num_rows
            yield table
            del table
            if self.report is not None and names is None:
                self.report(done, self.rows)

    def range_of(self, name: str) -> tuple[int, int] | None:
        """Smallest and largest value of an integer column; None if it is none, or empty."""
        if not pa.types.is_integer(self.schema.field(name).type):
            return None
        if name not in self.ranges:
            found = _parquet_range(self.data, name) or self._scan_range(name)
            if found is None:
                return None
            self.ranges[name] = found
        return self.ranges[name]

    def _scan_range(self, name: str) -> tuple[int, int] | None:
        low, high = None, None
        for table in self.batches([name]):
            found = pc.min_max(table.column(name)).as_py()
            if found["min"] is not None:
                low = found["min"] if low is None else min(low, found["min"])
                high = found["max"] if high is None else max(high, found["max"])
        return None if low is None or high is None else (low, high)


@dataclass(frozen=True, eq=False)
class Opened:
    """A log before its rows are read. Has the interface of a source that the reading code uses."""

    data: Data
    size: int
    wanted: tuple[str, ...] = ()  # columns without a role
    states: tuple[str, ...] = ()  # columns in which a CSV's fractions are floats, not names
    report: Report | None = None
    threads: int = 1
    time: str | None = None
    row_sources: list[RowSource] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return self.data.names

    def describe(self) -> str:
        return self.data.describe()

    def place(self, row: int) -> Place:
        return self.data.place(row)

    def read(self, names: Sequence[str], ids: Sequence[str]) -> RowSource:
        """Opens the rows: a log without any shows here."""
        extra = [name for name in self.wanted if name in self.names]
        listed = list(dict.fromkeys([*names, *extra]))
        floats = [name for name in self.states if name in ids]
        rows = open_rows(self.data, listed, ids, floats, self.size, self.report, self.time)
        self.row_sources[:] = [replace(rows, threads=self.threads)]
        return self.row_sources[0]


def open_rows(
    data: Data,
    names: list[str],
    ids: Sequence[str],
    floats: Sequence[str],
    size: int,
    report: Report | None,
    time: str | None = None,
) -> RowSource:
    """Find the types of the columns and the number of rows."""
    if isinstance(data, TableSource):
        schema = plain_table(data.table.select(names).slice(0, 0)).schema
        return RowSource(data, names, schema, data.table.num_rows, size, report)
    if data.kind == "csv":
        decimal = data.csv.decimal
        columns = {n: _Survey(n in ids, n in floats, decimal, is_time=n == time) for n in names}
        return _survey_csv(data, columns, size, report)
    if isinstance(data, JsonSource):
        return RowSource(data, names, data.schema_of(names), data.num_rows, size, report)
    assert isinstance(data, ParquetSource)
    schema = data.unite(data.schemas(), names)
    return RowSource(data, names, schema, sum(rows for rows, _ in data.parts), size, report)


def _parquet(path: Path) -> pq.ParquetFile:
    """Without a memory map and without buffering whole row groups: memory stays small."""
    with file_errors(path, "is not a complete Parquet file"):
        return pq.ParquetFile(
            path,
            memory_map=False,
            pre_buffer=False,
            buffer_size=PARQUET_BUFFER,
            page_checksum_verification=True,
        )


def sorted_rows(
    rows: RowSource, tables: Iterator[pa.Table], schema: pa.Schema, size: int
) -> Iterator[pa.Table]:
    """All rows in the order of `rows.order`."""
    duckdb = optional_module("duckdb", "sql", "sorting a log whose rows are not in order")
    from reweigh.sums.engines.sql_databases import TEMP_DIRECTORY, duckdb_errors, memory_limit

    wide = schema.append(pa.field(ROW, pa.int64())) if ROW in rows.order else schema
    narrow = _narrow(rows, wide)
    errors: list[Exception] = []

    def batches() -> Iterator[pa.RecordBatch]:
        first = 0
        try:
            for table in tables:
                numbers = pa.array(np.arange(first, first + table.num_rows))
                first += table.num_rows
                if ROW in rows.order:
                    table = table.append_column(ROW, numbers)
                with file_errors(Path(rows.data.describe()), "contradicts its own statistics"):
                    table = table.cast(narrow)
                yield from table.to_batches()
        except Exception as error:  # DuckDB would reword it
            errors.append(error)
            raise

    keys = ", ".join('"' + name.replace('"', '""') + '"' for name in rows.order)
    files = rows.data if isinstance(rows.data, FileSource) else None
    home = os.environ.get(TEMP_DIRECTORY) or tempfile.gettempdir()
    with tempfile.TemporaryDirectory(prefix="reweigh-", dir=home) as spill:
        config = {"temp_directory": spill, "threads": rows.threads}
        config |= {"memory_limit": limit} if (limit := memory_limit()) else {}
        with duckdb.connect(":memory:", config=config) as connection:
            connection.register("rows", pa.RecordBatchReader.from_batches(narrow, batches()))
            try:
                with duckdb_errors(rows.data.describe(), files):
                    query = f"SELECT * FROM rows ORDER BY {keys}"
                    for batch in connection.sql(query).to_arrow_reader(size):
                        yield pa.Table.from_batches([batch]).cast(wide)
            except InputError as error:
                raise errors[0] if errors else error from None


def _narrow(rows: RowSource, schema: pa.Schema) -> pa.Schema:
    """The smallest integers that hold the columns: half as much to sort."""
    for i, column in enumerate(schema):
        span = rows.range_of(column.name) if column.name != ROW else (0, rows.rows)
        for bits, kind in ((7, pa.int8()), (15, pa.int16()), (31, pa.int32())):
            if span is not None and -(1 << bits) <= span[0] and span[1] < 1 << bits:
                schema = schema.set(i, column.with_type(kind))
                break
    return schema


def _read(data: Data, schema: pa.Schema, size: int, threads: bool = False) -> Iterator[pa.Table]:
    if isinstance(data, TableSource):
        table = data.table.select(schema.names)
        for start in range(0, table.num_rows, size):
            yield plain_table(table.slice(start, size))
        return
    data.refuse_change()
    for path in data.paths:
        if data.kind == "csv":
            yield from _read_csv(data, path, schema, size)
        elif isinstance(data, JsonSource):
            for table in data.batches(path, schema.names):
                yield from (table.slice(at, size) for at in range(0, table.num_rows, size))
        else:
            yield from _read_parquet(path, schema, size, threads)
    data.refuse_change()


def _read_parquet(path: Path, schema: pa.Schema, size: int, threads: bool) -> Iterator[pa.Table]:
    with _parquet(path) as file:
        as_it_is = None
        batches = file.iter_batches(size, columns=schema.names, use_threads=threads)
        while True:
            with file_errors(path, "is damaged"):  # not around the yield: others' errors are theirs
                batch = next(batches, None)
                if batch is None:
                    return
                batch.validate(full=True)  # a damaged page may contain bytes that are not text
                table = pa.Table.from_batches([batch])
                if as_it_is is None:
                    kept = plain_table(table.slice(0, 0)).schema
                    as_it_is = table.schema.equals(schema) and kept.equals(schema)
                if not as_it_is:
                    table = table.select(schema.names)
                    table = plain_table(
                        table if table.schema.equals(schema) else table.cast(schema)
                    )
            yield table
            del batch, table  # so that the next one may take their memory


def _parquet_range(data: Data, name: str) -> tuple[int, int] | None:
    """From the statistics of the row groups; None where one has none, or some that cannot be."""
    if not isinstance(data, ParquetSource):
        return None
    lows, highs = [], []
    for path in data.paths:
        with _parquet(path) as file:
            about = file.metadata
        for g in range(about.num_row_groups):
            group = about.row_group(g)
            columns = [group.column(c) for c in range(group.num_columns)]
            [known] = [c.statistics for c in columns if c.path_in_schema == name]
            if group.num_rows == 0:
                continue
            if known is None or not known.has_min_max or known.min > known.max:
                return None
            lows.append(known.min)
            highs.append(known.max)
    return (min(lows), max(highs)) if lows else None


# --- CSV -----------------------------------------------------------------------------------------


def _open_csv(
    watched: TextStream, data: FileSource, types: dict[str, pa.DataType], invalid_row: Any = None
) -> Any:
    return pacsv.open_csv(
        watched,
        read_options=pacsv.ReadOptions(block_size=CSV_BLOCK, use_threads=False),
        parse_options=pacsv.ParseOptions(
            delimiter=data.csv.delimiter,
            ignore_empty_lines=False,
            invalid_row_handler=invalid_row,
            newlines_in_values=True,
        ),
        convert_options=pacsv.ConvertOptions(
            column_types=types,
            include_columns=list(types),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            decimal_point=data.csv.decimal,
        ),
    )


def _read_csv(data: FileSource, path: Path, schema: pa.Schema, size: int) -> Iterator[pa.Table]:
    types = {field.name: field.type for field in schema}
    unread = [(i, f.name) for i, f in enumerate(schema) if f.metadata == UNREAD]
    try:
        with open_stream(path) as stream:
            for batch in _open_csv(TextStream(stream), data, types):
                table = pa.Table.from_batches([batch])
                for i, name in unread:
                    dotted = pc.replace_substring(table.column(name), data.csv.decimal, ".")
                    table = table.set_column(i, name, dotted)
                for start in range(0, table.num_rows, size):
                    yield table.slice(start, size)
    except pa.ArrowInvalid as error:
        raise InputError(f"{str(path)!r} cannot be read as CSV: {error}") from error


@dataclass
class _Survey:
    """What the cells of a CSV column are, over all files."""

    is_id: bool
    may_be_floats: bool
    decimal: str
    integers: bool = True  # of an id: all are written as integers
    numbers: bool = True  # of a number, or a time: all can be read
    is_time: bool = False
    words: set[str] = field(default_factory=set)
    low: int | None = None
    high: int | None = None

    def look(self, cells: pa.Array) -> None:
        if self.is_time or not self.is_id:
            dotted = pc.replace_substring(cells, self.decimal, ".")
            self.numbers = self.numbers and not is_text(csvfile.numbers_if_all(dotted).type)
        if not self.is_id:
            return
        words = pc.unique(cells).drop_null()
        if self.may_be_floats:
            self.words.update(words.to_pylist())
        if len(words) == 0 or not self.integers:
            return
        self.integers = pc.all(pc.match_substring_regex(words, csvfile.INTEGER)).as_py()
        if self.integers:
            found = pc.min_max(pc.cast(words, pa.int64())).as_py()
            self.low = found["min"] if self.low is None else min(self.low, found["min"])
            self.high = found["max"] if self.high is None else max(self.high, found["max"])

    def field(self, name: str) -> pa.Field:
        if not self.is_id:
            return (
                pa.field(name, pa.float64())
                if self.numbers
                else pa.field(name, pa.string(), metadata=UNREAD)
            )
        if self.integers and self.low is not None:
            return pa.field(name, pa.int64())
        if self.is_time and self.numbers:
            return pa.field(name, pa.float64())
        if self.may_be_floats and self.words:
            column = pa.chunked_array([pa.array(sorted(self.words)).dictionary_encode()])
            if pa.types.is_floating(csvfile.floats_if_most(column, self.decimal).type):
                return pa.field(name, pa.float64())
        return pa.field(name, pa.string())


def _survey_csv(
    data: FileSource, columns: dict[str, _Survey], size: int, report: Report | None
) -> RowSource:
    data.refuse_change()
    data.parts[:] = [_look_through(path, data, columns) for path in data.paths]
    schema = pa.schema([seen.field(name) for name, seen in columns.items()])
    ranges = {
        name: (seen.low, seen.high)
        for name, seen in columns.items()
        if seen.integers and seen.low is not None and seen.high is not None
    }
    rows = sum(count for count, _ in data.parts)
    return RowSource(data, list(columns), schema, rows, size, report, ranges)


def _look_through(path: Path, data: FileSource, columns: dict[str, _Survey]) -> tuple[int, bool]:
    """Rows of a file, and whether each is on its own line."""
    known = csvfile.header(path, data.csv)
    absent = [name for name in columns if name not in known]
    if absent:
        raise InputError(f"{path.name} has no column {absent[0]!r}, but other files have it")
    ragged: list[Any] = []
    rows = 0

    def keep(row: Any) -> str:
        ragged.append(row)
        return "skip"

    try:
        with open_stream(path) as stream:
            watched = TextStream(stream)
            for batch in _open_csv(watched, data, dict.fromkeys(columns, pa.string()), keep):
                rows += batch.num_rows
                for name, seen in columns.items():
                    seen.look(batch.column(name))
    except pa.ArrowInvalid as error:
        found = bad_byte(path) or f"{str(path)!r} cannot be read as CSV: {error}"
        raise InputError(found) from error
    if watched.has_nul:
        raise InputError(bad_byte(path) or f"{str(path)!r} contains a NUL byte")
    part = CsvPart(pa.table({"row": pa.nulls(rows)}), watched.line_ends)
    if ragged:
        raise input_error(str(path), [csvfile._ragged_fault(ragged, part)])
    return rows, part.one_line_per_row
