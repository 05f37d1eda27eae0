"""The columns of a log, one role at a time: checked, and as arrays.

A column of numbers is decoded some cells at a time, and integers are held in 32 bits where they
fit: a log takes little more room while it is read than afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reweigh.errors import Place
from reweigh.log import checks, rules
from reweigh.log.column_types import float_rows, integer_rows, is_number, is_text, texts
from reweigh.log.columns import Columns
from reweigh.log.csv_files import floats_if_most, truth
from reweigh.log.parquet_files import ParquetRows, pieces_of
from reweigh.log.sources import FileSource, TableSource
from reweigh.log.states import (
    HIDDEN,
    Abstraction,
    AnyAbstraction,
    Codes,
    Labels,
    abstract_states,
    combine,
    encode_arrow,
    encode_with_nulls,
)

Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass
class RoleReader:
    """Reads the columns of one table; what breaks the contract is added to `faults`."""

    table: pa.Table | ParquetRows
    source: TableSource | FileSource
    columns: Columns
    allow_hidden: bool
    continuous: bool
    abstraction: AnyAbstraction | None
    csv_decimal: str | None = None  # how a CSV file writes fractions; None: not a CSV file

    def __post_init__(self) -> None:
        self.count: int = self.table.num_rows
        self.faults = checks.Faults(self._place, self.count)
        self.flags_known: Any = np.True_  # rows whose flags have no fault
        self._cells: dict[str, pa.ChunkedArray] = {}  # columns that messages quote

    def kind(self, name: str) -> pa.DataType:
        return self.table.schema.field(name).type

    def value(self, name: str, row: int) -> object:
        """A cell, for messages."""
        if name not in self._cells:
            self._cells[name] = self.table.column(name)
        return checks.value_of(self._cells[name], row)

    def _place(self, row: int) -> Place:
        """File, line, episode and step of a row."""
        step = self.value(self.columns.step, row)
        return replace(
            self.source.place(row),
            episode=self.value(self.columns.episode, row),
            step=step if isinstance(step, int) else None,
        )

    def _none(self) -> tuple[Codes, Labels]:
        """The codes of a column that cannot be read."""
        return np.full(self.count, HIDDEN, np.int32), Labels(())

    def _encoded(self, name: str) -> tuple[Codes, Labels]:
        kind = self.kind(name)
        if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
            return encode_with_nulls(*integer_rows(pieces_of(self.table, name), self.count))
        return encode_arrow(self.table.column(name))

    def ids(self, role: str, name: str) -> tuple[Codes, Labels]:
        if not is_label(self.kind(name)):
            self._wrong_type(role, name)
            return self._none()
        codes, labels = self._encoded(name)
        checks.null_values(self.faults, name, _hidden(codes))
        return codes, labels

    def _wrong_type(self, role: str, name: str) -> None:
        kind = self.kind(name)
        fix = rules.type_fix(role, pa.types.is_floating(kind))
        self.faults.column(rules.TYPE, name, fix=fix, role=role, kind=kind)

    def steps(self) -> Codes:
        """The steps; a negative number where they are not known."""
        name = self.columns.step
        kind = self.kind(name)
        if pa.types.is_integer(kind):
            values, nulls = integer_rows(pieces_of(self.table, name), self.count)
            wrong = None
            if values.dtype == np.uint64:
                wrong = rules.NOT_A_STEP.broken(values)
                values = np.where(wrong, 0, values).astype(np.int64)
        else:
            column = self.table.column(name)
            values, nulls, wrong = self._none()[0], _nulls(column), None
            if is_text(kind):
                written = pc.match_substring_regex(texts(column), rules.STEP)
                wrong = ~np.asarray(written.fill_null(True).to_numpy(), bool)
            if not pa.types.is_null(kind) and (wrong is None or not np.any(wrong)):
                self._wrong_type("step", name)
                return values
        checks.null_values(self.faults, name, nulls)
        if pa.types.is_integer(kind) and self.count and values.min() < 0:
            negative = rules.NEGATIVE_STEP.broken(values)
            self.faults.rows(rules.NEGATIVE_STEP, name, negative, partial(self.value, name))
        if wrong is not None:
            self.faults.rows(rules.NOT_A_STEP, name, wrong, partial(self.value, name))
        for unknown in (nulls, wrong):
            if unknown is not None:
                values[unknown] = HIDDEN
        return values

    def states(self, names: tuple[str, ...], null_allowed: bool = False) -> tuple[Codes, Labels]:
        if self.abstraction is not None:
            return self._abstract(names, null_allowed)
        parts = [self._state(name, null_allowed or self.allow_hidden) for name in names]
        return combine(parts) if len(parts) > 1 else parts[0]

    def _state(self, name: str, null_allowed: bool) -> tuple[Codes, Labels]:
        kind = self.kind(name)
        column = None
        if self.csv_decimal is not None and is_text(kind):
            column = floats_if_most(self.table.column(name), self.csv_decimal)
            kind = column.type
        if pa.types.is_floating(kind):
            column = self.table.column(name) if column is None else column
            checks.float_states(self.faults, name, checks.numbers(column, name))
            return self._none()
        if not is_label(kind):
            self._wrong_type("state", name)
            return self._none()
        codes, labels = self._encoded(name)
        if not null_allowed:
            checks.null_values(self.faults, name, _hidden(codes), rules.NULL_STATE)
        return codes, labels

    def _abstract(self, names: tuple[str, ...], null_allowed: bool) -> tuple[Codes, Labels]:
        assert self.abstraction is not None
        columns = [self.table.column(name) for name in names]
        nulls = [_nulls(column) for column in columns]
        known = np.ones(self.count, bool)
        for missing in nulls:
            known &= True if missing is None else ~missing
        arrays = []
        for name, column, missing in zip(names, columns, nulls, strict=True):
            values = self._raw_values(name, column, known)
            if values is None:
                return self._none()
            arrays.append(values)
            if not (self.allow_hidden or null_allowed):
                checks.null_values(self.faults, name, missing, rules.NULL_STATE)
        chosen = np.stack([values[known] for values in arrays], axis=1)
        codes, labels = self._none()
        if len(chosen):
            codes[known], labels = abstract_states(self.abstraction, chosen)
        return codes, labels

    def _raw_values(
        self, name: str, column: pa.ChunkedArray, known: Mask
    ) -> npt.NDArray[Any] | None:
        """What the abstraction gets of a column; rows that have a fault are no longer `known`."""
        if is_number(column.type):
            values = checks.numbers(column, name)
            bad = rules.NOT_FINITE.broken(known, np.isfinite(values))
            self.faults.rows(rules.NOT_FINITE, name, bad, lambda row: float(values[row]))
            known &= ~bad
            return values
        if isinstance(self.abstraction, Abstraction) and not pa.types.is_boolean(column.type):
            return checks.numbers_or_faults(self.faults, name, column)
        return np.asarray(texts(column).to_numpy(zero_copy_only=False))

    def actions(self) -> tuple[npt.NDArray[Any], Labels | None]:
        name = self.columns.action
        if self.continuous:
            values, nulls = self._numbers(name)
            checks.finite(self.faults, name, values, nulls)
            return values, None
        if pa.types.is_floating(self.kind(name)):
            self.faults.column(rules.FLOAT_ACTION, name)
            return self._none()
        return self.ids("action", name)

    def _numbers(self, name: str) -> tuple[Floats, Mask | None]:
        """The numbers of a column; NaN, which is no further fault, where it holds none."""
        if is_number(self.kind(name)):
            return float_rows(pieces_of(self.table, name), self.count)
        checks.not_numbers(self.faults, name, self.table.column(name))
        return np.zeros(self.count), None

    def rewards(self) -> Floats:
        values, nulls = self._numbers(self.columns.reward)
        checks.rewards(self.faults, self.columns.reward, values, nulls)
        return values

    def probability(self, role: str) -> Floats | None:
        name = getattr(self.columns, role)
        if name is None:
            return None
        values, nulls = self._numbers(name)
        if is_number(self.kind(name)):
            checks.probabilities(
                self.faults, name, values, nulls, role=role, density=self.continuous
            )
        return values

    def truths(self, name: str | None) -> Mask:
        if name is None:
            return np.zeros(self.count, bool)
        column = self.table.column(name)
        values = truth(column)
        if values is None:
            self.faults.column(rules.NOT_TRUTHS, name)
            self.flags_known = np.False_
            return np.zeros(self.count, bool)
        nulls = _nulls(column)
        if nulls is not None:
            checks.null_values(self.faults, name, nulls)
            self.flags_known = self.flags_known & ~nulls
        return np.asarray(values.fill_null(False).to_numpy(zero_copy_only=False), bool)


def is_label(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_null(kind)  # a column without any value: all of them are null
        or is_text(kind)
    )


def _hidden(codes: Codes) -> Mask | None:
    """Where there is no code; None if there is one everywhere."""
    return codes < 0 if len(codes) and codes.min() < 0 else None


def _nulls(column: pa.ChunkedArray) -> Mask | None:
    if column.null_count == 0:
        return None
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False), bool)
