"""Reading one CSV file (plain or gzip): types are declared by role, never guessed.

Ids are read as text, so that 007 and 7 stay apart, and become integers only when every one of
them is written as an integer is. An empty cell is null; a quoted empty cell is the empty text.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as pacsv

from reweigh.errors import KEPT_PLACES, Fault, InputError, Place, UsageError, input_error, must_be
from reweigh.log.column_types import is_text, texts
from reweigh.log.text_files import BLOCK, TextStream, bad_byte, open_stream

INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"
TRUTHS = {"true": True, "false": False, "1": True, "0": False}
MOST = 0.5  # a column of numbers with a larger share of fractions is no list of names


@dataclass(frozen=True)
class CsvFormat:
    """How cells are written."""

    delimiter: str = ","
    decimal: str = "."

    def __post_init__(self) -> None:
        for name, value in (("delimiter", self.delimiter), ("decimal", self.decimal)):
            if len(value) != 1 or value in '\r\n"':
                raise must_be(name, "one character", value)
        if self.delimiter == self.decimal:
            raise must_be("decimal", "another character than the delimiter", self.decimal)


def refuse_elsewhere(source: str, **given: str | None) -> None:
    """What says how a CSV is written says nothing of a `source` that is none."""
    named = [f"{name}={value!r}" for name, value in given.items() if value is not None]
    if named:
        raise UsageError(
            f"{' and '.join(named)} would say how a CSV file is written; the log is {source}: "
            "leave it out"
        )


@dataclass(frozen=True)
class CsvPart:
    """The rows of one file, and its line ends, those inside cells included."""

    table: pa.Table
    line_ends: int

    @property
    def one_line_per_row(self) -> bool:
        """Whether row i surely stands in line i + 2."""
        return bool(self.line_ends == self.table.num_rows + 1)


def header(path: Path, form: CsvFormat) -> list[str]:
    """The column names; a wrong delimiter and duplicate names are refused here."""
    with open_stream(path) as stream:
        start = stream.read(1 << 20)
    if not start.strip():
        raise input_error(
            str(path), [Fault("no-episodes", "the file is empty", "give a file with rows")]
        )
    names = _first_record(path, form, start)
    if len(names) == 1:
        for other in (";", "\t", "|", ","):
            if other in names[0] and other != form.delimiter:
                hint = " and decimal=','" if other == ";" and form.decimal == "." else ""
                raise InputError(
                    f"{str(path)!r}, line 1: one column {names[0]!r} with the delimiter "
                    f"{form.delimiter!r}; it looks separated by {other!r}: "
                    f"pass delimiter={other!r}{hint}"
                )
    refuse_duplicates(names, f"{str(path)!r}, line 1")
    return names


def _first_record(path: Path, form: CsvFormat, start: bytes) -> list[str]:
    """The cells of the header, in which a quoted name may hold line ends."""
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{str(path)!r} is UTF-16 text; save it as UTF-8 (CSV UTF-8 in Excel)")
    # bytes that are no UTF-8 become surrogates, which no text of UTF-8 holds
    text = start.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    lines = io.StringIO(text, newline="")
    try:
        names = next(csv.reader(lines, delimiter=form.delimiter, strict=True), [])
    except csv.Error as error:
        raise InputError(f"{str(path)!r}, line 1: the header cannot be read: {error}") from error
    if not names or re.search("[\0\udc80-\udcff]", "".join(names)):
        raise InputError(
            bad_byte(path) or f"{str(path)!r}, line 1: the header cannot be read: it is blank"
        )
    return names


def refuse_duplicates(names: Sequence[str], where: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        listed = [f"{name!r} at columns {_positions(name, names)}" for name in twice]
        raise InputError(f"{where}: a name stands twice: {'; '.join(listed)}")


def _positions(name: str, names: Sequence[str]) -> str:
    return ", ".join(str(i + 1) for i, other in enumerate(names) if other == name)


def read(path: Path, form: CsvFormat, names: list[str], ids: Sequence[str]) -> CsvPart:
    """The named columns: `ids` as dictionary-encoded text, the rest as numbers."""
    known = header(path, form)
    absent = [name for name in names if name not in known]
    if absent:
        raise InputError(f"{path.name} lacks the column {absent[0]!r} that other files have")
    word = pa.dictionary(pa.int32(), pa.string())
    types = {name: word if name in ids else pa.float64() for name in names}
    try:
        return _parse(path, form, names, types)
    except pa.ArrowInvalid as error:
        return _parse_slowly(path, form, names, ids, error)


def _parse(
    path: Path,
    form: CsvFormat,
    names: list[str],
    types: dict[str, pa.DataType],
    invalid_row: Any = None,
) -> CsvPart:
    with open_stream(path) as stream:
        watched = TextStream(stream)
        table = pacsv.read_csv(
            watched,
            read_options=pacsv.ReadOptions(block_size=BLOCK, use_threads=invalid_row is None),
            parse_options=pacsv.ParseOptions(
                delimiter=form.delimiter,
                ignore_empty_lines=False,
                invalid_row_handler=invalid_row,
                newlines_in_values=True,
            ),
            convert_options=pacsv.ConvertOptions(
                column_types=types,
                include_columns=names,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                decimal_point=form.decimal,
            ),
        )
    if watched.has_nul:
        raise InputError(bad_byte(path) or f"{str(path)!r} holds a NUL byte")
    return CsvPart(table, watched.line_ends)


def _parse_slowly(
    path: Path, form: CsvFormat, names: list[str], ids: Sequence[str], cause: pa.ArrowInvalid
) -> CsvPart:
    """Find out what is wrong: read everything as text; a column with a bad cell stays text."""
    ragged: list[Any] = []

    def keep(row: Any) -> str:
        ragged.append(row)
        return "skip"

    try:
        part = _parse(path, form, names, dict.fromkeys(names, pa.string()), keep)
    except pa.ArrowInvalid as error:
        found = bad_byte(path) or f"{str(path)!r} cannot be read as CSV: {error}"
        raise InputError(found) from cause
    if ragged:
        raise input_error(str(path), [_ragged_fault(ragged, part)])
    columns = []
    for name in names:
        column = part.table.column(name)
        if name in ids:
            column = column.dictionary_encode()
        elif form.decimal != ".":
            column = pc.replace_substring(column, form.decimal, ".")
        columns.append(column if name in ids else numbers_if_all(column))
    table = pa.table(dict(zip(names, columns, strict=True)))
    return CsvPart(table, part.line_ends)


def _ragged_fault(ragged: list[Any], part: CsvPart) -> Fault:
    total = part.table.num_rows + len(ragged)
    certain = part.line_ends == total + 1
    first = ragged[0]
    return Fault(
        "ragged-row",
        f"a row has {first.actual_columns} cells where the header has {first.expected_columns}",
        "complete the row; cells are never padded",
        tuple(
            # the parser numbers records, of which the header is the first
            Place(row.text, row=row.number - 1, line=row.number if certain else None)
            for row in ragged[:KEPT_PLACES]
        ),
        len(ragged),
        total,
    )


def numbers_if_all(column: Any) -> Any:
    """Numbers, or the text as it is: the log's contract then names the bad cells.

    Blanks around a number are none of it, as where Arrow reads a CSV's numbers itself.
    """
    try:
        return pc.cast(pc.ascii_trim(column, " \t"), pa.float64())
    except pa.ArrowInvalid:
        return column


def _distinct(column: pa.ChunkedArray) -> pa.Array:
    """The words of a dictionary-encoded column."""
    chunks = [chunk.dictionary.cast(pa.large_string()) for chunk in column.chunks]
    return pc.unique(pa.chunked_array(chunks, pa.large_string()).drop_null())


def integers_if_all(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts become integers when all of them are written as integers (no 007, no +1)."""
    words = _distinct(column)
    if len(words) and pc.all(pc.match_substring_regex(words, INTEGER)).as_py():
        return pc.cast(texts(column), pa.int64())
    return column


def floats_if_most(column: pa.ChunkedArray, decimal: str = ".") -> pa.ChunkedArray:
    """Texts become floats when all are numbers and most of the distinct ones fractions."""
    if not is_text(column.type):
        return column
    words, cells = _distinct(column), texts(column)
    if decimal != ".":
        words, cells = (pc.replace_substring(part, decimal, ".") for part in (words, cells))
    try:
        values = pc.cast(words, pa.float64())
    except pa.ArrowInvalid:
        return column
    fraction = pc.and_(pc.is_finite(values), pc.not_equal(values, pc.floor(values)))
    fractions = pc.sum(fraction).as_py() or 0
    return pc.cast(cells, pa.float64()) if fractions > MOST * len(words) else column


def truth(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """A column of truth values from booleans, 0/1 or true/false; None if it is not one."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return column
    if pa.types.is_null(kind):
        return pc.cast(column, pa.bool_())
    if is_text(kind):
        column = texts(column)
        lower = pc.utf8_lower(column)
        known = pc.is_in(lower, pa.array(list(TRUTHS), column.type))
        if pc.all(pc.or_(known, pc.is_null(column))).as_py() is False:
            return None
        trues = [word for word, value in TRUTHS.items() if value]
        yes = pc.is_in(lower, pa.array(trues, column.type))
        return pc.if_else(pc.is_null(column), pa.scalar(None, pa.bool_()), yes)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        known = pc.is_in(column, pa.array([0, 1], kind))
        if pc.all(pc.or_(known, pc.is_null(column))).as_py() is False:
            return None
        return pc.equal(column, pa.scalar(1, kind))
    return None
