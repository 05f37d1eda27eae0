"""Gymnasium: record a policy's episodes, evaluate a policy of observations, know the truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.adapters.datasets import Episode, Features, log_of
from reweigh.errors import UsageError, check, check_horizon, check_whole
from reweigh.log.abstractions import AnyAbstraction
from reweigh.log.log import EpisodeLog
from reweigh.policy import FunctionPolicy
from reweigh.system import optional_module
from reweigh.worlds.benchmark_worlds import toy_text_tables
from reweigh.worlds.tabular import TabularMDP

Floats = npt.NDArray[np.float64]
GymPolicy = Callable[[Any], Any]  # an observation → the probability of each action
SUM_TOLERANCE = 1e-6


def record(
    env: Any,
    policy: GymPolicy | npt.ArrayLike,
    n: int,
    *,
    seed: int | None = None,
    horizon: int | None = None,
    discount: float = 1.0,
    features: Features | None = None,
    abstraction: AnyAbstraction | None = None,
) -> EpisodeLog:
    """Play n episodes and log them, with the probability of each action that was taken.

    `env` is an environment or the name of one; its actions must be discrete. `policy` is called
    with an observation and returns the probability of every action; an (S, A) array does for
    discrete observations. `seed` (drawn if None) makes the actions and the first reset; without
    `horizon` the environment's own limit of steps is taken. Continuous observations need an
    `abstraction`, and those of several parts `features` (see `from_minari`).
    """
    n = check_whole("n", n, 1)
    env = _as_environment(env)
    space = env.action_space
    if not hasattr(space, "n") or np.ndim(space.n) > 0:
        raise UsageError(
            f"{_name(env)} has the actions {space}; record needs a discrete action space, "
            "because a policy gives the probability of each action"
        )
    actions, start = int(space.n), int(getattr(space, "start", 0))
    steps = _horizon(env, horizon)
    probabilities = _as_function(policy)
    for_actions, for_env = np.random.SeedSequence(seed).spawn(2)
    rng = np.random.default_rng(for_actions)
    first: int | None = int(for_env.generate_state(1)[0])
    episodes = []
    for k in range(n):
        observation, _ = env.reset(seed=first)
        first = None  # later episodes go on with the environment's own generator
        seen: list[Any] = [observation]
        taken: list[tuple[int, float, float]] = []  # action, reward, probability
        terminated = truncated = False
        while not (terminated or truncated) and len(taken) < steps:
            at = f" in episode {k}, step {len(taken)}"
            pi = _checked(probabilities(observation), actions, observation, at)
            # the action whose part of [0, Σπ) a uniform draw falls into; parts of 0 have no width
            edges = np.cumsum(pi)
            chosen = int(np.searchsorted(edges, rng.random() * edges[-1], side="right"))
            observation, reward, terminated, truncated, _ = env.step(start + chosen)
            seen.append(observation)
            taken.append((start + chosen, float(reward), pi[chosen] / edges[-1]))
        action, earned, chance = (np.array(column) for column in zip(*taken, strict=True))
        ends = bool(terminated), bool(truncated)
        episodes.append(Episode(k, _stacked(seen), action, earned, chance, *ends))
    name = f"episodes of {_name(env)}"
    return log_of(episodes, name, features, abstraction, steps, discount, False)


def gym_policy(policy: GymPolicy, *, start: int = 0, name: str = "") -> FunctionPolicy:
    """A policy of observations as a target: π(a|s) is `policy(observation)[a - start]`.

    It is called once for each different logged state: a number where the state is one column, a
    row where it is several. `start` is the first action of the space, by default 0.
    """
    check(callable(policy), "policy", "callable with an observation", policy)

    def batch(state: Any, action: Any, step: Any) -> Floats:
        states, row = np.unique(state, axis=0, return_inverse=True)
        rows = [np.asarray(policy(s.item() if s.ndim == 0 else s), float) for s in states]
        count = len(rows[0])
        table = np.stack([_checked(pi, count, s) for pi, s in zip(rows, states, strict=True)])
        column = np.asarray(action).astype(np.int64) - start
        if np.any((column < 0) | (column >= count)):
            raise UsageError(
                f"the log contains the action {int(column.max()) + start}, but the policy "
                f"has only {start} to {start + count - 1}"
            )
        return np.asarray(table[row.reshape(-1), column], float)

    return FunctionPolicy(batch, name or f"policy {getattr(policy, '__qualname__', policy)!s}")


def tabular_mdp(
    env: Any,
    target: npt.ArrayLike,
    behavior: npt.ArrayLike,
    *,
    horizon: int | None = None,
    discount: float = 1.0,
) -> TabularMDP:
    """The exact world of a toy-text environment (Frozen Lake, Cliff Walking, Taxi).

    `target` and `behavior` are (S, A) or (H, S, A) arrays over the environment's states. The
    world has one state more, S, in which every episode that ended is; `horizon` is the
    environment's own limit of steps unless given.
    """
    env = _as_environment(env)
    inner = getattr(env, "unwrapped", env)
    table = getattr(inner, "P", None)
    initial = getattr(inner, "initial_state_distrib", None)
    if table is None or initial is None:
        raise UsageError(
            f"{_name(env)} has no transition table (P, initial_state_distrib); only the "
            "toy-text environments have one"
        )
    P, r = toy_text_tables(table)
    S, A = P.shape[0] - 1, P.shape[1]

    def with_end(name: str, given: npt.ArrayLike) -> Floats:
        policy = np.asarray(given, float)
        check(
            policy.ndim in (2, 3) and policy.shape[-2:] == (S, A),
            name,
            f"an array of shape ({S}, {A}) or (H, {S}, {A})",
            policy.shape,
        )
        end = np.full((*policy.shape[:-2], 1, A), 1 / A)
        return np.concatenate([policy, end], axis=-2)

    return TabularMDP(
        np.append(np.asarray(initial, float), 0.0),
        P,
        r,
        with_end("target", target),
        with_end("behavior", behavior),
        horizon=_horizon(env, horizon),
        discount=discount,
        terminal=[S],
    )


def _as_environment(env: Any) -> Any:
    """An environment as it is, the name of one as an environment."""
    if not isinstance(env, str):
        return env
    return optional_module("gymnasium", "worlds", "a Gymnasium environment").make(env)


def _horizon(env: Any, horizon: int | None) -> int:
    if horizon is None:
        horizon = getattr(getattr(env, "spec", None), "max_episode_steps", None)
    if horizon is None:
        raise UsageError(f"{_name(env)} has no step limit: give horizon=…")
    return check_horizon(horizon)


def _as_function(policy: Any) -> GymPolicy:
    if callable(policy):
        return policy  # type: ignore[no-any-return]
    table = np.asarray(policy, float)
    check(table.ndim == 2, "policy", "callable with an observation, or an (S, A) array", policy)
    return lambda observation: table[observation]


def _checked(given: Any, actions: int, observation: Any, at: str = "") -> Floats:
    """π(·|s): one probability for each action."""
    pi = np.asarray(given, float)
    fine = pi.shape == (actions,) and np.all(np.isfinite(pi)) and np.all(pi >= 0)
    if fine and abs(pi.sum() - 1) <= SUM_TOLERANCE:
        return pi
    raise UsageError(
        f"the policy must return {actions} probabilities that sum to 1; for the observation "
        f"{observation}{at} it returned {given}"
    )


def _stacked(seen: list[Any]) -> Any:
    """Observations of an episode as one array, or as a dict of arrays for `features`."""
    if isinstance(seen[0], dict):
        return {name: np.asarray([one[name] for one in seen]) for name in seen[0]}
    return np.asarray(seen)


def _name(env: Any) -> str:
    spec = getattr(env, "spec", None)
    return str(getattr(spec, "id", None) or type(getattr(env, "unwrapped", env)).__name__)
