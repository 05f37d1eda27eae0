"""A rule as a target in SQL: the branch of every row, as an Ibis expression of the parsed rule."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from typing import Any

import ibis
import numpy as np
import pyarrow as pa

from reweigh.errors import input_error
from reweigh.kernels import group_by
from reweigh.policy import Floats
from reweigh.policy.rule import (
    COMPARE,
    RULE_MISSING,
    RULE_UNCOVERED,
    UNCOVERED,
    UNDECIDED,
    RulePolicy,
)
from reweigh.policy.rule_text import Compared, Condition, IsMissing, Not
from reweigh.sums.engines.sql_checks import Check, find
from reweigh.sums.engines.sql_connect import Database
from reweigh.sums.engines.sql_log import Facts, Log
from reweigh.sums.engines.sql_rows import Role, finite, is_null, number, only_if
from reweigh.sums.engines.sql_tables import ints
from reweigh.sums.policy import PolicyMoments


def with_branches(log: Log, target: RulePolicy) -> Log:
    """The rows of a log with `branch`, the first whose condition holds. A comparison with a missing
    cell is null, as SQL has it: a row whose branch depends on one is UNDECIDED."""
    cells = {role.name: role for name, role in log.layout.items() if name.startswith("rule")}
    kinds = {name: target.checked_kind(name, cells[name].kind) for name in target.reads}

    def branched(rows: Any) -> Any:
        columns = {name: _cell(rows, cells[name], kinds[name]) for name in target.reads}
        conditions = {
            f"holds{code}": _expression(branch.condition, columns)
            for code, branch in enumerate(target.branches)
            if branch.condition is not None
        }
        # columns of their own: IS NULL behind NOT (…) would belong to what NOT is about
        rows = rows.mutate(**conditions)
        cases: list[tuple[Any, int]] = []
        for code, name in enumerate(conditions):
            cases += [(rows[name].isnull(), UNDECIDED), (rows[name], code)]
        otherwise = UNCOVERED if len(conditions) == len(target.branches) else len(conditions)
        branch = ibis.cases(*cases, else_=otherwise) if cases else ibis.literal(otherwise)
        return rows.mutate(branch=branch.cast("int32")).drop(*conditions)

    return replace(log, rows=branched(log.rows), checked=branched(log.checked))


def _cell(rows: Any, role: Role, kind: str) -> Any:
    """A cell as it is compared; null where it is missing. Of numbers, those that are not finite
    are."""
    column = rows[role.column]
    if kind != "number":
        return column if kind == "any" else column.cast("string")
    x = number(column, role.kind)
    return only_if(finite(x), x)


def _expression(condition: Condition, columns: Mapping[str, Any]) -> Any:
    if isinstance(condition, IsMissing):
        return is_null(columns[condition.column])
    if isinstance(condition, Compared):
        column = columns[condition.column]
        if condition.sign == "in":
            return column.isin(list(condition.values))
        return COMPARE[condition.sign](column, ibis.literal(condition.values[0]))
    if isinstance(condition, Not):
        return ~_expression(condition.part, columns)
    join = operator.and_ if condition.every else operator.or_
    return _balanced([_expression(part, columns) for part in condition.parts], join)


def _balanced(parts: list[Any], join: Callable[[Any, Any], Any]) -> Any:
    """The parts joined two by two: many of them make no deep expression."""
    while len(parts) > 1:
        parts = [reduce(join, parts[i : i + 2]) for i in range(0, len(parts), 2)]
    return parts[0]


def check_branches(db: Database, log: Log, target: RulePolicy, horizon: int) -> None:
    """Every row before the horizon must have a branch."""
    rows = log.checked.filter(log.checked["t"] < horizon)
    undecided = rows["branch"] == UNDECIDED
    cells = {role.name: role for name, role in log.layout.items() if name.startswith("rule")}
    checks = []
    for name in target.reads:
        kind = target.checked_kind(name, cells[name].kind)
        missing = is_null(_cell(rows, cells[name], kind))
        fix = RULE_MISSING.fix.format(column=name)
        checks.append(Check(RULE_MISSING, name, undecided & missing, fix=fix))
    checks.append(Check(RULE_UNCOVERED, "", rows["branch"] == UNCOVERED))
    faults, _ = find(db, rows, checks)
    if faults:
        raise input_error("the target policy (a rule)", faults)


def with_rule(db: Database, rows: Any, target: RulePolicy, facts: Facts) -> Any:
    """Coded rows with `pi`: the probabilities of the branches are a small table that is joined."""
    table = _by_action(target, facts)
    branch, action = np.nonzero(table)
    columns = {
        "pb": pa.array(branch, pa.int32()),
        "pa": pa.array(action, pa.int32()),
        "pp": pa.array(table[branch, action]),
    }
    policy = db.put("reweigh_policy", pa.table(columns))
    joined = rows.left_join(policy, [rows["branch"] == policy["pb"], rows["a"] == policy["pa"]])
    return joined.select(*[rows[name] for name in rows.columns], pi=policy["pp"].fill_null(0.0))


def _by_action(target: RulePolicy, facts: Facts) -> Floats:
    """(branches, A) π of the log's actions."""
    if facts.actions is None:
        raise target.no_densities()
    column = target.actions.translate(facts.actions)
    return np.where(column < 0, 0.0, target.table[:, column])


def policy_sums(answer: pa.Table, target: RulePolicy, facts: Facts) -> PolicyMoments:
    """Σπ(a|x) over the rows of (block, t, s): Σ_b n(block, t, s, b) π(a|b), from the rows of each
    branch b. A hidden state has the code of a state of its own."""
    table = _by_action(target, facts)
    actions = table.shape[1]
    block, t, s, branch, n = (ints(answer, name) for name in ("block", "t", "s", "branch", "n"))
    s = np.where(s < 0, len(facts.states), s)
    nodes = group_by([block, t, s])
    pi = np.stack([nodes.sum(n * table[branch, a]) for a in range(actions)], axis=1)
    of_block, of_t, of_s, rows = (np.repeat(x, actions) for x in (*nodes.keys, nodes.sum(n)))
    a = np.tile(np.arange(actions), len(nodes))
    return PolicyMoments(of_block, of_t, of_s, a, rows.astype(np.int64), pi.reshape(-1))
