"""What comes out: Estimate and its parts. They print themselves."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError, StationaryWarning, check_threads
from reweigh.system.number_format import finite_or_none, number, rounded, two_digits
from reweigh.trust.gain import Gain
from reweigh.trust.intervals import Asked, Interval, scale_for

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from reweigh.decide.sensitivity import Sensitivity
    from reweigh.estimate.nodes import DenseNodes, Nodes
    from reweigh.estimate.recipe import Recipe
    from reweigh.evaluation.basis import Grounds
    from reweigh.log.states import Labels
    from reweigh.show.plots import Plots
    from reweigh.sums.moments import Moments
    from reweigh.trust.gates import Gate
    from reweigh.trust.verdict import Verdict

Floats = npt.NDArray[np.float64]
NO_TRUST = "no interval to trust"
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
class Diagnostics:
    """What the estimate rests on, computed before any normalisation.

    ess                (H,) effective number of episodes at each step, nan where there is none
    unseen_mass        (H,) target mass lost at each step for want of data, None where the
                       estimator has no state distribution
    placebo            the value if every reward were 1, END included, with its error; it
                       should be
    placebo_expected   Σ_t γ^t
    rare_mass          share of the target's mass on (step, state) pairs seen fewer than 10 times
    total_mass         (H,) Σ_s d_t(s) without normalisation, nan inside hidden stretches
    """

    ess: Floats
    unseen_mass: Floats | None
    placebo: float
    placebo_error: float | None
    placebo_expected: float
    rare_mass: float | None
    total_mass: Floats | None
    variance_by_step: Floats | None

    @property
    def worst_step(self) -> int | None:
        """The step with the smallest effective number of episodes."""
        return None if np.all(np.isnan(self.ess)) else int(np.nanargmin(self.ess))

    @property
    def worst_ess(self) -> float | None:
        return None if self.worst_step is None else float(self.ess[self.worst_step])

    @property
    def total_unseen(self) -> float | None:
        return None if self.unseen_mass is None else float(self.unseen_mass.sum())

    def to_dict(self) -> dict[str, Any]:
        found = {
            "worst_ess": self.worst_ess,
            "worst_step": self.worst_step,
            "unseen_mass": self.total_unseen,
            "rare_mass": self.rare_mass,
            "placebo": self.placebo,
            "placebo_error": self.placebo_error,
            "placebo_expected": self.placebo_expected,
        }
        return {name: finite_or_none(value) for name, value in found.items()}


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
    grounds: Grounds
    gates: tuple[Gate, ...]  # those of its own numbers; the verdict has the log's as well
    warnings: tuple[Warning, ...] = field(default=())
    chosen: str | None = None  # why "auto" took this estimator
    no_interval: str | None = None  # why the interval that was asked for was refused

    @cached_property
    def moments(self) -> Moments:
        """The sums behind the estimate; where it was made without them, they are made now."""
        return self.grounds.moments()

    @property
    def sql(self) -> str | None:
        """The queries that made these sums, one after another, each below a comment that names
        its table; None where no SQL was run (arrays, streams, moments from a file)."""
        stored = self.grounds.evidence.stored
        return None if stored is None else stored.sql

    @cached_property
    def verdict(self) -> Verdict:
        """green, amber or red, with the reasons: the gates of the estimate's own numbers and of
        the log and target (propensities, history, drift, the weights' tail), which are made when
        the verdict is first asked for. Never green without the interval that was asked for."""
        return self.grounds.verdict(self.gates, self.no_interval)

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
        auto         see `reweigh.trust.intervals.auto_method`

        `replicates` (at least 20/(1 - level), less 1) and `seed` are for resampling: they are
        kept, so that another level costs nothing, and without a seed one is drawn and told in the
        interval's `method`. `value_range` are the ends between which the value is known to lie.
        Intervals are asymptotic; `rw.certify` gives bounds that are not.
        """
        return self._interval("both", level, method, replicates, seed, value_range, threads)

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
        return self._interval(side, level, method, replicates, seed, value_range, threads)

    def _interval(
        self,
        side: Literal["both", "lower", "upper"],
        level: float,
        method: str,
        replicates: int,
        seed: int | None,
        value_range: tuple[float, float] | None,
        threads: int,
    ) -> Interval | None:
        threads = check_threads(threads)
        asked = Asked(level, side, value_range, scale_for(self.recipe))
        return self.grounds.interval(asked, method, replicates, seed, threads)

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
        return NOT_TO_TRUST if self.grounds.evidence.certifiable else NO_TRUST

    def p_value(self) -> float:
        """p of "the target is not better than the behaviour", one-sided: small where it is. See
        `gain`."""
        return self.gain().p_value

    def gain(self) -> Gain:
        """How much more than the behaviour the target earns, with its error and p-value.

        From rows the difference is paired, since both values come from the same episodes. From
        sums (streams, databases, moments) its error is at most that of both values together, and
        the p-value is the largest that this allows (`Gain.at_most`). RefusedError where there is
        no error, or the sums do not tell how much the returns spread.
        """
        return self.grounds.gain()

    def gain_or_why(self) -> Gain | RefusedError:
        """The same, with the refusal as a value."""
        try:
            return self.gain()
        except RefusedError as error:
            return error

    def sensitivity(self) -> Sensitivity:
        """How far the number moves when a choice behind it is changed: ratios clipped, the
        episodes that matter most left out, fewer steps, coarser and finer states."""
        from reweigh.decide.sensitivity import of_log
        from reweigh.evaluation.evaluate import evaluate_all

        log, target = self.grounds.rows("sensitivity changes the log")
        return of_log(log, target, self.recipe, evaluate_all)

    @cached_property
    def plot(self) -> Plots:
        """Charts: `est.plot.forest()`, `.gains()`, `.weights()`, `.marginals()`, `.value()`,
        `.variance()`, `.sensitivity()`; `est.plot.save(chart, path)` writes one."""
        from reweigh.show.plots import Plots

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
        from reweigh.show.page import write_report

        results = [self, *(result for result in beside if result is not self)]
        return write_report(results, path, main=self, title=title, overwrite=overwrite)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `reweigh evaluate --json` prints them."""
        interval, gain = self.interval(), self.gain_or_why()
        verdict = self.verdict.to_dict()
        return {
            "estimator": self.estimator,
            "value": self.value,
            "standard_error": self.standard_error,
            "error_method": self.error_method,
            "interval": None if interval is None else interval.to_dict(),
            "p_value": finite_or_none(gain.p_value) if isinstance(gain, Gain) else None,
            "gain": gain.to_dict() if isinstance(gain, Gain) else refused_entry(gain),
            "chosen": self.chosen,
            "verdict": verdict["level"],
            "unchecked": verdict["unchecked"],
            "gates": verdict["gates"],
            "warnings": [str(warning) for warning in self.warnings],
            "n_episodes": self.n_episodes,
            "horizon": self.horizon,
            "discount": self.discount,
            "behavior_value": self.behavior_value,
            "diagnostics": self.diagnostics.to_dict(),
            "sql": self.sql,
        }

    def value_text(self, error: float | None) -> str:
        """The value as it is printed beside this error. Where all stationary mass is on END the
        value is 0 whatever was earned, and must not be taken for one."""
        on_end = self.value == 0 and any(isinstance(w, StationaryWarning) for w in self.warnings)
        return "0 (END)" if on_end else rounded(self.value, error)

    def rows(self) -> list[tuple[str, str]]:
        """What is printed, as (label, text)."""
        interval = self.interval()
        error, how = self.error_beside(interval), self.error_method
        if error != self.standard_error:
            how = f"of the episodes; {two_digits(self.standard_error)} if the state were all"
        d = self.diagnostics
        worst = "none"
        if d.worst_ess is not None:
            worst = f"{d.worst_ess:,.0f} of {self.n_episodes:,} episodes at step {d.worst_step}"
        unseen = "not computed" if d.total_unseen is None else number(d.total_unseen)
        lines = [
            ("value", self.value_text(error)),
            ("95 % interval", self._interval_text(interval)),
            ("standard error", _error_text(error, how)),
            ("behaviour's own value", number(self.behavior_value)),
            ("better than behaviour", self._better()),
            ("episodes, horizon", f"{self.n_episodes:,}, {self.horizon}"),
            ("effective size, worst", worst),
            ("mass on unseen states", unseen),
            ("placebo (reward 1)", f"{number(d.placebo)} (should be {number(d.placebo_expected)})"),
        ]
        lines.append(("verdict", str(self.verdict)))
        if self.verdict.unchecked:
            lines.append(("not checked", "; ".join(self.verdict.unchecked_lines())))
        if self.chosen is not None:
            lines.append(("chosen", self.chosen))
        return lines + [("warning", str(warning)) for warning in self.warnings]

    def _interval_text(self, interval: Interval | None) -> str:
        if interval is None:
            return "none"
        return str(interval) if self.trusted else self.not_to_trust

    def _better(self) -> str:
        if not self.trusted:
            return "not told: the error is not to be trusted"
        found = self.gain_or_why()
        return str(found) if isinstance(found, Gain) else f"not told: {found.reason}"

    def __str__(self) -> str:
        lines = self.rows()
        width = max(len(label) for label, _ in lines)
        return "\n".join(
            [self.estimator, *(f"  {label:<{width}}  {text}" for label, text in lines)]
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th style='text-align:left;white-space:nowrap'>{html.escape(label)}</th>"
            f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
            for label, text in self.rows()
        )
        name = f"<caption style='text-align:left'>{html.escape(self.estimator)}</caption>"
        return f"<table>{name}<tbody>{cells}</tbody></table>"


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

    def to_dict(self) -> dict[str, Any]:
        return {
            "estimator": self.estimator,
            "value": None,
            "standard_error": None,
            "interval": None,
            "verdict": None,
            "warnings": [],
            "n_episodes": self.n_episodes,
            "horizon": self.horizon,
            **refused_entry(self.error),
        }


def refused_entry(error: RefusedError) -> dict[str, Any]:
    return {"refused": {"code": error.code, "reason": error.reason}}


def _error_text(error: float | None, method: str) -> str:
    return f"none: {method}" if error is None else f"{two_digits(error)} ({method})"
