"""The interface of all worlds: true values, and simulated episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from reweigh.errors import check_whole
from reweigh.log.arrays import log_from_arrays
from reweigh.log.log import EpisodeLog
from reweigh.policy import FunctionPolicy
from reweigh.policy.table import TablePolicy

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class TrueValue(float):
    """A policy's true value: a float with its standard error.

    `standard_error` is 0 where the value is exact, and the Monte-Carlo error where it is not.
    """

    standard_error: float

    def __new__(cls, value: float, standard_error: float = 0.0) -> TrueValue:
        self = super().__new__(cls, value)
        self.standard_error = float(standard_error)
        return self

    def __getnewargs__(self) -> tuple[float, float]:  # type: ignore[override]
        return float(self), self.standard_error

    def __str__(self) -> str:
        exact = float.__repr__(self)
        return exact if self.standard_error == 0 else f"{exact} ± {self.standard_error:.2g}"

    def __repr__(self) -> str:
        return f"TrueValue({float.__repr__(self)}, standard_error={self.standard_error!r})"


@runtime_checkable
class World(Protocol):
    """A decision process with known true values, a target and a behavior policy."""

    @property
    def horizon(self) -> int:
        """The number of steps H; steps are 0..H-1."""

    @property
    def discount(self) -> float:
        """γ: the value is E[Σ_t γ^t r_t]."""

    @property
    def target(self) -> TablePolicy | FunctionPolicy:
        """π, the policy to evaluate."""

    @property
    def behavior(self) -> TablePolicy | FunctionPolicy:
        """μ, the policy that makes the episodes of `simulate`."""

    def value(self) -> TrueValue:
        """v^π."""

    def behavior_value(self) -> TrueValue:
        """v^μ."""

    def simulate(self, n: int, rng: np.random.Generator | int) -> EpisodeLog:
        """n episodes of the behavior policy, with both policies' probabilities logged."""


@dataclass(frozen=True, eq=False)
class Rollout:
    """n episodes of H steps as plain arrays, with the true states.

    states (n, H+1) or (n, H+1, k); actions, rewards, behavior_prob, target_prob (n, H);
    lengths (n,): steps before END, or None where no episode ends early. Rewards past END are 0.
    """

    states: Ints
    actions: NDArray[Any]
    rewards: Floats
    behavior_prob: Floats
    target_prob: Floats
    lengths: Ints | None = None

    def returns(self, discount: float = 1.0) -> Floats:
        """Σ_t γ^t r_t of every episode, (n,)."""
        returns: Floats = self.rewards @ float(discount) ** np.arange(self.rewards.shape[1])
        return returns

    def log(
        self,
        *,
        discount: float,
        observed: NDArray[Any] | None = None,
        continuous_actions: bool = False,
    ) -> EpisodeLog:
        """The episodes as a log; `observed` replaces the states, masked where they are hidden."""
        states = self.states if observed is None else observed
        if self.lengths is not None:
            # A log cannot show that an episode of H steps arrived at END, and a terminal state at H
            # would look like one to go on from: the state after the last step is left out.
            states = states[:, : self.rewards.shape[1]]
        return log_from_arrays(
            states,
            self.actions,
            self.rewards,
            self.behavior_prob,
            self.target_prob,
            hidden="allow" if np.ma.isMaskedArray(states) else "error",
            continuous_actions=continuous_actions,
            lengths=self.lengths,
            discount=discount,
        )


def as_generator(rng: np.random.Generator | int) -> np.random.Generator:
    """A generator as it is, a seed as a new generator."""
    if isinstance(rng, np.random.Generator):
        return rng
    return np.random.default_rng(check_whole("rng", rng, 0))
