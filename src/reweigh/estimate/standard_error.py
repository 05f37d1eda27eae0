"""Standard errors, and what follows from them: Student's t, a declared range, the delete-a-block
jackknife.

**Effective degrees of freedom** (Satterthwaite 1946, Welch 1947). Where the squared error is a sum
of independent parts, SE² = Σ_i v_i, and part i has the relative spread of a χ² of df_i, the sum
has about that of a χ² of

    df = (Σ_i v_i)² / Σ_i v_i²/df_i,    never fewer than the fewest and never more than Σ_i df_i.

**A declared range.** Where a value is known to lie within [low, high], its interval should too.
*Cut*: the part outside is cut off. The value is not there, so the coverage stays exactly the same,
for every estimator. *Logit*: with p = (v - low)/(high - low) the interval is made for log(p/(1 -
p)), whose error is SE/(p(1 - p)) by the delta method, and carried back. It leans away from the near
end, which is right for an estimate that is an average of values within the range with weights that
sum to 1 (a mean, WIS, a model): close to an end such an estimate looks more precise than it is.
Plain importance weights do not sum to 1; an estimate near the upper end may be there by their
excess, and leaning down then loses coverage. Means of 200 values of 0 and 1 at the level 95 %,
coverage in 20,000 runs: a plain mean, truth 0.1, 93 % cut and 95 % by logit; WIS with log-normal
weights (sd 1), truth 0.1, 89 % and 92 %; IS with such weights, truth 0.9, 93 % and 87 %. So the
caller says which; cut is safe for any estimate.

**Skewness.** Where few episodes make up an estimate (50 clicks in 10,000 rows), an estimate that
is too low has too small an error, so that v̂ ± t SE misses on the side where there is room. With the
skewness a of the sum of the influence values, T = (v̂ - v)/SE has the distribution of

    T(z) = (3/a) ((1 + a (z - a/6))^(1/3) - 1),    z standard normal, up to O(a²)

(Hall, "On the removal of skewness by transformation", JRSS B 1992; also Johnson 1978). The interval
is v̂ - T_{1-α/2} SE to v̂ - T_{α/2} SE, where Student's t stands for z in the leading term.

**Deleting blocks.** The jackknife's error of any estimator is that of its values without each block
of episodes.

**The gain**: what the target earns beyond the behavior, its error, and p of "it earns no more".
From rows, or a second scan of them, the difference is paired: its error is that of the difference
of the influence values. Sums hold no episodes, but with a and b the errors of the two values

    |a - b| ≤ SE of the difference ≤ a + b        (their correlation is between -1 and 1)

and p is the largest that these allow: by a + b for a gain, by |a - b| for a loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from reweigh.errors import RefusedError, UsageError, must_be
from reweigh.kernels import Bools, Floats, Ints
from reweigh.sums.moments import Moments
from reweigh.system import p_text, rounded, two_digits

if TYPE_CHECKING:
    from reweigh.estimate.estimator import Recipe

Pair = tuple[float, float]
STEEPEST = 1.5  # an error on the logit scale beyond which the logit is not nearly linear
NOISE = 1e-12  # relative to its terms, a smaller difference is rounding
OVERFLOW = "the squares of the ratios or rewards overflow floating point"
LOST = (
    "no variation beyond rounding: the values are constant, or their variation is tiny "
    "beside their size (subtract a constant)"
)
LEAST_BLOCKS = 10
TOO_FEW, GONE = "the jackknife needs at least", "without one block of episodes there is no estimate"
SAME = 1e-9  # of a value: what two sums of the same numbers may differ by


def lost_in_rounding(variance: Any, second_moment: Any) -> Any:
    """A variance is a difference of large sums; below this share of them its digits are noise."""
    return variance <= NOISE * second_moment


def nothing_left(error: Any, value: Any) -> Any:
    """The same for an error that is not a difference of sums: it is rounding itself."""
    return error <= NOISE * abs(value)


@dataclass(frozen=True)
class Freedom:
    """The standard error with variances within groups over N - 1 instead of N, and how well it is
    known.

    With V_g a group's part of SE² it is the root of Σ_g V_g N_g/(N_g - 1), and its degrees of
    freedom are those of Welch and Satterthwaite with N_g - 1 for each part (see above). A
    group of one row shows no spread and adds nothing.
    """

    error: float
    df: float

    @classmethod
    def of(cls, variance: Floats, rows: Floats) -> Freedom | None:
        """From (G,) parts of SE² and the rows behind each; None where none shows a spread, and
        where one overflows."""
        spread = (rows > 1) & ~(variance <= 0)
        left = rows[spread] - 1
        parts = variance[spread] * rows[spread] / left
        if not np.all(np.isfinite(parts)):
            return None
        df = effective_df(parts, left)
        return None if df is None else cls(float(np.sqrt(parts.sum())), df)

    @classmethod
    def of_sums(cls, square: float, spread: float, start: float, n: int) -> Freedom | None:
        """The same from sums over the groups, of C_g = V_g N_g/(N_g - 1) and C_g²/(N_g - 1), and
        the part of the start. None also where the squares C_g² were lost."""
        if square > 0 and not 0 < spread < math.inf:
            return None
        parts = [(square, square * (square / spread))] if square > 0 else []
        if n > 1:
            parts.append((start * n / (n - 1), n - 1.0))
        total = sum(part for part, _ in parts)
        if not 0 < total < math.inf:
            return None
        by = sum((part / total) ** 2 / df for part, df in parts if part > 0)
        return cls(math.sqrt(total), 1 / by if by > 0 else math.inf)


def effective_df(parts: Floats, df: Floats) -> float | None:
    """Welch and Satterthwaite's degrees of freedom of Σ parts; None where all parts are 0.

    A part that is 0 has no effect. `df` may be infinite for a part that is known exactly.
    """
    v, nu = np.asarray(parts, np.float64), np.asarray(df, np.float64)
    if v.shape != nu.shape or v.ndim != 1:
        raise UsageError(f"parts of shape {v.shape}, degrees of freedom of shape {nu.shape}")
    _all(v, np.isfinite(v) & (v >= 0), "the variance", "a number from 0 on")
    some = v > 0
    _all(nu, ~some | (nu > 0), "the degrees of freedom", "positive where its variance is")
    if not some.any():
        return None
    share = v[some] / v.max()  # no square overflows or is lost
    share /= share.sum()
    spread = float(np.sum(share**2 / nu[some]))
    return math.inf if spread == 0 else 1 / spread


def t_quantile(probability: float, df: float) -> float:
    """The quantile of Student's t; of the normal law where df is infinite."""
    from scipy.special import ndtri, stdtrit

    if not 0 < probability < 1:
        raise must_be("probability", "a number between 0 and 1", probability)
    _positive_df(df)
    return float(ndtri(probability) if math.isinf(df) else stdtrit(df, probability))


def skewed_quantile(probability: float, df: float, skewness: float) -> float:
    """The quantile of (v̂ - v)/SE, where the sum of the influence values has this skewness."""
    t, z, a = t_quantile(probability, df), t_quantile(probability, math.inf), skewness
    if a == 0:
        return t
    # t + T(z) - z
    return t + 3 / a * (math.cbrt(1 + a * (z - a / 6)) - 1) - z


def p_of_difference(t: float, skewness: float, df: float) -> float:
    """Two-sided p of a difference of t errors; `skewness` is that of the sum of its influence
    values: z = T + a/6 + a T²/3 + a² T³/27 is the inverse of T(z)."""
    from scipy.special import stdtr

    if math.isinf(t):
        return 0.0
    z = t + skewness / 6 + skewness * t**2 / 3 + skewness**2 * t**3 / 27
    return 2 * float(stdtr(df, -abs(z)))


def t_interval(
    estimate: float, error: float | None, level: float = 0.95, df: float = math.inf
) -> Pair | None:
    """estimate ± t_{(1 + level)/2, df} · error; None without an error."""
    if error is None:
        return None
    margin = _margin(estimate, error, level, df)
    return estimate - margin, estimate + margin


def t_p_value(estimate: float, error: float, at_most: float, df: float = math.inf) -> float:
    """p of "the value is at most `at_most`", one-sided. Without spread it is 0 or 1."""
    from scipy.special import ndtr, stdtr

    _check(estimate, error)
    _positive_df(df)
    if not math.isfinite(at_most):
        raise must_be("at_most", "a number", at_most)
    if error == 0:
        return 0.0 if estimate > at_most else 1.0
    below = (at_most - estimate) / error
    return float(ndtr(below) if math.isinf(df) else stdtr(df, below))


def range_interval(
    estimate: float,
    error: float | None,
    low: float,
    high: float,
    level: float = 0.95,
    df: float = math.inf,
    scale: Literal["cut", "logit"] = "cut",
) -> tuple[Pair | None, str]:
    """(interval within [low, high], how it was made), or (None, why there is none).

    An estimate at an end or outside has no logit, and where its logit has an error above 1.5 the
    delta method does not hold: there the interval is cut, and the text says so. If the whole
    t-interval lies outside, there is none.
    """
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UsageError(f"the range must be two numbers, the first smaller; got {low!r}, {high!r}")
    if scale not in ("cut", "logit"):
        raise must_be("scale", "'cut' or 'logit'", scale)
    if error is None:
        return None, "there is no standard error"
    margin = _margin(estimate, error, level, df)
    if error == 0 and low <= estimate <= high:
        return (estimate, estimate), "a standard error of 0"
    if scale == "logit" and low < estimate < high:
        from_low, to_high = estimate - low, high - estimate
        # d/dv log((v - low)/(high - v)) = 1/(v - low) + 1/(high - v)
        slope = 1 / from_low + 1 / to_high
        if error * slope <= STEEPEST:
            center = math.log(from_low) - math.log(to_high)
            return _from_logit(low, high, center, margin * slope), "t on the logit scale"
    below, above = max(float(low), estimate - margin), min(float(high), estimate + margin)
    if below > above:
        return None, (
            f"the estimate {estimate:.4g} with its margin {margin:.2g} is outside the "
            f"declared range [{low:g}, {high:g}]: check the range, or the weights"
        )
    return (below, above), "t, cut to the range" + (
        ": too close to an end for the logit scale" if scale == "logit" else ""
    )


def _from_logit(low: float, high: float, center: float, margin: float) -> Pair:
    """low + (high - low)/(1 + e^{-u}) at u = center ± margin, either end from its own side."""
    from scipy.special import expit

    width = high - low
    return low + width * float(expit(center - margin)), high - width * float(
        expit(-center - margin)
    )


def _margin(estimate: float, error: float, level: float, df: float) -> float:
    _check(estimate, error)
    if not isinstance(level, int | float) or not 0 < level < 1:
        raise must_be("level", "a number between 0 and 1", level)
    return t_quantile(0.5 + level / 2, df) * error


def _check(estimate: float, error: float) -> None:
    if not math.isfinite(estimate):
        raise must_be("estimate", "a number", estimate)
    if not (math.isfinite(error) and error >= 0):
        raise must_be("error", "a number from 0 on", error)


def _positive_df(df: float) -> None:
    if not df > 0:
        raise must_be("df", "positive", df)


def _all(values: Floats, fine: Bools, name: str, rule: str) -> None:
    bad = np.flatnonzero(~fine)
    if len(bad):
        at = int(bad[0])
        raise UsageError(f"{name} of part {at} must be {rule}; got {values[at]:g} instead")


def error_of_blocks(
    value: float,
    without: Floats,
    sizes: Ints,
    reasons: Mapping[str, int],
    cluster: str | None = None,
) -> tuple[float | None, str]:
    """(error, method), or (None, why there is none), from the values (g,) without each block; of
    clusters, where the log has a column of them."""
    if len(sizes) < least_blocks(cluster):
        return None, too_few(len(sizes), cluster)
    if not np.all(np.isfinite(without)):
        code = next(iter(reasons), "overflow")
        return None, f"{GONE} ({code})"
    with np.errstate(over="ignore"):
        if cluster is None:
            error = block_error(value, without, sizes)
        else:
            from reweigh.estimate.clusters import error_without

            error = error_without(value, without)
    if not np.isfinite(error):
        return None, OVERFLOW
    if nothing_left(error, value):
        return None, LOST
    return error, f"jackknife ({len(sizes)} blocks)"


def block_error(value: float, without: Floats, sizes: Ints) -> float:
    """Blocks come from a hash, so their sizes m_j differ. With h_j = n/m_j the pseudo-values are
    p_j = h_j v - (h_j - 1) v_(j), and Var = (1/g) Σ_j (p_j - v_J)²/(h_j - 1), where
    v_J = g v - Σ_j (1 - m_j/n) v_(j).
    """
    n, count = float(sizes.sum()), len(sizes)
    h = n / sizes
    center = count * value - float(np.sum((1 - sizes / n) * without))
    pseudo = h * value - (h - 1) * without
    return float(np.sqrt(np.mean((pseudo - center) ** 2 / (h - 1))))


def least_blocks(cluster: str | None) -> int:
    """Of few clusters a gate warns."""
    return LEAST_BLOCKS if cluster is None else 2


def too_few(blocks: int, cluster: str | None = None) -> str:
    if cluster is not None:
        return (
            f"{TOO_FEW} 2 blocks of clusters ({cluster}), and there is {blocks}; make the moments "
            "with blocks=100, more than there are clusters, or evaluate the log itself"
        )
    return (
        f"{TOO_FEW} {LEAST_BLOCKS} blocks of episodes, there are {blocks}; make the moments "
        "with blocks=20"
    )


@dataclass(frozen=True)
class Gain:
    """Target less behavior. p_value is one-sided, of "the target is not better": small where it is.
    `at_most`: computed from sums, where error and p are upper bounds from the errors of the two
    values. An error of 0 means two equal values."""

    value: float
    standard_error: float
    p_value: float
    df: float
    at_most: bool = False

    def __str__(self) -> str:
        if not self.standard_error:
            return f"{p_text(self.p_value)} (gain 0)"
        sign, most = "+" if self.value > 0 else "", " at most" if self.at_most else ""
        gain = f"{sign}{rounded(self.value, self.standard_error)}"
        error = two_digits(self.standard_error)
        return f"{p_text(self.p_value, at_most=self.at_most)} (gain {gain} ± {error}{most})"

    def to_dict(self) -> dict[str, Any]:
        return {
            "value": self.value,
            "standard_error": self.standard_error,
            "p_value": self.p_value,
            "at_most": self.at_most,
        }


def same(a: float, b: float) -> bool:
    """Whether they differ by no more than rounding."""
    return abs(a - b) <= SAME * max(abs(a), abs(b))


def paired(value: float, behavior: float, error: float, n: int) -> Gain:
    """From the error of the difference itself."""
    gain, size = value - behavior, max(abs(value), abs(behavior))
    if not nothing_left(error, size):
        return Gain(gain, error, t_p_value(gain, error, 0.0, n - 1), n - 1)
    if same(value, behavior):
        return Gain(0.0, 0.0, 1.0, n - 1)
    raise RefusedError("no-error", "the difference to the behavior has no variation")


def bounded(value: float, error: float, df: float, behavior: float, own: float, n: int) -> Gain:
    """From the errors of the two values: the target's with its degrees of freedom, and the
    behavior's own, of n returns."""
    gain, most = value - behavior, error + own
    if not math.isfinite(most):
        raise RefusedError("no-error", OVERFLOW)
    least_df = min(df, n - 1)
    if same(value, behavior):
        p = 1.0  # the same number, as that of the behavior itself is
    elif gain > 0:
        p = t_p_value(gain, most, 0.0, least_df)
    else:
        p = t_p_value(gain, abs(error - own), 0.0, n - 1)
    return Gain(gain, most, p, least_df, at_most=True)


def no_returns(sums: Moments) -> str:
    """Why these sums do not hold the returns of the log."""
    why = "they were not requested, or the sums come from an older version"
    if sums.truncated:
        why = "some episodes were cut off, so their returns are unknown"
    return sums.left_out.get("ordered", why)


def error_of_returns(sums: Moments) -> float:
    """The standard error of the mean logged return."""
    ordered, n = sums.ordered, sums.n_episodes
    if ordered is None:
        raise RefusedError(
            "needs-log",
            "the sums do not include the variance of the logged returns "
            f"({no_returns(sums)}): keep the log in memory (engine='arrays')",
        )
    if not math.isfinite(ordered.variance):
        raise RefusedError("no-error", OVERFLOW)
    return math.sqrt(max(ordered.variance, 0.0) / (n - 1))


def scale_for(recipe: Recipe) -> Literal["cut", "logit"]:
    """The logit scale is for averages of rewards with weights that sum to 1:
    WIS, the direct method, MIS normalized within states; without a control variate."""
    averages = not recipe.weights.uses_ratios or recipe.normalize in ("step", "state")
    return "logit" if averages and recipe.control is None else "cut"
