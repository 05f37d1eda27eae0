"""Parquet files, a column at a time; and Arrow files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from reweigh.errors import InputError, ResourceError, ReweighError
from reweigh.log import csv_files as csvfile
from reweigh.log.sources import UNREADABLE, FileSource, TableSource
from reweigh.log.states import plain_column, plain_schema
from reweigh.system.process import is_shortage, require

ROW_BYTES = 40  # beside the columns themselves, while rows are checked and put in order; measured
PIECE = 1 << 16  # rows
PARQUET_BUFFER = 1 << 18  # bytes of a file that are read at a time: memory stays small


@contextmanager
def file_errors(path: Path, wrong: str) -> Iterator[None]:
    """The file is at fault, unless the system gave an error number or no memory.

    Damage appears in many ways: sizes that do not match, text that is not UTF-8, a missing column.
    Damage that stays readable is not detected: Parquet files have no checksum, and page checksums,
    which are verified, are rarely written.
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
            for extreme in (ends["min"], ends["max"]):
                if extreme is not None and abs(extreme) > limit:
                    raise InputError(
                        f"{path.name}: column {name!r} is {extreme}, which does not match "
                        f"{beside} in other files; write one type in all files"
                    )


@contextmanager
def parquet_parts(path: Path) -> Iterator[pq.ParquetFile]:
    """An open Parquet file; what cannot be read of it is its damage."""
    with file_errors(path, "is damaged"), open_parquet(path) as file:
        yield file


def open_parquet(path: Path) -> pq.ParquetFile:
    with file_errors(path, "is not a complete Parquet file"):
        file = pq.ParquetFile(
            path, pre_buffer=False, buffer_size=PARQUET_BUFFER, page_checksum_verification=True
        )
        _ = file.schema_arrow.names  # types or names that a damaged file has
        return file


@dataclass(frozen=True, eq=False)
class ParquetRows:
    """Columns of Parquet files, decoded on each use, and not kept."""

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
                    batch.validate(full=True)  # a damaged page may contain bytes that are not text
                    yield batch.column(name).cast(kind)
        self.refuse_change()

    def column(self, name: str) -> pa.ChunkedArray:
        kind = self.united.field(name).type
        return plain_column(pa.chunked_array(list(self.pieces(name)), kind))


@dataclass(frozen=True, eq=False)
class ParquetSource(FileSource):
    """One or more Parquet files, read in the order of their names."""

    @cached_property
    def names(self) -> list[str]:
        with parquet_parts(self.paths[0]) as file:
            names = list(file.schema_arrow.names)
        csvfile.refuse_duplicates(names, str(self.paths[0]))
        return names

    def read(self, names: Sequence[str], ids: Sequence[str]) -> pa.Table:
        rows = self.open_rows(names, ids)
        return pa.table({name: rows.column(name) for name in rows.schema.names})

    def open_rows(self, names: Sequence[str], ids: Sequence[str]) -> ParquetRows:
        self.refuse_change()
        schema = self.unite(self.schemas(), list(dict.fromkeys(names)))
        rows = sum(count for count, _ in self.parts)
        # by the declared number of rows: a few bytes can encode a billion equal rows
        require(
            rows * (sum(map(_width, schema.types)) + ROW_BYTES),
            f"{self.describe()} with {rows:,} rows of {len(schema)} columns",
            "read it with engine='stream' or engine='duckdb'",
        )
        return ParquetRows(self.paths, schema, rows, self.refuse_change)

    def schemas(self) -> list[pa.Schema]:
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

        DuckDB or Spark would read a missing column as null, numbers as text where
        another file holds text, and large integers as decimals.
        """
        chosen = []
        for path, known in zip(self.paths, schemas, strict=True):
            csvfile.refuse_absent(path, names, known.names)
            chosen.append(pa.schema([known.field(name).remove_metadata() for name in names]))
        try:
            united = pa.unify_schemas(chosen, promote_options="permissive")
        except UNREADABLE as error:
            raise self.differ(error) from error
        for name in names:
            kinds = [schema.field(name).type for schema in chosen]
            # beside another type a decimal's digits decide whether it can be read at all
            decimal = next((k for k in kinds if pa.types.is_decimal(k)), None)
            other = [k for k in kinds if not (pa.types.is_decimal(k) or pa.types.is_null(k))]
            if decimal is not None and other:
                raise self.differ(
                    f"Unable to merge: Field {name} has incompatible types: {decimal} vs {other[0]}"
                )
            for path, kind in zip(self.paths, kinds, strict=True):
                refuse_too_large(path, name, kind, united.field(name).type)
        return united


def _width(kind: pa.DataType) -> int:
    """Bytes per row of a column, at least: of a text only where it begins."""
    try:
        return -(-int(kind.bit_width) // 8)
    except ValueError:
        return 4


def open_arrow(paths: list[Path]) -> TableSource:
    """Arrow (Feather) files are tables already: mapped into memory, not copied."""
    tables = []
    for path in paths:
        with file_errors(path, "is not a complete Arrow file"):
            tables.append(pa.ipc.open_file(pa.memory_map(str(path))).read_all())
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
    except UNREADABLE as error:
        raise InputError(f"the columns of the Arrow files differ: {error}") from error
    csvfile.refuse_duplicates(table.column_names, str(paths[0]))
    return TableSource(table, f"arrow file {paths[0].name}", tuple(paths))
