"""What the report of a comparison tells: which target is best, and by how much. No drawing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from reweigh.decide.comparison_result import Comparison, Contender, Difference
from reweigh.estimate.recipe import Recipe
from reweigh.evaluation.result import Estimate, Refusal
from reweigh.log.log import EpisodeLog
from reweigh.show.answers import MEANING, no_answer, percent, sentence, span
from reweigh.show.facts import NOTATION, facts_of, formula_of, versions
from reweigh.show.records import Answer, Facts, Reason, Row
from reweigh.system.number_format import number, rounded
from reweigh.trust.intervals import Interval

MEANING_RED = "Do not decide on this ranking: its first number is not to be trusted."


@dataclass(frozen=True, eq=False)
class Compared:
    """A comparison, ready to be told.

    look      the name of the estimator that ranks, without its clipping: charts have its colour
    rows      the targets under the estimator that ranks, the best first, and then those refused;
              intervals are simultaneous, `gain` is target - behaviour
    others    the same under each other estimator: (estimator, rows)
    to_best   the best less each other target, in the order of the ranking
    set_aside the chosen target on the episodes that did not choose it, None without a holdout
    matrix    for every target the level of each gate
    """

    title: str
    answer: Answer
    found: Comparison
    estimator: str
    look: str
    rows: tuple[Row, ...]
    others: tuple[tuple[str, tuple[Row, ...]], ...]
    to_best: tuple[tuple[str, Difference], ...]
    set_aside: Row | None
    gate_names: tuple[str, ...]
    matrix: tuple[tuple[str, tuple[str | None, ...]], ...]
    log: Facts
    computed: Facts
    formulas: tuple[tuple[str, str, str], ...]
    remarks: tuple[str, ...]


def compared(
    found: Comparison,
    *,
    title: str | None = None,
    command: str | None = None,
    remarks: Sequence[str] = (),
    log: EpisodeLog | None = None,
) -> Compared:
    """All parts. `log` is for a comparison in which nothing was answered: an estimate knows its
    own."""
    recipes = {c.estimator: c.result.recipe for c in found.contenders}
    first, *rest = recipes
    rows = _ranked(found, first)
    best = found.best
    names = tuple(dict.fromkeys(gate.name for c in found.ranking for gate in _gates(c)))
    rows_at_hand = _log_of(found) or log
    return Compared(
        title=title or _title(found),
        answer=_answer(found),
        found=found,
        estimator=first,
        look=recipes[first].name,
        rows=rows,
        others=tuple((name, _ranked(found, name)) for name in rest),
        to_best=() if best is None else tuple(_to_best(found, best)),
        set_aside=None if found.held_out is None else _row(found.held_out),
        gate_names=names,
        matrix=tuple((c.target, _levels(c, names)) for c in found.ranking),
        log=() if rows_at_hand is None else facts_of(rows_at_hand.describe()),
        computed=_computed(found, recipes, rows_at_hand, command),
        formulas=tuple((name, *formula_of(recipe)) for name, recipe in recipes.items()),
        remarks=tuple(remarks),
    )


def _targets(found: Comparison) -> list[str]:
    return list(dict.fromkeys(c.target for c in found.contenders))


def _title(found: Comparison) -> str:
    names = _targets(found)
    if len(names) == 1:
        return f"Is “{names[0]}” better than what was logged?"
    return f"Which of {len(names)} policies is best?"


def _ranked(found: Comparison, estimator: str) -> tuple[Row, ...]:
    """The targets under one estimator, the largest value first, those refused last."""
    rows = [_row(c) for c in found.contenders if c.estimator == estimator]
    return tuple(sorted(rows, key=lambda row: math.inf if row.value is None else -row.value))


def _row(c: Contender) -> Row:
    if isinstance(c.result, Refusal):
        reason = c.result.error.reason
        return Row(c.target, None, None, None, None, (), None, None, None, refused=reason)
    over = c.over_behavior
    hidden = c.interval is not None and not c.trusted
    return Row(
        estimator=c.target,
        value=c.result.value,
        text=c.result.value_text(c.result.standard_error),
        error=c.result.standard_error,
        interval=None if hidden else c.interval,
        verdict=c.result.verdict.level,
        reasons=tuple(gate.name for gate in c.result.verdict.reasons),
        ess=c.result.diagnostics.worst_ess,
        gain=None if over is None else over.value,
        gain_interval=None
        if over is None or hidden
        else replace(over.interval, standard_error=over.standard_error),
        no_interval=c.result.not_to_trust if hidden else c.no_interval or "",
        best=c.best,
    )


def _gates(c: Contender) -> tuple[Any, ...]:
    return c.result.verdict.gates if isinstance(c.result, Estimate) else ()


def _levels(c: Contender, names: Sequence[str]) -> tuple[str | None, ...]:
    levels = {gate.name: gate.level for gate in _gates(c)}
    return tuple(levels.get(name) for name in names)


def _to_best(found: Comparison, best: Contender) -> list[tuple[str, Difference]]:
    """(target, best - target) for the others, in the order of the ranking."""
    by_pair = {(d.first, d.second): d for d in found.trusted_pairs}
    rows = []
    for other in found.ranking[1:]:
        straight = by_pair.get((best.name, other.name))
        turned = by_pair.get((other.name, best.name))
        if straight is not None:
            rows.append((other.target, straight))
        elif turned is not None:
            rows.append((other.target, _turned(turned)))
    return rows


def _turned(d: Difference) -> Difference:
    """The same difference the other way round."""
    ends = Interval(-d.interval.high, -d.interval.low, d.interval.level, d.interval.method)
    return replace(
        d, first=d.second, second=d.first, value=-d.value, interval=ends, p_value=1 - d.p_value
    )


# --- the answer in words


def _answer(found: Comparison) -> Answer:
    best = found.best
    if best is None:
        return _refused(found)
    told = best if found.held_out is None else found.held_out
    if isinstance(told.result, Refusal):
        return _refused(found, [told])
    verdict = told.result.verdict
    level = verdict.level
    assert level != "unknown"
    reasons = tuple(
        Reason(gate.level, gate.name, gate.text, gate.advice) for gate in verdict.reasons
    )
    value = told.result.value_text(told.result.standard_error)
    return Answer(
        question=_question(found),
        headline=f"{best.target}: {value} per episode",
        interval=_interval_text(found, told),
        gain=" ".join(_sentences(found, best, told)),
        verdict=level,
        meaning=MEANING_RED if level == "red" else MEANING[level],
        reasons=reasons,
        unchecked=tuple(verdict.unchecked_lines()),
        better=_better(found, best, reasons),
        warnings=tuple(dict.fromkeys([*map(str, told.result.warnings), *found.warnings])),
    )


def _question(found: Comparison) -> str:
    names, result = _targets(found), found.contenders[0].result
    steps = "one step" if result.horizon == 1 else f"up to {result.horizon:,} steps"
    n = found.n_episodes + found.n_held_out
    if len(names) == 1:
        what = f"Would {names[0]} have earned more than the policy that made the log?"
    else:
        what = (
            f"Which of these {len(names)} policies would have earned most, and is it better than "
            "the one that made the log?"
        )
    return f"{what} Judged from {n:,} logged episodes of {steps}."


def _interval_text(found: Comparison, told: Contender) -> str:
    if told.interval is None:
        return f"No interval: {told.no_interval}."
    if not told.trusted:
        return sentence(_row(told).no_interval)
    level, ends = percent(told.interval.level), span(told.interval)
    if found.held_out is not None:
        return f"{level} interval, from {found.n_held_out:,} episodes set aside: {ends}"
    if len(found.answered) == 1:
        return f"{level} interval: {ends}"
    many = len(found.ranking)
    chosen = f"choosing the best of {many}" if many > 1 else "asking several estimators"
    return f"{level} interval, corrected for {chosen}: {ends}"


def _sentences(found: Comparison, best: Contender, told: Contender) -> list[str]:
    lines = []
    over = told.over_behavior
    if over is not None and told.trusted:
        own = found.behavior_value
        if found.held_out is not None and isinstance(told.result, Estimate):
            own = told.result.behavior_value
        lines += _over_log(over, own)
    if found.held_out is not None:
        lines.append(
            f"It was chosen on {found.n_episodes:,} episodes; these numbers are of the "
            f"{found.n_held_out:,} others."
        )
    if len(found.ranking) > 1 and best.best is None:
        lines.append("How likely it is the best is not known: not every one has an interval.")
    elif len(found.ranking) > 1:
        where = "" if found.held_out is None else " by the episodes that chose it"
        tell = "The log tells" if found.held_out is None else "They tell"
        count = len(found.ranking)
        lines.append(f"It is the best of the {count} with probability {best.best:.0%}{where}.")
        apart = {name for name, d in _to_best(found, best) if d.interval.low > 0}
        near = [c.target for c in found.ranking[1:] if c.target not in apart]
        if not near:
            lines.append(f"{tell} it apart from every other.")
        elif len(near) == count - 1:
            lines.append(f"{tell} it apart from no other.")
        else:
            lines.append(f"{tell} it apart from all others but {', '.join(near)}.")
    return lines


def _over_log(over: Difference, own: float | None) -> list[str]:
    if over.value == 0 and over.standard_error == 0:
        return ["That is just what the log's own policy earned."]
    more = "more" if over.value >= 0 else "less"
    text = (
        f"That is {rounded(abs(over.value), over.standard_error)} {more} than the {number(own)} "
        f"that the log's own policy earned ({percent(over.interval.level)} interval of the "
        f"difference: {span(over.interval)})."
    )
    near = over.interval.low <= 0 <= over.interval.high
    return [text, "The log does not tell the two apart."] if near else [text]


def _better(found: Comparison, best: Contender, reasons: Sequence[Reason]) -> tuple[str, ...]:
    lines = list(dict.fromkeys(sentence(reason.advice) for reason in reasons if reason.advice))
    sound = [c for c in found.ranking if _row(c).verdict != "red"]
    if sound and sound[0] is not best:
        lines.append(f"The best whose verdict is not red is {sound[0].target}.")
    near = [name for name, d in _to_best(found, best) if d.interval.low <= 0]
    if near:
        lines.append(
            "Policies that are not told apart need more episodes (reweigh plan tells how many), or "
            "another reason to choose: the cheaper one, the safer one."
        )
    if found.held_out is None and found.tried > len(found.contenders):
        lines.append(
            f"{found.tried} pairs of a policy and an estimator were tried on this log: choose on "
            "one part of the episodes and report on another (holdout)."
        )
    return tuple(lines)


def _refused(found: Comparison, which: Sequence[Contender] | None = None) -> Answer:
    return no_answer(
        _question(found),
        [(c.name, c.result) for c in which or found.contenders],
        better=("Ask for targets nearer to the policy that made the log, or for fewer steps.",),
        warnings=found.warnings,
    )


# --- how it was computed


def _log_of(found: Comparison) -> EpisodeLog | None:
    for c in found.contenders:
        if isinstance(c.result, Estimate):
            return c.result.grounds.evidence.log
    return None


def _computed(
    found: Comparison, recipes: Mapping[str, Recipe], log: EpisodeLog | None, command: str | None
) -> Facts:
    first, recipe = next(iter(recipes.items()))
    text, variant = formula_of(recipe)
    facts = [
        ("estimator that ranks", f"{first}: {variant}"),
        ("formula", text),
        (
            "intervals",
            f"simultaneous at {percent(found.level)} over all that is compared, so that they hold "
            "for the one that is picked because it looks best: the largest |t| of the family, from "
            f"draws of the estimates' joint errors (seed {found.seed})",
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
        ("tried on this log", f"{found.tried:,} pairs of a policy and an estimator"),
    ]
    if found.auto is not None:
        facts.append(("why this estimator", " ".join(map(str.strip, found.auto.lines()))))
    if found.held_out is not None:
        facts.append(
            (
                "set aside",
                f"{found.n_held_out:,} episodes, by the hash of their ids; {found.chosen} was "
                f"chosen on the {found.n_episodes:,} others",
            )
        )
    if len(recipes) > 1:
        facts.append(("estimators asked for", ", ".join(recipes)))
    facts.append(("notation", NOTATION))
    if log is not None:
        facts.append(("hash of the episodes", log.episodes_digest()))
    for c in found.contenders:
        target = c.result.grounds.evidence.target if isinstance(c.result, Estimate) else None
        if target is not None and c.estimator == first:
            facts.append((f"hash of {c.target}", target.fingerprint()))
    return (*facts, *versions(command))
