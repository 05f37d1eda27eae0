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
from reweigh.logs import checks
from reweigh.logs.columns import Columns
from reweigh.logs.csvfile import truth
from reweigh.logs.sources import FileSource, TableSource
from reweigh.logs.states import (
    HIDDEN,
    AnyAbstraction,
    Codes,
    Labels,
    apply_abstraction,
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

    def __post_init__(self) -> None:
        self.faults = checks.Faults(self._place, self.table.num_rows)

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
        fix = "write it as integers or text"
        if pa.types.is_floating(kind):
            fix += " (an integer column with a missing value may have become float)"
        self.faults.add("type", f"column {name!r} ({role}) holds {kind}", fix)

    def steps(self) -> npt.NDArray[np.int64]:
        name = self.columns.step
        column = self.table.column(name)
        if pa.types.is_integer(column.type):
            checks.null_values(self.faults, name, _nulls(column))
            values = np.asarray(column.fill_null(-1).to_numpy(), np.int64)
            self.faults.rows(
                "step-start",
                name,
                (values < 0) & ~_nulls(column),
                lambda row: int(values[row]),
                "steps count 0, 1, 2, …",
                "number the steps of each episode from 0",
            )
            return values
        if pa.types.is_dictionary(column.type):
            words = pc.cast(column, pa.string())
            bad = pc.invert(pc.match_substring_regex(words, "^(0|[1-9][0-9]*)$")).fill_null(True)
            self.faults.rows(
                "not-a-step",
                name,
                bad.to_numpy(),
                lambda row: words[row].as_py(),
                "a step is a whole number 0, 1, 2, …",
                "number the steps of each episode from 0",
            )
        else:
            self._wrong_type("step", name, column.type)
        return np.full(len(column), -1, np.int64)

    def states(self, names: tuple[str, ...], null_allowed: bool = False) -> tuple[Codes, Labels]:
        parts = [self.table.column(name) for name in names]
        if self.abstraction is not None:
            return self._abstract(names, parts, null_allowed)
        encoded = []
        for name, column in zip(names, parts, strict=True):
            if pa.types.is_floating(column.type):
                values = checks.numbers(column, name)
                checks.unlikely_states(self.faults, name, values)
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
            if pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
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
            else:
                values = column.to_numpy(zero_copy_only=False)
            arrays.append(values)
            if not (self.allow_hidden or null_allowed):
                self._null_state(name, _nulls(column))
        chosen = np.stack([values[shown] for values in arrays], axis=1)
        codes = np.full(len(shown), HIDDEN, np.int64)
        if len(chosen) == 0:
            return codes, Labels(())
        made = apply_abstraction(self.abstraction, chosen)
        encoded = [encode_arrow(pa.array(column)) for column in made]
        codes[shown], labels = combine(encoded) if len(encoded) > 1 else encoded[0]
        return codes, labels

    def _null_state(self, name: str, nulls: Mask) -> None:
        fix = 'fill in the state, or pass hidden="allow" if it could not be observed'
        checks.null_values(self.faults, name, nulls, fix)

    def actions(self) -> tuple[npt.NDArray[Any], Labels | None]:
        name = self.columns.action
        column = self.table.column(name)
        if self.continuous:
            return self.numbers("action", name), None
        if pa.types.is_floating(column.type):
            self.faults.add(
                "float-action",
                f"column {name!r} holds floats",
                "write integers or text; for continuous actions with logged densities pass "
                "continuous_actions=True",
            )
            return np.zeros(len(column), np.int64), Labels(())
        return self.ids("action", name)

    def numbers(self, role: str, name: str) -> npt.NDArray[np.float64]:
        column = self.table.column(name)
        kind = column.type
        if not (
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        ):
            if pa.types.is_string(kind) or pa.types.is_large_string(kind):
                checks.not_numbers(self.faults, name, column)
            else:
                self.faults.add(
                    "type", f"column {name!r} ({role}) holds {kind}", "write the column as numbers"
                )
            return np.full(len(column), np.nan)
        values = checks.numbers(column, name)
        checks.finite(self.faults, name, values, _nulls(column))
        return values

    def probability(self, role: str) -> npt.NDArray[np.float64] | None:
        name = getattr(self.columns, role)
        if name is None:
            return None
        values = self.numbers(role, name)
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
            return np.zeros(len(column), bool)
        checks.null_values(self.faults, name, _nulls(column))
        return np.asarray(values.fill_null(False).to_numpy(zero_copy_only=False), bool)


def _cell(values: npt.NDArray[np.float64], row: int) -> float:
    return float(values[row])


def is_label(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
    )


def _nulls(column: pa.ChunkedArray) -> Mask:
    if column.null_count == 0:
        return np.zeros(len(column), bool)
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False), bool)
