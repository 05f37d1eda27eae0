"""Step-wise and trajectory-wise IS and WIS, from sums of running products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.errors import SupportError
from reweigh.estimate import variance
from reweigh.estimate.recipe import Recipe, Trajectory
from reweigh.estimate.recursion import Replicated, no_support, overflow
from reweigh.estimate.solution import Solution, lacking
from reweigh.kernels.groups import rowwise
from reweigh.sums.moments import Moments
from reweigh.sums.trajectories import StepMoments

Floats = npt.NDArray[np.float64]

NEEDS_SCAN = "delta"  # WIS: the delta method needs a second scan, or the jackknife


@dataclass(frozen=True, eq=False)
class Weighed:
    """A mean with running products as weights; of replicates all have a last axis of them.

    per_step  (H,) what the steps add to the value, None of whole trajectories
    square    SE², None where it takes the rows again
    lost      whether rounding has eaten it
    """

    value: Any
    per_step: Floats | None
    square: Any = None
    lost: Any = False


def weigh(recipe: Recipe, sums: StepMoments, n: Any, discount: float) -> Weighed:
    """Step-wise and trajectory-wise IS and WIS of n episodes.

    step-wise:    v = Σ_t γ^t Σ_i w_it y_it / n,  or divided by Σ_i w_it at each step
    trajectory:   v = Σ_i W_i G_i / n,            or divided by Σ_i W_i, where ψ = W (G - v)/mean(W)
    """
    steps, whole, weighted = sums.steps, sums.episodes, recipe.normalize == "step"
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if isinstance(recipe.weights, Trajectory):
            W, wg, wg2 = whole.w[0], whole.wg[0], whole.wg2[0]
            if weighted:
                value = wg / W
                second = wg2 - 2 * value * whole.w2g[0] + value * value * whole.w2[0]
                lost = variance.lost_in_rounding(second, wg2)
                return Weighed(value, None, np.maximum(second, 0.0) / W**2, lost)
            up = np.exp(whole.log_scale[0])
            return Weighed(up * wg / n, None, *_spread(up * wg / n, up * up * wg2 / n, n))
        powers = rowwise(discount ** np.arange(len(steps.w)), steps.w)
        if weighted:
            per_step = powers * steps.wy / steps.w
        else:
            up = np.exp(steps.log_scale)
            per_step = powers * np.where(steps.wy == 0, 0.0, up * steps.wy) / n
        per_step[0] += whole.g[0] / n
        if weighted:
            return Weighed(per_step.sum(axis=0), per_step)
        value = whole.x[0] / n
        return Weighed(value, per_step, *_spread(value, whole.x2[0] / n, n))


def _spread(mean: Any, second: Any, n: Any) -> tuple[Any, Any]:
    """Var/n, the variance divided by n; and whether rounding has eaten it."""
    square = second - mean * mean
    return np.maximum(square, 0.0) / n, variance.lost_in_rounding(square, second)


def solve_products(recipe: Recipe, moments: Moments) -> Solution:
    """Step-wise and trajectory-wise IS and WIS; WIS's error needs a second scan (see evaluate)."""
    if moments.trajectories is None:
        raise lacking("trajectories")
    steps = moments.trajectories.steps.total()
    whole = moments.trajectories.episodes.total()
    n, discount = moments.n_episodes, moments.about.discount
    if not np.isfinite(steps.w).all():
        raise overflow()
    empty = np.flatnonzero(~(steps.w > 0))
    if len(empty):
        raise no_support(int(empty[0]))
    powers = np.asarray(discount ** np.arange(moments.about.horizon), np.float64)
    weighed = weigh(recipe, StepMoments(steps, whole), n, discount)
    weighted, value = recipe.normalize == "step", float(weighed.value)
    error, method = None, NEEDS_SCAN
    if weighed.square is not None:
        error, method = float(np.sqrt(weighed.square)), "delta" if weighted else "sample"
        if weighed.lost:
            error, method = None, variance.LOST
    if not (np.isfinite(value) and (error is None or np.isfinite(error))):
        largest = float(steps.log_scale.max())
        raise SupportError(
            "overflow",
            "the weights exceed what a number can hold (a product of ratios of about "
            f"10^{largest / np.log(10):.0f}); use {'mis()' if weighted else 'mis() or wis()'}, or "
            "clip the ratios (max_ratio)",
        )
    if weighed.per_step is not None:
        ess, heaviest = steps.w**2 / steps.w2, steps.wmax / steps.w
        off = _placebo(steps.log_scale, steps.w, steps.w2, n, powers)
    else:  # the whole product is one weight, complete at the end
        ess = np.full(len(powers), np.nan)
        ess[-1] = whole.w[0] ** 2 / whole.w2[0]
        heaviest = np.where(np.isnan(ess), np.nan, whole.wmax[0] / whole.w[0])
        off = _placebo(whole.log_scale, whole.w, whole.w2, n, powers.sum())
    return Solution(
        value=value,
        standard_error=error,
        error_method=method,
        per_step=weighed.per_step,
        ess=ess,
        unseen_mass=None,
        placebo=off[0],
        placebo_error=off[1],
        heaviest=heaviest,
    )


def solve_product_replicates(recipe: Recipe, moments: Moments) -> Replicated:
    """The values on sums that hold replicates."""
    if moments.trajectories is None:
        raise lacking("trajectories")
    n = moments.start.n.sum(axis=0)
    w = moments.trajectories.steps.w
    weighed = weigh(recipe, moments.trajectories, n, moments.about.discount)
    return Replicated.of(weighed.value, None, ("no-overlap", ~np.all(w > 0, axis=0)))


def _placebo(log_scale: Floats, w: Floats, w2: Floats, n: int, powers: Any) -> tuple[float, float]:
    """Σ_t γ^t mean(w_t), which should be Σ_t γ^t, and a bound on its error: Σ_t γ^t sd(w_t)/√n.

    Of the weights before normalising: divided by their sum they would say 1 whatever they are.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.exp(log_scale) * w / n
        spread = np.sqrt(np.maximum(np.exp(2 * log_scale) * w2 / n - mean**2, 0.0) / n)
        return float(np.sum(powers * mean)), float(np.sum(powers * spread))
