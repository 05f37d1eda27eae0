"""The log's contract. Every check adds to one list of faults, so that all are told at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from reweigh.errors import KEPT_PLACES, Fault, Place, RefusedError, input_error

if TYPE_CHECKING:
    import pyarrow as pa

Mask = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
CONTINUOUS_STATE = "continuous-state"
MANY_UNIQUE = 0.9  # a float state with more distinct values than this share of rows is continuous
LEAST_PROBABILITY = 1e-300  # of a logged action: a ratio to one below would not be a number
# Products of ratios are held to within 2^256, about 1e77 (kernels/products.py). Times such a
# reward, squared and added up, they are still numbers: every engine has the same answer.
LARGEST_REWARD = 1e60
REAL_REWARD = (
    "write the real reward (a number that stands for a missing one is no reward), or write all "
    "rewards in a larger unit"
)
NEVER_TAKEN = (
    "an action that was taken cannot have had probability 0, which is anything below "
    f"{LEAST_PROBABILITY:g}: log the real propensity"
)


@dataclass
class Faults:
    """Collects the faults of one log. `place` names a row: its file, line, episode and step."""

    place: Callable[[int], Place]
    total: int
    found: list[Fault] = field(default_factory=list)

    def rows(
        self,
        code: str,
        column: str | None,
        bad: Mask | Ints,
        values: Callable[[int], object],
        rule: str,
        fix: str,
        note: Callable[[int], str] = lambda row: "",
    ) -> None:
        """Add a fault at the rows where `bad` is True (or at these row numbers)."""
        where = np.flatnonzero(bad) if bad.dtype == bool else np.sort(bad)
        if len(where) == 0:
            return
        places = tuple(
            replace(self.place(row), column=column, value=values(row), note=note(row))
            for row in where[:KEPT_PLACES].tolist()
        )
        self.found.append(Fault(code, rule, fix, places, len(where), self.total))

    def add(self, code: str, rule: str, fix: str, places: Sequence[Place] = ()) -> None:
        self.found.append(Fault(code, rule, fix, tuple(places)))

    def raise_if_any(self, what: str) -> None:
        if self.found and all(fault.code == CONTINUOUS_STATE for fault in self.found):
            # the log is fine, but no table of states can be made of it
            raise RefusedError(CONTINUOUS_STATE, f"{what}: {self.found[0]}")
        if self.found:
            raise input_error(what, self.found)


def numbers(column: pa.ChunkedArray, name: str) -> npt.NDArray[np.float64]:
    """A column of numbers as float64; null becomes NaN, which every range check then refuses."""
    from reweigh.log.column_types import floats, is_number

    if not is_number(column.type):
        raise input_error("the column", [_not_numeric(name, column.type)])
    column = floats(column)
    array = column.to_numpy() if column.null_count == 0 else column.fill_null(np.nan).to_numpy()
    return np.asarray(array, np.float64)


def _not_numeric(name: str, kind: pa.DataType) -> Fault:
    rule = f"column {name!r} must hold numbers; it holds {kind}"
    return Fault("type", rule, "write the column as numbers")


def numbers_or_faults(
    faults: Faults, name: str, column: pa.ChunkedArray
) -> npt.NDArray[np.float64] | None:
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
    if not is_text(column.type):
        faults.found.append(_not_numeric(name, column.type))
        return
    column = texts(column)
    number = r"^[ \t]*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?[ \t]*$"
    named = r"^(?i:[-+]?(nan|inf|infinity))$"
    fine = pc.or_(pc.match_substring_regex(column, number), pc.match_substring_regex(column, named))
    bad = np.asarray(pc.invert(fine).fill_null(False).to_numpy(), bool)
    if not np.any(bad):
        faults.found.append(_not_numeric(name, column.type))
        return
    cells = column.filter(pc.invert(fine)).slice(0, KEPT_PLACES).to_pylist()
    comma = any("," in cell for cell in cells)
    faults.rows(
        "not-a-number",
        name,
        bad,
        lambda row: value_of(column, row),
        f"{name!r} must be a number",
        "the decimal sign looks like a comma: pass decimal=','"
        if comma
        else "write the number, or leave the episode out",
    )


def finite(faults: Faults, column: str, values: npt.NDArray[np.float64], nulls: Mask) -> Mask:
    """Null and NaN/inf faults of a numeric column; returns the rows that are fine."""
    null_values(faults, column, nulls)
    bad = ~np.isfinite(values) & ~nulls
    faults.rows(
        "not-finite",
        column,
        bad,
        lambda row: float(values[row]),
        f"{column!r} must be a finite number",
        "write the real number, or leave the episode out",
    )
    return ~(bad | nulls)


def reward_range_rule(column: str) -> str:
    return f"{column!r} must lie between {-LARGEST_REWARD:g} and {LARGEST_REWARD:g}"


def rewards(faults: Faults, column: str, values: npt.NDArray[np.float64]) -> None:
    """Rewards that squares and sums can hold; what is not finite has its fault already."""
    with np.errstate(invalid="ignore"):
        large = np.isfinite(values) & (np.abs(values) > LARGEST_REWARD)
    faults.rows(
        "reward-range",
        column,
        large,
        lambda row: float(values[row]),
        reward_range_rule(column),
        REAL_REWARD,
    )


def null_values(faults: Faults, column: str, nulls: Mask, fix: str | None = None) -> None:
    faults.rows(
        "null",
        column,
        nulls,
        lambda row: None,
        f"{column!r} must not be null",
        fix or "fill in the value, or leave the episode out",
    )


def probabilities(
    faults: Faults,
    column: str,
    values: npt.NDArray[np.float64],
    fine: Mask,
    *,
    zero_allowed: bool,
    density: bool,
) -> None:
    """behavior_prob lies in (0, 1], target_prob in [0, 1]; a density may exceed 1."""
    zero = values < LEAST_PROBABILITY if not density else values <= 0
    low = values < 0 if zero_allowed else zero
    bad = fine & (low if density else low | (values > 1))
    if not np.any(bad):
        return
    interval = f"{'[' if zero_allowed else '('}0, {'∞)' if density else '1]'}"
    fix = (
        "log the probability of the logged action"
        if density
        else "log the probability of the logged action; densities of continuous actions need "
        "continuous_actions=True"
    )
    checked = values[fine]
    if len(checked) and np.all(checked <= 0) and np.any(checked < 0):
        fix = "these look like log-probabilities: write exp() of them"
    elif not density and np.all(checked >= 0) and 1 < checked.max() <= 100 and checked.max() > 2:
        fix = "if these are percentages, divide them by 100"
    elif not zero_allowed and np.all(zero[bad] & (values[bad] >= 0)):
        fix = NEVER_TAKEN
    faults.rows(
        "probability-range",
        column,
        bad,
        lambda row: float(values[row]),
        f"{column!r} must lie in {interval}",
        fix,
    )


def unlikely_states(faults: Faults, column: str, values: npt.NDArray[np.float64]) -> None:
    """A float column is no table key: nearly every value would be a state of its own."""
    seen = values[np.isfinite(values)]
    unique = len(np.unique(seen))
    rule = f"column {column!r} holds floats, which make no table of states"
    code = "float-state"
    if unique > MANY_UNIQUE * len(seen):
        code = CONTINUOUS_STATE
        rule += (
            f": {unique:,} of {len(seen):,} values are unique, so MIS would equal "
            "step-wise importance sampling"
        )
    faults.add(
        code,
        rule,
        "pass abstraction=Rounding(scale), Grid(edges) or any callable to read_log, or write "
        "integers or text",
    )


def episode_steps(faults: Faults, name: str, episode: Ints, step: Ints, fine: Mask) -> Mask:
    """Within an episode the steps are 0, 1, 2, …: no duplicate, no gap. Returns the rows fine.

    An episode with a step that is not known already has its fault, and is not blamed for what
    follows from it.
    """
    fine = fine & ~np.isin(episode, episode[~fine])
    rows = np.flatnonzero(fine)
    order = rows[np.lexsort((step[rows], episode[rows]))]
    e, t = episode[order], step[order]
    first = np.ones(len(e), bool)
    first[1:] = e[1:] != e[:-1]
    faults.rows(
        "step-start",
        name,
        order[first & (t != 0)],
        lambda row: int(step[row]),
        "the steps of an episode must start at 0",
        "number the steps of each episode 0, 1, 2, … (subtract the first one)",
    )
    jump = np.zeros(len(e), np.int64)
    jump[1:] = np.where(first[1:], 1, t[1:] - t[:-1])
    jump[0:1] = 1
    before = np.zeros(len(episode), np.int64)
    before[order[1:]] = order[:-1]
    faults.rows(
        "duplicate-step",
        name,
        order[jump == 0],
        lambda row: int(step[row]),
        "an episode has one row per step",
        "remove the duplicate; if an id was used for two episodes, make the ids distinct",
        lambda row: f" (as in row {faults.place(int(before[row])).row})",
    )
    faults.rows(
        "missing-step",
        name,
        order[jump > 1],
        lambda row: int(step[row]),
        "the steps of an episode must have no gap",
        "add the missing step, or leave the episode out",
        lambda row: f" (step {int(step[before[row]]) + 1} is missing)",
    )
    good = fine.copy()
    bad_episodes = np.unique(e[(first & (t != 0)) | (jump != 1)])
    good[np.isin(episode, bad_episodes)] = False
    return good


def rows_after_end(
    faults: Faults, column: str, ended: Mask, episode: Ints, step: Ints, episodes: int, fine: Mask
) -> None:
    """No row may follow the one that says the episode has ended."""
    first_end = np.full(episodes, np.iinfo(np.int64).max)
    at = fine & ended
    np.minimum.at(first_end, episode[at], step[at])
    rows = np.flatnonzero(fine)
    faults.rows(
        "rows-after-end",
        column,
        rows[step[rows] > first_end[episode[rows]]],
        lambda row: int(step[row]),
        f"no row may follow the row where {column!r} is true",
        "cut the rows after the end, or correct the flag",
        lambda row: f" (a row at this step; the episode ended at step {first_end[episode[row]]})",
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
    has_next = following >= 0
    after = np.where(has_next, state[following], -1)
    faults.rows(
        "next-state",
        column,
        has_next & (next_state >= 0) & (after >= 0) & (next_state != after),
        lambda row: name(int(next_state[row])),
        "next_state must equal the state of the next row",
        "check that rows are aligned: next_state of step t is the state of step t+1",
        lambda row: f" (the next row's state is {name(int(after[row]))!r})",
    )


def value_of(column: Any, row: int) -> object:
    """A cell of an Arrow column as a Python value, for messages."""
    return column[row].as_py()
