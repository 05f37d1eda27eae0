"""Influence values of the direct method, and of a Q that was fitted on the same log.

Both are functions of the means of the cells (t, s, a): r̂ over N rows, T̂ over the M rows whose next
state is known, and p(a|s), the mean of the logged π(a|s).

    Q_t(s,a) = r̂ + γ Σ_{s'} T̂(s') V_{t+1}(s')     V_t(s) = Σ_a π̂(a|s) Q_t(s,a)

where π̂ is p, or p/Σ_a p when renormalised. What a value v makes of Q and V directly is given by
κ_Q = n ∂v/∂Q_t(s,a) and κ_V = n ∂v/∂V_t(s). The adjoint of the recursion collects the rest:

    λ_Q(t,s,a) = κ_Q + π̂(a|s) λ_V(t,s)     λ_V(t+1,s') = κ_V + γ Σ_{s,a} λ_Q(t,s,a) T̂(s'|s,a)

A row of the cell moves v, through the means of which it is a part, by

    λ_Q [ (y - r̂)/N + 1{s' known} γ (V_{t+1}(s') - Σ T̂ V_{t+1})/M ]  +  λ_V ∂V/∂p (π - p)/N

with ∂V/∂p = Q, or (Q - V)/Σ_a p when renormalised. Where π is a function of (t, s, a) the last
term is 0.

DM is v = mean V_0(s_0): κ_V(0,s) = n d_0(s) and nothing else; to these terms comes V_0(s_0) - v.
Then λ_V(t,s) = n γ^t d_t(s).

DR, WDR and MDR with an in-sample Q give the row's shaped reward y - Q_t(s,a) + γ V_{t+1}(s') the
weight W = n ∂v/∂y, and V_0(s_0) the weight 1: κ_Q = -Σ W over the cell, κ_V(t+1,s') = γ Σ W over
the rows that lead there, κ_V(0,s) = n d_0(s). As Q_t(s,a) and V cancel on average, the λ are of
the order of 1/√n beside W: this part is of second order where a cell has many rows, and matters
where it has few.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reweigh.arithmetic import divided
from reweigh.estimators.operators import OneStep, model_operator
from reweigh.estimators.recursion import backward, forward
from reweigh.estimators.weights import needs_discrete
from reweigh.inference.influence_moves import Moves, single_moves
from reweigh.logs.log import EpisodeLog
from reweigh.sums.groups import tally

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Model:
    """The model of a log: its operator, what its cells (t, s, a) say, and the rows in it.

    V             (K,) by node (t, s)
    r, m, Q, p    (G,) by group (t, s, a): r̂, γ Σ T̂ V, Q = r̂ + m, and the mean of π
    slope         (G,) ∂V/∂p
    node          (G,) the group's (t, s)
    edge          (N,) of each row
    """

    op: OneStep
    moves: Moves
    edge: Ints
    V: Floats
    r: Floats
    m: Floats
    Q: Floats
    p: Floats
    slope: Floats
    node: Ints

    @classmethod
    def of(cls, log: EpisodeLog, pi: Floats, *, renorm: bool = False) -> Model:
        if log.continuous_actions:
            raise needs_discrete()
        moves = single_moves(log, pi, np.ones(log.steps.n_rows), action=True)
        cells, edge = moves.cells()
        op = model_operator(cells, moves.starts(None), log.horizon, log.discount, renorm=renorm)
        groups, V = op.groups, backward(op).u
        r = divided(groups.sum(op.cells.z), groups.visits)
        m = divided(groups.sum(op.cells.rho * _arriving(op, V)), groups.moves)
        p = divided(groups.sum(cells.pi), groups.visits)
        node = np.zeros(len(p), np.int64)
        node[groups.of] = op.src
        slope = r + m
        if renorm:
            slope = divided(slope - V[node], tally(node, p, len(V))[node])
        return cls(op, moves, edge, V, r, m, r + m, p, slope, node)

    def terms(self, kappa_q: Floats, kappa_v: Floats) -> Floats:
        """(N,) what each row adds to ψ through the cells' means."""
        op, groups = self.op, self.op.groups
        lam_q, lam_v = _adjoint(op, self.node, kappa_q, kappa_v)
        on_reward, on_move = divided(lam_q, groups.visits), divided(lam_q, groups.moves)
        on_share = divided(lam_v[self.node] * self.slope, groups.visits)
        # every part of it that the rows of one edge share
        moved = np.where(
            op.known, on_move[groups.of] * (_arriving(op, self.V) - self.m[groups.of]), 0.0
        )
        constant = -on_reward * self.r - on_share * self.p
        shared = moved + constant[groups.of]
        group = groups.of[self.edge]
        found = shared[self.edge] + on_reward[group] * self.moves.y
        return np.asarray(found + on_share[group] * self.moves.pi, np.float64)


def dm_values(log: EpisodeLog, pi: Floats, *, renorm: bool) -> Floats:
    """(n,) ψ of the direct method, not yet centred."""
    model = Model.of(log, pi, renorm=renorm)
    forward(model.op, simplex=False)  # refuses where no row is possible under the target
    n = log.n_episodes
    terms = model.terms(np.zeros(len(model.p)), n * model.op.initial)
    first = model.op.src[model.edge[:n]]
    return model.V[first] + tally(model.moves.episode, terms, n)


def through_fitted_q(log: EpisodeLog, pi: Floats, weight: Floats) -> Floats:
    """(n,) the part of ψ through a Q that was fitted on the same log, whose rows' shaped rewards
    have the weights (N,) n ∂v/∂y."""
    model = Model.of(log, pi)
    op, n = model.op, log.n_episodes
    group, to = op.groups.of[model.edge], op.dst[model.edge]
    ahead = (log.steps.step < log.horizon - 1) & (to >= 0)
    kappa_v = n * op.initial
    kappa_v = kappa_v + log.discount * tally(to[ahead], weight[ahead], len(kappa_v))
    terms = model.terms(-tally(group, weight, len(model.p)), kappa_v)
    return tally(model.moves.episode, terms, n)


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
