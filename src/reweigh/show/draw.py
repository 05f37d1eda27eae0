"""What the charts of a report share: their questions, their colours, their size.

Colours stand for the same thing everywhere: an estimator's own (`charts.LOOKS`), grey for the log.
Every chart is one view, so that it fits any width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

GREY, INK, MORE, LESS = "#777777", "#333333", "#0072B2", "#D55E00"
WIDTH, HEIGHT, ROW_HEIGHT = 620, 220, 24
POINTS_UP_TO = 40  # steps: beyond, points would hide the line
TITLES = {
    "forest": "What do the estimators say?",
    "targets": "What would each policy earn?",
    "over_log": "Which policies are better than the one that made the log?",
    "to_best": "How much better is the best one than each of the others?",
    "gains": "Is the target better than the policy that made the log?",
    "ess": "How many episodes speak for the target at each step?",
    "largest": "How heavy does a single episode get?",
    "difference": "Where would the target go more, or less, often than the log did?",
    "target": "Where would the target go?",
    "log": "Where did the log go?",
    "value_steps": "When is the value earned?",
    "value_states": "Where is the value earned?",
    "variance_steps": "Which steps make the answer uncertain?",
    "variance_states": "Which states make the answer uncertain?",
    "sensitivity": "How far does the answer move with the choices behind it?",
}


def chart_of(rows: Sequence[dict[str, Any]]) -> alt.Chart:
    return alt.Chart(alt.InlineData(values=list(rows)))


def sized(chart: Any, height: int = HEIGHT) -> Any:
    return chart.properties(width=WIDTH, height=height)


def step_axis() -> alt.X:
    """Steps from the first to the last, without empty room."""
    return alt.X(
        "step:Q",
        title="step",
        scale=alt.Scale(nice=False, zero=False, padding=8),
        axis=alt.Axis(tickMinStep=1, grid=False, format="d"),
    )
