"""The paper's figures as studies: which worlds, sizes and estimators each one shows.

Figures share cells: what Figure 2a and Figure 5a need of ModelWin at one size is simulated once.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from reweigh.errors import UsageError, nearest
from reweigh.paper.cells import Cell, CellResult, Setting
from reweigh.system.files import digest_of, write_atomically
from reweigh.worlds.paper_worlds import HORIZON as CAR_HORIZON

BOOTSTRAP = 2000  # resamples of the replicates
COLUMNS = (
    "figure",
    "world",
    "estimator",
    "n",
    "horizon",
    "replicates",
    "truth",
    "rel_rmse",
    "rel_rmse_low",
    "rel_rmse_high",
    "rel_bias",
    "rel_sd",
)
EPISODES = tuple(2**k for k in range(5, 13))  # n = 32, 64, …, 4096
CAR_EPISODES = EPISODES[:-1]
HORIZONS = tuple(2**k for k in range(2, 9))  # H = 4, 8, …, 256
FIXED_N, FIXED_H, FIXED_H_VARYING = 1024, 50, 64
APART = 1.025  # the ratio of places side by side
AXES = {"n": "episodes n", "horizon": "horizon H"}
TITLES = {
    "modelwin": "ModelWin",
    "modelfail": "ModelFail",
    "timevarying": "Time-varying",
    "mountaincar": "Mountain Car",
}

MAIN = ("dm", "is", "wis", "ssd-is", "mis")
WITHOUT_MODEL = MAIN[1:]  # a continuous action has no model
APPENDIX = ("dr", "wdr", "mdr", "mis")
VARIANTS = ("trajectory-is", "trajectory-wis", "mis", "mis-plain", "mis-state", "mis-pooled")
READINGS = ("ssd-is", "ssd-is-plugin", "ssd-is-selfnorm", "mis")
MEMORIES = (
    "mis",
    "mis-hajek",
    "mis-memory-1",
    "mis-memory-3",
    "mis-memory-11",
    "mis-memory-39",
    "wis",
)
FITS = ("dr", "dr-crossfit", "wdr", "wdr-crossfit", "mdr", "mdr-crossfit", "mis")


@dataclass(frozen=True)
class Figure:
    """One panel: estimators over the number of episodes, or over the horizon."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    estimators: tuple[str, ...]
    over: Literal["n", "horizon"]


def _panel(
    name: str, world: str, over: Literal["n", "horizon"], estimators: tuple[str, ...]
) -> Figure:
    horizon = {"timevarying": FIXED_H_VARYING, "mountaincar": CAR_HORIZON}.get(world, FIXED_H)
    if over == "n":
        sizes = CAR_EPISODES if world == "mountaincar" else EPISODES
        cells = tuple(Cell(world, horizon, n) for n in sizes)
        fixed = f"H = {horizon}"
    else:
        cells = tuple(Cell(world, H, FIXED_N) for H in HORIZONS)
        fixed = f"n = {FIXED_N}"
    return Figure(name, f"{TITLES[world]}, {fixed}", cells, estimators, over)


def _extras() -> Iterable[Figure]:
    """What the paper does not have: our additions on the same axes."""
    axes: tuple[tuple[Literal["n", "horizon"], str], ...] = (("n", "n"), ("horizon", "h"))
    for over, short in axes:
        for world in ("modelwin", "modelfail", "timevarying"):
            names = tuple(v for v in VARIANTS if (world, v) != ("modelfail", "mis-pooled"))
            if world != "timevarying":  # a model needs discrete actions
                names += ("mdr-crossfit",)
            yield _panel(f"extra_{world}_{short}", world, over, names)
            yield _panel(f"extra_ssd_{world}_{short}", world, over, READINGS)
    yield _panel("extra_mountaincar_n", "mountaincar", "n", (*VARIANTS, "dm-renorm"))
    yield _panel("extra_memory_mountaincar_n", "mountaincar", "n", MEMORIES)
    for world in ("modelwin", "modelfail", "mountaincar"):
        yield _panel(f"extra_fit_{world}_n", world, "n", FITS)


FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (
        _panel("fig2a", "modelwin", "n", MAIN),
        _panel("fig2b", "modelwin", "horizon", MAIN),
        _panel("fig2c", "modelfail", "n", MAIN),
        _panel("fig2d", "modelfail", "horizon", MAIN),
        _panel("fig3a", "timevarying", "n", WITHOUT_MODEL),
        _panel("fig3b", "timevarying", "horizon", WITHOUT_MODEL),
        _panel("fig4", "mountaincar", "n", MAIN),
        _panel("fig5a", "modelwin", "n", APPENDIX),
        _panel("fig5b", "modelwin", "horizon", APPENDIX),
        _panel("fig5c", "modelfail", "n", APPENDIX),
        _panel("fig5d", "modelfail", "horizon", APPENDIX),
        _panel("fig6", "mountaincar", "n", APPENDIX),
        *_extras(),
    )
}


def chosen(names: Iterable[str]) -> list[Figure]:
    """Figures by name; `all` is every one."""
    listed = list(dict.fromkeys(names))
    for name in listed:
        if name not in (*FIGURES, "all"):
            raise UsageError(
                f"there is no figure {name!r}{nearest(name, FIGURES)} "
                f"(figures: all, {', '.join(FIGURES)})"
            )
    return [FIGURES[name] for name in (FIGURES if "all" in listed else listed)]


def wanted(figures: Iterable[Figure]) -> dict[Cell, list[str]]:
    """The cells of these figures, each once, with all estimators that any of them shows."""
    estimators: dict[Cell, list[str]] = {}
    for figure in figures:
        for cell in figure.cells:
            names = estimators.setdefault(cell, [])
            names += [name for name in figure.estimators if name not in names]
    return estimators


# Tidy tables


def rows(
    figure: Figure, results: Mapping[Cell, CellResult], setting: Setting
) -> list[dict[str, Any]]:
    """One row per cell and estimator; an estimator that always refused in a cell has none."""
    table = []
    for cell in figure.cells:
        for name in figure.estimators:
            values, truth = results[cell].answered(name), float(cell.truth)
            if len(values):
                row = {
                    "figure": figure.name,
                    "world": cell.world,
                    "estimator": name,
                    "n": cell.n,
                    "horizon": cell.horizon,
                    "replicates": len(values),
                    "truth": truth,
                }
                table.append(row | relative_error(values, truth, resamples(cell, setting.seed)))
    return table


def resamples(cell: Cell, seed: int) -> np.random.Generator:
    """The bootstrap's own stream, the same for every estimator of the cell."""
    return np.random.default_rng([seed, int(digest_of(cell.name, "bootstrap")[:16], 16)])


def relative_error(
    values: np.ndarray[Any, np.dtype[np.float64]], truth: float, rng: np.random.Generator
) -> dict[str, float]:
    """Relative-RMSE sqrt(mean (v̂ - v)²)/|v| with a 95 % percentile interval over replicates.

    Bias and standard deviation (divided by the number of replicates) are relative too, so that
    rel_rmse² = rel_bias² + rel_sd².
    """
    off = (values - truth) / abs(truth)
    drawn = rng.integers(len(off), size=(BOOTSTRAP, len(off)))
    spread = np.sqrt(np.mean((off**2)[drawn], axis=1))
    low, high = np.quantile(spread, [0.025, 0.975])
    return {
        "rel_rmse": float(np.sqrt(np.mean(off**2))),
        "rel_rmse_low": float(low),
        "rel_rmse_high": float(high),
        "rel_bias": float(np.mean(off)),
        "rel_sd": float(np.std(off)),
    }


def refusals(figure: Figure, results: Mapping[Cell, CellResult]) -> list[str]:
    """Which estimators refused replicates, as sentences."""
    sentences = []
    for name in figure.estimators:
        counts = {cell.name: results[cell].refused.get(name, {}) for cell in figure.cells}
        for code in sorted({code for codes in counts.values() for code in codes}):
            by_cell = {cell: codes[code] for cell, codes in counts.items() if code in codes}
            sentences.append(
                f"{figure.name}: {name} refused {sum(by_cell.values())} replicates ({code}) in "
                f"{', '.join(by_cell)}"
            )
    return sentences


def write_csv(path: Path, table: list[dict[str, Any]], *, overwrite: bool) -> None:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)  # a float's shortest text reads back as the same float
    content = text.getvalue().encode()
    write_atomically(path, lambda stream: stream.write(content), overwrite=overwrite)


# Charts


def chart(figure: Figure, table: Sequence[dict[str, Any]]) -> Any:
    """The panel of a figure from its rows: Relative-RMSE on log axes, with every point's error."""
    import altair as alt

    from reweigh.show.charts import estimator_scales, log_ticks, styled

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
