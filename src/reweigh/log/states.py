"""States and actions as small integer codes, and the abstractions that make states from columns.

A *label* is what the user calls a state: an integer, a text, a tuple of these (several columns),
or None for the hidden state. Two labels are the same when their text is the same, so that a state
read as 3 from Parquet meets the state "3" of a CSV policy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from reweigh.errors import UsageError, must_be
from reweigh.kernels import codes as kernel_codes
from reweigh.system.files import digest_of
from reweigh.system.fingerprint import digest_of_callable

Label = int | str | tuple["int | str", ...] | None
Text = str | tuple[str, ...] | None
Codes = npt.NDArray[Any]  # int32 where they are made of a column, else int64

HIDDEN, END = kernel_codes.HIDDEN, kernel_codes.END
UNKNOWN, START = kernel_codes.UNKNOWN, kernel_codes.START
IN_CACHE = 1 << 15  # rows
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
    if value is None:
        return None
    if type(value) is int:  # as nearly all are, of logs with many
        return str(value)
    if isinstance(value, bool | np.bool_ | int | np.integer):
        return str(int(value))
    if isinstance(value, str):
        return str(value)
    if isinstance(value, tuple | list):
        return tuple(str(label_text(part)) for part in value)
    raise UsageError(
        f"a state or action must be an integer or a text (or a tuple of them); got {value!r}"
    )


def plain_label(value: object) -> Label:
    """A label as plain Python values, whatever NumPy type it came as."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool | np.bool_ | int | np.integer):
        return int(value)
    if isinstance(value, tuple | list):
        return tuple(plain_label(part) for part in value)  # type: ignore[misc]
    label_text(value)  # raises
    raise AssertionError("unreachable")


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
        import pyarrow as pa

        try:
            column = pa.array(values.tolist() if kind == "T" else values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise UsageError(
                f"{what} must be all texts or all integers of 64 bits: {error}"
            ) from error
        got = str(column.type)
        if got in ("bool", "string", "int64", "uint64") and column.null_count == 0:
            return encode_arrow(column)
        if column.null_count:
            got = "None"
    raise UsageError(f"{what} must be integers or texts; got {got}")


def combine(parts: Sequence[tuple[Codes, Labels]]) -> tuple[Codes, Labels]:
    """One code for several columns; hidden where any of them is."""
    codes, labels = parts[0]
    codes, hidden = codes.astype(np.int64), codes < 0
    values: list[tuple[Any, ...]] = [(value,) for value in labels.values]
    for more, more_labels in parts[1:]:
        hidden = hidden | (more < 0)
        joint = np.where(hidden, 0, codes * max(len(more_labels), 1) + more)
        unique, codes = np.unique(joint[~hidden], return_inverse=True)
        first, second = np.divmod(unique, max(len(more_labels), 1))
        values = [
            (*values[i], more_labels.values[j])
            for i, j in zip(first.tolist(), second.tolist(), strict=True)
        ]
        full = np.full(len(joint), HIDDEN, np.int64)
        full[~hidden] = codes
        codes = full
    return codes, Labels(tuple(values))


@runtime_checkable
class Transformer(Protocol):
    """Anything with `transform` (the scikit-learn convention)."""

    def transform(self, values: npt.NDArray[Any]) -> Any: ...


class Abstraction:
    """Base of the abstractions that describe themselves; they take numbers only."""

    def __call__(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        raise UsageError("use Rounding, Grid, or any callable or object with transform()")


@dataclass(frozen=True)
class Rounding(Abstraction):
    """state = round(x · scale), column by column (half to even)."""

    scale: float | Sequence[float]

    def __post_init__(self) -> None:
        scale = np.asarray(self.scale, float)
        if scale.ndim > 1 or not np.all(np.isfinite(scale)) or np.any(scale <= 0):
            raise must_be("scale", "a positive number, or one per column", self.scale)
        # floats, so that equal scales are described alike
        object.__setattr__(self, "scale", tuple(scale.tolist()) if scale.ndim else float(scale))

    def __call__(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        scale = np.asarray(self.scale, float)
        if scale.ndim == 1 and values.shape[1] != len(scale):
            raise UsageError(
                f"Rounding has scales for {len(scale)} columns and is applied to {values.shape[1]}"
            )
        with np.errstate(over="ignore"):  # an infinity is refused below
            return _whole(np.rint(values * scale))


@dataclass(frozen=True)
class Grid(Abstraction):
    """state = number of edges at or below x, with one increasing list of edges per column."""

    edges: Sequence[float] | Sequence[Sequence[float]]

    def __post_init__(self) -> None:
        nested = [np.atleast_1d(np.asarray(edge, float)) for edge in self.edges]
        lists = nested if any(np.ndim(e) for e in self.edges) else [np.asarray(self.edges, float)]
        for edge in lists:
            if not np.all(np.isfinite(edge)) or np.any(np.diff(edge) <= 0) or len(edge) == 0:
                raise must_be("edges", "increasing finite numbers, one list per column", self.edges)
        object.__setattr__(self, "edges", tuple(tuple(edge.tolist()) for edge in lists))

    def __call__(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        edges: tuple[tuple[float, ...], ...] = self.edges  # type: ignore[assignment]
        if values.shape[1] != len(edges):
            raise UsageError(
                f"Grid has edges for {len(edges)} columns and is applied to {values.shape[1]}"
            )
        cells = [np.searchsorted(edge, values[:, j], side="right") for j, edge in enumerate(edges)]
        return np.stack(cells, axis=1).astype(np.int64)


AnyAbstraction = Callable[[npt.NDArray[Any]], Any] | Transformer


def describe_abstraction(abstraction: AnyAbstraction | None) -> str | None:
    """The text that stays in the log's description (and that moments must share to be added)."""
    if abstraction is None:
        return None
    if isinstance(abstraction, Abstraction):
        return repr(abstraction)
    # Two lambdas, or two transformers fitted apart, are not the same abstraction.
    # An address in memory would make every run's description another one.
    name = getattr(abstraction, "__qualname__", re.sub(r" at 0x[0-9a-f]+", "", repr(abstraction)))
    call = abstraction if callable(abstraction) else abstraction.transform
    return f"{name} ({digest_of_callable(call)[:12]})"


def abstract_states(abstraction: AnyAbstraction, values: npt.NDArray[Any]) -> tuple[Codes, Labels]:
    """States from the (rows, k) array of the chosen columns."""
    if not callable(abstraction) and not isinstance(abstraction, Transformer):
        raise must_be("abstraction", "callable or have a transform() method", abstraction)
    call = abstraction if callable(abstraction) else abstraction.transform
    try:
        result = call(values)
        array = exact_array(result)
    except UsageError:
        raise
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the state abstraction {describe_abstraction(abstraction)} failed; it is called with "
            f"an array of shape {values.shape} and returns one state per row: {error}"
        ) from error
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or len(array) != len(values) or array.shape[1] == 0:
        raise UsageError(
            f"the state abstraction returned shape {np.shape(array)} for {len(values)} rows; "
            "it must return one state (or one row of state columns) per row"
        )
    if np.ma.is_masked(result):
        raise UsageError("the state abstraction returned masked values; a state is never masked")
    if array.dtype.kind == "f":
        array = _whole(array)
    parts = [encode_array("the abstraction's states", array[:, j]) for j in range(array.shape[1])]
    return combine(parts) if len(parts) > 1 else parts[0]


def _whole(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Floats as integers, if that changes none of them."""
    if not np.all((np.abs(values) < 2.0**63) & (np.rint(values) == values)):
        raise UsageError(
            "the state abstraction returned numbers that are not whole, not finite or too large "
            "for 64 bits; a state is an integer or a text: round them or give the cell's number"
        )
    return values.astype(np.int64)


def encode_arrow(column: Any) -> tuple[Codes, Labels]:
    """Codes of an Arrow column of integers, truth values or texts; null is hidden.

    The caller has refused other types. Texts get their codes in increasing order, so that the
    codes do not depend on the order of the rows.
    """
    import pyarrow as pa

    from reweigh.log.column_types import integer_rows

    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    if pa.types.is_boolean(column.type) or pa.types.is_integer(column.type):
        return encode_with_nulls(*integer_rows(chunks, len(column)))
    whole = pa.chunked_array(chunks, column.type)
    if pa.types.is_null(column.type):
        whole = whole.cast(pa.string())
    if not pa.types.is_dictionary(whole.type):
        whole = whole.dictionary_encode()
    whole = whole.unify_dictionaries()
    words = whole.chunk(0).dictionary.to_pylist() if whole.num_chunks else []
    codes = np.empty(len(column), np.int32)
    row = 0
    for chunk in whole.chunks:
        codes[row : row + len(chunk)] = (
            chunk.indices.cast(pa.int64()).fill_null(len(words)).to_numpy()
        )
        row += len(chunk)
    used = np.zeros(len(words) + 1, bool)
    used[codes] = True
    unique = sorted({w for w, keep in zip(words, used, strict=False) if keep and w is not None})
    code_of = {word: code for code, word in enumerate(unique)}
    recode = np.array([code_of.get(word, HIDDEN) for word in words] + [HIDDEN], np.int32)
    return recode[codes], Labels(tuple(unique))


def encode_with_nulls(
    values: npt.NDArray[Any], nulls: npt.NDArray[np.bool_] | None
) -> tuple[Codes, Labels]:
    """Codes of integers that may be overwritten; HIDDEN where null."""
    if nulls is None:
        return encode_integers(values, values if values.dtype == np.int32 else None)
    codes = np.full(len(values), HIDDEN, np.int32)
    codes[~nulls], labels = encode_integers(values[~nulls])
    return codes, labels
