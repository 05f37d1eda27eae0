"""Solving an estimator on what there is: straight from the rows, or from the sums."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from reweigh.errors import RefusedError
from reweigh.estimate.control import Shaped, shape_log, shape_moments, shape_rows
from reweigh.estimate.direct import bare_moments, solve_in_memory
from reweigh.estimate.direct_model import solve_model
from reweigh.estimate.direct_pooled import solve_pooled
from reweigh.estimate.influence import influence_values
from reweigh.estimate.jackknife import jackknife_error
from reweigh.estimate.products import NEEDS_SCAN, solve_products
from reweigh.estimate.recipe import Marginal, Model, Recipe, Stationary
from reweigh.estimate.recursion import overflow
from reweigh.estimate.solution import Solution, solve_recursion
from reweigh.estimate.stationary import solve_stationary
from reweigh.estimate.variance import LOST, nothing_left
from reweigh.evaluation.inputs import Evidence
from reweigh.log.log import EpisodeLog
from reweigh.policy.base import Policy
from reweigh.sums.engines.base import Engine, Request
from reweigh.sums.moments import Moments


@dataclass(frozen=True, eq=False)
class Solved:
    """A solution and the sums behind it: `used` are those that it was found on (shaped, or of one
    half), `base` those of the whole log. Straight `from_rows` they hold no sums: what they are of.
    """

    solution: Solution
    used: Moments
    base: Moments
    from_rows: bool


def solve(evidence: Evidence, recipe: Recipe, dropped: bool) -> Solved:
    """The solution, by the quicker of the two roads."""
    quick = _solve_in_memory(evidence, recipe, dropped)
    if quick is None:
        base = evidence.moments(recipe, dropped=dropped)
        solution, used = solve_on_sums(evidence, recipe, base, dropped)
        return Solved(solution, used, base, from_rows=False)
    solution, used = quick
    base = used if recipe.control is None else bare_moments(*evidence.rows(dropped), recipe)
    return Solved(solution, used, base, from_rows=True)


def value_of(evidence: Evidence, recipe: Recipe, dropped: bool) -> float:
    """The value alone."""
    quick = _solve_in_memory(evidence, recipe, dropped)
    if quick is None:
        base = evidence.moments(recipe, dropped=dropped)
        quick = solve_on_sums(evidence, recipe, base, dropped)
    return finite(quick[0].value)


def _solve_in_memory(
    evidence: Evidence, recipe: Recipe, dropped: bool
) -> tuple[Solution, Moments] | None:
    """The solution straight from the rows, and moments that may hold no sums: what they are of."""
    if evidence.log is None:
        return None
    log, target = evidence.rows(dropped)
    if recipe.control is not None:
        shaped = shape_rows(log, target, recipe.control)
        return None if shaped is None else _solve_shaped(evidence, recipe, shaped, target)
    for solve_rows in (solve_in_memory, solve_model, solve_pooled):
        solution = solve_rows(log, target, recipe, errors=evidence.errors)
        if solution is not None:
            return solution, bare_moments(log, target, recipe)
    return None


def _solve_shaped(
    evidence: Evidence, recipe: Recipe, shaped: Shaped, target: Policy, blocks: int = 1
) -> tuple[Solution, Moments]:
    """The estimator without its control variate, on the log that this has shaped."""
    plain = replace(recipe, control=None)
    solution = solve_in_memory(shaped.log, target, plain, errors=evidence.errors)
    if solution is not None:
        return solution, bare_moments(shaped.log, target, plain)
    request = replace(plain.needs, blocks=blocks, control=shaped.name, named=False)
    used = evidence.engine.moments(shaped.log, target, request)
    return _solve_sums(evidence, plain, used, shaped.log, target, request), used


def finite(value: float) -> float:
    if not np.isfinite(value):
        raise overflow()
    return value


def solve_on_sums(
    evidence: Evidence, recipe: Recipe, base: Moments, dropped: bool
) -> tuple[Solution, Moments]:
    """The solution, and the sums that it was found on (shaped, or of one half)."""
    if isinstance(recipe.weights, Stationary):
        solution = solve_stationary(recipe, base)
        if not evidence.errors:
            return solution, base
        if not solution.warnings or abs(solution.value) > 0:
            return _with_jackknife(recipe, base, solution, solve_stationary), base
        return replace(solution, error_method="all stationary mass is on END"), base
    log, target = (None, None) if evidence.log is None else evidence.rows(dropped)
    if recipe.control is None:
        request = replace(recipe.needs, blocks=base.about.blocks)
        return _solve_sums(evidence, recipe, base, log, target, request), base
    if log is not None and target is not None:
        shaped = shape_log(log, target, recipe, base)
        return _solve_shaped(evidence, recipe, shaped, target, base.about.blocks)
    if isinstance(recipe.weights, Marginal):
        used = shape_moments(recipe, base)
        return solve_recursion(recipe, used, errors=evidence.errors), used
    raise RefusedError(
        "needs-log",
        "the shaped reward of every row is weighted: that needs the log itself, not its moments; "
        "mdr() does not",
    )


def _solve_sums(
    evidence: Evidence,
    recipe: Recipe,
    used: Moments,
    log: EpisodeLog | None,
    target: Policy | None,
    request: Request,
) -> Solution:
    """The solution on these sums; the error of WIS takes the rows again, or the jackknife."""
    if isinstance(recipe.weights, Marginal):
        return solve_recursion(recipe, used, errors=evidence.errors)
    if isinstance(recipe.weights, Model):
        solution = solve_recursion(recipe, used, errors=evidence.errors)
        if solution.standard_error is None or used.policy is None:
            return solution
        return _with_policy_noise(recipe, used, solution, log, target)
    solution = solve_products(recipe, used)
    unfinished = solution.standard_error is None and solution.error_method == NEEDS_SCAN
    if not (evidence.errors and unfinished):
        return solution
    if log is None or target is None:
        return _with_jackknife(recipe, used, solution, solve_products)
    error = _delta_error(evidence.engine, log, target, request, used)
    if nothing_left(error, solution.value):
        return replace(solution, error_method=LOST)
    return replace(solution, standard_error=error)


def _with_policy_noise(
    recipe: Recipe,
    used: Moments,
    solution: Solution,
    log: EpisodeLog | None,
    target: Policy | None,
) -> Solution:
    """The model's error where its shares are means of what a policy sees: which rows a cell holds
    adds to it, and the sums do not hold by how much."""
    if log is None or target is None:
        return _with_jackknife(recipe, used, solution, solve_recursion)
    psi = influence_values(log, target, recipe)
    error = float(np.sqrt(np.mean(psi**2) / len(psi)))
    by_node = solution.nodes
    if by_node is not None:
        by_node = replace(by_node, variance=None)
    return replace(solution, standard_error=error, freedom=None, by_node=by_node)


def _with_jackknife(recipe: Recipe, base: Moments, solution: Solution, solve: object) -> Solution:
    error, method = jackknife_error(
        base.only(recipe.needs.kinds),  # of the others every block would be a copy
        solution.value,
        lambda part: solve(recipe, part).value,  # type: ignore[operator]
    )
    return replace(solution, standard_error=error, error_method=method)


def _delta_error(
    engine: Engine, log: EpisodeLog, target: Policy, request: Request, used: Moments
) -> float:
    """ψ_i = g_i - ḡ + Σ_t γ^t ρ_{0:t} (y_t - v_t)/mean(ρ_{0:t}),  SE² = mean(ψ²)/n."""
    assert used.trajectories is not None
    steps = used.trajectories.steps.total()
    n = used.n_episodes
    psi = engine.weighted_residuals(
        log, target, request, steps.wy / steps.w, np.log(steps.w / n) + steps.log_scale
    )
    g = log.steps.start_value
    if g is not None:
        psi = psi + g - g.mean()
    return float(np.sqrt(np.mean(psi**2) / n))
