"""What the logged rewards allow: an estimate outside of it is wrong, whatever its error says.

A policy that never leaves what was logged earns at each step a reward between the smallest and the
largest one, or 0 once an episode is over. An average over such episodes lies between

    low Σγ^t  and  high Σγ^t,   low = min(r) and high = max(r), with 0 where episodes end early.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reweigh.errors import RefusedError
from reweigh.estimate.recipe import Recipe
from reweigh.log.log import EpisodeLog
from reweigh.log.states import END
from reweigh.sums.moments import Moments
from reweigh.system.number_format import number
from reweigh.trust.gates import Gate

Range = tuple[float, float]
NAME = "reward range"
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


def reward_range(
    value: float,
    error: float | None,
    allowed: Allowed | None,
    recipe: Recipe,
    own: Sequence[Gate] = (),
) -> Gate:
    """Amber where the value is outside of what the rewards allow, and refused where it is outside
    by more than its error explains; the estimate's own gates may know why."""
    if allowed is None:
        return Gate(NAME, "unknown", None, NOT_CHECKED)
    low, high = allowed.values
    off = max(low - value, value - high, 0.0)
    between = f"between {number(low)} and {number(high)}" if high > low else number(low)
    if off <= ROUNDING * max(abs(low), abs(high)):
        values = f"values from {number(low)} to {number(high)}" if high > low else f"only {between}"
        return Gate(NAME, "green", 0.0, f"the logged rewards allow {values}")
    errors = None if error is None else off / error
    side = "below" if value < low else "above"
    by = "" if errors is None else f" by {errors:.1f} standard errors"
    least, most = allowed.rewards
    why = (
        f"{value:.6g} is {side} what the logged rewards allow{by}: with rewards from "
        f"{number(least)} to {number(most)} over {allowed.horizon} steps"
        f"{' (0 after an early end)' if allowed.ends_early else ''} every policy earns {between}"
    )
    if recipe.may_exceed_rewards:
        text = f"{why}; the weights of {recipe.name} are not normalised, so it may be outside"
        return Gate(NAME, "green", errors, text)
    if errors is None or errors > REFUSED:
        raise RefusedError(
            "out-of-range",
            f"{recipe.name} says {why}. {_cause(own)}",
        )
    advice = "the weights do not quite average to 1; wis and mis-state cannot leave the range"
    return Gate(NAME, "amber", errors, why, advice)


def _cause(own: Sequence[Gate]) -> str:
    by_name = {gate.name: gate for gate in own if gate.level in ("amber", "red")}
    known = [by_name[name].sentence for name in ("support", "placebo") if name in by_name]
    text = known[0] if known else "check the propensities and the target's probabilities"
    return text[0].upper() + text[1:]
