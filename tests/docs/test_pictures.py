"""The pictures of the concepts show what the code draws."""

from __future__ import annotations

import sys

import pytest

from .pages import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import pictures

from reweigh.show.charts import rendered


@pytest.mark.filterwarnings("ignore::reweigh.LowOverlapWarning")
def test_the_pictures_show_what_the_code_draws() -> None:
    drawn = pictures.pictures()
    assert sorted(drawn) == sorted(path.stem for path in pictures.FOLDER.glob("*.svg"))
    for name, chart in drawn.items():
        kept = (pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
        again = pictures.shown(rendered(chart, "svg").decode())
        assert len(again) > 10
        assert pictures.shown(kept) == again
