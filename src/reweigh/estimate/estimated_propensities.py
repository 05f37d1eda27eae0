"""What estimating the propensities adds to the influence values of an estimate.

With counts, μ̂(a|c) = (n(c,a) + α)/(n(c) + αA) where c is a state, or a step and state, an estimate
moves with an episode also because the episode moves μ̂. A row adds to the estimate

    g = n ∂v̂/∂log ρ,   so that   ψ_i += Σ_{rows of i} [G(c)/(n(c) + αA) - G(c,a)/(n(c,a) + α)]

with G the sums of g over the rows of a cell (`FittedBehavior.influence`): the slope of the estimate
times the score of the fit. Counts take part of an estimate's variance away. By step and state,
where all actions are seen, ψ of MIS becomes that of DM, which MIS with these counts is.

The slopes are those of the gradient that ψ itself is made of: of MIS ∂v/∂Σρ ρ + ∂v/∂Σz z of the
row's cell, of running products and windows those of all products that the row is in. `mdr-loo`
subtracts from what ρ multiplies its mean given state and action, so that G is nearly 0: nothing is
added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from reweigh.estimate.estimator import Recipe
from reweigh.estimate.influence import gradient_of, sums_for
from reweigh.kernels import Floats, group_by, tally
from reweigh.log.log import EpisodeLog
from reweigh.policy import Policy
from reweigh.sums.engines import ratios
from reweigh.sums.gather import CellGradient, ProductGradient, TableGradient, moves_of
from reweigh.sums.numpy_scan import NUMPY, NumpyScan
from reweigh.sums.products import of_episodes, running_weights, windows_of

if TYPE_CHECKING:
    from reweigh.sums.moments import Moments


def influence_of_fit(
    log: EpisodeLog, target: Policy, recipe: Recipe, sums: Moments | None = None
) -> Floats | None:
    """(n,) what the fit of the propensities adds to ψ; None where it is not known: of propensities
    that do not say how they were estimated, or were estimated from other episodes, and of
    estimators without slopes."""
    fit = log.behavior_fit
    if fit is None or not recipe.weights.uses_ratios:
        return None
    slopes = slopes_of(log, target, recipe, sums)
    return None if slopes is None else fit.influence(log, slopes)


def slopes_of(
    log: EpisodeLog, target: Policy, recipe: Recipe, sums: Moments | None
) -> Floats | None:
    """(N,) n ∂v̂/∂log ρ of every row; None if they are not known."""
    if log.has_hidden:
        return None
    if "augmented" in recipe.traits:
        return np.zeros(log.steps.n_rows)
    if recipe.control is None:
        return _plain(log, target, recipe, sums)
    if recipe.control.blends or recipe.control.fit == "variance":
        return None  # their Q, or the blend, follows the propensities too
    from reweigh.estimate.doubly_robust import fold_of, shape_log
    from reweigh.estimate.shaped_influence import fitting_sums

    fit = fitting_sums(log, target, recipe)
    if fit is not None and fit.shares.rule == "ratios":
        return None  # Q's own policy is made of ratios
    shaped = shape_log(log, target, recipe, fit).log
    slopes = _plain(shaped, target, recipe.plain, None)
    if slopes is None or shaped.n_episodes == log.n_episodes:
        return slopes
    # of a split n_0 episodes are summed, each of which counts n/n_0 times
    summed = fold_of(recipe.control, log.steps.episode_hash) == 0
    whole = np.zeros(log.steps.n_rows)
    whole[summed[log.steps.episode_index]] = slopes * (log.n_episodes / shaped.n_episodes)
    return whole


def _plain(log: EpisodeLog, target: Policy, recipe: Recipe, sums: Moments | None) -> Floats | None:
    """Of an estimator without a control variate."""
    if sums is None or not recipe.finds_all_in(sums):
        sums = sums_for(log, target, recipe)
    gradient = gradient_of(recipe, sums)
    pi, rho = ratios(log, target, recipe.max_ratio)
    if isinstance(gradient, CellGradient):
        slopes = _of_cells(gradient, log, rho)
    elif log.n_truncated:
        return None
    elif isinstance(gradient, ProductGradient):
        slopes = _of_products(gradient, log, rho)
    elif all(table.table.memory is not None for table in gradient.by_table):
        slopes = _of_windows(gradient, log, pi, rho)
    else:
        return None
    if recipe.max_ratio is not None:  # a ratio that is cut does not move
        slopes = np.where(rho < recipe.max_ratio, slopes, 0.0)
    return slopes if np.all(np.isfinite(slopes)) else None


def _of_cells(gradient: CellGradient, log: EpisodeLog, rho: Floats) -> Floats:
    moves = moves_of(log, rho, gradient.moves, folds=gradient.folds)
    cell = gradient.cell_of(moves)
    of_rho, of_z = (np.append(column, 0.0)[cell] for column in (gradient.rho, gradient.z))
    return np.asarray(of_rho * moves.rho + of_z * moves.z)


def _of_products(gradient: ProductGradient, log: EpisodeLog, rho: Floats) -> Floats:
    """Σ_{t' ≥ t} γ^t' w_t' (y_t' - center_t')/mean_t', of whole products W (G - center)/mean."""
    steps = log.steps
    if gradient.whole:
        log_w, _, returns = of_episodes(steps, rho, log.discount)
        with np.errstate(over="ignore", invalid="ignore"):
            whole = np.exp(log_w - gradient.log_mean) * (returns - gradient.center)
        return np.asarray(whole[steps.episode_index])
    center = np.broadcast_to(gradient.center, steps.horizon)
    log_mean = np.broadcast_to(gradient.log_mean, steps.horizon)
    weight = running_weights(steps, rho, log.discount, log_mean)
    slopes = weight * (steps.reward - center[steps.step])
    # An episode that has ended keeps its product, and earns 0.
    after = np.zeros(steps.horizon)
    for t in range(steps.horizon - 2, -1, -1):
        ahead = log.discount * np.exp(log_mean[t] - log_mean[t + 1])
        after[t] = ahead * (center[t + 1] + after[t + 1])
    last = steps.offsets[steps.lengths - 1] + np.arange(steps.n_episodes)
    slopes[last] -= weight[last] * after[steps.step[last]]
    for t in range(steps.horizon - 2, -1, -1):  # Σ over the steps that follow
        following, here = steps.rows(t + 1), steps.rows(t).start
        slopes[here : here + following.stop - following.start] += slopes[following]
    return np.asarray(slopes)


def _of_windows(gradient: TableGradient, log: EpisodeLog, pi: Floats, rho: Floats) -> Floats:
    """Of all windows that the row is in."""
    steps = log.steps
    scan = NumpyScan(log, pi, gradient.max_ratio, np.arange(log.n_episodes))
    slopes = np.zeros(steps.n_rows)
    for table in gradient.by_table:
        memory = table.table.memory
        assert memory is not None
        own = table.keys[1:]
        used = scan.rows(table.table, table.keys)
        keys = [np.append(getattr(table, key), used[key]) for key in own]
        index = group_by(keys).index()
        cell = np.full(int(index.max()) + 1, len(table))
        cell[index[: len(table)]] = np.arange(len(table))
        at = cell[index[len(table) :]]
        term = np.zeros(len(at))
        for name, values in table.table.values(used, NUMPY).items():
            term += np.append(getattr(table, name), 0.0)[at] * values
        windows = windows_of(steps, rho, memory)
        last = steps.step[windows.last_row]
        some, back = np.arange(len(term)), 0
        while len(some):
            row = steps.offsets[last[some] - back] + windows.episode[some]
            slopes += tally(row, term[some], steps.n_rows)
            back += 1
            some = some[last[some] - back >= windows.begin[some]]
    return slopes
