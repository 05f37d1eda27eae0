"""Reading one CSV file (plain or gzip): types are declared by role, never guessed.

Ids are read as text, so that 007 and 7 stay apart, and become integers only when every one of
them is written as an integer is. An empty cell is null; a quoted empty cell is the empty text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as pacsv

from reweigh.errors import KEPT_PLACES, Fault, InputError, Place, input_error, must_be

INTEGER = re.compile(r"(0|-?[1-9][0-9]{0,17})\Z")
TRUTHS = {"true": True, "false": False, "1": True, "0": False}
BLOCK = 1 << 24


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


def header(path: Path, form: CsvFormat) -> list[str]:
    """The column names; a wrong delimiter and duplicate names are refused here."""
    try:
        with pa.input_stream(str(path)) as stream:
            start = stream.read(1 << 20)
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(f"{str(path)!r} cannot be decompressed: {error}") from error
    line = start.split(b"\n", 1)[0]
    if b"\0" in line:
        raise InputError(f"{str(path)!r}, line 1: a NUL byte at {line.index(0)}; not a text file")
    try:
        reader = pacsv.open_csv(
            pa.BufferReader(line + b"\n"),
            parse_options=pacsv.ParseOptions(delimiter=form.delimiter),
        )
        names = list(reader.schema.names)
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise InputError(f"{str(path)!r}, line 1: the header cannot be read: {error}") from error
    if len(names) == 1:
        for other in (";", "\t", "|", ","):
            if other in names[0] and other != form.delimiter:
                hint = " and decimal=','" if other == ";" and form.decimal == "." else ""
                raise InputError(
                    f"{str(path)!r}, line 1: one column {names[0]!r} with the delimiter "
                    f"{form.delimiter!r}; it looks separated by {other!r}: "
                    f"pass delimiter={other!r}{hint}"
                )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        where = [f"{name!r} at columns {_positions(name, names)}" for name in twice]
        raise InputError(f"{str(path)!r}, line 1: a name stands twice: {'; '.join(where)}")
    return names


def _positions(name: str, names: list[str]) -> str:
    return ", ".join(str(i + 1) for i, other in enumerate(names) if other == name)


def read(path: Path, form: CsvFormat, names: list[str], texts: Sequence[str]) -> pa.Table:
    """The named columns: `texts` as dictionary-encoded text (or integers), the rest as numbers."""
    known = header(path, form)
    absent = [name for name in names if name not in known]
    if absent:
        raise InputError(f"{path.name} lacks the column {absent[0]!r} that other files have")
    word = pa.dictionary(pa.int32(), pa.string())
    types = {name: word if name in texts else pa.float64() for name in names}
    try:
        table = _parse(path, form, names, types)
    except pa.ArrowInvalid as error:
        table = _parse_slowly(path, form, names, texts, error)
    columns = [
        _integers_if_all(table.column(name)) if name in texts else table.column(name)
        for name in names
    ]
    return pa.table(dict(zip(names, columns, strict=True)))


def _parse(
    path: Path,
    form: CsvFormat,
    names: list[str],
    types: dict[str, pa.DataType],
    invalid_row: Any = None,
) -> pa.Table:
    with pa.input_stream(str(path)) as stream:
        return pacsv.read_csv(
            stream,
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


def _parse_slowly(
    path: Path, form: CsvFormat, names: list[str], texts: Sequence[str], cause: pa.ArrowInvalid
) -> pa.Table:
    """Find out what is wrong: read everything as text; a column with a bad cell stays text."""
    ragged: list[Any] = []

    def keep(row: Any) -> str:
        ragged.append(row)
        return "skip"

    try:
        table = _parse(path, form, names, dict.fromkeys(names, pa.string()), keep)
    except pa.ArrowInvalid as error:
        raise InputError(f"{str(path)!r} cannot be read as CSV: {error}") from cause
    if ragged:
        places = tuple(
            Place(row.text, line=row.number, row=row.number and row.number - 1)
            for row in ragged[:KEPT_PLACES]
        )
        first = ragged[0]
        raise input_error(
            str(path),
            [
                Fault(
                    "ragged-row",
                    f"a row has {first.actual_columns} cells where the header has "
                    f"{first.expected_columns}",
                    "complete the row; cells are never padded",
                    places,
                    len(ragged),
                    table.num_rows + len(ragged),
                )
            ],
        )
    columns = []
    for name in names:
        column = table.column(name)
        if name in texts:
            column = column.dictionary_encode()
        elif form.decimal != ".":
            column = pc.replace_substring(column, form.decimal, ".")
        columns.append(column if name in texts else _numbers_if_all(column))
    return pa.table(dict(zip(names, columns, strict=True)))


def _numbers_if_all(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Numbers, or the text as it is: the log's contract then names the bad cells."""
    try:
        return pc.cast(column, pa.float64())
    except pa.ArrowInvalid:
        return column


def _integers_if_all(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts become integers when all of them are written as integers (no 007, no +1)."""
    words: set[str] = set()
    for chunk in column.chunks:
        words.update(word for word in chunk.dictionary.to_pylist() if word is not None)
    if words and all(INTEGER.match(word) for word in words):
        return pc.cast(pc.cast(column, pa.string()), pa.int64())
    return column


def truth(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """A column of truth values from booleans, 0/1 or true/false; None if it is not one."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return column
    if pa.types.is_dictionary(kind):
        column = pc.cast(column, kind.value_type)
        kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        lower = pc.utf8_lower(column)
        known = pc.is_in(lower, pa.array(list(TRUTHS)))
        if pc.all(pc.or_(known, pc.is_null(column))).as_py() is False:
            return None
        yes = pc.is_in(lower, pa.array([word for word, value in TRUTHS.items() if value]))
        return pc.if_else(pc.is_null(column), pa.scalar(None, pa.bool_()), yes)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        known = pc.is_in(column, pa.array([0, 1], kind))
        if pc.all(pc.or_(known, pc.is_null(column))).as_py() is False:
            return None
        return pc.equal(column, pa.scalar(1, kind))
    return None
