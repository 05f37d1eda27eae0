"""A plan as a chart: what n episodes give, and where the variance comes from."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np

from reweigh.show import charts
from reweigh.show.charts import chart_of
from reweigh.show.text import display_names, plain
from reweigh.system import number
from reweigh.theory.plan_result import Need, Plan, episodes_text, origin, question, source
from reweigh.trust.breakdown import LISTED, Decomposition

POINTS, MOST_BINS = 60, 50
FARTHEST = 1e4  # times the reference's episodes: beyond, a curve is drawn without its point
DEEPEST = 20  # the goal's half-width over the smallest that is drawn
WIDTH, HEIGHT = 360, 280
PLAIN = "datum.value >= 1e4 ? format(datum.value, '~s') : format(datum.value, '~g')"


def plan_chart(plan: Plan) -> Any:
    """Left: half-width or power against n. Right: share of the variance by step and state."""
    left = _curves(plan)
    if plan.decomposition is None:
        return charts.styled(left)
    right = _origins(plan, plan.decomposition)
    return charts.styled(charts.beside(left, right, separate_legends=True))


def _curves(plan: Plan) -> Any:
    goal = plan.goal
    answered = [need for need in plan.needs if need.variance is not None]
    low, high = _range(plan, answered)
    aim = goal.power if goal.half_width is None else goal.half_width
    assert aim is not None
    curves = [
        {"estimator": _label(need), "n": n, "reached": goal.reached(need.variance, n)}
        for need in answered
        if need.variance is not None
        for n in np.geomspace(low, high, POINTS).tolist()
    ]
    points = [
        {"estimator": _label(need), "n": need.episodes, "reached": aim}
        for need in answered
        if need.episodes is not None and need.episodes <= high
    ]
    x = alt.X(
        "n:Q",
        title="episodes",
        scale=alt.Scale(type="log", domain=[low, high], nice=False),
        axis=alt.Axis(values=charts.log_ticks(low, high), labelExpr=PLAIN),
    )
    y = _y_axis(goal.half_width is None, aim, max(row["reached"] for row in curves))
    looks = _looks(answered)
    lines = chart_of(curves).mark_line(strokeWidth=2, clip=True)
    marks = chart_of(points).mark_point(filled=True, size=80, opacity=1)
    shown = [
        alt.Tooltip("estimator:N"),
        alt.Tooltip("n:Q", title="episodes", format=",.0f"),
        alt.Tooltip(
            "reached:Q", title="power" if goal.half_width is None else "half-width", format=".4~g"
        ),
    ]
    rule = chart_of([{"reached": aim}]).mark_rule(color="#555555", strokeDash=[4, 3])
    layers = [rule.encode(y="reached:Q")]
    if plan.pilot_episodes is not None:
        layers.append(_pilot_rule(plan.pilot_episodes))
    layers += [
        lines.encode(x=x, y=y, color=looks["color"], strokeDash=looks["dash"], tooltip=shown),
        marks.encode(x=x, y=y, color=looks["color"], shape=looks["shape"], tooltip=shown),
    ]
    subtitle = source(plan)
    if any(need.warnings for need in answered):
        subtitle += "; !: with a warning, see the text"
    title = alt.Title(question(goal), subtitle=subtitle)
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT, title=title)


def _range(plan: Plan, answered: list[Need]) -> tuple[float, float]:
    """Episodes from the fewest to the most of interest."""
    planned = [need.episodes for need in answered if need.episodes is not None]
    known = [] if plan.pilot_episodes is None else [plan.pilot_episodes]
    low = max(min([*planned, *known]) / 4, 1.0)
    near = [n for n in planned if n <= FARTHEST * plan.episodes]
    return low, max(4.0 * max([*near, *known]), 20 * low)


def _y_axis(power: bool, aim: float, largest: float) -> alt.Y:
    if power:
        scale, axis = alt.Scale(domain=[0, 1]), alt.Axis(format="%")
        return alt.Y("reached:Q", title=f"power (goal: {aim:.0%})", scale=scale, axis=axis)
    domain = [aim / DEEPEST, max(largest, 2 * aim)]
    return alt.Y(
        "reached:Q",
        title=f"half-width (goal: {number(aim)})",
        scale=alt.Scale(type="log", domain=domain, nice=False),
        axis=alt.Axis(values=charts.log_ticks(*domain), labelExpr=PLAIN),
    )


def _looks(answered: list[Need]) -> dict[str, Any]:
    """Color, marker and dashes of the estimators, in one legend with their episodes."""
    looks = [charts.look_of(need.estimator) for need in answered]
    scales = charts.scales([_label(need) for need in answered], looks)
    legend = alt.Legend(orient="bottom", title="episodes needed", columns=3, labelLimit=200)
    return {
        "color": alt.Color("estimator:N", scale=scales.color, legend=legend),
        "shape": alt.Shape("estimator:N", scale=scales.shape, legend=legend),
        "dash": alt.StrokeDash("estimator:N", scale=scales.dash, legend=legend),
    }


def _label(need: Need) -> str:
    return f"{need.estimator}: {episodes_text(need)}{' !' if need.warnings else ''}"


def _pilot_rule(episodes: int) -> Any:
    row = [{"n": episodes, "text": f"pilot: {episodes:,}"}]
    rule = chart_of(row).mark_rule(color="#AAAAAA", strokeWidth=1.5).encode(x="n:Q")
    note = chart_of(row).mark_text(align="left", dx=4, dy=10, color="#777777", fontSize=11)
    return rule + note.encode(x="n:Q", y=alt.value(0), text="text:N")


def _origins(plan: Plan, parts: Decomposition) -> Any:
    """Share of the variance, the heaviest states first, steps joined where they are many."""
    horizon = len(parts.by_step)
    wide = -(-horizon // MOST_BINS)
    rows = _heat_rows(parts, wide, -(-horizon // wide))
    cells = [
        {
            "state": label,
            "from": column * wide,
            "to": min((column + 1) * wide, horizon),
            "share": value,
        }
        for label, values in rows
        for column, value in enumerate(values)
    ]
    note = f"the first state itself: {parts.start:.1%}"
    if wide > 1:
        note += f"; {wide} steps to a field"
    scale = alt.Scale(domain=[0, horizon], nice=False)
    shade = alt.Scale(scheme="blues", domainMin=0)
    title = alt.Title(origin(plan, parts), subtitle=note)
    return (
        chart_of(cells)
        .mark_rect()
        .encode(
            x=alt.X("from:Q", title="step", scale=scale, axis=alt.Axis(tickMinStep=1, grid=False)),
            x2="to:Q",
            y=alt.Y("state:N", title="state (share of all)", sort=[label for label, _ in rows]),
            color=alt.Color(
                "share:Q", title="share", scale=shade, legend=alt.Legend(format=".2~%")
            ),
            tooltip=[
                alt.Tooltip("state:N"),
                alt.Tooltip("from:Q", title="step"),
                alt.Tooltip("share:Q", format=".2%"),
            ],
        )
        .properties(width=WIDTH, height=HEIGHT, title=title)
    )


def _heat_rows(parts: Decomposition, wide: int, columns: int) -> list[tuple[str, list[float]]]:
    """(label, share per field) of the heaviest states, and the mean of the others."""
    totals = parts.by_state()
    shown = list(totals)[:LISTED] if len(totals) > LISTED + 1 else list(totals)
    place = {name: row for row, name in enumerate(shown)}
    row = np.array([place.get(name, len(shown)) for name in parts.state])
    size = (len(shown) + 1) * columns
    share = np.bincount(row * columns + parts.step // wide, parts.share, size).reshape(-1, columns)
    # a name from the data must not end the script element of an HTML page
    names = display_names(shown, lambda name: plain(name).replace("<", "‹"))
    rows = [
        (f"{names[name]} ({totals[name]:.1%})", share[k].tolist()) for k, name in enumerate(shown)
    ]
    others = len(totals) - len(shown)
    if others:
        # one field of the mean is as dark as one of a single state
        label = f"mean of {others:,} others ({share[-1].sum():.1%})"
        rows.append((label, (share[-1] / others).tolist()))
    return rows
