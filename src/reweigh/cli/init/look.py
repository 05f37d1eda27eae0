"""A first look at a file: its first rows, and what each column holds."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as pacsv

from reweigh.errors import Fault, InputError, input_error
from reweigh.log import csv_files as csvfile
from reweigh.log.csv_files import BLOCK, CsvFormat, TextStream, open_stream
from reweigh.log.parquet_files import file_errors, open_parquet
from reweigh.log.sources import FileSource, open_source
from reweigh.log.states import encode_arrow, floats, is_number, is_text, plain_column, texts

ROWS = 100_000  # looked at; roles show in far fewer
DELIMITERS = ",;\t|"
WITH_COMMA = r"^[-+]?[0-9]*,[0-9]+$"

Codes = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Seen:
    """A column: `kind` is whole, number, truth, text, empty (nulls alone) or other."""

    name: str
    kind: str
    column: pa.ChunkedArray

    @property
    def rows(self) -> int:
        return len(self.column)

    @property
    def nulls(self) -> int:
        return int(self.column.null_count)

    @cached_property
    def codes(self) -> Codes:
        """(N,) a number for each value, -1 for null."""
        column = self.column
        if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
            column = pc.cast(column, pa.string())
        return encode_arrow(column)[0]

    @cached_property
    def distinct(self) -> int:
        return 0 if self.kind in ("empty", "other") else int(self.codes.max()) + 1

    @cached_property
    def values(self) -> Floats:
        """(N,) numbers, NaN where null; only of numbers and truths."""
        column = self.column
        if self.kind == "truth":
            truths = csvfile.truth(column)
            assert truths is not None
            column = pc.cast(truths, pa.int8())
        return np.asarray(floats(column).fill_null(np.nan).to_numpy(zero_copy_only=False), float)

    @property
    def content(self) -> str:
        """In words."""
        if self.kind == "number":
            return f"numbers in [{self.values.min():g}, {self.values.max():g}]"
        return f"{self.distinct:,} values"

    @property
    def is_numeric(self) -> bool:
        return self.kind in ("whole", "number")

    @property
    def is_label(self) -> bool:
        return self.kind in ("whole", "text", "truth")

    @cached_property
    def is_flag(self) -> bool:
        """Truth values, or numbers of which each is 0 or 1."""
        if self.kind == "truth":
            return True
        return self.is_numeric and bool(np.isin(self.values, (0.0, 1.0)).all())

    def within(self, low: float, high: float) -> bool:
        return self.is_numeric and bool(np.all((self.values >= low) & (self.values <= high)))

    @cached_property
    def has_fractions(self) -> bool:
        return self.is_numeric and bool(np.any(self.values != np.rint(self.values)))


@dataclass(frozen=True)
class Look:
    """The first rows of a log, column by column; `whole` if there are no more."""

    files: int
    first: Path
    kind: str
    csv: CsvFormat
    columns: tuple[Seen, ...]
    rows: int
    whole: bool


def look_at(paths: list[Path], delimiter: str | None, decimal: str | None) -> Look:
    """The first rows of the first file. How a CSV is written is found out where it is not told."""
    source = open_source([str(path) for path in paths], CsvFormat())
    if source.kind != "csv":
        csvfile.refuse_elsewhere(source.describe(), delimiter=delimiter, decimal=decimal)
    if not isinstance(source, FileSource):  # an Arrow file is a table already
        table, first = source.table.slice(0, ROWS), paths[0]
        columns = [_from_arrow(name, table.column(name)) for name in source.names]
        return _looked(1, first, "arrow", CsvFormat(), columns, table, len(source.table) <= ROWS)
    first = source.paths[0]
    form = CsvFormat()
    if source.kind == "csv":
        form = CsvFormat(delimiter or _delimiter(first), decimal or ".")
        table, whole = _csv_rows(first, form)  # as texts, whatever the decimal sign
        if decimal is None and form.delimiter != ",":
            form = CsvFormat(form.delimiter, _decimal(table))
        columns = [_from_text(name, table.column(name), form) for name in table.column_names]
    else:
        names = source.names  # refuses duplicates
        table, whole = _parquet_rows(first)
        columns = [_from_arrow(name, table.column(name)) for name in names]
    many = len(source.paths)
    return _looked(many, first, source.kind, form, columns, table, whole and many == 1)


def _looked(
    files: int,
    first: Path,
    kind: str,
    form: CsvFormat,
    columns: list[Seen],
    table: pa.Table,
    whole: bool,
) -> Look:
    if table.num_rows == 0:
        raise input_error(
            str(first), [Fault("no-episodes", "there are no rows", "give a log with rows")]
        )
    return Look(files, first, kind, form, tuple(columns), table.num_rows, whole)


def _delimiter(path: Path) -> str:
    """The character that makes the most columns of the first line."""
    with open_stream(path) as stream:
        start = stream.read(1 << 16).removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")

    def columns(delimiter: str) -> int:
        try:
            return len(next(csv.reader(io.StringIO(start, newline=""), delimiter=delimiter), []))
        except csv.Error:
            return 0

    return max(DELIMITERS, key=columns)  # the first of equals


def _csv_rows(path: Path, form: CsvFormat) -> tuple[pa.Table, bool]:
    """The first rows as texts, and whether they are all."""
    names = csvfile.header(path, form)
    try:
        with open_stream(path) as stream:
            reader = pacsv.open_csv(
                TextStream(stream),
                read_options=pacsv.ReadOptions(block_size=BLOCK),
                parse_options=pacsv.ParseOptions(
                    delimiter=form.delimiter, ignore_empty_lines=False, newlines_in_values=True
                ),
                convert_options=pacsv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()),
                    null_values=[""],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
            return _first(reader, reader.schema)
    except pa.ArrowInvalid as error:
        csvfile.read(path, form, names, names)  # says which row it is
        raise InputError(f"{str(path)!r} cannot be read as CSV: {error}") from error


def _parquet_rows(path: Path) -> tuple[pa.Table, bool]:
    with file_errors(path, "is damaged"), open_parquet(path) as file:
        rows, all_of_them = _first(file.iter_batches(batch_size=ROWS), file.schema_arrow)
        rows.validate(full=True)  # a damaged page may hold bytes that are no text
        return rows, all_of_them


def _first(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> tuple[pa.Table, bool]:
    taken: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if rows >= ROWS and batch.num_rows:
            return pa.Table.from_batches(taken, schema).slice(0, ROWS), False
        taken.append(batch)
        rows += batch.num_rows
    return pa.Table.from_batches(taken, schema).slice(0, ROWS), rows <= ROWS


def _decimal(table: pa.Table) -> str:
    """A comma, if a column holds numbers that are written with it."""
    for column in table.columns:
        cells = column.drop_null()
        if len(cells) and pc.all(pc.match_substring_regex(cells, WITH_COMMA)).as_py():
            return ","
    return "."


def _from_text(name: str, column: pa.ChunkedArray, form: CsvFormat) -> Seen:
    """What the cells of a CSV are: 007 is a text, as `read_log` has it."""
    if column.null_count == len(column):
        return Seen(name, "empty", column)
    whole = csvfile.integers_if_all(column.dictionary_encode())
    if not is_text(whole.type):
        return Seen(name, "whole", whole)
    cells = column if form.decimal == "." else pc.replace_substring(column, form.decimal, ".")
    if pc.any(pc.match_substring_regex(cells, "[.eE]|nan|NaN")).as_py():
        try:
            return Seen(name, "number", pc.cast(cells, pa.float64()))
        except pa.ArrowInvalid:
            pass
    return Seen(name, "text" if csvfile.truth(column) is None else "truth", column)


def _from_arrow(name: str, column: pa.ChunkedArray) -> Seen:
    column = plain_column(column)
    kind = column.type
    if column.null_count == len(column):
        return Seen(name, "empty", column)
    if pa.types.is_boolean(kind):
        return Seen(name, "truth", column)
    if pa.types.is_integer(kind):
        return Seen(name, "whole", column)
    if is_number(kind):
        return Seen(name, "number", column)
    if is_text(kind):
        plain = texts(column)
        return Seen(name, "text" if csvfile.truth(plain) is None else "truth", plain)
    return Seen(name, "other", column)
