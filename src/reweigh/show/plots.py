"""est.plot: the charts of a report as Altair charts, for notebooks and files.

est.plot.forest()                        shows itself in a notebook
charts.save_as(est.plot.weights(), path) as SVG, PNG, PDF, HTML or JSON
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import altair as alt
import numpy as np

from reweigh.errors import RefusedError
from reweigh.evaluation.result import Estimate
from reweigh.show import charts, curse, draw_forest, draw_places, draw_weights, places
from reweigh.show.answers import rows_of
from reweigh.show.basis import Basis, Missing, Result, basis_of
from reweigh.show.draw import TITLES
from reweigh.show.records import Heat, Moved, ValueParts, VarianceParts, Weights
from reweigh.system.output import files_behind

Part = TypeVar("Part")


@dataclass(frozen=True, eq=False)
class Plots:
    """The charts of one estimate. What cannot be drawn from what it rests on is refused, with the
    reason."""

    estimate: Estimate

    @cached_property
    def _basis(self) -> Basis:
        return basis_of([self.estimate], main=self.estimate)

    def forest(self, beside: Sequence[Result] = ()) -> Any:
        """This estimate, and others beside it, with intervals and the log's own value."""
        rows = [row for row in rows_of(self._with(beside)) if row.value is not None]
        return _titled("forest", draw_forest.forest(rows, self.estimate.behavior_value))

    def gains(self, beside: Sequence[Result] = ()) -> Any:
        """Target - behaviour with paired intervals."""
        rows = [row for row in rows_of(self._with(beside)) if row.gain_interval is not None]
        if not rows:
            raise RefusedError("chart", rows_of(self._basis)[0].gain_why)
        return _titled("gains", draw_forest.gains(rows))

    def weights(self) -> Any:
        """Effective episodes and largest weights per step: products against marginalized."""
        weights: Weights = _made(lambda: curse.weights_of(self._basis))
        left = _titled("ess", draw_weights.ess(weights), style=False)
        if not draw_weights.has_largest(weights):
            return charts.styled(left)
        right = _titled("largest", draw_weights.largest(weights), style=False)
        return charts.styled(alt.hconcat(left, right, spacing=40))

    def marginals(self, show: draw_places.Show = "difference") -> Any:
        """State distributions over the steps: "difference", "target" or "log"; the states with the
        most mass."""
        heat: Heat = _made(lambda: places.heat_of(self._basis))
        rows = draw_places.heat_rows(heat)
        return _titled(show, draw_places.marginals(rows, show, longest=180))

    def value(self) -> Any:
        """Where the value comes from: by step, and by state."""
        parts: ValueParts = _made(lambda: places.value_of(self._basis))
        by_state = _titled("value_states", draw_places.value_states(parts), style=False)
        if parts.per_step is None:
            return charts.styled(by_state)
        by_step = _titled("value_steps", draw_places.value_steps(parts), style=False)
        return _beside(by_step, by_state)

    def variance(self) -> Any:
        """Where the variance comes from: by step, and by state."""
        parts: VarianceParts = _made(lambda: places.variance_of(self._basis))
        by_step = _titled("variance_steps", draw_places.variance_steps(parts), style=False)
        by_state = _titled("variance_states", draw_places.variance_states(parts), style=False)
        return _beside(by_step, by_state)

    def sensitivity(self) -> Any:
        """The value under other choices."""
        changes = self.estimate.sensitivity().changes
        moved = [Moved(c.change, c.value, c.moved, c.why) for c in changes]
        return _titled("sensitivity", draw_forest.sensitivity(moved, rows_of(self._basis)[0]))

    def save(self, chart: Any, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write a chart in the format that the file's name ends in: .svg, .png, .pdf, .html or
        .json."""
        inputs = files_behind(self.estimate.grounds.evidence)
        return charts.save_as(chart, Path(path), overwrite=overwrite, inputs=inputs)

    def _with(self, beside: Sequence[Result]) -> Basis:
        others = [result for result in beside if result is not self.estimate]
        return basis_of([self.estimate, *others], main=self.estimate) if others else self._basis


def _made(make: Callable[[], Part | Missing]) -> Part:
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        part = make()
    if isinstance(part, Missing):
        raise RefusedError("chart", part.why)
    return part


def _titled(name: str, chart: Any, *, style: bool = True) -> Any:
    titled = chart.properties(title=TITLES[name])
    return charts.styled(titled) if style else titled


def _beside(left: Any, right: Any) -> Any:
    both = alt.hconcat(left, right, spacing=40)
    own = both.resolve_scale(color="independent", shape="independent", strokeDash="independent")
    return charts.styled(own)
