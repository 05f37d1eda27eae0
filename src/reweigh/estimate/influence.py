"""How much each episode moves an estimate: influence values, (n,) in the order of `steps.episode`.

    v̂ - v ≈ (1/n) Σ_i ψ_i        SE² = mean(ψ²)/n

ψ_i = n ∂v̂/∂ω_i, the derivative by the number of times ω_i that episode i counts, at ω = 1: the
estimate is a smooth function of sums over episodes, and this is its exact derivative (the
infinitesimal jackknife). The mean of ψ is 0. mean(ψ²)/n is clustered by episode; where the state
is Markov it is the error that the sums give. Two estimates on one log depend on each other: the
error of their difference is that of ψ_A - ψ_B.

MIS, and the behaviour's own value (every ratio 1):

    ψ_i = u_0(s_0) - <d_0, u_0> + Σ_t γ^t w_t(s_t) [ρ_t (y_t + γ u'_{t+1}(s_{t+1})) - u_t(s_t)]

with w_t(s) = n d_t(s)/N_t(s) and u' what arriving in a state is worth: V, or the adjoint
(u - <d, u>)/c where d was divided by c. A hidden stretch is one long step; END adds nothing. The
other formulas stand in the modules: `influence_marginal` (MIS and its variants),
`influence_model` (DM, a fitted Q), `influence_products` (IS, WIS), `influence_stationary` (SSD-IS).

DR, WDR and MDR are IS, WIS and MIS on shaped rewards. A Q of the user's own is fixed, and so is,
for an episode, the Q that the other half has fitted (split, cross-fit): given that half the
estimate is IS, WIS or MIS with a Q that has nothing to do with its episodes, and its mean does not
depend on Q, so that Q's own noise adds no variance (its derivative would add about 1/rows of a
cell). Episodes that only fit Q (split) have ψ = 0. An in-sample Q moves with the episodes that it
is used on, and ψ holds its exact derivative, so that MDR with an in-sample Q, which is DM, has the
influence of DM. Where cells (t, s, a) have eight rows or more, ψ with and without it give errors
that differ by less than 1 %; at three rows both are too small (0.7 and 0.8 of the spread) for an
estimate that is itself off by more than its error: there use cross-fit.

Ratios are taken as they are, also where the behaviour was estimated.
Cost for N rows: O(N log N) time, 0.03 to 0.8 s per million rows (SSD-IS 2 s with 200 states);
O(N) memory, 25 to 280 bytes per row. Nothing is as large as states × episodes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError
from reweigh.estimate.control import halves, shape_log
from reweigh.estimate.influence_marginal import marginal_influence
from reweigh.estimate.influence_model import dm_values, through_fitted_q
from reweigh.estimate.influence_products import (
    refuse_cut,
    stepwise_values,
    stepwise_weights,
    trajectory_values,
)
from reweigh.estimate.influence_stationary import stationary_values
from reweigh.estimate.presets import mis
from reweigh.estimate.recipe import Marginal, Model, Recipe, Stationary, Stepwise
from reweigh.estimate.recursion import overflow
from reweigh.kernels.groups import tally
from reweigh.log.log import EpisodeLog
from reweigh.policy.base import Policy
from reweigh.sums.engines.arrays import ArraysEngine, ratios
from reweigh.sums.engines.base import Request

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def influence_values(log: EpisodeLog, target: Policy, recipe: Recipe) -> Floats:
    """(n,) ψ of an estimator on a log."""
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused by name
        if recipe.control is None:
            return _finished(_values(log, target, recipe))
        psi = fixed_q_values(log, target, recipe)
        if _fit(recipe) == "in-sample":
            psi = _finished(psi + _through_q(log, target, recipe))
    return psi


def fixed_q_values(log: EpisodeLog, target: Policy, recipe: Recipe) -> Floats:
    """(n,) ψ of DR, WDR or MDR with Q as it is: where Q was fitted, without its own influence."""
    assert recipe.control is not None
    if recipe.uses_trajectories:
        refuse_cut(log)  # whichever half they are in
    with np.errstate(over="ignore", invalid="ignore"):
        shaped = _shaped(log, target, recipe)
        psi = _finished(_values(shaped, target, replace(recipe, control=None)))
    if _fit(recipe) != "split":
        return psi
    # v = (1/n_0) Σ over the n_0 episodes that sum: each counts n/n_0 times
    whole = np.zeros(log.n_episodes)
    whole[halves(log.steps.episode_hash) == 0] = psi * (log.n_episodes / len(psi))
    return whole


def _fit(recipe: Recipe) -> str | None:
    """Where Q was fitted; None for a Q of the user's own."""
    control = recipe.control
    return control.q if control is not None and isinstance(control.q, str) else None


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


def _values(log: EpisodeLog, target: Policy, recipe: Recipe) -> Floats:
    """(n,) ψ of an estimator without a control, not yet centred."""
    weights, weighted = recipe.weights, recipe.normalize == "step"
    pi, rho = ratios(log, target, recipe.max_ratio)
    if isinstance(weights, Model):
        return dm_values(log, target, rho, renorm=weights.unseen == "renorm")
    if isinstance(weights, Stationary):
        return stationary_values(log, target, recipe, pi, rho)
    if isinstance(weights, Marginal):
        found = marginal_influence(log, recipe, pi, rho)
        return found.start + tally(found.moves.episode, found.term, log.n_episodes)
    if isinstance(weights, Stepwise):
        return stepwise_values(log, rho, weighted=weighted)
    return trajectory_values(log, rho, weighted=weighted)


def _shaped(log: EpisodeLog, target: Policy, recipe: Recipe) -> EpisodeLog:
    """The log with shaped rewards (of the summing half when split)."""
    control = recipe.control
    assert control is not None
    request = Request(
        frozenset({"model"}), control.blocks, recipe.max_ratio, policy=True, named=False
    )
    fit = None if control.own else ArraysEngine().moments(log, target, request)
    return shape_log(log, target, recipe, fit).log


def _through_q(log: EpisodeLog, target: Policy, recipe: Recipe) -> Floats:
    """(n,) the part of ψ through Q that was fitted on the same log."""
    pi, rho = ratios(log, target, recipe.max_ratio)
    if isinstance(recipe.weights, Stepwise):
        weight = stepwise_weights(log, rho, weighted=recipe.normalize == "step")
    else:
        plain = replace(recipe, control=None)
        weight = marginal_influence(log, plain, pi, rho).row_weights()
    by_row = recipe.uses_trajectories
    return through_fitted_q(log, target, rho, weight, by_row=by_row)


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


def has_parts(recipe: Recipe) -> bool:
    """Whether every part of ψ belongs to one (t, s): MIS that pools nothing, without a control."""
    return recipe.weights == Marginal() and recipe.reward == "logged" and recipe.control is None


def influence_parts(log: EpisodeLog, target: Policy, recipe: Recipe) -> Parts:
    """ψ of MIS, part by part."""
    if not has_parts(recipe):
        raise RefusedError(
            "no-parts",
            f"the influence values of {recipe.name} are not told by step and state; those of mis, "
            "mis-plain and mis-state are",
        )
    pi, rho = ratios(log, target, recipe.max_ratio)
    return _parts(log, recipe, pi, rho)


def behavior_parts(log: EpisodeLog) -> Parts:
    """ψ of the behaviour's own value, part by part: MIS with every ratio 1."""
    ones = np.ones(log.steps.n_rows)
    return _parts(log, mis("none"), ones, ones)


def _parts(log: EpisodeLog, recipe: Recipe, pi: Floats, rho: Floats) -> Parts:
    with np.errstate(over="ignore", invalid="ignore"):
        found = marginal_influence(log, recipe, pi, rho)
    return Parts(
        start=_finished(found.start),
        episode=found.moves.episode,
        node=found.op.src[found.edge],
        term=_finite(found.term),
        node_t=found.op.node_t,
        node_s=found.op.node_s,
        target=found.flow.d,
    )


def _finished(psi: Floats) -> Floats:
    return _centred(_finite(psi))


def _finite(values: Floats) -> Floats:
    if not np.all(np.isfinite(values)):
        raise overflow()
    return values


def _centred(values: Floats) -> Floats:
    return np.asarray(values - values.mean(), np.float64)
