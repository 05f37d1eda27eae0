"""What an estimator is: `Recipe` composes weights × normalization × reward × control.

The weights define the estimator (its sums, solution, gradient, formula and assumptions), and no
other module branches on their class. A new one is a class in a file of its own, named in a Recipe;
a function of declared tables derives from `TableWeights`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from reweigh.errors import must_be
from reweigh.kernels import Array, Bools, Floats, Ints, tally
from reweigh.log.log import EpisodeLog
from reweigh.policy import Policy
from reweigh.sums.engines import Request
from reweigh.sums.gather import Gradient
from reweigh.sums.moments import Moments
from reweigh.sums.tables import Table

if TYPE_CHECKING:
    from reweigh.estimate.control import ModelControl
    from reweigh.estimate.feature_doubt import Doubt
    from reweigh.estimate.solution import DenseNodes
    from reweigh.estimate.standard_error import Freedom

Normalize = Literal["none", "simplex", "state", "step"]
Reward = Literal["logged", "averaged", "pooled"]
LogAndTarget = tuple[EpisodeLog, Policy]
JACKKNIFE_BLOCKS, CLUSTER_BLOCKS = 50, 100  # few clusters are to have a block each
FOLDS = 5
NOT_IN_SUMS = ("delta", "jackknife")  # methods of errors that take the rows again, or blocks


# ---- the result of an estimator


@dataclass(frozen=True)
class Place:
    """A step, and the codes of a state (below 0: END) and of an action, None if unknown."""

    step: int
    state: int
    action: int | None = None


@dataclass(frozen=True, eq=False)
class Nodes:
    """Values by step and state, over the nodes: the (t, s) that occur.

    t, s               step, and code of the state (END's where an episode has ended)
    target, behavior   d_t^π(s) and d_t^μ(s)
    visits             N_t(s), the logged rows
    variance           the parts of SE², which with that of the start add up to it; None when
                       pooled: no step owns them
    """

    t: Ints
    s: Ints
    target: Floats
    behavior: Floats
    visits: Floats
    variance: Floats | None

    @property
    def nodes(self) -> Nodes:
        return self

    def variance_by_step(self, horizon: int) -> Floats | None:
        """(H,) the parts of SE² of every step."""
        if self.variance is None:
            return None
        return tally(self.t, self.variance, horizon + 1)[:horizon]


@dataclass(frozen=True, eq=False)
class Solution:
    """The result of an estimator.

    ess, unseen_mass are per step (nan where a step has none); marginals are None for estimators
    that have no state distribution. normalized_at marks the steps at which d_t was normalized;
    heaviest is the share of the weight that one episode holds at the worst step; from_model: no
    ratios were used. placebo_by_step and rare_by_step are (H,) the contributions to the placebo,
    and the share of mass with few rows; unseen_at and rare_at are the places where most of the mass
    is lost, or rare. `by_node` has the values by step and state; the parts of SE² there add up to
    it with `variance_of_start`. `freedom` is the error corrected for small groups, with its degrees
    of freedom; `mean_return` is that of the rows, if they were read.
    """

    value: float
    standard_error: float | None
    error_method: str
    per_step: Floats | None
    ess: Floats
    unseen_mass: Floats | None
    placebo: float
    placebo_error: float | None = None
    placebo_by_step: Floats | None = None
    rare_mass: float | None = None
    rare_by_step: Floats | None = None
    rare_at: Place | None = None
    unseen_at: Place | None = None
    total_mass: Floats | None = None
    by_node: Nodes | DenseNodes | None = None
    variance_of_start: float | None = None
    freedom: Freedom | None = None
    normalized_at: Bools | None = None
    heaviest: Floats | None = None
    from_model: bool = False
    mean_return: float | None = None
    influence: Callable[[], Floats] | None = None
    doubt: Doubt | None = None  # of estimators on features
    warnings: tuple[Warning, ...] = ()

    @property
    def nodes(self) -> Nodes | None:
        return None if self.by_node is None else self.by_node.nodes

    @property
    def variance_by_step(self) -> Floats | None:
        """(H+1,) parts of SE²: the start, then every step."""
        steps = None if self.by_node is None else self.by_node.variance_by_step(len(self.ess))
        if steps is None:
            return None
        assert self.variance_of_start is not None
        return np.concatenate([[self.variance_of_start], steps])


def value_alone(per_step: Floats) -> Solution:
    """The value alone, for code that solves the same log many times."""
    nothing = np.full(len(per_step), np.nan)
    value = float(per_step.sum())
    return Solution(value, None, "not requested", per_step, nothing, None, float("nan"))


@dataclass(frozen=True, eq=False)
class Replicated:
    """An estimator on m replicates of a log.

    values   (m,) nan where the replicate is refused
    errors   (m,) standard errors, nan where there is none; None if not requested
    refused  (m,) the code of the refusal, empty where there is none
    """

    values: Floats
    errors: Floats | None
    refused: Array

    @classmethod
    def of(cls, values: Floats, errors: Floats | None, *reasons: tuple[str, Any]) -> Replicated:
        """With the replicates (m,) that are refused, by code, the first reason first."""
        refused = np.where(np.isfinite(values), "", "overflow").astype(object)
        return cls(values, errors, refused).but(*reasons)

    def but(self, *reasons: tuple[str, Any]) -> Replicated:
        """With other replicates that are refused, for reasons that come before those there are."""
        refused = self.refused.copy()
        for code, which in reversed(reasons):
            refused[which] = code
        fine = refused == ""
        errors = None if self.errors is None else np.where(fine, self.errors, np.nan)
        return Replicated(np.where(fine, self.values, np.nan), errors, refused)


class Weights:
    """What estimators of one kind are and do; a class of weights fills in what differs.

    kinds, tables    the package's tables of sums that it is solved on, and those declared outside
    normalizations, rewards   values of `Recipe.normalize`, the default first, and of `.reward`
    takes_control    whether a control variate may replace the reward
    uses_ratios      whether rows are weighed with π/μ
    multiplies       whether ratios are multiplied over the episode: every reward must be there
    pools_steps      whether it assumes the same dynamics at every step
    whole_episodes   whether cut-off episodes must be left out
    has_operator     whether it is a recursion over a one-step operator (`operators`)
    blocks           of episodes that its sums are split into: an error by the jackknife needs them
    only_jackknife   whether its error is the jackknife's, even with the rows in memory
    means            the normalizations with which it is the mean of ρ y if there is one step
    solves_replicates   whether the replicates of a log are solved together
    holds_others   whether ψ takes what an episode learns from others as given: no derivative
    limit_group      the key of its gates' limits, if these differ between estimators
    further_traits       traits for gates beyond those derived from the rest; see `Recipe.traits`
    formula, descriptions   its formula, with {over} for its divisor, and the variant in words
    """

    kinds: ClassVar[frozenset[str]] = frozenset()
    tables: ClassVar[tuple[Table, ...]] = ()
    normalizations: ClassVar[tuple[str, ...]] = ("none",)
    rewards: ClassVar[tuple[str, ...]] = ("logged",)
    takes_control: ClassVar[bool] = False
    uses_ratios: ClassVar[bool] = True
    multiplies: ClassVar[bool] = False
    whole_episodes: ClassVar[bool] = False
    has_operator: ClassVar[bool] = False
    blocks: ClassVar[int] = 1
    only_jackknife: ClassVar[bool] = False
    means: ClassVar[tuple[Normalize, ...]] = ()
    solves_replicates: ClassVar[bool] = True
    holds_others: ClassVar[bool] = False
    limit_group: ClassVar[str] = "states"
    further_traits: ClassVar[frozenset[str]] = frozenset()
    formula: ClassVar[str]
    divisors: ClassVar[dict[str, str]] = {}
    descriptions: ClassVar[dict[str, str]] = {}

    @property
    def pools_steps(self) -> bool:
        return False

    @property
    def remembers(self) -> int:
        """The earlier steps whose ratios it multiplies instead of trusting the state."""
        return 0

    def limits(self, recipe: Recipe) -> str:
        return self.limit_group

    def description(self, recipe: Recipe) -> str:
        return self.descriptions[recipe.normalize]

    def may_exceed_rewards(self, recipe: Recipe) -> bool:
        """Whether its value can lie outside of the range of the logged rewards and yet be right:
        nothing normalizes the weights, so that their sum is random."""
        return len(self.normalizations) > 1 and recipe.normalize == "none"

    def operators(self, recipe: Recipe, sums: Moments) -> Any:
        """Where it `has_operator`: that of the value, that of its error, and how rewards enter the
        error (`solution.Operators`)."""
        raise NotImplementedError

    def solve(self, recipe: Recipe, sums: Moments, *, errors: bool = True) -> Solution:
        """The solution on its sums; without `errors` the value is enough."""
        raise NotImplementedError

    def regrouped(self, sums: Moments) -> Moments:
        """The sums as the gates of the estimator see them: with its own actions and ratios."""
        return sums

    def groups_of(self, sums: Moments) -> Ints:
        """(A,) the code of the group of each action, if they are in groups."""
        raise NotImplementedError

    def needs_rows(self, sums: Moments) -> str | None:
        """Why these sums are not enough, where all tables are there and the rows are needed."""
        return None

    def solve_replicates(self, recipe: Recipe, sums: Moments, *, errors: bool) -> Replicated:
        """The same on sums that hold replicates, where it `solves_replicates`."""
        raise NotImplementedError

    def solve_rows(
        self, recipe: Recipe, log: EpisodeLog, target: Policy, *, errors: bool = True
    ) -> Solution | None:
        """The same straight from the rows of a log in memory, where that is faster; else None."""
        return None

    def influence(self, recipe: Recipe, log: EpisodeLog, target: Policy) -> Floats | None:
        """(n,) ψ straight from the rows; None where it follows from the `gradient`."""
        return None

    def gradient(self, recipe: Recipe, sums: Moments) -> Gradient:
        """n ∂v/∂(sum), which a second scan gathers into influence values."""
        raise NotImplementedError

    def with_error(
        self, recipe: Recipe, solution: Solution, sums: Moments, rows: LogAndTarget | None
    ) -> Solution:
        """The solution with an error that its sums alone do not hold, from the `rows` or, without
        them, from sums by blocks."""
        if solution.standard_error is not None or solution.error_method not in NOT_IN_SUMS:
            return solution
        from reweigh.estimate.influence import with_estimated_error

        return with_estimated_error(recipe, solution, sums, None if self.only_jackknife else rows)

    def error_by_blocks(self, recipe: Recipe) -> bool:
        """Whether its error is the jackknife's if the rows are not in memory."""
        return self.blocks > 1


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
            raise must_be("reward", '"logged", except for MIS without a control', self.reward)
        if self.control is not None and not weights.takes_control:
            raise must_be("control", f"None with {kind}", self.control.q)

    @property
    def needs(self) -> Request:
        """The sums this estimator requests from an engine (on the logged reward)."""
        kinds = set(self.weights.kinds) if self.reward == "logged" else {"model"}
        if self.fitted:
            kinds.add("model")
        blocks = self.weights.blocks if self.control is None else self.control.blocks
        if self.control is not None and self.control.blends:
            blocks = JACKKNIFE_BLOCKS  # a multiple of the folds
        return Request(
            frozenset(kinds),
            blocks,
            self.max_ratio,
            policy=self.fitted or not self.weights.uses_ratios,
            tables=self.weights.tables,
        )

    def finds_all_in(self, sums: Moments) -> bool:
        """Whether these sums hold all tables that it needs."""
        return self.needs.all_kinds <= {*sums.kinds, *sums.tables}

    @property
    def fitted(self) -> bool:
        """Whether its control variate is a Q that is fitted to the log's states."""
        control = self.control
        return control is not None and not (control.is_array_or_function or control.on_features)

    @property
    def holds_parts(self) -> bool:
        """Whether its influence values take a part of it as given: no exact derivative."""
        control = self.control
        of_control = control is not None and (control.blocks > 1 or control.blends)
        return self.weights.holds_others or of_control

    @property
    def plain(self) -> Recipe:
        """The estimator that a control variate is added to."""
        return self if self.control is None else replace(self, control=None)

    @property
    def uses_trajectories(self) -> bool:
        """Running products: every reward of an episode must be there."""
        return self.weights.multiplies

    @cached_property
    def traits(self) -> frozenset[str]:
        """The traits of an estimator that gates use:

        ratios             it weighs rows with π/μ
        products           it multiplies ratios over an episode; others depend on the state
        states             it depends on the state
        model              its value comes from a model of every action
        stationary         it assumes one state distribution for all steps
        pooled steps       it assumes the same dynamics at every step
        within states      it normalizes within states
        fitted control     a Q is fitted to the log
        fitted in sample   ... on the episodes that it is subtracted from
        action groups      it weighs groups of actions
        blended            it is partly the value of a model, which ratios do not correct
        features           it depends on the log's features
        """
        weights, control = self.weights, self.control
        holds = {
            "ratios": weights.uses_ratios,
            "products": weights.multiplies,
            "states": not (weights.multiplies or "features" in weights.further_traits),
            "pooled steps": weights.pools_steps,
            "within states": self.normalize == "state",
            "fitted control": self.fitted,
            "fitted in sample": self.fitted and control is not None and control.blocks == 1,
            "blended": control is not None and control.blends,
        }
        return weights.further_traits | {name for name, true in holds.items() if true}

    @property
    def needs_states(self) -> bool:
        """Whether it sums by state, which a log with features alone does not have."""
        return "states" in self.traits or self.fitted

    @property
    def limits(self) -> str:
        """The key of its gates' limits, if these differ between estimators."""
        return self.weights.limits(self)

    @property
    def may_exceed_rewards(self) -> bool:
        """Whether its value can lie outside of what the logged rewards allow and be right."""
        return self.control is None and self.weights.may_exceed_rewards(self)

    @property
    def formula(self) -> str:
        """The formula as text."""
        text = self.weights.formula.format(over=self.weights.divisors.get(self.normalize))
        shaped = f"Σₛ d₀(s) V(s) + the same on y = r − Q(s,a) + γ V(s′):  {text}"
        if self.control is None:
            return text
        if self.control.blends:
            shaped = shaped.replace("y = r", "y = Xₜ·(r").replace("V(s′):", "V(s′)):")
            shaped += ",  Xₜ = Σ xⱼ over j > t,  x ≥ 0 with Σ xⱼ = 1 minimizes xᵀ(Ω̂ + b̂b̂ᵀ)x"
        return shaped

    @property
    def description(self) -> str:
        """Which variant it is, in words."""
        text, control = self.weights.description(self), self.control
        if control is not None:
            fit = "of one’s own" if control.is_array_or_function else f"fitted {control.q}"
            fit = "fitted on features, to the other folds" if control.on_features else fit
            text += f"; with a control variate, Q {fit} (doubly robust)"
            text += ", for the smallest variance" if control.fit == "variance" else ""
            text += ", blended with the model (MAGIC)" if control.blends else ""
        return text if self.max_ratio is None else f"{text}; ratios clipped at {self.max_ratio:g}"

    def __repr__(self) -> str:
        return f"Recipe({self.name!r})"
