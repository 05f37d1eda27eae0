"""certify(): bounds on the target's value that hold for every number of episodes.

With rewards known to lie within [low, high] the step-wise importance-sampling terms

    X_i = Σ_t γ^t ρ_{0:t} (r_t - low)        Y_i = Σ_t γ^t ρ_{0:t} (high - r_t)

are not negative, whatever the ratios, and E[X] ≤ v - low Σ_t γ^t, E[Y] ≤ high Σ_t γ^t - v, with
equality where the log can show all that the target does. So a lower bound of E[X] is one of v, and
a lower bound of E[Y] gives an upper one. What the target gains over the logged policy is bounded in
the same way, episode by episode: with G_i = Σ_t γ^t (r_t - low) and T = (high - low) Σ_t γ^t

    E[X + T - G] ≤ T + v_π - v_μ             E[Y + G] ≤ T - (v_π - v_μ)

and all of these terms are not negative. An episode that has ended goes on with its product and
the reward 0; where that happens 0 belongs to the range. Betting (`trust/bounds.py`) bounds the
means of such values from below without a bound on how large they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from reweigh.errors import Fault, RefusedError, check, check_fraction, input_error
from reweigh.estimate.influence import refuse_weights
from reweigh.evaluation.data import check_target
from reweigh.evaluation.inputs import check_range, check_rewards
from reweigh.log.log import EpisodeLog
from reweigh.policy import Policy
from reweigh.show.text import aligned
from reweigh.sums.engines import ratios
from reweigh.system import number
from reweigh.trust.bounds import (
    bernstein_interval,
    hoeffding_interval,
    lower_bound,
    p_value_at_most,
    weighted,
)

Floats = npt.NDArray[np.float64]
Range = tuple[float, float]
ROUNDING = 1e-9  # the share by which a ratio may exceed the declared largest one
ASSUMED = (
    "the logged propensities are right",
    "the episodes are independent, with the same behavior policy and world",
)


@dataclass(frozen=True)
class Certificate:
    """Bounds that hold for every number of episodes, at this level, if their assumptions hold.

    low, high    by betting on step-wise importance sampling; an end that was not requested is the
                 trivial one, of the range
    gain         the same for the target's value less that of the logged policy, at this level too
    p_value      of "the target earns no more than the logged policy", one-sided, by the same bets
                 as the lower end of the gain, so that they agree: with α the error probability of
                 that end, (1 - level)/2, or 1 - level with a side, p ≤ α exactly if the end is
                 above 0
    trivial      the bounds from the rewards' range alone
    compared     other bounds for the same values, for comparison: Hoeffding, empirical Bernstein
    """

    low: float
    high: float
    level: float
    side: Literal["both", "lower", "upper"]
    reward_range: Range
    trivial: Range
    n_episodes: int
    horizon: int
    gain: Range
    p_value: float
    seed: int
    largest_ratio: float | None
    compared: dict[str, Range]
    never_ends: bool

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the bounds rest on."""
        low, high = (number(end) for end in self.reward_range)
        never_ends = f"no episode can end before its {self.horizon} steps (and earn 0 from then on)"
        compared = f"for the comparison: no ratio exceeds {number(self.largest_ratio)}"
        return (
            f"every reward lies within [{low}, {high}], as declared",
            *ASSUMED,
            *((never_ends,) if self.never_ends else ()),
            *((compared,) if self.compared else ()),
        )

    @property
    def method(self) -> str:
        return "betting on step-wise importance sampling"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        plain = {name: value for name, value in vars(self).items() if name != "never_ends"}
        return plain | {
            "method": self.method,
            "reward_range": list(self.reward_range),
            "trivial": list(self.trivial),
            "gain": list(self.gain),
            "compared": {name: list(ends) for name, ends in self.compared.items()},
            "assumes": list(self.assumes),
        }

    def _ends(self, ends: Range) -> str:
        low, high = outward(ends[0], down=True), outward(ends[1], down=False)
        return {"both": f"[{low}, {high}]", "lower": f"≥ {low}", "upper": f"≤ {high}"}[self.side]

    def rows(self) -> list[tuple[str, str]]:
        """What is printed, as (label, text)."""
        lines = [
            (f"{self.level * 100:g} % certificate", self._ends((self.low, self.high))),
            ("from the range alone", self._ends(self.trivial)),
            (
                "gain over the log",
                f"{self._ends(self.gain)}, one-sided p = {outward(self.p_value, down=False)}",
            ),
            ("method", self.method),
            ("episodes, horizon", f"{self.n_episodes:,}, {self.horizon}"),
        ]
        lines += [(f"compare: {name}", self._ends(ends)) for name, ends in self.compared.items()]
        lines.append(("finite-sample", "valid for any number of episodes, if"))
        return lines

    def __str__(self) -> str:
        return "\n".join([*aligned(self.rows()), *(f"  - {text}" for text in self.assumes)])

    __repr__ = __str__


def certify(
    log: EpisodeLog,
    target: Policy,
    reward_range: Range,
    level: float = 0.95,
    *,
    side: Literal["both", "lower", "upper"] = "both",
    largest_ratio: float | None = None,
    seed: int = 0,
) -> Certificate:
    """Bounds on what `target` earns that hold for every n: the only ones here that do.

    They assume rewards within `reward_range`, right propensities and independent episodes; they
    assume nothing about the states, the overlap or the size of the ratios, and without overlap they
    are wide. With `side` the whole error probability goes to one end. `seed` orders the episodes,
    which the bets depend on; any order is valid, but use only one. `largest_ratio`, a
    bound on π/μ that is known to hold, adds Hoeffding's and the empirical Bernstein bound for
    comparison.
    """
    low, high = check_range(reward_range)
    level = check_fraction("level", level)
    check(side in ("both", "lower", "upper"), "side", '"both", "lower" or "upper"', side)
    check(side == "both" or level > 0.5, "level", "above 0.5 for a bound on one side", level)
    _refuse_others(log)
    check_rewards(log, (low, high))
    _, rho = ratios(log, check_target(target), None)
    _check_ratios(log, rho, largest_ratio)
    least, most = with_ends(log, (low, high))
    total = float(np.sum(log.discount ** np.arange(log.horizon)))
    trivial = least * total, most * total
    alpha = (1 - level) / 2 if side == "both" else 1 - level
    X, Y, G = _terms(log, rho, least, most)
    span = trivial[1] - trivial[0]
    value, gain = trivial, (-span, span)
    if side != "upper":
        value = trivial[0] + lower_bound(X, 0.0, alpha, seed=seed), value[1]
        gain = lower_bound(X + (span - G), 0.0, alpha, seed=seed) - span, gain[1]
    if side != "lower":
        value = value[0], trivial[1] - lower_bound(Y, 0.0, alpha, seed=seed)
        gain = gain[0], span - lower_bound(Y + G, 0.0, alpha, seed=seed)
    for what, (low_end, high_end) in (("value", value), ("gain", gain)):
        if low_end > high_end:
            raise RefusedError(
                "no-common-mean",
                f"no {what} is possible: one bound says at least {low_end:g}, the other at "
                f"most {high_end:g}. By chance this happens once in {1 / (1 - level):.3g} "
                "logs; more likely the propensities are wrong, or the episodes are not "
                "independent",
            )
    compared = {}
    if largest_ratio is not None:
        compared = _compared(log, X, Y, trivial, (least, most), alpha, float(largest_ratio))
    return Certificate(
        *value,
        level=level,
        side=side,
        reward_range=(low, high),
        trivial=trivial,
        n_episodes=log.n_episodes,
        horizon=log.horizon,
        gain=gain,
        # the bets of the gain's lower end, so that the two never disagree
        p_value=p_value_at_most(X + (span - G), span, 0.0, alpha, seed=seed),
        seed=seed,
        largest_ratio=None if largest_ratio is None else float(largest_ratio),
        compared=compared,
        never_ends=(least, most) == (low, high) and not low <= 0 <= high,
    )


def outward(value: float, *, down: bool) -> str:
    """Four digits, rounded away from the value: a bound that is printed holds as well."""
    if value == 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 3)
    return number((math.floor if down else math.ceil)(value / unit) * unit)


def with_ends(log: EpisodeLog, reward_range: Range) -> Range:
    """The range of what a step earns: with 0 where episodes end early, END earning 0."""
    low, high = reward_range
    if log.steps.n_complete < log.n_episodes:
        return min(low, 0.0), max(high, 0.0)
    return low, high


def _refuse_others(log: EpisodeLog) -> None:
    if not isinstance(log, EpisodeLog):
        raise RefusedError(
            "needs-log",
            "a certificate needs individual episodes: keep the log in memory "
            "(engine='arrays'), not sums",
        )
    refuse_weights(log, "a certificate")
    if log.steps.cluster is not None:
        raise RefusedError(
            "clusters",
            f"a certificate needs independent episodes, and those of a cluster "
            f"({log.columns.cluster}) are not: use an interval, whose errors are by cluster",
        )
    if log.n_truncated:
        raise RefusedError(
            "truncated",
            f"{log.n_truncated:,} episodes were cut off, and a certificate needs complete "
            "episodes: their later rewards are unknown, and leaving them out may select on "
            "the outcome",
        )
    if log.behavior_source != "logged":
        raise RefusedError(
            "estimated-behavior",
            "the propensities were estimated from this log: a certificate needs the logged ones",
        )


def _check_ratios(log: EpisodeLog, rho: Floats, largest: float | None) -> None:
    if largest is None:
        return
    check(
        isinstance(largest, int | float | np.number) and 0 < largest < math.inf,
        "largest_ratio",
        "a positive number",
        largest,
    )
    worst = int(np.argmax(rho))
    beyond = int(np.sum(rho > largest * (1 + ROUNDING)))
    if beyond:
        rule = f"the ratios π/μ must not exceed the declared {largest:g}"
        fix = "declare a bound that holds for every action that can occur"
        places = (log.place(worst, None, float(rho[worst])),)
        fault = Fault("largest-ratio", rule, fix, places, beyond, len(rho))
        raise input_error("the log", [fault])


def _terms(log: EpisodeLog, rho: Floats, low: float, high: float) -> tuple[Floats, Floats, Floats]:
    """(n,) X, Y and G. Weights beyond e^600 count as that, which only lowers the bounds."""
    steps = log.steps
    log_w = np.zeros(log.n_episodes)
    X, Y, G = np.zeros((3, log.n_episodes))
    with np.errstate(divide="ignore"):
        log_rho = np.log(rho)
    for t in range(log.horizon):
        rows = steps.rows(t)
        alive = rows.stop - rows.start
        log_w[:alive] += log_rho[rows]
        r = np.zeros(log.n_episodes)
        r[:alive] = steps.reward[rows]
        X += log.discount**t * weighted(log_w, r - low)
        Y += log.discount**t * weighted(log_w, high - r)
        G += log.discount**t * (r - low)
    # rounding may take G, a sum over the steps, beyond what the largest rewards add up to
    return X, Y, np.minimum(G, float(np.sum(log.discount ** np.arange(log.horizon))) * (high - low))


def _compared(
    log: EpisodeLog,
    X: Floats,
    Y: Floats,
    trivial: Range,
    step: Range,
    alpha: float,
    largest: float,
) -> dict[str, Range]:
    """The same ends by bounds that need to know how large X and Y can be: all ratios at their
    largest, Σ_t γ^t R^{t+1} (high - low)."""
    powers = np.arange(log.horizon)
    with np.errstate(over="ignore"):
        growth = max(largest, 1.0) ** (powers + 1.0)
        most = float(np.sum(log.discount**powers * growth)) * (step[1] - step[0])
    if not math.isfinite(most):
        return {}
    # rewards and ratios were checked, ratios to ROUNDING: a larger excess was rounded
    slack = most * (1 + ROUNDING) ** (log.horizon + 1.0)
    terms = [np.where(values <= slack, np.minimum(values, most), values) for values in (X, Y)]
    compared = {}
    bounds = {"Hoeffding": hoeffding_interval, "Bernstein, empirical": bernstein_interval}
    for name, bound in bounds.items():
        below, above = (bound(values, 0.0, most, 2 * alpha)[0] for values in terms)
        low, high = trivial[0] + below, trivial[1] - above
        compared[name] = (low, max(low, high))
    return compared
