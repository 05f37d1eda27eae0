"""Charts of the studies: Relative-RMSE on log axes, with the error of every point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from reweigh.paper.list_of_figures import Figure
from reweigh.show.charts import estimator_scales, log_ticks, styled

APART = 1.025
AXES = {"n": "episodes n", "horizon": "horizon H"}


def chart(figure: Figure, table: Sequence[dict[str, Any]]) -> Any:
    """The panel of a figure from its rows."""
    names = figure.estimators
    scales = estimator_scales(names)
    # A logarithm has no place for an error of exactly 0.
    # Side by side, so that estimators of the same error do not hide each other.
    place = {name: k - (len(names) - 1) / 2 for k, name in enumerate(names)}
    shown = [
        row | {"x": row[figure.over] * APART ** place[row["estimator"]]}
        for row in table
        if row["rel_rmse_low"] > 0
    ]
    ticks = sorted({row[figure.over] for row in table})
    replicates = max((row["replicates"] for row in table), default=0)
    lowest = min((row["rel_rmse_low"] for row in shown), default=1e-3)
    highest = max((row["rel_rmse_high"] for row in shown), default=1.0)
    x = alt.X(
        "x:Q",
        title=AXES[figure.over],
        scale=alt.Scale(type="log", base=2, nice=False, padding=12),
        axis=alt.Axis(values=ticks, format="d", grid=False),
    )
    y = alt.Y(
        "rel_rmse:Q",
        title="Relative-RMSE",
        scale=alt.Scale(type="log", domain=[lowest / 1.3, highest * 1.3], nice=False),
        axis=alt.Axis(format="~g", values=log_ticks(lowest / 1.3, highest * 1.3)),
    )
    legend = alt.Legend(title=None, symbolSize=90, symbolOpacity=1, symbolStrokeWidth=0)
    color = alt.Color("estimator:N", scale=scales.color, legend=legend)
    base = alt.Chart(alt.InlineData(values=shown))
    tooltip = ["estimator:N", "n:Q", "horizon:Q", "rel_rmse:Q", "rel_bias:Q", "rel_sd:Q"]
    lines = base.mark_line(strokeWidth=1.8).encode(
        x, y, color, alt.StrokeDash("estimator:N", scale=scales.dash, legend=None)
    )
    bars = base.mark_rule(strokeWidth=1.2, opacity=0.75).encode(
        x, alt.Y("rel_rmse_low:Q"), alt.Y2("rel_rmse_high:Q"), color
    )
    marks = base.mark_point(filled=True, size=42, opacity=1).encode(
        x,
        y,
        color,
        alt.Shape("estimator:N", scale=scales.shape, legend=legend),
        tooltip=tooltip,
    )
    title = alt.TitleParams(
        figure.title,
        subtitle=f"{replicates} replicates; bars: 95 % intervals over replicates",
    )
    return styled(alt.layer(lines, bars, marks).properties(width=360, height=280, title=title))
