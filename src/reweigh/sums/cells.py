"""Tables of cells from the rows of a log in memory, and the counts of first states.

The rows of a step stand together, so that keys are brought into order within the steps only
(`kernels/sums.py`). Beyond the tables themselves, which hold the observed cells, a row
takes a key and a place, 12 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.kernels.choose import pick
from reweigh.kernels.groups import LARGEST_KEY, group_by
from reweigh.log.states import HIDDEN, UNKNOWN
from reweigh.log.steps import Steps
from reweigh.sums.transitions import NO_ACTION, StartMoments, TransitionMoments

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def starts(steps: Steps, block: Ints, state: Array) -> StartMoments:
    """First states, by block. Where there are far more episodes, they are counted, not sorted."""
    low, g = int(state.min()), steps.start_value
    width = int(state.max()) - low + 1
    places = width * (int(block.max()) + 1)
    if g is None and places < len(state):
        place = state - low if places == width else block * width + (state - low)
        count = np.bincount(place, minlength=places)
        seen = np.flatnonzero(count)
        none = np.zeros(len(seen))
        return StartMoments(seen // width, seen % width + low, count[seen], none, none)
    groups = group_by([block, state])
    g = np.zeros(steps.n_episodes) if g is None else g
    block_of, s = groups.keys
    return StartMoments(block_of, s, groups.count(), groups.sum(g), groups.sum(g * g))


def one_step_cells(
    steps: Steps, block: Ints, pi: Floats, rho: Floats, action: Array | None, as_state: int
) -> TransitionMoments:
    """From every row to what follows it; a hidden state gets the code `as_state`."""
    s, s_next = steps.state, steps.next_state
    # After the horizon a hidden state is not needed, and no state of its own.
    final = int(steps.offsets[-2])
    if np.any(s_next[final:] == HIDDEN):
        s_next = s_next.copy()
        s_next[final:][s_next[final:] == HIDDEN] = UNKNOWN
    if as_state != HIDDEN:
        s, s_next = (np.where(v == HIDDEN, np.int32(as_state), v) for v in (s, s_next))
    mu = steps.behavior_prob
    assert mu is not None
    rows = Records(
        offsets=steps.offsets,
        block=None if not block.any() else block[steps.episode_index],
        s=s,
        a=action,
        t_next=None,
        s_next=s_next,
        rho=rho,
        y=steps.reward,
        pi=pi,
        mu=mu,
    )
    return rows.cells()


@dataclass(frozen=True, eq=False)
class Stretches:
    """From one observed state to the next, those that begin at step t being begins[t]:begins[t+1].

    values  (4, N) ρ_{t:t'-1}, z = Σ_j γ^j ρ_{t:t+j} y_{t+j}, Σ_j γ^j y_{t+j}, and z of y = 1
    """

    begins: Ints
    episode: Ints
    s: Ints
    t_next: Ints
    s_next: Ints
    values: Floats


def stretches(steps: Steps, rho: Floats, gamma: float) -> Stretches:
    shown = steps.state != HIDDEN
    shown[steps.rows(0)] = True  # every episode begins somewhere
    begins = np.concatenate([[0], np.cumsum(shown)])[steps.offsets]
    size = int(begins[-1])
    episode, s, t_next, s_next = np.empty((4, size), np.int64)
    values = np.empty((4, size))
    run = pick("sums.stretches", steps.n_rows)
    with np.errstate(over="ignore", invalid="ignore"):
        run(
            steps.offsets, steps.state, steps.ending, rho, steps.reward, gamma,
            begins, episode, s, t_next, s_next, values,
        )  # fmt: skip
    return Stretches(begins, episode, s, t_next, s_next, values)


def stretch_cells(steps: Steps, block: Ints, rho: Floats, gamma: float) -> TransitionMoments:
    """From one observed state to the next: a hidden stretch is one long step."""
    long = stretches(steps, rho, gamma)
    rows = Records(
        offsets=long.begins,
        block=None if not block.any() else block[long.episode],
        s=long.s,
        a=None,
        t_next=long.t_next,
        s_next=long.s_next,
        rho=long.values[0],
        z=long.values[1],
        y=long.values[2],
        one=long.values[3],
    )
    return rows.cells()


def _nothing() -> Floats:
    return np.zeros(0)


@dataclass(frozen=True, eq=False)
class Records:
    """What is summed by cell, step after step: those of step t are offsets[t]:offsets[t+1].

    block, a and t_next are None where they are 0, NO_ACTION and t + 1 throughout; z and one are
    empty where they are ρy and ρ, pi and mu where they are 0.
    """

    offsets: Ints
    block: Ints | None
    s: Array
    a: Array | None
    t_next: Ints | None
    s_next: Array
    rho: Floats
    y: Floats
    z: Floats = field(default_factory=_nothing)
    one: Floats = field(default_factory=_nothing)
    pi: Floats = field(default_factory=_nothing)
    mu: Floats = field(default_factory=_nothing)

    def cells(self) -> TransitionMoments:
        """Their sums by key."""
        key, places, blocks = self._keys()
        size, horizon = len(self.s), len(self.offsets) - 1
        order, counts = np.empty(size, np.int32), np.zeros((blocks, horizon), np.int64)
        pick("sums.order_rows", size)(self.offsets, key, places, blocks, order, counts)
        total = int(counts.sum())
        places_of = np.cumsum(counts).reshape(counts.shape) - counts
        first, n, sums = np.empty(total, np.int64), np.empty(total, np.int64), np.zeros((11, total))
        with np.errstate(over="ignore", invalid="ignore"):
            pick("sums.sum_rows", size)(
                self.offsets, key, places, order, places_of,
                self.rho, self.y, self.z, self.one, self.pi, self.mu, first, n, sums,
            )  # fmt: skip
        t = np.repeat(np.tile(np.arange(horizon), blocks), counts.reshape(-1))
        return TransitionMoments(
            block=np.zeros(total, np.int64) if self.block is None else self.block[first],
            t=t,
            s=self.s[first].astype(np.int64),
            a=np.full(total, NO_ACTION) if self.a is None else self.a[first].astype(np.int64),
            t_next=t + 1 if self.t_next is None else self.t_next[first],
            s_next=self.s_next[first].astype(np.int64),
            n=n,
            **dict(zip(TransitionMoments.SUMS[1:], sums, strict=True)),
        )

    def _keys(self) -> tuple[Ints, int, int]:
        """(N,) one number per row in the order of block, s, a, t', s'; how many there may be in a
        block, and the number of blocks."""
        key, places = np.zeros(len(self.s), np.int64), 1
        for column in (self.s, self.a, self.t_next, self.s_next):
            if column is None or len(column) == 0:
                continue
            low = int(column.min())
            size = int(column.max()) - low + 1
            if places * size > LARGEST_KEY:  # what occurs, numbered in its order
                key, places = _ranks(key)
            places *= size
            key *= size
            key += column
            key -= low
        if self.block is None:
            return key, places, 1
        blocks = int(self.block.max()) + 1
        if places * blocks > LARGEST_KEY:
            key, places = _ranks(key)
        key += self.block * places
        return key, places, blocks


def _ranks(key: Ints) -> tuple[Ints, int]:
    groups = group_by([key])
    return groups.index(), len(groups)
