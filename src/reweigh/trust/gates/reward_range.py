"""Do the logged rewards allow the value? Outside of it, it is wrong, whatever its error says.

A policy that never leaves what was logged earns at each step a reward between the smallest and the
largest one, or 0 once an episode is over. An average over such episodes lies between

    low Σγ^t  and  high Σγ^t,   low = min(r) and high = max(r), with 0 where episodes end early.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reweigh.errors import RefusedError
from reweigh.log.log import EpisodeLog
from reweigh.log.states import END
from reweigh.sums.moments import Moments
from reweigh.system.numbers import number
from reweigh.trust.gates.gate import Context, Gate, GateResult
from reweigh.trust.gates.placebo import Placebo
from reweigh.trust.gates.support import Support

Range = tuple[float, float]
REFUSED = 4.0  # standard errors outside
ROUNDING = 1e-9  # of the larger end
NOT_CHECKED = "these sums do not hold the smallest and the largest reward"


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
        ends = bool(np.any((data.steps.ending == END) & (data.steps.lengths < horizon)))
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
        if off <= ROUNDING * max(abs(low), abs(high)):
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
