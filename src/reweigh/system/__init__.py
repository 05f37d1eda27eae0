"""Shares of what may be nothing, and numbers as text with the digits that they deserve."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

MOST_DECIMALS = 12  # smaller numbers are written with an exponent, not as zeros
SMALLEST_P = 1e-16  # below, the digits of a p-value are those of rounding


def divided(numerator: Floats, denominator: Floats) -> Floats:
    """numerator/denominator, 0 where the denominator is 0: what was never seen has no share."""
    import numpy as np  # here: the command line's help needs none

    some = denominator > 0
    return np.where(some, numerator / np.where(some, denominator, 1.0), 0.0)


def finite_or_none(value: float | None) -> float | None:
    """What overflowed is not a number to hand on."""
    return value if value is not None and math.isfinite(value) else None


def rounded(value: float, error: float | None) -> str:
    """A number with as many decimals as its error supports (two digits of the error)."""
    if error is None or not error > 0:
        return number(value)
    decimals = max(0, 1 - math.floor(math.log10(error)))
    if decimals <= MOST_DECIMALS or value == 0:
        return f"{value:,.{min(decimals, MOST_DECIMALS)}f}"
    digits = math.floor(math.log10(abs(value))) + decimals
    return f"{value:.{min(max(digits, 1), 16)}e}"


def number(value: float | None) -> str:
    """A number with four significant digits."""
    if value is None:
        return "unknown"
    if not math.isfinite(value):
        return "beyond all numbers"
    if value == 0 or 1e-4 <= abs(value) < 1e7:
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:.3e}"


def two_digits(value: float | None) -> str:
    """An error: two significant digits say all there is."""
    if value is None:
        return "none"
    return f"{value:.2e}" if value and not 1e-4 <= value < 1e5 else f"{value:#.2g}".rstrip(".")


def p_text(p: float, *, at_most: bool = False) -> str:
    """A p-value: "p = 0.013", or "p ≤ 0.013" where it is at most that."""
    if p < SMALLEST_P:
        return f"p < {SMALLEST_P:g}"
    return f"p {'≤' if at_most else '='} {p:.2g}"
