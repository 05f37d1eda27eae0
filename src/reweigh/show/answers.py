"""The question, the answer and the verdict in words; and a row per estimator."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import PurePath

from reweigh.errors import RefusedError
from reweigh.evaluation.result import NO_TRUST, Estimate, Gain, Refusal
from reweigh.show.basis import LEVEL, Basis, Missing
from reweigh.show.records import Answer, Reason, Row, VarianceParts
from reweigh.system.number_format import number, p_text, rounded
from reweigh.trust.intervals import Asked, Interval, from_error

FILE = re.compile(r"\.\w{1,8}$")  # what the names of files end in
MEANING = {
    "green": "No check speaks against this number.",
    "amber": "Use this number with the reasons below in mind.",
    "red": "Do not decide on this number.",
    "refused": "There is no number: this log cannot answer the question.",
}


def rows_of(basis: Basis) -> tuple[Row, ...]:
    """Every estimator that was asked for: the answer's first, then by their verdicts; those of one
    verdict in the order given."""
    pairs = zip(basis.results, basis.intervals, strict=True)
    rows = [(_row(result, interval), result is basis.main) for result, interval in pairs]
    order = {"green": 0, "amber": 1, "red": 2, None: 3}
    ranked = sorted(rows, key=lambda pair: (not pair[1], order.get(pair[0].verdict, 3)))
    return _told_apart([row for row, _ in ranked])


def _told_apart(rows: list[Row]) -> tuple[Row, ...]:
    """The same estimator may be there twice, with other options: the later ones are numbered."""
    count: dict[str, int] = {}
    found = []
    for row in rows:
        k = count[row.estimator] = count.get(row.estimator, 0) + 1
        found.append(row if k == 1 else replace(row, estimator=f"{row.estimator} #{k}"))
    return tuple(found)


def _row(result: Estimate | Refusal, interval: Interval | None) -> Row:
    if isinstance(result, Refusal):
        reason = result.error.reason
        return Row(result.estimator, None, None, None, None, (), None, None, None, refused=reason)
    level = LEVEL if interval is None else interval.level
    row = Row(
        estimator=result.estimator,
        value=result.value,
        text=result.value_text(result.error_beside(interval)),
        error=result.error_beside(interval),
        interval=interval if result.trusted else None,
        verdict=result.verdict.level,
        reasons=tuple(gate.name for gate in result.verdict.reasons),
        ess=result.diagnostics.worst_ess,
        gain=None if result.behavior_value is None else result.value - result.behavior_value,
        gain_interval=None,
        no_interval=_why_none(result, interval),
    )
    if not result.trusted:
        return replace(row, gain_why="the error is not to be trusted")
    return _with_gain(row, result.gain_or_why(), level)


def _why_none(result: Estimate, interval: Interval | None) -> str:
    if interval is None:
        return result.no_interval or result.error_method
    return "" if result.trusted else result.not_to_trust


def _with_gain(row: Row, gain: Gain | RefusedError, level: float) -> Row:
    """Target - behaviour with its interval and p, or why there is none."""
    if isinstance(gain, RefusedError):
        return replace(row, gain_why=gain.reason)
    if not gain.standard_error:
        return replace(row, gain=gain.value, gain_why="the difference shows no spread")
    method = "at most both errors" if gain.at_most else "paired"
    around = from_error(gain.value, gain.standard_error, gain.df, Asked(level), method)
    p = p_text(gain.p_value, at_most=gain.at_most)
    return replace(row, gain=gain.value, gain_interval=around, better=p, gain_at_most=gain.at_most)


def answer_of(basis: Basis, row: Row | None, spread: VarianceParts | Missing) -> Answer:
    """`row` is that of the main estimate, None where every estimator refused."""
    if basis.main is None or row is None:
        return _refused(basis)
    main = basis.main
    verdict = main.verdict
    reasons = tuple(
        Reason(gate.level, gate.name, gate.text, gate.advice) for gate in verdict.reasons
    )
    level = verdict.level
    assert level != "unknown"
    return Answer(
        question=_question(basis),
        headline=f"{main.value_text(main.standard_error)} per episode",
        interval=_interval_text(row),
        gain=_gain_text(main, row),
        verdict=level,
        meaning=MEANING[level],
        reasons=reasons,
        unchecked=tuple(verdict.unchecked_lines()),
        better=_better(main, row, reasons, spread),
        warnings=tuple(dict.fromkeys(str(warning) for warning in main.warnings)),
    )


def _refused(basis: Basis) -> Answer:
    return no_answer(
        _question(basis),
        [(result.estimator, result) for result in basis.results],
        better=(
            "Ask for a target nearer to the policy that made the log, or for fewer steps.",
            "Log episodes in which the missing actions are taken now and then.",
        ),
    )


def no_answer(
    question: str,
    results: Iterable[tuple[str, Estimate | Refusal]],
    *,
    better: tuple[str, ...],
    warnings: tuple[str, ...] = (),
) -> Answer:
    """Why nothing is answered: the reasons, each with the names of those that gave it."""
    why: dict[str, list[str]] = {}
    for name, result in results:
        if isinstance(result, Refusal):
            why.setdefault(result.error.reason, []).append(name)
    return Answer(
        question=question,
        headline="No answer",
        interval="",
        gain="",
        verdict="refused",
        meaning=MEANING["refused"],
        reasons=tuple(Reason("red", ", ".join(names), reason, "") for reason, names in why.items()),
        unchecked=(),
        better=better,
        warnings=warnings,
    )


def _question(basis: Basis) -> str:
    name = policy_name(basis)
    n, horizon, discount = _size(basis)
    steps = "one step" if horizon == 1 else f"up to {horizon:,} steps"
    less = "" if discount == 1 else f", later rewards counting {discount:g} times less per step"
    return (
        f"If {name} had chosen the actions, what would an episode have earned on average? "
        f"Judged from {n:,} logged episodes of {steps}{less}."
    )


def policy_name(basis: Basis) -> str:
    """The target in words; a file by its name alone."""
    if basis.target is None:
        return "the target policy"
    name = basis.target.name
    if name == "table":
        return "the target policy"
    return f"the policy “{PurePath(name).name if FILE.search(name) else name}”"


def _size(basis: Basis) -> tuple[int, int, float]:
    if basis.main is not None:
        return basis.main.n_episodes, basis.main.horizon, basis.main.discount
    if basis.log is not None:
        return basis.log.n_episodes, basis.log.horizon, basis.log.discount
    if basis.stored is not None:
        about = basis.stored.about
        return basis.stored.n_episodes, about.horizon, about.discount
    first = basis.results[0]
    return first.n_episodes, first.horizon, 1.0


def span(interval: Interval) -> str:
    """The ends in words."""
    if math.isfinite(interval.low) and math.isfinite(interval.high):
        margin = (interval.high - interval.low) / 4
        return f"{rounded(interval.low, margin)} to {rounded(interval.high, margin)}"
    return str(interval)


def percent(level: float) -> str:
    return f"{100 * level:.10g} %"


def _interval_text(row: Row) -> str:
    if row.no_interval.startswith(NO_TRUST):
        return sentence(row.no_interval)
    if row.interval is None:
        return f"No interval: {row.no_interval}."
    both = math.isfinite(row.interval.low) and math.isfinite(row.interval.high)
    kind = "interval" if both else "bound"
    return f"{percent(row.interval.level)} {kind}: {span(row.interval)}"


def _gain_text(main: Estimate, row: Row) -> str:
    own = main.behavior_value
    if own is None or row.gain is None:
        return "What the log's own policy earned cannot be told, so no difference to it is given."
    around = row.gain_interval
    error = None if around is None else around.standard_error
    if around is None:
        more = f"{number(abs(row.gain))} {'more' if row.gain >= 0 else 'less'}"
        text = f"That is {more} than the {number(own)} that the log's own policy earned."
        return f"{text} No interval for the difference: {row.gain_why}."
    more = f"{rounded(abs(row.gain), error)} {'more' if row.gain >= 0 else 'less'}"
    text = (
        f"That is {more} than the {rounded(own, error)} that the log's own policy earned "
        f"({percent(around.level)} interval of the difference: {span(around)}; one-sided "
        f"{row.better})."
    )
    if around.low <= 0 <= around.high:
        text += " The log does not tell the two apart."
    return text


def _better(
    main: Estimate, row: Row, reasons: Iterable[Reason], spread: VarianceParts | Missing
) -> tuple[str, ...]:
    """The advice of the checks; then what would narrow the interval."""
    found = dict.fromkeys(sentence(reason.advice) for reason in reasons if reason.advice)
    lines = list(found)
    if row.interval is not None and row.verdict != "red":
        lines.append(
            f"An interval half as wide takes about four times as many episodes: "
            f"{4 * main.n_episodes:,} like these {main.n_episodes:,}."
        )
    wanted = _most_wanted(spread)
    if wanted and row.verdict != "red":
        lines.append(wanted)
    return tuple(lines)


def _most_wanted(spread: VarianceParts | Missing) -> str:
    if isinstance(spread, Missing) or not spread.states:
        return ""
    top = spread.states[0]
    if top.amount < 0.05:
        return "No single state dominates the error: more episodes of any kind help."
    return (
        f"The state {top.state} causes {top.amount:.0%} of the error (variance): more data there "
        "helps most."
    )


def sentence(text: str) -> str:
    """An advice as a sentence."""
    return f"{text[:1].upper()}{text[1:]}."
