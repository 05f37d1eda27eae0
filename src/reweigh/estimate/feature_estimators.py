"""Estimators on features: `fqe`, `mis-clusters`, `mdr-features`, and what their errors leave out.

No standard error sees that features cannot represent a value. So every solution is computed again
with other choices (half and twice the features, other seeds, half and twice the clusters, less and
more ridge), and asked for the value of the behavior, which the log knows. The spread of the choices
is part of the error:

    SE² = mean(ψ²)/n + mean over choices of (v_choice - v)²

`Doubt` holds what the gates of `trust/gates/features.py` read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reweigh.errors import RefusedError
from reweigh.estimate.cluster_weights import (
    Clustered,
    cross_fitted,
    logged_rewards,
    shaped_by,
    solve_clusters,
)
from reweigh.estimate.estimator import FOLDS, Recipe, Solution, Weights, value_alone
from reweigh.estimate.feature_doubt import Doubt, Run, doubt_of
from reweigh.estimate.influence import finite, refuse_weights
from reweigh.estimate.linear_q import RIDGE, LinearQ, examine
from reweigh.estimate.refusals import needs_log
from reweigh.estimate.standard_error import LOST, Freedom, nothing_left
from reweigh.kernels import Floats
from reweigh.log.feature_maps import Clusters, FeatureMap, Fourier
from reweigh.log.log import EpisodeLog
from reweigh.policy import Policy
from reweigh.sums.engines import ratios
from reweigh.sums.feature_sums import (
    FeatureRows,
    design_of,
    feature_sums,
    logged_shares,
    target_shares,
)
from reweigh.sums.moments import Moments

LEAST_FOLDED = 2  # episodes in every fold
USUAL, USUAL_CLUSTERS = Fourier(), Clusters()


@dataclass(frozen=True)
class Choices:
    """What an estimator on features chooses: the map, the clusters, the ridge."""

    features: FeatureMap
    clusters: Clusters
    ridge: float

    def others(self, rows: int, actions: int, *, q: bool, weights: bool) -> dict[str, Choices]:
        """Other choices that are as good, by name."""
        found: dict[str, Choices] = {}
        sized, k = self.features.for_rows(rows, actions), self.clusters.for_rows(rows, 1)
        if q:
            for name, factor in (("half the features", 0.5), ("twice the features", 2.0)):
                if (other := sized.resized(factor)) is not None:
                    found[name] = replace(self, features=other)
            if isinstance(sized, Fourier):
                found["another seed"] = replace(self, features=replace(sized, seed=sized.seed + 1))
            if self.ridge:
                found["less ridge"] = replace(self, ridge=self.ridge / 10)
                found["more ridge"] = replace(self, ridge=self.ridge * 10)
        if weights:
            for name, factor in (("half the clusters", 0.5), ("twice the clusters", 2.0)):
                other = k.resized(factor)
                assert isinstance(other, Clusters)
                found[name] = replace(self, clusters=other)
        return found


class OnFeatures(Weights):
    """What estimators on features share; a subclass says how to `run` on shares of a policy."""

    further_traits = frozenset({"features"})
    whole_episodes = False
    solves_replicates = False
    has_q: bool = True
    has_weights: bool = True

    @property
    def choices(self) -> Choices:
        raise NotImplementedError

    def run(self, log: EpisodeLog, shares: Floats, rho: Floats, choices: Choices) -> Run:
        """The value of the policy with these `shares` of the actions and these ratios."""
        raise NotImplementedError

    def solve(self, recipe: Recipe, sums: Moments, *, errors: bool = True) -> Solution:
        raise needs_log(
            recipe, "features of every row are multiplied, and sums of states have none"
        )

    def solve_rows(
        self, recipe: Recipe, log: EpisodeLog, target: Policy, *, errors: bool = True
    ) -> Solution:
        _ = log.features  # refused where there are none
        refuse_weights(log, recipe.name)
        shares = target_shares(log, target, recipe.max_ratio)
        rho = ratios(log, target, recipe.max_ratio)[1]
        with np.errstate(over="ignore", invalid="ignore"):
            run = self.run(log, shares, rho, self.choices)
            if not errors:
                return value_alone(run.per_step)
            psi = finite(run.psi)
            n, unseen = len(psi), run.lost
            doubt = self.doubt(log, shares, rho, run)
        own = float(np.sqrt(np.mean(psi**2) / n))
        error = float(np.hypot(own, doubt.spread))
        lost = nothing_left(own, run.value)
        psi = psi * (error / own if own > 0 else 1.0)
        return Solution(
            value=run.value,
            standard_error=None if lost else error,
            error_method=LOST if lost else "influence values and the spread of choices",
            per_step=run.per_step,
            ess=run.ess,
            unseen_mass=unseen,
            placebo=float("nan"),
            freedom=None if n < 2 else Freedom(error * np.sqrt(n / (n - 1)), float(n - 1)),
            from_model=not self.uses_ratios,
            influence=lambda: psi,
            doubt=doubt,
        )

    def influence(self, recipe: Recipe, log: EpisodeLog, target: Policy) -> Floats:
        solution = self.solve_rows(recipe, log, target)
        assert solution.influence is not None
        return solution.influence()

    def doubt(self, log: EpisodeLog, shares: Floats, rho: Floats, run: Run) -> Doubt:
        actions = 1 if log.actions is None else len(log.actions)
        others: dict[str, float] = {}
        rows = log.steps.n_rows
        named = self.choices.others(rows, actions, q=self.has_q, weights=self.has_weights)
        for name, choices in named.items():
            try:
                others[name] = self.run(log, shares, rho, choices).value
            except RefusedError:
                others[name] = float("nan")
        ones = np.ones(log.steps.n_rows)
        try:
            behavior = self.run(log, logged_shares(log, ones), ones, self.choices)
        except RefusedError:
            behavior = None
        return doubt_of(log, run, behavior, others)

    def rows_of(self, log: EpisodeLog, shares: Floats, choices: Choices, folds: int) -> FeatureRows:
        return FeatureRows(log, design_of(log, choices.features, folds=folds), shares)


def not_logged(log: EpisodeLog, shares: Floats) -> Floats:
    """(H,) the share of actions that the log does not show, in its rows of each step."""
    if log.actions is None or not np.all(shares.sum(axis=1) <= 1 + 1e-9):
        return np.zeros(log.horizon)
    lost = np.maximum(1 - shares.sum(axis=1), 0.0)
    by_step = np.array([lost[log.steps.rows(t)].mean() for t in range(log.horizon)])
    return np.where(by_step > 1e-9, by_step, 0.0)


@dataclass(frozen=True)
class FittedQ(OnFeatures):
    """Linear fitted Q evaluation, pooled over the steps or step by step."""

    features: FeatureMap = USUAL
    pooled: bool = True
    ridge: float = RIDGE

    uses_ratios = False
    has_weights = False
    limit_group = "features"
    formula = (
        "v̂ = Σᵢ ψ(xᵢ₀)·θ₀ / n,  θₜ(a) = (G + λ)⁻¹ Σ φ r + γ (G¹ + λ)⁻¹ Σ φ ψ(x′)ᵀ θₜ₊₁,  "
        "ψ(x) = π(a|x) φ(x)"
    )

    @property
    def choices(self) -> Choices:
        return Choices(self.features, USUAL_CLUSTERS, self.ridge)

    @property
    def pools_steps(self) -> bool:
        return self.pooled

    def description(self, recipe: Recipe) -> str:
        how = "pooled over the steps" if self.pooled else "step by step"
        return f"linear fitted Q evaluation on {self.features.describe()}, {how}"

    def run(self, log: EpisodeLog, shares: Floats, rho: Floats, choices: Choices) -> Run:
        design = design_of(log, choices.features, per_step=not self.pooled)
        rows = FeatureRows(log, design, shares)
        fit = LinearQ.of(feature_sums(rows), log.horizon, log.discount, choices.ridge)
        found = examine(rows, fit)
        lost = not_logged(log, shares)
        return Run(fit.value, found.psi, found.ess, found.per_step, lost, rows, fit=fit)


@dataclass(frozen=True)
class ClusterWeights(OnFeatures):
    """MIS on clusters of the features, pooled over the steps; with a Q fitted to the other folds
    if `features` are given (doubly robust)."""

    clusters: Clusters = USUAL_CLUSTERS
    features: FeatureMap | None = None
    ridge: float = RIDGE

    limit_group = "features"
    formula = (
        "v̂ = Σᵢ V₀(xᵢ₀)/n + Σₜ γᵗ Σₛ dₜ(s) Σᵢ ρᵢ yₜᵢ / Σᵢ ρᵢ,  yₜ = r + γ Vₜ₊₁(x′) − Qₜ(x,a),  "
        "dₜ₊₁ = dₜ P̂,  s the cluster of x"
    )

    @property
    def has_q(self) -> bool:  # type: ignore[override]
        return self.features is not None

    @property
    def choices(self) -> Choices:
        return Choices(self.features or USUAL, self.clusters, self.ridge)

    @property
    def pools_steps(self) -> bool:
        return True

    def description(self, recipe: Recipe) -> str:
        text = (
            f"marginalized importance sampling on {self.clusters.describe()}, pooled over the steps"
        )
        if self.features is None:
            return text
        return (
            f"{text}; with a control variate, linear fitted Q of {self.features.describe()} on the "
            f"other {FOLDS - 1} of {FOLDS} folds (doubly robust)"
        )

    def run(self, log: EpisodeLog, shares: Floats, rho: Floats, choices: Choices) -> Run:
        folds = 1 if self.features is None else FOLDS
        rows = self.rows_of(log, shares, choices, folds)
        of = Clustered.of(log, choices.clusters, rho, rows)
        if self.features is None:
            start = np.zeros(log.n_episodes)
            found = solve_clusters(of, logged_rewards(log), start, all_rows=True)
            fits: Any = None
        else:
            refuse_few(log, folds)
            fits = cross_fitted(rows, choices.ridge)
            shaped, start = shaped_by(rows, fits)
            found = solve_clusters(of, shaped, start, all_rows=False)
        lost = found.lost + not_logged(log, shares)
        return Run(
            found.value, found.psi, found.ess, found.per_step, lost, rows, fits=fits, clustered=of,
            d=found.d,
        )  # fmt: skip


def refuse_few(log: EpisodeLog, folds: int) -> None:
    count = np.bincount(log.steps.episode_hash % folds, minlength=folds)
    if count.min() < LEAST_FOLDED:
        raise RefusedError(
            "empty-half",
            f"a fold has {int(count.min())} episodes, too few to fit Q to the others; use more "
            "episodes, or fqe()",
        )
