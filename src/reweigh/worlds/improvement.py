"""Policies made exactly from a behavior and its world: softened, tilted to the better, the best.

"Lasting" values are those without a horizon, of worlds whose tables do not depend on time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reweigh.errors import UsageError, check
from reweigh.worlds.tabular import TabularMDP
from reweigh.worlds.world import Floats

TIE = 1e-9  # values closer than this are equal: rounding must not choose between two actions


def softened(behavior: Floats, share: float) -> Floats:
    """π = (1 - share) μ + share × an even draw among the actions with μ(a|s) > 0."""
    return _mixed(behavior, behavior > 0, "share", share)


def epsilon_soft(policy: Floats, epsilon: float) -> Floats:
    """(1 - ε) of the policy, and ε of an even draw among all actions."""
    return _mixed(policy, np.ones_like(policy, bool), "epsilon", epsilon)


def _mixed(policy: Floats, among: NDArray[np.bool_], parameter: str, share: float) -> Floats:
    """A share of the even draw among these actions, the rest as the policy has it."""
    check(0 <= share <= 1, parameter, "a share in [0, 1]", share)
    mixed: Floats = (1 - share) * policy + share * among / among.sum(axis=-1, keepdims=True)
    return mixed


def tilted(behavior: Floats, advantage: Floats, beta: float) -> Floats:
    """π(a|s) ∝ μ(a|s) exp(β A(s,a)): μ's actions, better ones more often (β > 0)."""
    check(np.isfinite(beta), "beta", "a finite number", beta)
    power = np.where(behavior > 0, beta * advantage, -np.inf)
    pi: Floats = behavior * np.exp(power - power.max(axis=-1, keepdims=True))  # exp(…) <= 1
    pi /= pi.sum(axis=-1, keepdims=True)
    return pi


def advantage(mdp: TabularMDP, policy: Floats) -> Floats:
    """A_t(s,a) = Q_t(s,a) - V_t(s) of a policy until the horizon, (H,S,A)."""
    return mdp.action_values(policy) - mdp.state_values(policy)[:-1, :, None]


def lasting_advantage(mdp: TabularMDP, policy: Floats) -> Floats:
    """A(s,a) = Q(s,a) - V(s) of a policy (S,A) without a horizon, (S,A)."""
    V = lasting_values(mdp, policy)
    return _lasting_action_values(mdp, V) - V[:, None]


def lasting_values(mdp: TabularMDP, policy: Floats) -> Floats:
    """V(s) of a policy (S,A) without a horizon, (S,): V = r̄_π + γ P_π V, and 0 once terminal."""
    P, r = _timeless(mdp)
    living = ~np.isin(np.arange(mdp.n_states), mdp.terminal)
    P_pi = np.einsum("sa,sax->sx", policy, P)
    if mdp.discount == 1:
        _refuse_endless(P_pi, living)
    inner = P_pi[np.ix_(living, living)]
    r_pi = (policy * r).sum(axis=1)[living]
    V = np.zeros(mdp.n_states)
    V[living] = np.linalg.solve(np.eye(len(inner)) - mdp.discount * inner, r_pi)
    return V


def best_policy(mdp: TabularMDP, allowed: NDArray[np.bool_] | None = None) -> Floats:
    """The policy of the highest lasting values, (S,A), one action per state, by policy iteration.

    `allowed` (S,A) marks the actions it may take (default: all; each state needs one). Of
    equally good actions it takes the first; in terminal states, where none matters, all evenly.
    """
    shape = (mdp.n_states, mdp.n_actions)
    may = np.ones(shape, bool) if allowed is None else allowed
    check(
        may.shape == shape and may.any(axis=1).all(),
        "allowed",
        f"{shape}, with at least one action per state",
        allowed,
    )
    policy: Floats = may / may.sum(axis=1, keepdims=True)
    V, total = lasting_values(mdp, policy), -np.inf
    while V.sum() > total + TIE:  # a step that does not improve is the last
        total = float(V.sum())
        Q = np.where(may, _lasting_action_values(mdp, V), -np.inf)
        first = np.argmax(Q.max(axis=1, keepdims=True) - Q <= TIE, axis=1)
        policy = np.eye(mdp.n_actions)[first]
        policy[list(mdp.terminal)] = 1 / mdp.n_actions
        V = lasting_values(mdp, policy)
    return policy


def _lasting_action_values(mdp: TabularMDP, V: Floats) -> Floats:
    """Q(s,a) = r̄(s,a) + γ Σ_s' P(s'|s,a) V(s')."""
    P, r = _timeless(mdp)
    return r + mdp.discount * (P @ V)


def _timeless(mdp: TabularMDP) -> tuple[Floats, Floats]:
    """P(s'|s,a) and r̄(s,a) of a world that is the same at every step."""
    if len(mdp._transition) > 1 or len(mdp._mean_reward) > 1:
        raise UsageError("lasting values need a world whose tables do not depend on time")
    return mdp._transition[0], mdp._mean_reward[0]


def _refuse_endless(P_pi: Floats, living: NDArray[np.bool_]) -> None:
    """Undiscounted, a policy must be able to end from every state."""
    ends, before = ~living, living
    while not np.array_equal(ends, before):  # states from which some number of steps can end
        ends, before = ends | ((P_pi > 0) @ ends), ends
    if not ends.all():
        raise UsageError(
            "without a discount every episode must end, but from state "
            f"{int(np.flatnonzero(~ends)[0])} it never does: give terminal states or a "
            "discount"
        )
