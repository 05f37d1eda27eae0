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
    NO_STATES,
    Codes,
    Labels,
    combine,
    encode_arrow,
    encode_integers,
    encode_with_nulls,
    float_rows,
    integer_rows,
    is_label,
    is_number,
    is_text,
    label_text,
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
        self.times: Any = None  # of the rows, whether they are known, and say their offset
        self._cells: dict[str, pa.ChunkedArray] = {}  # columns that messages quote

    def find_bins(self, episode: Codes, episodes: Labels) -> None:
        """The edges of quantiles, where the abstraction needs them."""
        if self.abstraction is None:
            return
        from reweigh.log.abstractions import Quantiles, in_sample, refuse_empty, sample_level

        if not isinstance(self.abstraction, Quantiles) or self.abstraction.edges:
            return
        columns = [self._state_column(name) for name in self.columns.state]
        level, used = sample_level(self.count), slice(None)
        if level:
            held = in_sample((str(label_text(v)) for v in episodes.values), level)
            used = np.append(held, False)[episode]  # type: ignore[assignment]
        values = [
            float_rows(c.chunks, len(c))[0][used] if is_number(c.type) else None for c in columns
        ]
        refuse_empty(values, level)
        self.abstraction = self.abstraction.fitted([c.type for c in columns], values)

    def kind(self, name: str) -> pa.DataType:
        return self.table.schema.field(name).type

    def value(self, name: str, row: int) -> object:
        """A cell, for messages."""
        if name not in self._cells:
            self._cells[name] = self.table.column(name)
        return rules.cell(self._cells[name], row)

    def _place(self, row: int) -> Place:
        """File, line, episode and step of a row."""
        step = None if self.columns.step is None else self.value(self.columns.step, row)
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

    def steps(self, episode: Codes) -> Codes:
        """The steps of the rows of these episodes; a negative number where they are not known."""
        if self.columns.time is not None:
            self._read_times(self.columns.time)
        if self.columns.step is not None:
            return self._written_steps(self.columns.step)
        return self._one_step(episode) if self.columns.bandit else self._steps_by_time(episode)

    def _read_times(self, name: str) -> None:
        """The rows' times (`times`); other values break the contract."""
        from reweigh.log.times import is_time_kind, plain_times, time_values

        column = plain_times(self.table.column(name), self.csv_decimal)
        self._cells[name] = column
        if pa.types.is_null(column.type):
            column = column.cast(pa.int64())
        elif not is_time_kind(column.type):
            self._wrong_type("time", name)
            column = pa.chunked_array([pa.nulls(self.count, pa.int64())])
            self.times = time_values(column)
            return
        self.times = time_values(column)
        known = self.times[1]
        nulls = _nulls(column)
        self.faults.rows(rules.NULL, name, nulls)
        written = np.ones(self.count, bool) if nulls is None else ~nulls
        self.faults.rows(rules.NOT_A_TIME, name, rules.NOT_A_TIME.broken(written, known), column)

    def began(self, first_rows: Codes) -> Codes | None:
        """When the episodes began that have these first rows, as whole numbers."""
        if self.times is None:
            return None
        from reweigh.log.times import order_numbers

        return order_numbers(self.times[0][first_rows])

    def _steps_by_time(self, episode: Codes) -> Codes:
        """0, 1, 2, … in the order of the times of an episode, which must be different ones."""
        name, (values, known, zoned) = self.columns.clock, self.times
        rows = np.flatnonzero(known & (episode >= 0))
        rows = rows[np.lexsort((values[rows], episode[rows]))]
        e, time = episode[rows], values[rows]
        starts = np.flatnonzero(np.diff(e, prepend=-1))
        first, lengths = np.zeros(len(e), bool), np.diff(np.append(starts, len(e)))
        first[starts] = True
        before = np.append(rows[:1], rows[:-1])
        with_offset = zoned[rows].astype(np.int8)
        least, most = with_offset, with_offset
        if len(e):  # of the episode of each row
            least, most = (
                np.repeat(end.reduceat(with_offset, starts), lengths)
                for end in (np.minimum, np.maximum)
            )
        mixed = rules.MIXED_TIMES.broken(with_offset, least)
        tied = rules.TIED_TIMES.broken(time, values[before], first) & (least == most)
        twin = dict(zip(rows[tied].tolist(), before[tied].tolist(), strict=True))
        self._broken_order(rules.MIXED_TIMES, name, rows[mixed], {})
        self._broken_order(rules.TIED_TIMES, name, rows[tied], twin)
        steps = np.full(self.count, HIDDEN)
        steps[rows] = np.arange(len(rows)) - np.repeat(starts, lengths)
        steps[rows[tied | mixed]] = HIDDEN
        return steps.astype(np.int32) if self.count < 2**31 else steps

    def _one_step(self, episode: Codes) -> Codes:
        """0 everywhere: every row is an episode."""
        steps = np.where(episode < 0, HIDDEN, 0).astype(np.int32)
        if self.count and np.bincount(episode[episode >= 0], minlength=1).max() > 1:
            rows = np.argsort(episode, kind="stable")
            before = np.append(rows[:1], rows[:-1])
            first = (np.diff(episode[rows], prepend=-1) != 0) | (episode[rows] < 0)
            bad = rules.REPEATED_EPISODE.broken(before, first)
            twin = dict(zip(rows[bad].tolist(), before[bad].tolist(), strict=True))
            self._broken_order(rules.REPEATED_EPISODE, self.columns.episode, rows[bad], twin)
            steps[rows[bad]] = HIDDEN
        return steps

    def _broken_order(self, rule: Rule, name: str, rows: Codes, twin: dict[int, int]) -> None:
        """Rows whose place in their episode is not known; `twin` is the row that claims it too."""

        def note(row: int) -> str:
            other = self.source.place(twin[row]).row if row in twin else None
            return "" if other is None else f" (as in row {other})"

        self.faults.rows(rule, name, rows, lambda row: self.value(name, row), note=note)

    def _written_steps(self, name: str) -> Codes:
        wrong = None
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
        if not names:  # features alone: one state
            return np.zeros(self.count, np.int32), NO_STATES
        edges = None
        if self.abstraction is not None:
            from reweigh.log.abstractions import Quantiles

            if not isinstance(self.abstraction, Quantiles):
                return self._abstract(names, null_rule)
            edges = self.abstraction.edges
        parts = [
            self._state(name, null_rule)
            if edges is None or edges[j] is None
            else self._binned(name, np.asarray(edges[j]), null_rule)
            for j, name in enumerate(names)
        ]
        return combine(parts)

    def _binned(self, name: str, edges: Floats, null_rule: Rule | None) -> tuple[Codes, Labels]:
        """The bins of a column of numbers."""
        column = self._state_column(name)
        codes, labels = self._none()
        if not is_number(column.type):
            not_numbers(self.faults, name, column)
            return codes, labels
        values, nulls = float_rows(column.chunks, len(column))
        known = np.ones(self.count, bool) if nulls is None else ~nulls
        bad = rules.NOT_FINITE.broken(known, np.isfinite(values))
        self.faults.rows(rules.NOT_FINITE, name, bad, values)
        if null_rule is not None:
            self.faults.rows(null_rule, name, nulls)
        known = known & ~bad
        bins = np.searchsorted(edges, values[known], side="right")
        codes[known], labels = encode_integers(bins)
        return codes, labels

    def _state_column(self, name: str) -> pa.ChunkedArray:
        """A column of states; texts of a CSV that are fractions are numbers."""
        column = self.table.column(name)
        if self.csv_decimal is not None and pa.types.is_dictionary(column.type):
            return floats_if_most(column, self.csv_decimal)
        return column

    def _state(self, name: str, null_rule: Rule | None) -> tuple[Codes, Labels]:
        kind = self.kind(name)
        if pa.types.is_floating(kind) or (self.csv_decimal is not None and is_text(kind)):
            column = self._state_column(name)
            if pa.types.is_floating(column.type):
                self._refuse_floats(name, numbers(column, name))
                return self._none()
        return self.ids("state", name, null_rule)

    def _refuse_floats(self, name: str, values: Floats) -> None:
        """A float column cannot be a table key: nearly every value would be a separate state."""
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
        """The abstraction's input from a column; rows with a fault are no longer `known`."""
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
            return self.numbers("action", name), None
        if pa.types.is_floating(self.kind(name)):
            self.faults.column(rules.FLOAT_ACTION, name)
            return self._none()
        return self.ids("action", name)

    def numbers(self, role: str, name: str) -> Floats:
        """The numbers of a role's column, zeros if it holds something else."""
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
    """The faults of a column that is not numeric: its cells that are not numbers, if it is text."""
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
