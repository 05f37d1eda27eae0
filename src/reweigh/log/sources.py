"""Where rows come from: files (CSV, gzip, Parquet, Arrow) and tables that speak Arrow."""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from reweigh.errors import (
    InputError,
    Place,
    ResourceError,
    ReweighError,
    UsageError,
    input_error,
)
from reweigh.log import csv_files as csvfile
from reweigh.log.csv_files import GZIP, CsvFormat
from reweigh.log.states import plain_column, plain_schema, plain_table
from reweigh.system.process import is_shortage, require

SUFFIXES = (".parquet", ".pq", ".csv", ".csv.gz", ".tsv", ".tsv.gz", ".arrow", ".feather")
REFUSED_MAGIC = {
    rb"\x80[\x02-\x05]": "a Python pickle, which can run code when it is loaded",
    rb"\x93NUMPY": "a NumPy array file",
    rb"PK(\x03\x04|\x05\x06)": "a zip archive",
    rb"7z\xbc\xaf\x27\x1c": "a 7z archive",
    rb"BZh[1-9]1AY": "bzip2 data",
    rb"\xfd7zXZ": "xz data",
    rb"\x28\xb5\x2f\xfd": "zstd data",
}
HELD = {b"PAR1": "parquet", b"ARROW1": "arrow", GZIP: "gzip"}
NAMED = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".gz": "gzip",
    ".csv": "csv",
    ".tsv": "csv",
    ".arrow": "arrow",
    ".feather": "arrow",
}
DUCKDB = b"DUCK"  # from the ninth byte on: a checksum stands before it
BEGINNING = 1 << 16  # bytes
ROW_BYTES = 40  # beside the columns themselves, while rows are checked and put in order; measured
PIECE = 1 << 16  # rows
PARQUET_BUFFER = 1 << 18  # bytes of a file that are read at a time: memory stays small
UNREADABLE = (pa.ArrowInvalid, pa.ArrowTypeError)


@dataclass(frozen=True, eq=False)
class TableSource:
    """An Arrow table in memory."""

    table: pa.Table
    kind: str
    paths: tuple[Path, ...] = ()

    @property
    def names(self) -> list[str]:
        return list(self.table.column_names)

    def describe(self) -> str:
        return f"{self.kind} of {self.table.num_rows:,} rows"

    def read(self, names: Sequence[str], ids: Sequence[str]) -> pa.Table:
        return plain_table(self.table.select(list(dict.fromkeys(names))))

    def column(self, name: str) -> pa.ChunkedArray:
        return plain_column(self.table.column(name))

    def place(self, row: int) -> Place:
        return Place(None, row=row + 1)


@dataclass(frozen=True, eq=False)
class FileSource:
    """One or more files of one kind, read in the order of their names."""

    paths: tuple[Path, ...]
    kind: str  # "csv" | "parquet"
    csv: CsvFormat
    stamps: tuple[tuple[int, int], ...]
    parts: list[tuple[int, bool]]  # rows, one line per row: filled by a read, for messages

    @cached_property
    def names(self) -> list[str]:
        if self.kind == "csv":
            return csvfile.header(self.paths[0], self.csv)
        with parquet_parts(self.paths[0]) as file:
            names = list(file.schema_arrow.names)
        csvfile.refuse_duplicates(names, str(self.paths[0]))
        return names

    def describe(self) -> str:
        if len(self.paths) == 1:
            return f"{self.kind} file {self.paths[0].name}"
        return f"{len(self.paths)} {self.kind} files {self.paths[0].name} … {self.paths[-1].name}"

    def read(self, names: Sequence[str], ids: Sequence[str]) -> pa.Table:
        """The named columns; `ids` are those that a CSV must give as text, never as floats."""
        rows = self.open_rows(names, ids)
        if isinstance(rows, ParquetRows):
            columns = {name: rows.column(name) for name in rows.schema.names}
            return pa.table(columns)
        return rows

    def open_rows(self, names: Sequence[str], ids: Sequence[str]) -> pa.Table | ParquetRows:
        """The same columns; those of Parquet are decoded one by one, when they are needed."""
        names = list(dict.fromkeys(names))
        self._refuse_change()
        if self.kind == "csv":
            table = self._read_csv(names, ids)
            self._refuse_change()
            return plain_table(table)
        schema = self.unite(self.parquet_schemas(), names)
        rows = sum(count for count, _ in self.parts)
        # by the rows that the files declare: a few bytes can stand for a billion equal rows
        require(
            rows * (sum(map(_width, schema.types)) + ROW_BYTES),
            f"{self.describe()} with {rows:,} rows of {len(schema)} columns",
            "read it with engine='stream' or engine='duckdb'",
        )
        return ParquetRows(self.paths, schema, rows, self._refuse_change)

    def _refuse_change(self) -> None:
        if tuple(_stamp(path) for path in self.paths) != self.stamps:
            raise ResourceError(f"{self.describe()} changed while it was read; read it again")

    def parquet_schemas(self) -> list[pa.Schema]:
        """Of every file; their rows are counted on the way."""
        schemas = []
        self.parts.clear()
        for path in self.paths:
            with parquet_parts(path) as file:  # one after the other: there may be thousands
                schemas.append(file.schema_arrow)
                self.parts.append((file.metadata.num_rows, False))
        return schemas

    def refuse_damage(self) -> None:
        """Read the Parquet files through: what another engine stumbled over is then named."""
        for path in self.paths:
            with parquet_parts(path) as file:
                for batch in file.iter_batches():
                    batch.validate(full=True)

    def unite(self, schemas: Sequence[pa.Schema], names: Sequence[str]) -> pa.Schema:
        """The types of these columns over all Parquet files, whose schemas are given: integers of
        any width and sign are one kind as long as they fit into 64 bits with a sign, or into 64
        without one if no file has a sign; so are floats, with integers that they hold exactly; so
        are texts.

        An engine of its own would read a column that a file lacks as null, numbers as text where
        another file holds text, and large integers as decimals.
        """
        chosen = []
        for path, known in zip(self.paths, schemas, strict=True):
            csvfile.refuse_absent(path, names, known.names)
            chosen.append(pa.schema([known.field(name).remove_metadata() for name in names]))
        try:
            united = pa.unify_schemas(chosen, promote_options="permissive")
        except UNREADABLE as error:
            raise self._differ(error) from error
        for name in names:
            kinds = [schema.field(name).type for schema in chosen]
            # beside another type a decimal's digits decide whether it can be read at all
            decimal = next((k for k in kinds if pa.types.is_decimal(k)), None)
            other = next((k for k in kinds if not _is_decimal_or_null(k)), None)
            if decimal is not None and other is not None:
                raise self._differ(
                    f"Unable to merge: Field {name} has incompatible types: {decimal} vs {other}"
                )
            for path, kind in zip(self.paths, kinds, strict=True):
                refuse_too_large(path, name, kind, united.field(name).type)
        return united

    def _differ(self, why: object) -> InputError:
        return InputError(f"{self.describe()}: the files' columns differ: {why}")

    def _read_csv(self, names: list[str], ids: Sequence[str]) -> pa.Table:
        """What a column holds is decided over all files: one word makes all of its ids texts."""
        parts = [csvfile.read(path, self.csv, names, ids) for path in self.paths]
        self.parts[:] = [(part.table.num_rows, part.one_line_per_row) for part in parts]
        tables = [part.table for part in parts]
        for i, name in enumerate(names):
            kinds = {table.schema.field(name).type for table in tables}
            if len(kinds) > 1:  # numbers, but for a word in one of the files
                tables = [t.set_column(i, name, t.column(name).cast(pa.string())) for t in tables]
        try:
            table = pa.concat_tables(tables, promote_options="permissive")
        except UNREADABLE as error:
            raise self._differ(error) from error
        for i, name in enumerate(names):
            if name in ids:
                table = table.set_column(i, name, csvfile.integers_if_all(table.column(name)))
        return table

    def column(self, name: str) -> pa.ChunkedArray:
        return self.read([name], ()).column(name)

    def place(self, row: int) -> Place:
        for path, (count, one_line_per_row) in zip(self.paths, self.parts, strict=True):
            if row < count:
                line = row + 2 if one_line_per_row else None
                file = path.name if len(self.paths) > 1 else None
                return Place(None, row=row + 1, line=line, file=file)
            row -= count
        raise IndexError(row)


def open_source(data: Any, csv: CsvFormat) -> TableSource | FileSource:
    """A source from a path, a list of paths, a directory, a pattern, or a table."""
    if isinstance(data, str | os.PathLike):
        return _open_files(expand(data), csv)
    if isinstance(data, list | tuple):
        if not data:
            raise UsageError("the list of files is empty")
        if all(isinstance(item, pa.RecordBatch) for item in data):
            return _open_table(pa.Table.from_batches(data))
        return _open_files([path for item in data for path in expand(item)], csv)
    return _open_table(data)


def _open_table(data: Any) -> TableSource:
    kind = f"{type(data).__module__.split('.')[0]} {type(data).__name__}"
    try:
        if kind == "pandas DataFrame":
            # pandas would name all columns, not those that stand twice
            csvfile.refuse_duplicates([str(name) for name in data.columns], f"the {kind}")
            table = pa.Table.from_pandas(data, preserve_index=False)
        elif isinstance(data, pa.Table):
            table = data
        elif isinstance(data, pa.RecordBatch):
            table = pa.Table.from_batches([data])
        elif kind == "polars LazyFrame":
            table = data.collect().to_arrow()
        elif type(data).__module__ == "pyarrow._dataset":  # to import it would import pandas
            table = data.to_table()
        elif hasattr(data, "__arrow_c_stream__"):
            table = pa.table(data)
        else:
            raise UsageError(
                "a log is read from a path, a list of paths, or a pandas, polars, pyarrow, Ibis or "
                f"DuckDB table; got {type(data).__name__}"
            )
    except UNREADABLE as error:
        raise InputError(f"the {kind} does not convert to Arrow: {error}") from error
    csvfile.refuse_duplicates(table.column_names, f"the {kind}")
    return TableSource(table, kind)


def expand(item: Any) -> list[Path]:
    """A file of that very name wins; then a directory; then a pattern, sorted."""
    if not isinstance(item, str | os.PathLike):
        raise UsageError(f"a list of files holds paths; got {type(item).__name__}")
    path = Path(item)
    if path.is_file():
        return [path]
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.name.lower().endswith(SUFFIXES))
        files = [p for p in files if p.is_file()]
        lacking = (
            f"the directory {str(item)!r} (resolved: {path.resolve()}) holds no file ending in "
            f"{', '.join(SUFFIXES)}"
        )
    elif glob.has_magic(str(item)):
        files = sorted(Path(p) for p in glob.glob(str(item)) if Path(p).is_file())
        lacking = f"no file matches the pattern {str(item)!r}"
    else:
        files, lacking = [], f"there is no file {str(item)!r} (resolved: {path.resolve()})"
    if not files:
        raise ResourceError(lacking)
    return files


def _open_files(paths: list[Path], csv: CsvFormat) -> TableSource | FileSource:
    kinds = {path: _kind(path) for path in paths}
    if len(set(kinds.values())) > 1:
        named = ", ".join(f"{path.name} ({kind})" for path, kind in list(kinds.items())[:4])
        raise InputError(f"the files are of different kinds: {named}; give one kind at a time")
    _refuse_copies(paths)
    kind = next(iter(kinds.values()))
    if kind == "arrow":
        return _open_arrow(paths)
    return FileSource(tuple(paths), kind, csv, tuple(_stamp(path) for path in paths), [])


def _open_arrow(paths: list[Path]) -> TableSource:
    """Arrow (Feather) files are tables already: mapped into memory, not copied."""
    tables = []
    for path in paths:
        with file_errors(path, "is not a whole Arrow file"):
            tables.append(pa.ipc.open_file(pa.memory_map(str(path))).read_all())
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
    except UNREADABLE as error:
        raise InputError(f"the Arrow files' columns differ: {error}") from error
    csvfile.refuse_duplicates(table.column_names, str(paths[0]))
    return TableSource(table, f"arrow file {paths[0].name}", tuple(paths))


def _first_bytes(path: Path, count: int = 12) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(count)
    except OSError as error:
        raise ResourceError(f"cannot read {str(path)!r}: {error.strerror}") from error


def is_duckdb(path: Path) -> bool:
    return _first_bytes(path)[8:] == DUCKDB


def _kind(path: Path) -> str:
    """The kind of a file by its first bytes; a name that says otherwise is refused."""
    magic = _first_bytes(path)[:8]
    if not magic:
        raise input_error(str(path), [csvfile.EMPTY_FILE])
    for start, what in REFUSED_MAGIC.items():
        if re.match(start, magic):
            raise InputError(f"{str(path)!r} is {what}; reweigh reads CSV, gzip, Parquet and Arrow")
    if is_duckdb(path):
        raise UsageError(
            f"{str(path)!r} is a DuckDB database: name the table that is the log with table='…' "
            "and engine='duckdb' (--table NAME --engine duckdb), and give no other file"
        )
    held = next((kind for start, kind in HELD.items() if magic.startswith(start)), "csv")
    named = NAMED.get(path.suffix.lower(), held)
    if named != held:
        raise InputError(
            f"{str(path)!r} is named like {named} and holds {held} (first bytes {magic!r}); "
            "rename the file, or export it again"
        )
    return "csv" if held == "gzip" else held


def _refuse_copies(paths: list[Path]) -> None:
    """The same content twice would count every episode twice. Files of one size that begin alike
    are few: only those are read."""
    if len(paths) == 1:
        return
    beginnings = [
        (_stamp(path)[0], hashlib.sha256(_first_bytes(path, BEGINNING)).digest()) for path in paths
    ]
    alike, known = Counter(beginnings), dict[bytes, Path]()
    for path, beginning in zip(paths, beginnings, strict=True):
        if alike[beginning] == 1:
            continue
        with path.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").digest()
        if content in known:
            raise InputError(
                f"{str(path)!r} has the same content as {str(known[content])!r}; give each file "
                "once"
            )
        known[content] = path


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise ResourceError(f"cannot read {str(path)!r}: {error.strerror}") from error
    return status.st_size, status.st_mtime_ns


def _width(kind: pa.DataType) -> int:
    """Bytes per row of a column, at least: of a text only where it begins."""
    try:
        return -(-int(kind.bit_width) // 8)
    except ValueError:
        return 4


def _is_decimal_or_null(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind) or pa.types.is_null(kind))


# ---- Parquet files ------------------------------------------------------------------------------


@contextmanager
def file_errors(path: Path, wrong: str) -> Iterator[None]:
    """The file is at fault, unless the system gave an error number or no memory.

    A damaged page shows in many ways: sizes that do not fit, text that is no UTF-8, a column that
    is not there. What the damage leaves readable is not noticed: Parquet has no checksum of its
    own, and those of its pages, which are verified, are rarely written.
    """
    try:
        yield
    except ReweighError:
        raise
    except (pa.ArrowException, MemoryError, OSError, ValueError, LookupError) as error:
        if is_shortage(error):
            error.add_note(f"while reading {path.name}")
            raise
        number = getattr(error, "errno", None)
        if number is not None:
            raise ResourceError(
                number, f"cannot read {str(path)!r}: {os.strerror(number)}"
            ) from error
        first = (str(error).splitlines() or [""])[0]
        raise InputError(f"{str(path)!r} {wrong}: {first}") from error


def refuse_too_large(path: Path, name: str, kind: pa.DataType, united: pa.DataType) -> None:
    """Integers of a file that the type of all files cannot hold."""
    if pa.types.is_uint64(kind) and pa.types.is_int64(united):
        limit, beside = 2**63 - 1, "signed integers"
    elif (pa.types.is_uint64(kind) or pa.types.is_int64(kind)) and pa.types.is_floating(united):
        limit, beside = 2**53, "floats"
    else:
        return
    with parquet_parts(path) as file:
        for batch in file.iter_batches(columns=[name]):
            ends = pc.min_max(batch.column(0)).as_py()
            for found in (ends["min"], ends["max"]):
                if found is not None and abs(found) > limit:
                    raise InputError(
                        f"{path.name}: column {name!r} holds {found}, which does not fit beside "
                        f"the {beside} of other files; write one type in all files"
                    )


@contextmanager
def parquet_parts(path: Path) -> Iterator[pq.ParquetFile]:
    """An open Parquet file; what cannot be read of it is its damage."""
    with file_errors(path, "is damaged"), open_parquet(path) as file:
        yield file


def open_parquet(path: Path) -> pq.ParquetFile:
    with file_errors(path, "is not a whole Parquet file"):
        file = pq.ParquetFile(
            path, pre_buffer=False, buffer_size=PARQUET_BUFFER, page_checksum_verification=True
        )
        _ = file.schema_arrow.names  # types or names that a damaged file has
        return file


@dataclass(frozen=True, eq=False)
class ParquetRows:
    """Columns of Parquet files, decoded when they are asked for, and not kept."""

    paths: tuple[Path, ...]
    united: pa.Schema
    num_rows: int
    refuse_change: Callable[[], None]

    @cached_property
    def schema(self) -> pa.Schema:
        return plain_schema(self.united)

    def pieces(self, name: str) -> Iterator[pa.Array]:
        """The cells of a column, some at a time."""
        kind = self.united.field(name).type
        for path in self.paths:
            with parquet_parts(path) as file:
                for batch in file.iter_batches(PIECE, columns=[name], use_threads=False):
                    batch.validate(full=True)  # a damaged page may hold bytes that are no text
                    yield batch.column(name).cast(kind)
        self.refuse_change()

    def column(self, name: str) -> pa.ChunkedArray:
        kind = self.united.field(name).type
        return plain_column(pa.chunked_array(list(self.pieces(name)), kind))


def pieces_of(rows: pa.Table | ParquetRows, name: str) -> Iterator[pa.Array]:
    """The cells of a column of numbers, as many at a time as fit into a cache."""
    if isinstance(rows, ParquetRows):
        return rows.pieces(name)
    chunks = rows.column(name).chunks
    return (c.slice(row, PIECE) for c in chunks for row in range(0, len(c), PIECE))
