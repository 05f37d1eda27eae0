"""An estimator solved on the data of an evaluation: straight from rows where it can be, else from
sums."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from reweigh.errors import RefusedError
from reweigh.estimate.estimator import Recipe, Solution
from reweigh.estimate.influence import with_estimated_error
from reweigh.estimate.marginal import behavior_value
from reweigh.evaluation.data import LogData, SumsData
from reweigh.log.log import EpisodeLog
from reweigh.policy import Policy
from reweigh.sums.engines import ArraysEngine, bare_moments, mean_return
from reweigh.sums.moments import Moments


@dataclass(frozen=True, eq=False)
class Solved:
    """A solution and the sums behind it: `used` (shaped, or of one half) and `base`, of the whole
    log. If neither was summed they only describe the log, and `log` is whose rows were read."""

    solution: Solution
    used: Moments
    base: Moments
    log: EpisodeLog | None = None

    @property
    def behavior_value(self) -> float | None:
        """The behavior's value; None if it is unknown."""
        if self.log is None:
            return behavior_value(self.base)
        value = self.solution.mean_return  # of shaped rewards where the sums are not the same
        return mean_return(self.log) if value is None or self.used is not self.base else value


def solve(data: LogData, recipe: Recipe, dropped: bool) -> Solved:
    """The solution: straight from the rows where its weights can, else from the sums. A control
    variate shapes the rewards first; the rest is solved without one. What is partly the value of a
    model has an error of its own."""
    solved = _solve(data, recipe, dropped)
    if recipe.control is None or not recipe.control.blends or not data.errors:
        return solved
    rows = None if isinstance(data, SumsData) else data.rows(dropped)
    sums = solved.base
    alone = replace(solved.solution, freedom=None, error_method="delta")
    if isinstance(data, SumsData) and data.influences is not None:  # as from rows, by a second scan
        data.influences.sums[recipe] = sums
        error = math.sqrt(data.influences.spread(recipe).square)
        alone = replace(alone, standard_error=error)
    else:
        alone = with_estimated_error(recipe, alone, sums, rows)
    nodes = None if alone.nodes is None else replace(alone.nodes, variance=None)
    return replace(solved, solution=replace(alone, by_node=nodes))


def _solve(data: LogData, recipe: Recipe, dropped: bool) -> Solved:
    plain = recipe.plain
    if isinstance(data, SumsData):
        base = used = data.moments(recipe)
        if recipe.control is not None and recipe.uses_trajectories:
            text = "shaped rewards need the log itself, not its moments; mdr() does not need them"
            raise RefusedError("needs-log", text)
        if recipe.control is not None:
            from reweigh.estimate.doubly_robust import shape_moments

            used = shape_moments(recipe, base)
        return Solved(_solve_sums(data, recipe, used, None), used, base)
    log, target = data.rows(dropped)
    if recipe.control is None:
        solution = plain.weights.solve_rows(plain, log, target, errors=data.errors)
        if solution is not None:
            base = bare_moments(log, target, recipe.needs)
            return Solved(solution, base, base, log)
        base = data.moments(recipe, dropped)
        return Solved(_solve_sums(data, plain, base, (log, target)), base, base)
    sums = data.moments(recipe, dropped) if recipe.fitted else None
    from reweigh.estimate.doubly_robust import shape_log

    shaped = shape_log(log, target, recipe, sums)
    rows = shaped.log, target
    solution = plain.weights.solve_rows(plain, *rows, errors=data.errors)
    if solution is not None:
        used = bare_moments(*rows, plain.needs)
    else:
        blocks = 1 if sums is None else sums.about.blocks
        request = replace(plain.needs, blocks=blocks, control=shaped.name, named=False)
        used = ArraysEngine().moments(*rows, request)
        solution = _solve_sums(data, plain, used, rows)
    if sums is None:
        return Solved(solution, used, bare_moments(log, target, recipe.needs), log)
    return Solved(solution, used, sums)


def _solve_sums(
    data: LogData, recipe: Recipe, sums: Moments, rows: tuple[EpisodeLog, Policy] | None
) -> Solution:
    """The solution on these sums, with its error if requested."""
    if rows is not None and recipe.weights.needs_rows(sums):
        from reweigh.estimate.leave_one_out_rows import solve_rows

        return solve_rows(recipe, *rows, sums, errors=data.errors)
    solution = recipe.weights.solve(recipe, sums, errors=data.errors)
    return recipe.weights.with_error(recipe, solution, sums, rows) if data.errors else solution
