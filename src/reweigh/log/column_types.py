"""Arrow's many column types as the few that logs are read from.

Frames export texts and categories in types that many Arrow functions lack. Numbers, truth values
and plain texts pass as they are, without a copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

WORDS = pa.dictionary(pa.int64(), pa.large_string())
DIGITS = 76  # of the widest decimals, which can be written as texts at every scale


def plain_table(table: pa.Table) -> pa.Table:
    """The table with every column as `plain_column` gives it."""
    columns = [plain_column(column) for column in table.columns]
    return pa.table(columns, names=table.column_names)


def plain_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text views become texts; categories of texts get signed keys; other categories are values."""
    kind = column.type
    if pa.types.is_string_view(kind):
        return column.cast(pa.large_string())
    if not pa.types.is_dictionary(kind):
        return column
    if is_text(kind.value_type):
        return pa.chunked_array([_words(chunk) for chunk in column.chunks], WORDS)
    return pa.chunked_array([chunk.dictionary_decode() for chunk in column.chunks], kind.value_type)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The types that `plain_table` gives to the columns of a table."""
    return plain_table(schema.empty_table()).schema


def _words(chunk: pa.DictionaryArray) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(
        chunk.indices.cast(WORDS.index_type), chunk.dictionary.cast(WORDS.value_type)
    )


def is_text(kind: pa.DataType) -> bool:
    """Texts, dictionary-encoded or not."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A text column without its dictionary: what the functions on texts take."""
    return column.cast(pa.large_string()) if pa.types.is_dictionary(column.type) else column


def is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def floats(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Numbers as the nearest float64. Arrow multiplies a decimal by a rounded power of ten, and so
    misses the nearest one that other engines find; its digits are read without that."""
    if pa.types.is_decimal(column.type):
        wide = pc.cast(column, pa.decimal256(DIGITS, column.type.scale))
        column = pc.cast(wide, pa.string())
    return pc.cast(column, pa.float64(), safe=False)


def float_rows(
    pieces: Iterable[pa.Array], count: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_] | None]:
    """(count,) numbers as float64, NaN where null; and the nulls, if there are any."""
    values, nulls, row = np.empty(count), None, 0
    for piece in pieces:
        rows = slice(row, row + len(piece))
        if piece.null_count:
            nulls = np.zeros(count, bool) if nulls is None else nulls
            nulls[rows] = piece.is_null().to_numpy(zero_copy_only=False)
        values[rows] = floats(piece).to_numpy(zero_copy_only=False)
        row = rows.stop
    return values, nulls


def integer_rows(
    pieces: Iterable[pa.Array], count: int
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """(count,) integers or truth values, in 32 bits where they fit, 0 where null; and the nulls."""
    values: npt.NDArray[Any] = np.empty(count, np.int32)
    nulls, row = None, 0
    for piece in pieces:
        rows = slice(row, row + len(piece))
        row = rows.stop
        if piece.null_count:
            nulls = np.zeros(count, bool) if nulls is None else nulls
            nulls[rows] = piece.is_null().to_numpy(zero_copy_only=False)
            piece = piece.fill_null(0 if pa.types.is_integer(piece.type) else False)
        numbers = piece.to_numpy(zero_copy_only=False)
        if len(numbers) and values.dtype == np.int32 and not _fits(numbers):
            wide = np.uint64 if numbers.dtype == np.uint64 else np.int64
            values = values.astype(wide)
        values[rows] = numbers
    return values, nulls


def _fits(numbers: npt.NDArray[Any]) -> bool:
    limits = np.iinfo(np.int32)
    if numbers.dtype.itemsize < limits.bits // 8 or numbers.dtype == np.int32:
        return True
    return bool(numbers.min() >= limits.min and numbers.max() <= limits.max)
