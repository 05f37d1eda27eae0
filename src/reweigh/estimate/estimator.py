"""What an estimator is: `Recipe` composes weights × normalisation × reward × control.

The weights own what an estimator does: which sums it needs, how it solves them, its gradient, its
formula, what it assumes. Nobody else asks what kind they are. A new estimator is a class of weights
in a file of its own (`marginal.py`, `model.py`, `products.py`, `stationary.py`), named in a Recipe;
one that is a function of declared tables derives from `TableWeights` (`table_weights.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError, SupportError, must_be
from reweigh.kernels import tally
from reweigh.log.log import EpisodeLog
from reweigh.policy import Policy
from reweigh.sums.engines import Request
from reweigh.sums.gather import Gradient
from reweigh.sums.moments import Moments
from reweigh.sums.tables import Table

if TYPE_CHECKING:
    from reweigh.estimate.solution import DenseNodes
    from reweigh.estimate.standard_error import Freedom

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Normalize = Literal["none", "simplex", "state", "step"]
Reward = Literal["logged", "averaged", "pooled"]
LogAndTarget = tuple[EpisodeLog, Policy]
OwnQ = npt.NDArray[Any] | Callable[..., Any]
JACKKNIFE_BLOCKS = 50


# ---- what an estimator finds -------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A step, and the codes of a state (below 0: END) and of an action, None where it cannot be
    told."""

    step: int
    state: int
    action: int | None = None


@dataclass(frozen=True, eq=False)
class Nodes:
    """What an estimator tells by step and state, over the nodes: the (t, s) that occur.

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
    def made(self) -> Nodes:
        return self

    def variance_by_step(self, horizon: int) -> Floats | None:
        """(H,) the parts of SE² of every step."""
        if self.variance is None:
            return None
        return tally(self.t, self.variance, horizon + 1)[:horizon]


@dataclass(frozen=True, eq=False)
class Solution:
    """What an estimator found.

    ess, unseen_mass are per step (nan where a step has none); marginals are None for estimators
    that have no state distribution. normalized_at tells the steps at which d_t was normalised;
    heaviest is the share of the weight that one episode holds at the worst step; from_model
    tells that no ratios were used. placebo_by_step and rare_by_step are (H,) what the steps add to
    the placebo, and the share of their mass that is seen seldom; unseen_at and rare_at tell where
    most of the mass is lost, or rare. `by_node` is what is told by step and state; the parts of SE²
    there add up to it with `variance_of_start`. `freedom` is the error corrected for small groups,
    with its degrees of freedom; `mean_return` is that of the rows, where they were read.
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
    normalized_at: npt.NDArray[np.bool_] | None = None
    heaviest: Floats | None = None
    from_model: bool = False
    mean_return: float | None = None
    influence: Callable[[], Floats] | None = None
    warnings: tuple[Warning, ...] = ()

    @property
    def nodes(self) -> Nodes | None:
        return None if self.by_node is None else self.by_node.made

    @property
    def variance_by_step(self) -> Floats | None:
        """(H+1,) parts of SE²: the start, then every step."""
        steps = None if self.by_node is None else self.by_node.variance_by_step(len(self.ess))
        if steps is None:
            return None
        assert self.variance_of_start is not None
        return np.concatenate([[self.variance_of_start], steps])


def value_alone(per_step: Floats) -> Solution:
    """The value without what it rests on, for those who solve the same log many times."""
    nothing = np.full(len(per_step), np.nan)
    value = float(per_step.sum())
    return Solution(value, None, "not asked for", per_step, nothing, None, float("nan"))


@dataclass(frozen=True, eq=False)
class Replicated:
    """An estimator on m replicates of a log.

    values   (m,) nan where the replicate is refused
    errors   (m,) standard errors, nan where there is none; None if not asked for
    refused  (m,) the code of the refusal, empty where there is none
    """

    values: Floats
    errors: Floats | None
    refused: npt.NDArray[Any]

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


# ---- what several estimators refuse ------------------------------------------------------------


def no_support(t: int) -> SupportError:
    return SupportError(
        "no-overlap",
        f"from step {t} on, no logged episode is possible under the target policy: nothing in "
        "this log says what it would earn there. Restrict the target, shorten the horizon, or "
        "log more",
    )


def overflow() -> SupportError:
    return SupportError(
        "overflow", "ratios of this size exceed what a number can hold; clip them (max_ratio)"
    )


def lacking(kind: str) -> RefusedError:
    return RefusedError(
        "missing-moments",
        f"these moments hold no sums of the kind {kind!r}; make them again for this estimator",
    )


def needs_discrete() -> RefusedError:
    return RefusedError(
        "continuous-actions",
        "a model of every action is needed, and a continuous action is seen once; use mis(), "
        "which needs no model",
    )


def cut_off(count: int) -> RefusedError:
    return RefusedError(
        "truncated",
        f"{count:,} episodes were cut off, and running products need whole ones; "
        "use mis(), or leave the cut ones out: log.drop_truncated()",
    )


# ---- what an estimator is ----------------------------------------------------------------------


class Weights:
    """What estimators of one kind are and do; a class of weights fills in what differs.

    kinds, tables    the package's tables of sums that it is solved on, and those declared outside
    normalizations   what `Recipe.normalize` may be, the first being the usual one
    rewards          what `Recipe.reward` may be
    takes_control    whether a control variate may replace the reward
    uses_ratios      whether rows are weighed with π/μ
    multiplies       whether ratios are multiplied over the episode: every reward must be there
    pools_steps      whether the world is taken to be the same at every step
    whole_episodes   whether cut-off episodes must be left out
    has_operator     whether it is a recursion over a one-step operator (`operators`)
    blocks           of episodes that its sums are split into: an error by the jackknife needs them
    only_jackknife   whether its error is the jackknife's, also with the rows at hand
    solves_replicates   whether the replicates of a log are solved together
    limit_group      whose limits its gates have, where these differ between estimators
    own_traits       what gates may ask beside what follows from the rest; see `Recipe.traits`
    formula          what it computes, with {over} for its divisor, by `Recipe.normalize`
    descriptions     which variant it is, in words, by `Recipe.normalize`
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
    solves_replicates: ClassVar[bool] = True
    limit_group: ClassVar[str] = "states"
    own_traits: ClassVar[frozenset[str]] = frozenset()
    formula: ClassVar[str]
    divisors: ClassVar[dict[str, str]] = {}
    descriptions: ClassVar[dict[str, str]] = {}

    @property
    def pools_steps(self) -> bool:
        return False

    def limits(self, recipe: Recipe) -> str:
        return self.limit_group

    def description(self, recipe: Recipe) -> str:
        return self.descriptions[recipe.normalize]

    def may_exceed_rewards(self, recipe: Recipe) -> bool:
        """Whether its value may lie outside of what the logged rewards allow by its nature: weights
        that nothing normalises, so that their sum is random."""
        return len(self.normalizations) > 1 and recipe.normalize == "none"

    def operators(self, recipe: Recipe, sums: Moments) -> Any:
        """Where it `has_operator`: that of the value, that of its error, and how rewards enter the
        error (`solution.Operators`)."""
        raise NotImplementedError

    def solve(self, recipe: Recipe, sums: Moments, *, errors: bool = True) -> Solution:
        """The solution on its sums; without `errors` the value is enough."""
        raise NotImplementedError

    def solve_replicates(self, recipe: Recipe, sums: Moments, *, errors: bool) -> Replicated:
        """The same on sums that hold replicates, where it `solves_replicates`."""
        raise NotImplementedError

    def solve_rows(
        self, recipe: Recipe, log: EpisodeLog, target: Policy, *, errors: bool = True
    ) -> Solution | None:
        """The same straight from the rows of a log in memory, where that is faster; else None."""
        return None

    def gradient(self, recipe: Recipe, sums: Moments) -> Gradient:
        """n ∂v/∂(sum), which a second scan gathers into influence values."""
        raise NotImplementedError

    def with_error(
        self, recipe: Recipe, solution: Solution, sums: Moments, rows: LogAndTarget | None
    ) -> Solution:
        """The solution with an error that its sums alone do not hold, from the `rows` or, without
        them, from sums by blocks."""
        return solution

    def error_by_blocks(self, recipe: Recipe) -> bool:
        """Whether its error without the rows at hand is the jackknife's."""
        return self.blocks > 1


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

    @cached_property
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
            "within states": self.normalize == "state",
            "fitted control": self.fitted,
            "fitted in sample": self.fitted and control is not None and control.blocks == 1,
        }
        return weights.own_traits | {name for name, true in holds.items() if true}

    @property
    def limits(self) -> str:
        """Whose limits its gates have, where these differ between estimators."""
        return self.weights.limits(self)

    @property
    def may_exceed_rewards(self) -> bool:
        """Whether its value may lie outside of what the logged rewards allow by its nature."""
        return self.control is None and self.weights.may_exceed_rewards(self)

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
