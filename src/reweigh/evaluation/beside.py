"""What other estimators say beside the answer: by how much they differ, and whether by chance.

The default of `evaluate` is what "auto" chooses, and beside it the paper's `mis`, and `wis`, which
uses no state. They never change the answer.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from scipy.special import stdtrit

from reweigh.evaluation.evaluate import AUTO
from reweigh.evaluation.result import Estimate, Refusal
from reweigh.show.first_screen import estimators_in
from reweigh.show.record import Beside, Evaluation
from reweigh.system import two_digits

PAPER = ("mis", "wis")
DEFAULT = (AUTO, *PAPER)
CANDIDATES = (*PAPER, "mis-hajek", "mdr-loo")  # of "auto", but for longer memories
MOST_ROWS_TRIED = 1_000_000  # beyond, another estimator and its verdict take their time
BY_CHANCE = 0.01  # of all the differences together that are looked at
Result = Estimate | Refusal


def once(results: Iterable[Result]) -> list[Result]:
    """What auto chose may also have been named: it stands once, with auto's reason."""
    by_name: dict[str, Result] = {}
    for result in results:
        if result.estimator not in by_name or getattr(result, "chosen", None) is not None:
            by_name[result.estimator] = result
    return list(by_name.values())


def with_paper(results: Iterable[Result]) -> list[Result]:
    """The results of DEFAULT: the answer, which has the others `beside` it, and these. A choice
    that refuses stands alone: nothing else takes its place."""
    first, *others = results
    if isinstance(first, Refusal):
        return [first]
    others = [other for other in others if other.estimator != first.estimator]
    others = [other for other in others if not _lacks_states(other)]
    return [replace(first, beside=tuple(others)), *others]


def _lacks_states(result: Result) -> bool:
    """Whether it sums by state, of a log with features alone."""
    return isinstance(result, Refusal) and result.error.code == "no-states"


def differences(first: Estimate, others: Sequence[Result]) -> tuple[Beside, ...]:
    """By how much each of the others differs from the first.

    Differences are paired: their errors come from the influence values of the same episodes, each
    for a share of BY_CHANCE. Sums hold no episodes, so the error of a difference is unknown, but it
    is at most the sum of both errors. Without an error, or where the episodes show no variation,
    nothing is known.
    """
    if not others:
        return ()
    critical = math.nan
    if first.n_episodes > 1:
        critical = float(stdtrit(first.uncertainty.n_draws - 1, 1 - BY_CHANCE / 2 / len(others)))
    return tuple(_difference(first, other, critical) for other in others)


def _difference(first: Estimate, other: Result, critical: float) -> Beside:
    if isinstance(other, Refusal):
        return Beside(other.estimator, why=other.error.reason)
    difference = other.value - first.value
    error, at_most = first.uncertainty.joint_error(other.uncertainty), False
    if error is None:
        at_most = True
        error = (first.standard_error or math.nan) + (other.standard_error or math.nan)
    if not 0 < error < math.inf or math.isnan(critical):
        return Beside(other.estimator, other.value, difference)
    beyond = abs(difference) > critical * error
    return Beside(other.estimator, other.value, difference, error, at_most, beyond)


def disagreement(results: Sequence[Result]) -> str | None:
    """Which estimates of one target differ from the first by more than chance allows, as text; None
    if none does."""
    estimates = [result for result in results if isinstance(result, Estimate)]
    if len(estimates) < 2:
        return None
    first, *others = estimates
    apart = [
        f"{one.estimator} by {one.difference:+.4g} "
        f"(joint error {'at most ' if one.at_most else ''}{two_digits(one.error)})"
        for one in differences(first, others)
        if one.beyond
    ]
    if not apart:
        return None
    return (
        f"these differ from {first.estimator} by more than chance allows: {', '.join(apart)}. Some "
        "are biased, or their standard errors are not reliable: see the verdicts"
    )


def tried(
    answer: Estimate, beside: Sequence[Result], evaluate_all: Callable[..., Sequence[Result]]
) -> tuple[Evaluation, ...]:
    """What the advice of a verdict names and nobody has tried, evaluated on the same log in
    memory."""
    log, target = answer.uncertainty.data.log, answer.uncertainty.data.target
    if log is None or target is None or log.steps.n_rows > MOST_ROWS_TRIED:
        return ()
    advised = {name for gate in answer.verdict.reasons for name in estimators_in(gate.advice)}
    names = sorted(advised - {answer.estimator, *(result.estimator for result in beside)})
    if not names:
        return ()

    def evaluated() -> tuple[Evaluation, ...]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an evaluation that the user did not request
            results = evaluate_all(log, target, names)
        return tuple(result.record_with(None) for result in results)

    return answer.uncertainty.data.once(("tried", *names), evaluated)
