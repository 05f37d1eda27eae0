"""A log in a database: opened, checked and described; and the target policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import ibis
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reweigh.errors import Fault, Place, RefusedError, UsageError, input_error, no_column
from reweigh.log import rules
from reweigh.log.abstractions import (
    NOT_WHOLE,
    Grid,
    Quantiles,
    Rounding,
    makes_labels,
    sample_level,
)
from reweigh.log.read import described, log_description, missing_column
from reweigh.log.rules import Faults, column_fault
from reweigh.log.states import HIDDEN, Labels, is_number, is_text, unite
from reweigh.log.steps import Identity
from reweigh.policy import ColumnPolicy, Policy
from reweigh.policy.rule import RulePolicy
from reweigh.policy.table import TablePolicy
from reweigh.sums.engines import sql_rows as expr
from reweigh.sums.engines.sql_checks import (
    CHECKS,
    Answer,
    RowChecks,
    all_explained,
    check_episodes,
    count_episodes,
    find,
)
from reweigh.sums.engines.sql_connect import Database
from reweigh.sums.engines.sql_rows import Layout, Role, finite, one_if, only_if
from reweigh.sums.read import Reading, StateValues
from reweigh.system.process import stage

UNLISTED = -9  # the code of a label that the query for all labels did not give


@dataclass(frozen=True, eq=False)
class Log:
    """The typed rows of a log, and which column plays which role. `checked` reads every float, as
    checks need; `rows`, for sums, cost less."""

    rows: Any
    checked: Any
    layout: Layout


def open_log(db: Database, reading: Reading, policy: Mapping[str, str]) -> Log:
    """Every role's column must be there, and the one that the target reads."""
    abstraction = reading.abstraction
    if not isinstance(abstraction, Rounding | Grid | Quantiles | None):
        raise RefusedError(
            "rows-needed",
            "an abstraction that is a function needs the rows in Python, which a database "
            "does not give: use Rounding, Grid or Quantiles, or read the log with "
            "engine='stream' or "
            "'arrays'",
        )
    if isinstance(abstraction, Rounding | Grid):
        abstraction(np.zeros((1, len(reading.columns.state))))  # the number of columns must fit
    wanted = expr.wanted_columns(reading.columns, policy)
    absent = [(role, name) for role, name in wanted if name not in db.names]
    faults = [
        missing_column(role.rstrip("0123456789"), name, db.names)
        for role, name in absent
        if role not in policy
    ]
    if faults:
        listed = ", ".join(map(repr, db.names))
        raise input_error(f"{db.source} with the columns {listed}", faults)
    for _, name in absent:  # a column used only by the policy is not part of the log's contract
        raise no_column(name, db.names)
    log, kinds = open_rows(db, reading, [name for _, name in wanted])
    plain = [k.value_type if pa.types.is_dictionary(k) else k for k in kinds]
    layout = {
        role: Role(f"c{i}", name, kind)
        for i, ((role, name), kind) in enumerate(zip(wanted, plain, strict=True))
    }
    checked = expr.typed(expr.read_each(log, kinds, db.dialect), layout, reading)
    return Log(expr.typed(log, layout, reading), checked, layout)


def state_values(db: Database, reading: Reading) -> StateValues:
    """The numbers of the state columns from which quantiles are taken."""
    log = open_log(db, replace(reading, abstraction=None), {})
    rows, parts = log.rows, expr.parts_of(log.layout, "state")
    level = sample_level(db.rows or db.run(rows.aggregate(n=rows.count()))["n"][0].as_py())
    kinds = [log.layout[part].kind for part in parts]
    if level:
        hashed = expr.hex_digits(rows["e"].cast("string"), 0, db.dialect).cast("int64")
        rows = rows.filter((hashed % (1 << level)) == 0)
    columns = {
        f"x{j}": expr.number(rows[log.layout[part].column], kinds[j])
        for j, part in enumerate(parts)
        if is_number(kinds[j])
    }
    if not columns:
        return kinds, [None] * len(parts), 0
    table = db.run(rows.select(**columns))
    values = [
        table.column(f"x{j}").fill_null(np.nan).to_numpy() if f"x{j}" in columns else None
        for j in range(len(parts))
    ]
    return kinds, values, level


def open_rows(
    db: Database, reading: Reading, names: Sequence[str]
) -> tuple[Any, list[pa.DataType]]:
    """These columns of the log, called c0, c1, …, and their types; of one group of the episodes
    where the reading is of one."""
    if reading.only is None:
        return db.open(names)
    ids, only = reading.columns.episode, reading.only
    every = list(dict.fromkeys([*names, *reading.columns.order, only.column]))
    rows, kinds = db.open(every)
    group, episode = (rows[f"c{every.index(name)}"] for name in (only.column, ids))
    own = _missing(group) if only.value is None else group == only.value
    first = rows.filter(_is_first(rows, every, kinds, reading) & own)
    chosen = first.select(chosen=first[episode.get_name()]).distinct()
    rows = rows.semi_join(chosen, [episode == chosen["chosen"]])
    # a name may occur twice: as a state and as a column of the policy
    wanted = {f"c{i}": rows[f"c{every.index(name)}"] for i, name in enumerate(names)}
    return rows.select(**wanted), [kinds[every.index(name)] for name in names]


def first_values(db: Database, reading: Reading, column: str) -> list[tuple[Any, int]]:
    """The values of a column in the first rows of the episodes, and how many have each."""
    if column not in db.names:
        raise no_column(column, db.names)
    every = list(dict.fromkeys([column, *reading.columns.order]))
    rows, kinds = db.open(every)
    plain = kinds[0].value_type if pa.types.is_dictionary(kinds[0]) else kinds[0]
    if not (is_text(plain) or is_number(plain) or pa.types.is_boolean(plain)):
        raise UsageError(f"the column {column!r} holds {plain}: groups are by texts or numbers")
    first = rows.filter(_is_first(rows, every, kinds, reading))
    counted = first.group_by(value=first["c0"]).aggregate(n=first.count())
    answer = db.run(counted).to_pydict()
    return list(zip(answer["value"], answer["n"], strict=True))


def _is_first(rows: Any, names: list[str], kinds: list[pa.DataType], reading: Reading) -> Any:
    columns = reading.columns
    at, episode = (names.index(name) for name in (columns.clock, columns.episode))
    if columns.step is not None:
        return expr.step(rows[f"c{at}"], kinds[at]) == 0
    return rows[f"c{at}"] == rows[f"c{at}"].min().over(group_by=rows[f"c{episode}"])


def _missing(column: Any) -> Any:
    return column.isnull() | column.isnan() if column.type().is_floating() else column.isnull()


@dataclass(frozen=True, eq=False)
class Facts:
    """The result of the first pass over a log without faults. Rows are those before the horizon."""

    horizon: int
    episodes: int
    rows: int
    truncated: int
    terminated_early: int
    hidden_rows: int
    beyond: int  # rows from the horizon on
    states: Labels
    actions: Labels | None
    reward_range: tuple[float, float]
    behavior_range: tuple[float, float] | None
    total_return: float
    identity: Identity
    # the least and the largest by which episodes are ordered; None where one is no whole number
    ids: tuple[int, int] | None

    def describe(self, source: str, reading: Reading) -> dict[str, Any]:
        """As plain values: those of `EpisodeLog.describe`."""
        counts = {k: v for k, v in vars(self).items() if k not in ("identity", "ids")}
        abstraction, notes = described(reading.abstraction, reading.columns.state)
        return log_description(
            source,
            reading.columns,
            abstraction,
            visited=len(self.states),
            discount=reading.discount,
            notes=notes,
            **counts,
        )


def first_pass(db: Database, log: Log, reading: Reading) -> Facts:
    """Check the whole contract, and describe the log."""
    rows, layout = log.checked, log.layout
    marked = expr.with_marks(rows, layout, db.dialect)
    checks = RowChecks(marked, layout, reading).every_role()
    sums = checks.sums | _row_sums(marked, layout, reading)
    with stage(0, CHECKS, "checks"):
        faults_of_rows, sums_of_rows = find(db, marked, checks.checks, **sums)
    if not sums_of_rows["total"]:
        raise input_error(db.source, [column_fault(rules.NO_ROWS, None)])
    faults = [*checks.faults, *checks.float_states(sums_of_rows), *faults_of_rows]
    episodes: list[Answer] = []
    if not faults:
        with stage(1, CHECKS, "checks"):
            episodes = count_episodes(db, rows)
    if faults or not all_explained(reading, episodes):
        refuse(db, log, reading, faults)
    if sums_of_rows.get("too_large"):
        raise UsageError(NOT_WHOLE)
    with stage(2, CHECKS, "checks"):
        states, actions = _labels(db, rows, layout, reading)
    return _facts(reading, sums_of_rows, episodes, states, actions)


def refuse(db: Database, log: Log, reading: Reading, row_faults: Sequence[Fault] = ()) -> NoReturn:
    """Raise the faults of single rows, and those that span rows."""
    no_truths = {rules.NOT_TRUTHS.message(role.name) for role in log.layout.values()}
    ends_known = no_truths.isdisjoint(fault.rule for fault in row_faults)
    spanning = check_episodes(db, log.checked, log.layout, reading, ends_known)
    Faults(lambda row: Place(None), 0, [*row_faults, *spanning]).raise_if_any(db.source)
    raise AssertionError("no rule is broken")


def _row_sums(rows: Any, layout: Layout, reading: Reading) -> dict[str, Any]:
    """The sums beside the faults: ranges, the return, and the identity of the rows."""
    t, mu = rows["t"], rows["mu"] if "mu" in rows.columns else ibis.null("float64")
    inside = t >= 0
    if reading.horizon is not None:
        inside = inside & (t < reading.horizon)
    y, mu = only_if(inside & finite(rows["y"]), rows["y"]), only_if(inside, mu)
    large: dict[str, Any] = {}
    if isinstance(reading.abstraction, Rounding):  # rounded numbers must fit into 64 bits
        beyond = [
            finite(expr.number(rows[layout[part].column], layout[part].kind))
            & ~(
                expr.scaled_by(reading.abstraction, rows, layout[part], j).abs() < float(expr.INT64)
            )
            for kind in ("state", "next_state")
            for j, part in enumerate(expr.parts_of(layout, kind))
        ]
        large["too_large"] = one_if(expr.any_of(beyond)).sum()
    return {
        "used": one_if(inside).sum(),
        "hidden": one_if(inside & (rows["hid"] == 1)).sum(),
        "y_low": y.min(),
        "y_high": y.max(),
        "mu_low": mu.min(),
        "mu_high": mu.max(),
        "y_sum": (expr.discounting(reading.discount, t) * y.fill_null(0.0)).sum(),
        "id_low": rows["began"].min(),
        "id_high": rows["began"].max(),
        "id_texts": one_if((t == 0).fill_null(False) & rows["began"].isnull()).sum(),
        **large,
        **expr.mark_sums(rows, inside),
    }


def _facts(
    reading: Reading,
    sums_of_rows: Answer,
    histogram: list[Answer],
    states: Labels,
    actions: Labels | None,
) -> Facts:
    horizon = reading.horizon or max(max(row["length"] for row in histogram), 1)
    episodes = sum(row["n"] for row in histogram)
    short = [row for row in histogram if row["length"] < horizon]
    ended = sum(
        row["n"]
        for row in short
        if row["ended"] or (not row["cut"] and reading.short_episodes == "terminal")
    )
    no_numbers = sums_of_rows["id_low"] is None or sums_of_rows["id_texts"]
    no_behavior = reading.columns.behavior_prob is None
    return Facts(
        horizon=horizon,
        episodes=episodes,
        rows=int(sums_of_rows["used"]),
        truncated=sum(row["n"] for row in short) - ended,
        terminated_early=ended,
        hidden_rows=int(sums_of_rows["hidden"]),
        beyond=sum(row["n"] * max(row["length"] - horizon, 0) for row in histogram),
        states=states,
        actions=actions,
        reward_range=(float(sums_of_rows["y_low"]), float(sums_of_rows["y_high"])),
        behavior_range=None
        if no_behavior
        else (float(sums_of_rows["mu_low"]), float(sums_of_rows["mu_high"])),
        total_return=float(sums_of_rows["y_sum"]),
        identity=Identity(episodes, int(sums_of_rows["marks"]), int(sums_of_rows["episode_marks"])),
        ids=None if no_numbers else (int(sums_of_rows["id_low"]), int(sums_of_rows["id_high"])),
    )


def _labels(
    db: Database, rows: Any, layout: Layout, reading: Reading
) -> tuple[Labels, Labels | None]:
    """States, those that occur only in next_state last, and actions (None: they are numbers)."""
    parts = range(len(reading.columns.state))
    groups = {"state": [f"s{j}" for j in parts]}
    if reading.columns.next_state is not None:
        groups["next_state"] = [f"n{j}" for j in parts]
    if not reading.continuous_actions:
        groups["action"] = ["a"]
    table = db.run(_distinct(rows, list(groups.values())))
    labels_by_role = {}
    for of, (role, names) in enumerate(groups.items()):
        shown = table.filter(pa.array(table.column("of").to_numpy() == of))
        columns = []
        for j in range(len(names)):
            texts = shown.column(f"l{j}").to_pylist()
            binned = role != "action" and not makes_labels(reading.abstraction, j)
            kind = layout[role if role == "action" else f"{role}{j}"].kind
            columns.append(list(map(int, texts)) if binned or expr.is_whole(kind) else texts)
        # in the order that they have in memory
        labels = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        labels_by_role[role] = Labels(tuple(sorted(labels)))
    actions, states = labels_by_role.pop("action", None), list(labels_by_role.values())
    return (states[0] if len(states) == 1 else unite(*states)), actions


def _distinct(rows: Any, groups: Sequence[Sequence[str]]) -> Any:
    """Every label that these groups of columns show: `of` is the group, l0, l1, … are its texts."""
    width = max(len(names) for names in groups)
    parts = []
    for of, names in enumerate(groups):
        shown = rows.filter(*[rows[name].notnull() for name in names])
        unique = shown.select(*[shown[name] for name in names]).distinct()
        texts = [unique[name].cast("string") for name in names]
        texts += [ibis.null("string")] * (width - len(names))
        columns = {f"l{j}": text for j, text in enumerate(texts)}
        parts.append(unique.select(of=ibis.literal(of, "int64"), **columns))
    return ibis.union(*parts) if len(parts) > 1 else parts[0]


# ---- the target policy -------------------------------------------------------------------------


def policy_columns(target: Policy) -> dict[str, str]:
    """The columns that a policy reads, by their roles; what needs rows in Python is refused."""
    if isinstance(target, ColumnPolicy):
        return {"policy": target.column}
    if isinstance(target, TablePolicy):
        return {}
    if isinstance(target, RulePolicy):
        return {f"rule{j}": name for j, name in enumerate(target.reads)}
    raise RefusedError(
        "rows-needed",
        f"the policy {target.name} is a Python function and needs the rows in Python, which "
        "a database does not give: give the target as a table, a rule or a logged column, or read "
        "the log with engine='stream' or 'arrays'",
    )


def check_column(db: Database, log: Log, reading: Reading, horizon: int) -> None:
    """The logged probabilities of the target: numbers in [0, 1], or densities."""
    rows = log.checked.filter(log.checked["t"] < horizon)
    checks, what = RowChecks(rows, log.layout, reading), db.source
    if is_number(log.layout["policy"].kind):
        q, what = rows["q"], f"the target policy ({log.layout['policy'].name})"
        checks.add(rules.NOT_FINITE, "policy", ~finite(q), q.fill_null(float("nan")))
        checks.probability("policy", q)
    else:
        checks.texts("policy")
    faults = [*find(db, rows, checks.checks)[0], *checks.faults]
    if faults:
        raise input_error(what, faults)


def policy_states(target: TablePolicy, states: Labels) -> npt.NDArray[np.int64]:
    """The log's codes of the states of a policy's entries; UNLISTED where the log has none."""
    e = target._entries
    codes = states.translate(e.states)
    hidden = np.array([value is None for value in e.states.values])
    codes = np.where(hidden, HIDDEN, np.where(codes < 0, UNLISTED, codes))
    return np.asarray(codes[e.state], np.int64)


def refuse_broken(db: Database, log: Log, reading: Reading, rows: Any) -> None:
    """Rows in order must lack no step, and agree about states."""
    [answer] = db.run(rows.aggregate(broken=rows["broken"].max())).to_pylist()
    if answer["broken"]:
        refuse(db, log, reading)


def refuse_unknown_states(
    db: Database, rows: Any, reading: Reading, target: TablePolicy, facts: Facts
) -> None:
    """Every state of the log needs a row of the policy (at every step, if it has steps). `rows` are
    coded."""
    states, e, steps = facts.states, target._entries, target.has_steps
    state = policy_states(target, states)
    step = np.zeros(len(state), np.int64) if e.step is None else e.step
    listed = state != UNLISTED
    pairs = np.unique(np.stack([step[listed], state[listed]]), axis=1)
    needed = (pairs[0] < facts.horizon) & ((pairs[1] >= 0) | (facts.hidden_rows > 0))
    count = len(states) + int(facts.hidden_rows > 0)
    if np.sum(needed) >= count * (facts.horizon if steps else 1):
        return
    listing = db.put("reweigh_known", pa.table({"kt": pairs[0], "ks": pairs[1].astype(np.int32)}))
    same = [rows["s"] == listing["ks"], *([rows["t"] == listing["kt"]] if steps else [])]
    lost = rows.anti_join(listing, same)
    order = ibis.window(group_by=[lost["s"]], order_by=[lost["t"], lost["e"]])
    lost = lost.mutate(nth=ibis.row_number().over(order))
    lost = db.run(lost.filter(lost["nth"] == 0).select("s", "e", "t")).sort_by("s").to_pylist()
    if lost:
        target.refuse_states(
            states,
            reading.columns.state,
            {row["s"]: row for row in lost},
            lambda row: Place(None, episode=row["e"], step=int(row["t"])),
        )
