"""The order of a report: what each section says, shows and lists."""

from __future__ import annotations

from dataclasses import dataclass

from reweigh.show import figures
from reweigh.show.basis import Missing
from reweigh.show.content import Content
from reweigh.show.figures import Cells, Figure, Table
from reweigh.show.records import Heat, Holes, VarianceParts, Weights

MARKS = {"green": "✓", "amber": "!", "red": "✕", "unknown": "?"}


@dataclass(frozen=True, eq=False)
class Section:
    """missing tells what was not computed, and why; `facts` are pairs of a name and a text."""

    name: str
    title: str
    intro: str = ""
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    heat: Heat | None = None
    wide: bool = False  # figures stand one below the other


def sections_of(content: Content) -> tuple[Section, ...]:
    """All sections; what was not computed says so in its place."""
    return (
        _estimates(content),
        _weights(content),
        _marginals(content),
        _value(content),
        _variance(content),
        _holes(content),
        _checks(content),
        _sensitivity(content),
        Section("log", "The log", "What the numbers rest on.", facts=content.log),
        _computed(content),
    )


def _some(*found: Figure | None) -> tuple[Figure, ...]:
    return tuple(figure for figure in found if figure is not None)


def _estimates(content: Content) -> Section:
    title = "All estimators, and target against log"
    table = figures.estimates_table(content)
    if content.main is None:
        return Section("estimates", title, "Every estimator refused.", tables=(table,))
    intro = (
        f"The answer above is that of {content.main}. Different estimators make different "
        "mistakes: that they agree is a good sign; one whose verdict is red should not count."
    )
    notes = []
    if any(row.value is not None for row in content.rows):
        notes.append("An arrow (◂ ▸) at the edge of a chart: the interval goes on beyond it.")
    gains = figures.gains(content)
    lacking = {row.gain_why for row in content.rows if row.value is not None and row.gain_why}
    missing = tuple(f"Target − behaviour: {why}." for why in sorted(lacking))
    return Section(
        "estimates", title, intro, _some(figures.forest(content), gains), notes=tuple(notes),
        missing=missing, wide=True,
    )  # fmt: skip


def _weights(content: Content) -> Section:
    name, title = "weights", "The curse of horizon on this log"
    intro = (
        "Ordinary importance sampling multiplies one ratio per step; soon a few episodes carry all "
        "of the weight. Marginalized weights compare state distributions step by step instead."
    )
    found = content.weights
    if isinstance(found, Missing):
        return Section(name, title, intro, missing=(_because(found),))
    assert isinstance(found, Weights)
    why = [
        *found.missing,
        *(f"largest weight of the {c.name}: {c.why}" for c in found.curves if c.why),
    ]
    missing = tuple(f"Not computed: {text}." for text in why)
    return Section(
        name, title, intro, _some(figures.ess(found), figures.largest(found)), missing=missing
    )


def _marginals(content: Content) -> Section:
    name, title = "marginals", "Where the target goes, and where the log went"
    heat = content.heat
    if isinstance(heat, Missing):
        return Section(name, title, missing=(_because(heat),))
    notes = [
        f"State distributions by {heat.estimator}; {heat.n_states:,} states, those with the most "
        "mass first; END, where it is among them: the episode is over."
    ]
    if heat.wide > 1:
        notes.append(f"A field is the mean over {heat.wide} steps.")
    if heat.others:
        notes.append(
            f"The {heat.n_states - heat.others:,} states with the most mass are shown one by one; "
            f"the {heat.others:,} others are left out as such and stand together in one row, as "
            "the sum of their shares."
        )
    return Section(name, title, "", (figures.marginals(heat),), notes=tuple(notes), heat=heat)


def _value(content: Content) -> Section:
    name, title = "value", "Where the value comes from"
    parts = content.value
    if isinstance(parts, Missing):
        return Section(name, title, missing=(_because(parts),))
    missing = []
    if parts.per_step is None:
        missing.append(f"Not computed: {parts.estimator} has no value per step.")
    if parts.log is None:
        missing.append(
            "Not computed: what the log earned per step (episodes were cut off, or states hidden)."
        )
    return Section(
        name, title, "", _some(figures.value_steps(parts), figures.value_states(parts)),
        missing=tuple(missing),
    )  # fmt: skip


def _variance(content: Content) -> Section:
    name, title = "variance", "Where the uncertainty comes from"
    parts = content.variance
    if isinstance(parts, Missing):
        return Section(name, title, missing=(_because(parts),))
    assert isinstance(parts, VarianceParts)
    intro = (
        f"The squared standard error of {parts.estimator}, split by step and state: where more "
        "data would help most."
    )
    note = (
        "Wanted / logged: the share of a step's visits that would serve best over the share that "
        "the log has; above 1, more data there helps most."
    )
    shown = _some(figures.variance_steps(parts), figures.variance_states(parts))
    return Section(name, title, intro, shown, tables=(figures.pairs_table(parts),), notes=(note,))


def _holes(content: Content) -> Section:
    name, title = "holes", "What the target wants and the log lacks"
    holes = content.holes
    if isinstance(holes, Missing):
        return Section(name, title, missing=(_because(holes),))
    assert isinstance(holes, Holes)
    if not holes.rows:
        text = "Nothing: at every step and state, the log shows every action that the target takes."
        return Section(name, title, text)
    whose = "the target" if holes.by == "target" else "the log (the target's own are not known)"
    intro = (
        f"Weighed by the visits of {whose}, the target takes an action where the log never shows "
        f"it {_times(holes.mass)} per episode"
    )
    if not holes.note:
        if holes.never <= 0:
            intro += "; each of these the log shows at another step"
        elif holes.never < (1 - 1e-9) * holes.mass:
            intro += f"; all but {_times(holes.never)} the log shows it at another step"
        else:
            intro += "; none of these the log shows at any step"
    intro += (
        ". For mis only missing states and actions that the log never takes matter; a model (dm) "
        "misses every one of these."
    )
    columns: Cells = ("state", "action", "at steps", "target's uses per episode",
                      "log's visits there", "logged at any step")  # fmt: skip
    rows = [
        (
            hole.state,
            hole.action or ("any: no row there" if not hole.visits else "not known"),
            hole.steps,
            _small(hole.mass),
            f"{hole.visits:,}",
            f"{hole.logged:,}" if hole.action is not None else "",
        )
        for hole in holes.rows
    ]
    if holes.others[0]:
        rows.append((f"{holes.others[0]:,} others", "", "", _small(holes.others[1]), "", ""))
    table = Table(
        "Missing in the log, the largest first",
        columns,
        tuple(rows),
        frozenset({3, 4, 5}),
        folded=False,
    )
    missing = (f"Not computed: {holes.note}.",) if holes.note else ()
    return Section(name, title, intro, tables=(table,), missing=missing)


def _times(mass: float) -> str:
    return f"{_small(mass)} times"


def _small(mass: float) -> str:
    return f"{mass:.3g}" if mass >= 1e-4 else f"{mass:.1e}"


def _checks(content: Content) -> Section:
    name, title = "checks", "Checks"
    if content.main is None:
        return Section(name, title, missing=("Not computed: there is no estimate to check.",))
    intro = (
        f"Every check of {content.main}, on numbers before any normalisation. What no check can "
        "see: episodes selected by their outcome, a propensity that belongs to another action, "
        "duplicated episodes."
    )
    columns: Cells = ("check", "result", "what was found", "limits", "what to do")
    rows = tuple(
        (c.name, f"{MARKS[c.level]} {_word(c.level)}", c.text, c.limit, c.advice)
        for c in content.checks
    )
    tables = [Table(f"Checks of {content.main}", columns, rows, folded=False)]
    if len(content.matrix) > 1:
        cells = tuple(
            (estimator, *(level or "" for level in levels)) for estimator, levels in content.matrix
        )
        columns = ("estimator", *content.gate_names)
        caption = "Checks of every estimator: ✓ green, ! amber, ✕ red, ? not checked"
        tables.append(Table(caption, columns, cells, marks=True))
    note = (
        "“total mass” is a hint and makes no verdict; an empty field: the check does not "
        "concern that estimator."
    )
    return Section(name, title, intro, tables=tuple(tables), notes=(note,))


def _word(level: str) -> str:
    return "not checked" if level == "unknown" else level


def _sensitivity(content: Content) -> Section:
    name, title = "sensitivity", "Sensitivity"
    if isinstance(content.moved, Missing):
        return Section(name, title, missing=(_because(content.moved),))
    figure = figures.sensitivity(content, content.moved)
    if figure is None:
        return Section(name, title, missing=("Not computed: no choice can be changed here.",))
    missing = tuple(
        f"“{change.change}” gave no number: {change.why}."
        for change in content.moved
        if change.value is None
    )
    return Section(name, title, "", (figure,), missing=missing)


def _computed(content: Content) -> Section:
    table = formulas_table(content.formulas)
    return Section("computed", "How it was computed", "", tables=(table,), facts=content.computed)


def formulas_table(formulas: tuple[tuple[str, str, str], ...]) -> Table:
    return Table("Estimators and their formulas", ("estimator", "formula", "variant"), formulas)


def _because(missing: Missing) -> str:
    return f"Not computed: {missing.why}."
