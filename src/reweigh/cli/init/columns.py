"""A first look at a log: its first rows, what each column holds, and what would put it right.

`reweigh init --tidy` writes a copy in which steps count from 0, percentages are shares, dates are
in ISO, and yes and no are true and false. Everything else stays as it is; the log itself is not
touched.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv as pacsv

from reweigh.errors import Fault, InputError, Place, input_error
from reweigh.log import csv_files as csvfile
from reweigh.log.csv_files import BLOCK, CsvFormat, TextStream, open_stream
from reweigh.log.json_files import JsonSource
from reweigh.log.parquet_files import parquet_parts
from reweigh.log.sources import FileSource, TableSource, open_source
from reweigh.log.states import encode_arrow, floats, is_number, is_text, plain_column, texts
from reweigh.log.times import ISO, is_temporal, time_values
from reweigh.system.files import write_atomically

ROWS = 100_000  # looked at; roles show in far fewer
MOST_PLACES = 20  # of cells that cannot be put right
DELIMITERS = ",;\t|"
WITH_COMMA = r"^[-+]?[0-9]*,[0-9]+$"
DATE = r"^(?P<first>[0-9]{1,2})[./](?P<second>[0-9]{1,2})[./](?P<year>[0-9]{4})(?P<rest>.*)$"
PERCENT = r"^\s*[0-9]+([.,][0-9]+)?\s*%\s*$"
TRUE, FALSE = ("yes", "y", "t", "true", "1"), ("no", "n", "f", "false", "0")


@dataclass(frozen=True, eq=False)
class Column:
    """A column of the first rows."""

    name: str
    cells: pa.ChunkedArray

    @cached_property
    def kind(self) -> str:
        """whole, number, truth, time, text, empty (nulls alone) or other."""
        of_type = self.cells.type
        if self.nulls == self.rows:
            return "empty"
        if is_number(of_type):
            return "whole" if pa.types.is_integer(of_type) else "number"
        if is_temporal(of_type) or (is_text(of_type) and self._is_iso):
            return "time"
        if csvfile.truth(self.cells) is not None:
            return "truth"
        return "text" if is_text(of_type) else "other"

    @property
    def _is_iso(self) -> bool:
        """Whether all texts are times in ISO 8601 (the first ones are looked at first)."""
        for cells in (self.cells.slice(0, 100), self.cells):
            if not pc.all(pc.match_substring_regex(cells, ISO)).as_py():
                return False
        return True

    @property
    def rows(self) -> int:
        return len(self.cells)

    @property
    def nulls(self) -> int:
        return int(self.cells.null_count)

    @cached_property
    def codes(self) -> npt.NDArray[np.int64]:
        """(N,) a number for each value, -1 for null."""
        cells = self.cells
        floating = pa.types.is_floating(cells.type) or pa.types.is_decimal(cells.type)
        if floating or is_temporal(cells.type):
            cells = pc.cast(cells, pa.string())
        return encode_arrow(cells)[0]

    @cached_property
    def distinct(self) -> int:
        return 0 if self.kind in ("empty", "other") else int(self.codes.max()) + 1

    @cached_property
    def values(self) -> npt.NDArray[np.float64]:
        """(N,) numbers, NaN where null; only of numbers, truths and times."""
        cells = self.cells
        if self.kind == "time":
            values, known, _ = time_values(cells)
            return np.where(known, values, np.nan)
        if self.kind == "truth":
            cells = pc.cast(csvfile.truth(cells), pa.int8())
        return np.asarray(floats(cells).fill_null(np.nan).to_numpy(zero_copy_only=False), float)

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
        zero_one = self.is_numeric and bool(np.isin(self.values, (0.0, 1.0)).all())
        return self.kind == "truth" or zero_one

    def within(self, low: float, high: float) -> bool:
        return self.is_numeric and bool(np.all((self.values >= low) & (self.values <= high)))

    @cached_property
    def has_fractions(self) -> bool:
        return self.is_numeric and bool(np.any(self.values != np.rint(self.values)))


@dataclass(frozen=True)
class Sample:
    """The first rows of a log, column by column; `whole` if there are no more."""

    files: int
    first: Path
    kind: str
    csv: CsvFormat
    columns: tuple[Column, ...]
    rows: int
    whole: bool


def sample_of(paths: list[Path], delimiter: str | None, decimal: str | None) -> Sample:
    """The first rows of the first file. The form of a CSV is detected unless it is given."""
    source = open_source([str(path) for path in paths], CsvFormat())
    form = CsvFormat()
    if source.kind != "csv":
        csvfile.refuse_elsewhere(source.describe(), delimiter=delimiter, decimal=decimal)
    else:
        form = CsvFormat(delimiter or _delimiter(source.paths[0]), decimal or ".")
    table, whole = _first_rows(source, form)
    if source.kind == "csv":
        if decimal is None and form.delimiter != "," and _has_decimal_comma(table):
            form = CsvFormat(form.delimiter, ",")
        columns = [_typed(table.column(name), form.decimal) for name in table.column_names]
    else:
        columns = [plain_column(column) for column in table.columns]
    pairs = zip(table.column_names, columns, strict=True)
    looked_at = tuple(Column(name, texts(c) if is_text(c.type) else c) for name, c in pairs)
    # an Arrow file is a table already, of all its files
    many = len(source.paths) if isinstance(source, FileSource) else 1
    kind = source.kind if isinstance(source, FileSource) else "arrow"
    return Sample(many, source.paths[0], kind, form, looked_at, table.num_rows, whole and many == 1)


def _first_rows(source: FileSource | TableSource, form: CsvFormat) -> tuple[pa.Table, bool]:
    """The first rows, of a CSV as texts whatever the decimal sign; and whether they are all."""
    batches: list[pa.RecordBatch] = []
    rows = 0
    for batch in _batches(source, form):
        batches.append(batch)
        rows += batch.num_rows
        if rows > ROWS:
            break
    if rows == 0:
        fault = Fault("no-episodes", "there are no rows", "give a log with rows")
        raise input_error(str(source.paths[0]), [fault])
    return pa.Table.from_batches(batches).slice(0, ROWS), rows <= ROWS


def _batches(source: FileSource | TableSource, form: CsvFormat) -> Iterator[pa.RecordBatch]:
    path = source.paths[0]
    if isinstance(source, TableSource):
        yield from source.table.to_batches()
    elif isinstance(source, JsonSource):
        plain = [name for name, field in source.fields.items() if not pa.types.is_list(field.kind)]
        for table in source.batches(path, plain):
            yield from table.to_batches()
    elif source.kind == "csv":
        names = csvfile.header(path, form)
        try:
            with open_stream(path) as stream:
                yield from pacsv.open_csv(
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
        except pa.ArrowInvalid as error:
            csvfile.read(path, form, names, names)  # says which row it is
            raise InputError(f"{str(path)!r} cannot be read as CSV: {error}") from error
    else:
        _ = source.names  # refuses duplicates
        with parquet_parts(path) as file:
            for batch in file.iter_batches(ROWS + 1):
                batch.validate(full=True)  # a damaged page may hold bytes that are no text
                yield batch


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


def _has_decimal_comma(table: pa.Table) -> bool:
    """Whether a column holds numbers that are written with a comma."""
    filled = [column.drop_null() for column in table.columns if column.null_count < len(column)]
    return any(pc.all(pc.match_substring_regex(cells, WITH_COMMA)).as_py() for cells in filled)


def _typed(column: pa.ChunkedArray, decimal: str) -> pa.ChunkedArray:
    """The cells of a CSV as what they are written as: 007 is a text, as `read_log` has it."""
    whole = csvfile.integers_if_all(column.dictionary_encode())
    if not is_text(whole.type):
        return whole
    cells = column if decimal == "." else pc.replace_substring(column, decimal, ".")
    if pc.any(pc.match_substring_regex(cells, "[.eE]|nan|NaN")).as_py():
        try:
            return pc.cast(cells, pa.float64())
        except pa.ArrowInvalid:
            pass
    return column


# --- what can be put right


@dataclass(frozen=True)
class Repair:
    """What is done to a column.

    wrong  what the column holds, and what it should
    rule   what a cell must be for that
    apply  the column as it should be; null where a cell does not keep the rule
    """

    column: str
    wrong: str
    rule: str
    apply: Callable[[pa.ChunkedArray], pa.ChunkedArray]

    def mended(self, column: Column) -> Column:
        return Column(column.name, self.apply(column.cells))


def count_from_zero(name: str, first: int) -> Repair:
    """Steps that count from another number."""
    return Repair(
        name,
        f"{name!r} counts from {first}, and reweigh counts from 0",
        "a step must be a whole number",
        lambda cells: pc.subtract(pc.cast(cells, pa.int64()), first),
    )


def percent_to_share(name: str) -> Repair:
    return Repair(
        name,
        f"{name!r} holds percentages, and reweigh wants shares (0.5 for 50 %)",
        "a percentage is written like 12.5 %",
        shares,
    )


def yes_to_true(column: Column) -> Repair | None:
    wrong = f"{column.name!r} says yes and no, and reweigh wants true and false"
    repair = Repair(column.name, wrong, "yes or no must stand here", truths)
    return repair if is_yes_or_no(column) else None


def truth_to_number(column: Column) -> Repair | None:
    wrong = f"{column.name!r} says true and false, and reweigh wants numbers such as 1 and 0"
    rule = "true or false must stand here"
    repair = Repair(column.name, wrong, rule, lambda cells: pc.cast(truths(cells), pa.int8()))
    return repair if is_yes_or_no(column) else None


def date_to_iso(column: Column) -> Repair | None:
    """For dates such as 31.12.2024 08:05 or 12/31/2024, if they tell days from months."""
    if column.kind != "text" or pc.any(parts_of_dates(column.cells).is_null()).as_py():
        return None
    first, second = (
        pc.max(pc.cast(pc.struct_field(parts_of_dates(column.cells), part), pa.int32())).as_py()
        for part in ("first", "second")
    )
    day, month = ("second", "first") if second > 12 else ("first", "second")
    if max(first, second) <= 12 or min(first, second) > 12:
        return None

    def iso(cells: pa.ChunkedArray) -> pa.ChunkedArray:
        parts = parts_of_dates(cells)
        names = ("year", month, day, "rest")
        year, of_year, of_month, rest = (pc.struct_field(parts, name) for name in names)
        padded = (pc.utf8_lpad(part, 2, "0") for part in (of_year, of_month))
        written = pc.binary_join_element_wise(year, *padded, "-")
        whole = pc.binary_join_element_wise(written, rest, "")
        fine = pc.match_substring_regex(whole, ISO)
        return pc.if_else(fine, whole, pa.scalar(None, pa.string()))

    if iso(column.cells).null_count:
        return None
    wrong = f"{column.name!r} holds dates with the {day} number as the day, and reweigh wants ISO"
    rule = "a date must be written as in the rows before"
    return Repair(column.name, f"{wrong} (2024-01-31 08:05:00)", rule, iso)


def parts_of_dates(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.extract_regex(texts(cells).cast(pa.string()), DATE)


def shares(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Percentages, as numbers or as texts such as 12.5 % or 12,5%, over 100."""
    if is_text(cells.type):
        plain = pc.replace_substring(pc.replace_substring_regex(cells, r"[\s%]", ""), ",", ".")
        fine = pc.match_substring_regex(cells, PERCENT)
        cells = pc.if_else(fine, plain, pa.scalar(None, pa.string()))
    return pc.divide(floats(cells), 100.0)


def truths(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Truth values of texts such as yes and no."""
    words = texts(cells) if is_text(cells.type) else pc.cast(cells, pa.string())
    lower = pc.utf8_lower(pc.utf8_trim_whitespace(words))
    known = pc.is_in(lower, pa.array(TRUE + FALSE))
    return pc.if_else(known, pc.is_in(lower, pa.array(TRUE)), pa.scalar(None, pa.bool_()))


def is_percent(column: Column) -> bool:
    return column.kind == "text" and shares(column.cells).null_count == column.nulls


def is_yes_or_no(column: Column) -> bool:
    return column.kind in ("text", "truth") and truths(column.cells).null_count == 0


def write_tidy(
    sample: Sample,
    paths: Sequence[Path],
    repairs: Sequence[Repair],
    output: Path,
    *,
    overwrite: bool,
) -> None:
    """Write the whole log, repaired, as Parquet. A cell that cannot be repaired is refused: roles
    were proposed from the first rows."""
    source = open_source([str(path) for path in paths], sample.csv)
    names = [column.name for column in sample.columns]
    ids = [column.name for column in sample.columns if column.kind != "number"]
    table = source.read(names, ids)
    faults = []
    for repair in repairs:
        before = table.column(repair.column)
        after = repair.apply(texts(before) if is_text(before.type) else before)
        lost = np.flatnonzero(np.asarray(pc.and_(after.is_null(), before.is_valid())))
        if len(lost):
            faults.append(_fault(repair, before, lost))
        table = table.set_column(names.index(repair.column), repair.column, after)
    if faults:
        raise input_error(source.describe(), faults)
    write_atomically(output, lambda stream: pq.write_table(table, stream), overwrite=overwrite)


def _fault(repair: Repair, cells: pa.ChunkedArray, lost: npt.NDArray[Any]) -> Fault:
    places = [
        Place(cells[row].as_py(), column=repair.column, row=row + 1)
        for row in lost[:MOST_PLACES].tolist()
    ]
    advice = "correct these cells"
    return Fault("type", repair.rule, advice, tuple(places), len(lost), len(cells))
