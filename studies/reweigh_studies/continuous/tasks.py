"""Tasks with continuous states, as small simulators: control, a linear system, medicine, a queue, a
recommender. A policy is a function of what is observed; the true value is a long simulation.

The four control tasks have the equations of the textbooks (Sutton and Barto), with noise of their
own; the others are made up. Every behavior takes every action with a probability of at least 5 %.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

import reweigh as rw

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Rng = np.random.Generator
Scores = Callable[[Floats], Floats]  # (n, A) of what is observed
TRUTH_EPISODES, TRUTH_PARTS, TRUTH_SEED = 40_000, 10, 20_261
LEAST = 0.05


@dataclass(frozen=True)
class Task:
    """A task: `start(n, rng)` and `step(state, action, rng)`, which gives the next state, the
    reward and where the episode has ended; what is seen is `observe(state)`."""

    name: str
    kind: str
    horizon: int
    actions: int
    start: Callable[[int, Rng], Floats]
    step: Callable[[Floats, Ints, Rng], tuple[Floats, Floats, npt.NDArray[np.bool_]]]
    target: Scores
    behavior: Scores
    observe: Callable[[Floats], Floats] = lambda state: state
    discount: float = 1.0

    @property
    def group(self) -> str:
        return self.kind

    @property
    def base(self) -> None:
        """It needs no package."""
        return None

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "horizon": self.horizon, "actions": self.actions}

    def probabilities(self, observed: Floats, *, target: bool) -> Floats:
        """(n, A): a softmax of the scores; of the behavior mixed with LEAST of every action."""
        scores = self.target(observed) if target else self.behavior(observed)
        shares: Floats = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        return shares if target else (1 - LEAST * self.actions) * shares + LEAST

    def simulate(self, n: int, rng: Rng, *, target: bool) -> dict[str, npt.NDArray[Any]]:
        """(n, H) arrays of n episodes by the behavior, or by the target."""
        state = self.start(n, rng)
        k, H = self.observe(state).shape[1], self.horizon
        x, a = np.zeros((n, H, k)), np.zeros((n, H), np.int64)
        r, mu = np.zeros((n, H)), np.ones((n, H))
        lengths, alive = np.full(n, H), np.arange(n)
        for t in range(H):
            seen = self.observe(state)
            shares = self.probabilities(seen, target=target)
            draw = rng.random((len(alive), 1))
            chosen = np.minimum((np.cumsum(shares, axis=1) < draw).sum(axis=1), self.actions - 1)
            x[alive, t], a[alive, t] = seen, chosen
            mu[alive, t] = shares[np.arange(len(alive)), chosen]
            state, reward, over = self.step(state, chosen, rng)
            r[alive, t] = reward
            lengths[alive[over]] = t + 1
            state, alive = state[~over], alive[~over]
            if not len(alive):
                break
        return {"features": x, "actions": a, "rewards": r, "behavior_prob": mu, "lengths": lengths}

    def log(self, n: int, rng: Rng) -> tuple[rw.EpisodeLog, rw.FunctionPolicy]:
        """A log of n episodes, and the target."""
        found = self.simulate(n, rng, target=False)
        log = rw.log_from_arrays(
            None,
            found["actions"],
            found["rewards"],
            found["behavior_prob"],
            features=found["features"],
            lengths=found["lengths"],
            discount=self.discount,
        )
        return log, self.policy()

    def policy(self) -> rw.FunctionPolicy:
        def chosen(x: Floats, action: Ints, step: Ints) -> Floats:
            shares = self.probabilities(x, target=True)
            return np.asarray(shares[np.arange(len(x)), action.astype(np.int64)], np.float64)

        return rw.FunctionPolicy(chosen, f"{self.name} target")

    def truth(self) -> tuple[float, float]:
        """The target's value and its Monte-Carlo error."""
        return _truth(self.name)

    def simulated_truth(self) -> tuple[float, float]:
        rng, returns = np.random.default_rng(TRUTH_SEED), []
        for _ in range(TRUTH_PARTS):
            found = self.simulate(TRUTH_EPISODES // TRUTH_PARTS, rng, target=True)
            returns.append(found["rewards"] @ self.discount ** np.arange(self.horizon))
        every = np.concatenate(returns)
        return float(every.mean()), float(every.std() / np.sqrt(len(every)))


@cache
def _truth(name: str) -> tuple[float, float]:
    return TASKS[name].simulated_truth()


def _pair(score: Floats) -> Floats:
    """(n, 2) for two actions, the second one preferred by `score`."""
    return np.stack([np.zeros(len(score)), score], axis=1)


# ---- control -----------------------------------------------------------------------------------


def _cartpole(state: Floats, action: Ints, rng: Rng) -> Any:
    x, v, angle, turn = state.T
    force = np.where(action == 1, 10.0, -10.0)
    cos, sin = np.cos(angle), np.sin(angle)
    push = (force + 0.05 * turn**2 * sin) / 1.1
    bend = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    after = np.stack([x + 0.02 * v, v + 0.02 * (push - 0.05 * bend * cos / 1.1),
                      angle + 0.02 * turn, turn + 0.02 * bend], axis=1)  # fmt: skip
    after += rng.normal(scale=[0, 0.02, 0, 0.02], size=after.shape)
    return after, np.ones(len(x)), (np.abs(after[:, 0]) > 2.4) | (np.abs(after[:, 2]) > 0.2095)


def _mountain(state: Floats, action: Ints, rng: Rng) -> Any:
    x, v = state.T
    v = np.clip(v + 0.001 * (action - 1.0) - 0.0025 * np.cos(3 * x), -0.07, 0.07)
    v = v + rng.normal(scale=0.001, size=len(v))
    after = np.stack([np.clip(x + v, -1.2, 0.6), np.where((x + v) < -1.2, 0.0, v)], axis=1)
    return after, np.full(len(x), -1.0), after[:, 0] >= 0.5


def _pendulum(state: Floats, action: Ints, rng: Rng) -> Any:
    angle, turn = state.T
    push = 2.0 * (action - 1.0)
    wrapped = (angle + np.pi) % (2 * np.pi) - np.pi
    reward = -(wrapped**2 + 0.1 * turn**2 + 0.001 * push**2)
    turn = np.clip(turn + 0.05 * (15 * np.sin(angle) + 3 * push), -8, 8)
    turn = turn + rng.normal(scale=0.1, size=len(turn))
    return np.stack([angle + 0.05 * turn, turn], axis=1), reward, np.zeros(len(turn), bool)


def _acrobot(state: Floats, action: Ints, rng: Rng) -> Any:
    for _ in range(4):  # Euler steps of 0.05
        a, b, da, db = state.T
        d1 = 2.25 + np.cos(b) + 1.25
        d2 = 1.25 + 0.5 * np.cos(b)
        p2 = 4.9 * np.cos(a + b - np.pi / 2)
        p1 = -0.5 * db**2 * np.sin(b) - db * da * np.sin(b) + 14.7 * np.cos(a - np.pi / 2) + p2
        ddb = (action - 1.0 + d2 / d1 * p1 - 0.5 * da**2 * np.sin(b) - p2) / (1.25 - d2**2 / d1)
        dda = -(d2 * ddb + p1) / d1
        state = state + 0.05 * np.stack([da, db, dda, ddb], axis=1)
        state[:, 2:] = np.clip(state[:, 2:], [-12.57, -28.27], [12.57, 28.27])
    state = state + rng.normal(scale=[0, 0, 0.05, 0.05], size=state.shape)
    over = -np.cos(state[:, 0]) - np.cos(state[:, 0] + state[:, 1]) > 1.0
    return state, np.full(len(state), -1.0), over


def _see_acrobot(s: Floats) -> Floats:
    return np.stack([np.cos(s[:, 0]), np.sin(s[:, 0]), np.cos(s[:, 1]), np.sin(s[:, 1]),
                     s[:, 2], s[:, 3]], axis=1)  # fmt: skip


def _see_pendulum(s: Floats) -> Floats:
    return np.stack([np.cos(s[:, 0]), np.sin(s[:, 0]), s[:, 1]], axis=1)


def _three(score: Floats, sharp: float) -> Floats:
    """(n, 3) for left, nothing, right by a signed score."""
    return np.stack([-sharp * score, np.zeros(len(score)), sharp * score], axis=1)


# ---- a linear system, medicine, a queue, a recommender -----------------------------------------


def _linear(state: Floats, action: Ints, rng: Rng) -> Any:
    push = (action - 2) / 2.0
    x, v = state.T
    after = np.stack([0.95 * x + 0.2 * v, 0.9 * v + 0.4 * push], axis=1)
    after += rng.normal(scale=0.1, size=after.shape)
    return after, -(x**2 + 0.1 * v**2 + 0.1 * push**2), np.zeros(len(x), bool)


def _epidemic(state: Floats, action: Ints, rng: Rng) -> Any:
    sick, immune = state.T
    spread = np.where(action == 1, 0.18, 0.45)
    new = spread * sick * (1 - sick - immune) * rng.lognormal(0, 0.2, len(sick))
    well = 0.15 * sick
    after = np.stack([np.clip(sick + new - well, 1e-4, 1), np.clip(immune + well - 0.01 * immune,
                                                                  0, 0.99)], axis=1)  # fmt: skip
    return after, -(10 * sick + 0.35 * action), np.zeros(len(sick), bool)


def _sepsis(state: Floats, action: Ints, rng: Rng) -> Any:
    pressure, lactate, heart = state.T
    drug, fluid = action % 2, action // 2
    sicker = 0.3 * np.maximum(lactate - 2, 0)
    after = np.stack([
        pressure + 0.15 * (72 - pressure) + 6 * drug + 2.5 * fluid - 2.2 * sicker,
        lactate + 0.1 * (2.2 - lactate) + 0.03 * np.maximum(65 - pressure, 0) - 0.1 * fluid,
        heart + 0.2 * (85 - heart) + 0.6 * np.maximum(65 - pressure, 0) + 3 * drug,
    ], axis=1) + rng.normal(scale=[4, 0.35, 5], size=state.shape)  # fmt: skip
    after[:, 1] = np.maximum(after[:, 1], 0.3)
    dies = rng.random(len(pressure)) < 0.15 / (1 + np.exp(-(lactate - 6 + (60 - pressure) / 8)))
    fine = (pressure > 65) & (lactate < 4)
    return after, fine - 0.1 * drug - 0.05 * fluid - 10.0 * dies, dies


def _glucose(state: Floats, action: Ints, rng: Rng) -> Any:
    sugar, insulin, meal = state.T
    given = np.array([0.0, 1.0, 2.5])[action]
    insulin_after = 0.7 * insulin + given
    eats = (rng.random(len(sugar)) < 0.25) * rng.gamma(4, 12, len(sugar))
    sugar_after = sugar + 0.08 * (130 - sugar) + 0.5 * meal - 9 * insulin
    sugar_after = np.maximum(sugar_after + rng.normal(scale=6, size=len(sugar)), 30)
    reward = 1.0 * ((sugar > 70) & (sugar < 180)) - 2.0 * (sugar < 54)
    after = np.stack([sugar_after, insulin_after, 0.5 * meal + eats], axis=1)
    return after, reward, np.zeros(len(sugar), bool)


def _queue(state: Floats, action: Ints, rng: Rng) -> Any:
    waiting, load = state.T
    arrive = rng.poisson(3 + 1.5 * np.sin(load))
    serve = rng.poisson(np.array([2.0, 3.5, 5.0])[action])
    left = np.clip(waiting + arrive - serve, 0, 60)
    after = np.stack([left, load + 0.3 + 0.05 * rng.normal(size=len(load))], axis=1)
    return after, -(0.2 * waiting + np.array([0.0, 0.6, 1.6])[action]), np.zeros(len(load), bool)


def _taste(state: Floats, action: Ints, rng: Rng) -> Any:
    angle = 2 * np.pi * action / 4
    item = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    liked = 1 / (1 + np.exp(-2 * (state[:, :2] * item).sum(axis=1)))
    clicks = (rng.random(len(liked)) < liked) * 1.0
    taste = state[:, :2] + 0.15 * (clicks[:, None] - 0.6) * item
    bored = 0.6 * state[:, 2] + 0.4 * (1 - clicks)
    after = np.column_stack([taste + rng.normal(scale=0.1, size=taste.shape), bored])
    return after, clicks, rng.random(len(liked)) < 0.02 + 0.1 * bored**2


def _items(sharp: float) -> Scores:
    angle = 2 * np.pi * np.arange(4) / 4
    return lambda x: sharp * (x[:, :2] @ np.stack([np.cos(angle), np.sin(angle)]))


def _by_sugar(x: Floats, high: float, slope: float) -> Floats:
    over = (x[:, 0] - high) / slope - 1.5 * x[:, 1]
    return np.stack([np.zeros(len(x)), over, 1.5 * over - 1], axis=1)


def _by_vitals(x: Floats, at: float, drug: float) -> Floats:
    low, sick = (at - x[:, 0]) / 5, x[:, 1] - 3
    return np.stack([0 * low, drug * low, 0.5 * sick, drug * low + 0.5 * sick], axis=1)


def _by_line(x: Floats, gain: float) -> Floats:
    wish = np.clip(-gain * (x[:, 0] + x[:, 1]), -1, 1)
    return -4 * (wish[:, None] - (np.arange(5) - 2) / 2) ** 2


def _by_length(x: Floats, slope: float) -> Floats:
    busy = x[:, 0] / 4 - 1.5
    return np.stack([0 * busy, slope * busy, 1.6 * slope * busy - 1], axis=1)


def _normal(center: Any, scale: Any) -> Callable[[int, Rng], Floats]:
    return lambda n, rng: rng.normal(center, scale, (n, len(center)))


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("cartpole", "control", 200, 2, _normal([0, 0, 0, 0], [0.05] * 4), _cartpole,
             lambda x: _pair(12 * x[:, 2] + 2 * x[:, 3]),
             lambda x: _pair(6 * x[:, 2] + 1.0 * x[:, 3])),
        Task("mountain-car", "control", 120, 3, _normal([-0.5, 0], [0.06, 0.005]), _mountain,
             lambda x: _three(x[:, 1] / 0.01, 1.0), lambda x: _three(x[:, 1] / 0.02, 1.0)),
        Task("pendulum", "control", 60, 3, _normal([0, 0], [0.4, 0.5]), _pendulum,
             lambda x: _three(-(3 * x[:, 1] + 0.6 * x[:, 2]), 1.5),
             lambda x: _three(-(2 * x[:, 1] + 0.4 * x[:, 2]), 0.8), _see_pendulum),
        Task("acrobot", "control", 100, 3, _normal([0, 0, 0, 0], [0.1] * 4), _acrobot,
             lambda x: _three(x[:, 5], 1.0), lambda x: _three(x[:, 5], 0.4), _see_acrobot),
        Task("linear", "system", 40, 5, _normal([1, 0], [0.5, 0.3]), _linear,
             lambda x: _by_line(x, 1.2), lambda x: _by_line(x, 0.4)),
        Task("epidemic", "system", 30, 2, lambda n, rng: np.stack(
                [rng.uniform(0.01, 0.1, n), np.zeros(n)], axis=1), _epidemic,
             lambda x: _pair(40 * (x[:, 0] - 0.1)), lambda x: _pair(20 * (x[:, 0] - 0.2))),
        Task("sepsis", "medicine", 24, 4, _normal([62, 4, 100], [7, 1.2, 12]), _sepsis,
             lambda x: _by_vitals(x, 66, 1.2), lambda x: _by_vitals(x, 60, 0.7)),
        Task("glucose", "medicine", 48, 3, lambda n, rng: np.stack(
                [rng.normal(160, 40, n), np.zeros(n), rng.gamma(1, 10, n)], axis=1), _glucose,
             lambda x: _by_sugar(x, 150, 40), lambda x: _by_sugar(x, 190, 60)),
        Task("queue", "operations", 50, 3, lambda n, rng: np.stack(
                [rng.poisson(6, n) * 1.0, rng.uniform(0, 6.28, n)], axis=1), _queue,
             lambda x: _by_length(x, 1.4), lambda x: _by_length(x, 0.6),
             lambda s: np.stack([s[:, 0], np.sin(s[:, 1]), np.cos(s[:, 1])], axis=1)),
        Task("taste", "operations", 40, 4, _normal([0.3, 0, 0], [0.8, 0.8, 0.05]), _taste,
             _items(1.8), _items(0.6)),
    )
}  # fmt: skip
