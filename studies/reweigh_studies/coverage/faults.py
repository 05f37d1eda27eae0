"""Faults put into clean logs on purpose, to see which gates notice them.

They work on a log laid out as arrays of n episodes and H steps. The target's probabilities are
those of the column target_prob, since after some of these faults no table fits the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.errors import UsageError
from reweigh.log.arrays import log_from_arrays
from reweigh.log.log import EpisodeLog
from reweigh.log.states import HIDDEN

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
OFF = 0.1  # how far propensities are off
SHARE = 0.2  # of the episodes that come twice, are left out or cut off, and of the states lost
SCALE = 1000.0  # of a reward in another unit
LOWEST = 0.01  # the smallest logarithm of a probability is mapped to this


@dataclass(frozen=True, eq=False)
class Grid:
    """A log as arrays. states (n, H) or (n, H+1) codes, HIDDEN where not shown; the others (n, H);
    lengths (n,), and truncated (n,), the episodes that were cut off there instead of ended. Values
    past an episode's length have no meaning."""

    states: Ints
    actions: Ints
    rewards: Floats
    behavior_prob: Floats
    target_prob: Floats
    lengths: Ints
    truncated: Bools
    discount: float

    @classmethod
    def of(cls, log: EpisodeLog) -> Grid:
        steps = log.steps
        if log.actions is None or log.n_truncated or steps.behavior_prob is None:
            raise UsageError("a grid needs discrete actions, whole episodes and propensities")
        at = steps.episode[steps.episode_index], steps.step  # ids are 0..n-1

        def laid(rows: npt.NDArray[Any], filler: float) -> npt.NDArray[Any]:
            grid = np.full((log.n_episodes, log.horizon), filler, rows.dtype)
            grid[at] = rows
            return grid

        lengths = np.empty(log.n_episodes, np.int64)
        lengths[steps.episode] = steps.lengths
        states = laid(steps.state.astype(np.int64), 0)
        if np.all(lengths == log.horizon):
            last = np.full(log.n_episodes, HIDDEN)
            last[steps.episode] = np.maximum(steps.ending, HIDDEN)
            states = np.column_stack([states, last])
        return cls(
            states,
            laid(steps.action.astype(np.int64), 0),
            laid(steps.reward, 0.0),
            laid(steps.behavior_prob, 1.0),
            laid(log.column("target_prob"), 1.0),
            lengths,
            np.zeros(log.n_episodes, bool),
            log.discount,
        )

    @property
    def inside(self) -> Bools:
        """(n, H) True before an episode's end."""
        return np.arange(self.rewards.shape[1]) < self.lengths[:, None]

    @property
    def returns(self) -> Floats:
        """(n,) Σ_t γ^t r_t."""
        powers = self.discount ** np.arange(self.rewards.shape[1])
        total: Floats = np.where(self.inside, self.rewards, 0.0) @ powers
        return total

    def take(self, episodes: Ints) -> Grid:
        """These episodes, in this order; one may come twice."""
        arrays: dict[str, Any] = {name: getattr(self, name)[episodes] for name in ARRAYS}
        return replace(self, **arrays)

    def log(self) -> EpisodeLog:
        states: Any = self.states
        if np.any(states == HIDDEN):
            states = np.ma.masked_equal(states, HIDDEN)
        return log_from_arrays(
            states,
            self.actions,
            self.rewards,
            self.behavior_prob,
            self.target_prob,
            hidden="allow",
            lengths=self.lengths,
            truncated=self.truncated,
            discount=self.discount,
        )


OF_ROWS = ("states", "actions", "rewards", "behavior_prob", "target_prob")
ARRAYS = (*OF_ROWS, "lengths", "truncated")


def propensities_low(grid: Grid, rng: np.random.Generator) -> Grid:
    """Every propensity is 10 % too low."""
    return replace(grid, behavior_prob=(1 - OFF) * grid.behavior_prob)


def propensities_noisy(grid: Grid, rng: np.random.Generator) -> Grid:
    """The propensities of a (state, action) are 10 % too low or 10 % too high, by a coin."""
    size = int(grid.states.max()) + 2, int(grid.actions.max()) + 1
    factor = np.where(rng.random(size) < 0.5, 1 - OFF, 1 + OFF)
    horizon = grid.rewards.shape[1]
    off = grid.behavior_prob * factor[grid.states[:, :horizon], grid.actions]
    return replace(grid, behavior_prob=np.minimum(off, 1.0))


def swapped(grid: Grid, rng: np.random.Generator) -> Grid:
    """The target's and the behavior's probabilities are swapped."""
    return replace(grid, behavior_prob=grid.target_prob, target_prob=grid.behavior_prob)


def logarithms(grid: Grid, rng: np.random.Generator) -> Grid:
    """Logarithms of the propensities, mapped into (0, 1] so that the log is accepted."""
    logs = np.log(grid.behavior_prob)
    least = float(logs[grid.inside].min())
    return replace(grid, behavior_prob=np.maximum(1 - (1 - LOWEST) * logs / least, LOWEST))


def rows_shuffled(grid: Grid, rng: np.random.Generator) -> Grid:
    """The rows of every episode are in another order, each row whole."""
    inside = grid.inside
    order = np.argsort(np.where(inside, rng.random(inside.shape), 2.0), axis=1, kind="stable")
    horizon = inside.shape[1]
    moved: dict[str, Any] = {
        name: np.take_along_axis(getattr(grid, name)[:, :horizon], order, axis=1)
        for name in OF_ROWS
    }
    return replace(grid, **moved)  # what followed the last row is not known any more


def states_shuffled(grid: Grid, rng: np.random.Generator) -> Grid:
    """The state column has come apart: at every step the states are those of other episodes."""
    states = grid.states.copy()
    for t in range(states.shape[1]):
        alive = np.flatnonzero(grid.lengths > t) if t < grid.rewards.shape[1] else slice(None)
        states[alive, t] = rng.permutation(states[alive, t])
    return replace(grid, states=states)


def coarse(grid: Grid, rng: np.random.Generator | None = None) -> Grid:
    """Part of the state is left out: states 0 and 1 look the same, as do 2 and 3, …"""
    return replace(grid, states=np.where(grid.states >= 0, grid.states // 2, grid.states))


def drift(grid: Grid, rng: np.random.Generator) -> Grid:
    """The second half of the episodes, by their ids, earned half of what it should have."""
    late = np.arange(len(grid.rewards)) >= len(grid.rewards) / 2
    return replace(grid, rewards=np.where(late[:, None], 0.5, 1.0) * grid.rewards)


def duplicates(grid: Grid, rng: np.random.Generator) -> Grid:
    """One in five episodes a second time, under another id."""
    n = len(grid.rewards)
    again = rng.choice(n, size=round(SHARE * n), replace=False)
    return grid.take(np.concatenate([np.arange(n), again]))


def selection(grid: Grid, rng: np.random.Generator) -> Grid:
    """The fifth of the episodes with the lowest returns is left out."""
    n = len(grid.rewards)
    kept = np.argsort(grid.returns, kind="stable")[round(SHARE * n) :]
    return grid.take(np.sort(kept))


def cut_off(grid: Grid, rng: np.random.Generator) -> Grid:
    """One in five episodes is cut off after some of its steps, before an unknown state."""
    cut = (rng.random(len(grid.lengths)) < SHARE) & (grid.lengths > 1)
    shorter = rng.integers(1, np.maximum(grid.lengths, 2))
    lengths = np.where(cut, shorter, grid.lengths)
    return replace(grid, lengths=lengths, truncated=grid.truncated | cut)


def fate(grid: Grid, rng: np.random.Generator) -> Grid:
    """Every episode has a random shift of all its rewards, which is in no column: as large as their
    standard deviation, and 0 on average, so no value changes."""
    spread = float(grid.rewards[grid.inside].std())
    return replace(grid, rewards=grid.rewards + spread * rng.normal(size=(len(grid.rewards), 1)))


def states_renamed(grid: Grid, rng: np.random.Generator) -> Grid:
    """From the middle of an episode on every state has the name of another. Nothing is lost, and
    no value moves; but a name does not mean the same at every step."""
    late = np.arange(grid.states.shape[1]) >= grid.rewards.shape[1] / 2
    others = (grid.states + 1) % (int(grid.states.max()) + 1)
    return replace(grid, states=np.where(late & (grid.states >= 0), others, grid.states))


def states_lost(grid: Grid, rng: np.random.Generator) -> Grid:
    """One in five states is not shown."""
    lost = rng.random(grid.states.shape) < SHARE
    return replace(grid, states=np.where(lost, HIDDEN, grid.states))


def action_missing(grid: Grid, rng: np.random.Generator) -> Grid:
    """No episode begins with the action that the target begins with most often."""
    first, rho = grid.actions[:, 0], grid.target_prob[:, 0] / grid.behavior_prob[:, 0]
    liked = int(np.argmax(np.bincount(first, rho)))
    return grid.take(np.flatnonzero(first != liked))


def outlier(grid: Grid, rng: np.random.Generator) -> Grid:
    """One reward is in another unit: as large as a thousand of the largest."""
    rewards, inside = grid.rewards.copy(), np.argwhere(grid.inside)
    rewards[tuple(inside[rng.integers(len(inside))])] = SCALE * np.abs(rewards[grid.inside]).max()
    return replace(grid, rewards=rewards)


FAULTS: dict[str, Callable[[Grid, np.random.Generator], Grid]] = {
    "clean": lambda grid, rng: grid,
    "propensities-low": propensities_low,
    "propensities-noisy": propensities_noisy,
    "swapped": swapped,
    "logarithms": logarithms,
    "rows-shuffled": rows_shuffled,
    "states-shuffled": states_shuffled,
    "coarse": coarse,
    "drift": drift,
    "duplicates": duplicates,
    "selection": selection,
    "action-missing": action_missing,
    "states-lost": states_lost,
    "cut-off": cut_off,
    "fate": fate,
    "states-renamed": states_renamed,
    "outlier": outlier,
}


def _naive(log: EpisodeLog) -> EpisodeLog:
    """The hidden state treated as a state like any other."""
    grid = Grid.of(log)
    return replace(grid, states=np.where(grid.states < 0, len(log.states), grid.states)).log()


def _blind(log: EpisodeLog) -> EpisodeLog:
    """Every state looks the same."""
    grid = Grid.of(log)
    return replace(grid, states=np.zeros_like(grid.states)).log()


READINGS: dict[str, Callable[[EpisodeLog], EpisodeLog]] = {
    "coarse": lambda log: coarse(Grid.of(log)).log(),
    "naive": _naive,
    "blind": _blind,
}
