"""The sources of rows: files (CSV, gzip, Parquet, Arrow) and tables that convert to Arrow."""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from reweigh.errors import (
    InputError,
    Place,
    ResourceError,
    UsageError,
    input_error,
)
from reweigh.log import csv_files as csvfile
from reweigh.log.csv_files import GZIP, CsvFormat
from reweigh.log.states import plain_column, plain_table

JSON = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz")
SUFFIXES = (".parquet", ".pq", ".csv", ".csv.gz", ".tsv", ".tsv.gz", ".arrow", ".feather", *JSON)
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
    ".jsonl": "json",
    ".ndjson": "json",
}
DUCKDB = b"DUCK"  # from the ninth byte on, after a checksum
BEGINNING = 1 << 16  # bytes
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
    """One or more CSV files, read in the order of their names; `ParquetSource` and `JsonSource`
    read others."""

    paths: tuple[Path, ...]
    kind: str  # "csv" | "parquet" | "json"
    csv: CsvFormat
    stamps: tuple[tuple[int, int], ...]
    parts: list[tuple[int, bool]]  # rows, one line per row: filled by a read, for messages

    @cached_property
    def names(self) -> list[str]:
        return csvfile.header(self.paths[0], self.csv)

    def describe(self) -> str:
        if len(self.paths) == 1:
            return f"{self.kind} file {self.paths[0].name}"
        return f"{len(self.paths)} {self.kind} files {self.paths[0].name} … {self.paths[-1].name}"

    def read(self, names: Sequence[str], ids: Sequence[str]) -> pa.Table:
        """The named columns; `ids` are those that a CSV must give as text, never as floats."""
        self.refuse_change()
        table = self._read_csv(list(dict.fromkeys(names)), ids)
        self.refuse_change()
        return plain_table(table)

    def open_rows(self, names: Sequence[str], ids: Sequence[str]) -> Any:
        """The same, or columns that are decoded when they are needed."""
        return self.read(names, ids)

    def refuse_change(self) -> None:
        if tuple(_stamp(path) for path in self.paths) != self.stamps:
            raise ResourceError(f"{self.describe()} changed while it was being read; read it again")

    def differ(self, why: object) -> InputError:
        return InputError(f"{self.describe()}: the columns of the files differ: {why}")

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
            raise self.differ(error) from error
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
            # pandas would name all columns, not only the duplicates
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
                "a log must be a path, a list of paths, or a pandas, polars, pyarrow, Ibis "
                f"or DuckDB table; got {type(data).__name__}"
            )
    except UNREADABLE as error:
        raise InputError(f"the {kind} cannot be converted to Arrow: {error}") from error
    csvfile.refuse_duplicates(table.column_names, f"the {kind}")
    return TableSource(table, kind)


def expand(item: Any) -> list[Path]:
    """A file of that very name wins; then a directory; then a pattern, sorted."""
    if not isinstance(item, str | os.PathLike):
        raise UsageError(f"a list of files must contain paths; got {type(item).__name__}")
    path = Path(item)
    if path.is_file():
        return [path]
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.name.lower().endswith(SUFFIXES))
        files = [p for p in files if p.is_file()]
        lacking = (
            f"the directory {str(item)!r} (resolved: {path.resolve()}) has no file ending in "
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
        raise InputError(f"the files are of different kinds: {named}; give only one kind")
    _refuse_copies(paths)
    kind = next(iter(kinds.values()))
    make = FileSource
    if kind == "json":
        from reweigh.log.json_files import JsonSource

        make = JsonSource
    elif kind != "csv":
        from reweigh.log.parquet_files import ParquetSource, open_arrow

        if kind == "arrow":
            return open_arrow(paths)
        make = ParquetSource
    return make(tuple(paths), kind, csv, tuple(_stamp(path) for path in paths), [])


def _first_bytes(path: Path, count: int = 12) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(count)
    except OSError as error:
        raise ResourceError(f"cannot read {str(path)!r}: {error.strerror}") from error


def is_duckdb(path: Path) -> bool:
    return _first_bytes(path)[8:] == DUCKDB


def _kind(path: Path) -> str:
    """The kind of a file by its first bytes; a name that contradicts them is refused."""
    magic = _first_bytes(path)[:8]
    if not magic:
        raise input_error(str(path), [csvfile.EMPTY_FILE])
    for start, what in REFUSED_MAGIC.items():
        if re.match(start, magic):
            raise InputError(
                f"{str(path)!r} is {what}; reweigh reads CSV, JSON Lines, gzip, Parquet and Arrow"
            )
    if is_duckdb(path):
        raise UsageError(
            f"{str(path)!r} is a DuckDB database: name its table with table='…' and "
            "engine='duckdb' (--table NAME --engine duckdb), and give no other file"
        )
    if path.name.lower().endswith(JSON) and magic.startswith((GZIP, b"{", b"\xef\xbb\xbf{")):
        return "json"
    held = next((kind for start, kind in HELD.items() if magic.startswith(start)), "csv")
    named = NAMED.get(path.suffix.lower(), held)
    if named != held:
        raise InputError(
            f"{str(path)!r} is named like {named} but contains {held} (first bytes "
            f"{magic!r}); rename the file, or export it again"
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
                f"{str(path)!r} has the same content as {str(known[content])!r}; give each "
                "file only once"
            )
        known[content] = path


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise ResourceError(f"cannot read {str(path)!r}: {error.strerror}") from error
    return status.st_size, status.st_mtime_ns
