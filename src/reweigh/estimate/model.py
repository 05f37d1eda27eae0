"""The direct method (DM): a time-dependent model from counts, and the Q of control variates.

Its gradient, and that of a Q which was fitted on the same log: both are functions of the means of
the cells (t, s, a), r̂ over N rows and T̂ over M, and of the shares π̄(a|t,s) (`sums/policy.py`).

    Q_t(s,a) = r̂ + γ Σ_{s'} T̂(s') V_{t+1}(s')     V_t(s) = Σ_a π̂(a|s) Q_t(s,a)

where π̂ is π̄, or π̄/Σ_a π̄ when renormalized. What a value v makes of Q and V directly is given by
κ_Q = n ∂v/∂Q_t(s,a) and κ_V = n ∂v/∂V_t(s). The adjoint of the recursion collects the rest:

    λ_Q(t,s,a) = κ_Q + π̂(a|s) λ_V(t,s)     λ_V(t+1,s') = κ_V + γ Σ_{s,a} λ_Q(t,s,a) T̂(s'|s,a)

A row of the cell moves v, through the means of which it is a part, by

    λ_Q [ (y - r̂)/N + 1{s' known} γ (V_{t+1}(s') - Σ T̂ V_{t+1})/M ]  +  λ_V δ

and δ is its effect on V_t(s) through the shares, with n the rows of (t, s) and a its action:

    one number  0              ratios  ρ (Q(a) - V)/Σρ
    every row   (Σ_b π(b|x) Q(b) - V)/n;   renormalized  Σ_b π(b|x) (Q(b) - V)/(n Σ_b π̄(b))

DM is v = mean V_0(s_0): κ_V(0,s) = n d_0(s) and nothing else; to these terms comes V_0(s_0) - v.

DR, WDR and MDR with an in-sample Q give the row's shaped reward y - Q_t(s,a) + γ V_{t+1}(s') the
weight W = n ∂v/∂y, and V_0(s_0) the weight 1: κ_Q = -Σ W over the cell, κ_V(t+1,s') = γ Σ W over
the rows that lead there, κ_V(0,s) = n d_0(s). As Q_t(s,a) and V cancel on average, the λ are of the
order of 1/√n beside W: this part is of second order where a cell has many rows, and matters where
it has few.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from reweigh.estimate import recursion
from reweigh.estimate.estimator import LogAndTarget, Recipe, Solution
from reweigh.estimate.operators import (
    OneStep,
    build_operator,
    cells_of,
    importance_operator,
    start_term,
    with_ratios_one,
)
from reweigh.estimate.recursion import backward, forward
from reweigh.estimate.refusals import needs_discrete
from reweigh.estimate.solution import Operators, OperatorWeights
from reweigh.estimate.tabular_q import TabularQ
from reweigh.kernels import Floats, Ints, group_by, rowwise, tally
from reweigh.log.log import EpisodeLog
from reweigh.policy import Policy
from reweigh.sums.gather import CellGradient, PolicyGradient
from reweigh.sums.moments import Moments
from reweigh.system import divided


@dataclass(frozen=True)
class Model(OperatorWeights):
    """No weights: d_t^π from the estimated T_t(s'|s,a) and π (the direct method)."""

    unseen: Literal["zero", "renorm"] = "zero"
    kinds = frozenset({"model"})
    uses_ratios = False
    limit_group = "model"
    further_traits = frozenset({"model"})
    formula = (
        "v̂ = Σₜ γᵗ Σₛ dₜ(s) Σₐ π(a|s) r̄ₜ(s,a),  dₜ₊₁(s′) = Σₛ Σₐ dₜ(s) π(a|s) T̂ₜ(s′|s,a), "
        "with T̂ and r̄ from counts"
    )

    def description(self, recipe: Recipe) -> str:
        unseen = "has no mass" if self.unseen == "zero" else "is left out, π renormalized"
        return f"direct method, a model per step; an action never seen {unseen}"

    def operators(self, recipe: Recipe, sums: Moments) -> Operators:
        op = model_of(sums, renorm=self.unseen == "renorm")
        return op, op, recursion.logged_reward

    def gradient(self, recipe: Recipe, sums: Moments) -> CellGradient:
        model = FittedModel.of(sums, renorm=self.unseen == "renorm")
        op = model.op
        forward(op, simplex=False)  # refuses where no row is possible under the target
        gradient = model.gradient(np.zeros(len(model.Q)), op.n_episodes * op.initial)
        return replace(gradient, start=start_term(op.cells, model.V[op.src]))

    def with_error(
        self, recipe: Recipe, solution: Solution, sums: Moments, rows: LogAndTarget | None
    ) -> Solution:
        """Where its shares are means of what a policy sees, which rows a cell holds adds to the
        error, and the sums do not hold by how much."""
        if solution.standard_error is None or sums.policy is None:
            return solution
        from reweigh.estimate.influence import with_estimated_error

        with_error = with_estimated_error(recipe, solution, sums, rows)
        if rows is None:
            return with_error
        by_node = with_error.nodes
        if by_node is not None:
            by_node = replace(by_node, variance=None)
        return replace(with_error, freedom=None, by_node=by_node)


def model_of(moments: Moments, *, renorm: bool = False) -> OneStep:
    """The model's operator: every ratio is 1 within (t, s, a), whose share is π̄(a|s)."""
    if moments.about.continuous_actions:
        raise needs_discrete()
    cells, start = cells_of(moments, "model")
    horizon, discount, shares = moments.about.horizon, moments.about.discount, moments.shares
    by_action = group_by([cells.t, cells.s, cells.a])
    share = shares.of(by_action, cells)
    if share.ndim > 1:  # a replicate may lack the action
        share = np.where(by_action.sum(cells.n) > 0, share, 0.0)
    counted = with_ratios_one(cells)

    def with_shares(used: Floats) -> OneStep:
        of = by_action.index()
        return build_operator(counted, start, horizon, discount, of, used, False, None, share)

    op = with_shares(share)
    if shares.rule == "ratios":
        # Such shares always add up to 1, even if the log lacks actions: Σρ/n shows it.
        plain = importance_operator(cells, start, horizon, discount)
        return replace(op, conserves=True, covered=plain.covered, plain=plain, by_ratios=True)
    if not renorm:
        return op
    at = group_by([by_action.keys[0], by_action.keys[1]])
    renormed = divided(share, at.sum(share)[at.index()])
    return replace(with_shares(renormed), conserves=True, plain=op)


@dataclass(frozen=True, eq=False)
class FittedModel:
    """A model of a log, from its cells (t, s, a).

    V             (K,) by node (t, s)
    r, m, Q       (G,) by group (t, s, a): r̂, γ Σ T̂ V, Q = r̂ + m
    node          (G,) the group's (t, s)
    """

    sums: Moments
    op: OneStep
    V: Floats
    r: Floats
    m: Floats
    Q: Floats
    node: Ints
    renorm: bool

    @classmethod
    def of(cls, sums: Moments, *, renorm: bool = False) -> FittedModel:
        op = model_of(sums, renorm=renorm)
        groups, V = op.groups, backward(op).u
        r = divided(groups.sum(op.cells.z), groups.visits)
        m = divided(groups.sum(op.cells.rho * _arriving(op, V)), groups.moves)
        return cls(sums, op, V, r, m, r + m, op.node_of_group, renorm)

    def gradient(self, kappa_q: Floats, kappa_v: Floats) -> CellGradient:
        """Of a value with these derivatives by Q and V, without an episode's start."""
        op, groups = self.op, self.op.groups
        lam_q, lam_v = _adjoint(op, self.node, kappa_q, kappa_v)
        by_reward, by_move = divided(lam_q, groups.visits), divided(lam_q, groups.moves)
        ahead = _arriving(op, self.V) - self.m[groups.of]
        none = np.zeros(len(op.cells))
        gradient = CellGradient(
            "actions",
            op.cells,
            one=np.where(op.known, by_move[groups.of] * ahead, 0.0)
            - (by_reward * self.r)[groups.of],
            rho=none,
            z=none,
            y=by_reward[groups.of],
            start=none,
        )
        shares = self.sums.shares
        if shares.rule == "ratios":
            rho = cells_of(self.sums, "model")[0].rho
            per_ratio = divided(lam_v, tally(op.src, rho, len(self.V)))[op.src]
            worth = (self.Q - self.V[self.node])[groups.of]
            return replace(gradient, rho=per_ratio * worth)
        if shares.rule == "every row":
            return self._through_policy(gradient, lam_v)
        return gradient

    def _through_policy(self, gradient: CellGradient, lam_v: Floats) -> CellGradient:
        op, node = self.op, self.node
        worth, one = self.Q, gradient.one
        per_row = divided(lam_v, op.visits)
        if self.renorm:
            assert op.plain is not None
            total = tally(node, op.plain.groups.share, len(self.V))
            worth, per_row = worth - self.V[node], divided(per_row, total)
        else:
            one = one - (per_row * self.V)[op.src]
        action = np.zeros(len(node), np.int64)
        action[op.groups.of] = op.cells.a
        policy = PolicyGradient(len(self.V), op.src, node, action, per_row[node] * worth)
        return replace(gradient, one=one, policy=policy)

    def through_q(self, weight: Floats) -> CellGradient:
        """For the part of a value that comes through Q, whose shaped rewards have these weights:
        (E,) the sums of n ∂v/∂y over the rows of the cells. V is that of the cell."""
        kappa_v = self.op.n_episodes * self.op.initial + self.arriving(weight)
        return self.gradient(self.leaving(weight), kappa_v)

    def through_rows(
        self, log: EpisodeLog, target: Policy, cell: Ints, weight: Floats
    ) -> CellGradient:
        """The same where V is that of what the policy sees in a row, with (N,) the rows' cells and
        the weights of their shaped rewards."""
        steps, op = log.steps, self.op
        # γ times the weight of the row before; of first rows the start value's, 1
        arriving, last = np.ones(len(weight)), np.ones(len(weight), bool)
        for t in range(log.horizon - 1):
            here, following = steps.rows(t), steps.rows(t + 1)
            before = slice(here.start, here.start + following.stop - following.start)
            arriving[following] = log.discount * weight[before]
            last[before] = False
        kappa_q = self.leaving(tally(cell, weight, len(op.cells)))
        action = np.zeros(len(self.node), np.int64)
        action[op.groups.of] = op.cells.a
        assert log.actions is not None
        for code, value in enumerate(log.actions.values):
            groups = np.flatnonzero(action == code)
            of_node = np.full(len(self.V), len(self.Q))
            of_node[self.node[groups]] = groups
            pi = target.of_action(log, value)
            kappa_q += tally(of_node[op.src[cell]], arriving * pi, len(self.Q) + 1)[:-1]
        # states that are known, and have no row
        kappa_v = self.arriving(tally(cell[last], weight[last], len(op.cells)))
        return self.gradient(kappa_q, kappa_v)

    def leaving(self, weight: Floats) -> Floats:
        """κ_Q = -Σ W"""
        return -self.op.groups.sum(weight)

    def arriving(self, weight: Floats) -> Floats:
        """κ_V(t+1, s') = γ Σ W; after the horizon V is 0."""
        op = self.op
        ahead = (op.dst >= 0) & (op.cells.t < op.horizon - 1)
        return op.discount * tally(op.dst[ahead], weight[ahead], len(self.V))


def _arriving(op: OneStep, V: Floats) -> Floats:
    """(E,) γ V_{t+1}(s'), 0 where the next state is not known."""
    return np.where(rowwise(op.dst >= 0, V), V[op.dst], 0.0) * op.discount


def _adjoint(op: OneStep, node: Ints, kappa_q: Floats, kappa_v: Floats) -> tuple[Floats, Floats]:
    """λ_Q (G,) and λ_V (K,), step by step."""
    groups, lam_v = op.groups, kappa_v.copy()
    lam_q = kappa_q.copy()
    T = np.where(op.known, op.cells.n * divided(np.ones(len(node)), groups.moves)[groups.of], 0.0)
    bounds = np.searchsorted(op.node_t[node], np.arange(op.horizon + 1))
    leaving = np.flatnonzero(op.dst >= 0)
    edges = np.searchsorted(op.cells.t[leaving], np.arange(op.horizon + 1))
    for t in range(op.horizon):
        g = slice(int(bounds[t]), int(bounds[t + 1]))
        lam_q[g] += groups.share[g] * lam_v[node[g]]
        e = leaving[edges[t] : edges[t + 1]]
        np.add.at(lam_v, op.dst[e], op.discount * lam_q[groups.of[e]] * T[e])
    return lam_q, lam_v


def fit_q(moments: Moments) -> TabularQ:
    """Q_t(s,a) = r̂_t(s,a) + γ Σ_{s'} T̂_t(s'|s,a) V_{t+1}(s'), V_t(s) = Σ_a π(a|s) Q_t(s,a); 0 where
    nothing was seen."""
    if moments.actions is None:
        raise needs_discrete()
    model = FittedModel.of(moments)
    op, n_states, n_actions = model.op, len(moments.states), len(moments.actions)
    key = np.zeros(len(model.Q), np.int64)
    key[op.groups.of] = (op.cells.t * n_states + op.cells.s) * n_actions + op.cells.a
    order = np.argsort(key)
    nodes = op.node_t, op.node_s
    return TabularQ.of((n_states, n_actions), (key[order], model.Q[order]), nodes, model.V)
