"""Worlds that try the gates: rare and unseen events, tails, sites, loggers, games, binned states.

Where tables describe a world its value is exact; else it is that of TRUTH simulated episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from reweigh.log.log import EpisodeLog
from reweigh.policy import ColumnPolicy
from reweigh.worlds import Bandit, MountainCar, TabularMDP, random_mdp
from reweigh.worlds.improvement import advantage, epsilon_soft, tilted
from reweigh.worlds.world import Floats, Ints, Rollout, TrueValue, World, as_generator
from reweigh_studies.memory.worlds import Seen

TRUTH, BATCH = 400_000, 50_000  # episodes


# ---- rare and unseen events --------------------------------------------------------------------


def emergency(
    share: float, rate: float, wanted: float, worth: float, horizon: int = 5
) -> TabularMDP:
    """A state that is rare (`share` of the rows), in which an action that the log rarely takes
    (`rate`) and the target mostly (`wanted`) is worth a lot."""
    P = np.broadcast_to([1 - share, share], (2, 2, 2))
    r = np.zeros((2, 2, 2))
    r[0, 1], r[1, 1] = 0.3, worth
    pi, mu = [[0.4, 0.6], [1 - wanted, wanted]], [[0.5, 0.5], [1 - rate, rate]]
    return TabularMDP([1 - share, share], P, r, pi, mu, 1.0, horizon=horizon)


def rare_action(rate: float, wanted: float, worth: float, horizon: int) -> TabularMDP:
    """In every state one of three actions is rare in the log, and worth a lot."""
    base = random_mdp(np.random.default_rng(7), 4, 3, horizon)
    r = base._reward.copy()
    r[:, :, 2] += worth
    mu = np.array([(1 - rate) * 0.5, (1 - rate) * 0.5, rate])
    pi = np.array([(1 - wanted) * 0.5, (1 - wanted) * 0.5, wanted])
    pi, mu = np.broadcast_to(pi, (4, 3)), np.broadcast_to(mu, (4, 3))
    return TabularMDP(base.initial, base._transition, r, pi, mu, 0.3, horizon=horizon)


def event(
    size: float, one_in: float, pays: float, horizon: int, mu: float = 0.3, pi: float = 0.9
) -> Seen:
    """A treatment pays `pays` and has an effect of `size` once in so many times, which the state
    does not show."""
    p = 1 / one_in
    P = np.broadcast_to(np.array([[1.0, 0.0], [1 - p, p]]), (2, 2, 2))
    r = np.zeros((2, 2, 2))
    r[:, 1, 0], r[:, 1, 1] = pays, size
    rows = ([[1 - rate, rate]] * 2 for rate in (pi, mu))
    return Seen([1, 0], P, r, *rows, 1.0, horizon=horizon, seen=[0, 0])


def clicks(rate: float, contexts: int, actions: int, seed: int) -> Bandit:
    """One step, and a reward of 1 that is rare."""
    rng = np.random.default_rng(seed)
    clicked = rate * rng.gamma(4.0, 0.25, (contexts, actions))
    policies = (0.3 / actions + 0.7 * rng.dirichlet(np.ones(actions), contexts) for _ in range(2))
    return Bandit(rng.dirichlet(np.ones(contexts)), clicked, *policies)


class Scaled(TabularMDP):
    """Rewards times a lognormal number with mean 1."""

    sigma: float

    def __init__(self, *tables: Any, sigma: float, **options: Any) -> None:
        super().__init__(*tables, **options)
        vars(self).update(sigma=sigma)

    def _rollout(self, n: int, rng: np.random.Generator | int) -> Rollout:
        rng = as_generator(rng)
        of = super()._rollout(n, rng)
        z = rng.standard_normal(of.rewards.shape)
        return replace(of, rewards=of.rewards * np.exp(self.sigma * z - self.sigma**2 / 2))


def lognormal(seed: int, sigma: float, horizon: int, states: int = 4) -> Scaled:
    base = random_mdp(np.random.default_rng(seed), states, 3, horizon)
    return Scaled(
        base.initial, base._transition, base._reward, base._target, base._behavior, sigma=sigma
    )


# ---- sites and loggers -------------------------------------------------------------------------


class Sites(TabularMDP):
    """Episodes come from so many sites, drawn again for every log; each adds its own amount to
    every reward, or to that of action 1. The log is without the site."""

    sites: int
    spread: float
    treated: bool

    def __init__(
        self, *tables: Any, sites: int, spread: float, treated: bool, **options: Any
    ) -> None:
        super().__init__(*tables, **options)
        vars(self).update(sites=sites, spread=spread, treated=treated)

    def _rollout(self, n: int, rng: np.random.Generator | int) -> Rollout:
        rng = as_generator(rng)
        of = super()._rollout(n, rng)
        effect = (self.spread * rng.standard_normal(self.sites))[site_of(n, self.sites)]
        where = of.actions == 1 if self.treated else np.ones_like(of.actions)
        return replace(of, rewards=of.rewards + where * effect[:, None])


def with_sites(log: EpisodeLog, world: World) -> EpisodeLog:
    """The log of `Sites` with the site of each episode as its cluster."""
    assert isinstance(world, Sites)
    site = site_of(log.n_episodes, world.sites)[log.steps.episode]
    columns = replace(log.columns, cluster="site")
    return replace(log, steps=replace(log.steps, cluster=site), columns=columns, _cache={})


def site_of(n: int, sites: int) -> Ints:
    """The site of each episode: by turns."""
    return np.arange(n) % sites


def at_sites(seed: int, sites: int, spread: float, treated: bool, horizon: int) -> Sites:
    base = random_mdp(np.random.default_rng(seed), 4, 2, horizon)
    tables = (base._transition, base._reward, base._target, base._behavior)
    return Sites(base.initial, *tables, 0.3, sites=sites, spread=spread, treated=treated)


class Loggers(TabularMDP):
    """Episodes of several loggers, each with its own propensities in the log."""

    behaviors: tuple[Floats, ...]

    def __init__(self, *tables: Any, behaviors: Sequence[Floats], **options: Any) -> None:
        super().__init__(*tables, **options)
        vars(self).update(behaviors=tuple(behaviors))

    def with_behavior(self, mu: Floats) -> TabularMDP:
        tables = (self._transition[0], self._reward[0], self._target[0], mu)
        return TabularMDP(self.initial, *tables, self._reward_sd, horizon=self.horizon)

    @cached_property
    def _parts(self) -> list[TabularMDP]:
        return [self.with_behavior(mu) for mu in self.behaviors]

    @property
    def target(self) -> Any:  # the labels of a log of any logger
        return ColumnPolicy("target_prob")

    def _rollout(self, n: int, rng: np.random.Generator | int) -> Rollout:
        rng = as_generator(rng)
        counts = rng.multinomial(n, np.full(len(self._parts), 1 / len(self._parts)))
        parts = [p._rollout(k, rng) for p, k in zip(self._parts, counts, strict=True) if k]
        return joined(parts, rng.permutation(n))


class Adaptive(Loggers):
    """A logger that after each fifth of the episodes prefers what paid more so far."""

    def _rollout(self, n: int, rng: np.random.Generator | int) -> Rollout:
        rng = as_generator(rng)
        mu = self._behavior[0]
        paid, tried = np.zeros((2, *mu.shape))
        parts = []
        for k in np.diff(np.linspace(0, n, 6).astype(int)).tolist():
            parts.append(of := self.with_behavior(mu)._rollout(k, rng))
            at = of.states[:, :-1], of.actions
            np.add.at(paid, at, of.rewards)
            np.add.at(tried, at, 1.0)
            mean = (paid + 0.5) / (tried + 1)
            best = np.eye(mu.shape[1])[mean.argmax(axis=1)]
            mu = epsilon_soft(best, 0.5)
        return joined(parts, np.arange(n))


def joined(parts: Sequence[Rollout], order: Ints) -> Rollout:
    """The episodes of several rollouts, in this order."""
    names = ("states", "actions", "rewards", "behavior_prob", "target_prob")
    return Rollout(
        *(np.concatenate([getattr(part, name) for part in parts])[order] for name in names)
    )


def logged_by(seed: int, how: str, horizon: int, apart: float = 0.4) -> Loggers:
    """Two loggers, `apart` × even + the rest drawn; or one that adapts."""
    rng = np.random.default_rng(seed)
    base = random_mdp(rng, 4, 3, horizon, time_varying=False)
    behaviors = [apart / 3 + (1 - apart) * rng.dirichlet(np.ones(3), 4) for _ in range(2)]
    kind = Adaptive if how == "adaptive" else Loggers
    tables = (base._transition[0], base._reward[0], base._target[0], np.full((4, 3), 1 / 3))
    return kind(base.initial, *tables, 0.3, horizon=horizon, behaviors=behaviors)


# ---- games and many states ---------------------------------------------------------------------

LAKES = {
    "4x4": ("SFFF", "FHFH", "FFFH", "HFFG"),
    "8x8": ("SFFFFFFF", "FFFFFFFF", "FFFHFFFF", "FFFFFHFF", "FFFHFFFF", "FHHFFFHF", "FHFFHFHF",
            "FFFHFFFG"),
    "cliff": ("FFFFFFFF", "FFFFFFFF", "FFFFFFFF", "SHHHHHHG"),
}  # fmt: skip


def lake(ice: str, horizon: int, target: float, behavior: float, slip: float = 1 / 3) -> TabularMDP:
    """A walk on ice to a goal that pays 1; holes end it. Both policies take the best way but for
    a share of even draws."""
    rows = LAKES[ice]
    width, kinds = len(rows[0]), "".join(rows)
    n = len(kinds)
    P, r = np.zeros((2, n + 1, 4, n + 1))
    ends = [s for s, kind in enumerate(kinds) if kind in "HG"]
    for s in range(n):
        y, x = divmod(s, width)
        for a in range(4):
            for turn, chance in ((-1, slip), (0, 1 - 2 * slip), (1, slip)):
                dy, dx = ((0, -1), (1, 0), (0, 1), (-1, 0))[(a + turn) % 4]
                to = min(max(y + dy, 0), len(rows) - 1) * width + min(max(x + dx, 0), width - 1)
                P[s, a, to] += chance
    r[:, :, kinds.index("G")] = 1.0
    P[n, :, n] = 1.0
    initial = np.zeros(n + 1)
    initial[kinds.index("S")] = 1.0
    even = np.full((n + 1, 4), 0.25)
    plain = TabularMDP(initial, P, r, even, even, horizon=horizon, terminal=[*ends, n])
    V = np.zeros(n + 1)
    for _ in range(500):
        Q = (P * (r + 0.99 * V)).sum(axis=2)
        V = np.where(np.isin(np.arange(n + 1), [*ends, n]), 0.0, Q.max(axis=1))
    best = np.eye(4)[Q.argmax(axis=1)]
    pi, mu = epsilon_soft(best, target), epsilon_soft(best, behavior)
    return TabularMDP(initial, P, r, pi, mu, horizon=horizon, terminal=plain.terminal)


def thousand(seed: int, states: int, horizon: int, overlap: float, tilt: float) -> TabularMDP:
    """Many states, each with four successors."""
    rng = np.random.default_rng(seed)
    S, A = states, 3
    P = np.zeros((S, A, S))
    to = rng.integers(0, S, (S, A, 4))
    for k, chance in enumerate((0.4, 0.3, 0.2, 0.1)):
        np.add.at(P, (*np.indices((S, A)), to[..., k]), chance)
    r = np.broadcast_to(rng.random((S, A, 1)), P.shape)
    mu = overlap / A + (1 - overlap) * rng.dirichlet(np.ones(A), S)
    initial = rng.dirichlet(np.ones(S))
    base = TabularMDP(initial, P, r, mu, mu, 0.3, horizon=horizon)
    gain = advantage(base, base.behavior_array)[0]
    return TabularMDP(initial, P, r, tilted(mu, gain, tilt), mu, 0.3, horizon=horizon)


# ---- continuous states, of which the log has bins ------------------------------------------------


@dataclass(frozen=True, eq=False)
class Played:
    """A world that is simulated: `play(n, rng, by_target)` makes episodes of the behavior or of the
    target, with the states of the log."""

    horizon: int
    play: Callable[[int, np.random.Generator, bool], Rollout]
    discount: ClassVar[float] = 1.0

    @property
    def target(self) -> Any:
        return ColumnPolicy("target_prob")

    @property
    def behavior(self) -> Any:
        return ColumnPolicy("behavior_prob")

    def simulate(self, n: int, rng: np.random.Generator | int) -> EpisodeLog:
        return self.play(n, as_generator(rng), False).log(discount=1.0)

    def value(self) -> TrueValue:
        return self._mean(True)

    def behavior_value(self) -> TrueValue:
        return self._mean(False)

    def _mean(self, by_target: bool) -> TrueValue:
        rng = np.random.default_rng([17, by_target])
        of = [self.play(BATCH, rng, by_target).returns() for _ in range(TRUTH // BATCH)]
        returns = np.concatenate(of)
        return TrueValue(returns.mean(), returns.std() / np.sqrt(len(returns)))


@dataclass(frozen=True, eq=False)
class Task:
    """x (n, k) moves by `step(x, a, noise)`, pays `reward(x, a)`, ends where `over(x)`; actions are
    0 or 1, action 1 with probability logistic(scale × `lean(x)`)."""

    start: Callable[[np.random.Generator, int], Floats]
    step: Callable[[Floats, Ints, Floats], Floats]
    reward: Callable[[Floats, Ints], Floats]
    lean: Callable[[Floats], Floats]
    low: tuple[float, ...]
    high: tuple[float, ...]
    over: Callable[[Floats], NDArray[np.bool_]] | None = None

    def cell(self, x: Floats, bins: int) -> Ints:
        """The cell of an even grid over the box from low to high."""
        low, high = np.array(self.low), np.array(self.high)
        at = np.clip(((x - low) / (high - low) * bins).astype(np.int64), 0, bins - 1)
        code: Ints = at @ bins ** np.arange(x.shape[-1])
        return code


def _pole(x: Floats, a: Ints, z: Floats) -> Floats:
    """A pole on a cart, linear about the upright: angle, its speed, the cart's speed."""
    force = 2.0 * a - 1
    angle, turn, speed = x.T
    turned = turn + 0.1 * (1.2 * angle - 0.5 * force) + 0.03 * z[:, 0]
    return np.stack([angle + 0.1 * turn, turned, speed + 0.1 * force + 0.03 * z[:, 1]], axis=1)


def _swing(x: Floats, a: Ints, z: Floats) -> Floats:
    angle, speed = x.T
    faster = np.clip(speed + 0.3 * np.sin(angle) + 0.5 * (2 * a - 1) + 0.1 * z[:, 0], -3, 3)
    return np.stack([(angle + 0.3 * faster + np.pi) % (2 * np.pi) - np.pi, faster], axis=1)


def _level(x: Floats, a: Ints, z: Floats) -> Floats:
    level, stock = x.T
    moved = 0.9 * level + 0.3 - 0.8 * stock + 0.3 * z[:, 0]
    return np.stack([moved, 0.5 * stock + 0.5 * a], axis=1)


def _lander(x: Floats, a: Ints, z: Floats) -> Floats:
    height, speed = x.T
    faster = speed - 0.08 + 0.16 * a + 0.03 * z[:, 0]
    return np.stack([np.maximum(height + faster, 0.0), faster], axis=1)


TASKS = {
    "pole": Task(
        lambda rng, n: rng.uniform(-0.1, 0.1, (n, 3)), _pole,
        lambda x, a: np.ones(len(x)),
        lambda x: 4 * (x[:, 0] + 0.5 * x[:, 1]) + 0.3 * x[:, 2],
        (-0.5, -1.0, -1.5), (0.5, 1.0, 1.5), lambda x: np.abs(x[:, 0]) > 0.5,
    ),
    "swing": Task(
        lambda rng, n: np.stack([rng.uniform(-np.pi, np.pi, n), rng.uniform(-1, 1, n)], axis=1),
        _swing, lambda x, a: np.cos(x[:, 0]) - 0.05 * x[:, 1] ** 2, lambda x: x[:, 1],
        (-np.pi, -3.0), (np.pi, 3.0),
    ),
    "level": Task(
        lambda rng, n: np.stack([rng.normal(1, 1, n), np.zeros(n)], axis=1), _level,
        lambda x, a: -np.abs(x[:, 0] - 1) - 0.1 * a, lambda x: x[:, 0] - 1,
        (-2.0, 0.0), (4.0, 1.0),
    ),
    "lander": Task(
        lambda rng, n: np.stack([rng.uniform(1, 2, n), rng.uniform(-0.2, 0, n)], axis=1), _lander,
        lambda x, a: np.where(x[:, 0] <= 0, -20 * x[:, 1] ** 2, -0.05 * a),
        lambda x: 6 * (-x[:, 1] - 0.2 * x[:, 0]), (0.0, -0.8), (2.5, 0.4),
        lambda x: x[:, 0] <= 0,
    ),
}  # fmt: skip


def logistic(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))


def control(
    task: str, horizon: int, bins: int, target: float, behavior: float, logged: str = "true"
) -> Played:
    """A task with a target and a behavior of these scales. `logged`: "true" propensities, or those
    of a "classifier" (a logistic regression on the raw state) fitted to the log."""
    of = TASKS[task]

    def play(n: int, rng: np.random.Generator, by_target: bool) -> Rollout:
        x = of.start(rng, n)
        cells, a = np.empty((n, horizon + 1), np.int64), np.empty((n, horizon), np.int64)
        r, up_mu, up_pi = np.zeros((3, n, horizon))
        raw = np.empty((n, horizon, x.shape[1]))
        lengths = np.full(n, horizon)
        for t in range(horizon):
            cells[:, t], raw[:, t] = of.cell(x, bins), x
            lean = of.lean(x)
            up_mu[:, t] = 0.05 + 0.9 * logistic(behavior * lean)
            up_pi[:, t] = 0.05 + 0.9 * logistic(target * lean)
            a[:, t] = rng.random(n) < (up_pi if by_target else up_mu)[:, t]
            x = of.step(x, a[:, t], rng.standard_normal((n, 2)))
            active = lengths > t
            r[:, t] = of.reward(x, a[:, t]) * active
            if of.over is not None:
                lengths = np.where(active & of.over(x), t + 1, lengths)
        cells[:, horizon] = of.cell(x, bins)
        if logged == "classifier" and not by_target:
            inside = np.arange(horizon) < lengths[:, None]
            up_mu = fitted(raw, a, inside)
        took = [np.where(a == 1, up, 1 - up) for up in (up_mu, up_pi)]
        ends = None if of.over is None else lengths
        return Rollout(cells, a, r, took[0], took[1], ends)

    return Played(horizon, play)


def fitted(x: Floats, a: Ints, inside: NDArray[np.bool_]) -> Floats:
    """P(a = 1 | x) by logistic regression on x and its squares, by Newton's method."""
    features = np.concatenate([np.ones((*x.shape[:2], 1)), x, x**2], axis=2)
    X, y = features[inside], a[inside]
    beta = np.zeros(X.shape[1])
    for _ in range(15):
        p = logistic(X @ beta)
        slope = (X * (p * (1 - p))[:, None]).T @ X + 1e-3 * np.eye(len(beta))
        beta += np.linalg.solve(slope, X.T @ (y - p))
    fit: Floats = np.clip(logistic(features @ beta), 0.01, 0.99)
    return fit


def car(bins: int) -> Played:
    """Mountain Car, of which the log has bins × bins cells of position and speed."""
    base = MountainCar()

    def play(n: int, rng: np.random.Generator, by_target: bool) -> Rollout:
        of = base._rollout(n, rng)
        place, speed = np.moveaxis(of.states, -1, 0).astype(float)
        x, v = np.clip((place + 77) / 110, 0, 0.999), np.clip((speed + 18) / 37, 0, 0.999)
        return replace(of, states=(x * bins).astype(np.int64) * bins + (v * bins).astype(np.int64))

    class Binned(Played):
        def value(self) -> TrueValue:
            return base.value()

        def behavior_value(self) -> TrueValue:
            return base.behavior_value()

    return Binned(base.horizon, play)


def confounded(horizon: int, strength: float, effect: float) -> Played:
    """A patient is frail or not, which is in no column, moves the decisions and lowers the
    rewards; the logged propensities are the average ones, which fit the log in every state."""

    def play(n: int, rng: np.random.Generator, by_target: bool) -> Rollout:
        frail = rng.random((n, horizon)) < 0.5
        states = (rng.random((n, horizon + 1)) < 0.5).astype(np.int64)
        mean = np.where(states[:, :-1] == 1, 0.6, 0.4)
        up_pi = np.full((n, horizon), 0.8)
        chance = up_pi if by_target else mean + strength * np.where(frail, 1, -1)
        a = (rng.random((n, horizon)) < chance).astype(np.int64)
        r = 0.3 * a + 0.5 * states[:, :-1] - effect * frail + 0.3 * rng.standard_normal(a.shape)
        took = [np.where(a == 1, up, 1 - up) for up in (mean, up_pi)]
        return Rollout(states, a, r, took[0], took[1])

    return Played(horizon, play)
