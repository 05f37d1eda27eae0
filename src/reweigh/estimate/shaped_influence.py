"""Influence values and gradients of estimators with a control variate: those of IS, WIS or MIS on
shaped rewards, and where Q was fitted to the same rows what comes through Q.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from reweigh.estimate.doubly_robust import (
    Shaped,
    fold_of,
    marginal_control,
    product_weights,
    shape_log,
)
from reweigh.estimate.estimator import Recipe
from reweigh.estimate.influence import finite, plain_values, sums_for, weighed
from reweigh.estimate.marginal import marginal_gradient
from reweigh.estimate.model import FittedModel
from reweigh.estimate.operators import start_term
from reweigh.estimate.refusals import cut_off
from reweigh.kernels import Floats, group_by, tally
from reweigh.log.log import EpisodeLog
from reweigh.policy import Policy, scope_of
from reweigh.sums.engines import ArraysEngine, ratios
from reweigh.sums.gather import CellGradient, gathered, moves_of
from reweigh.sums.moments import Moments


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
    edge, folds = of.index(), recipe.control.blocks if recipe.control.blocks > 1 else 0
    by_z = plain.z[edge] if shape.kept is None else plain.z[edge] * shape.kept[cells.t]
    columns: dict[str, Any] = {
        "one": plain.one[edge],
        "rho": plain.rho[edge] + by_z * shape.f,
        "z": by_z,
        "y": plain.y[edge],
        "start": plain.start[edge] + start_term(cells, shape.start_value),
    }
    if folds:  # of a split only n_0 episodes are summed: each counts n/n_0 times
        times = sums.n_episodes / shape.starts.n.sum().item()
        columns = {name: times * values for name, values in columns.items()}
        cells = replace(cells, block=fold_of(recipe.control, cells.block))
    gradient = CellGradient("actions", cells, **columns, folds=folds)
    return gradient if folds and shape.kept is None else _with_q(gradient, sums)


def _with_q(gradient: CellGradient, sums: Moments) -> CellGradient:
    """With the part that comes through a Q fitted to these sums; fitted by folds, these together
    are the same to first order."""
    assert sums.model is not None
    model = FittedModel.of(replace(sums, model=sums.model.forget("block")))
    cells, of = gradient.cells, model.op.cells
    index = group_by(
        [np.append(getattr(of, key), getattr(cells, key)) for key in ("t", "s", "a", "s_next")]
    ).index()
    place = np.empty(len(of), np.int64)
    place[index[: len(of)]] = np.arange(len(of))
    at = place[index[len(of) :]]
    through = model.through_q(tally(at, gradient.z * cells.rho, len(of)))
    names, policy = ("one", "rho", "z", "y", "start"), through.policy
    return replace(
        gradient,
        policy=None if policy is None else replace(policy, node=policy.node[at]),
        **{name: getattr(gradient, name) + getattr(through, name)[at] for name in names},
    )


def shaped_influence(log: EpisodeLog, target: Policy, recipe: Recipe) -> Floats:
    """(n,) ψ of DR, WDR or MDR, through an in-sample Q too."""
    _refuse_cut(log, recipe)
    fit, control = fitting_sums(log, target, recipe), recipe.control
    shaped = shape_log(log, target, recipe, fit)
    psi = _of_shaped(log, target, recipe, shaped)
    assert control is not None
    if fit is None or (control.blocks > 1 and not control.blends):
        return psi
    return finite(psi + _through_q(log, target, recipe, fit, shaped.kept))


def _refuse_cut(log: EpisodeLog, recipe: Recipe) -> None:
    """Whichever half they are in."""
    if recipe.uses_trajectories and log.n_truncated:
        raise cut_off(log.n_truncated)


def fixed_q_values(
    log: EpisodeLog, target: Policy, recipe: Recipe, fit: Moments | None = None
) -> Floats:
    """(n,) ψ of DR, WDR or MDR with Q as it is: where Q was fitted, without its own influence."""
    _refuse_cut(log, recipe)
    fit = fitting_sums(log, target, recipe) if fit is None else fit
    return _of_shaped(log, target, recipe, shape_log(log, target, recipe, fit))


def _of_shaped(log: EpisodeLog, target: Policy, recipe: Recipe, shaped: Shaped) -> Floats:
    with np.errstate(over="ignore", invalid="ignore"):
        psi = finite(plain_values(shaped.log, target, recipe.plain))
    if len(psi) == log.n_episodes:
        return psi
    # v = (1/n_0) Σ over the n_0 episodes that sum: each counts n/n_0 times
    whole = np.zeros(log.n_episodes)
    whole[fold_of(recipe.control, log.steps.episode_hash) == 0] = psi * (log.n_episodes / len(psi))
    return whole


def fitting_sums(log: EpisodeLog, target: Policy, recipe: Recipe) -> Moments | None:
    """The sums that Q is fitted to; None of a user's own."""
    if not recipe.fitted:
        return None
    request = replace(recipe.needs, kinds=frozenset({"model"}), named=False)
    return ArraysEngine().moments(log, target, request)


def _through_q(
    log: EpisodeLog, target: Policy, recipe: Recipe, fit: Moments, kept: Floats | None
) -> Floats:
    """(n,) the part of ψ through a Q that was fitted on the same log (where MAGIC fits it by folds,
    which together are the same to first order). W = n ∂v/∂y of every row is
    γ^t ρ_{0:t}, for WIS over its mean, and for MIS n ∂v/∂Σz times ρ since its move began. Where DR
    and WDR take V of what the policy sees in a row, κ_Q(t+1,s',a) is γ Σ W π(a|x') in place of κ_V,
    and κ_Q(0,s,a) = Σ π(a|x_0)."""
    _, rho = ratios(log, target, recipe.max_ratio)
    plain = recipe.plain
    if recipe.uses_trajectories:
        weight = product_weights(log, target, recipe)
    else:
        of_marginal = marginal_gradient(plain, sums_for(log, target, plain)).gradient
        moves = moves_of(log, rho, of_marginal.moves)
        weight = moves.within * moves.by_row(of_marginal.z[of_marginal.cell_of(moves)])
    weight = weight * weighed(log, np.ones(log.n_episodes))[log.steps.episode_index]
    weight = weight if kept is None else weight * kept[log.steps.step]
    model = FittedModel.of(fit)
    table = model.gradient(np.zeros(len(model.Q)), np.zeros(len(model.V)))
    cell = table.cell_of(moves_of(log, rho, "actions"))
    by_cell = tally(cell, weight, len(table.cells))
    if recipe.uses_trajectories and scope_of(target) == "row":
        through = model.through_rows(log, target, cell, weight)
    else:
        through = model.through_q(by_cell)
    return weighed(log, gathered(through, log, target, rho))
