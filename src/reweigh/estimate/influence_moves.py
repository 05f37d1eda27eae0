"""What the episodes of a log did, move by move, and the sums over cells of which each is a part.

A move is a row, or a hidden stretch of rows from one observed state to the next. Moves stand in
the order of the rows that they begin with, so that the first n of them are the episodes' first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.kernels.groups import group_by, tally
from reweigh.log.log import EpisodeLog
from reweigh.log.states import HIDDEN, START, UNKNOWN
from reweigh.log.steps import Steps
from reweigh.sums.transitions import KEYS, NO_ACTION, StartMoments, TransitionMoments

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
KEPT_ROWS = 1 << 20
PLACES_PER_MOVE = 4  # possible cells, up to which a place for each is cheaper than a sort


def ranked(keys: list[Ints]) -> tuple[Ints, Ints]:
    """The rank of each row among the different keys, in increasing order, and a row of each."""
    joint, size = np.zeros(len(keys[0]), np.int64), 1
    for key in keys:
        low, width = int(key.min()), int(key.max()) - int(key.min()) + 1
        size *= width
        if size > PLACES_PER_MOVE * len(joint):
            groups = group_by(keys)
            return groups.index(), groups.order[groups.starts]
        joint = joint * width + (key - low)
    first = np.full(size, -1, np.int64)
    first[joint] = np.arange(len(joint))
    seen = np.flatnonzero(first >= 0)
    rank = np.empty(size, np.int64)
    rank[seen] = np.arange(len(seen))
    return rank[joint], first[seen]


@dataclass(frozen=True, eq=False)
class Moves:
    """L moves (t, s) → (t', s'); ρ, z, y, one as in `TransitionMoments`, of one move each.

    within, of  (N,) per row: ρ_{t:t+j} γ^j since its move began, and the move (None: row k is
                move k, and within is ρ)
    """

    n: int
    episode: Ints
    t: Ints
    s: Ints
    a: Ints
    t_next: Ints
    s_next: Ints
    rho: Floats
    z: Floats
    y: Floats
    one: Floats
    pi: Floats
    within: Floats
    of: Ints | None = None
    rank: Callable[[list[Ints]], tuple[Ints, Ints]] = ranked

    def __len__(self) -> int:
        return len(self.t)

    def starts(self, g: Floats | None) -> StartMoments:
        """First states, and a control's start values."""
        groups = group_by([self.s[: self.n]])
        g = np.zeros(self.n) if g is None else g
        block, (s,) = np.zeros(len(groups), np.int64), groups.keys
        return StartMoments(block, s, groups.count(), groups.sum(g), groups.sum(g * g))

    def cells(self) -> tuple[TransitionMoments, Ints]:
        """The sums over the cells, in the order of their keys, and (L,) the cell of each move."""
        keys = [self.t, self.s, self.a, self.t_next, self.s_next]
        index, first = self.rank(keys)
        size = len(first)
        zero = np.zeros(size)
        columns: dict[str, Any] = dict.fromkeys(("rhoz", "z2", "y2", "mu"), zero)  # no use here
        columns |= dict(zip(KEYS[1:], (key[first] for key in keys), strict=True))
        for name in ("rho", "z", "y", "one", "pi"):
            columns[name] = tally(index, getattr(self, name), size)
        for name in ("rho", "pi"):
            columns[f"{name}2"] = tally(index, getattr(self, name) ** 2, size)
        count = np.bincount(index, minlength=size)
        return TransitionMoments(block=zero.astype(np.int64), n=count, **columns), index


def single_moves(log: EpisodeLog, pi: Floats, rho: Floats, *, action: bool) -> Moves:
    """One move per row. The hidden state is a state of its own, coded as after the others."""
    steps, as_state = log.steps, len(log.states)
    following = steps.next_state
    final = steps.step == steps.horizon - 1  # after the horizon a hidden state is not needed
    after = np.where(following == HIDDEN, np.where(final, UNKNOWN, as_state), following)

    def rank(keys: list[Ints]) -> tuple[Ints, Ints]:
        """The same for every estimator and target: kept, unless it is large."""
        if steps.n_rows > KEPT_ROWS:
            return ranked(keys)
        name = f"cells of moves {'with' if action else 'without'} actions"
        return log._once(name, lambda: ranked(keys))

    return Moves(
        n=steps.n_episodes,
        episode=steps.episode_index,
        t=steps.step,
        s=np.where(steps.state == HIDDEN, as_state, steps.state).astype(np.int64),
        a=(steps.action if action else np.full(steps.n_rows, NO_ACTION)).astype(np.int64),
        t_next=steps.step + 1,
        s_next=after.astype(np.int64),
        rho=rho,
        z=rho * steps.reward,
        y=steps.reward,
        one=rho,
        pi=pi,
        within=rho,
        rank=rank,
    )


def stretch_moves(log: EpisodeLog, rho: Floats) -> Moves:
    """One move from each observed state to the next; a hidden first state is START.

    R = ρ_{t:t+j},   z = Σ_j γ^j ρ_{t:t+j} y_{t+j}
    """
    steps = log.steps
    if not log.has_hidden:
        return single_moves(log, rho, rho, action=False)
    begins, of, product = _stretches(steps, rho)
    begin = np.flatnonzero(begins)
    last = np.zeros(len(begin), np.int64)
    np.maximum.at(last, of, np.arange(steps.n_rows))
    power = log.discount ** (steps.step - steps.step[begin][of]).astype(np.float64)
    within = power * product
    state, after = steps.state[begin], steps.next_state[last]
    return Moves(
        n=steps.n_episodes,
        episode=steps.episode_index[begin],
        t=steps.step[begin],
        s=np.where(state == HIDDEN, START, state).astype(np.int64),
        a=np.full(len(begin), NO_ACTION, np.int64),
        t_next=steps.step[last] + 1,
        s_next=np.where(after == HIDDEN, UNKNOWN, after).astype(np.int64),
        rho=product[last],
        z=tally(of, within * steps.reward, len(begin)),
        y=tally(of, power * steps.reward, len(begin)),
        one=tally(of, within, len(begin)),
        pi=np.zeros(len(begin)),
        within=within,
        of=of,
    )


def _stretches(steps: Steps, rho: Floats) -> tuple[npt.NDArray[np.bool_], Ints, Floats]:
    """(N,) whether a move begins with the row, the number of its move, and ρ_{t:t+j} so far."""
    begins = steps.state != HIDDEN
    begins[steps.rows(0)] = True
    of, product = np.cumsum(begins) - 1, rho.copy()
    for t in range(1, steps.horizon):
        hidden = np.flatnonzero(~begins[steps.rows(t)])
        here, before = steps.offsets[t] + hidden, steps.offsets[t - 1] + hidden
        product[here] *= product[before]
        of[here] = of[before]
    return begins, of, product
