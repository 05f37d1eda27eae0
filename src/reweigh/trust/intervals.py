"""Confidence intervals: a class per method, with one interface.

    analytic, cluster, jackknife   v̂ ± t SE, with Student's t of df degrees of freedom
    percentile                     the ends are order statistics of the replicates' values v*
    bootstrap-t                    v̂ - t*_{1-α/2} SE and v̂ - t*_{α/2} SE, with t* = (v* - v̂)/SE*
    auto                           one of the first three

A one-sided bound is the same with α on its side. Where the range of the value is declared, the
interval keeps within it (`t_interval`): on the logit scale where the estimator is an average with
weights that sum to 1, else what lies outside is cut away.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from reweigh.errors import MOST_REPLICATES, RefusedError, UsageError, check_whole, must_be
from reweigh.estimate.estimator import Recipe
from reweigh.estimate.standard_error import NOISE, Freedom, range_interval, t_interval
from reweigh.system import finite_or_none, number, rounded

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Side = Literal["both", "lower", "upper"]
Range = tuple[float, float]
REPLICATES = 1999
LEAST_BEYOND = 20  # replicates outside of the interval
MOST_APART = 0.1  # of the analytic error and that of the influence values
MOST_REFUSED = 0.2  # of α: this share of the replicates may lack a result


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

    def within(self, low: float, high: float, method: str, error: float) -> Interval:
        """The interval, cut to the range."""
        if self.value_range is None:
            return self.interval(low, high, method, error)
        least, most = self.value_range
        below, above = max(low, least), min(high, most)
        if below > above:
            raise RefusedError(
                "outside-range",
                f"the interval [{number(low)}, {number(high)}] is outside the declared range "
                f"[{least:g}, {most:g}]: check the range, or the weights",
            )
        return self.interval(below, above, f"{method}, cut to the range", error)


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
    value: float, error: float, df: float, wanted: IntervalRequest, method: str
) -> Interval:
    """v̂ ± t SE, by the declared range on the logit scale or cut to it."""
    level = 1 - 2 * wanted.tail
    text = f"{method}, t with {f'{df:,.0f}' if df >= 10 else f'{df:.1f}'} df"
    if wanted.value_range is None:
        pair = t_interval(value, error, level, df)
        assert pair is not None
        return wanted.interval(*pair, text, error, df)
    pair, how = range_interval(value, error, *wanted.value_range, level, df, wanted.scale)
    if pair is None:
        raise RefusedError("outside-range", how)
    return wanted.interval(*pair, f"{text}{how.removeprefix('t')}", error, df)


def percentile(
    values: Floats, seed: int, reasons: Mapping[str, int], wanted: IntervalRequest
) -> Interval:
    """Order statistics of the replicates. One without a result counts as beyond both ends."""
    known = np.isfinite(values)
    _refuse_if_missing(known, wanted.level, reasons)
    low, high = _ends(values, known, wanted.tail)
    spread = float(np.std(values[known]))
    if spread <= NOISE * float(np.max(np.abs(values[known]), initial=0.0)):
        why = "every replicate has the same value, so they give no interval"
        raise RefusedError("no-error", why)
    return wanted.within(low, high, f"percentile of {_replicates_text(known, seed)}", spread)


def bootstrap_t(
    value: float,
    error: float,
    values: Floats,
    errors: Floats,
    seed: int,
    reasons: Mapping[str, int],
    wanted: IntervalRequest,
) -> Interval:
    """Studentised with each replicate's own error; one without it counts as beyond both ends."""
    known = np.isfinite(values) & np.isfinite(errors) & (errors > 0)
    without_error = int(np.sum(np.isfinite(values) & ~known))
    if without_error:
        reasons = {**reasons, "no-error": without_error}
    _refuse_if_missing(known, wanted.level, reasons)
    t = np.full(len(values), np.nan)
    t[known] = (values[known] - value) / errors[known]
    least, most = _ends(t, known, wanted.tail)
    text = f"bootstrap-t of {_replicates_text(known, seed)}"
    return wanted.within(value - most * error, value - least * error, text, error)


def _ends(values: Floats, known: Bools, tail: float) -> tuple[float, float]:
    """The order statistics k from below and from above, k = tail (B + 1) rounded down."""
    k = math.floor(tail * (len(values) + 1) + 1e-9)
    low = np.sort(np.where(known, values, -math.inf))[k - 1]
    high = np.sort(np.where(known, values, math.inf))[len(values) - k]
    return float(low), float(high)


def _refuse_if_missing(known: Bools, level: float, reasons: Mapping[str, int]) -> None:
    missing, most = int(np.sum(~known)), MOST_REFUSED * (1 - level) * len(known)
    if missing <= most:
        return
    why = ", ".join(f"{code}: {count:,}" for code, count in reasons.items())
    raise RefusedError(
        "replicates",
        f"{missing:,} of {len(known):,} resampled logs have no estimate or no standard error "
        f"({why}); at this level at most {most:,.0f} may be missing, otherwise the interval "
        "rests on a biased selection. Use method='analytic' or method='jackknife', or a "
        "lower level",
    )


def _replicates_text(known: Bools, seed: int) -> str:
    missing = int(np.sum(~known))
    without = f" ({missing:,} without a result)" if missing else ""
    return f"{len(known):,} replicates{without}, seed {seed}"


@dataclass(frozen=True, eq=False)
class Replicates:
    """The estimates of k estimators on the same B resampled logs.

    values   (B, k), nan where an estimator refused
    errors   (B, k) their standard errors, nan where there is none; None if not requested
    reasons  k times: how many replicates were refused, by the refusal's code
    """

    values: Floats
    errors: Floats | None
    seed: int
    reasons: tuple[dict[str, int], ...]

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"Replicates({len(self)} of {self.values.shape[1]} estimates, seed {self.seed})"


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

    def cluster_error(self) -> float:
        """The standard error by the episodes' influence values."""
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
        return None if found is None else replace(found, method=found.method + self.note)


class IntervalMethod:
    """A method for intervals; raises RefusedError if it has none."""

    name: str
    resamples = False

    def interval(self, of: Uncertainty, wanted: IntervalRequest) -> Interval | None:
        raise NotImplementedError


class ErrorMethod(IntervalMethod):
    """v̂ ± t SE."""

    def error(self, of: Uncertainty) -> Freedom:
        """SE and its degrees of freedom."""
        raise NotImplementedError

    def text(self, of: Uncertainty) -> str:
        return self.name

    def interval(self, of: Uncertainty, wanted: IntervalRequest) -> Interval:
        found = self.error(of)
        return from_error(of.value, found.error, found.df, wanted, self.text(of))


class Analytic(ErrorMethod):
    """The variances within cells over N - 1, with the degrees of freedom of Welch and
    Satterthwaite; of means over episodes see `freedom_of`."""

    name = "analytic"

    def error(self, of: Uncertainty) -> Freedom:
        if of.error is None or of.freedom is None:
            raise of.no_error()
        return of.freedom


class Cluster(ErrorMethod):
    """The influence values of the episodes, t with n - 1."""

    name = "cluster"

    def error(self, of: Uncertainty) -> Freedom:
        return Freedom(of.cluster_error(), of.n_episodes - 1)


class Jackknife(ErrorMethod):
    """Deleting blocks of episodes, t with their number less 1."""

    name = "jackknife"

    def error(self, of: Uncertainty) -> Freedom:
        error, blocks = of.jackknife()
        return Freedom(error, blocks - 1)

    def text(self, of: Uncertainty) -> str:
        return f"jackknife ({of.jackknife()[1]} blocks)"


class Percentile(IntervalMethod):
    """Resampling episodes and running the whole estimator again."""

    name = "percentile"
    resamples = True

    def interval(self, of: Uncertainty, wanted: IntervalRequest) -> Interval:
        made = of.replicates(wanted, errors=False)
        return percentile(made.values[:, 0], made.seed, made.reasons[0], wanted)


class BootstrapT(IntervalMethod):
    """Percentile, each replicate divided by its own error."""

    name = "bootstrap-t"
    resamples = True

    def interval(self, of: Uncertainty, wanted: IntervalRequest) -> Interval:
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
        return method.interval(of, wanted)

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
