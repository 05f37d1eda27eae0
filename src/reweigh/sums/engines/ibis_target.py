"""The target policy beside the rows: a small table that is joined, or a column."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reweigh.errors import KEPT_PLACES, Fault, RefusedError, UsageError, input_error, nearest
from reweigh.log.column_types import is_number
from reweigh.log.rules import NOT_FINITE
from reweigh.log.states import HIDDEN, Labels
from reweigh.policy.base import ColumnPolicy, Policy
from reweigh.policy.table import TablePolicy
from reweigh.sums.engines import ibis_checks as contract
from reweigh.sums.engines.ibis_coded_rows import UNLISTED
from reweigh.sums.engines.ibis_connect import ROW, Home
from reweigh.sums.engines.ibis_faults import Rule, find
from reweigh.sums.engines.ibis_rows import Layout, finite
from reweigh.sums.engines.ibis_scan import Facts
from reweigh.sums.read import Reading

Ints = npt.NDArray[np.int64]


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


def with_target(
    home: Home, rows: Any, target: Policy, states: Labels, actions: Labels | None
) -> Any:
    """Coded rows with `pi` = π(a|s)."""
    if isinstance(target, ColumnPolicy):
        return rows.rename(pi="q")
    assert isinstance(target, TablePolicy)
    if actions is None:
        raise UsageError(
            "a table has no densities: for continuous actions give the target as a logged "
            "column (ColumnPolicy) or a function (FunctionPolicy)"
        )
    e, state = target._entries, _states(target, states)
    action = actions.translate(e.actions)[e.action]
    used = np.flatnonzero((state != UNLISTED) & (action >= 0) & (e.prob > 0))
    columns = {"ps": pa.array(state[used], pa.int32()), "pa": pa.array(action[used], pa.int32())}
    if e.step is not None:
        columns["pt"] = pa.array(e.step[used], pa.int64())
    policy = home.put("reweigh_policy", pa.table(columns | {"pp": pa.array(e.prob[used])}))
    same = [rows["s"] == policy["ps"], rows["a"] == policy["pa"]]
    same += [rows["t"] == policy["pt"]] if e.step is not None else []
    joined = rows.left_join(policy, same)
    return joined.select(*[rows[name] for name in rows.columns], pi=policy["pp"].fill_null(0.0))


def _states(target: TablePolicy, states: Labels) -> Ints:
    """The log's codes of the states of a policy's entries; UNLISTED where the log has none."""
    e = target._entries
    codes = states.translate(e.states)
    hidden = np.array([value is None for value in e.states.values])
    codes = np.where(hidden, HIDDEN, np.where(codes < 0, UNLISTED, codes))
    return np.asarray(codes[e.state], np.int64)


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
    home: Home, rows: Any, layout: Layout, target: TablePolicy, facts: Facts
) -> None:
    """Every state of the log needs a row of the policy (at every step, if it has steps)."""
    import ibis

    states, e, steps = facts.states, target._entries, target.has_steps
    state = _states(target, states)
    step = np.zeros(len(state), np.int64) if e.step is None else e.step
    listed = state != UNLISTED
    pairs = np.unique(np.stack([step[listed], state[listed]]), axis=1)
    needed = (pairs[0] < facts.horizon) & ((pairs[1] >= 0) | (facts.hidden_rows > 0))
    count = len(states) + int(facts.hidden_rows > 0)
    if np.sum(needed) >= count * (facts.horizon if steps else 1):
        return
    listing = home.put("reweigh_known", pa.table({"kt": pairs[0], "ks": pairs[1].astype(np.int32)}))
    same = [rows["s"] == listing["ks"], *([rows["t"] == listing["kt"]] if steps else [])]
    lost = rows.anti_join(listing, same)
    number = [ROW] if ROW in lost.columns else []
    order = ibis.window(
        group_by=[lost["s"]], order_by=[lost[name] for name in number or ("t", "e")]
    )
    lost = lost.mutate(nth=ibis.row_number().over(order))
    found = home.run(lost.filter(lost["nth"] == 0).select("s", "e", "t", *number))
    if found.num_rows == 0:
        return
    codes = np.asarray(found.column("s").to_numpy(), np.int64)
    by_code = np.argsort(codes, kind="stable")
    fix = "add rows for these states to the policy"
    fix += nearest(states.name(int(codes.max())), [str(value) for value in e.states.values])
    if HIDDEN in codes:
        fix += "; the hidden state needs a row too (state None, an empty cell in a CSV)"
    shown = found.take(pa.array(by_code[:KEPT_PLACES])).to_pylist()
    places = tuple(
        replace(
            home.place(row.get(ROW)),
            value=None if row["s"] == HIDDEN else states.values[row["s"]],
            column=", ".join(layout.name(role) for role in layout.parts("state")),
            episode=row["e"],
            step=int(row["t"]),
        )
        for row in shown
    )
    what = "state and step" if steps else "state"
    rule = f"the policy {target.name!r} must know every {what} of the log"
    raise input_error(
        "the target policy",
        [Fault("unknown-state", rule, fix, places, len(codes), count, "states")],
    )
