"""evaluate(): from a log (or its sums), a target and a recipe to an Estimate."""

from __future__ import annotations

import warnings as python_warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from reweigh.errors import (
    RefusedError,
    SelectionWarning,
    StationaryWarning,
    SupportError,
    UsageError,
    must_be,
)
from reweigh.estimators import presets
from reweigh.estimators.control import shape_log, shape_moments
from reweigh.estimators.direct import bare_moments, behavior_in_memory, solve_in_memory
from reweigh.estimators.products import NEEDS_SCAN, solve_products
from reweigh.estimators.recipe import (
    JACKKNIFE_BLOCKS,
    Marginal,
    Model,
    Recipe,
    Stationary,
    Stepwise,
)
from reweigh.estimators.stationary import solve_stationary
from reweigh.estimators.weights import Solution, behavior_value, solve_recursion
from reweigh.evidence import Evidence, Truncated, check_target, gather, leaves_cut_ones_out, merged
from reweigh.inference.diagnostics import remarks
from reweigh.inference.jackknife import jackknife_error
from reweigh.inference.variance import LOST, nothing_left
from reweigh.logs.log import EpisodeLog
from reweigh.logs.scanned import ScannedLog
from reweigh.moments.bundle import Moments
from reweigh.moments.engines.arrays import ArraysEngine
from reweigh.moments.engines.base import Engine, Request
from reweigh.policies.base import Policy
from reweigh.results import Diagnostics, Estimate, Marginals, Refusal

Data = EpisodeLog | ScannedLog | Moments


def evaluate(
    data: Data,
    target: Policy | None = None,
    estimator: Recipe | str | None = None,
    *,
    truncated: Truncated = "refuse",
) -> Estimate:
    """Estimate what `target` would have earned on average per episode.

    `data` is a log, or moments (which already know their target). The default estimator is
    `mis()`. Estimators with running products refuse logs with cut-off episodes unless
    `truncated="drop"` leaves these out, with a warning.
    """
    recipe = presets.mis() if estimator is None else _recipe(estimator)
    [result] = evaluate_all(data, target, [recipe], truncated=truncated)
    if isinstance(result, Refusal):
        raise result.error
    for warning in result.warnings:
        python_warnings.warn(warning, stacklevel=2)
    return result


def evaluate_all(
    data: Data,
    target: Policy | None,
    estimators: Sequence[Recipe | str],
    *,
    truncated: Truncated = "refuse",
) -> list[Estimate | Refusal]:
    """Several estimators on one log; an estimator that refuses is a Refusal in the list."""
    if truncated not in ("refuse", "drop"):
        raise must_be("truncated", '"refuse" or "drop"', truncated)
    recipes = [_recipe(estimator) for estimator in estimators]
    if isinstance(data, ScannedLog):
        return _evaluate_scanned(data, check_target(target), recipes, truncated)
    evidence = gather(data, target, recipes, truncated)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused by name
        return [_try(evidence, recipe) for recipe in recipes]


def _evaluate_scanned(
    log: ScannedLog, target: Policy, recipes: list[Recipe], truncated: Truncated
) -> list[Estimate | Refusal]:
    """One scan per clipping of the ratios; from the sums on, as for moments."""
    if truncated == "drop":
        raise UsageError("truncated='drop' needs the log in memory: read it with engine='arrays'")
    sums = scanned_sums(log, target, recipes)
    return [evaluate_all(sums[recipe.max_ratio], None, [recipe])[0] for recipe in recipes]


def scanned_sums(
    log: ScannedLog, target: Policy, recipes: list[Recipe]
) -> dict[float | None, Moments]:
    """The sums that these estimators and their errors need, by the clipping of the ratios."""
    requests = merged(recipes)
    for recipe in recipes:
        if recipe.weights == Stepwise() and recipe.normalize == "step":
            # Without the rows at hand the error of WIS comes from the jackknife.
            requests[recipe.max_ratio] |= replace(recipe.needs, blocks=JACKKNIFE_BLOCKS)
    return {ratio: log.moments(target, request) for ratio, request in requests.items()}


def point_values(
    log: EpisodeLog, target: Policy, estimators: Sequence[Recipe | str]
) -> list[float | Refusal]:
    """The values alone, without errors and diagnostics: what a simulation study needs.

    An estimator's value does not depend, to the last bit, on which others are asked for: the
    sums are split into the same two blocks for all of them.
    """
    recipes = [_recipe(estimator) for estimator in estimators]
    evidence = gather(log, target, recipes, "refuse")
    evidence.errors = False
    for ratio, request in evidence.requests.items():
        evidence.requests[ratio] = replace(request, blocks=2)
    found: list[float | Refusal] = []
    with np.errstate(over="ignore", invalid="ignore"):
        for recipe in recipes:
            try:
                if evidence.hopeless is not None:
                    raise evidence.hopeless
                dropped = leaves_cut_ones_out(evidence, recipe)
                base = evidence.moments(recipe, dropped=dropped)
                found.append(_finite(_solve(evidence, recipe, base, dropped)[0].value))
            except RefusedError as error:
                found.append(Refusal(recipe, error, *evidence.size))
    return found


def moments(
    log: EpisodeLog | ScannedLog,
    target: Policy,
    estimators: Sequence[Recipe | str] | None = None,
    *,
    blocks: int = 1,
    max_ratio: float | None = None,
) -> Moments:
    """The sums from which estimators follow: they add up, and save to Parquet.

    Without `estimators` all kinds of sums are made that the log allows. `blocks` splits the
    episodes by the hash of their ids, for the jackknife (10 or more) and for split and cross-fit
    (an even number).
    """
    if not isinstance(blocks, int) or blocks < 1:
        raise must_be("blocks", "a whole number from 1 on", blocks)
    check_target(target)
    presets.is_(max_ratio=max_ratio)  # checks max_ratio
    request = Request(frozenset({"transitions", "model", "trajectories"}), blocks, max_ratio)
    if estimators is not None:
        request = Request(frozenset(), blocks, max_ratio)
        for recipe in map(_recipe, estimators):
            wanted = recipe.needs
            if recipe.control is not None and recipe.uses_trajectories:
                raise UsageError(f"{recipe.name} needs the log itself: no moments serve it")
            if isinstance(recipe.weights, Model):
                wanted = replace(wanted, max_ratio=request.max_ratio)  # it uses no ratio
            elif request.max_ratio is None and not request.kinds:
                request = replace(request, max_ratio=wanted.max_ratio)
            if wanted.max_ratio != request.max_ratio:
                raise UsageError("moments hold one max_ratio; make them apart for each")
            request |= wanted
    if isinstance(log, ScannedLog):
        return log.moments(target, request)
    if log.n_truncated:  # the products of cut-off episodes mean nothing
        request = replace(request, kinds=request.kinds - {"trajectories"})
    return ArraysEngine().moments(log, target, request)


def _recipe(estimator: Recipe | str) -> Recipe:
    if isinstance(estimator, Recipe):
        return estimator
    if isinstance(estimator, str):
        return presets.estimator(estimator)
    raise must_be("estimator", 'an estimator such as mis(), or its name "mis"', estimator)


def _try(evidence: Evidence, recipe: Recipe) -> Estimate | Refusal:
    try:
        if evidence.hopeless is not None:
            raise evidence.hopeless
        return _estimate(evidence, recipe)
    except RefusedError as error:
        return Refusal(recipe, error, *evidence.size)


def _estimate(evidence: Evidence, recipe: Recipe) -> Estimate:
    found: list[Warning] = []
    dropped = leaves_cut_ones_out(evidence, recipe)
    if dropped and evidence.log is not None:
        found.append(
            SelectionWarning(
                f"{evidence.log.n_truncated:,} of {evidence.log.n_episodes:,} episodes were cut "
                "off and left out; if being cut off has to do with the outcome, the estimate is "
                "biased"
            )
        )
    quick = _solve_in_memory(evidence, recipe, dropped)
    if quick is not None:
        solution, base = quick
        used, logged = base, behavior_in_memory(evidence.rows(dropped)[0])
    else:
        base = evidence.moments(recipe, dropped=dropped)
        solution, used = _solve(evidence, recipe, base, dropped)
        logged = behavior_value(base)
    found += list(solution.warnings)
    found += [*remarks(solution, used), *evidence.remarks]
    pools = isinstance(recipe.weights, Stationary) or recipe.weights == Marginal(pooled=True)
    if pools and base.about.target_has_steps:
        found.append(
            StationaryWarning(
                "the target depends on the step, and this estimator pools all steps: it answers "
                "for a mixture of them. Use mis()"
            )
        )
    error, method = solution.standard_error, solution.error_method
    _finite(solution.value)
    if error is not None and not np.isfinite(error):
        error, method = None, "the squares of the ratios exceed what a number can hold"
    if used.n_episodes < 2:
        error, method = None, "one episode has no spread"
    elif error is not None and base.about.behavior != "logged":
        method += ", taking the estimated behaviour for the truth"
    return Estimate(
        value=solution.value,
        standard_error=error,
        error_method=method,
        recipe=recipe,
        n_episodes=used.n_episodes,
        horizon=base.about.horizon,
        discount=base.about.discount,
        behavior_value=logged,
        per_step=solution.per_step,
        marginals=_marginals(solution, used),
        diagnostics=Diagnostics(
            ess=solution.ess,
            unseen_mass=solution.unseen_mass,
            placebo=solution.placebo,
            placebo_error=solution.placebo_error,
            rare_mass=solution.rare_mass,
            placebo_expected=float(np.sum(base.about.discount ** np.arange(base.about.horizon))),
            total_mass=solution.total_mass,
            variance_by_step=solution.variance_by_step,
        ),
        make_moments=partial(evidence.moments, recipe, dropped=dropped),
        warnings=tuple(found),
    )


def _solve_in_memory(
    evidence: Evidence, recipe: Recipe, dropped: bool
) -> tuple[Solution, Moments] | None:
    """The solution straight from the rows, and moments that hold no sums: what they are of."""
    if evidence.log is None:
        return None
    log, target = evidence.rows(dropped)
    solution = solve_in_memory(log, target, recipe)
    return None if solution is None else (solution, bare_moments(log, target, recipe))


def _finite(value: float) -> float:
    if not np.isfinite(value):
        raise SupportError(
            "overflow", "ratios of this size exceed what a number can hold; clip them (max_ratio)"
        )
    return value


def _solve(
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
    used, log, target = base, None, None
    if evidence.log is not None:
        log, target = evidence.rows(dropped)
    request = replace(recipe.needs, kinds=recipe.weights.kinds, blocks=base.about.blocks)
    if recipe.control is not None:
        if log is not None and target is not None:
            shaped = shape_log(log, target, recipe.control, base)
            log = shaped.log
            request = replace(request, control=shaped.name)
            used = evidence.engine.moments(log, target, request)
        elif isinstance(recipe.weights, Marginal):
            used = shape_moments(recipe, base)
        else:
            raise RefusedError(
                "needs-log",
                "the shaped reward of every row is weighted: that needs the log itself, not its "
                "moments; mdr() does not",
            )
    if isinstance(recipe.weights, Marginal | Model):
        return solve_recursion(recipe, used), used
    solution = solve_products(recipe, used)
    unfinished = solution.standard_error is None and solution.error_method == NEEDS_SCAN
    if evidence.errors and unfinished:
        if log is None or target is None:
            return _with_jackknife(recipe, used, solution, solve_products), used
        error = _delta_error(evidence.engine, log, target, request, used)
        if nothing_left(error, solution.value):
            return replace(solution, error_method=LOST), used
        solution = replace(solution, standard_error=error)
    return solution, used


def _with_jackknife(recipe: Recipe, base: Moments, solution: Solution, solve: object) -> Solution:
    error, method = jackknife_error(
        base,
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


def _marginals(solution: Solution, used: Moments) -> Marginals | None:
    if solution.node_t is None or solution.node_s is None:
        return None
    assert solution.target is not None
    assert solution.behavior is not None
    inside = solution.node_t < used.about.horizon
    return Marginals(
        step=solution.node_t[inside],
        codes=solution.node_s[inside],
        labels=used.states,
        target=solution.target[inside],
        behavior=solution.behavior[inside],
    )
