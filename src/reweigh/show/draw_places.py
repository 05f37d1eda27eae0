"""Charts over steps and states: where the target goes, and parts of the value and the variance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import altair as alt

from reweigh.show import charts
from reweigh.show.draw import (
    GREY,
    LESS,
    MORE,
    POINTS_UP_TO,
    WIDTH,
    chart_of,
    sized,
    step_axis,
)
from reweigh.show.records import Floats, Heat, Place, ValueParts, VarianceParts
from reweigh.theory.plan_text import plain, shown_names

SHOWN_STATES = 40  # rows of a heat map at once
STATE_HEIGHT = 14
Show = Literal["difference", "target", "log"]


def heat_rows(heat: Heat, shown: int = SHOWN_STATES) -> list[dict[str, Any]]:
    """The fields of the first states as rows of a table."""
    names = shown_names(heat.names, plain)
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
        for r, name in enumerate(heat.names[:shown])
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
    color = {"difference": MORE, "target": charts.LOOKS["mis"].color, "log": GREY}[show]
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
    rows = _steps(target, parts.per_step)
    if parts.log is not None:
        rows += _steps("log", parts.log)
    names = [target, "log"] if parts.log is not None else [target]
    look = charts.LOOKS.get(parts.estimator, charts.OTHER)
    colors = [look.color, GREY][: len(names)]
    legend = alt.Legend(orient="top", title=None, labelLimit=300)
    shared = {
        "x": step_axis(),
        "y": alt.Y("value:Q", title="reward per episode", scale=alt.Scale(zero=True)),
        "color": alt.Color(
            "of:N", scale=alt.Scale(domain=names, range=colors), legend=legend
        ),
        "tooltip": [
            alt.Tooltip("of:N", title="policy"),
            alt.Tooltip("step:Q"),
            alt.Tooltip("value:Q", title="reward per episode", format=",.4~g"),
        ],
    }  # fmt: skip
    dash = alt.Scale(domain=names, range=[[1, 0], [5, 3]][: len(names)])
    lines = chart_of(rows).mark_line(strokeWidth=2.5).encode(
        strokeDash=alt.StrokeDash("of:N", scale=dash, legend=legend), **shared
    )  # fmt: skip
    if len(parts.per_step) > POINTS_UP_TO:
        return sized(lines)
    points = chart_of(rows).mark_point(filled=True, size=45, opacity=1).encode(**shared)
    return sized(alt.layer(lines, points))


def _steps(name: str, values: Floats) -> list[dict[str, Any]]:
    pairs = enumerate(values.tolist())
    return [{"of": name, "step": t, "value": v} for t, v in pairs if math.isfinite(v)]


def value_states(parts: ValueParts) -> Any:
    """What is earned in each state, over all steps."""
    color = charts.LOOKS.get(parts.states_by, charts.OTHER).color
    return _bars(parts.states, color, "value per episode", ",.4~g")


def variance_states(parts: VarianceParts) -> Any:
    """Share of the variance of each state, over all steps."""
    color = charts.LOOKS.get(parts.estimator, charts.OTHER).color
    return _bars(parts.states, color, "share of the variance", ".1~%")


def _bars(states: Sequence[Place], color: str, title: str, format: str) -> Any:
    names = shown_names([place.state for place in states], plain)
    rows = [
        {"state": names[p.state], "value": p.amount, "target": p.target, "log": p.log}
        for p in states
    ]
    order = list(names.values())
    axis = alt.Axis(format="%" if "%" in format else "~g")
    bars = chart_of(rows).mark_bar(height={"band": 0.7}).encode(
        x=alt.X("value:Q", title=title, axis=axis, stack=None),
        y=alt.Y("state:N", title="state", sort=order, axis=alt.Axis(labelLimit=220, grid=False)),
        color=alt.value(color),
        tooltip=[
            alt.Tooltip("state:N"),
            alt.Tooltip("value:Q", title=title, format=format),
            alt.Tooltip("target:Q", title="visits of the target", format=",.3~g"),
            alt.Tooltip("log:Q", title="visits of the log", format=",.3~g"),
        ],
    )  # fmt: skip
    return sized(bars, 20 * len(rows))


def variance_steps(parts: VarianceParts) -> Any:
    """Share of the variance of each step."""
    color = charts.LOOKS.get(parts.estimator, charts.OTHER).color
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
