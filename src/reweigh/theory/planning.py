"""plan(): how many episodes would be enough, and which of them would help.

With σ² the variance of √n times an estimate (n SE² of a pilot, or exact on a known world):

    a half-width h at level 1 - α needs       n = σ² (z_{1-α/2}/h)²
    a difference δ, two-sided, power 1 - β    n = σ_D² (z_{1-α/2} + z_{1-β})²/δ²

where σ_D² is the variance of ψ_target - ψ_behaviour: both values come from the same episodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from numbers import Real

import numpy as np
import numpy.typing as npt

from reweigh.errors import (
    InputWarning,
    LowOverlapWarning,
    RefusedError,
    SmallSampleWarning,
    UsageError,
    check_fraction,
    must_be,
)
from reweigh.estimate import presets
from reweigh.estimate.estimator import Recipe
from reweigh.estimate.influence import (
    behavior_parts,
    behavior_values,
    has_parts,
    influence_parts,
    influence_values,
)
from reweigh.estimate.standard_error import nothing_left
from reweigh.evaluation.data import check_target, scanned_sums
from reweigh.evaluation.evaluate import evaluate_all
from reweigh.evaluation.result import Estimate, Refusal
from reweigh.log.log import EpisodeLog
from reweigh.policy.base import Policy
from reweigh.sums.moments import Moments
from reweigh.sums.read import ScannedLog
from reweigh.system.numbers import number
from reweigh.theory.exact import decomposition, quantities, spread
from reweigh.theory.plan_result import Goal, Need, Plan
from reweigh.trust.diagnostics import FEW_EPISODES
from reweigh.trust.gates import LIMITS
from reweigh.trust.variance_parts import Decomposition, from_parts, from_solution
from reweigh.worlds.tabular import TabularMDP

FEW_WEIGHTS = 100  # effective episodes below which running products have not shown their tail
FEW_EFFECTIVE = LIMITS["effective size"].red or 0.0
MUCH_RARE = LIMITS["rare states"].red or 0.0


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
    difference of this size between target and behaviour is found with this power.

    `source` is a pilot log with its target, moments (for a half-width), or a world, which needs
    neither a log nor a target. An estimator that cannot answer says why in its row.
    """
    goal = as_goal(half_width, difference, power, level)
    recipes = _recipes(estimators)
    if isinstance(source, TabularMDP):
        if target is not None:
            raise UsageError("a world knows its target: give none, or build the world with it")
        return _from_world(source, goal, recipes)
    if isinstance(source, ScannedLog):
        source, target = _scanned(source, check_target(target), recipes), None
    if not isinstance(source, EpisodeLog | Moments):
        raise must_be("source", "a pilot log, moments or a TabularMDP", type(source).__name__)
    if isinstance(source, Moments) and goal.difference is not None:
        raise RefusedError(
            "needs-log",
            "a difference needs the values of target and behaviour episode by episode, and "
            "moments hold only sums: plan on the log itself, or ask for a half_width",
        )
    return _from_pilot(source, target, goal, recipes)


def _scanned(log: ScannedLog, target: Policy, recipes: list[Recipe]) -> Moments:
    """The sums of a log that is not in memory, for all estimators at once."""
    if len({recipe.max_ratio for recipe in recipes}) > 1:
        raise UsageError("plan for estimators of one max_ratio at a time on a log that is scanned")
    sums = scanned_sums(log, target, recipes)
    # those with products by blocks, if any are: from them WIS has its error
    return max(sums, key=lambda found: found.about.blocks)


def as_goal(half_width: float | None, difference: float | None, power: float, level: float) -> Goal:
    """The goal that the arguments of `plan` make, checked."""
    if (half_width is None) == (difference is None):
        raise UsageError("say what the episodes must be enough for: half_width or difference, "
                         "one of them")  # fmt: skip
    level = check_fraction("level", level)
    rule = "a number between 1 - level, which chance has, and 1"
    power = check_fraction("power", power, rule)
    if difference is not None and power <= 1 - level:
        raise must_be("power", rule, power)
    for name, size in (("half_width", half_width), ("difference", difference)):
        numeric = isinstance(size, Real) and not isinstance(size, bool)
        if size is not None and not (numeric and 0 < size < math.inf):
            raise must_be(name, "a positive number", size)
    if half_width is not None:
        return Goal(level, half_width=float(half_width))
    assert difference is not None
    return Goal(level, difference=float(difference), power=power)


def _recipes(estimators: presets.Estimators) -> list[Recipe]:
    listed = presets.estimator_list(estimators)
    if not listed:
        raise must_be("estimators", "at least one estimator", estimators)
    recipes: list[Recipe] = []
    for estimator in listed:
        if not isinstance(estimator, Recipe | str):
            raise must_be("estimators", "made of names and recipes such as mis()", estimator)
        found = presets.estimator(estimator) if isinstance(estimator, str) else estimator
        if any(found.name == other.name for other in recipes):
            raise must_be("estimators", "a list without repetitions", found.name)
        recipes.append(found)
    return recipes


def _from_world(world: TabularMDP, goal: Goal, recipes: list[Recipe]) -> Plan:
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused by name
        q = quantities(world)
    difference = goal.difference is not None

    def exactly(recipe: Recipe) -> tuple[Need, Decomposition | None]:
        if recipe.max_ratio is not None:
            raise RefusedError(
                "max-ratio", "clipped ratios have a bias that no exact variance speaks of"
            )
        name = recipe.name
        with np.errstate(over="ignore", invalid="ignore"):
            exact = spread(q, name, difference=difference)
        _refuse_nothing(exact.total, q.value)
        need = Need(
            name,
            episodes=goal.episodes(exact.total),
            variance=exact.total,
            value=q.value,
            difference=q.value - q.behavior_value,
        )
        return need, decomposition(name, q, exact, difference=difference)

    needs = [_tried(recipe.name, partial(exactly, recipe)) for recipe in recipes]
    return _finished(goal, needs, "world", None, q.horizon, [])


def _from_pilot(
    pilot: EpisodeLog | Moments, target: Policy | None, goal: Goal, recipes: list[Recipe]
) -> Plan:
    results, n = evaluate_all(pilot, target, recipes), pilot.n_episodes

    def estimated(result: Estimate | Refusal) -> tuple[Need, Decomposition | None]:
        if isinstance(result, Refusal):
            raise result.error
        variance, part = _pilot_variance(pilot, target, goal, result)
        return _need(goal, result, variance, n), part

    needs = [_tried(result.estimator, partial(estimated, result)) for result in results]
    remarks: list[Warning] = []
    if n < FEW_EPISODES:
        remarks.append(
            SmallSampleWarning(
                f"the pilot has {n} episodes: below {FEW_EPISODES} its variances, and so this "
                "plan, are rough"
            )
        )
    behavior = next(
        (r.moments.about.behavior for r in results if isinstance(r, Estimate)), "logged"
    )
    if behavior != "logged":
        remarks.append(
            InputWarning(f"behaviour probabilities: {behavior}; the plan takes them for the truth")
        )
    kind = "log" if isinstance(pilot, EpisodeLog) else "moments"
    return _finished(goal, needs, kind, n, results[0].horizon, remarks)


def _tried(
    estimator: str, need: Callable[[], tuple[Need, Decomposition | None]]
) -> tuple[Need, Decomposition | None]:
    """What an estimator needs and where its variance comes from, or why it cannot answer. A plan is
    made on the log as it is; cut-off episodes are left out before."""
    try:
        return need()
    except RefusedError as error:
        reason = error.reason.replace("truncated='drop'", "log.drop_truncated()")
        return Need(estimator, refused=RefusedError(error.code, reason)), None


def _need(goal: Goal, estimate: Estimate, variance: float, n: int) -> Need:
    difference = None
    if estimate.behavior_value is not None:
        difference = estimate.value - estimate.behavior_value
    need = Need(
        estimate.estimator,
        episodes=goal.episodes(variance),
        variance=variance,
        value=estimate.value,
        difference=difference,
        now=goal.reached(variance, n),
        ess=estimate.diagnostics.worst_ess,
    )
    # the plan itself tells of a small pilot
    own = [w for w in estimate.warnings if not isinstance(w, SmallSampleWarning)]
    return replace(need, warnings=(*own, *_low_weights(estimate, need)))


def _pilot_variance(
    pilot: EpisodeLog | Moments, target: Policy | None, goal: Goal, estimate: Estimate
) -> tuple[float, Decomposition | None]:
    """σ² of one estimator, and its parts where states own them. Per episode of the pilot, also
    where an estimator sums over a half of them only."""
    recipe, n = estimate.recipe, pilot.n_episodes
    if estimate.standard_error is None:
        raise RefusedError("no-error", f"the pilot gives no error: {estimate.error_method}")
    if goal.difference is None:
        part = None
        if recipe.control is None and recipe.weights.has_operator:
            with np.errstate(over="ignore", invalid="ignore"):
                solution = recipe.weights.solve(recipe, estimate.moments)
            part = from_solution(recipe.name, solution, estimate.moments.states, n)
        variance = n * estimate.standard_error * estimate.standard_error
        _refuse_nothing(variance, estimate.value)
        return variance, part
    assert isinstance(pilot, EpisodeLog)
    assert target is not None
    if estimate.behavior_value is None:
        raise RefusedError("behavior", "what the behaviour itself earned cannot be told")
    if has_parts(recipe):
        parts = influence_parts(pilot, target, recipe).minus(behavior_parts(pilot))
        variance = _mean_square(parts.values(), estimate.value)
        return variance, from_parts(recipe.name, parts, estimate.moments.states, pilot.horizon)
    psi = influence_values(pilot, target, recipe) - behavior_values(pilot)
    return _mean_square(psi, estimate.value), None


def _mean_square(psi: npt.NDArray[np.float64], value: float) -> float:
    with np.errstate(over="ignore"):
        found = float(np.mean(psi**2))
    _refuse_nothing(found, value)
    return found


def _refuse_nothing(variance: float, value: float) -> None:
    if not math.isfinite(variance):
        raise RefusedError("overflow", "the variance exceeds what a number can hold")
    if nothing_left(math.sqrt(variance), value):
        raise RefusedError("no-variance", "there is no variance: any number of episodes will do")


def _low_weights(estimate: Estimate, need: Need) -> list[Warning]:
    """A pilot whose weights are heavy has not seen the heaviest: its variance is too small."""
    ess = need.ess
    products = estimate.recipe.uses_trajectories
    if ess is None or ess >= (FEW_WEIGHTS if products else FEW_EFFECTIVE):
        return []
    how = "usually far too low" if products else "more likely too low than too high"
    return [
        LowOverlapWarning(
            f"with an effective size of {ess:.1f} of {estimate.n_episodes:,} episodes the heaviest "
            f"weights have hardly been seen: the variance, and so the number of episodes, is {how}"
        )
    ]


def _finished(
    goal: Goal,
    needs: list[tuple[Need, Decomposition | None]],
    source: str,
    pilot: int | None,
    horizon: int,
    remarks: list[Warning],
) -> Plan:
    answered = [(need, part) for need, part in needs if need.variance is not None]
    if not answered:
        reasons = [f"{need.estimator}: {need.refused}" for need, _ in needs]
        first = needs[0][0].refused
        code = "refused" if first is None else first.code
        raise RefusedError(code, "\n  ".join(["no estimator can be planned for", *reasons]))
    base, part = next((pair for pair in answered if pair[0].estimator == "mis"), answered[0])
    part = part or next((part for _, part in answered if part is not None), None)
    assert base.variance is not None
    finished = tuple(_compared(need, base.variance) for need, _ in needs)
    remarks = [*remarks, *_about_the_goal(goal, base, part)]
    return Plan(goal, finished, base.estimator, source, pilot, horizon, part, tuple(remarks))


def _compared(need: Need, variance: float) -> Need:
    """With its episodes as a multiple of the reference's, and a warning where they are few."""
    if need.variance is None or need.episodes is None:
        return need
    few = SmallSampleWarning(
        f"{need.episodes} episodes would do by the formula, which is not to be trusted below "
        f"{FEW_EPISODES}"
    )
    own = need.warnings if need.episodes >= FEW_EPISODES else (*need.warnings, few)
    return replace(need, times=need.variance / variance, warnings=own)


def _about_the_goal(goal: Goal, base: Need, part: Decomposition | None) -> list[Warning]:
    found: list[Warning] = []
    assert base.episodes is not None
    if part is not None:
        rare = part.rare_mass(base.episodes)
        if rare > MUCH_RARE:
            found.append(
                SmallSampleWarning(
                    f"{base.episodes:,} episodes would show {rare:.0%} of the target's mass fewer "
                    "than 10 times at its step: too few for the formula. Log more, or use coarser "
                    "states"
                )
            )
    if goal.half_width is not None and base.value is not None and goal.half_width > abs(base.value):
        found.append(
            InputWarning(
                f"the half-width {number(goal.half_width)} is larger than the value "
                f"{number(base.value)} itself"
            )
        )
    return found
