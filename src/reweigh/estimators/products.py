"""Step-wise and trajectory-wise IS and WIS, from sums of running products."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from reweigh.errors import SupportError
from reweigh.estimators.recipe import Recipe, Trajectory
from reweigh.estimators.recursion import no_support
from reweigh.estimators.weights import Solution, lacking
from reweigh.inference import variance
from reweigh.moments.bundle import Moments

Floats = npt.NDArray[np.float64]

NEEDS_SCAN = "delta"  # WIS: the delta method needs a second scan, or the jackknife


def solve_products(recipe: Recipe, moments: Moments) -> Solution:
    """Step-wise and trajectory-wise IS and WIS; WIS's error needs a second scan (see evaluate)."""
    if moments.trajectories is None:
        raise lacking("trajectories")
    steps = moments.trajectories.steps.total()
    whole = moments.trajectories.episodes.total()
    horizon, gamma = moments.about.horizon, moments.about.discount
    n = moments.n_episodes
    empty = np.flatnonzero(~(steps.w > 0))
    if len(empty):
        raise no_support(int(empty[0]))
    powers = gamma ** np.arange(horizon)
    ess = steps.w**2 / steps.w2
    weighted = recipe.normalize == "step"
    start_value = float(whole.g[0]) / n
    per_step: Floats | None = None
    error: float | None
    if isinstance(recipe.weights, Trajectory):
        W, scale = float(whole.w[0]), float(whole.log_scale[0])
        ess = np.full(horizon, np.nan)  # the whole product is one weight, complete at the end
        ess[-1] = W**2 / float(whole.w2[0])
        if weighted:
            # v = Σ W G / Σ W,   ψ = W (G - v) / mean(W)
            value = float(whole.wg[0]) / W
            second = float(whole.wg2[0] - 2 * value * whole.w2g[0] + value**2 * whole.w2[0])
            error, method = float(np.sqrt(max(second, 0.0))) / W, "delta"
            if variance.lost_in_rounding(second, float(whole.wg2[0])):
                error, method = None, variance.LOST
            placebo = float(powers.sum())
        else:
            up = _exp(scale)
            value = up * float(whole.wg[0]) / n
            second = _exp(2 * scale) * float(whole.wg2[0]) / n
            error, method = _spread(value, second, n)
            placebo = up * W / n * float(powers.sum())
    elif weighted:
        per_step = powers * steps.wy / steps.w
        per_step[0] += start_value
        value, error, method = float(per_step.sum()), None, NEEDS_SCAN
        placebo = float(powers.sum())
    else:
        with np.errstate(over="ignore"):
            up_by_step = np.exp(steps.log_scale)
            per_step = powers * np.where(steps.wy == 0, 0.0, up_by_step * steps.wy) / n
            placebo = float((powers * up_by_step * steps.w / n).sum())
        per_step[0] += start_value
        value = float(whole.x[0]) / n
        second = float(whole.x2[0]) / n
        error, method = _spread(value, second, n)
    if not (np.isfinite(value) and (error is None or np.isfinite(error))):
        raise SupportError(
            "overflow",
            "the weights exceed what a number can hold (a product of ratios of about "
            f"10^{float(steps.log_scale.max()) / np.log(10):.0f}); use mis() or wis()",
        )
    worst = int(np.nanargmin(ess))
    heaviest = (
        whole.wmax / whole.w if isinstance(recipe.weights, Trajectory) else steps.wmax / steps.w
    )
    return Solution(
        value, error, method, per_step, ess, None, placebo,
        heaviest=float(heaviest[0 if len(heaviest) == 1 else worst]),
    )  # fmt: skip


def _exp(x: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.exp(x))


def _spread(mean: float, second: float, n: int) -> tuple[float | None, str]:
    """sqrt(Var/n), the variance divided by n; and its method."""
    square = second - mean * mean
    if variance.lost_in_rounding(square, second):
        return None, variance.LOST
    return float(np.sqrt(max(square, 0.0) / n)), "sample"
