"""The page of an evaluation: what each section says, shows and lists."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from reweigh import __version__
from reweigh.errors import RefusedError
from reweigh.estimate.estimator import Recipe
from reweigh.show.first_screen import (
    MOST_REASONS,
    MOST_ROWS,
    Reason,
    answer_sentence,
    further_reasons,
    help_after,
    reason_text,
)
from reweigh.show.html import MARKS, Answer, Cells, Figure, Page, Section, Table, figures
from reweigh.show.html.figures import first_table
from reweigh.show.record import PER_EPISODE, Change, Evaluation, Facts, GroupTable, Report
from reweigh.show.text import by_text, facts_in_words, one_of, plain_value, several, warning_lines
from reweigh.system import installed
from reweigh.trust.breakdown import Decomposition, Heat, Missing, ValueParts
from reweigh.trust.gates import Verdict
from reweigh.trust.overlap import Unlogged, Weights

CURSE = (
    "Ordinary importance sampling multiplies one ratio per step; soon a few episodes carry all "
    "of the weight. Marginalized weights compare state distributions step by step instead."
)
CONFOUNDED = (
    "No check sees a hidden cause that moved both the decisions and what followed. Γ says how much "
    "it may have changed the odds of a logged action: Γ = 2 doubles or halves them."
)
ARROWS = "An arrow (◂ ▸) at the edge of a chart: the interval goes on beyond it."
CHECKS = "Checks of every {}: ✓ green, ! amber, ✕ red, ? not checked"
LIBRARIES = ("numpy", "scipy", "numba", "pyarrow", "altair", "vl-convert-python")
NOTATION = (
    "Steps are t = 0, …, H − 1; γ is the discount; ρ = π(a|s)/μ(a|s) the ratio of the target’s and "
    "the log’s probability of the logged action; ρ₀…ρₜ the running product; n the episodes, nₜ(s) "
    "those in state s at step t."
)
Part = TypeVar("Part")


def page_of(report: Report) -> Page:
    """The page; what was not computed says so in its place."""
    recipes = [(e.estimator, e.recipe) for e in report.results]
    units = several(report.unit)
    curse = Section("weights", f"How many {units} is this based on?", CURSE)
    states = Section("marginals", "Which states does the new policy visit more often, or less?")
    lacks = Section("holes", "What would the new policy do that the log never shows?")
    error = Section("variance", "Where does the uncertainty come from?")
    hidden = Section("confounding", "How wrong may the logged propensities be?", CONFOUNDED)
    choices = Section("sensitivity", "How much do other choices change the answer?")
    sections = (
        _estimates(report),
        *_groups(report.groups),
        _part(curse, report.weights, _weights),
        _part(states, report.heat, _marginals),
        _part(Section("value", "Where is the value earned?"), report.value, _value),
        _part(error, report.variance, _variance),
        _part(lacks, report.unlogged, _unlogged),
        _checks(report),
        _part(
            hidden,
            report.confounding,
            lambda section, bounds: replace(
                section, figures=(figures.confounding(report, bounds),)
            ),
        ),
        _part(choices, report.changes, lambda section, c: _sensitivity(section, report, c)),
        log_section(report.log),
        computed_section(computation(report), recipes, report.command),
    )
    simulated = report.truth is not None
    return Page(report.title, answer_of(report), sections, report.remarks, simulated, report.unit)


def _part(
    section: Section, part: Part | Missing, fill: Callable[[Section, Part], Section]
) -> Section:
    """The section with what this part shows, or why it was not computed."""
    if isinstance(part, Missing):
        return replace(section, missing=(f"Not computed: {part.why}.",))
    return fill(section, part)


def checks_table(whose: str, verdicts: list[tuple[str, Verdict]], *, folded: bool = True) -> Table:
    """The level of every gate by estimator or policy, empty where a gate does not concern it;
    those of policies with their verdicts."""
    names = tuple(dict.fromkeys(gate.name for _, v in verdicts for gate in v.gates))
    first = ("verdict",) if whose == "policy" else ()
    rows = []
    for label, verdict in verdicts:
        levels = {"verdict": verdict.level} | {gate.name: gate.level for gate in verdict.gates}
        rows.append((label, *(levels.get(name, "") for name in (*first, *names))))
    columns = (whose, *first, *names)
    return Table(CHECKS.format(whose), columns, tuple(rows), folded=folded, marks=True)


def _groups(groups: GroupTable | None) -> list[Section]:
    """The answer by groups of episodes, where it was requested."""
    if groups is None:
        return []
    caption = f"The answer by {groups.column}"
    numbers = frozenset(range(1, len(groups.columns) - 1))
    table = Table(caption, groups.columns, groups.rows, numbers, folded=False)
    title = f"Does it differ by {groups.column}?"
    return [Section("groups", title, tables=(table,), notes=groups.lines)]


def _some(*maybe: Figure | None) -> tuple[Figure, ...]:
    return tuple(figure for figure in maybe if figure is not None)


def _estimates(report: Report) -> Section:
    title = "Do the estimators agree, and is the new policy better?"
    table = figures.estimates_table(report)
    if report.main is None:
        return Section("estimates", title, "Every estimator refused.", tables=(table,))
    name = report.main.estimator
    intro = (
        f"The answer above is that of {name}." if report.main.reliable else f"{name} has no answer."
    ) + (
        " Different estimators make different mistakes, so agreement is a good sign. One whose "
        "verdict is red should not count."
    )
    notes = []
    if any(row.value is not None for row in report.rows):
        notes.append(ARROWS)
    gains = figures.gains(report)
    known = [row for row in report.rows if row.value is not None and row.trusted]
    lacking = {row.gain_why for row in known if row.gain_why}
    missing = tuple(f"New policy − today's: {why}." for why in sorted(lacking))
    return Section(
        "estimates", title, intro, _some(figures.values(report), gains), notes=tuple(notes),
        missing=missing, wide=True,
    )  # fmt: skip


def _weights(section: Section, weights: Weights) -> Section:
    why = [*weights.missing]
    why += [f"largest weight of the {c.name}: {c.why}" for c in weights.curves if c.why]
    missing = tuple(f"Not computed: {text}." for text in why)
    charts = _some(figures.ess(weights), figures.largest(weights))
    return replace(section, figures=charts, missing=missing)


def _marginals(section: Section, heat: Heat) -> Section:
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
    return replace(section, figures=(figures.marginals(heat),), notes=tuple(notes), heat=heat)


def _value(section: Section, parts: ValueParts) -> Section:
    missing = []
    if parts.per_step is None:
        missing.append(f"Not computed: {parts.estimator} has no value per step.")
    if parts.log is None:
        missing.append(
            "Not computed: what the log earned per step (episodes were cut off, or states hidden)."
        )
    charts = _some(figures.value_steps(parts), figures.value_states(parts))
    return replace(section, figures=charts, missing=tuple(missing))


def _variance(section: Section, parts: Decomposition) -> Section:
    intro = (
        f"The squared standard error of {parts.estimator}, split by step and state: where more "
        "data would help most."
    )
    note = (
        "Wanted / logged: the share of a step's visits that would serve best over the share that "
        "the log has; above 1, more data there helps most."
    )
    charts = _some(figures.variance_steps(parts), figures.variance_states(parts))
    tables = (figures.pairs_table(parts),)
    return replace(section, intro=intro, figures=charts, tables=tables, notes=(note,))


def _unlogged(section: Section, lacks: Unlogged) -> Section:
    if not lacks.rows:
        text = "Nothing: at every step and state, the log shows every action that the target takes."
        return replace(section, intro=text)
    columns: Cells = ("state", "action", "at steps", "target's uses per episode",
                      "log's visits there", "logged at any step")  # fmt: skip
    rows = [
        (
            pair.state,
            pair.action or ("any: no row there" if not pair.visits else "not known"),
            pair.steps,
            _small(pair.mass),
            f"{pair.visits:,}",
            f"{pair.logged:,}" if pair.action is not None else "",
        )
        for pair in lacks.rows
    ]
    if lacks.others[0]:
        rows.append((f"{lacks.others[0]:,} others", "", "", _small(lacks.others[1]), "", ""))
    caption = "Missing in the log, the largest first"
    table = Table(caption, columns, tuple(rows), frozenset({3, 4, 5}), folded=False)
    missing = (f"Not computed: {lacks.note}.",) if lacks.note else ()
    return replace(section, intro=_how_often(lacks), tables=(table,), missing=missing)


def _how_often(lacks: Unlogged) -> str:
    whose = "the target" if lacks.by == "target" else "the log (the target's own are not known)"
    text = (
        f"Weighed by the visits of {whose}, the target takes an action where the log never shows "
        f"it {_small(lacks.mass)} times per episode"
    )
    elsewhere = f"; all but {_small(lacks.never)} times the log shows it at another step"
    if lacks.note:
        elsewhere = ""
    elif lacks.never <= 0:
        elsewhere = "; each of these the log shows at another step"
    elif lacks.never >= (1 - 1e-9) * lacks.mass:
        elsewhere = "; none of these the log shows at any step"
    return (
        f"{text}{elsewhere}. For mis only missing states and actions that the log never takes "
        "matter; a model (dm) misses every one of these."
    )


def _small(mass: float) -> str:
    return f"{mass:.3g}" if mass >= 1e-4 else f"{mass:.1e}"


def _checks(report: Report) -> Section:
    name, title, main = "checks", "Which checks passed?", report.main
    if main is None or main.verdict is None:
        return Section(name, title, missing=("Not computed: there is no estimate to check.",))
    intro = (
        f"Every check of {main.estimator}, on numbers before any normalization. What no check can "
        "see: episodes selected by their outcome, a propensity that belongs to another action, "
        "duplicated episodes."
    )
    columns: Cells = ("check", "result", "what was found", "limits", "what to do")
    rows = tuple(
        (
            gate.name,
            f"{MARKS[gate.level]} {'not checked' if gate.level == 'unknown' else gate.level}",
            reason_text(main, gate),
            gate.limit,
            gate.advice,
        )
        for gate in main.verdict.gates
    )
    tables = [Table(f"Checks of {main.estimator}", columns, rows, folded=False)]
    verdicts = [(e.estimator, e.verdict) for e in report.results if e.verdict is not None]
    if len(verdicts) > 1:
        tables.append(checks_table("estimator", verdicts))
    note = (
        "“total mass” is a hint and makes no verdict; an empty field: the check does not "
        "concern that estimator."
    )
    return Section(name, title, intro, tables=tuple(tables), notes=(note,))


def _sensitivity(section: Section, report: Report, changes: tuple[Change, ...]) -> Section:
    figure = figures.sensitivity(report, changes)
    if figure is None:
        return replace(section, missing=("Not computed: no choice can be changed here.",))
    missing = tuple(
        f"“{change.change}” gave no number: {change.why}."
        for change in changes
        if change.value is None
    )
    return replace(section, figures=(figure,), missing=missing)


# --- the log and the computation, also of a comparison


def log_section(log: Mapping[str, Any]) -> Section:
    """The log as it describes itself."""
    facts = tuple(
        (name.replace("_", " "), _range(value) if name.endswith("_range") else plain_value(value))
        for name, value in (facts_in_words(log) if log else log).items()
        if value != []
    )
    return Section("log", "What is in the log?", facts=facts)


def computed_section(
    facts: Iterable[tuple[str, str]], recipes: Iterable[tuple[str, Recipe]], command: str | None
) -> Section:
    """How it was computed: these facts, the formulas, the versions, and the command to repeat it,
    where there was one."""
    used = ", ".join([f"Python {platform.python_version()}", *installed(LIBRARIES)])
    versions = [("reweigh", __version__), ("with", used)]
    again = [] if command is None else [("command", command)]
    formulas = tuple((name, recipe.formula, recipe.description) for name, recipe in recipes)
    columns = ("estimator", "formula", "variant")
    table = Table("Estimators and their formulas", columns, formulas)
    title = "How was it computed?"
    return Section("computed", title, tables=(table,), facts=(*facts, *versions, *again))


def computation(report: Report) -> Facts:
    """How the numbers of an evaluation came about."""
    facts: list[tuple[str, str]] = []
    main = report.main
    if main is not None:
        recipe = main.recipe
        facts.append(("estimator of the answer", f"{recipe.name}: {recipe.description}"))
        facts.append(("formula", recipe.formula))
        if main.around is not None:
            facts.append(("interval", main.around.method))
        facts.append(("standard error", main.error_method))
        if main.chosen is not None:
            facts.append(("why this estimator", f"auto chose {main.chosen}"))
    facts.append(("requested estimators", ", ".join(e.estimator for e in report.results)))
    facts += [("notation", NOTATION), *report.hashes]
    if report.certificate:
        facts.append(("certificate", report.certificate))
    return tuple(facts)


def _range(value: Any) -> str:
    return "none" if value is None else f"{plain_value(value[0])} to {plain_value(value[1])}"


def answer_of(report: Report) -> Answer:
    """The answer of an evaluation."""
    main, rows = report.main, report.rows
    table = first_table(report, MOST_ROWS)
    if main is None:
        return no_answer(
            _question(report),
            [(e.label, e.refused) for e in rows],
            help=help_after(rows, report.tried),
            table=table,
        )
    reasons = further_reasons(rows[:MOST_ROWS], [*rows, *report.tried])
    return judged(
        main,
        reasons,
        question=_question(report),
        sentence=answer_sentence(main, report.unit),
        table=table,
        alone=len(rows) == 1,
        help=help_after(rows, report.tried),
        better=_better(report, main),
        warnings=warning_lines(main),
    )


def judged(
    e: Evaluation,
    reasons: Sequence[Reason],
    *,
    question: str,
    sentence: str,
    table: Table | None = None,
    more: Iterable[str] = (),
    alone: bool = False,
    help: str = "",
    better: Iterable[str] = (),
    warnings: Iterable[object] = (),
) -> Answer:
    """An answer with its verdict."""
    assert e.verdict is not None
    level = e.verdict.level
    assert level != "unknown"
    return Answer(
        question=question,
        sentence=sentence,
        verdict=level,
        more=tuple(more),
        table=table,
        reasons=tuple(reasons[:MOST_REASONS]),
        hidden=max(len(reasons) - MOST_REASONS, 0),
        alone=alone,
        help=help,
        unchecked=tuple(e.verdict.unchecked_lines()),
        better=tuple(better),
        warnings=tuple(dict.fromkeys(map(str, warnings))),
    )


def no_answer(
    question: str,
    refusals: Iterable[tuple[str, RefusedError | None]],
    *,
    help: str,
    table: Table | None = None,
    warnings: tuple[str, ...] = (),
) -> Answer:
    """Why nothing is answered: the reasons, each with the names of those that gave it."""
    why = by_text((name, error.reason) for name, error in refusals if error is not None)
    reasons = [Reason(tuple(names), "refused", reason) for reason, names in why.items()]
    return Answer(
        question=question,
        sentence="No answer: this log cannot answer the question.",
        verdict="refused",
        table=table,
        reasons=tuple(reasons[:MOST_REASONS]),
        hidden=max(len(reasons) - MOST_REASONS, 0),
        help=help,
        warnings=warnings,
    )


def based_on(n_episodes: int, horizon: int, unit: str = PER_EPISODE) -> str:
    """How much the log has."""
    steps = "one step" if horizon == 1 else f"up to {horizon:,} steps"
    return f"Based on {n_episodes:,} logged {several(unit)} of {steps}"


def _question(report: Report) -> str:
    gamma, less = report.discount, ""
    if gamma != 1:
        less = f"; rewards are discounted by {gamma:g} per step"
    basis = based_on(report.n_episodes, report.horizon, report.unit)
    return (
        f"If {report.target} had chosen the actions, what would the average {one_of(report.unit)} "
        f"have earned? {basis}{less}."
    )


def _better(report: Report, main: Evaluation) -> list[str]:
    """What would narrow the interval."""
    if not main.reliable:
        return []
    n, spread, lines, units = main.n_episodes, report.variance, [], several(report.unit)
    if main.around is not None:
        lines.append(f"An interval half as wide needs about four times as many {units}: {4 * n:,}.")
    states = [] if isinstance(spread, Missing) else spread.states()
    if not states:
        return lines
    top = states[0]
    few = f"State {top.state} causes {top.amount:.0%} of the error (variance): more data there "
    any_kind = f"No single state dominates the error: more {units} of any kind help."
    return [*lines, any_kind if top.amount < 0.05 else f"{few}helps most."]
