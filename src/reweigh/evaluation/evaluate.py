"""evaluate(): from a log (or its sums), a target and a recipe to an Estimate."""

from __future__ import annotations

import warnings as python_warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, overload

import numpy as np

from reweigh.errors import (
    MOST_BLOCKS,
    InputWarning,
    RefusedError,
    UsageError,
    check_whole,
    hints,
    must_be,
)
from reweigh.estimate import presets
from reweigh.estimate.estimator import Recipe
from reweigh.estimate.influence import refuse_weights
from reweigh.estimate.presets import Estimators, MemoryChoice, as_recipe, estimator_list
from reweigh.estimate.refusals import overflow
from reweigh.estimate.standard_error import OVERFLOW
from reweigh.evaluation.data import (
    LogData,
    RowsData,
    SumsData,
    Truncated,
    check_target,
    left_out,
    pools_steps,
    with_gates,
)
from reweigh.evaluation.evaluations import Evaluations
from reweigh.evaluation.result import Diagnostics, Estimate, Marginals, Refusal
from reweigh.evaluation.solved import solve
from reweigh.evaluation.uncertainty import EstimateUncertainty
from reweigh.log.log import EpisodeLog
from reweigh.policy import Policy, refuse_stateless
from reweigh.sums.engines import ArraysEngine, Request, mean_return
from reweigh.sums.moments import Moments
from reweigh.sums.read import ScannedLog
from reweigh.sums.tables import Table
from reweigh.system.process import each, require_steps
from reweigh.trust.gates import Context, measured, remarks, unanswerable, unlogged_actions

Data = EpisodeLog | ScannedLog | Moments
AUTO = "auto"
OTHER_ARGUMENTS = ("data", "target", "estimator", "truncated", "reward_range")
Range = tuple[float, float]
Answer = TypeVar("Answer")


@overload
def evaluate(
    data: Any,
    target: Any = None,
    estimator: Recipe | str | None = None,
    *,
    truncated: Truncated = "refuse",
    reward_range: Range | None = None,
    **reading: Any,
) -> Estimate: ...


@overload
def evaluate(
    data: Any,
    target: Any,
    estimator: Sequence[Recipe | str],
    *,
    truncated: Truncated = "refuse",
    reward_range: Range | None = None,
    **reading: Any,
) -> Evaluations: ...


def evaluate(
    data: Any,
    target: Any = None,
    estimator: Estimators | None = None,
    *,
    truncated: Truncated = "refuse",
    reward_range: Range | None = None,
    **reading: Any,
) -> Estimate | Evaluations:
    """Estimate what `target` would have earned on average per episode.

    `data` is a log, or moments (which include their target); or the path or the frame of a log,
    which is read with the arguments of `read_log`: `evaluate("log.csv", "policy.csv",
    state="ward")`. `target` is a policy, or what makes one: a path or a frame with the columns
    state, action, prob; {state: {action: prob}}; an (S, A) or (H, S, A) array; or a function
    f(state, action, step). Without one, the column `target_prob` is the target if it is named.

    Without an `estimator` it is "auto", which chooses by a rule that never looks at the size of an
    error (`evaluation/auto.py`): `Estimate.chosen` has the reason, `Estimate.beside` the paper's
    `mis()`, and `wis()`. Several give `Evaluations`, see `evaluate_all`. Estimators with running
    products refuse logs with cut-off episodes unless `truncated="drop"` leaves these out, with a
    warning.

    `reward_range` is the smallest and the largest reward that can occur: intervals keep within what
    it allows, and the gate "unseen events" says how far an event that the log has not seen could
    move the value. A logged reward outside of it is refused.
    """
    from reweigh.evaluation.inputs import data_of, target_of

    data = data_of(data, reading, OTHER_ARGUMENTS)
    target = target_of(target, data, reading)
    if estimator is None:
        from reweigh.evaluation.beside import DEFAULT, with_paper

        result = with_paper(_evaluate_all(data, target, DEFAULT, truncated, reward_range))[0]
    else:
        results = _evaluate_all(data, target, estimator, truncated, reward_range)
        if not isinstance(estimator, Recipe | str):
            return results
        [result] = results
    if isinstance(result, Refusal):
        raise result.error
    for warning in result.warnings:
        python_warnings.warn(warning, stacklevel=2)
    return result


@hints
def evaluate_all(
    data: Data,
    target: Policy | None,
    estimators: Estimators,
    *,
    truncated: Truncated = "refuse",
    reward_range: Range | None = None,
) -> Evaluations:
    """Several estimators on one log, or one; one that refuses is a Refusal in the sequence. So is
    one whose value the logged rewards do not allow (`trust/gates/support.py`)."""
    return _evaluate_all(data, target, estimators, truncated, reward_range)


def evaluate_in_study(
    data: Data, target: Policy | None, estimators: Estimators, reward_range: Range | None = None
) -> Evaluations:
    """The same without checking the range that the rewards allow: a study of an estimator's errors
    must not lose the largest of them."""
    return _evaluate_all(data, target, estimators, "refuse", reward_range, within_rewards=False)


def _evaluate_all(
    data: Data,
    target: Policy | None,
    estimators: Estimators,
    truncated: Truncated,
    reward_range: Range | None = None,
    *,
    within_rewards: bool = True,
) -> Evaluations:
    _check_truncated(truncated)
    listed = estimator_list(estimators)
    if AUTO in listed:
        from reweigh.evaluation.auto import evaluate_chosen

        every = partial(
            _evaluate_all,
            truncated=truncated,
            reward_range=reward_range,
            within_rewards=within_rewards,
        )
        for_choice = partial(_evaluate_all, truncated=truncated, within_rewards=False)
        return evaluate_chosen(data, target, listed, for_choice, every)
    recipes = [as_recipe(estimator) for estimator in listed]
    if any(isinstance(recipe.weights, MemoryChoice) for recipe in recipes):
        return _with_memories(data, target, recipes, truncated, reward_range, within_rewards)
    of_recipes = _log_data(data, target, recipes, truncated)
    if reward_range is not None and of_recipes:
        from reweigh.evaluation.inputs import checked_range

        reward_range = checked_range(reward_range, of_recipes[0])

    def result(k: int) -> Estimate | Refusal:
        of_recipes[k].within_rewards = within_rewards
        of_recipes[k].reward_range = reward_range
        return _try(of_recipes[k], recipes[k], _estimate)

    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused by name
        results = each("estimators", range(len(recipes)), result)
    for log_data in of_recipes[:1]:
        log_data.forget_rows()
    return Evaluations(tuple(results))


def _log_data(
    data: Data, target: Policy | None, recipes: list[Recipe], truncated: Truncated
) -> Sequence[LogData]:
    """The data of each estimator. All share the rows, or the sums that they
    need; of a scanned log each has its own, and all share the second scan."""
    if isinstance(data, Moments):
        return [SumsData.of(data, target)] * len(recipes)
    target = check_target(target)
    refuse_stateless(data, target)
    if not isinstance(data, ScannedLog):
        rows = RowsData.of(data, target, recipes, truncated)
        rows.unanswerable = unanswerable(data, target)
        rows.warnings = unlogged_actions(data, target)
        return [rows] * len(recipes)
    from reweigh.evaluation.scans import SampledInfluence, ScanInfluence, scanned_sums
    from reweigh.sums.engines.second_scan import can_scan_again

    if truncated == "drop":
        raise UsageError("truncated='drop' needs the log in memory: read it with engine='arrays'")
    of_recipes = [SumsData.of(sums, target) for sums in scanned_sums(data, target, recipes)]
    scan = ScanInfluence(data, target) if can_scan_again(data) else None
    sample = SampledInfluence(data, target) if scan is None else scan
    for recipe, log_data in zip(recipes, of_recipes, strict=True):
        log_data.scanned, log_data.influences, log_data.sampled = data, scan, sample
        if scan is not None and data.reading.columns.cluster is not None:
            with suppress(RefusedError):  # errors by cluster take the scan: one for all of them
                log_data.drops_cut_ones(recipe)
                scan.sums[recipe] = solve(log_data, recipe, False).base
    return of_recipes


def _check_truncated(truncated: str) -> None:
    if truncated not in ("refuse", "drop"):
        raise must_be("truncated", '"refuse" or "drop"', truncated)


def _with_memories(
    data: Data,
    target: Policy | None,
    recipes: list[Recipe],
    truncated: Truncated,
    reward_range: Range | None,
    within_rewards: bool,
) -> Evaluations:
    """The same where the memory of some of them is chosen: all candidates are evaluated, so that
    they share the rows and each other's errors."""
    from reweigh.evaluation.memories import choose, expanded

    places = expanded(recipes, data)
    every: list[Recipe] = []
    parts = []
    for place, recipe in enumerate(recipes):
        these = places.get(place, [recipe])
        parts.append(slice(len(every), len(every) + len(these)))
        every += these
    results = _evaluate_all(
        data, target, every, truncated, reward_range, within_rewards=within_rewards
    )
    chosen = (
        choose(every[part], results[part]) if place in places else results[part.start]
        for place, part in enumerate(parts)
    )
    return Evaluations(tuple(chosen))


def point_values(
    log: EpisodeLog,
    target: Policy,
    estimators: Estimators,
    *,
    truncated: Truncated = "refuse",
) -> list[float | Refusal]:
    """The values alone, without errors and diagnostics: for simulation studies, and to screen many
    policies. They do not show whether they are reliable: use `evaluate` for decisions.

    As in `evaluate_all`, an estimator that refuses is a Refusal in the list, and `truncated="drop"`
    leaves cut-off episodes out where an estimator needs whole ones.

    An estimator's value does not depend, to the last bit, on the other estimators: each is solved
    separately, and sums are split into the same two blocks for all of them.
    """
    _check_truncated(truncated)
    if isinstance(log, ScannedLog | Moments):
        raise UsageError(
            "point_values needs the log in memory (engine='arrays'); evaluate_all also takes "
            "scanned logs and moments"
        )
    recipes = [as_recipe(estimator) for estimator in estimator_list(estimators)]
    data = RowsData.of(log, check_target(target), recipes, truncated)
    data.errors, data.unanswerable = False, unanswerable(log, target)
    data.requests = {ratio: replace(need, blocks=2) for ratio, need in data.requests.items()}
    with np.errstate(over="ignore", invalid="ignore"):
        values = [_try(data, recipe, _value) for recipe in recipes]
    data.forget_rows()
    return values


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

    Without `estimators` all kinds of sums are made that the log allows, but those of windows, which
    `mis(memory=k)` needs (`mis-hajek` too): name these, or "auto" for all that its choice takes.
    `blocks` splits the episodes by the hash of their ids, for the jackknife (10 or more), for split
    (an even number) and cross-fit (a multiple of 5). `gates=False` leaves out what only the gates
    of a verdict read, which are then not checked. `tables` are your own sums (`reweigh.Table`);
    they come back by name, as `moments.tables`.
    """
    blocks = check_whole("blocks", blocks, 1, MOST_BLOCKS)
    check_target(target)
    presets.is_(max_ratio=max_ratio)  # checks max_ratio
    kinds = frozenset({"transitions", "model", "trajectories"})
    request = Request(kinds, blocks, max_ratio, policy=True)
    if estimators is not None:
        request, listed = Request(frozenset(), blocks, max_ratio), estimator_list(estimators)
        if AUTO in listed:
            from reweigh.evaluation.auto import candidates

            listed = [*(one for one in listed if one != AUTO), *candidates()]
        for recipe in _each_memory(map(as_recipe, listed), log):
            wanted = recipe.needs
            if recipe.control is not None and recipe.uses_trajectories:
                raise UsageError(f"{recipe.name} needs the log itself, not moments")
            if not recipe.weights.uses_ratios:
                wanted = replace(wanted, max_ratio=request.max_ratio)  # it uses no ratio
            elif request.max_ratio is None and not request.kinds:
                request = replace(request, max_ratio=wanted.max_ratio)
            if wanted.max_ratio != request.max_ratio:
                raise UsageError("moments have one max_ratio; make separate moments for each")
            request |= wanted
    if gates:
        request = with_gates(request)
    request = replace(request, tables=(*request.tables, *tables))
    if isinstance(log, EpisodeLog):
        refuse_weights(log, "moments")
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


def _each_memory(recipes: Iterable[Recipe], log: EpisodeLog | ScannedLog) -> list[Recipe]:
    """With all candidates in place of one whose memory is to be chosen."""
    listed = list(recipes)
    if not any(isinstance(recipe.weights, MemoryChoice) for recipe in listed):
        return listed
    from reweigh.evaluation.memories import expanded

    places = expanded(listed, log)
    return [each for place, one in enumerate(listed) for each in places.get(place, [one])]


def _try(
    data: LogData, recipe: Recipe, answer: Callable[[LogData, Recipe], Answer]
) -> Answer | Refusal:
    try:
        if data.unanswerable is not None:
            raise data.unanswerable
        presets.refuse_without(recipe, has_states=data.has_states)
        return answer(data, recipe)
    except RefusedError as error:
        return Refusal(recipe, error, *data.size)


def _value(data: LogData, recipe: Recipe) -> float:
    return _finite(solve(data, recipe, data.drops_cut_ones(recipe)).solution.value)


def _finite(value: float) -> float:
    if not np.isfinite(value):
        raise overflow()
    return value


def _estimate(data: LogData, recipe: Recipe) -> Estimate:
    dropped = data.drops_cut_ones(recipe)
    solved = solve(data, recipe, dropped)
    solution, used, base = solved.solution, solved.used, solved.base
    n, error, method, note = used.n_episodes, solution.standard_error, solution.error_method, ""
    kind: type[EstimateUncertainty] = EstimateUncertainty
    _finite(solution.value)
    if error is not None and not np.isfinite(error):
        error, method = None, OVERFLOW
    if n < 2:
        error, method = None, "one episode shows no variation"
    elif error is not None and base.about.behavior != "logged":
        from reweigh.evaluation.fitted import of_fitted

        kind, note = of_fitted(data, recipe, dropped)
    known = {"n_episodes": n, "error": error, "error_method": method, "note": note}
    logged = solved.behavior_value
    if logged is None and data.log is not None and not data.log.n_truncated:
        logged = mean_return(data.log)  # the sums are tables from outside of the package
    if isinstance(data, SumsData) and data.sampled is not None:
        data.sampled.sums[recipe] = base
    nodes, about = solution.by_node, base.about
    weighted = data.log is not None and data.log.columns.weight
    if about.cluster is not None or weighted:
        from reweigh.evaluation.clustered import ClusteredUncertainty as kind
    sure = kind.of(data, recipe, solution, dropped, behavior_value=logged, **known)
    context = Context(used, recipe, solution, data=data.log_used(dropped) or base, error=sure.error)
    gates = measured("solution", replace(context, within_rewards=data.within_rewards))
    if weighted and isinstance(data, RowsData):
        from reweigh.evaluation.clustered import counted_gates

        gates = counted_gates(data, recipe, dropped, sure.error, gates)
    return Estimate(
        value=solution.value,
        standard_error=sure.error,
        error_method=sure.error_method + sure.note,
        recipe=recipe,
        n_episodes=n,
        horizon=about.horizon,
        discount=about.discount,
        behavior_value=logged,
        per_step=solution.per_step,
        marginals=None if nodes is None else Marginals(nodes, used.states, about.horizon),
        diagnostics=Diagnostics(
            ess=solution.ess,
            unseen_mass=solution.unseen_mass,
            placebo=solution.placebo,
            placebo_error=solution.placebo_error,
            rare_mass=solution.rare_mass,
            placebo_expected=float(np.sum(about.discount ** np.arange(about.horizon))),
            total_mass=solution.total_mass,
            variance_by_step=solution.variance_by_step,
        ),
        uncertainty=sure,
        gates=gates,
        warnings=(
            *(left_out(data.log) if dropped else ()),
            *solution.warnings,
            *remarks(solution, used, gates),
            *data.warnings,
            *(pools_steps(recipe) if about.target_has_steps else ()),
        ),
    )
