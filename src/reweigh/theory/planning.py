"""plan(): how many episodes would be enough, and which of them would help.

With σ² the variance of √n times an estimate (n SE² of a pilot, or exact on a known world):

    a half-width h at level 1 - α needs       n = σ² (z_{1-α/2}/h)²
    a difference δ, two-sided, power 1 - β    n = σ_D² (z_{1-α/2} + z_{1-β})²/δ²

where σ_D² is the variance of ψ_target - ψ_behavior: both values come from the same episodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from numbers import Real

import numpy as np

from reweigh.errors import (
    InputWarning,
    LowOverlapWarning,
    RefusedError,
    SmallSampleWarning,
    UsageError,
    check,
    check_fraction,
)
from reweigh.estimate import presets
from reweigh.estimate.estimator import Recipe
from reweigh.estimate.influence import (
    behavior_parts,
    behavior_values,
    has_parts,
    influence_parts,
    influence_values,
    refuse_weights,
)
from reweigh.estimate.standard_error import nothing_left
from reweigh.evaluation.data import check_target
from reweigh.evaluation.evaluate import evaluate_all
from reweigh.evaluation.result import Estimate, Refusal
from reweigh.evaluation.scans import scanned_sums
from reweigh.log.log import EpisodeLog
from reweigh.policy import Policy
from reweigh.sums.moments import Moments
from reweigh.sums.read import ScannedLog
from reweigh.system import number
from reweigh.theory.exact import decomposition, quantities, spread
from reweigh.theory.plan_result import Goal, Need, Plan
from reweigh.trust.breakdown import Decomposition, from_parts, from_solution
from reweigh.trust.gates import FEW_EPISODES, LIMITS
from reweigh.worlds.tabular import TabularMDP

FEW_WEIGHTS = 100  # effective episodes below which running products have not shown their tail
FEW_EFFECTIVE = LIMITS["effective size"].red or 0.0
MUCH_RARE = LIMITS["rare states"].red or 0.0
Answer = tuple[Need, Decomposition | None]  # its episodes, and its variance by state


def plan(
    source: EpisodeLog | ScannedLog | Moments | TabularMDP,
    target: Policy | None = None,
    *,
    half_width: float | None = None,
    difference: float | None = None,
    power: float = 0.8,
    level: float = 0.95,
    estimators: presets.Estimators = ("mis", "is"),
) -> Plan:
    """How many episodes until the interval of an estimate has this half-width, or until a
    difference of this size between target and behavior is found with this power.

    `source` is a pilot log with its target, moments (for a half-width), or a world, which needs
    neither a log nor a target. An estimator that refuses has the reason in its row.
    """
    goal = as_goal(half_width, difference, power, level)
    recipes = _recipes(estimators)
    if isinstance(source, TabularMDP):
        if target is not None:
            raise UsageError("a world has its own target: give none, or build the world with it")
        return _from_world(source, goal, recipes)
    if isinstance(source, ScannedLog):
        source, target = _scanned(source, check_target(target), recipes), None
    check(
        isinstance(source, EpisodeLog | Moments),
        "source",
        "a pilot log, moments or a TabularMDP",
        type(source).__name__,
    )
    if isinstance(source, Moments) and goal.difference is not None:
        raise RefusedError(
            "needs-log",
            "a difference needs the values of target and behavior for each episode, but "
            "moments contain only sums: plan on the log itself, or ask for a half_width",
        )
    return _from_pilot(source, target, goal, recipes)


def _scanned(log: ScannedLog, target: Policy, recipes: list[Recipe]) -> Moments:
    """The sums of a log that is not in memory, for all estimators at once."""
    if len({recipe.max_ratio for recipe in recipes}) > 1:
        raise UsageError("on a scanned log, plan for estimators of one max_ratio at a time")
    sums = scanned_sums(log, target, recipes)
    # those with products by blocks, if any are: from them WIS has its error
    return max(sums, key=lambda moments: moments.about.blocks)


def as_goal(half_width: float | None, difference: float | None, power: float, level: float) -> Goal:
    """The goal that the arguments of `plan` make, checked."""
    if (half_width is None) == (difference is None):
        raise UsageError("give the goal of the plan: half_width or difference (one of them)")
    level = check_fraction("level", level)
    rule = "a number between 1 - level, which chance has, and 1"
    power = check_fraction("power", power, rule)
    check(difference is None or power > 1 - level, "power", rule, power)
    for name, size in (("half_width", half_width), ("difference", difference)):
        numeric = isinstance(size, Real) and not isinstance(size, bool)
        check(size is None or (numeric and 0 < size < math.inf), name, "a positive number", size)
    if half_width is not None:
        return Goal(level, half_width=float(half_width))
    assert difference is not None
    return Goal(level, difference=float(difference), power=power)


def _recipes(estimators: presets.Estimators) -> list[Recipe]:
    listed = presets.estimator_list(estimators)
    check(listed, "estimators", "at least one estimator", estimators)
    recipes: dict[str, Recipe] = {}
    for estimator in listed:
        check(
            isinstance(estimator, Recipe | str),
            "estimators",
            "made of names and recipes such as mis()",
            estimator,
        )
        recipe = presets.as_recipe(estimator)
        check(recipe.name not in recipes, "estimators", "a list without repetitions", recipe.name)
        recipes[recipe.name] = recipe
    return list(recipes.values())


@np.errstate(over="ignore", invalid="ignore")  # what overflows is refused by name
def _from_world(world: TabularMDP, goal: Goal, recipes: list[Recipe]) -> Plan:
    q, difference = quantities(world), goal.difference is not None

    def exactly(recipe: Recipe) -> Answer:
        if recipe.max_ratio is not None:
            raise RefusedError(
                "max-ratio", "clipped ratios have a bias that the exact variance does not include"
            )
        exact = spread(q, recipe.name, difference=difference)
        need = Need(
            recipe.name,
            variance=_checked(exact.total, q.value),
            episodes=goal.episodes(exact.total),
            value=q.value,
            difference=q.value - q.behavior_value,
        )
        return need, decomposition(recipe.name, q, exact, difference=difference)

    answers = {recipe.name: partial(exactly, recipe) for recipe in recipes}
    return _planned(goal, answers, "world", None, q.horizon, [])


@np.errstate(over="ignore", invalid="ignore")
def _from_pilot(
    pilot: EpisodeLog | Moments, target: Policy | None, goal: Goal, recipes: list[Recipe]
) -> Plan:
    if isinstance(pilot, EpisodeLog):
        refuse_weights(pilot, "a plan")
    columns = pilot.columns if isinstance(pilot, EpisodeLog) else pilot.about
    if columns.cluster is not None:
        raise RefusedError(
            "clusters",
            f"a plan counts independent episodes, and those of a cluster ({columns.cluster}) are "
            "not: more episodes of the same clusters help little. Log more clusters; by how much "
            "an interval narrows with G of them goes with 1/√G",
        )
    results, n = evaluate_all(pilot, target, recipes), pilot.n_episodes

    def estimated(result: Estimate | Refusal) -> Answer:
        if isinstance(result, Refusal):
            raise result.error
        variance, part = _pilot_variance(pilot, target, goal, result)
        behavior = result.behavior_value
        need = Need(
            result.estimator,
            episodes=goal.episodes(variance),
            variance=variance,
            value=result.value,
            difference=None if behavior is None else result.value - behavior,
            now=goal.reached(variance, n),
            ess=result.diagnostics.worst_ess,
            # the plan itself warns of a small pilot
            warnings=tuple(w for w in result.warnings if not isinstance(w, SmallSampleWarning)),
        )
        return _with_low_weights(need, result), part

    warnings: list[Warning] = []
    if n < FEW_EPISODES:
        warnings.append(
            SmallSampleWarning(
                f"the pilot has {n} episodes: with fewer than {FEW_EPISODES} its variances, "
                "and so this plan, are rough"
            )
        )
    sources = (r.moments.about.behavior for r in results if isinstance(r, Estimate))
    behavior = next(sources, "logged")
    if behavior != "logged":
        warnings.append(
            InputWarning(
                f"behavior probabilities: {behavior}; the plan ignores that they were estimated"
            )
        )
    answers = {result.estimator: partial(estimated, result) for result in results}
    kind = "log" if isinstance(pilot, EpisodeLog) else "moments"
    return _planned(goal, answers, kind, n, results[0].horizon, warnings)


def _pilot_variance(
    pilot: EpisodeLog | Moments, target: Policy | None, goal: Goal, estimate: Estimate
) -> tuple[float, Decomposition | None]:
    """σ² of one estimator, and its parts where states own them. Per episode of the pilot, also
    where an estimator sums over a half of them only."""
    recipe, n, states = estimate.recipe, pilot.n_episodes, estimate.moments.states
    if estimate.standard_error is None:
        raise RefusedError(
            "no-error", (f"the pilot gives no standard error: {estimate.error_method}")
        )
    if goal.difference is None:
        variance = n * estimate.standard_error * estimate.standard_error
        part = None
        if recipe.control is None and recipe.weights.has_operator:
            solution = recipe.weights.solve(recipe, estimate.moments)
            part = from_solution(recipe.name, solution, states, n)
        return _checked(variance, estimate.value), part
    assert isinstance(pilot, EpisodeLog)
    assert target is not None
    if estimate.behavior_value is None:
        raise RefusedError("behavior", "the behavior's value cannot be computed")
    if not has_parts(recipe):
        psi = influence_values(pilot, target, recipe) - behavior_values(pilot)
        return _checked(float(np.mean(psi**2)), estimate.value), None
    parts = influence_parts(pilot, target, recipe).minus(behavior_parts(pilot))
    variance = _checked(float(np.mean(parts.values() ** 2)), estimate.value)
    return variance, from_parts(recipe.name, parts, states, pilot.horizon)


def _checked(variance: float, value: float) -> float:
    if not math.isfinite(variance):
        raise RefusedError("overflow", "the variance overflows floating point")
    if nothing_left(math.sqrt(variance), value):
        raise RefusedError("no-variance", "the variance is 0: any number of episodes is enough")
    return variance


def _with_low_weights(need: Need, estimate: Estimate) -> Need:
    """A pilot whose weights are heavy has not seen the heaviest: its variance is too small."""
    products = estimate.recipe.uses_trajectories
    if need.ess is None or need.ess >= (FEW_WEIGHTS if products else FEW_EFFECTIVE):
        return need
    how = "usually far too low" if products else "more likely too low than too high"
    warning = LowOverlapWarning(
        f"the effective sample size is {need.ess:.1f} of {estimate.n_episodes:,} episodes, "
        "so the log hardly contains the heaviest weights: the variance, and so the number of "
        f"episodes, is {how}"
    )
    return replace(need, warnings=(*need.warnings, warning))


def _planned(
    goal: Goal,
    answers: Mapping[str, Callable[[], Answer]],
    source: str,
    pilot: int | None,
    horizon: int,
    warnings: list[Warning],
) -> Plan:
    """The plan of every estimator, or the reason for its refusal. It is made on the log as it is;
    cut-off episodes are left out before."""
    needs: list[Need] = []
    parts: dict[str, Decomposition] = {}
    for estimator, answer in answers.items():
        try:
            need, part = answer()
        except RefusedError as error:
            reason = error.reason.replace("truncated='drop'", "log.drop_truncated()")
            need, part = Need(estimator, refused=RefusedError(error.code, reason)), None
        needs.append(need)
        parts |= {} if part is None else {estimator: part}
    answered = {need.estimator: need for need in needs if need.refused is None}
    if not answered:
        reasons = [f"{need.estimator}: {need.refused}" for need in needs]
        code = "refused" if needs[0].refused is None else needs[0].refused.code
        raise RefusedError(code, "\n  ".join(["no estimator has a plan", *reasons]))
    base = answered.get("mis", next(iter(answered.values())))
    origin = parts.get(base.estimator, next(iter(parts.values()), None))
    beside = tuple(_beside(need, base) for need in needs)
    warnings = [*warnings, *_about_the_goal(goal, base, origin)]
    return Plan(goal, beside, base.estimator, source, pilot, horizon, origin, tuple(warnings))


def _beside(need: Need, base: Need) -> Need:
    """With its episodes as a multiple of the reference's, and a warning where they are few."""
    if need.variance is None or need.episodes is None or base.variance is None:
        return need
    few = SmallSampleWarning(
        f"the formula gives {need.episodes} episodes, but it is not reliable below {FEW_EPISODES}"
    )
    warnings = need.warnings if need.episodes >= FEW_EPISODES else (*need.warnings, few)
    return replace(need, times=need.variance / base.variance, warnings=warnings)


def _about_the_goal(goal: Goal, base: Need, part: Decomposition | None) -> Iterator[Warning]:
    assert base.episodes is not None
    rare = 0.0 if part is None else part.rare_mass(base.episodes)
    if rare > MUCH_RARE:
        yield SmallSampleWarning(
            f"with {base.episodes:,} episodes, {rare:.0%} of the target's mass would be seen "
            "fewer than 10 times at its step: too few for the formula. Log more, or use "
            "coarser states"
        )
    if goal.half_width is not None and base.value is not None and goal.half_width > abs(base.value):
        yield InputWarning(
            f"the half-width {number(goal.half_width)} is larger than the value "
            f"{number(base.value)}"
        )
