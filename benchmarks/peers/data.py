"""The logs on which all sides run: large ones for the clock, and worlds whose truth is known."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import reweigh as rw
from peers.environment import BUILD

STATES, ACTIONS, HORIZON = 100, 10, 100
MODEL_UP_TO = 1_000_000  # rows: the peers' arrays of Q are larger than the log

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Case:
    """A log with the target's exact value."""

    title: str
    text: str
    truth: float
    arrays: Arrays


def to_time(rows: int, horizon: int) -> Arrays:
    """`rows` rows of episodes of this length; at one step `q` is the log's own model."""
    rng = np.random.default_rng(0)
    n = rows // horizon
    table = rng.dirichlet(np.full(ACTIONS, 20.0), STATES)
    states = rng.integers(0, STATES, (n, horizon + 1))
    actions = rng.integers(0, ACTIONS, (n, horizon))
    arrays = {
        "states": states,
        "actions": actions,
        "rewards": rng.random((n, horizon)),
        "mu": np.full((n, horizon), 1 / ACTIONS),
        "pi": table[states[:, :horizon], actions],
        "table": table,
        "lengths": np.full(n, horizon),
    }
    if horizon == 1:
        # r̂(s,a), the mean reward of the rows of (s,a)
        cells = STATES * ACTIONS
        cell = states[:, 0] * ACTIONS + actions[:, 0]
        sums = np.bincount(cell, arrays["rewards"][:, 0], cells)
        arrays["q"] = (sums / np.bincount(cell, minlength=cells)).reshape(STATES, ACTIONS)
    elif rows <= MODEL_UP_TO:
        arrays["q"] = rng.random((STATES, ACTIONS))
    return arrays


def rolled_out(world: rw.worlds.TabularMDP, n: int, seed: int) -> Arrays:
    """Episodes of a world; past an end both policies are uniform and the rewards are 0."""
    made = world._rollout(n, seed)
    full = np.full(n, world.horizon)
    arrays = {
        "states": made.states,
        "actions": made.actions,
        "rewards": made.rewards,
        "mu": made.behavior_prob,
        "pi": made.target_prob,
        "table": world.target_array[0],
        "lengths": full if made.lengths is None else made.lengths,
    }
    return {name: np.ascontiguousarray(values) for name, values in arrays.items()}


def early_end(n: int = 5_000) -> Case:
    """Action 0 mostly ends the episode, and the target avoids it."""
    S, H = 5, 10
    rng = np.random.default_rng(1)
    ends = np.array([[0.3, 0.05]] * S)
    P = np.zeros((S, 2, S))
    P[:, :, :-1] = (1 - ends)[:, :, None] * rng.dirichlet(np.ones(S - 1), (S, 2))
    P[:, :, -1] = ends
    world = rw.worlds.TabularMDP(
        initial=[0.25, 0.25, 0.25, 0.25, 0.0],
        transition=P,
        reward=np.broadcast_to(rng.uniform(0.5, 1.5, (S, 2, 1)), (S, 2, S)),
        target=np.tile([0.25, 0.75], (S, 1)),
        behavior=np.tile([0.5, 0.5], (S, 1)),
        horizon=H,
        terminal=[S - 1],
    )
    arrays = rolled_out(world, n, 2)
    mean = float(arrays["lengths"].mean())
    text = f"{n:,} episodes of at most {H} steps, {mean:.1f} on average, which the target prolongs."
    return Case("Early termination", text, float(world.value()), arrays)


def long_run(shift: float, title: str, text: str, n: int = 500) -> Case:
    """H = 1000, ten actions, logged at random: a target that leaves μ by `shift`."""
    S, A, H = 5, 10, 1000
    rng = np.random.default_rng(3)
    lean = rng.dirichlet(np.full(A, 0.2), S)
    world = rw.worlds.TabularMDP(
        initial=np.full(S, 1 / S),
        transition=rng.dirichlet(np.ones(S), (S, A)),
        reward=np.broadcast_to(rng.random((S, A, 1)), (S, A, S)),
        target=(1 - shift) / A + shift * lean,
        behavior=np.full((S, A), 1 / A),
        horizon=H,
    )
    arrays = rolled_out(world, n, 4)
    return Case(title, f"{n:,} episodes of {H:,} steps. {text}", float(world.value()), arrays)


def cases() -> dict[str, Case]:
    return {
        "early": early_end(),
        "near": long_run(
            0.01,
            "H = 1000, a target near the logging policy",
            "The running products of the ratios are moderate; those of the probabilities, 10^-1000 "
            "at the end, are not numbers that 64 bits can hold.",
        ),
        "far": long_run(
            0.95,
            "H = 1000, a target far from the logging policy",
            "The products of the ratios underflow too. No estimator that multiplies them knows "
            "the value any more; the question is whether it says so.",
        ),
    }


def saved(arrays: Arrays, name: str) -> Path:
    """The arrays as files of a folder of their own."""
    folder = BUILD / "data" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for key, values in arrays.items():
        np.save(folder / f"{key}.npy", values)
    return folder
