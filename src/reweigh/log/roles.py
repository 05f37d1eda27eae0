"""The columns of a log, one role at a time: checked, and as arrays.

A column of numbers is decoded some cells at a time, and integers are held in 32 bits where they
fit: a log takes little more room while it is read than afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reweigh.errors import KEPT_PLACES, Place, input_error
from reweigh.log import rules
from reweigh.log.csv_files import floats_if_most, truth
from reweigh.log.log import Columns
from reweigh.log.rules import Faults, Rule, column_fault
from reweigh.log.sources import FileSource, TableSource
from reweigh.log.states import (
    HIDDEN,
    Codes,
    Labels,
    combine,
    encode_arrow,
    encode_with_nulls,
    float_rows,
    integer_rows,
    is_label,
    is_number,
    is_text,
    texts,
    truth_rows,
)

if TYPE_CHECKING:
    from reweigh.log.abstractions import AnyAbstraction
    from reweigh.log.parquet_files import ParquetRows

PIECE = 1 << 16  # rows
Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass
class RoleReader:
    """Reads the columns of one table, one role at a time; what breaks the contract is added to
    `faults`."""

    table: pa.Table | ParquetRows
    source: TableSource | FileSource
    columns: Columns
    allow_hidden: bool
    continuous: bool
    abstraction: AnyAbstraction | None
    csv_decimal: str | None = None  # how a CSV file writes fractions; None: not a CSV file

    def __post_init__(self) -> None:
        self.count: int = self.table.num_rows
        self.faults = Faults(self._place, self.count)
        self.flags_known: Any = np.True_  # rows whose flags have no fault
        self._cells: dict[str, pa.ChunkedArray] = {}  # columns that messages quote

    def describe_abstraction(self) -> str | None:
        if self.abstraction is None:
            return None
        from reweigh.log.abstractions import describe_abstraction

        return describe_abstraction(self.abstraction)

    def kind(self, name: str) -> pa.DataType:
        return self.table.schema.field(name).type

    def value(self, name: str, row: int) -> object:
        """A cell, for messages."""
        if name not in self._cells:
            self._cells[name] = self.table.column(name)
        return rules.cell(self._cells[name], row)

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

    def ids(
        self, role: str, name: str, null_rule: Rule | None = rules.NULL
    ) -> tuple[Codes, Labels]:
        """Codes of integers, truth values or texts; nulls break `null_rule`, if there is one."""
        kind = self.kind(name)
        if not is_label(kind):
            self._wrong_type(role, name)
            return self._none()
        if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
            codes, labels = encode_with_nulls(*integer_rows(self._pieces(name), self.count))
        else:
            codes, labels = encode_arrow(self.table.column(name))
        if null_rule is not None and self.count and codes.min() < 0:
            self.faults.rows(null_rule, name, codes < 0)
        return codes, labels

    def _pieces(self, name: str) -> Iterator[pa.Array]:
        """The cells of a column of numbers, as many at a time as fit into a cache."""
        if not isinstance(self.table, pa.Table):
            return self.table.pieces(name)
        chunks = self.table.column(name).chunks
        return (c.slice(row, PIECE) for c in chunks for row in range(0, len(c), PIECE))

    def _wrong_type(self, role: str, name: str) -> None:
        kind = self.kind(name)
        fix = rules.type_fix(role, pa.types.is_floating(kind))
        self.faults.column(rules.TYPE, name, fix=fix, role=role, kind=kind)

    def steps(self) -> Codes:
        """The steps; a negative number where they are not known."""
        name, wrong = self.columns.step, None
        kind = self.kind(name)
        if pa.types.is_integer(kind):
            values, nulls = integer_rows(self._pieces(name), self.count)
            if values.dtype == np.uint64:
                wrong = rules.NOT_A_STEP.broken(values)
                values = np.where(wrong, 0, values).astype(np.int64)
        else:
            column = self.table.column(name)
            values, nulls = self._none()[0], _nulls(column)
            if is_text(kind):
                written = pc.match_substring_regex(texts(column), rules.STEP)
                wrong = ~truth_rows(written.fill_null(True))
            if not pa.types.is_null(kind) and (wrong is None or not np.any(wrong)):
                self._wrong_type("step", name)
                return values
        self.faults.rows(rules.NULL, name, nulls)
        if pa.types.is_integer(kind) and self.count and values.min() < 0:
            negative = rules.NEGATIVE_STEP.broken(values)
            self.faults.rows(rules.NEGATIVE_STEP, name, negative, lambda r: self.value(name, r))
        self.faults.rows(rules.NOT_A_STEP, name, wrong, lambda row: self.value(name, row))
        for unknown in (nulls, wrong):
            if unknown is not None:
                values[unknown] = HIDDEN
        return values

    def states(self, names: tuple[str, ...], null_allowed: bool = False) -> tuple[Codes, Labels]:
        null_rule = None if null_allowed or self.allow_hidden else rules.NULL_STATE
        if self.abstraction is not None:
            return self._abstract(names, null_rule)
        parts = [self._state(name, null_rule) for name in names]
        return combine(parts)

    def _state(self, name: str, null_rule: Rule | None) -> tuple[Codes, Labels]:
        kind = self.kind(name)
        if pa.types.is_floating(kind) or (self.csv_decimal is not None and is_text(kind)):
            column = floats_if_most(self.table.column(name), self.csv_decimal or ".")
            if pa.types.is_floating(column.type):
                self._refuse_floats(name, numbers(column, name))
                return self._none()
        return self.ids("state", name, null_rule)

    def _refuse_floats(self, name: str, values: Floats) -> None:
        """A float column is no table key: nearly every value would be a state of its own."""
        known = values[np.isfinite(values)]
        unique = len(np.unique(known))
        if rules.continuous(unique, len(known)):
            self.faults.column(rules.CONTINUOUS_STATE, name, unique=unique, values=len(known))
        else:
            self.faults.column(rules.FLOAT_STATE, name)

    def _abstract(self, names: tuple[str, ...], null_rule: Rule | None) -> tuple[Codes, Labels]:
        from reweigh.log.abstractions import abstract_states

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
            if null_rule is not None:
                self.faults.rows(null_rule, name, missing)
        chosen = np.stack([values[known] for values in arrays], axis=1)
        codes, labels = self._none()
        if len(chosen):
            codes[known], labels = abstract_states(self.abstraction, chosen)
        return codes, labels

    def _raw_values(
        self, name: str, column: pa.ChunkedArray, known: Mask
    ) -> npt.NDArray[Any] | None:
        """What the abstraction gets of a column; rows that have a fault are no longer `known`."""
        from reweigh.log.abstractions import Abstraction

        if is_number(column.type):
            values = numbers(column, name)
            bad = rules.NOT_FINITE.broken(known, np.isfinite(values))
            self.faults.rows(rules.NOT_FINITE, name, bad, values)
            known &= ~bad
            return values
        if isinstance(self.abstraction, Abstraction) and not pa.types.is_boolean(column.type):
            not_numbers(self.faults, name, column)
            return None
        return np.asarray(texts(column).to_numpy(zero_copy_only=False))

    def actions(self) -> tuple[npt.NDArray[Any], Labels | None]:
        name = self.columns.action
        if self.continuous:
            values = self.numbers("action")
            assert values is not None
            return values, None
        if pa.types.is_floating(self.kind(name)):
            self.faults.column(rules.FLOAT_ACTION, name)
            return self._none()
        return self.ids("action", name)

    def numbers(self, role: str) -> Floats | None:
        """The numbers of a role; None if it has no column, zeros if that holds something else."""
        name = getattr(self.columns, role)
        if name is None:
            return None
        if not is_number(self.kind(name)):
            not_numbers(self.faults, name, self.table.column(name))
            return np.zeros(self.count)
        values, nulls = float_rows(self._pieces(name), self.count)
        self.faults.numbers(role, name, values, nulls, density=self.continuous)
        return values

    def truths(self, name: str | None) -> Mask:
        values = None
        if name is not None:
            column = self.table.column(name)
            values = truth(column)
            if values is None:
                self.faults.column(rules.NOT_TRUTHS, name)
                self.flags_known = np.False_
        if values is None:
            return np.zeros(self.count, bool)
        nulls = _nulls(column)
        if nulls is not None:
            self.faults.rows(rules.NULL, name, nulls)
            self.flags_known = self.flags_known & ~nulls
        return truth_rows(values)


def _nulls(column: pa.ChunkedArray) -> Mask | None:
    return truth_rows(column.is_null()) if column.null_count else None


def numbers(column: pa.ChunkedArray, name: str) -> Floats:
    """A column of numbers as float64; null becomes NaN, which every range check then refuses."""
    if not is_number(column.type):
        raise input_error("the column", [column_fault(rules.NOT_NUMERIC, name, kind=column.type)])
    return float_rows(column.chunks, len(column))[0]


def not_numbers(faults: Faults, name: str, column: pa.ChunkedArray) -> None:
    """The faults of a column that is not numeric: its cells that are no numbers, if it is text."""
    faults.rows(rules.NULL, name, _nulls(column))
    if column.null_count == len(column):
        return
    if is_text(column.type):
        column = texts(column)
        fine = pc.or_(
            pc.match_substring_regex(column, rules.NUMBER),
            pc.match_substring_regex(pc.ascii_lower(column), rules.NAMED_NUMBER),
        )
        wrong = column.filter(pc.invert(fine)).slice(0, KEPT_PLACES).to_pylist()
        if wrong:
            bad = truth_rows(pc.invert(fine))
            fix = rules.DECIMAL_COMMA if any("," in text for text in wrong) else None
            faults.rows(rules.NOT_A_NUMBER, name, bad, column, fix=fix)
            return
    faults.column(rules.NOT_NUMERIC, name, kind=column.type)
