"""Influence values of MIS in all its variants: plain, simplex, per state, pooled, averaged.

The value is a smooth function of the groups' means of rewards (over N rows) and of transitions
(over the M rows whose next state is known); a group is (t, s), or s when pooled over time. With
D = Σ_t γ^t d_t(s) and U(s') = Σ_t γ^t d_t(s) γ^{t'-t} u'_{t'}(s') over the steps of the group,

    ψ_i = u_0(s_0) + g_i - mean  +  n Σ_moves [ D (z - r̂)/N + 1{s' known} (ρ U(s') - Ū)/M ]

where Ū is the mean of ρU over the M rows. When self-normalised N and M give way to Σρ and both
means are multiplied by ρ. u' is what arriving is worth: V, or the adjoint (u - <d, u>)/c where d
was divided by c. Where nothing is pooled and N = M this is the formula of `influence.py`.

Averaged rewards r̄ (over (t, s, a), or (s, a) at all times) make z = ρ r̄; the row then also moves
r̄ itself:  n C/n(s,a) (y - r̄),  C(s,a) = Σ_moves of (s,a) D ρ/N.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError
from reweigh.estimate import variance
from reweigh.estimate.influence_moves import Moves, ranked, single_moves, stretch_moves
from reweigh.estimate.operators import OneStep, importance_operator
from reweigh.estimate.pooled import pooled_operator
from reweigh.estimate.recipe import Marginal, Recipe
from reweigh.estimate.recursion import Forward, backward, forward
from reweigh.estimate.solution import needs_discrete, refuse_cut_stretches
from reweigh.log.log import EpisodeLog
from reweigh.log.states import UNKNOWN
from reweigh.sums.transitions import TransitionMoments
from reweigh.system.arithmetic import divided

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class MarginalInfluence:
    """The parts of ψ. `start` (n,) is not yet centred; the L terms belong to the moves.

    edge  (L,) of each move in `op`
    D_z   (E,) n ∂v/∂z of a move on the edge
    """

    op: OneStep
    flow: Forward
    moves: Moves
    edge: Ints
    start: Floats
    term: Floats
    D_z: Floats

    def row_weights(self) -> Floats:
        """(N,) n ∂v/∂y of every row."""
        on_move = self.D_z[self.edge]
        return self.moves.within * (on_move if self.moves.of is None else on_move[self.moves.of])


def marginal_influence(
    log: EpisodeLog, recipe: Recipe, pi: Floats, rho: Floats
) -> MarginalInfluence:
    """ψ of MIS by its parts; `recipe` has no control (its rewards are the log's)."""
    _refuse(log, recipe)
    logged = recipe.reward == "logged"
    moves = stretch_moves(log, rho) if logged else single_moves(log, pi, rho, action=True)
    cells, edge = moves.cells()
    if logged:
        refuse_cut_stretches(cells, log.horizon, log.has_hidden)
    op, edge = _operator(log, recipe, moves, cells, edge)
    simplex = recipe.normalize == "simplex"
    flow = forward(op, simplex=simplex)
    back = backward(op, flow if simplex else None)
    moved = variance.derivatives(op, flow, back)
    reward = variance.logged_reward(op, moved.reward)
    D_z = log.n_episodes * reward[variance.Z]
    if not logged:
        key = [op.cells.s, op.cells.a] if recipe.reward == "pooled" else _step_keys(op.cells)
        cell, _ = ranked(key)
        reward = variance.pooled_reward(op, moved.reward, _means(op.cells, cell), cell)
    term = log.n_episodes * _move_terms(op, moved, reward, moves, edge)
    start = back.u[op.src[edge[: moves.n]]]
    g = log.steps.start_value
    return MarginalInfluence(op, flow, moves, edge, start if g is None else start + g, term, D_z)


def _refuse(log: EpisodeLog, recipe: Recipe) -> None:
    assert isinstance(recipe.weights, Marginal)
    if recipe.weights.pooled and log.has_hidden:
        raise RefusedError(
            "hidden", "pooling over time needs every state observed; use mis() instead"
        )
    if recipe.reward != "logged" and log.has_hidden:
        raise RefusedError(
            "hidden", "averaged rewards break MIS where states are hidden; use reward='logged'"
        )
    if recipe.reward != "logged" and log.continuous_actions:
        raise needs_discrete()


def _operator(
    log: EpisodeLog, recipe: Recipe, moves: Moves, cells: TransitionMoments, edge: Ints
) -> tuple[OneStep, Ints]:
    """The estimator's operator, and (L,) the edge of each move in it."""
    assert isinstance(recipe.weights, Marginal)
    build = pooled_operator if recipe.weights.pooled else importance_operator
    sums = None
    if recipe.reward != "logged":
        key = [cells.s, cells.a] if recipe.reward == "pooled" else _step_keys(cells)
        sums = cells.rho * _means(cells, ranked(key)[0])
    op = build(
        cells,
        moves.starts(log.steps.start_value),
        log.horizon,
        log.discount,
        per_state=recipe.normalize == "state",
        reward_sums=sums,
    )
    if not recipe.weights.pooled:
        return op, edge  # the cells are in the operator's order already
    # A cell of the pooled operator is (s, a, s'), s' being UNKNOWN where it does not count.
    final = cells.t == log.horizon - 1
    counts = ~final | (not np.any(final & (cells.s_next == UNKNOWN)))
    after = np.where(counts, cells.s_next, UNKNOWN)
    return op, ranked([cells.s, cells.a, after])[0][edge]


def _step_keys(cells: TransitionMoments) -> list[Ints]:
    return [cells.t, cells.s, cells.a]


def _means(cells: TransitionMoments, of: Ints) -> Floats:
    """(E,) the mean reward of each cell's key."""
    total = np.bincount(of, cells.y) / np.bincount(of, cells.n)
    return np.asarray(total[of], np.float64)


def _move_terms(
    op: OneStep,
    moved: variance.Derivatives,
    reward: variance.RewardTerm,
    moves: Moves,
    edge: Ints,
) -> Floats:
    """(L,) R - R̄ + T - T̄ with R = a_ρ ρ + a_z z and T = b ρ over the group, and a0 + a_y y, which
    r̄ has centred over its own rows."""
    groups, c, known = op.groups, op.cells, op.known
    b = divided(np.ones(len(groups.share)), groups.move_by)[groups.of]
    if op.self_normalized:  # T = ρ (U - Ū)/Σρ
        mean = divided(groups.sum(np.where(known, c.rho, 0.0) * moved.move), groups.move_by)
        b = b * (moved.move - mean[groups.of])
    else:
        b = b * moved.move
    b = np.where(known, b, 0.0)
    mean_t = divided(groups.sum(b * c.rho), groups.moves)
    found = (b[edge] * moves.rho) - np.where(known, mean_t[groups.of], 0.0)[edge]
    of_rows: dict[str, Any] = {
        variance.ONE: 1.0,
        variance.RHO: moves.rho,
        variance.Z: moves.z,
        variance.Y: moves.y,
    }
    for name, a in reward.items():
        found += a[edge] * of_rows[name]
        if name in (variance.RHO, variance.Z):
            mean_r = divided(groups.sum(a * variance.moment(c, variance.ONE, name)), groups.visits)
            found -= mean_r[groups.of[edge]]
    return found
