"""Influence values of the direct method, and of a Q that was fitted on the same log.

Both are functions of the means of the cells (t, s, a): r̂ over N rows, T̂ over the M rows whose next
state is known, and the shares π̄(a|t,s) (`sums/shares.py`).

    Q_t(s,a) = r̂ + γ Σ_{s'} T̂(s') V_{t+1}(s')     V_t(s) = Σ_a π̂(a|s) Q_t(s,a)

where π̂ is π̄, or π̄/Σ_a π̄ when renormalised. What a value v makes of Q and V directly is given by
κ_Q = n ∂v/∂Q_t(s,a) and κ_V = n ∂v/∂V_t(s). The adjoint of the recursion collects the rest:

    λ_Q(t,s,a) = κ_Q + π̂(a|s) λ_V(t,s)     λ_V(t+1,s') = κ_V + γ Σ_{s,a} λ_Q(t,s,a) T̂(s'|s,a)

A row of the cell moves v, through the means of which it is a part, by

    λ_Q [ (y - r̂)/N + 1{s' known} γ (V_{t+1}(s') - Σ T̂ V_{t+1})/M ]  +  λ_V δ

and δ is what it moves V_t(s) by through the shares, with n the rows of (t, s) and a its action:

    one number  0              ratios  ρ (Q(a) - V)/Σρ
    every row   (Σ_b π(b|x) Q(b) - V)/n;   renormalised  Σ_b π(b|x) (Q(b) - V)/(n Σ_b π̄(b))

DM is v = mean V_0(s_0): κ_V(0,s) = n d_0(s) and nothing else; to these terms comes V_0(s_0) - v.
Then λ_V(t,s) = n γ^t d_t(s).

DR, WDR and MDR with an in-sample Q give the row's shaped reward y - Q_t(s,a) + γ V_{t+1}(s') the
weight W = n ∂v/∂y, and V_0(s_0) the weight 1: κ_Q = -Σ W over the cell, κ_V(t+1,s') = γ Σ W over
the rows that lead there, κ_V(0,s) = n d_0(s). Where DR and WDR take V of what the policy sees in a
row, κ_Q(t+1,s',a) is γ Σ W π(a|x') instead, and κ_Q(0,s,a) = Σ π(a|x_0). As Q_t(s,a) and V cancel
on average, the λ are of the order of 1/√n beside W: this part is of second order where a cell has
many rows, and matters where it has few.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from reweigh.estimate.influence_moves import Moves, single_moves
from reweigh.estimate.operators import OneStep, model_operator
from reweigh.estimate.recursion import backward, forward
from reweigh.estimate.solution import needs_discrete
from reweigh.estimate.weakest_places import node_of
from reweigh.kernels.groups import tally
from reweigh.log.log import EpisodeLog
from reweigh.policy.base import Policy, scope_of
from reweigh.sums.policy import policy_moments
from reweigh.sums.shares import shares_of
from reweigh.system.arithmetic import divided

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Model:
    """The model of a log: its operator, what its cells (t, s, a) say, and the rows in it.

    V             (K,) by node (t, s)
    r, m, Q       (G,) by group (t, s, a): r̂, γ Σ T̂ V, Q = r̂ + m
    node          (G,) the group's (t, s)
    edge          (N,) of each row
    through_shares  (N,) δ
    """

    op: OneStep
    moves: Moves
    edge: Ints
    V: Floats
    r: Floats
    m: Floats
    Q: Floats
    node: Ints
    through_shares: Floats

    @classmethod
    def of(cls, log: EpisodeLog, target: Policy, rho: Floats, *, renorm: bool = False) -> Model:
        if log.continuous_actions:
            raise needs_discrete()
        pi = target.probabilities(log)
        moves = single_moves(log, pi, rho, action=True)
        cells, edge = moves.cells()
        none = np.zeros(log.n_episodes, np.int64)
        shares = shares_of(cells, policy_moments(log, target, none, len(log.states)))
        op = model_operator(
            cells, moves.starts(None), log.horizon, log.discount, shares, renorm=renorm
        )
        groups, V = op.groups, backward(op).u
        r = divided(groups.sum(op.cells.z), groups.visits)
        m = divided(groups.sum(op.cells.rho * _arriving(op, V)), groups.moves)
        node = node_of(op)
        found = cls(op, moves, edge, V, r, m, r + m, node, np.zeros(len(moves)))
        if shares.rule == "ratios":
            delta = found._through_ratios()
        elif shares.rule == "every row":
            delta = found._through_policy(log, target, renorm=renorm)
        else:
            return found
        return replace(found, through_shares=delta)

    @property
    def group(self) -> Ints:
        """(N,) of each row."""
        return self.op.groups.of[self.edge]

    def _through_ratios(self) -> Floats:
        rho, group = self.moves.rho, self.group
        of_node = self.op.src[self.edge]
        total = tally(of_node, rho, len(self.V))[of_node]
        return divided(rho * (self.Q - self.V[self.node])[group], total)

    def _through_policy(self, log: EpisodeLog, target: Policy, *, renorm: bool) -> Floats:
        of_node = self.op.src[self.edge]
        worth = self.Q - self.V[self.node] if renorm else self.Q
        found = seen_values(self, log, target, worth)
        rows = self.op.visits[of_node]
        if not renorm:
            return (found - self.V[of_node]) / rows
        assert self.op.plain is not None
        total = tally(self.node, self.op.plain.groups.share, len(self.V))[of_node]
        return divided(found, rows * total)

    def terms(self, kappa_q: Floats, kappa_v: Floats) -> Floats:
        """(N,) what each row adds to ψ through the cells' means."""
        op, groups = self.op, self.op.groups
        lam_q, lam_v = _adjoint(op, self.node, kappa_q, kappa_v)
        on_reward, on_move = divided(lam_q, groups.visits), divided(lam_q, groups.moves)
        # every part of it that the rows of one edge share
        moved = np.where(
            op.known, on_move[groups.of] * (_arriving(op, self.V) - self.m[groups.of]), 0.0
        )
        shared = moved - (on_reward * self.r)[groups.of]
        found = shared[self.edge] + on_reward[self.group] * self.moves.y
        found += lam_v[op.src[self.edge]] * self.through_shares
        return np.asarray(found, np.float64)


def seen_values(model: Model, log: EpisodeLog, target: Policy, worth: Floats) -> Floats:
    """(N,) Σ_a π(a|x) worth(t,s,a) over the actions that the row's (t, s) shows; worth is (G,)."""
    found = np.zeros(len(model.moves))
    for pi, group, seen in each_action(model, log, target):
        found += np.where(seen, pi * worth[group], 0.0)
    return found


def each_action(
    model: Model, log: EpisodeLog, target: Policy
) -> Iterator[tuple[Floats, Ints, npt.NDArray[np.bool_]]]:
    """Action by action, (N,) each: π(a|x) of the rows, the group (t, s, a), and whether there is
    one; the group is 0 where there is none."""
    assert log.actions is not None
    of_node = model.op.src[model.edge]
    action_of = np.zeros(len(model.node), np.int64)
    action_of[model.group] = model.moves.a
    for code, action in enumerate(log.actions.values):
        of = np.flatnonzero(action_of == code)
        place = np.full(len(model.V), -1)
        place[model.node[of]] = of
        group = place[of_node]
        yield target.of_action(log, action), np.maximum(group, 0), group >= 0


def dm_values(log: EpisodeLog, target: Policy, rho: Floats, *, renorm: bool) -> Floats:
    """(n,) ψ of the direct method, not yet centred."""
    model = Model.of(log, target, rho, renorm=renorm)
    forward(model.op, simplex=False)  # refuses where no row is possible under the target
    n = log.n_episodes
    terms = model.terms(np.zeros(len(model.Q)), n * model.op.initial)
    first = model.op.src[model.edge[:n]]
    return model.V[first] + tally(model.moves.episode, terms, n)


def through_fitted_q(
    log: EpisodeLog, target: Policy, rho: Floats, weight: Floats, *, by_row: bool
) -> Floats:
    """(n,) the part of ψ through a Q that was fitted on the same log, whose rows' shaped rewards
    have the weights (N,) n ∂v/∂y. `by_row`: V is that of what the policy sees in a row, if it sees
    more than the state."""
    model = Model.of(log, target, rho)
    op, n = model.op, log.n_episodes
    to = op.dst[model.edge]
    kappa_q = -tally(model.group, weight, len(model.Q))
    ahead = (log.steps.step < log.horizon - 1) & (to >= 0)
    if by_row and scope_of(target) == "row":
        # γ times the weight of the row before; of first rows the start value's, 1
        arriving, last = np.ones(len(weight)), ahead.copy()
        for t in range(log.horizon - 1):
            here, following = log.steps.rows(t), log.steps.rows(t + 1)
            before = slice(here.start, here.start + following.stop - following.start)
            arriving[following] = log.discount * weight[before]
            last[before] = False
        for pi, group, seen in each_action(model, log, target):
            kappa_q += tally(group[seen], (arriving * pi)[seen], len(model.Q))
        kappa_v = np.zeros(len(model.V))
        ahead = last  # states that are known, and have no row
    else:
        kappa_v = n * op.initial
    kappa_v = kappa_v + log.discount * tally(to[ahead], weight[ahead], len(kappa_v))
    return tally(model.moves.episode, model.terms(kappa_q, kappa_v), n)


def _arriving(op: OneStep, V: Floats) -> Floats:
    """(E,) γ V_{t+1}(s'), 0 where the next state is not known."""
    return np.where(op.dst >= 0, V[op.dst], 0.0) * op.discount


def _adjoint(op: OneStep, node: Ints, kappa_q: Floats, kappa_v: Floats) -> tuple[Floats, Floats]:
    """λ_Q (G,) and λ_V (K,), step by step."""
    groups, lam_v = op.groups, kappa_v.copy()
    lam_q = kappa_q.copy()
    T = np.where(op.known, op.cells.n * divided(np.ones(len(node)), groups.moves)[groups.of], 0.0)
    bounds = np.searchsorted(op.node_t[node], np.arange(op.horizon + 1))
    for t in range(op.horizon):
        g = slice(int(bounds[t]), int(bounds[t + 1]))
        lam_q[g] += groups.share[g] * lam_v[node[g]]
        e, _, dst = op.edges(t)
        to = dst >= 0
        flow = op.discount * lam_q[groups.of[e]] * T[e]
        np.add.at(lam_v, dst[to], flow[to])
    return lam_q, lam_v
