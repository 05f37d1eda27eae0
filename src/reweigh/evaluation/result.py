"""The results of an evaluation: Estimate and its parts. Their repr is the report."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError, check_threads, hints, must_be
from reweigh.estimate.standard_error import Gain, scale_for
from reweigh.show.first_screen import Estimated, evaluation_text, policy_in_words
from reweigh.show.record import (
    NO_TRUST,
    PER_EPISODE,
    Beside,
    Diagnostics,
    Evaluation,
    error_beside,
    value_text,
)
from reweigh.show.text import evaluation_lines
from reweigh.system import number, rounded, two_digits
from reweigh.trust.gates import Context, Verdict, measured
from reweigh.trust.intervals import Auto, Interval, IntervalRequest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from reweigh.estimate.estimator import Nodes, Recipe
    from reweigh.estimate.solution import DenseNodes
    from reweigh.evaluation.groups import Groups
    from reweigh.evaluation.memories import Memories
    from reweigh.evaluation.report import Plots
    from reweigh.evaluation.sensitivity import Sensitivity
    from reweigh.evaluation.uncertainty import EstimateUncertainty
    from reweigh.log.states import Labels
    from reweigh.show.confounding import Confounding
    from reweigh.sums.moments import Moments
    from reweigh.system.frames import FrameKind
    from reweigh.trust.gates import GateResult, Verdict

Floats = npt.NDArray[np.float64]
NOT_TO_TRUST = f"{NO_TRUST}; see certify() for a bound that holds"
By = Literal["estimate", "step", "state", "gate"]
GAMMAS = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0)  # by how much odds may be off
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
    """State distributions of target and log: one entry per (step, state) reached.

    step              the step            codes   of the states, in `labels`
    target, behavior  d_t^π(s) and d_t^μ(s)
    """

    by_node: Nodes | DenseNodes
    labels: Labels
    horizon: int

    @cached_property
    def step(self) -> npt.NDArray[np.int64]:
        return self._inside(self.by_node.nodes.t)

    @cached_property
    def codes(self) -> npt.NDArray[np.int64]:
        return self._inside(self.by_node.nodes.s)

    @cached_property
    def target(self) -> Floats:
        return self._inside(self.by_node.nodes.target)

    @cached_property
    def behavior(self) -> Floats:
        return self._inside(self.by_node.nodes.behavior)

    def _inside(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Those of the steps before the horizon."""
        return values[self.by_node.nodes.t < self.horizon]

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
class Estimate(Estimated):
    """The estimated value of the target policy, with its interval and verdict."""

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
    gates: tuple[GateResult, ...]  # those that read the solution; the verdict adds those of the log
    warnings: tuple[Warning, ...] = field(default=())
    chosen: str | None = None  # why "auto" took this estimator
    memories: Memories | None = None  # what was tried to choose its memory
    no_interval: str | None = None  # why the requested interval was refused
    beside: tuple[Estimate | Refusal, ...] = ()  # of the default: the paper's mis, and wis

    @cached_property
    def moments(self) -> Moments:
        """The sums behind the estimate, made now if it was made without them."""
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
        """green, amber or red, with the reasons: the gates of the estimate's own numbers and of the
        log and target (propensities, history, drift, the weights' tail), which are computed when
        the verdict is first read. Never green without the requested interval."""
        return Verdict((*self.gates, *measured("sums", self.context())))

    def context(self) -> Context:
        """What gates that read sums read."""
        of = self.uncertainty
        with np.errstate(over="ignore", invalid="ignore"):  # gates report overflows
            weights = self.recipe.weights
            kinds = weights.kinds if "action groups" in self.recipe.traits else ()
            sums = weights.regrouped(of.data.for_gates(self.recipe, of.dropped, *kinds))
        return Context(
            sums,
            self.recipe,
            data=of.data.log_used(of.dropped),
            error=of.error,
            error_method=of.error_method,
            has_interval=self.n_episodes < 2 or Auto().choice(of) is not None,
            refused=self.no_interval,
            spread=of.spread if of.has_influence else None,
            clusters=of.clusters,
            beside_longer_memories=cache(of.beside_longer_memories),
            state_values=None if kinds else of.data.state_values(self.recipe, of.dropped),
            nodes=None if self.marginals is None else self.marginals.by_node,
            reward_range=of.data.reward_range,
            includes_fit=of.note.startswith("; includes"),
            with_model=lambda: weights.regrouped(
                of.data.for_gates(self.recipe, of.dropped, "model")
            ),
            with_rewards=None if kinds else of.data.with_rewards(self.recipe, of.dropped),
            shared=of.data.once(("gates", id(sums)), dict[str, Any]),
        )

    @property
    def estimator(self) -> str:
        return self.recipe.name

    @hints
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
        """A confidence interval: `low, high = est.interval()`. None with one episode, or where
        `auto` finds no method; a requested method without an interval raises RefusedError with the
        reason.

        analytic     value ± t SE: the variances within cells over N - 1, Student's t with the
                     degrees of freedom of Welch and Satterthwaite (of estimators with running
                     products: the worst effective number of episodes, less 1)
        cluster      the same with the influence values of the episodes, t with n - 1
        jackknife    the same by deleting blocks of episodes, t with the blocks less 1
        percentile   resampling episodes and running the whole estimator again
        bootstrap-t  the same, each replicate divided by its own error
        auto         see `reweigh.trust.intervals.Auto`

        `replicates` (at least 20/(1 - level), less 1) and `seed` are for resampling: they are kept,
        so another level costs nothing; without a seed one is drawn and named in the interval's
        `method`. `value_range` is that of the value (default: what `reward_range` allows);
        intervals are asymptotic, the bounds of `rw.certify` are not.
        """
        ends = value_range or self.uncertainty.value_range, scale_for(self.recipe)
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
        ends = value_range or self.uncertainty.value_range, scale_for(self.recipe)
        wanted = IntervalRequest(level, side, *ends, replicates, seed, check_threads(threads))
        return self.uncertainty.interval(method, wanted)

    def error_beside(self, interval: Interval | None) -> float | None:
        """The standard error to print beside an interval: that of the episodes, if it made the
        interval wider."""
        return error_beside(self.standard_error, interval)

    @property
    def trusted(self) -> bool:
        """Whether its standard error may be shown: not if the verdict is red. Then intervals can be
        narrow and wrong, and only a bound that holds for every number of episodes (`rw.certify`) is
        valid."""
        return self.verdict.level != "red"

    @property
    def not_to_trust(self) -> str:
        """The text in place of an interval that is not reliable."""
        return NOT_TO_TRUST if self.uncertainty.data.certifiable else NO_TRUST

    def p_value(self) -> float:
        """p of "the target is not better than the behavior", one-sided: small where it is. See
        `gain`."""
        return self.gain().p_value

    def gain(self) -> Gain:
        """How much more than the behavior the target earns, with its error and p-value.

        From rows the difference is paired, since both values come from the same episodes. From
        sums (moments, Spark, warehouses) its error is at most that of both values together, and
        the p-value is the largest that this allows (`Gain.at_most`). RefusedError where there is
        no error, or the sums do not include the variance of the returns.
        """
        return self.uncertainty.gain()

    def gain_or_why(self) -> Gain | RefusedError:
        """The same, with the refusal as a value."""
        try:
            return self.gain()
        except RefusedError as error:
            return error

    def by(self, column: str, level: float = 0.95) -> Groups:
        """The estimate by groups of episodes: value, gain and verdict for every value of a column
        in the first row of the episodes (of the state, or any other column of the log). Intervals
        hold together at `level`."""
        from reweigh.evaluation.evaluate import evaluate_all
        from reweigh.evaluation.groups import by_groups

        return by_groups(self, column, level, evaluate_all)

    def sensitivity(self) -> Sensitivity:
        """How far the number moves when a choice behind it is changed: ratios clipped, the
        episodes that matter most left out, fewer steps, coarser and finer states."""
        from reweigh.evaluation.evaluate import evaluate_all
        from reweigh.evaluation.sensitivity import of_log

        log, target = self.uncertainty.rows("sensitivity needs a log that can be changed")
        return of_log(log, target, self.recipe, evaluate_all)

    def confounding(self, gammas: Sequence[float] = GAMMAS) -> Confounding:
        """Bounds on the value if hidden causes moved the logged actions: for each Γ of `gammas`,
        their true odds may be up to Γ times the logged ones, or as many times smaller. Also the Γ
        from which a gain, or a loss, against the behavior may be none. The bounds are those of a
        model (`dm`), which Γ = 1 gives."""
        from reweigh.evaluation.confounding import of_estimate

        return of_estimate(self.uncertainty, gammas)

    @cached_property
    def plot(self) -> Plots:
        """Charts: `est.plot.forest()`, `.gains()`, `.weights()`, `.marginals()`, `.value()`,
        `.variance()`, `.sensitivity()`, `.confounding()`. `est.plot.save(chart, path)` saves."""
        from reweigh.evaluation.report import Plots

        return Plots(self)

    def report(
        self,
        path: str | Path,
        *,
        beside: Sequence[Estimate | Refusal] = (),
        title: str | None = None,
        unit: str = PER_EPISODE,
        by: str | None = None,
        overwrite: bool = False,
    ) -> Path:
        """Write a report as one self-contained HTML file: the answer, its verdict, the data behind
        them, and how they were computed. `beside` are other estimators' results on the same log, as
        `evaluate_all` gives them (default: those beside the answer); `unit` is what the value is
        per, such as "per patient"; `by` is a column of groups, see `by()`."""
        from reweigh.evaluation.report import write_report

        results = [self, *(result for result in beside or self.beside if result is not self)]
        groups = None if by is None else self.by(by).table()
        parts: dict[str, Any] = {"main": self, "title": title, "unit": unit, "groups": groups}
        return write_report(results, path, overwrite=overwrite, **parts)

    def record(self) -> Evaluation:
        """The record that text, JSON and HTML render, with its default interval."""
        return self.record_with(self.interval())

    def record_with(self, interval: Interval | None) -> Evaluation:
        """The same with this interval."""
        untrusted = "" if self.trusted else self.not_to_trust
        none = self.no_interval or self.error_method
        data, beside = self.uncertainty.data, tuple[Beside, ...]()
        if self.beside:
            from reweigh.evaluation.beside import differences

            beside = differences(self, self.beside)
        about = data.for_gates(self.recipe, self.uncertainty.dropped).about
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
            memory=None if self.memories is None else self.memories.to_dict(),
            beside=beside,
            sql=self.sql,
            policy=policy_in_words("" if data.target is None else data.target.name),
            state_columns=about.state_columns,
            abstraction=about.abstraction,
        ).with_gain(self.gain_or_why())

    def tried(self, beside: Sequence[Estimate | Refusal] = ()) -> tuple[Evaluation, ...]:
        """Where the verdict is red: what its advice names and nobody has tried, evaluated on the
        same log in memory, so that no advice leads to an estimator that cannot answer either."""
        if self.verdict.level != "red":
            return ()
        from reweigh.evaluation.beside import tried
        from reweigh.evaluation.evaluate import evaluate_all

        return tried(self, beside, evaluate_all)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `reweigh evaluate --json` prints them."""
        return self.record().to_dict()

    def to_frame(self, kind: FrameKind | By | None = None, by: By = "estimate") -> Any:
        """The estimate as one row; or a row per step, per step and state (where the estimator has
        a distribution of states), or per gate. `kind` is "pandas", "polars" or "arrow"; without it
        pandas, or Arrow where pandas is not installed."""
        from reweigh.system.frames import KINDS, frame_of, rows_frame

        if kind is not None and kind not in KINDS:  # to_frame("step")
            return self.to_frame(None, cast("By", kind))
        kind = cast("FrameKind | None", kind)
        if by == "estimate":
            return rows_frame([self.record().row()], kind)
        if by == "gate":
            return rows_frame([gate.to_dict() for gate in self.verdict.gates], kind)
        if by == "step":
            return self.diagnostics.frame(self.per_step, kind)
        if by != "state":
            raise must_be("by", '"estimate", "step", "state" or "gate"', by)
        m = self.marginals
        if m is None:
            raise RefusedError("no-states", f"{self.estimator} has no state distribution")
        names = ("step", "state", "target", "behavior", "weight")
        return frame_of({name: getattr(m, name) for name in names}, kind)

    def value_text(self, error: float | None) -> str:
        """The value as it is printed beside this error."""
        return value_text(self.value, error, self.warnings)

    def rows(self) -> list[tuple[str, str]]:
        """What is printed, as (label, text)."""
        return evaluation_lines(self.record())

    def __str__(self) -> str:
        return "\n".join(evaluation_text(self.record(), self.tried(self.beside)))

    __repr__ = __str__


@dataclass(frozen=True, eq=False)
class Refusal(Estimated):
    """An estimator that refused, and why."""

    recipe: Recipe
    error: RefusedError
    n_episodes: int
    horizon: int

    @property
    def estimator(self) -> str:
        return self.recipe.name

    def record(self) -> Evaluation:
        """The record that text, JSON and HTML render."""
        return Evaluation(
            self.estimator, self.recipe, self.n_episodes, self.horizon, refused=self.error
        )

    def record_with(self, interval: Interval | None) -> Evaluation:
        """The same: a refusal has no interval."""
        return self.record()

    def to_dict(self) -> dict[str, Any]:
        return self.record().to_dict()
