"""Gates of what the log has not seen: actions that it lacks, events that never happened, and what
its states leave out.

**Rare actions.** A (t, s) of N rows lacks actions that have the probability ℓ under the target and
m under the behavior. Its rows alone then show too small a spread: with π and μ of the actions that
it shows, and the least that the others can add (Cauchy and Schwarz),

    E[ρ² | t, s]  ≥  Σ_a π²/μ + ℓ²/m        while its rows have the mean  Σ_a n_a (π/μ)²/N.

The first is known without luck. Over all (t, s) that lack an action the excess adds up to the
square of an error that the standard error does not hold:

    h² = Σ_t γ^2t Σ_s d_t(s)²/N_t(s) [Σ_a π²/μ + ℓ²/m - Σ_a n_a (π/μ)²/N] R_t²

with R_t the largest reward-to-go, as far as rewards of the log (or of the declared range) and the
values of the states allow it. Where actions are many, others are there too often, and the excess is
0 or less on average: what is lacking by chance is in the standard error already. An action that the
behavior hardly ever takes is not. h is at most 3 Σ γ^t d ℓ R, for probability that is nearly
nothing on both sides says nothing.

**Unseen events.** An event that never happened in n rows has a rate of at most about 3/n (with
95 %). If it paid the most extreme reward that is declared, and not the most extreme one that was
seen, the value would be off by

    size · E_a · 3/n_a,        E_a = Σ_t γ^t Σ_s d_t(s) Σ_i 1{a} ρ_i/N_t(s)

for the action a whose rows show it the least, with E_a how often the target takes it, and n_a the
effective number of its rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from reweigh.errors import SupportError
from reweigh.estimate.estimator import Place
from reweigh.estimate.operators import SEEN_ENOUGH, marginal_operator
from reweigh.estimate.recursion import backward, forward
from reweigh.estimate.solution import worst_node
from reweigh.kernels import Groups, group_by, tally
from reweigh.sums.keyed import TransitionMoments, is_constant, is_one_number
from reweigh.system import divided, number
from reweigh.trust.gates.gate import (
    NO_TRANSITIONS,
    NOT_DECLARED,
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
from reweigh.trust.gates.states import History, StateValues, state_values

NOTHING = 1e-9  # probability: less is rounding
LEAST_MU = 1e-12
MATERIAL = 0.01  # as "policies"
LOST_BY_COUNTS = 0.0001  # the limit of "support" for models, which counts make of estimates
LEAST_REPEATS, ROUNDED = 10, 1e-10  # rows beyond the actions; of a sum of squares
RULE_OF_THREE = 3.0  # an event that n rows do not show has a rate of at most 3/n, with 95 %
UNKNOWN_POLICY = "the target's probabilities of actions that a state does not show are not known"
NO_ACTIONS = "the actions"


def target_mass(context: Context) -> StateValues | str:
    """d_t(s) of the target: that of the estimate, else that of MIS on the same sums; or why it is
    not known."""

    def by_marginal() -> StateValues | str:
        op = context.marginal_operator()
        if op is None:
            return NO_TRANSITIONS
        try:
            return StateValues(op.node_t, op.node_s, forward(op, simplex=True).d)
        except SupportError as error:
            return str(error)

    if context.nodes is None:
        return context.once("target mass", by_marginal)
    nodes = context.nodes.nodes
    return StateValues(nodes.t, nodes.s, nodes.target)


@dataclass(frozen=True, eq=False)
class Lacking:
    """By (t, s): its rows, ℓ, and the excess of E[ρ²] over the mean square that its rows show; 0
    where every action is there. `pairs` are the (t, s), `actions` the (t, s, a)."""

    pairs: Groups
    rows: Floats
    unseen: Floats
    excess: Floats


def lacking(cells: TransitionMoments, *, logged: bool) -> Lacking | None:
    """None if the target's probability of an action does not follow from step and state; `logged`:
    the propensities are not estimated."""
    actions = group_by([cells.t, cells.s, cells.a])
    pairs = group_by([actions.keys[0], actions.keys[1]])
    n, total, total2 = (actions.sum(values) for values in (cells.n, cells.pi, cells.pi2))
    if not is_one_number(n, total, total2, pairs.sum):
        return None
    rho, rho2 = actions.sum(cells.rho), actions.sum(cells.rho2)
    pi, mu = divided(total, n), divided(actions.sum(cells.mu), n)
    rows = pairs.sum(n)
    unseen = 1 - pairs.sum(pi)
    unseen = np.where(unseen > NOTHING, unseen, 0.0)
    least: Floats | float = LEAST_MU
    if not logged or not is_constant(n, rho, rho2):
        least = 1 / (rows + 1)  # no more is known of an action that so many rows do not show
    rest = np.maximum(1 - pairs.sum(mu), least)
    known = pairs.sum(divided(pi**2, mu)) + unseen**2 / rest
    shown = pairs.sum(n * divided(pi, mu) ** 2) / rows
    return Lacking(pairs, rows, unseen, np.where(unseen > 0, known - shown, 0.0))


def largest_to_go(context: Context, mass: StateValues, values: StateValues) -> Floats | None:
    """(H,) R_t: the largest reward-to-go that rewards and values allow. Of estimators that a
    constant in every reward does not move it is the largest distance from the mean value."""
    about, rewards = context.sums.about, context.reward_range or context.seen_rewards
    if rewards is None:
        return None
    low, high = np.zeros((2, about.horizon + 1))
    inside = values.t < about.horizon
    np.minimum.at(low, values.t[inside], values.v[inside])
    np.maximum.at(high, values.t[inside], values.v[inside])
    least = rewards[0] + about.discount * low[1:]
    most = rewards[1] + about.discount * high[1:]
    recipe = context.estimator
    raw = recipe is not None and (recipe.normalize == "simplex" or recipe.may_exceed_rewards)
    if recipe is None or (raw and recipe.control is None):
        return np.maximum(np.abs(least), np.abs(most))
    inside = mass.t < about.horizon
    total = tally(mass.t[inside], mass.v[inside], about.horizon)
    v = values.at(mass.t, mass.s)[inside]
    mean = divided(tally(mass.t[inside], mass.v[inside] * v, about.horizon), total)
    return np.maximum(most - mean, mean - least)


class RareActions(
    Gate,
    name="rare actions",
    question="Does the log lack actions that it rarely takes and the target likes?",
    fault="emergency",
    needs={"choices", "state values"},
    limits=limits_by(Limit(0.5, 1.0)),  # in errors; a model's are judged by "support"
    unless={"model", "pooled steps", "stationary"},
    assumption=True,
):
    def measure(self, context: Context) -> GateResult | None:
        sums, cells = context.sums, context.sums.by_action
        if sums.about.continuous_actions:
            return None  # no action occurs twice
        if cells is None:
            return self.unknown(context.lacking("model", NO_ACTIONS))
        logged = sums.about.behavior == "logged"
        found = context.once(self.name, lambda: lacking(cells.forget("block"), logged=logged))
        if found is None:
            return self.unknown(UNKNOWN_POLICY)
        if not found.unseen.any():
            return self.judge(0.0, "every state shows all actions that the target takes there")
        values, mass = state_values(context), target_mass(context)
        if values is None or isinstance(mass, str):
            return self.unknown(mass if isinstance(mass, str) else NO_TRANSITIONS)
        to_go = largest_to_go(context, mass, values)
        if to_go is None or context.error is None or not context.error > 0:
            what = "standard error" if to_go is not None else "range of rewards"
            return self.unknown(f"there is no {what} to compare with")
        return self.of_sums(context, found, mass, to_go)

    def of_sums(
        self, context: Context, found: Lacking, mass: StateValues, to_go: Floats
    ) -> GateResult:
        (t, s), about, error = found.pairs.keys, context.sums.about, context.error
        assert error is not None
        d = mass.at(t, s)
        size = d * about.discount**t * to_go[t]
        squared = found.excess / found.rows * size**2
        most = RULE_OF_THREE * float((size * found.unseen).sum())
        hidden = min(math.sqrt(max(float(squared.sum()), 0.0)), most)
        lost = float((d * found.unseen).sum())
        per_step = np.sqrt(np.maximum(tally(t, squared, about.horizon), 0.0)) / error
        at = worst_node(s, np.maximum(squared, 0.0)) if hidden > 0 else None
        place = None if at is None else Place(int(t[at]), int(s[at]))
        text = f"the log lacks actions that the target takes {lost:.2g} times an episode"
        if hidden > 0:
            text += (
                f", which may hide an error of {hidden:.2g} ({hidden / error:.1f} standard errors)"
            )
        else:
            text += ", no more than chance explains"
        return self.judge(
            hidden / error,
            text,
            "the log hardly ever shows what the target does there: log more of these actions, or "
            "evaluate a target that takes them less often",
            most="most",
            per_step=per_step,
            **context.place(place),
        )


class UnseenEvents(
    Gate,
    name="unseen events",
    question="How far could an event that the log has not seen move the value?",
    fault="side-effect",
    needs={"choices"},
    limits=limits_by(Limit(0.5, 2.0)),  # in errors
    assumption=True,
):
    """With a declared range of rewards. Without one nothing is known of what was never seen."""

    def measure(self, context: Context) -> GateResult:
        declared, seen, cells = context.reward_range, context.seen_rewards, context.sums.by_action
        if declared is None:
            return self.unknown(NOT_DECLARED)
        if cells is None or seen is None:
            return self.unknown(context.lacking("model", NO_ACTIONS))
        mass = target_mass(context)
        if isinstance(mass, str):
            return self.unknown(mass)
        if context.error is None or not context.error > 0:
            return self.unknown("the estimate has no standard error to compare with")
        per_size, action = rate_unseen(cells.forget("block"), mass, context.sums.about.discount)
        down, up = (per_size * max(x, 0.0) for x in (seen[0] - declared[0], declared[1] - seen[1]))
        bounds, ends = (f"{number(low)} to {number(high)}" for low, high in (seen, declared))
        text = f"rewards from {ends} are declared, and from {bounds} were seen"
        if not max(down, up) > 0:
            return self.judge(0.0, f"{text}: no event is more extreme than those")
        name = None
        if context.sums.actions is not None and action >= 0:
            name = context.sums.actions.name(action)
        after = "" if name is None else f" after action {name}"
        return self.judge(
            max(down, up) / context.error,
            f"{text}: an event that was not seen{after} could move the value by "
            f"-{number(down)} or +{number(up)}",
            "log more of this action, declare a narrower range if you know one, or find out what "
            "the action can do",
            action=name,
        )


def rate_unseen(cells: TransitionMoments, mass: StateValues, discount: float) -> tuple[float, int]:
    """E_a · 3/n_a of the action with the largest, and its code."""
    pairs = group_by([cells.t, cells.s])
    rows, at = pairs.sum(cells.n), pairs.index()
    per_row = (mass.at(*pairs.keys) / rows)[at] * discount**cells.t
    actions = group_by([cells.a])
    first, second = actions.sum(per_row * cells.rho), actions.sum(per_row**2 * cells.rho2)
    rate = RULE_OF_THREE * divided(second, first)  # E/n with n = E²/Σω²
    worst = int(np.argmax(rate))
    codes: Ints = actions.keys[0]
    return float(rate[worst]), int(codes[worst])


class ActionsInGroups(
    AssumptionGate,
    name="action groups",
    question="Do actions act through their groups alone?",
    fault="action-in-group",
    reads="solution",
    needs={"model"},
    limits=limits_by(Limit(0.01, 1e-6, above=False)),
    holds="actions of one group earn the same, as far as the log shows",
    fails="actions of one group differ in what they earn: an effect beside the group's",
    advice="use smaller groups, whose actions are alike, or mis without groups",
    most="most",
    of={"action groups"},
):
    """Whether the action still predicts q = reward + γV(next state) within (step, state, group), V
    by the grouped estimate. Of N rows of K actions the share of Σ(q - q̄)² between actions has the
    mean (K-1)/(N-1) if it does not; these add up over all (t, s, g), as many may have few rows."""

    def test(self, context: Context) -> Outcome:
        recipe, base = context.estimator, context.sums
        if recipe is None or base.model is None:
            return Outcome(None, context.lacking("model", NO_ACTIONS))
        cells, grouped = base.model.forget("block"), recipe.weights.regrouped(base)
        assert grouped.model is not None
        assert grouped.actions is not None
        op = marginal_operator(grouped)
        values = StateValues(op.node_t, op.node_s, backward(op).u)
        ahead = base.about.discount * values.at(cells.t_next, cells.s_next)
        g = recipe.weights.groups_of(base)[cells.a]
        q2 = cells.y2 + 2 * ahead * cells.y + ahead**2 * cells.n
        actions = group_by([cells.t, cells.s, g, cells.a])
        n, q = actions.sum(cells.n), actions.sum(cells.y + ahead * cells.n)
        strata = group_by(list(actions.keys[:3]))
        N, K, total = strata.sum(n), strata.count().astype(np.float64), strata.sum(q)
        square = strata.sum(actions.sum(q2))
        spread, between = square - total**2 / N, strata.sum(q**2 / n) - total**2 / N
        use = (K >= 2) & (N > K) & (spread > ROUNDED * square)
        if not float((N - K)[use].sum()) >= LEAST_REPEATS:
            text = "hardly any group of a step and a state shows one of its actions twice"
            return Outcome(None, f"{text}: log more, or use fewer states")
        N, K, t = N[use], K[use], strata.keys[0][use]
        score = (N - 1) * between[use] / spread[use]
        variance = 2 * (K - 1) * (N - K) / (N + 1)
        worst = int(np.argmax((score - K + 1) / np.sqrt(variance)))
        H = base.about.horizon
        per_step = tail(*(tally(t, x, H) for x in (score, K - 1, variance)))
        p = float(tail(score.sum(), (K - 1).sum(), variance.sum()))
        state = int(strata.keys[1][use][worst])
        return Outcome(p, per_step=per_step, step=int(t[worst]), state=state)


def tail(score: Any, mean: Any, variance: Any) -> Any:
    """The probability of a larger score than this one, of a multiple of a χ² with this mean and
    variance; nan without a variance."""
    from scipy.special import chdtrc

    degrees = divided(2 * mean**2, variance)
    return np.where(degrees > 0, chdtrc(degrees, divided(degrees * score, mean)), np.nan)


class IncompleteState(
    Gate,
    name="incomplete state",
    question="Do both the policies and the past show that the state lacks something?",
    fault="binned-states",
    needs={"choices", "state values", "lagged"},
    limits=limits_by(Limit(None, 0.01, above=False)),
    of={"states"},
):
    """Either sign alone may mean little: policies may look at what does not matter, and the past
    may predict a little. Where bins are coarse both are there, and the estimate is off by more with
    every episode. The value is the p-value of "history" where the ratios vary within states and
    actions, else 1."""

    def measure(self, context: Context) -> GateResult | None:
        cells = context.sums.by_action
        if context.sums.about.continuous_actions:
            return None  # no two rows share one
        if cells is None:
            return self.unknown(context.lacking("model", NO_ACTIONS))
        past = History().measure(context)
        if past is None:
            return None  # it does not use the state
        if past.value is None:
            return self.unknown(past.text)
        apart = context.once(self.name, lambda: spread_within(cells))
        both = apart > MATERIAL
        text = f"the ratios vary by {apart:.0%} within states and actions"
        if both and past.level != "green":
            text += ", and earlier steps predict the outcome: two signs that the state lacks what "
            text += "the policies see and the outcome depends on"
        return self.judge(
            past.value if both else 1.0,
            text,
            "add what the policies look at to the state, use finer bins, or compare with wis, "
            "which uses no state",
        )


def spread_within(cells: TransitionMoments) -> float:
    """sqrt(Σ(ρ - ρ̄)²/Σρ²), deviations within (t, s, a)."""
    groups = group_by([cells.t, cells.s, cells.a])
    n, rho, rho2 = (groups.sum(values) for values in (cells.n, cells.rho, cells.rho2))
    within, total = float(np.maximum(rho2 - rho**2 / n, 0.0).sum()), float(rho2.sum())
    return math.sqrt(within / total) if total > 0 else 0.0


class EstimatedPropensities(
    Gate,
    name="estimated propensities",
    question="Were the propensities estimated, and from enough rows?",
    fault="fitted-behavior",
    limits=limits_by(Limit(0.01, None)),  # that of rare states of a model, which counts make of it
    softened=(
        "amber where the standard error ignores that they were estimated, or an action that the "
        "target takes was not seen in the rows that they were counted in"
    ),
    of={"ratios"},
):
    """The share of the target's actions whose propensity rests on fewer than 10 rows; of logged
    propensities nothing is read."""

    def measure(self, context: Context) -> GateResult:
        advice = "log the propensities: estimated ones are wrong if the decisions depended on more "
        advice += "than the state"
        if context.sums.about.behavior == "logged":
            return self.judge(0.0, "the propensities were logged")
        if not context.includes_fit:
            text = "the propensities were estimated from this log; the standard error ignores that"
            return self.result("amber", None, text, advice=advice, limit=str(self.limit()))
        log, cells, mass = context.log, context.sums.by_action, target_mass(context)
        text = "the propensities were estimated from this log, which the standard error includes"
        if log is None or cells is None or isinstance(mass, str):
            why = mass if isinstance(mass, str) else context.lacking("model", NO_ACTIONS)
            text = f"{text}; how many rows they rest on is unknown ({why})"
            return self.result("amber", None, text, advice=advice, limit=str(self.limit()))
        from reweigh.trust.gates.counted import thin_counts

        few, unseen = thin_counts(cells.forget("block"), mass, log.behavior_fit.per_step)
        share = few / max(context.sums.about.horizon, 1)
        text += f"; {share:.1%} of the target's actions were seen fewer than {SEEN_ENOUGH} times"
        if unseen > LOST_BY_COUNTS:
            text += f", and it takes actions that were never seen {unseen:.2g} times an episode"
            return self.result("amber", None, text, advice=advice, limit=str(self.limit()))
        return self.judge(share, text, advice)
