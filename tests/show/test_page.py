"""The page: self-contained, harmless whatever names it shows, whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reweigh as rw
from reweigh.evaluation.report import report_of, write_report
from reweigh.show import charts
from reweigh.show.charts import DARK_GROUND, ON_DARK, PALETTE
from reweigh.show.html import spec_of
from reweigh.show.html.sections import page_of
from reweigh.show.record import Report

from .samples import HOSTILE, hostile, sampled, without_overlap, world

LARGEST = 2_500_000
SCRIPTS = 3  # the data, the library, the page's own
ELEMENTS = re.compile(
    "html|head|meta|title|style|body|a|header|main|section|nav|footer|h1|h2|h3|p|div|span|ul|ol|li|"
    "strong|br|dl|dt|dd|code|table|caption|thead|tbody|tr|th|td|figure|figcaption|details|summary|"
    "form|fieldset|legend|label|input|button|noscript|script"
)


class Page(HTMLParser):
    """The elements of a page, its scripts, and the text outside of them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.texts: list[str] = []
        self._inside: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._inside and self._inside[-1] == "script":
            self.scripts[-1] += data
        elif not self._inside or self._inside[-1] != "style":
            self.texts.append(data)

    @property
    def data(self) -> Any:
        return json.loads(self.scripts[0])

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def html_of(report: Report) -> str:
    return page_of(report).html()


@pytest.fixture(scope="module")
def made() -> tuple[rw.EpisodeLog, Any, list[Any]]:
    return sampled()


@pytest.fixture(scope="module")
def page(made: Any) -> str:
    return html_of(report_of(made[2], command="reweigh evaluate log.csv"))


def test_the_file_is_small_and_asks_for_nothing(page: str) -> None:
    assert len(page.encode()) < LARGEST
    parsed = Page(page)
    asking = {"img", "link", "iframe", "object", "embed", "audio", "video", "source", "base"}
    assert not asking & {tag for tag, _ in parsed.elements}
    for _, attributes in parsed.elements:
        assert not {"src", "srcset", "action", "background"} & set(attributes)
        assert (attributes.get("href") or "#").startswith("#")
        assert not any(name.startswith("on") for name in attributes)


def test_only_the_pages_own_scripts_may_run(page: str) -> None:
    parsed = Page(page)
    assert len(parsed.scripts) == SCRIPTS
    [policy] = [a["content"] for a in parsed.all("meta") if "http-equiv" in a]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    for script in parsed.scripts[1:]:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "unsafe-eval" not in policy
    assert "script-src 'unsafe-inline'" not in policy


def test_the_same_results_make_the_same_bytes(made: Any, page: str) -> None:
    again = sampled()[2]
    assert html_of(report_of(again, command="reweigh evaluate log.csv")) == page


def test_every_chart_has_words_and_a_table(page: str) -> None:
    parsed = Page(page)
    drawn = [a for a in parsed.all("div") if "data-chart" in a]
    names = {a["data-chart"] for a in drawn}
    assert names == {
        "forest", "gains", "ess", "largest", "difference", "value_steps", "value_states",
        "variance_steps", "variance_states", "confounding", "sensitivity",
    }  # fmt: skip
    assert all(a["role"] == "img" and len(a["aria-label"] or "") > 40 for a in drawn)
    assert page.count("<figure") == len(drawn) == page.count("<summary>Data: ")
    assert set(parsed.data["specs"]) == names | {"target", "log"}


def test_every_section_is_there_and_linked(page: str) -> None:
    parsed = Page(page)
    wanted = {
        "estimates", "weights", "marginals", "value", "variance", "holes", "checks",
        "confounding", "sensitivity", "log", "computed",
    }  # fmt: skip
    assert {a["id"] for a in parsed.all("section")} == wanted | {"answer"}
    assert {a["href"] for a in parsed.all("a")} == {f"#{n}" for n in (*wanted, "answer")}


def test_what_is_told(made: Any, page: str) -> None:
    text = " ".join(" ".join(Page(page).texts).split())
    estimate = made[2][0]
    for gate in estimate.verdict.gates:
        assert gate.name in text
    for what in (rw.__version__, "reweigh evaluate log.csv", "hash of the log", "v̂ = Σₜ γᵗ"):
        assert what in text
    assert f"{estimate.n_episodes:,}" in text


@pytest.mark.parametrize("make", [sampled, without_overlap, hostile])
def test_nothing_that_is_no_number_is_shown(make: Any) -> None:
    log, target, results = make()
    parsed = Page(html_of(report_of(results, log=log, target=target)))
    shown = " ".join(parsed.texts)
    assert not re.search(r"\b(nan|inf|infinity|none,|undefined|NaT)\b", shown, re.IGNORECASE)

    def no_constant(word: str) -> None:
        raise AssertionError(word)

    json.loads(parsed.scripts[0], parse_constant=no_constant)


def test_names_cannot_attack() -> None:
    log, target, results = hostile()
    about = report_of(
        results,
        log=log,
        target=target,
        title="<script>alert('title')</script>",
        command="reweigh evaluate '<script>alert(0)</script>'",
        remarks=["<img src=x onerror=alert(9)>"],
    )
    parsed = Page(html_of(about))
    assert len(parsed.scripts) == SCRIPTS
    assert all(ELEMENTS.fullmatch(tag) for tag, _ in parsed.elements)
    for _, attributes in parsed.elements:
        assert not any(name.startswith("on") for name in attributes)
    # the names are shown as they are, where they can be shown
    shown = " ".join(parsed.texts)
    for name in (HOSTILE[0], HOSTILE[2], "{{ 7 * 7 }}{% if 1 %}"):
        assert name in shown
    assert sorted(parsed.data["heat"]["names"])[0]
    assert any("<img" in name for name in parsed.data["heat"]["names"])
    assert not any("\u2028" in name for name in parsed.data["heat"]["names"])


def test_a_file_that_is_there_stays(made: Any, tmp_path: Path) -> None:
    path = tmp_path / "out.html"
    path.write_text("mine")
    estimate = made[2][0]
    with pytest.raises(rw.UsageError, match="exists"):
        estimate.report(path)
    assert path.read_text() == "mine"
    assert estimate.report(path, overwrite=True, beside=made[2]) == path
    assert [p.name for p in tmp_path.iterdir()] == ["out.html"]
    page = path.read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert page.rstrip().endswith("</html>")
    with pytest.raises(rw.ResourceError):
        estimate.report(tmp_path / "nowhere" / "out.html")


def test_the_estimate_that_reports_gives_the_answer(made: Any, tmp_path: Path) -> None:
    wis = made[2][1]
    page = wis.report(tmp_path / "out.html", beside=made[2], title="Mine").read_text("utf-8")
    assert "<h1>Mine</h1>" in page
    assert "wis has no answer." in page  # its verdict is red


def test_many_states_and_steps_stay_small(tmp_path: Path) -> None:
    """3,000 states over 120 steps: what is embedded is capped, and the page says so."""
    rng = np.random.default_rng(0)
    n, horizon, states = 120, 120, 3000
    visited = rng.integers(0, states, (n, horizon + 1))
    actions = rng.integers(0, 2, (n, horizon))
    log = rw.log_from_arrays(visited, actions, rng.random((n, horizon)), np.full((n, horizon), 0.5))
    target = rw.TablePolicy({s: {0: 0.45, 1: 0.55} for s in range(states)})
    results = rw.evaluate_all(log, target, ["mis"])
    path = write_report(results, tmp_path / "out.html", log=log, target=target)
    assert path.stat().st_size < LARGEST
    page = Page(path.read_text(encoding="utf-8"))
    heat = page.data["heat"]
    assert len(heat["target"]) == len(heat["names"]) * len(heat["first"]) <= 20_000
    assert heat["others"] > 0
    text = " ".join(" ".join(page.texts).split())
    assert f"{heat['others']:,} others are left out as such" in text
    assert "mean over 2 steps" in text


def test_colors_are_those_of_the_estimators_and_variables_in_the_page(made: Any) -> None:
    content = report_of(made[2])
    for section in page_of(content).sections:
        for figure in section.figures:
            chart = figure.draw()
            text = json.dumps(spec_of(chart))
            assert not re.search(r'"#[0-9A-Fa-f]{6}"', text), figure.name
    forest = json.dumps(page_of(content).sections[0].figures[0].draw().to_dict())
    for name in ("mis", "wis", "dm", "is"):
        assert charts.LOOKS[name].color in forest


ENOUGH = 4.5  # contrast, by the guidelines for the accessibility of pages (WCAG 2)


def luminance(color: str) -> float:
    """0.2126 R + 0.7152 G + 0.0722 B of the linear channels."""
    channels = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    """(L₁ + 0.05)/(L₂ + 0.05) of the relative luminances, the larger above."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("color", PALETTE)
def test_every_color_can_be_seen_on_dark(color: str) -> None:
    light = ON_DARK.get(color, color)
    assert contrast(light, DARK_GROUND) >= ENOUGH
    if contrast(color, DARK_GROUND) >= ENOUGH:
        assert light == color


def test_contrast_is_that_of_the_guidelines() -> None:
    assert contrast("#FFFFFF", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("horizon", [1, 2])
def test_short_horizons(horizon: int) -> None:
    made = world(horizon=horizon)
    log = made.simulate(100, 0)
    page = html_of(report_of(rw.evaluate_all(log, made.target, ["mis", "wis"])))
    assert Page(page).data["heat"]["first"] == list(range(horizon))


def test_one_episode_has_a_value_and_no_interval() -> None:
    made = world(horizon=2)
    results = rw.evaluate_all(made.simulate(1, 0), made.target, ["mis"])
    text = " ".join(Page(html_of(report_of(results))).texts)
    assert "Not reliable: one episode" in text
