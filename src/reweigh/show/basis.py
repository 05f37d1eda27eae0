"""What a report may look at: the results, and the rows or sums behind them, made once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from reweigh.errors import RefusedError
from reweigh.estimate.operators import OneStep
from reweigh.estimate.presets import mis
from reweigh.estimate.recipe import Marginal, Model, Recipe
from reweigh.estimate.solution import Solution, operators_of, solve_recursion
from reweigh.evaluation.result import Estimate, Refusal
from reweigh.log.log import EpisodeLog
from reweigh.policy.base import Policy
from reweigh.sums.engines.arrays import ArraysEngine
from reweigh.sums.engines.base import Request
from reweigh.sums.moments import Moments
from reweigh.trust.intervals import Interval

LEVEL = 0.95
Result = Estimate | Refusal


@dataclass(frozen=True)
class Missing:
    """A part of the report that was not computed, and why."""

    why: str


@dataclass(frozen=True, eq=False)
class Basis:
    """The results and what they rest on.

    intervals  one per result, None where there is none
    main       the estimate that gives the answer, None where every estimator refused
    log, target  the rows, None where there are only sums
    stored     the sums, where there are no rows
    """

    results: tuple[Result, ...]
    intervals: tuple[Interval | None, ...]
    main: Estimate | None
    log: EpisodeLog | None
    target: Policy | None
    stored: Moments | None
    _solved: dict[tuple[str, float | None], Solution | Missing] = field(
        default_factory=dict, repr=False
    )

    @property
    def main_interval(self) -> Interval | None:
        if self.main is None:
            return None
        return self.intervals[next(i for i, r in enumerate(self.results) if r is self.main)]

    @cached_property
    def sums(self) -> Moments | None:
        """All kinds of sums that the rows allow, or those that there are."""
        if self.log is None or self.target is None or not self.log.steps.has_propensities:
            return self.stored
        kinds = {"transitions", "model", "trajectories"}
        if self.log.continuous_actions:
            kinds.discard("model")
        if self.log.n_truncated:  # the products of cut-off episodes mean nothing
            kinds.discard("trajectories")
        ratio = None if self.main is None else self.main.recipe.max_ratio
        request = Request(frozenset(kinds), max_ratio=ratio, policy=True)
        with np.errstate(over="ignore", invalid="ignore"):
            return ArraysEngine().moments(self.log, self.target, request)

    @property
    def by_state(self) -> Recipe:
        """The estimator whose state distribution is shown: the main one's own, where it has one of
        its own per step, else MIS."""
        wanted = None if self.main is None else self.main.recipe
        if wanted is not None and wanted.control is None and _per_step(wanted):
            return wanted
        return mis(max_ratio=None if wanted is None else wanted.max_ratio)

    @property
    def marginal(self) -> Recipe:
        """The estimator whose weights stand against the running products: a MIS."""
        own = self.by_state
        if isinstance(own.weights, Marginal):
            return own
        return mis(max_ratio=None if self.main is None else self.main.recipe.max_ratio)

    def solution(self, recipe: Recipe) -> Solution | Missing:
        """The estimator solved on the sums, with all that it has per (step, state)."""
        key = (recipe.name, recipe.max_ratio)
        if key not in self._solved:
            self._solved[key] = self._solve(recipe)
        return self._solved[key]

    def operator(self, recipe: Recipe) -> OneStep:
        """Its one-step operator; only after it was solved."""
        assert self.sums is not None
        return operators_of(recipe, self.sums)[0]

    def _solve(self, recipe: Recipe) -> Solution | Missing:
        if self.sums is None:
            return Missing("there are neither rows nor sums to look at")
        try:
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                return solve_recursion(recipe, self.sums)
        except RefusedError as error:
            return Missing(error.reason)


def basis_of(
    results: Sequence[Result],
    *,
    main: Estimate | None = None,
    intervals: Sequence[Interval | None] | None = None,
    log: EpisodeLog | None = None,
    target: Policy | None = None,
) -> Basis:
    """The basis of these results. `log` is for results that all refused: an estimate knows its
    own; `target` also for estimates from sums, which do not."""
    chosen = main_of(results) if main is None else main
    stored = None
    if chosen is not None:
        evidence = chosen.grounds.evidence
        log, target, stored = evidence.log, evidence.target or target, evidence.stored
    found = intervals
    if found is None:
        found = [r.interval(LEVEL) if isinstance(r, Estimate) else None for r in results]
    return Basis(tuple(results), tuple(found), chosen, log, target, stored)


def main_of(results: Sequence[Result]) -> Estimate | None:
    """The one whose number is the answer: what "auto" chose, else MIS, the default, else the
    first that answered. It is never chosen by its value."""
    answered = [result for result in results if isinstance(result, Estimate)]
    chosen = [result for result in answered if result.chosen is not None]
    default = [result for result in answered if result.estimator == mis().name]
    return next(iter([*chosen, *default, *answered]), None)


def _per_step(recipe: Recipe) -> bool:
    return isinstance(recipe.weights, Model) or recipe.weights == Marginal(pooled=False)
