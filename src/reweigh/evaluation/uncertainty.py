"""How sure an estimate is: the influence values of its episodes, its errors, replicates and gain.

Influence values come from the rows in memory, or from a second scan of a log that stays where it
is; sums alone have none. A second scan is made once for all estimators of an evaluation, when the
first one needs it. It keeps no ψ, but a `Spread` for every estimator and every pair of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError
from reweigh.estimate.estimator import Recipe, Solution
from reweigh.estimate.influence import (
    Spread,
    behavior_values,
    influence_values,
)
from reweigh.estimate.memory_rows import (
    Comparison,
    PaddedEpisodes,
    comparison,
    memories,
    remembered,
    sampled,
    share_of,
)
from reweigh.estimate.standard_error import (
    GONE,
    OVERFLOW,
    TOO_FEW,
    Freedom,
    Gain,
    bounded,
    error_of_returns,
    nothing_left,
    paired,
)
from reweigh.evaluation.data import LogData, RowsData, SumsData
from reweigh.log.log import EpisodeLog
from reweigh.policy import Policy
from reweigh.trust.gates import Context, measured
from reweigh.trust.gates.episodes import Dependence
from reweigh.trust.gates.gate import NO_EPISODES
from reweigh.trust.intervals import IntervalRequest, Uncertainty

if TYPE_CHECKING:
    from reweigh.estimate.clusters import Count
    from reweigh.evaluation.scans import ScanInfluence
    from reweigh.trust.bootstrap import Replicates

Floats = npt.NDArray[np.float64]
BEHAVIOR = "the behavior"
Column = Recipe | str  # an estimator of the evaluation, or BEHAVIOR
Pair = tuple[Column, Column | None]
ByCluster = tuple[Floats, Floats, Any]
DrawnErrors = Callable[[npt.NDArray[Any], Floats], Floats]
NO_INFLUENCE = "influence values need individual episodes"
OTHER_METHODS = ", or use method='analytic' or method='jackknife'"


@dataclass(frozen=True, eq=False)
class RowsInfluence:
    """From the rows of a log in memory; `solved` gives those of a solution that has them."""

    data: RowsData
    dropped: bool
    solved: dict[Column, Callable[[], Floats]] = field(default_factory=dict, repr=False)
    _psi: dict[Column, Floats] = field(default_factory=dict, repr=False)

    def values(self, column: Column) -> Floats:
        """(n,) ψ, with what the fit of estimated propensities adds."""
        more = None if isinstance(column, str) else self.of_fit(column)
        return (
            self.with_logged_ratios(column)
            if more is None
            else self.with_logged_ratios(column) + more
        )

    def with_logged_ratios(self, column: Column) -> Floats:
        """(n,) ψ with the ratios as they are."""
        if column not in self._psi:
            self._psi[column] = self._values(column)
        return self._psi[column]

    def of_fit(self, recipe: Recipe) -> Floats | None:
        """(n,) what the fit of the propensities adds; None where there is none, or not known."""
        log, target = self.data.rows(self.dropped)
        if log.behavior_fit is None:
            return None
        from reweigh.estimate.estimated_propensities import influence_of_fit

        key = ("fit", self.dropped, recipe)
        return self.data.once(key, lambda: influence_of_fit(log, target, recipe))

    def _values(self, column: Column) -> Floats:
        if column in self.solved:
            return self.solved[column]()
        log, target = self.data.rows(self.dropped)
        if column == BEHAVIOR:
            return behavior_values(log)
        assert isinstance(column, Recipe)
        whole = not (column.uses_trajectories and log.n_truncated)
        sums = self.data.moments(column, self.dropped) if column.control is None and whole else None
        return influence_values(log, target, column, sums)

    def spread(self, column: Column, minus: Column | None = None) -> Spread:
        """Of ψ, or of the difference of two; RefusedError where an estimator has none."""
        psi = self.values(column)
        with np.errstate(over="ignore", invalid="ignore"):
            psi = psi if minus is None else psi - self.values(minus)
            return Spread.of(psi, self.data.rows(self.dropped)[0].steps.episode)

    def by_cluster(self, column: Column, minus: Column | None = None) -> ByCluster:
        """Ψ of ψ, or of the difference of two; the sizes and the names of the clusters."""
        from reweigh.estimate.clusters import Clustering

        psi, of = self.values(column), Clustering.of(self.data.rows(self.dropped)[0])
        psi = psi if minus is None else psi - self.values(minus)
        return of.sums(psi), of.sizes, of.names

    def sample(self, recipe: Recipe) -> PaddedEpisodes:
        """Of the episodes, with the influence values of this estimator."""
        x = self.data.once(("padded", self.dropped), self._padded)
        if recipe not in x.psi:
            log, _ = self.data.rows(self.dropped)
            x.psi[recipe] = self.with_logged_ratios(recipe)[sampled(log.steps, x.share)]
        return x

    def _padded(self) -> PaddedEpisodes:
        log, target = self.data.rows(self.dropped)
        share = share_of(log.n_episodes, log.horizon)
        which, pi = sampled(log.steps, share), target.probabilities(log)
        return replace(PaddedEpisodes.of(log.steps, pi, len(log.states), which), share=share)


def influences_of(data: LogData, dropped: bool) -> RowsInfluence | ScanInfluence | None:
    """Where the influence values come from: the rows, a second scan, or nothing."""
    if isinstance(data, SumsData):
        scan: ScanInfluence | None = data.influences
        return scan
    return data.once(("influence", dropped), partial(RowsInfluence, data, dropped))


@dataclass(frozen=True, eq=False)
class EstimateUncertainty(Uncertainty):
    """The uncertainty of an estimate, from its data. Results are kept."""

    data: LogData
    dropped: bool
    behavior_value: float | None
    _kept: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, data: LogData, recipe: Recipe, solution: Solution, dropped: bool, **known: Any
    ) -> EstimateUncertainty:
        """`known` has the fields that are not in the solution."""
        influences, n = influences_of(data, dropped), known["n_episodes"]
        at_hand = None if recipe.control is not None else solution.influence
        if at_hand is not None and isinstance(influences, RowsInfluence):
            influences.solved[recipe] = at_hand
        return cls(
            recipe=recipe,
            value=solution.value,
            freedom=_freedom_of(recipe, solution, n, data.log is not None),
            has_influence=influences is not None,
            lacks_blocks=known["error_method"].startswith((TOO_FEW, GONE)),
            data=data,
            dropped=dropped,
            **known,
        )

    @property
    def value_range(self) -> tuple[float, float] | None:
        """What the value can be if every reward is within the declared range; None without one."""
        if self.data.reward_range is None:
            return None
        from reweigh.evaluation.inputs import range_of_values

        return range_of_values(self.data.reward_range, self.data, self.dropped)

    def spread(self, minus: Column | None = None) -> Spread:
        """Of the estimate's influence values, or of their difference to others."""
        influences = influences_of(self.data, self.dropped)
        if influences is None:
            raise self._needs_rows(NO_INFLUENCE, OTHER_METHODS)
        return influences.spread(self.recipe, minus)

    def influence(self) -> Floats:
        """(n,) ψ of the estimate, of a log in memory."""
        influences = influences_of(self.data, self.dropped)
        if not isinstance(influences, RowsInfluence):
            raise self._needs_rows(NO_INFLUENCE, OTHER_METHODS)
        return influences.values(self.recipe)

    def rows(self, why: str, otherwise: str = "") -> tuple[EpisodeLog, Policy]:
        """The log and the target; refused where there are only sums."""
        if isinstance(self.data, SumsData):
            raise self._needs_rows(why, otherwise)
        return self.data.rows(self.dropped)

    def _needs_rows(self, why: str, otherwise: str) -> RefusedError:
        return RefusedError(
            "needs-log",
            f"{why}, but this estimate comes from sums: keep the log in memory "
            f"(engine='arrays'){otherwise}",
        )

    clusters: ClassVar[Count | None] = None

    def cluster_error(self) -> float:
        error = self._clustered(self.draws())
        if nothing_left(error, self.value):
            raise RefusedError("no-error", "all episodes have the same influence")
        return error

    def skewness(self) -> float:
        return self.draws().skewness

    def draws(self, minus: Column | None = None) -> Spread:
        """The spread that errors are made of: of the episodes, which are independent."""
        return self.spread(minus)

    def _widened(self, square: float, n: int) -> float:
        return square * n / (n - 1)

    def _clustered(self, psi: Spread) -> float:
        """SE² = mean(ψ²)/n m/(m - 1), m the episodes that a split leaves; others have ψ = 0."""
        if not math.isfinite(psi.square):
            raise RefusedError("no-error", OVERFLOW)
        return math.sqrt(self._widened(psi.square, self.n_episodes))

    def joint_error(self, other: EstimateUncertainty) -> float | None:
        """That of the difference to another estimate on the same log: 0 if only rounding is left,
        nan for different episodes, None if it is unknown."""
        try:
            own, others = self.draws(), other.draws()
            if own.n != others.n:
                return math.nan
            apart = self.draws(other.recipe)
        except RefusedError:
            return None
        if not apart.square > 1e-14 * (own.square + others.square):
            return 0.0
        return math.sqrt(self._widened(apart.square, own.n))

    def beside_longer_memories(self) -> Comparison | str:
        """How far the estimate is from those that remember more, or why that is not known."""
        influences, key = influences_of(self.data, self.dropped), "longer memories"
        if isinstance(self.data, SumsData):
            influences = self.data.sampled
        if influences is None:
            return NO_EPISODES
        sums = self.data.for_gates(self.recipe, self.dropped)
        if sums.truncated:
            return "episodes were cut off, which longer memories cannot be compared with"
        try:
            x = influences.sample(self.recipe)
        except RefusedError as error:
            return error.reason
        recipe, about = self.recipe, sums.about
        by_memory = self.data.once(
            (key, self.dropped, recipe.max_ratio),
            lambda: tuple(remembered(x, memories(about.horizon), about.discount, recipe.max_ratio)),
        )
        return comparison(x, recipe, self.value, by_memory)

    def dependence(self) -> str | None:
        sums = self.data.for_gates(self.recipe, self.dropped)
        shared = self.data.once(("gates", id(sums)), dict[str, Any])
        results = measured("sums", Context(sums, self.recipe, shared=shared), (Dependence(),))
        return results[0].text if results else None

    def jackknife(self) -> tuple[float, int]:
        if "jackknife" not in self._kept:
            made = self.data.jackknife(self.recipe, self.value, self.dropped)
            self._kept["jackknife"] = made
        error, method, blocks = self._kept["jackknife"]
        if error is None:
            raise RefusedError("no-error", method)
        return error, blocks

    def replicates(self, wanted: IntervalRequest, *, errors: bool) -> Replicates:
        """Those made before serve again, without a seed also theirs."""
        from reweigh.evaluation.resampling import new_seed, resample

        log, target = self.rows("the bootstrap needs individual episodes", OTHER_METHODS)
        kept: Replicates | None = self._kept.get("replicates")
        seed, count = wanted.seed, wanted.replicates
        if seed is None:
            seed = new_seed() if kept is None else kept.seed
        same = kept is not None and (kept.seed, len(kept)) == (seed, count)
        if kept is None or not same or (errors and kept.errors is None):
            pairs, threads = [(target, self.recipe)], wanted.threads
            kept = resample(
                log, pairs, count, seed=seed, errors=errors, threads=threads,
                drawn_errors=self.drawn_errors() if errors else None,
            )  # fmt: skip
            self._kept["replicates"] = kept
        return kept

    def drawn_errors(self) -> DrawnErrors | None:
        return None  # replicates have those of the estimator

    def gain(self) -> Gain:
        """How much more than the behavior the target earns: by the difference of the influence
        values, or from sums with the most that the error of the difference can be."""
        if self.n_episodes < 2:
            raise RefusedError("no-error", "one episode shows no variation")
        if self.behavior_value is None:
            raise RefusedError(
                "no-behavior", "the behavior's value cannot be computed from this log"
            )
        if self.has_influence:
            error = self._clustered(self.draws(BEHAVIOR))
            return paired(self.value, self.behavior_value, error, self.n_draws)
        returns = error_of_returns(self.data.for_gates(self.recipe))
        own = self.interval("auto", IntervalRequest())
        if own is None and "jackknife" in self._kept:  # requested, while the default has none
            own = self.interval("jackknife", IntervalRequest())
        if own is None or own.standard_error is None or own.df is None:
            why = self.dependence() or self.error_method
            raise RefusedError("no-error", f"the value has no default interval: {why}")
        error, df = own.standard_error, own.df
        return bounded(self.value, error, df, self.behavior_value, returns, self.n_episodes)


def _freedom_of(recipe: Recipe, solution: Solution, n: int, in_memory: bool) -> Freedom | None:
    """The analytic error's: of the solution, or for means over episodes (IS, WIS, DR, WDR) the
    variance over n - 1, with the effective episodes of the worst step less 1 (at least 1) as
    degrees of freedom. None where the error is the jackknife's."""
    error = solution.standard_error
    if solution.freedom is not None or error is None or n < 2:
        return solution.freedom
    if recipe.weights.only_jackknife or (recipe.weights.error_by_blocks(recipe) and not in_memory):
        return None
    sizes = solution.ess[np.isfinite(solution.ess)]
    effective = min(float(sizes.min()), float(n)) if len(sizes) else float(n)
    return Freedom(error * math.sqrt(n / (n - 1)), max(effective - 1, 1.0))
