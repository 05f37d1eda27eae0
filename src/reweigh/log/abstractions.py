"""The abstractions that make states from columns: rounding, grids, and bins that hold about as many
rows each.

The edges of such bins are found once, before the log is read, from all rows of a log of at most
2^20 rows; of a larger one from those of its episodes whose id's hash is 0 modulo 2^L, with the
least L for which rows / 2^L ≤ 2^20. Every engine has the same hashes (of blocks), so that every
engine has the same edges.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reweigh.errors import RefusedError, UsageError, check
from reweigh.log.states import Codes, Labels, combine, encode_array, exact_array
from reweigh.system.fingerprint import digest_of_callable

Floats = npt.NDArray[np.float64]
SAMPLE = 1 << 20  # rows
NOT_WHOLE = (
    "the state abstraction returned numbers that are fractions, not finite or too large for 64 "
    "bits; a state is an integer or a text: round them, or return the number of the cell"
)


@runtime_checkable
class Transformer(Protocol):
    """Anything with `transform` (the scikit-learn convention)."""

    def transform(self, values: npt.NDArray[Any]) -> Any: ...


class Abstraction:
    """Base of the abstractions that describe themselves; they take numbers only."""

    def __call__(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        raise UsageError("use Rounding, Grid, or any callable or object with transform()")

    def cell_in_words(self, column: int, cell: Any) -> str:
        """The values of this column that make this part of a state, such as "65–80"."""
        raise UsageError("use Rounding, Grid, or any callable or object with transform()")


@dataclass(frozen=True)
class Rounding(Abstraction):
    """state = round(x · scale), column by column (half to even)."""

    scale: float | Sequence[float]

    def __post_init__(self) -> None:
        scale = np.asarray(self.scale, float)
        check(
            scale.ndim < 2 and np.all(np.isfinite(scale) & (scale > 0)),
            "scale",
            "a positive number, or one per column",
            self.scale,
        )
        # floats, so that equal scales are described alike
        object.__setattr__(self, "scale", tuple(scale.tolist()) if scale.ndim else float(scale))

    def __call__(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        scale = np.asarray(self.scale, float)
        if scale.ndim == 1 and values.shape[1] != len(scale):
            raise UsageError(
                f"Rounding has scales for {len(scale)} columns, but the state has {values.shape[1]}"
            )
        with np.errstate(over="ignore"):  # an infinity is refused below
            return _whole(np.rint(values * scale))

    def cell_in_words(self, column: int, cell: Any) -> str:
        scale = self.scale if isinstance(self.scale, float) else tuple(self.scale)[column]
        return f"about {cell / scale:g}"


@dataclass(frozen=True)
class Grid(Abstraction):
    """state = number of edges at or below x, with one increasing list of edges per column."""

    edges: Sequence[float] | Sequence[Sequence[float]]

    def __post_init__(self) -> None:
        nested = [np.atleast_1d(np.asarray(edge, float)) for edge in self.edges]
        lists = nested if any(np.ndim(e) for e in self.edges) else [np.asarray(self.edges, float)]
        for edge in lists:
            check(
                len(edge) > 0 and np.all(np.isfinite(edge)) and np.all(np.diff(edge) > 0),
                "edges",
                "increasing finite numbers, one list per column",
                self.edges,
            )
        object.__setattr__(self, "edges", tuple(tuple(edge.tolist()) for edge in lists))

    def __call__(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        edges: tuple[tuple[float, ...], ...] = self.edges  # type: ignore[assignment]
        if values.shape[1] != len(edges):
            raise UsageError(
                f"Grid has edges for {len(edges)} columns, but the state has {values.shape[1]}"
            )
        cells = [np.searchsorted(edge, values[:, j], side="right") for j, edge in enumerate(edges)]
        return np.stack(cells, axis=1).astype(np.int64)

    def cell_in_words(self, column: int, cell: Any) -> str:
        return between_edges(self.edges[column], cell)  # type: ignore[arg-type]


def between_edges(edges: Sequence[float], cell: int) -> str:
    """The values with so many edges at or below them, such as "65–80"."""
    if not edges:
        return "any"
    if cell <= 0:
        return f"< {edges[0]:g}"
    if cell >= len(edges):
        return f"≥ {edges[-1]:g}"
    low, high = edges[cell - 1], edges[cell]
    return f"{low:g}–{high:g}" if low >= 0 else f"{low:g} to {high:g}"


@dataclass(frozen=True)
class Quantiles(Abstraction):
    """state = the bin of x, 0 … bins - 1, of about as many rows each. With sorted values
    x_(0) ≤ … ≤ x_(n-1) the edges are x_(⌊jn/bins⌋), j = 1 … bins - 1, each once; x is in the bin
    whose number is that of the edges at or below it.

    bins   one number for every column of floats (other columns stay labels), or one per state
           column, where 0 leaves a column as it is
    edges  per state column, None where it stays as it is; found when a log is read. Reading another
           log with the same edges: `Quantiles(5, edges=…)`
    """

    bins: int | Sequence[int]
    edges: Sequence[Sequence[float] | None] | None = None

    def __post_init__(self) -> None:
        one = isinstance(self.bins, int | np.integer)
        bins: list[Any] = [self.bins] if one else list(self.bins)  # type: ignore[arg-type]
        fine = [isinstance(b, int | np.integer) and (b > 1 or (b == 0 and not one)) for b in bins]
        check(
            bins and all(fine) and any(bins),
            "bins",
            "a whole number from 2 on, or one per state column (0: as it is)",
            self.bins,
        )
        whole: Any = int(bins[0]) if one else tuple(map(int, bins))
        object.__setattr__(self, "bins", whole)
        if self.edges is None:
            return
        edges = [None if e is None else tuple(np.asarray(e, float).tolist()) for e in self.edges]
        check(
            not any(e is not None and np.any(~(np.diff(e) > 0)) for e in edges),
            "edges",
            "increasing numbers, or None, per state column",
            self.edges,
        )
        object.__setattr__(self, "edges", tuple(edges))

    def per_column(self, count: int) -> list[int | None]:
        """The bins of so many state columns, None where the column's type decides."""
        if isinstance(self.bins, int):
            return [None] * count
        if len(self.bins) != count:
            raise UsageError(f"Quantiles has bins for {len(self.bins)} columns and gets {count}")
        return list(self.bins)

    def chosen(self, kinds: Sequence[pa.DataType]) -> list[bool]:
        """Which state columns of these types are put into bins."""
        binned = [
            pa.types.is_floating(kind) or pa.types.is_decimal(kind) if bins is None else bins > 0
            for bins, kind in zip(self.per_column(len(kinds)), kinds, strict=True)
        ]
        if not any(binned):
            raise UsageError(
                "no state column holds floats, which are what bins are made of: leave bins out, or "
                "give one number per state column (0: as it is)"
            )
        return binned

    def fitted(self, kinds: Sequence[pa.DataType], values: Sequence[Floats | None]) -> Quantiles:
        """With the edges of these values, one array per state column."""
        bins = [self.bins] * len(kinds) if isinstance(self.bins, int) else self.bins
        edges = [
            (() if x is None else edges_of(x, count)) if chosen else None
            for chosen, x, count in zip(self.chosen(kinds), values, bins, strict=True)
        ]
        return replace(self, edges=tuple(edges))

    def cell_in_words(self, column: int, cell: Any) -> str:
        edges = None if self.edges is None else self.edges[column]
        return str(cell) if edges is None else between_edges(edges, cell)

    def in_words(self, names: Sequence[str]) -> str:
        """The edges of the columns, to be read."""
        listed = [
            f"{name} at {', '.join(f'{edge:.6g}' for edge in edges) or 'no edge'}"
            for name, edges in zip(names, self.edges or (), strict=False)
            if edges is not None
        ]
        return f"bins: {'; '.join(listed)}"


def edges_of(x: Floats, bins: int) -> tuple[float, ...]:
    """x_(⌊jn/bins⌋) for j = 1 … bins - 1, without the least value, below which nothing is."""
    x = np.sort(x[np.isfinite(x)])
    if len(x) == 0:
        return ()
    ranks = np.arange(1, bins) * len(x) // bins
    edges = np.unique(x[ranks])
    return tuple(edges[edges > x[0]].tolist())


def sample_level(rows: int) -> int:
    """The least L with rows / 2^L ≤ SAMPLE."""
    return max((rows - 1) // SAMPLE, 0).bit_length()


def in_sample(ids: Iterable[str], level: int) -> npt.NDArray[np.bool_]:
    """Whether the rows of these episodes count: the first 8 hex digits of the id's MD5 end so."""
    hashes = [hashlib.md5(text.encode("utf-8", "surrogatepass")).hexdigest()[:8] for text in ids]
    return np.array([int(text, 16) % (1 << level) == 0 for text in hashes], bool)


def refuse_empty(values: Sequence[Floats | None], level: int) -> None:
    """An engine's sample of a large log must not be empty."""
    if level and all(x is None or len(x) == 0 for x in values):
        raise RefusedError(
            "few-episodes",
            f"quantiles of a log of more than {SAMPLE:,} rows are those of 1 in {1 << level} "
            "episodes, and there are too few episodes: give the edges, with Grid",
        )


def makes_labels(abstraction: Any, part: int) -> bool:
    """Whether this part of a state is a label as it is logged."""
    if isinstance(abstraction, Quantiles):
        return abstraction.edges is not None and abstraction.edges[part] is None
    return abstraction is None


def bin_notes(abstraction: Any, names: Sequence[str]) -> tuple[str, ...]:
    """What a log's description says of bins."""
    return (abstraction.in_words(names),) if isinstance(abstraction, Quantiles) else ()


def read_as_numbers(abstraction: Any, count: int) -> list[bool]:
    """Of so many state columns, which a CSV must give as numbers."""
    if isinstance(abstraction, Quantiles):
        return [bool(bins) for bins in abstraction.per_column(count)]
    return [abstraction is not None] * count


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


def state_in_words(state: str, columns: Sequence[str], abstraction: str | None) -> str:
    """A state's name by its columns and their values or ranges, such as "map_bp 65–80, lactate ≥ 4"
    for "(2, 1)"; the name itself where it has no such parts. `abstraction` is its description."""
    known_abstraction = _described(abstraction)
    if (len(columns) < 2 and known_abstraction is None) or (
        abstraction is not None and known_abstraction is None
    ):
        return state
    try:
        label = ast.literal_eval(state)
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # END, ?, other states together
        return state
    parts = label if isinstance(label, tuple) else (label,)
    if len(parts) != len(columns):
        return state
    words = [
        str(part) if known_abstraction is None else known_abstraction.cell_in_words(column, part)
        for column, part in enumerate(parts)
    ]
    return ", ".join(f"{name} {word}" for name, word in zip(columns, words, strict=True))


@dataclass(frozen=True)
class NamedLabels(Labels):
    """States that are called by their columns and values or ranges, for people to read."""

    columns: tuple[str, ...] = ()
    abstraction: str | None = None

    def name(self, code: int) -> str:
        return state_in_words(super().name(code), self.columns, self.abstraction)


@functools.cache
def _described(abstraction: str | None) -> Abstraction | None:
    """What such a description was made of; None of a function's, which has no ranges."""
    try:
        call = ast.parse(abstraction or "", mode="eval").body
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            return None
        known = {kind.__name__: kind for kind in (Rounding, Grid, Quantiles)}[call.func.id]
        settings = {k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg}
        return known(**settings)
    except (KeyError, SyntaxError, TypeError, ValueError):
        return None


def abstract_states(abstraction: AnyAbstraction, values: npt.NDArray[Any]) -> tuple[Codes, Labels]:
    """States from the (rows, k) array of the chosen columns."""
    check(
        callable(abstraction) or isinstance(abstraction, Transformer),
        "abstraction",
        "callable or have a transform() method",
        abstraction,
    )
    call = abstraction if callable(abstraction) else abstraction.transform
    try:
        result = call(values)
        array = exact_array(result)
    except UsageError:
        raise
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the state abstraction {describe_abstraction(abstraction)} failed; it gets an "
            f"array of shape {values.shape} and must return one state per row: {error}"
        ) from error
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or len(array) != len(values) or array.shape[1] == 0:
        raise UsageError(
            f"the state abstraction returned shape {np.shape(array)} for {len(values)} rows; "
            "it must return one state (or one row of state columns) per row"
        )
    if np.ma.is_masked(result):
        raise UsageError(
            "the state abstraction returned masked values, but a state cannot be masked"
        )
    if array.dtype.kind == "f":
        array = _whole(array)
    parts = [encode_array("the abstraction's states", array[:, j]) for j in range(array.shape[1])]
    return combine(parts)


def _whole(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Floats as integers, if that changes none of them."""
    if not np.all((np.abs(values) < 2.0**63) & (np.rint(values) == values)):
        raise UsageError(NOT_WHOLE)
    return values.astype(np.int64)
