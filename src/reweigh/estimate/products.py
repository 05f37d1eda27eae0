"""Step-wise and trajectory-wise IS and WIS, from sums of running products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from reweigh.errors import SupportError
from reweigh.estimate.estimator import Recipe, Replicated, Solution, Weights
from reweigh.estimate.refusals import cut_off, lacking, no_support, overflow
from reweigh.estimate.standard_error import LOST, lost_in_rounding
from reweigh.kernels import Floats, rowwise
from reweigh.sums.gather import ProductGradient
from reweigh.sums.keyed import EpisodeSums, StepMoments, StepSums
from reweigh.sums.moments import Moments


@dataclass(frozen=True, eq=False)
class Weighed:
    """A mean with running products as weights; of replicates all have a last axis of them.

    per_step  (H,) contributions of the steps, None for whole trajectories
    square    SE², None if it needs the rows
    lost      whether rounding has destroyed it
    """

    value: Any
    per_step: Floats | None
    square: Any = None
    lost: Any = False


class Products(Weights):
    """Running products as weights; `stepwise`: products up to the step, not whole ones."""

    stepwise: ClassVar[bool]
    kinds = frozenset({"trajectories"})
    normalizations = ("none", "step")
    means = ("none",)
    multiplies = whole_episodes = True
    limit_group = "products"

    def weigh(self, recipe: Recipe, sums: StepMoments, n: Any, discount: float) -> Weighed:
        """The mean over n episodes."""
        raise NotImplementedError

    def solve(self, recipe: Recipe, sums: Moments, *, errors: bool = True) -> Solution:
        """WIS's error needs a second scan (`with_error`)."""
        steps, whole = _totals(sums)
        n, weighted = sums.n_episodes, recipe.normalize == "step"
        weighed = self.weigh(recipe, StepMoments(steps, whole), n, sums.about.discount)
        value, error, method = float(weighed.value), None, "delta"
        if weighed.square is not None:
            error, method = float(np.sqrt(weighed.square)), "delta" if weighted else "sample"
            if weighed.lost:
                error, method = None, LOST
        if not (np.isfinite(value) and (error is None or np.isfinite(error))):
            largest = float(steps.log_scale.max())
            raise SupportError(
                "overflow",
                "the weights overflow floating point (a product of ratios of about "
                f"10^{largest / np.log(10):.0f}); use "
                f"{'mis()' if weighted else 'mis() or wis()'}, or clip the ratios (max_ratio)",
            )
        powers = np.asarray(sums.about.discount ** np.arange(sums.about.horizon), np.float64)
        # the whole product is one weight, complete at the last step
        of: StepSums | EpisodeSums = steps if self.stepwise else whole
        before = np.full(len(powers) - len(of.w), np.nan)
        placebo = _placebo(of, n, powers if self.stepwise else powers.sum())
        return Solution(
            value=value,
            standard_error=error,
            error_method=method,
            per_step=weighed.per_step,
            ess=np.append(before, of.w**2 / of.w2),
            unseen_mass=None,
            placebo=placebo[0],
            placebo_error=placebo[1],
            heaviest=np.append(before, of.wmax / of.w),
        )

    def solve_replicates(self, recipe: Recipe, sums: Moments, *, errors: bool) -> Replicated:
        if sums.trajectories is None:
            raise lacking("trajectories")
        w, n = sums.trajectories.steps.w, sums.start.n.sum(axis=0)
        weighed = self.weigh(recipe, sums.trajectories, n, sums.about.discount)
        return Replicated.of(weighed.value, None, ("no-overlap", ~np.all(w > 0, axis=0)))

    def gradient(self, recipe: Recipe, sums: Moments) -> ProductGradient:
        """An episode that has ended keeps its product and earns 0."""
        if sums.truncated:
            raise cut_off(sums.truncated)
        steps, whole = _totals(sums)
        n, none, trajectory = sums.n_episodes, np.zeros(1), not self.stepwise
        if recipe.normalize == "step":
            of: StepSums | EpisodeSums = whole if trajectory else steps
            earned = whole.wg if trajectory else steps.wy
            log_mean = np.log(of.w / n) + of.log_scale
            return ProductGradient(
                trajectory, True, earned / of.w, log_mean, -float(whole.g[0]) / n
            )
        value = self.weigh(recipe, StepMoments(steps, whole), n, sums.about.discount).value
        return ProductGradient(trajectory, False, none, none, -float(value))


@dataclass(frozen=True)
class Stepwise(Products):
    """ρ_{0:t}: the product of the ratios up to the step (per-decision)."""

    stepwise = True
    takes_control = True
    formula = "v̂ = Σₜ γᵗ Σᵢ ρ₀…ρₜ rₜ / {over}"
    divisors: ClassVar[dict[str, str]] = {"none": "n", "step": "Σᵢ ρ₀…ρₜ"}
    descriptions: ClassVar[dict[str, str]] = {
        "none": "step-wise importance sampling",
        "step": "step-wise importance sampling, weighted: divided by the sum of the weights",
    }

    def weigh(self, recipe: Recipe, sums: StepMoments, n: Any, discount: float) -> Weighed:
        """v = Σ_t γ^t Σ_i w_it y_it / n,  or divided by Σ_i w_it at each step."""
        steps, whole, weighted = sums.steps, sums.episodes, recipe.normalize == "step"
        powers = rowwise(discount ** np.arange(len(steps.w)), steps.w)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
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

    def error_by_blocks(self, recipe: Recipe) -> bool:
        return recipe.normalize == "step"


@dataclass(frozen=True)
class Trajectory(Products):
    """The product of all ratios of the episode, at every step."""

    stepwise = False
    formula = "v̂ = Σᵢ (ρ₀…ρ_H₋₁) Σₜ γᵗ rₜ / {over}"
    divisors: ClassVar[dict[str, str]] = {"none": "n", "step": "Σᵢ ρ₀…ρ_H₋₁"}
    descriptions: ClassVar[dict[str, str]] = {
        "none": "trajectory-wise importance sampling",
        "step": "trajectory-wise importance sampling, weighted",
    }

    def weigh(self, recipe: Recipe, sums: StepMoments, n: Any, discount: float) -> Weighed:
        """v = Σ_i W_i G_i / n,  or divided by Σ_i W_i, where ψ = W (G - v)/mean(W)."""
        whole = sums.episodes
        W, wg, wg2 = whole.w[0], whole.wg[0], whole.wg2[0]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            if recipe.normalize == "step":
                value = wg / W
                second = wg2 - 2 * value * whole.w2g[0] + value * value * whole.w2[0]
                lost = lost_in_rounding(second, wg2)
                return Weighed(value, None, np.maximum(second, 0.0) / W**2, lost)
            up = np.exp(whole.log_scale[0])
            return Weighed(up * wg / n, None, *_spread(up * wg / n, up * up * wg2 / n, n))


def _totals(sums: Moments) -> tuple[StepSums, EpisodeSums]:
    """The products of all blocks; refused where no episode has one."""
    if sums.trajectories is None:
        raise lacking("trajectories")
    steps = sums.trajectories.steps.total()
    if not np.isfinite(steps.w).all():
        raise overflow()
    empty = np.flatnonzero(~(steps.w > 0))
    if len(empty):
        raise no_support(int(empty[0]))
    return steps, sums.trajectories.episodes.total()


def _spread(mean: Any, second: Any, n: Any) -> tuple[Any, Any]:
    """Var/n, the variance divided by n; and whether rounding has destroyed it."""
    square = second - mean * mean
    return np.maximum(square, 0.0) / n, lost_in_rounding(square, second)


def _placebo(of: StepSums | EpisodeSums, n: int, powers: Any) -> tuple[float, float]:
    """Σ_t γ^t mean(w_t), which should be Σ_t γ^t, and a bound on its error: Σ_t γ^t sd(w_t)/√n.

    With the weights before normalizing: normalized weights would always give 1.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.exp(of.log_scale) * of.w / n
        spread = np.sqrt(np.maximum(np.exp(2 * of.log_scale) * of.w2 / n - mean**2, 0.0) / n)
        return float(np.sum(powers * mean)), float(np.sum(powers * spread))
