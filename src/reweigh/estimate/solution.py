"""Solving a recipe on sums: the value, its error, and what the estimate rests on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError, SupportError
from reweigh.estimate import variance
from reweigh.estimate.nodes import DenseNodes, Nodes
from reweigh.estimate.operators import OneStep, importance_operator, model_operator
from reweigh.estimate.pooled import pooled_operator
from reweigh.estimate.recipe import Marginal, Model, Recipe
from reweigh.estimate.recursion import Forward, Replicated, backward, forward
from reweigh.estimate.weakest_places import Place, most_rare, most_unseen, node_of, rare_share
from reweigh.kernels.groups import group_by, inner, rowwise, tally
from reweigh.log.states import UNKNOWN
from reweigh.sums.moments import Moments
from reweigh.sums.transitions import StartMoments, TransitionMoments
from reweigh.system.numbers import divided

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Solution:
    """What an estimator found.

    ess, unseen_mass are per step (nan where a step has none); marginals are None for estimators
    that have no state distribution. normalized_at tells the steps at which d_t was normalised;
    heaviest is the share of the weight that one episode holds at the worst step; from_model
    tells that no ratios were used. placebo_by_step and rare_by_step are (H,) what the steps add to
    the placebo, and the share of their mass that is seen seldom; unseen_at and rare_at tell where
    most of the mass is lost, or rare. `by_node` is what is told by step and state; the parts of SE²
    there add up to it with `variance_of_start`. `freedom` is the error corrected for small groups,
    with its degrees of freedom; `mean_return` is that of the rows, where they were read.
    """

    value: float
    standard_error: float | None
    error_method: str
    per_step: Floats | None
    ess: Floats
    unseen_mass: Floats | None
    placebo: float
    placebo_error: float | None = None
    placebo_by_step: Floats | None = None
    rare_mass: float | None = None
    rare_by_step: Floats | None = None
    rare_at: Place | None = None
    unseen_at: Place | None = None
    total_mass: Floats | None = None
    by_node: Nodes | DenseNodes | None = None
    variance_of_start: float | None = None
    freedom: variance.Freedom | None = None
    normalized_at: npt.NDArray[np.bool_] | None = None
    heaviest: Floats | None = None
    from_model: bool = False
    mean_return: float | None = None
    influence: Callable[[], Floats] | None = None
    warnings: tuple[Warning, ...] = ()

    @property
    def nodes(self) -> Nodes | None:
        return None if self.by_node is None else self.by_node.made

    @property
    def variance_by_step(self) -> Floats | None:
        """(H+1,) parts of SE²: the start, then every step."""
        steps = None if self.by_node is None else self.by_node.variance_by_step(len(self.ess))
        if steps is None:
            return None
        assert self.variance_of_start is not None
        return np.concatenate([[self.variance_of_start], steps])


# Marginal weights and models: one operator, one recursion

Term = Callable[[OneStep, Floats], variance.RewardTerm]
Operators = tuple[OneStep, OneStep, Term]


def solve_recursion(recipe: Recipe, moments: Moments, *, errors: bool = True) -> Solution:
    """MIS in all variants, and DM; without `errors` the value alone."""
    return solve_operator(recipe, lambda wanted: operators_of(wanted, moments), errors=errors)


def value_alone(per_step: Floats) -> Solution:
    """The value without what it rests on, for those who solve the same log many times."""
    nothing = np.full(len(per_step), np.nan)
    value = float(per_step.sum())
    return Solution(value, None, "not asked for", per_step, nothing, None, float("nan"))


@dataclass(frozen=True, eq=False)
class Recursions:
    """Both recursions over an operator: forward with what the steps earn, (H,), and backward with
    SE², None where it was not asked for. Of replicates all have a second axis."""

    flow: Forward
    per_step: Floats
    square: variance.Squared | None


def recursions(recipe: Recipe, operators: Operators, *, errors: bool) -> Recursions:
    """The value's parts, and SE² if `errors`."""
    op, for_error, term = operators
    simplex = recipe.normalize == "simplex"
    flow = forward(op, simplex=simplex)
    per_step = earned(op, flow, op.reward)
    per_step[0] += op.start.g.sum(axis=0) / op.n_episodes
    if not errors:
        return Recursions(flow, per_step, None)
    back = backward(for_error, flow if simplex else None)
    moved = variance.derivatives(for_error, flow, back)
    square = variance.squared_error(for_error, back, moved, term(for_error, moved.reward))
    if op.by_ratios:
        square = variance.with_share_noise(op, flow, back, square)
    return Recursions(flow, per_step, square)


def solve_replicates(recipe: Recipe, moments: Moments, *, errors: bool) -> Replicated:
    """MIS in all variants, and DM, on sums that hold replicates."""
    operators = operators_of(recipe, moments)
    found = recursions(recipe, operators, errors=errors)
    inside = found.flow.d[: operators[0].offsets[-2]]
    return Replicated.of(
        found.per_step.sum(axis=0),
        None if found.square is None else found.square.errors,
        ("no-overlap", np.isnan(inside).any(axis=0)),
    )


def solve_operator(
    recipe: Recipe, make: Callable[[Recipe], Operators], *, errors: bool = True
) -> Solution:
    """The same for any way to make the operators of an estimator."""
    op, for_error, _ = operators = make(recipe)
    found = recursions(recipe, operators, errors=errors)
    flow, per_step, square = found.flow, found.per_step, found.square
    if square is None:
        return value_alone(per_step)
    placebo, off = _placebo(recipe, make, op, flow)
    from_model = not recipe.weights.uses_ratios
    share, unseen = rare_share(op), escaping(op, flow)
    rare = flow.d * share
    return Solution(
        value=float(per_step.sum()),
        standard_error=square.error,
        error_method=variance.LOST if square.lost else "analytic",
        per_step=per_step,
        ess=effective_sizes(op, flow),
        unseen_mass=unseen,
        placebo=float(placebo.sum()),
        placebo_error=off,
        placebo_by_step=placebo,
        rare_mass=rare_mass(op, flow, share),
        rare_by_step=tally(op.node_t, rare, op.horizon + 1)[: op.horizon],
        rare_at=most_rare(op, rare, from_model=from_model),
        unseen_at=most_unseen(op, flow, unseen, from_model=from_model),
        total_mass=flow.total,
        by_node=Nodes(
            op.node_t,
            op.node_s,
            flow.d,
            _behavior_share(op),
            op.visits,
            _by_node(for_error, square),
        ),
        variance_of_start=float(square.start),
        freedom=variance.Freedom.of(
            np.append(square.per_group, square.start),
            np.append(for_error.groups.visits, op.n_episodes),
        ),
        normalized_at=op.complete[: op.horizon] if recipe.normalize == "simplex" else None,
        from_model=from_model,
    )


def _behavior_share(op: OneStep) -> Floats:
    """d_t^μ(s): share of the episodes that are still seen at t (of all where some are hidden)."""
    seen = np.array([op.visits[op.nodes(t)].sum() for t in range(op.horizon + 1)])
    seen = np.where(op.complete & (seen > 0), seen, op.n_episodes)
    return np.asarray(op.visits / seen[op.node_t], np.float64)


def operators_of(recipe: Recipe, moments: Moments) -> Operators:
    """The operator of the value, that of its error, and how rewards enter the error."""
    horizon, gamma = moments.about.horizon, moments.about.discount
    if isinstance(recipe.weights, Model):
        if moments.about.continuous_actions:
            raise needs_discrete()
        op = model_of(moments, renorm=recipe.weights.unseen == "renorm")
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
        start = over_blocks(moments.start)
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
    by_pair = group_by(key)
    mean = divided(by_pair.sum(cells.y), by_pair.sum(cells.n))[by_pair.index()]
    op = build(cells, start, horizon, gamma, per_state=per_state, reward_sums=cells.rho * mean)
    if recipe.reward == "averaged":  # the error keeps the noise of the logged rewards
        logged = build(cells, start, horizon, gamma, per_state=per_state)
        return op, logged, variance.logged_reward
    # the operator may have brought its cells into another order
    again = group_by([op.cells.s, op.cells.a])
    average = divided(again.sum(op.cells.y), again.sum(op.cells.n))[again.index()]
    return op, op, lambda o, D: variance.pooled_reward(o, D, average, again.index())


def _transition_cells(moments: Moments) -> TransitionMoments:
    cells = moments.transitions
    if cells is None:
        raise lacking("transitions")
    cells = cells.forget("block")
    refuse_cut_stretches(cells, moments.about.horizon, moments.hidden)
    return cells


def refuse_cut_stretches(cells: TransitionMoments, horizon: int, hidden: bool) -> None:
    """The reward of a stretch is one sum: a stretch that is cut inside has lost a part of it."""
    cut = (cells.s_next == UNKNOWN) & (cells.t_next < horizon)
    if hidden and np.any(cut):
        raise RefusedError(
            "hidden-truncated",
            "cut-off episodes together with hidden states cannot be used: what a cut episode "
            "earned inside a hidden stretch is not known. Leave the cut episodes out "
            "(truncated='drop'), give their next state, or use dm()",
        )


def model_cells(moments: Moments) -> tuple[TransitionMoments, StartMoments]:
    if moments.model is None or moments.start_model is None:
        raise lacking("model")
    return moments.model.forget("block"), over_blocks(moments.start_model)


def model_of(moments: Moments, *, renorm: bool = False) -> OneStep:
    """The model's operator on these sums."""
    cells, start = model_cells(moments)
    about = moments.about
    return model_operator(
        cells, start, about.horizon, about.discount, moments.shares, renorm=renorm
    )


def over_blocks(start: StartMoments) -> StartMoments:
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
            cells, start = moments.transitions.forget("block"), over_blocks(moments.start)
        else:
            cells, start = model_cells(moments)
        if not moments.truncated:
            powers = moments.about.discount ** np.arange(moments.about.horizon)
            return float(powers @ tally(cells.t, cells.y, moments.about.horizon)) / (
                moments.n_episodes
            )
        n = cells.n.astype(np.float64)
        cells = replace(cells, rho=n, rho2=n, z=cells.y, rhoz=cells.y, z2=cells.y2, one=n)
        refuse_cut_stretches(cells, moments.about.horizon, moments.hidden)
        op = importance_operator(cells, start, moments.about.horizon, moments.about.discount)
        flow = forward(op, simplex=False)
        if np.any(flow.total < 1 - 1e-9):
            return None  # every episode of some state was cut off: its future is not known
        return float(earned(op, flow, op.reward).sum())
    if moments.trajectories is not None:
        return float(moments.trajectories.episodes.ret.sum()) / moments.n_episodes
    return None


def earned(op: OneStep, flow: Forward, reward: Floats) -> Floats:
    """(H,) γ^t <d_t, r_t>."""
    each = flow.d * reward
    sums = np.array([each[op.nodes(t)].sum(axis=0) for t in range(op.horizon)])
    return np.asarray(sums * rowwise(op.discount ** np.arange(op.horizon), sums), np.float64)


def effective_sizes(op: OneStep, flow: Forward) -> Floats:
    """(H,) (Σω)²/Σω² of the weights ω = d_t(s) share ρ/N that rows carry; nan without rows."""
    cells = op.cells if op.at_steps is None else op.at_steps
    if op.at_steps is None:
        node, per_row = op.src, op.groups.share / np.maximum(op.groups.visits, 1)
        each = flow.d[node] * per_row[op.groups.of]
    else:  # pooled: the weights of this step's rows
        states = op.node_s[op.nodes(0)]
        node = op.offsets[cells.t] + np.searchsorted(states, cells.s)
        each = flow.d[node] / _pooled_visits(op, cells.s, states)
    first = tally(cells.t, each * cells.rho, op.horizon)
    second = tally(cells.t, each**2 * cells.rho2, op.horizon)
    end = op.ended_to[: op.horizon]
    ended = (end >= 0) & (op.visits[end] > 0)
    if op.at_steps is None and np.any(op.gap > 1):
        # Where nobody is seen, those who have ended do not speak for the others.
        shown = tally(op.cells.t, op.cells.n, op.horizon) > 0
        ended &= shown | (_passing(op.cells, op.horizon) == 0)
    first += np.where(ended, flow.d[end], 0.0)
    second += np.where(ended, flow.d[end] ** 2 / np.where(ended, op.visits[end], 1.0), 0.0)
    return np.where(second > 0, first**2 / np.where(second > 0, second, 1.0), np.nan)


def _passing(cells: TransitionMoments, horizon: int) -> Floats:
    """(H,) rows of hidden stretches that began before a step and lead beyond it."""
    change = np.zeros(horizon + 2)
    np.add.at(change, cells.t + 1, cells.n)
    np.add.at(change, np.minimum(cells.t_next, horizon + 1), -cells.n.astype(np.float64))
    return np.cumsum(change)[:horizon]


def _pooled_visits(op: OneStep, s: Ints, states: Ints) -> Floats:
    """Rows of a state over all steps."""
    total = op.visits.reshape(-1, len(states)).sum(axis=0)
    return np.asarray(total[np.searchsorted(states, s)], np.float64)


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
        share = inner(flow.d[here], np.maximum(1 - op.covered[here], 0.0))
        lost[t] = scale * share
        if op.conserves:  # d_t keeps what was lost: count no mass twice
            scale *= max(1 - share, 0.0)
    return np.where(lost > 1e-9, lost, 0.0)


def _placebo(
    recipe: Recipe, make: Callable[[Recipe], Operators], op: OneStep, flow: Forward
) -> tuple[Floats, float | None]:
    """(H,) the placebo's parts, and its error. An estimator that normalises within states says H
    whatever the ratios are; there the placebo is that of the same weights before normalising."""
    simplex = recipe.normalize == "simplex"
    if op.conserves:
        op = op.plain or make(replace(recipe, normalize="none"))[0]
        try:
            flow = forward(op, simplex=False)
        except SupportError:
            return np.zeros(op.horizon), None
    return earned(op, flow, op.placebo), placebo_error(op, flow, simplex)


def placebo_error(op: OneStep, flow: Forward, simplex: bool) -> float | None:
    """Standard error of the placebo: the same formula with every reward 1 (z = ρ)."""
    if np.any(op.gap != 1):
        return None  # inside a hidden stretch the sums do not hold the placebo's square
    c = op.cells
    ones = replace(
        op,
        reward=op.placebo,
        cells=replace(c, z=c.rho, rhoz=c.rho2, z2=c.rho2),  # y is not asked for
        start=replace(op.start, g=0 * op.start.g, g2=0 * op.start.g2),
    )
    vars(ones)["short_edges"] = op.short_edges  # they are the same, and large
    back = backward(ones, flow if simplex else None)
    moved = variance.derivatives(ones, flow, back)
    term = variance.logged_reward(ones, moved.reward)
    return float(np.sqrt(variance.squared_error(ones, back, moved, term).total))


def rare_mass(op: OneStep, flow: Forward, rare: Floats) -> float:
    """Average share of the target's mass on (t, s), of a model on (t, s, a), that the log shows
    fewer than 10 times, with `rare` the share of each node (`where.rare_share`)."""
    inside = op.node_t < op.horizon
    return inner(flow.d[inside], rare[inside]) / op.horizon


def _by_node(op: OneStep, square: variance.Squared) -> Floats | None:
    """(K,) parts of SE² by (t, s), a model's summed over the actions; None when pooled."""
    if op.edge_offsets is None:
        return None
    return tally(node_of(op), square.per_group, len(op.node_t))
