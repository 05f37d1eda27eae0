"""Where rows come from: files (CSV, gzip, Parquet) and tables that speak Arrow."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from reweigh.errors import Fault, InputError, Place, ResourceError, UsageError, input_error
from reweigh.logs import csvfile
from reweigh.logs.csvfile import CsvFormat

SUFFIXES = (".parquet", ".pq", ".csv", ".csv.gz", ".tsv", ".tsv.gz")
REFUSED_MAGIC = {
    b"\x80": "a Python pickle, which can run code when it is loaded",
    b"\x93NUMPY": "a NumPy array file",
    b"PK": "a zip archive",
    b"7z": "a 7z archive",
    b"BZh": "bzip2 data",
    b"\xfd7zXZ": "xz data",
    b"\x28\xb5\x2f\xfd": "zstd data",
}


@dataclass(frozen=True, eq=False)
class TableSource:
    """An Arrow table in memory."""

    table: pa.Table
    kind: str

    @property
    def names(self) -> list[str]:
        return list(self.table.column_names)

    def describe(self) -> str:
        return f"{self.kind} of {self.table.num_rows:,} rows"

    def read(self, names: Sequence[str], texts: Sequence[str]) -> pa.Table:
        return self.table.select(list(dict.fromkeys(names)))

    def column(self, name: str) -> pa.ChunkedArray:
        return self.table.column(name)

    def place(self, row: int) -> Place:
        return Place(None, row=row + 1)


@dataclass(frozen=True, eq=False)
class FileSource:
    """One or more files of one kind, read in the order of their names."""

    paths: tuple[Path, ...]
    kind: str  # "csv" | "parquet"
    csv: CsvFormat
    stamps: tuple[tuple[int, int], ...]
    row_counts: list[int]  # filled by the first read, for messages

    @cached_property
    def names(self) -> list[str]:
        if self.kind == "csv":
            return csvfile.header(self.paths[0], self.csv)
        return list(_parquet(self.paths[0]).schema_arrow.names)

    def describe(self) -> str:
        if len(self.paths) == 1:
            return f"{self.kind} file {self.paths[0].name}"
        return f"{len(self.paths)} {self.kind} files {self.paths[0].name} … {self.paths[-1].name}"

    def read(self, names: Sequence[str], texts: Sequence[str]) -> pa.Table:
        """The named columns; `texts` are ids that a CSV must give as text, never as floats."""
        names = list(dict.fromkeys(names))
        tables = [self._read_one(path, names, texts) for path in self.paths]
        self.row_counts[:] = [table.num_rows for table in tables]
        if tuple(_stamp(path) for path in self.paths) != self.stamps:
            raise ResourceError(f"{self.describe()} changed while it was read; read it again")
        try:
            return pa.concat_tables(tables, promote_options="permissive")
        except pa.ArrowInvalid as error:
            raise InputError(f"{self.describe()}: the files' columns differ: {error}") from error

    def _read_one(self, path: Path, names: list[str], texts: Sequence[str]) -> pa.Table:
        if self.kind == "csv":
            return csvfile.read(path, self.csv, names, texts)
        file = _parquet(path)
        absent = [name for name in names if name not in file.schema_arrow.names]
        if absent:
            raise InputError(f"{path.name} lacks the column {absent[0]!r} that other files have")
        try:
            return file.read(columns=names)
        except (pa.ArrowInvalid, OSError) as error:
            raise InputError(f"{str(path)!r} is damaged: {error}") from error

    def column(self, name: str) -> pa.ChunkedArray:
        return self.read([name], ()).column(name)

    def place(self, row: int) -> Place:
        for path, count in zip(self.paths, self.row_counts, strict=True):
            if row < count:
                line = row + 2 if self.kind == "csv" else None
                file = path.name if len(self.paths) > 1 else None
                return Place(None, row=row + 1, line=line, file=file)
            row -= count
        raise IndexError(row)


def open_source(data: Any, csv: CsvFormat) -> TableSource | FileSource:
    """A source from a path, a list of paths, a directory, a pattern, or a table."""
    if isinstance(data, str | os.PathLike):
        return _open_files(_expand(data), csv)
    if isinstance(data, list | tuple):
        if not data:
            raise UsageError("the list of files is empty")
        paths = [path for item in data for path in _expand(item)]
        return _open_files(paths, csv)
    kind = f"{type(data).__module__.split('.')[0]} {type(data).__name__}"
    try:
        if isinstance(data, pa.Table):
            return TableSource(data, kind)
        if isinstance(data, pa.RecordBatch):
            return TableSource(pa.Table.from_batches([data]), kind)
        if hasattr(data, "__arrow_c_stream__"):
            return TableSource(pa.table(data), kind)
        if type(data).__module__.startswith("pandas"):
            return TableSource(pa.Table.from_pandas(data, preserve_index=False), kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(f"the {kind} does not convert to Arrow: {error}") from error
    raise UsageError(
        "a log is read from a path, a list of paths, or a pandas, polars or pyarrow table; "
        f"got {type(data).__name__}"
    )


def _expand(item: Any) -> list[Path]:
    """A file of that very name wins; then a directory; then a pattern, sorted."""
    if not isinstance(item, str | os.PathLike):
        raise UsageError(f"a list of files holds paths; got {type(item).__name__}")
    path = Path(item)
    if path.is_file():
        return [path]
    if path.is_dir():
        found = sorted(
            p for p in path.rglob("*") if p.is_file() and p.name.lower().endswith(SUFFIXES)
        )
        if not found:
            raise ResourceError(
                f"the directory {str(item)!r} (resolved: {path.resolve()}) holds no file ending "
                f"in {', '.join(SUFFIXES)}"
            )
        return found
    if glob.has_magic(str(item)):
        matched = sorted(Path(p) for p in glob.glob(str(item)) if Path(p).is_file())
        if matched:
            return matched
        raise ResourceError(f"no file matches the pattern {str(item)!r}")
    raise ResourceError(f"there is no file {str(item)!r} (resolved: {path.resolve()})")


def _open_files(paths: list[Path], csv: CsvFormat) -> FileSource:
    kinds = {path: _kind(path) for path in paths}
    if len(set(kinds.values())) > 1:
        named = ", ".join(f"{path.name} ({kind})" for path, kind in list(kinds.items())[:4])
        raise InputError(f"the files are of different kinds: {named}; give one kind at a time")
    _refuse_copies(paths)
    return FileSource(
        tuple(paths), next(iter(kinds.values())), csv, tuple(_stamp(path) for path in paths), []
    )


def _kind(path: Path) -> str:
    """The kind of a file by its first bytes; a name that says otherwise is refused."""
    try:
        with path.open("rb") as stream:
            magic = stream.read(8)
    except OSError as error:
        raise ResourceError(f"cannot read {str(path)!r}: {error.strerror}") from error
    if not magic:
        raise input_error(
            str(path), [Fault("no-episodes", "the file is empty", "give a file with rows")]
        )
    for start, what in REFUSED_MAGIC.items():
        if magic.startswith(start):
            raise InputError(f"{str(path)!r} is {what}; reweigh reads CSV, gzip and Parquet")
    kind = "parquet" if magic.startswith(b"PAR1") else "csv"
    named = "parquet" if path.suffix.lower() in (".parquet", ".pq") else "csv"
    if kind != named and (named == "parquet" or path.suffix.lower() in (".csv", ".tsv", ".gz")):
        raise InputError(
            f"{str(path)!r} is named like {named} and holds {kind} (first bytes {magic!r}); "
            "rename the file, or export it again"
        )
    return kind


def _refuse_copies(paths: list[Path]) -> None:
    """The same content twice would count every episode twice."""
    seen: dict[tuple[int, str], Path] = {}
    sizes = [path.stat().st_size for path in paths]
    for path, size in zip(paths, sizes, strict=True):
        if sizes.count(size) < 2:
            continue
        key = (size, _sha256(path))
        if key in seen:
            raise InputError(
                f"{str(path)!r} has the same content as {str(seen[key])!r}; give each file once"
            )
        seen[key] = path


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _parquet(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, memory_map=True)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{str(path)!r} is not a whole Parquet file: {error}") from error
