"""The first pass over a log in a database: the contract's rules as queries, and its description.

A rule is a condition on rows. All rules of one table are counted in one query; only where a count
is not 0 are a few of its rows fetched, to be shown by episode and step: rows of a database have no
numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from functools import reduce
from operator import and_
from typing import Any

import ibis
import pyarrow as pa

from reweigh.errors import KEPT_PLACES, Fault, Place
from reweigh.log import rules
from reweigh.log.abstractions import makes_labels
from reweigh.log.of_episodes import TWO_CLUSTERS
from reweigh.log.rules import column_fault
from reweigh.log.states import is_number, is_text
from reweigh.log.times import is_time_kind
from reweigh.sums.engines import sql_rows as expr
from reweigh.sums.engines.sql_connect import Database
from reweigh.sums.engines.sql_rows import Layout, Role, finite, is_null, one_if, only_if, within
from reweigh.sums.read import Reading

CHECKS = 3  # queries of the first pass over a log without faults
SEQUENCE = (rules.STEP_START, rules.DUPLICATE_STEP, rules.MISSING_STEP)
BY_ORDER = (  # what is wrong where no column counts the steps, and the column that says so
    (rules.MIXED_TIMES, "time", "mixed"),
    (rules.TIED_TIMES, "time", "tied"),
    (rules.REPEATED_EPISODE, "episode", "again"),
)
FLAGS = {"terminated": "ended", "truncated": "cut"}
Answer = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Check:
    """A rule of the contract, with its condition on the columns of a table.

    value, more  values of the rows that break it, for the message and its `note`, which names them
    sums         sums beside the count, on which `fix` may depend
    otherwise    the fault if no row meets the condition
    """

    rule: rules.Rule
    column: str
    bad: Any
    value: Any = field(default_factory=lambda: ibis.null("string"))
    fix: str | Callable[[Answer], str] | None = None
    more: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    sums: dict[str, Any] = field(default_factory=dict)
    otherwise: Fault | None = None
    words: dict[str, object] = field(default_factory=dict)

    def fault(self, db: Database, rows: Any, count: int, answer: Answer) -> Fault:
        shown = rows.select(
            e=rows["e"], t=rows["t"], value=self.value, bad=one_if(self.bad), **self.more
        )
        shown = shown.filter(shown["bad"] == 1).order_by(["e", "t"]).limit(KEPT_PLACES)
        places = tuple(
            Place(
                float(row["value"]) if isinstance(row["value"], Decimal) else row["value"],
                self.column,
                episode=row["e"],
                step=None if row["t"] is None else int(row["t"]),
                note=self.note.format(**row),
            )
            for row in db.run(shown).to_pylist()
        )
        fix = self.fix(answer) if callable(self.fix) else self.fix or self.rule.fix
        if self.rule is rules.NOT_A_NUMBER and any("," in str(place.value) for place in places):
            fix = rules.DECIMAL_COMMA
        sentence = self.rule.message(self.column, **self.words)
        return Fault(self.rule.code, sentence, fix, places, count, int(answer["total"]))


def find(db: Database, rows: Any, checks: list[Check], **sums: Any) -> tuple[list[Fault], Answer]:
    """The faults that the checks find, and other sums of the same query."""
    counts = {f"k{i}": one_if(check.bad).sum() for i, check in enumerate(checks)}
    for check in checks:
        sums |= check.sums
    [answer] = db.run(rows.aggregate(total=rows.count(), **counts, **sums)).to_pylist()
    faults = []
    for i, check in enumerate(checks):
        if answer[f"k{i}"] and check.rule.of == "column":
            faults.append(column_fault(check.rule, check.column))
        elif answer[f"k{i}"]:
            faults.append(check.fault(db, rows, int(answer[f"k{i}"]), answer))
        elif check.otherwise is not None:
            faults.append(check.otherwise)
    return faults, answer


# ---- faults of single rows --------------------------------------------------------


@dataclass
class RowChecks:
    """The checks of single rows, by role; faults of columns by their types; and those that depend
    on sums over a column, which `column_faults` makes."""

    rows: Any
    layout: Layout
    reading: Reading
    checks: list[Check] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    sums: dict[str, Any] = field(default_factory=dict)

    def every_role(self) -> RowChecks:
        layout = self.layout
        self.labels("episode")
        if "time" in layout:
            self.times()
        self.steps()
        for role in (*expr.parts_of(layout, "state"), *expr.parts_of(layout, "next_state")):
            self.state(role)
        if self.reading.continuous_actions:
            self.numbers("action", self.rows["a"])
        elif pa.types.is_floating(layout["action"].kind):
            self.faults.append(column_fault(rules.FLOAT_ACTION, layout["action"].name))
        else:
            self.labels("action")
        y = self.rows["y"]
        if self.numbers("reward", y):
            self.add(rules.REWARD_RANGE, "reward", rules.REWARD_RANGE.broken(y, finite(y)), y)
        for role, short in (("behavior_prob", "mu"), ("target_prob", "tp")):
            if role in layout and self.numbers(role, self.rows[short]):
                self.probability(role, self.rows[short])
        if "cluster" in layout:
            self.labels("cluster")
        for role in [role for role in FLAGS if role in layout]:
            self.null(role)
            self.add(rules.NOT_TRUTHS, role, self._no_truth(layout[role]))
        return self

    def add(self, rule: rules.Rule, role: str, bad: Any, value: Any = None, **more: Any) -> None:
        value = ibis.null("string") if value is None else value
        self.checks.append(Check(rule, self.layout[role].name, bad, value, **more))

    def null(self, role: str, rule: rules.Rule = rules.NULL) -> None:
        self.add(rule, role, is_null(self.rows[self.layout[role].column]))

    def labels(self, role: str) -> None:
        if expr.is_label_kind(self.layout[role].kind):
            self.null(role)
        else:
            self.faults.append(self._wrong_type(role))

    def _wrong_type(self, role: str) -> Fault:
        _, name, kind = self.layout[role]
        role = role.rstrip("0123456789").removeprefix("next_")
        fix = rules.type_fix(role, pa.types.is_floating(kind))
        return column_fault(rules.TYPE, name, fix=fix, role=role, kind=kind)

    def times(self) -> None:
        """When rows were logged."""
        column, _, kind = self.layout["time"]
        self.null("time")
        if is_time_kind(kind):
            known = ~is_null(self.rows[column])
            bad = rules.NOT_A_TIME.broken(known, self.rows["timed"] == 1)
            self.add(rules.NOT_A_TIME, "time", bad, self.rows[column])
        elif not pa.types.is_null(kind):
            self.faults.append(self._wrong_type("time"))

    def steps(self) -> None:
        for rule, role, flag in BY_ORDER:
            if flag in self.rows.columns:
                value = self.rows[self.layout[role].column]
                self.add(rule, role, self.rows[flag] == 1, value)
        if "step" not in self.layout:
            return
        name, _, kind = self.layout["step"]
        column = self.rows[name]
        if is_text(kind):
            bad = column.notnull() & ~column.re_search(rules.STEP)
            self.add(rules.NOT_A_STEP, "step", bad, column, otherwise=self._wrong_type("step"))
        elif pa.types.is_integer(kind) or pa.types.is_null(kind):
            self.null("step")
            checked_rules = [rules.NEGATIVE_STEP] if pa.types.is_integer(kind) else []
            checked_rules += [rules.NOT_A_STEP] if pa.types.is_uint64(kind) else []
            for rule in checked_rules:
                self.add(rule, "step", rule.broken(column), column)
        else:
            self.faults.append(self._wrong_type("step"))

    def state(self, role: str) -> None:
        column, _, kind = self.layout[role]
        part = int(role.rpartition("state")[2])
        if not makes_labels(self.reading.abstraction, part):
            if not is_number(kind) and not pa.types.is_boolean(kind) and not pa.types.is_null(kind):
                self.texts(role)
                return
            parts = expr.parts_of(self.layout, role.rstrip("0123456789"))
            known = [~is_null(self.rows[self.layout[part].column]) for part in parts]
            self._finite(role, expr.number(self.rows[column], kind), reduce(and_, known))
        elif pa.types.is_floating(kind):
            x = self.rows[column].cast("float64")
            self.sums[f"values_{role}"] = one_if(finite(x)).sum()
            self.sums[f"unique_{role}"] = only_if(finite(x), x).nunique()
            return
        elif not expr.is_label_kind(kind):
            self.faults.append(self._wrong_type(role))
            return
        if role.startswith("state") and not self.reading.hidden:
            self.null(role, rules.NULL_STATE)

    def numbers(self, role: str, x: Any) -> bool:
        """Null, NaN and infinity; False where the column holds no numbers."""
        if not is_number(self.layout[role].kind):
            self.texts(role)
            return False
        self.null(role)
        self._finite(role, x, ~is_null(self.rows[self.layout[role].column]))
        return True

    def _finite(self, role: str, x: Any, known: Any) -> None:
        self.add(rules.NOT_FINITE, role, rules.NOT_FINITE.broken(known, finite(x)), x)

    def probability(self, role: str, p: Any) -> None:
        """behavior_prob lies in (0, 1], target_prob in [0, 1]; a density may exceed 1."""
        of = "target_prob" if role == "policy" else role
        density = self.reading.continuous_actions
        bad = rules.PROBABILITY_RANGE.broken(p, finite(p), rules.probability_range(of, density))
        shown = only_if(finite(p), p)
        low, high = f"low_{role}", f"high_{role}"

        def fix(answer: Answer) -> str:
            return rules.probability_fix(of, density, answer[low], answer[high])

        words = {"interval": rules.interval(of, density)}
        sums = {low: shown.min(), high: shown.max()}
        self.add(rules.PROBABILITY_RANGE, role, bad, p, fix=fix, sums=sums, words=words)

    def texts(self, role: str) -> None:
        """A column that should hold numbers and does not."""
        name, _, kind = self.layout[role]
        column = self.rows[name]
        self.null(role)
        if pa.types.is_null(kind):
            return
        no_numbers = column_fault(rules.NOT_NUMERIC, self.layout[role].name, kind=kind)
        if not is_text(kind):
            self.faults.append(no_numbers)
            return
        written = column.re_search(rules.NUMBER) | column.lower().re_search(rules.NAMED_NUMBER)
        bad = column.notnull() & ~written
        self.add(rules.NOT_A_NUMBER, role, bad, column, otherwise=no_numbers)

    def _no_truth(self, role: Role) -> Any:
        """Rows whose flag is not a truth value."""
        column = self.rows[role.column]
        fine: Any = ibis.literal(pa.types.is_boolean(role.kind) or pa.types.is_null(role.kind))
        if is_text(role.kind):
            fine = column.lower().isin(["true", "false", "1", "0"])
        elif pa.types.is_integer(role.kind) or pa.types.is_floating(role.kind):
            fine = column.isin([0, 1])
        return ~is_null(column) & ~fine

    def float_states(self, answer: Answer) -> list[Fault]:
        """Floats: nearly every value would be a separate state."""
        faults = []
        for role in [role for role in self.layout if f"unique_{role}" in answer]:
            unique, values = (int(answer[f"{of}_{role}"] or 0) for of in ("unique", "values"))
            continuous = rules.continuous(unique, values)
            rule = rules.CONTINUOUS_STATE if continuous else rules.FLOAT_STATE
            fix = rule.fix.replace(", Grid(edges) or any callable", " or Grid(edges)")
            name = self.layout[role].name
            faults.append(column_fault(rule, name, fix=fix, unique=unique, values=values))
        return faults


# ---- what spans rows ---------------------------------------------------------------------------


def count_episodes(db: Database, rows: Any) -> list[Answer]:
    """How many episodes there are by length and flags. `broken` of them start after 0, lack a step,
    or go on after an end."""
    shared = ["cl"] if "cl" in rows.columns else []
    episodes = rows.group_by([rows["e"]]).aggregate(
        length=rows.count(),
        ended=one_if(rows["ended"]).max(),
        cut=one_if(rows["cut"]).max(),
        first=rows["t"].min(),
        last=rows["t"].max(),
        ended_at=only_if(rows["ended"], rows["t"]).min(),
        cut_at=only_if(rows["cut"], rows["t"]).min(),
        **{f"low_{name}": rows[name].min() for name in shared},
        **{f"high_{name}": rows[name].max() for name in shared},
    )
    last = episodes["last"]
    # two clusters in one episode: the least and the largest differ
    broken = [episodes[f"low_{name}"] != episodes[f"high_{name}"] for name in shared]
    broken += [last > episodes[end] for end in ("ended_at", "cut_at")]
    broken += [episodes["first"] != 0, last != episodes["length"] - 1]
    table = episodes.group_by([episodes[name] for name in ("length", "ended", "cut")]).aggregate(
        n=episodes.count(), broken=one_if(expr.any_of(broken)).sum()
    )
    return [{name: int(v) for name, v in row.items()} for row in db.run(table).to_pylist()]


def all_explained(reading: Reading, episodes: list[Answer]) -> bool:
    """Whether no episode is broken, and every short one has its reason."""
    horizon = reading.horizon or max(row["length"] for row in episodes)
    unexplained = [row["length"] < horizon and not (row["ended"] or row["cut"]) for row in episodes]
    if reading.short_episodes == "error" and any(unexplained):
        return False
    return not any(row["broken"] for row in episodes)


def check_episodes(
    db: Database, rows: Any, layout: Layout, reading: Reading, ends_known: bool
) -> list[Fault]:
    """The faults that span rows. An episode with an unknown id or step already has its fault; later
    rules use the episodes whose steps are 0, 1, 2, …"""
    rows, steps = _in_sequence(_with_episodes(rows, layout), reading.columns.clock)
    fine = rows["fine"] == 1
    chosen = rows.filter(fine)
    [answer] = db.run(chosen.aggregate(longest=chosen["length"].max())).to_pylist()
    horizon = reading.horizon or int(answer["longest"] or 1)
    checks = [*steps, *_after_end(rows, layout), *_next_states(rows, layout, reading, fine)]
    checks += _one_cluster(rows, layout)
    if reading.short_episodes == "error" and ends_known:
        last = fine & (rows["t"] == rows["length"] - 1) & (rows["length"] < horizon)
        for role in [role for role in FLAGS if role in layout]:
            last = last & rows[layout[role].column].notnull()
        ended, cut = rows["end_ended"].notnull(), rows["end_cut"].notnull()
        bad = rules.SHORT_EPISODE.broken(last, ended, cut)
        fix = rules.short_episode_fix(db.names, *(role.name for role in layout.values()))
        checks.append(Check(rules.SHORT_EPISODE, reading.columns.clock, bad, rows["t"], fix))
    return find(db, rows, checks)[0]


def _with_episodes(rows: Any, layout: Layout) -> Any:
    """With columns of a row's neighbors and of its episode:

    known, sound  1 where id and step are known: of the row, of all rows of the episode
    due           one more than the step before           lt, l0, l1, …  the next row's step, state
    length        the episode's rows                      end_ended, …   the first step of the flag
    """
    rows = rows.mutate(known=one_if(rows["e"].notnull() & rows["t"].notnull() & (rows["t"] >= 0)))
    t = rows["t"]
    window, whole = expr.neighbors(rows), within(rows)
    # without a previous row, some engines give null and some 0
    last = ibis.literal(2**63 - 1, "int64")  # after which no step could be numbered
    columns = {
        "sound": rows["known"].min().over(whole),
        "due": (ibis.ifelse(t < last, t, last - 1) + 1).lag().over(window),
        "lt": t.lead().over(window),
        "length": t.count().over(whole),
    }
    for flag in FLAGS.values():
        ends = only_if(rows[flag] & (rows["known"] == 1), t)
        columns[f"end_{flag}"] = ends.min().over(whole)
    if "cluster" in layout:
        columns["first_cl"] = rows["cl"].first().over(expr.up_to(rows))
    for j in range(len(expr.parts_of(layout, "state"))):
        columns[f"l{j}"] = rows[f"s{j}"].lead().over(window)
    return rows.mutate(**columns)


def _in_sequence(rows: Any, name: str) -> tuple[Any, list[Check]]:
    """With `fine`, 1 where the steps of the episode are 0, 1, 2, …; and the checks of that."""

    def checks(rows: Any) -> list[Check]:
        t, due = rows["t"], rows["due"]
        first, sound = due.isnull() | (due == 0), rows["sound"] == 1
        notes = {rules.MISSING_STEP: " (step {due:.0f} is missing)"}
        return [
            Check(
                rule,
                name,
                sound & rule.broken(t, due - 1, first),
                t,
                more={"due": due},
                note=notes.get(rule, ""),
            )
            for rule in SEQUENCE
        ]

    rows = rows.mutate(wrong=one_if(expr.any_of([check.bad for check in checks(rows)])))
    worst = rows["wrong"].max().over(within(rows))
    rows = rows.mutate(fine=ibis.ifelse(worst == 0, rows["sound"], 0))
    return rows, checks(rows)


def _after_end(rows: Any, layout: Layout) -> list[Check]:
    """No row may follow the row where the episode ended."""
    rule, t = rules.ROWS_AFTER_END, rows["t"]
    return [
        Check(
            rule,
            layout[role].name,
            (rows["known"] == 1) & rule.broken(t, rows[f"end_{flag}"]),
            t,
            more={"end": rows[f"end_{flag}"]},
            note=" (a row at this step; the episode ended at step {end:.0f})",
        )
        for role, flag in FLAGS.items()
        if role in layout
    ]


def _one_cluster(rows: Any, layout: Layout) -> list[Check]:
    """All rows of an episode have the cluster of its first one."""
    if "cluster" not in layout:
        return []
    cluster, first = rows["cl"], rows["first_cl"]
    bad, name = TWO_CLUSTERS.broken(cluster, first).fill_null(False), layout["cluster"].name
    note = " (its first row has {first!r})"
    return [Check(TWO_CLUSTERS, name, bad, cluster, more={"first": first}, note=note)]


def _next_states(rows: Any, layout: Layout, reading: Reading, fine: Any) -> list[Check]:
    """next_state(t) must be state(t+1), where both are known."""
    if "next_state0" not in layout:
        return []
    parts, name = range(len(reading.columns.state)), layout["next_state0"].name
    goes_on = fine & (rows["lt"] - 1 == rows["t"]).fill_null(False)
    differ = expr.any_of([rows[f"n{j}"] != rows[f"l{j}"] for j in parts])
    both = rows["n0"].notnull() & rows["l0"].notnull()
    agree = rules.NEXT_STATE.broken(goes_on, both, differ)
    more = {f"l{j}": rows[f"l{j}"] for j in parts}
    state = ", ".join(f"{{{part}!r}}" for part in more)
    note = f" (the next row's state is {state if len(more) == 1 else f'({state})'})"
    checks = [Check(rules.NEXT_STATE, name, agree, rows["n0"], more=more, note=note)]
    if not reading.hidden:
        bad = rules.NULL_NEXT_STATE.broken(goes_on, rows["n0"].isnull())
        checks.append(Check(rules.NULL_NEXT_STATE, name, bad))
    return checks
