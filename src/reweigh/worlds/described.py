"""Random worlds from a description: a few numbers that can be written down and compared."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from reweigh.errors import must_be
from reweigh.worlds.hidden import HiddenMDP
from reweigh.worlds.improvement import advantage, tilted
from reweigh.worlds.randomworld import random_mdp
from reweigh.worlds.tabular import TabularMDP
from reweigh.worlds.world import Floats, as_count


@dataclass(frozen=True)
class RandomWorld:
    """A random world by its description: `build()` makes the same one, whenever and wherever.

    The first fields are those of `random_mdp`, which draws the tables from `seed`. Then, in this
    order:

    hidden  so many of the living states are hidden in the log, and share one row of each policy
    rare    the behavior takes action 0 with this probability in every state, its other actions as
            before in proportion; the target, if not tilted, goes on taking it (0: no overlap)
    tilt    β of π ∝ μ exp(β A) with A the behavior's own advantage: a target that is better than
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
        as_count("seed", self.seed, least=0)
        living = self.n_states - self.terminal
        if as_count("hidden", self.hidden, least=0) >= living:
            raise must_be("hidden", f"less than the {living} living states", self.hidden)
        if self.rare is not None and not (0 <= self.rare < 1 and self.n_actions > 1):
            raise must_be("rare", "None, or in [0, 1) with at least two actions", self.rare)
        if self.tilt is not None and not np.isfinite(self.tilt):
            raise must_be("tilt", "None, or a finite number", self.tilt)

    @property
    def name(self) -> str:
        """The fields that are not as they are by default, for tables and file names."""
        values = ((f.name, getattr(self, f.name), f.default) for f in fields(self))
        # every digit, so that two worlds never have one name; 3.0 as 3
        told = (
            f"{name}{int(value) if value == int(value) else value!r}"
            for name, value, default in values
            if value != default
        )
        return "-".join(["random", *told])

    def build(self) -> TabularMDP:
        """The world; a `HiddenMDP` where states are hidden."""
        drawn = asdict(self)
        hidden, rare, tilt = (drawn.pop(name) for name in ("hidden", "rare", "tilt"))
        base = random_mdp(drawn.pop("seed"), **drawn)
        unseen = range(base.n_states - self.terminal - hidden, base.n_states - self.terminal)
        pi, mu = (_one_row(policy, unseen) for policy in (base._target, base._behavior))
        if rare is not None:
            mu = _seldom(mu, rare)
        if tilt is not None:
            with_mu = _world(base, mu, mu, unseen)
            pi = tilted(mu, _shared_advantage(with_mu, mu.shape[0], unseen), tilt)
        return _world(base, pi, mu, unseen)


def _world(base: TabularMDP, pi: Floats, mu: Floats, unseen: range) -> TabularMDP:
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


def _one_row(policy: Floats, unseen: range) -> Floats:
    """The first hidden state's row for all of them."""
    policy = policy.copy()
    if unseen:
        policy[:, unseen] = policy[:, unseen[:1]]
    return policy


def _seldom(mu: Floats, rare: float) -> Floats:
    """μ with Pr(action 0) = rare, the others in proportion."""
    others = mu[..., 1:] * (1 - rare) / mu[..., 1:].sum(axis=-1, keepdims=True)
    return np.concatenate([np.full((*mu.shape[:2], 1), rare), others], axis=-1)


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
