"""est.plot: Altair charts that draw themselves and can be saved."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import reweigh as rw
from reweigh.show import charts
from reweigh.show.charts import TITLES

from .samples import sampled

METHODS = {
    "forest": ("forest",),
    "gains": ("gains",),
    "weights": ("ess", "largest"),
    "marginals": ("difference",),
    "value": ("value_steps", "value_states"),
    "variance": ("variance_steps", "variance_states"),
    "sensitivity": ("sensitivity",),
}


@pytest.fixture(scope="module")
def estimate() -> Any:
    return sampled(("mis",))[2][0]


@pytest.mark.parametrize("name", METHODS)
def test_every_chart_is_drawn_with_its_question(estimate: Any, name: str) -> None:
    chart = getattr(estimate.plot, name)()
    drawn = charts.rendered(chart, "svg").decode()
    assert drawn.count("<path") > 5
    for title in METHODS[name]:
        assert TITLES[title] in drawn
        assert TITLES[title].endswith("?")


@pytest.mark.parametrize("show", ["difference", "target", "log"])
def test_marginals_show_what_is_asked_for(estimate: Any, show: str) -> None:
    assert TITLES[show] in charts.rendered(estimate.plot.marginals(show), "svg").decode()


def test_others_stand_beside(estimate: Any) -> None:
    _, _, others = sampled(("wis", "dm", "mis"))  # another mis, which is told apart
    drawn = charts.rendered(estimate.plot.forest(others), "svg").decode()
    for name in ("mis", "wis", "dm"):
        assert charts.LOOKS[name].color in drawn
    assert "mis #2" in drawn
    assert estimate.plot.gains(others).to_dict()


@pytest.mark.parametrize(
    ("name", "start"), [("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"), ("a.svg", b"<svg")]
)
def test_charts_are_saved(estimate: Any, tmp_path: Path, name: str, start: bytes) -> None:
    path = estimate.plot.save(estimate.plot.forest(), tmp_path / name)
    assert path.read_bytes().startswith(start)
    with pytest.raises(rw.UsageError, match="exists"):
        estimate.plot.save(estimate.plot.forest(), path)


def test_what_sums_do_not_hold_is_refused_with_the_reason() -> None:
    log, target, _ = sampled(("mis",))
    estimate = rw.evaluate(rw.moments(log, target, ["mis"], gates=False), estimator=rw.mis())
    assert estimate.plot.marginals().to_dict()
    with pytest.raises(rw.RefusedError, match="sums"):
        estimate.plot.gains()
    with pytest.raises(rw.RefusedError, match="sums"):
        estimate.plot.sensitivity()


def test_an_estimate_imports_no_charts_before_they_are_asked_for() -> None:
    code = (
        "import sys, numpy as np, reweigh as rw\n"
        "log = rw.log_from_arrays(np.zeros((40, 3), int), np.tile([[0, 1]], (40, 1)),"
        " np.random.default_rng(0).random((40, 2)), np.full((40, 2), 0.5))\n"
        "est = rw.evaluate(log, rw.TablePolicy({0: {0: 0.5, 1: 0.5}}))\n"
        "print([m for m in ('altair', 'jinja2', 'vl_convert') if m in sys.modules])\n"
        "est.plot\n"
        "print('altair' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "True"]
