"""The worlds of the paper's experiments: ModelWin, ModelFail, time-varying, Mountain Car."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reweigh.errors import check_whole
from reweigh.log.log import EpisodeLog
from reweigh.policy import FunctionPolicy
from reweigh.policy.table import TablePolicy
from reweigh.worlds.tabular import HiddenMDP, TabularMDP
from reweigh.worlds.world import Floats, Ints, Rollout, TrueValue, as_generator

# ModelWin and ModelFail: the probabilities of a1 and a2
TARGET = (0.2, 0.8)
BEHAVIOR = (0.5, 0.5)
P_COURSE = 0.4  # p, the probability that a1 leads to s2 and a2 to s3

LOW_DENSITY, HIGH_DENSITY = 0.1, 1.9  # the time-varying target's, for actions above and up to 0.5

# Mountain Car
HORIZON = 100
X_LEFT, X_GOAL, V_MAX = -1.2, 0.5, 0.07
X_SCALE, V_SCALE = 2**6, 2**8  # states are round(x 2^6), round(v 2^8)
X_CELLS = range(-77, 33)
V_CELLS = range(-18, 19)
N_ACTIONS = 3  # 0 pushes left, 1 does nothing, 2 pushes right
TARGET_TEMPERATURE, BEHAVIOR_TEMPERATURE = 1.0, 1.25
DATA = "mountain_car.npz"


class ModelWin(TabularMDP):
    """ModelWin of Thomas and Brunskill (2016), as in the paper's appendix: a model wins.

    States 0, 1, 2 are s1, s2, s3; actions 0, 1 are a1, a2. From s1, where every episode starts,
    a1 leads to s2 with probability 0.4 and to s3 otherwise, a2 the other way round; s2 and s3 lead
    back to s1. Arriving in s2 pays 1, in s3 -1. At every state the target takes a1 with
    probability 0.2, the behavior with 0.5.
    """

    def __init__(self, horizon: int) -> None:
        H, p = check_whole("horizon", horizon, 1), P_COURSE
        P, r = np.zeros((2, 3, 2, 3))
        P[0, :, 1:] = [[p, 1 - p], [1 - p, p]]
        P[1:, :, 0] = 1
        r[0, :, 1:] = 1, -1
        super().__init__([1, 0, 0], P, r, [TARGET] * 3, [BEHAVIOR] * 3, horizon=H)

    def __repr__(self) -> str:
        return f"ModelWin(horizon={self.horizon})"


class ModelFail(HiddenMDP):
    """ModelFail of Thomas and Brunskill (2016), as in the paper's appendix: two of three states
    look the same, so that a model of the transitions fails.

    States 0, 1, 2 are s1, left, right; actions 0, 1 are a1, a2. From s1, where every episode
    starts, a1 leads left and a2 right; both lead back to s1. Arriving from the left pays 1, from
    the right -1. The log hides left and right: it shows s1 or nothing. Observing either, the
    target takes a1 with probability 0.2, the behavior with 0.5.
    """

    def __init__(self, horizon: int) -> None:
        H = check_whole("horizon", horizon, 1)
        P, r = np.zeros((2, 3, 2, 3))
        P[0, 0, 1] = P[0, 1, 2] = 1
        P[1:, :, 0] = 1
        r[1, :, 0], r[2, :, 0] = 1, -1
        super().__init__([1, 0, 0], P, r, [TARGET] * 3, [BEHAVIOR] * 3, hidden=[1, 2], horizon=H)

    def __repr__(self) -> str:
        return f"ModelFail(horizon={self.horizon})"

    def checkpoints(self) -> TabularMDP:
        """The world as its checkpoints show it: s1 alone, an action being a pair of actions.

        Action 2 a + b is a in s1 and b in the hidden state after it, a step is two steps, and the
        horizon is H/2. MIS on it is MIS on the log of this world. With H odd the last step leaves
        s1 without coming back; it pays nothing and is left out.
        """
        H = check_whole("horizon", self.horizon, 2) // 2
        pays = np.array([1.0, 1.0, -1.0, -1.0]).reshape(1, 4, 1)
        pi, mu = (np.outer(policy, policy).reshape(1, 4) for policy in (TARGET, BEHAVIOR))
        return TabularMDP([1], np.ones((1, 4, 1)), pays, pi, mu, horizon=H)


@dataclass(frozen=True)
class TimeVarying:
    """A world whose exit changes with every step: binary state, continuous action, no mixing.

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
        check_whole("horizon", self.horizon, 2)  # the window must fit into [0, 0.5]
        check_whole("seed", self.seed, 0)

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
        t = np.arange(self.horizon)
        # v = Σ_{t >= H/2} Pr(s_t = 0),  Pr(s_t = 0) = 1 - (1 - density/H)^t
        out = 1 - (1 - density / self.horizon) ** t
        return TrueValue(float(out[2 * t >= self.horizon].sum()))

    def _rollout(self, n: int, rng: np.random.Generator | int) -> Rollout:
        n, rng, H = check_whole("n", n, 1), as_generator(rng), self.horizon
        t = np.arange(H)[:, None]
        a = rng.random((H, n))
        out = np.abs(a - self.p[:, None]) <= 0.5 / H
        s = np.ones((H + 1, n), dtype=np.int64)
        s[1:] -= np.logical_or.accumulate(out, axis=0)  # state 0 once an action has led out
        r = ((s[:-1] == 0) & (2 * t >= H)).astype(float)
        mu, pi = behavior_density(s[:-1], a, t), target_density(s[:-1], a, t)
        return Rollout(s.T, a.T, r.T, mu.T, pi.T)


def behavior_density(state: NDArray[Any], action: NDArray[Any], step: NDArray[Any]) -> Floats:
    """μ(a|s) of the time-varying world, on [0, 1]."""
    return ((action >= 0) & (action <= 1)).astype(float)


def target_density(state: NDArray[Any], action: NDArray[Any], step: NDArray[Any]) -> Floats:
    """π(a|s) of the time-varying world, on [0, 1]."""
    inside = behavior_density(state, action, step)
    return inside * np.where(state == 0, 1.0, np.where(action <= 0.5, HIGH_DENSITY, LOW_DENSITY))


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
        stored, n = _stored(), check_whole("n", n, 1)
        cells, a, lengths = drive_episodes(n, as_generator(rng), stored.behavior)
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


class _Stored(NamedTuple):
    """Both policies of Mountain Car, (cells, actions), and their values."""

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
    return TablePolicy(
        {state: dict(enumerate(row)) for state, row in zip(states, rows.tolist(), strict=True)}
    )
