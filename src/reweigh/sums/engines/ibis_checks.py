"""The log's contract as conditions on rows: the same faults as in memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa

from reweigh.errors import Fault, UsageError, input_error, nearest
from reweigh.log import rules
from reweigh.log.checks import column_fault
from reweigh.log.column_types import is_number, is_text
from reweigh.log.read import missing_column
from reweigh.sums.engines.ibis_connect import ROW, Home
from reweigh.sums.engines.ibis_faults import Rule
from reweigh.sums.engines.ibis_rows import (
    Layout,
    count_if,
    finite,
    is_label_kind,
    is_null,
    neighbours,
    number,
)
from reweigh.sums.read import Reading

SEQUENCE = ("step-start", "duplicate-step", "missing-step")  # what breaks an episode's order


def refuse_missing(home: Home, wanted: list[tuple[str, str]]) -> None:
    """Every role's column must be there, and the one that the target reads."""
    known = home.names
    listed = ", ".join(map(repr, known))
    faults = [
        missing_column(role.rstrip("0123456789"), name, known)
        for role, name in wanted
        if name not in known and role != "policy"
    ]
    if faults:
        raise input_error(f"{home.describe()} with the columns {listed}", faults)
    for _, name in wanted:  # a column of the policy alone is no part of the log's contract
        if name not in known:
            raise UsageError(
                f"the log has no column {name!r}{nearest(name, known)} (columns: {listed})"
            )


def row_rules(rows: Any, layout: Layout, reading: Reading) -> tuple[list[Rule], list[Fault]]:
    """What is wrong with a row by itself, and with the types of columns."""
    found = RowRules(rows, layout, reading)
    found.ids("episode")
    found.steps()
    for role in (*layout.parts("state"), *layout.parts("next_state")):
        found.state(role)
    if reading.continuous_actions:
        found.numbers("action", rows["a"])
    elif pa.types.is_floating(layout.kind("action")):
        found.faults.append(column_fault(rules.FLOAT_ACTION, layout.name("action")))
    else:
        found.ids("action")
    y = rows["y"]
    if found.numbers("reward", y):
        bad = rules.REWARD_RANGE.broken(y, finite(y))
        found.asked.append(Rule.of(rules.REWARD_RANGE, layout.name("reward"), bad, y))
    for role, short in (("behavior_prob", "mu"), ("target_prob", "tp")):
        if layout.has(role) and found.numbers(role, rows[short]):
            density = reading.continuous_actions
            found.asked.append(probability_rule(rows[short], layout.name(role), role, density))
    for role in ("terminated", "truncated"):
        if layout.has(role):
            found.null(role)
    return found.asked, found.faults


@dataclass
class RowRules:
    """Collects the rules of the columns, by role."""

    rows: Any
    layout: Layout
    reading: Reading
    asked: list[Rule] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def raw(self, role: str) -> tuple[Any, pa.DataType, str]:
        layout = self.layout
        return self.rows[layout.column(role)], layout.kind(role), layout.name(role)

    def null(self, role: str, rule: rules.Rule = rules.NULL) -> None:
        column, _, name = self.raw(role)
        self.asked.append(Rule.of(rule, name, is_null(column)))

    def ids(self, role: str) -> None:
        if is_label_kind(self.layout.kind(role)):
            self.null(role)
        else:
            self.faults.append(self._wrong_type(role))

    def _wrong_type(self, role: str) -> Fault:
        _, kind, name = self.raw(role)
        role = role.rstrip("0123456789").removeprefix("next_")
        fix = rules.type_fix(role, pa.types.is_floating(kind))
        return column_fault(rules.TYPE, name, fix=fix, role=role, kind=kind)

    def steps(self) -> None:
        column, kind, name = self.raw("step")
        if pa.types.is_integer(kind):
            self.null("step")
            asked = [rules.NEGATIVE_STEP]
            if str(kind) == "uint64":
                asked.append(rules.NOT_A_STEP)
            self.asked += [Rule.of(rule, name, rule.broken(column), column) for rule in asked]
        elif is_text(kind):
            bad = column.notnull() & ~column.re_search(rules.STEP)
            text = self._wrong_type("step")
            self.asked.append(Rule.of(rules.NOT_A_STEP, name, bad, column, otherwise=text))
        elif pa.types.is_null(kind):
            self.null("step")
        else:
            self.faults.append(self._wrong_type("step"))

    def state(self, role: str) -> None:
        column, kind, name = self.raw(role)
        if self.reading.abstraction is not None:
            if not is_number(kind) and not pa.types.is_boolean(kind) and not pa.types.is_null(kind):
                self.texts(role)
                return
            parts = self.layout.parts(role.rstrip("0123456789"))
            known = reduce(and_, [~is_null(self.rows[self.layout.column(p)]) for p in parts])
            self._finite(number(column, kind), name, known)
        elif pa.types.is_floating(kind) or not is_label_kind(kind):
            if not pa.types.is_floating(kind):
                self.faults.append(self._wrong_type(role))
            return
        if role.startswith("state") and not self.reading.hidden:
            self.null(role, rules.NULL_STATE)

    def numbers(self, role: str, x: Any) -> bool:
        """Null, NaN and infinity; False where the column holds no numbers."""
        column, kind, name = self.raw(role)
        if not is_number(kind):
            self.texts(role)
            return False
        self.null(role)
        self._finite(x, name, ~is_null(column))
        return True

    def _finite(self, x: Any, name: str, known: Any) -> None:
        bad = rules.NOT_FINITE.broken(known, finite(x))
        self.asked.append(Rule.of(rules.NOT_FINITE, name, bad, x))

    def texts(self, role: str) -> None:
        """A column that should hold numbers and does not."""
        column, kind, name = self.raw(role)
        self.null(role)
        if pa.types.is_null(kind):
            return
        no_numbers = column_fault(rules.NOT_NUMERIC, name, kind=kind)
        if not is_text(kind):
            self.faults.append(no_numbers)
            return
        lower = column.lower()
        written = column.re_search(rules.NUMBER) | lower.re_search(rules.NAMED_NUMBER)
        bad = column.notnull() & ~written
        self.asked.append(Rule.of(rules.NOT_A_NUMBER, name, bad, column, otherwise=no_numbers))


def probability_rule(p: Any, name: str, role: str, density: bool) -> Rule:
    """behavior_prob lies in (0, 1], target_prob in [0, 1]; a density may exceed 1."""
    allowed = rules.probability_range(role, density)
    bad = rules.PROBABILITY_RANGE.broken(p, finite(p), allowed)
    interval = rules.interval(role, density)
    return Rule.of(rules.PROBABILITY_RANGE, name, bad, p, interval=interval)


def probability_sums(p: Any, role: str) -> dict[str, Any]:
    """What the advice about a wrong probability depends on."""
    import ibis

    shown = ibis.ifelse(finite(p), p, ibis.null("float64"))
    return {f"low_{role}": shown.min(), f"high_{role}": shown.max()}


def advise(fault: Fault, role: str, low: float, high: float, density: bool) -> Fault:
    """A fault of probabilities with the advice that its range suggests, as in memory."""
    return replace(fault, fix=rules.probability_fix(role, density, low, high))


def flag_faults(home: Home, rows: Any, layout: Layout) -> list[Fault]:
    """Flags must be truth values; a column with anything else is not read at all."""
    import ibis

    faults = []
    for role in ("terminated", "truncated"):
        if not layout.has(role):
            continue
        column, kind, name = rows[layout.column(role)], layout.kind(role), layout.name(role)
        if pa.types.is_boolean(kind) or pa.types.is_null(kind):
            continue
        fine: Any = ibis.literal(False)
        if is_text(kind):
            fine = column.lower().isin(["true", "false", "1", "0"])
        elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
            fine = column.isin([0, 1])
        others = rows.aggregate(n=count_if(~is_null(column) & ~fine))
        if home.run(others).column("n")[0].as_py():
            faults.append(column_fault(rules.NOT_TRUTHS, name))
    return faults


def float_states(home: Home, rows: Any, layout: Layout, reading: Reading) -> list[Fault]:
    """A float column is no table key: nearly every value would be a state of its own."""
    faults: list[Fault] = []
    if reading.abstraction is not None:
        return faults
    for role in (*layout.parts("state"), *layout.parts("next_state")):
        if not pa.types.is_floating(layout.kind(role)):
            continue
        x = rows[layout.column(role)].cast("float64")
        shown = rows.select(x=x).filter(finite(x))
        [row] = home.run(shown.aggregate(n=shown.count(), unique=shown["x"].nunique())).to_pylist()
        rule = rules.FLOAT_STATE
        if rules.continuous(row["unique"], row["n"]):
            rule = rules.CONTINUOUS_STATE
        name, fix = (
            layout.name(role),
            rule.fix.replace(", Grid(edges) or any callable", " or Grid(edges)"),
        )
        faults.append(column_fault(rule, name, fix=fix, unique=row["unique"], values=row["n"]))
    return faults


def sequence_rules(rows: Any, layout: Layout, reading: Reading) -> tuple[Any, list[Rule]]:
    """Within an episode the steps are 0, 1, 2, …, and next_state is the state of the next row.

    `rows` are those of episodes without a fault of their own in id or step.
    """
    import ibis

    window = neighbours(rows)
    width = len(layout.parts("state"))
    # one more than the step before: where there is none, some engines give null and some 0
    last = ibis.literal(2**63 - 1, "int64")  # after which no step could be numbered
    made = {"due": (ibis.ifelse(rows["t"] < last, rows["t"], last - 1) + 1).lag().over(window)}
    if layout.has("next_state0"):
        made |= {f"l{j}": rows[f"s{j}"].lead().over(window) for j in range(width)}
        made["lt"] = rows["t"].lead().over(window)
    rows = rows.mutate(**made)
    due, t = rows["due"], rows["t"]
    notes: dict[rules.Rule, Any] = {
        rules.STEP_START: ({}, lambda row, _: ""),
        rules.DUPLICATE_STEP: (
            {"before": rows[ROW].lag().over(window)} if ROW in rows.columns else {},
            _as_in_row,
        ),
        rules.MISSING_STEP: (
            {"due": due},
            lambda row, _: f" (step {int(row['due'])} is missing)",
        ),
    }
    first = due.isnull() | (due == 0)
    return rows, [
        Rule.of(
            rule,
            layout.name("step"),
            rule.broken(t, due - 1, first),
            t,
            more=more,
            note=note,
        )
        for rule, (more, note) in notes.items()
    ]


def _as_in_row(row: dict[str, Any], home: Home) -> str:
    return f" (as in row {home.place(int(row['before'])).row})" if "before" in row else ""


def next_rules(rows: Any, layout: Layout, reading: Reading) -> list[Rule]:
    """Of rows with `lt` and l0, l1, …: next_state(t) must be state(t+1), where both are known."""
    width = len(layout.parts("state"))
    name = layout.name("next_state0")
    parts = range(width)
    goes_on = (rows["lt"] - 1 == rows["t"]).fill_null(False)
    differ = rows["n0"] != rows["l0"]
    for j in parts[1:]:
        differ = differ | (rows[f"n{j}"] != rows[f"l{j}"])
    both = rows["n0"].notnull() & rows["l0"].notnull()
    more = {f"n{j}": rows[f"n{j}"] for j in parts} | {f"l{j}": rows[f"l{j}"] for j in parts}

    def said(row: dict[str, Any], _: Home) -> str:
        shown = tuple(row[f"l{j}"] for j in parts)
        return f" (the next row's state is {shown[0] if width == 1 else shown!r})"

    agree = Rule.of(
        rules.NEXT_STATE,
        name,
        rules.NEXT_STATE.broken(goes_on, both, differ),
        rows["n0"],
        more=more,
        note=said,
    )
    if reading.hidden:
        return [agree]
    bad = rules.NULL_NEXT_STATE.broken(goes_on, rows["n0"].isnull())
    return [agree, Rule.of(rules.NULL_NEXT_STATE, name, bad)]
