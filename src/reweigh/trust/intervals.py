"""From an error, or from replicates, to an interval: pure arithmetic.

    analytic, cluster, jackknife   v̂ ± t SE, with Student's t of df degrees of freedom
    percentile                     the ends are order statistics of the replicates' values v*
    bootstrap-t                    v̂ - t*_{1-α/2} SE and v̂ - t*_{α/2} SE, with t* = (v* - v̂)/SE*

A one-sided bound is the same with α on its side. Where the range of the value is declared, the
interval keeps within it (`t_interval`): on the logit scale where the estimator is an average with
weights that sum to 1, else what lies outside is cut away.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from reweigh.errors import MOST_REPLICATES, RefusedError, UsageError, check_whole, must_be
from reweigh.estimate.estimator import Recipe
from reweigh.estimate.standard_error import NOISE, Freedom, range_interval, t_interval
from reweigh.system.numbers import finite_or_none, number, rounded

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Side = Literal["both", "lower", "upper"]
Range = tuple[float, float]
METHODS = ("auto", "analytic", "cluster", "jackknife", "percentile", "bootstrap-t")
LEAST_BEYOND = 20  # replicates outside of the interval
MOST_APART = 0.1  # of the analytic error and that of the influence values
MOST_REFUSED = 0.2  # of α: so many of the replicates may be without an answer


@dataclass(frozen=True)
class Interval:
    """A confidence interval; a one-sided bound has one infinite end.

    method tells how it was made, in words; standard_error and df (degrees of freedom) are those
    that it was made with, None where it was not.
    """

    low: float
    high: float
    level: float
    method: str
    standard_error: float | None = None
    df: float | None = None

    def __str__(self) -> str:
        margin = (self.high - self.low) / 4
        if math.isfinite(margin):
            return f"[{rounded(self.low, margin)}, {rounded(self.high, margin)}]"
        if math.isfinite(self.low):
            return f"≥ {rounded(self.low, self.standard_error)}"
        return f"≤ {rounded(self.high, self.standard_error)}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values; an end that is not bounded is None."""
        ends = {"low": finite_or_none(self.low), "high": finite_or_none(self.high)}
        return {
            **ends,
            "level": self.level,
            "method": self.method,
            "standard_error": self.standard_error,
        }


@dataclass(frozen=True)
class Situation:
    """What `auto` looks at first: nothing that depends on the rewards.

    analytic, jackknife and cluster tell whether there is such an error.
    """

    estimator: str
    n_episodes: int
    worst_ess: float | None
    analytic: bool
    jackknife: bool
    cluster: bool


def auto_method(here: Situation) -> str | None:
    """The method that `auto` stands for, None where there is none.

    The analytic error with its small-sample corrections where the estimator has one (all but
    SSD-IS, and WIS on sums alone), else the jackknife over blocks of episodes, else the error of
    the influence values. Where an analytic error rests on the state and that of the influence
    values exceeds it by more than a tenth, the larger one is taken (`dependent`).
    """
    if here.analytic:
        return "analytic"
    if here.jackknife:
        return "jackknife"
    return "cluster" if here.cluster else None


def dependent(analytic: float, cluster: float) -> bool:
    """Whether episodes depend on something that the state does not tell.

    The analytic error takes rows for independent given their states; that of the influence values
    only takes episodes for independent. On the clean logs of the coverage study the two seldom
    differ by more than a tenth; where whole episodes are good or bad for a reason that no column
    tells (its world `fate`), they always do, and the analytic interval covers too seldom.
    """
    return cluster > (1 + MOST_APART) * analytic


@dataclass(frozen=True)
class Asked:
    """What interval is wanted; checked."""

    level: float = 0.95
    side: Side = "both"
    value_range: Range | None = None
    scale: Literal["cut", "logit"] = "cut"

    def __post_init__(self) -> None:
        level, fine = self.level, isinstance(self.level, int | float | np.number)
        if not fine or not 0 < level < 1:
            raise must_be("level", "a number between 0 and 1", level)
        if self.side not in ("both", "lower", "upper"):
            raise must_be("side", '"lower" or "upper"', self.side)
        if self.side != "both" and level <= 0.5:
            raise must_be("level", "above 0.5 for a bound on one side", level)
        ends = self.value_range
        if ends is None:
            return
        fine = isinstance(ends, tuple | list) and len(ends) == 2
        if not fine or not -math.inf < ends[0] < ends[1] < math.inf:
            raise must_be("value_range", "two numbers, the smaller first", ends)

    @property
    def tail(self) -> float:
        """The probability beyond an end."""
        return (1 - self.level) / 2 if self.side == "both" else 1 - self.level

    def interval(
        self, low: float, high: float, method: str, error: float | None, df: float | None = None
    ) -> Interval:
        """The end that is not asked for is infinite."""
        if self.side != "both":
            method += ", one-sided"
        return Interval(
            -math.inf if self.side == "upper" else low,
            math.inf if self.side == "lower" else high,
            float(self.level),
            method,
            error,
            df,
        )

    def within(self, low: float, high: float, method: str, error: float) -> Interval:
        """The interval, cut to the range."""
        if self.value_range is None:
            return self.interval(low, high, method, error)
        least, most = self.value_range
        below, above = max(low, least), min(high, most)
        if below > above:
            raise _outside(f"the interval [{number(low)}, {number(high)}]", self.value_range)
        return self.interval(below, above, f"{method}, cut to the range", error)


def check_method(method: str) -> str:
    if method not in METHODS:
        raise must_be("method", f"one of {', '.join(METHODS)}", method)
    return method


def check_replicates(replicates: int, level: float) -> None:
    """(B + 1)(1 - level) replicates lie outside of the interval: of too few its ends are noise."""
    least = math.ceil(LEAST_BEYOND / (1 - level) - 1e-6) - 1
    if replicates < least:
        raise UsageError(
            f"the parameter 'replicates' must be at least {least:,} at the level {level:g}, so "
            f"that {LEAST_BEYOND} of them are beyond the ends; got {replicates!r} instead"
        )
    check_whole("replicates", replicates, 1, MOST_REPLICATES)


def scale_for(recipe: Recipe) -> Literal["cut", "logit"]:
    """The logit scale is for averages of rewards with weights that sum to 1 (`standard_error.py`):
    WIS, the direct method, MIS normalised within states; without a control variate."""
    averages = not recipe.weights.uses_ratios or recipe.normalize in ("step", "state")
    return "logit" if averages and recipe.control is None else "cut"


def weights_freedom(error: float, n: int, ess: Floats) -> Freedom:
    """For means over episodes (IS, WIS, DR, WDR): the variance over n - 1, and as many degrees of
    freedom as the worst step has effective episodes, less 1 (at least 1). With n - 1 of them the
    weights would be taken for equal."""
    sizes = ess[np.isfinite(ess)]
    effective = min(float(sizes.min()), float(n)) if len(sizes) else float(n)
    return Freedom(error * math.sqrt(n / (n - 1)), max(effective - 1, 1.0))


def from_error(value: float, error: float, df: float, asked: Asked, method: str) -> Interval:
    """v̂ ± t SE, by the declared range on the logit scale or cut to it."""
    level = 1 - 2 * asked.tail
    text = f"{method}, t with {_df_text(df)} df"
    if asked.value_range is None:
        pair = t_interval(value, error, level, df)
        assert pair is not None
        return asked.interval(*pair, text, error, df)
    pair, how = range_interval(value, error, *asked.value_range, level, df, asked.scale)
    if pair is None:
        raise RefusedError("outside-range", how)
    return asked.interval(*pair, f"{text}{how.removeprefix('t')}", error, df)


def percentile(values: Floats, seed: int, reasons: Mapping[str, int], asked: Asked) -> Interval:
    """Order statistics of the replicates. One without an answer counts as beyond both ends."""
    told = np.isfinite(values)
    _refuse_if_missing(told, asked.level, reasons)
    low, high = _ends(values, told, asked.tail)
    spread = float(np.std(values[told]))
    if spread <= NOISE * float(np.max(np.abs(values[told]), initial=0.0)):
        raise RefusedError(
            "no-error", "every replicate gives the same value: they show no spread to make it from"
        )
    return asked.within(low, high, f"percentile of {_replicates_text(told, seed)}", spread)


def bootstrap_t(
    value: float,
    error: float,
    values: Floats,
    errors: Floats,
    seed: int,
    reasons: Mapping[str, int],
    asked: Asked,
) -> Interval:
    """Studentised with each replicate's own error; one without it counts as beyond both ends."""
    told = np.isfinite(values) & np.isfinite(errors) & (errors > 0)
    bare = int(np.sum(np.isfinite(values) & ~told))
    _refuse_if_missing(told, asked.level, {**reasons, **({"no-error": bare} if bare else {})})
    t = np.full(len(values), np.nan)
    t[told] = (values[told] - value) / errors[told]
    least, most = _ends(t, told, asked.tail)
    text = f"bootstrap-t of {_replicates_text(told, seed)}"
    return asked.within(value - most * error, value - least * error, text, error)


def _ends(values: Floats, told: Bools, tail: float) -> tuple[float, float]:
    """The order statistics k from below and from above, k = tail (B + 1) rounded down."""
    k = math.floor(tail * (len(values) + 1) + 1e-9)
    low = np.sort(np.where(told, values, -math.inf))[k - 1]
    high = np.sort(np.where(told, values, math.inf))[len(values) - k]
    return float(low), float(high)


def _refuse_if_missing(told: Bools, level: float, reasons: Mapping[str, int]) -> None:
    missing, most = int(np.sum(~told)), MOST_REFUSED * (1 - level) * len(told)
    if missing <= most:
        return
    why = ", ".join(f"{code}: {count:,}" for code, count in reasons.items())
    raise RefusedError(
        "replicates",
        f"{missing:,} of {len(told):,} resampled logs gave no estimate or no error ({why}), and at "
        f"this level at most {most:,.0f} may be missing: the interval would rest on a selection "
        "of them. Use method='analytic' or method='jackknife', or a lower level",
    )


def _outside(what: str, ends: Range) -> RefusedError:
    return RefusedError(
        "outside-range",
        f"{what} lies outside the declared range [{ends[0]:g}, {ends[1]:g}]: check the range, or "
        "the weights",
    )


def _df_text(df: float) -> str:
    return f"{df:,.0f}" if df >= 10 else f"{df:.1f}"


def _replicates_text(told: Bools, seed: int) -> str:
    missing = int(np.sum(~told))
    without = f" ({missing:,} without an answer)" if missing else ""
    return f"{len(told):,} replicates{without}, seed {seed}"
