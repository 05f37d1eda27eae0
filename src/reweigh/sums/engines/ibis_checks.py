"""The log's contract as conditions on rows: the same faults as in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from reweigh.errors import Fault, UsageError, input_error, nearest
from reweigh.log import rules
from reweigh.log.column_types import is_number, is_text
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
from reweigh.sums.scanned_log import Reading

NUMBER = r"^[ \t]*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?[ \t]*$"
NAMED_NUMBER = r"^[-+]?(nan|inf|infinity)$"
STEP = "^(0|[1-9][0-9]{0,17})$"
FILL_IN = "fill in the value, or leave the episode out"
REAL_NUMBER = "write the real number, or leave the episode out"
SEQUENCE = ("step-start", "duplicate-step", "missing-step")  # what breaks an episode's order
SHOW_STATE = 'fill in the state, or pass hidden="allow" if it could not be observed'


def refuse_missing(home: Home, wanted: list[tuple[str, str]]) -> None:
    """Every role's column must be there, and the one that the target reads."""
    from reweigh.log.rules import missing_column_fix

    known = home.names
    listed = ", ".join(map(repr, known))
    faults = []
    for role, name in wanted:
        if name in known or role == "policy":
            continue
        spoken = role.rstrip("0123456789")
        faults.append(
            Fault(
                "missing-column",
                f"there is no column {name!r} for the role {spoken}{nearest(name, known)}",
                missing_column_fix(spoken),
            )
        )
    if faults:
        raise input_error(f"{home.describe()} with the columns {listed}", faults)
    for _, name in wanted:  # a column of the policy alone is no part of the log's contract
        if name not in known:
            raise UsageError(
                f"the log has no column {name!r}{nearest(name, known)} (columns: {listed})"
            )


def row_rules(rows: Any, layout: Layout, reading: Reading) -> tuple[list[Rule], list[Fault]]:
    """What is wrong with a row by itself, and with the types of columns."""
    rules: list[Rule] = []
    faults: list[Fault] = []

    def raw(role: str) -> tuple[Any, pa.DataType, str]:
        return rows[layout.column(role)], layout.kind(role), layout.name(role)

    def null(role: str, fix: str = FILL_IN) -> None:
        column, _, name = raw(role)
        rules.append(_null(column, name, fix))

    def ids(role: str, spoken: str) -> None:
        _, kind, name = raw(role)
        if is_label_kind(kind):
            null(role)
        else:
            faults.append(_wrong_type(spoken, name, kind))

    ids("episode", "episode")
    _step_rules(*raw("step"), rules, faults)
    for role in layout.parts("state"):
        _state_rules(rows, layout, reading, role, rules, faults, not reading.hidden)
    for role in layout.parts("next_state"):
        _state_rules(rows, layout, reading, role, rules, faults, False)
    if reading.continuous_actions:
        _number_rules(*raw("action"), rows["a"], rules, faults)
    elif pa.types.is_floating(layout.kind("action")):
        name = layout.name("action")
        fix = (
            "write integers or text; for continuous actions with logged densities pass "
            "continuous_actions=True"
        )
        faults.append(Fault("float-action", f"column {name!r} holds floats", fix))
    else:
        ids("action", "action")
    if _number_rules(*raw("reward"), rows["y"], rules, faults):
        rules.append(_reward_rule(rows["y"], layout.name("reward")))
    for role, short in (("behavior_prob", "mu"), ("target_prob", "tp")):
        if layout.has(role) and _number_rules(*raw(role), rows[short], rules, faults):
            rules.append(
                probability_rule(rows[short], layout.name(role), role == "target_prob", reading)
            )
    for role in ("terminated", "truncated"):
        if layout.has(role):
            null(role)
    return rules, faults


def _null(column: Any, name: str, fix: str) -> Rule:
    import ibis

    rule = f"{name!r} must not be null"
    return Rule("null", name, is_null(column), ibis.null("string"), rule, fix)


def _wrong_type(role: str, name: str, kind: pa.DataType) -> Fault:
    fix = "write it as integers" + ("" if role == "step" else " or text")
    if pa.types.is_floating(kind):
        fix += " (an integer column with a missing value may have become float)"
    return Fault("type", f"column {name!r} ({role}) holds {kind}", fix)


def _step_rules(
    column: Any, kind: pa.DataType, name: str, rules: list[Rule], faults: list[Fault]
) -> None:
    rule, fix = "a step is a whole number 0, 1, 2, …", "number the steps of each episode from 0"
    if pa.types.is_integer(kind):
        rules.append(_null(column, name, FILL_IN))
        rules.append(Rule("step-start", name, column < 0, column, rule, fix))
        if str(kind) == "uint64":
            rules.append(Rule("not-a-step", name, column > 2**63 - 1, column, rule, fix))
    elif is_text(kind):
        bad = column.notnull() & ~column.re_search(STEP)
        text = _wrong_type("step", name, kind)
        rules.append(Rule("not-a-step", name, bad, column, rule, fix, otherwise=text))
    elif pa.types.is_null(kind):
        rules.append(_null(column, name, FILL_IN))
    else:
        faults.append(_wrong_type("step", name, kind))


def _state_rules(
    rows: Any,
    layout: Layout,
    reading: Reading,
    role: str,
    rules: list[Rule],
    faults: list[Fault],
    null_refused: bool,
) -> None:
    column, kind, name = rows[layout.column(role)], layout.kind(role), layout.name(role)
    if reading.abstraction is not None:
        if not is_number(kind) and not pa.types.is_boolean(kind) and not pa.types.is_null(kind):
            _text_rules(column, kind, name, rules, faults)
            return
        parts = layout.parts(role.rstrip("0123456789"))
        shown = _all([~is_null(rows[layout.column(part)]) for part in parts])
        x = number(column, kind)
        rules.append(_not_finite(x, name, shown))
    elif pa.types.is_floating(kind) or not is_label_kind(kind):
        if not pa.types.is_floating(kind):
            faults.append(_wrong_type("state", name, kind))
        return
    if null_refused:
        rules.append(_null(column, name, SHOW_STATE))


def _all(conditions: list[Any]) -> Any:
    found = conditions[0]
    for condition in conditions[1:]:
        found = found & condition
    return found


def _number_rules(
    column: Any, kind: pa.DataType, name: str, x: Any, rules: list[Rule], faults: list[Fault]
) -> bool:
    """Null, NaN and infinity; False where the column holds no numbers."""
    if not is_number(kind):
        _text_rules(column, kind, name, rules, faults)
        return False
    rules.append(_null(column, name, FILL_IN))
    rules.append(_not_finite(x, name, ~is_null(column)))
    return True


def _not_finite(x: Any, name: str, shown: Any) -> Rule:
    rule = f"{name!r} must be a finite number"
    return Rule("not-finite", name, shown & ~finite(x), x, rule, REAL_NUMBER)


def _reward_rule(y: Any, name: str) -> Rule:
    large = finite(y) & (y.abs() > rules.LARGEST_REWARD)
    rule = rules.REWARD_RANGE.says(name)
    return Rule("reward-range", name, large, y, rule, rules.REWARD_RANGE.fix)


def _text_rules(
    column: Any, kind: pa.DataType, name: str, rules: list[Rule], faults: list[Fault]
) -> None:
    """A column that should hold numbers and does not."""
    rules.append(_null(column, name, FILL_IN))
    if pa.types.is_null(kind):
        return
    rule = f"column {name!r} must hold numbers; it holds {kind}"
    no_numbers = Fault("type", rule, "write the column as numbers")
    if not is_text(kind):
        faults.append(no_numbers)
        return
    written = column.re_search(NUMBER) | column.lower().re_search(NAMED_NUMBER)
    rule = f"{name!r} must be a number"
    fix = "write the number, or leave the episode out"
    bad = column.notnull() & ~written
    rules.append(Rule("not-a-number", name, bad, column, rule, fix, otherwise=no_numbers))


def probability_rule(p: Any, name: str, zero_allowed: bool, reading: Reading) -> Rule:
    """behavior_prob lies in (0, 1], target_prob in [0, 1]; a density may exceed 1."""
    density = reading.continuous_actions
    low = p < 0 if zero_allowed else p <= 0 if density else p < rules.LEAST_PROBABILITY
    bad = finite(p) & (low if density else low | (p > 1))
    interval = f"{'[' if zero_allowed else '('}0, {'∞)' if density else '1]'}"
    fix = "log the probability of the logged action"
    if not density:
        fix += "; densities of continuous actions need continuous_actions=True"
    return Rule("probability-range", name, bad, p, f"{name!r} must lie in {interval}", fix)


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
            rule = f"column {name!r} must hold true/false or 1/0"
            faults.append(Fault("type", rule, "write truth values"))
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
        rule = f"column {layout.name(role)!r} holds floats, which make no table of states"
        code = "float-state"
        if row["unique"] > rules.MANY_UNIQUE * row["n"]:
            code = rules.CONTINUOUS_STATE.code
            rule += (
                f": {row['unique']:,} of {row['n']:,} values are unique, so MIS would equal "
                "step-wise importance sampling"
            )
        fix = (
            "pass abstraction=Rounding(scale) or Grid(edges) to read_log, or write integers or text"
        )
        faults.append(Fault(code, rule, fix))
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
    name = layout.name("step")
    due, t = rows["due"], rows["t"]
    first = due.isnull() | (due == 0)
    rules = [
        Rule(
            "step-start",
            name,
            first & (t != 0),
            t,
            "the steps of an episode must start at 0",
            "number the steps of each episode 0, 1, 2, … (subtract the first one)",
        ),
        Rule(
            "duplicate-step",
            name,
            ~first & (t == due - 1),
            t,
            "an episode has one row per step",
            "remove the duplicate; if an id was used for two episodes, make the ids distinct",
            {"before": rows[ROW].lag().over(window)} if ROW in rows.columns else {},
            _as_in_row,
        ),
        Rule(
            "missing-step",
            name,
            ~first & (t > due),
            t,
            "the steps of an episode must have no gap",
            "add the missing step, or leave the episode out",
            {"due": due},
            lambda row, _: f" (step {int(row['due'])} is missing)",
        ),
    ]
    return rows, rules


def _as_in_row(row: dict[str, Any], home: Home) -> str:
    return f" (as in row {home.place(int(row['before'])).row})" if "before" in row else ""


def next_rules(rows: Any, layout: Layout, reading: Reading) -> list[Rule]:
    """Of rows with `lt` and l0, l1, …: next_state(t) must be state(t+1), where both are known."""
    import ibis

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

    agree = Rule(
        "next-state",
        name,
        goes_on & both & differ,
        rows["n0"],
        "next_state must equal the state of the next row",
        "check that rows are aligned: next_state of step t is the state of step t+1",
        more,
        said,
    )
    if reading.hidden:
        return [agree]
    missing = Rule(
        "null",
        name,
        goes_on & rows["n0"].isnull(),
        ibis.null("string"),
        f"{name!r} must not be null",
        "write the state of the next row",
    )
    return [agree, missing]
