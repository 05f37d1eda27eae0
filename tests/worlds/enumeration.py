"""Exact quantities of tiny worlds by walking through every trajectory, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Tables:
    """The raw arguments of a world, all with their time axis."""

    initial: Floats
    transition: Floats
    reward: Floats
    target: Floats
    behavior: Floats
    terminal: Sequence[int] = ()

    def map(self, change: Callable[[Floats], Floats]) -> Tables:
        """All tables with a time axis, changed."""
        return replace(
            self,
            transition=change(self.transition),
            reward=change(self.reward),
            target=change(self.target),
            behavior=change(self.behavior),
        )


def random_tables(seed: int, S: int = 3, A: int = 2, H: int = 3, terminal: int = 0) -> Tables:
    rng = np.random.default_rng(seed)
    initial = np.zeros(S)
    initial[: S - terminal] = rng.dirichlet(np.ones(S - terminal))
    return Tables(
        initial,
        rng.dirichlet(np.ones(S), (H, S, A)),
        rng.normal(size=(H, S, A, S)),
        rng.dirichlet(np.ones(A), (H, S)),
        rng.dirichlet(np.ones(A), (H, S)),
        tuple(range(S - terminal, S)),
    )


def trajectories(
    tables: Tables, policy: Floats, discount: float
) -> Iterator[tuple[float, float, tuple[int, ...]]]:
    """Probability, discounted return and states of every trajectory."""
    H, S, A = policy.shape

    def go_on(
        p: float, ret: float, states: tuple[int, ...]
    ) -> Iterator[tuple[float, float, tuple[int, ...]]]:
        t, s = len(states) - 1, states[-1]
        if t == H or s in tables.terminal:
            yield p, ret, states
            return
        for a in range(A):
            for s2 in range(S):
                step = policy[t, s, a] * tables.transition[t, s, a, s2]
                gain = discount**t * tables.reward[t, s, a, s2]
                yield from go_on(p * step, ret + gain, (*states, s2))

    for s in range(S):
        yield from go_on(float(tables.initial[s]), 0.0, (s,))


def value(tables: Tables, policy: Floats, discount: float = 1.0) -> float:
    return sum(p * ret for p, ret, _ in trajectories(tables, policy, discount))


def marginals(tables: Tables, policy: Floats) -> Floats:
    """Pr(s_t = s), (H+1, S); an episode that has ended stays where it is."""
    H, S, _ = policy.shape
    d = np.zeros((H + 1, S))
    for p, _, states in trajectories(tables, policy, 1.0):
        path = states + (states[-1],) * (H + 1 - len(states))
        d[np.arange(H + 1), path] += p
    return d
