"""Taxi: 500 states, fetch a passenger and bring them where they want to go."""

from __future__ import annotations

from functools import cache

import numpy as np

from reweigh.errors import must_be
from reweigh.worlds.improvement import best_policy, epsilon_soft
from reweigh.worlds.tabular import TabularMDP
from reweigh.worlds.toytext import toy_text_module, toy_text_tables
from reweigh.worlds.world import Floats, as_count


class Taxi(TabularMDP):
    """Gymnasium's Taxi (Dietterich, 2000), with the tables of its environment.

    States 0..499 are Gymnasium's: the taxi's place, the passenger's and the destination; state
    500 is the end, after the passenger was brought there. Actions 0..5 go south, north, east and
    west, pick up, put down. A step costs 1, picking up or putting down in the wrong place 10, and
    bringing the passenger pays 20. Both policies are the best one, without a horizon, but for a
    share of actions that are drawn evenly: `target_epsilon` and `behavior_epsilon`.
    """

    _target_epsilon: float
    _behavior_epsilon: float

    def __init__(
        self, horizon: int = 30, target_epsilon: float = 0.1, behavior_epsilon: float = 0.3
    ) -> None:
        H = as_count("horizon", horizon, least=1)
        epsilons = {"target_epsilon": target_epsilon, "behavior_epsilon": behavior_epsilon}
        for name, epsilon in epsilons.items():
            if not (isinstance(epsilon, int | float | np.number) and 0 <= epsilon <= 1):
                raise must_be(name, "a number in [0, 1]", epsilon)
            object.__setattr__(self, f"_{name}", float(epsilon))
        initial, P, r = _tables()
        best = _best()
        target, behavior = (epsilon_soft(best, epsilon) for epsilon in epsilons.values())
        super().__init__(initial, P, r, target, behavior, horizon=H, terminal=[len(initial) - 1])

    def __repr__(self) -> str:
        return (
            f"Taxi(horizon={self.horizon}, target_epsilon={self._target_epsilon:g}, "
            f"behavior_epsilon={self._behavior_epsilon:g})"
        )

    def __reduce__(self) -> tuple[type[Taxi], tuple[int, float, float]]:
        return Taxi, (self.horizon, self._target_epsilon, self._behavior_epsilon)


@cache
def _tables() -> tuple[Floats, Floats, Floats]:
    """d_0, P and r, with the state 500 of ended episodes."""
    env = toy_text_module("taxi").TaxiEnv()
    P, r = toy_text_tables(env.P)
    return np.append(env.initial_state_distrib, 0.0), P, r


@cache
def _best() -> Floats:
    """The best policy without a horizon, (S,A)."""
    initial, P, r = _tables()
    even = np.full(P.shape[:2], 1 / P.shape[1])
    return best_policy(TabularMDP(initial, P, r, even, even, horizon=1, terminal=[len(P) - 1]))
