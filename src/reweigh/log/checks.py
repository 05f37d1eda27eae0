"""The rules of a log (`rules.py`) asked of arrays. Every check adds to one list of faults, so that
all of them are reported at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from reweigh.errors import KEPT_PLACES, Fault, Place, RefusedError, input_error
from reweigh.log import rules
from reweigh.log.rules import Range, Rule

if TYPE_CHECKING:
    import pyarrow as pa

Mask = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.float64]


@dataclass
class Faults:
    """Collects the faults of one log. `place` names a row: its file, line, episode and step."""

    place: Callable[[int], Place]
    total: int
    found: list[Fault] = field(default_factory=list)

    def rows(
        self,
        rule: Rule,
        column: str | None,
        bad: Mask | Ints,
        values: Callable[[int], object] = lambda row: None,
        *,
        fix: str | None = None,
        note: Callable[[int], str] = lambda row: "",
        **words: object,
    ) -> None:
        """Add a fault at the rows where `bad` is True (or at these row numbers)."""
        rows = np.flatnonzero(bad) if bad.dtype == bool else np.sort(bad)
        if len(rows) == 0:
            return
        places = tuple(
            replace(self.place(row), column=column, value=values(row), note=note(row))
            for row in rows[:KEPT_PLACES].tolist()
        )
        sentence = rule.says(column, **words)
        self.found.append(
            Fault(rule.code, sentence, fix or rule.fix, places, len(rows), self.total)
        )

    def column(
        self, rule: Rule, column: str | None, *, fix: str | None = None, **words: object
    ) -> None:
        """Add a fault of a whole column."""
        self.found.append(column_fault(rule, column, fix=fix, **words))

    def add(self, code: str, rule: str, fix: str, places: Sequence[Place] = ()) -> None:
        """Add a fault that is not of a log."""
        self.found.append(Fault(code, rule, fix, tuple(places)))

    def raise_if_any(self, what: str) -> None:
        continuous = rules.CONTINUOUS_STATE.code
        if self.found and all(fault.code == continuous for fault in self.found):
            # the log is fine, but no table of states can be made of it
            raise RefusedError(continuous, f"{what}: {self.found[0]}")
        if self.found:
            raise input_error(what, self.found)


def column_fault(
    rule: Rule, column: str | None, *, fix: str | None = None, **words: object
) -> Fault:
    return Fault(rule.code, rule.says(column, **words), fix or rule.fix)


def numbers(column: pa.ChunkedArray, name: str) -> Floats:
    """A column of numbers as float64; null becomes NaN, which every range check then refuses."""
    from reweigh.log.column_types import float_rows, is_number

    if not is_number(column.type):
        raise input_error("the column", [column_fault(rules.NOT_NUMERIC, name, kind=column.type)])
    return float_rows(column.chunks, len(column))[0]


def numbers_or_faults(faults: Faults, name: str, column: pa.ChunkedArray) -> Floats | None:
    """The numbers of a column; None if it holds something else, which is then a fault."""
    from reweigh.log.column_types import is_number

    if is_number(column.type):
        return numbers(column, name)
    not_numbers(faults, name, column)
    return None


def not_numbers(faults: Faults, name: str, column: pa.ChunkedArray) -> None:
    """The faults of a column that is not numeric: its cells that are no numbers, if it is text."""
    import pyarrow.compute as pc

    from reweigh.log.column_types import is_text, texts

    null_values(faults, name, np.asarray(pc.is_null(column).to_numpy(), bool))
    if column.null_count == len(column):
        return
    bad = np.zeros(0, bool)
    if is_text(column.type):
        cells = column = texts(column)
        fine = pc.or_(
            pc.match_substring_regex(cells, rules.NUMBER),
            pc.match_substring_regex(pc.ascii_lower(cells), rules.NAMED_NUMBER),
        )
        bad = np.asarray(pc.invert(fine).fill_null(False).to_numpy(), bool)
    if not np.any(bad):
        faults.column(rules.NOT_NUMERIC, name, kind=column.type)
        return
    shown = cells.filter(pc.invert(fine)).slice(0, KEPT_PLACES).to_pylist()
    faults.rows(
        rules.NOT_A_NUMBER,
        name,
        bad,
        lambda row: value_of(cells, row),
        fix=rules.DECIMAL_COMMA if any("," in cell for cell in shown) else None,
    )


def null_values(
    faults: Faults, column: str, nulls: Mask | None, rule: Rule = rules.NULL, fix: str | None = None
) -> None:
    if nulls is not None:
        faults.rows(rule, column, nulls, fix=fix)


def finite(faults: Faults, column: str, values: Floats, nulls: Mask | None = None) -> Mask:
    """Null and NaN/inf faults of a numeric column; returns the rows that are fine."""
    null_values(faults, column, nulls)
    known = np.ones(len(values), bool) if nulls is None else ~nulls
    is_finite = np.isfinite(values)
    bad = rules.NOT_FINITE.broken(known, is_finite)
    faults.rows(rules.NOT_FINITE, column, bad, lambda row: float(values[row]))
    return known & is_finite


def rewards(faults: Faults, column: str, values: Floats, nulls: Mask | None = None) -> None:
    """Finite rewards that squares and sums can hold."""
    if nulls is None and rules.REWARDS.holds(values):
        return
    fine = finite(faults, column, values, nulls)
    bad = rules.REWARD_RANGE.broken(values, fine)
    faults.rows(rules.REWARD_RANGE, column, bad, lambda row: float(values[row]))


def probabilities(
    faults: Faults,
    column: str,
    values: Floats,
    nulls: Mask | None = None,
    *,
    role: str,
    density: bool,
) -> None:
    """Finite numbers in the range of the role."""
    allowed: Range = rules.probability_range(role, density)
    if nulls is None and allowed.holds(values):
        return
    fine = finite(faults, column, values, nulls)
    bad = rules.PROBABILITY_RANGE.broken(values, fine, allowed)
    if not np.any(bad):
        return
    checked = values[fine]
    faults.rows(
        rules.PROBABILITY_RANGE,
        column,
        bad,
        lambda row: float(values[row]),
        fix=rules.probability_fix(role, density, float(checked.min()), float(checked.max())),
        interval=rules.interval(role, density),
    )


def float_states(faults: Faults, column: str, values: Floats) -> None:
    """A float column is no table key: nearly every value would be a state of its own."""
    known = values[np.isfinite(values)]
    unique = len(np.unique(known))
    if rules.continuous(unique, len(known)):
        faults.column(rules.CONTINUOUS_STATE, column, unique=unique, values=len(known))
    else:
        faults.column(rules.FLOAT_STATE, column)


def episode_steps(faults: Faults, name: str, episode: Ints, step: Ints, known: Mask) -> Mask:
    """Within an episode the steps are 0, 1, 2, …: no duplicate, no gap. Returns the rows fine.

    An episode with a step that is not known already has its fault, and is not blamed for what
    follows from it.
    """
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
        faults.rows(rule, name, order[bad], lambda row: int(step[row]), note=note)
        wrong |= bad
    fine[np.isin(episode, np.unique(e[wrong]))] = False
    return fine


def rows_after_end(
    faults: Faults, column: str, ended: Mask, episode: Ints, step: Ints, episodes: int, known: Mask
) -> None:
    """No row may follow the one that says the episode has ended."""
    first_end = np.full(episodes, np.iinfo(np.int64).max)
    flagged = np.flatnonzero(known & ended)
    np.minimum.at(first_end, episode[flagged], step[flagged])
    rows = np.flatnonzero(known)
    bad = rules.ROWS_AFTER_END.broken(step[rows], first_end[episode[rows]])
    faults.rows(
        rules.ROWS_AFTER_END,
        column,
        rows[bad],
        lambda row: int(step[row]),
        note=lambda row: (
            f" (a row at this step; the episode ended at step {first_end[episode[row]]})"
        ),
    )


def next_states_agree(
    faults: Faults,
    column: str,
    state: Ints,
    next_state: Ints,
    following: Ints,
    name: Callable[[int], object],
) -> None:
    """next_state(t) must be state(t+1), where both are known."""
    goes_on = following >= 0
    after = np.where(goes_on, state[following], -1)
    faults.rows(
        rules.NEXT_STATE,
        column,
        rules.NEXT_STATE.broken(goes_on, (next_state >= 0) & (after >= 0), next_state != after),
        lambda row: name(int(next_state[row])),
        note=lambda row: f" (the next row's state is {name(int(after[row]))!r})",
    )


def value_of(column: Any, row: int) -> object:
    """A cell of an Arrow column as a Python value, for messages."""
    return column[row].as_py()
