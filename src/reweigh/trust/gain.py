"""What the target earns beyond the behaviour, its error, and p of "it earns no more".

From rows, or a second scan of them, the difference is paired: its error is that of the difference
of the influence values. Sums hold no episodes, but with a and b the errors of the two values

    |a - b| ≤ SE of the difference ≤ a + b        (their correlation is between -1 and 1)

and p is the largest that these allow: by a + b for a gain, by |a - b| for a loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from reweigh.errors import RefusedError
from reweigh.estimate.standard_error import OVERFLOW, nothing_left, t_p_value
from reweigh.sums.moments import Moments
from reweigh.system import p_text, rounded, two_digits

SAME = 1e-9  # of a value: what two sums of the same numbers may differ by


@dataclass(frozen=True)
class Gain:
    """Target less behaviour. p_value is one-sided, of "the target is not better": small where it
    is. `at_most`: told from sums, where error and p are the largest that the errors of the two
    values allow. An error of 0 is that of two equal values."""

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
    raise RefusedError("no-error", "the difference to the behaviour shows no spread")


def bounded(value: float, error: float, df: float, behavior: float, own: float, n: int) -> Gain:
    """From the errors of the two values: the target's with its degrees of freedom, and the
    behaviour's own, of n returns."""
    gain, most = value - behavior, error + own
    if not math.isfinite(most):
        raise RefusedError("no-error", OVERFLOW)
    least_df = min(df, n - 1)
    if same(value, behavior):
        p = 1.0  # the same number, as that of the behaviour itself is
    elif gain > 0:
        p = t_p_value(gain, most, 0.0, least_df)
    else:
        p = t_p_value(gain, abs(error - own), 0.0, n - 1)
    return Gain(gain, most, p, least_df, at_most=True)


def no_returns(sums: Moments) -> str:
    """Why these sums do not hold the returns of the log."""
    why = "they were not asked for, or an older version made them"
    if sums.truncated:
        why = "some episodes were cut off, and their returns are not known"
    return sums.left_out.get("ordered", why)


def error_of_returns(sums: Moments) -> float:
    """The standard error of the mean logged return."""
    ordered, n = sums.ordered, sums.n_episodes
    if ordered is None:
        raise RefusedError(
            "needs-log",
            "these sums do not tell how much the returns of the log spread "
            f"({no_returns(sums)}): evaluate it in memory (engine='arrays')",
        )
    if not math.isfinite(ordered.variance):
        raise RefusedError("no-error", OVERFLOW)
    return math.sqrt(max(ordered.variance, 0.0) / (n - 1))
