"""Logs that hold every trajectory of a tiny world as often as it is likely.

On such a log every consistent estimator must return the exact value, and n·SE² must be the exact
asymptotic variance: nothing is left to chance.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction as F

import pyarrow as pa

import reweigh as rw

HALF = F(1, 2)


@dataclass(frozen=True)
class TinyWorld:
    """T[t][s][a][s'], r(t, s, a, s'), π and μ [t][s][a], all fractions; `ends` states absorb."""

    initial: tuple[F, ...]
    transition: tuple[tuple[tuple[tuple[F, ...], ...], ...], ...]
    reward: tuple[tuple[tuple[tuple[F, ...], ...], ...], ...]
    target: tuple[tuple[tuple[F, ...], ...], ...]
    behavior: tuple[tuple[tuple[F, ...], ...], ...]
    discount: F = F(1)
    ends: frozenset[int] = frozenset()

    @property
    def horizon(self) -> int:
        return len(self.transition)

    def values(self, policy: tuple[tuple[tuple[F, ...], ...], ...]) -> list[list[F]]:
        """V_t(s) by the Bellman equation."""
        states = range(len(self.initial))
        V = [[F(0)] * len(self.initial)]
        for t in reversed(range(self.horizon)):
            V.insert(
                0,
                [
                    F(0)
                    if s in self.ends
                    else sum(
                        policy[t][s][a] * p * (self.reward[t][s][a][x] + self.discount * V[0][x])
                        for a in range(len(policy[t][s]))
                        for x, p in enumerate(self.transition[t][s][a])
                    )
                    for s in states
                ],
            )
        return V

    def value(self, policy: tuple[tuple[tuple[F, ...], ...], ...]) -> F:
        return sum(p * v for p, v in zip(self.initial, self.values(policy)[0], strict=True))

    def trajectories(self) -> Iterator[tuple[F, list[tuple[int, int, F, int]]]]:
        """(probability under μ, [(s, a, r, s')…]) of every trajectory, cut at an end."""

        def extend(p: F, s: int, rows: list[tuple[int, int, F, int]]) -> Iterator[tuple[F, list]]:
            t = len(rows)
            if t == self.horizon or s in self.ends:
                yield p, rows
                return
            for a, mu in enumerate(self.behavior[t][s]):
                for x, move in enumerate(self.transition[t][s][a]):
                    if mu * move:
                        row = (s, a, self.reward[t][s][a][x], x)
                        yield from extend(p * mu * move, x, [*rows, row])

        for s, p in enumerate(self.initial):
            if p:
                yield from extend(p, s, [])


def population_log(
    world: TinyWorld, *, hide: bool = False, cut: bool = False, next_state: bool = True
) -> rw.EpisodeLog:
    """Every trajectory as often as it is likely.

    `hide`: each state is hidden with probability 1/2, independently. `cut`: after each step but
    the last an episode is cut off with probability 1/4, before its next state is seen.
    """
    weighted: list[tuple[F, list[tuple[int, int, F, int]], tuple[bool, ...], bool]] = []
    for p, rows in world.trajectories():
        masks = (
            itertools.product([False, True], repeat=len(rows)) if hide else [(False,) * len(rows)]
        )
        for mask in masks:
            share = p * (HALF ** len(rows) if hide else 1)
            if not cut:
                weighted.append((share, rows, mask, False))
                continue
            going = F(1)
            # Being cut must not depend on the next state: an episode that is about to end may be
            # cut before that is seen.
            for length in range(1, min(len(rows) + 1, world.horizon)):
                weighted.append((share * going / 4, rows[:length], mask[:length], True))
                going *= F(3, 4)
            weighted.append((share * going, rows, mask, False))
    scale = math.lcm(*(share.denominator for share, *_ in weighted))
    columns: dict[str, list[object]] = {name: [] for name in NAMES}
    episode = 0
    for share, rows, mask, was_cut in weighted:
        for _ in range(int(share * scale)):
            for t, (s, a, r, x) in enumerate(rows):
                last = t == len(rows) - 1
                hidden_next = (not last and mask[t + 1]) or x in world.ends or (last and was_cut)
                values = (
                    episode,
                    t,
                    None if mask[t] else s,
                    a,
                    float(r),
                    float(world.behavior[t][s][a]),
                    float(world.target[t][s][a]),
                    None if hidden_next else x,
                    last and x in world.ends and not was_cut,
                    last and was_cut,
                )
                for name, value in zip(NAMES, values, strict=True):
                    columns[name].append(value)
            episode += 1
    types = {"state": pa.int64(), "next_state": pa.int64()}
    table = pa.table({k: pa.array(v, types.get(k)) for k, v in columns.items()})
    return rw.read_log(
        table,
        target_prob="target_prob",
        next_state="next_state" if next_state else None,
        terminated="terminated",
        truncated="truncated",
        horizon=world.horizon,
        discount=float(world.discount),
        hidden="allow",
    )


NAMES = (
    "episode",
    "step",
    "state",
    "action",
    "reward",
    "behavior_prob",
    "target_prob",
    "next_state",
    "terminated",
    "truncated",
)
TARGET = rw.ColumnPolicy("target_prob")


def random_world(
    seed: int,
    *,
    horizon: int = 3,
    n_states: int = 2,
    ends: int = 0,
    stationary: bool = False,
    discount: F = F(1),
    zeros: bool = False,
) -> TinyWorld:
    """Probabilities in quarters, rewards in halves that depend on (t, s, a, s')."""
    import random

    rng = random.Random(seed)
    total = n_states + ends

    def row(k: int, low: int = 1) -> tuple[F, ...]:
        if k == 1:
            return (F(1),)
        while True:
            cuts = [rng.randint(low, 3) for _ in range(k)]
            if sum(cuts) == 4:
                return tuple(F(c, 4) for c in cuts)

    def table(make: object) -> tuple:
        one = tuple(tuple(make() for _ in range(2)) for _ in range(total))  # type: ignore[operator]
        if stationary:
            return (one,) * horizon
        return (one, *(tuple(tuple(make() for _ in range(2)) for _ in range(total))
                       for _ in range(horizon - 1)))  # type: ignore[operator]  # fmt: skip

    def policy(low: int = 1) -> tuple:
        one = tuple(row(2, low) for _ in range(total))
        return (one,) * horizon if stationary else (one, *(
            tuple(row(2, low) for _ in range(total)) for _ in range(horizon - 1)))  # fmt: skip

    first = row(n_states)
    return TinyWorld(
        initial=first + (F(0),) * ends,
        transition=table(lambda: row(total, 0 if ends else 1)),
        reward=table(lambda: tuple(F(rng.randint(-2, 6), 2) for _ in range(total))),
        target=policy(0 if zeros else 1),
        behavior=policy(),
        discount=discount,
        ends=frozenset(range(n_states, total)),
    )
