"""`mdr-loo` from the rows of a log in memory, where its sums do not tell what leaving one row out
does (`leave_one_out.py` has the formulas, and says when).

    ratios differ within (t, s, a)        the same φ_i, with the row's own ρ_i
    the target sees more than the state   the same, with π(a|x_i) of the row for every action
    no probabilities of other actions, continuous actions, hidden states
                                          φ_i = b_{-i} + ρ_i (y_i - b_{-i}): the cell's value alone

The last is over moves from one observed state to the next: ρ_i is the product of the stretch, and
ρ_i y_i its Σ_j γ^j ρ_{t:t+j} r_{t+j} + γ^{t'-t} ρ_i V_{t'}(s'). V is kept within the range of y,
since means of y say nothing of single actions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from reweigh.estimate import recursion
from reweigh.estimate.estimator import Recipe, Solution, value_alone
from reweigh.estimate.influence import refuse_weights
from reweigh.estimate.leave_one_out import PRIOR, ROUNDING, with_weights
from reweigh.estimate.marginal import refuse_cut_stretches
from reweigh.estimate.operators import OneStep, cells_of, importance_operator
from reweigh.estimate.recursion import Forward, Squared, forward
from reweigh.kernels import Bools, Floats, Ints, group_by, tally
from reweigh.log.log import EpisodeLog
from reweigh.log.states import END
from reweigh.policy import Policy, scope_of
from reweigh.sums.engines import ArraysEngine, Request, ratios
from reweigh.sums.gather import CellGradient, Moves, moves_of
from reweigh.sums.moments import Moments
from reweigh.sums.policy import follows_state
from reweigh.system import divided


@dataclass(frozen=True, eq=False)
class Rows:
    """L moves, those of a step at `order[bounds[t]:bounds[t+1]]`; (L,) arrays in that order.

    edge, node  in the operator
    action      the codes of the actions; None: the cell's value alone
    pi          (A, L) π(a|x) of every action; (1, L) of the logged one where it follows from the
                state
    """

    op: OneStep
    moves: Moves
    order: Ints
    bounds: Ints
    edge: Ints
    action: Ints | None
    pi: Floats

    @classmethod
    def of(cls, log: EpisodeLog, target: Policy, recipe: Recipe, by_state: bool) -> Rows:
        request = Request(frozenset({"transitions"}), max_ratio=recipe.max_ratio, named=False)
        sums = ArraysEngine().moments(log, target, request)
        cells, start = cells_of(sums, "transitions")
        refuse_cut_stretches(cells, log.horizon, sums.hidden)
        op = importance_operator(cells, start, log.horizon, log.discount)
        moves = moves_of(log, ratios(log, target, recipe.max_ratio)[1], "stretches")
        none = np.zeros(len(op.cells))
        edge = CellGradient("stretches", op.cells, none, none, none, none, none).cell_of(moves)
        order = np.argsort(moves.t, kind="stable")
        bounds = np.searchsorted(moves.t[order], np.arange(log.horizon + 1))
        action, pi = None, np.zeros((0, len(order)))
        lists = scope_of(target) == "row" or by_state
        if log.actions is not None and not log.has_hidden and lists:
            action = log.steps.action.astype(np.int64)[order]
            if by_state:
                pi = target.probabilities(log)[order][None]
            else:
                pi = np.stack([target.of_action(log, a)[order] for a in log.actions.values])
        return cls(op, moves, order, bounds, edge[order], action, pi)

    @cached_property
    def node(self) -> Ints:
        return self.op.src[self.edge]

    @cached_property
    def known(self) -> Bools:
        return np.asarray(self.op.known[self.edge], bool)

    @cached_property
    def rho(self) -> Floats:
        return self.moves.rho[self.order]

    @cached_property
    def y(self) -> Floats:
        return self.moves.y[self.order]

    @cached_property
    def z(self) -> Floats:
        return self.moves.z[self.order]

    def left_out(self, which: Ints, y: Floats, z: Floats, k: slice) -> tuple[Floats, Floats]:
        """(φ of these rows of a step, its mean by node), with their y and ρ y."""
        node, rho, size = self.node[which] - k.start, self.rho[which], k.stop - k.start
        R, S, n = (tally(node, values, size) for values in (rho, z, np.ones(len(which))))
        M = float(divided(S.sum(), R.sum()))
        b = (S[node] - z + PRIOR * M) / (R[node] - rho + PRIOR)
        phi = b + z - rho * b if self.action is None else self._by_actions(which, node, y, b)
        mean = divided(tally(node, phi, size), n)
        return phi, np.where(n > 0, mean, M)

    def _by_actions(self, which: Ints, node: Ints, y: Floats, b: Floats) -> Floats:
        """φ_i = Σ_a π_i(a) m_{-i}(a) + ρ_i (y_i - m_{-i}(a_i))"""
        assert self.action is not None
        rho, action = self.rho[which], self.action[which]
        pairs = group_by([node, action])
        pair, (of_node, of_action) = pairs.index(), pairs.keys
        n, Y = pairs.count().astype(np.float64), pairs.sum(y)
        nodes = int(of_node.max(initial=-1)) + 1
        mean, share = Y / (n + PRIOR), PRIOR / (n + PRIOR)
        if len(self.pi) == 1:
            own = self.pi[0][which]
            by_pair = pairs.sum(own) / n
            expected, of_b, total = (
                tally(of_node, by_pair * values, nodes)[node]
                for values in (mean, share, np.ones(len(n)))
            )
        else:
            own = self.pi[action, which]
            expected, of_b, total = (np.zeros(len(which)) for _ in range(3))
            for code, pi in enumerate(self.pi):
                at = of_action == code
                for add, values in ((expected, mean), (of_b, share), (total, np.ones(len(n)))):
                    table = np.zeros(nodes)
                    table[of_node[at]] = values[at]
                    add += pi[which] * table[node]
        left = 1 - total
        of_b = of_b + np.where(left > ROUNDING, left, 0.0)
        m_own = (Y[pair] - y + PRIOR * b) / (n[pair] - 1 + PRIOR)
        others = expected - own * mean[pair] + (of_b - own * share[pair]) * b
        return np.asarray(others + own * m_own + rho * (y - m_own))


@dataclass(frozen=True, eq=False)
class RowValues:
    """V (K,) by node, and (L,) what every move adds to the value's error before its weight:
    Σ_parts (φ - mean φ)/rows."""

    rows: Rows
    V: Floats
    term: Floats

    @classmethod
    def of(cls, rows: Rows) -> RowValues:
        op = rows.op
        V, term = np.zeros(len(op.node_t)), np.zeros(len(rows.order))
        for t in range(op.horizon - 1, -1, -1):
            i, k = np.arange(rows.bounds[t], rows.bounds[t + 1]), op.nodes(t)
            edge, known = rows.edge[i], rows.known[i]
            to = op.dst[edge]
            ahead = op.discount ** op.gap[edge] * np.where(to >= 0, V[to], 0.0)
            y, z = rows.y[i], rows.z[i]
            if known.all():
                parts = [(i, y + ahead, z + rows.rho[i] * ahead)]
            else:
                j, after = i[known], ahead[known]
                parts = [(i, y, z), (j, after, rows.rho[j] * after)]
            for which, of_y, of_z in parts:
                phi, mean = rows.left_out(which, of_y, of_z, k)
                node = rows.node[which]
                count = tally(node - k.start, np.ones(len(which)), k.stop - k.start)
                term[which] += (phi - mean[node - k.start]) / count[node - k.start]
                V[k] += mean
            if known.any():
                seen = (y + ahead)[known]
                if rows.action is not None:
                    groups = group_by([edge[known], rows.action[i][known]])
                    seen = groups.sum(seen) / groups.count()
                V[k] = np.clip(V[k], seen.min(), seen.max())
            V[k] = np.where(op.node_s[k] == END, 0.0, V[k])
        return cls(rows, V, term)

    @property
    def value(self) -> float:
        return float((self.rows.op.initial * self.V).sum())

    def terms(self, flow: Forward) -> Floats:
        """(L,) γ^t d_t(s) Σ_parts (φ - mean φ)/rows."""
        op, node = self.rows.op, self.rows.node
        return np.asarray((op.discount**op.node_t * flow.d)[node] * self.term)

    def influence(self, flow: Forward) -> Floats:
        """(n,) ψ"""
        rows, op = self.rows, self.rows.op
        n = op.n_episodes
        first = np.empty(n)  # the first n moves are the episodes' first
        here = rows.order < n
        first[rows.order[here]] = self.V[rows.node[here]]
        psi = first - self.value
        psi += n * tally(rows.moves.episode[rows.order], self.terms(flow), n)
        return psi


def of_rows(recipe: Recipe, log: EpisodeLog, target: Policy, sums: Moments) -> RowValues:
    refuse_weights(log, "mdr-loo, which leaves out one row at a time (use mdr-crossfit),")
    by_state = sums.model is not None and not sums.hidden and bool(follows_state(sums.model))
    return RowValues.of(Rows.of(log, target, recipe, by_state))


def solve_rows(
    recipe: Recipe, log: EpisodeLog, target: Policy, sums: Moments, *, errors: bool
) -> Solution:
    values = of_rows(recipe, log, target, sums)
    op = values.rows.op
    flow = forward(op, simplex=True)
    if not errors:
        alone = value_alone(np.full(op.horizon, np.nan))
        return replace(alone, value=values.value, per_step=None)
    terms = values.terms(flow)
    by_node = tally(values.rows.node, terms**2, len(op.node_t))
    start = recursion.start_variance(op, recursion.Backward(values.V, values.V))
    size = float(by_node.sum() + (op.initial * values.V**2).sum() / op.n_episodes)
    square = Squared(start + by_node.sum(), by_node, start, size)
    solved = with_weights(recipe, op, flow, values.value, square)
    return replace(solved, influence=lambda: values.influence(flow))


def influence_of_rows(recipe: Recipe, log: EpisodeLog, target: Policy, sums: Moments) -> Floats:
    values = of_rows(recipe, log, target, sums)
    return values.influence(forward(values.rows.op, simplex=True))
