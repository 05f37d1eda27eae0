"""A report of results: all its content is gathered here once and rendered by show/."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from reweigh.errors import RefusedError
from reweigh.evaluation.data import RowsData
from reweigh.evaluation.evaluations import main_of
from reweigh.evaluation.result import GAMMAS, Estimate, Refusal
from reweigh.log.abstractions import NamedLabels
from reweigh.log.log import EpisodeLog
from reweigh.policy import Policy
from reweigh.show import charts
from reweigh.show.charts import forest, steps
from reweigh.show.first_screen import policy_in_words
from reweigh.show.html import LONGEST_LABEL, Figure, figures
from reweigh.show.html.sections import page_of
from reweigh.show.record import PER_EPISODE, Change, Evaluation, Report, ranked
from reweigh.show.text import check_unit
from reweigh.sums.moments import Moments
from reweigh.system.files import files_behind
from reweigh.system.process import stage
from reweigh.trust.breakdown import (
    Missing,
    Sources,
    ValueParts,
    state_distributions,
    value_parts,
    variance_parts,
)
from reweigh.trust.intervals import Interval
from reweigh.trust.overlap import unlogged, weight_curves

MOST_ROWS_CHANGED = 1_000_000  # beyond, the evaluations of the sensitivity would take minutes
Result = Estimate | Refusal
Part = TypeVar("Part")


def write_report(
    results: Sequence[Result],
    path: str | Path,
    *,
    overwrite: bool = False,
    words: Callable[[str], str] = str,
    **parts: Any,
) -> Path:
    """Write the report of these results. `parts` are the parameters of `report_of`; `words` puts a
    message, which is written for Python, into the words of the reader."""
    report, sources = _gathered(results, **parts)
    inputs = files_behind(sources.log, sources.target, sources.sums)
    return page_of(report).write(path, inputs, overwrite=overwrite, words=words)


def report_of(results: Sequence[Result], **parts: Any) -> Report:
    """The content of a report.

    main          the estimate that gives the answer; see `main_of`
    intervals     one per result, replacing their own
    log, target   for results that all refused: an estimate has its own; `target` also for estimates
                  from sums, which have none
    title, unit, truth, command, remarks, certificate   the text beside the numbers
    about         describes a log that is not in memory
    """
    return _gathered(results, **parts)[0]


def _gathered(
    results: Sequence[Result],
    *,
    main: Estimate | None = None,
    intervals: Sequence[Interval | None] | None = None,
    log: EpisodeLog | None = None,
    target: Policy | None = None,
    title: str | None = None,
    about: Mapping[str, Any] | None = None,
    remarks: Sequence[str] = (),
    unit: str = PER_EPISODE,
    **beside: Any,
) -> tuple[Report, Sources]:
    check_unit(unit)
    main = main_of(results) if main is None else main
    sources = sources_of(main, log, target)
    makers: dict[str, Callable[[], Any]] = {
        "variance": lambda: variance_parts(sources),
        "weights": lambda: weight_curves(sources),
        "heat": lambda: state_distributions(sources),
        "value": lambda: _value(sources, main),
        "unlogged": lambda: unlogged(sources),
        "changes": lambda: _changes(main, sources.log),
        "confounding": lambda: _confounding(main),
    }
    with stage(0, len(makers) + 1):
        records = records_of(results, intervals)
    parts: dict[str, Any] = {}
    for k, (part, make) in enumerate(makers.items(), 1):
        with stage(k, len(makers) + 1):
            parts[part] = _part(make)
    answer = next((k for k, result in enumerate(results) if result is main), None)
    log, sums, target = sources.log, sources.sums, sources.target
    name = policy_in_words("" if target is None else target.name)
    facts: Mapping[str, Any] = {} if about is None else about
    if log is not None:
        facts = log.describe()
    elif sums is not None:
        facts = {**facts, **sums.describe()}
    size = next(each for each in (main, log, records[0]) if each is not None)
    hashes = [] if sums is None else [("hash of the target", sums.about.target)]
    if sums is not None and sums.about.sources:
        hashes.insert(0, ("hash of the log", ", ".join(sums.about.sources)))
    report = Report(
        title=title or f"What would {name} earn {unit}?",
        target=name,
        n_episodes=size.n_episodes,
        horizon=size.horizon,
        discount=size.discount,
        results=records,
        answer=answer,
        log=facts,
        hashes=tuple(hashes),
        remarks=tuple(remarks),
        unit=unit,
        tried=() if main is None else main.tried(results),
        **parts,
        **beside,
    )
    return report, sources


def sources_of(
    main: Estimate | None, log: EpisodeLog | None = None, target: Policy | None = None
) -> Sources:
    """The basis of the answer; if every estimator refused, this log and target."""
    if main is not None:
        data = main.uncertainty.data
        sums = with_state_names(data.every_kind(main.recipe.max_ratio))
        return Sources(sums, data.log, data.target or target, main.recipe)
    if log is None or target is None:
        return Sources(None, log, target)
    rows = RowsData.of(log, target, [], "refuse")
    return Sources(with_state_names(rows.every_kind(None)), log, target)


def with_state_names(sums: Moments | None) -> Moments | None:
    """The sums, their states called by columns and ranges where these are known."""
    if sums is None:
        return None
    columns, abstraction = sums.about.state_columns, sums.about.abstraction
    return replace(sums, states=NamedLabels(sums.states.values, columns, abstraction))


def records_of(
    results: Sequence[Result], intervals: Sequence[Interval | None] | None = None
) -> tuple[Evaluation, ...]:
    """The record of each, with these intervals or their own."""
    if intervals is None:
        return tuple(result.record() for result in results)
    pairs = zip(results, intervals, strict=True)
    return tuple(result.record_with(interval) for result, interval in pairs)


def _part(make: Callable[[], Part | Missing]) -> Part | Missing:
    """A part whose sums overflow, or that needs more than the log has, does not affect the
    others."""
    try:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            return make()
    except RefusedError as error:
        return Missing(error.reason)


def _value(sources: Sources, main: Estimate | None) -> ValueParts | Missing:
    if main is None:
        return Missing("there is no estimate")
    return value_parts(sources, main.estimator, main.value, main.per_step)


def _changes(main: Estimate | None, log: EpisodeLog | None) -> tuple[Change, ...] | Missing:
    """How much the answer changes with the choices behind it."""
    if main is None:
        return Missing("there is no estimate")
    if log is None:
        return Missing(
            "it changes the log, and only sums are available: read the log with engine='arrays'"
        )
    if log.steps.n_rows > MOST_ROWS_CHANGED:
        return Missing(
            "it evaluates the log about ten times, which takes long with "
            f"{log.steps.n_rows:,} rows; call estimate.sensitivity() for it"
        )
    return _part(lambda: main.sensitivity().changes)


def _confounding(main: Estimate | None) -> Any:
    """The bounds if hidden causes moved the logged actions."""
    if main is None:
        return Missing("there is no estimate")
    log = main.uncertainty.data.log
    if log is not None and log.steps.n_rows > MOST_ROWS_CHANGED:
        return Missing(
            f"it sorts the rows about fifty times, which takes long with {log.steps.n_rows:,}; "
            "call estimate.confounding() for it"
        )
    return main.confounding()


@dataclass(frozen=True, eq=False)
class Plots:
    """The charts of one estimate, for notebooks and files: `est.plot.forest()` shows itself, and
    `est.plot.save(chart, path)` writes it. A chart that its data does not allow is refused, with
    the reason."""

    estimate: Estimate

    @cached_property
    def _sources(self) -> Sources:
        return sources_of(self.estimate)

    def forest(self, beside: Sequence[Result] = ()) -> Any:
        """This estimate, and others beside it, with intervals and the log's own value."""
        rows = [row for row in self._rows(beside) if row.value is not None]
        return _titled("forest", forest.values(rows, self.estimate.behavior_value))

    def gains(self, beside: Sequence[Result] = ()) -> Any:
        """Target - behavior with paired intervals."""
        every = self._rows(beside)
        rows = [row for row in every if row.gain_interval is not None]
        if not rows:
            raise RefusedError("chart", every[0].gain_why)
        return _titled("gains", forest.gains(rows))

    def weights(self) -> Any:
        """Effective episodes and largest weights per step: products against marginalized."""
        weights = _available(lambda: weight_curves(self._sources))
        return _drawn(figures.ess(weights), figures.largest(weights), separate_legends=False)

    def marginals(self, show: steps.Show = "difference") -> Any:
        """State distributions over the steps: "difference", "target" or "log"; the states with the
        most mass."""
        heat = _available(lambda: state_distributions(self._sources))
        return _titled(show, steps.marginals(steps.heat_rows(heat), show, longest=LONGEST_LABEL))

    def value(self) -> Any:
        """Where the value comes from: by step, and by state."""
        parts = _available(lambda: _value(self._sources, self.estimate))
        return _drawn(figures.value_steps(parts), figures.value_states(parts))

    def variance(self) -> Any:
        """Where the variance comes from: by step, and by state."""
        parts = _available(lambda: variance_parts(self._sources))
        return _drawn(figures.variance_steps(parts), figures.variance_states(parts))

    def sensitivity(self) -> Any:
        """The value under other choices."""
        changes = self.estimate.sensitivity().changes
        return _titled("sensitivity", forest.sensitivity(changes, self._rows()[0]))

    def confounding(self, gammas: Sequence[float] = GAMMAS) -> Any:
        """The bounds on the value by how wrong the logged propensities may be."""
        bounds = self.estimate.confounding(gammas)
        return _titled("confounding", forest.confounding(bounds, self.estimate.estimator))

    def save(self, chart: Any, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write a chart in the format that the file's name ends in: .svg, .png, .pdf, .html or
        .json."""
        inputs = self.estimate.uncertainty.data.files
        return charts.save_as(chart, Path(path), overwrite=overwrite, inputs=inputs)

    def _rows(self, beside: Sequence[Result] = ()) -> tuple[Evaluation, ...]:
        others = [result for result in beside if result is not self.estimate]
        return ranked(records_of([self.estimate, *others]), 0)


def _available(make: Callable[[], Part | Missing]) -> Part:
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        part = make()
    if isinstance(part, Missing):
        raise RefusedError("chart", part.why)
    return part


def _titled(name: str, chart: Any) -> Any:
    return charts.styled(chart.properties(title=charts.TITLES[name]))


def _drawn(*shown: Figure | None, separate_legends: bool = True) -> Any:
    """Two figures side by side, or the one that there is."""
    drawn = [figure.draw().properties(title=figure.title) for figure in shown if figure]
    both = drawn[0] if len(drawn) == 1 else charts.beside(*drawn, separate_legends=separate_legends)
    return charts.styled(both)
