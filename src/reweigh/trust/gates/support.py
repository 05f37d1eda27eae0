"""Gates of the support: does the log cover the target's behavior, and is no mass lost or gained?

Target mass without logged data is summed over the steps. Running products cannot measure it:
"marginal support" is that of the marginal weights on the same log, as "marginal size" is their
effective number of episodes.

**Unseen actions.** DR, WDR and MDR with Q of other episodes are right on average: rows of a rare
action make up for it in the logs that have some. A log without them does not know their value, and
its own variance does not show it. With π's probability ℓ_t(s) of the actions that (t, s) does not
show, the mean ratio ρ̄, and d and V of the model over the actions seen, what is missing is about

    Σ_t γ^t Σ_s d_t(s) V_t(s) min(max(1 - ρ̄_t(s), -ℓ_t(s)), ℓ_t(s)).

1 - ρ̄ measures how much of ℓ is really missing: with many actions of a few rows each
some are always missing, others are there too often, and nothing is lost. Q counts a missing
action at the state's value (`estimate/tabular_q.py`): what is missing is what that would be worth.

**Reward range.** A policy that stays within the logged behavior earns at each step a reward between
the smallest and the largest one, or 0 once an episode is over. An average over such episodes lies
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
    ONE_STEP,
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
MATERIAL = 0.01  # of the known value: a smaller difference is at most amber
ABSURD = 1e3  # times the known value: not chance, whatever the error
LOST = (
    "check that the log contains what the target does, and that the propensities are not too "
    "large; clipped ratios lose mass too"
)
GAINED = "check that the propensities belong to the logged actions: some are too small"
LOST_BY_MODEL = (
    "the target takes actions that the log does not have there: log them, restrict the "
    "target, or use mis"
)
Range = tuple[float, float]
REFUSED = 4.0  # standard errors outside
NOT_CHECKED = "the sums do not include the smallest and the largest reward"


class _LostMass(Gate):
    """A gate of the target's mass that reaches states or actions without data."""

    def of_mass(self, unseen: Floats, context: Context, **place: Any) -> GateResult:
        """From the (H,) lost mass, and the place that loses the most at the worst step."""
        total = float(unseen.sum())
        if total <= 0:
            text = "the log covers all of the target's behavior"
            return self.judge(0.0, text, per_step=unseen)
        place |= {"step": int(np.argmax(unseen))}
        why = "no data there"
        if context.limits != "model":
            why += ", or the propensities are too large"
            if context.sums.about.max_ratio is not None:
                clipped = f"ratios are clipped at {context.sums.about.max_ratio:g}"
                why += f", or {clipped}"
        return self.judge(
            total,
            f"the log does not cover {total:.1%} of the target's behavior, most of it at "
            f"{place_in_words(**place)} ({why})",
            "the estimate does not cover that share: choose a target closer to the logged "
            "policy or a coarser state, or log more there",
            limit=self.limit(context.limits),
            per_step=unseen,
            **place,
        )


class Support(
    _LostMass,
    name="support",
    question="Does the log cover what the target does?",
    fault="action-missing",
    reads="solution",
    limits=limits_by(
        Limit(0.01, 0.10),
        model=Limit(0.0001, 0.001),  # what a model has not seen counts as 0
        augmented=Limit(0.001, 0.10),  # what no row corrects counts as what the others earn
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
    question="Does the log cover what the target does, by marginal weights?",
    fault="action-missing",
    reads="sums",
    needs={"transitions"},
    limits=limits_by(Limit(0.01, 0.10)),
    of={"products", "memory", ONE_STEP},
):
    def measure(self, context: Context) -> GateResult | None:
        if context.one_step and context.estimator and not context.estimator.uses_trajectories:
            return None  # "support" says it
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
    softened=(
        "at most amber with enough effective episodes, except for models and weights that "
        "are normalized within states"
    ),
    warning=LowOverlapWarning,
    unless={ONE_STEP},
):
    """Target mass on (t, s), of a model on (t, s, a), seen fewer than 10 times: the mean over the
    steps. Without a model, and without weights that are normalized within a state, which few rows
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
            "use a coarser state, or log more episodes",
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
    question="How much value is missing because actions were never logged?",
    fault="action-missing",
    needs={"model"},
    limits=limits_by(Limit(0.5, 1.0)),  # in errors: the missing value moves the whole interval
    of={"fitted control"},
    unless={"fitted in sample"},
):
    """The value that a Q fitted on other episodes leaves out, in standard errors of the estimate.
    For a Q of the same episodes see "fitted values", for a model "support"."""

    def measure(self, context: Context) -> GateResult:
        missing = context.once(self.name, lambda: left_out(context.sums))
        if missing is None:
            return self.unknown(
                "the sums have no model of the actions, or one that ends before the horizon"
            )
        value, error = abs(float(missing.per_step.sum())), context.error
        if not value > 0:
            text = "no value is missing because of unlogged actions"
            return self.judge(0.0, text, per_step=missing.per_step)
        if error is None or not error > 0:
            return self.unknown("the estimate has no standard error to compare with")
        return self.judge(
            value / error,
            f"actions that were never logged there would earn about {value:.3g} "
            f"({value / error:.1f} standard errors), which the fitted Q takes from other actions",
            "log more of these actions, or use mis, which fits no Q",
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
    question="Is the target's mass 1 before normalizing?",
    fault="propensities-low",
    reads="solution",
    limits=limits_by(Limit(0.10, 0.50)),
    softened="at most amber: large weights trigger it on clean logs too",
    hint=True,
    unless={"products", "model", ONE_STEP},
):
    """Σ_s d_t(s) of the un-normalized recursion, which should be 1. Only a hint, because large
    weights trigger it on clean logs."""

    def measure(self, context: Context) -> GateResult:
        mass = context.solved.total_mass
        if mass is None or not np.any(np.isfinite(mass)):
            return self.unknown("this estimator has no state distribution")
        off = np.abs(mass - 1)
        step = int(np.nanargmax(off))
        if not math.isfinite(off[step]):
            return self.unknown(f"the target's mass at step {step} overflows floating point")
        if off[step] <= ROUNDING:  # that of a recursion that is normalized within states
            return self.judge(0.0, "the target's mass is 1 at every step", per_step=mass)
        return self.judge(
            float(off[step]),
            f"before normalizing, the target's mass at step {step} is {mass[step]:.3g} instead of "
            "1",
            "the weights are large, or the propensities do not belong to the log",
            at_most="amber",
            per_step=mass,
            step=step,
        )


class Placebo(
    Gate,
    name="placebo",
    question="Does a constant reward of 1 give its known value?",
    fault="swapped",
    reads="solution",
    limits=limits_by(Limit(3.0, 6.0)),  # six errors from a known number are not chance
    softened="at most amber if it is off by less than 1 % of its known value",
    warning=PlaceboWarning,
    warns_if_amber=True,
):
    """The value if every reward were 1, END included, is known. By how many standard errors is the
    estimate of it off? Per step: its contribution, which should be γ^t."""

    def measure(self, context: Context) -> GateResult:
        about, solution = context.sums.about, context.solved
        powers = about.discount ** np.arange(about.horizon)
        value, error, expected = solution.placebo, solution.placebo_error, float(np.sum(powers))
        per_step, from_model = solution.placebo_by_step, context.limits == "model"
        off, lost = abs(value - expected), value < expected
        if error is None or not math.isfinite(value) or not math.isfinite(error):
            if not off > ABSURD * expected:
                return self.unknown("the placebo has no standard error here")
            number = (
                ("a number beyond floating point") if not math.isfinite(value) else f"{value:.2g}"
            )
            text = f"the target's total mass is too large: a constant reward of 1 gives {number} "
            text += "instead of "
            limit = str(self.limit())
            return self.result("red", None, f"{text}{expected:g}", advice=GAINED, limit=limit)
        # Mass missing from a model is known without noise, and "support" judges it.
        fine = Support().limit("model").amber if from_model else None
        if off <= max(fine or 0.0, SAME) * expected:
            text = f"a constant reward of 1 gives {value:.4g}, as it should"
            return self.judge(0.0, text, per_step=per_step)
        errors = off / max(error, SAME * expected)  # without any spread only rounding is luck
        text = f"a constant reward of 1 gives {value:.4g} instead of {expected:g} "
        text += f"(error {error:.2g})"
        if self.limit().judge(errors) != "green":
            text = f"the target's total mass is too {'small' if lost else 'large'}: {text}"
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
    """None if the sums do not include them."""
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
    question="Is the value in the range that the logged rewards allow?",
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
            f"{value:.6g} is {side} the range that the logged rewards allow{by}: with "
            f"rewards from {number(least)} to {number(most)} over {allowed.horizon} "
            f"steps{' (0 after an early end)' if allowed.ends_early else ''} every policy "
            f"earns {between}"
        )
        name = "the estimate" if estimator is None else estimator.name
        if estimator is not None and estimator.may_exceed_rewards and not context.one_step:
            text = f"{why}; the weights of {name} are not normalized, so it can leave the range"
            return self.result("green", errors, text)
        if errors is None or errors > REFUSED:
            raise RefusedError(
                "out-of-range",
                (f"{name}: {why}. {_cause(context)}"),
            )
        advice = "the weights do not quite average to 1; wis and mis-state cannot leave the range"
        return self.result("amber", errors, why, advice=advice)


def _cause(context: Context) -> str:
    results = (gate.measure(context) for gate in (Support(), Placebo()))
    known = [result.sentence for result in results if result.level in ("amber", "red")]
    text = known[0] if known else "check the propensities and the target's probabilities"
    return text[0].upper() + text[1:]
