"""The page "the curse of horizon": its numbers are what the code computes."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).parents[2] / "studies" / "scripts"))

import curse_of_horizon as curse
import theory_checks as checks


def stored() -> list:
    with curse.TABLE.open(encoding="utf-8") as stream:
        return [
            curse.Point(
                row["world"],
                int(row["horizon"]),
                float(row["value"]),
                {name: float(row[name]) for name in curse.LINES},
            )
            for row in csv.DictReader(stream)
        ]


@pytest.mark.parametrize("horizon", [2, 10, 64, 256])
@pytest.mark.parametrize("world", curse.WORLDS)
def test_numbers_are_what_the_code_computes(world: str, horizon: int) -> None:
    [found] = [p for p in stored() if (p.world, p.horizon) == (world, horizon)]
    now = curse.point(world, horizon)
    assert found.value == pytest.approx(now.value, rel=1e-9)
    for name in curse.LINES:
        assert found.spread[name] == pytest.approx(now.spread[name], rel=1e-9)


def test_page_shows_the_numbers() -> None:
    page = curse.PAGE.read_text(encoding="utf-8")
    points = stored()
    assert [(p.world, p.horizon) for p in points] == [
        (world, H) for world in curse.WORLDS for H in curse.HORIZONS
    ]
    assert curse.filled(page, curse.as_tables(points)) == page
    assert curse.FIGURE.with_suffix(".svg").exists()
    with pytest.raises(ValueError, match="no place"):
        curse.filled("a page", curse.as_tables(points))


def test_what_the_page_says_of_them() -> None:
    """Its sentences: episodes at H = 50, the growth of each line, and where no bound is drawn."""
    at = {(p.world, p.horizon): p.spread for p in stored()}
    for world in curse.WORLDS:
        spread = at[world, 50]
        fewest = min(spread["is"], spread["wis"])
        assert (fewest / max(spread["mis"], spread["mis-plain"])) ** 2 > 1000
        assert at[world, 256]["mis-plain"] / at[world, 64]["mis-plain"] == pytest.approx(
            2, abs=0.35
        )
    for world, power in (("ModelWin", 0.5), ("ModelFail", 0.5), ("TimeVarying", 2.0)):
        grown = at[world, 256]["mis"] / at[world, 64]["mis"]
        assert grown == pytest.approx(power, abs=0.15)
    drawn = {world for (world, _), spread in at.items() if spread["cramer-rao"] > 0}
    assert drawn == {"ModelWin"}


def test_theory_table_is_what_the_code_measures() -> None:
    """docs/paper/theory.csv: one row per key, and the quick rows are measured again."""
    with checks.OUTPUT.open(encoding="utf-8") as stream:
        rows = {row["key"]: row for row in csv.DictReader(stream)}
    assert list(next(iter(rows.values()))) == [f.name for f in checks.fields(checks.Row)]
    assert {row["holds"] for row in rows.values()} == {"yes", "partly", "no"}
    for name in ("bias", "Chernoff", "Cramér-Rao", "remarks", "Example 1", "frameworks"):
        for now in checks.QUICK[name]():
            found = rows[now.key]
            assert found["statement"] == now.statement
            assert found["holds"] == now.holds
            assert float(found["measured"]) == pytest.approx(now.measured, rel=1e-6, abs=1e-9)
            assert float(found["expected"]) == pytest.approx(now.expected, rel=1e-6, abs=1e-9)
