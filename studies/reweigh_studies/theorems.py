"""Many logs of a small world at once: MIS, DM and their errors, drawn or enumerated.

The estimators here need only how often each (t,s,a,s') occurs, so a log is its counts. The counts
of many logs are drawn as the Markov chain that they are, whatever n, or listed with their
probabilities where a world is tiny. It is a second implementation of MIS and of DM, dense and
without a log, against which the first is tested.

The axes are t step, r log (one of R), s and x state and next state, a action.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from reweigh.errors import UsageError, check_whole, must_be
from reweigh.system import divided
from reweigh.theory.exact import clipped
from reweigh.worlds.random_worlds import random_mdp
from reweigh.worlds.tabular import TabularMDP
from reweigh.worlds.world import Rollout, as_generator

Floats = npt.NDArray[np.float64]
MOST_LOGS = 1_000_000


@dataclass(frozen=True, eq=False)
class Logs:
    """R logs of n episodes each, as sums.

    probability  (R,)             of each log; 1/R where the logs were drawn
    drawn        whether chance chose the logs, so that a mean over them has an error
    visits       (H+1, R, S)      n_t(s)
    moves        (H, R, S, A, S)  n_t(s,a,s')
    rewards      (H, R, S, A)     the sum of the rewards of the rows at (t,s,a)
    """

    n: int
    probability: Floats
    drawn: bool
    visits: Floats
    moves: Floats
    rewards: Floats

    def mean(self, x: Floats) -> Mean:
        """E[x] of a number per log."""
        value = float(self.probability @ x)
        if not self.drawn:
            return Mean(value, 0.0)
        return Mean(value, float(np.sqrt(self.probability @ (x - value) ** 2 / (len(x) - 1))))

    def covariance(self, x: Floats) -> Floats:
        """Cov[x] of a vector per log, (R, K) to (K, K)."""
        centered = x - self.probability @ x
        found: Floats = (centered * self.probability[:, None]).T @ centered
        return found


@dataclass(frozen=True)
class Mean:
    """An expectation and its Monte-Carlo standard error, 0 where it is exact."""

    value: float
    error: float


@dataclass(frozen=True, eq=False)
class Steps:
    """One-step operators of every log: transition (H, R, S, S), reward (H, R, S)."""

    transition: Floats
    reward: Floats


@dataclass(frozen=True, eq=False)
class Estimates:
    """values (R,), and d_t^π(s) as estimated, (H+1, R, S)."""

    values: Floats
    marginals: Floats


def drawn_logs(mdp: TabularMDP, n: int, replicates: int, rng: np.random.Generator | int) -> Logs:
    """R logs of n episodes of the behavior, at a cost that does not depend on n.

    Given n_t(s), the moves out of s are multinomial, and the sum of their Gaussian noises is
    Gaussian with the sum of their variances.
    """
    n, R = check_whole("n", n, 1), check_whole("replicates", replicates, 2)
    rng = as_generator(rng)
    H, S, A = mdp.horizon, mdp.n_states, mdp.n_actions
    visits, moves = np.empty((H + 1, R, S)), np.empty((H, R, S, A, S))
    count = rng.multinomial(n, mdp.initial / mdp.initial.sum(), size=R)
    for t in range(H):
        visits[t] = count
        # (a_t, s_{t+1}) | s_t  ~  μ_t(a|s) P_t(s'|s,a)
        cell = (mdp.behavior_array[t][..., None] * mdp.transition[t]).reshape(S, A * S)
        move = rng.multinomial(count, cell / cell.sum(axis=1, keepdims=True)).reshape(R, S, A, S)
        moves[t], count = move, move.sum(axis=(1, 2))
    visits[H] = count
    rewards = _reward_sums(mdp, moves)
    if mdp.reward_sd.any():
        variance = np.einsum("trsax,tsax->trsa", moves, mdp.reward_sd**2, optimize=True)
        rewards += np.sqrt(variance) * rng.standard_normal(rewards.shape)
    return Logs(n, np.full(R, 1 / R), True, visits, moves, rewards)


def counted_logs(mdp: TabularMDP, rollout: Rollout, replicates: int) -> Logs:
    """The episodes of a roll-out as R logs, the first n episodes making the first."""
    R, H, S, A = replicates, mdp.horizon, mdp.n_states, mdp.n_actions
    n, rest = divmod(len(rollout.rewards), R)
    if rest:
        raise must_be("replicates", f"a divisor of {len(rollout.rewards)} episodes", replicates)
    s, log = rollout.states, np.repeat(np.arange(R), n)
    # the number of the place (t, r, s, a, s') among all places
    node = (np.arange(H) * R + log[:, None]) * S + s[:, :-1]
    pair = node * A + rollout.actions
    moves = np.bincount((pair * S + s[:, 1:]).ravel(), minlength=H * R * S * A * S)
    rewards = np.bincount(pair.ravel(), rollout.rewards.ravel(), minlength=H * R * S * A)
    at = (np.arange(H + 1) * R + log[:, None]) * S + s
    visits = np.bincount(at.ravel(), minlength=(H + 1) * R * S)
    return Logs(
        n,
        np.full(R, 1 / R),
        True,
        visits.reshape(H + 1, R, S).astype(float),
        moves.reshape(H, R, S, A, S).astype(float),
        rewards.reshape(H, R, S, A).astype(float),
    )


def every_log(mdp: TabularMDP, n: int) -> Logs:
    """All logs of n episodes that the behavior can make, with their probabilities.

    The order of the episodes does not matter, so a log is a multiset of trajectories:
    p = n! Π_k p_k^{c_k}/c_k!. Rewards must be without noise.
    """
    if mdp.reward_sd.any():
        raise UsageError("the logs of a world with noisy rewards cannot be listed")
    H, S, A = mdp.horizon, mdp.n_states, mdp.n_actions
    p, path = every_trajectory(mdp)
    found = 1.0
    for k in range(n):
        found *= (len(p) + k) / (k + 1)
    if found > MOST_LOGS:
        raise UsageError(f"there are {found:.3g} logs of {n} episodes, too many to list")
    members = np.array(list(combinations_with_replacement(range(len(p)), n)))
    R = len(members)
    number = (np.arange(R)[:, None] * len(p) + members).ravel()
    c = np.bincount(number, minlength=R * len(p)).reshape(R, len(p)).astype(float)
    probability = np.exp(gammaln(n + 1) - gammaln(c + 1).sum(axis=1) + c @ np.log(p))
    visits, moves = np.zeros((H + 1, R, S)), np.zeros((H, R, S, A, S))
    visits[0] = c @ np.eye(S)[path[:, 0, 0]]
    for t in range(H):
        s, a, x = path[:, t].T
        moves[t] = (c @ np.eye(S * A * S)[(s * A + a) * S + x]).reshape(R, S, A, S)
        visits[t + 1] = moves[t].sum(axis=(1, 2))
    return Logs(n, probability, False, visits, moves, _reward_sums(mdp, moves))


def every_trajectory(mdp: TabularMDP) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Probability (L,) and (s_t, a_t, s_{t+1}) as (L, H, 3) of all that the behavior can do."""
    H, S, A = mdp.horizon, mdp.n_states, mdp.n_actions
    p, path = mdp.initial, np.empty((S, 0, 3), dtype=np.int64)
    here = np.arange(S)
    s, a, x = (i.ravel() for i in np.indices((S, A, S)))
    for t in range(H):
        cell = (mdp.behavior_array[t][..., None] * mdp.transition[t]).ravel()
        old, move = np.nonzero((here[:, None] == s) & (p[:, None] * cell > 0))
        p = p[old] * cell[move]
        step = np.stack([s[move], a[move], x[move]], axis=1)
        path, here = np.concatenate([path[old], step[:, None]], axis=1), x[move]
    return p, path


def _reward_sums(mdp: TabularMDP, moves: Floats) -> Floats:
    sums: Floats = np.einsum("trsax,tsax->trsa", moves, mdp.reward, optimize=True)
    return sums


def action_ratio(mdp: TabularMDP) -> Floats:
    """ρ_t(s,a) = π/μ, 0 where μ is 0: (H, S, A)."""
    return divided(mdp.target_array, mdp.behavior_array)


def importance_steps(mdp: TabularMDP, logs: Logs) -> Steps:
    """The one-step operators of MIS.

    P̂_t(s'|s) = 1/n_t(s) Σ_i ρ_t 1(s_t=s, s_{t+1}=s'),  r̂_t(s) = 1/n_t(s) Σ_i ρ_t r_t 1(s_t=s)
    """
    rho, visits = action_ratio(mdp), logs.visits[:-1]
    moved = np.einsum("trsax,tsa->trsx", logs.moves, rho, optimize=True)
    earned = np.einsum("trsa,tsa->trs", logs.rewards, rho, optimize=True)
    return Steps(divided(moved, visits[..., None]), divided(earned, visits))


def model_steps(mdp: TabularMDP, logs: Logs) -> Steps:
    """The one-step operators of DM; an action that was never seen has no mass.

    P̂_t(s'|s) = Σ_a π_t(a|s) n_t(s,a,s')/n_t(s,a),  r̂_t(s) = Σ_a π_t(a|s) r̂_t(s,a)
    """
    # π_t(a|s)/n_t(s,a)
    share = divided(mdp.target_array[:, None], logs.moves.sum(axis=4))
    return Steps(
        np.einsum("trsax,trsa->trsx", logs.moves, share, optimize=True),
        np.einsum("trsa,trsa->trs", logs.rewards, share, optimize=True),
    )


def exact_steps(mdp: TabularMDP) -> tuple[Floats, Floats]:
    """P^π_t(s'|s) (H, S, S) and r^π_t(s) (H, S)."""
    joint = mdp.target_array[..., None] * mdp.transition
    return joint.sum(axis=2), np.sum(joint * mdp.reward, axis=(2, 3))


def forward(mdp: TabularMDP, logs: Logs, steps: Steps, *, simplex: bool = False) -> Estimates:
    """v = Σ_t γ^t <d_t, r_t> with d_0 the share of starts and d_{t+1} = P_t d_t.

    With `simplex`, d_{t+1} is divided by its sum.
    """
    d = np.empty_like(logs.visits)
    d[0] = logs.visits[0] / logs.n
    values = np.zeros(len(logs.probability))
    for t in range(mdp.horizon):
        values += mdp.discount**t * np.sum(d[t] * steps.reward[t], axis=1)
        d[t + 1] = np.einsum("rs,rsx->rx", d[t], steps.transition[t])
        if simplex:
            d[t + 1] = divided(d[t + 1], d[t + 1].sum(axis=1, keepdims=True))
    return Estimates(values, d)


@dataclass(frozen=True, eq=False)
class Replicates:
    """The estimate of each estimator on each log, all (R,), and the true value.

    plain, simplex  MIS as it is, and with d_t on the simplex
    clipped         plain MIS cut to [0, v_max]
    dm              the direct method
    """

    value: float
    plain: Floats
    clipped: Floats
    simplex: Floats
    dm: Floats


def replicates(mdp: TabularMDP, logs: Logs, *, v_max: float | None = None) -> Replicates:
    """All estimators of all logs; `v_max` is the largest V_t^π(s) unless given."""
    V = mdp.state_values(mdp.target_array)
    high = float(V.max()) if v_max is None else v_max
    steps = importance_steps(mdp, logs)
    plain = forward(mdp, logs, steps).values
    return Replicates(
        value=float(mdp.initial @ V[0]),
        plain=plain,
        clipped=clipped(plain, 0.0, high),
        simplex=forward(mdp, logs, steps, simplex=True).values,
        dm=forward(mdp, logs, model_steps(mdp, logs)).values,
    )


def random_worlds() -> dict[str, TabularMDP]:
    """Ten random worlds unlike each other, on which the asymptotics are checked."""
    return {
        "default": random_mdp(1, reward_sd=0.3),
        "noisy": random_mdp(2, 3, 2, 4, reward_sd=1.0),
        "one-state": random_mdp(3, 1, 3, 6, reward_sd=0.5),
        "one-step": random_mdp(4, 4, 3, 1, concentration=2),
        "many-states": random_mdp(5, 6, 2, 4, concentration=4),
        "many-actions": random_mdp(6, 2, 8, 4, overlap=0.3),
        "long": random_mdp(7, 2, 2, 12, overlap=0.7),
        "discounted": random_mdp(8, 3, 3, 6, discount=0.8, reward_sd=0.2),
        "early-end": random_mdp(9, 4, 2, 5, terminal=1, concentration=2),
        "homogeneous": random_mdp(10, 3, 2, 6, time_varying=False),
    }


def mixing_worlds() -> tuple[TabularMDP, ...]:
    """Six worlds that visit every state often, so that Theorem 4.1 holds from feasible n on."""
    shapes = [(2, 2, 0.0), (2, 4, 0.5), (3, 3, 0.0), (3, 6, 1.0), (1, 8, 0.0), (2, 10, 0.2)]
    return tuple(
        random_mdp(seed, S, 2, H, concentration=8, overlap=0.7, reward_sd=sd)
        for seed, (S, H, sd) in enumerate(shapes)
    )


def tilted_world(
    rewards: npt.ArrayLike, tilt: float = 0.3, *, reward_sd: float = 0.0, fate: float = 0.0
) -> TabularMDP:
    """Two actions that change nothing, of ratios 1 ± 2 tilt, and a mean reward per step.

    With `fate`, an episode keeps one of two states to its end, by a coin; in the second all its
    rewards are `fate` higher.
    """
    mean = np.asarray(rewards, dtype=float)
    S = 2 if fate else 1
    r = np.tile(mean[:, None, None, None], (1, S, 2, S))
    r[:, -1] += fate
    stays = np.repeat(np.eye(S)[:, None], 2, axis=1)
    pi, mu = [[0.5 + tilt, 0.5 - tilt]] * S, [[0.5, 0.5]] * S
    return TabularMDP(np.full(S, 1 / S), stays, r, pi, mu, reward_sd)
