"""Columns as a data frame of the reader's choice: pandas, polars or Arrow."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from reweigh.errors import UsageError, check

if TYPE_CHECKING:
    import pyarrow as pa

FrameKind = Literal["pandas", "polars", "arrow"]
KINDS = ("pandas", "polars", "arrow")


def frame_of(columns: Mapping[str, Any] | pa.Table, kind: FrameKind | None = None) -> Any:
    """Columns of one length, or an Arrow table, as a frame. Without a `kind` a pandas DataFrame, or
    an Arrow table where pandas is not installed."""
    check(kind is None or kind in KINDS, "kind", '"pandas", "polars" or "arrow"', kind)
    given = dict(columns) if isinstance(columns, Mapping) else None
    if kind == "arrow":
        return _arrow(columns)
    try:
        package: Any = importlib.import_module(kind or "pandas")
    except ImportError as error:
        if kind is None:
            return _arrow(columns)
        raise UsageError(
            f"to_frame({kind!r}) needs {kind}: pip install {kind}, or use to_frame('arrow')"
        ) from error
    if given is not None:
        return package.DataFrame(given)
    table: Any = columns
    return package.from_arrow(table) if kind == "polars" else table.to_pandas()


def rows_frame(rows: Sequence[Mapping[str, Any]], kind: FrameKind | None = None) -> Any:
    """The same of rows that share their names."""
    return frame_of({name: [row[name] for row in rows] for name in rows[0]}, kind)


def _arrow(columns: Mapping[str, Any] | pa.Table) -> Any:
    import pyarrow as pa

    return pa.table(dict(columns)) if isinstance(columns, Mapping) else columns
