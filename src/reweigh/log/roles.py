"""The columns of a log, one role at a time: checked, and as arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reweigh.errors import Place
from reweigh.log import checks
from reweigh.log.column_types import is_number, is_text, texts
from reweigh.log.columns import Columns
from reweigh.log.csv_files import floats_if_most, truth
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
)

Mask = npt.NDArray[np.bool_]


@dataclass
class RoleReader:
    """Reads the columns of one table; what breaks the contract is added to `faults`."""

    table: pa.Table
    source: TableSource | FileSource
    columns: Columns
    allow_hidden: bool
    continuous: bool
    abstraction: AnyAbstraction | None
    csv_decimal: str | None = None  # how a CSV file writes fractions; None: not a CSV file

    def __post_init__(self) -> None:
        self.faults = checks.Faults(self._place, self.table.num_rows)
        self.flags_known = np.ones(self.table.num_rows, bool)  # no flag of the row has a fault

    def _place(self, row: int) -> Place:
        """File, line, episode and step of a row."""
        step = checks.value_of(self.table.column(self.columns.step), row)
        return replace(
            self.source.place(row),
            episode=checks.value_of(self.table.column(self.columns.episode), row),
            step=step if isinstance(step, int) else None,
        )

    def ids(self, role: str, name: str) -> tuple[Codes, Labels]:
        column = self.table.column(name)
        if not is_label(column.type):
            self._wrong_type(role, name, column.type)
            return np.full(len(column), HIDDEN, np.int64), Labels(())
        codes, labels = encode_arrow(column)
        checks.null_values(self.faults, name, codes < 0)
        return codes, labels

    def _wrong_type(self, role: str, name: str, kind: pa.DataType) -> None:
        fix = "write it as integers" + ("" if role == "step" else " or text")
        if pa.types.is_floating(kind):
            fix += " (an integer column with a missing value may have become float)"
        self.faults.add("type", f"column {name!r} ({role}) holds {kind}", fix)

    def steps(self) -> npt.NDArray[np.int64]:
        """The steps; a negative number where they are not known."""
        name = self.columns.step
        column = self.table.column(name)
        nulls = _nulls(column)
        if pa.types.is_null(column.type):
            column = column.cast(pa.int64())
        if pa.types.is_integer(column.type):
            given = column.fill_null(0).to_numpy()
            wrong = given > np.iinfo(np.int64).max  # of unsigned numbers
            values = np.where(wrong, 0, given).astype(np.int64)
        elif is_text(column.type):
            written = pc.match_substring_regex(texts(column), "^(0|[1-9][0-9]{0,17})$")
            wrong = ~np.asarray(written.fill_null(True).to_numpy(), bool)
            values = np.full(len(column), HIDDEN, np.int64)
        else:
            wrong = values = np.zeros(len(column), np.int64)
        if not pa.types.is_integer(column.type) and not np.any(wrong):
            self._wrong_type("step", name, column.type)
            return np.full(len(column), HIDDEN, np.int64)
        checks.null_values(self.faults, name, nulls)
        negative = (values < 0) & pa.types.is_integer(column.type)
        for code, bad in (("step-start", negative), ("not-a-step", wrong)):
            self.faults.rows(
                code,
                name,
                bad,
                partial(checks.value_of, column),
                "a step is a whole number 0, 1, 2, …",
                "number the steps of each episode from 0",
            )
        return np.where(nulls | wrong, HIDDEN, values)

    def states(self, names: tuple[str, ...], null_allowed: bool = False) -> tuple[Codes, Labels]:
        parts = [self.table.column(name) for name in names]
        if self.abstraction is not None:
            return self._abstract(names, parts, null_allowed)
        encoded = []
        for name, column in zip(names, parts, strict=True):
            if self.csv_decimal is not None:
                column = floats_if_most(column, self.csv_decimal)
            if pa.types.is_floating(column.type):
                checks.unlikely_states(self.faults, name, checks.numbers(column, name))
                encoded.append((np.full(len(column), HIDDEN, np.int64), Labels(())))
                continue
            if not is_label(column.type):
                self._wrong_type("state", name, column.type)
                encoded.append((np.full(len(column), HIDDEN, np.int64), Labels(())))
                continue
            codes, labels = encode_arrow(column)
            if not (self.allow_hidden or null_allowed):
                self._null_state(name, codes < 0)
            encoded.append((codes, labels))
        return combine(encoded) if len(encoded) > 1 else encoded[0]

    def _abstract(
        self, names: tuple[str, ...], parts: list[pa.ChunkedArray], null_allowed: bool
    ) -> tuple[Codes, Labels]:
        assert self.abstraction is not None
        shown = ~np.logical_or.reduce([_nulls(column) for column in parts])
        arrays = []
        for name, column in zip(names, parts, strict=True):
            values = self._raw_values(name, column, shown)
            if values is None:
                return np.full(len(shown), HIDDEN, np.int64), Labels(())
            arrays.append(values)
            if not (self.allow_hidden or null_allowed):
                self._null_state(name, _nulls(column))
        chosen = np.stack([values[shown] for values in arrays], axis=1)
        codes = np.full(len(shown), HIDDEN, np.int64)
        if len(chosen) == 0:
            return codes, Labels(())
        codes[shown], labels = abstract_states(self.abstraction, chosen)
        return codes, labels

    def _raw_values(
        self, name: str, column: pa.ChunkedArray, shown: Mask
    ) -> npt.NDArray[Any] | None:
        """What the abstraction gets of a column; rows that have a fault are no longer `shown`."""
        if is_number(column.type):
            values = checks.numbers(column, name)
            bad = shown & ~np.isfinite(values)
            self.faults.rows(
                "not-finite",
                name,
                bad,
                partial(_cell, values),
                f"{name!r} must be a finite number",
                "write the real number, or leave the episode out",
            )
            shown &= ~bad
            return values
        if isinstance(self.abstraction, Abstraction) and not pa.types.is_boolean(column.type):
            return checks.numbers_or_faults(self.faults, name, column)
        return np.asarray(texts(column).to_numpy(zero_copy_only=False))

    def _null_state(self, name: str, nulls: Mask) -> None:
        fix = 'fill in the state, or pass hidden="allow" if it could not be observed'
        checks.null_values(self.faults, name, nulls, fix)

    def actions(self) -> tuple[npt.NDArray[Any], Labels | None]:
        name = self.columns.action
        column = self.table.column(name)
        if self.continuous:
            return self.numbers(name), None
        if pa.types.is_floating(column.type):
            self.faults.add(
                "float-action",
                f"column {name!r} holds floats",
                "write integers or text; for continuous actions with logged densities pass "
                "continuous_actions=True",
            )
            return np.zeros(len(column), np.int64), Labels(())
        return self.ids("action", name)

    def numbers(self, name: str) -> npt.NDArray[np.float64]:
        column = self.table.column(name)
        values = checks.numbers_or_faults(self.faults, name, column)
        if values is None:
            return np.full(len(column), np.nan)
        checks.finite(self.faults, name, values, _nulls(column))
        return values

    def probability(self, role: str) -> npt.NDArray[np.float64] | None:
        name = getattr(self.columns, role)
        if name is None:
            return None
        values = self.numbers(name)
        checks.probabilities(
            self.faults,
            name,
            values,
            np.isfinite(values),
            zero_allowed=role == "target_prob",
            density=self.continuous,
        )
        return values

    def truths(self, name: str | None) -> Mask:
        if name is None:
            return np.zeros(self.table.num_rows, bool)
        column = self.table.column(name)
        values = truth(column)
        if values is None:
            self.faults.add(
                "type", f"column {name!r} must hold true/false or 1/0", "write truth values"
            )
            self.flags_known[:] = False
            return np.zeros(len(column), bool)
        checks.null_values(self.faults, name, _nulls(column))
        self.flags_known &= ~_nulls(column)
        return np.asarray(values.fill_null(False).to_numpy(zero_copy_only=False), bool)


def _cell(values: npt.NDArray[np.float64], row: int) -> float:
    return float(values[row])


def is_label(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_null(kind)  # a column without any value: all of them are null
        or is_text(kind)
    )


def _nulls(column: pa.ChunkedArray) -> Mask:
    if column.null_count == 0:
        return np.zeros(len(column), bool)
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False), bool)
