"""The report of a comparison: which policy is best, and by how much."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from reweigh.decide.contenders import Comparison, Contender, Difference, chance
from reweigh.estimate.estimator import Recipe
from reweigh.evaluation.result import Estimate
from reweigh.log.log import EpisodeLog
from reweigh.show.charts import forest
from reweigh.show.html import Answer, Cells, Figure, Page, Section, Table
from reweigh.show.html.answer import NOT_APART, judged, judged_from, no_answer, over_log
from reweigh.show.html.figures import gain_cells
from reweigh.show.html.sections import (
    ARROWS,
    NOTATION,
    checks_table,
    computed_section,
    log_section,
)
from reweigh.show.record import NO_TRUST, Evaluation, Facts
from reweigh.show.text import display_names, interval_cell, percent, sentence, signed, span
from reweigh.system import number
from reweigh.system.files import files_behind

SHOWN = 40  # policies in a chart; tables hold all
RED = "Do not decide on this ranking: its first number is not to be trusted."
TOLD_APART = "an interval without 0 tells them apart."


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
) -> Path:
    """Write the report of a comparison; see `comparison_page`."""
    data = [e.uncertainty.data for e in _estimates(comparison)]
    page = comparison_page(comparison, title=title, command=command, remarks=remarks, log=log)
    return page.write(path, files_behind(*data, log), overwrite=overwrite, words=words)


def comparison_page(
    comparison: Comparison,
    *,
    title: str | None = None,
    command: str | None = None,
    remarks: Sequence[str] = (),
    log: EpisodeLog | None = None,
) -> Page:
    """The page. `log` is for a comparison in which nothing was answered: an estimate knows its
    own."""
    recipes = {c.estimator: c.result.recipe for c in comparison.contenders}
    names = _targets(comparison)
    what = f"Which of {len(names)} policies is best?"
    if len(names) == 1:
        what = f"Is “{names[0]}” better than what was logged?"
    log = next((e.uncertainty.data.log for e in _estimates(comparison)), log)
    sections = (
        _ranking(comparison),
        _differences(comparison),
        _checks(comparison),
        _other_estimators(comparison, list(recipes)[1:]),
        _tried(comparison),
        log_section({} if log is None else log.describe()),
        computed_section(_computation(comparison, recipes, log), recipes.items(), command),
    )
    present = tuple(section for section in sections if section is not None)
    return Page(title or what, answer_of(comparison), present, tuple(remarks))


def ranked_rows(comparison: Comparison, estimator: str | None = None) -> list[Evaluation]:
    """The policies under one estimator, the first unless named: the largest value first, those
    refused last. Intervals are simultaneous."""
    name = estimator or comparison.contenders[0].estimator
    rows = [c.evaluation for c in comparison.contenders if c.estimator == name]
    return sorted(rows, key=lambda row: math.inf if row.value is None else -row.value)


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


def answer_of(comparison: Comparison) -> Answer:
    """The best policy: with a holdout, on the episodes that did not choose it."""
    best = comparison.best
    reported = best if comparison.held_out is None else comparison.held_out
    if best is None or reported is None:
        return _refused(comparison, comparison.contenders)
    if not isinstance(reported.result, Estimate):
        return _refused(comparison, [reported])
    verdict = reported.result.verdict
    return judged(
        verdict,
        question=_question(comparison),
        headline=f"{best.target}: {reported.evaluation.text} per episode",
        interval=_interval_text(comparison, reported),
        gain=" ".join(_sentences(comparison, best, reported)),
        better=_better(comparison, best),
        warnings=[*reported.result.warnings, *comparison.warnings],
        meaning=RED if verdict.level == "red" else "",
    )


def _refused(comparison: Comparison, contenders: Sequence[Contender]) -> Answer:
    errors = [(c.name, c.evaluation.refused) for c in contenders]
    better = ("Ask for targets nearer to the policy that made the log, or for fewer steps.",)
    return no_answer(_question(comparison), errors, better=better, warnings=comparison.warnings)


def _question(comparison: Comparison) -> str:
    names, horizon = _targets(comparison), comparison.contenders[0].result.horizon
    what = (
        f"Which of these {len(names)} policies would have earned most, and is it better than "
        "the one that made the log?"
    )
    if len(names) == 1:
        what = f"Would {names[0]} have earned more than the policy that made the log?"
    return f"{what} {judged_from(comparison.n_episodes + comparison.n_held_out, horizon)}."


def _interval_text(comparison: Comparison, reported: Contender) -> str:
    interval, many = reported.interval, len(comparison.ranking)
    if interval is None:
        return f"No interval: {reported.no_interval}."
    if not reported.trusted:
        return sentence(reported.evaluation.no_interval)
    choice = f"choosing the best of {many}" if many > 1 else "asking several estimators"
    how = f", corrected for {choice}"
    if comparison.held_out is not None:
        how = f", from {comparison.n_held_out:,} episodes set aside"
    elif len(comparison.answered) == 1:
        how = ""
    return f"{percent(interval.level)} interval{how}: {span(interval)}"


def _sentences(comparison: Comparison, best: Contender, reported: Contender) -> Iterator[str]:
    over, count = reported.over_behavior, len(comparison.ranking)
    by, log = "", "The log tells"
    behavior = comparison.behavior_value
    if comparison.held_out is not None:
        behavior = reported.evaluation.behavior_value
    if over is not None and reported.trusted:
        yield _over_log(over, behavior)
    if comparison.held_out is not None:
        by, log = " by the episodes that chose it", "They tell"
        yield (
            f"It was chosen on {comparison.n_episodes:,} episodes; these numbers are of the "
            f"{comparison.n_held_out:,} others."
        )
    if count > 1 and best.best is None:
        yield "How likely it is the best is not known: not every one has an interval."
    elif count > 1:
        apart = {name for name, d in to_best(comparison) if d.interval.low > 0}
        near = [c.target for c in comparison.ranking[1:] if c.target not in apart]
        which = f"all others but {', '.join(near)}" if near else "every other"
        which = "no other" if len(near) == count - 1 else which
        yield f"It is the best of the {count} with probability {best.best:.0%}{by}."
        yield f"{log} it apart from {which}."


def _over_log(over: Difference, behavior: float | None) -> str:
    if over.value == 0 and over.standard_error == 0:
        return "That is just what the log's own policy earned."
    text = over_log(over.value, number(behavior), over.interval, over.standard_error) + ")."
    return text if over.told_apart else f"{text} {NOT_APART}"


def _better(comparison: Comparison, best: Contender) -> Iterator[str]:
    sound = [c for c in comparison.ranking if c.evaluation.level != "red"]
    if sound and sound[0] is not best:
        yield f"The best whose verdict is not red is {sound[0].target}."
    if any(d.interval.low <= 0 for _, d in to_best(comparison)):
        yield (
            "Policies that are not told apart need more episodes (reweigh plan tells how many), or "
            "another reason to choose: the cheaper one, the safer one."
        )
    if comparison.held_out is None and comparison.tried > len(comparison.contenders):
        yield (
            f"{comparison.tried} pairs of a policy and an estimator were tried on this log: choose "
            "on one part of the episodes and report on another (holdout)."
        )


# --- the sections


def _ranking(comparison: Comparison) -> Section:
    name, title = "ranking", "The policies, ranked"
    first = comparison.contenders[0]
    estimator, look = first.estimator, first.result.recipe.name  # a chart has its color
    rows, behavior = ranked_rows(comparison), comparison.behavior_value
    table = _ranking_table(comparison, estimator)
    known = [row for row in rows if row.value is not None]
    if not known:
        return Section(name, title, "Every policy was refused.", tables=(table,))
    intro = (
        f"Values by {estimator}. The intervals hold for all rows at once, so also for "
        "the policy of these that is picked because it looks best."
    )
    notes = [ARROWS]
    for row in known:
        lacks = row.no_interval
        lacks = lacks if lacks.startswith(NO_TRUST) else f"no interval: {lacks}"
        notes += [f"{row.label} has {lacks}."] if row.no_interval else []
    notes += _left_out(len(known), "policies")
    text = _first_and_last(known, behavior)
    values = Figure(
        "targets", text, table, lambda: forest.values(known[:SHOWN], behavior, look=look)
    )
    gained = [row for row in known if row.gain_interval is not None]
    figures = (values, _gains(gained, look)) if gained else (values,)
    return Section(name, title, intro, figures, notes=tuple(notes), wide=True)


def _left_out(many: int, what: str) -> list[str]:
    return [f"The charts show the first {SHOWN} of {many} {what}."] if many > SHOWN else []


def _first_and_last(known: list[Evaluation], behavior: float | None) -> str:
    first, last = known[0], known[-1]
    text = f"{first.label} comes first with {first.text}"
    text += "" if first.around is None else f" ({span(first.around)})"
    text += f", {last.label} last with {last.text}." if len(known) > 1 else "."
    if behavior is not None:
        text += f" The log's own policy earned {number(behavior)}."
    red = sum(row.level == "red" for row in known)
    if red:
        text += f" {red} of {len(known)} {'has' if red == 1 else 'have'} a red verdict (✕)."
    return text


def _ranking_table(comparison: Comparison, estimator: str) -> Table:
    """The policies by this estimator, with their probabilities of being best if it ranks."""
    columns: Cells = ("policy", "rank", "value", "interval", "more than the log's policy",
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
        f"{who} better beyond chance. Both values come from the same episodes, so what they have "
        f"in common cancels; {TOLD_APART}"
    )
    columns = ("policy", "policy − behaviour", "interval")
    cells = tuple(gain_cells(rows))
    table = Table("Policy − behaviour", columns, cells, frozenset({1, 2}))
    return Figure("over_log", text, table, lambda: forest.gains(rows[:SHOWN], look=look))


def _differences(comparison: Comparison) -> Section | None:
    """None where there is one policy."""
    others = list(to_best(comparison))
    if not others:
        return None
    best = comparison.ranking[0]
    bars = [
        (name, d.value, d.interval, d.standard_error, "told apart" if d.told_apart else "not told")
        for name, d in others[:SHOWN]
    ]
    axis = f"{display_names([best.target])[best.target]} − the other, per episode"
    apart = sum(d.interval.low > 0 for _, d in others)
    figure = Figure(
        "to_best",
        f"{best.target} is told apart from {apart} of {len(others)} others.",
        _pairs_table(f"{best.target} less each other policy", [d for _, d in others], best),
        lambda: forest.forest(bars, [(0.0, "no difference")], axis, best.result.recipe.name),
    )
    intro = (
        "Differences are paired: what two policies' values on one log have in common cancels, so "
        "they are more precise than the two intervals suggest."
    )
    pairs = comparison.trusted_pairs
    tables = (_pairs_table("All pairs", pairs, best),) if len(pairs) > len(others) else ()
    notes, title = tuple(_left_out(len(others), "differences")), "Differences between the policies"
    return Section("differences", title, intro, (figure,), tables, notes=notes)


def _pairs_table(caption: str, pairs: Sequence[Difference], best: Contender) -> Table:
    columns: Cells = ("difference", "by", "interval", "p, one-sided", "told apart")
    rows = tuple(
        (
            " − ".join(name.removesuffix(f", {best.estimator}") for name in (d.first, d.second)),
            signed(d.value, d.standard_error),
            span(d.interval),
            f"{d.p_value:.2g}",
            "yes" if d.told_apart else "no",
        )
        for d in pairs
    )
    return Table(caption, columns, rows, frozenset({1, 2, 3}))


def _checks(comparison: Comparison) -> Section:
    name, title = "checks", "The verdict of each"
    verdicts = [
        (c.target, c.result.verdict) for c in comparison.ranking if isinstance(c.result, Estimate)
    ]
    if not verdicts:
        return Section(name, title, missing=("Not computed: there is no estimate to check.",))
    intro = (
        "Every policy is judged on its own: one that is far from what was logged may be red where "
        "another is green. No check sees episodes selected by their outcome, a propensity that "
        "belongs to another action, or duplicated episodes."
    )
    note = (
        "“total mass” is a hint and makes no verdict. For what was found, and what to do, "
        "evaluate a policy alone."
    )
    table = checks_table("policy", verdicts, folded=False)
    return Section(name, title, intro, tables=(table,), notes=(note,))


def _other_estimators(comparison: Comparison, names: Sequence[str]) -> Section | None:
    """None where one estimator was asked."""
    if not names:
        return None
    intro = (
        f"The ranking is that of {comparison.contenders[0].estimator}, which was named first. "
        "Estimators make different mistakes: that they agree is a good sign."
    )
    tables = tuple(_ranking_table(comparison, name) for name in names)
    notes = tuple(
        f"{d.first} and {d.second} differ by {number(d.value)} ({span(d.interval)}), more than "
        "their joint error explains: one of them is biased here."
        for d in comparison.disagreeing
    )
    notes = notes or ("No two estimators of a policy differ by more than their joint error.",)
    return Section("estimators", "The other estimators", intro, tables=tables, notes=notes)


def _tried(comparison: Comparison) -> Section:
    facts = [
        ("pairs of a policy and an estimator tried on this log", f"{comparison.tried:,}"),
        ("episodes that ranked the policies", f"{comparison.n_episodes:,}"),
    ]
    if comparison.held_out is None:
        facts.append(("episodes set aside", "none: the intervals are widened for the choice"))
    else:
        row = comparison.held_out.evaluation
        around = "no interval" if row.around is None else span(row.around)
        text = f"{row.text} ({around})"
        text = text if row.refused is None else f"refused: {row.refused.reason}"
        facts.append(("episodes set aside", f"{comparison.n_held_out:,}"))
        facts.append((f"{comparison.chosen} on these", text))
    return Section("tried", "How much was tried, and on what", facts=tuple(facts))


def _computation(
    comparison: Comparison, recipes: dict[str, Recipe], log: EpisodeLog | None
) -> Facts:
    first, recipe = next(iter(recipes.items()))
    facts = [
        ("estimator that ranks", f"{first}: {recipe.description}"),
        ("formula", recipe.formula),
        (
            "intervals",
            f"simultaneous at {percent(comparison.level)} over all that is compared, so that they "
            "hold for the one that is picked because it looks best: the largest |t| of the family, "
            f"from draws of the estimates' joint errors (seed {comparison.seed})",
        ),
        (
            "differences",
            "paired, by the influence of each episode: what two estimates of one log share cancels",
        ),
        (
            "probability of being best",
            "how often a target comes first when errors of that size fall anew around the "
            "estimates; it is no promise that the estimates are unbiased",
        ),
        ("tried on this log", f"{comparison.tried:,} pairs of a policy and an estimator"),
    ]
    if comparison.auto is not None:
        facts.append(("why this estimator", " ".join(map(str.strip, comparison.auto.lines()))))
    if comparison.held_out is not None:
        aside = f"{comparison.n_held_out:,} episodes, by the hash of their ids; {comparison.chosen}"
        facts.append(("set aside", f"{aside} was chosen on the {comparison.n_episodes:,} others"))
    if len(recipes) > 1:
        facts.append(("estimators asked for", ", ".join(recipes)))
    facts.append(("notation", NOTATION))
    if log is not None:
        facts.append(("hash of the episodes", log.episodes_digest()))
    for c in comparison.answered:
        target = c.result.uncertainty.data.target if isinstance(c.result, Estimate) else None
        if target is not None and c.estimator == first:
            facts.append((f"hash of {c.target}", target.fingerprint()))
    return tuple(facts)
