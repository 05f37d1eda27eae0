"""The question, the answer and the verdict in words."""

from __future__ import annotations

import math
from collections.abc import Iterable

from reweigh.errors import RefusedError
from reweigh.show.html import Answer
from reweigh.show.record import NO_TRUST, Evaluation, Report
from reweigh.show.text import by_text, percent, sentence, span
from reweigh.system import rounded
from reweigh.trust.breakdown import Missing
from reweigh.trust.gates import GateResult, Verdict
from reweigh.trust.intervals import Interval

MEANING = {
    "green": "No check speaks against this number.",
    "amber": "Use this number with the reasons below in mind.",
    "red": "Do not decide on this number.",
    "refused": "There is no number: this log cannot answer the question.",
}
NOT_APART = "The log does not tell the two apart."


def answer_of(report: Report) -> Answer:
    """The answer of an evaluation."""
    main = report.main
    if main is None or main.verdict is None:
        return no_answer(
            _question(report),
            [(e.estimator, e.refused) for e in report.results],
            better=(
                "Ask for a target nearer to the policy that made the log, or for fewer steps.",
                "Log episodes in which the missing actions are taken now and then.",
            ),
        )
    return judged(
        main.verdict,
        question=_question(report),
        headline=f"{main.text_of(main.standard_error)} per episode",
        interval=_interval_text(main),
        gain=_gain_text(main),
        better=_better(report, main),
        warnings=main.warnings,
    )


def judged(
    verdict: Verdict,
    *,
    question: str,
    headline: str,
    interval: str,
    gain: str,
    better: Iterable[str],
    warnings: Iterable[object],
    meaning: str = "",
) -> Answer:
    """An answer with its verdict: the advice of the checks comes first."""
    level = verdict.level
    assert level != "unknown"
    advice = dict.fromkeys(sentence(gate.advice) for gate in verdict.reasons if gate.advice)
    return Answer(
        question=question,
        headline=headline,
        interval=interval,
        gain=gain,
        verdict=level,
        meaning=meaning or MEANING[level],
        reasons=verdict.reasons,
        unchecked=tuple(verdict.unchecked_lines()),
        better=(*advice, *better),
        warnings=tuple(dict.fromkeys(map(str, warnings))),
    )


def no_answer(
    question: str,
    refusals: Iterable[tuple[str, RefusedError | None]],
    *,
    better: tuple[str, ...],
    warnings: tuple[str, ...] = (),
) -> Answer:
    """Why nothing is answered: the reasons, each with the names of those that gave it."""
    why = by_text((name, error.reason) for name, error in refusals if error is not None)
    return Answer(
        question=question,
        headline="No answer",
        interval="",
        gain="",
        verdict="refused",
        meaning=MEANING["refused"],
        reasons=tuple(
            GateResult(name=", ".join(names), level="red", value=None, text=reason)
            for reason, names in why.items()
        ),
        unchecked=(),
        better=better,
        warnings=warnings,
    )


def judged_from(n_episodes: int, horizon: int) -> str:
    """How much the log has."""
    steps = "one step" if horizon == 1 else f"up to {horizon:,} steps"
    return f"Judged from {n_episodes:,} logged episodes of {steps}"


def _question(report: Report) -> str:
    gamma, less = report.discount, ""
    if gamma != 1:
        less = f", later rewards counting {gamma:g} times less per step"
    return (
        f"If {report.target} had chosen the actions, what would an episode have earned on average? "
        f"{judged_from(report.n_episodes, report.horizon)}{less}."
    )


def _interval_text(main: Evaluation) -> str:
    if main.no_interval.startswith(NO_TRUST):
        return sentence(main.no_interval)
    if main.around is None:
        return f"No interval: {main.no_interval}."
    both = math.isfinite(main.around.low) and math.isfinite(main.around.high)
    kind = "interval" if both else "bound"
    return f"{percent(main.around.level)} {kind}: {span(main.around)}"


def _gain_text(main: Evaluation) -> str:
    behavior, around = main.behavior_value, main.gain_interval
    if behavior is None or main.gain is None:
        return "What the log's own policy earned cannot be told, so no difference to it is given."
    text = over_log(main.gain, rounded(behavior, main.gain_error), around, main.gain_error)
    if around is None:
        return f"{text}. No interval for the difference: {main.gain_why}."
    apart = f" {NOT_APART}" if around.low <= 0 <= around.high else ""
    return f"{text}; one-sided {main.better}).{apart}"


def over_log(gain: float, behavior: str, around: Interval | None, error: float | None) -> str:
    """How much more than the log's own policy, with an interval whose bracket is left open."""
    more = f"{rounded(abs(gain), error)} {'more' if gain >= 0 else 'less'}"
    text = f"That is {more} than the {behavior} that the log's own policy earned"
    if around is None:
        return text
    return f"{text} ({percent(around.level)} interval of the difference: {span(around)}"


def _better(report: Report, main: Evaluation) -> list[str]:
    """What would narrow the interval."""
    if main.level == "red":
        return []
    n, spread, lines = main.n_episodes, report.variance, []
    if main.around is not None:
        lines.append(
            f"An interval half as wide takes about four times as many episodes: "
            f"{4 * n:,} like these {n:,}."
        )
    states = [] if isinstance(spread, Missing) else spread.states()
    if not states:
        return lines
    top = states[0]
    few = f"The state {top.state} causes {top.amount:.0%} of the error (variance): more data there "
    any_kind = "No single state dominates the error: more episodes of any kind help."
    return [*lines, any_kind if top.amount < 0.05 else f"{few}helps most."]
