"""Reading one CSV file (plain or gzip): types are declared by role, never guessed.

Ids are read as text, so that 007 and 7 stay apart, and become integers only when every one of
them is written as an integer is. An empty cell is null; a quoted empty cell is the empty text.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as pacsv

from reweigh.errors import (
    KEPT_PLACES,
    Fault,
    InputError,
    Place,
    ResourceError,
    UsageError,
    check,
    input_error,
)
from reweigh.log.states import is_text, texts

BLOCK = 1 << 24
GZIP = b"\x1f\x8b"
EMPTY_FILE = Fault("no-episodes", "the file is empty", "give a file with rows")
INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"
TRUTHS: dict[bool, list[Any]] = {True: ["true", "1"], False: ["false", "0"]}
MOST = 0.5  # a column of numbers with a larger share of fractions is not a list of names


@dataclass(frozen=True)
class CsvFormat:
    """How cells are written."""

    delimiter: str = ","
    decimal: str = "."

    def __post_init__(self) -> None:
        for name, value in (("delimiter", self.delimiter), ("decimal", self.decimal)):
            check(len(value) == 1 and value not in '\r\n"', name, "one character", value)
        check(
            self.delimiter != self.decimal,
            "decimal",
            "another character than the delimiter",
            self.decimal,
        )


def refuse_elsewhere(source: str, **given: str | None) -> None:
    """CSV options are refused for a `source` that is not CSV."""
    named = [f"{name}={value!r}" for name, value in given.items() if value is not None]
    if named:
        raise UsageError(
            f"{' and '.join(named)} describes a CSV file, but the log is {source}: omit it"
        )


@dataclass(frozen=True)
class CsvPart:
    """The rows of one file, and its line ends, those inside cells included."""

    table: pa.Table
    line_ends: int

    @property
    def one_line_per_row(self) -> bool:
        """Whether row i is certainly in line i + 2."""
        return bool(self.line_ends == self.table.num_rows + 1)


def header(path: Path, form: CsvFormat) -> list[str]:
    """The column names; a wrong delimiter and duplicate names are refused here."""
    with open_stream(path) as stream:
        start = stream.read(1 << 20)
    if not start.strip():
        raise input_error(str(path), [EMPTY_FILE])
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
    # bytes that are not UTF-8 become surrogates, which never occur in UTF-8 text
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
    places: dict[str, list[str]] = {}
    for i, name in enumerate(names):
        places.setdefault(name, []).append(str(i + 1))
    twice = [f"{n!r} at columns {', '.join(at)}" for n, at in sorted(places.items()) if at[1:]]
    if twice:
        raise InputError(f"{where}: a name occurs twice: {'; '.join(twice)}")


def refuse_absent(path: Path, names: Sequence[str], known: Sequence[str]) -> None:
    absent = [name for name in names if name not in known]
    if absent:
        raise InputError(f"{path.name} has no column {absent[0]!r}, but other files have it")


def read(path: Path, form: CsvFormat, names: list[str], ids: Sequence[str]) -> CsvPart:
    """The named columns: `ids` as dictionary-encoded text, the rest as numbers."""
    refuse_absent(path, names, header(path, form))
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
        raise InputError(bad_byte(path) or f"{str(path)!r} contains a NUL byte")
    return CsvPart(table, watched.line_ends)


def _parse_slowly(
    path: Path, form: CsvFormat, names: list[str], ids: Sequence[str], cause: pa.ArrowInvalid
) -> CsvPart:
    """Find the fault: read everything as text; a column with a bad cell stays text."""
    ragged: list[Any] = []

    def keep(row: Any) -> str:
        ragged.append(row)
        return "skip"

    try:
        part = _parse(path, form, names, dict.fromkeys(names, pa.string()), keep)
    except pa.ArrowInvalid as error:
        fault = bad_byte(path) or f"{str(path)!r} cannot be read as CSV: {error}"
        raise InputError(fault) from cause
    if ragged:
        raise input_error(str(path), [_ragged_fault(ragged, part)])
    columns = {
        name: cells.dictionary_encode()
        if name in ids
        else numbers_if_all(pc.replace_substring(cells, form.decimal, "."))
        for name, cells in zip(names, part.table.columns, strict=True)
    }
    return CsvPart(pa.table(columns), part.line_ends)


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
    words, cells = (
        pc.replace_substring(part, decimal, ".") for part in (_distinct(column), texts(column))
    )
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
    if pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return pc.cast(column, pa.bool_())
    if is_text(kind):
        column, words = pc.utf8_lower(texts(column)), TRUTHS
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
        words = {True: [1], False: [0]}
    else:
        return None
    yes, no = (pc.is_in(column, pa.array(words[value], column.type)) for value in (True, False))
    unknown = pc.is_null(column)
    if not pc.all(pc.or_(pc.or_(yes, no), unknown)).as_py():
        return None
    return pc.if_else(unknown, pa.scalar(None, pa.bool_()), yes)


# ---- the bytes of a text file, plain or gzip, watched on their way to the parser ----------------


@contextmanager
def open_stream(path: Path) -> Iterator[pa.NativeFile]:
    """The decompressed bytes; read errors are reported unchanged."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == GZIP
    except OSError as error:
        raise ResourceError(f"cannot read {str(path)!r}: {error.strerror}") from error
    try:
        with pa.input_stream(str(path), compression="gzip" if packed else None) as stream:
            yield stream
    except OSError as error:
        if packed and not isinstance(error, ResourceError):
            raise InputError(
                f"{str(path)!r} is damaged or cut off and cannot be decompressed: {error}"
            ) from error
        raise ResourceError(f"cannot read {str(path)!r}: {error}") from error


class TextStream:
    """A stream that counts line ends, notices NUL bytes and ends with exactly one line end.

    Blank lines at the end of a file are not rows, and the parser wants the header's line end: so
    a block is passed on only when it is known whether anything but line ends follows.
    """

    def __init__(self, stream: pa.NativeFile) -> None:
        self.stream = stream
        self.closed = False
        self.line_ends = 0
        self.has_nul = False
        self._ahead = b""

    def read(self, size: int = -1) -> bytes:
        block = self._ahead or self.stream.read(size)
        self._ahead = self.stream.read(size)
        while self._ahead and not self._ahead.strip(b"\r\n"):
            block += self._ahead
            self._ahead = self.stream.read(size)
        if block and not self._ahead:
            block = block.rstrip(b"\r\n") + b"\n"
        self.line_ends += block.count(b"\n")
        self.has_nul = self.has_nul or 0 in block
        return block

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


def bad_byte(path: Path) -> str | None:
    """The position of the first NUL byte or non-UTF-8 byte; None without one."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    line, column = 1, 0  # of the next byte; the columns before it in its line
    with open_stream(path) as stream:
        while True:
            block = stream.read(BLOCK)
            nul = block.find(b"\0")
            checked = block if nul < 0 else block[:nul]
            try:
                decoder.decode(checked, final=not block)
            except UnicodeDecodeError as error:
                # the decoder may have kept the first bytes of a character from the last block
                start = error.start - (len(error.object) - len(checked))
                at, what = start, "a byte that is not UTF-8; save the file as UTF-8"
            else:
                if nul < 0:
                    if not block:
                        return None
                    line, column = _advance(line, column, block)
                    continue
                at, what = nul, "a NUL byte; this is not a text file, or it is damaged"
            line, column = _advance(line, column + min(at, 0), block[: max(at, 0)])
            return f"{str(path)!r}, line {line}, byte {column + 1}: {what}"


def _advance(line: int, column: int, passed: bytes) -> tuple[int, int]:
    """Line and column after these bytes."""
    ends = passed.count(b"\n")
    return line + ends, len(passed) - passed.rfind(b"\n") - 1 if ends else column + len(passed)
