"""Gates of the support: does the log show what the target does, and is no mass lost or gained?

Target mass that reaches what the log never shows is summed over the steps. Running products cannot
tell it of themselves: "marginal support" is that of the marginal weights on the same log, as
"marginal size" is their effective number of episodes.

**Unseen actions.** DR, WDR and MDR with Q of other episodes are right on average: rows of a rare
action make up for it in the logs that have some. A log without them says too little, and cannot see
it in its own spread. With π's probability ℓ_t(s) of the actions that (t, s)
does not show, the mean ratio ρ̄, and d and V of the model over the actions seen, what is missing is
about

    Σ_t γ^t Σ_s d_t(s) V_t(s) min(max(1 - ρ̄_t(s), -ℓ_t(s)), ℓ_t(s)).

ρ̄ says how much of ℓ the rows of other actions leave open: with many actions of a few rows each
some are always missing, others are there too often, and nothing is lost.

**Reward range.** A policy that never leaves what was logged earns at each step a reward between the
smallest and the largest one, or 0 once an episode is over. An average over such episodes lies
between

    low Σγ^t  and  high Σγ^t,   low = min(r) and high = max(r), with 0 where episodes end early.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from reweigh.errors import LowOverlapWarning, PlaceboWarning, RefusedError, SupportError
from reweigh.estimate.estimator import Place
from reweigh.estimate.operators import cells_of, importance_operator
from reweigh.estimate.recursion import backward, forward
from reweigh.estimate.solution import largest, most_left_out
from reweigh.kernels import tally
from reweigh.log.log import EpisodeLog
from reweigh.log.states import END
from reweigh.sums.moments import Moments
from reweigh.system import number
from reweigh.trust.gates.gate import (
    ROUNDING,
    Context,
    Floats,
    Gate,
    GateResult,
    Limit,
    limits_by,
    place_in_words,
)
from reweigh.trust.gates.weights import EffectiveSize, marginal_weights

SAME = 1e-9  # relative: numbers that differ by less differ by rounding
MATERIAL = 0.01  # of what the placebo should be: by less it is amber, however small its error
ABSURD = 1e3  # times what it should be: no luck, whatever its error is
LOST = (
    "check that the log shows what the target does, and that the propensities are not too large; "
    "clipped ratios lose mass too"
)
GAINED = "check that the propensities are those of the logged actions: some are too small"
LOST_BY_MODEL = "the target takes actions that the log never shows there: log them, or use mis"
Range = tuple[float, float]
REFUSED = 4.0  # standard errors outside
NOT_CHECKED = "these sums do not hold the smallest and the largest reward"


class _LostMass(Gate):
    """A gate of the mass that reaches what the log does not show."""

    def of_mass(self, unseen: Floats, context: Context, **place: Any) -> GateResult:
        """By the (H,) mass that is lost, and the place that loses the most at the worst step."""
        total = float(unseen.sum())
        if total <= 0:
            text = "the log shows all that the target does"
            return self.judge(0.0, text, per_step=unseen)
        place |= {"step": int(np.argmax(unseen))}
        why = "the log does not show what it would do there"
        if context.limits != "model":
            why += ", or the propensities are too large"
            if context.sums.about.max_ratio is not None:
                clipped = f"the clipping of ratios at {context.sums.about.max_ratio:g}"
                why += f", or {clipped} has cut it away"
        return self.judge(
            total,
            f"{total:.1%} of the target's mass is lost, most of it at "
            f"{place_in_words(**place)} ({why})",
            "the value cannot speak for that part; ask for a target nearer to the behaviour, a "
            "coarser state, or log more there",
            limit=self.limit(context.limits),
            per_step=unseen,
            **place,
        )


class Support(
    _LostMass,
    name="support",
    question="Does the log show what the target does?",
    fault="action-missing",
    reads="solution",
    limits=limits_by(
        Limit(0.01, 0.10),
        model=Limit(0.0001, 0.001),  # what a model has not seen counts as 0
    ),
    warning=LowOverlapWarning,
    warns_if_amber=True,
):
    def measure(self, context: Context) -> GateResult:
        unseen = context.solved.unseen_mass
        if unseen is None:
            return self.unknown("this estimator has no state distribution; see marginal support")
        return self.of_mass(unseen, context, **context.place(context.solved.unseen_at))


class MarginalSupport(
    _LostMass,
    name="marginal support",
    question="Does the log show what the target does, by the marginal weights?",
    fault="action-missing",
    reads="sums",
    needs={"transitions"},
    limits=limits_by(Limit(0.01, 0.10)),
    of={"products"},
):
    def measure(self, context: Context) -> GateResult:
        weights = context.once("marginal weights", lambda: marginal_weights(context))
        if isinstance(weights, str):
            return self.unknown(weights)
        return self.of_mass(weights[1], context, **weights[2])


class RareStates(
    Gate,
    name="rare states",
    question="How much of the target's mass is on states seen fewer than 10 times?",
    fault="fine-states",
    reads="solution",
    limits=limits_by(Limit(0.01, 0.05), model=Limit(0.01, 0.20)),
    softened="amber at most with enough effective episodes, but for models and weights that are "
    "normalised within states",
    warning=LowOverlapWarning,
):
    """Target mass on (t, s), of a model on (t, s, a), seen fewer than 10 times: the mean over the
    steps. Without a model, and without weights that are normalised within a state, which few rows
    bias, it is red only with few effective episodes."""

    def measure(self, context: Context) -> GateResult:
        solution, ess = context.solved, context.solved.ess
        share = solution.rare_mass
        if share is None:
            return self.unknown("this estimator has no state distribution")
        from_model = context.limits == "model"
        what = "states and actions" if from_model else "states"
        least = float(np.nanmin(ess)) if np.any(np.isfinite(ess)) else 0.0
        few = EffectiveSize().limit().judge(least) == "red"
        strict = from_model or few or "within states" in context.traits
        return self.judge(
            share,
            f"{share:.1%} of the target's mass is on {what} seen fewer than 10 times at their step",
            "a coarser state would help",
            limit=self.limit(context.limits),
            at_most="red" if strict else "amber",
            most="most",
            per_step=solution.rare_by_step,
            **context.place(solution.rare_at),
        )


@dataclass(frozen=True, eq=False)
class LeftOut:
    """(H,) the value that is missing, step by step, and where most of it is."""

    per_step: Floats
    place: Place | None


class UnseenActions(
    Gate,
    name="unseen actions",
    question="How much value is missing for want of actions?",
    fault="action-missing",
    needs={"model"},
    limits=limits_by(Limit(0.5, 1.0)),  # in errors: what is missing moves the whole interval
    of={"fitted control"},
    unless={"fitted in sample"},
):
    """What a Q of other episodes leaves out, in errors of the estimate. Of the same episodes it has
    a gate of its own, "fitted values", and a model "support"."""

    def measure(self, context: Context) -> GateResult:
        missing = context.once(self.name, lambda: left_out(context.sums))
        if missing is None:
            return self.unknown(
                "these sums hold no model of the actions, or one that ends before the horizon"
            )
        value, error = abs(float(missing.per_step.sum())), context.error
        if not value > 0:
            text = "no value is missing for want of actions"
            return self.judge(0.0, text, per_step=missing.per_step)
        if error is None or not error > 0:
            return self.unknown("the estimate has no error to compare with")
        return self.judge(
            value / error,
            f"actions that the log never shows there would earn about {value:.3g}, "
            f"{value / error:.1f} standard errors, which the fitted Q counts as 0",
            "use mis, which fits no Q, or log more of these actions",
            most="most",
            per_step=missing.per_step / error,
            **context.place(missing.place),
        )


def left_out(sums: Moments) -> LeftOut | None:
    """None where the sums hold no model of the actions, or one that ends before the horizon."""
    if sums.about.continuous_actions or sums.model is None or sums.start_model is None:
        return None
    from reweigh.estimate.model import model_of

    about, (cells, start) = sums.about, cells_of(sums, "model")
    op = model_of(sums, renorm=True)
    unseen = np.where(1 - op.covered > SAME, 1 - op.covered, 0.0)
    if not unseen.any():
        return LeftOut(np.zeros(about.horizon), None)
    try:
        d = forward(op, simplex=False).d
    except SupportError:
        return None
    # The same nodes: here a reward of 1 in every row has the mean ρ̄.
    mean_ratio = importance_operator(cells, start, about.horizon, about.discount).placebo
    missing = np.minimum(np.maximum(1 - mean_ratio, -unseen), unseen)
    each = about.discount**op.node_t * d * backward(op).u * missing
    per_step = tally(op.node_t, each, about.horizon + 1)[: about.horizon]
    return LeftOut(per_step, most_left_out(op, np.abs(each)))


class TotalMass(
    Gate,
    name="total mass",
    question="Is the target's mass 1 before it is normalised?",
    fault="propensities-low",
    reads="solution",
    limits=limits_by(Limit(0.10, 0.50)),
    softened="amber at most: it fires on clean logs with large weights",
    hint=True,
    unless={"products", "model"},
):
    """Σ_s d_t(s) of the un-normalised recursion, which should be 1: a hint, never more, since it
    fires on clean logs with large weights."""

    def measure(self, context: Context) -> GateResult:
        mass = context.solved.total_mass
        if mass is None or not np.any(np.isfinite(mass)):
            return self.unknown("this estimator has no state distribution")
        off = np.abs(mass - 1)
        step = int(np.nanargmax(off))
        if not math.isfinite(off[step]):
            return self.unknown(
                f"the target's mass at step {step} is beyond what a number can hold"
            )
        if off[step] <= ROUNDING:  # that of a recursion that is normalised within states
            return self.judge(0.0, "the target's mass is 1 at every step", per_step=mass)
        return self.judge(
            float(off[step]),
            f"before normalising, the target's mass at step {step} is {mass[step]:.3g} instead of "
            "1",
            "large weights, or propensities that are not those of the log",
            at_most="amber",
            per_step=mass,
            step=step,
        )


class Placebo(
    Gate,
    name="placebo",
    question="Does a constant reward of 1 give what it must?",
    fault="swapped",
    reads="solution",
    limits=limits_by(Limit(3.0, 6.0)),  # six errors from a number that is known are no luck
    softened="amber at most where it is off by less than 1 % of what it should be",
    warning=PlaceboWarning,
    warns_if_amber=True,
):
    """The value if every reward were 1, END included, which is known: off by how many errors? Per
    step what it adds to that value, which should be γ^t."""

    def measure(self, context: Context) -> GateResult:
        about, solution = context.sums.about, context.solved
        powers = about.discount ** np.arange(about.horizon)
        value, error, expected = solution.placebo, solution.placebo_error, float(np.sum(powers))
        per_step, from_model = solution.placebo_by_step, context.limits == "model"
        off, lost = abs(value - expected), value < expected
        if error is None or not math.isfinite(value) or not math.isfinite(error):
            if not off > ABSURD * expected:
                return self.unknown("the placebo has no error here")
            number = "a number beyond all measure" if not math.isfinite(value) else f"{value:.2g}"
            text = f"the target gains mass: a constant reward of 1 gives {number} instead of "
            limit = str(self.limit())
            return self.result("red", None, f"{text}{expected:g}", advice=GAINED, limit=limit)
        # What a model has not seen is known to be missing, without luck: "support" judges it.
        fine = Support().limit("model").amber if from_model else None
        if off <= max(fine or 0.0, SAME) * expected:
            text = f"a constant reward of 1 gives {value:.4g}, as it must"
            return self.judge(0.0, text, per_step=per_step)
        errors = off / max(error, SAME * expected)  # without any spread only rounding is luck
        text = f"a constant reward of 1 gives {value:.4g} instead of {expected:g} "
        text += f"(error {error:.2g})"
        if self.limit().judge(errors) != "green":
            text = f"the target {'loses' if lost else 'gains'} mass: {text}"
        return self.judge(
            errors,
            text,
            GAINED if not lost else LOST_BY_MODEL if from_model else LOST,
            # Many episodes find what rounded propensities do: to be red, it must also matter.
            at_most="amber" if off < MATERIAL * expected else "red",
            most="furthest off",
            per_step=per_step,
            step=None if per_step is None else largest(np.abs(per_step - powers)),
        )


@dataclass(frozen=True)
class Allowed:
    """The rewards' range, and what the value can be."""

    rewards: Range
    values: Range
    horizon: int
    ends_early: bool


def value_range(rewards: Range, ends_early: bool, horizon: int, discount: float) -> Range:
    """What the value can be if every reward lies within the range."""
    low, high = (min(rewards[0], 0.0), max(rewards[1], 0.0)) if ends_early else rewards
    total = float(np.sum(discount ** np.arange(horizon)))
    return low * total, high * total


def allowed_by(data: EpisodeLog | Moments) -> Allowed | None:
    """None where sums do not tell."""
    if isinstance(data, EpisodeLog):
        rewards, horizon, discount = data.reward_range, data.horizon, data.discount
        ends = data.steps.ends_early
    else:
        cells = data.transitions if data.transitions is not None else data.model
        if data.rewards is None or cells is None:
            return None
        rewards, horizon, discount = data.rewards, data.about.horizon, data.about.discount
        ends = bool(np.any((cells.s_next == END) & (cells.t_next < horizon)))
    return Allowed(rewards, value_range(rewards, ends, horizon, discount), horizon, ends)


class RewardRange(
    Gate,
    name="reward range",
    question="Do the logged rewards allow the value?",
    fault="constant-reward",
    reads="solution",
):
    """Amber where the value is outside of what the rewards allow, and refused where it is outside
    by more than its error explains; support and placebo may know why."""

    def measure(self, context: Context) -> GateResult | None:
        if not context.within_rewards:
            return None
        allowed = allowed_by(context.whole)
        if allowed is None:
            return self.unknown(NOT_CHECKED)
        return self.of_range(context, allowed)

    def of_range(self, context: Context, allowed: Allowed) -> GateResult:
        value, error, estimator = context.solved.value, context.error, context.estimator
        low, high = allowed.values
        off = max(low - value, value - high, 0.0)
        between = f"between {number(low)} and {number(high)}" if high > low else number(low)
        if off <= SAME * max(abs(low), abs(high)):
            values = f"only {between}"
            if high > low:
                values = f"values from {number(low)} to {number(high)}"
            return self.result("green", 0.0, f"the logged rewards allow {values}")
        errors = None if error is None else off / error
        side = "below" if value < low else "above"
        by = "" if errors is None else f" by {errors:.1f} standard errors"
        least, most = allowed.rewards
        why = (
            f"{value:.6g} is {side} what the logged rewards allow{by}: with rewards from "
            f"{number(least)} to {number(most)} over {allowed.horizon} steps"
            f"{' (0 after an early end)' if allowed.ends_early else ''} every policy earns "
            f"{between}"
        )
        name = "the estimate" if estimator is None else estimator.name
        if estimator is not None and estimator.may_exceed_rewards:
            text = f"{why}; the weights of {name} are not normalised, so it may be outside"
            return self.result("green", errors, text)
        if errors is None or errors > REFUSED:
            raise RefusedError("out-of-range", f"{name} says {why}. {_cause(context)}")
        advice = "the weights do not quite average to 1; wis and mis-state cannot leave the range"
        return self.result("amber", errors, why, advice=advice)


def _cause(context: Context) -> str:
    results = (gate.measure(context) for gate in (Support(), Placebo()))
    known = [result.sentence for result in results if result.level in ("amber", "red")]
    text = known[0] if known else "check the propensities and the target's probabilities"
    return text[0].upper() + text[1:]
