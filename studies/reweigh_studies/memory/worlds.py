"""The worlds of the study of memory, most of which show less than their state.

The limits of the rule are set on the worlds of one half and reported on those of the other. Within
a kind, in the order of this list, worlds belong to one half and the other by turns.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm

from reweigh.policy import ColumnPolicy
from reweigh.worlds import RandomWorld
from reweigh.worlds.tabular import TabularMDP
from reweigh.worlds.world import Ints
from reweigh_studies.by_world import study as by_world
from reweigh_studies.coverage.worlds import MAKERS, Named, StudyWorld

KINDS = {
    "delayed": "an action pays some steps later, and the state does not show it",
    "second-order": "the next state follows from the state and the one before it, which is not "
    "in the log",
    "types, rewards": "episodes are of two types, which are not in the log and move the rewards",
    "types, transitions": "episodes are of two types, which are not in the log and move the "
    "transitions",
    "binned": "a fine state, of which the log shows a coarse cell",
    "long": "many steps, and a state that leaves something out",
    "Markov": "the log's state is complete, or marked where it is hidden",
}
MARKOV = "Markov"


EDGES = {2: (0.0,), 4: (-1.0, 0.0, 1.0)}  # of binned states, by their cells


class Seen(TabularMDP):
    """A TabularMDP whose log shows `seen[s]` in place of the state s; ratios are those of s."""

    seen: Ints

    def __init__(self, *tables: Any, seen: ArrayLike, **options: Any) -> None:
        super().__init__(*tables, **options)
        vars(self).update(seen=np.asarray(seen, np.int64))

    def _observe(self, states: Ints) -> NDArray[Any]:
        return self.seen[states]

    @cached_property
    def target(self) -> Any:
        """Of the logged column: the log does not show what the target looks at."""
        return ColumnPolicy("target_prob")


def delayed(delay: int, horizon: int) -> Seen:
    """Action 1 pays 1 `delay` steps later. Of two states, state 1 pays 0.3, and action 1 makes it
    more likely; the log shows this state alone. The behavior is a coin."""
    past = 2**delay  # the last actions, the newest in the lowest bit
    P, r = np.zeros((2, 2 * past, 2, 2 * past))
    for s in range(2 * past):
        shown, before = divmod(s, past)
        for a in range(2):
            kept = (2 * before + a) % past
            up = 0.3 + 0.4 * a
            P[s, a, kept], P[s, a, past + kept] = 1 - up, up
            r[s, a] = 0.3 * shown + (before >> (delay - 1))
    initial = np.zeros(2 * past)
    initial[[0, past]] = 0.5
    seen = np.arange(2 * past) // past
    pi, mu = np.array([[0.3, 0.7], [0.25, 0.75]])[seen], np.full((2 * past, 2), 0.5)
    return Seen(initial, P, r, pi, mu, 0.3, horizon=horizon, seen=seen)


def treated_twice(horizon: int) -> Seen:
    """A treatment pays 1 if it is given twice in a row, and the state is always the same."""
    P, r = np.zeros((2, 2, 2, 2))
    P[:, 0, 0] = P[:, 1, 1] = 1  # the state is the last action
    r[1, 1] = 1
    pi, mu = [[0.1, 0.9]] * 2, [[0.5, 0.5]] * 2
    return Seen([1, 0], P, r, pi, mu, 0.1, horizon=horizon, seen=[0, 0])


def second_order(seed: int, horizon: int, states: int = 3) -> Seen:
    """P(s' | s, the state before it, a), drawn at random; the log shows s."""
    rng, S = np.random.default_rng(seed), states
    P, r = np.zeros((2, S * S, 2, S * S))
    seen = np.arange(S * S) % S  # of (before, s)
    drawn = rng.dirichlet(np.full(S, 0.5), (S * S, 2))
    for s in range(S * S):
        P[s, :, seen[s] * S : (seen[s] + 1) * S] = drawn[s]
    r += rng.random((S * S, 2))[..., None]
    initial = np.zeros(S * S)
    initial[np.arange(S) * (S + 1)] = rng.dirichlet(np.ones(S))
    pi, mu = _two_policies(rng, S)
    return Seen(initial, P, r, pi[seen], mu[seen], 0.3, horizon=horizon, seen=seen)


def types(seed: int, moves: str, horizon: int, states: int = 3) -> Seen:
    """Two types of episodes, equally many, that differ in their rewards or their transitions."""
    rng, S = np.random.default_rng(seed), states
    P, r = np.zeros((2, 2 * S, 2, 2 * S))
    rows = rng.dirichlet(np.full(S, 0.5), (2, S, 2))
    pays = rng.random((2, S, 2))
    for u in range(2):
        mine = slice(u * S, (u + 1) * S)
        P[mine, :, mine] = rows[u if moves == "transitions" else 0]
        r[mine] = pays[u if moves == "rewards" else 0][..., None]
    initial, seen = np.tile(rng.dirichlet(np.ones(S)), 2) / 2, np.tile(np.arange(S), 2)
    pi, mu = _two_policies(rng, S)
    return Seen(initial, P, r, pi[seen], mu[seen], 0.3, horizon=horizon, seen=seen)


def _two_policies(rng: np.random.Generator, S: int) -> NDArray[Any]:
    """Target and behavior: half uniform, half drawn."""
    rows: NDArray[Any] = 0.25 + 0.5 * rng.dirichlet(np.ones(2), (2, S))
    return rows


def binned(cells: int, horizon: int, looking: str, fine: int = 61) -> Seen:
    """A level x on a grid that is nearly continuous, a drug that lowers it, and a log that shows
    which of `cells` it is in. Policies look at x, or at the middle of its cell."""
    x = np.linspace(-3, 3, fine)
    seen = np.searchsorted(EDGES[cells], x)
    looked = x if looking == "x" else np.array([x[seen == c].mean() for c in seen])
    rate_mu, rate_pi = 1 / (1 + np.exp(-looked)), 1 / (1 + np.exp(-2 * looked - 0.5))
    half = (x[1] - x[0]) / 2

    def near(middle: NDArray[Any], sd: float) -> NDArray[Any]:
        upper = norm.cdf((x + half - middle[..., None]) / sd)
        upper[..., -1] = 1.0
        return np.diff(upper, axis=-1, prepend=0.0)

    P = near(0.8 * x[:, None] + 0.3 - 0.6 * np.arange(2), 0.5)
    r = np.broadcast_to((-np.abs(x)[:, None] - 0.1 * np.arange(2))[..., None], P.shape)
    pi, mu = (np.stack([1 - rate, rate], axis=1) for rate in (rate_pi, rate_mu))
    return Seen(near(np.array(0.0), 1.0), P, r, pi, mu, horizon=horizon, seen=seen)


MAKERS |= {
    "delayed": delayed,
    "treated-twice": treated_twice,
    "second-order": second_order,
    "types": types,
    "binned": binned,
}


def _named(name: str, kind: str, maker: str, **arguments: Any) -> StudyWorld:
    return StudyWorld(name, kind, Named(maker, arguments))


LIST = (
    _named("delayed-1", "delayed", "delayed", delay=1, horizon=20),
    _named("delayed-2", "delayed", "delayed", delay=2, horizon=12),
    _named("delayed-3", "delayed", "delayed", delay=3, horizon=12),
    _named("delayed-4", "delayed", "delayed", delay=4, horizon=10),
    _named("second-order-a", "second-order", "second-order", seed=1, horizon=10),
    _named("second-order-b", "second-order", "second-order", seed=2, horizon=16),
    _named("types-rewards-a", "types, rewards", "types", seed=3, moves="rewards", horizon=10),
    _named("types-rewards-b", "types, rewards", "types", seed=4, moves="rewards", horizon=16),
    _named("types-moves-a", "types, transitions", "types", seed=5, moves="transitions", horizon=10),
    _named("types-moves-b", "types, transitions", "types", seed=6, moves="transitions", horizon=16),
    _named("cells-2-x", "binned", "binned", cells=2, horizon=20, looking="x"),
    _named("cells-4-x", "binned", "binned", cells=4, horizon=20, looking="x"),
    _named("cells-4", "binned", "binned", cells=4, horizon=12, looking="cell"),
    _named("cells-2", "binned", "binned", cells=2, horizon=12, looking="cell"),
    _named("treated-twice", "long", "treated-twice", horizon=30),
    _named("mountaincar", "long", "mountaincar"),
    _named("modelwin-10", MARKOV, "modelwin", horizon=10),
    _named("timevarying-16", MARKOV, "timevarying", horizon=16, seed=0),
    _named("modelfail-10", MARKOV, "modelfail", horizon=10),
    StudyWorld("random-long", MARKOV, RandomWorld(6, 4, 3, 10, overlap=0.7)),
    StudyWorld("random", MARKOV, RandomWorld(1)),
    StudyWorld("random-ending", MARKOV, RandomWorld(13, 5, 3, 8, terminal=1)),
    StudyWorld("random-hidden", MARKOV, RandomWorld(61, 4, 3, 6, hidden=1)),
    _named("icu-short", MARKOV, "icu-sepsis", horizon=8, target="tilted"),
)
WORLDS: dict[str, StudyWorld] = {world.name: world for world in LIST}
SIZES = (200, 1000, 5000)


def half_of(name: str) -> str:
    """The half of the study that a world belongs to."""
    return by_world.half_of(WORLDS, name)
