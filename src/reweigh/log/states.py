"""States and actions as small integer codes, made of columns of Arrow and NumPy.

A *label* is what the user calls a state: an integer, a text, a tuple of these (several columns),
or None for the hidden state. Two labels are the same when their text is the same, so that a state
read as 3 from Parquet meets the state "3" of a CSV policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reweigh import kernels
from reweigh.errors import UsageError
from reweigh.system.files import digest_of

Label = int | str | tuple["int | str", ...] | None
Text = str | tuple[str, ...] | None
Codes = npt.NDArray[Any]  # int32 where they are made of a column, else int64
Mask = npt.NDArray[np.bool_]

HIDDEN, END = kernels.HIDDEN, kernels.END
UNKNOWN, START = kernels.UNKNOWN, kernels.START
IN_CACHE = 1 << 15  # rows
WORDS = pa.dictionary(pa.int64(), pa.large_string())
DIGITS = 76  # of the widest decimals, which can be written as texts at every scale
SPECIAL_NAMES = {HIDDEN: "?", END: "END", UNKNOWN: "UNKNOWN", START: "START"}


@dataclass(frozen=True)
class Labels:
    """Code → label. Codes count from 0 in the order of `values`."""

    values: tuple[Label, ...]

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def code_of(self) -> dict[Text, int]:
        return {label_text(value): code for code, value in enumerate(self.values)}

    def name(self, code: int) -> str:
        """What to print for a code."""
        if code < 0:
            return SPECIAL_NAMES[code]
        value = self.values[code]
        return "?" if value is None else str(value)

    def translate(self, other: Labels) -> Codes:
        """Codes of `other`'s labels in this vocabulary, -1 where it lacks them."""
        find = self.code_of
        if other.values == self.values and len(find) == len(self):
            return np.arange(len(self))
        return np.fromiter(
            (find.get(label_text(value), -1) for value in other.values), np.int64, len(other)
        )

    def array(self) -> npt.NDArray[Any]:
        """Labels as an array: (S,) integers or texts, (S, k) for tuples (None is left out)."""
        return label_array([value for value in self.values if value is not None])

    def digest(self) -> str:
        return digest_of(repr(self.values))


def label_text(value: object) -> Text:
    """The canonical text by which labels are compared (integers in decimal)."""
    if type(value) is int:  # as nearly all are, of logs with many
        return str(value)
    label = plain_label(value)
    if isinstance(label, tuple):
        return tuple(str(label_text(part)) for part in label)
    return None if label is None else str(label)


def plain_label(value: object) -> Label:
    """A label as plain Python values, whatever NumPy type it came as."""
    if value is None:
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool | np.bool_ | int | np.integer):
        return int(value)
    if isinstance(value, tuple | list):
        return tuple(plain_label(part) for part in value)  # type: ignore[misc]
    raise UsageError(
        f"a state or action must be an integer or a text (or a tuple of them); got {value!r}"
    )


def label_array(labels: Sequence[Any]) -> npt.NDArray[Any]:
    """Labels exactly as they are: NumPy's own texts drop NULs at their end and its choice for
    large integers is floats, so texts and mixed labels are objects."""
    shape = (
        (len(labels), len(labels[0])) if labels and isinstance(labels[0], tuple) else len(labels)
    )
    array = np.empty(shape, object)
    array[:] = labels
    flat = array.reshape(-1).tolist()
    if not all(isinstance(value, int) for value in flat):
        return array
    low, high = min(flat, default=0), max(flat, default=0)
    if low >= -(2**63) and high < 2**63:
        return array.astype(np.int64)
    return array.astype(np.uint64) if low >= 0 and high < 2**64 else array


def exact_array(given: Any) -> npt.NDArray[Any]:
    """A user's array, or a list as one: NumPy would write numbers among a list's texts as texts,
    and drop NULs at the end of a text."""
    array = np.asarray(given)
    if array.dtype.kind == "U" and not isinstance(given, np.ndarray):
        array = np.array(given, object)
    return array


def unite(first: Labels, second: Labels) -> Labels:
    """All labels of both, the first's codes unchanged."""
    known = first.code_of
    return Labels(first.values + tuple(v for v in second.values if label_text(v) not in known))


NO_STATES = Labels(("(no state)",))  # of a log that names features and no state


def combine(parts: Sequence[tuple[Codes, Labels]]) -> tuple[Codes, Labels]:
    """One code for several columns; hidden where any of them is."""
    if len(parts) == 1:
        return parts[0]
    known = np.logical_and.reduce([codes >= 0 for codes, _ in parts])
    sizes = [max(len(labels), 1) for _, labels in parts]
    keys = np.zeros(int(known.sum()), np.int64)
    values: list[tuple[Any, ...]] = [()]
    for (codes, labels), size in zip(parts, sizes, strict=True):
        # the pairs of the code so far and this column that occur
        pairs, keys = np.unique(keys * size + codes[known], return_inverse=True)
        values = [
            (*values[i], labels.values[j])
            for i, j in zip(*(part.tolist() for part in np.divmod(pairs, size)), strict=True)
        ]
    joint = np.full(len(known), HIDDEN, np.int64)
    joint[known] = keys
    return joint, Labels(tuple(values))


def encode_integers(
    values: npt.NDArray[Any], codes: npt.NDArray[np.int32] | None = None
) -> tuple[npt.NDArray[np.int32], Labels]:
    """Codes of integers, in increasing order of the integers; `codes`, which may be the values
    themselves, takes them."""
    if len(values) == 0:
        return np.zeros(0, np.int32), Labels(())
    low, span = values.min(), int(values.max()) - int(values.min())
    if span >= 4 * len(values) + 1024:  # a table of the range would be larger than the rows
        unique, ranks = np.unique(values, return_inverse=True)
        return ranks.astype(np.int32), Labels(tuple(unique.tolist()))
    codes = np.empty(len(values), np.int32) if codes is None else codes
    wide = np.uint64 if values.dtype.kind == "u" else np.int64
    present = np.zeros(span + 1, bool)
    parts = [slice(first, first + IN_CACHE) for first in range(0, len(values), IN_CACHE)]
    for part in parts:
        present[values[part].astype(wide) - wide(low)] = True
    rank = np.cumsum(present, dtype=np.int32) - np.int32(1)
    for part in parts:
        codes[part] = rank[values[part].astype(wide) - wide(low)]
    return codes, Labels(tuple((np.flatnonzero(present).astype(wide) + wide(low)).tolist()))


def encode_array(what: str, values: npt.NDArray[Any]) -> tuple[Codes, Labels]:
    """Codes of a user's array of integers, truth values or texts."""
    kind, got = values.dtype.kind, str(values.dtype)
    if len(values) == 0:
        return np.zeros(0, np.int64), Labels(())
    if kind in "iub":
        return encode_integers(values.astype(np.int64) if kind == "b" else values)
    if kind in "UTO":
        try:
            column = pa.array(values.tolist() if kind == "T" else values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise UsageError(
                f"{what} must be all texts or all integers of 64 bits: {error}"
            ) from error
        got = "None" if column.null_count else str(column.type)
        if got in ("bool", "string", "int64", "uint64"):
            return encode_arrow(pa.chunked_array([column]))
    raise UsageError(f"{what} must be integers or texts; got {got}")


def encode_arrow(column: pa.ChunkedArray) -> tuple[Codes, Labels]:
    """Codes of an Arrow column of integers, truth values or texts; null is hidden.

    The caller has refused other types. Texts get their codes in increasing order, so that the
    codes do not depend on the order of the rows.
    """
    if pa.types.is_boolean(column.type) or pa.types.is_integer(column.type):
        return encode_with_nulls(*integer_rows(column.chunks, len(column)))
    if pa.types.is_null(column.type):
        column = column.cast(pa.string())
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    column = column.unify_dictionaries()
    words = column.chunk(0).dictionary.to_pylist() if column.num_chunks else []
    keys = [chunk.indices.cast(pa.int32()) for chunk in column.chunks]
    # a null is the last word
    codes, nulls = integer_rows(keys, len(column))
    if nulls is not None:
        codes[nulls] = len(words)
    used = np.zeros(len(words) + 1, bool)
    used[codes] = True
    unique = sorted({w for w, keep in zip(words, used, strict=False) if keep and w is not None})
    code_of = {word: code for code, word in enumerate(unique)}
    recode = np.array([code_of.get(word, HIDDEN) for word in words] + [HIDDEN], np.int32)
    return recode[codes], Labels(tuple(unique))


def encode_with_nulls(values: npt.NDArray[Any], nulls: Mask | None) -> tuple[Codes, Labels]:
    """Codes of integers that may be overwritten; HIDDEN where null."""
    if nulls is None:
        return encode_integers(values, values if values.dtype == np.int32 else None)
    codes = np.full(len(values), HIDDEN, np.int32)
    codes[~nulls], labels = encode_integers(values[~nulls])
    return codes, labels


# ---- Arrow's many column types as the few that logs are read from -------------------------------


def is_text(kind: pa.DataType) -> bool:
    """Texts, dictionary-encoded or not."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def is_label(kind: pa.DataType) -> bool:
    """What states, actions and ids may be; a column of the type null holds nothing but nulls."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    plain = pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)
    return bool(plain or is_text(kind))


def plain_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Frames export texts and categories in types that many Arrow functions lack. Text views become
    texts; categories of texts get signed keys; other categories are values. All else passes as it
    is, without a copy."""
    kind = column.type
    if pa.types.is_string_view(kind):
        return column.cast(pa.large_string())
    if not pa.types.is_dictionary(kind):
        return column
    if not is_text(kind.value_type):
        return column.cast(kind.value_type)
    chunks = [
        pa.DictionaryArray.from_arrays(
            chunk.indices.cast(WORDS.index_type), chunk.dictionary.cast(WORDS.value_type)
        )
        for chunk in column.chunks
    ]
    return pa.chunked_array(chunks, WORDS)


def plain_table(table: pa.Table) -> pa.Table:
    """The table with every column as `plain_column` gives it."""
    columns = [plain_column(column) for column in table.columns]
    return pa.table(columns, names=table.column_names)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The types that `plain_table` gives to the columns of a table."""
    return plain_table(pa.Table.from_batches([], schema)).schema  # empty_table imports pandas


def texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A text column without its dictionary: what the functions on texts take."""
    return column.cast(pa.large_string()) if pa.types.is_dictionary(column.type) else column


def floats(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Numbers as the nearest float64. Arrow multiplies a decimal by a rounded power of ten, and so
    misses the nearest one that other engines find; its digits are read without that."""
    if pa.types.is_decimal(column.type):
        wide = pc.cast(column, pa.decimal256(DIGITS, column.type.scale))
        column = pc.cast(wide, pa.string())
    return pc.cast(column, pa.float64(), safe=False)


def float_rows(
    pieces: Iterable[pa.Array], count: int
) -> tuple[npt.NDArray[np.float64], Mask | None]:
    """(count,) numbers as float64, NaN where null; and the nulls, if there are any."""
    return _rows((floats(piece) for piece in pieces), np.empty(count))


def integer_rows(pieces: Iterable[pa.Array], count: int) -> tuple[npt.NDArray[Any], Mask | None]:
    """(count,) integers or truth values, in 32 bits where they fit, 0 where null; and the nulls."""
    return _rows(pieces, np.empty(count, np.int32))


def truth_rows(column: pa.ChunkedArray) -> Mask:
    """(rows,) truth values, false where null."""
    return _rows(column.chunks, np.empty(len(column), bool))[0]


def _rows(
    pieces: Iterable[pa.Array], values: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], Mask | None]:
    """The values of all pieces, in `values` or in an array of wider integers, and the nulls."""
    nulls, row = None, 0
    for piece in pieces:
        rows = slice(row, row + len(piece))
        row = rows.stop
        if piece.null_count:
            nulls = np.zeros(len(values), bool) if nulls is None else nulls
            nulls[rows] = plain_numbers(piece.is_null())
            none = np.nan if pa.types.is_floating(piece.type) else 0
            piece = piece.fill_null(pa.scalar(none).cast(piece.type))
        numbers = plain_numbers(piece)
        if values.dtype == np.int32 and not _fits(numbers):
            values = values.astype(np.uint64 if numbers.dtype == np.uint64 else np.int64)
        values[rows] = numbers
    return values, nulls


def one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column in one piece, which a column of one chunk is already."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def plain_numbers(piece: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """Numbers or truth values, none of them null. (pyarrow's own way would import pandas.)"""
    piece = one_array(piece)
    if pa.types.is_boolean(piece.type):
        return plain_numbers(piece.cast(pa.uint8())).view(bool)
    kind = np.dtype(piece.type.to_pandas_dtype())
    if len(piece) == 0:
        return np.zeros(0, kind)
    return np.frombuffer(piece.buffers()[1], kind, len(piece), piece.offset * kind.itemsize)


def _fits(numbers: npt.NDArray[Any]) -> bool:
    """Whether these integers fit into 32 bits."""
    limits = np.iinfo(np.int32)
    if len(numbers) == 0 or np.can_cast(numbers.dtype, np.int32):
        return True
    return bool(numbers.min() >= limits.min and numbers.max() <= limits.max)
