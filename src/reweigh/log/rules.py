"""The rules of a log, each declared once: its subject, when a row breaks it, its sentence, and the
fix. All broken rules are collected (`Faults`) and reported together.

Conditions use comparisons and &, |, ~ alone, which NumPy arrays and Ibis columns share: the reader
in memory (`read.py`) and the engines in SQL evaluate the same condition. An engine may first check
whether a whole column lies in its `Range`, and search for rows only if it does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from reweigh.errors import KEPT_PLACES, Fault, Place, RefusedError, input_error

LEAST_PROBABILITY = 1e-300  # of a logged action: a ratio to one below would not be a number
# Products of ratios are held to within 2^256, about 1e77 (kernels/products.py). Times such a
# reward, squared and added up, they still fit: every engine has the same result.
LARGEST_REWARD = 1e60
MANY_UNIQUE = 0.9  # a float state with more distinct values than this share of rows is continuous
LARGEST_STEP = 2**63 - 1

NUMBER = r"^[ \t]*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?[ \t]*$"
NAMED_NUMBER = r"^[-+]?(nan|inf|infinity)$"  # in lower case
STEP = "^(0|[1-9][0-9]{0,17})$"


@dataclass(frozen=True)
class Range:
    """The numbers from `low` (or above it, if `above`) to `high`."""

    low: float
    high: float = np.inf
    above: bool = False

    def outside(self, x: Any) -> Any:
        """The condition on a column, of NumPy or of Ibis."""
        low = x <= self.low if self.above else x < self.low
        return low if self.high == np.inf else low | (x > self.high)

    def holds(self, values: npt.NDArray[Any]) -> bool:
        """Whether all values are inside; a NaN is not."""
        if len(values) == 0:
            return True
        low, high = values.min(), values.max()
        inside = bool(low > self.low if self.above else low >= self.low)
        return inside and bool(high <= self.high) and bool(np.isfinite(high))


REWARDS = Range(-LARGEST_REWARD, LARGEST_REWARD)
FINITE = Range(-float(np.finfo(np.float64).max))


def probability_range(role: str, density: bool) -> Range:
    """behavior_prob lies in (0, 1], target_prob in [0, 1]; a density may exceed 1."""
    high = np.inf if density else 1.0
    if role == "target_prob":
        return Range(0.0, high)
    return Range(0.0, high, above=True) if density else Range(LEAST_PROBABILITY, high)


@dataclass(frozen=True)
class Rule:
    """`sentence` and `fix` have places for the column and for other values. `broken` is the
    condition that no row may meet, with the arguments that its declaration names."""

    code: str
    of: Literal["column", "row", "episode"]
    roles: tuple[str, ...]
    sentence: str
    fix: str
    broken: Callable[..., Any] = lambda *columns: False

    def message(self, column: str | None = None, **values: object) -> str:
        return self.sentence.format(column=repr(column), **values)


IDS = ("episode", "state", "next_state", "action", "cluster")
NUMBERS = ("reward", "behavior_prob", "target_prob", "weight")
FLAGS = ("terminated", "truncated")
MENDED = "or leave this episode out"

MISSING_COLUMN = Rule(
    "missing-column",
    "column",
    (*IDS, "step", "time", *NUMBERS, *FLAGS, "features"),
    "there is no column {column} for the role {role}{nearest}",
    "name the column with {role}=…",
)
NO_ROWS = Rule("no-episodes", "column", (), "there are no rows", "give a log with rows")
TYPE = Rule(
    "type",
    "column",
    (*IDS, "step", "time"),
    "column {column} ({role}) contains {kind}",
    "write it as integers",
)
NOT_NUMERIC = Rule(
    "type",
    "column",
    (*NUMBERS, "features"),
    "column {column} must contain numbers, not {kind}",
    "write the column as numbers",
)
NOT_TRUTHS = Rule(
    "type", "column", FLAGS, "column {column} must contain true/false or 1/0", "write truth values"
)
FLOAT_ACTION = Rule(
    "float-action",
    "column",
    ("action",),
    "column {column} contains floats",
    "write integers or text; for continuous actions with logged densities pass "
    "continuous_actions=True",
)
FLOAT_STATE = Rule(
    "float-state",
    "column",
    ("state", "next_state"),
    "column {column} is continuous and must be binned first",
    "pass abstraction=Quantiles(5), Rounding(scale), Grid(edges) or any callable to read_log, or "
    "write integers or text",
)
CONTINUOUS_STATE = Rule(  # unique > MANY_UNIQUE · values
    "continuous-state",
    "column",
    ("state", "next_state"),
    FLOAT_STATE.sentence
    + (
        ": {unique:,} of {values:,} values are unique, so MIS would equal step-wise "
        "importance sampling"
    ),
    FLOAT_STATE.fix,
)
NULL = Rule(
    "null",
    "row",
    (*IDS, "step", "time", *NUMBERS, *FLAGS),
    "{column} must not be null",
    f"fill in the value, {MENDED}",
)
NULL_STATE = Rule(
    "null",
    "row",
    ("state",),
    NULL.sentence,
    'fill in the state, or pass hidden="allow" if it could not be observed',
)
NULL_NEXT_STATE = Rule(
    "null",
    "row",
    ("next_state",),
    NULL.sentence,
    "write the state of the next row",
    lambda goes_on, unknown: goes_on & unknown,
)
NOT_A_NUMBER = Rule(
    "not-a-number",
    "row",
    NUMBERS,
    "{column} must be a number",
    f"write the number, {MENDED}",
)
DECIMAL_COMMA = "the decimal sign looks like a comma: pass decimal=','"
NOT_FINITE = Rule(
    "not-finite",
    "row",
    NUMBERS,
    "{column} must be a finite number",
    f"write the real number, {MENDED}",
    lambda known, finite: known & ~finite,
)
REWARD_RANGE = Rule(
    "reward-range",
    "row",
    ("reward",),
    f"{{column}} must lie between {-LARGEST_REWARD:g} and {LARGEST_REWARD:g}",
    "write the real reward (leave out codes for a missing one), or write all rewards in a "
    "larger unit",
    lambda reward, finite: finite & REWARDS.outside(reward),
)
PROBABILITY_RANGE = Rule(
    "probability-range",
    "row",
    ("behavior_prob", "target_prob"),
    "{column} must lie in {interval}",
    "log the probability of the logged action",
    lambda p, finite, allowed: finite & allowed.outside(p),
)
NOT_A_STEP = Rule(
    "not-a-step",
    "row",
    ("step",),
    "a step is a whole number 0, 1, 2, …",
    "number the steps of each episode from 0",
    lambda t: t > LARGEST_STEP,
)
NEGATIVE_STEP = Rule(
    "step-start", "row", ("step",), NOT_A_STEP.sentence, NOT_A_STEP.fix, lambda t: t < 0
)
NOT_A_TIME = Rule(
    "not-a-time",
    "row",
    ("time",),
    "{column} must be a time: a finite number, or a date and time as in ISO 8601",
    f"write it like 2024-01-31 08:05:00 or as a number such as seconds since 1970, {MENDED}",
    lambda known, is_time: known & ~is_time,
)
MIXED_TIMES = Rule(
    "mixed-times",
    "episode",
    ("time",),
    "{column} must give the offset from UTC in all rows of an episode, or in none",
    "write all times of the episode in one time zone",
    lambda zoned, first: zoned != first,
)
# Of the rows of an episode by time, with the time before: `first` has none.
TIED_TIMES = Rule(
    "tied-times",
    "episode",
    ("time",),
    "two rows of an episode must not have the same time {column}, which gives their order",
    "log a finer time, or number the rows of each episode 0, 1, 2, … and name that column step; "
    "if an id was used for two episodes, make the ids distinct",
    lambda time, before, first: ~first & (time == before),
)
REPEATED_EPISODE = Rule(
    "repeated-episode",
    "episode",
    ("episode",),
    "each row of a bandit log must have an id {column} of its own",
    "make the ids distinct; if the rows of an id belong together, name their step or time instead "
    "of bandit",
    lambda before, first: ~first,
)
# Of the rows of an episode by step, with the step before: `first` has none.
STEP_START = Rule(
    "step-start",
    "episode",
    ("step",),
    "the steps of an episode must start at 0",
    "number the steps of each episode 0, 1, 2, … (subtract the first one)",
    lambda t, before, first: first & (t != 0),
)
DUPLICATE_STEP = Rule(
    "duplicate-step",
    "episode",
    ("step",),
    "an episode has one row per step",
    "remove the duplicate; if an id was used for two episodes, make the ids distinct",
    lambda t, before, first: ~first & (t == before),
)
MISSING_STEP = Rule(
    "missing-step",
    "episode",
    ("step",),
    "the steps of an episode must have no gap",
    f"add the missing step, {MENDED}",
    lambda t, before, first: ~first & (t - before > 1),
)
ROWS_AFTER_END = Rule(
    "rows-after-end",
    "episode",
    FLAGS,
    "no row may follow the row where {column} is true",
    "cut the rows after the end, or correct the flag",
    lambda t, end: t > end,
)
NEXT_STATE = Rule(
    "next-state",
    "episode",
    ("next_state",),
    "next_state must equal the state of the next row",
    "check that rows are aligned: next_state of step t is the state of step t+1",
    lambda goes_on, both_known, differ: goes_on & both_known & differ,
)
SHORT_EPISODE = Rule(
    "short-episode",
    "episode",
    ("step", *FLAGS),
    "an episode ends before the horizon, and no column says whether it ended or was cut off",
    "name a terminated or truncated column, or pass short_episodes='terminal' or 'truncated'",
    lambda last, ended, cut: last & ~ended & ~cut,
)

CONTRACT = (
    MISSING_COLUMN, NO_ROWS, TYPE, NOT_NUMERIC, NOT_TRUTHS, FLOAT_ACTION, FLOAT_STATE,
    CONTINUOUS_STATE, NULL, NULL_STATE, NULL_NEXT_STATE, NOT_A_NUMBER, NOT_FINITE, REWARD_RANGE,
    PROBABILITY_RANGE, NOT_A_STEP, NEGATIVE_STEP, NOT_A_TIME, MIXED_TIMES, TIED_TIMES,
    REPEATED_EPISODE, STEP_START, DUPLICATE_STEP, MISSING_STEP, ROWS_AFTER_END, NEXT_STATE,
    SHORT_EPISODE,
)  # fmt: skip


@dataclass
class Faults:
    """Collects the faults of one log. `place` names a row: its file, line, episode and step."""

    place: Callable[[int], Place]
    total: int
    faults: list[Fault] = field(default_factory=list)

    def rows(
        self,
        rule: Rule,
        column: str | None,
        bad: npt.NDArray[Any] | None,
        values: Any = None,
        *,
        fix: str | None = None,
        note: Callable[[int], str] = lambda row: "",
        **words: object,
    ) -> None:
        """Add a fault at the rows where `bad` is True (or at these row numbers), with the cells of
        `values`: a column, or a function of the row."""
        if bad is None:
            return
        rows = np.flatnonzero(bad) if bad.dtype == bool else np.sort(bad)
        if len(rows) == 0:
            return
        places = tuple(
            replace(self.place(row), column=column, value=cell(values, row), note=note(row))
            for row in rows[:KEPT_PLACES].tolist()
        )
        sentence = rule.message(column, **words)
        self.faults.append(
            Fault(rule.code, sentence, fix or rule.fix, places, len(rows), self.total)
        )

    def column(
        self, rule: Rule, column: str | None, *, fix: str | None = None, **words: object
    ) -> None:
        """Add a fault of a whole column."""
        self.faults.append(column_fault(rule, column, fix=fix, **words))

    def numbers(
        self,
        role: str,
        column: str,
        values: npt.NDArray[np.float64],
        nulls: npt.NDArray[np.bool_] | None = None,
        *,
        density: bool = False,
    ) -> None:
        """Add the faults of a role's numbers: nulls, NaN and infinities, and numbers outside its
        range."""
        rewards, probabilities = role == "reward", role in ("behavior_prob", "target_prob")
        allowed = REWARDS if rewards else FINITE
        allowed = probability_range(role, density) if probabilities else allowed
        if nulls is None and allowed.holds(values):
            return
        known, finite = True if nulls is None else ~nulls, np.isfinite(values)
        self.rows(NULL, column, nulls)
        self.rows(NOT_FINITE, column, NOT_FINITE.broken(known, finite), values)
        fine = known & finite
        if rewards:
            self.rows(REWARD_RANGE, column, REWARD_RANGE.broken(values, fine), values)
        elif probabilities and np.any(fine):
            self.rows(
                PROBABILITY_RANGE,
                column,
                PROBABILITY_RANGE.broken(values, fine, allowed),
                values,
                fix=probability_fix(role, density, values[fine].min(), values[fine].max()),
                interval=interval(role, density),
            )

    def raise_if_any(self, what: str) -> None:
        if self.faults and all(fault.code == CONTINUOUS_STATE.code for fault in self.faults):
            # the log is fine, but no table of states can be made of it
            raise RefusedError(CONTINUOUS_STATE.code, f"{what}: {self.faults[0]}")
        if self.faults:
            raise input_error(what, self.faults)


def column_fault(
    rule: Rule, column: str | None, *, fix: str | None = None, **words: object
) -> Fault:
    return Fault(rule.code, rule.message(column, **words), fix or rule.fix)


def cell(values: Any, row: int) -> object:
    """A cell of a column of NumPy or Arrow as a Python value, for messages."""
    if values is None or callable(values):
        return None if values is None else values(row)
    return values[row].item() if isinstance(values, np.ndarray) else values[row].as_py()


def missing_column_fix(role: str) -> str:
    if role == "behavior_prob":
        return (
            "name the column with behavior_prob=…, or pass behavior_prob=None and estimate it "
            "with fit_behavior(log)"
        )
    if role == "step":
        return (
            "name the column with step=…, or the column of timestamps with time=…; where every row "
            "is an episode of its own, pass bandit=True"
        )
    return MISSING_COLUMN.fix.format(role=role)


def type_fix(role: str, floats: bool) -> str:
    if role == "time":
        return NOT_A_TIME.fix
    fix = TYPE.fix + ("" if role == "step" else " or text")
    if floats:
        fix += " (an integer column with a missing value may have become float)"
    return fix


def interval(role: str, density: bool) -> str:
    """Where the probabilities of a role must lie, as it is written."""
    return f"{'[' if role == 'target_prob' else '('}0, {'∞)' if density else '1]'}"


def probability_fix(role: str, density: bool, low: float, high: float) -> str:
    """The advice for probabilities of which some are out of range, from the smallest and the
    largest of all that are finite."""
    if high <= 0 and low < 0:
        return "these look like log-probabilities: apply exp() to them"
    if not density and low >= 0 and 2 < high <= 100:
        return "if these are percentages, divide them by 100"
    if role == "behavior_prob" and low >= 0 and (density or high <= 1):
        return (
            f"the probability of a logged action cannot be 0 (below {LEAST_PROBABILITY:g}): "
            "log the real propensity"
        )
    if density:
        return PROBABILITY_RANGE.fix
    return f"{PROBABILITY_RANGE.fix}; densities of continuous actions need continuous_actions=True"


def continuous(unique: int, values: int) -> bool:
    """Whether floats are nearly all different."""
    return unique > MANY_UNIQUE * values


def short_episode_fix(names: list[str], *used: str | None) -> str:
    """The advice, with the flags that the log has and that have no role yet."""
    unused = [n for n in ("terminated", "truncated", "done") if n in names and n not in used]
    more = f" (not used yet: the log has a column {', '.join(map(repr, unused))})" if unused else ""
    return SHORT_EPISODE.fix + more
