"""How sure an estimate is: the influence values of its episodes, its errors, replicates and gain.

Influence values come from the rows in memory, or from a second scan of a log that stays where it
is. Sums alone, such as moments from a file, have none. A second scan is made once for all
estimators of an evaluation, when the first of them asks. It keeps no ψ: of every estimator, and of
every two of them, what `Spread` holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError
from reweigh.estimate.estimator import Recipe, Solution, overflow
from reweigh.estimate.influence import (
    Spread,
    behavior_values,
    gradient_of,
    influence_values,
    returns_of,
)
from reweigh.estimate.marginal import behavior_gradient, behavior_value
from reweigh.estimate.presets import wis
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
from reweigh.evaluation.data import LogData, RowsData, SumsData, scanned_sums, solve
from reweigh.log.log import EpisodeLog
from reweigh.policy import Policy, RememberedPolicy
from reweigh.sums.engines import ratios
from reweigh.sums.gather import gathered
from reweigh.sums.moments import Moments
from reweigh.sums.read import ScannedLog
from reweigh.trust.gates import Context, measured
from reweigh.trust.gates.episodes import Dependence
from reweigh.trust.gates.states import errors_apart
from reweigh.trust.intervals import IntervalRequest, Replicates, Uncertainty

Floats = npt.NDArray[np.float64]
BEHAVIOR, WIS = "the behaviour", "wis"
Column = Recipe | str  # an estimator of the evaluation, BEHAVIOR, or WIS
Pair = tuple[Column, Column | None]
OTHER_METHODS = ", or use method='analytic' or method='jackknife'"


@dataclass(frozen=True, eq=False)
class RowsInfluence:
    """From the rows of a log in memory; `solved` gives those of a solution that has them."""

    data: RowsData
    dropped: bool
    solved: dict[Column, Callable[[], Floats]] = field(default_factory=dict, repr=False)
    _psi: dict[Column, Floats] = field(default_factory=dict, repr=False)

    def values(self, column: Column) -> Floats:
        """(n,) ψ."""
        if column not in self._psi:
            self._psi[column] = self._values(column)
        return self._psi[column]

    def _values(self, column: Column) -> Floats:
        if column in self.solved:
            return self.solved[column]()
        log, target = self.data.rows(self.dropped)
        if column == BEHAVIOR:
            return behavior_values(log)
        recipe = wis() if isinstance(column, str) else column
        whole = not (recipe.uses_trajectories and log.n_truncated)
        sums = self.data.moments(recipe, self.dropped) if recipe.control is None and whole else None
        return influence_values(log, target, recipe, sums)

    def spread(self, column: Column, minus: Column | None = None) -> Spread:
        """Of ψ, or of the difference of two; RefusedError where an estimator has none."""
        psi = self.values(column)
        with np.errstate(over="ignore", invalid="ignore"):
            psi = psi if minus is None else psi - self.values(minus)
            return Spread.of(psi, self.data.rows(self.dropped)[0].steps.episode)

    def wis_value(self) -> float:
        return solve(self.data, wis(), self.dropped).solution.value


@dataclass(eq=False)
class ScanInfluence:
    """From a second scan of a log; `sums` are those of each estimator, of the first scan."""

    log: ScannedLog
    target: Policy
    sums: dict[Column, Moments] = field(default_factory=dict)
    _spreads: dict[Pair, Spread] = field(default_factory=dict, repr=False)
    _refused: dict[Column, RefusedError] = field(default_factory=dict, repr=False)

    def spread(self, column: Column, minus: Column | None = None) -> Spread:
        wanted = [column] if minus is None else [column, minus]
        for each in wanted:
            if (each, None) not in self._spreads and each not in self._refused:
                self._scan(each)
        for each in wanted:
            if each in self._refused:
                raise self._refused[each]
        if minus is not None and (minus, column) in self._spreads:
            return -self._spreads[minus, column]
        return self._spreads[column, minus]

    def wis_value(self) -> float:
        return wis().weights.solve(wis(), self._sums_of_wis(), errors=False).value

    def _sums_of_wis(self) -> Moments:
        if WIS not in self.sums:
            [self.sums[WIS]] = scanned_sums(self.log, self.target, [wis()])
        return self.sums[WIS]

    def _scan(self, wanted: Column) -> None:
        """ψ of all estimators and of the behaviour, part by part of the log; of WIS only where it
        is asked for."""
        from reweigh.sums.engines import second_scan

        if wanted == WIS:
            self._sums_of_wis()
        first, once = next(iter(self.sums.values())), RememberedPolicy(self.target)
        gradients: dict[Column, Any] = {}
        for column in (BEHAVIOR, *self.sums):
            try:
                gradients[column] = self._gradient(column, first)
            except RefusedError as error:
                self._refused[column] = error
        spreads: dict[Pair, Spread] = {}

        def visit(part: EpisodeLog) -> None:
            once.forget()
            psi = {
                column: self._gathered(column, of, part, once) for column, of in gradients.items()
            }
            differences: dict[Pair, Floats] = {
                (column, None): values for column, values in psi.items()
            }
            differences |= {(a, b): psi[a] - psi[b] for a, b in combinations(psi, 2)}
            for pair, values in differences.items():
                spread = Spread.of(values, part.steps.episode)
                spreads[pair] = spreads[pair] + spread if pair in spreads else spread

        def begin() -> Callable[[EpisodeLog], None]:
            spreads.clear()
            return visit

        second_scan.visit_episodes(self.log, self.target, first, begin)
        for column in gradients:
            if not np.isfinite(spreads[column, None].top):
                self._refused[column] = overflow()
        self._spreads.update(spreads)

    def _gradient(self, column: Column, sums: Moments) -> Any:
        """What is gathered over a part of the log. Of the behaviour's own value that is the mean
        return, or where episodes were cut off the gradient of the recursion with every ratio 1."""
        if column != BEHAVIOR:
            return gradient_of(wis() if isinstance(column, str) else column, self.sums[column])
        if not sums.truncated:
            mean = behavior_value(sums)
            if mean is None:
                raise RefusedError("no-behavior", "what the behaviour itself earned is not known")
            return mean
        if sums.transitions is None:
            raise RefusedError("missing-moments", "these sums hold no transitions")
        about, cells = sums.about, sums.transitions.forget("block")
        start, hidden = sums.start.forget("block"), sums.hidden
        of = behavior_gradient(cells, start, about.horizon, about.discount, hidden=hidden)
        return of.gradient

    def _gathered(self, column: Column, gradient: Any, part: EpisodeLog, target: Policy) -> Floats:
        if isinstance(gradient, float):
            return returns_of(part) - gradient
        if column == BEHAVIOR:
            return gathered(gradient, part, target, np.ones(part.steps.n_rows))
        rho = ratios(part, target, self.sums[column].about.max_ratio)[1]
        return gathered(gradient, part, target, rho)


def influences_of(data: LogData, dropped: bool) -> RowsInfluence | ScanInfluence | None:
    """Where the influence values come from: the rows, a second scan, or nothing."""
    if isinstance(data, SumsData):
        scan: ScanInfluence | None = data.influences
        return scan
    return data.once(("influence", dropped), partial(RowsInfluence, data, dropped))


@dataclass(frozen=True, eq=False)
class EstimateUncertainty(Uncertainty):
    """Of an estimate, from the data that it was computed from. What is made for an answer is kept:
    another level costs nothing."""

    data: LogData
    dropped: bool
    behavior_value: float | None
    _kept: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, data: LogData, recipe: Recipe, solution: Solution, dropped: bool, **known: Any
    ) -> EstimateUncertainty:
        """`known` are the fields that the solution alone does not tell."""
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

    def spread(self, minus: Column | None = None) -> Spread:
        """Of the estimate's influence values, or of their difference to others."""
        influences = influences_of(self.data, self.dropped)
        if influences is None:
            raise self._needs_rows("influence values are those of episodes", OTHER_METHODS)
        return influences.spread(self.recipe, minus)

    def influence(self) -> Floats:
        """(n,) ψ of the estimate, of a log in memory."""
        influences = influences_of(self.data, self.dropped)
        if not isinstance(influences, RowsInfluence):
            raise self._needs_rows("influence values are those of episodes", OTHER_METHODS)
        return influences.values(self.recipe)

    def rows(self, why: str, otherwise: str = "") -> tuple[EpisodeLog, Policy]:
        """The log and the target; refused where there are only sums."""
        if isinstance(self.data, SumsData):
            raise self._needs_rows(why, otherwise)
        return self.data.rows(self.dropped)

    def _needs_rows(self, why: str, otherwise: str) -> RefusedError:
        return RefusedError(
            "needs-log",
            f"{why}, and this estimate was made from sums, which hold no episodes: evaluate the "
            f"log in memory (engine='arrays'){otherwise}",
        )

    def cluster_error(self) -> float:
        error = self._clustered(self.spread())
        if nothing_left(error, self.value):
            raise RefusedError("no-error", "the episodes do not differ in their influence")
        return error

    def _clustered(self, psi: Spread) -> float:
        """SE² = mean(ψ²)/n, times m/(m - 1) with m the episodes that are summed: all, or those
        that a split leaves, the others having ψ = 0."""
        m = self.n_episodes
        if not math.isfinite(psi.square):
            raise RefusedError("no-error", OVERFLOW)
        return math.sqrt(psi.square * m / (m - 1))

    def joint_error(self, other: EstimateUncertainty) -> float | None:
        """Of the difference to another estimate on the same log: 0 where rounding alone is left of
        it, nan where they are not of the same episodes, None where it cannot be told."""
        try:
            own, others = self.spread(), other.spread()
            if own.n != others.n:
                return math.nan
            apart = self.spread(other.recipe)
        except RefusedError:
            return None
        if not apart.square > 1e-14 * (own.square + others.square):
            return 0.0
        return math.sqrt(apart.square * own.n / (own.n - 1))

    def errors_from_wis(self) -> float | None:
        """How far WIS, which needs no state, is from the value, in errors of the difference; None
        where it refuses, or only sums are at hand, which hold no joint error."""
        influences = influences_of(self.data, self.dropped)
        if influences is None:
            return None
        try:
            error = self._clustered(self.spread(WIS))
            return errors_apart(self.value, influences.wis_value(), error)
        except RefusedError:
            return None

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

        log, target = self.rows("the bootstrap draws episodes", OTHER_METHODS)
        kept: Replicates | None = self._kept.get("replicates")
        seed, count = wanted.seed, wanted.replicates
        if seed is None:
            seed = new_seed() if kept is None else kept.seed
        same = kept is not None and (kept.seed, len(kept)) == (seed, count)
        if kept is None or not same or (errors and kept.errors is None):
            pairs, threads = [(target, self.recipe)], wanted.threads
            kept = resample(log, pairs, count, seed=seed, errors=errors, threads=threads)
            self._kept["replicates"] = kept
        return kept

    def gain(self) -> Gain:
        """How much more than the behaviour the target earns. By the difference of the influence
        values, since both are estimated from the same episodes; from sums with the most that the
        error of the difference can be."""
        if self.n_episodes < 2:
            raise RefusedError("no-error", "one episode has no spread")
        if self.behavior_value is None:
            raise RefusedError(
                "no-behavior", "what the behaviour itself earned cannot be told from this log"
            )
        if self.has_influence:
            error = self._clustered(self.spread(BEHAVIOR))
            return paired(self.value, self.behavior_value, error, self.n_episodes)
        returns = error_of_returns(self.data.for_gates(self.recipe))
        own = self.interval("auto", IntervalRequest())
        if own is None and "jackknife" in self._kept:  # asked for, where the default tells nothing
            own = self.interval("jackknife", IntervalRequest())
        if own is None or own.standard_error is None or own.df is None:
            why = self.dependence() or self.error_method
            raise RefusedError("no-error", f"the value has no default interval: {why}")
        error, df = own.standard_error, own.df
        return bounded(self.value, error, df, self.behavior_value, returns, self.n_episodes)


def _freedom_of(recipe: Recipe, solution: Solution, n: int, in_memory: bool) -> Freedom | None:
    """The analytic error's: of the solution, or for means over episodes (IS, WIS, DR, WDR) the
    variance over n - 1, and as many degrees of freedom as the worst step has effective episodes,
    less 1 (at least 1). With n - 1 of them the weights would be taken for equal. None where the
    error is the jackknife's."""
    error = solution.standard_error
    if solution.freedom is not None or error is None or n < 2:
        return solution.freedom
    if recipe.weights.only_jackknife or (recipe.weights.error_by_blocks(recipe) and not in_memory):
        return None
    sizes = solution.ess[np.isfinite(solution.ess)]
    effective = min(float(sizes.min()), float(n)) if len(sizes) else float(n)
    return Freedom(error * math.sqrt(n / (n - 1)), max(effective - 1, 1.0))
