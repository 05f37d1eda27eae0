"""How much each episode moves an estimate: influence values, (n,) in the order of `steps.episode`.

    v̂ - v ≈ (1/n) Σ_i ψ_i        SE² = mean(ψ²)/n

ψ_i = n ∂v̂/∂ω_i, the derivative by the number of times ω_i that episode i counts, at ω = 1: the
estimate is a smooth function of sums over episodes, v̂ = f(Σ_i x_i), and ψ_i = n ∇f · x_i is its
exact derivative (the infinitesimal jackknife). The estimators make ∇f from the sums, and
`sums/gather.py` gathers it over the rows. As f does not change when every episode counts twice,
the sum of ψ is 0. mean(ψ²)/n is clustered by episode; where the state is Markov it is the error
that the sums give. Two estimates on one log depend on each other: the error of their difference is
that of ψ_A - ψ_B.

MIS, and the behavior's own value (every ratio 1):

    ψ_i = u_0(s_0) - <d_0, u_0> + Σ_t γ^t w_t(s_t) [ρ_t (y_t + γ u'_{t+1}(s_{t+1})) - u_t(s_t)]

with w_t(s) = n d_t(s)/N_t(s) and u' what arriving in a state is worth: V, or the adjoint
(u - <d, u>)/c where d was divided by c. A hidden stretch is one long step; END adds nothing.

DR, WDR and MDR are IS, WIS and MIS on shaped rewards. A Q of the user's own is fixed, and so is,
for an episode, the Q that the other half has fitted (split, cross-fit): given that half the
estimate is IS, WIS or MIS with a Q that has nothing to do with its episodes, and its mean does not
depend on Q, so that Q's own noise adds no variance (its derivative would add about 1/rows of a
cell). Episodes that only fit Q (split) have ψ = 0. An in-sample Q moves with the episodes that it
is used on, and ψ holds its exact derivative, so that MDR with an in-sample Q, which is DM, has the
influence of DM. Where cells (t, s, a) have eight rows or more, ψ with and without it give errors
that differ by less than 1 %; at three rows both are too small (0.7 and 0.8 of the spread) for an
estimate that is itself off by more than its error: there use cross-fit.

Ratios are taken as they are here; where the behavior was estimated from the same episodes,
`estimated_propensities.py` has what that adds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError, SupportError
from reweigh.estimate.estimator import LogAndTarget, Recipe, Solution
from reweigh.estimate.marginal import (
    Marginal,
    MarginalGradient,
    behavior_gradient,
    marginal_gradient,
)
from reweigh.estimate.refusals import cut_off, overflow
from reweigh.estimate.standard_error import LOST, OVERFLOW, nothing_left
from reweigh.kernels import Floats, Ints, tally
from reweigh.log.log import EpisodeLog
from reweigh.policy import Policy
from reweigh.sums.engines import ArraysEngine, ratios
from reweigh.sums.gather import Gradient, ProductGradient, gathered, moves_of
from reweigh.sums.moments import Moments
from reweigh.sums.numpy_scan import NumpyScan


def gradient_of(recipe: Recipe, sums: Moments) -> Gradient:
    """The gradient of an estimator with respect to these sums. Of estimators with a control
    variate MDR has one where Q is fitted and every state observed."""
    if recipe.control is not None:
        from reweigh.estimate.shaped_influence import shaped_gradient

        return shaped_gradient(recipe, sums)
    return recipe.weights.gradient(recipe, sums)


def influence_values(
    log: EpisodeLog, target: Policy, recipe: Recipe, sums: Moments | None = None
) -> Floats:
    """(n,) ψ of an estimator on a log; `sums` are the sums it needs, if they exist already."""
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused by name
        if recipe.control is None:
            psi = recipe.weights.influence(recipe, log, target)
            if psi is not None:
                return psi
            return finite(plain_values(log, target, recipe, sums))
        from reweigh.estimate.shaped_influence import shaped_influence

        return shaped_influence(log, target, recipe)


def behavior_values(log: EpisodeLog) -> Floats:
    """(n,) ψ of the behavior's own value: the return less its mean.

    Where episodes were cut off the value is that of the recursion with every ratio 1, and so is
    its influence.
    """
    if log.n_truncated:
        refuse_weights(log, "the behavior's own value where episodes were cut off")
        return behavior_parts(log).values()
    returns = returns_of(log)
    return weighed(log, np.asarray(returns - _mean(log, returns), np.float64))


def returns_of(log: EpisodeLog) -> Floats:
    """(n,) Σ_t γ^t y_t"""
    steps, returns = log.steps, np.zeros(log.n_episodes)
    for t in range(log.horizon):
        earned = steps.reward[steps.rows(t)]
        returns[: len(earned)] += log.discount**t * earned
    return returns


def sums_for(log: EpisodeLog, target: Policy, recipe: Recipe) -> Moments:
    if recipe.uses_trajectories and log.n_truncated:
        raise cut_off(log.n_truncated)
    return ArraysEngine().moments(log, target, replace(recipe.needs, blocks=1, named=False))


def plain_values(
    log: EpisodeLog, target: Policy, recipe: Recipe, sums: Moments | None = None
) -> Floats:
    """(n,) ψ of an estimator without a control."""
    if sums is None or not recipe.finds_all_in(sums):
        sums = sums_for(log, target, recipe)
    if recipe.weights.needs_rows(sums):
        from reweigh.estimate.leave_one_out_rows import influence_of_rows

        return influence_of_rows(recipe, log, target, sums)
    gradient = gradient_of(recipe, sums)
    psi = gathered(gradient, log, target, ratios(log, target, recipe.max_ratio)[1])
    g = log.steps.start_value
    if g is not None and not isinstance(gradient, ProductGradient):
        psi = psi + g - _mean(log, g)
    return weighed(log, psi)


def weighed(log: EpisodeLog, psi: Floats) -> Floats:
    """(n,) n ∂v̂/∂ω_i of episodes with the relative weights ω: what they add is ω_i x_i."""
    omega = log.steps.relative_weight
    return psi if omega is None else omega * psi


def refuse_weights(log: EpisodeLog, what: str) -> None:
    """RefusedError if a log has sampling weights, which `what` does not take."""
    if log.steps.weight is not None:
        raise RefusedError(
            "weights",
            f"{what} cannot be computed with sampling weights ({log.columns.weight}): read the log "
            "without weight= if its episodes are to count alike",
        )


def _mean(log: EpisodeLog, values: Floats) -> float:
    return float(np.average(values, weights=log.steps.weight))


def with_estimated_error(
    recipe: Recipe, solution: Solution, sums: Moments, rows: LogAndTarget | None
) -> Solution:
    """The solution with the error of its influence values, SE² = mean(ψ²)/n; without rows with that
    of deleting blocks of episodes from its sums."""
    if rows is None:
        from reweigh.estimate.replicates import jackknife_error

        error, method = jackknife_error(recipe, sums, solution.value)
        return replace(solution, standard_error=error, error_method=method)
    try:
        psi = influence_values(*rows, recipe, sums)
    except SupportError:  # the value is a number, and a ψ is not
        return replace(solution, standard_error=None, error_method=OVERFLOW)
    error = float(np.sqrt(np.mean(psi**2) / len(psi)))
    if nothing_left(error, solution.value):
        return replace(solution, standard_error=None, error_method=LOST)
    return replace(solution, standard_error=error, influence=lambda: psi)


@dataclass(frozen=True, eq=False)
class Parts:
    """ψ, part by part: ψ_i = start_i + the sum of the episode's terms.

    start    (n,) part of the first state
    episode  (L,) episode of each term; there is one per row, or per hidden stretch
    node     (L,) the (t, s) where the term's step begins
    term     (L,) γ^t w_t(s_t) [ρ_t (y_t + γ u'_{t+1}(s_{t+1})) - u_t(s_t)]
    node_t, node_s  (K,) step and state code of the nodes
    target          (K,) d_t(s) of the evaluated policy
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
        start, term = self.start - other.start, self.term - other.term
        return replace(self, start=start, term=term)

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
            f"{recipe.name} has no influence values by step and state; use mis, mis-plain or "
            "mis-state",
        )
    refuse_weights(log, "the parts of the variance")
    rho = ratios(log, target, recipe.max_ratio)[1]
    with np.errstate(over="ignore", invalid="ignore"):
        marginal = marginal_gradient(recipe, sums_for(log, target, recipe))
    return _parts(log, marginal, rho)


def behavior_parts(log: EpisodeLog) -> Parts:
    """ψ of the behavior's own value, part by part: MIS with every ratio 1."""
    rho = np.ones(log.steps.n_rows)
    steps = replace(log.steps, behavior_prob=rho, start_value=None)
    none = np.zeros(log.n_episodes, np.int64)
    scan = NumpyScan(replace(log, steps=steps, _cache={}), rho, None, none)
    table, start = scan.cells("transitions"), scan.starts("start")
    hidden = log.has_hidden
    marginal = behavior_gradient(table, start, log.horizon, log.discount, hidden=hidden)
    return _parts(log, marginal, rho)


def _parts(log: EpisodeLog, marginal: MarginalGradient, rho: Floats) -> Parts:
    with np.errstate(over="ignore", invalid="ignore"):
        moves = moves_of(log, rho, marginal.gradient.moves)
        cell = marginal.gradient.cell_of(moves)
        term = marginal.gradient.terms(moves, cell)
    return Parts(
        start=finite(marginal.gradient.start[cell[: log.n_episodes]]),
        episode=moves.episode,
        node=marginal.node[cell],
        term=finite(term),
        node_t=marginal.op.node_t,
        node_s=marginal.op.node_s,
        target=marginal.target,
    )


def finite(values: Floats) -> Floats:
    if not np.all(np.isfinite(values)):
        raise overflow()
    return values


TAIL = 1000


def largest(values: Floats) -> Floats:
    """The TAIL largest, falling: that of parts is the same as that of the whole."""
    if len(values) > TAIL:
        values = np.partition(values, len(values) - TAIL)[-TAIL:]
    return np.sort(values)[::-1]


@dataclass(frozen=True, eq=False)
class Spread:
    """Sums of ψ over n episodes, relative to the largest of them so that nothing overflows.

    top            the ψ with the largest |ψ|; `episode` is the id of its episode
    second, third  Σ(ψ/|top|)², Σ(ψ/|top|)³
    up, down       the largest ψ, and the largest -ψ, falling: at most TAIL of each
    """

    n: int
    top: float
    episode: str
    second: float
    third: float
    up: Floats
    down: Floats

    @classmethod
    def of(cls, psi: Floats, episodes: npt.NDArray[np.generic]) -> Spread:
        """Of (n,) influence values of these episodes."""
        if len(psi) == 0:
            return cls(0, 0.0, "", 0.0, 0.0, psi, psi)
        most = int(np.argmax(np.abs(psi)))
        top = float(psi[most])
        scaled = psi / abs(top) if 0 < abs(top) < np.inf else np.zeros(len(psi))
        squares = scaled * scaled
        episode = str(episodes[most])
        sums = float(squares.sum()), float((squares * scaled).sum())
        return cls(len(psi), top, episode, *sums, largest(psi), largest(-psi))

    def __add__(self, other: Spread) -> Spread:
        larger, smaller = (self, other) if abs(self.top) >= abs(other.top) else (other, self)
        by = abs(smaller.top / larger.top) if larger.top else 0.0
        return Spread(
            self.n + other.n,
            larger.top,
            larger.episode,
            larger.second + by**2 * smaller.second,
            larger.third + by**3 * smaller.third,
            largest(np.concatenate([self.up, other.up])),
            largest(np.concatenate([self.down, other.down])),
        )

    def __neg__(self) -> Spread:
        return replace(self, top=-self.top, third=-self.third, up=self.down, down=self.up)

    @property
    def square(self) -> float:
        """mean(ψ²)/n, infinite where it is beyond what a number can hold."""
        return self.top * self.top * self.second / (self.n * self.n) if self.n else 0.0

    @property
    def skewness(self) -> float:
        """Of the sum, a = Σψ³/(Σψ²)^(3/2); 0 without spread."""
        return self.third / self.second**1.5 if self.second > 0 else 0.0
