"""evaluate(): from a log (or its sums), a target and a recipe to an Estimate."""

from __future__ import annotations

import warnings as python_warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from reweigh.errors import (
    MOST_BLOCKS,
    InputWarning,
    RefusedError,
    SelectionWarning,
    StationaryWarning,
    UsageError,
    check_whole,
    must_be,
)
from reweigh.estimate import presets
from reweigh.estimate.direct import mean_return
from reweigh.estimate.estimator import JACKKNIFE_BLOCKS, Recipe, Solution
from reweigh.estimate.marginal import behavior_value
from reweigh.estimate.presets import Estimators, as_recipe, estimator_list
from reweigh.estimate.standard_error import OVERFLOW
from reweigh.evaluation.auto import choose
from reweigh.evaluation.basis import Grounds, freedom_of
from reweigh.evaluation.influence_source import Column, ScanInfluence
from reweigh.evaluation.inputs import (
    Evidence,
    Truncated,
    check_target,
    gather,
    leaves_cut_ones_out,
)
from reweigh.evaluation.result import Diagnostics, Estimate, Marginals, Refusal
from reweigh.evaluation.scans import scanned_sums, with_gates
from reweigh.evaluation.solve import finite, solve, value_of
from reweigh.log.log import EpisodeLog
from reweigh.policy.base import Policy
from reweigh.sums.engines.arrays import ArraysEngine
from reweigh.sums.engines.base import Request
from reweigh.sums.engines.second_scan import can_scan_again
from reweigh.sums.moments import Moments
from reweigh.sums.read import ScannedLog
from reweigh.sums.tables import Table
from reweigh.system.process import each, require_steps
from reweigh.trust.diagnostics import remarks
from reweigh.trust.gates import Context, measured

Data = EpisodeLog | ScannedLog | Moments
AUTO = "auto"
Answer = TypeVar("Answer")


def evaluate(
    data: Data,
    target: Policy | None = None,
    estimator: Recipe | str | None = None,
    *,
    truncated: Truncated = "refuse",
) -> Estimate:
    """Estimate what `target` would have earned on average per episode.

    `data` is a log, or moments (which already know their target). The default estimator is
    `mis()`; "auto" chooses by a rule that does not look at rewards (`evaluation/auto.py`) and says
    why in `Estimate.chosen`. Estimators with running products refuse logs with cut-off episodes
    unless `truncated="drop"` leaves these out, with a warning.
    """
    asked = presets.mis() if estimator is None else estimator
    [result] = evaluate_all(data, target, [asked], truncated=truncated)
    if isinstance(result, Refusal):
        raise result.error
    for warning in result.warnings:
        python_warnings.warn(warning, stacklevel=2)
    return result


def evaluate_all(
    data: Data,
    target: Policy | None,
    estimators: Estimators,
    *,
    truncated: Truncated = "refuse",
) -> list[Estimate | Refusal]:
    """Several estimators on one log, or one; one that refuses is a Refusal in the list. So is
    one whose value the logged rewards do not allow (`trust/reward_range.py`)."""
    return _evaluate_all(data, target, estimators, truncated, within_rewards=True)


def evaluate_in_study(
    data: Data, target: Policy | None, estimators: Estimators
) -> list[Estimate | Refusal]:
    """The same without a look at what the rewards allow: a study of an estimator's errors must not
    lose the largest of them."""
    return _evaluate_all(data, target, estimators, "refuse", within_rewards=False)


def _evaluate_all(
    data: Data,
    target: Policy | None,
    estimators: Estimators,
    truncated: Truncated,
    *,
    within_rewards: bool,
) -> list[Estimate | Refusal]:
    _check_truncated(truncated)
    listed = estimator_list(estimators)
    if AUTO in listed:
        return _evaluate_chosen(data, target, listed, truncated)
    recipes = [as_recipe(estimator) for estimator in listed]
    if isinstance(data, ScannedLog):
        return _evaluate_scanned(data, check_target(target), recipes, truncated)
    evidence = gather(data, target, recipes, truncated)
    evidence.within_rewards = within_rewards
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused by name
        found = each("estimators", recipes, lambda recipe: _try(evidence, recipe, _estimate))
    evidence.rest()
    return found


def _check_truncated(truncated: str) -> None:
    if truncated not in ("refuse", "drop"):
        raise must_be("truncated", '"refuse" or "drop"', truncated)


def _evaluate_chosen(
    data: Data, target: Policy | None, estimators: list[Recipe | str], truncated: Truncated
) -> list[Estimate | Refusal]:
    """The same with "auto" among the estimators, whose result tells why it was chosen."""
    if not isinstance(data, EpisodeLog):
        raise UsageError(
            "estimator='auto' needs the log in memory (engine='arrays'); name an estimator"
        )
    choice = choose(
        data,
        check_target(target),
        lambda log, policy, asked: evaluate_all(log, policy, asked, truncated=truncated),
    )
    named = [choice.recipe if estimator == AUTO else estimator for estimator in estimators]
    found = evaluate_all(data, target, named, truncated=truncated)
    return [
        replace(result, chosen=choice.why)
        if estimator == AUTO and isinstance(result, Estimate)
        else result
        for estimator, result in zip(estimators, found, strict=True)
    ]


def _evaluate_scanned(
    log: ScannedLog, target: Policy, recipes: list[Recipe], truncated: Truncated
) -> list[Estimate | Refusal]:
    """From the sums on, as for moments."""
    if truncated == "drop":
        raise UsageError("truncated='drop' needs the log in memory: read it with engine='arrays'")
    sums = scanned_sums(log, target, recipes)
    found = [
        evaluate_all(own, target, [recipe])[0] for own, recipe in zip(sums, recipes, strict=True)
    ]
    by_recipe: dict[Column, Moments] = {
        result.recipe: own
        for own, result in zip(sums, found, strict=True)
        if isinstance(result, Estimate)
    }
    scan = None
    if can_scan_again(log):
        wis = presets.wis()
        scan = ScanInfluence(log, target, by_recipe, lambda: scanned_sums(log, target, [wis])[0])
    return [_scannable(log, target, result, scan) for result in found]


def _scannable(
    log: ScannedLog, target: Policy, result: Estimate | Refusal, scan: ScanInfluence | None
) -> Estimate | Refusal:
    """An estimate that may have the log scanned again: the jackknife needs sums by blocks, and
    influence values a second scan."""
    if isinstance(result, Refusal):
        return result
    request = replace(result.recipe.needs, blocks=JACKKNIFE_BLOCKS)
    again = replace(result.grounds, by_blocks=lambda: log.moments(target, request), scan=scan)
    return replace(result, grounds=again)


def point_values(
    log: EpisodeLog,
    target: Policy,
    estimators: Estimators,
    *,
    truncated: Truncated = "refuse",
) -> list[float | Refusal]:
    """The values alone, without errors and diagnostics: for simulation studies, and to screen many
    policies. They say nothing about whether they are to be believed: decide on `evaluate`.

    As in `evaluate_all`, an estimator that refuses is a Refusal in the list, and `truncated="drop"`
    leaves cut-off episodes out where an estimator needs whole ones.

    An estimator's value does not depend, to the last bit, on which others are asked for: each is
    solved by itself, and sums are split into the same two blocks for all of them.
    """
    _check_truncated(truncated)
    if isinstance(log, ScannedLog | Moments):
        raise UsageError(
            "point_values needs the log in memory (engine='arrays'); evaluate_all reads scanned "
            "logs and moments too"
        )
    recipes = [as_recipe(estimator) for estimator in estimator_list(estimators)]
    evidence = gather(log, target, recipes, truncated)
    evidence.errors = False
    for ratio, request in evidence.requests.items():
        evidence.requests[ratio] = replace(request, blocks=2)
    with np.errstate(over="ignore", invalid="ignore"):
        found = [_try(evidence, recipe, _value) for recipe in recipes]
    evidence.rest()
    return found


def moments(
    log: EpisodeLog | ScannedLog,
    target: Policy,
    estimators: Estimators | None = None,
    *,
    blocks: int = 1,
    max_ratio: float | None = None,
    gates: bool = True,
    tables: Sequence[Table] = (),
) -> Moments:
    """The sums from which estimators and their verdicts follow: they add up, and save to Parquet.

    Without `estimators` all kinds of sums are made that the log allows. `blocks` splits the
    episodes by the hash of their ids, for the jackknife (10 or more) and for split and cross-fit
    (an even number). `gates=False` leaves out what only the gates of a verdict read, which are
    then not checked. `tables` are sums of your own (`reweigh.Table`); they come back by name, as
    `moments.tables`.
    """
    blocks = check_whole("blocks", blocks, 1, MOST_BLOCKS)
    check_target(target)
    presets.is_(max_ratio=max_ratio)  # checks max_ratio
    kinds = frozenset({"transitions", "model", "trajectories"})
    request = Request(kinds, blocks, max_ratio, policy=True)
    if estimators is not None:
        request = Request(frozenset(), blocks, max_ratio)
        for recipe in map(as_recipe, estimator_list(estimators)):
            wanted = recipe.needs
            if recipe.control is not None and recipe.uses_trajectories:
                raise UsageError(f"{recipe.name} needs the log itself: no moments serve it")
            if not recipe.weights.uses_ratios:
                wanted = replace(wanted, max_ratio=request.max_ratio)  # it uses no ratio
            elif request.max_ratio is None and not request.kinds:
                request = replace(request, max_ratio=wanted.max_ratio)
            if wanted.max_ratio != request.max_ratio:
                raise UsageError("moments hold one max_ratio; make them apart for each")
            request |= wanted
    if gates:
        request = with_gates(request)
    request = replace(request, tables=(*request.tables, *tables))
    if isinstance(log, ScannedLog):
        made = log.moments(target, request)
        for rule in made.unchecked:
            python_warnings.warn(InputWarning(rule), stacklevel=2)
        return made
    if log.n_truncated:  # the products of cut-off episodes mean nothing
        request = replace(request, kinds=request.kinds - {"trajectories"})
    if "trajectories" in request.kinds:
        require_steps(log.horizon, min(blocks, log.n_episodes))
    with np.errstate(over="ignore", invalid="ignore"):  # estimators refuse what overflows
        return ArraysEngine().moments(log, target, request)


def _try(
    evidence: Evidence, recipe: Recipe, answer: Callable[[Evidence, Recipe], Answer]
) -> Answer | Refusal:
    try:
        if evidence.hopeless is not None:
            raise evidence.hopeless
        return answer(evidence, recipe)
    except RefusedError as error:
        return Refusal(recipe, error, *evidence.size)


def _value(evidence: Evidence, recipe: Recipe) -> float:
    return value_of(evidence, recipe, leaves_cut_ones_out(evidence, recipe))


def _estimate(evidence: Evidence, recipe: Recipe) -> Estimate:
    dropped = leaves_cut_ones_out(evidence, recipe)
    solved = solve(evidence, recipe, dropped)
    solution, used, base = solved.solution, solved.used, solved.base
    logged: float | None
    if solved.from_rows:
        logged = solution.mean_return
        if logged is None or recipe.control is not None:  # not of shaped rewards
            logged = mean_return(evidence.rows(dropped)[0])
    else:
        logged = behavior_value(base)
        if logged is None and evidence.log is not None and not evidence.cut:
            logged = mean_return(evidence.log)  # its sums are tables from outside of the package
    n, error, method, note = used.n_episodes, solution.standard_error, solution.error_method, ""
    finite(solution.value)
    if error is not None and not np.isfinite(error):
        error, method = None, OVERFLOW
    if n < 2:
        error, method = None, "one episode has no spread"
    elif error is not None and base.about.behavior != "logged":
        note = ", taking the estimated behaviour for the truth"
    gates = measured(
        "solution",
        Context(
            used,
            recipe,
            solution,
            data=base if evidence.log is None else evidence.rows(dropped)[0],
            error=error,
            within_rewards=evidence.within_rewards,
        ),
    )
    grounds = Grounds(
        evidence,
        recipe,
        dropped,
        value=solution.value,
        behavior_value=logged,
        n_episodes=n,
        worst_ess=None if np.all(np.isnan(solution.ess)) else float(np.nanmin(solution.ess)),
        error=error,
        error_method=method,
        freedom=freedom_of(recipe, solution, n, evidence.log is not None),
        note=note,
        psi=None if recipe.control is not None else solution.influence,
    )
    return Estimate(
        value=solution.value,
        standard_error=error,
        error_method=method + note,
        recipe=recipe,
        n_episodes=n,
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
        grounds=grounds,
        gates=gates,
        warnings=(
            *(_left_out(evidence) if dropped else ()),
            *solution.warnings,
            *remarks(solution, used, gates),
            *evidence.remarks,
            *(_pools_steps(recipe) if base.about.target_has_steps else ()),
        ),
    )


def _left_out(evidence: Evidence) -> list[Warning]:
    log = evidence.log
    assert log is not None
    return [
        SelectionWarning(
            f"{log.n_truncated:,} of {log.n_episodes:,} episodes were cut off and left out; if "
            "being cut off has to do with the outcome, the estimate is biased"
        )
    ]


def _pools_steps(recipe: Recipe) -> list[Warning]:
    """What is said where the target depends on the step."""
    if not recipe.weights.pools_steps:
        return []
    return [
        StationaryWarning(
            "the target depends on the step, and this estimator pools all steps: it answers for a "
            "mixture of them. Use mis()"
        )
    ]


def _marginals(solution: Solution, used: Moments) -> Marginals | None:
    if solution.by_node is None:
        return None
    return Marginals(solution.by_node, used.states, used.about.horizon)
