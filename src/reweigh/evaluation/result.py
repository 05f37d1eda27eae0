"""What comes out: Estimate and its parts. They print themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError, check_threads, must_be
from reweigh.estimate.standard_error import Gain
from reweigh.show.record import (
    NO_TRUST,
    Diagnostics,
    Evaluation,
    frame_of,
    rows_frame,
    value_text,
)
from reweigh.show.text import aligned, evaluation_lines, html_table
from reweigh.system import number, rounded, two_digits
from reweigh.trust.gates import Context, Verdict, measured
from reweigh.trust.intervals import Auto, Interval, IntervalRequest, scale_for

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from reweigh.estimate.estimator import Nodes, Recipe
    from reweigh.estimate.solution import DenseNodes
    from reweigh.evaluation.report import Plots
    from reweigh.evaluation.sensitivity import Sensitivity
    from reweigh.evaluation.uncertainty import EstimateUncertainty
    from reweigh.log.states import Labels
    from reweigh.sums.moments import Moments
    from reweigh.trust.gates import GateResult, Verdict

Floats = npt.NDArray[np.float64]
NOT_TO_TRUST = f"{NO_TRUST}; see certify() for a bound that holds"
OF_THE_WEIGHTS = ("effective size", "heaviest episode")  # gates
__all__ = [
    "Diagnostics",
    "Estimate",
    "Gain",
    "Interval",
    "Marginals",
    "Refusal",
    "number",
    "rounded",
    "two_digits",
]


@dataclass(frozen=True, eq=False)
class Marginals:
    """Where the target goes and where the log went: one entry per (step, state) reached.

    step              the step            codes   of the states, in `labels`
    target, behavior  d_t^π(s) and d_t^μ(s)
    """

    by_node: Nodes | DenseNodes
    labels: Labels
    horizon: int

    @cached_property
    def step(self) -> npt.NDArray[np.int64]:
        return self._inside(self.by_node.made.t)

    @cached_property
    def codes(self) -> npt.NDArray[np.int64]:
        return self._inside(self.by_node.made.s)

    @cached_property
    def target(self) -> Floats:
        return self._inside(self.by_node.made.target)

    @cached_property
    def behavior(self) -> Floats:
        return self._inside(self.by_node.made.behavior)

    def _inside(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Those of the steps before the horizon."""
        return values[self.by_node.made.t < self.horizon]

    @cached_property
    def state(self) -> list[str]:
        """The states' names."""
        codes = self.codes.tolist()
        names = {code: self.labels.name(code) for code in set(codes)}
        return [names[code] for code in codes]

    @property
    def weight(self) -> Floats:
        """w_t(s) = d_t^π(s)/d_t^μ(s), nan where the log has no row."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.behavior > 0, self.target / self.behavior, np.nan)

    def __repr__(self) -> str:
        return f"Marginals({len(self.step):,} (step, state) pairs)"


@dataclass(frozen=True, eq=False)
class Estimate:
    """What the target policy would have earned, and how far to trust it."""

    value: float
    standard_error: float | None
    error_method: str  # how the error was computed, or why there is none
    recipe: Recipe
    n_episodes: int
    horizon: int
    discount: float
    behavior_value: float | None
    per_step: Floats | None
    marginals: Marginals | None
    diagnostics: Diagnostics
    uncertainty: EstimateUncertainty
    gates: tuple[GateResult, ...]  # those of its own numbers; the verdict has the log's as well
    warnings: tuple[Warning, ...] = field(default=())
    chosen: str | None = None  # why "auto" took this estimator
    no_interval: str | None = None  # why the interval that was asked for was refused

    @cached_property
    def moments(self) -> Moments:
        """The sums behind the estimate; where it was made without them, they are made now."""
        of = self.uncertainty
        return of.data.all_moments(self.recipe, of.dropped)

    @property
    def sql(self) -> str | None:
        """The queries that made these sums, one after another, each below a comment that names
        its table; None where no SQL was run (arrays, streams, moments from a file)."""
        stored = getattr(self.uncertainty.data, "stored", None)
        return None if stored is None else stored.sql

    @cached_property
    def verdict(self) -> Verdict:
        """green, amber or red, with the reasons: the gates of the estimate's own numbers and of
        the log and target (propensities, history, drift, the weights' tail), which are made when
        the verdict is first asked for. Never green without the interval that was asked for."""
        return Verdict((*self.gates, *measured("sums", self.context())))

    def context(self) -> Context:
        """What gates that read sums may look at."""
        of = self.uncertainty
        with np.errstate(over="ignore", invalid="ignore"):  # gates say what overflows
            sums = of.data.for_gates(self.recipe, of.dropped)
        return Context(
            sums,
            self.recipe,
            data=of.data.log_used(of.dropped),
            error=of.error,
            error_method=of.error_method,
            has_interval=self.n_episodes < 2 or Auto().choice(of) is not None,
            refused=self.no_interval,
            spread=of.spread if of.has_influence else None,
            apart_from_wis=of.errors_from_wis,
            state_values=of.data.state_values(self.recipe, of.dropped),
            shared=of.data.once(("gates", id(sums)), dict[str, Any]),
        )

    @property
    def estimator(self) -> str:
        return self.recipe.name

    def interval(
        self,
        level: float = 0.95,
        method: str = "auto",
        *,
        replicates: int = 1999,
        seed: int | None = None,
        value_range: tuple[float, float] | None = None,
        threads: int = 1,
    ) -> Interval | None:
        """A confidence interval. None with one episode, or where `auto` finds no method; a method
        that was asked for and cannot answer raises RefusedError with the reason.

        analytic     value ± t SE: the variances within cells over N - 1, Student's t with the
                     degrees of freedom of Welch and Satterthwaite (of estimators with running
                     products: the worst effective number of episodes, less 1)
        cluster      the same with the influence values of the episodes, t with n - 1
        jackknife    the same by deleting blocks of episodes, t with the blocks less 1
        percentile   resampling episodes and running the whole estimator again
        bootstrap-t  the same, each replicate divided by its own error
        auto         see `reweigh.trust.intervals.Auto`

        `replicates` (at least 20/(1 - level), less 1) and `seed` are for resampling: they are
        kept, so that another level costs nothing, and without a seed one is drawn and told in the
        interval's `method`. `value_range` are the ends between which the value is known to lie.
        Intervals are asymptotic; `rw.certify` gives bounds that are not.
        """
        ends = value_range, scale_for(self.recipe)
        wanted = IntervalRequest(level, "both", *ends, replicates, seed, check_threads(threads))
        return self.uncertainty.interval(method, wanted)

    def bound(
        self,
        side: Literal["lower", "upper"],
        level: float = 0.95,
        method: str = "auto",
        *,
        replicates: int = 1999,
        seed: int | None = None,
        value_range: tuple[float, float] | None = None,
        threads: int = 1,
    ) -> Interval | None:
        """A one-sided bound at this level, as an interval whose other end is infinite."""
        ends = value_range, scale_for(self.recipe)
        wanted = IntervalRequest(level, side, *ends, replicates, seed, check_threads(threads))
        return self.uncertainty.interval(method, wanted)

    def error_beside(self, interval: Interval | None) -> float | None:
        """The error to tell beside an interval: that of the episodes, where this made it wider
        than the state would have it."""
        ways = ("cluster", "jackknife")
        by_episodes = interval is not None and interval.method.startswith(ways)
        if interval is not None and by_episodes and self.standard_error is not None:
            return interval.standard_error
        return self.standard_error

    @property
    def trusted(self) -> bool:
        """Whether its error may be shown. Not that of IS and WIS where too few episodes hold the
        weight: then their intervals are narrow and wrong, and only a bound that holds for every
        number of episodes (`rw.certify`) says anything."""
        if not self.recipe.uses_trajectories or self.recipe.control is not None:
            return True
        return not any(g.level == "red" and g.name in OF_THE_WEIGHTS for g in self.gates)

    @property
    def not_to_trust(self) -> str:
        """What is said in place of its interval where that is not to be trusted."""
        return NOT_TO_TRUST if self.uncertainty.data.certifiable else NO_TRUST

    def p_value(self) -> float:
        """p of "the target is not better than the behaviour", one-sided: small where it is. See
        `gain`."""
        return self.gain().p_value

    def gain(self) -> Gain:
        """How much more than the behaviour the target earns, with its error and p-value.

        From rows the difference is paired, since both values come from the same episodes. From
        sums (moments, Spark, warehouses) its error is at most that of both values together, and
        the p-value is the largest that this allows (`Gain.at_most`). RefusedError where there is
        no error, or the sums do not tell how much the returns spread.
        """
        return self.uncertainty.gain()

    def gain_or_why(self) -> Gain | RefusedError:
        """The same, with the refusal as a value."""
        try:
            return self.gain()
        except RefusedError as error:
            return error

    def sensitivity(self) -> Sensitivity:
        """How far the number moves when a choice behind it is changed: ratios clipped, the
        episodes that matter most left out, fewer steps, coarser and finer states."""
        from reweigh.evaluation.evaluate import evaluate_all
        from reweigh.evaluation.sensitivity import of_log

        log, target = self.uncertainty.rows("sensitivity changes the log")
        return of_log(log, target, self.recipe, evaluate_all)

    @cached_property
    def plot(self) -> Plots:
        """Charts: `est.plot.forest()`, `.gains()`, `.weights()`, `.marginals()`, `.value()`,
        `.variance()`, `.sensitivity()`; `est.plot.save(chart, path)` writes one."""
        from reweigh.evaluation.report import Plots

        return Plots(self)

    def report(
        self,
        path: str | Path,
        *,
        beside: Sequence[Estimate | Refusal] = (),
        title: str | None = None,
        overwrite: bool = False,
    ) -> Path:
        """Write a report as one HTML file that needs nothing else: the answer and its verdict,
        what they rest on, and how they were computed. `beside` are other estimators' results on
        the same log, as `evaluate_all` gives them."""
        from reweigh.evaluation.report import write_report

        results = [self, *(result for result in beside if result is not self)]
        return write_report(results, path, main=self, title=title, overwrite=overwrite)

    def record(self) -> Evaluation:
        """What every face shows of it, with its default interval."""
        return self.record_with(self.interval())

    def record_with(self, interval: Interval | None) -> Evaluation:
        """The same with this interval."""
        untrusted = "" if self.trusted else self.not_to_trust
        none = self.no_interval or self.error_method
        return Evaluation(
            label=self.estimator,
            recipe=self.recipe,
            n_episodes=self.n_episodes,
            horizon=self.horizon,
            discount=self.discount,
            value=self.value,
            standard_error=self.standard_error,
            error=self.error_beside(interval),
            error_method=self.error_method,
            interval=interval,
            untrusted=untrusted,
            no_interval=none if interval is None else untrusted,
            behavior_value=self.behavior_value,
            verdict=self.verdict,
            diagnostics=self.diagnostics,
            per_step=self.per_step,
            warnings=self.warnings,
            chosen=self.chosen,
            sql=self.sql,
        ).with_gain(self.gain_or_why())

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `reweigh evaluate --json` prints them."""
        return self.record().to_dict()

    def to_frame(self, by: Literal["estimate", "step", "state", "gate"] = "estimate") -> Any:
        """A pandas DataFrame, or an Arrow table where pandas is not installed: the estimate as one
        row; or a row per step, per step and state (where the estimator has a distribution of
        states), or per gate."""
        if by == "estimate":
            return rows_frame([self.record().row()])
        if by == "gate":
            return rows_frame([gate.to_dict() for gate in self.verdict.gates])
        if by == "step":
            return self.diagnostics.frame(self.per_step)
        if by != "state":
            raise must_be("by", '"estimate", "step", "state" or "gate"', by)
        m = self.marginals
        if m is None:
            raise RefusedError("no-states", f"{self.estimator} has no distribution of states")
        names = ("step", "state", "target", "behavior", "weight")
        return frame_of({name: getattr(m, name) for name in names})

    def value_text(self, error: float | None) -> str:
        """The value as it is printed beside this error."""
        return value_text(self.value, error, self.warnings)

    def rows(self) -> list[tuple[str, str]]:
        """What is printed, as (label, text)."""
        return evaluation_lines(self.record())

    def __str__(self) -> str:
        return "\n".join([self.estimator, *aligned(self.rows(), indent="  ")])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self.estimator, self.rows())


@dataclass(frozen=True, eq=False)
class Refusal:
    """An estimator that gave no answer, and why."""

    recipe: Recipe
    error: RefusedError
    n_episodes: int
    horizon: int

    @property
    def estimator(self) -> str:
        return self.recipe.name

    def record(self) -> Evaluation:
        """What every face shows of it."""
        return Evaluation(
            self.estimator, self.recipe, self.n_episodes, self.horizon, refused=self.error
        )

    def record_with(self, interval: Interval | None) -> Evaluation:
        """The same: a refusal has no interval."""
        return self.record()

    def to_dict(self) -> dict[str, Any]:
        return self.record().to_dict()
