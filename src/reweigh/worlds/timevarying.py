"""The paper's time-varying world: binary state, continuous action, no mixing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from reweigh.log.log import EpisodeLog
from reweigh.policy.base import FunctionPolicy
from reweigh.worlds.tabular import TabularMDP
from reweigh.worlds.world import Floats, Rollout, TrueValue, as_count, as_generator

LOW_DENSITY, HIGH_DENSITY = 0.1, 1.9  # the target's, for actions above and up to 0.5


@dataclass(frozen=True)
class TimeVarying:
    """A world whose way out changes with every step.

    An episode starts in state 1 and leaves it for good, to state 0, by an action in
    [p_t - 0.5/H, p_t + 0.5/H]. The p_t are uniform on [0.5/H, 0.5 - 0.5/H], drawn once from
    `seed` and shared by all episodes. Being in state 0 at a step t >= H/2 pays 1. In state 1 the
    behavior is uniform on [0, 1], the target has density 1.9 up to 0.5 and 0.1 above; in state 0
    both are uniform. The log holds densities where other logs hold probabilities.
    """

    horizon: int
    seed: int
    discount: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        as_count("horizon", self.horizon, least=2)  # the window must fit into [0, 0.5]
        as_count("seed", self.seed, least=0)

    @cached_property
    def p(self) -> Floats:
        """p_t, the middle of the way out at step t, (H,)."""
        margin = 0.5 / self.horizon
        p = np.random.default_rng(self.seed).uniform(margin, 0.5 - margin, self.horizon)
        p.setflags(write=False)
        return p

    @cached_property
    def target(self) -> FunctionPolicy:
        """π, as a density."""
        return FunctionPolicy(target_density, name="time-varying target")

    @cached_property
    def behavior(self) -> FunctionPolicy:
        """μ, as a density."""
        return FunctionPolicy(behavior_density, name="time-varying behavior")

    def value(self) -> TrueValue:
        """v^π, exactly: the same for all p_t, as each way out lies within [0, 0.5]."""
        return self._value(HIGH_DENSITY)

    def behavior_value(self) -> TrueValue:
        """v^μ, exactly."""
        return self._value(1.0)

    def simulate(self, n: int, rng: np.random.Generator | int) -> EpisodeLog:
        """n episodes of the behavior policy, with both policies' densities logged."""
        return self._rollout(n, rng).log(discount=self.discount, continuous_actions=True)

    def tabular(self) -> TabularMDP:
        """The same world with three actions: 0 the way out, 1 the rest of [0, 0.5], 2 above 0.5.

        Each action gathers densities of one ratio, so ratios, states and rewards have the same
        distribution as here. Every way out is as wide, so the p_t do not matter.
        """
        H = self.horizon
        width = np.array([1 / H, 0.5 - 1 / H, 0.5])
        P = np.zeros((2, 3, 2))
        P[0, :, 0] = P[1, 0, 0] = P[1, 1:, 1] = 1
        r = np.zeros((H, 2, 3, 2))
        r[2 * np.arange(H) >= H, 0] = 1
        leaning = width * [HIGH_DENSITY, HIGH_DENSITY, LOW_DENSITY]
        return TabularMDP([0, 1], P, r, target=[width, leaning], behavior=[width, width])

    def _value(self, density: float) -> TrueValue:
        H = self.horizon
        t = np.arange(H)
        # v = Σ_{t >= H/2} Pr(s_t = 0),  Pr(s_t = 0) = 1 - (1 - density/H)^t
        out = 1 - (1 - density / H) ** t
        return TrueValue(float(out[2 * t >= H].sum()))

    def _rollout(self, n: int, rng: np.random.Generator | int) -> Rollout:
        n, rng = as_count("n", n, least=1), as_generator(rng)
        H = self.horizon
        t = np.arange(H)[:, None]
        a = rng.random((H, n))
        out = np.abs(a - self.p[:, None]) <= 0.5 / H
        s = np.ones((H + 1, n), dtype=np.int64)
        s[1:] -= np.logical_or.accumulate(out, axis=0)  # state 0 once an action has led out
        r = ((s[:-1] == 0) & (2 * t >= H)).astype(float)
        mu, pi = behavior_density(s[:-1], a, t), target_density(s[:-1], a, t)
        return Rollout(s.T, a.T, r.T, mu.T, pi.T)


def behavior_density(state: NDArray[Any], action: NDArray[Any], step: NDArray[Any]) -> Floats:
    """μ(a|s), on [0, 1]."""
    return ((action >= 0) & (action <= 1)).astype(float)


def target_density(state: NDArray[Any], action: NDArray[Any], step: NDArray[Any]) -> Floats:
    """π(a|s), on [0, 1]."""
    inside = behavior_density(state, action, step)
    return inside * np.where(state == 0, 1.0, np.where(action <= 0.5, HIGH_DENSITY, LOW_DENSITY))
