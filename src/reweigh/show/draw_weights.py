"""Charts of the weights, step by step: running products against marginalized ones."""

from __future__ import annotations

import math
from typing import Any, Literal

import altair as alt

from reweigh.show import charts
from reweigh.show.curse import MARGINAL, PRODUCTS
from reweigh.show.draw import GREY, POINTS_UP_TO, chart_of, sized, step_axis
from reweigh.show.records import Weights

KINDS = {PRODUCTS: charts.LOOKS["is"], MARGINAL: charts.LOOKS["mis"]}


def ess(weights: Weights) -> Any:
    """The effective number of episodes, step by step, of both kinds of weights."""
    rows = _curve_rows(weights, "ess")
    top = {"value": weights.n_episodes, "what": f"all {weights.n_episodes:,} episodes"}
    rule = chart_of([top]).mark_rule(color=GREY, strokeDash=[5, 4]).encode(y="value:Q")
    lines = _curves(rows, "effective number of episodes", weights.n_episodes)
    return sized(alt.layer(rule, *lines))


def largest(weights: Weights) -> Any:
    """The largest weight of a step as a multiple of the mean weight."""
    rows = _curve_rows(weights, "largest")
    return sized(alt.layer(*_curves(rows, "largest weight / mean weight", None)))


def has_largest(weights: Weights) -> bool:
    return bool(_curve_rows(weights, "largest"))


def _curve_rows(weights: Weights, what: Literal["ess", "largest"]) -> list[dict[str, Any]]:
    found = []
    for curve in weights.curves:
        values = getattr(curve, what)
        for step, value in enumerate([] if values is None else values.tolist()):
            if math.isfinite(value) and value > 0:
                share = value / weights.n_episodes
                found.append({"weights": curve.name, "step": step, "value": value, "share": share})
    return found


def _curves(rows: list[dict[str, Any]], title: str, most: float | None) -> list[Any]:
    names = [name for name in KINDS if any(row["weights"] == name for row in rows)]
    values = [row["value"] for row in rows] + ([] if most is None else [most])
    low, high = min(values, default=1.0), max(values, default=1.0)
    low, high = min(low, 1.0) if low >= 0.5 else low, max(high, 10.0)
    legend = alt.Legend(orient="top", title=None, labelLimit=300, direction="horizontal", columns=1)

    def scale(attribute: str) -> alt.Scale:
        looks = [getattr(KINDS[name], attribute) for name in names]
        return alt.Scale(domain=names, range=[list(v) if attribute == "dash" else v for v in looks])

    x = step_axis()
    y = alt.Y(
        "value:Q",
        title=title,
        scale=alt.Scale(type="log", domain=[low, high * 1.1], nice=False),
        axis=alt.Axis(values=charts.log_ticks(low, high * 1.1), format="~s"),
    )
    tooltip = [
        alt.Tooltip("weights:N"),
        alt.Tooltip("step:Q"),
        alt.Tooltip("value:Q", title=title, format=",.4~g"),
        alt.Tooltip("share:Q", title="of all episodes", format=".1~%"),
    ]
    shared = {"x": x, "y": y, "tooltip": tooltip}
    color = alt.Color("weights:N", scale=scale("color"), legend=legend)
    line = chart_of(rows).mark_line(strokeWidth=2.5).encode(
        color=color,
        strokeDash=alt.StrokeDash("weights:N", scale=scale("dash"), legend=legend),
        **shared,
    )  # fmt: skip
    if len(rows) > 2 * POINTS_UP_TO:
        return [line]
    shape = alt.Shape("weights:N", scale=scale("shape"), legend=legend)
    points = chart_of(rows).mark_point(filled=True, size=45, opacity=1)
    return [line, points.encode(color=color, shape=shape, **shared)]
