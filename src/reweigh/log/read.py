"""From the columns of a file or a table to a checked EpisodeLog in memory.

A column of numbers is decoded some cells at a time, and integers are held in 32 bits where they
fit: a log takes little more room while it is read than afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reweigh.errors import KEPT_PLACES, Fault, Place, input_error, nearest
from reweigh.log import rules
from reweigh.log.csv_files import floats_if_most, truth
from reweigh.log.log import Columns, EpisodeLog, ShortEpisodes
from reweigh.log.rules import Faults, Rule, column_fault
from reweigh.log.sources import FileSource, ParquetRows, TableSource, pieces_of
from reweigh.log.states import (
    END,
    HIDDEN,
    UNKNOWN,
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
    label_array,
    texts,
    unite,
)
from reweigh.log.steps import Steps, in_order, time_major
from reweigh.system.process import require_steps, tell

if TYPE_CHECKING:
    from reweigh.log.abstractions import AnyAbstraction

TEXT_ROLES = ("episode", "step", "state", "next_state", "action", "terminated", "truncated")
Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


def read_roles(
    source: TableSource | FileSource, columns: Columns, numeric_states: bool, continuous: bool
) -> pa.Table | ParquetRows:
    """The columns that have a role, all of which must be there."""
    known = source.names
    missing = [(role, name) for role, name in columns.by_role() if name not in known]
    if missing:
        faults = [missing_column(role, name, known) for role, name in missing]
        listed = ", ".join(map(repr, known))
        raise input_error(f"{source.describe()} with the columns {listed}", faults)
    as_numbers = {"action"} if continuous else set()
    as_numbers |= {"state", "next_state"} if numeric_states else set()
    text_roles = set(TEXT_ROLES) - as_numbers
    named = columns.by_role()
    read = source.open_rows if isinstance(source, FileSource) else source.read
    rows = read([name for _, name in named], [name for role, name in named if role in text_roles])
    if rows.num_rows == 0:
        raise input_error(source.describe(), [column_fault(rules.NO_ROWS, None)])
    return rows


def missing_column(role: str, name: str, known: list[str]) -> Fault:
    fix = rules.missing_column_fix(role)
    return column_fault(
        rules.MISSING_COLUMN, name, fix=fix, role=role, nearest=nearest(name, known)
    )


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

    def _pieces(self, name: str) -> Any:
        return pieces_of(self.table, name)

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
                wrong = ~np.asarray(written.fill_null(True).to_numpy(), bool)
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
        return np.asarray(values.fill_null(False).to_numpy(zero_copy_only=False), bool)


def _nulls(column: pa.ChunkedArray) -> Mask | None:
    if column.null_count == 0:
        return None
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False), bool)


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
            bad = np.asarray(pc.invert(fine).fill_null(False).to_numpy(), bool)
            fix = rules.DECIMAL_COMMA if any("," in text for text in wrong) else None
            faults.rows(rules.NOT_A_NUMBER, name, bad, column, fix=fix)
            return
    faults.column(rules.NOT_NUMERIC, name, kind=column.type)


def assemble(
    reader: RoleReader, horizon: int | None, discount: float, short: ShortEpisodes
) -> EpisodeLog:
    """Read one column after the other, check what spans rows, and bring the rows into order."""
    columns = reader.columns
    tell(0.1)
    episode, episodes = reader.ids("episode", columns.episode)
    step = reader.steps()
    # None: some rule of an episode's rows is broken, and nothing needs to be put in order
    rows = time_major(episode, step, len(episodes))
    tell(0.4)
    state, states = reader.states(columns.state)
    following = None
    if columns.next_state is not None:
        next_codes, next_labels = reader.states(columns.next_state, null_allowed=True)
        joint = unite(states, next_labels)
        following = np.append(joint.translate(next_labels), HIDDEN)[next_codes]
        states = joint
    used, order = None, np.zeros(0, np.int32)
    if rows is not None:
        used = rows.until(min(horizon or rows.longest, rows.longest), episode, step)
        order = used.order
    action, actions = reader.actions()
    action = in_order(action, order)
    tell(0.6)
    reward, behavior = (
        None if values is None else in_order(values, order)
        for values in map(reader.numbers, ("reward", "behavior_prob"))
    )
    reader.numbers("target_prob")
    ended, cut = reader.truths(columns.terminated), reader.truths(columns.truncated)
    tell(0.8)

    whole = rows is not None
    if rows is None:  # what else is wrong is looked for in the episodes whose steps are fine
        fine = _check_steps(reader.faults, columns.step, episode, step)
        rows = time_major(episode[fine], step[fine], len(episodes))
        rows = None if rows is None else replace(rows, order=fine[rows.order])
    for name, flag in ((columns.terminated, ended), (columns.truncated, cut)):
        # whole: an end is the last row of its episode, or rows follow it
        if name and not (whole and rows and np.sum(flag) == np.sum(flag[rows.last_rows])):
            _check_rows_after_end(reader.faults, name, flag, episode, step, len(episodes))
    if rows is not None:
        horizon = horizon or rows.longest
        used = used or rows.until(min(horizon, rows.longest), episode, step)
        last = used.last_rows
        before = step[last] < horizon - 1
        if following is not None:
            _check_next_states(reader, state, following, rows.next_rows(len(step)), states)
        if short == "error":
            _check_short(reader, last[before], ended, cut)
    reader.faults.raise_if_any(reader.source.describe())
    assert rows is not None  # or a fault was raised
    assert used is not None
    assert horizon is not None
    assert reward is not None
    require_steps(horizon)
    used = used.until(horizon, episode, step)

    known = np.full(len(last), HIDDEN) if following is None else following[last]
    if horizon < rows.longest:
        # An episode cut at a given horizon goes on in the log: its next row is known.
        later = slice(*rows.offsets[horizon : horizon + 2])
        at_horizon = np.full(len(episodes), HIDDEN)
        at_horizon[rows.ranked[: later.stop - later.start]] = state[rows.order[later]]
        at_horizon = at_horizon[used.ranked]
        known = np.where(at_horizon >= 0, at_horizon, known)
    over = ended[last] | (before & ~cut[last] & (short == "terminal"))
    ending = np.where(over, END, np.where(known < 0, UNKNOWN, known))
    beyond = len(episode) - len(used.order)
    abstraction = None
    if reader.abstraction is not None:
        from reweigh.log.abstractions import describe_abstraction

        abstraction = describe_abstraction(reader.abstraction)
    return EpisodeLog(
        steps=Steps(
            offsets=used.offsets,
            state=in_order(state, order).astype(np.int32, copy=False),
            action=action if actions is None else action.astype(np.int32, copy=False),
            reward=reward,
            behavior_prob=behavior,
            ending=ending.astype(np.int32),
            truncated=before & ~over,
            episode=label_array(episodes.values)[used.ranked],
            source_rows=used.order,
        ),
        states=states,
        actions=actions,
        discount=discount,
        columns=columns,
        source=reader.source,
        abstraction=abstraction,
        notes=(f"cut at the horizon {horizon}: {beyond:,} later rows are not used",) * bool(beyond),
    )


def _check_steps(faults: Faults, name: str, episode: Codes, step: Codes) -> Codes:
    """Within an episode the steps are 0, 1, 2, …: no duplicate, no gap. Returns the rows of the
    episodes that are fine.

    An episode with a step that is not known already has its fault, and is not blamed for what
    follows from it.
    """
    known = (episode >= 0) & (step >= 0)
    fine = known & ~np.isin(episode, episode[~known])
    rows = np.flatnonzero(fine)
    order = rows[np.lexsort((step[rows], episode[rows]))]
    e, t = episode[order], step[order]
    first = np.ones(len(e), bool)
    first[1:] = e[1:] != e[:-1]
    row_before, before = np.zeros(len(episode), np.int64), np.zeros(len(t), t.dtype)
    row_before[order[1:]], before[1:] = order[:-1], t[:-1]
    notes: dict[Rule, Callable[[int], str]] = {
        rules.STEP_START: lambda row: "",
        rules.DUPLICATE_STEP: lambda row: f" (as in row {faults.place(int(row_before[row])).row})",
        rules.MISSING_STEP: lambda row: f" (step {int(step[row_before[row]]) + 1} is missing)",
    }
    wrong = np.zeros(len(e), bool)
    for rule, note in notes.items():
        bad = rule.broken(t, before, first)
        faults.rows(rule, name, order[bad], step, note=note)
        wrong |= bad
    return rows[~np.isin(episode[rows], e[wrong])]


def _check_rows_after_end(
    faults: Faults, column: str, ended: Mask, episode: Codes, step: Codes, n_episodes: int
) -> None:
    """No row may follow the one that says the episode has ended."""
    known = np.flatnonzero((episode >= 0) & (step >= 0))
    flagged = known[ended[known]]
    first_end = np.full(n_episodes, np.iinfo(np.int64).max)
    np.minimum.at(first_end, episode[flagged], step[flagged])
    bad = rules.ROWS_AFTER_END.broken(step[known], first_end[episode[known]])
    faults.rows(
        rules.ROWS_AFTER_END,
        column,
        known[bad],
        step,
        note=lambda row: (
            f" (a row at this step; the episode ended at step {first_end[episode[row]]})"
        ),
    )


def _check_next_states(
    reader: RoleReader, state: Codes, next_state: Codes, next_row: Codes, labels: Labels
) -> None:
    """next_state(t) must be state(t+1), where both are known; null only where it may be hidden."""
    assert reader.columns.next_state is not None
    column = reader.columns.next_state[0]
    goes_on = next_row >= 0
    after = np.where(goes_on, state[next_row], -1)
    both_known = (next_state >= 0) & (after >= 0)
    reader.faults.rows(
        rules.NEXT_STATE,
        column,
        rules.NEXT_STATE.broken(goes_on, both_known, next_state != after),
        lambda row: labels.values[next_state[row]],
        note=lambda row: f" (the next row's state is {labels.values[after[row]]!r})",
    )
    if not reader.allow_hidden:
        missing = rules.NULL_NEXT_STATE.broken(goes_on, next_state < 0)
        reader.faults.rows(rules.NULL_NEXT_STATE, column, missing)


def _check_short(reader: RoleReader, rows: Codes, ended: Mask, cut: Mask) -> None:
    """The last row of a short episode must say why it is the last."""
    columns = reader.columns
    flags_known = np.broadcast_to(reader.flags_known, len(ended))[rows]
    unexplained = rules.SHORT_EPISODE.broken(flags_known, ended[rows], cut[rows])
    reader.faults.rows(
        rules.SHORT_EPISODE,
        columns.step,
        rows[unexplained],
        lambda row: reader.value(columns.step, row),
        fix=rules.short_episode_fix(reader.source.names, columns.terminated, columns.truncated),
    )
