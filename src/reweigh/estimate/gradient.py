"""n ∂v/∂(sum) of the estimators: tables that a second scan gathers over the rows of each episode.

MIS in all variants. The value is a smooth function of the groups' means of rewards (over N rows)
and of transitions (over the M rows whose next state is known); a group is (t, s), or s when pooled
over time. With D = Σ_t γ^t d_t(s) and U(s') = Σ_t γ^t d_t(s) γ^{t'-t} u'_{t'}(s') over the steps of
the group, a move adds

    D (z - r̂)/N + 1{s' known} (ρ U(s') - Ū)/M            and an episode  u_0(s_0) - mean

where Ū is the mean of ρU over the M rows. When self-normalised N and M give way to Σρ and both
means are multiplied by ρ. u' is what arriving is worth: V, or the adjoint (u - <d, u>)/c where d
was divided by c. Averaged rewards r̄ (over (t, s, a), or (s, a) at all times) make z = ρ r̄; the row
then also moves r̄ itself:  C/n(s,a) (y - r̄),  C(s,a) = Σ_moves of (s,a) D ρ/N.

DM, and a Q that was fitted on the same log: functions of the means of the cells (t, s, a), r̂ over N
rows and T̂ over M, and of the shares π̄(a|t,s) (`sums/shares.py`).

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

DR, WDR and MDR with an in-sample Q give the row's shaped reward y - Q_t(s,a) + γ V_{t+1}(s') the
weight W = n ∂v/∂y, and V_0(s_0) the weight 1: κ_Q = -Σ W over the cell, κ_V(t+1,s') = γ Σ W over
the rows that lead there, κ_V(0,s) = n d_0(s). As Q_t(s,a) and V cancel on average, the λ are of the
order of 1/√n beside W: this part is of second order where a cell has many rows, and matters where
it has few.

IS, WIS, trajectory-wise: see `ProductGradient`. SSD-IS: `gradient_stationary.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError
from reweigh.estimate import variance
from reweigh.estimate.control import marginal_control
from reweigh.estimate.operators import OneStep, importance_operator
from reweigh.estimate.presets import mis
from reweigh.estimate.recipe import Marginal, Recipe, Trajectory
from reweigh.estimate.recursion import Backward, Forward, backward, forward, no_support
from reweigh.estimate.solution import (
    lacking,
    model_cells,
    model_of,
    needs_discrete,
    operators_of,
    refuse_cut_stretches,
)
from reweigh.estimate.weakest_places import node_of
from reweigh.kernels.groups import group_by, tally
from reweigh.log.states import UNKNOWN
from reweigh.sums.gather import CellGradient, Gradient, PolicyGradient, ProductGradient
from reweigh.sums.moments import Moments
from reweigh.sums.transitions import StartMoments, TransitionMoments
from reweigh.system.numbers import divided

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def gradient_of(recipe: Recipe, sums: Moments) -> Gradient:
    """The gradient of an estimator with respect to these sums. Of estimators with a control
    variate MDR has one where Q is fitted and every state observed."""
    if recipe.control is not None:
        return shaped_gradient(recipe, sums)
    return recipe.weights.gradient(recipe, sums)


@dataclass(frozen=True, eq=False)
class MarginalGradient:
    """The gradient of MIS, with (E,) the node of each cell in `op`, and (K,) d_t(s)."""

    gradient: CellGradient
    op: OneStep
    node: Ints
    target: Floats


def marginal_gradient(recipe: Recipe, sums: Moments) -> MarginalGradient:
    """Of MIS in all its variants: plain, simplex, per state, pooled, averaged."""
    assert isinstance(recipe.weights, Marginal)
    op = operators_of(recipe, sums)[0]
    if not recipe.weights.pooled:
        return _of_operator(recipe, op, op.cells, np.arange(len(op.cells)))
    # A cell of the pooled operator is (s, a, s'), s' being UNKNOWN where it does not count.
    table = sums.transitions if recipe.reward == "logged" else sums.model
    assert table is not None
    cells = table.forget("block")
    final = cells.t == sums.about.horizon - 1
    counts = ~final | (not np.any(final & (cells.s_next == UNKNOWN)))
    edges = group_by([cells.s, cells.a, np.where(counts, cells.s_next, UNKNOWN)])
    return _of_operator(recipe, op, cells, edges.index())


def behavior_gradient(
    cells: TransitionMoments, start: StartMoments, horizon: int, discount: float, *, hidden: bool
) -> MarginalGradient:
    """Of the behaviour's own value: MIS with every ratio 1. The cells' own ratios do not count."""
    n = cells.n.astype(np.float64)
    cells = replace(cells, rho=n, rho2=n, z=cells.y, rhoz=cells.y, z2=cells.y2, one=n)
    refuse_cut_stretches(cells, horizon, hidden)
    op = importance_operator(cells, start, horizon, discount)
    return _of_operator(mis("none"), op, op.cells, np.arange(len(op.cells)))


def _of_operator(
    recipe: Recipe, op: OneStep, cells: TransitionMoments, edge: Ints
) -> MarginalGradient:
    """By these cells, of which (E,) the edge in the operator is given."""
    simplex = recipe.normalize == "simplex"
    flow = forward(op, simplex=simplex)
    back = backward(op, flow if simplex else None)
    columns, n = _marginal_columns(recipe, op, flow, back), op.n_episodes
    gradient = CellGradient(
        "stretches" if recipe.reward == "logged" else "actions",
        cells,
        one=n * columns["one"][edge],
        rho=n * columns["rho"][edge],
        z=n * columns["z"][edge],
        y=n * columns["y"][edge],
        start=_start(cells, back.u[op.src[edge]]),
    )
    return MarginalGradient(gradient, op, op.src[edge], flow.d)


def _marginal_columns(
    recipe: Recipe, op: OneStep, flow: Forward, back: Backward
) -> dict[str, Floats]:
    """∂v by edge of R - R̄ + T - T̄, with R = a_ρ ρ + a_z z and T = b ρ over the group, and of
    a0 + a_y y, which r̄ has centred over its own rows."""
    groups, c, known = op.groups, op.cells, op.known
    moved = variance.derivatives(op, flow, back)
    if recipe.reward == "logged":
        reward = variance.logged_reward(op, moved.reward)
    else:
        of = group_by([c.s, c.a] if recipe.reward == "pooled" else [c.t, c.s, c.a])
        mean = (of.sum(c.y) / of.sum(c.n))[of.index()]
        reward = variance.pooled_reward(op, moved.reward, mean, of.index())
    b = divided(np.ones(len(groups.share)), groups.move_by)[groups.of]
    if op.self_normalized:  # T = ρ (U - Ū)/Σρ
        mean = divided(groups.sum(np.where(known, c.rho, 0.0) * moved.move), groups.move_by)
        b = b * (moved.move - mean[groups.of])
    else:
        b = b * moved.move
    b = np.where(known, b, 0.0)
    mean_t = divided(groups.sum(b * c.rho), groups.moves)
    none = np.zeros(len(c))
    columns = {"one": -np.where(known, mean_t[groups.of], 0.0), "rho": b, "z": none, "y": none}
    for name, a in reward.items():
        columns[name] = columns[name] + a
        if name in (variance.RHO, variance.Z):
            mean_r = divided(groups.sum(a * variance.moment(c, variance.ONE, name)), groups.visits)
            columns["one"] = columns["one"] - mean_r[groups.of]
    return columns


def _start(cells: TransitionMoments, value: Floats) -> Floats:
    """(E,) the value of the first state less its mean over the episodes, for cells of step 0."""
    first = cells.t == 0
    n = np.where(first, cells.n, 0)
    return np.where(first, value - float(np.sum(n * np.where(first, value, 0.0)) / n.sum()), 0.0)


# ---- models ----------------------------------------------------------------------------------


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
        if sums.about.continuous_actions:
            raise needs_discrete()
        op = model_of(sums, renorm=renorm)
        groups, V = op.groups, backward(op).u
        r = divided(groups.sum(op.cells.z), groups.visits)
        m = divided(groups.sum(op.cells.rho * _arriving(op, V)), groups.moves)
        return cls(sums, op, V, r, m, r + m, node_of(op), renorm)

    def gradient(self, kappa_q: Floats, kappa_v: Floats) -> CellGradient:
        """Of a value with these derivatives by Q and V, without an episode's start."""
        op, groups = self.op, self.op.groups
        lam_q, lam_v = _adjoint(op, self.node, kappa_q, kappa_v)
        by_reward, by_move = divided(lam_q, groups.visits), divided(lam_q, groups.moves)
        ahead = _arriving(op, self.V) - self.m[groups.of]
        none = np.zeros(len(op.cells))
        found = CellGradient(
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
            rho = model_cells(self.sums)[0].rho
            per_ratio = divided(lam_v, tally(op.src, rho, len(self.V)))[op.src]
            worth = (self.Q - self.V[self.node])[groups.of]
            return replace(found, rho=per_ratio * worth)
        if shares.rule == "every row":
            return self._through_policy(found, lam_v)
        return found

    def _through_policy(self, found: CellGradient, lam_v: Floats) -> CellGradient:
        op, node = self.op, self.node
        worth, one = self.Q, found.one
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
        return replace(found, one=one, policy=policy)

    def through_q(self, weight: Floats) -> CellGradient:
        """Of the part of a value that is through Q, whose shaped rewards have these weights: (E,)
        the sums of n ∂v/∂y over the rows of the cells. V is that of the cell."""
        kappa_v = self.op.n_episodes * self.op.initial + self.arriving(weight)
        return self.gradient(self.leaving(weight), kappa_v)

    def leaving(self, weight: Floats) -> Floats:
        """κ_Q = -Σ W"""
        return -self.op.groups.sum(weight)

    def arriving(self, weight: Floats) -> Floats:
        """κ_V(t+1, s') = γ Σ W; after the horizon V is 0."""
        op = self.op
        ahead = (op.dst >= 0) & (op.cells.t < op.horizon - 1)
        return op.discount * tally(op.dst[ahead], weight[ahead], len(self.V))


def model_gradient(sums: Moments, *, renorm: bool) -> CellGradient:
    """Of the direct method."""
    model = FittedModel.of(sums, renorm=renorm)
    op = model.op
    forward(op, simplex=False)  # refuses where no row is possible under the target
    found = model.gradient(np.zeros(len(model.Q)), op.n_episodes * op.initial)
    return replace(found, start=_start(op.cells, model.V[op.src]))


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


# ---- control variates ------------------------------------------------------------------------


def shaped_gradient(recipe: Recipe, sums: Moments) -> CellGradient:
    """Of MDR, by the cells with actions. Within such a cell f is constant, Σz' = Σz + fΣρ, so that
    ∂v/∂Σρ grows by f ∂v/∂Σz'; an in-sample Q adds ∂v/∂Q · ∂Q/∂(sums)."""
    assert recipe.control is not None
    if recipe.control.q == "in-sample":
        model = sums.model
        sums = sums if model is None else replace(sums, model=model.forget("block"))
    shape = marginal_control(recipe, sums)
    plain = marginal_gradient(recipe.plain, shape.shaped(sums)).gradient
    cells = shape.cells
    of, edges = group_by([cells.t, cells.s, cells.s_next]), plain.cells
    assert len(of) == len(edges)  # both in the order of their keys
    edge, by_half = of.index(), recipe.control.blocks == 2
    used, n = int(shape.starts.n.sum()), sums.n_episodes
    found = CellGradient(
        "actions",
        replace(cells, block=cells.block % 2) if by_half else cells,
        one=plain.one[edge],
        rho=plain.rho[edge] + plain.z[edge] * shape.f,
        z=plain.z[edge],
        y=plain.y[edge],
        start=plain.start[edge] + _start(cells, shape.start_value),
        halves=by_half,
    )
    if by_half:  # of a split only n_0 episodes are summed: each counts n/n_0 times
        return _times(found, n / used)
    through = FittedModel.of(sums).through_q(plain.z[edge] * cells.rho)
    return _plus(found, through)


def _times(gradient: CellGradient, by: float) -> CellGradient:
    names = ("one", "rho", "z", "y", "start")
    scaled = {name: by * getattr(gradient, name) for name in names}
    return replace(gradient, **scaled)


def _plus(gradient: CellGradient, other: CellGradient) -> CellGradient:
    """Of cells with the same keys."""
    names = ("one", "rho", "z", "y", "start")
    added = {name: getattr(gradient, name) + getattr(other, name) for name in names}
    return replace(gradient, policy=other.policy, **added)


# ---- running products ------------------------------------------------------------------------


def product_gradient(recipe: Recipe, sums: Moments) -> ProductGradient:
    """Of IS and WIS, step- and trajectory-wise; an episode that has ended keeps its product and
    earns 0."""
    if sums.truncated:
        raise cut_off(sums.truncated)
    if sums.trajectories is None:
        raise lacking("trajectories")
    steps, whole = sums.trajectories.steps.total(), sums.trajectories.episodes.total()
    n, weighted = sums.n_episodes, recipe.normalize == "step"
    empty = np.flatnonzero(~(steps.w > 0))
    if len(empty):
        raise no_support(int(empty[0]))
    none, g = np.zeros(1), float(whole.g[0]) / n
    if isinstance(recipe.weights, Trajectory):
        if weighted:
            log_mean = np.log(whole.w / n) + whole.log_scale
            return ProductGradient(True, True, whole.wg / whole.w, log_mean, 0.0)
        mean = np.exp(whole.log_scale) * whole.wg / n
        return ProductGradient(True, False, none, none, -float(mean[0]))
    if weighted:
        log_mean = np.log(steps.w / n) + steps.log_scale
        return ProductGradient(False, True, steps.wy / steps.w, log_mean, -g)
    return ProductGradient(False, False, none, none, -float(whole.x[0]) / n)


def cut_off(count: int) -> RefusedError:
    return RefusedError(
        "truncated",
        f"{count:,} episodes were cut off, and running products need whole ones; "
        "use mis(), or leave the cut ones out: log.drop_truncated()",
    )
