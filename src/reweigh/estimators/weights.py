"""Solving a recipe on sums: the value, its error, and what the estimate rests on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError, SupportError
from reweigh.estimators.operators import (
    SEEN_ENOUGH,
    OneStep,
    importance_operator,
    model_operator,
    pooled_operator,
)
from reweigh.estimators.recipe import Marginal, Model, Recipe, Trajectory
from reweigh.estimators.recursion import Backward, Forward, backward, forward, no_support
from reweigh.inference import variance
from reweigh.logs.states import UNKNOWN
from reweigh.moments.bundle import Moments
from reweigh.moments.groups import group_by, tally
from reweigh.moments.transitions import StartMoments, TransitionMoments

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Solution:
    """What an estimator found.

    ess, unseen_mass are per step (nan where a step has none); marginals are None for estimators
    that have no state distribution.
    """

    value: float
    standard_error: float | None
    error_method: str
    per_step: Floats | None
    ess: Floats
    unseen_mass: Floats | None
    placebo: float
    placebo_error: float | None = None
    rare_mass: float | None = None
    total_mass: Floats | None = None
    node_t: Ints | None = None
    node_s: Ints | None = None
    target: Floats | None = None
    behavior: Floats | None = None
    variance_by_step: Floats | None = None
    warnings: tuple[Warning, ...] = ()


# Marginal weights and models: one operator, one recursion


def solve_recursion(recipe: Recipe, moments: Moments) -> Solution:
    """MIS in all variants, and DM."""
    op, for_error, term = _operator(recipe, moments)
    simplex = recipe.normalize == "simplex"
    flow = forward(op, simplex=simplex)
    back = backward(for_error, flow, simplex=simplex)
    moved = variance.derivatives(for_error, flow, back)
    square, per_group, start_part = variance.squared_error(
        for_error, back, moved, term(for_error, moved.reward)
    )
    per_step = earned(op, flow, op.reward)
    start_value = float(op.start.g.sum()) / op.n_episodes
    per_step[0] += start_value
    return Solution(
        value=float(per_step.sum()),
        standard_error=float(np.sqrt(square)),
        error_method="analytic",
        per_step=per_step,
        ess=effective_sizes(op, flow),
        unseen_mass=escaping(op, flow),
        placebo=float(earned(op, flow, op.placebo).sum()),
        placebo_error=placebo_error(op, flow, simplex),
        rare_mass=rare_mass(op, flow),
        total_mass=flow.total,
        node_t=op.node_t,
        node_s=op.node_s,
        target=flow.d,
        behavior=op.visits / op.n_episodes,
        variance_by_step=_by_step(op, per_group, start_part),
    )


Term = Callable[[OneStep, Floats], variance.RewardTerm]


def _operator(recipe: Recipe, moments: Moments) -> tuple[OneStep, OneStep, Term]:
    """The operator of the value, that of its error, and how rewards enter the error."""
    horizon, gamma = moments.about.horizon, moments.about.discount
    if isinstance(recipe.weights, Model):
        if moments.about.continuous_actions:
            raise needs_discrete()
        cells, start = model_cells(moments)
        renorm = recipe.weights.unseen == "renorm"
        op = model_operator(cells, start, horizon, gamma, renorm=renorm)
        return op, op, variance.logged_reward
    assert isinstance(recipe.weights, Marginal)
    per_state = recipe.normalize == "state"
    build = pooled_operator if recipe.weights.pooled else importance_operator
    if recipe.weights.pooled and moments.hidden:
        raise RefusedError(
            "hidden",
            "pooling over time needs every state observed; use mis() instead",
        )
    if recipe.reward == "logged":
        cells = _transition_cells(moments)
        start = replace_blocks(moments.start)
        op = build(cells, start, horizon, gamma, per_state=per_state)
        return op, op, variance.logged_reward
    if moments.hidden:
        raise RefusedError(
            "hidden",
            "averaged rewards break MIS where states are hidden; use reward='logged'",
        )
    if moments.about.continuous_actions:
        raise needs_discrete()
    cells, start = model_cells(moments)
    key = [cells.s, cells.a] if recipe.reward == "pooled" else [cells.t, cells.s, cells.a]
    found = group_by(key)
    mean = (found.sum(cells.y) / found.sum(cells.n))[found.index()]
    op = build(cells, start, horizon, gamma, per_state=per_state, reward_sums=cells.rho * mean)
    if recipe.reward == "averaged":  # the error keeps the noise of the logged rewards
        logged = build(cells, start, horizon, gamma, per_state=per_state)
        return op, logged, variance.logged_reward
    # the operator may have brought its cells into another order
    again = group_by([op.cells.s, op.cells.a])
    average = (again.sum(op.cells.y) / again.sum(op.cells.n))[again.index()]
    return op, op, lambda o, D: variance.pooled_reward(o, D, average, again.index())


def _transition_cells(moments: Moments) -> TransitionMoments:
    cells = moments.transitions
    if cells is None:
        raise lacking("transitions")
    cells = cells.forget("block")
    refuse_cut_stretches(moments, cells)
    return cells


def refuse_cut_stretches(moments: Moments, cells: TransitionMoments) -> None:
    """The reward of a stretch is one sum: a stretch that is cut inside has lost a part of it."""
    cut = (cells.s_next == UNKNOWN) & (cells.t_next < moments.about.horizon)
    if moments.hidden and np.any(cut):
        raise RefusedError(
            "hidden-truncated",
            "cut-off episodes together with hidden states cannot be used: what a cut episode "
            "earned inside a hidden stretch is not known. Leave the cut episodes out "
            "(truncated='drop'), give their next state, or use dm()",
        )


def model_cells(moments: Moments) -> tuple[TransitionMoments, StartMoments]:
    if moments.model is None or moments.start_model is None:
        raise lacking("model")
    return moments.model.forget("block"), replace_blocks(moments.start_model)


def replace_blocks(start: StartMoments) -> StartMoments:
    """Start counts over all blocks."""
    return replace(start, block=np.zeros(len(start.n), np.int64)).summed()


def lacking(kind: str) -> RefusedError:
    return RefusedError(
        "missing-moments",
        f"these moments hold no sums of the kind {kind!r}; make them again for this estimator",
    )


def needs_discrete() -> RefusedError:
    return RefusedError(
        "continuous-actions",
        "a model of every action is needed, and a continuous action is seen once; use mis(), "
        "which needs no model",
    )


def behavior_value(moments: Moments) -> float | None:
    """What the behaviour itself earned: the same recursion with every ratio 1.

    Without cut-off episodes this is the mean return; None where it cannot be told.
    """
    try:
        return _behavior_value(moments)
    except RefusedError:
        return None


def _behavior_value(moments: Moments) -> float | None:
    if moments.transitions is not None or moments.model is not None:
        if moments.transitions is not None:
            cells, start = moments.transitions.forget("block"), replace_blocks(moments.start)
        else:
            cells, start = model_cells(moments)
        if not moments.truncated:
            gamma = moments.about.discount ** cells.t.astype(np.float64)
            return float(gamma @ cells.y) / moments.n_episodes
        n = cells.n.astype(np.float64)
        cells = replace(cells, rho=n, rho2=n, z=cells.y, rhoz=cells.y, z2=cells.y2, one=n)
        refuse_cut_stretches(moments, cells)
        op = importance_operator(cells, start, moments.about.horizon, moments.about.discount)
        return float(earned(op, forward(op, simplex=False), op.reward).sum())
    if moments.trajectories is not None:
        return float(moments.trajectories.episodes.ret.sum()) / moments.n_episodes
    return None


def earned(op: OneStep, flow: Forward, reward: Floats) -> Floats:
    """(H,) γ^t <d_t, r_t>."""
    each = flow.d * reward
    sums = np.array([each[op.nodes(t)].sum() for t in range(op.horizon)])
    return np.asarray(sums * op.discount ** np.arange(op.horizon), np.float64)


def effective_sizes(op: OneStep, flow: Forward) -> Floats:
    """(H,) (Σω)²/Σω² of the weights ω = d_t(s) share ρ/N that rows carry; nan without rows."""
    sizes = np.full(op.horizon, np.nan)
    per_row = op.groups.share / np.maximum(op.groups.visits, 1)
    for t in range(op.horizon):
        e, src, _ = op.edges(t)
        each = flow.d[src] * per_row[op.groups.of[e]]
        if op.edge_offsets is None:  # pooled: of the rows of this step, as for the others
            each = np.where(op.cells.t == t, each, 0.0)
        first, second = float(each @ op.cells.rho[e]), float(each**2 @ op.cells.rho2[e])
        end = int(op.ended_to[t])
        if end >= 0 and op.visits[end] > 0:
            first += float(flow.d[end])
            second += float(flow.d[end] ** 2 / op.visits[end])
        if second > 0:
            sizes[t] = first * first / second
    return sizes


def escaping(op: OneStep, flow: Forward) -> Floats:
    """(H,) target mass that step t loses for want of data, of the un-normalised recursion.

    A reached state without rows, or without a row that the target could have made, loses all of
    its mass; one whose mean ratio is too small loses a part; a model loses π's mass on actions
    that it has not seen.
    """
    lost = np.zeros(op.horizon)
    scale = 1.0
    for t in range(op.horizon):
        scale *= flow.mass[t]
        here = op.nodes(t)
        share = float(flow.d[here] @ np.maximum(1 - op.covered[here], 0.0))
        lost[t] = scale * share
        if op.conserves:  # d_t keeps what was lost: count no mass twice
            scale *= max(1 - share, 0.0)
    return np.where(lost > 1e-9, lost, 0.0)


def placebo_error(op: OneStep, flow: Forward, simplex: bool) -> float | None:
    """Standard error of the placebo: the same formula with every reward 1 (z = ρ, y = 1)."""
    if np.any(op.gap != 1):
        return None  # inside a hidden stretch the sums do not hold the placebo's square
    c, n = op.cells, op.cells.n.astype(float)
    ones = replace(
        op,
        reward=op.placebo,
        cells=replace(c, z=c.rho, rhoz=c.rho2, z2=c.rho2, y=n, y2=n),
        start=replace(op.start, g=0 * op.start.g, g2=0 * op.start.g2),
    )
    back = backward(ones, flow, simplex=simplex)
    moved = variance.derivatives(ones, flow, back)
    term = variance.logged_reward(ones, moved.reward)
    return float(np.sqrt(variance.squared_error(ones, back, moved, term)[0]))


def rare_mass(op: OneStep, flow: Forward) -> float:
    """Average share of the target's mass on (t, s) that the log shows fewer than 10 times."""
    inside = (op.node_t < op.horizon) & (op.visits < SEEN_ENOUGH)
    return float(flow.d[inside].sum()) / op.horizon


def _by_step(op: OneStep, per_group: Floats, start: Floats) -> Floats | None:
    """(H+1,) parts of SE²: the start, then every step (None when pooled: no step owns it)."""
    if op.edge_offsets is None:
        return None
    step = np.zeros(len(per_group), np.int64)
    step[op.groups.of] = op.cells.t
    return np.concatenate([start, tally(step, per_group, op.horizon)])


# Running products


def solve_products(recipe: Recipe, moments: Moments) -> Solution:
    """Step-wise and trajectory-wise IS and WIS; WIS's error needs a second scan (see evaluate)."""
    if moments.trajectories is None:
        raise lacking("trajectories")
    steps = moments.trajectories.steps.total()
    whole = moments.trajectories.episodes.total()
    horizon, gamma = moments.about.horizon, moments.about.discount
    n = moments.n_episodes
    empty = np.flatnonzero(~(steps.w > 0))
    if len(empty):
        raise no_support(int(empty[0]))
    powers = gamma ** np.arange(horizon)
    ess = steps.w**2 / steps.w2
    weighted = recipe.normalize == "step"
    start_value = float(whole.g[0]) / n
    per_step: Floats | None = None
    error: float | None
    if isinstance(recipe.weights, Trajectory):
        W, scale = float(whole.w[0]), float(whole.log_scale[0])
        ess = np.full(horizon, np.nan)  # the whole product is one weight, complete at the end
        ess[-1] = W**2 / float(whole.w2[0])
        if weighted:
            # v = Σ W G / Σ W,   ψ = W (G - v) / mean(W)
            value = float(whole.wg[0]) / W
            second = whole.wg2[0] - 2 * value * whole.w2g[0] + value**2 * whole.w2[0]
            error = float(np.sqrt(max(second, 0.0))) / W
            method, placebo = "delta", float(powers.sum())
        else:
            up = _exp(scale)
            value = up * float(whole.wg[0]) / n
            second = _exp(2 * scale) * float(whole.wg2[0]) / n
            error, method = _spread(value, second, n), "sample"
            placebo = up * W / n * float(powers.sum())
    elif weighted:
        per_step = powers * steps.wy / steps.w
        per_step[0] += start_value
        value, error, method = float(per_step.sum()), None, "delta"
        placebo = float(powers.sum())
    else:
        with np.errstate(over="ignore"):
            up_by_step = np.exp(steps.log_scale)
            per_step = powers * np.where(steps.wy == 0, 0.0, up_by_step * steps.wy) / n
            placebo = float((powers * up_by_step * steps.w / n).sum())
        per_step[0] += start_value
        value = float(whole.x[0]) / n
        second = float(whole.x2[0]) / n
        error, method = _spread(value, second, n), "sample"
    if not (np.isfinite(value) and (error is None or np.isfinite(error))):
        raise SupportError(
            "overflow",
            "the weights exceed what a number can hold (a product of ratios of about "
            f"10^{float(steps.log_scale.max()) / np.log(10):.0f}); use mis() or wis()",
        )
    return Solution(value, error, method, per_step, ess, None, placebo)


def _exp(x: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.exp(x))


def _spread(mean: float, second: float, n: int) -> float:
    """sqrt(Var/n), the variance divided by n."""
    return float(np.sqrt(max(second - mean * mean, 0.0) / n))


__all__ = ["Backward", "Solution", "model_cells", "solve_products", "solve_recursion"]
