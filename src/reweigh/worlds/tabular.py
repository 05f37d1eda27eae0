"""Finite worlds given by their tables: exact values, and fast simulation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reweigh.errors import UsageError, check, check_whole, must_be
from reweigh.log.log import EpisodeLog
from reweigh.policy.table import TablePolicy
from reweigh.worlds.world import Floats, Ints, Rollout, TrueValue, as_generator

ROW_TOLERANCE = 1e-9
AXES = {"transition": "S,A,S", "reward": "S,A,S", "target": "S,A", "behavior": "S,A"}


@dataclass(frozen=True, eq=False, repr=False, init=False)
class TabularMDP:
    """A finite-horizon MDP with a target and a behavior policy.

    Symbols: `initial` d_0(s) (S,); `transition` P_t(s'|s,a) and `reward` r_t(s,a,s'), (H,S,A,S),
    or (S,A,S) where time does not matter; `target` π_t(a|s) and `behavior` μ_t(a|s), (H,S,A) or
    (S,A). Rewards are Gaussian around r_t with standard deviation `reward_sd`, a number or an
    array that broadcasts to (H,S,A,S). `horizon` may be left out where a table has a time axis.

    Arriving in a state of `terminal` ends the episode: the reward of that transition counts,
    later ones do not. The tables' entries for a terminal state are replaced by a self-loop
    with reward 0 and by uniform policies, so that every formula may treat it as any other state.

    The attributes `transition`, `reward`, `reward_sd` (H,S,A,S) and `target_array`,
    `behavior_array` (H,S,A) are read-only views; `target` and `behavior` are policies.
    """

    initial: Floats
    horizon: int
    discount: float
    terminal: tuple[int, ...]
    # The tables keep the time axis they came with (1 where time does not matter): a pickled view
    # that repeats it would be written out H times.
    _transition: Floats
    _reward: Floats
    _reward_sd: Floats
    _target: Floats
    _behavior: Floats

    def __init__(
        self,
        initial: ArrayLike,
        transition: ArrayLike,
        reward: ArrayLike,
        target: ArrayLike,
        behavior: ArrayLike,
        reward_sd: ArrayLike = 0.0,
        horizon: int | None = None,
        discount: float = 1.0,
        terminal: Iterable[int] | None = None,
    ) -> None:
        tables, H = _timed_tables(
            {"transition": transition, "reward": reward, "target": target, "behavior": behavior},
            horizon,
        )
        P, r, pi, mu = tables.values()
        S, A = P.shape[1:3]
        d0 = as_floats("initial", initial)
        check(d0.shape == (S,), "initial", f"of shape ({S},), one entry per state", d0.shape)
        ends = _terminal_states(terminal, S)
        sd = _reward_spread(reward_sd, (H, S, A, S))
        check(
            isinstance(discount, (int, float, np.number)) and 0 < discount <= 1,
            "discount",
            "a number in (0, 1]",
            discount,
        )
        for s in ends:
            P[:, s], r[:, s], pi[:, s], mu[:, s] = 0.0, 0.0, 1.0 / A, 1.0 / A
            P[:, s, :, s] = 1.0
            if d0[s]:
                raise UsageError(
                    "the parameter 'initial' must put no mass on a terminal state; got "
                    f"{d0[s]:g} on state {s}: take it out of 'initial' or of 'terminal'"
                )
        if ends:
            sd = sd * ~np.isin(np.arange(S), ends)[:, None, None]
        check_rows("initial", d0)
        for name in ("transition", "target", "behavior"):
            check_rows(name, tables[name])
        if not np.isfinite(r).all():
            raise must_be("reward", "finite everywhere", float(r[~np.isfinite(r)][0]))
        arrays = {f"_{name}": table for name, table in tables.items()}
        arrays |= {"initial": d0, "_reward_sd": sd}
        for array in arrays.values():
            array.setflags(write=False)
        vars(self).update(arrays, horizon=H, discount=float(discount), terminal=ends)

    def __repr__(self) -> str:
        gamma = f", discount={self.discount:g}" if self.discount != 1 else ""
        ends = f", terminal={self.terminal}" if self.terminal else ""
        return (
            f"{type(self).__name__}(n_states={self.n_states}, n_actions={self.n_actions}, "
            f"horizon={self.horizon}{gamma}{ends})"
        )

    @property
    def n_states(self) -> int:
        """S, with the terminal states."""
        return int(self._transition.shape[1])

    @property
    def n_actions(self) -> int:
        """A."""
        return int(self._transition.shape[2])

    @property
    def transition(self) -> Floats:
        """P_t(s'|s,a), (H,S,A,S)."""
        return self._over_time(self._transition)

    @property
    def reward(self) -> Floats:
        """r_t(s,a,s'), the mean reward, (H,S,A,S)."""
        return self._over_time(self._reward)

    @property
    def reward_sd(self) -> Floats:
        """The standard deviation of the reward around its mean, (H,S,A,S)."""
        return np.broadcast_to(self._reward_sd, self.transition.shape)

    @property
    def target_array(self) -> Floats:
        """π_t(a|s), (H,S,A)."""
        return self._over_time(self._target)

    @property
    def behavior_array(self) -> Floats:
        """μ_t(a|s), (H,S,A)."""
        return self._over_time(self._behavior)

    @cached_property
    def target(self) -> TablePolicy:
        """π, the policy to evaluate."""
        return self._policy_of(self._target)

    @cached_property
    def behavior(self) -> TablePolicy:
        """μ, the policy that makes the episodes of `simulate`."""
        return self._policy_of(self._behavior)

    def value(self) -> TrueValue:
        """v^π, exactly."""
        return TrueValue(float(self.initial @ self.state_values(self.target_array)[0]))

    def behavior_value(self) -> TrueValue:
        """v^μ, exactly."""
        return TrueValue(float(self.initial @ self.state_values(self.behavior_array)[0]))

    def state_values(self, policy_array: Floats) -> Floats:
        """V_t(s) of a policy given as (H,S,A) or (S,A): (H+1,S), with V_H = 0."""
        pi, P = self._every_step(policy_array), self.transition
        r = self._over_time(self._mean_reward)
        V = np.zeros((self.horizon + 1, self.n_states))
        for t in reversed(range(self.horizon)):
            # V_t(s) = Σ_a π_t(a|s) [ r̄_t(s,a) + γ Σ_s' P_t(s'|s,a) V_{t+1}(s') ]
            V[t] = (pi[t] * (r[t] + self.discount * (P[t] @ V[t + 1]))).sum(axis=1)
        return V

    def action_values(self, policy_array: Floats) -> Floats:
        """Q_t(s,a) = r̄_t(s,a) + γ Σ_s' P_t(s'|s,a) V_{t+1}(s') of such a policy: (H,S,A)."""
        V, P = self.state_values(policy_array), self.transition
        ahead = np.stack([P[t] @ V[t + 1] for t in range(self.horizon)])
        return self._mean_reward + self.discount * ahead

    def state_marginals(self, policy_array: Floats) -> Floats:
        """d_t(s), how likely such a policy is in a state at a step: (H+1,S)."""
        pi, P = self._every_step(policy_array), self.transition
        d = np.zeros((self.horizon + 1, self.n_states))
        d[0] = self.initial
        for t in range(self.horizon):
            # d_{t+1}(s') = Σ_{s,a} d_t(s) π_t(a|s) P_t(s'|s,a)
            d[t + 1] = np.einsum("s,sa,sax->x", d[t], pi[t], P[t])
        return d

    def simulate(self, n: int, rng: np.random.Generator | int) -> EpisodeLog:
        """n episodes of the behavior policy, with both policies' probabilities logged."""
        rollout = self._rollout(n, rng)
        return rollout.log(discount=self.discount, observed=self._observe(rollout.states))

    def _observe(self, states: Ints) -> NDArray[Any]:
        """The logged part of the true states: a masked array hides some of them."""
        return states

    def _rollout(self, n: int, rng: np.random.Generator | int) -> Rollout:
        n, rng = check_whole("n", n, 1), as_generator(rng)
        H, S, A = self.horizon, self.n_states, self.n_actions
        start, act, move = self._samplers
        s = np.empty((H + 1, n), dtype=np.int64)  # time-major: a step is one contiguous row
        a = np.empty((H, n), dtype=np.int64)
        s[0] = start[0].draw(np.zeros(n, dtype=np.int64), rng)
        for t in range(H):
            a[t] = act[t % len(act)].draw(s[t], rng)
            s[t + 1] = move[t % len(move)].draw(s[t] * A + a[t], rng)
        cell = s[:-1] * A + a
        r = _entries(self._reward, cell * S + s[1:])
        if self._reward_sd.any():
            sd = self.reward_sd[np.arange(H)[:, None], s[:-1], a, s[1:]]
            r += sd * rng.standard_normal((H, n))
        mu, pi = _entries(self._behavior, cell), _entries(self._target, cell)
        lengths = (~np.isin(s[:-1], self.terminal)).sum(axis=0) if self.terminal else None
        return Rollout(s.T, a.T, r.T, mu.T, pi.T, lengths)

    @cached_property
    def _samplers(self) -> tuple[list[RowSampler], ...]:
        """Samplers of s_0, of a_t given s_t, and of s_{t+1} given s_t A + a_t."""
        return (
            [RowSampler.of(self.initial[None])],
            [RowSampler.of(mu) for mu in self._behavior],
            [RowSampler.of(P.reshape(-1, self.n_states)) for P in self._transition],
        )

    @cached_property
    def _mean_reward(self) -> Floats:
        """r̄_t(s,a) = Σ_s' P_t(s'|s,a) r_t(s,a,s'), (H,S,A), or (1,S,A) without time."""
        mean: Floats = np.einsum("tsax,tsax->tsa", self._transition, self._reward)
        return mean

    def _every_step(self, policy_array: Floats) -> Floats:
        """A policy given as (H,S,A) or (S,A), with its time axis."""
        H, S, A = self.horizon, self.n_states, self.n_actions
        if np.shape(policy_array) not in {(H, S, A), (S, A)}:
            rule = f"of shape {(H, S, A)} or {(S, A)}"
            raise must_be("policy_array", rule, np.shape(policy_array))
        return np.broadcast_to(policy_array, (H, S, A))

    def _over_time(self, table: Floats) -> Floats:
        return np.broadcast_to(table, (self.horizon, *table.shape[1:]))

    def _policy_of(self, table: Floats) -> TablePolicy:
        return TablePolicy(table[0] if len(table) == 1 else table)


class HiddenMDP(TabularMDP):
    """A TabularMDP whose log hides the states `hidden`: it has the others, or none.

    A policy cannot distinguish hidden states either, so both policies have the same row for
    all of them (at a step), and `target` and `behavior` have one row for the hidden state. At
    least one state that is not terminal is shown.
    """

    hidden: tuple[int, ...]

    def __init__(self, *tables: Any, hidden: Iterable[int], **options: Any) -> None:
        super().__init__(*tables, **options)
        states = sorted({check_whole("hidden", s, 0) for s in hidden})
        shown = set(range(self.n_states)) - {*states, *self.terminal}
        if not states or states[-1] >= self.n_states or not shown:
            rule = f"states in 0..{self.n_states - 1}, at least one, that leave a living one out"
            raise must_be("hidden", rule, states)
        if set(states) & set(self.terminal):
            rule = f"without the terminal states {self.terminal}, which a log shows by ending"
            raise must_be("hidden", rule, states)
        for name, table in (("target", self._target), ("behavior", self._behavior)):
            if (table[:, states] != table[:, states[:1]]).any():
                raise UsageError(
                    f"the parameter {name!r} must have one row for all hidden states "
                    f"{states}: a policy that distinguishes them uses information that is "
                    "not in the log"
                )
        vars(self).update(hidden=tuple(states))

    def _observe(self, states: Ints) -> NDArray[Any]:
        return np.ma.masked_array(states, np.isin(states, self.hidden))

    def _policy_of(self, table: Floats) -> TablePolicy:
        import pyarrow as pa

        rows = [s for s in range(self.n_states) if s not in self.hidden[1:]]
        labels = np.array([None if s in self.hidden else s for s in rows], object)
        probabilities = table[:, rows]
        step, state, action = (index.reshape(-1) for index in np.indices(probabilities.shape))
        columns = {
            "state": pa.array(labels[state], pa.int64()),
            "action": action,
            "prob": probabilities.reshape(-1),
        }
        return TablePolicy(pa.table(columns if len(table) == 1 else {"step": step, **columns}))


@dataclass(frozen=True, eq=False)
class RowSampler:
    """Draws columns of a row-stochastic matrix, for many rows at once.

    `edges` holds row + cdf(row, ·) for row 0, 1, …: one sorted array for all rows, so that a
    draw is one binary search for row + u, and no draw needs a copy of its row.
    """

    edges: Floats
    width: int
    shrink: float

    @classmethod
    def of(cls, matrix: Floats) -> RowSampler:
        rows, width = matrix.shape
        cdf = np.cumsum(matrix, axis=1)
        cdf /= cdf[:, -1:]  # exactly 1 from the last column with mass onwards
        cdf += np.arange(rows)[:, None]
        # Rounding must not carry row + u to row + 1, so u stays below 1 by the floats' spacing.
        return cls(cdf.ravel(), width, 1.0 - rows * 2.0**-52)

    def draw(self, row: Ints, rng: np.random.Generator) -> Ints:
        x = rng.random(len(row))
        x *= self.shrink
        x += row
        column: Ints = self.edges.searchsorted(x, side="right")
        return column - row * self.width


def _entries(table: Floats, cell: Ints) -> Floats:
    """The table's entries at cells (H, n), numbered within a step; one step may serve all."""
    if len(table) > 1:
        cell = cell + np.arange(len(table))[:, None] * table[0].size
    return table.ravel().take(cell)


# Checks of arguments: each function returns its argument in regular form


def as_floats(parameter: str, value: ArrayLike) -> Floats:
    """A new array of finite or infinite numbers."""
    try:
        return np.array(value, dtype=float)
    except (TypeError, ValueError) as error:
        raise must_be(parameter, "an array of numbers", value) from error


def check_rows(parameter: str, table: Floats) -> None:
    """Every row (last axis) is a probability distribution."""
    sums = table.sum(axis=-1)
    bad = ~(np.abs(sums - 1) <= ROW_TOLERANCE) | (table < 0).any(axis=-1)
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        where = f" (row {place})" if place else ""
        raise UsageError(
            f"the parameter {parameter!r} must be rows of probabilities that sum to 1 within "
            f"{ROW_TOLERANCE:g}; got {table[place].tolist()}{where}, which sums to "
            f"{sums[place]:g}, instead"
        )


def _timed_tables(
    given: Mapping[str, ArrayLike], horizon: int | None
) -> tuple[dict[str, Floats], int]:
    """The tables of AXES with a leading time axis, of length 1 where they have none, and H: the
    horizon as given and as the tables' time axes have it, which must agree."""
    tables: dict[str, Floats] = {}
    steps: dict[str, int] = {}
    for name, axes in AXES.items():
        table, rank = as_floats(name, given[name]), len(axes.split(","))
        if table.ndim not in (rank, rank + 1) or table.size == 0:
            rule = f"a table of shape ({axes}) or (H,{axes}), not empty"
            raise must_be(name, rule, f"shape {table.shape}")
        if table.ndim > rank:
            steps[name] = len(table)
        tables[name] = table if table.ndim > rank else table[None]
    S, A = tables["transition"].shape[1:3]
    for name, table in tables.items():
        expected = (S, A, S)[: table.ndim - 1]
        if table.shape[1:] != expected:
            rule = f"{expected} per step, for {S} states and {A} actions"
            raise must_be(name, rule, table.shape[1:])
    check(horizon is not None or steps, "horizon", "given where no table has a time axis", horizon)
    H = next(iter(steps.values())) if horizon is None else check_whole("horizon", horizon, 1)
    for name, length in steps.items():
        check(length == H, name, f"a table of {H} steps, the horizon", f"{length} steps")
    return tables, H


def _terminal_states(terminal: Iterable[int] | None, n_states: int) -> tuple[int, ...]:
    """The terminal states, sorted, each once."""
    rule = f"an iterable of states, integers in 0..{n_states - 1}, that leaves one out"
    check(isinstance(terminal, Iterable | None), "terminal", rule, terminal)
    states = sorted({check_whole("terminal", s, 0) for s in (() if terminal is None else terminal)})
    check(
        not states or (states[-1] < n_states and len(states) < n_states),
        "terminal",
        rule,
        states,
    )
    return tuple(states)


def _reward_spread(reward_sd: ArrayLike, shape: tuple[int, ...]) -> Floats:
    """The rewards' standard deviations, no larger than given."""
    sd = as_floats("reward_sd", reward_sd)
    try:
        np.broadcast_to(sd, shape)
    except ValueError as error:
        rule = f"a number, or an array that broadcasts to {shape}"
        raise must_be("reward_sd", rule, f"shape {sd.shape}") from error
    check(
        (np.isfinite(sd) & (sd >= 0)).all(),
        "reward_sd",
        "finite and at least 0 everywhere",
        reward_sd,
    )
    return sd
