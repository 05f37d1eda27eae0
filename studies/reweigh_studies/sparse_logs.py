"""Clean logs in which most (step, state) have few rows: how often does the test of propensities
call right ones wrong, and does it notice wrong ones?

Every log is made from its own seed, world included, so nothing depends on one draw of tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from reweigh.log.log import EpisodeLog
from reweigh.log.states import HIDDEN
from reweigh.policy import ColumnPolicy, Policy
from reweigh.sums.engines import ArraysEngine, Request
from reweigh.trust.gates import Context, measured
from reweigh.trust.gates.propensities import Propensities
from reweigh.worlds import Taxi
from reweigh_studies.coverage.faults import FAULTS, Grid

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
KINDS = Request(frozenset({"transitions", "model"}), named=False)
WRONG = ("propensities-low", "propensities-noisy", "swapped", "logarithms")
REFUSED = {("certain target, by step", "swapped")}  # propensities of 0: such a log is not read
BRANCHES = 3  # next states of a (state, action)


def epsilon_greedy(best: Ints, n_actions: int, epsilon: float) -> Floats:
    """(…, A) the action `best`, or with probability ε any of them."""
    table = np.full((*best.shape, n_actions), epsilon / n_actions)
    np.put_along_axis(table, best[..., None], 1 - epsilon + epsilon / n_actions, axis=-1)
    return table


def _same_best(rng: np.random.Generator, shape: tuple[int, ...], A: int) -> tuple[Floats, Floats]:
    best = rng.integers(A, size=shape)
    return epsilon_greedy(best, A, 0.3), epsilon_greedy(best, A, 0.1)


def _other_best(rng: np.random.Generator, shape: tuple[int, ...], A: int) -> tuple[Floats, Floats]:
    best = rng.integers(A, size=(2, *shape))
    return epsilon_greedy(best[0], A, 0.3), epsilon_greedy(best[1], A, 0.1)


def _certain(rng: np.random.Generator, shape: tuple[int, ...], A: int) -> tuple[Floats, Floats]:
    best = rng.integers(A, size=(2, *shape))
    return epsilon_greedy(best[0], A, 0.5), epsilon_greedy(best[1], A, 0.0)


def _nearly_certain(
    rng: np.random.Generator, shape: tuple[int, ...], A: int
) -> tuple[Floats, Floats]:
    best = rng.integers(A, size=shape)
    return epsilon_greedy(best, A, 0.03), epsilon_greedy(best, A, 0.1)


def _drawn(rng: np.random.Generator, shape: tuple[int, ...], A: int) -> tuple[Floats, Floats]:
    both = 0.3 / A + 0.7 * rng.dirichlet(np.ones(A), (2, *shape))
    return both[0], both[1]


def _peaked(rng: np.random.Generator, shape: tuple[int, ...], A: int) -> tuple[Floats, Floats]:
    both = 0.02 / A + 0.98 * rng.dirichlet(np.full(A, 0.3), (2, *shape))
    return both[0], both[1]


def _rare(rng: np.random.Generator, shape: tuple[int, ...], A: int) -> tuple[Floats, Floats]:
    """Action 0 is taken once in 100 rows, by the target about as often as others."""
    mu, pi = _drawn(rng, shape, A)
    mu[..., 1:] *= 0.99 / mu[..., 1:].sum(axis=-1, keepdims=True)
    mu[..., 0] = 0.01
    return mu, pi


Tables = Callable[[np.random.Generator, tuple[int, ...], int], tuple[Floats, Floats]]


@dataclass(frozen=True)
class Sparse:
    """n episodes of H steps among S states with A actions.

    policies  draws μ and π; `by_step`: for every step
    ends      the chance that an episode ends after a step; `cut`: that it is cut off instead
    merged    so many states have one name, which the policies do not go by
    hidden    the share of states that are not shown
    """

    S: int
    A: int
    H: int
    n: int
    policies: Tables
    by_step: bool = True
    ends: float = 0.0
    cut: float = 0.0
    merged: int = 1
    hidden: float = 0.0

    def grid(self, rng: np.random.Generator) -> Grid:
        n, H, S, A = self.n, self.H, self.S, self.A
        mu, pi = self.policies(rng, (H if self.by_step else 1, S), A)
        follow = rng.integers(S, size=(S, A, BRANCHES))
        s, a = np.empty((n, H + 1), np.int64), np.empty((n, H), np.int64)
        s[:, 0] = rng.integers(S, size=n)
        for t in range(H):
            edges = np.cumsum(mu[t % len(mu)][s[:, t]], axis=1)
            a[:, t] = np.minimum((rng.random((n, 1)) > edges).sum(axis=1), A - 1)
            s[:, t + 1] = follow[s[:, t], a[:, t], rng.integers(BRANCHES, size=n)]
        over = rng.random((n, H)) < self.ends + self.cut
        lengths = np.where(over.any(axis=1), over.argmax(axis=1) + 1, H)
        truncated = (lengths < H) & (rng.random(n) * (self.ends + self.cut) < self.cut)
        at = np.arange(H) % len(mu), s[:, :-1], a
        shown = s // self.merged
        shown = np.where(rng.random(s.shape) < self.hidden, HIDDEN, shown)
        shown = shown if np.all(lengths == H) else shown[:, :-1]
        rewards = np.zeros((n, H))
        return Grid(shown, a, rewards, mu[at], pi[at], lengths, truncated, 1.0)


@dataclass(frozen=True)
class SparseTaxi:
    n: int

    def grid(self, rng: np.random.Generator) -> Grid:
        return Grid.of(_taxi().simulate(self.n, rng))


@cache
def _taxi() -> Taxi:
    return Taxi()


@dataclass(frozen=True)
class CartPole:
    """Gymnasium's CartPole, its equations for all episodes at once. The log shows bins of the four
    numbers; the policies go by the numbers themselves, or by the bins."""

    n: int
    H: int = 100
    bins: tuple[int, ...] = (3, 3, 6, 3)
    by_bins: bool = False

    def grid(self, rng: np.random.Generator) -> Grid:
        n, H = self.n, self.H
        x = rng.uniform(-0.05, 0.05, (n, 4))
        most, count = np.array([2.4, 2.0, 0.21, 2.0]), np.array(self.bins)
        s, a, lengths = np.empty((n, H), np.int64), np.empty((n, H), np.int64), np.full(n, H)
        mu, pi = np.empty((n, H)), np.empty((n, H))
        for t in range(H):
            place = np.clip(((x + most) / (2 * most) * count).astype(np.int64), 0, count - 1)
            s[:, t] = np.ravel_multi_index(tuple(place.T), self.bins)
            seen = (place + 0.5) / count * 2 * most - most if self.by_bins else x
            right = [0.05 + 0.9 / (1 + np.exp(-k * seen @ [0.2, 0.5, 2.5, 1.0])) for k in (6, 10)]
            a[:, t] = rng.random(n) < right[0]
            mu[:, t], pi[:, t] = (np.where(a[:, t] == 1, p, 1 - p) for p in right)
            x = _pushed(x, np.where(a[:, t] == 1, 10.0, -10.0))
            fallen = (np.abs(x[:, 0]) > 2.4) | (np.abs(x[:, 2]) > 0.2095)
            lengths = np.where(fallen, np.minimum(lengths, t + 1), lengths)
        return Grid(s, a, np.ones((n, H)), mu, pi, lengths, np.zeros(n, bool), 1.0)


def _pushed(x: Floats, force: Floats) -> Floats:
    """The cart's place and speed and the pole's angle and speed, 0.02 s later."""
    sin, cos = np.sin(x[:, 2]), np.cos(x[:, 2])
    push = (force + 0.05 * x[:, 3] ** 2 * sin) / 1.1
    turn = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    return x + 0.02 * np.stack([x[:, 1], push - 0.05 * turn * cos / 1.1, x[:, 3], turn], axis=1)


SETTINGS: dict[str, Sparse | SparseTaxi | CartPole] = {
    "ε-greedy by step, S = 50, n = 200": Sparse(50, 3, 5, 200, _same_best),
    "ε-greedy by step, S = 200, n = 1,000": Sparse(200, 5, 5, 1000, _same_best),
    "ε-greedy by step, other favorites": Sparse(200, 5, 3, 1000, _other_best),
    "certain target, by step": Sparse(50, 3, 10, 200, _certain),
    "drawn policies, by step": Sparse(100, 5, 10, 300, _drawn),
    "peaked policies, by step": Sparse(50, 5, 10, 250, _peaked),
    "ε-greedy, S = 500": Sparse(500, 4, 20, 200, _other_best, by_step=False),
    "nearly certain behavior": Sparse(300, 5, 20, 300, _nearly_certain, by_step=False, ends=0.1),
    "drawn policies, early ends": Sparse(300, 5, 20, 300, _drawn, by_step=False, ends=0.1),
    "drawn policies, cut off": Sparse(100, 3, 10, 300, _drawn, by_step=False, ends=0.05, cut=0.05),
    "a rare action, by step": Sparse(20, 3, 5, 100, _rare),
    "a rare action": Sparse(100, 3, 10, 200, _rare, by_step=False),
    "contexts of five rows, one step": Sparse(500, 4, 1, 2500, _drawn),
    "two states with one name": Sparse(100, 4, 10, 300, _other_best, merged=2),
    "a rare action, two states with one name": Sparse(20, 3, 10, 300, _rare, merged=2),
    "a fifth of the states hidden": Sparse(50, 4, 10, 200, _other_best, hidden=0.2),
    "Taxi": SparseTaxi(200),
    "CartPole in bins": CartPole(100),
    "CartPole in fine bins": CartPole(50, bins=(8, 8, 12, 8)),
    "CartPole in bins that the policies go by": CartPole(100, by_bins=True),
}


def propensity_p(log: EpisodeLog, target: Policy) -> float | None:
    """The p-value of the gate `propensities`; None where it is unknown."""
    sums = ArraysEngine().moments(log, target, KINDS)
    [result] = measured("sums", Context(sums), (Propensities(),))
    return result.value


def p_value(setting: str, replicate: int, fault: str = "clean", seed: int = 0) -> float | None:
    """The same of one log of a setting."""
    number = list(SETTINGS).index(setting)
    for_log, for_fault = np.random.SeedSequence([seed, number, replicate]).spawn(2)
    grid = SETTINGS[setting].grid(np.random.default_rng(for_log))
    log = FAULTS[fault](grid, np.random.default_rng(for_fault)).log()
    return propensity_p(log, ColumnPolicy("target_prob"))
