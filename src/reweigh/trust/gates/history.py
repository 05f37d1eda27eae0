"""Is the state Markov: does what came before it still predict what follows?"""

from __future__ import annotations

from dataclasses import replace

from reweigh.sums.diagnostic_tables import LaggedMoments
from reweigh.trust.gates.gate import Context, GateResult, Limit, limits_by
from reweigh.trust.gates.p_values import (
    NO_TRANSITIONS,
    AssumptionGate,
    Outcome,
    Split,
    StateValues,
    split_test,
    state_values,
    sums_of_q,
)

# Errors of the difference between an estimate and WIS. The study's Mountain Car, whose state leaves
# something out, is biased by two of them: what chance would allow is no agreement yet.
AGREES = 1.0
ROUNDING = 1e-9  # of two ways to compute the same


class History(
    AssumptionGate,
    name="history",
    question="Is the state Markov, so that earlier steps predict nothing more?",
    fault="rows-shuffled",
    needs={"transitions", "lagged"},
    limits=limits_by(Limit(0.01, 0.001, above=False)),
    softened="amber at most where wis, which needs no state, gives the same within one error",
    holds="what came before a state adds nothing",
    fails="what came before a state still predicts what follows it",
    advice=(
        "the state leaves something out: add what came before to it (the previous state or "
        "action), or use wis, which needs no state"
    ),
    of={"states"},
):
    """A history that matters to nothing is not red: where WIS, which needs no state, agrees."""

    def test(self, context: Context) -> Outcome:
        sums, values = context.sums, state_values(context)
        if values is None:
            return Outcome(None, NO_TRANSITIONS)
        if sums.lagged is None:
            what = "what came before a state"
            return Outcome(None, context.lacking("lagged", what, "they were not asked for"))
        if not len(sums.lagged):
            if sums.lagged.level:
                return Outcome(None, "a (step, state) has too many cells by what came before it")
            return Outcome(None, "no state has one before it")
        return history_test(sums.lagged, values, sums.about.horizon, sums.about.discount)

    def measure(self, context: Context) -> GateResult:
        result = super().measure(context)
        if result.level != "red" or context.estimator is None:
            return result
        apart = context.apart_from_wis()
        if apart is not None and apart <= AGREES:
            text = f"{result.text}, but wis, which needs no state, gives the same within one error"
            return replace(result, level="amber", text=text)
        if context.spread is not None:
            return result
        advice = f"{result.advice}; evaluated in memory it is amber if wis gives the same"
        return replace(result, advice=advice)


def errors_apart(value: float, other: float, error: float) -> float | None:
    """How far two estimates are apart, in errors of their difference; 0 where they are the same
    number but for rounding, as those of the behaviour itself are, None without an error."""
    if abs(value - other) <= ROUNDING * max(abs(value), abs(other)):
        return 0.0
    return abs(value - other) / error if error > 0 else None


def history_test(
    lagged: LaggedMoments, values: StateValues, horizon: int, discount: float
) -> Outcome:
    """Does the previous state or action still predict, given s?

    With q = ρ (y + γ V_{t+1}(s')), a Markov state makes E[q | s_t, the past] = V_t(s_t), however
    the behaviour chose. Within a (t, s) the rows are split by what came before (`split_test`), once
    by the previous state and once by the previous action; the smaller of both p-values, doubled.
    """
    q, q2 = sums_of_q(lagged, discount * values.at(lagged.t + 1, lagged.s_next))
    outcomes = []
    for what, before in (("state", lagged.s_before), ("action", lagged.a_before)):
        why = f"no state is reached often enough from more than one previous {what}"
        cells = Split(lagged.t, lagged.s, before, lagged.n, q, q2)
        outcomes.append(split_test(cells, horizon, why))
    known = [(outcome.p, k) for k, outcome in enumerate(outcomes) if outcome.p is not None]
    if not known:
        return outcomes[0]
    p, worst = min(known)
    p, share = min(len(known) * p, 1.0), 0.5**lagged.level
    return replace(outcomes[worst], p=p, why="", share=share)
