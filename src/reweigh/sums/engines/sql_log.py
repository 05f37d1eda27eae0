"""A log in a database: opened, checked, and what it is; and the target policy beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ibis
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reweigh.errors import KEPT_PLACES, Fault, Place, RefusedError, UsageError, input_error, nearest
from reweigh.log import rules
from reweigh.log.abstractions import Grid, Rounding, describe_abstraction
from reweigh.log.log import SHOWN_LABELS
from reweigh.log.read import missing_column
from reweigh.log.rules import Faults, column_fault
from reweigh.log.states import HIDDEN, Labels, is_number, unite
from reweigh.log.steps import Identity
from reweigh.policy import ColumnPolicy, Policy
from reweigh.policy.table import TablePolicy
from reweigh.sums.engines import sql_rows as expr
from reweigh.sums.engines.sql_checks import CHECKS, FLAGS, Answer, RowChecks, check_episodes, find
from reweigh.sums.engines.sql_connect import Home
from reweigh.sums.engines.sql_rows import Layout, Role, finite, one_if, only_if
from reweigh.sums.read import Reading
from reweigh.system.process import stage

UNLISTED = -9  # the code of a label that the query for all labels did not give


@dataclass(frozen=True, eq=False)
class Log:
    """The typed rows of a log, and which column plays which role. `checked` are those of which
    every float is looked at, which checks need; `rows`, for sums, cost less."""

    rows: Any
    checked: Any
    layout: Layout


def open_log(home: Home, reading: Reading, policy: str | None) -> Log:
    """Every role's column must be there, and the one that the target reads."""
    abstraction = reading.abstraction
    if not isinstance(abstraction, Rounding | Grid | None):
        raise RefusedError(
            "rows-needed",
            "an abstraction that is a function needs the rows in Python, and a database keeps its "
            "rows: use Rounding or Grid, or read the log with engine='stream' or 'arrays'",
        )
    if abstraction is not None:
        abstraction(np.zeros((1, len(reading.columns.state))))  # the number of columns must fit
    wanted = expr.wanted_columns(reading.columns, policy)
    listed = ", ".join(map(repr, home.names))
    absent = [(role, name) for role, name in wanted if name not in home.names]
    faults = [
        missing_column(role.rstrip("0123456789"), name, home.names)
        for role, name in absent
        if role != "policy"
    ]
    if faults:
        raise input_error(f"{home.source} with the columns {listed}", faults)
    for _, name in absent:  # a column of the policy alone is no part of the log's contract
        raise UsageError(
            f"the log has no column {name!r}{nearest(name, home.names)} (columns: {listed})"
        )
    log, kinds = home.open([name for _, name in wanted])
    plain = [k.value_type if pa.types.is_dictionary(k) else k for k in kinds]
    layout = {
        role: Role(f"c{i}", name, kind)
        for i, ((role, name), kind) in enumerate(zip(wanted, plain, strict=True))
    }
    checked = expr.typed(expr.read_each(log, kinds, home.dialect), layout, reading)
    return Log(expr.typed(log, layout, reading), checked, layout)


@dataclass(frozen=True, eq=False)
class Facts:
    """What the first look told about a log without faults. Rows are those before the horizon."""

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
    ids: tuple[int, int] | None  # the least and the largest; None where one is no whole number

    def describe(self, source: str, reading: Reading) -> dict[str, Any]:
        """As plain values: those of `EpisodeLog.describe`."""
        notes = []
        if self.beyond:
            notes.append(
                f"cut at the horizon {self.horizon}: {self.beyond:,} later rows are not used"
            )
        if 2 * len(self.states) > self.rows:
            notes.append(
                f"{len(self.states):,} states for {self.rows:,} rows: most are seen once; "
                "bin them (abstraction=Rounding or Grid)"
            )
        if self.truncated:
            notes.append(
                f"mean_return counts only what was logged of the {self.truncated:,} cut-off "
                f"episode{'s' if self.truncated != 1 else ''}"
            )
        behavior, actions = self.behavior_range, self.actions
        return {
            "source": source,
            "episodes": self.episodes,
            "rows": self.rows,
            "horizon": self.horizon,
            "discount": reading.discount,
            "states": len(self.states),
            "state_examples": _examples(self.states),
            "state_columns": list(reading.columns.state),
            "abstraction": describe_abstraction(reading.abstraction),
            "actions": None if actions is None else len(actions),
            "action_examples": None if actions is None else _examples(actions),
            "continuous_actions": reading.continuous_actions,
            "hidden_rows": self.hidden_rows,
            "terminated_early": self.terminated_early,
            "truncated": self.truncated,
            "reward_range": list(self.reward_range),
            "behavior_prob_range": None if behavior is None else list(behavior),
            "behavior_prob_from": None if behavior is None else "logged",
            "mean_return": self.total_return / self.episodes,
            "notes": notes,
        }


def _examples(labels: Labels) -> list[str]:
    return [labels.name(code) for code in range(min(SHOWN_LABELS, len(labels)))]


def look(home: Home, log: Log, reading: Reading) -> Facts:
    """Check the whole contract, and tell what the log is."""
    rows, layout = log.checked, log.layout
    marked = expr.with_marks(rows, layout, home.dialect)
    checks = RowChecks(marked, layout, reading).every_role()
    sums = checks.sums | _row_sums(marked, layout, reading)
    with stage(0, CHECKS, "checks"):
        found, told = find(home, marked, checks.checks, **sums)
    if not told["total"]:
        raise input_error(home.source, [column_fault(rules.NO_ROWS, None)])
    faults = [*checks.faults, *checks.column_faults(told), *found]
    histogram: list[Answer] = []
    if told["unknown"] < told["total"]:
        found, histogram = check_episodes(home, rows, layout, reading, bool(told["unknown"]))
        if any(told.get(f"no_truth_{role}") for role in FLAGS):  # how an episode ends is not known
            found = [fault for fault in found if fault.code != rules.SHORT_EPISODE.code]
        faults += [replace(fault, total=int(told["total"])) for fault in found]
    Faults(lambda row: Place(None), 0, faults).raise_if_any(home.source)
    if told.get("too_large"):
        raise UsageError(
            "the state abstraction returned numbers that are not whole, not finite or too large "
            "for 64 bits; a state is an integer or a text: round them or give the cell's number"
        )
    with stage(3, CHECKS, "checks"):
        states, actions = _labels(home, rows, layout, reading)
    return _facts(reading, told, histogram, states, actions)


def _row_sums(rows: Any, layout: Layout, reading: Reading) -> dict[str, Any]:
    """What is added up beside the faults: ranges, the return, and which rows these are."""
    e, t, mu = rows["e"], rows["t"], rows["mu"] if "mu" in rows.columns else ibis.null("float64")
    inside = t >= 0
    if reading.horizon is not None:
        inside = inside & (t < reading.horizon)
    y, mu = only_if(inside & finite(rows["y"]), rows["y"]), only_if(inside, mu)
    large: dict[str, Any] = {}
    if isinstance(reading.abstraction, Rounding):  # rounded numbers must fit into 64 bits
        conditions = []
        for kind in ("state", "next_state"):
            for j, part in enumerate(expr.parts_of(layout, kind)):
                x = expr.number(rows[layout[part].column], layout[part].kind)
                scaled = expr.scaled_by(reading.abstraction, rows, layout[part], j)
                conditions.append(finite(x) & ~(scaled.abs() < float(expr.INT64)))
        large["too_large"] = one_if(expr.any_of(conditions)).sum()
    return {
        "unknown": one_if(e.isnull() | t.isnull() | (t < 0)).sum(),
        "used": one_if(inside).sum(),
        "hidden": one_if(inside & (rows["hid"] == 1)).sum(),
        "y_low": y.min(),
        "y_high": y.max(),
        "mu_low": mu.min(),
        "mu_high": mu.max(),
        "y_sum": (expr.discounting(reading.discount, t) * y.fill_null(0.0)).sum(),
        "id_low": rows["id"].min(),
        "id_high": rows["id"].max(),
        "id_texts": one_if((t == 0).fill_null(False) & rows["id"].isnull()).sum(),
        **large,
        **expr.mark_sums(rows, inside),
    }


def _facts(
    reading: Reading, told: Answer, histogram: list[Answer], states: Labels, actions: Labels | None
) -> Facts:
    horizon = reading.horizon or max(max(row["length"] for row in histogram), 1)
    episodes = sum(row["n"] for row in histogram)
    short = [row for row in histogram if row["length"] < horizon]
    ended = sum(
        row["n"]
        for row in short
        if row["ended"] or (not row["cut"] and reading.short_episodes == "terminal")
    )
    no_numbers = told["id_low"] is None or told["id_texts"]
    no_behavior = reading.columns.behavior_prob is None
    return Facts(
        horizon=horizon,
        episodes=episodes,
        rows=int(told["used"]),
        truncated=sum(row["n"] for row in short) - ended,
        terminated_early=ended,
        hidden_rows=int(told["hidden"]),
        beyond=sum(row["n"] * max(row["length"] - horizon, 0) for row in histogram),
        states=states,
        actions=actions,
        reward_range=(float(told["y_low"]), float(told["y_high"])),
        behavior_range=None if no_behavior else (float(told["mu_low"]), float(told["mu_high"])),
        total_return=float(told["y_sum"]),
        identity=Identity(episodes, int(told["marks"]), int(told["episode_marks"])),
        ids=None if no_numbers else (int(told["id_low"]), int(told["id_high"])),
    )


def _labels(
    home: Home, rows: Any, layout: Layout, reading: Reading
) -> tuple[Labels, Labels | None]:
    """States, those that only stand in next_state last, and actions (None: they are numbers)."""
    parts = range(len(reading.columns.state))
    groups = {"state": [f"s{j}" for j in parts]}
    if reading.columns.next_state is not None:
        groups["next_state"] = [f"n{j}" for j in parts]
    if not reading.continuous_actions:
        groups["action"] = ["a"]
    table = home.run(_distinct(rows, list(groups.values())))
    found = {}
    for of, (role, names) in enumerate(groups.items()):
        shown = table.filter(pa.array(table.column("of").to_numpy() == of))
        columns = []
        for j in range(len(names)):
            texts = shown.column(f"l{j}").to_pylist()
            binned = role != "action" and reading.abstraction is not None
            kind = layout[role if role == "action" else f"{role}{j}"].kind
            columns.append(list(map(int, texts)) if binned or expr.is_whole(kind) else texts)
        # in the order that they have in memory
        labels = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        found[role] = Labels(tuple(sorted(labels)))
    actions, states = found.pop("action", None), list(found.values())
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


def check_column(home: Home, log: Log, reading: Reading, horizon: int) -> None:
    """The logged probabilities of the target: numbers in [0, 1], or densities."""
    rows = log.checked.filter(log.checked["t"] < horizon)
    checks, what = RowChecks(rows, log.layout, reading), home.source
    if is_number(log.layout["policy"].kind):
        q, what = rows["q"], f"the target policy ({log.layout['policy'].name})"
        checks.add(rules.NOT_FINITE, "policy", ~finite(q), q.fill_null(float("nan")))
        checks.probability("policy", q)
    else:
        checks.texts("policy")
    faults = [*find(home, rows, checks.checks)[0], *checks.faults]
    if faults:
        raise input_error(what, faults)


def policy_states(target: TablePolicy, states: Labels) -> npt.NDArray[np.int64]:
    """The log's codes of the states of a policy's entries; UNLISTED where the log has none."""
    e = target._entries
    codes = states.translate(e.states)
    hidden = np.array([value is None for value in e.states.values])
    codes = np.where(hidden, HIDDEN, np.where(codes < 0, UNLISTED, codes))
    return np.asarray(codes[e.state], np.int64)


def refuse_unknown_states(
    home: Home, rows: Any, reading: Reading, target: TablePolicy, facts: Facts
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
    listing = home.put("reweigh_known", pa.table({"kt": pairs[0], "ks": pairs[1].astype(np.int32)}))
    same = [rows["s"] == listing["ks"], *([rows["t"] == listing["kt"]] if steps else [])]
    lost = rows.anti_join(listing, same)
    order = ibis.window(group_by=[lost["s"]], order_by=[lost["t"], lost["e"]])
    lost = lost.mutate(nth=ibis.row_number().over(order))
    lost = home.run(lost.filter(lost["nth"] == 0).select("s", "e", "t")).sort_by("s").to_pylist()
    if not lost:
        return
    fix = "add rows for these states to the policy"
    fix += nearest(states.name(lost[-1]["s"]), [str(value) for value in e.states.values])
    if lost[0]["s"] == HIDDEN:
        fix += "; the hidden state needs a row too (state None, an empty cell in a CSV)"
    column = ", ".join(reading.columns.state)
    places = tuple(
        Place(
            None if row["s"] == HIDDEN else states.values[row["s"]],
            column,
            episode=row["e"],
            step=int(row["t"]),
        )
        for row in lost[:KEPT_PLACES]
    )
    what = "state and step" if steps else "state"
    rule = f"the policy {target.name!r} must know every {what} of the log"
    fault = Fault("unknown-state", rule, fix, places, len(lost), count, "states")
    raise input_error("the target policy", [fault])
