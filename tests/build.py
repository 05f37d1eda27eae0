"""Tiny random logs, as the slow reference and as reweigh reads them."""

from __future__ import annotations

import random
from fractions import Fraction as F

import pyarrow as pa
import reference as ref

import reweigh as rw


def random_log(
    rng: random.Random,
    *,
    ends: tuple[str, ...] = ("complete",),
    hide: float = 0.0,
    zeros: bool = False,
    function_ratios: bool = True,
    with_next: bool = False,
    n: int | None = None,
    horizon: int | None = None,
    discount: F | None = None,
) -> ref.Log:
    """A log of a few episodes over a few states, with small fractions everywhere."""
    n = n or rng.randint(1, 6)
    horizon = horizon or rng.randint(1, 4)
    n_states, n_actions = rng.randint(1, 3), rng.randint(1, 3)
    discount = discount or rng.choice([F(1), F(9, 10), F(1, 2)])

    def policy(low: int) -> dict[tuple[object, ...], F]:
        table = {}
        for t in range(horizon):
            for s in [None, *range(n_states)]:
                weights = [rng.randint(low, 4) for _ in range(n_actions)]
                weights[rng.randrange(n_actions)] += 1
                for a, w in enumerate(weights):
                    table[t, s, a] = F(w, sum(weights))
        return table

    pi, mu = policy(0 if zeros else 1), policy(1)
    episodes = []
    for _ in range(n):
        end = rng.choice(ends)
        length = horizon if end == "complete" else rng.randint(1, horizon)
        end = "complete" if length == horizon else end
        rows = []
        for t in range(length):
            s = None if rng.random() < hide else rng.randrange(n_states)
            a = rng.randrange(n_actions)
            noise = F(1) if function_ratios else F(rng.randint(2, 4), 4)
            rows.append(ref.Row(s, a, F(rng.randint(-4, 8), 2), mu[t, s, a] * noise, pi[t, s, a]))
        after = rng.randrange(n_states) if with_next and rng.random() < 0.7 else None
        episodes.append(ref.Episode(tuple(rows), end, after))
    return ref.Log(tuple(episodes), horizon, discount)


def to_reweigh(log: ref.Log, *, order: list[int] | None = None) -> rw.EpisodeLog:
    """The same log through read_log: every column a user could have."""
    rows: dict[str, list[object]] = {name: [] for name in NAMES}
    for e, episode in enumerate(log.episodes):
        for t, row in enumerate(episode.rows):
            last = t == len(episode.rows) - 1
            following = episode.next_state if last else episode.rows[t + 1].state
            for name, value in zip(
                NAMES,
                (
                    e,
                    t,
                    row.state,
                    row.action,
                    float(row.reward),
                    float(row.mu),
                    float(row.pi),
                    following,
                    last and episode.end == "terminated",
                    last and episode.end == "truncated",
                ),
                strict=True,
            ):
                rows[name].append(value)
    table = pa.table(
        {
            name: pa.array(values, TYPES.get(name))
            if order is None
            else pa.array([values[i] for i in order], TYPES.get(name))
            for name, values in rows.items()
        }
    )
    return rw.read_log(
        table,
        behavior_prob="mu",
        target_prob="pi",
        next_state="next_state",
        terminated="terminated",
        truncated="truncated",
        horizon=log.horizon,
        discount=float(log.discount),
        hidden="allow",
    )


NAMES = (
    "episode",
    "step",
    "state",
    "action",
    "reward",
    "mu",
    "pi",
    "next_state",
    "terminated",
    "truncated",
)
TYPES = {"state": pa.int64(), "next_state": pa.int64()}
TARGET = rw.ColumnPolicy("pi")
