"""Confidence intervals: a class per method, with one interface.

    analytic, cluster, jackknife   v̂ ± t SE, with Student's t of df degrees of freedom
    percentile                     the ends are order statistics of the replicates' values v*
    bootstrap-t                    v̂ - t*_{1-α/2} SE and v̂ - t*_{α/2} SE, with t* = (v* - v̂)/SE*
    auto                           one of the first three; where the influence values are skewed,
                                   v̂ - T_{1-α/2} SE and v̂ - T_{α/2} SE (`skewed_quantile`)

A one-sided bound is the same with α on its side. Where the range of the value is declared, the
interval keeps within it (`t_interval`): on the logit scale where the estimator is an average with
weights that sum to 1, else what lies outside is cut away.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from reweigh.errors import MOST_REPLICATES, RefusedError, UsageError, check_whole, must_be
from reweigh.estimate.estimator import Recipe
from reweigh.estimate.standard_error import Freedom, range_interval, skewed_quantile, t_interval
from reweigh.system import finite_or_none, number, rounded

if TYPE_CHECKING:
    from reweigh.trust.bootstrap import Replicates

Side = Literal["both", "lower", "upper"]
Range = tuple[float, float]
REPLICATES = 1999
LEAST_BEYOND = 20  # replicates outside of the interval
LEAST_SKEWNESS = 0.05  # of Σψ, that of 400 equal values; less moves no end by 0.08 SE
FIT_IGNORED = ("includes that the behavior", "ignores that the behavior")
MOST_APART = 0.1  # of the analytic error and that of the influence values


@dataclass(frozen=True)
class Interval:
    """A confidence interval; a one-sided bound has one infinite end. `low, high = interval`.

    method describes the computation; standard_error and df (degrees of freedom) are the ones it
    used, None if it used none.
    """

    low: float
    high: float
    level: float
    method: str
    standard_error: float | None = None
    df: float | None = None

    def __iter__(self) -> Iterator[float]:
        return iter((self.low, self.high))

    def __str__(self) -> str:
        margin = (self.high - self.low) / 4
        if math.isfinite(margin):
            return f"[{rounded(self.low, margin)}, {rounded(self.high, margin)}]"
        if math.isfinite(self.low):
            return f"≥ {rounded(self.low, self.standard_error)}"
        return f"≤ {rounded(self.high, self.standard_error)}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values; an end that is not bounded is None."""
        return {
            "low": finite_or_none(self.low),
            "high": finite_or_none(self.high),
            "level": self.level,
            "method": self.method,
            "standard_error": self.standard_error,
        }


@dataclass(frozen=True)
class IntervalRequest:
    """The requested interval, checked. `replicates`, `seed` and `threads` are for resampling."""

    level: float = 0.95
    side: Side = "both"
    value_range: Range | None = None
    scale: Literal["cut", "logit"] = "cut"
    replicates: int = REPLICATES
    seed: int | None = None
    threads: int = 1

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
        """The end that was not requested is infinite."""
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

    def within(
        self, low: float, high: float, method: str, error: float, df: float | None = None
    ) -> Interval:
        """The interval, cut to the range."""
        if self.value_range is None:
            return self.interval(low, high, method, error, df)
        least, most = self.value_range
        below, above = max(low, least), min(high, most)
        if below > above:
            raise RefusedError(
                "outside-range",
                f"the interval [{number(low)}, {number(high)}] is outside the declared range "
                f"[{least:g}, {most:g}]: check the range, or the weights",
            )
        return self.interval(below, above, f"{method}, cut to the range", error, df)


def check_replicates(replicates: int, level: float) -> None:
    """(B + 1)(1 - level) replicates lie outside the interval; with too few its ends are noise."""
    least = math.ceil(LEAST_BEYOND / (1 - level) - 1e-6) - 1
    if replicates < least:
        raise UsageError(
            f"the parameter 'replicates' must be at least {least:,} at the level {level:g}, "
            f"so that {LEAST_BEYOND} of them lie beyond the ends; got {replicates!r} instead"
        )
    check_whole("replicates", replicates, 1, MOST_REPLICATES)


def from_error(
    value: float,
    error: float,
    df: float,
    wanted: IntervalRequest,
    method: str,
    skewness: float = 0.0,
) -> Interval:
    """v̂ ± t SE, by the declared range on the logit scale, which itself leans to the side with
    room, or cut to it; elsewhere with skewness."""
    level = 1 - 2 * wanted.tail
    text = f"{method}, t with {f'{df:,.0f}' if df >= 10 else f'{df:.1f}'} df"
    if skewness and (wanted.value_range is None or wanted.scale == "cut"):
        low, high = (
            value - skewed_quantile(p, df, skewness) * error for p in (1 - wanted.tail, wanted.tail)
        )
        return wanted.within(low, high, f"{text}, corrected for skewness", error, df)
    if wanted.value_range is None:
        pair = t_interval(value, error, level, df)
        assert pair is not None
        return wanted.interval(*pair, text, error, df)
    pair, how = range_interval(value, error, *wanted.value_range, level, df, wanted.scale)
    if pair is None:
        raise RefusedError("outside-range", how)
    return wanted.interval(*pair, f"{text}{how.removeprefix('t')}", error, df)


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """The standard error of an estimate, and other errors that can be computed for it.

    error       the standard error, None where there is none, and `error_method` why
    freedom     the analytic error corrected for small samples, None without an analytic error
    note        a remark printed beside every interval
    has_influence  whether there are influence values of the episodes
    lacks_blocks   whether there is no error because a block of episodes cannot be left out
    """

    recipe: Recipe
    value: float
    n_episodes: int
    error: float | None
    error_method: str
    freedom: Freedom | None
    note: str
    has_influence: bool
    lacks_blocks: bool

    @property
    def n_draws(self) -> int:
        """How many of them are independent: the episodes, or the clusters that hold them."""
        return self.n_episodes

    def cluster_error(self) -> float:
        """The standard error by the episodes' influence values."""
        raise NotImplementedError

    def skewness(self) -> float:
        """That of the sum of the episodes' influence values."""
        raise NotImplementedError

    def jackknife(self) -> tuple[float, int]:
        """The standard error by deleting blocks of episodes, and the number of blocks."""
        raise NotImplementedError

    def replicates(self, wanted: IntervalRequest, *, errors: bool) -> Replicates:
        """The value, and its error if wanted, of resampled logs."""
        raise NotImplementedError

    def dependence(self) -> str | None:
        """A warning from the sums if the state does not explain the variance of returns."""
        raise NotImplementedError

    def no_error(self) -> RefusedError:
        """Why there is no analytic error."""
        if self.error is None:
            return RefusedError("no-error", f"there is no standard error: {self.error_method}")
        return RefusedError(
            "no-error",
            f"{self.recipe.name} has no analytic standard error here, only that of the "
            "jackknife; use method='jackknife'",
        )

    def interval(self, method: str, wanted: IntervalRequest) -> Interval | None:
        """None where there is one episode, or where `auto` finds no method."""
        by = method_named(method)
        if by.resamples:
            check_replicates(wanted.replicates, wanted.level)
        found = by.interval(self, wanted) if self.n_episodes > 1 else None
        if found is None:
            return None
        note = self.note.replace(*FIT_IGNORED) if by.keeps_ratios else self.note
        return replace(found, method=found.method + note)


class IntervalMethod:
    """A method for intervals; raises RefusedError if it has none."""

    name: str
    resamples = False
    keeps_ratios = False  # estimated propensities are not estimated again

    def interval(self, of: Uncertainty, wanted: IntervalRequest) -> Interval | None:
        raise NotImplementedError


class ErrorMethod(IntervalMethod):
    """v̂ ± t SE."""

    def error(self, of: Uncertainty) -> Freedom:
        """SE and its degrees of freedom."""
        raise NotImplementedError

    def text(self, of: Uncertainty) -> str:
        return self.name

    def interval(self, of: Uncertainty, wanted: IntervalRequest, skewness: float = 0.0) -> Interval:
        found = self.error(of)
        return from_error(of.value, found.error, found.df, wanted, self.text(of), skewness)


class Analytic(ErrorMethod):
    """The variances within cells over N - 1, with the degrees of freedom of Welch and
    Satterthwaite; of means over episodes see `freedom_of`."""

    name = "analytic"

    def error(self, of: Uncertainty) -> Freedom:
        if of.error is None or of.freedom is None:
            raise of.no_error()
        return of.freedom


class Cluster(ErrorMethod):
    """The influence values of the episodes, t with n - 1, or of G clusters, t with G - 1."""

    name = "cluster"

    def error(self, of: Uncertainty) -> Freedom:
        return Freedom(of.cluster_error(), of.n_draws - 1)


class Jackknife(ErrorMethod):
    """Deleting blocks of episodes, t with their number less 1."""

    name = "jackknife"
    keeps_ratios = True

    def error(self, of: Uncertainty) -> Freedom:
        error, blocks = of.jackknife()
        return Freedom(error, blocks - 1)

    def text(self, of: Uncertainty) -> str:
        return f"jackknife ({of.jackknife()[1]} blocks)"


class Percentile(IntervalMethod):
    """Resampling episodes and running the whole estimator again."""

    name = "percentile"
    resamples = keeps_ratios = True

    def interval(self, of: Uncertainty, wanted: IntervalRequest) -> Interval:
        from reweigh.trust.bootstrap import percentile

        made = of.replicates(wanted, errors=False)
        return percentile(made.values[:, 0], made.seed, made.reasons[0], wanted)


class BootstrapT(IntervalMethod):
    """Percentile, each replicate divided by its own error."""

    name = "bootstrap-t"
    resamples = True

    def interval(self, of: Uncertainty, wanted: IntervalRequest) -> Interval:
        from reweigh.trust.bootstrap import bootstrap_t

        if of.error is None:
            raise of.no_error()

        made = of.replicates(wanted, errors=True)
        assert made.errors is not None
        drawn = made.values[:, 0], made.errors[:, 0], made.seed, made.reasons[0]
        return bootstrap_t(of.value, of.error, *drawn, wanted)


class Auto(IntervalMethod):
    """One of the others, None where there is none.

    The analytic error with its small-sample corrections where the estimator has one (all but
    SSD-IS, and WIS on sums alone), else the jackknife over blocks of episodes, else the error of
    the influence values. If an analytic error assumes a Markov state and the error of the influence
    values exceeds it by more than a tenth, the larger one is used.

    The analytic error assumes that rows are independent given their states; the error of the
    influence values only assumes independent episodes. On the clean logs of the coverage study the
    two seldom differ by more than a tenth. If whole episodes are good or bad for a reason that is
    in no column (its world `fate`) they always do, and the analytic interval covers too seldom.

    The interval leans to the side of the rare events by the skewness of the influence values, if
    that is large enough to matter. Sums alone do not show it.
    """

    name = "auto"

    def choice(self, of: Uncertainty) -> ErrorMethod | None:
        """Chosen without computing anything. If rounding or overflow has destroyed the error, there
        is none, and no other method would help."""
        if of.error is not None:
            return Analytic() if of.freedom is not None else Jackknife()
        return Cluster() if of.lacks_blocks and of.has_influence else None

    def interval(self, of: Uncertainty, wanted: IntervalRequest) -> Interval | None:
        method = self.choice(of)
        if isinstance(method, Analytic):
            if not of.has_influence and of.dependence() is not None:
                return None
            if self.too_small(of):
                method = Cluster()
        if method is None:
            return None
        try:
            method.error(of)
        except RefusedError:  # nothing is left to choose from
            return None
        skewness = self.skewness(of)
        if skewness is None:
            found = method.interval(of, wanted)
            return replace(
                found, method=f"{found.method}; the skewness is unknown without episodes"
            )
        return method.interval(of, wanted, skewness)

    def skewness(self, of: Uncertainty) -> float | None:
        """None where it is unknown, 0 where it does not matter."""
        try:
            found = of.skewness() if of.has_influence else None
        except RefusedError:
            return None
        return 0.0 if found is not None and abs(found) < LEAST_SKEWNESS else found

    def too_small(self, of: Uncertainty) -> bool:
        """Whether the analytic error is."""
        if not of.has_influence or of.recipe.uses_trajectories or of.freedom is None:
            return False
        try:
            return Cluster().error(of).error > (1 + MOST_APART) * of.freedom.error
        except RefusedError:
            return False


METHODS: dict[str, IntervalMethod] = {
    method.name: method
    for method in (Auto(), Analytic(), Cluster(), Jackknife(), Percentile(), BootstrapT())
}


def method_named(name: str) -> IntervalMethod:
    if name not in METHODS:
        raise must_be("method", f"one of {', '.join(METHODS)}", name)
    return METHODS[name]
