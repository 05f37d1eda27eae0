"""A policy as a rule: "if map_bp < 65: vasopressor=0.9, none=0.1; else: none=1"."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reweigh.errors import InputWarning, Place, UsageError, check, nearest
from reweigh.log import rules
from reweigh.log.log import Columns, EpisodeLog
from reweigh.log.rules import Faults
from reweigh.log.states import (
    Label,
    Labels,
    floats,
    is_number,
    is_text,
    label_text,
    one_array,
    plain_numbers,
    texts,
)
from reweigh.policy import Floats, Scope, role_after_action
from reweigh.policy.rule_text import Branch, Compared, Condition, IsMissing, Kind, Not, parse
from reweigh.system.files import digest_of

Mask = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int32]
UNCOVERED, UNDECIDED = -1, -2  # the codes of rows that no branch takes
EXACT, TOLERATED = 1e-9, 1e-6  # how far the probabilities of a branch may be from 1
LONGEST_NAME = 60
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
RULE_MISSING = rules.Rule(
    "rule-missing",
    "row",
    (),
    "the rule needs column {column} in rows where it has no value (or an infinite one)",
    "say what to do there, before the branch that needs it: if {column} is missing: …",
)
RULE_UNCOVERED = rules.Rule(
    "rule-uncovered",
    "row",
    (),
    "no branch of the rule holds in these rows",
    "add a branch for them, or end the rule with else: …",
)


class RulePolicy:
    """π(action|row) from the first branch of a rule whose condition holds.

    `text` is such as "if map_bp < 65: vasopressor=0.9, none=0.1; else: none=1". Columns are those
    of the log as they are in its file, before any abstraction. Conditions compare a column with
    numbers (<, <=, >, >=, ==, !=, in) or texts (==, !=, in), or ask whether a cell `is missing`,
    joined by and, or, not and parentheses. The probabilities of a branch add up to 1.

    A comparison with a missing cell is neither true nor false. A row whose branch depends on such a
    one is refused, and so is a row that no branch covers.
    """

    scope: Scope = "row"
    has_steps = False

    def __init__(self, text: str, *, name: str = "", path: Path | None = None) -> None:
        check(isinstance(text, str), "text", "a rule such as 'if age < 65: a=1; else: b=1'", text)
        where = "the rule" if path is None else f"the rule {str(path)!r}"
        self.text = parse(text, where)
        plain = " ".join(text.split())
        shown = plain if len(plain) <= LONGEST_NAME else f"{plain[: LONGEST_NAME - 1]}…"
        self.name = name or shown
        self.files = () if path is None else (path,)
        self.actions = Labels(tuple(self.text.actions))
        self.table = self._table()

    def __repr__(self) -> str:
        return f"RulePolicy({len(self.branches)} branches, {len(self.actions)} actions)"

    @property
    def branches(self) -> tuple[Branch, ...]:
        return self.text.branches

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of the log that the rule names."""
        return tuple(self.text.columns)

    def _table(self) -> Floats:
        """(branches, actions) π, whose rows add up to 1."""
        texts_of = [label_text(action) for action in self.actions.values]
        for place, action in enumerate(self.actions.values):
            if texts_of.index(texts_of[place]) < place:
                message = f"the action {action!r} is written as a number and as a text: one action"
                self.text.fail(self.text.actions[action], message)
        table = np.zeros((len(self.branches), len(self.actions)))
        for row, branch in zip(table, self.branches, strict=True):
            row[[self.actions.code_of[label_text(a)] for a in branch.probabilities]] = list(
                branch.probabilities.values()
            )
            total = float(row.sum())
            if abs(total - 1) > TOLERATED:
                message = f"the probabilities of {branch.name} must add up to 1; they add up to"
                self.text.fail(branch.place, f"{message} {total:.10g}")
            if abs(total - 1) > EXACT:
                message = f"{self.text.where}: the probabilities of {branch.name} add up to 1 only"
                warnings.warn(
                    f"{message} within {abs(total - 1):.1e}; they were normalized",
                    InputWarning,
                    stacklevel=3,
                )
            row /= total
        return table

    # ---- what a policy answers -----------------------------------------------------------------

    def probabilities(self, log: EpisodeLog) -> Floats:
        if log.actions is None:
            raise self.no_densities()
        column = self.actions.translate(log.actions)
        shares = np.where(column < 0, 0.0, self.table[:, column])
        return np.asarray(shares[self.branch_of(log), log.steps.action], np.float64)

    @staticmethod
    def no_densities() -> UsageError:
        return UsageError(
            "a rule has no densities: for continuous actions give the target as a logged column "
            "(ColumnPolicy) or a function (FunctionPolicy)"
        )

    def all_actions(self, log: EpisodeLog) -> Labels:
        return self.actions

    def of_action(self, log: EpisodeLog, action: Label) -> Floats:
        code = self.actions.code_of.get(label_text(action))
        if code is None:
            return np.zeros(log.steps.n_rows)
        return np.asarray(self.table[:, code][self.branch_of(log)], np.float64)

    def unlogged_actions(self, log: EpisodeLog) -> dict[str, float]:
        """None: a rule that names an action missing in the log is refused."""
        self.refuse_unknown_actions(log.actions)
        return {}

    def refuse_unknown_actions(self, actions: Labels | None) -> None:
        """UsageError where the rule names an action that is none of the log's."""
        known = () if actions is None else actions.values
        texts_of = {label_text(action) for action in known}
        for action, place in self.text.actions.items():
            if known and label_text(action) not in texts_of:
                shown = [str(value) for value in known]
                more = ", …" if len(shown) > 10 else ""
                self.text.fail(
                    place,
                    f"the log has no action {action!r}{nearest(str(action), shown)} (actions: "
                    f"{', '.join(map(repr, shown[:10]))}{more})",
                )

    def fingerprint(self) -> str:
        return f"rule:{digest_of(self.text.plain)}"

    # ---- which branch --------------------------------------------------------------------------

    def branch_of(self, log: EpisodeLog) -> Codes:
        """(N,) the branch of every row, checked."""
        key = f"branch of {self.fingerprint()}"
        return log._once(key, lambda: self._branch_of(log))

    def _branch_of(self, log: EpisodeLog) -> Codes:
        self.refuse_columns(log.source.names, log.columns)
        cells = {name: self._cells(log, name) for name in self.reads}
        branch = np.full(log.steps.n_rows, UNCOVERED, np.int32)
        for code, one in enumerate(self.branches):
            holds, known = _decided(one.condition, cells, len(branch))
            left = branch == UNCOVERED
            branch[left & ~known] = UNDECIDED
            branch[left & known & holds] = code
        if branch.min(initial=0) < 0:
            self._refuse_rows(log, branch, cells)
        return branch

    def _cells(self, log: EpisodeLog, name: str) -> Cells:
        column = log.source.column(name)
        kind = self.checked_kind(name, column.type)
        return Cells.of(column, kind).take(log.steps.source_row)

    def _refuse_rows(self, log: EpisodeLog, branch: Codes, cells: Mapping[str, Cells]) -> NoReturn:
        """InputError with the rows that no branch takes, in the order of the log."""
        order = np.argsort(log.steps.source_row, kind="stable")
        branch = branch[order]

        def place(row: int) -> Place:
            return log.place(int(order[row]), None, None)

        faults = Faults(place, len(branch))
        for name, column in cells.items():
            bad = (branch == UNDECIDED) & ~column.known[order]
            faults.rows(RULE_MISSING, name, bad, fix=RULE_MISSING.fix.format(column=name))
        faults.rows(
            RULE_UNCOVERED,
            None,
            branch == UNCOVERED,
            lambda row: {name: column.value_at(int(order[row])) for name, column in cells.items()},
        )
        faults.raise_if_any("the target policy (a rule)")
        raise AssertionError("every row has a branch")

    def refuse_columns(self, names: list[str], columns: Columns) -> None:
        """UsageError where the rule names a column that is none of these, or one that is known only
        after the action."""
        for name, (_, place) in self.text.columns.items():
            role = role_after_action(name, columns)
            if role is not None:
                self.text.fail(
                    place,
                    f"the column {name!r} is the log's {role}, which is known only after the "
                    "action is chosen: a policy cannot use it",
                )
            if name not in names:
                listed = ", ".join(map(repr, names[:20])) + (", …" if len(names) > 20 else "")
                self.text.fail(
                    place,
                    f"the log has no column {name!r}{nearest(name, names)} (columns: {listed})",
                )

    def checked_kind(self, name: str, held: pa.DataType) -> Kind:
        """How the column is compared; UsageError where it holds something else."""
        kind, place = self.text.columns[name]
        number = is_number(held) or pa.types.is_boolean(held)
        if kind == "any":
            return "number" if number else "any"
        if pa.types.is_null(held) or (number if kind == "number" else is_text(held)):
            return kind
        holds = "text" if is_text(held) else "numbers" if number else str(held)
        how = (
            "write the value in quotes, or mend the cells that are no numbers"
            if kind == "number"
            else "write the value without quotes"
        )
        message = f"the column {name!r} holds {holds}, and is compared with a {kind}: {how}"
        return self.text.fail(place, message)


class Cells:
    """The cells of a column in the rows of a log: `known` (N,), and values as numbers or as codes
    of texts."""

    def __init__(self, values: npt.NDArray[Any], known: Mask, words: list[str] | None) -> None:
        self.values, self.known, self.words = values, known, words

    @classmethod
    def of(cls, column: pa.ChunkedArray, kind: Kind) -> Cells:
        known = plain_numbers(column.is_valid())
        if kind == "any":
            return cls(np.zeros(len(known)), known, None)
        if kind == "text":
            coded = one_array(pc.dictionary_encode(texts(column).cast(pa.large_string())))
            codes = plain_numbers(coded.indices.fill_null(0))
            return cls(codes, known, coded.dictionary.to_pylist())
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.uint8())
        numbers = plain_numbers(floats(column).fill_null(np.nan))
        return cls(numbers, np.isfinite(numbers), None)

    def take(self, rows: npt.NDArray[Any]) -> Cells:
        return Cells(self.values[rows], self.known[rows], self.words)

    def value_at(self, row: int) -> object:
        if not self.known[row]:
            return None
        value = self.values[row]
        return float(value) if self.words is None else self.words[value]

    def compared(self, sign: str, values: tuple[Any, ...]) -> Mask:
        """(N,) the answer where the cell is known."""
        if self.words is None:
            if sign == "in":
                return np.isin(self.values, values)
            return np.asarray(COMPARE[sign](self.values, values[0]), bool)
        wanted = set(values)
        among = np.array([(word in wanted) == (sign != "!=") for word in self.words] or [False])
        return np.asarray(among[self.values])


def _decided(
    condition: Condition | None, cells: Mapping[str, Cells], rows: int
) -> tuple[Mask, Mask]:
    """(N,) whether a condition holds, and whether that is known: with an unknown part, "and" is
    known where another part does not hold, and "or" where another one does."""
    if condition is None:
        return np.ones(rows, bool), np.ones(rows, bool)
    if isinstance(condition, IsMissing):
        return ~cells[condition.column].known, np.ones(rows, bool)
    if isinstance(condition, Compared):
        column = cells[condition.column]
        return column.compared(condition.sign, condition.values) & column.known, column.known
    if isinstance(condition, Not):
        holds, known = _decided(condition.part, cells, rows)
        return known & ~holds, known
    parts = [_decided(part, cells, rows) for part in condition.parts]
    # "and" is settled by a part that is known not to hold, "or" by one that holds
    settled = [known & (holds != condition.every) for holds, known in parts]
    holding = [holds for holds, _ in parts]
    join = np.logical_and if condition.every else np.logical_or
    decided = np.logical_and.reduce([known for _, known in parts])
    return join.reduce(holding), decided | np.logical_or.reduce(settled)
