"""Mountain Car: continuous dynamics, seen through aggregated states, with an absorbing goal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import ClassVar

import numpy as np

from reweigh.log.log import EpisodeLog
from reweigh.policy.table import TablePolicy
from reweigh.worlds.world import Floats, Ints, Rollout, TrueValue, as_count, as_generator

HORIZON = 100
X_LEFT, X_GOAL, V_MAX = -1.2, 0.5, 0.07
X_SCALE, V_SCALE = 2**6, 2**8  # states are round(x 2^6), round(v 2^8)
X_CELLS = range(-77, 33)
V_CELLS = range(-18, 19)
N_ACTIONS = 3  # 0 pushes left, 1 does nothing, 2 pushes right
TARGET_TEMPERATURE, BEHAVIOR_TEMPERATURE = 1.0, 1.25
DATA = "mountain_car.npz"


@dataclass(frozen=True)
class MountainCar:
    """An under-powered car in a valley: get out on the right, paying 1 per step, within 100 steps.

    The car starts at rest at x uniform on [-1.2, 0.5) and follows Sutton and Barto's dynamics.
    The log shows the state (round(x 2^6), round(v 2^8)), two integers; reaching x >= 0.5 ends the
    episode. Target and behavior are softmax policies of one action-value table over these states,
    learned by Q-learning, at temperatures 1 and 1.25.

    The aggregated state is not Markov, so estimators that rely on it keep a bias here that more
    data does not remove. The true values come from simulation and carry its standard error; table
    and values are package data, made by scripts/mountain_car.py.
    """

    horizon: ClassVar[int] = HORIZON
    discount: ClassVar[float] = 1.0

    @cached_property
    def target(self) -> TablePolicy:
        """π, over pairs of integers."""
        return _table_policy(_stored().target)

    @cached_property
    def behavior(self) -> TablePolicy:
        """μ, over pairs of integers."""
        return _table_policy(_stored().behavior)

    def value(self) -> TrueValue:
        """v^π, from simulation, with its standard error."""
        return _stored().target_value

    def behavior_value(self) -> TrueValue:
        """v^μ, from simulation, with its standard error."""
        return _stored().behavior_value

    def simulate(self, n: int, rng: np.random.Generator | int) -> EpisodeLog:
        """n episodes of the behavior policy, with both policies' probabilities logged."""
        return self._rollout(n, rng).log(discount=self.discount)

    def _rollout(self, n: int, rng: np.random.Generator | int) -> Rollout:
        stored = _stored()
        n, rng = as_count("n", n, least=1), as_generator(rng)
        cells, a, lengths = drive_episodes(n, rng, stored.behavior)
        pair = cells[:-1] * N_ACTIONS + a
        mu, pi = stored.behavior.ravel().take(pair), stored.target.ravel().take(pair)
        r = -(np.arange(HORIZON)[:, None] < lengths).astype(float)
        return Rollout(cell_states(cells.T), a.T, r.T, mu.T, pi.T, lengths)


def accelerate(x: Floats, v: Floats, action: Ints) -> tuple[Floats, Floats]:
    """The next position and velocity of cars (Sutton and Barto, Mountain Car)."""
    # v' = v + 0.001 (a - 1) - 0.0025 cos(3x),  x' = x + v';  the wall on the left stops the car
    v = np.clip(v + 0.001 * (action - 1) - 0.0025 * np.cos(3 * x), -V_MAX, V_MAX)
    x = x + v
    return np.maximum(x, X_LEFT), np.where(x <= X_LEFT, 0.0, v)


def cell_of(x: Floats, v: Floats) -> Ints:
    """The number of the aggregated state; positions past the goal count as just before it."""
    column = np.minimum(np.rint(x * X_SCALE), X_CELLS[-1]) - X_CELLS[0]
    row = np.rint(v * V_SCALE) - V_CELLS[0]
    cell: Ints = (column * len(V_CELLS) + row).astype(np.int64)
    return cell


def cell_states(cell: Ints) -> Ints:
    """The aggregated state (round(x 2^6), round(v 2^8)) of a cell's number, on a last axis."""
    column, row = np.divmod(cell, len(V_CELLS))
    return np.stack([column + X_CELLS[0], row + V_CELLS[0]], axis=-1)


def softmax(q: Floats, temperature: float) -> Floats:
    """Rows proportional to exp(q/temperature)."""
    z = np.exp((q - q.max(axis=1, keepdims=True)) / temperature)
    rows: Floats = z / z.sum(axis=1, keepdims=True)
    return rows


def drive_episodes(n: int, rng: np.random.Generator, policy: Floats) -> tuple[Ints, Ints, Ints]:
    """n episodes of a policy (cells, actions): cells (H+1, n), actions (H, n), lengths (n,).

    A car that has reached the goal is not driven any more; its later entries mean nothing.
    """
    cells = np.zeros((HORIZON + 1, n), dtype=np.int64)
    actions = np.zeros((HORIZON, n), dtype=np.int64)
    lengths = np.full(n, HORIZON)
    up_to_left, up_to_none = np.ascontiguousarray(np.cumsum(policy, axis=1)[:, :2].T)
    car = np.arange(n)  # the cars still on the road, with their x, v and cell
    x, v = rng.uniform(X_LEFT, X_GOAL, n), np.zeros(n)
    for t in range(HORIZON):
        cell = cell_of(x, v)
        u = rng.random(len(car))
        a = (u >= up_to_left[cell]).astype(np.int64) + (u >= up_to_none[cell])
        cells[t, car], actions[t, car] = cell, a
        x, v = accelerate(x, v, a)
        home = x >= X_GOAL
        if home.any():
            lengths[car[home]] = t + 1
            cells[t + 1, car[home]] = cell_of(x[home], v[home])
            x, v, car = x[~home], v[~home], car[~home]
    cells[HORIZON, car] = cell_of(x, v)
    return cells, actions, lengths


@dataclass(frozen=True, eq=False)
class _Stored:
    """Both policies, (cells, actions), and their values."""

    target: Floats
    behavior: Floats
    target_value: TrueValue
    behavior_value: TrueValue


@cache
def _stored() -> _Stored:
    source = resources.files("reweigh.worlds").joinpath("data").joinpath(DATA)
    with source.open("rb") as stream, np.load(stream, allow_pickle=False) as data:
        q = data["q"].astype(float)
        return _Stored(
            softmax(q, TARGET_TEMPERATURE),
            softmax(q, BEHAVIOR_TEMPERATURE),
            TrueValue(float(data["target_value"]), float(data["target_error"])),
            TrueValue(float(data["behavior_value"]), float(data["behavior_error"])),
        )


def _table_policy(rows: Floats) -> TablePolicy:
    states = map(tuple, cell_states(np.arange(len(rows))).tolist())
    table: Mapping[tuple[int, int], Mapping[int, float]] = {
        state: dict(enumerate(row)) for state, row in zip(states, rows.tolist(), strict=True)
    }
    return TablePolicy(table)
