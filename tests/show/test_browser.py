"""The report in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reweigh as rw

from .samples import (
    compared_policies,
    hostile,
    many_policies,
    no_policy,
    sampled,
    without_overlap,
)

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: make browser"),
]
WIDE, NARROW = 1280, 380
PATIENCE = 120_000  # milliseconds: the machine may be busy
INK = "rgb(28, 33, 38)"
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright.expect.set_options(timeout=PATIENCE)
    with playwright.sync_playwright() as driver:
        # As root, Chromium has no sandbox; the pages are our own.
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    every = sampled(horizon=12, states=6)[2]
    refused = without_overlap()
    named = hostile()
    from reweigh.evaluation.report import write_report

    return {
        "plain": every[0].report(folder / "plain.html", beside=every),
        "states": many_states().report(folder / "states.html"),
        "hostile": named[2][0].report(folder / "hostile.html", beside=named[2]),
        "refused": write_report(
            refused[2], folder / "refused.html", log=refused[0], target=refused[1]
        ),
        "compared": compared_policies().report(folder / "compared.html"),
        "many": many_policies().report(folder / "many.html"),
        "none": no_policy().report(folder / "none.html"),
        "red": few_episodes().report(folder / "red.html"),
    }


def few_episodes() -> rw.Estimate:
    [estimate] = sampled(("wis",), n=40)[2]
    assert isinstance(estimate, rw.Estimate)
    assert estimate.verdict.level == "red"
    return estimate


def many_states() -> rw.Estimate:
    """60 states, which need two pages of the heat map, and 30 steps."""
    rng = np.random.default_rng(3)
    n, horizon, states = 600, 30, 60
    visited = rng.integers(0, states, (n, horizon + 1))
    actions = rng.integers(0, 2, (n, horizon))
    log = rw.log_from_arrays(visited, actions, rng.random((n, horizon)), np.full((n, horizon), 0.5))
    target = rw.TablePolicy({s: {0: 0.4, 1: 0.6} for s in range(states)})
    [estimate] = rw.evaluate_all(log, target, ["mis"])
    assert isinstance(estimate, rw.Estimate)
    return estimate


@dataclass
class Opened:
    """A page with all that it complained about and asked for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def count(self, selector: str) -> int:
        return int(self.page.locator(selector).count())


@pytest.fixture
def open_page(browser: Any, reports: dict[str, Path]) -> Iterator[Any]:
    contexts = []

    def opened(
        name: str, width: int = WIDE, scheme: str = "light", *, folded: bool = False
    ) -> Opened:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
        )
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        found = Opened(context.new_page())
        found.page.on("console", lambda message: found.complaints.append(message.text))
        found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
        found.page.on("dialog", lambda dialog: found.complaints.append(dialog.message))
        found.page.on("request", lambda request: found.asked.append(request.url))
        found.page.goto(reports[name].as_uri())
        found.page.wait_for_selector("html[data-drawn]", state="attached")
        if not folded:
            found.page.evaluate(
                "document.querySelectorAll('details.fold').forEach(fold => { fold.open = true })"
            )
        return found

    yield opened
    for context in contexts:
        context.close()


SIZES = (
    "charts => charts.map(c => { const b = c.getBoundingClientRect(); return [b.width, b.height] })"
)


NAMES = ("plain", "states", "hostile", "refused", "compared", "many", "none", "red")


@pytest.mark.parametrize("name", NAMES)
def test_it_loads_without_complaints_and_requests(open_page: Any, name: str) -> None:
    opened = open_page(name)
    assert opened.complaints == []
    assert [url for url in opened.asked if not url.startswith("file:")] == []
    assert len(opened.asked) == 1
    assert opened.count("[data-failed]") == 0
    charts = opened.count("[data-chart]")
    assert (charts > 0) == (name not in ("refused", "none"))
    assert opened.count("[data-chart] svg") == charts
    for width, height in opened.page.locator("[data-chart] svg").evaluate_all(SIZES):
        assert width > 100
        assert height > 40
    marks = "charts => charts.map(c => c.querySelectorAll('.mark-rule *, .mark-symbol *, .mark-rect *, .mark-line *').length)"  # noqa: E501
    assert all(n > 0 for n in opened.page.locator("[data-chart] svg").evaluate_all(marks))


SHORT = 4000  # pixels


@pytest.mark.parametrize("name", [name for name in NAMES if name != "many"])
def test_a_page_is_short_until_its_sections_are_opened(open_page: Any, name: str) -> None:
    opened = open_page(name, folded=True)
    page = opened.page
    assert page.evaluate("document.documentElement.scrollHeight") < SHORT
    folds = opened.count("details.fold")
    assert folds == opened.count("main > section") - 3  # the answer and two are open
    assert opened.count("details.fold[open]") == 0
    page.emulate_media(media="print")
    page.wait_for_function(
        "n => document.querySelectorAll('details.fold[open]').length === n", arg=folds
    )
    page.emulate_media(media="screen")
    page.wait_for_function("() => !document.querySelector('details.fold[open]')")


def test_a_section_opens_by_its_link_and_by_the_keyboard(open_page: Any) -> None:
    opened = open_page("plain", folded=True)
    page = opened.page
    page.get_by_role("link", name="Where is the value earned?").click()
    page.wait_for_selector("#value details.fold[open]")
    for width, height in page.locator("#value [data-chart] svg").evaluate_all(SIZES):
        assert width > 300
        assert height > 40
    page.locator("#holes summary").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#holes details.fold[open]")
    assert opened.complaints == []


def test_a_red_page_says_so_wherever_one_looks(open_page: Any) -> None:
    page = open_page("red").page
    alarm = page.get_by_role("note")
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    playwright.expect(alarm).to_be_in_viewport()
    assert "do not base a decision" in alarm.inner_text()
    text = page.locator("main").inner_text()
    assert "% interval" not in text
    assert "one-sided p" not in text


@pytest.mark.parametrize("name", NAMES)
def test_nothing_scrolls_sideways_on_a_phone(open_page: Any, name: str) -> None:
    opened = open_page(name, NARROW)
    wide = opened.page.evaluate("document.documentElement.scrollWidth")
    assert wide <= NARROW
    for width, _ in opened.page.locator("[data-chart] svg").evaluate_all(SIZES):
        assert width <= NARROW


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [
        ("plain", WIDE, "light"),
        ("plain", NARROW, "dark"),
        ("states", WIDE, "dark"),
        ("refused", NARROW, "light"),
        ("red", WIDE, "dark"),
        ("red", NARROW, "light"),
        ("compared", WIDE, "light"),
        ("compared", NARROW, "dark"),
        ("many", WIDE, "dark"),
    ],
)
def test_everyone_can_use_it(open_page: Any, name: str, scheme: str, width: int) -> None:
    """axe-core finds nothing. The debugger lets it in: the page forbids other scripts."""
    opened = open_page(name, width, scheme)
    opened.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
    opened.page.evaluate(axe_file().read_text(encoding="utf-8"))
    options = {"runOnly": {"type": "tag", "values": list(RULES)}}
    found = opened.page.evaluate("options => axe.run(document, options)", options)
    broken = [(v["id"], [n["html"][:200] for n in v["nodes"]]) for v in found["violations"]]
    assert broken == []
    assert len(found["passes"]) > 20


def axe_file() -> Path:
    import axe_playwright_python

    return Path(axe_playwright_python.__file__).parent / "axe.min.js"


def test_states_are_searched_and_turned_over(open_page: Any) -> None:
    opened = open_page("states")
    page = opened.page
    status = page.locator("#heat-status")
    assert status.inner_text() == "States 1 to 40 of 60 found, the largest first."
    first = heat_labels(page)
    assert len(first) == 40
    page.get_by_role("button", name="Next states").click()
    playwright.expect(status).to_have_text("States 41 to 60 of 60 found, the largest first.")
    settled(page, 20)
    assert not set(first) & set(heat_labels(page))
    page.get_by_label("Find a state").fill("17")
    playwright.expect(status).to_have_text("States 1 to 1 of 1 found, the largest first.")
    settled(page, 1)
    assert heat_labels(page) == ["17"]
    page.get_by_label("Find a state").fill("nowhere")
    playwright.expect(status).to_have_text("Nothing found: change the name or the steps.")
    page.get_by_label("Find a state").fill("")
    settled(page, 40)
    assert opened.complaints == []


def heat_labels(page: Any) -> list[str]:
    """The names beside the rows of the heat map."""
    axes = page.locator('[data-chart="difference"] .role-axis').evaluate_all(
        "axes => axes.map(a => [...a.querySelectorAll('.role-axis-label text')]"
        ".map(t => t.textContent))"
    )
    titles = page.locator('[data-chart="difference"] .role-axis').evaluate_all(
        "axes => axes.map(a => (a.querySelector('.role-axis-title text') || {}).textContent)"
    )
    return next(labels for labels, title in zip(axes, titles, strict=True) if title == "state")


def settled(page: Any, states: int) -> None:
    """Wait until the heat map shows so many states."""
    for _ in range(200):
        if len(heat_labels(page)) == states:
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"{len(heat_labels(page))} states are shown, not {states}")


def test_the_heat_map_shows_a_range_of_steps_and_either_policy(open_page: Any) -> None:
    opened = open_page("plain")
    page = opened.page
    fields = '[data-chart="difference"] .mark-rect.role-mark path'
    assert page.locator(fields).count() == 6 * 12
    page.get_by_label("Steps from").fill("3")
    page.get_by_label("to", exact=True).fill("5")
    playwright.expect(page.locator(fields)).to_have_count(6 * 3)
    before = page.locator('[data-chart="difference"]').inner_html()
    title = page.locator("#heat-title")
    page.get_by_label("target", exact=True).check()
    playwright.expect(title).to_have_text("Where would the new policy go?")
    page.get_by_label("log", exact=True).check()
    playwright.expect(title).to_have_text("Where did the log go?")
    page.wait_for_function(
        "before => document.querySelector('[data-chart=difference]').innerHTML !== before",
        arg=before,
    )
    assert opened.complaints == []


TIPS = {
    ("forest", ".mark-symbol path"): ["estimator", "interval", "verdict"],
    ("ess", ".mark-symbol.role-mark path"): ["step", "effective number"],
    ("value_states", ".mark-rect path"): ["state", "value per episode"],
    ("difference", ".mark-rect.role-mark path"): ["state", "target's share", "log's share"],
}


def test_tooltips_tell_the_numbers(open_page: Any) -> None:
    page = open_page("plain").page
    tip = page.locator("#vg-tooltip-element")
    for (chart, mark), words in TIPS.items():
        page.mouse.move(0, 0)
        page.locator(f'[data-chart="{chart}"] {mark}').first.hover(force=True)
        playwright.expect(tip).to_contain_text(words[-1])
        playwright.expect(tip).to_be_visible()
        text = tip.inner_text()
        assert all(word in text for word in words)
        assert "NaN" not in text
        assert "undefined" not in text


def test_names_in_tooltips_stay_text(open_page: Any) -> None:
    opened = open_page("many")
    for place in range(0, 40, 4):
        opened.page.locator('[data-chart="targets"] .mark-symbol path').nth(place).hover(force=True)
        inside = opened.page.locator("#vg-tooltip-element *").evaluate_all(
            "all => all.map(e => e.tagName)"
        )
        assert set(inside) <= {"TABLE", "TBODY", "TR", "TD", "H2"}
    assert opened.complaints == []
    opened = open_page("hostile")
    for place in range(0, 40, 4):
        opened.page.locator('[data-chart="difference"] .mark-rect.role-mark path').nth(place).hover(
            force=True
        )
        inside = opened.page.locator("#vg-tooltip-element *").evaluate_all(
            "all => all.map(e => e.tagName)"
        )
        assert set(inside) <= {"TABLE", "TBODY", "TR", "TD", "H2"}
    assert opened.complaints == []


def test_the_keyboard_reaches_everything(open_page: Any) -> None:
    page = open_page("plain").page
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "(e => e.tagName + ' ' + (e.name || e.textContent.slice(0, 30)))"
                "(document.activeElement)"
            )
        )
    for wanted in ("A Skip to the answer", "INPUT show", "INPUT find", "INPUT from", "INPUT to"):
        assert wanted in reached
    assert sum(entry.startswith("SUMMARY") for entry in reached) >= 8


def test_a_comparison_on_paper(open_page: Any) -> None:
    page = open_page("compared").page
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 720, "height": 1000})
    charts = page.locator("[data-chart] svg")
    assert charts.count() == 3
    for width, height in charts.evaluate_all(SIZES):
        assert 100 < width <= 720
        assert height > 20
    assert page.locator("nav").is_hidden()
    assert page.evaluate("document.documentElement.scrollWidth") <= 720
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_tooltips_of_a_comparison(open_page: Any) -> None:
    page = open_page("compared").page
    tip = page.locator("#vg-tooltip-element")
    for chart in ("targets", "over_log", "to_best"):
        page.mouse.move(0, 0)
        page.locator(f'[data-chart="{chart}"] .mark-symbol path').first.hover(force=True)
        playwright.expect(tip).to_contain_text("interval")
        text = tip.inner_text()
        assert "target" in text
        assert "NaN" not in text
        assert "undefined" not in text


@pytest.mark.parametrize(("scheme", "ink"), [("light", INK), ("dark", "rgb(232, 234, 237)")])
def test_light_dark_and_on_paper(open_page: Any, scheme: str, ink: str) -> None:
    """Charts are light or dark with the page; on paper all of them are in ink on white."""
    page = open_page("plain", scheme=scheme).page
    label = (
        "getComputedStyle(document.querySelector('[data-chart=ess] .role-axis-label text')).fill"
    )
    assert page.evaluate(label) == ink
    page.emulate_media(media="print", color_scheme=scheme)
    page.set_viewport_size({"width": 720, "height": 1000})  # a sheet of A4
    charts = page.locator("[data-chart] svg")
    assert charts.count() == 11
    for width, height in charts.evaluate_all(SIZES):
        assert 100 < width <= 720
        assert height > 20
    assert page.locator("nav").is_hidden()
    look = page.evaluate("(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))")
    assert look == ["rgb(255, 255, 255)", INK]
    assert page.evaluate(label) == INK
    assert page.pdf(format="A4").startswith(b"%PDF")
