"""The target policy beside the rows: a small table that is joined, or a column."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from reweigh.errors import KEPT_PLACES, Fault, RefusedError, UsageError, input_error, nearest
from reweigh.log.column_types import is_number
from reweigh.log.rules import NOT_FINITE
from reweigh.log.states import HIDDEN, Labels, label_text
from reweigh.policy.base import Policy
from reweigh.policy.column import ColumnPolicy
from reweigh.policy.table import TablePolicy
from reweigh.sums.engines import ibis_checks as contract
from reweigh.sums.engines.ibis_connect import ROW, Home
from reweigh.sums.engines.ibis_faults import Rule, find
from reweigh.sums.engines.ibis_rows import Layout, as_text, finite, is_integer_label, one_if
from reweigh.sums.scanned_log import Reading


def policy_column(target: Policy) -> str | None:
    """The column that a policy reads; what needs rows in Python is refused."""
    if isinstance(target, ColumnPolicy):
        return target.column
    if isinstance(target, TablePolicy):
        return None
    raise RefusedError(
        "rows-needed",
        f"the policy {target.name} is a function of rows in Python, and a database keeps its rows: "
        "give the target as a table or a logged column, or read the log with engine='stream' or "
        "'arrays'",
    )


def with_target(home: Home, rows: Any, layout: Layout, reading: Reading, target: Policy) -> Any:
    """Rows with `pi` = π(a|s), and `known`: 1 where the policy knows the state."""
    import ibis

    if isinstance(target, ColumnPolicy):
        return rows.mutate(pi=rows["q"], known=ibis.literal(1))
    assert isinstance(target, TablePolicy)
    if reading.continuous_actions:
        raise UsageError(
            "a table has no densities: for continuous actions give the target as a logged "
            "column (ColumnPolicy) or a function (FunctionPolicy)"
        )
    known, entries = _tables(layout, reading, target)
    states = home.put("reweigh_states", known)
    policy = home.put("reweigh_policy", entries)
    width = len(layout.parts("state"))
    # a hidden state has its own row: null equals nothing in a join
    keys = {}
    for j in range(width):
        part = rows[f"s{j}"]
        keys[f"j{j}"] = part.fill_null("" if part.type().is_string() else 0)
    rows = rows.mutate(**keys)

    def same(table: Any) -> list[Any]:
        found = [rows[f"j{j}"] == table[f"p{j}"] for j in range(width)]
        found.append(rows["hid"] == table["ph"])
        if target.has_steps:
            found.append(rows["t"] == table["pt"])
        return found

    joined = rows.left_join(states, same(states)).select(
        *[rows[name] for name in rows.columns], known=one_if(states["ph"].notnull())
    )
    rows = joined
    joined = rows.left_join(policy, [*same(policy), rows["a"] == policy["pa"]])
    return joined.select(*[rows[name] for name in rows.columns], pi=policy["pp"].fill_null(0.0))


def _tables(layout: Layout, reading: Reading, target: TablePolicy) -> tuple[pa.Table, pa.Table]:
    """The states that the policy knows, and its entries, in the types of the log's columns."""
    e = target._entries
    width = len(layout.parts("state"))
    texts = [
        as_text(layout, reading, j) or not is_integer_label(layout, f"state{j}", reading)
        for j in range(width)
    ]
    spelled = [_parts(label_text(value), width, texts) for value in e.states.values]
    usable = np.array([s is not None for s in spelled])
    words = (
        not is_integer_label(layout, "action", reading) or str(layout.kind("action")) == "uint64"
    )
    actions = [_typed(str(label_text(value)), words) for value in e.actions.values]
    listed = np.array([a is not None for a in actions])

    def table(rows: Any) -> dict[str, pa.Array]:
        codes = e.state[rows].tolist()
        columns: dict[str, pa.Array] = {
            f"p{j}": pa.array(
                [spelled[c][j] for c in codes],
                pa.string() if texts[j] else pa.int64(),
            )
            for j in range(width)
        }
        hidden = [int(e.states.values[c] is None) for c in codes]
        columns["ph"] = pa.array(hidden, pa.int64())
        if e.step is not None:
            columns["pt"] = pa.array(e.step[rows], pa.int64())
        return columns

    fine = usable[e.state]
    row = e.state if e.step is None else e.step * len(e.states) + e.state
    _, first = np.unique(row, return_index=True)
    known = first[fine[first]]
    entries = np.flatnonzero(fine & listed[e.action] & (e.prob > 0))
    action = [actions[a] for a in e.action[entries].tolist()]
    return pa.table(table(known)), pa.table(
        table(entries)
        | {
            "pa": pa.array(action, pa.string() if words else pa.int64()),
            "pp": pa.array(e.prob[entries], pa.float64()),
        }
    )


def _parts(text: Any, width: int, texts: list[bool]) -> tuple[Any, ...] | None:
    """A policy's state in the log's types; None where it can be no state of this log."""
    if text is None:
        return tuple("" if is_text else 0 for is_text in texts)
    given = text if isinstance(text, tuple) else (text,)
    if len(given) != width or isinstance(text, tuple) != (width > 1):
        return None
    parts = tuple(_typed(part, is_text) for part, is_text in zip(given, texts, strict=True))
    return None if None in parts else parts


def _typed(text: str, is_text: bool) -> Any:
    """A label's text, or the integer that is written so; None where it is none."""
    if is_text:
        return text
    try:
        value = int(text)
    except ValueError:
        return None
    return value if str(value) == text and abs(value) < 2**63 else None


def check_column(
    home: Home, rows: Any, layout: Layout, reading: Reading, target: ColumnPolicy
) -> None:
    """The logged probabilities of the target: numbers in [0, 1], or densities."""
    name, kind = target.column, layout.kind("policy")
    if not is_number(kind):
        texts = contract.RowRules(rows, layout, reading)
        texts.texts("policy")
        found, _ = find(home, rows, texts.asked)
        raise input_error(home.describe(), [*found, *texts.faults])
    q = rows["q"]
    asked = [
        Rule.of(NOT_FINITE, name, ~finite(q), q.fill_null(float("nan"))),
        contract.probability_rule(q, name, "target_prob", reading.continuous_actions),
    ]
    found, sums = find(home, rows, asked, **contract.probability_sums(q, "q"))
    if found:
        low, high = sums["low_q"], sums["high_q"]
        density = reading.continuous_actions
        found = [
            contract.advise(f, "target_prob", low, high, density)
            if f.code == "probability-range"
            else f
            for f in found
        ]
        raise input_error(f"the target policy ({name})", found)


def refuse_unknown_states(
    home: Home, rows: Any, layout: Layout, target: TablePolicy, states: Labels, hidden: bool
) -> None:
    """Every state of the log needs a row of the policy (at every step, if it has steps)."""
    import ibis

    from reweigh.sums.engines.ibis_sums import codes_of

    lost = rows.filter(rows["known"] == 0)
    names = [f"s{j}" for j in range(len(layout.parts("state")))]
    number = [ROW] if ROW in lost.columns else []
    order = ibis.window(
        group_by=[lost[name] for name in (*names, "hid")],
        order_by=[lost[name] for name in number or ("t", "e")],
    )
    lost = lost.mutate(nth=ibis.row_number().over(order))
    found = home.run(lost.filter(lost["nth"] == 0).select(*names, "e", "t", *number))
    if found.num_rows == 0:
        return
    codes = codes_of(found, names, states)
    by_code = np.argsort(codes, kind="stable")
    fix = "add rows for these states to the policy"
    known = [str(value) for value in target._entries.states.values]
    fix += nearest(states.name(int(codes.max())), known)
    if HIDDEN in codes:
        fix += "; the hidden state needs a row too (state None, an empty cell in a CSV)"
    shown = found.take(pa.array(by_code[:KEPT_PLACES])).to_pylist()
    column = ", ".join(layout.name(role) for role in layout.parts("state"))
    places = tuple(
        replace(
            home.place(row.get(ROW)),
            value=None if code == HIDDEN else states.values[code],
            column=column,
            episode=row["e"],
            step=int(row["t"]),
        )
        for row, code in zip(shown, codes[by_code].tolist(), strict=False)
    )
    what = "state and step" if target.has_steps else "state"
    rule = f"the policy {target.name!r} must know every {what} of the log"
    total = len(states) + int(hidden)
    raise input_error(
        "the target policy",
        [Fault("unknown-state", rule, fix, places, len(codes), total, "states")],
    )
