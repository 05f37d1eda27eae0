"""Bounds for a mean that hold for every n: betting, and for comparison Hoeffding and Bernstein.

**Betting** (Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting",
JRSS B 2024). Let x_1, x_2, … be independent with one mean, x ≥ low; y = x - low with mean η.

Theorem. For m > 0 let λ_t(m) in [0, 1/m] be a function of y_1 … y_{t-1}, and

    K_t(m) = Π_{i≤t} (1 + λ_i(m) (y_i - m)),    the capital of one who bets that the mean is > m.

If η ≤ m, then P(max_t K_t(m) ≥ 1/α) ≤ α: no factor is below 0 since y ≥ 0, none has a mean above
1, so K is a non-negative supermartingale that starts at 1, and Ville's inequality gives the rest.
Hence every m with max_t K_t(m) ≥ 1/α can be rejected, and min(1, 1/max_t K_t(m)) is a p-value of
η ≤ m. Only the lower end of the values is used, not their largest value, their variance or their
tail. For an upper bound use -x.

The bets are optimal for normal data with a variance estimated from the past (the predictable
plug-in), with a prior guess while there is little data:

    λ_t(m) = min( √(2 log(1/α) / (n σ²_t(m))), ¾/m )
    σ²_t(m) = V_{t-1}/t + m² (1 + n/20)/(1 + e_{t-1})²
    V_t = Σ_{i≤t} (y_i - ȳ_i)²,  ȳ_t = Σ_{i≤t} y_i / t,  e_t = (Σ_{i≤t} y_i)² / Σ_{i≤t} y_i²

e is the effective number of values seen. While it is small the values may be rare and large, as
importance weights are, and large bets would lose the capital before the first of them comes. λ
falls and λm rises with m, so λ(y - m) falls, and so does every K_t(m): the rejected m form an
interval from 0, and a root finder finds its end.

The bets depend on α, and so does p. The smallest α whose own bets reject m would choose the bets by
their outcome, and Ville's inequality would not hold. p uses the bets of one α that is fixed
beforehand: p ≤ α exactly if the lower bound at that α is above m.

Bets depend on the order. A log may be sorted by its outcomes, so the values are first shuffled by
their number and `seed` alone. The same values in the same order give the same bits; another order
or seed gives another valid bound. (The guarantee is exact if the given order is unrelated to the
values; otherwise it holds over the seeds. Trying seeds and keeping the best loses it.)
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from reweigh.errors import InputError, UsageError, must_be

Floats = npt.NDArray[np.float64]
BOLDEST = 0.75  # of the stake that one value y = 0 would lose whole
FEW = 20  # the bets are cautious until about √(n/20) effective values are seen
EXACT = 1e-12  # relative precision of a bound, on the safe side
MOST_LOG_WEIGHT = 600.0  # larger weights count as e^600
SMALLEST = 1e-143  # means below this share of the largest value count as 0


def lower_bound(x: Floats, low: float, alpha: float = 0.05, *, seed: int = 0) -> float:
    """L with P(L ≤ mean) ≥ 1 - α, for independent values x ≥ low, by betting."""
    y = _shuffled(_checked(x, low, math.inf) - low, seed)
    return low + _smallest(y, _level(alpha))


def p_value_at_most(
    x: Floats, mean: float, low: float, alpha: float = 0.05, *, seed: int = 0
) -> float:
    """p of "the mean is at most `mean`", for x ≥ low. The bets are tuned for a decision at α;
    p ≤ α exactly if `lower_bound` at α is above `mean` (but for rounding)."""
    y = _shuffled(_checked(x, low, math.inf) - low, seed)
    return _p_value(y, _number("mean", mean) - low, _level(alpha))


def weighted(log_weights: Floats, values: Floats) -> Floats:
    """w·x for x ≥ 0. A weight above e^600 counts as e^600: a mean of values ≥ 0 only falls by
    that, and a lower bound of it stays one."""
    log_w = np.asarray(log_weights, np.float64)
    if log_w.shape != values.shape:
        raise UsageError(f"{len(values):,} values, but log weights with shape {log_w.shape}")
    bad = np.flatnonzero(np.isnan(log_w) | (log_w == np.inf))
    if len(bad):
        at = int(bad[0])
        raise InputError(f"log weight {at} is {log_w[at]}: it must be a number, or -inf for 0")
    return np.exp(np.minimum(log_w, MOST_LOG_WEIGHT)) * values


def hoeffding_interval(
    x: Floats, low: float, high: float, alpha: float = 0.05
) -> tuple[float, float]:
    """x̄ ± (high - low) √(log(2/α)/(2n)), cut to the range (Hoeffding, JASA 1963)."""
    _range(low, high)
    x = _checked(x, low, high)
    margin = (high - low) * math.sqrt(math.log(2 / _level(alpha)) / (2 * len(x)))
    return _around(x, margin, low, high)


def bernstein_interval(
    x: Floats, low: float, high: float, alpha: float = 0.05
) -> tuple[float, float]:
    """x̄ ± √(2 V log(4/α)/n) + 7 (high - low) log(4/α)/(3 (n - 1)), cut to the range, with V the
    sample variance over n - 1 (Maurer and Pontil, COLT 2009, Theorem 4, at α/2 on either side).
    For one value the interval is the range."""
    _range(low, high)
    x = _checked(x, low, high)
    log_term = math.log(4 / _level(alpha))
    n = len(x)
    if n == 1:
        return float(low), float(high)
    margin = math.sqrt(2 * float(np.var(x, ddof=1)) * log_term / n)
    return _around(x, margin + 7 * (high - low) * log_term / (3 * (n - 1)), low, high)


def _capital(y: Floats, alpha: float) -> Callable[[float], float]:
    """m ↦ max_t log K_t(m), for m > 0. One pass over the values, then one for each m."""
    n = len(y)
    t = np.arange(1, n + 1)
    total, squares = np.cumsum(y), np.cumsum(y * y)
    spread = _before(np.cumsum((y - total / t) ** 2)) / t
    # e = 0 before the first value that is not 0
    effective = _before(np.divide(total**2, squares, out=np.zeros(n), where=squares > 0))
    caution = (1 + n / FEW) / (1 + effective) ** 2
    boldness = math.sqrt(2 * math.log(1 / alpha) / n)

    def richest(m: float) -> float:
        bet = np.minimum(boldness / np.sqrt(spread + caution * m * m), BOLDEST / m)
        return max(0.0, float(np.cumsum(np.log1p(bet * (y - m))).max()))

    return richest


def _before(sums: Floats) -> Floats:
    """Each sum without the value at its own place."""
    return np.concatenate([np.zeros(1), sums[:-1]])


def _smallest(y: Floats, alpha: float) -> float:
    """The smallest mean of y ≥ 0 that is not rejected at α; 0 where all y are 0."""
    from scipy.optimize import brentq

    if not y.any():
        return 0.0
    y, scale = _scaled(y)
    capital, enough = _capital(y, alpha), math.log(1 / alpha)

    def above(log_m: float) -> float:
        return capital(math.exp(log_m)) - enough

    # At m = max y no factor exceeds 1. Toward m = 0 the capital grows without bound: the first
    # y > 0 comes when V and e are 0, and its factor is at least a constant times y/m.
    high, low, step = math.log(y.max()), math.log(y.mean()) - 1, 1.0
    while above(low) < 0:
        high, step = low, 2 * step
        low -= step
        if low < math.log(SMALLEST):
            return 0.0
    root = brentq(above, low, high, xtol=EXACT, rtol=4 * np.finfo(float).eps)
    return float(math.exp(root - 2 * EXACT) * scale)


def _p_value(y: Floats, m: float, alpha: float) -> float:
    if m < 0 or (m == 0 and y.any()):
        return 0.0  # no values ≥ 0 have such a mean; with a mean of 0 all of them are 0
    if m >= y.max():
        return 1.0  # no bet wins
    y, scale = _scaled(y)
    return math.exp(-_capital(y, alpha)(max(m / scale, SMALLEST)))  # a larger m, a larger p


def _scaled(y: Floats) -> tuple[Floats, float]:
    """y with the largest value between 1 and 2, and the power of 2 by which it was divided: no
    square overflows, and no digit is lost."""
    largest = float(y.max())
    if not math.isfinite(largest):
        raise InputError(
            "a value is too far from the end of its range for floating point: rescale the rewards"
        )
    scale = math.ldexp(1.0, math.frexp(largest)[1] - 1)
    return y / scale, scale


def _shuffled(x: Floats, seed: int) -> Floats:
    """The values in an order computed from n and the seed, by a generator that will not change."""
    if not isinstance(seed, int) or seed < 0:
        raise must_be("seed", "a whole number of at least 0", seed)
    return x[np.argsort(np.random.PCG64(seed).random_raw(len(x)), kind="stable")]


def _around(x: Floats, margin: float, low: float, high: float) -> tuple[float, float]:
    mean = float(x.mean())
    return max(float(low), mean - margin), min(float(high), mean + margin)


def _checked(x: Floats, low: float, high: float) -> Floats:
    """The values as an array, all of them within the range; one of its ends may be infinite."""
    x = np.asarray(x, np.float64)
    if x.ndim != 1 or not len(x):
        raise must_be("x", "a list with at least one number", x)
    if math.isnan(low) or math.isnan(high) or low == math.inf or high == -math.inf:
        raise UsageError(f"the end of a range must be a number; got {low!r}, {high!r}")
    outside = np.flatnonzero(~((x >= low) & (x <= high) & np.isfinite(x)))
    if len(outside):
        at = int(outside[0])
        raise InputError(
            f"value {at} is {x[at]:g}, outside the declared range [{low:g}, {high:g}] "
            f"({len(outside):,} of {len(x):,} values are): declare a range that holds for "
            "all values"
        )
    return x


def _range(low: float, high: float) -> None:
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UsageError(f"the range must be two numbers, the first smaller; got {low!r}, {high!r}")


def _level(alpha: float) -> float:
    if not isinstance(alpha, int | float) or not 0 < alpha < 1:
        raise must_be("alpha", "a number between 0 and 1", alpha)
    return float(alpha)


def _number(name: str, given: float) -> float:
    if not isinstance(given, int | float) or not math.isfinite(given):
        raise must_be(name, "a number", given)
    return float(given)
