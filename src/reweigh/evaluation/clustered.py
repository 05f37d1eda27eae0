"""How sure an estimate is where the log has clusters of episodes, or sampling weights: every error
is by cluster, or by weighted episode."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from reweigh.errors import RefusedError
from reweigh.estimate.clusters import (
    Clustering,
    Count,
    error_without,
    resampled_errors,
    spread_of,
)
from reweigh.estimate.estimator import Recipe, Solution
from reweigh.estimate.influence import Spread
from reweigh.estimate.marginal import behavior_value
from reweigh.estimate.replicates import values_without_blocks
from reweigh.estimate.standard_error import GONE, TOO_FEW, Freedom, Gain, paired
from reweigh.evaluation.data import LogData, RowsData, SumsData
from reweigh.evaluation.solved import solve
from reweigh.evaluation.uncertainty import (
    NO_INFLUENCE,
    OTHER_METHODS,
    Column,
    DrawnErrors,
    EstimateUncertainty,
    influences_of,
)
from reweigh.kernels import Floats
from reweigh.trust.gates import Context, GateResult, measured
from reweigh.trust.gates.gate import ORDER


@dataclass(frozen=True, eq=False)
class ClusteredUncertainty(EstimateUncertainty):
    """The error is that of the influence values by cluster; of sums alone, and where an estimator
    has no influence values, that of the jackknife over clusters or blocks of them.

    count   of the clusters behind the error, None without an error
    """

    count: Count | None = None

    @classmethod
    def of(
        cls, data: LogData, recipe: Recipe, solution: Solution, dropped: bool, **known: Any
    ) -> ClusteredUncertainty:
        made = super().of(data, recipe, solution, dropped, **known)
        assert isinstance(made, cls)
        made = replace(made, freedom=None)
        if known["n_episodes"] < 2:
            return made
        why, ways = "", [made._by_blocks]
        if made.has_influence:
            ways.insert(0, made._by_influence)
        for way in ways:
            try:
                error, count, method = way()
            except RefusedError as refused:
                why = why or refused.reason
                continue
            note = f"; by {count}{known['note']}"
            freedom = Freedom(error, count.number - 1)
            return replace(
                made, error=error, error_method=method, freedom=freedom, count=count, note=note
            )
        few = why.startswith((TOO_FEW, GONE))
        return replace(made, error=None, error_method=why, lacks_blocks=few)

    def _by_influence(self) -> tuple[float, Count, str]:
        return super().cluster_error(), self._count(), "influence values"

    def _by_blocks(self) -> tuple[float, Count, str]:
        error, blocks = self.jackknife()
        column = self.column
        if isinstance(self.data, SumsData):
            sizes = self.data.by_blocks(self.recipe).block_sizes()[1]
            return error, Count.of(column, sizes, of_blocks=True), f"jackknife ({blocks} blocks)"
        return error, self._count(), f"jackknife ({blocks} blocks)"

    def _by_cluster(self, minus: Column | None = None) -> tuple[Floats, Floats, Any]:
        influences = influences_of(self.data, self.dropped)
        if influences is None:
            raise self._needs_rows(NO_INFLUENCE, OTHER_METHODS)
        return influences.by_cluster(self.recipe, minus)

    def _count(self) -> Count:
        """Of the clusters in the estimate."""
        if isinstance(self.data, SumsData) or self._some:
            sums, sizes, _ = self._by_cluster()
            return Count.of(self.column, sizes[sums != 0] if self._some else sizes)
        return Count.of(self.column, Clustering.of(self.data.rows(self.dropped)[0]).sizes)

    @property
    def column(self) -> str:
        if isinstance(self.data, SumsData):
            return self.data.stored.about.cluster or ""
        return self.data.rows(self.dropped)[0].columns.cluster or ""

    @property
    def _some(self) -> bool:
        """Whether the estimate is a sum over some of the episodes: a split leaves half of them."""
        log = self.data.log_used(self.dropped)
        if log is not None:
            return self.n_episodes < log.n_episodes
        return self.n_episodes < self.data.size[0]

    @property
    def clusters(self) -> Count | None:  # type: ignore[override]
        return self.count

    @property
    def n_draws(self) -> int:
        return self.n_episodes if self.count is None else self.count.number

    def draws(self, minus: Column | None = None) -> Spread:
        """Of the clusters."""
        return spread_of(*self._by_cluster(minus), some=self._some and minus is None)

    def _widened(self, square: float, n: int) -> float:
        return square  # it is that of the jackknife already

    def dependence(self) -> str | None:
        return None  # errors by cluster do not need the state to explain all

    def drawn_errors(self) -> DrawnErrors | None:
        sums, sizes, _ = self._by_cluster()
        return partial(resampled_errors, sums, sizes, self.value)

    def gain(self) -> Gain:
        """From sums alone by deleting blocks of clusters, of the difference itself."""
        if self.has_influence or self.count is None or self.behavior_value is None:
            return super().gain()
        assert isinstance(self.data, SumsData)
        sums = self.data.by_blocks(self.recipe)
        blocks = sums.block_sizes()[0].tolist()
        behavior = [behavior_value(sums.without(block)) for block in blocks]
        if None in behavior:
            raise RefusedError("no-behavior", "without some clusters the behavior has no value")
        without = values_without_blocks(self.recipe, sums) - np.array(behavior, np.float64)
        error = error_without(self.value - self.behavior_value, without)
        return paired(self.value, self.behavior_value, error, len(blocks))


def counted_gates(
    data: RowsData,
    recipe: Recipe,
    dropped: bool,
    error: float | None,
    weighted: tuple[GateResult, ...],
) -> tuple[GateResult, ...]:
    """Of each gate the worse result: of the weighted estimate, and of the one whose rows count once
    each, since a row of a large weight is one row all the same."""
    rows = data.unweighted()
    solved = solve(rows, recipe, dropped)
    context = Context(
        solved.used,
        recipe,
        solved.solution,
        data=rows.log_used(dropped),
        error=error,
        within_rewards=data.within_rewards,
    )
    worst = {result.name: result for result in measured("solution", context)}
    for result in weighted:
        other = worst.get(result.name, result)
        worse = ORDER.index(result.level) >= ORDER.index(other.level)
        worst[result.name] = result if worse else other
    return tuple(worst.values())
