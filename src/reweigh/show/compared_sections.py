"""The sections of the report of a comparison: words, tables and charts."""

from __future__ import annotations

from collections.abc import Sequence

from reweigh.decide.comparison_result import NOT_KNOWN, Difference
from reweigh.evaluation.result import NO_TRUST
from reweigh.show import draw_forest
from reweigh.show.answers import span
from reweigh.show.compared import Compared
from reweigh.show.draw import TITLES
from reweigh.show.figures import Cells, Figure, Table, interval_cell
from reweigh.show.records import Row
from reweigh.show.sections import Section, formulas_table
from reweigh.system.number_format import number, rounded

SHOWN = 40  # targets in a chart; tables hold all


def compared_sections(content: Compared) -> tuple[Section, ...]:
    """All sections, in their order."""
    found = (
        _ranking(content),
        _differences(content),
        _checks(content),
        _estimators(content),
        _set_aside(content),
        Section("log", "The log", "What the numbers rest on.", facts=content.log),
        Section(
            "computed",
            "How it was computed",
            tables=(formulas_table(content.formulas),),
            facts=content.computed,
        ),
    )
    return tuple(section for section in found if section is not None)


def _ranking(content: Compared) -> Section:
    name, title = "ranking", "The policies, ranked"
    table = _ranking_table(f"The policies by {content.estimator}", content.rows, ranks=True)
    known = [row for row in content.rows if row.value is not None]
    if not known:
        return Section(name, title, "Every policy was refused.", tables=(table,))
    intro = (
        f"Values by {content.estimator}. The intervals hold for all rows at once, so also for "
        "the policy of these that is picked because it looks best."
    )
    notes = ["An arrow (◂ ▸) at the edge of a chart: the interval goes on beyond it."]
    notes += [f"{row.estimator} has {_lacking(row)}." for row in known if row.no_interval]
    notes += _left_out(len(known), "policies")
    figures = [_values_figure(content, known, table)]
    gained = [row for row in known if row.gain is not None and row.gain_interval is not None]
    if gained:
        figures.append(_gains_figure(content, gained))
    return Section(name, title, intro, tuple(figures), notes=tuple(notes), wide=True)


def _lacking(row: Row) -> str:
    trusted = not row.no_interval.startswith(NO_TRUST)
    return f"no interval: {row.no_interval}" if trusted else row.no_interval


def _left_out(many: int, what: str) -> list[str]:
    return [f"The charts show the first {SHOWN} of {many} {what}."] if many > SHOWN else []


def _ranking_table(caption: str, rows: Sequence[Row], *, ranks: bool = False) -> Table:
    columns: Cells = ("policy", "rank", "value", "interval", "more than the log's policy",
                      "its interval", "best with probability", "verdict",
                      "because of")  # fmt: skip
    cells = []
    for rank, row in enumerate(rows, 1):
        if row.value is None:
            cells.append((row.estimator, "", "refused", "", "", "", "", "refused", row.refused))
            continue
        gain, around = "", ""
        if row.gain is not None and row.gain_interval is not None:
            gain = _signed(row.gain, row.gain_interval.standard_error)
            around = span(row.gain_interval)
        cells.append(
            (
                row.estimator,
                str(rank),
                row.text,
                interval_cell(row),
                gain,
                around,
                _chance(row) if ranks else "",
                row.verdict or "",
                ", ".join(row.reasons),
            )
        )
    return Table(caption, columns, tuple(cells), frozenset({1, 2, 3, 4, 5, 6}), folded=False)


def _chance(row: Row) -> str:
    return NOT_KNOWN if row.best is None else f"{row.best:.0%}"


def _signed(value: float, error: float | None) -> str:
    return f"{'+' if value > 0 else ''}{rounded(value, error)}"


def _values_figure(content: Compared, known: list[Row], table: Table) -> Figure:
    first = known[0]
    text = f"{first.estimator} comes first with {first.text}"
    text += "" if first.interval is None else f" ({span(first.interval)})"
    if len(known) > 1:
        last = known[-1]
        text += f", {last.estimator} last with {last.text}"
    text += "."
    if content.found.behavior_value is not None:
        text += f" The log's own policy earned {number(content.found.behavior_value)}."
    red = sum(row.verdict == "red" for row in known)
    if red:
        text += f" {red} of {len(known)} {'has' if red == 1 else 'have'} a red verdict (✕)."
    behavior, shown = content.found.behavior_value, known[:SHOWN]
    return Figure(
        "targets",
        TITLES["targets"],
        text,
        table,
        lambda: draw_forest.forest(shown, behavior, look=content.look),
    )


def _gains_figure(content: Compared, rows: list[Row]) -> Figure:
    columns = ("policy", "policy − behaviour", "interval")
    cells = []
    better: list[str] = []
    for row in rows:
        assert row.gain is not None
        assert row.gain_interval is not None
        gain = _signed(row.gain, row.gain_interval.standard_error)
        cells.append((row.estimator, gain, span(row.gain_interval)))
        if row.gain_interval.low > 0:
            better.append(row.estimator)
    who = "None is" if not better else f"{', '.join(better)} {'is' if len(better) == 1 else 'are'}"
    text = (
        f"{who} better beyond chance. Both values come from the same episodes, so what they have "
        "in common cancels; an interval without 0 tells them apart."
    )
    table = Table("Policy − behaviour", columns, tuple(cells), frozenset({1, 2}))
    shown = rows[:SHOWN]
    return Figure(
        "over_log",
        TITLES["over_log"],
        text,
        table,
        lambda: draw_forest.gains(shown, look=content.look),
    )


def _differences(content: Compared) -> Section | None:
    """None where there is one policy."""
    if not content.to_best:
        return None
    best = content.rows[0].estimator
    apart = [name for name, d in content.to_best if d.interval.low > 0]
    text = f"{best} is told apart from {len(apart)} of {len(content.to_best)} others."
    figure = Figure(
        "to_best",
        TITLES["to_best"],
        text,
        _pairs_table(
            f"{best} less each other policy", [d for _, d in content.to_best], content.estimator
        ),
        lambda: draw_forest.to_best(best, content.to_best[:SHOWN], content.look),
    )
    intro = (
        "Differences are paired: what two policies' values on one log have in common cancels, so "
        "they are more precise than the two intervals suggest."
    )
    pairs = content.found.trusted_pairs
    tables = (
        ()
        if len(pairs) <= len(content.to_best)
        else (_pairs_table("All pairs", pairs, content.estimator),)
    )
    notes = tuple(_left_out(len(content.to_best), "differences"))
    return Section(
        "differences", "Differences between the policies", intro, (figure,), tables, notes=notes
    )


def _pairs_table(caption: str, pairs: Sequence[Difference], estimator: str) -> Table:
    columns: Cells = ("difference", "by", "interval", "p, one-sided", "told apart")
    rows = tuple(
        (
            " − ".join(name.removesuffix(f", {estimator}") for name in (d.first, d.second)),
            _signed(d.value, d.standard_error),
            span(d.interval),
            f"{d.p_value:.2g}",
            "no" if d.interval.low <= 0 <= d.interval.high else "yes",
        )
        for d in pairs
    )
    return Table(caption, columns, rows, frozenset({1, 2, 3}))


def _checks(content: Compared) -> Section:
    name, title = "checks", "The verdict of each"
    if not content.matrix:
        return Section(name, title, missing=("Not computed: there is no estimate to check.",))
    intro = (
        "Every policy is judged on its own: one that is far from what was logged may be red where "
        "another is green. No check sees episodes selected by their outcome, a propensity that "
        "belongs to another action, or duplicated episodes."
    )
    verdicts = {row.estimator: row.verdict or "" for row in content.rows}
    cells = tuple(
        (target, verdicts[target], *(level or "" for level in levels))
        for target, levels in content.matrix
    )
    table = Table(
        "Checks of every policy: ✓ green, ! amber, ✕ red, ? not checked",
        ("policy", "verdict", *content.gate_names),
        cells,
        folded=False,
        marks=True,
    )
    note = (
        "“total mass” is a hint and makes no verdict. For what was found, and what to do, "
        "evaluate a policy alone."
    )
    return Section(name, title, intro, tables=(table,), notes=(note,))


def _estimators(content: Compared) -> Section | None:
    """None where one estimator was asked."""
    if not content.others:
        return None
    intro = (
        f"The ranking is that of {content.estimator}, which was named first. Estimators make "
        "different mistakes: that they agree is a good sign."
    )
    tables = tuple(_ranking_table(f"The policies by {name}", rows) for name, rows in content.others)
    notes = tuple(
        f"{d.first} and {d.second} differ by {number(d.value)} ({span(d.interval)}), more than "
        "their joint error explains: one of them is biased here."
        for d in content.found.disagreeing
    )
    notes = notes or ("No two estimators of a policy differ by more than their joint error.",)
    return Section("estimators", "The other estimators", intro, tables=tables, notes=notes)


def _set_aside(content: Compared) -> Section:
    found = content.found
    name, title = "tried", "How much was tried, and on what"
    facts = [("pairs of a policy and an estimator tried on this log", f"{found.tried:,}")]
    facts.append(("episodes that ranked the policies", f"{found.n_episodes:,}"))
    last = found.held_out
    if last is None:
        facts.append(("episodes set aside", "none: the intervals are widened for the choice"))
        return Section(name, title, facts=tuple(facts))
    facts.append(("episodes set aside", f"{found.n_held_out:,}"))
    row = content.set_aside
    assert row is not None
    if row.value is None:
        facts.append((f"{found.chosen} on these", f"refused: {row.refused}"))
    else:
        around = "no interval" if row.interval is None else span(row.interval)
        facts.append((f"{found.chosen} on these", f"{row.text} ({around})"))
    return Section(name, title, facts=tuple(facts))
