"""The report of a comparison: which policy is best, and by how much."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from reweigh.decide.contenders import (
    Comparison,
    Contender,
    Difference,
    best_sentence,
    chance,
    ranked_rows,
    reasons_and_help,
    reported_on,
)
from reweigh.estimate.estimator import Recipe
from reweigh.evaluation.result import Estimate
from reweigh.log.log import EpisodeLog
from reweigh.show.charts import forest
from reweigh.show.first_screen import nothing_answers
from reweigh.show.html import Answer, Cells, Figure, Page, Section, Table
from reweigh.show.html.figures import gain_cells
from reweigh.show.html.sections import (
    ARROWS,
    NOTATION,
    based_on,
    checks_table,
    computed_section,
    judged,
    log_section,
    no_answer,
)
from reweigh.show.record import PER_EPISODE, Evaluation, Facts
from reweigh.show.text import (
    check_unit,
    display_names,
    interval_cell,
    percent,
    signed,
    span,
    warning_lines,
)
from reweigh.system import number
from reweigh.system.files import files_behind

MOST_IN_CHART = 40  # policies in a chart; tables hold all
CLEAR_DIFFERENCE = "an interval without 0 shows a clear difference."


def write_comparison(
    comparison: Comparison,
    path: str | Path,
    *,
    overwrite: bool = False,
    words: Callable[[str], str] = str,
    title: str | None = None,
    command: str | None = None,
    remarks: Sequence[str] = (),
    log: EpisodeLog | None = None,
    unit: str = PER_EPISODE,
) -> Path:
    """Write the report of a comparison; see `comparison_page`."""
    data = [e.uncertainty.data for e in _estimates(comparison)]
    page = comparison_page(
        comparison, title=title, command=command, remarks=remarks, log=log, unit=unit
    )
    return page.write(path, files_behind(*data, log), overwrite=overwrite, words=words)


def comparison_page(
    comparison: Comparison,
    *,
    title: str | None = None,
    command: str | None = None,
    remarks: Sequence[str] = (),
    log: EpisodeLog | None = None,
    unit: str = PER_EPISODE,
) -> Page:
    """The page. `log` is for a comparison without any estimate: an estimate has its own log."""
    recipes = {c.estimator: c.result.recipe for c in comparison.contenders}
    names = _targets(comparison)
    one = f"Is “{names[0]}” better than the logged policy?"
    title = title or (one if len(names) == 1 else f"Which of {len(names)} policies is best?")
    log = next((e.uncertainty.data.log for e in _estimates(comparison)), log)
    present = (
        _ranking(comparison),
        _differences(comparison),
        _checks(comparison),
        _other_estimators(comparison, list(recipes)[1:]),
        _tried(comparison),
        log_section({} if log is None else log.describe()),
        computed_section(_computation(comparison, recipes, log), recipes.items(), command),
    )
    sections = tuple(section for section in present if section is not None)
    answer = answer_of(comparison, check_unit(unit))
    return Page(title, answer, sections, tuple(remarks), unit=unit)


def to_best(comparison: Comparison) -> Iterator[tuple[str, Difference]]:
    """(policy, the best less that policy) for the others, in the order of the ranking."""
    pairs = comparison.trusted_pairs
    by_pair = {(d.first, d.second): d for d in (*pairs, *(d.reversed() for d in pairs))}
    for other in comparison.ranking[1:]:
        pair = comparison.ranking[0].name, other.name
        if pair in by_pair:
            yield other.target, by_pair[pair]


def _estimates(comparison: Comparison) -> list[Estimate]:
    return [c.result for c in comparison.contenders if isinstance(c.result, Estimate)]


def _targets(comparison: Comparison) -> list[str]:
    return list(dict.fromkeys(c.target for c in comparison.contenders))


# --- the answer in words


def answer_of(comparison: Comparison, unit: str = PER_EPISODE) -> Answer:
    """The best policy: with a holdout, on the episodes that did not choose it."""
    reported = reported_on(comparison)
    if reported is None:
        return _refused(comparison, comparison.contenders, unit)
    if not isinstance(reported.result, Estimate):
        return _refused(comparison, [reported], unit)
    reasons, help = reasons_and_help(comparison)
    e = reported.evaluation
    return judged(
        e,
        reasons,
        question=_question(comparison, unit),
        sentence=best_sentence(comparison, unit),
        more=_sentences(comparison, reported),
        help=help,
        better=_better(comparison),
        warnings=[*warning_lines(e), *comparison.warnings],
    )


def _refused(comparison: Comparison, contenders: Sequence[Contender], unit: str) -> Answer:
    errors = [(c.name, c.evaluation.refused) for c in contenders]
    help = nothing_answers([c.evaluation for c in contenders], what="policies")
    question = _question(comparison, unit)
    return no_answer(question, errors, help=help, warnings=comparison.warnings)


def _question(comparison: Comparison, unit: str) -> str:
    names, horizon = _targets(comparison), comparison.contenders[0].result.horizon
    what = f"Which of these {len(names)} policies would have earned most, and more than today's?"
    if len(names) == 1:
        what = f"Would {names[0]} have earned more than today's policy?"
    n = comparison.n_episodes + comparison.n_held_out
    return f"{what} {based_on(n, horizon, unit)}."


def _sentences(comparison: Comparison, reported: Contender) -> Iterator[str]:
    best, count = comparison.best, len(comparison.ranking)
    assert best is not None
    by = ""
    if comparison.held_out is not None:
        by = " by the episodes that chose it"
        yield (
            f"It was chosen on {comparison.n_episodes:,} episodes; these numbers come from "
            f"the {comparison.n_held_out:,} others."
        )
    if not reported.trusted:
        return
    if count > 1 and best.best is None:
        yield "How likely it is the best is not known: not every policy has an interval."
    elif count > 1:
        apart = {name for name, d in to_best(comparison) if d.interval.low > 0}
        near = [c.target for c in comparison.ranking[1:] if c.target not in apart]
        clearly = f"clearly better than all others but {', '.join(near)}"
        if not near:
            clearly = "clearly better than every other"
        elif len(near) == count - 1:
            clearly = "not clearly better than any other"
        yield f"It is the best of the {count} with probability {best.best:.0%}{by}: {clearly}."


def _better(comparison: Comparison) -> Iterator[str]:
    best = comparison.best
    sound = [c for c in comparison.ranking if c.evaluation.level != "red"]
    if sound and sound[0] is not best:
        yield f"The best whose verdict is not red is {sound[0].target}."
    if any(d.interval.low <= 0 for _, d in to_best(comparison)):
        yield (
            "To tell apart policies that do not clearly differ, log more episodes (reweigh plan "
            "computes how many), or choose for another reason: the cheaper one, the safer one."
        )
    if comparison.held_out is None and comparison.tried > len(comparison.contenders):
        yield (
            f"{comparison.tried} pairs of a policy and an estimator have been tried on this "
            "log: choose on one part of the episodes and report on another (holdout)."
        )


# --- the sections


def _ranking(comparison: Comparison) -> Section:
    name, title = "ranking", "What would each policy earn?"
    first = comparison.contenders[0]
    estimator, look = first.estimator, first.result.recipe.name  # a chart has its color
    rows, behavior = ranked_rows(comparison), comparison.behavior_value
    table = _ranking_table(comparison, estimator)
    known = [row for row in rows if row.value is not None]
    if not known:
        return Section(name, title, "Every policy was refused.", tables=(table,))
    intro = (
        f"Values by {estimator}. The intervals hold for all rows simultaneously, so they "
        "also hold for the policy that is chosen because it looks best."
    )
    notes = [ARROWS]
    for row in (row for row in known if row.no_interval):
        lacks = f"has no interval: {row.no_interval}" if row.trusted else "is not reliable"
        notes.append(f"{row.label} {lacks}.")
    notes += _left_out(len(known), "policies")
    text = _first_and_last(known, behavior)
    values = Figure(
        "targets", text, table, lambda: forest.values(known[:MOST_IN_CHART], behavior, look=look)
    )
    gained = [row for row in known if row.gain_interval is not None]
    figures = (values, _gains(gained, look)) if gained else (values,)
    return Section(name, title, intro, figures, notes=tuple(notes), wide=True)


def _left_out(many: int, what: str) -> list[str]:
    return (
        [f"The charts show the first {MOST_IN_CHART} of {many} {what}."]
        if many > MOST_IN_CHART
        else []
    )


def _first_and_last(known: list[Evaluation], behavior: float | None) -> str:
    first, last = known[0], known[-1]
    text = f"{first.label} comes first with {first.text}"
    text += "" if first.around is None else f" ({span(first.around)})"
    text += f", {last.label} last with {last.text}." if len(known) > 1 else "."
    if behavior is not None:
        text += f" Today's policy earned {number(behavior)}."
    red = sum(row.level == "red" for row in known)
    if red:
        text += f" {red} of {len(known)} {'is' if red == 1 else 'are'} not reliable (✕)."
    return text


def _ranking_table(comparison: Comparison, estimator: str) -> Table:
    """The policies by this estimator, with their probabilities of being best if it ranks."""
    columns: Cells = ("policy", "rank", "value", "interval", "more than today's",
                      "its interval", "best with probability", "verdict",
                      "because of")  # fmt: skip
    ranks = estimator == comparison.contenders[0].estimator
    cells: list[Cells] = []
    for rank, row in enumerate(ranked_rows(comparison, estimator), 1):
        if row.refused is not None:
            cells.append((row.label, "", "refused", *[""] * 4, "refused", row.refused.reason))
            continue
        gain = gain_cells([row]) or [("", "", "")]
        best = chance(row.best) if ranks else ""
        value = (row.label, str(rank), row.text, interval_cell(row))
        cells.append((*value, *gain[0][1:], best, row.level or "", ", ".join(row.reasons)))
    caption = f"The policies by {estimator}"
    return Table(caption, columns, tuple(cells), frozenset({1, 2, 3, 4, 5, 6}), folded=False)


def _gains(rows: list[Evaluation], look: str) -> Figure:
    better = [row.label for row in rows if row.gain_interval and row.gain_interval.low > 0]
    who = "None is" if not better else f"{', '.join(better)} {'is' if len(better) == 1 else 'are'}"
    text = (
        f"{who} clearly better. Both values come from the same episodes, so their common "
        f"noise cancels; {CLEAR_DIFFERENCE}"
    )
    columns = ("policy", "policy − today", "interval")
    cells = tuple(gain_cells(rows))
    table = Table("Policy − today's", columns, cells, frozenset({1, 2}))
    return Figure("over_log", text, table, lambda: forest.gains(rows[:MOST_IN_CHART], look=look))


def _differences(comparison: Comparison) -> Section | None:
    """None where there is one policy."""
    others = list(to_best(comparison))
    if not others:
        return None
    best = comparison.ranking[0]
    bars = [
        (
            name,
            d.value,
            d.interval,
            d.standard_error,
            "clear difference" if d.differs_clearly else "no clear difference",
        )
        for name, d in others[:MOST_IN_CHART]
    ]
    axis = f"{display_names([best.target])[best.target]} − the other, per episode"
    apart = sum(d.interval.low > 0 for _, d in others)
    figure = Figure(
        "to_best",
        f"{best.target} is clearly better than {apart} of {len(others)} others.",
        _pairs_table(f"{best.target} less each other policy", [d for _, d in others], best),
        lambda: forest.forest(bars, [(0.0, "no difference")], axis, best.result.recipe.name),
    )
    intro = (
        "Differences are paired: the common noise of two values from one log cancels, so "
        "they are more precise than the two intervals suggest."
    )
    pairs = comparison.trusted_pairs
    tables = (_pairs_table("All pairs", pairs, best),) if len(pairs) > len(others) else ()
    notes, title = tuple(_left_out(len(others), "differences")), "How much do the policies differ?"
    return Section("differences", title, intro, (figure,), tables, notes=notes)


def _pairs_table(caption: str, pairs: Sequence[Difference], best: Contender) -> Table:
    columns: Cells = ("difference", "by", "interval", "p, one-sided", "clear difference")
    rows = tuple(
        (
            " − ".join(name.removesuffix(f", {best.estimator}") for name in (d.first, d.second)),
            signed(d.value, d.standard_error),
            span(d.interval),
            f"{d.p_value:.2g}",
            "yes" if d.differs_clearly else "no",
        )
        for d in pairs
    )
    return Table(caption, columns, rows, frozenset({1, 2, 3}))


def _checks(comparison: Comparison) -> Section:
    name, title = "checks", "Which policies can be relied on?"
    verdicts = [
        (c.target, c.result.verdict) for c in comparison.ranking if isinstance(c.result, Estimate)
    ]
    if not verdicts:
        return Section(name, title, missing=("Not computed: there is no estimate to check.",))
    intro = (
        "Every policy is checked separately: one that is far from the logged policy can be "
        "red while another is green. No check detects episodes selected by their outcome, "
        "propensities of another action, or duplicated episodes."
    )
    note = (
        "“total mass” is a hint and does not affect the verdict. For details and advice, "
        "evaluate a policy alone."
    )
    table = checks_table("policy", verdicts, folded=False)
    return Section(name, title, intro, tables=(table,), notes=(note,))


def _other_estimators(comparison: Comparison, names: Sequence[str]) -> Section | None:
    """None if there is only one estimator."""
    if not names:
        return None
    intro = (
        f"The ranking is by {comparison.contenders[0].estimator}, the first estimator named. "
        "Estimators make different mistakes, so agreement is a good sign."
    )
    tables = tuple(_ranking_table(comparison, name) for name in names)
    notes = tuple(
        f"{d.first} and {d.second} differ by {number(d.value)} ({span(d.interval)}), more "
        "than their joint standard error explains: one of them is biased."
        for d in comparison.disagreeing
    )
    notes = notes or ("No two estimators of a policy differ by more than their joint error.",)
    return Section(
        "estimators", "What do the other estimators say?", intro, tables=tables, notes=notes
    )


def _tried(comparison: Comparison) -> Section:
    facts = [
        ("pairs of a policy and an estimator tried on this log", f"{comparison.tried:,}"),
        ("episodes that ranked the policies", f"{comparison.n_episodes:,}"),
    ]
    if comparison.held_out is None:
        facts.append(("episodes set aside", "none: the intervals are widened for the choice"))
    else:
        row = comparison.held_out.evaluation
        text = f"{row.text} ({'no interval' if row.around is None else span(row.around)})"
        text = text if row.refused is None else f"refused: {row.refused.reason}"
        facts.append(("episodes set aside", f"{comparison.n_held_out:,}"))
        facts.append((f"{comparison.chosen} on these", text))
    return Section("tried", "How much was tried?", facts=tuple(facts))


def _computation(
    comparison: Comparison, recipes: dict[str, Recipe], log: EpisodeLog | None
) -> Facts:
    first, recipe = next(iter(recipes.items()))
    facts = [
        ("estimator that ranks", f"{first}: {recipe.description}"),
        ("formula", recipe.formula),
        (
            "intervals",
            f"simultaneous at {percent(comparison.level)} over all comparisons, so they also "
            "hold for the policy chosen because it looks best: the largest |t| of the "
            f"family, from draws of the estimates' joint errors (seed {comparison.seed})",
        ),
        (
            "differences",
            "paired, by the influence of each episode: the common noise of two estimates cancels",
        ),
        (
            "probability of being best",
            "how often a target comes first if errors of that size are redrawn around the "
            "estimates; this assumes that the estimates are unbiased",
        ),
        ("tried on this log", f"{comparison.tried:,} pairs of a policy and an estimator"),
    ]
    if comparison.auto is not None:
        facts.append(("why this estimator", " ".join(map(str.strip, comparison.auto.lines()))))
    if comparison.held_out is not None:
        aside = f"{comparison.n_held_out:,} episodes, by the hash of their ids; {comparison.chosen}"
        facts.append(("set aside", f"{aside} was chosen on the {comparison.n_episodes:,} others"))
    if len(recipes) > 1:
        facts.append(("estimators requested", ", ".join(recipes)))
    facts.append(("notation", NOTATION))
    if log is not None:
        facts.append(("hash of the episodes", log.episodes_digest()))
    for c in comparison.answered:
        target = c.result.uncertainty.data.target if isinstance(c.result, Estimate) else None
        if target is not None and c.estimator == first:
            facts.append((f"hash of {c.target}", target.fingerprint()))
    return tuple(facts)
