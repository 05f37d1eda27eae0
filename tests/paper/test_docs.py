"""What docs/paper shows is what the code makes."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from reweigh.paper import figures as paper
from reweigh.paper.cells import run_replicates

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "paper"


def read(name: str) -> list[dict[str, str]]:
    with (FOLDER / f"{name}.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("name", paper.FIGURES)
def test_every_figure_is_there_and_whole(name: str) -> None:
    figure, found = paper.FIGURES[name], read(name)
    assert tuple(found[0]) == paper.COLUMNS
    shown = {(row["estimator"], int(row["n"]), int(row["horizon"])) for row in found}
    assert shown == {(e, c.n, c.horizon) for e in figure.estimators for c in figure.cells}
    for row in found:
        assert row["figure"] == name
        assert row["replicates"] == "128"
        low, mid, high = (float(row[f"rel_rmse{end}"]) for end in ("_low", "", "_high"))
        assert 0 < low <= mid <= high < np.inf
    picture = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert all(f">{estimator}</text>" in picture for estimator in figure.estimators)


def test_figures_that_share_a_cell_agree() -> None:
    seen: dict[tuple[str, ...], tuple[str, ...]] = {}
    for name in paper.FIGURES:
        for row in read(name):
            key = tuple(row[k] for k in ("world", "estimator", "n", "horizon"))
            rest = tuple(row[k] for k in paper.COLUMNS[5:])
            assert seen.setdefault(key, rest) == rest


@pytest.mark.parametrize("name", ["fig2a", "fig3b", "fig5c"])
def test_a_cell_made_anew_has_the_numbers_of_the_tables(name: str) -> None:
    figure = paper.FIGURES[name]
    cell = min(figure.cells, key=lambda cell: cell.n * cell.horizon)
    _, result = run_replicates(cell, figure.estimators, 0, range(128))
    values = {row["estimator"]: row for row in read(name) if int(row["n"]) == cell.n
              and int(row["horizon"]) == cell.horizon}  # fmt: skip
    for estimator in figure.estimators:
        found = paper.relative_error(
            result.answered(estimator), float(cell.truth), paper.resamples(cell, 0)
        )
        for column, number in found.items():
            assert float(values[estimator][column]) == pytest.approx(number, rel=1e-8, abs=1e-12)


def test_the_folder_is_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 3_000_000


def test_the_pages_say_what_the_tables_say() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "claims.py")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_links_of_the_pages_lead_somewhere() -> None:
    for page in (FOLDER / "README.md", FOLDER / "claims.md", ROOT / "docs/curse-of-horizon.md"):
        text = page.read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)#]+)\)", text):
            assert (page.parent / link).exists(), (page.name, link)
