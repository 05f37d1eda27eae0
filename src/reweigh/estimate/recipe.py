"""Recipe: weights × normalisation × reward × control. Every estimator is one.

The weights own what an estimator does: which sums it needs, how it solves them, what it assumes.
Nobody else asks what kind they are. A new estimator is a class of weights, named in a Recipe.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from reweigh.errors import SupportError, must_be
from reweigh.estimate.weights import Weights
from reweigh.sums.engines.base import Request

if TYPE_CHECKING:
    from reweigh.estimate.solution import Solution
    from reweigh.log.log import EpisodeLog
    from reweigh.policy.base import Policy
    from reweigh.sums.gather import Gradient
    from reweigh.sums.moments import Moments

    Rows = tuple[EpisodeLog, Policy]

Normalize = Literal["none", "simplex", "state", "step"]
Reward = Literal["logged", "averaged", "pooled"]
JACKKNIFE_BLOCKS = 50


@dataclass(frozen=True)
class Stepwise(Weights):
    """ρ_{0:t}: the product of the ratios up to the step (per-decision)."""

    kinds = frozenset({"trajectories"})
    normalizations = ("none", "step")
    takes_control = True
    formula = "v̂ = Σₜ γᵗ Σᵢ ρ₀…ρₜ rₜ / {over}"
    divisors: ClassVar[dict[str, str]] = {"none": "n", "step": "Σᵢ ρ₀…ρₜ"}
    described: ClassVar[dict[str, str]] = {
        "none": "step-wise importance sampling",
        "step": "step-wise importance sampling, weighted: divided by the sum of the weights",
    }
    multiplies = whole_episodes = True

    def limits(self, recipe: Recipe) -> str:
        return "products"

    def solve(self, recipe: Recipe, sums: Moments, *, errors: bool = True) -> Solution:
        from reweigh.estimate.products import solve_products

        return solve_products(recipe, sums)

    def gradient(self, recipe: Recipe, sums: Moments) -> Gradient:
        from reweigh.estimate.gradient import product_gradient

        return product_gradient(recipe, sums)

    def with_error(
        self, recipe: Recipe, solution: Solution, sums: Moments, rows: Rows | None
    ) -> Solution:
        from reweigh.estimate.products import NEEDS_SCAN

        if solution.standard_error is not None or solution.error_method != NEEDS_SCAN:
            return solution
        if rows is None:
            return with_jackknife(recipe, solution, sums)
        return with_influence_error(recipe, solution, sums, *rows)

    def error_by_blocks(self, recipe: Recipe) -> bool:
        return recipe.normalize == "step"


@dataclass(frozen=True)
class Trajectory(Weights):
    """The product of all ratios of the episode, at every step."""

    kinds = frozenset({"trajectories"})
    normalizations = ("none", "step")
    formula = "v̂ = Σᵢ (ρ₀…ρ_H₋₁) Σₜ γᵗ rₜ / {over}"
    divisors: ClassVar[dict[str, str]] = {"none": "n", "step": "Σᵢ ρ₀…ρ_H₋₁"}
    described: ClassVar[dict[str, str]] = {
        "none": "trajectory-wise importance sampling",
        "step": "trajectory-wise importance sampling, weighted",
    }
    multiplies = whole_episodes = True

    def limits(self, recipe: Recipe) -> str:
        return "products"

    def solve(self, recipe: Recipe, sums: Moments, *, errors: bool = True) -> Solution:
        from reweigh.estimate.products import solve_products

        return solve_products(recipe, sums)

    def gradient(self, recipe: Recipe, sums: Moments) -> Gradient:
        from reweigh.estimate.gradient import product_gradient

        return product_gradient(recipe, sums)


@dataclass(frozen=True)
class Marginal(Weights):
    """w_t(s) = d_t^π(s)/d_t^μ(s), estimated step by step (the paper's), or pooled over time."""

    pooled: bool = False
    kinds = frozenset({"transitions"})
    normalizations = ("none", "simplex", "state")
    rewards = ("logged", "averaged", "pooled")
    formula = (
        "v̂ = Σₜ γᵗ Σₛ dₜ(s) r̂ₜ(s),  dₜ₊₁(s′) = Σₛ P̂ₜ(s′|s) dₜ(s),"
        "  P̂ₜ(s′|s) = Σ ρ 1[s→s′] / {over},  r̂ₜ(s) = Σ ρ r / {over}"
    )
    divisors: ClassVar[dict[str, str]] = {"none": "nₜ(s)", "simplex": "nₜ(s)", "state": "Σ ρ"}
    described: ClassVar[dict[str, str]] = {
        "none": "dₜ is not normalised (the estimator of the paper’s theorem)",
        "simplex": "dₜ is divided by its sum at every step (the paper’s algorithm and experiments)",
        "state": "the ratios are divided by their own sum within every state",
    }
    takes_control = True

    @property
    def pools_steps(self) -> bool:
        return self.pooled

    def limits(self, recipe: Recipe) -> str:
        if self.pooled:
            return "pooled"
        return {"none": "plain", "state": "within states"}.get(recipe.normalize, "states")

    def traits(self, recipe: Recipe) -> set[str]:
        return {"within states"} if recipe.normalize == "state" else set()

    def description(self, recipe: Recipe) -> str:
        text = f"marginalized importance sampling; {self.described[recipe.normalize]}"
        text += "; the estimates of all steps are pooled" if self.pooled else ""
        rewards = f"; rewards are {recipe.reward} over rows of the same state and action"
        return text if recipe.reward == "logged" else text + rewards

    def solve(self, recipe: Recipe, sums: Moments, *, errors: bool = True) -> Solution:
        from reweigh.estimate.solution import solve_recursion

        return solve_recursion(recipe, sums, errors=errors)

    def gradient(self, recipe: Recipe, sums: Moments) -> Gradient:
        from reweigh.estimate.gradient import marginal_gradient

        return marginal_gradient(recipe, sums).gradient

    def solve_rows(
        self, recipe: Recipe, log: EpisodeLog, target: Policy, *, errors: bool = True
    ) -> Solution | None:
        if recipe.reward != "logged" or self.pooled:
            return None
        from reweigh.estimate.direct import solve_in_memory

        return solve_in_memory(log, target, recipe, errors=errors)


@dataclass(frozen=True)
class Model(Weights):
    """No weights: d_t^π from the estimated T_t(s'|s,a) and π (the direct method)."""

    unseen: Literal["zero", "renorm"] = "zero"
    kinds = frozenset({"model"})
    formula = (
        "v̂ = Σₜ γᵗ Σₛ dₜ(s) Σₐ π(a|s) r̄ₜ(s,a),  dₜ₊₁(s′) = Σₛ Σₐ dₜ(s) π(a|s) T̂ₜ(s′|s,a), "
        "with T̂ and r̄ from counts"
    )
    uses_ratios = False

    def limits(self, recipe: Recipe) -> str:
        return "model"

    def traits(self, recipe: Recipe) -> set[str]:
        return {"model"}

    def description(self, recipe: Recipe) -> str:
        unseen = "has no mass" if self.unseen == "zero" else "is left out, π renormalised"
        return f"direct method, a model per step; an action never seen {unseen}"

    def solve(self, recipe: Recipe, sums: Moments, *, errors: bool = True) -> Solution:
        from reweigh.estimate.solution import solve_recursion

        return solve_recursion(recipe, sums, errors=errors)

    def gradient(self, recipe: Recipe, sums: Moments) -> Gradient:
        from reweigh.estimate.gradient import model_gradient

        return model_gradient(sums, renorm=self.unseen == "renorm")

    def with_error(
        self, recipe: Recipe, solution: Solution, sums: Moments, rows: Rows | None
    ) -> Solution:
        """Where its shares are means of what a policy sees, which rows a cell holds adds to the
        error, and the sums do not hold by how much."""
        if solution.standard_error is None or sums.policy is None:
            return solution
        if rows is None:
            return with_jackknife(recipe, solution, sums)
        found = with_influence_error(recipe, solution, sums, *rows)
        by_node = found.nodes
        if by_node is not None:
            by_node = replace(by_node, variance=None)
        return replace(found, freedom=None, by_node=by_node)


@dataclass(frozen=True)
class Stationary(Weights):
    """d_∞^π(s)/d̄^μ(s), from the eigenvector of the pooled operator (SSD-IS)."""

    use: Literal["ratio", "plugin", "selfnorm"] = "ratio"
    kinds = frozenset({"model"})
    formula = "the stationary distribution d^π of the pooled model against that of the log, d^μ"
    whole_episodes = True
    blocks = JACKKNIFE_BLOCKS
    solves_replicates = False

    @property
    def pools_steps(self) -> bool:
        return True

    def traits(self, recipe: Recipe) -> set[str]:
        return {"stationary"}

    def description(self, recipe: Recipe) -> str:
        return f"importance sampling with stationary distributions, read as “{self.use}”"

    def solve(self, recipe: Recipe, sums: Moments, *, errors: bool = True) -> Solution:
        from reweigh.estimate.stationary import solve_stationary

        return solve_stationary(recipe, sums)

    def gradient(self, recipe: Recipe, sums: Moments) -> Gradient:
        from reweigh.estimate.gradient_stationary import stationary_gradient

        return stationary_gradient(recipe, sums)

    def with_error(
        self, recipe: Recipe, solution: Solution, sums: Moments, rows: Rows | None
    ) -> Solution:
        if solution.warnings and not abs(solution.value) > 0:
            return replace(solution, error_method="all stationary mass is on END")
        return with_jackknife(recipe, solution, sums)


OwnQ = npt.NDArray[Any] | Callable[..., Any]


def with_jackknife(recipe: Recipe, solution: Solution, sums: Moments) -> Solution:
    """The solution with the error of deleting blocks of episodes from its sums."""
    from reweigh.estimate.jackknife import jackknife_error

    error, method = jackknife_error(recipe, sums, solution.value)
    return replace(solution, standard_error=error, error_method=method)


def with_influence_error(
    recipe: Recipe, solution: Solution, sums: Moments, log: EpisodeLog, target: Policy
) -> Solution:
    """The solution with the error of its influence values: SE² = mean(ψ²)/n."""
    from reweigh.estimate.influence import influence_values
    from reweigh.estimate.variance import LOST, OVERFLOW, nothing_left

    try:
        psi = influence_values(log, target, recipe, sums)
    except SupportError:  # the value is a number, and a ψ is not
        return replace(solution, standard_error=None, error_method=OVERFLOW)
    error = float(np.sqrt(np.mean(psi**2) / len(psi)))
    if nothing_left(error, solution.value):
        return replace(solution, standard_error=None, error_method=LOST)
    return replace(solution, standard_error=error)


@dataclass(frozen=True, eq=False)
class ModelControl:
    """The control variate of DR, WDR, MDR: where Q comes from."""

    q: str | OwnQ

    FITS = ("in-sample", "split", "cross-fit")

    def __post_init__(self) -> None:
        if isinstance(self.q, str):
            if self.q not in self.FITS:
                raise must_be("q", f"one of {self.FITS}, an array or a callable", self.q)
        elif not callable(self.q):
            array = np.asarray(self.q, float)
            if array.ndim not in (2, 3) or not np.all(np.isfinite(array)):
                raise must_be("q", "a finite (S, A) or (H, S, A) array", array.shape)
            object.__setattr__(self, "q", array)

    @property
    def own(self) -> bool:
        return not isinstance(self.q, str)

    @property
    def blocks(self) -> int:
        """Halves are blocks of even and of odd number."""
        return 2 if isinstance(self.q, str) and self.q != "in-sample" else 1


@dataclass(frozen=True, eq=False)
class Recipe:
    """An estimator, by its parts. Presets in `reweigh.estimate.presets` name them."""

    name: str
    weights: Weights
    normalize: Normalize = "none"
    reward: Reward = "logged"
    control: ModelControl | None = None
    max_ratio: float | None = None

    def __post_init__(self) -> None:
        ratio = self.max_ratio
        if ratio is not None and not (isinstance(ratio, int | float) and 0 < ratio < np.inf):
            raise must_be("max_ratio", "a positive finite number or None", ratio)
        if self.reward not in ("logged", "averaged", "pooled"):
            raise must_be("reward", '"logged", "averaged" or "pooled"', self.reward)
        weights, kind = self.weights, type(self.weights).__name__
        if self.normalize not in weights.normalizations:
            raise must_be(
                "normalize", f"one of {weights.normalizations} with {kind}", self.normalize
            )
        fits = self.reward in weights.rewards and (self.reward == "logged" or self.control is None)
        if not fits:
            raise must_be("reward", '"logged" but for MIS without a control variate', self.reward)
        if self.control is not None and not weights.takes_control:
            raise must_be("control", f"None with {kind}", self.control.q)

    @property
    def needs(self) -> Request:
        """The sums that this estimator asks an engine for (on the logged reward)."""
        kinds = set(self.weights.kinds) if self.reward == "logged" else {"model"}
        if self.fitted:
            kinds.add("model")
        blocks = self.weights.blocks if self.control is None else self.control.blocks
        policy = self.fitted or not self.weights.uses_ratios
        return Request(frozenset(kinds), blocks, self.max_ratio, policy=policy)

    @property
    def fitted(self) -> bool:
        """Whether its control variate is a Q that is fitted to the log."""
        return self.control is not None and not self.control.own

    @property
    def plain(self) -> Recipe:
        """The estimator that a control variate is added to."""
        return self if self.control is None else replace(self, control=None)

    @property
    def uses_trajectories(self) -> bool:
        """Running products: every reward of an episode must be there."""
        return self.weights.multiplies

    @property
    def traits(self) -> frozenset[str]:
        """What a gate may ask of an estimator, in place of its kind:

        ratios             it weighs rows with π/μ
        products           it multiplies ratios over an episode; others rest on the state
        states             what it says rests on the state
        model              its value comes from a model of every action
        stationary         it takes all steps to have one distribution of states
        pooled steps       it takes the world to be the same at every step
        within states      it normalises within states
        fitted control     a Q is fitted to the log
        fitted in sample   ... on the episodes that it is subtracted from
        """
        weights, control = self.weights, self.control
        holds = {
            "ratios": weights.uses_ratios,
            "products": weights.multiplies,
            "states": not weights.multiplies,
            "pooled steps": weights.pools_steps,
            "fitted control": self.fitted,
            "fitted in sample": self.fitted and control is not None and control.blocks == 1,
        }
        declared = {name for name, true in holds.items() if true}
        return frozenset(declared | weights.traits(self))

    @property
    def limits(self) -> str:
        """Whose limits its gates have, where these differ between estimators."""
        return self.weights.limits(self)

    @property
    def may_exceed_rewards(self) -> bool:
        """Whether its value may lie outside of what the logged rewards allow by its nature: weights
        that nothing normalises, so that their sum is random."""
        normalizes = len(self.weights.normalizations) > 1  # others have one way, which is theirs
        return normalizes and self.normalize == "none" and self.control is None

    @property
    def formula(self) -> str:
        """What it computes."""
        text = self.weights.formula.format(over=self.weights.divisors.get(self.normalize))
        shaped = f"Σₛ d₀(s) V(s) + the same on y = r − Q(s,a) + γ V(s′):  {text}"
        return text if self.control is None else shaped

    @property
    def description(self) -> str:
        """Which variant it is, in words."""
        text = self.weights.description(self)
        if self.control is not None:
            fit = "of one’s own" if self.control.own else f"fitted {self.control.q}"
            text += f"; with a control variate, Q {fit} (doubly robust)"
        return text if self.max_ratio is None else f"{text}; ratios clipped at {self.max_ratio:g}"

    def __repr__(self) -> str:
        return f"Recipe({self.name!r})"
