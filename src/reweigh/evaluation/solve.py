"""Solving an estimator on what there is: straight from the rows, or from the sums."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from reweigh.errors import RefusedError
from reweigh.estimate.direct import bare_moments
from reweigh.estimate.doubly_robust import Shaped, shape_log, shape_moments
from reweigh.estimate.estimator import Recipe, Solution, overflow
from reweigh.evaluation.inputs import Evidence
from reweigh.log.log import EpisodeLog
from reweigh.policy.base import Policy
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
    """The solution: straight from the rows where its weights can, else from the sums."""
    if evidence.log is not None:
        log, target = evidence.rows(dropped)
        if recipe.control is None:
            solution = recipe.weights.solve_rows(recipe, log, target, errors=evidence.errors)
            if solution is not None:
                base = bare_moments(log, target, recipe)
                return Solved(solution, base, base, from_rows=True)
        elif recipe.control.own:
            shaped = shape_log(log, target, recipe, None)
            solution, used = _solve_shaped(evidence, recipe, shaped, target)
            return Solved(solution, used, bare_moments(log, target, recipe), from_rows=True)
    base = evidence.moments(recipe, dropped=dropped)
    solution, used = solve_on_sums(evidence, recipe, base, dropped)
    return Solved(solution, used, base, from_rows=False)


def value_of(evidence: Evidence, recipe: Recipe, dropped: bool) -> float:
    """The value alone."""
    return finite(solve(evidence, recipe, dropped).solution.value)


def _solve_shaped(
    evidence: Evidence, recipe: Recipe, shaped: Shaped, target: Policy, blocks: int = 1
) -> tuple[Solution, Moments]:
    """The estimator without its control variate, on the log that this has shaped."""
    plain = recipe.plain
    solution = plain.weights.solve_rows(plain, shaped.log, target, errors=evidence.errors)
    if solution is not None:
        return solution, bare_moments(shaped.log, target, plain)
    request = replace(plain.needs, blocks=blocks, control=shaped.name, named=False)
    sums = evidence.engine.moments(shaped.log, target, request)
    return _solve_sums(evidence, plain, sums, (shaped.log, target)), sums


def finite(value: float) -> float:
    if not np.isfinite(value):
        raise overflow()
    return value


def solve_on_sums(
    evidence: Evidence, recipe: Recipe, base: Moments, dropped: bool
) -> tuple[Solution, Moments]:
    """The solution, and the sums that it was found on (shaped, or of one half)."""
    rows = None if evidence.log is None else evidence.rows(dropped)
    if recipe.control is None:
        return _solve_sums(evidence, recipe, base, rows), base
    if rows is not None:
        shaped = shape_log(*rows, recipe, base)
        return _solve_shaped(evidence, recipe, shaped, rows[1], base.about.blocks)
    if recipe.uses_trajectories:
        raise RefusedError(
            "needs-log",
            "the shaped reward of every row is weighted: that needs the log itself, not its "
            "moments; mdr() does not",
        )
    sums = shape_moments(recipe, base)
    return _solve_sums(evidence, recipe, sums, None), sums


def _solve_sums(
    evidence: Evidence, recipe: Recipe, sums: Moments, rows: tuple[EpisodeLog, Policy] | None
) -> Solution:
    """The solution on these sums, with its error if that is asked for."""
    solution = recipe.weights.solve(recipe, sums, errors=evidence.errors)
    if not evidence.errors:
        return solution
    return recipe.weights.with_error(recipe, solution, sums, rows)
