"""What all charts share: whole files, in the format that their names say, safe to open."""

from __future__ import annotations

from pathlib import Path

import altair as alt
import pytest

import reweigh as rw
from reweigh.show import charts

HOSTILE = "</script><script>alert(1)</script>"


def chart() -> alt.Chart:
    data = alt.InlineData(values=[{"x": 1, "name": HOSTILE}])
    return charts.styled(alt.Chart(data).mark_point().encode(x="x:Q", color="name:N"))


def test_a_page_holds_no_script_from_the_data(tmp_path: Path) -> None:
    path = charts.save_as(chart(), tmp_path / "chart.html")
    page = path.read_text(encoding="utf-8")
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert "</script><script" not in page.replace("\n", "").replace(" ", "").lower()[-2000:]
    assert 'src="http' not in page


@pytest.mark.parametrize(
    ("kind", "begins"),
    [("svg", b"<svg"), ("png", b"\x89PNG"), ("pdf", b"%PDF"), ("json", b"{")],
)
def test_formats(kind: str, begins: bytes, tmp_path: Path) -> None:
    assert charts.save_as(chart(), tmp_path / f"c.{kind}").read_bytes().startswith(begins)


def test_an_unknown_format_and_an_existing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(rw.UsageError, match="ends in one of"):
        charts.save_as(chart(), tmp_path / "c.gif")
    path = charts.save_as(chart(), tmp_path / "c.json")
    with pytest.raises(rw.UsageError, match="exists"):
        charts.save_as(chart(), path)
    charts.save_as(chart(), path, overwrite=True)
