"""The first look at a log in a database: its faults, its horizon, its labels and what it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from reweigh.errors import Fault, Place, RefusedError, UsageError, input_error
from reweigh.log import checks, rules
from reweigh.log.identity import Identity
from reweigh.log.states import Grid, Labels, Rounding, unite
from reweigh.sums.engines import ibis_checks as contract
from reweigh.sums.engines import ibis_rows as expr
from reweigh.sums.engines.ibis_connect import Home
from reweigh.sums.engines.ibis_faults import Rule, find
from reweigh.sums.engines.ibis_identity import identity_of, identity_sums, with_marks
from reweigh.sums.engines.ibis_rows import Layout, count_if, id_number, one_if
from reweigh.sums.engines.ibis_tables import Ids, discounting, ints
from reweigh.sums.read import Reading
from reweigh.system.process import stage

CHECKS = 4  # queries of the first look at a log without faults


@dataclass(frozen=True, eq=False)
class Facts:
    """What the first look told about a log without faults. Rows are those before the horizon."""

    horizon: int
    episodes: int
    rows: int
    truncated: int
    terminated_early: int
    hidden_rows: int
    beyond: int
    states: Labels
    actions: Labels | None
    reward_range: tuple[float, float]
    behavior_range: tuple[float, float] | None
    total_return: float
    identity: Identity
    ids: Ids | None  # None where an id is no whole number


def check_abstraction(reading: Reading) -> None:
    """Rounding and Grid can be written in SQL; a function of rows in Python cannot."""
    import numpy as np

    abstraction = reading.abstraction
    if abstraction is None:
        return
    if not isinstance(abstraction, Rounding | Grid):
        raise RefusedError(
            "rows-needed",
            "an abstraction that is a function needs the rows in Python, and a database keeps its "
            "rows: use Rounding or Grid, or read the log with engine='stream' or 'arrays'",
        )
    abstraction(np.zeros((1, len(reading.columns.state))))  # the number of columns must fit


def look(home: Home, rows: Any, layout: Layout, reading: Reading) -> Facts:
    """Check the whole contract, and tell what the log is."""
    marked = with_marks(rows, layout, reading, home.dialect)
    row_rules, faults = contract.row_rules(marked, layout, reading)
    with stage(0, CHECKS, "checks"):
        flags = contract.flag_faults(home, rows, layout)
        faults += flags
        faults += contract.float_states(home, rows, layout, reading)
        found, told = find(home, marked, row_rules, **_row_sums(marked, layout, reading))
    if not told["total"]:
        fault = Fault("no-episodes", "there are no rows", "give a log with rows")
        raise input_error(home.describe(), [fault])
    faults += [_advised(fault, layout, told, reading) for fault in found]
    contract_of_episodes = told["unknown"] < told["total"]
    histogram: list[dict[str, Any]] = []
    if contract_of_episodes:
        found, histogram = _episodes(home, rows, layout, reading, bool(told["unknown"]))
        if flags:  # what they say about an episode's end is not known
            found = [fault for fault in found if fault.code != "short-episode"]
        faults += [replace(fault, total=int(told["total"])) for fault in found]
    checks.Faults(lambda row: Place(None), 0, faults).raise_if_any(home.describe())
    with stage(3, CHECKS, "checks"):
        _refuse_too_large(home, rows, layout, reading)
        return _facts(home, rows, layout, reading, told, histogram)


def _refuse_too_large(home: Home, rows: Any, layout: Layout, reading: Reading) -> None:
    """Rounded numbers must fit into 64 bits."""
    if not isinstance(reading.abstraction, Rounding):
        return
    bad = None
    for role in ("state", "next_state"):
        for j, part in enumerate(layout.parts(role)):
            x = expr.number(rows[layout.column(part)], layout.kind(part))
            large = expr.finite(x) & ~(expr.scaled(reading.abstraction, x, j).abs() < expr.INT64)
            bad = large if bad is None else bad | large
    if home.run(rows.aggregate(n=count_if(bad))).column("n")[0].as_py():
        raise UsageError(
            "the state abstraction returned numbers that are not whole, not finite or too large "
            "for 64 bits; a state is an integer or a text: round them or give the cell's number"
        )


def _advised(fault: Fault, layout: Layout, told: dict[str, Any], reading: Reading) -> Fault:
    if fault.code != "probability-range":
        return fault
    column = fault.places[0].column
    role = next(
        role
        for role in ("behavior_prob", "target_prob")
        if layout.has(role) and layout.name(role) == column and f"low_{role}" in told
    )
    density = reading.continuous_actions
    return contract.advise(fault, role, told[f"low_{role}"], told[f"high_{role}"], density)


def _row_sums(rows: Any, layout: Layout, reading: Reading) -> dict[str, Any]:
    """What is added up beside the faults: ranges, the return, and which rows these are."""
    import ibis

    e, t = rows["e"], rows["t"]
    within = t >= 0
    if reading.horizon is not None:
        within = within & (t < reading.horizon)
    y = ibis.ifelse(within & expr.finite(rows["y"]), rows["y"], ibis.null("float64"))
    made = {
        "unknown": count_if(e.isnull() | t.isnull() | (t < 0)),
        "used": count_if(within),
        "hidden": count_if(within & (rows["hid"] == 1)),
        "y_low": y.min(),
        "y_high": y.max(),
        "y_sum": (discounting(reading.discount, t) * y.fill_null(0.0)).sum(),
        **identity_sums(rows, within),
        **_id_sums(rows, layout),
    }
    for role, short in (("behavior_prob", "mu"), ("target_prob", "tp")):
        if layout.has(role):
            made |= contract.probability_sums(rows[short], role)
    if layout.has("behavior_prob"):
        mu = ibis.ifelse(within, rows["mu"], ibis.null("float64"))
        made |= {"mu_low": mu.min(), "mu_high": mu.max()}
    return made


def _sound(rows: Any) -> Any:
    """Rows of episodes whose every id and step is known: the others have their fault already."""
    import ibis

    known = one_if(rows["e"].notnull() & rows["t"].notnull() & (rows["t"] >= 0))
    rows = rows.mutate(sound=known.min().over(ibis.window(group_by=[rows["e"]])))
    return rows.filter((rows["sound"] == 1) & rows["e"].notnull())


def _episodes(
    home: Home,
    rows: Any,
    layout: Layout,
    reading: Reading,
    some_unknown: bool,
) -> tuple[list[Fault], list[dict[str, Any]]]:
    """What spans rows: its faults, and how many episodes there are by length and flags."""
    import ibis

    known = rows.filter(rows["e"].notnull() & (rows["t"] >= 0)) if some_unknown else rows
    sound = _sound(rows) if some_unknown else rows
    ordered, sequence = contract.sequence_rules(sound, layout, reading)
    following = contract.next_rules(ordered, layout, reading) if layout.has("next_state0") else []
    with stage(1, CHECKS, "checks"):
        found, _ = find(home, ordered, [*sequence, *following])
    steps = [fault for fault in found if fault.code in contract.SEQUENCE]
    after = [fault for fault in found if fault.code not in contract.SEQUENCE]
    if steps:  # later rules look at the other episodes only
        wrong = sequence[0].bad | sequence[1].bad | sequence[2].bad
        marked = ordered.mutate(wrong=one_if(wrong))
        worst = marked["wrong"].max().over(ibis.window(group_by=[marked["e"]]))
        marked = marked.mutate(worst=worst)
        sound = marked.filter(marked["worst"] == 0)
        if following:
            after, _ = find(home, sound, contract.next_rules(sound, layout, reading))
    faults = list(steps)
    with stage(2, CHECKS, "checks"):
        histogram = _histogram(home, known, layout)
    for role, short in (("terminated", "ended"), ("truncated", "cut")):
        if sum(row[f"after_{short}"] for row in histogram):
            faults += find(home, *_after_end(known, layout.name(role), short))[0]
    faults += after
    if steps or some_unknown:
        histogram = _histogram(home, sound, layout)
    faults += _short(home, sound, layout, reading, histogram)
    return faults, histogram


def _histogram(home: Home, rows: Any, layout: Layout) -> list[dict[str, Any]]:
    import ibis

    flags = [r for r in ("terminated", "truncated") if layout.has(r)]
    unknown = rows["e"].isnull()  # never, here
    for role in flags:
        unknown = unknown | rows[layout.column(role)].isnull()

    def first(flag: str) -> Any:
        return ibis.ifelse(rows[flag], rows["t"], ibis.null("int64")).min()

    episodes = rows.group_by([rows["e"]]).aggregate(
        length=rows.count(),
        ended=one_if(rows["ended"]).max(),
        cut=one_if(rows["cut"]).max(),
        unsure=one_if(unknown).max(),
        last=rows["t"].max(),
        end_at=first("ended"),
        cut_at=first("cut"),
    )
    keys = [episodes[name] for name in ("length", "ended", "cut", "unsure")]
    table = episodes.group_by(keys).aggregate(
        n=episodes.count(),
        after_ended=count_if(episodes["last"] > episodes["end_at"]),
        after_cut=count_if(episodes["last"] > episodes["cut_at"]),
    )
    return [{name: int(v) for name, v in row.items()} for row in home.run(table).to_pylist()]


def _after_end(rows: Any, column: str, flag: str) -> tuple[Any, list[Rule]]:
    """No row may follow the one that says the episode has ended."""
    import ibis

    at = ibis.ifelse(rows[flag], rows["t"], ibis.null("int64"))
    rows = rows.mutate(end_at=at.min().over(ibis.window(group_by=[rows["e"]])))
    rule = Rule.of(
        rules.ROWS_AFTER_END,
        column,
        rules.ROWS_AFTER_END.broken(rows["t"], rows["end_at"]),
        rows["t"],
        more={"end_at": rows["end_at"]},
        note=lambda row, _: (
            f" (a row at this step; the episode ended at step {int(row['end_at'])})"
        ),
    )
    return rows, [rule]


def _short(
    home: Home,
    rows: Any,
    layout: Layout,
    reading: Reading,
    histogram: list[dict[str, Any]],
) -> list[Fault]:
    """The last row of a short episode must say why it is the last."""
    import ibis

    horizon = reading.horizon or max((row["length"] for row in histogram), default=1)
    unexplained = [
        row
        for row in histogram
        if row["length"] < horizon and not (row["ended"] or row["cut"] or row["unsure"])
    ]
    if reading.short_episodes != "error" or not unexplained:
        return []
    fix = rules.short_episode_fix(home.names, *layout.names)
    whole = ibis.window(group_by=[rows["e"]])
    rows = rows.mutate(
        length=rows["t"].count().over(whole), over=one_if(rows["ended"] | rows["cut"])
    )
    rows = rows.mutate(why=rows["over"].max().over(ibis.window(group_by=[rows["e"]])))
    last = (rows["t"] == rows["length"] - 1) & (rows["length"] < horizon) & (rows["why"] == 0)
    for role in ("terminated", "truncated"):
        if layout.has(role):
            last = last & rows[layout.column(role)].notnull()
    rule = Rule.of(rules.SHORT_EPISODE, layout.name("step"), last, rows["t"], fix=fix)
    return find(home, rows, [rule])[0]


def _facts(
    home: Home,
    rows: Any,
    layout: Layout,
    reading: Reading,
    told: dict[str, Any],
    histogram: list[dict[str, Any]],
) -> Facts:
    horizon = reading.horizon or max(max(row["length"] for row in histogram), 1)
    states, actions = _labels(home, rows, layout, reading)
    cut = ended = beyond = 0
    for row in histogram:
        if row["length"] < horizon:
            over = row["ended"] or (not row["cut"] and reading.short_episodes == "terminal")
            ended += row["n"] if over else 0
            cut += 0 if over else row["n"]
        beyond += row["n"] * max(row["length"] - horizon, 0)
    episodes = sum(row["n"] for row in histogram)
    has_mu = layout.has("behavior_prob")
    return Facts(
        horizon=horizon,
        episodes=episodes,
        rows=int(told["used"]),
        truncated=cut,
        terminated_early=ended,
        hidden_rows=int(told["hidden"]),
        beyond=beyond,
        states=states,
        actions=actions,
        reward_range=(float(told["y_low"]), float(told["y_high"])),
        behavior_range=(float(told["mu_low"]), float(told["mu_high"])) if has_mu else None,
        total_return=float(told["y_sum"]),
        identity=identity_of(told, episodes),
        ids=_ids(told),
    )


def _labels(
    home: Home, rows: Any, layout: Layout, reading: Reading
) -> tuple[Labels, Labels | None]:
    """States, those that only stand in next_state last, and actions (None: they are numbers)."""
    roles = [layout.parts("state")]
    columns = [[f"s{j}" for j in range(len(roles[0]))]]
    if layout.has("next_state0"):
        roles.append(layout.parts("next_state"))
        columns.append([f"n{j}" for j in range(len(roles[-1]))])
    if not reading.continuous_actions:
        roles.append(["action"])
        columns.append(["a"])
    table = home.run(_labels_shown(rows, columns))
    found = [
        _labels_of(table, of, [expr.is_integer_label(layout, part, reading) for part in parts])
        for of, parts in enumerate(roles)
    ]
    actions = None if reading.continuous_actions else found.pop()
    return (found[0] if len(found) == 1 else unite(*found)), actions


def _labels_shown(rows: Any, groups: Sequence[Sequence[str]]) -> Any:
    """Every label that these groups of columns show: `of` is the group, l0, l1, … are its texts."""
    import ibis

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


def _labels_of(table: pa.Table, of: int, whole: Sequence[bool]) -> Labels:
    """The labels of one group of `_labels_shown`, in the order that they have in memory.

    `whole`: whether a part of the label is an integer.
    """
    table = table.filter(pa.array(ints(table, "of") == of))
    parts = [
        [int(text) if is_int else text for text in table.column(f"l{j}").to_pylist()]
        for j, is_int in enumerate(whole)
    ]
    if len(parts) == 1:
        return Labels(tuple(sorted(parts[0])))
    return Labels(tuple(sorted(zip(*parts, strict=True))))


def _id_sums(rows: Any, layout: Layout) -> dict[str, Any]:
    """The span of the ids, and how many first rows have an id that is no number."""
    import ibis

    first = (rows["t"] == 0).fill_null(False)
    number = ibis.ifelse(first, id_number(rows, layout), ibis.null("int64"))
    return {
        "id_low": number.min(),
        "id_high": number.max(),
        "id_texts": one_if(first & number.isnull()).sum(),
    }


def _ids(told: dict[str, Any]) -> Ids | None:
    if told["id_low"] is None or told["id_texts"]:
        return None
    return Ids(int(told["id_low"]), int(told["id_high"]))


@dataclass(frozen=True, eq=False)
class Log:
    """The typed rows of a log, and which column plays which role. `checked` are those of which
    every float is looked at, which checks need; `rows`, for sums, cost less."""

    rows: Any
    checked: Any
    layout: Layout


def open_log(home: Home, reading: Reading, policy: str | None) -> Log:
    check_abstraction(reading)
    wanted = expr.wanted_columns(reading.columns, policy)
    contract.refuse_missing(home, wanted)
    names = tuple(name for _, name in wanted)
    log, kinds = home.open(names)
    plain_kinds = [k.value_type if pa.types.is_dictionary(k) else k for k in kinds]
    layout = Layout(tuple(role for role, _ in wanted), names, tuple(plain_kinds))
    checked = expr.typed(expr.read_each(log, kinds, home.dialect), layout, reading)
    return Log(expr.typed(log, layout, reading), checked, layout)
