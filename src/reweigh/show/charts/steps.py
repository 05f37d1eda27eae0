"""Charts over steps and states: the weights, where the target goes, parts of value and variance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import altair as alt

from reweigh.show.charts import (
    GREY,
    LESS,
    LOOKS,
    MORE,
    POINTS_UP_TO,
    WIDTH,
    chart_of,
    log_ticks,
    look_of,
    scales,
    sized,
    step_axis,
)
from reweigh.show.text import LONGEST_STATE, display_names, plain
from reweigh.trust.breakdown import Decomposition, Heat, StatePart, ValueParts
from reweigh.trust.overlap import MARGINAL, PRODUCTS, Weights

STATES_AT_ONCE = 40  # rows of a heat map at once
STATE_HEIGHT = 14
LISTED_STATES = 15
Curve = Literal["ess", "largest"]
Show = Literal["difference", "target", "log"]
SHOWS: tuple[Show, ...] = ("difference", "target", "log")
KINDS = {PRODUCTS: LOOKS["is"], MARGINAL: LOOKS["mis"]}


def curves(weights: Weights, what: Curve) -> Any:
    """Both kinds of weights, step by step: the effective number of episodes (`ess`), or the largest
    weight of a step as a multiple of the mean weight (`largest`)."""
    rows = curve_rows(weights, what)
    layers = []
    values = [row["value"] for row in rows]
    title = "largest weight / mean weight"
    if what == "ess":
        title = "effective number of episodes"
        values.append(weights.n_episodes)
        top = {"value": weights.n_episodes, "what": f"all {weights.n_episodes:,} episodes"}
        rule = chart_of([top]).mark_rule(color=GREY, strokeDash=[5, 4])
        layers.append(rule.encode(y="value:Q"))
    names = [name for name in KINDS if any(row["weights"] == name for row in rows)]
    low, high = min(values, default=1.0), max(values, default=1.0)
    low, high = min(low, 1.0) if low >= 0.5 else low, max(high, 10.0)
    legend = alt.Legend(orient="top", title=None, labelLimit=300, direction="horizontal", columns=1)
    looks = scales(names, [KINDS[name] for name in names])
    shared = {
        "x": step_axis(),
        "y": alt.Y(
            "value:Q",
            title=title,
            scale=alt.Scale(type="log", domain=[low, high * 1.1], nice=False),
            axis=alt.Axis(values=log_ticks(low, high * 1.1), format="~s"),
        ),
        "tooltip": [
            alt.Tooltip("weights:N"),
            alt.Tooltip("step:Q"),
            alt.Tooltip("value:Q", title=title, format=",.4~g"),
            alt.Tooltip("share:Q", title="of all episodes", format=".1~%"),
        ],
        "color": alt.Color("weights:N", scale=looks.color, legend=legend),
    }
    dash = alt.StrokeDash("weights:N", scale=looks.dash, legend=legend)
    shape = alt.Shape("weights:N", scale=looks.shape, legend=legend)
    return sized(alt.layer(*layers, *_lines(rows, dash, 2 * POINTS_UP_TO, shape=shape, **shared)))


def curve_rows(weights: Weights, what: Curve) -> list[dict[str, Any]]:
    rows = []
    for curve in weights.curves:
        values = getattr(curve, what)
        for step, value in enumerate([] if values is None else values.tolist()):
            if math.isfinite(value) and value > 0:
                share = value / weights.n_episodes
                rows.append({"weights": curve.name, "step": step, "value": value, "share": share})
    return rows


def _lines(
    rows: list[dict[str, Any]], dash: alt.StrokeDash, most: int, *, shape: Any = None, **shared: Any
) -> list[Any]:
    """Lines over the steps, and the points on them as long as they do not hide the lines."""
    lines = [chart_of(rows).mark_line(strokeWidth=2.5).encode(strokeDash=dash, **shared)]
    if len(rows) <= most:
        points = chart_of(rows).mark_point(filled=True, size=45, opacity=1).encode(**shared)
        lines.append(points if shape is None else points.encode(shape=shape))
    return lines


def heat_rows(heat: Heat, most: int = STATES_AT_ONCE) -> list[dict[str, Any]]:
    """The fields of the first states as rows of a table."""
    names = display_names(heat.names, plain, LONGEST_STATE)
    return [
        {
            "state": names[name],
            "rank": r,
            "from": int(heat.first[c]),
            "to": int(heat.last[c]) + 1,
            "steps": field_text(heat, c),
            "target": float(heat.target[r, c]),
            "log": float(heat.behavior[r, c]),
            "difference": float(heat.target[r, c] - heat.behavior[r, c]),
        }
        for r, name in enumerate(heat.names[:most])
        for c in range(len(heat.first))
    ]


def field_text(heat: Heat, column: int) -> str:
    first, last = int(heat.first[column]), int(heat.last[column])
    return str(first) if first == last else f"{first}–{last}"


def marginals(rows: list[dict[str, Any]] | None, show: Show = "difference", *, longest: int) -> Any:
    """Step × state: the target's share of episodes, the log's, or their difference. Without rows
    the chart waits for a table called "cells"."""
    count = 1 if rows is None else len({row["state"] for row in rows})
    data = alt.NamedData("cells") if rows is None else alt.InlineData(values=rows)
    field = {"difference": "difference", "target": "target", "log": "log"}[show]
    color = {"difference": MORE, "target": LOOKS["mis"].color, "log": GREY}[show]
    title = "share of episodes" if show != "difference" else "share, target − log"
    chart = alt.Chart(data).transform_calculate(size=f"abs(datum.{field})")
    x = alt.X(
        "from:Q", title="step", scale=alt.Scale(nice=False, zero=False),
        axis=alt.Axis(tickMinStep=1, grid=False, format="d"),
    )  # fmt: skip
    paint: Any = alt.value(color)
    if show == "difference":
        more = alt.Scale(domain=["target more often", "target less often"], range=[MORE, LESS])
        chart = chart.transform_calculate(
            sign="datum.difference >= 0 ? 'target more often' : 'target less often'"
        )
        paint = alt.Color("sign:N", scale=more, legend=alt.Legend(orient="top", title=None))
    return (
        chart.mark_rect(stroke=None)
        .encode(
            x=x,
            x2="to:Q",
            y=alt.Y(
                "state:N", title="state", sort=alt.EncodingSortField("rank", op="min"),
                axis=alt.Axis(grid=False, labelLimit=longest),
            ),
            color=paint,
            opacity=alt.Opacity(
                "size:Q", title=title, scale=alt.Scale(type="sqrt", range=[0, 1], domainMin=0),
                legend=alt.Legend(orient="bottom", format=".1~%", tickCount=4),
            ),
            tooltip=[
                alt.Tooltip("state:N"),
                alt.Tooltip("steps:N", title="step"),
                alt.Tooltip("target:Q", title="target's share", format=".2~%"),
                alt.Tooltip("log:Q", title="log's share", format=".2~%"),
                alt.Tooltip("difference:Q", format="+.2~%"),
            ],
        )
        .properties(width=WIDTH, height=STATE_HEIGHT * count, view=alt.ViewBackground(stroke=GREY))
    )  # fmt: skip


def value_steps(parts: ValueParts) -> Any:
    """What each step earns, under the target and in the log."""
    assert parts.per_step is not None
    target = f"target (by {parts.estimator})"
    series = {target: parts.per_step} | ({} if parts.log is None else {"log": parts.log})
    rows = [
        {"of": name, "step": t, "value": v}
        for name, values in series.items()
        for t, v in enumerate(values.tolist())
        if math.isfinite(v)
    ]
    names = list(series)
    legend = alt.Legend(orient="top", title=None, labelLimit=300)
    colors = [look_of(parts.estimator).color, GREY][: len(names)]
    shared = {
        "x": step_axis(),
        "y": alt.Y("value:Q", title="reward per episode", scale=alt.Scale(zero=True)),
        "color": alt.Color("of:N", scale=alt.Scale(domain=names, range=colors), legend=legend),
        "tooltip": [
            alt.Tooltip("of:N", title="policy"),
            alt.Tooltip("step:Q"),
            alt.Tooltip("value:Q", title="reward per episode", format=",.4~g"),
        ],
    }
    dashes = alt.Scale(domain=names, range=[[1, 0], [5, 3]][: len(names)])
    dash = alt.StrokeDash("of:N", scale=dashes, legend=legend)
    most = len(rows) if len(parts.per_step) <= POINTS_UP_TO else 0
    lines = _lines(rows, dash, most, **shared)
    return sized(lines[0] if len(lines) == 1 else alt.layer(*lines))


def value_states(parts: ValueParts) -> Any:
    """What is earned in each state, over all steps."""
    return _bars(parts.states, parts.states_by, "value per episode", ",.4~g")


def variance_states(parts: Decomposition) -> Any:
    """Share of the variance of each state, over all steps."""
    return _bars(parts.states(), parts.estimator, "share of the variance", ".1~%")


def listed(states: Sequence[StatePart]) -> int:
    """How many of the states are listed: one more than the most needs no row of others."""
    return LISTED_STATES if len(states) > LISTED_STATES + 1 else len(states)


def _bars(every: Sequence[StatePart], estimator: str, title: str, format: str) -> Any:
    states = every[: listed(every)]
    names = display_names([place.state for place in states], plain, LONGEST_STATE)
    rows = [
        {"state": names[p.state], "value": p.amount, "target": p.target, "log": p.log}
        for p in states
    ]
    order = list(names.values())
    axis = alt.Axis(format="%" if "%" in format else "~g")
    bars = chart_of(rows).mark_bar(height={"band": 0.7}).encode(
        x=alt.X("value:Q", title=title, axis=axis, stack=None),
        y=alt.Y("state:N", title="state", sort=order, axis=alt.Axis(labelLimit=220, grid=False)),
        color=alt.value(look_of(estimator).color),
        tooltip=[
            alt.Tooltip("state:N"),
            alt.Tooltip("value:Q", title=title, format=format),
            alt.Tooltip("target:Q", title="visits of the target", format=",.3~g"),
            alt.Tooltip("log:Q", title="visits of the log", format=",.3~g"),
        ],
    )  # fmt: skip
    return sized(bars, 20 * len(rows))


def variance_steps(parts: Decomposition) -> Any:
    """Share of the variance of each step."""
    color = look_of(parts.estimator).color
    rows = [
        {"step": t, "to": t + 1, "share": share} for t, share in enumerate(parts.by_step.tolist())
    ]
    apart = 1 if len(rows) <= POINTS_UP_TO else 0
    bars = chart_of(rows).mark_bar(color=color, binSpacing=apart).encode(
        x=alt.X(
            "step:Q", bin=alt.BinParams(binned=True), title="step",
            axis=alt.Axis(tickMinStep=1, grid=False, format="d"),
            scale=alt.Scale(domain=[0, len(rows)], nice=False),
        ),
        x2="to:Q",
        y=alt.Y("share:Q", title="share of the variance", axis=alt.Axis(format="%"), stack=None),
        tooltip=[
            alt.Tooltip("step:Q"), alt.Tooltip("share:Q", title="of the variance", format=".2~%")
        ],
    )  # fmt: skip
    return sized(bars, 180)
