"""How much each episode moves an estimate: influence values, (n,) in the order of `steps.episode`.

    v̂ - v ≈ (1/n) Σ_i ψ_i        SE² = mean(ψ²)/n

The mean of ψ is 0. mean(ψ²)/n is clustered by episode; where the state is Markov it is the error
that the sums give. Two estimates on one log depend on each other: the error of their difference
is that of ψ_A - ψ_B.

MIS, and the behaviour's own value (every ratio 1):

    ψ_i = u_0(s_0) - <d_0, u_0> + Σ_t γ^t w_t(s_t) [ρ_t (y_t + γ u'_{t+1}(s_{t+1})) - u_t(s_t)]

with w_t(s) = n d_t(s)/N_t(s) and u' what arriving in a state is worth: V, or the adjoint
(u - <d, u>)/c where d was divided by c. A hidden stretch is one long step; END adds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reweigh.arithmetic import divided
from reweigh.errors import RefusedError, SupportError
from reweigh.estimators.operators import OneStep, importance_operator
from reweigh.estimators.recipe import Marginal, Normalize, Recipe, Stepwise
from reweigh.estimators.recursion import Backward, Forward, backward, forward, no_support
from reweigh.estimators.weights import refuse_cut_stretches
from reweigh.logs.log import EpisodeLog
from reweigh.logs.states import HIDDEN, START, UNKNOWN

# With one block per episode the cells are the episodes' own steps (or stretches), so that what is
# known, hidden, ended or cut off is told in one place.
from reweigh.moments.engines.arrays import _starts, _stretch_cells, ratios
from reweigh.moments.groups import tally
from reweigh.moments.transitions import TransitionMoments
from reweigh.policies.base import Policy

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def influence_values(log: EpisodeLog, target: Policy, recipe: Recipe) -> Floats:
    """(n,) ψ of an estimator: MIS that is not pooled, step-wise IS or WIS."""
    _refuse_others(recipe)
    if isinstance(recipe.weights, Marginal):
        return influence_parts(log, target, recipe).values()
    _, rho = ratios(log, target, recipe.max_ratio)
    return _product_values(log, rho, weighted=recipe.normalize == "step")


def behavior_values(log: EpisodeLog) -> Floats:
    """(n,) ψ of the behaviour's own value: the return less its mean.

    Where episodes were cut off the value is that of the recursion with every ratio 1, and so is
    its influence.
    """
    if log.n_truncated:
        return behavior_parts(log).values()
    powers = log.discount ** log.steps.step.astype(np.float64)
    returns = tally(log.steps.episode_index, powers * log.steps.reward, log.n_episodes)
    return _centred(returns)


@dataclass(frozen=True, eq=False)
class Parts:
    """ψ, part by part: ψ_i = start_i + the sum of the episode's terms.

    start    (n,) part of the first state
    episode  (L,) episode of each term; there is one per row, or per hidden stretch
    node     (L,) the (t, s) where the term's step begins
    term     (L,) γ^t w_t(s_t) [ρ_t (y_t + γ u'_{t+1}(s_{t+1})) - u_t(s_t)]
    node_t, node_s  (K,) step and state code of the nodes
    target          (K,) d_t(s) of the policy whose value it is
    """

    start: Floats
    episode: Ints
    node: Ints
    term: Floats
    node_t: Ints
    node_s: Ints
    target: Floats

    def values(self) -> Floats:
        """(n,) ψ."""
        return self.start + tally(self.episode, self.term, len(self.start))

    def minus(self, other: Parts) -> Parts:
        """The influence on a difference of two values of one log. d_t(s) is that of the first."""
        return Parts(
            self.start - other.start,
            self.episode,
            self.node,
            self.term - other.term,
            self.node_t,
            self.node_s,
            self.target,
        )

    def variances(self) -> tuple[float, Floats]:
        """mean(ψ²) by its origin: of the start, and (K,) of the nodes.

        They add up to it where the state is Markov, since the terms are then uncorrelated.
        """
        n = len(self.start)
        return float(np.mean(self.start**2)), tally(self.node, self.term**2, len(self.node_t)) / n


def influence_parts(log: EpisodeLog, target: Policy, recipe: Recipe) -> Parts:
    """ψ of MIS, part by part."""
    _refuse_others(recipe)
    _, rho = ratios(log, target, recipe.max_ratio)
    return _parts(log, rho, recipe.normalize)


def behavior_parts(log: EpisodeLog) -> Parts:
    """ψ of the behaviour's own value, part by part: MIS with every ratio 1."""
    return _parts(log, np.ones(log.steps.n_rows), "none")


def _refuse_others(recipe: Recipe) -> None:
    plain = recipe.reward == "logged" and recipe.control is None
    if plain and (recipe.weights == Marginal() or isinstance(recipe.weights, Stepwise)):
        return
    raise RefusedError(
        "no-influence",
        f"{recipe.name} has no influence values per episode; mis, mis-plain, mis-state, is and "
        "wis have them",
    )


def _parts(log: EpisodeLog, rho: Floats, normalize: Normalize) -> Parts:
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused by name
        parts = _marginal_parts(log, rho, normalize)
    if not (np.all(np.isfinite(parts.start)) and np.all(np.isfinite(parts.term))):
        raise _overflow()
    return parts


def _marginal_parts(log: EpisodeLog, rho: Floats, normalize: Normalize) -> Parts:
    each = _stretch_cells(log.steps, np.arange(log.n_episodes), rho, log.discount)
    refuse_cut_stretches(each, log.horizon, log.has_hidden)
    first = _first_states(log)
    op = importance_operator(
        each.forget("block"),
        _starts(log.steps, np.zeros(log.n_episodes, np.int64), first),
        log.horizon,
        log.discount,
        per_state=normalize == "state",
    )
    simplex = normalize == "simplex"
    flow = forward(op, simplex=simplex)
    back = backward(op, flow if simplex else None)
    node, term = _terms(op, flow, back, each)
    start = back.u[_nodes(op, np.zeros(len(first), np.int64), first)]
    g = log.steps.start_value
    return Parts(
        start=_centred(start if g is None else start + g),
        episode=each.block,
        node=node,
        term=term,
        node_t=op.node_t,
        node_s=op.node_s,
        target=flow.d,
    )


def _first_states(log: EpisodeLog) -> Ints:
    state = log.steps.state[log.steps.rows(0)]
    return np.where(state == HIDDEN, START, state).astype(np.int64)


def _nodes(op: OneStep, t: Ints, s: Ints) -> Ints:
    """The nodes of (t, s), which are all there; nodes stand in the order of (t, s)."""
    low = int(op.node_s.min())
    width = int(op.node_s.max()) - low + 1
    return np.searchsorted(op.node_t * width + (op.node_s - low), t * width + (s - low))


def _terms(
    op: OneStep, flow: Forward, back: Backward, each: TransitionMoments
) -> tuple[Ints, Floats]:
    """γ^t d_t(s) n [ (z - r̂)/N + (ρ γ^{t'-t} u'(s') - Σ P̂ γ^{t'-t} u')/M ] of every step, where the
    second part is 0 if the next state is not known; with N = M it is the formula above. When
    self-normalised, N and M give way to Σρ, and both means are multiplied by ρ.
    """
    node = _nodes(op, each.t, each.s)
    reward_by, move_by = np.zeros((2, len(op.node_t)))
    reward_by[op.src] = op.groups.reward_by[op.groups.of]
    move_by[op.src] = op.groups.move_by[op.groups.of]
    reached = each.s_next != UNKNOWN
    known = reached | (each.t_next >= op.horizon)
    arriving = np.zeros(len(each))
    to = _nodes(op, each.t_next[reached], each.s_next[reached])
    arriving[reached] = back.next_value[to]
    arriving *= op.discount ** (each.t_next - each.t).astype(np.float64)
    mean_reward, mean_move = op.reward[node], (back.u - op.reward)[node]
    own = each.rho if op.self_normalized else np.ones(len(each))
    through_reward = divided(each.z - own * mean_reward, reward_by[node])
    through_move = divided(each.rho * arriving - own * mean_move, move_by[node])
    D = op.discount ** each.t.astype(np.float64) * flow.d[node] * op.n_episodes
    return node, D * (through_reward + np.where(known, through_move, 0.0))


def _product_values(log: EpisodeLog, rho: Floats, weighted: bool) -> Floats:
    """IS:  ψ = Σ_t γ^t ρ_{0:t} y_t - v.   WIS:  ψ = Σ_t γ^t ρ_{0:t} (y_t - v_t)/mean(ρ_{0:t})."""
    if log.n_truncated:
        raise RefusedError(
            "truncated",
            f"{log.n_truncated:,} episodes were cut off, and running products need whole ones; "
            "use mis(), or leave the cut ones out: log.drop_truncated()",
        )
    g = log.steps.start_value
    psi = np.zeros(log.n_episodes) if g is None else g.copy()
    with np.errstate(over="ignore", invalid="ignore"):
        for t, log_w, y in _running_products(log, rho):
            top = float(log_w.max())
            if not np.isfinite(top):
                raise no_support(t)
            if weighted:
                w = np.exp(log_w - top)
                psi += log.discount**t * w / w.mean() * (y - float(w @ y) / w.sum())
            else:  # a reward of 0 earns 0, also under a weight that overflows
                psi += log.discount**t * np.where(y == 0, 0.0, np.exp(log_w) * y)
    if not np.all(np.isfinite(psi)):
        raise _overflow()
    return _centred(psi)


def _running_products(log: EpisodeLog, rho: Floats) -> Iterator[tuple[int, Floats, Floats]]:
    """(t, log ρ_{0:t}, y_t), both (n,): an episode that has ended keeps its product and earns 0."""
    steps = log.steps
    log_w = np.zeros(steps.n_episodes)
    with np.errstate(divide="ignore"):
        log_rho = np.log(rho)
    for t in range(steps.horizon):
        rows = steps.rows(t)
        alive = rows.stop - rows.start
        log_w[:alive] += log_rho[rows]
        y = np.zeros(steps.n_episodes)
        y[:alive] = steps.reward[rows]
        yield t, log_w, y


def _overflow() -> SupportError:
    return SupportError(
        "overflow", "ratios of this size exceed what a number can hold; clip them (max_ratio)"
    )


def _centred(values: Floats) -> Floats:
    return np.asarray(values - values.mean(), np.float64)
