"""Charts of the coverage study."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from reweigh.show.charts import styled
from reweigh_studies.coverage.faults import FAULTS
from reweigh_studies.coverage.goals import HIGH, LOW, pick
from reweigh_studies.coverage.measures import MAIN
from reweigh_studies.coverage.power import NO_TESTS, alarms, in_faulty_worlds, tellers
from reweigh_studies.coverage.tables import DEFAULT, Row
from reweigh_studies.coverage.worlds import WORLDS

SHOWN = ("mis", "mis-plain", "mis-state", "dm", "is", "wis", "mdr", "behavior")
SHADES = ["#FFFFFF", "#0072B2"]


def coverage_chart(rows: Sequence[Row]) -> Any:
    """Coverage of the default interval over n, a point per well-overlapped world."""
    keys = ("world", "estimator", "n", "green")
    shown = [
        {key: row[key] for key in keys} | {"percent": 100 * row["coverage"]}
        for row in pick(rows, group="well", method=DEFAULT, estimator=SHOWN)
        if row["coverage"] is not None
    ]
    sizes = sorted({row["n"] for row in shown})
    named = [name for name in SHOWN if pick(shown, estimator=name)]
    panels = [_panel(name, pick(shown, estimator=name), sizes) for name in named]
    title = alt.TitleParams(
        "Coverage of 95 % intervals in well-overlapped worlds",
        subtitle=f"a point per world; the band is {LOW:.0%} to {HIGH:.0%}; whatever the verdict",
    )
    return styled(alt.concat(*panels, columns=4, title=title))


def _panel(name: str, shown: list[Row], sizes: list[int]) -> Any:
    """One estimator: a point per world and size, before the band of the goal."""
    band = (
        alt.Chart(alt.InlineData(values=[{"low": 100 * LOW, "high": 100 * HIGH}]))
        .mark_rect(color="#CCE5CC", opacity=0.8)
        .encode(alt.Y("low:Q"), alt.Y2("high:Q"))
    )
    points = (
        alt.Chart(alt.InlineData(values=shown))
        .mark_point(filled=True, size=26, opacity=0.55, color="#0072B2")
        .encode(
            alt.X("n:O", sort=sizes, title="episodes n", axis=alt.Axis(labelAngle=0)),
            alt.Y("percent:Q", title="coverage, %", scale=alt.Scale(domain=[0, 100], clamp=True)),
            tooltip=["world:N", "n:Q", "percent:Q", "green:Q"],
        )
    )
    return alt.layer(band, points).properties(width=150, height=150, title=name)


def green_chart(rows: Sequence[Row]) -> Any:
    """The share of green verdicts of the main estimator, world by world."""
    shown = [
        {"world": row["world"], "n": row["n"], "green": round(100 * row["green"])}
        for row in pick(rows, method=DEFAULT, estimator=MAIN)
    ]
    return _grid(
        shown, ("n", "episodes n"), ("world", None), "green", list(WORLDS),
        f"Green verdicts on {MAIN}, %", "by world and episodes; clean logs",
    )  # fmt: skip


def faults_chart(gates: Sequence[Row], n: int) -> Any:
    """How often each gate notices each fault, mean over the worlds. A gate that the main estimator
    lacks is shown for the first that has it."""
    rows = pick(in_faulty_worlds(gates), n=n)
    faults = [name for name in FAULTS if pick(rows, fault=name)]
    detected_by = {gate: name for gate, name in tellers(rows).items() if gate not in NO_TESTS}
    shown = []
    for fault in faults:
        for gate, name in detected_by.items():
            share = alarms(pick(rows, fault=fault, gate=gate, estimator=name)).either
            if share is not None:
                named = gate if name == MAIN else f"{gate} ({name})"
                shown.append({"fault": fault, "gate": named, "alarm": round(100 * share)})
    return _grid(
        shown, ("gate", None), ("fault", None), "alarm", faults,
        f"How often gates are amber or red, %: n = {n}",
        f"{MAIN}, or the estimator in brackets; mean over worlds; clean: false alarms", step=33,
    )  # fmt: skip


def _grid(
    values: list[dict[str, Any]],
    across: tuple[str, str | None],
    down: tuple[str, str | None],
    shade: str,
    order: list[str],
    title: str,
    subtitle: str,
    *,
    step: int = 44,
) -> Any:
    """A table of shaded cells with their numbers."""
    base = alt.Chart(alt.InlineData(values=values)).encode(
        alt.X(f"{across[0]}:O", title=across[1], sort=None, axis=alt.Axis(labelAngle=-35)),
        # room for fonts that are wider than the one that was measured
        alt.Y(f"{down[0]}:N", title=down[1], sort=order, axis=alt.Axis(minExtent=130)),
    )
    scale = alt.Scale(domain=[0, 100], range=SHADES, interpolate="rgb")
    cells = base.mark_rect().encode(alt.Color(f"{shade}:Q", scale=scale, legend=None))
    numbers = base.mark_text(fontSize=10).encode(
        alt.Text(f"{shade}:Q"),
        color=alt.condition(f"datum.{shade} > 55", alt.value("white"), alt.value("black")),
    )
    heading = alt.TitleParams(title, subtitle=subtitle)
    size = {"width": alt.Step(step), "height": alt.Step(18)}
    return styled(alt.layer(cells, numbers).properties(title=heading, **size))
