"""Marginalized importance sampling (MIS): w_t(s) = d_t^π(s)/d_t^μ(s), estimated step by step.

Its gradient: the value is a smooth function of the groups' means of rewards (over N rows) and of
transitions (over the M rows whose next state is known); a group is (t, s), or s when pooled over
time. With D = Σ_t γ^t d_t(s) and U(s') = Σ_t γ^t d_t(s) γ^{t'-t} u'_{t'}(s') over the steps of the
group, a move adds

    D (z - r̂)/N + 1{s' known} (ρ U(s') - Ū)/M            and an episode  u_0(s_0) - mean

where Ū is the mean of ρU over the M rows. When self-normalized N and M give way to Σρ and both
means are multiplied by ρ. u' is what arriving is worth: V, or the adjoint (u - <d, u>)/c where d
was divided by c. Averaged rewards r̄ (over (t, s, a), or (s, a) at all times) make z = ρ r̄; the row
then also moves r̄ itself:  C/n(s,a) (y - r̄),  C(s,a) = Σ_moves of (s,a) D ρ/N.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from reweigh import kernels
from reweigh.errors import RefusedError
from reweigh.estimate import recursion
from reweigh.estimate.estimator import Recipe, Solution
from reweigh.estimate.operators import (
    OneStep,
    cells_of,
    covered_share,
    ended_by,
    importance_operator,
    marginal_operator,
    rows_of,
    start_term,
    with_ratios_one,
)
from reweigh.estimate.recursion import Backward, Forward, backward, forward
from reweigh.estimate.refusals import needs_discrete
from reweigh.estimate.solution import Operators, OperatorWeights, earned
from reweigh.kernels import Bools, Floats, Ints, group_by, rowwise, tally
from reweigh.log.log import EpisodeLog
from reweigh.log.states import END, HIDDEN, UNKNOWN
from reweigh.policy import Policy
from reweigh.sums.gather import CellGradient
from reweigh.sums.keyed import StartMoments, TransitionMoments, summed
from reweigh.sums.moments import Moments
from reweigh.system import divided

NODES_PER_ROW, FEW_NODES = 2, 1 << 16


@dataclass(frozen=True)
class Marginal(OperatorWeights):
    """w_t(s) = d_t^π(s)/d_t^μ(s), estimated step by step (the paper's), or pooled over time."""

    pooled: bool = False
    kinds = frozenset({"transitions"})
    normalizations = ("none", "simplex", "state")
    means = ("none", "simplex")
    rewards = ("logged", "averaged", "pooled")
    takes_control = True
    formula = (
        "v̂ = Σₜ γᵗ Σₛ dₜ(s) r̂ₜ(s),  dₜ₊₁(s′) = Σₛ P̂ₜ(s′|s) dₜ(s),"
        "  P̂ₜ(s′|s) = Σ ρ 1[s→s′] / {over},  r̂ₜ(s) = Σ ρ r / {over}"
    )
    divisors: ClassVar[dict[str, str]] = {"none": "nₜ(s)", "simplex": "nₜ(s)", "state": "Σ ρ"}
    descriptions: ClassVar[dict[str, str]] = {
        "none": "dₜ is not normalized (the estimator of the paper’s theorem)",
        "simplex": "dₜ is divided by its sum at every step (the paper’s algorithm and experiments)",
        "state": "the ratios are divided by their own sum within every state",
    }

    @property
    def pools_steps(self) -> bool:
        return self.pooled

    def limits(self, recipe: Recipe) -> str:
        if self.pooled:
            return "pooled"
        return {"none": "plain", "state": "within states"}.get(recipe.normalize, "states")

    def description(self, recipe: Recipe) -> str:
        text = f"marginalized importance sampling; {self.descriptions[recipe.normalize]}"
        text += "; the estimates of all steps are pooled" if self.pooled else ""
        rewards = f"; rewards are {recipe.reward} over rows of the same state and action"
        return text if recipe.reward == "logged" else text + rewards

    def operators(self, recipe: Recipe, sums: Moments) -> Operators:
        horizon, gamma, per_state = (
            sums.about.horizon,
            sums.about.discount,
            recipe.normalize == "state",
        )
        build = pooled_operator if self.pooled else importance_operator
        if self.pooled and sums.hidden:
            raise RefusedError(
                "hidden",
                ("pooling over time needs observed states, and some are hidden; use mis() instead"),
            )
        if recipe.reward == "logged":
            cells, start = cells_of(sums, "transitions")
            refuse_cut_stretches(cells, horizon, sums.hidden)
            if self.pooled:
                op = pooled_operator(cells, start, horizon, gamma, per_state=per_state)
            else:
                op = marginal_operator(sums, per_state=per_state)
            return op, op, recursion.logged_reward
        if sums.hidden:
            raise RefusedError(
                "hidden",
                "averaged rewards are wrong for MIS with hidden states; use reward='logged'",
            )
        if sums.about.continuous_actions:
            raise needs_discrete()
        cells, start = cells_of(sums, "model")
        mean, _ = _mean_rewards(recipe, cells)
        op = build(cells, start, horizon, gamma, per_state=per_state, reward_sums=cells.rho * mean)
        if recipe.reward == "averaged":  # the error keeps the noise of the logged rewards
            logged = build(cells, start, horizon, gamma, per_state=per_state)
            return op, logged, recursion.logged_reward
        # the operator may have brought its cells into another order
        average, pair = _mean_rewards(recipe, op.cells)
        return op, op, lambda o, D: recursion.pooled_reward(o, D, average, pair)

    def gradient(self, recipe: Recipe, sums: Moments) -> CellGradient:
        return marginal_gradient(recipe, sums).gradient

    def solve_rows(
        self, recipe: Recipe, log: EpisodeLog, target: Policy, *, errors: bool = True
    ) -> Solution | None:
        if recipe.reward != "logged" or self.pooled or recipe.normalize == "state":
            return None
        if not from_rows(log):
            return None
        from reweigh.estimate import direct

        rows = direct.rows_of(log, target, recipe.max_ratio)
        return direct.solve_rows(rows, recipe, errors=errors)


def from_rows(log: EpisodeLog) -> bool:
    """Whether the recursions of MIS run over the rows of this log (`direct.py`): not of small logs,
    with weights, hidden states, cut-off episodes, no behavior probabilities, or far fewer rows than
    (step, state) pairs. They are solved on the sums."""
    large = log.steps.n_rows >= kernels.COMPILED_FROM and log.steps.weight is None
    return large and observed(log) and _dense(log) and not log.steps.unknown_before_horizon()


def observed(log: EpisodeLog) -> bool:
    """Whether every state is observed and every action's probability was logged."""
    steps = log.steps
    hidden = log.has_hidden or bool(np.any(steps.ending == HIDDEN))
    return steps.has_propensities and not hidden


def _dense(log: EpisodeLog) -> bool:
    """Whether there are enough rows for arrays over all (t, s)."""
    nodes = (log.horizon + 1) * (len(log.states) + 1)
    return nodes <= max(NODES_PER_ROW * log.steps.n_rows, FEW_NODES)


def _mean_rewards(recipe: Recipe, cells: TransitionMoments) -> tuple[Floats, Ints]:
    """(E,) r̄ over (s, a) at all times or over (t, s, a), and the number of that group."""
    by_pair = group_by(
        [cells.s, cells.a] if recipe.reward == "pooled" else [cells.t, cells.s, cells.a]
    )
    index = by_pair.index()
    return divided(by_pair.sum(cells.y), by_pair.sum(cells.n))[index], index


def refuse_cut_stretches(cells: TransitionMoments, horizon: int, hidden: bool) -> None:
    """The reward of a stretch is one sum: a stretch that is cut inside has lost a part of it."""
    cut = (cells.s_next == UNKNOWN) & (cells.t_next < horizon)
    if hidden and np.any(cut):
        raise RefusedError(
            "hidden-truncated",
            "cut-off episodes and hidden states cannot be combined: the reward of a cut "
            "episode inside a hidden stretch is unknown. Leave the cut episodes out "
            "(truncated='drop'), give their next state, or use dm()",
        )


def _followed(cells: TransitionMoments, horizon: int) -> Bools:
    """The transitions that are pooled. Those of the last step count only if all of their next
    states are known, since they would otherwise be a selection."""
    known, final = cells.s_next != UNKNOWN, cells.t == horizon - 1
    return np.asarray(known & (np.all(known[final]) | ~final))


def pooled_operator(
    cells: TransitionMoments,
    start: StartMoments,
    horizon: int,
    discount: float,
    *,
    per_state: bool = False,
    reward_sums: Floats | None = None,
) -> OneStep:
    """MIS pooled over time: one P̂(s'|s) and one r̂(s) from all steps, run for H steps."""
    if np.any(cells.t_next - cells.t != 1):
        raise RefusedError(
            "hidden",
            (
                "pooling over time needs observed states, and some are hidden; use mis() "
                "without pooled"
            ),
        )
    # From here on a cell is (s, [a,] s') at any step: the work of a step is that of the states.
    followed = _followed(cells, horizon)
    key = [cells.s, cells.a, np.where(followed, cells.s_next, UNKNOWN)]
    if reward_sums is not None:
        reward_sums = group_by(key).sum(reward_sums)
    zero = np.zeros(len(cells), np.int64)
    at_steps = cells
    ended = ended_by(cells, np.arange(horizon + 1)) if cells.n.ndim == 1 else None
    cells = summed(replace(cells, block=zero, t=zero, t_next=zero + 1, s_next=key[2]))
    to = cells.s_next != UNKNOWN
    known = rowwise(to, cells.n)
    seen = np.unique(np.concatenate([cells.s, cells.s_next[to], start.s, [END]]))
    n_states = len(seen)
    src = np.searchsorted(seen, cells.s)
    dst = np.where(to, np.searchsorted(seen, cells.s_next), -1)
    by_state = group_by([src])
    share = rowwise(np.ones(len(by_state)), cells.n)
    groups = rows_of(cells, by_state.index(), share, known, per_state)
    prob, scale = groups.weigh(cells, known)
    rewards = cells.z if reward_sums is None else reward_sums
    end = int(np.searchsorted(seen, END))
    placebo = tally(src, cells.one * scale, n_states)
    placebo[end] = 1.0
    start_node, steps = np.searchsorted(seen, start.s), horizon + 1
    visits = covered = np.zeros((0, 0))
    if ended is not None:
        covered = _covered(cells, src, prob, end, (steps, n_states))
        node = at_steps.t * n_states + np.searchsorted(seen, at_steps.s)
        visits = tally(node, at_steps.n, steps * n_states).reshape(steps, n_states)
        visits[:, end] = ended
    first = tally(start_node, start.n / start.n.sum(axis=0), n_states)
    initial = np.concatenate([first, np.zeros((horizon * n_states, *first.shape[1:]))])
    every_step = (steps, *(1 for _ in first.shape[1:]))
    return OneStep(
        horizon=horizon,
        discount=discount,
        node_t=np.repeat(np.arange(steps), n_states),
        node_s=np.tile(seen, steps),
        offsets=np.arange(horizon + 2) * n_states,
        initial=initial,
        start=start,
        start_node=start_node,
        reward=np.tile(tally(src, rewards * scale, n_states), every_step),
        placebo=np.tile(placebo, every_step),
        visits=visits.reshape(-1),
        covered=covered.reshape(-1),
        cells=cells,
        groups=groups,
        known=known,
        src=src,
        dst=dst,
        prob=prob,
        gap=np.ones(len(cells), np.int64),
        edge_offsets=None,
        ended_to=np.arange(steps) * n_states + end,
        complete=np.ones(steps, bool),
        self_normalized=per_state,
        conserves=per_state,
        at_steps=at_steps,
    )


def _covered(
    cells: TransitionMoments, src: Ints, prob: Floats, end: int, shape: tuple[int, int]
) -> Floats:
    """(H+1, S) `OneStep.covered`. At the last step nothing needs to be carried on; before it a
    state without moves loses all."""
    last = covered_share(cells, np.ones(len(cells), bool), src, shape[1])
    covered = np.tile(np.where(tally(src, prob, shape[1]) > 0, last, 0.0), (shape[0], 1))
    covered[-2] = last
    covered[:, end] = covered[-1] = 1.0
    return covered


def behavior_value(moments: Moments) -> float | None:
    """What the behavior itself earned: the same recursion with every ratio 1.

    Without cut-off episodes this is the mean return; None if unknown.
    """
    about = moments.about
    if moments.transitions is None and moments.model is None:
        if moments.trajectories is None:
            return None
        return float(moments.trajectories.episodes.ret.sum()) / moments.n_episodes
    try:
        cells, start = cells_of(moments, "model" if moments.transitions is None else "transitions")
        if not moments.truncated:
            powers = about.discount ** np.arange(about.horizon)
            return float(powers @ tally(cells.t, cells.y, about.horizon)) / moments.n_episodes
        refuse_cut_stretches(cells, about.horizon, moments.hidden)
        op = importance_operator(with_ratios_one(cells), start, about.horizon, about.discount)
        flow = forward(op, simplex=False)
    except RefusedError:
        return None
    if np.any(flow.total < 1 - 1e-9):
        return None  # every episode of some state was cut off: its future is not known
    return float(earned(op, flow, op.reward).sum())


def behavior_gradient(
    cells: TransitionMoments, start: StartMoments, horizon: int, discount: float, *, hidden: bool
) -> MarginalGradient:
    """Of the behavior's own value: MIS with every ratio 1. The cells' own ratios do not count."""
    refuse_cut_stretches(cells, horizon, hidden)
    op = importance_operator(with_ratios_one(cells), start, horizon, discount)
    return _of_operator(Recipe("mis-plain", Marginal()), op, op.cells, np.arange(len(op.cells)))


# ---- the gradient ----------------------------------------------------------------------------


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
    op = recipe.weights.operators(recipe, sums)[0]
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
        start=start_term(cells, back.u[op.src[edge]]),
    )
    return MarginalGradient(gradient, op, op.src[edge], flow.d)


def _marginal_columns(
    recipe: Recipe, op: OneStep, flow: Forward, back: Backward
) -> dict[str, Floats]:
    """∂v by edge of R - R̄ + T - T̄, with R = a_ρ ρ + a_z z and T = b ρ over the group, and of
    a0 + a_y y, which r̄ has centered over its own rows."""
    groups, c, known = op.groups, op.cells, op.known
    moved = recursion.derivatives(op, flow, back)
    if recipe.reward == "logged":
        reward = recursion.logged_reward(op, moved.reward)
    else:
        reward = recursion.pooled_reward(op, moved.reward, *_mean_rewards(recipe, c))
    b = recursion.move_slopes(op, moved)
    mean_t = divided(groups.sum(b * c.rho), groups.moves)
    none = np.zeros(len(c))
    columns = {"one": -np.where(known, mean_t[groups.of], 0.0), "rho": b, "z": none, "y": none}
    for name, a in reward.items():
        columns[name] = columns[name] + a
        if name in (recursion.RHO, recursion.Z):
            mean_r = divided(
                groups.sum(a * recursion.moment(c, recursion.ONE, name)), groups.visits
            )
            columns["one"] = columns["one"] - mean_r[groups.of]
    return columns
