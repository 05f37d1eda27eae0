"""Bins that hold about as many rows each: edges at the quantiles of a log.

The edges are found once, before the log is read, from all rows of a log of at most 2^20 rows; of a
larger one from those of its episodes whose id's hash is 0 modulo 2^L, with the least L for which
rows / 2^L ≤ 2^20. Every engine has the same hashes (of blocks), so that every engine has the same
edges.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reweigh.errors import RefusedError, UsageError, check
from reweigh.log.abstractions import Abstraction, between_edges

SAMPLE = 1 << 20  # rows
Floats = npt.NDArray[np.float64]


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
