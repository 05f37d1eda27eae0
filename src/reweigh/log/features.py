"""The feature columns of a log: numbers of a row, such as vitals, that say where an episode is.

A column is of numbers, or of lists of numbers that all have one length (an embedding). Every value
must be there and finite: what is missing must be imputed before, and then said in a column.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reweigh.errors import must_be
from reweigh.log import rules
from reweigh.log.rules import Rule
from reweigh.log.states import NO_STATES, float_rows, is_number

if TYPE_CHECKING:
    from reweigh.log.log import EpisodeLog
    from reweigh.log.roles import RoleReader

Floats = npt.NDArray[np.float64]
IMPUTED = "impute the value (and add a column that is 1 where you did), or leave this episode out"
FEATURE_NULL = Rule("null", "row", ("features",), "the feature {column} must not be null", IMPUTED)
FEATURE_NOT_FINITE = Rule(
    "not-finite",
    "row",
    ("features",),
    "the feature {column} must be a finite number",
    IMPUTED,
    lambda known, finite: known & ~finite,
)
FEATURE_LENGTH = Rule(
    "feature-length",
    "row",
    ("features",),
    "the lists of the feature {column} must all have {width} numbers, as in the first row",
    "write lists of one length",
)


def read_features(reader: RoleReader) -> tuple[Floats, tuple[str, ...]]:
    """(N, k) the features in the order of the source, and their names; what breaks a rule is added
    to the reader's faults."""
    parts: list[Floats] = []
    names: list[str] = []
    for name in reader.columns.features or ():
        column = reader.table.column(name)
        width, cells = _cells(reader, name, column)
        if cells is None:
            continue
        values, nulls = float_rows(cells.chunks, len(cells))
        rows = np.arange(len(values)) // max(width, 1)  # of the source
        known = np.ones(len(values), bool) if nulls is None else ~nulls
        bad = FEATURE_NOT_FINITE.broken(known, np.isfinite(values))
        for rule, wrong in ((FEATURE_NULL, ~known), (FEATURE_NOT_FINITE, bad)):
            first = dict(zip(rows[wrong][::-1].tolist(), values[wrong][::-1].tolist(), strict=True))
            shown = first.__getitem__ if rule is FEATURE_NOT_FINITE else None
            reader.faults.rows(rule, name, np.array(sorted(first), np.int64), shown)
        parts.append(values.reshape(reader.count, width or 1))
        names += [f"{name}[{j}]" for j in range(width)] if width else [name]
    return np.concatenate(parts, axis=1) if parts else np.zeros((reader.count, 0)), tuple(names)


def _cells(reader: RoleReader, name: str, column: Any) -> tuple[int, Any]:
    """The numbers of a column, row by row; the width of its lists, 0 of a column of numbers; no
    cells where a rule of the whole column is broken."""
    from reweigh.log.roles import not_numbers

    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or _is_fixed(kind)):
        if is_number(kind):
            return 0, column
        not_numbers(reader.faults, name, column)
        return 0, None
    if not is_number(kind.value_type):
        reader.faults.column(rules.NOT_NUMERIC, name, kind=kind)
        return 0, None
    lists = pa.chunked_array(column.chunks, kind).combine_chunks()
    lists = lists.combine_chunks() if isinstance(lists, pa.ChunkedArray) else lists
    missing = lists.is_null().to_numpy(zero_copy_only=False)
    reader.faults.rows(FEATURE_NULL, name, missing)
    lengths = np.array([-1 if size is None else size for size in _lengths(lists)])
    width = int(lengths[~missing][0]) if not missing.all() else 0
    wrong = ~missing & (lengths != width)
    reader.faults.rows(FEATURE_LENGTH, name, wrong, lambda row: int(lengths[row]), width=width)
    if width == 0 and not missing.all():
        reader.faults.column(rules.NOT_NUMERIC, name, kind="lists of no numbers")
    if missing.any() or wrong.any() or width == 0:
        return 0, None
    return width, pa.chunked_array([lists.flatten()])


def _is_fixed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(kind))


def _lengths(lists: Any) -> list[int | None]:
    import pyarrow.compute as pc

    return list(pc.list_value_length(lists).to_pylist())


def with_features(log: EpisodeLog, given: Any, *, alone: bool) -> EpisodeLog:
    """A log made from arrays, which is new, with features (n, H) or (n, H, k); `alone`: it has no
    states."""
    from reweigh.log.arrays import _numbers

    steps = log.steps
    values, nulls = _numbers("features", given)
    values = values[:, :, None] if values.ndim == 2 else values
    shape = (log.n_episodes, log.horizon)
    if values.ndim != 3 or values.shape[:2] != shape or not values.shape[2]:
        raise must_be("features", f"an array of shape {shape} or {(*shape, 'k')}", np.shape(given))
    names = tuple(f"x{j}" for j in range(values.shape[2])) if values.shape[2] > 1 else ("x",)
    rows = steps.episode[steps.episode_index], steps.step
    values, faults = values[rows], rules.Faults(log.source.place, steps.n_rows)
    known = np.ones(values.shape, bool)
    if nulls is not None:
        known = ~(nulls[:, :, None] if nulls.ndim == 2 else nulls)[rows]
    for j, name in enumerate(names):
        faults.rows(FEATURE_NULL, name, ~known[:, j])
        bad = FEATURE_NOT_FINITE.broken(known[:, j], np.isfinite(values[:, j]))
        faults.rows(FEATURE_NOT_FINITE, name, bad, values[:, j])
    faults.raise_if_any("the arrays")
    columns = replace(log.columns, features=names, state=() if alone else log.columns.state)
    vars(steps)["features"] = np.ascontiguousarray(values)
    states = NO_STATES if alone else log.states
    return replace(log, columns=columns, feature_names=names, states=states)
