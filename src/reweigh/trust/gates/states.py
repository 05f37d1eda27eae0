"""Gates of the state: is it Markov, are the steps alike, are there rows enough?"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from reweigh.errors import SupportError
from reweigh.estimate.estimator import Place
from reweigh.estimate.memory_rows import Comparison, Distance
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
from reweigh.estimate.standard_error import OVERFLOW
from reweigh.kernels import Groups, group_by, tally
from reweigh.sums.diagnostic_tables import LaggedMoments
from reweigh.sums.keyed import TransitionMoments
from reweigh.trust.gates.gate import (
    NO_TRANSITIONS,
    AssumptionGate,
    Context,
    Floats,
    Gate,
    GateResult,
    Ints,
    Limit,
    Outcome,
    limits_by,
)

SPARE_ROWS = 10  # rows of a (t, s) beyond its groups before its spread is known
PLACES_PER_NODE = 8  # up to so many possible (t, s) have a place each
LEAST_LOG_P = -1000.0  # one state must not make a sum of logarithms infinite
SURE = 0.999  # share of logs: larger ones are printed as this one, after "more than"


@dataclass(frozen=True, eq=False)
class StateValues:
    """V_t(s) over the nodes (t, s), sorted; 0 elsewhere (END, and states that are not known)."""

    t: Ints
    s: Ints
    v: Floats

    def at(self, t: Ints, s: Ints) -> Floats:
        width = int(max(self.s.max(initial=0), s.max(initial=0))) + 1
        real = self.s >= 0  # others have no key
        places = (int(max(self.t.max(initial=0), t.max(initial=0))) + 1) * width
        if places <= PLACES_PER_NODE * len(self.v):
            by_place = np.zeros(places)
            by_place[(self.t * width + self.s)[real]] = self.v[real]
            return np.where(s >= 0, by_place[t * width + np.maximum(s, 0)], 0.0)
        # A last key that matches nothing: if every state is hidden there is no other key.
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
    """Do the groups of a stratum have the same mean of q? `why` is the text if no stratum has
    enough rows.

    F = (Σ_g N_g (q̄_g - q̄)²/(K-1)) / (Σ_g Σ(q - q̄_g)²/(N-K)); the strata add up by Fisher's method.
    """
    from scipy.special import chdtrc, fdtrc

    strata = cells.strata
    groups = group_by([strata.index(), cells.group])
    n, first, second = (groups.sum(values) for values in (cells.n, cells.q, cells.q2))
    if not np.isfinite(second).all():
        return Outcome(None, OVERFLOW)

    # Groups stand in the order of their strata.
    begins = np.searchsorted(groups.keys[0], np.arange(len(strata)))
    total = partial(np.add.reduceat, indices=begins)
    K = np.diff(begins, append=len(groups)).astype(np.float64)
    N, squares = total(n).astype(np.float64), total(second)
    means = total(first**2 / n)
    between = means - total(first) ** 2 / N
    within = squares - means
    noise = 1e-10 * squares  # sums of squares carry no digits below this
    use = (K >= 2) & (N - K >= SPARE_ROWS) & ((within > noise) | (between > noise))
    if not use.any():
        return Outcome(None, why)
    # Without any spread within the groups, any difference between them is significant.
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
    question="Is the state enough: does the estimate stay when it remembers more of the past?",
    fault="rows-shuffled",
    needs={"state values", "lagged"},
    limits=limits_by(Limit(0.01, 0.001, above=False)),
    softened="at most amber if only single states depend on what came before them",
    holds="longer memories give the same",
    fails="the state is not Markov: earlier steps still predict the outcome",
    advice=(
        "add the previous state or action to the state, or use mis(memory='auto'), which "
        "remembers as many steps as the log supports"
    ),
    of={"states"},
):
    """First the estimate beside those with longer memories. One that trusts the state is red too if
    `mis-hajek` moves, which trusts the same state: its differences have smaller errors. Then, for
    one without a memory, whether the previous state or action still predicts what follows a state.
    The second alone is amber, and only beyond its red limit, for the difference to the estimate is
    too small to be seen. Where no longer memory can be compared with, it is judged as any other
    test, but never green."""

    def test(self, context: Context) -> Outcome:
        sums, values = context.sums, state_values(context)
        if values is None:
            return Outcome(None, NO_TRANSITIONS)
        if sums.lagged is None:
            what = "the previous states and actions"
            return Outcome(None, context.lacking("lagged", what, "they were not requested"))
        if not len(sums.lagged):
            if sums.lagged.level:
                return Outcome(
                    None, ("a (step, state) has too many combinations of previous state and action")
                )
            return Outcome(None, "no state has a previous one")
        return history_test(sums.lagged, values, sums.about.horizon, sums.about.discount)

    def measure(  # type: ignore[override]
        self, context: Context
    ) -> GateResult | None:
        own = 0 if context.estimator is None else context.estimator.weights.remembers
        longest = context.sums.about.horizon - 1
        if own and own >= longest:
            return None  # it does not use the state
        if not longest:
            return self.unknown("an episode of one step has no past")
        compared = context.beside_longer_memories()
        if isinstance(compared, str):
            why = compared
        else:
            why = f"the log supports no memory longer than {own}" + _not_checked(compared, ": ")
        if isinstance(compared, Comparison) and compared.longer:
            result = self.of_comparison(compared)
            if result.level != "green" or own:
                return result
            outcome, state = self.outcome(context)
            if outcome.p is None or self.limit().judge(outcome.p) != "red":
                return result
            alone = self.of_outcome(outcome, state)
            text = f"{alone.text}, but {result.text}"
            return replace(alone, level="amber", text=text)
        if own:
            return self.unknown(why)
        outcome, state = self.outcome(context)
        alone = self.of_outcome(outcome, state)
        if alone.level != "green":
            return alone
        return self.unknown(f"{why}; the previous state and action alone predict nothing more")

    def of_comparison(self, compared: Comparison) -> GateResult:
        p, worst = moved(compared, self.limit())
        if np.isnan(p):
            return self.unknown(OVERFLOW)
        some = f", on {compared.share:.1%} of the episodes" if compared.share < 1 else ""
        p_text = f"p = {p:.2g}" if p >= 1e-16 else "p < 1e-16"
        longest = compared.longer[-1].memory
        if self.limit().judge(p) == "green":
            steps = (
                f"memories of up to {longest} steps give"
                if longest > 1
                else "a memory of 1 step gives"
            )
            beyond = _not_checked(compared, "; longer ones cannot be checked: ")
            return self.judge(p, f"{steps} the same within chance ({p_text}{some}){beyond}")
        memory, apart = worst.memory, f"{abs(worst.apart):.1f} errors of the difference"
        if worst in compared.longer:
            text = (
                f"the estimate moves when it remembers more: from {worst.shorter:.4g} to "
                f"{worst.value:.4g} with mis(memory={memory}), {apart}"
            )
        else:
            text = (
                f"the state is not enough: mis(memory=0) gives {worst.shorter:.4g} and "
                f"mis(memory={memory}) {worst.value:.4g}, {apart} apart"
            )
        k = compared.agreeing
        agrees = "which agrees with longer memories"
        if k == longest:
            agrees = "the longest that the log supports, so that nothing shows whether it is enough"
        advice = f"use mis(memory={k}), {agrees}, or add what the state lacks"
        return self.judge(p, f"{text} ({p_text}{some})", advice)


def _not_checked(compared: Comparison, before: str) -> str:
    """Which memory the log no longer bears; empty if it bears all."""
    if compared.unborne is None:
        return ""
    memory, size = compared.unborne
    return f"{before}a memory of {memory} leaves {size:,.0f} effective episodes"


def moved(compared: Comparison, limit: Limit) -> tuple[float, Distance]:
    """p of "the estimate is the same with every longer memory", and the memory that it is furthest
    from, each p-value times the number of comparisons (Bonferroni). That of the estimate itself if
    it says as much as that of the state."""
    count = len(compared.longer) + len(compared.of_state)
    both = [min(d, key=lambda each: each.p) for d in (compared.longer, compared.of_state) if d]
    p = [min(count * each.p, 1.0) for each in both]
    worst = int(np.argmin(p))  # nan where one is
    if limit.judge(p[0]) == limit.judge(p[worst]):
        worst = 0
    return p[worst], both[worst]


def history_test(
    lagged: LaggedMoments, values: StateValues, horizon: int, discount: float
) -> Outcome:
    """Does the previous state or action still predict, given s?

    With q = ρ (y + γ V_{t+1}(s')), a Markov state makes E[q | s_t, the past] = V_t(s_t), whatever
    the behavior policy. Within a (t, s) the rows are split by their history (`split_test`), once by
    the previous state and once by the previous action; the smaller of both p-values, doubled.
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
    question="Do the transitions and rewards stay the same at every step, as pooling assumes?",
    fault="states-renamed",
    needs={"transitions"},
    limits=limits_by(Limit(0.5, 0.8)),  # of little power, so no p-value; mis costs little more
    of={"pooled steps"},
):
    """Whether steps differ, for estimators that pool them. The test has little power, so its limits
    are far from the usual ones for a p-value. The value is 1 - p: the share of logs from a world
    without step effects whose steps differ less than these."""

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
        share_text = f"{SURE:.1%}" if share > SURE else f"{share:.0%}"
        return self.judge(
            share,
            f"what follows a state differs between steps, more than in {share_text} of logs "
            "where the step does not matter; this estimator pools all steps",
            "use mis, which does not pool the steps",
            state=state,
        )


def steadiness_test(
    cells: TransitionMoments, values: StateValues, horizon: int, discount: float
) -> Outcome:
    """Does the step have no effect, as estimators that pool all steps assume?

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


class Stationarity(
    Gate,
    name="stationarity",
    question="Is the state distribution the same at every step?",
    fault="states-renamed",
    reads="solution",
    needs={"choices"},
    limits=limits_by(Limit(0.0, 0.02)),  # not in the study: never green
    of={"stationary"},
):
    """SSD-IS uses the long-run state distribution at every step. MIS measures how much the steps
    differ from it (total variation, averaged over the steps). The estimate includes noise: without
    very many episodes this is red."""

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
            "the estimator assumes the same state distribution at every step; by mis the "
            f"steps differ by {gap:.1%} from their mean (total variation, average over the "
            "steps)",
            "use mis, which does not assume this",
            most="most",
            **where,
        )


class FittedValues(
    Gate,
    name="fitted values",
    question="Does Q rest on few rows, from the same episodes it corrects?",
    fault="action-missing",
    needs={"model"},
    limits=limits_by(
        Limit(0.01, 0.05),
        augmented=Limit(0.20, 0.50),  # no row corrects itself: only what no row corrects is off
    ),
    of={"fitted in sample", "augmented", "blended"},
):
    """How much of a model's estimate rests on few rows: the target's mass under the model on
    (t, s, a) seen fewer than 10 times (average over the steps) or never (total). Per step: its
    contribution."""

    def measure(self, context: Context) -> GateResult:
        name = f"{self.name}, {context.limits}, {'fitted in sample' in context.traits}"
        return context.once(name, lambda: self.of_model(context))

    def of_model(self, context: Context) -> GateResult:
        sums = context.sums
        if sums.about.continuous_actions or sums.model is None or sums.start_model is None:
            return self.unknown("the sums have no model of the actions")
        from reweigh.estimate.model import model_of

        op = model_of(sums)
        share, where = 1.0, dict[str, Any]()
        with suppress(SupportError):  # then no row is possible under the target
            flow, rare = forward(op, simplex=False), rare_share(op)
            share = min(rare_mass(op, flow, rare) + float(escaping(op, flow).sum()), 1.0)
            per_step, worst = most_unfounded(op, flow, rare)
            where = {"per_step": per_step, **context.place(worst)}
        text = (
            f"{share:.1%} of the target's mass is on (step, state, action) cells seen fewer than "
            "10 times"
        )
        advice = "a coarser state, or mis"
        if "augmented" in context.traits:
            text, advice = f"{text}, whose value is taken from the other actions", f"use {advice}"
        elif "fitted in sample" not in context.traits:
            text = f"the model's value is a part of the estimate, and {text}"
            advice = f"use mdr-crossfit, {advice}"
        else:
            text = f"Q is fitted on the same episodes, and {text}"
            crossfit = "dr-crossfit, wdr-crossfit, mdr-crossfit"
            advice = f"use the cross-fitted variant ({crossfit}), {advice}"
        limit = self.limit(context.limits)
        return self.judge(share, text, advice, limit=limit, most="most", **where)
