"""Contextual bandits: worlds of one step."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from reweigh.errors import must_be
from reweigh.worlds import checks
from reweigh.worlds.improvement import epsilon_soft, tilted
from reweigh.worlds.tabular import TabularMDP
from reweigh.worlds.world import Floats, as_count, as_generator


class Bandit(TabularMDP):
    """A visitor with a context, one of several offers, and a click or none: H = 1.

    `contexts` (S,) says how often each context comes, `clicks` (S,A) how likely each offer is
    clicked in it; `target` and `behavior` (S,A) choose the offer. A click pays 1, so that the
    value is the rate of clicks, Σ_s d(s) Σ_a π(a|s) clicks(s,a). The log has contexts 0..S-1 as
    states. In the tables states S and S+1 are what follows, no click and a click, which makes
    rewards exactly 0 or 1.
    """

    def __init__(
        self, contexts: ArrayLike, clicks: ArrayLike, target: ArrayLike, behavior: ArrayLike
    ) -> None:
        rate = checks.floats("clicks", clicks)
        if rate.ndim != 2 or rate.size == 0:
            raise must_be("clicks", "a table of shape (S,A), not empty", f"shape {rate.shape}")
        if not ((rate >= 0) & (rate <= 1)).all():
            raise must_be("clicks", "probabilities, in [0, 1]", _first_bad(rate))
        S, A = rate.shape
        d = _rows("contexts", contexts, (S,))
        pi, mu = _rows("target", target, (S, A)), _rows("behavior", behavior, (S, A))
        P, r = np.zeros((2, S + 2, A, S + 2))
        P[:S, :, S], P[:S, :, S + 1] = 1 - rate, rate
        r[:S, :, S + 1] = 1
        outcomes = np.full((2, A), 1 / A)
        super().__init__(
            np.append(d, [0.0, 0.0]),
            P,
            r,
            np.vstack([pi, outcomes]),
            np.vstack([mu, outcomes]),
            horizon=1,
            terminal=(S, S + 1),
        )

    @classmethod
    def random(
        cls,
        rng: np.random.Generator | int,
        n_contexts: int = 20,
        n_actions: int = 5,
        *,
        epsilon: float = 0.3,
        tilt: float = 10.0,
    ) -> Bandit:
        """Click rates from Beta(1, 9), and a target that is better than the behavior.

        The behavior offers what a noisy guess ranks first, but for a share `epsilon` of offers
        drawn evenly; the target is π ∝ μ exp(`tilt` × advantage).
        """
        rng = as_generator(rng)
        S = as_count("n_contexts", n_contexts, least=1)
        A = as_count("n_actions", n_actions, least=1)
        contexts = rng.dirichlet(np.ones(S))
        clicks: Floats = rng.beta(1.0, 9.0, (S, A))
        guess = clicks + 0.1 * rng.standard_normal((S, A))
        behavior = epsilon_soft(np.eye(A)[guess.argmax(axis=1)], epsilon)
        # A(s,a) = clicks(s,a) - Σ_b μ(b|s) clicks(s,b)
        advantage = clicks - (behavior * clicks).sum(axis=1, keepdims=True)
        return cls(contexts, clicks, tilted(behavior, advantage, tilt), behavior)

    def __repr__(self) -> str:
        return f"Bandit(n_contexts={self.n_states - 2}, n_actions={self.n_actions})"


def _rows(name: str, table: ArrayLike, shape: tuple[int, ...]) -> Floats:
    """Rows of probabilities, of the shape that the click rates ask for."""
    rows = checks.floats(name, table)
    if rows.shape != shape:
        raise must_be(name, f"of shape {shape}, as clicks have it", rows.shape)
    checks.check_rows(name, rows)
    return rows


def _first_bad(rate: Floats) -> float:
    return float(rate[~((rate >= 0) & (rate <= 1))][0])
