"""Intervals of the bootstrap, from the values of an estimator on resampled logs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from reweigh.errors import RefusedError
from reweigh.estimate.standard_error import NOISE
from reweigh.kernels import Bools, Floats

if TYPE_CHECKING:
    from reweigh.trust.intervals import Interval, IntervalRequest

MOST_REFUSED = 0.2  # of α: this share of the replicates may lack a result


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
