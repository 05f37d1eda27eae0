"""Solving an operator: the value, its error, and what the estimate rests on. Where it is weakest
is a (t, s), of a model a (t, s, a), that a gate names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from reweigh.errors import SupportError
from reweigh.estimate import recursion
from reweigh.estimate.estimator import (
    Nodes,
    Place,
    Recipe,
    Replicated,
    Solution,
    Weights,
    value_alone,
)
from reweigh.estimate.operators import SEEN_ENOUGH, OneStep
from reweigh.estimate.recursion import Forward, backward, forward
from reweigh.estimate.standard_error import LOST, Freedom
from reweigh.kernels import Floats, Ints, inner, kernel, rowwise, tally
from reweigh.log.states import END
from reweigh.sums.keyed import TransitionMoments
from reweigh.sums.moments import Moments
from reweigh.system import divided

Term = Callable[[OneStep, Floats], recursion.RewardTerm]
Operators = tuple[OneStep, OneStep, Term]
ROUNDING = 1e-9  # of the largest: engines add up in other orders, and all are to name the same
EXPLAINED = 1e-6  # of the mass that is lost: probabilities are often rounded


class OperatorWeights(Weights):
    """Estimators that are one recursion over a one-step operator, which they make of their sums."""

    has_operator = True

    def solve(self, recipe: Recipe, sums: Moments, *, errors: bool = True) -> Solution:
        return solve_operator(recipe, lambda wanted: self.operators(wanted, sums), errors=errors)

    def solve_replicates(self, recipe: Recipe, sums: Moments, *, errors: bool) -> Replicated:
        operators = self.operators(recipe, sums)
        both = recursions(recipe, operators, errors=errors)
        inside = both.flow.d[: operators[0].offsets[-2]]
        return Replicated.of(
            both.per_step.sum(axis=0),
            None if both.square is None else both.square.errors,
            ("no-overlap", np.isnan(inside).any(axis=0)),
        )


@dataclass(frozen=True, eq=False)
class Recursions:
    """Both recursions over an operator: forward with the rewards of the steps, (H,), and backward
    with SE², None if not requested. Of replicates all have a second axis."""

    flow: Forward
    per_step: Floats
    square: recursion.Squared | None


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
    moved = recursion.derivatives(for_error, flow, back)
    square = recursion.squared_error(for_error, back, moved, term(for_error, moved.reward))
    if op.by_ratios:
        square = recursion.with_share_noise(op, flow, back, square)
    return Recursions(flow, per_step, square)


def solve_operator(
    recipe: Recipe, make: Callable[[Recipe], Operators], *, errors: bool = True
) -> Solution:
    """The same for any way to make the operators of an estimator."""
    op, for_error, _ = operators = make(recipe)
    both = recursions(recipe, operators, errors=errors)
    flow, per_step, square = both.flow, both.per_step, both.square
    if square is None:
        return value_alone(per_step)
    placebo, off = _placebo(recipe, make, op, flow)
    from_model = not recipe.weights.uses_ratios
    share, unseen = rare_share(op), escaping(op, flow)
    rare = flow.d * share
    return Solution(
        value=float(per_step.sum()),
        standard_error=square.error,
        error_method=LOST if square.lost else "analytic",
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
        freedom=Freedom.of(
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
        # If no active episode is observed, the ended ones do not represent the others.
        observed = tally(op.cells.t, op.cells.n, op.horizon) > 0
        ended &= observed | (_passing(op.cells, op.horizon) == 0)
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
    """(H,) target mass that step t loses because of missing data, in the un-normalized recursion.

    A reached state without rows, or without a row that is possible under the target, loses all of
    its mass; one whose mean ratio is too small loses a part; a model loses π's mass on actions that
    it has not seen.
    """
    lost = np.zeros(op.horizon)
    scale = 1.0
    for t in range(op.horizon):
        scale *= flow.mass[t]
        here = op.nodes(t)
        share = inner(flow.d[here], np.maximum(1 - op.covered[here], 0.0))
        lost[t] = scale * share
        if op.conserves:  # d_t keeps the lost mass: count none twice
            scale *= max(1 - share, 0.0)
    return np.where(lost > 1e-9, lost, 0.0)


def _placebo(
    recipe: Recipe, make: Callable[[Recipe], Operators], op: OneStep, flow: Forward
) -> tuple[Floats, float | None]:
    """(H,) the placebo's parts, and its error. An estimator that normalizes within states always
    gives H; there the placebo uses the same weights before normalizing."""
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
        cells=replace(c, z=c.rho, rhoz=c.rho2, z2=c.rho2),  # y is not needed
        start=replace(op.start, g=0 * op.start.g, g2=0 * op.start.g2),
    )
    vars(ones)["edges"] = op.edges  # they are the same, and large
    back = backward(ones, flow if simplex else None)
    moved = recursion.derivatives(ones, flow, back)
    term = recursion.logged_reward(ones, moved.reward)
    return float(np.sqrt(recursion.squared_error(ones, back, moved, term).total))


def rare_mass(op: OneStep, flow: Forward, rare: Floats) -> float:
    """Average share of the target's mass on (t, s), of a model on (t, s, a), with fewer than 10
    times, with `rare` the share of each node (`rare_share`)."""
    inside = op.node_t < op.horizon
    return inner(flow.d[inside], rare[inside]) / op.horizon


def _by_node(op: OneStep, square: recursion.Squared) -> Floats | None:
    """(K,) parts of SE² by (t, s), a model's summed over the actions; None when pooled."""
    if op.edge_offsets is None:
        return None
    return tally(op.node_of_group, square.per_group, len(op.node_t))


# ---- where it is weakest ---------------------------------------------------------------------


def largest(values: Floats) -> int:
    """The first of those that are the largest but for rounding; none is below 0."""
    return int(np.argmax(values >= np.max(values) * (1 - ROUNDING)))


def rare_share(op: OneStep) -> Floats:
    """(K,) the share of a node's mass on a (t, s), for a model on (t, s, a), with fewer than 10
    rows; 0 at the horizon."""
    visits = op.visits
    if op.at_steps is not None:  # pooled: a state's rows of all steps count
        by_step = visits.reshape(op.horizon + 1, -1)
        visits = np.broadcast_to(by_step.sum(axis=0), by_step.shape).reshape(-1)
        rare = (visits < SEEN_ENOUGH).astype(np.float64)
    else:
        few = np.where(op.groups.visits < SEEN_ENOUGH, op.groups.share, 0.0)
        rare = np.where(visits < SEEN_ENOUGH, 1.0, tally(op.node_of_group, few, len(visits)))
    return np.where(op.node_t < op.horizon, rare, 0.0)


def worst_node(node_s: Ints, mass: Floats) -> int | None:
    """The node with the most of this mass, a state if any has some; None where there is none."""
    of_states = np.where(node_s >= 0, mass, 0.0)
    mass = of_states if of_states.any() else mass
    return largest(mass) if mass.any() else None


def _place(op: OneStep, node: int, action: int | None = None) -> Place:
    return Place(int(op.node_t[node]), int(op.node_s[node]), action)


def most_rare(op: OneStep, mass: Floats, *, from_model: bool) -> Place | None:
    """Where the most of this mass is, (K,), d_t(s) times its `rare_share`."""
    node = worst_node(op.node_s, mass)
    if node is None:
        return None
    return _place(op, node, _rare_action(op, node) if from_model else None)


def _rare_action(op: OneStep, node: int) -> int | None:
    """The one that the target takes most among those that a node shows, but seldom."""
    edges = np.flatnonzero(op.src == node)
    group = op.groups.of[edges]
    share = np.where(op.groups.visits[group] < SEEN_ENOUGH, op.groups.share[group], 0.0)
    return int(op.cells.a[edges[largest(share)]]) if share.any() else None


def most_unseen(op: OneStep, flow: Forward, unseen: Floats, *, from_model: bool) -> Place | None:
    """The state with the most of the mass that is lost at the step that loses the most."""
    if not unseen.any():
        return None
    here = op.nodes(int(np.argmax(unseen)))
    lost = flow.d[here] * np.maximum(1 - op.covered[here], 0.0)
    node = here.start + largest(lost)
    return _place(op, node, _lost_action(op, node) if from_model else None)


def _lost_action(op: OneStep, node: int) -> int | None:
    """The target's action in a state that has no rows at this step; the sums contain it if the
    state has it at other steps. It is named only if such actions have all of the lost probability,
    so that there is no other one."""
    c, lost = op.cells, 1 - float(op.covered[node])
    of = c.s == op.node_s[node]
    if not of.any():
        return None
    share = divided(tally(c.a[of], c.pi[of]), tally(c.a[of], c.n[of]))
    share[c.a[of & op.known & (c.t == op.node_t[node])]] = 0.0
    return largest(share) if abs(float(share.sum()) - lost) <= EXPLAINED * lost else None


def most_unfounded(op: OneStep, flow: Forward, rare: Floats) -> tuple[Floats, Place | None]:
    """For a model without normalization: the mass that a step adds to the average `rare` mass or to
    the lost mass; and the place that adds the most."""
    seldom = flow.d * rare / op.horizon
    lost = np.where(op.node_t < op.horizon, flow.d * np.maximum(1 - op.covered, 0.0), 0.0)
    per_step = tally(op.node_t, seldom + lost, op.horizon + 1)[: op.horizon]
    node = worst_node(op.node_s, seldom + lost)
    if node is None:
        return per_step, None
    action = (_lost_action if lost[node] > seldom[node] else _rare_action)(op, node)
    return per_step, _place(op, node, action)


def most_left_out(op: OneStep, value: Floats) -> Place | None:
    """Of a model: where the most of this value is, (K,), of actions that the log does not show."""
    node = worst_node(op.node_s, value)
    return None if node is None else _place(op, node, _lost_action(op, node))


# ---- of MIS straight from the rows -------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class DenseNodes:
    """`Nodes` as arrays (H+1, width) over all (t, s), END's being the last column. The nodes are
    selected on first use: with many states that takes as long as the recursions.

    reached  whether it follows the last row of an episode
    """

    d: Floats
    visits: Floats
    variance: Floats
    reached: Callable[[], npt.NDArray[np.uint8]]
    n_episodes: int

    @cached_property
    def nodes(self) -> Nodes:
        reached = self.reached()
        size = kernel("forward.count")(self.visits, reached)
        columns = np.empty((6, size + 1))
        t, s = columns[4:].view(np.int64)
        kernel("forward.collect")(
            self.d, self.visits, self.variance, reached, self.n_episodes, t, s, columns[:4]
        )
        target, behavior, visits, variance = columns[:4, :-1]
        return Nodes(t[:-1], s[:-1], target, behavior, visits, variance)

    def variance_by_step(self, horizon: int) -> Floats | None:
        return np.asarray(self.variance[:horizon].sum(axis=1))

    @cached_property
    def seldom(self) -> Seldom:
        """See `Seldom`; at the horizon nothing is rare."""
        rare, at = np.zeros(len(self.d) - 1), np.zeros(2, np.int64)
        sums = kernel("forward.seldom")(self.d, self.visits, self.variance, rare, at)
        t, column = at.tolist()
        state = END if column + 1 == self.d.shape[1] else column
        return Seldom(rare, None if t < 0 else Place(t, state), *sums)


@dataclass(frozen=True, eq=False)
class Seldom:
    """What few rows mean for an estimate: (H,) the target's mass on nodes seen fewer than 10 times,
    and the node with the most of it; over the nodes seen twice or more the sums of
    C = V N/(N - 1) and of C²/(N - 1), with V the variance."""

    rare: Floats
    rare_at: Place | None
    corrected: float
    spread: float
