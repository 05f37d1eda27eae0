"""Small, seeded versions of every figure: order and slope of the curves, with wide margins.

24 replicates: an RMSE has a relative Monte-Carlo error of 1/sqrt(2·24) = 14 %, so factors of 2
and more are told apart, and a slope over a factor of 16 in n is known to about 0.07.
"""

from __future__ import annotations

import csv
import math
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reweigh.paper import figures, sweep
from reweigh.paper import figures as paper
from reweigh.paper.cells import Cell, CellResult, Setting
from reweigh.paper.sweep import Backend
from reweigh.show import charts

SETTING = Setting(replicates=24, seed=1)
Curves = dict[str, dict[int, float]]
SMALL = {  # figure: the sizes on its axis that are run
    "n": (64, 256, 1024),
    "horizon": (4, 16, 64),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cells")


def small(name: str) -> paper.Figure:
    figure = paper.FIGURES[name]
    sizes = (32, 128, 512) if "mountaincar" in figure.cells[0].world else SMALL[figure.over]
    return replace(figure, cells=tuple(c for c in figure.cells if getattr(c, figure.over) in sizes))


def table(name: str, folder: Path) -> list[dict[str, Any]]:
    figure = small(name)
    done = sweep.run(
        paper.wanted([figure]), folder, SETTING, backend=Backend("sequential"), resume=True
    )
    return paper.rows(figure, done.results, SETTING)


def curves(name: str, folder: Path) -> Curves:
    """rel_rmse by estimator and size."""
    over = paper.FIGURES[name].over
    found: Curves = {}
    for row in table(name, folder):
        found.setdefault(row["estimator"], {})[row[over]] = row["rel_rmse"]
    return found


def slope(curve: dict[int, float]) -> float:
    """Of the log error over the log size."""
    return float(np.polyfit(np.log(list(curve)), np.log(list(curve.values())), 1)[0])


@pytest.mark.parametrize("name", ["fig2a", "fig5a"])
def test_modelwin_over_n(name: str, folder: Path) -> None:
    """MIS falls as n^-1/2, as DM does; running products have not begun to."""
    found = curves(name, folder)
    assert -0.75 < slope(found["mis"]) < -0.25
    products = ("is", "wis") if name == "fig2a" else ("dr", "wdr")
    assert all(found[other][1024] > 3 * found["mis"][1024] for other in products)
    assert all(slope(found[other]) > -0.25 for other in products)
    if name == "fig2a":
        assert found["dm"][1024] == pytest.approx(found["mis"][1024], rel=0.35)
        assert found["ssd-is"][1024] == pytest.approx(found["mis"][1024], rel=0.35)
    else:  # half of the episodes for the weights
        assert 1.05 < found["mdr"][1024] / found["mis"][1024] < 2.5


@pytest.mark.parametrize("name", ["fig2b", "fig5b"])
def test_modelwin_over_the_horizon(name: str, folder: Path) -> None:
    """Relative errors of MIS fall as H^-1/2; those of running products grow."""
    found = curves(name, folder)
    assert -0.8 < slope(found["mis"]) < -0.2
    growing = "is" if name == "fig2b" else "dr"
    assert slope(found[growing]) > 0.1
    assert found[growing][64] > 4 * found["mis"][64]


@pytest.mark.parametrize("name", ["fig2c", "fig5c"])
def test_modelfail_over_n(name: str, folder: Path) -> None:
    """A model that takes '?' for a state never comes near; MIS falls as n^-1/2."""
    found = curves(name, folder)
    assert -0.75 < slope(found["mis"]) < -0.25
    if name == "fig2c":
        for blind in ("dm", "ssd-is"):
            assert all(0.9 < error < 1.1 for error in found[blind].values())
        assert found["is"][1024] > 5 * found["mis"][1024]
        assert found["wis"][1024] > 3 * found["mis"][1024]
    else:
        assert found["dr"][1024] > 5 * found["mis"][1024]
        assert found["mdr"][1024] < 3 * found["mis"][1024]


@pytest.mark.parametrize("name", ["fig2d", "fig5d"])
def test_modelfail_over_the_horizon(name: str, folder: Path) -> None:
    found = curves(name, folder)
    assert slope(found["mis"]) < -0.15
    growing = "is" if name == "fig2d" else "dr"
    assert slope(found[growing]) > 0.4
    if name == "fig2d":  # at a short horizon nothing is won
        assert found["is"][4] < 2.5 * found["mis"][4]
        assert found["wis"][4] < 2 * found["mis"][4]
        assert found["is"][64] > 10 * found["mis"][64]


def test_the_time_varying_world_over_n(folder: Path) -> None:
    """MIS alone falls; SSD-IS does not move; IS and WIS hardly."""
    found = curves("fig3a", folder)
    assert -0.75 < slope(found["mis"]) < -0.25
    assert abs(slope(found["ssd-is"])) < 0.05
    assert all(error > 0.7 for error in found["ssd-is"].values())
    assert abs(slope(found["wis"])) < 0.1
    assert all(found[name][1024] > 4 * found["mis"][1024] for name in ("is", "wis", "ssd-is"))


def test_the_time_varying_world_over_the_horizon(folder: Path) -> None:
    """MIS grows slowly, IS and WIS fast; SSD-IS is biased at every horizon."""
    found = curves("fig3b", folder)
    assert 0.0 < slope(found["mis"]) < 0.75
    assert slope(found["wis"]) > 0.5
    assert slope(found["is"]) > 0.5
    assert all(error > 0.7 for error in found["ssd-is"].values())


@pytest.mark.parametrize("name", ["fig4", "fig6"])
def test_mountain_car(name: str, folder: Path) -> None:
    found = curves(name, folder)
    assert found["mis"][512] < 0.6 * found["mis"][32]
    if name == "fig4":
        assert found["is"][128] > 1.4 * found["mis"][128]
        assert all(error == 1.0 for error in found["ssd-is"].values())  # all mass is on END
        assert all(error > 0.8 for error in found["dm"].values())  # unseen actions have no mass
    else:
        assert found["mdr"][128] < 3 * found["mis"][128]
        assert all(found[other][512] > 5 * found["mis"][512] for other in ("dr", "wdr"))


def test_what_we_add(folder: Path) -> None:
    """Whole-trajectory products are worse than step-wise ones, plain MIS than normalized."""
    found = curves("extra_modelwin_n", folder)
    assert found["trajectory-is"][1024] > 3 * found["mis"][1024]
    assert found["mis-plain"][1024] > found["mis"][1024]
    halved = curves("fig5a", folder)["mdr"]
    assert found["mdr-crossfit"][1024] < halved[1024]


@pytest.mark.parametrize("name", [n for n in paper.FIGURES if n.startswith("extra_")])
def test_every_addition_can_be_run(name: str) -> None:
    figure = paper.FIGURES[name]
    cells = (min(figure.cells, key=lambda cell: (cell.n, cell.horizon)),)
    first = replace(figure, cells=cells)
    for cell in cells:
        from reweigh.paper.cells import run_replicates

        _, result = run_replicates(cell, figure.estimators, 0, range(2))
        assert {len(values) for values in result.values.values()} == {2}
        found = paper.rows(first, {cell: result}, Setting(2))
        assert {row["estimator"] for row in found} == set(figure.estimators)


def test_the_table_of_figures_is_the_papers() -> None:
    listed = [name for name in paper.FIGURES if name.startswith("fig")]
    assert listed == [
        "fig2a", "fig2b", "fig2c", "fig2d", "fig3a", "fig3b", "fig4",
        "fig5a", "fig5b", "fig5c", "fig5d", "fig6",
    ]  # fmt: skip
    assert [c.n for c in paper.FIGURES["fig2a"].cells] == [2**k for k in range(5, 13)]
    assert {c.horizon for c in paper.FIGURES["fig2a"].cells} == {50}
    assert [c.horizon for c in paper.FIGURES["fig3b"].cells] == [2**k for k in range(2, 9)]
    assert {c.horizon for c in paper.FIGURES["fig3a"].cells} == {64}
    assert [c.n for c in paper.FIGURES["fig4"].cells] == [2**k for k in range(5, 12)]
    assert len(paper.chosen(["all"])) == len(paper.FIGURES)


def test_relative_errors() -> None:
    rng = np.random.default_rng(0)
    values = -2 + 0.3 + rng.normal(size=400)
    found = paper.relative_error(values, -2.0, np.random.default_rng(1))
    assert found["rel_rmse"] ** 2 == pytest.approx(found["rel_bias"] ** 2 + found["rel_sd"] ** 2)
    assert found["rel_rmse"] == pytest.approx(np.sqrt(np.mean((values + 2) ** 2)) / 2)
    assert found["rel_bias"] == pytest.approx((values.mean() + 2) / 2)
    # Var(x²) of a normal x: the delta method gives the interval's width within 15 %.
    square = (values + 2) ** 2
    half = 1.96 * square.std() / math.sqrt(400) / (2 * math.sqrt(square.mean())) / 2
    assert (found["rel_rmse_high"] - found["rel_rmse_low"]) / 2 == pytest.approx(half, rel=0.15)


def test_tables_and_pictures_on_disk(folder: Path, tmp_path: Path) -> None:
    found = table("fig3a", folder)
    paper.write_csv(tmp_path / "fig3a.csv", found, overwrite=False)
    with (tmp_path / "fig3a.csv").open() as stream:
        read = list(csv.DictReader(stream))
    assert tuple(read[0]) == paper.COLUMNS
    assert [float(row["rel_rmse"]) for row in read] == [row["rel_rmse"] for row in found]
    assert all(row["replicates"] == "24" for row in read)
    for row in found:
        assert row["rel_rmse_low"] <= row["rel_rmse"] <= row["rel_rmse_high"]
    picture = figures.chart(small("fig3a"), found)
    charts.save(picture, tmp_path / "fig3a")
    texts = {e.text for e in ET.parse(tmp_path / "fig3a.svg").iter() if e.text}
    assert {"is", "wis", "ssd-is", "mis", "Relative-RMSE", "episodes n"} <= texts
    assert (tmp_path / "fig3a.png").read_bytes().startswith(b"\x89PNG")


def test_an_error_of_zero_has_no_place_on_a_log_axis() -> None:
    cell = Cell("modelwin", 4, 20)
    result = {cell: CellResult({"is": [float(cell.truth)] * 4, "mis": [0.1, 0.2, 0.3, 0.4]}, {})}
    figure = paper.Figure("x", "x", (cell,), ("is", "mis"), "n")
    found = paper.rows(figure, result, Setting(4))
    assert found[0]["rel_rmse"] == 0
    shown = figures.chart(figure, found).to_dict()
    [values] = shown["datasets"].values() if "datasets" in shown else [shown["data"]["values"]]
    assert [row["estimator"] for row in values] == ["mis"]


def test_every_estimator_has_a_look_of_its_own() -> None:
    from reweigh.estimate.presets import ESTIMATORS

    remembering = {name for name in paper.MEMORIES if name.startswith("mis-memory-")}
    assert set(charts.LOOKS) == {*ESTIMATORS, *remembering}
    assert len(set(charts.LOOKS.values())) == len(charts.LOOKS)
    for figure in paper.FIGURES.values():  # told apart in gray: by marker and dashes together
        looks = [charts.LOOKS[name] for name in figure.estimators]
        assert len({(look.shape, look.dash) for look in looks}) == len(looks), figure.name
        assert len({look.color for look in looks}) == len(looks), figure.name
