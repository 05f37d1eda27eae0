"""MDR whose Q leaves out the row that it is used on (`mdr-loo`): augmentation inside the cell.

Backward in time, with y_i = r_i + γ V_{t+1}(s'_i) for the n rows i of a cell (t, s):

    b_{-i}      = (Σ_{j≠i} ρ_j y_j + M)/(Σ_{j≠i} ρ_j + 1),   M = Σρy/Σρ over all rows of the step
    m_{-i}(a)   = (Σ_{j≠i, a_j=a} y_j + b_{-i})/(n_{-i}(a) + 1)
    φ_i         = Σ_a π(a|s) m_{-i}(a) + ρ_i (y_i - m_{-i}(a_i))
    V_t(s)      = mean of φ_i, between the smallest and the largest mean of y by (s, a, s') at t

and v = mean V_0(s_0). No row predicts itself, so that with the V_{t+1} of other episodes and logged
propensities φ_i has the mean of the target's y, whatever m is; m takes away what the actions
explain. A row of an action alone in its cell leans on the cell, a row alone in its cell on the
step. A state without rows has the value M.

**Sums.** Where π and ρ are the same in all rows of a (t, s, a), φ_i is linear in y_i:

    φ_i = F_a + G_a y_i,   κ = (π - ρ)/n(a),  K = π/(n(a) + 1),  D = R - ρ + 1,  R = Σρ, S = Σρy
    h   = 1 - Σ_{a'≠a} K(a') n(a') - π + κ        (what is left of Σ_a π = 1 for b_{-i})
    F_a = Σ_{a'≠a} K(a') Y(a') + κ Y(a) + h (S + M)/D        G_a = ρ - κ - h ρ/D

with Y(a) = Σy over the rows of a: cells (t, s, a, s') hold all that the value takes, and with Σr²
the squares Σ(φ - V)². An action of the target that the cell lacks has the value b. Where rows end
before an unknown state, the rewards are averaged over all N rows and γV over the M that go on; φ is
linear in y, so that it is the sum of both. Elsewhere the rows are needed, in memory
(`leave_one_out_rows.py`), and sums refuse.

**Error.** φ_i is used as if the m of other rows were given, as with cross-fitting:

    ψ_i = V_0(s_0) - v + Σ_t γ^t n d_t(s)/n_t(s) (φ_i - mean φ),   d_t by MIS on the simplex
    SE² = mean(ψ²)/n by cells, as for MIS; `Solution.freedom` is corrected for small cells
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reweigh.estimate import recursion
from reweigh.estimate.estimator import Place, Recipe, Replicated, Solution, Weights, value_alone
from reweigh.estimate.marginal import Marginal
from reweigh.estimate.operators import OneStep, cells_of, importance_operator, start_term
from reweigh.estimate.recursion import Backward, Forward, Squared, forward, start_variance
from reweigh.estimate.refusals import needs_log
from reweigh.estimate.solution import largest, solve_operator
from reweigh.estimate.standard_error import LOST, Freedom
from reweigh.kernels import Bools, Floats, Ints, group_by, rowwise, tally
from reweigh.log.states import END
from reweigh.sums.gather import CellGradient
from reweigh.sums.keyed import is_constant
from reweigh.sums.moments import Moments
from reweigh.sums.policy import follows_state
from reweigh.system import divided

PRIOR = 1.0  # rows that the cell's value counts as in an action's, and the step's in the cell's
ROUNDING = 1e-9  # of a sum of probabilities


@dataclass(frozen=True)
class LeaveOneOut(Weights):
    """MDR with the Q of the other rows of the cell."""

    kinds = frozenset({"model"})
    holds_others = True
    limit_group = "augmented"
    further_traits = frozenset({"augmented"})
    formula = (
        "v̂ = Σₛ d₀(s) V₀(s),  Vₜ(s) = the mean of φᵢ over its rows,  "
        "φᵢ = Σₐ π(a|s) m₋ᵢ(s,a) + ρᵢ (yᵢ − m₋ᵢ(s,aᵢ)),  yᵢ = rᵢ + γ Vₜ₊₁(s′ᵢ)"
    )

    def description(self, recipe: Recipe) -> str:
        return (
            "marginalized doubly robust; the control variate of a row is the mean of the other "
            "rows of its state and action"
        )

    def may_exceed_rewards(self, recipe: Recipe) -> bool:
        return False

    def needs_rows(self, sums: Moments) -> str | None:
        """If a row's ratio, or what the target would do, does not follow
        from step, state and action."""
        if sums.hidden:
            return "some states are hidden"
        if sums.about.continuous_actions:
            return "actions are continuous"
        if sums.model is None or sums.model.n.ndim > 1:  # replicates are of sums that were checked
            return None
        cells = sums.model
        by_action = group_by([cells.t, cells.s, cells.a])
        n, rho, rho2 = (by_action.sum(column) for column in (cells.n, cells.rho, cells.rho2))
        if not is_constant(n, rho, rho2):
            return "the ratios differ between rows of the same step, state and action"
        if not follows_state(cells):
            return "the target's probabilities do not follow from step and state"
        return None

    def operator(self, sums: Moments) -> OneStep:
        """That of MIS on cells with the action, where these are enough."""
        why = self.needs_rows(sums)
        if why:
            raise needs_log(Recipe("mdr-loo", self), why)
        cells, start = cells_of(sums, "model")
        return importance_operator(cells, start, sums.about.horizon, sums.about.discount)

    def solve(self, recipe: Recipe, sums: Moments, *, errors: bool = True) -> Solution:
        op = self.operator(sums)
        flow = forward(op, simplex=True)  # refuses where no row is possible under the target
        values = LeftOut.of(op)
        if not errors:
            alone = value_alone(np.full(op.horizon, np.nan))
            return replace(alone, value=float(values.value), per_step=None)
        square = squared(op, flow, values)
        weights = with_weights(recipe, op, flow, float(values.value), square)
        unseen, unseen_at = _unseen(op, flow, values.pairs, weights)
        return replace(weights, unseen_mass=unseen, unseen_at=unseen_at)

    def solve_replicates(self, recipe: Recipe, sums: Moments, *, errors: bool) -> Replicated:
        op = self.operator(sums)
        flow, values = forward(op, simplex=True), LeftOut.of(op)
        inside = flow.d[: op.offsets[-2]]
        return Replicated.of(
            values.value,
            squared(op, flow, values).errors if errors else None,
            ("no-overlap", np.isnan(inside).any(axis=0)),
        )

    def gradient(self, recipe: Recipe, sums: Moments) -> CellGradient:
        op = self.operator(sums)
        values = LeftOut.of(op)
        one, y = values.slopes(forward(op, simplex=True))
        none, n = np.zeros(len(op.cells)), op.n_episodes
        start = start_term(op.cells, values.V[op.src])
        return CellGradient("actions", op.cells, n * one, none, none, n * y, start)


@dataclass(frozen=True, eq=False)
class Pairs:
    """The P pairs (t, s, a) of an operator's cells, by their nodes and so by their steps.

    of          (E,) the pair of each edge
    node        (P,) its (t, s)
    rho, pi     (P,) the ratio and π of all of its rows
    bounds      (H+1,) the first pair of each step
    """

    of: Ints
    node: Ints
    rho: Floats
    pi: Floats
    bounds: Ints

    @classmethod
    def of_operator(cls, op: OneStep) -> Pairs:
        c, pairs = op.cells, group_by([op.src, op.cells.a])
        n, node = pairs.sum(c.n), pairs.keys[0]
        bounds = np.searchsorted(op.node_t[node], np.arange(op.horizon + 1))
        rho, pi = (divided(pairs.sum(values), n) for values in (c.rho, c.pi))
        return cls(pairs.index(), node, rho, pi, bounds)

    def unseen(self, nodes: int) -> Floats:
        """(K,) π of the actions that a node's rows do not show."""
        left = 1 - tally(self.node, self.pi, nodes)
        return np.where(left > ROUNDING, left, 0.0)


@dataclass(frozen=True, eq=False)
class Coefficients:
    """What φ = F + G y takes from a set of rows, apart from their y; see above.

    n, K, kappa, h, D, G  (P,)
    R, rows               (K,) Σρ and the number of rows
    """

    pairs: Pairs
    n: Floats
    R: Floats
    rows: Floats
    K: Floats
    kappa: Floats
    h: Floats
    D: Floats
    G: Floats

    @classmethod
    def of(cls, pairs: Pairs, n: Floats, nodes: int) -> Coefficients:
        """Of (P,) so many rows of each pair."""
        node, rho, pi = pairs.node, pairs.rho, pairs.pi
        R, rows = tally(node, rho * n, nodes), tally(node, n, nodes)
        K = pi / (n + PRIOR)
        # Σ_a K c, the actions that the cell lacks included: their share is all b's
        of_b = tally(node, K * PRIOR, nodes) + pairs.unseen(nodes)
        kappa = np.where(n > 0, (pi - rho) / np.maximum(n - 1 + PRIOR, PRIOR), 0.0)
        h = of_b[node] - PRIOR * K + PRIOR * kappa
        D = R[node] - rho + PRIOR
        return cls(pairs, n, R, rows, K, kappa, h, D, rho - kappa - h * divided(rho, D))

    def leave_out(self, Y: Floats, p: slice, k: slice) -> tuple[Floats, Floats]:
        """(F, mean φ) of the pairs and nodes of one step, whose rows have the sums Y (P,)."""
        node, rho = self.pairs.node[p] - k.start, self.pairs.rho[p]
        nodes = k.stop - k.start
        S = tally(node, rho * Y, nodes)
        M = divided(S.sum(axis=0), self.R[k].sum(axis=0))
        T = tally(node, self.K[p] * Y, nodes)[node]
        F = T + (self.kappa[p] - self.K[p]) * Y + self.h[p] * (S[node] + PRIOR * M) / self.D[p]
        total = tally(node, self.n[p] * F + self.G[p] * Y, nodes)
        return F, np.where(self.rows[k] > 0, divided(total, self.rows[k]), M)


@dataclass(frozen=True, eq=False)
class Part:
    """A part of y: the rewards, γV, or both. `counts` (E,) are the rows that have it, `shift` (E,)
    is their γV; F (P,), and the mean of φ before it is kept in range (K,)."""

    by: Coefficients
    rewards: bool
    counts: Floats
    shift: Floats
    F: Floats
    mean: Floats


@dataclass(frozen=True, eq=False)
class LeftOut:
    """V (K,) by node, and the parts that it is the sum of."""

    op: OneStep
    pairs: Pairs
    V: Floats
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, op: OneStep) -> LeftOut:
        c, pairs, nodes = op.cells, Pairs.of_operator(op), len(op.node_t)
        n, size = c.n.astype(np.float64), len(pairs.node)
        known = np.where(op.known, n, 0.0)

        def part(counts: Floats, rewards: bool) -> Part:
            by = Coefficients.of(pairs, tally(pairs.of, counts, size), nodes)
            empty = (np.zeros((length, *n.shape[1:])) for length in (len(c), size, nodes))
            return Part(by, rewards, counts, *empty)

        both = [part(n, rewards=True)] if op.known.all() else None
        parts = both or [part(n, rewards=True), part(known, rewards=False)]
        V, bounds = np.zeros((nodes, *n.shape[1:])), op.edge_offsets
        assert bounds is not None
        for t in range(op.horizon - 1, -1, -1):
            e, k = slice(int(bounds[t]), int(bounds[t + 1])), op.nodes(t)
            p = slice(int(pairs.bounds[t]), int(pairs.bounds[t + 1]))
            to, pair = op.dst[e], pairs.of[e] - p.start
            ahead = op.discount * np.where(rowwise(to >= 0, V), V[to], 0.0)
            for each in parts:
                if each is parts[-1]:
                    each.shift[e] = ahead
                earned = c.y[e] if each.rewards else 0.0
                Y = tally(pair, earned + each.counts[e] * each.shift[e], p.stop - p.start)
                each.F[p], each.mean[k] = each.by.leave_out(Y, p, k)
                V[k] += each.mean[k]
            low, high = _range(divided(c.y[e], n[e]) + ahead, known[e] > 0)
            V[k] = np.where(low <= high, np.clip(V[k], low, high), V[k])
            V[k] = np.where(rowwise(op.node_s[k] == END, V), 0.0, V[k])
        return cls(op, pairs, V, tuple(parts))

    @property
    def value(self) -> Any:
        return (self.op.initial * self.V).sum(axis=0)

    def slopes(self, flow: Forward) -> tuple[Floats, Floats]:
        """(E,) what a row adds to the value's error: the first, and the second times its reward:

        γ^t d_t(s) Σ_parts (F + G (shift + r) - mean φ)/rows
        """
        op, of = self.op, self.pairs.of
        weight = (rowwise(op.discount**op.node_t, flow.d) * flow.d)[op.src]
        one, y = np.zeros(weight.shape), np.zeros(weight.shape)
        for part in self.parts:
            per_row = divided(weight, part.by.rows[op.src])
            G = part.by.G[of]
            term = per_row * (part.F[of] + G * part.shift - part.mean[op.src])
            one += np.where(part.counts > 0, term, 0.0)
            if part.rewards:
                y += per_row * G
        return one, y


def _range(values: Floats, there: Bools) -> tuple[Any, Any]:
    """The smallest and the largest of those that are there."""
    low = np.where(there, values, np.inf).min(axis=0, initial=np.inf)
    return low, np.where(there, values, -np.inf).max(axis=0, initial=-np.inf)


def squared(op: OneStep, flow: Forward, values: LeftOut) -> Squared:
    """SE² from the sums, its parts by node."""
    c, (one, y) = op.cells, values.slopes(flow)
    terms = one * one * c.n, 2 * one * y * c.y, y * y * c.y2
    size = sum(np.abs(term).sum(axis=0) for term in terms)
    by_node = np.maximum(tally(op.src, terms[0] + terms[1] + terms[2], len(op.node_t)), 0.0)
    start = start_variance(op, Backward(values.V, values.V))
    at_start = (op.initial * values.V**2).sum(axis=0) / op.n_episodes
    return Squared(start + by_node.sum(axis=0), by_node, start, size + at_start)


def with_weights(
    recipe: Recipe, op: OneStep, flow: Forward, value: float, square: Squared
) -> Solution:
    """The solution, with what MIS says of its weights on the same cells."""
    mis = Recipe("mis", Marginal(), "simplex", max_ratio=recipe.max_ratio)
    weights = solve_operator(mis, lambda _: (op, op, recursion.logged_reward))
    assert weights.nodes is not None
    return replace(
        weights,
        value=value,
        standard_error=square.error,
        error_method=LOST if square.lost else "analytic",
        per_step=None,
        by_node=replace(weights.nodes, variance=square.per_group),
        variance_of_start=float(square.start),
        freedom=Freedom.of(
            np.append(square.per_group, square.start), np.append(op.visits, op.n_episodes)
        ),
    )


def _unseen(
    op: OneStep, flow: Forward, pairs: Pairs, weights: Solution
) -> tuple[Floats, Place | None]:
    """(H,) the target's mass that a step loses by MIS, or that is on actions which a state does not
    show, whichever is more; and the place with the most of it."""
    inside = (op.node_t < op.horizon) & (op.node_s != END)
    lost = np.where(inside, flow.d * pairs.unseen(len(op.node_t)), 0.0)
    by_actions, by_mis = tally(op.node_t, lost, op.horizon + 1)[:-1], weights.unseen_mass
    assert by_mis is not None
    unseen = np.maximum(by_actions, by_mis)
    worst = int(np.argmax(unseen))
    if not by_actions[worst] > by_mis[worst]:
        return unseen, weights.unseen_at
    here = op.nodes(worst)
    node = here.start + largest(lost[here])
    return unseen, Place(worst, int(op.node_s[node]))
