"""The first look at a log in a database: the contract's rules as queries, and what the log is.

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
from reweigh.log.rules import column_fault
from reweigh.log.states import is_number, is_text
from reweigh.sums.engines import sql_rows as expr
from reweigh.sums.engines.sql_connect import Home
from reweigh.sums.engines.sql_rows import Layout, Role, finite, is_null, one_if, only_if, within
from reweigh.sums.read import Reading
from reweigh.system.process import stage

CHECKS = 4  # queries of the first look at a log without faults
SEQUENCE = (rules.STEP_START, rules.DUPLICATE_STEP, rules.MISSING_STEP)
CODES = [rule.code for rule in SEQUENCE]  # of what breaks an episode's order
FLAGS = {"terminated": "ended", "truncated": "cut"}
Answer = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Check:
    """A rule of the contract, with its condition on the columns of a table.

    value, more  what is fetched of the rows that break it, for the message and its `note`
    sums         what is added up beside the count, on which `fix` may depend
    otherwise    what is wrong if no row meets the condition
    """

    rule: rules.Rule
    column: str
    bad: Any
    value: Any = field(default_factory=lambda: ibis.null("string"))
    fix: str | Callable[[Answer], str] | None = None
    more: dict[str, Any] = field(default_factory=dict)
    note: Callable[[Answer], str] | None = None
    sums: dict[str, Any] = field(default_factory=dict)
    otherwise: Fault | None = None
    words: dict[str, object] = field(default_factory=dict)

    def fault(self, home: Home, rows: Any, count: int, answer: Answer) -> Fault:
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
                note="" if self.note is None else self.note(row),
            )
            for row in home.run(shown).to_pylist()
        )
        fix = self.fix(answer) if callable(self.fix) else self.fix or self.rule.fix
        if self.rule is rules.NOT_A_NUMBER and any("," in str(place.value) for place in places):
            fix = rules.DECIMAL_COMMA
        sentence = self.rule.says(self.column, **self.words)
        return Fault(self.rule.code, sentence, fix, places, count, int(answer["total"]))


def find(home: Home, rows: Any, checks: list[Check], **sums: Any) -> tuple[list[Fault], Answer]:
    """The faults that the checks find, and other sums of the same query."""
    counts = {f"k{i}": one_if(check.bad).sum() for i, check in enumerate(checks)}
    for check in checks:
        sums |= check.sums
    [answer] = home.run(rows.aggregate(total=rows.count(), **counts, **sums)).to_pylist()
    faults = []
    for i, check in enumerate(checks):
        if answer[f"k{i}"]:
            faults.append(check.fault(home, rows, int(answer[f"k{i}"]), answer))
        elif check.otherwise is not None:
            faults.append(check.otherwise)
    return faults, answer


# ---- what is wrong with a row by itself --------------------------------------------------------


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
        for role in [role for role in FLAGS if role in layout]:
            self.null(role)
            self.sums[f"no_truth_{role}"] = self._no_truths(layout[role]).sum()
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

    def steps(self) -> None:
        name, _, kind = self.layout["step"]
        column = self.rows[name]
        if is_text(kind):
            bad = column.notnull() & ~column.re_search(rules.STEP)
            self.add(rules.NOT_A_STEP, "step", bad, column, otherwise=self._wrong_type("step"))
        elif pa.types.is_integer(kind) or pa.types.is_null(kind):
            self.null("step")
            asked = [rules.NEGATIVE_STEP] if pa.types.is_integer(kind) else []
            asked += [rules.NOT_A_STEP] if pa.types.is_uint64(kind) else []
            for rule in asked:
                self.add(rule, "step", rule.broken(column), column)
        else:
            self.faults.append(self._wrong_type("step"))

    def state(self, role: str) -> None:
        column, _, kind = self.layout[role]
        if self.reading.abstraction is not None:
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

    def _no_truths(self, role: Role) -> Any:
        """1 where a flag is no truth value."""
        column = self.rows[role.column]
        fine: Any = ibis.literal(pa.types.is_boolean(role.kind) or pa.types.is_null(role.kind))
        if is_text(role.kind):
            fine = column.lower().isin(["true", "false", "1", "0"])
        elif pa.types.is_integer(role.kind) or pa.types.is_floating(role.kind):
            fine = column.isin([0, 1])
        return one_if(~is_null(column) & ~fine)

    def column_faults(self, answer: Answer) -> list[Fault]:
        """Flags that are no truth values; and floats, of which nearly every one would be a state of
        its own."""
        faults = []
        for role, (_, name, _) in self.layout.items():
            if answer.get(f"no_truth_{role}"):
                faults.append(column_fault(rules.NOT_TRUTHS, name))
            if f"unique_{role}" in answer:
                unique, values = (int(answer[f"{of}_{role}"] or 0) for of in ("unique", "values"))
                continuous = rules.continuous(unique, values)
                rule = rules.CONTINUOUS_STATE if continuous else rules.FLOAT_STATE
                fix = rule.fix.replace(", Grid(edges) or any callable", " or Grid(edges)")
                faults.append(column_fault(rule, name, fix=fix, unique=unique, values=values))
        return faults


# ---- what spans rows ---------------------------------------------------------------------------


def in_sequence(rows: Any, layout: Layout) -> tuple[Any, list[Check]]:
    """Rows with `due`, one more than the step before, and the next row's state; and the checks that
    within an episode the steps are 0, 1, 2, …

    `rows` are those of episodes without a fault of their own in id or step.
    """
    window = expr.neighbors(rows)
    # where there is no row before, some engines give null and some 0
    last = ibis.literal(2**63 - 1, "int64")  # after which no step could be numbered
    columns = {"due": (ibis.ifelse(rows["t"] < last, rows["t"], last - 1) + 1).lag().over(window)}
    if "next_state0" in layout:
        for j in range(len(expr.parts_of(layout, "state"))):
            columns[f"l{j}"] = rows[f"s{j}"].lead().over(window)
        columns["lt"] = rows["t"].lead().over(window)
    rows = rows.mutate(**columns)
    t, due, name = rows["t"], rows["due"], layout["step"].name
    first = due.isnull() | (due == 0)

    def missing(row: Answer) -> str:
        return f" (step {int(row['due'])} is missing)"

    notes = {rules.MISSING_STEP: missing}
    return rows, [
        Check(
            rule, name, rule.broken(t, due - 1, first), t, more={"due": due}, note=notes.get(rule)
        )
        for rule in SEQUENCE
    ]


def next_state_checks(rows: Any, layout: Layout, reading: Reading) -> list[Check]:
    """Of rows with `lt` and l0, l1, …: next_state(t) must be state(t+1), where both are known."""
    if "next_state0" not in layout:
        return []
    parts, name = range(len(reading.columns.state)), layout["next_state0"].name
    goes_on = (rows["lt"] - 1 == rows["t"]).fill_null(False)
    differ = expr.any_of([rows[f"n{j}"] != rows[f"l{j}"] for j in parts])
    both = rows["n0"].notnull() & rows["l0"].notnull()

    def following(row: Answer) -> str:
        state = tuple(row[f"l{j}"] for j in parts)
        return f" (the next row's state is {state[0] if len(state) == 1 else state!r})"

    agree = rules.NEXT_STATE.broken(goes_on, both, differ)
    more = {f"l{j}": rows[f"l{j}"] for j in parts}
    checks = [Check(rules.NEXT_STATE, name, agree, rows["n0"], more=more, note=following)]
    if not reading.hidden:
        bad = rules.NULL_NEXT_STATE.broken(goes_on, rows["n0"].isnull())
        checks.append(Check(rules.NULL_NEXT_STATE, name, bad))
    return checks


def check_episodes(
    home: Home, rows: Any, layout: Layout, reading: Reading, some_unknown: bool
) -> tuple[list[Fault], list[Answer]]:
    """What spans rows: its faults, and how many episodes there are by length and flags.

    `some_unknown`: an id or a step is not known, which is a fault of its own; whole episodes
    without such a row are looked at.
    """
    known = sound = rows
    if some_unknown:
        known = rows.filter(rows["e"].notnull() & (rows["t"] >= 0))
        all_known = one_if(rows["e"].notnull() & rows["t"].notnull() & (rows["t"] >= 0))
        sound = rows.mutate(sound=all_known.min().over(within(rows)))
        sound = sound.filter((sound["sound"] == 1) & rows["e"].notnull())
    ordered, steps = in_sequence(sound, layout)
    with stage(1, CHECKS, "checks"):
        found, _ = find(home, ordered, [*steps, *next_state_checks(ordered, layout, reading)])
    faults = [fault for fault in found if fault.code in CODES]
    after = [fault for fault in found if fault.code not in CODES]
    if faults:  # later rules look at the other episodes only
        wrong = one_if(expr.any_of([check.bad for check in steps]))
        sound = ordered.mutate(wrong=wrong)
        sound = sound.mutate(worst=sound["wrong"].max().over(within(sound)))
        sound = sound.filter(sound["worst"] == 0)
        after, _ = find(home, sound, next_state_checks(sound, layout, reading))
    with stage(2, CHECKS, "checks"):
        histogram = _histogram(home, known, layout)
    for role, flag in FLAGS.items():
        if sum(row[f"after_{flag}"] for row in histogram):
            faults += _after_end(home, known, layout[role].name, flag)
    if faults or some_unknown:
        histogram = _histogram(home, sound, layout)
    return [*faults, *after, *_short(home, sound, layout, reading, histogram)], histogram


def _histogram(home: Home, rows: Any, layout: Layout) -> list[Answer]:
    """Episodes by length, flags and whether one is not known; and those with rows after an end."""
    unsure = [rows[layout[role].column].isnull() for role in FLAGS if role in layout]
    episodes = rows.group_by([rows["e"]]).aggregate(
        length=rows.count(),
        ended=one_if(rows["ended"]).max(),
        cut=one_if(rows["cut"]).max(),
        unsure=one_if(expr.any_of([rows["e"].isnull(), *unsure])).max(),
        last=rows["t"].max(),
        ended_at=only_if(rows["ended"], rows["t"]).min(),
        cut_at=only_if(rows["cut"], rows["t"]).min(),
    )
    keys = [episodes[name] for name in ("length", "ended", "cut", "unsure")]
    table = episodes.group_by(keys).aggregate(
        n=episodes.count(),
        after_ended=one_if(episodes["last"] > episodes["ended_at"]).sum(),
        after_cut=one_if(episodes["last"] > episodes["cut_at"]).sum(),
    )
    return [{name: int(v) for name, v in row.items()} for row in home.run(table).to_pylist()]


def _after_end(home: Home, rows: Any, column: str, flag: str) -> list[Fault]:
    """No row may follow the one that says the episode has ended."""
    ends = only_if(rows[flag], rows["t"]).min().over(within(rows))
    rows = rows.mutate(end_at=ends)

    def ended(row: Answer) -> str:
        return f" (a row at this step; the episode ended at step {int(row['end_at'])})"

    bad = rules.ROWS_AFTER_END.broken(rows["t"], rows["end_at"])
    more = {"end_at": rows["end_at"]}
    check = Check(rules.ROWS_AFTER_END, column, bad, rows["t"], more=more, note=ended)
    return find(home, rows, [check])[0]


def _short(
    home: Home, rows: Any, layout: Layout, reading: Reading, histogram: list[Answer]
) -> list[Fault]:
    """The last row of a short episode must say why it is the last."""
    horizon = reading.horizon or max((row["length"] for row in histogram), default=1)
    unexplained = [
        row
        for row in histogram
        if row["length"] < horizon and not (row["ended"] or row["cut"] or row["unsure"])
    ]
    if reading.short_episodes != "error" or not unexplained:
        return []
    rows = rows.mutate(
        length=rows["t"].count().over(within(rows)),
        ends=one_if(rows["ended"] | rows["cut"]).max().over(within(rows)),
    )
    bad = (rows["t"] == rows["length"] - 1) & (rows["length"] < horizon) & (rows["ends"] == 0)
    for role in [role for role in FLAGS if role in layout]:
        bad = bad & rows[layout[role].column].notnull()
    fix = rules.short_episode_fix(home.names, *(role.name for role in layout.values()))
    check = Check(rules.SHORT_EPISODE, layout["step"].name, bad, rows["t"], fix)
    return find(home, rows, [check])[0]
