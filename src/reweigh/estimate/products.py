"""Step-wise and trajectory-wise IS and WIS, from sums of running products."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.errors import SupportError
from reweigh.estimate import variance
from reweigh.estimate.recipe import Recipe, Trajectory
from reweigh.estimate.recursion import no_support, overflow
from reweigh.estimate.solution import Solution, lacking
from reweigh.log.log import EpisodeLog
from reweigh.policy.base import Policy
from reweigh.sums.engines.arrays import ArraysEngine
from reweigh.sums.moments import Moments
from reweigh.sums.trajectories import EpisodeSums, StepSums

Floats = npt.NDArray[np.float64]

NEEDS_SCAN = "delta"  # WIS: the delta method needs a second scan, or the jackknife


def solve_products(recipe: Recipe, moments: Moments) -> Solution:
    """Step-wise and trajectory-wise IS and WIS; WIS's error needs a second scan (see evaluate)."""
    if moments.trajectories is None:
        raise lacking("trajectories")
    steps = moments.trajectories.steps.total()
    whole = moments.trajectories.episodes.total()
    n = moments.n_episodes
    if not np.isfinite(steps.w).all():
        raise overflow()
    empty = np.flatnonzero(~(steps.w > 0))
    if len(empty):
        raise no_support(int(empty[0]))
    powers = np.asarray(moments.about.discount ** np.arange(moments.about.horizon), np.float64)
    weighted = recipe.normalize == "step"
    if isinstance(recipe.weights, Trajectory):
        solution = _trajectory(whole, n, powers, weighted)
    else:
        solution = _stepwise(steps, whole, n, powers, weighted)
    error = solution.standard_error
    if not (np.isfinite(solution.value) and (error is None or np.isfinite(error))):
        largest = float(steps.log_scale.max())
        raise SupportError(
            "overflow",
            "the weights exceed what a number can hold (a product of ratios of about "
            f"10^{largest / np.log(10):.0f}); use {'mis()' if weighted else 'mis() or wis()'}, or "
            "clip the ratios (max_ratio)",
        )
    return solution


def _stepwise(
    steps: StepSums, whole: EpisodeSums, n: int, powers: Floats, weighted: bool
) -> Solution:
    """v = Σ_t γ^t Σ_i w_it y_it / n,  or divided by Σ_i w_it at each step."""
    ess = steps.w**2 / steps.w2
    with np.errstate(over="ignore", invalid="ignore"):
        up = np.exp(steps.log_scale)
        if weighted:
            per_step = powers * steps.wy / steps.w
        else:
            per_step = powers * np.where(steps.wy == 0, 0.0, up * steps.wy) / n
    per_step[0] += float(whole.g[0]) / n
    if weighted:
        value, error, method = float(per_step.sum()), None, NEEDS_SCAN
    else:
        value = float(whole.x[0]) / n
        error, method = _spread(value, float(whole.x2[0]) / n, n)
    placebo, placebo_error = _placebo(steps.log_scale, steps.w, steps.w2, n, powers)
    return Solution(
        value=value,
        standard_error=error,
        error_method=method,
        per_step=per_step,
        ess=ess,
        unseen_mass=None,
        placebo=placebo,
        placebo_error=placebo_error,
        heaviest=steps.wmax / steps.w,
    )


def _trajectory(whole: EpisodeSums, n: int, powers: Floats, weighted: bool) -> Solution:
    """v = Σ_i W_i G_i / n,  or divided by Σ_i W_i, where ψ = W (G - v)/mean(W)."""
    W, scale = float(whole.w[0]), float(whole.log_scale[0])
    error: float | None
    if weighted:
        value = float(whole.wg[0]) / W
        second = float(whole.wg2[0] - 2 * value * whole.w2g[0] + value * value * whole.w2[0])
        error, method = float(np.sqrt(max(second, 0.0))) / W, "delta"
        if variance.lost_in_rounding(second, float(whole.wg2[0])):
            error, method = None, variance.LOST
    else:
        value = _exp(scale) * float(whole.wg[0]) / n
        error, method = _spread(value, _exp(2 * scale) * float(whole.wg2[0]) / n, n)
    ess = np.full(len(powers), np.nan)  # the whole product is one weight, complete at the end
    ess[-1] = W**2 / float(whole.w2[0])
    placebo, placebo_error = _placebo(whole.log_scale, whole.w, whole.w2, n, powers.sum())
    return Solution(
        value=value,
        standard_error=error,
        error_method=method,
        per_step=None,
        ess=ess,
        unseen_mass=None,
        placebo=placebo,
        placebo_error=placebo_error,
        heaviest=np.where(np.isnan(ess), np.nan, float(whole.wmax[0] / whole.w[0])),
    )


def _placebo(log_scale: Floats, w: Floats, w2: Floats, n: int, powers: Any) -> tuple[float, float]:
    """Σ_t γ^t mean(w_t), which should be Σ_t γ^t, and a bound on its error: Σ_t γ^t sd(w_t)/√n.

    Of the weights before normalising: divided by their sum they would say 1 whatever they are.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.exp(log_scale) * w / n
        spread = np.sqrt(np.maximum(np.exp(2 * log_scale) * w2 / n - mean**2, 0.0) / n)
        return float(np.sum(powers * mean)), float(np.sum(powers * spread))


def _exp(x: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.exp(x))


def _spread(mean: float, second: float, n: int) -> tuple[float | None, str]:
    """sqrt(Var/n), the variance divided by n; and its method."""
    square = second - mean * mean
    if variance.lost_in_rounding(square, second):
        return None, variance.LOST
    return float(np.sqrt(max(square, 0.0) / n)), "sample"


def with_delta_error(
    recipe: Recipe, solution: Solution, sums: Moments, log: EpisodeLog, target: Policy
) -> Solution:
    """WIS with its error: ψ_i = g_i - ḡ + Σ_t γ^t ρ_{0:t} (y_t - v_t)/mean(ρ_{0:t}),
    SE² = mean(ψ²)/n."""
    assert sums.trajectories is not None
    steps, n = sums.trajectories.steps.total(), sums.n_episodes
    request = replace(recipe.needs, blocks=sums.about.blocks)
    center, log_mean = steps.wy / steps.w, np.log(steps.w / n) + steps.log_scale
    psi = ArraysEngine().weighted_residuals(log, target, request, center, log_mean)
    g = log.steps.start_value
    if g is not None:
        psi = psi + g - g.mean()
    error = float(np.sqrt(np.mean(psi**2) / n))
    if variance.nothing_left(error, solution.value):
        return replace(solution, error_method=variance.LOST)
    return replace(solution, standard_error=error)
