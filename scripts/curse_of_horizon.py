"""The curse of horizon in exact numbers: docs/curse-of-horizon.csv, .svg and the page's tables.

python scripts/curse_of_horizon.py          check that page and table are what the code says
python scripts/curse_of_horizon.py --write  put them in
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reweigh import theory
from reweigh.worlds import ModelFail, ModelWin, TabularMDP, TimeVarying

DOCS = Path(__file__).parents[1] / "docs"
PAGE, TABLE, FIGURE = (DOCS / f"curse-of-horizon{end}" for end in (".md", ".csv", ""))
POWERS = tuple(2**k for k in range(1, 9))
ASKED = (10, 50, 100, 250)
HORIZONS = tuple(sorted({*POWERS, *ASKED}))
WORLDS = ("ModelWin", "ModelFail", "TimeVarying")
ESTIMATORS = ("is", "wis", "mis-plain", "mis")
BOUND = "cramer-rao"
LINES = (*ESTIMATORS, BOUND)
DRAWN = ("wis", "is", "mis-plain", "mis")  # later ones on top, where lines meet
DARK = "#111111"
RELATIVE_ERROR = 0.1
TOP = 1e6  # of the figure: IS and WIS leave it


@dataclass(frozen=True)
class Point:
    """Exact asymptotic standard deviations per episode over |v|, by the name of the line."""

    world: str
    horizon: int
    value: float
    spread: dict[str, float]


def point(world: str, H: int) -> Point:
    """The numbers of one world at one horizon."""
    seen, marginal = _worlds(world, H)
    products, q = theory.quantities(seen), theory.quantities(marginal)
    # the bound of a world in which only actions are random is 0, up to rounding
    bound = q.cramer_rao if q.cramer_rao > 1e-9 * q.leading else 0.0
    variance = {
        "is": products.is_variance,
        "wis": products.wis_variance,
        "mis-plain": q.leading,
        "mis": q.leading_simplex,
        BOUND: bound,
    }
    spread = {name: math.sqrt(x) / abs(q.value) for name, x in variance.items()}
    return Point(world, H, q.value, spread)


def _worlds(world: str, H: int) -> tuple[TabularMDP, TabularMDP]:
    """The world with all its states seen, for products of ratios, and as MIS sees it."""
    if world == "ModelFail":
        hidden = ModelFail(H)
        seen = TabularMDP(hidden.initial, hidden.transition, hidden.reward,
                          hidden.target_array, hidden.behavior_array)  # fmt: skip
        return seen, hidden.checkpoints()
    same = ModelWin(H) if world == "ModelWin" else TimeVarying(H, 0).tabular()
    return same, same


def as_csv(points: list[Point]) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["world", "horizon", "value", *LINES])
    for p in points:
        table.writerow([p.world, p.horizon, repr(p.value), *(repr(p.spread[x]) for x in LINES)])
    return text.getvalue()


def as_tables(points: list[Point]) -> dict[str, str]:
    """The page's two tables, by the name of their place."""
    spread, episodes = [], []
    for p in points:
        if p.horizon not in ASKED:
            continue
        start = f"| {p.world} | {p.horizon} | "
        spread.append(start + " | ".join(_number(p.spread[x]) for x in LINES) + " |")
        needed = (math.ceil((p.spread[x] / RELATIVE_ERROR) ** 2) for x in ESTIMATORS)
        episodes.append(start + " | ".join(_number(n, whole=True) for n in needed) + " |")
    return {"spread": _table(LINES, spread), "episodes": _table(ESTIMATORS, episodes)}


def _table(columns: tuple[str, ...], rows: list[str]) -> str:
    heads = " | ".join(f"`{name}`" if name in ESTIMATORS else "Cramér–Rao" for name in columns)
    return "\n".join(
        [f"| world | H | {heads} |", "|---|---:" + "|---:" * len(columns) + "|", *rows]
    )


def _number(x: float, *, whole: bool = False) -> str:
    if x == 0:
        return "0"
    if x >= 1e6:
        power = math.floor(math.log10(x))
        digits = str(power).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
        return f"{x / 10.0**power:.1f} × 10{digits}"
    return f"{x:,.0f}" if whole or x >= 100 else f"{x:.3g}"


def filled(page: str, tables: dict[str, str]) -> str:
    """The page with the tables between their marks."""
    for name, table in tables.items():
        mark = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end {name} -->)", re.S)
        if not mark.search(page):
            raise ValueError(f"the page has no place for the table {name!r}")
        page = mark.sub(lambda m, table=table: f"{m.group(1)}{table}\n{m.group(2)}", page)
    return page


def chart(points: list[Point]) -> Any:
    """Three panels, one line per estimator, and the Cramér–Rao bound dashed where it is not 0."""
    import altair as alt

    from reweigh.show import charts

    data = [
        {"world": p.world, "H": p.horizon, "line": x, "spread": p.spread[x], "mark": marked}
        for p in points
        for x in (*DRAWN, BOUND)
        if p.spread[x] > 0
        for marked in [x in ESTIMATORS and p.horizon in POWERS and p.spread[x] <= TOP]
    ]
    scales = charts.estimator_scales(ESTIMATORS)
    dashes = [*scales.dash.to_dict()["range"], [5, 4]]
    below: dict[str, Any] = {"title": None, "orient": "bottom", "columnPadding": 18}
    legend = alt.Legend(**below, symbolSize=100, symbolStrokeWidth=0)
    of_bound = alt.Legend(
        **below,
        values=[BOUND],
        labelExpr="'Cramér–Rao'",
        symbolType="stroke",
        symbolSize=196,
        symbolStrokeColor=DARK,
        symbolStrokeWidth=1.3,
    )
    base = alt.Chart().encode(
        x=alt.X(
            "H:Q",
            scale=alt.Scale(type="log", base=2, domain=[2, 256], nice=False),
            axis=alt.Axis(values=list(POWERS), title="horizon H", format="d", labelFlush=False),
        ),
        y=alt.Y(
            "spread:Q",
            scale=alt.Scale(type="log", domain=[0.1, TOP], nice=False),
            axis=alt.Axis(
                values=[10.0**k for k in range(-1, 7)],
                format=",~g",
                title="standard deviation per episode, relative to |v|",
            ),
        ),
    )
    color = alt.Color("line:N", scale=scales.color, legend=legend)
    dash = alt.StrokeDash(
        "line:N", scale=alt.Scale(domain=list(LINES), range=dashes), legend=of_bound
    )
    shape = alt.Shape("line:N", scale=scales.shape, legend=legend)
    estimators = base.transform_filter(f"datum.line != '{BOUND}'").encode(color=color)
    lines = estimators.mark_line(clip=True, strokeWidth=3).encode(strokeDash=dash)
    marks = base.transform_filter("datum.mark").mark_point(filled=True, size=45, opacity=1)
    # thin, dark and on top: in ModelWin it lies on mis, and both are to be seen
    bound = base.transform_filter(f"datum.line == '{BOUND}'").encode(strokeDash=dash)
    bound = bound.mark_line(clip=True, strokeWidth=1.3, color=DARK)
    panels = alt.layer(lines, marks.encode(color=color, shape=shape), bound)
    panels = panels.properties(width=210, height=270)
    faceted = panels.facet(
        column=alt.Column("world:N", sort=list(WORLDS), title=None), data=alt.Data(values=data)
    )
    return charts.styled(faceted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write figure, table and page")
    options = parser.parse_args()
    points = [point(world, H) for world in WORLDS for H in HORIZONS]
    page = PAGE.read_text(encoding="utf-8")
    real = filled(page, as_tables(points))
    if options.write:
        from reweigh.show import charts

        PAGE.write_text(real, encoding="utf-8")
        TABLE.write_text(as_csv(points), encoding="utf-8")
        charts.save(chart(points), FIGURE, ("svg",), overwrite=True)
    elif real != page:
        sys.exit(f"{PAGE.name}: the tables are not what the code says; run with --write")


if __name__ == "__main__":
    main()
