"""Logs for the gate of the history: worlds in which the state forgets what matters, and worlds in
all of which it gives. Any other gate is computed beside it, so that the share of green logs can be
estimated.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import reweigh as rw
from reweigh.policy import Policy
from reweigh.worlds import ModelWin, TimeVarying, random_mdp

Rng = np.random.Generator
ESTIMATORS = ("mis", "mis-hajek", "mis-state", "dm", "mdr", "mis-memory-auto")
COIN = rw.TablePolicy([[0.3, 0.7]] * 2)


def pays_later(
    n: int, rng: Rng, *, horizon: int, later: int
) -> tuple[rw.EpisodeLog, Policy, float]:
    """An action pays `later` steps later, and the state is noise."""
    action = rng.integers(0, 2, (n, horizon))
    paid = np.hstack([np.zeros((n, later)), action[:, :-later]])
    reward = paid + 0.1 * rng.normal(size=(n, horizon))
    state = rng.integers(0, 2, (n, horizon + 1))
    log = rw.log_from_arrays(state, action, reward, np.full((n, horizon), 0.5))
    return log, COIN, 0.7 * (horizon - later)


def twice_in_a_row(n: int, rng: Rng, *, horizon: int = 8) -> tuple[rw.EpisodeLog, Policy, float]:
    """docs/howto/not-markov.md: a treatment helps only if the one before was given too."""
    treat = rng.integers(0, 2, (n, horizon))
    before = np.hstack([np.zeros((n, 1), int), treat[:, :-1]])
    reward = treat * before + 0.1 * rng.normal(size=(n, horizon))
    state = np.zeros((n, horizon + 1), int)
    log = rw.log_from_arrays(state, treat, reward, np.full((n, horizon), 0.5))
    return log, rw.TablePolicy([[0.1, 0.9]]), 0.81 * (horizon - 1)


def of_world(n: int, rng: Rng, *, world: Any) -> tuple[rw.EpisodeLog, Policy, float]:
    return world.simulate(n, rng), world.target, float(world.value())


World = Callable[[int, Rng], tuple[rw.EpisodeLog, Policy, float]]
FORGETS: dict[str, tuple[World, int]] = {
    "pays two steps later, H = 8": (partial(pays_later, horizon=8, later=2), 1000),
    "pays two steps later, H = 20": (partial(pays_later, horizon=20, later=2), 1000),
    "pays four steps later, H = 20": (partial(pays_later, horizon=20, later=4), 1000),
    "twice in a row, H = 8": (twice_in_a_row, 4000),
}
TELLS: dict[str, tuple[World, int]] = {
    "ModelWin, H = 10": (partial(of_world, world=ModelWin(10)), 1000),
    "ModelWin, H = 30": (partial(of_world, world=ModelWin(30)), 1000),
    "time-varying, H = 20": (partial(of_world, world=TimeVarying(20, 0)), 1000),
    "random MDP, 4 states, H = 5": (partial(of_world, world=random_mdp(1, 4, 3, 5)), 1000),
    "random MDP, 20 states, H = 10": (partial(of_world, world=random_mdp(3, 20, 3, 10)), 1000),
    "random MDP that ends, H = 10": (
        partial(of_world, world=random_mdp(2, 4, 3, 10, terminal=1)),
        1000,
    ),
    "random MDP, n = 300": (partial(of_world, world=random_mdp(5, 4, 2, 10, reward_sd=0.3)), 300),
}


def of_log(name: str, replicate: int, seed: int) -> dict[str, dict[str, Any]]:
    """By estimator: the level of the gate and of the verdict, and whether the interval covers."""
    world, n = (FORGETS | TELLS)[name]
    rng = np.random.default_rng([seed, replicate, *name.encode()])
    log, target, truth = world(n, rng)
    found = {}
    for recipe_name, result in zip(
        ESTIMATORS, rw.evaluate_all(log, target, list(ESTIMATORS)), strict=True
    ):
        if isinstance(result, rw.Refusal):
            continue
        levels = {gate.name: gate.level for gate in result.verdict.gates}
        interval = result.interval()
        found[recipe_name] = {
            "estimator": result.estimator,
            "history": levels.get("history", "none"),
            "verdict": result.verdict.level,
            "others": max(
                (level for gate, level in levels.items() if gate not in ("history",)),
                key=["unknown", "green", "amber", "red"].index,
            ),
            "covers": interval is not None and interval.low <= truth <= interval.high,
        }
    return found
