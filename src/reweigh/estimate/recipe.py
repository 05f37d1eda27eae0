"""Recipe: weights × normalisation × reward × control. Every estimator is one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from reweigh.errors import must_be
from reweigh.sums.engines.base import Request

Normalize = Literal["none", "simplex", "state", "step"]
Reward = Literal["logged", "averaged", "pooled"]
JACKKNIFE_BLOCKS = 50


@dataclass(frozen=True)
class Stepwise:
    """ρ_{0:t}: the product of the ratios up to the step (per-decision)."""

    kinds = frozenset({"trajectories"})


@dataclass(frozen=True)
class Trajectory:
    """The product of all ratios of the episode, at every step."""

    kinds = frozenset({"trajectories"})


@dataclass(frozen=True)
class Marginal:
    """w_t(s) = d_t^π(s)/d_t^μ(s), estimated step by step (the paper's), or pooled over time."""

    pooled: bool = False
    kinds = frozenset({"transitions"})


@dataclass(frozen=True)
class Model:
    """No weights: d_t^π from the estimated T_t(s'|s,a) and π (the direct method)."""

    unseen: Literal["zero", "renorm"] = "zero"
    kinds = frozenset({"model"})


@dataclass(frozen=True)
class Stationary:
    """d_∞^π(s)/d̄^μ(s), from the eigenvector of the pooled operator (SSD-IS)."""

    use: Literal["ratio", "plugin", "selfnorm"] = "ratio"
    kinds = frozenset({"model"})


Weights = Stepwise | Trajectory | Marginal | Model | Stationary
NORMALIZED: dict[type, tuple[str, ...]] = {
    Stepwise: ("none", "step"),
    Trajectory: ("none", "step"),
    Marginal: ("none", "simplex", "state"),
    Model: ("none",),
    Stationary: ("none",),
}
OwnQ = npt.NDArray[Any] | Callable[..., Any]


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
        kind = type(self.weights)
        if self.normalize not in NORMALIZED[kind]:
            raise must_be(
                "normalize", f"one of {NORMALIZED[kind]} with {kind.__name__}", self.normalize
            )
        if self.reward != "logged" and (kind is not Marginal or self.control is not None):
            raise must_be("reward", '"logged" but for MIS without a control variate', self.reward)
        if self.control is not None and kind not in (Stepwise, Marginal):
            raise must_be("control", f"None with {kind.__name__}", self.control.q)

    @property
    def needs(self) -> Request:
        """The sums that this estimator asks an engine for (on the logged reward)."""
        kinds = set(self.weights.kinds)
        fitted = self.control is not None and not self.control.own
        if self.reward != "logged":
            kinds = {"model"}
        if fitted:
            kinds.add("model")
        blocks = JACKKNIFE_BLOCKS if isinstance(self.weights, Stationary) else 1
        if self.control is not None:
            blocks = self.control.blocks
        policy = fitted or isinstance(self.weights, Model)
        return Request(frozenset(kinds), blocks, self.max_ratio, policy=policy)

    @property
    def uses_trajectories(self) -> bool:
        """Running products: every reward of an episode must be there."""
        return isinstance(self.weights, Stepwise | Trajectory)

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
        model, stationary = isinstance(self.weights, Model), isinstance(self.weights, Stationary)
        fitted = self.control is not None and not self.control.own
        pooled = isinstance(self.weights, Marginal) and self.weights.pooled
        holds = {
            "ratios": not model,
            "products": self.uses_trajectories,
            "states": not self.uses_trajectories,
            "model": model,
            "stationary": stationary,
            "pooled steps": stationary or pooled,
            "within states": self.normalize == "state",
            "fitted control": fitted,
            "fitted in sample": fitted and self.control is not None and self.control.blocks == 1,
        }
        return frozenset(name for name, true in holds.items() if true)

    @property
    def limits(self) -> str:
        """Whose limits its gates have, where these differ between estimators."""
        if isinstance(self.weights, Model):
            return "model"
        if self.uses_trajectories:
            return "products"
        if not isinstance(self.weights, Marginal):
            return "states"
        if self.weights.pooled:
            return "pooled"
        return {"none": "plain", "state": "within states"}.get(self.normalize, "states")

    @property
    def may_exceed_rewards(self) -> bool:
        """Whether its value may lie outside of what the logged rewards allow by its nature: weights
        that nothing normalises, so that their sum is random."""
        weighs = isinstance(self.weights, Stepwise | Trajectory | Marginal)
        return weighs and self.normalize == "none" and self.control is None

    def __repr__(self) -> str:
        return f"Recipe({self.name!r})"
