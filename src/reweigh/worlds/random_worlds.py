"""Random worlds, for tests, studies and for showing a method on more than one example."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from reweigh.errors import check, check_whole, must_be
from reweigh.worlds.improvement import advantage, epsilon_soft, tilted
from reweigh.worlds.tabular import HiddenMDP, TabularMDP, as_floats, check_rows
from reweigh.worlds.world import Floats, as_generator


def random_mdp(
    rng: np.random.Generator | int,
    n_states: int = 4,
    n_actions: int = 3,
    horizon: int = 5,
    *,
    concentration: float = 1.0,
    overlap: float = 0.5,
    reward_sd: float = 0.0,
    discount: float = 1.0,
    terminal: int = 0,
    time_varying: bool = True,
) -> TabularMDP:
    """A random world: Dirichlet rows, mean rewards uniform on [0, 1).

    Small `concentration` makes rows sparse, large makes them uniform. Both policies are
    `overlap` × uniform + (1 - `overlap`) × Dirichlet, so no ratio π/μ exceeds
    1 + n_actions (1 - overlap)/overlap. The last `terminal` of the states are terminal.
    """
    rng = as_generator(rng)
    S, A = check_whole("n_states", n_states, 1), check_whole("n_actions", n_actions, 1)
    H, ends = check_whole("horizon", horizon, 1), check_whole("terminal", terminal, 0)
    check(ends < S, "terminal", f"less than n_states = {S}", terminal)
    check(0 < overlap <= 1, "overlap", "in (0, 1]", overlap)
    check(0 < concentration < np.inf, "concentration", "a positive number", concentration)
    time = (H,) if time_varying else ()

    def rows(size: int, *shape: int) -> Floats:
        return rng.dirichlet(np.full(size, float(concentration)), (*time, *shape))

    initial = np.zeros(S)
    initial[: S - ends] = rng.dirichlet(np.full(S - ends, float(concentration)))
    return TabularMDP(
        initial,
        transition=rows(S, S, A),
        reward=rng.random((*time, S, A, S)),
        target=overlap / A + (1 - overlap) * rows(A, S),
        behavior=overlap / A + (1 - overlap) * rows(A, S),
        reward_sd=reward_sd,
        horizon=H,
        discount=discount,
        terminal=range(S - ends, S),
    )


@dataclass(frozen=True)
class RandomWorld:
    """A random world by its description: `build()` makes the same one, whenever and wherever.

    The first fields are those of `random_mdp`, which draws the tables from `seed`. Then, in this
    order:

    hidden  so many of the living states are hidden in the log, and share one row of each policy
    rare    the behavior takes action 0 with this probability in every state, its other actions as
            before in proportion; the target, if not tilted, goes on taking it (0: no overlap)
    tilt    β of π ∝ μ exp(β A) with A the behavior's advantage: a target that is better than
            the behavior for β > 0. Where rows of a policy serve several steps or hidden states, A
            is their mean, weighted by γ^t d_t^μ(s): the direction in which the value rises.
            None: the target is drawn, and on average no better
    """

    seed: int
    n_states: int = 4
    n_actions: int = 3
    horizon: int = 5
    concentration: float = 1.0
    overlap: float = 0.5
    reward_sd: float = 0.0
    discount: float = 1.0
    terminal: int = 0
    time_varying: bool = True
    hidden: int = 0
    rare: float | None = None
    tilt: float | None = None

    def __post_init__(self) -> None:
        check_whole("seed", self.seed, 0)
        living = self.n_states - self.terminal
        check(
            check_whole("hidden", self.hidden, 0) < living,
            "hidden",
            f"less than the {living} living states",
            self.hidden,
        )
        check(
            self.rare is None or (0 <= self.rare < 1 and self.n_actions > 1),
            "rare",
            "None, or in [0, 1) with at least two actions",
            self.rare,
        )
        check(
            self.tilt is None or np.isfinite(self.tilt),
            "tilt",
            "None, or a finite number",
            self.tilt,
        )

    @property
    def name(self) -> str:
        """The fields that are not as they are by default, for tables and file names."""
        values = ((f.name, getattr(self, f.name), f.default) for f in fields(self))
        # every digit, so that two worlds never have one name; 3.0 as 3
        changed = (
            f"{name}{int(value) if value == int(value) else value!r}"
            for name, value, default in values
            if value != default
        )
        return "-".join(["random", *changed])

    def build(self) -> TabularMDP:
        """The world; a `HiddenMDP` where states are hidden."""
        options = asdict(self)
        hidden, rare, tilt = (options.pop(name) for name in ("hidden", "rare", "tilt"))
        base = random_mdp(options.pop("seed"), **options)
        unseen = range(base.n_states - self.terminal - hidden, base.n_states - self.terminal)
        pi, mu = base._target.copy(), base._behavior.copy()
        if unseen:  # the first hidden state's row for all of them
            pi[:, unseen], mu[:, unseen] = pi[:, unseen[:1]], mu[:, unseen[:1]]
        if rare is not None:  # Pr(action 0) = rare, the others in proportion
            others = mu[..., 1:] * (1 - rare) / mu[..., 1:].sum(axis=-1, keepdims=True)
            mu = np.concatenate([np.full((*mu.shape[:2], 1), rare), others], axis=-1)
        if tilt is not None:
            with_mu = _with_policies(base, mu, mu, unseen)
            pi = tilted(mu, _shared_advantage(with_mu, mu.shape[0], unseen), tilt)
        return _with_policies(base, pi, mu, unseen)


def _with_policies(base: TabularMDP, pi: Floats, mu: Floats, unseen: range) -> TabularMDP:
    """The base with other policies, given with their time axis."""
    tables = (base._transition, base._reward, pi, mu)
    if len(base._transition) < base.horizon:  # the same at every step
        tables = tuple(table[0] for table in tables)
    options: dict[str, Any] = {
        "reward_sd": base._reward_sd,
        "horizon": base.horizon,
        "discount": base.discount,
        "terminal": base.terminal,
    }
    if unseen:
        return HiddenMDP(base.initial, *tables, hidden=unseen, **options)
    return TabularMDP(base.initial, *tables, **options)


def _shared_advantage(world: TabularMDP, rows: int, unseen: range) -> Floats:
    """The behavior's advantage per row of a policy: (H,S,A), or (1,S,A) where rows is 1."""
    mu = world.behavior_array
    A = advantage(world, mu)
    # γ^t d_t^μ(s), how much a step in s at t counts
    weight = world.state_marginals(mu)[:-1] * world.discount ** np.arange(world.horizon)[:, None]
    weight = weight[..., None]
    if rows == 1:
        A, weight = _mean(A, weight, axis=0), weight.sum(axis=0, keepdims=True)
    if unseen:
        A[:, unseen] = _mean(A[:, unseen], weight[:, unseen], axis=1)
    return A


def _mean(A: Floats, weight: Floats, axis: int) -> Floats:
    """Σ w A / Σ w over an axis, which is kept; 0 where no episode comes."""
    total, mass = (weight * A).sum(axis, keepdims=True), weight.sum(axis, keepdims=True)
    mean: Floats = np.divide(total, mass, out=np.zeros_like(total), where=mass > 0)
    return mean


class Bandit(TabularMDP):
    """A visitor with a context, one of several offers, and a click or none: H = 1.

    `contexts` (S,) are the probabilities of the contexts, `clicks` (S,A) the click probability of
    each offer; `target` and `behavior` (S,A) choose the offer. A click pays 1, so that the value is
    the rate of clicks, Σ_s d(s) Σ_a π(a|s) clicks(s,a). The log has contexts 0..S-1 as states. In
    the tables states S and S+1 are the next states, no click and a click, which makes rewards
    exactly 0 or 1.
    """

    def __init__(
        self, contexts: ArrayLike, clicks: ArrayLike, target: ArrayLike, behavior: ArrayLike
    ) -> None:
        rate = as_floats("clicks", clicks)
        check(
            rate.ndim == 2 and rate.size != 0,
            "clicks",
            "a table of shape (S,A), not empty",
            f"shape {rate.shape}",
        )
        outside = rate[~((rate >= 0) & (rate <= 1))]
        if len(outside):
            raise must_be("clicks", "probabilities, in [0, 1]", float(outside[0]))
        S, A = rate.shape
        given = {"contexts": contexts, "target": target, "behavior": behavior}
        rows = {name: as_floats(name, table) for name, table in given.items()}
        for name, table in rows.items():
            shape = (S,) if name == "contexts" else (S, A)
            check(table.shape == shape, name, f"of shape {shape}, as clicks have it", table.shape)
            check_rows(name, table)
        P, r = np.zeros((2, S + 2, A, S + 2))
        P[:S, :, S], P[:S, :, S + 1] = 1 - rate, rate
        r[:S, :, S + 1] = 1
        outcomes = np.full((2, A), 1 / A)
        super().__init__(
            np.append(rows["contexts"], [0.0, 0.0]),
            P,
            r,
            np.vstack([rows["target"], outcomes]),
            np.vstack([rows["behavior"], outcomes]),
            horizon=1,
            terminal=(S, S + 1),
        )

    @classmethod
    def random(
        cls,
        rng: np.random.Generator | int,
        n_contexts: int = 20,
        n_actions: int = 5,
        *,
        epsilon: float = 0.3,
        tilt: float = 10.0,
    ) -> Bandit:
        """Click rates from Beta(1, 9), and a target that is better than the behavior.

        The behavior offers what a noisy guess ranks first, but for a share `epsilon` of offers
        drawn evenly; the target is π ∝ μ exp(`tilt` × advantage).
        """
        rng = as_generator(rng)
        S, A = check_whole("n_contexts", n_contexts, 1), check_whole("n_actions", n_actions, 1)
        contexts = rng.dirichlet(np.ones(S))
        clicks: Floats = rng.beta(1.0, 9.0, (S, A))
        guess = clicks + 0.1 * rng.standard_normal((S, A))
        behavior = epsilon_soft(np.eye(A)[guess.argmax(axis=1)], epsilon)
        # A(s,a) = clicks(s,a) - Σ_b μ(b|s) clicks(s,b)
        gain = clicks - (behavior * clicks).sum(axis=1, keepdims=True)
        return cls(contexts, clicks, tilted(behavior, gain, tilt), behavior)

    def __repr__(self) -> str:
        return f"Bandit(n_contexts={self.n_states - 2}, n_actions={self.n_actions})"
