"""Gates of the state: is it Markov, is it all that the policies see, is what is fitted to it known?

**Policies.** Where the policies look at more than the state the ratio is not the same within a
(t, s, a): sqrt(Σ(ρ - ρ̄)²/Σρ²), the deviations being those within the (t, s, a), of the steps by
themselves and of all. The place is that of the largest Σ(ρ - ρ̄)². "hidden policies" is the same of
the rows whose state is hidden, which a fitted Q takes for one state.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reweigh.errors import SupportError
from reweigh.estimate.estimator import Place
from reweigh.estimate.operators import cells_of, importance_operator
from reweigh.estimate.recursion import backward, forward
from reweigh.estimate.solution import (
    escaping,
    largest,
    most_unfounded,
    rare_mass,
    rare_share,
    worst_node,
)
from reweigh.estimate.standard_error import OVERFLOW, same
from reweigh.kernels import Groups, group_by, tally
from reweigh.sums.diagnostic_tables import LaggedMoments
from reweigh.sums.keyed import TransitionMoments
from reweigh.system import divided
from reweigh.trust.gates.gate import (
    NO_TRANSITIONS,
    ROUNDING,
    AssumptionGate,
    Context,
    Floats,
    Gate,
    GateResult,
    Ints,
    Limit,
    Outcome,
    limits_by,
    place_in_words,
)

SPARE_ROWS = 10  # rows of a (t, s) beyond its groups before its spread is known
PLACES_PER_NODE = 8  # up to so many possible (t, s) have a place each
LEAST_LOG_P = -1000.0  # one state must not make a sum of logarithms infinite
# Errors of the difference between an estimate and WIS. The study's Mountain Car, whose state leaves
# something out, is biased by two of them: what chance would allow is no agreement yet.
AGREES = 1.0
SURE = 0.999  # of logs: a larger share is printed as this one, after "more than"


@dataclass(frozen=True, eq=False)
class StateValues:
    """V_t(s) over the nodes (t, s), sorted; 0 elsewhere (END, and states that are not known)."""

    t: Ints
    s: Ints
    v: Floats

    def at(self, t: Ints, s: Ints) -> Floats:
        width = int(max(self.s.max(initial=0), s.max(initial=0))) + 1
        real = self.s >= 0  # others have no key of their own
        places = (int(max(self.t.max(initial=0), t.max(initial=0))) + 1) * width
        if places <= PLACES_PER_NODE * len(self.v):
            by_place = np.zeros(places)
            by_place[(self.t * width + self.s)[real]] = self.v[real]
            return np.where(s >= 0, by_place[t * width + np.maximum(s, 0)], 0.0)
        # A last key that none asks for: there may be no other, where every state is hidden.
        keys = np.append((self.t * width + self.s)[real], np.iinfo(np.int64).max)
        v, wanted = np.append(self.v[real], 0.0), t * width + s
        place = np.searchsorted(keys, wanted)
        return np.where((s >= 0) & (keys[place] == wanted), v[place], 0.0)


def state_values(context: Context) -> StateValues | None:
    """V_t(s) by MIS."""

    def compute() -> StateValues | None:
        if context.state_values is not None:
            values, reached = context.state_values()
            t, s = np.nonzero(reached)
            return StateValues(t, s, values[t, s])
        op = context.marginal_operator()
        return None if op is None else StateValues(op.node_t, op.node_s, backward(op).u)

    return context.once("state values", compute)


def sums_of_q(cells: LaggedMoments | TransitionMoments, v: Floats) -> tuple[Floats, Floats]:
    """Σq and Σq² of q = ρ (y + v) by cell, v being the same within it."""
    q = cells.z + v * cells.rho
    return q, cells.z2 + 2 * v * cells.rhoz + v * v * cells.rho2


@dataclass(frozen=True, eq=False)
class Split:
    """Cells of strata (t, s), each split into groups: rows n, Σq and Σq²."""

    strata: Groups
    group: Ints
    n: Ints
    q: Floats
    q2: Floats


def split_test(cells: Split, horizon: int, why: str) -> Outcome:
    """Do the groups of a stratum have the same mean of q? `why` says that no stratum can tell.

    F = (Σ_g N_g (q̄_g - q̄)²/(K-1)) / (Σ_g Σ(q - q̄_g)²/(N-K)); the strata add up by Fisher's method.
    """
    from scipy.special import chdtrc, fdtrc

    strata = cells.strata
    groups = group_by([strata.index(), cells.group])
    n, first, second = (groups.sum(values) for values in (cells.n, cells.q, cells.q2))
    if not np.isfinite(second).all():
        return Outcome(None, OVERFLOW)

    def total(of_groups: Floats) -> Floats:
        return tally(groups.keys[0], of_groups, len(strata))

    N, K, squares = total(n), total(np.ones(len(groups))), total(second)
    means = total(first**2 / n)
    between = means - total(first) ** 2 / N
    within = squares - means
    noise = 1e-10 * squares  # sums of squares carry no digits below this
    use = (K >= 2) & (N - K >= SPARE_ROWS) & ((within > noise) | (between > noise))
    if not use.any():
        return Outcome(None, why)
    # Without any spread within the groups a difference between them is beyond doubt.
    within = np.maximum(within, noise)
    f = (between[use] / (K[use] - 1)) / (within[use] / (N[use] - K[use]))
    with np.errstate(divide="ignore"):
        log_p = np.log(fdtrc(K[use] - 1, N[use] - K[use], np.maximum(f, 0.0)))
    log_p = np.maximum(log_p, LEAST_LOG_P)
    t, s = (values[use] for values in strata.keys)
    score, count = tally(t, -2 * log_p, horizon + 1), tally(t, np.ones(len(t)), horizon + 1)
    per_step = np.full(horizon, np.nan)
    known = np.flatnonzero(count[:horizon] > 0)
    per_step[known] = chdtrc(2 * count[known], score[known])
    worst = int(np.argmin(log_p))
    p = float(chdtrc(2 * len(log_p), -2 * log_p.sum()))
    return Outcome(p, per_step=per_step, step=int(t[worst]), state=int(s[worst]))


class History(
    AssumptionGate,
    name="history",
    question="Is the state Markov, so that earlier steps predict nothing more?",
    fault="rows-shuffled",
    needs={"state values", "lagged"},
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
    if same(value, other):
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
    outcomes, strata = [], group_by([lagged.t, lagged.s])
    for what, before in (("state", lagged.s_before), ("action", lagged.a_before)):
        why = f"no state is reached often enough from more than one previous {what}"
        cells = Split(strata, before, lagged.n, q, q2)
        outcomes.append(split_test(cells, horizon, why))
    known = [(outcome.p, k) for k, outcome in enumerate(outcomes) if outcome.p is not None]
    if not known:
        return outcomes[0]
    p, worst = min(known)
    p, share = min(len(known) * p, 1.0), 0.5**lagged.level
    return replace(outcomes[worst], p=p, why="", share=share)


class Steadiness(
    AssumptionGate,
    name="steadiness",
    question="Is the world the same at every step, as pooling takes it to be?",
    fault="states-renamed",
    needs={"transitions"},
    limits=limits_by(Limit(0.5, 0.8)),  # of little power, so no p-value; mis costs little more
    of={"pooled steps"},
):
    """Whether steps differ, for estimators that pool them. The test has little power, so it speaks
    up long before a p-value would be small; the value is the share of logs of a steady world whose
    steps differ less than these, 1 - p, which nobody compares with 0.05."""

    def test(self, context: Context) -> Outcome:
        cells, values, about = context.sums.transitions, state_values(context), context.sums.about
        if cells is None or values is None:
            return Outcome(None, NO_TRANSITIONS)
        return steadiness_test(cells, values, about.horizon, about.discount)

    def measure(self, context: Context) -> GateResult:
        outcome, state = self.outcome(context)
        if outcome.p is None:
            return self.unknown(outcome.why)
        share = 1 - outcome.p
        shown = f"{SURE:.1%}" if share > SURE else f"{share:.0%}"
        return self.judge(
            share,
            f"what follows a state differs between steps more than in {shown} of logs where the "
            "step does not matter; this estimator pools all steps",
            "use mis, which does not pool",
            state=state,
        )


def steadiness_test(
    cells: TransitionMoments, values: StateValues, horizon: int, discount: float
) -> Outcome:
    """Is the step of no matter, as estimators that pool all steps assume?

    With q = ρ (y + γ V(s')) and a V that does not depend on the step, E[q | s] is then the same at
    every step. The rows of a state are split by their step. V(s) is the mean of V_t(s) over the
    steps.
    """
    by_state = group_by([values.s])
    mean = by_state.sum(values.v) / by_state.count()
    same = StateValues(np.zeros(len(mean), np.int64), by_state.keys[0], mean)
    inside = (cells.t_next - cells.t == 1) & (cells.t_next < horizon)
    all_one = np.zeros(len(cells), np.int64)  # stratum 0: a state is the same at every step
    q, q2 = sums_of_q(cells, discount * same.at(all_one, cells.s_next))
    strata = group_by([all_one[inside], cells.s[inside]])
    split = Split(strata, *(column[inside] for column in (cells.t, cells.n, q, q2)))
    outcome = split_test(split, 1, "no state is seen often enough at more than one step")
    return Outcome(outcome.p, outcome.why, state=outcome.state)


class Policies(
    Gate,
    name="policies",
    question="Do the policies look at more than the state?",
    fault="states-shuffled",
    needs={"choices"},
    limits=limits_by(Limit(0.01, 0.10)),
    assumption=True,
    # A fitted V(s) = Σ_a π(a|s) Q(s,a) is only right where π follows from the state.
    of={"states", "fitted control"},
):
    at_hidden = False
    keys = "step, state and action"
    advice = (
        "the policies look at something that the state leaves out: add it to the state, or use "
        "wis, which needs no state"
    )

    def measure(self, context: Context) -> GateResult:
        return context.once(self.name, lambda: self.of_ratios(context))

    def of_ratios(self, context: Context) -> GateResult:
        sums, no_rows = context.sums, self.unknown("no state is observed")
        if self.at_hidden:
            no_rows = self.judge(0.0, "no state is hidden")
            if not sums.hidden:
                return no_rows
        if sums.about.continuous_actions:
            return self.unknown("actions are numbers: no two are alike")
        cells = sums.by_action
        if cells is None:
            return self.unknown(context.lacking("model", "the actions"))
        hidden = np.array([value is None for value in sums.states.values], bool)
        cells = cells.where(hidden[cells.s] == self.at_hidden)
        if not len(cells):
            return no_rows
        groups = group_by([cells.t, cells.s, cells.a])
        n, rho, rho2 = (groups.sum(values) for values in (cells.n, cells.rho, cells.rho2))
        total = float(rho2.sum())
        if not total > 0:
            return self.unknown("no ratio is above 0")
        if not math.isfinite(total):
            return self.unknown(OVERFLOW)
        within = np.maximum(rho2 - rho**2 / n, 0.0)
        by_step = [tally(groups.keys[0], v, sums.about.horizon) for v in (within, rho2)]
        per_step, spread = np.sqrt(divided(*by_step)), math.sqrt(float(within.sum()) / total)
        if spread <= ROUNDING:
            none = np.where(per_step <= ROUNDING, 0.0, per_step)
            text = f"the ratios follow from {self.keys.rstrip(',')}"
            return self.judge(0.0, text, per_step=none)
        worst = int(np.argmax(within))
        place = context.place(Place(*(int(key[worst]) for key in groups.keys)))
        if self.at_hidden:
            place["state"] = None
        return self.judge(
            spread,
            f"the ratios differ by {spread:.1%} (root mean square) where {self.keys} are the same, "
            f"most at {place_in_words(place['step'], place['state'])}",
            self.advice,
            per_step=per_step,
            **place,
        )


class HiddenPolicies(
    Policies,
    name="hidden policies",
    question="Do the policies see what is hidden from the state?",
    fault="states-lost",
    needs={"choices"},
    limits=limits_by(Limit(None, 0.01)),  # what a fitted Q says of hidden states is wrong then
    assumption=True,
    # Others do not look at a hidden state, or have a gate that is red there.
    of={"fitted control"},
):
    at_hidden = True
    keys = "step and action, the state being hidden,"
    advice = "Q takes all hidden states for one, the policies do not: use mis, which fits no Q"


class Stationarity(
    Gate,
    name="stationarity",
    question="Do all steps have one distribution of states?",
    fault="states-renamed",
    reads="solution",
    needs={"choices"},
    limits=limits_by(Limit(0.0, 0.02)),  # not in the study: never green
    of={"stationary"},
):
    """SSD-IS gives every step the distribution of the long run. By how much those of the steps
    differ MIS tells, luck included: without a great many episodes this is red. In total variation,
    averaged over the steps."""

    def measure(self, context: Context) -> GateResult:
        if context.sums.model is None or context.sums.start_model is None:
            return self.unknown(context.lacking("model", "the actions"))
        about, (cells, start) = context.sums.about, cells_of(context.sums, "model")
        op = importance_operator(cells.forget("a"), start, about.horizon, about.discount)
        try:
            flow = forward(op, simplex=True)
        except SupportError:
            return self._judge(1.0)
        inside = op.node_t < op.horizon
        names, index = np.unique(op.node_s[inside], return_inverse=True)
        d = np.zeros((op.horizon, len(names)))
        d[op.node_t[inside], index] = flow.d[inside]
        off = np.abs(d - d.mean(axis=0))
        per_step = off.sum(axis=1) / 2
        step = largest(per_step)
        state = worst_node(names, off[step])
        worst = None if state is None else Place(step, int(names[state]))
        gap = float(off.sum()) / (2 * op.horizon)
        return self._judge(gap, per_step=per_step, **context.place(worst))

    def _judge(self, gap: float, **where: Any) -> GateResult:
        return self.judge(
            gap,
            "every step is taken to have the same distribution of states, and by mis they are "
            f"{gap:.1%} from their mean (total variation, on average over the steps)",
            "use mis, which needs no such assumption",
            most="most",
            **where,
        )


class FittedValues(
    Gate,
    name="fitted values",
    question="Is Q fitted to few rows, of the episodes that it is subtracted from?",
    fault="action-missing",
    needs={"model"},
    limits=limits_by(Limit(0.01, 0.05)),
    of={"fitted in sample"},
):
    """How much of what a model would say rests on few rows: the target's mass, as the model has it,
    on (t, s, a) that were seen fewer than 10 times (on average over the steps) or never (all that
    is lost). Per step what it adds to that."""

    def measure(self, context: Context) -> GateResult:
        return context.once(self.name, lambda: self.of_model(context))

    def of_model(self, context: Context) -> GateResult:
        sums = context.sums
        if sums.about.continuous_actions or sums.model is None or sums.start_model is None:
            return self.unknown("these sums hold no model of the actions")
        from reweigh.estimate.model import model_of

        op = model_of(sums)
        share, where = 1.0, dict[str, Any]()
        with suppress(SupportError):  # then no row is possible under the target
            flow, rare = forward(op, simplex=False), rare_share(op)
            share = min(rare_mass(op, flow, rare) + float(escaping(op, flow).sum()), 1.0)
            per_step, worst = most_unfounded(op, flow, rare)
            where = {"per_step": per_step, **context.place(worst)}
        return self.judge(
            share,
            f"Q is fitted on the same episodes, and {share:.1%} of the target's mass is on (step, "
            "state, action) seen fewer than 10 times",
            "use the cross-fitted variant (dr-crossfit, wdr-crossfit, mdr-crossfit), or mis",
            most="most",
            **where,
        )
