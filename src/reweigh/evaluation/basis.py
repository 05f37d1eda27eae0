"""Grounds: what an estimate rests on, kept so that it can be asked more: intervals by any method,
bounds, p-values. What is made for an answer is kept: another level costs nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError
from reweigh.estimate.direct import from_rows, state_values
from reweigh.estimate.estimator import Recipe, Solution
from reweigh.estimate.influence import Spread
from reweigh.estimate.replicates import jackknife_error
from reweigh.estimate.standard_error import (
    GONE,
    LEAST_BLOCKS,
    OVERFLOW,
    TOO_FEW,
    Freedom,
    error_of_blocks,
    nothing_left,
)
from reweigh.evaluation.influence_source import (
    BEHAVIOR,
    WIS,
    Column,
    InfluenceSource,
    RowsInfluence,
    ScanInfluence,
)
from reweigh.evaluation.inputs import Evidence
from reweigh.evaluation.resampling import Replicates, delete_blocks, new_seed, resample
from reweigh.log.log import EpisodeLog
from reweigh.policy.base import Policy
from reweigh.sums.moments import Moments
from reweigh.trust.gain import Gain, bounded, error_of_returns, paired
from reweigh.trust.gates import Context, GateResult, Verdict, measured
from reweigh.trust.gates.episodes import Dependence
from reweigh.trust.gates.states import errors_apart
from reweigh.trust.intervals import (
    Asked,
    Interval,
    Situation,
    auto_method,
    bootstrap_t,
    check_method,
    check_replicates,
    dependent,
    from_error,
    percentile,
    weights_freedom,
)

Floats = npt.NDArray[np.float64]
OTHER_METHODS = ", or use method='analytic' or method='jackknife'"


@dataclass(frozen=True, eq=False)
class Grounds:
    """The evidence behind an estimate, and what its solution says about its own error.

    error       the standard error, None where there is none, and `error_method` why
    freedom     the analytic error corrected for small samples, None without an analytic error
    note        what has to be said beside every interval
    by_blocks   makes the sums by blocks of episodes that the jackknife needs, where the log can
                be scanned again
    psi         the influence values, where the solution has them at hand
    scan        the influence values by a second scan, where the log can be scanned again
    """

    evidence: Evidence
    recipe: Recipe
    dropped: bool
    value: float
    behavior_value: float | None
    n_episodes: int
    worst_ess: float | None
    error: float | None
    error_method: str
    freedom: Freedom | None
    note: str = ""
    by_blocks: Callable[[], Moments] | None = None
    psi: Callable[[], Floats] | None = None
    scan: ScanInfluence | None = None
    _kept: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def influences(self) -> InfluenceSource | None:
        """Where the influence values come from: the rows, a second scan, or nothing."""
        if self.evidence.log is None:
            return self.scan
        if "rows" not in self._kept:
            at_hand: dict[Column, Callable[[], Floats]] = {}
            if self.psi is not None:
                at_hand[self.recipe] = self.psi
            self._kept["rows"] = RowsInfluence(self.evidence, self.dropped, at_hand)
        rows: RowsInfluence = self._kept["rows"]
        return rows

    def spread(self, minus: Column | None = None) -> Spread:
        """Of the estimate's influence values, or of their difference to others."""
        if self.influences is None:
            self.rows("influence values are those of episodes", OTHER_METHODS)  # refuses
        assert self.influences is not None
        return self.influences.spread(self.recipe, minus)

    def moments(self) -> Moments:
        """The sums; where the estimate was made without them, they are made now."""
        return self.evidence.all_moments(self.recipe, dropped=self.dropped)

    def verdict(self, own: tuple[GateResult, ...], refused: str | None = None) -> Verdict:
        """The worst of the gates of the solution and of those that read sums; `refused` is why the
        interval that was asked for is not there."""
        return Verdict((*own, *measured("sums", self.context(refused))))

    def context(self, refused: str | None = None) -> Context:
        """What gates that read sums may look at."""
        with np.errstate(over="ignore", invalid="ignore"):  # gates say what overflows
            sums = self.evidence.for_gates(self.recipe, dropped=self.dropped)
        log = self.evidence.log
        return Context(
            sums,
            self.recipe,
            data=None if log is None else self.evidence.rows(self.dropped)[0],
            error=self.error,
            error_method=self.error_method,
            has_interval=self.n_episodes < 2 or auto_method(self.situation()) is not None,
            refused=refused,
            spread=None if self.influences is None else self.spread,
            apart_from_wis=self._apart_from_wis,
            state_values=self._state_values(),
            shared=self.evidence.measured.setdefault(id(sums), {}),
        )

    def _state_values(self) -> Callable[[], tuple[Floats, Floats]] | None:
        """V_t(s) from the rows, where the recursions of MIS run over them."""
        if self.evidence.log is None:
            return None
        log, target = self.evidence.rows(self.dropped)
        return partial(state_values, log, target, self.recipe.max_ratio) if from_rows(log) else None

    def _dependence(self) -> tuple[GateResult, ...]:
        """Whether the sums say that episodes depend on more than the state; with influence values
        there is an error that does not mind (`_dependent`)."""
        if self.influences is not None:
            return ()
        return measured("sums", self.context(), (Dependence(),))

    def _apart_from_wis(self) -> float | None:
        """How far WIS, which needs no state, is from the value, in errors of the difference; None
        where it refuses, or only sums are at hand, which hold no joint error."""
        if self.influences is None:
            return None
        try:
            error = self._clustered(self.spread(WIS))
            return errors_apart(self.value, self.influences.wis_value(), error)
        except RefusedError:
            return None

    def rows(self, why: str, otherwise: str = "") -> tuple[EpisodeLog, Policy]:
        """The log and the target; refused where there are only sums."""
        if self.evidence.log is None:
            raise RefusedError(
                "needs-log",
                f"{why}, and this estimate was made from sums, which hold no episodes: evaluate "
                f"the log in memory (engine='arrays'){otherwise}",
            )
        return self.evidence.rows(self.dropped)

    def interval(
        self, asked: Asked, method: str, replicates: int, seed: int | None, threads: int = 1
    ) -> Interval | None:
        """None where there is one episode, or where `auto` finds no method."""
        resampled = check_method(method) in ("percentile", "bootstrap-t")
        if resampled:
            check_replicates(replicates, asked.level)
        if self.n_episodes < 2:
            return None
        if method == "auto":
            chosen = auto_method(self.situation())
            if chosen is None:
                return None
            if chosen == "analytic" and self._dependence():
                return None
            method = "cluster" if chosen == "analytic" and self._dependent() else chosen
            try:
                self.error_and_df(method)
            except RefusedError:  # nothing is left to choose from
                return None
        if resampled:
            found = self._from_replicates(asked, method, replicates, seed, threads)
        else:
            found = from_error(self.value, *self.error_and_df(method), asked, self._text(method))
        return replace(found, method=found.method + self.note)

    def _dependent(self) -> bool:
        """Whether the error that takes the state for all that matters is too small."""
        if self.influences is None or self.recipe.uses_trajectories or self.freedom is None:
            return False
        try:
            return dependent(self.freedom.error, self.error_and_df("cluster")[0])
        except RefusedError:
            return False

    def situation(self) -> Situation:
        """What there is, told without computing anything. An error that rounding or an overflow
        has eaten is none, and no other method would tell more."""
        by_blocks = self.error_method.startswith("jackknife (")
        no_blocks = self.error_method.startswith((TOO_FEW, GONE))
        return Situation(
            self.recipe.name,
            self.n_episodes,
            self.worst_ess,
            analytic=self.error is not None and self.freedom is not None,
            jackknife=self.error is not None and by_blocks,
            cluster=no_blocks and self.influences is not None,
        )

    def error_and_df(self, method: str) -> tuple[float, float]:
        """The standard error by this method and its degrees of freedom."""
        if method == "analytic":
            if self.error is None or self.freedom is None:
                raise self._no_error()
            return self.freedom.error, self.freedom.df
        if method == "cluster":
            error = self._clustered(self.spread())
            if nothing_left(error, self.value):
                raise RefusedError("no-error", "the episodes do not differ in their influence")
            return error, self.n_episodes - 1
        error_of, blocks = self.jackknife()
        return error_of, blocks - 1

    def _no_error(self) -> RefusedError:
        if self.error is None:
            return RefusedError("no-error", f"there is no standard error: {self.error_method}")
        return RefusedError(
            "no-error",
            f"{self.recipe.name} has no analytic error here, only that of the jackknife; use "
            "method='jackknife'",
        )

    def _text(self, method: str) -> str:
        return f"jackknife ({self.jackknife()[1]} blocks)" if method == "jackknife" else method

    def _clustered(self, psi: Spread) -> float:
        """SE² = mean(ψ²)/n, times m/(m - 1) with m the episodes that are summed: all, or those
        that a split leaves, the others having ψ = 0."""
        m = self.n_episodes
        if not math.isfinite(psi.square):
            raise RefusedError("no-error", OVERFLOW)
        return math.sqrt(psi.square * m / (m - 1))

    def influence(self) -> Floats:
        """(n,) ψ of the estimate, of a log in memory."""
        self.rows("influence values are those of episodes", OTHER_METHODS)
        assert isinstance(self.influences, RowsInfluence)
        return self.influences.values(self.recipe)

    def joint_error(self, other: Grounds) -> float | None:
        """Of the difference to another estimate on the same log: 0 where rounding alone is left of
        it, nan where they are not of the same episodes, None where it cannot be told."""
        try:
            own, others = self.spread(), other.spread()
            if own.n != others.n:
                return math.nan
            if self.evidence.log is None:
                apart = self.spread(other.recipe)
            else:
                with np.errstate(over="ignore", invalid="ignore"):
                    difference = self.influence() - other.influence()
                apart = Spread.of(difference, self.evidence.rows(self.dropped)[0].steps.episode)
        except RefusedError:
            return None
        if not apart.square > 1e-14 * (own.square + others.square):
            return 0.0
        return math.sqrt(apart.square * own.n / (own.n - 1))

    def jackknife(self) -> tuple[float, int]:
        """The standard error by deleting blocks of episodes, and the number of blocks."""
        if "jackknife" not in self._kept:
            self._kept["jackknife"] = self._jackknife()
        error, method, blocks = self._kept["jackknife"]
        if error is None:
            raise RefusedError("no-error", method)
        return error, blocks

    def _jackknife(self) -> tuple[float | None, str, int]:
        if self.evidence.log is not None:
            log, target = self.evidence.rows(self.dropped)
            deleted = delete_blocks(log, [(target, self.recipe)])
            without, sizes = deleted.values[:, 0], deleted.sizes
            return *error_of_blocks(self.value, without, sizes, deleted.reasons[0]), len(sizes)
        sums = self.evidence.moments(self.recipe)
        if self.by_blocks is not None and len(sums.block_sizes()[0]) < LEAST_BLOCKS:
            sums = self.by_blocks()
        found = jackknife_error(self.recipe, sums, self.value)
        return *found, len(sums.block_sizes()[0])

    def replicates(
        self, count: int, seed: int | None, *, errors: bool, threads: int = 1
    ) -> Replicates:
        """So many replicates; those made before serve again, without a seed also theirs."""
        log, target = self.rows("the bootstrap draws episodes", OTHER_METHODS)
        kept: Replicates | None = self._kept.get("replicates")
        if seed is None:
            seed = new_seed() if kept is None else kept.seed
        if (
            kept is not None
            and (kept.seed, len(kept)) == (seed, count)
            and (kept.errors is not None or not errors)
        ):
            return kept
        made = resample(
            log, [(target, self.recipe)], count, seed=seed, errors=errors, threads=threads
        )
        self._kept["replicates"] = made
        return made

    def _from_replicates(
        self, asked: Asked, method: str, count: int, seed: int | None, threads: int
    ) -> Interval:
        studentised = method == "bootstrap-t"
        if studentised and self.error is None:
            raise self._no_error()
        made = self.replicates(count, seed, errors=studentised, threads=threads)
        values, reasons = made.values[:, 0], made.reasons[0]
        if not studentised:
            return percentile(values, made.seed, reasons, asked)
        assert self.error is not None
        assert made.errors is not None
        errors = made.errors[:, 0]
        return bootstrap_t(self.value, self.error, values, errors, made.seed, reasons, asked)

    def gain(self) -> Gain:
        """How much more than the behaviour the target earns. By the difference of the
        influence values, since both are estimated from the same episodes; from sums with the most
        that the error of the difference can be."""
        if self.n_episodes < 2:
            raise RefusedError("no-error", "one episode has no spread")
        if self.behavior_value is None:
            raise RefusedError(
                "no-behavior", "what the behaviour itself earned cannot be told from this log"
            )
        if self.influences is None:
            return self._bounded_gain(self.behavior_value)
        error = self._clustered(self.spread(BEHAVIOR))
        return paired(self.value, self.behavior_value, error, self.n_episodes)

    def _bounded_gain(self, behavior: float) -> Gain:
        returns = error_of_returns(self.evidence.for_gates(self.recipe))
        own = self.interval(Asked(), "auto", 0, None)
        if own is None and "jackknife" in self._kept:  # asked for, where the default tells nothing
            own = self.interval(Asked(), "jackknife", 0, None)
        if own is None or own.standard_error is None or own.df is None:
            why = [gate.text for gate in self._dependence()] or [self.error_method]
            raise RefusedError("no-error", f"the value has no default interval: {why[0]}")
        error, df = own.standard_error, own.df
        return bounded(self.value, error, df, behavior, returns, self.n_episodes)


def freedom_of(recipe: Recipe, solution: Solution, n: int, in_memory: bool) -> Freedom | None:
    """The analytic error's: of the solution, or of a mean over episodes; None where the error is
    the jackknife's."""
    if solution.freedom is not None:
        return solution.freedom
    by_blocks = recipe.weights.error_by_blocks(recipe)
    if solution.standard_error is None or n < 2 or recipe.weights.only_jackknife:
        return None
    if by_blocks and not in_memory:
        return None
    return weights_freedom(solution.standard_error, n, solution.ess)
