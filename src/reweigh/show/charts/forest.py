"""Charts of the estimators side by side, and of the answer under changed choices."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Sequence
from typing import Any

import altair as alt

from reweigh.show.charts import (
    GREY,
    INK,
    ROW_HEIGHT,
    chart_of,
    estimator_scales,
    look_of,
    sized,
)
from reweigh.show.confounding import Confounding
from reweigh.show.record import Change, Evaluation
from reweigh.show.text import display_names, percent, plain, span
from reweigh.system import rounded
from reweigh.trust.intervals import Interval

# name, value, interval, error, verdict
Bar = tuple[str, float | None, Interval | None, float | None, str | None]

TRUTH = "the truth"
WRAPPED = 24  # letters of a line
FARTHEST = 1.0  # spans of the middle interval that a forest plot shows beyond it


def values(
    rows: Sequence[Evaluation],
    behavior: float | None,
    truth: float | None = None,
    *,
    look: str | None = None,
) -> Any:
    """Every estimator's value and interval, beside the log's own value (and the truth). With a
    `look`, that of an estimator, the rows are targets, and all of them look like it."""
    bars = [(e.label, e.value, e.around, e.error, e.level) for e in rows]
    return forest(bars, [(behavior, "today's policy"), (truth, TRUTH)], "value per episode", look)


def gains(rows: Sequence[Evaluation], *, look: str | None = None) -> Any:
    """Target - behavior, each with its interval."""
    bars = [(e.label, e.gain, e.gain_interval, e.gain_error, e.level) for e in rows]
    return forest(bars, [(0.0, "no difference")], "new policy − today's, per episode", look)


def forest(
    rows: Sequence[Bar],
    marks: Sequence[tuple[float | None, str]],
    title: str,
    look: str | None = None,
) -> Any:
    """Values with their intervals, one below the other, and lines at known values."""
    labels = display_names([row[0] for row in rows])
    known: list[Bar] = [(labels[row[0]], *row[1:]) for row in rows if row[1] is not None]
    by = "estimator" if look is None else "target"
    names = [name for name, *_ in known]
    lines = [(at, text) for at, text in marks if at is not None]
    low, high = _window(known, [at for at, _ in lines])
    data = [_forest_row(row, low, high) for row in known]
    arrows = [
        {**row, "at": low if side == "◂" else high, "mark": side}
        for row in data
        for side in row["beyond"]
    ]
    scales = estimator_scales(names, look)
    x = alt.X(
        "at:Q",
        title=title,
        scale=alt.Scale(domain=[low, high], nice=False, zero=False),
        axis=alt.Axis(tickCount=10),
    )
    y = alt.Y(
        "estimator:N",
        title=None,
        sort=names,
        axis=alt.Axis(labelExpr=_crossed([row[0] for row in known if row[4] == "red"])),
    )
    shared: dict[str, Any] = {
        "y": y,
        "color": alt.Color("estimator:N", scale=scales.color, legend=None),
        "opacity": alt.condition("datum.verdict === 'red'", alt.value(0.45), alt.value(1)),
        "tooltip": [
            alt.Tooltip("estimator:N", title=by),
            alt.Tooltip("text:N", title=title),
            alt.Tooltip("interval:N"),
            alt.Tooltip("level:N"),
            alt.Tooltip("verdict:N"),
        ],
    }
    shape = alt.Shape("estimator:N", scale=scales.shape, legend=None)
    whiskers = chart_of(data).mark_rule(strokeWidth=2.5).encode(x=x, x2="high:Q", **shared)
    points = chart_of([row for row in data if low <= row["value"] <= high])
    layers = _rules(lines, low, high)
    layers += [
        whiskers.transform_calculate(at="datum.low"),
        points.mark_point(filled=True, size=90).encode(x=x, shape=shape, **shared),
        chart_of(arrows).mark_text(fontSize=14).encode(x=x, text="mark:N", **shared),
    ]
    return sized(alt.layer(*layers), ROW_HEIGHT * len(known))


def _forest_row(row: Bar, low: float, high: float) -> dict[str, Any]:
    name, value, interval, error, verdict = row
    assert value is not None
    ends = (value, value) if interval is None else (interval.low, interval.high)
    least, most = min(ends[0], value), max(ends[1], value)
    return {
        "estimator": name,
        "value": value,
        "at": value,
        "low": min(max(ends[0], low), high),
        "high": min(max(ends[1], low), high),
        "text": rounded(value, error),
        "interval": "none" if interval is None else span(interval),
        "level": "" if interval is None else percent(interval.level),
        "verdict": verdict or "",
        "beyond": f"{'◂' if least < low else ''}{'▸' if most > high else ''}",
    }


def _crossed(names: Sequence[str]) -> str:
    """An expression: these estimators' labels with the mark of a red verdict."""
    listed = ", ".join(json.dumps(name) for name in names)
    return f"indexof([{listed}], datum.label) >= 0 ? '✕ ' + datum.label : datum.label"


def _window(rows: Sequence[Bar], marks: Sequence[float]) -> tuple[float, float]:
    """The values to show. An interval that is far wider than most would squeeze the others: what
    lies farther out than FARTHEST spans of the middle interval is cut, and marked as cut."""
    finite = [value for _, value, *_ in rows if value is not None]
    ends = [
        (max(interval.low, -1e300), min(interval.high, 1e300))
        for _, _, interval, *_ in rows
        if interval is not None and math.isfinite(interval.low) and math.isfinite(interval.high)
    ]
    widths = sorted(high - low for low, high in ends)
    if not widths:
        inner = [*finite, *marks]
        low, high = min(inner, default=0.0), max(inner, default=1.0)
    else:
        narrow = widths[: (len(widths) + 1) // 2]  # the narrower half, and what they hold
        kept = [pair for pair in ends if pair[1] - pair[0] <= narrow[-1]]
        low = min([*(pair[0] for pair in kept), *marks])
        high = max([*(pair[1] for pair in kept), *marks])
        room = FARTHEST * max(high - low, 1e-12 * max(abs(low), abs(high)))
        low = max(min([low, *(pair[0] for pair in ends)]), low - room)
        high = min(max([high, *(pair[1] for pair in ends)]), high + room)
    pad = 0.04 * (high - low) or 0.1 * max(abs(high), 1.0)
    return low - pad, high + pad


def _rules(marks: Sequence[tuple[float, str]], low: float, high: float) -> list[Any]:
    """Lines at known values. The text of the first stands to its left, that of the last to its
    right, so that they do not meet."""
    layers: list[Any] = []
    ordered = sorted(marks)
    for k, (at, text) in enumerate(ordered):
        left = k == 0 and (len(ordered) > 1 or at > (low + high) / 2)
        color, dash = (INK, [2, 2]) if text == TRUTH else (GREY, [5, 4])
        row = [{"at": at, "what": text}]
        tooltip = [alt.Tooltip("what:N", title="line"), alt.Tooltip("at:Q", format=".4~g")]
        rule = chart_of(row).mark_rule(color=color, strokeDash=dash, strokeWidth=1.5)
        note = chart_of(row).mark_text(
            align="right" if left else "left", dx=-4 if left else 4, dy=-8, color=GREY, fontSize=12
        )
        layers.append(rule.encode(x="at:Q", tooltip=tooltip))
        layers.append(note.encode(x="at:Q", y=alt.value(0), text="what:N"))
    return layers


def confounding(bounds: Confounding, label: str) -> Any:
    """The bounds of the value by Γ, and what the behavior earned."""
    color = look_of(label).color
    gammas = bounds.gammas.tolist()
    rows: list[dict[str, Any]] = [
        {"gamma": float(g), "low": float(a), "high": float(b), "text": f"{a:.4g} to {b:.4g}"}
        for g, a, b in zip(bounds.gammas, bounds.low, bounds.high, strict=True)
    ]
    x = alt.X(
        "gamma:Q",
        title="Γ: how many times the odds of the logged actions may be off",
        scale=alt.Scale(type="log", nice=False),
        axis=alt.Axis(values=gammas, format="~g", grid=False),
    )
    y = alt.Y("low:Q", title="value per episode", scale=alt.Scale(zero=False))
    tooltip = [alt.Tooltip("gamma:Q", title="Γ"), alt.Tooltip("text:N", title="value")]
    base = chart_of(rows).encode(x=x)
    layers = [
        base.mark_area(color=color, opacity=0.2).encode(y=y, y2="high:Q"),
        base.mark_line(color=color, point={"color": color}).encode(y=y, tooltip=tooltip),
        base.mark_line(color=color, point={"color": color}).encode(y="high:Q", tooltip=tooltip),
    ]
    if bounds.behavior_value is not None:
        row = [{"at": bounds.behavior_value, "gamma": gammas[-1], "what": "today’s policy"}]
        rule = chart_of(row).mark_rule(color=GREY, strokeDash=[5, 4], strokeWidth=1.5)
        note = chart_of(row).mark_text(align="right", dx=-8, dy=-8, color=INK, fontSize=12)
        layers += [rule.encode(y="at:Q"), note.encode(x=x, y="at:Q", text="what:N")]
    if bounds.tipping is not None and bounds.tipping <= gammas[-1]:
        row = [{"gamma": bounds.tipping}]
        mark = chart_of(row).mark_rule(color=INK, strokeDash=[2, 2], strokeWidth=1.5)
        tip = [alt.Tooltip("gamma:Q", title="from here on it may be none", format=".3g")]
        layers.append(mark.encode(x=x, tooltip=tip))
    return sized(alt.layer(*layers))


def sensitivity(changes: Sequence[Change], row: Evaluation) -> Any:
    """The value under each changed choice, beside the answer and its interval."""
    assert row.value is not None
    known = [change for change in changes if change.value is not None]
    names = {c.change: "\n".join(textwrap.wrap(plain(c.change), WRAPPED)) for c in known}
    lines = max((name.count("\n") + 1 for name in names.values()), default=1)
    rows = [
        {
            "change": names[change.change],
            "value": change.value,
            "text": rounded(change.value or 0.0, row.error),
            "moved": rounded(change.moved or 0.0, row.error),
        }
        for change in known
    ]
    color = look_of(row.label).color
    layers = []
    if row.around is not None and math.isfinite(row.around.high - row.around.low):
        band = {"low": row.around.low, "high": row.around.high, "text": span(row.around)}
        layers.append(
            chart_of([band]).mark_rect(color=color, opacity=0.15).encode(
                x="low:Q", x2="high:Q",
                tooltip=[alt.Tooltip("text:N", title="interval of the answer")],
            )
        )  # fmt: skip
    base = {"value": row.value, "text": rounded(row.value, row.error)}
    layers.append(
        chart_of([base]).mark_rule(color=color, strokeWidth=2).encode(
            x="value:Q", tooltip=[alt.Tooltip("text:N", title="the answer")]
        )
    )  # fmt: skip
    points = chart_of(rows).mark_point(filled=True, size=90, opacity=1, color=color).encode(
        x=alt.X("value:Q", title="value per episode", scale=alt.Scale(zero=False)),
        y=alt.Y(
            "change:N", title=None, sort=list(names.values()),
            axis=alt.Axis(labelLimit=200, labelExpr="split(datum.label, '\\n')"),
        ),
        tooltip=[
            alt.Tooltip("change:N"),
            alt.Tooltip("text:N", title="value"),
            alt.Tooltip("moved:N", title="moved by"),
        ],
    )  # fmt: skip
    return sized(alt.layer(*layers, points), (10 + 15 * lines) * len(rows))
