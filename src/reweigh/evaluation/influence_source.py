"""Where the influence values of an evaluation come from: the rows in memory, or a second scan of a
log that stays where it is. Sums alone, such as moments from a file, have none.

A second scan is made once for all estimators of an evaluation, when the first of them asks. It
keeps no ψ: of every estimator, and of every two of them, what `Spread` holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError
from reweigh.estimate.estimator import Recipe, overflow
from reweigh.estimate.influence import (
    Spread,
    behavior_values,
    gradient_of,
    influence_values,
    returns_of,
)
from reweigh.estimate.marginal import behavior_gradient, behavior_value
from reweigh.estimate.presets import wis
from reweigh.evaluation.inputs import Evidence, merged
from reweigh.evaluation.solve import solve, solve_on_sums
from reweigh.log.log import EpisodeLog
from reweigh.policy.base import Policy, RememberedPolicy
from reweigh.sums.engines.arrays import ratios
from reweigh.sums.engines.second_scan import visit_episodes
from reweigh.sums.gather import gathered
from reweigh.sums.moments import Moments
from reweigh.sums.read import ScannedLog

Floats = npt.NDArray[np.float64]
BEHAVIOR, WIS = "the behaviour", "wis"
Column = Recipe | str  # an estimator of the evaluation, BEHAVIOR, or WIS
Values = Callable[[EpisodeLog], Floats]  # (n,) ψ of the episodes of a part of the log


class InfluenceSource(Protocol):
    """What can be asked of ψ; RefusedError where an estimator has none."""

    def spread(self, column: Column, minus: Column | None = None) -> Spread:
        """Of ψ, or of the difference of two."""
        ...

    def wis_value(self) -> float: ...


@dataclass(frozen=True, eq=False)
class RowsInfluence:
    """From the rows of a log in memory; `at_hand` are those that a solution gives by itself."""

    evidence: Evidence
    dropped: bool
    at_hand: dict[Column, Callable[[], Floats]] = field(default_factory=dict, repr=False)
    _psi: dict[Column, Floats] = field(default_factory=dict, repr=False)

    def values(self, column: Column) -> Floats:
        """(n,) ψ."""
        if column not in self._psi:
            self._psi[column] = self._values(column)
        return self._psi[column]

    def _values(self, column: Column) -> Floats:
        if column in self.at_hand:
            return self.at_hand[column]()
        log, target = self.evidence.rows(self.dropped)
        if column == BEHAVIOR:
            return behavior_values(log)
        recipe = wis() if isinstance(column, str) else column
        sums = None
        if (
            recipe.control is None
            and (self.dropped, recipe.max_ratio, False) in self.evidence.gated
        ):
            sums = self.evidence.for_gates(recipe, dropped=self.dropped)
        if sums is not None and not recipe.needs.kinds <= set(sums.kinds):
            sums = None
        return influence_values(log, target, recipe, sums)

    def spread(self, column: Column, minus: Column | None = None) -> Spread:
        psi = self.values(column)
        with np.errstate(over="ignore", invalid="ignore"):
            psi = psi if minus is None else psi - self.values(minus)
            return Spread.of(psi, self.evidence.rows(self.dropped)[0].steps.episode)

    def wis_value(self) -> float:
        again = replace(self.evidence, requests=merged([wis()]), made={}, asked={})
        return solve(again, wis(), self.dropped).solution.value


@dataclass(eq=False)
class ScanInfluence:
    """From a second scan of a log.

    sums      of each estimator, as the first scan made them
    wis_sums  makes those of WIS
    """

    log: ScannedLog
    target: Policy
    sums: dict[Column, Moments]
    wis_sums: Callable[[], Moments]
    _kept: dict[tuple[Column, Column | None], Spread] = field(default_factory=dict, repr=False)
    _refused: dict[Column, RefusedError] = field(default_factory=dict, repr=False)

    def spread(self, column: Column, minus: Column | None = None) -> Spread:
        for wanted in (column, minus):
            if wanted is not None and (wanted, None) not in self._kept:
                self._scan(wanted)
        for wanted in (column, minus):
            if wanted is not None and wanted in self._refused:
                raise self._refused[wanted]
        if minus is not None and (minus, column) in self._kept:
            return -self._kept[minus, column]
        return self._kept[column, minus]

    def wis_value(self) -> float:
        evidence = Evidence(self._wis(), None, None, "refuse", {}, errors=False)
        return solve_on_sums(evidence, wis(), self._wis(), dropped=False)[0].value

    def _wis(self) -> Moments:
        if WIS not in self.sums:
            self.sums[WIS] = self.wis_sums()
        return self.sums[WIS]

    def _scan(self, wanted: Column) -> None:
        """ψ of all estimators and of the behaviour, part by part of the log; of WIS only where it
        is asked for."""
        if wanted in self._refused:
            return
        if wanted == WIS:
            self._wis()
        of_columns: dict[Column, Values] = {}
        once = RememberedPolicy(self.target)
        for column in (BEHAVIOR, *self.sums):
            try:
                of_columns[column] = self._values(column, once)
            except RefusedError as error:
                self._refused[column] = error
        totals: dict[tuple[Column, Column | None], Spread] = {}

        def take(psi: dict[Any, Floats], episodes: npt.NDArray[Any]) -> None:
            for key, difference in _each_pair(psi):
                spread = Spread.of(difference, episodes)
                totals[key] = totals[key] + spread if key in totals else spread

        def visit(part: EpisodeLog) -> None:
            once.forget()
            psi = {column: values(part) for column, values in of_columns.items()}
            take(psi, part.steps.episode)

        def begin() -> Callable[[EpisodeLog], None]:
            totals.clear()
            return visit

        first = next(iter(self.sums.values()))
        visit_episodes(self.log, self.target, first, begin)
        for column in of_columns:
            if not np.isfinite(totals[column, None].top):
                self._refused[column] = overflow()
        self._kept.update(totals)

    def _values(self, column: Column, target: Policy) -> Values:
        """How ψ is gathered over a part of the log."""
        if column == BEHAVIOR:
            return _behavior(next(iter(self.sums.values())), target)
        recipe = wis() if isinstance(column, str) else column
        gradient = gradient_of(recipe, self.sums[column])
        return lambda part: gathered(
            gradient, part, target, ratios(part, target, recipe.max_ratio)[1]
        )


def _each_pair(
    psi: dict[Column, Floats],
) -> list[tuple[tuple[Column, Column | None], Floats]]:
    columns = list(psi)
    alone: list[tuple[tuple[Column, Column | None], Floats]] = [
        ((column, None), psi[column]) for column in columns
    ]
    return alone + [
        ((a, b), psi[a] - psi[b]) for i, a in enumerate(columns) for b in columns[i + 1 :]
    ]


def _behavior(sums: Moments, target: Policy) -> Values:
    """Of the behaviour's own value: the return less its mean, or where episodes were cut off that
    of the recursion with every ratio 1."""
    if not sums.truncated:
        mean = behavior_value(sums)
        if mean is None:
            raise RefusedError("no-behavior", "what the behaviour itself earned is not known")
        return lambda part: returns_of(part) - mean
    if sums.transitions is None:
        raise RefusedError("missing-moments", "these sums hold no transitions")
    about, cells = sums.about, sums.transitions.forget("block")
    start, hidden = sums.start.forget("block"), sums.hidden
    found = behavior_gradient(cells, start, about.horizon, about.discount, hidden=hidden)
    return lambda part: gathered(found.gradient, part, target, np.ones(part.steps.n_rows))
