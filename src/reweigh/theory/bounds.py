"""Theorem 4.1 and its corollary as numbers, with the conditions under which they hold."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reweigh.errors import UsageError, must_be
from reweigh.theory.exact import Quantities


@dataclass(frozen=True)
class Condition:
    """One condition of the theorem: `n` must exceed `needed`."""

    name: str
    needed: float
    holds: bool


@dataclass(frozen=True)
class Bound:
    """A bound on the mean squared error of clipped plain MIS, and whether it may be used."""

    value: float
    n: int
    conditions: tuple[Condition, ...]

    @property
    def holds(self) -> bool:
        return all(condition.holds for condition in self.conditions)

    @property
    def failing(self) -> tuple[str, ...]:
        """The conditions that fail; empty where the bound holds."""
        return tuple(condition.name for condition in self.conditions if not condition.holds)


def theorem_bound(q: Quantities, n: int, *, v_max: float | None = None) -> Bound:
    """Theorem 4.1: E[(P v̂ - v)²] ≤ (leading/n) (1 + sqrt(16 log n/(n d_m)))
    + 19 τ_a² τ_s² S H² (σ² + R_max² + V_max²)/n².

    d_m is the smallest d_t^μ(s) where d_t^π(s) > 0, the logarithm is natural, and V_max is the
    largest value unless given. The paper's rewards are not negative (shift the world if not).
    """
    d_m = _check(q, n)
    states = q.d_pi.shape[1]
    v_max = float(q.V.max()) if v_max is None else v_max
    slack = math.sqrt(16 * math.log(n) / (n * d_m)) if n > 1 else math.inf
    rest = 19 * q.tau_a**2 * q.tau_s**2 * states * q.horizon**2
    rest *= q.noise**2 + q.reward_max**2 + v_max**2
    return Bound(q.leading / n * (1 + slack) + rest / n**2, n, _conditions(q, n, d_m))


def corollary_bound(q: Quantities, n: int) -> Bound:
    """Corollary 1, for V_max = H R_max: MSE ≤ (4/n) τ_a τ_s (H σ² + H³ R_max²)."""
    d_m = _check(q, n)
    H = q.horizon
    value = 4 / n * q.tau_a * q.tau_s * (H * q.noise**2 + H**3 * q.reward_max**2)
    return Bound(value, n, _conditions(q, n, d_m))


def clipped(values: npt.ArrayLike, low: float, high: float) -> npt.NDArray[np.float64]:
    """The clipped estimate that the theorem speaks of; of one estimate or of many."""
    if not low < high:
        raise must_be("low, high", "a range with low < high", (low, high))
    return np.clip(np.asarray(values, np.float64), low, high)


def _check(q: Quantities, n: int) -> float:
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
        raise must_be("n", "a whole number of episodes from 1 on", n)
    if q.reward_min < 0:
        raise UsageError(
            "the theorem assumes rewards that are not negative; shift the rewards of the world "
            f"(the smallest is {q.reward_min:g}) and ask again"
        )
    reached = q.d_pi[: q.horizon] > 0
    return float(q.d_mu[: q.horizon][reached].min())


def _conditions(q: Quantities, n: int, d_m: float) -> tuple[Condition, ...]:
    """n > 16 log n/d_m, and n > 4 t τ_a τ_s / min max{d^π, d^μ} for t = 2..H (the paper counts)."""
    reached = q.d_pi[: q.horizon] > 0
    larger = np.maximum(q.d_pi, q.d_mu)[: q.horizon]
    smallest = float(larger[reached].min())
    visits = 16 * math.log(n) / d_m
    spread = 4 * q.horizon * q.tau_a * q.tau_s / smallest if q.horizon >= 2 else 0.0
    return (
        Condition("n > 16 log n / min d^mu", visits, n > visits),
        Condition("n > 4 H tau_a tau_s / min max(d^pi, d^mu)", spread, n > spread),
    )
