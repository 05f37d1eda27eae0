"""Parquet files, a column at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from reweigh.errors import InputError, ResourceError, ReweighError
from reweigh.log.column_types import plain_column, plain_schema
from reweigh.system.process import is_shortage

PIECE = 1 << 16  # rows
PARQUET_BUFFER = 1 << 18  # bytes of a file that are read at a time: memory stays small


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
