"""The site is built: without warnings, with links that hold, and without asking the network."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from .pages import PAGES, ROOT

PATIENCE = 120_000  # milliseconds: the machine may be busy
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Page(HTMLParser):
    """What a page links to and loads, and where one can link to in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value is not None}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in ("script", "img", "iframe", "source") and "src" in given:
            self.loaded.append(given["src"])
        if tag == "link" and "href" in given:
            self.loaded.append(given["href"])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The site in a folder of its own, and what its making said."""
    folder = tmp_path_factory.mktemp("site")
    config = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    config = config.replace('site_dir = "build/site"', 'site_dir = "site"')
    config = config.replace('paths = ["src"]', f"paths = [{str(ROOT / 'src')!r}]")
    (folder / "zensical.toml").write_text(config, encoding="utf-8")
    shutil.copytree(ROOT / "docs", folder / "docs")
    zensical = Path(sys.executable).with_name("zensical")
    done = subprocess.run(
        [zensical, "build", "--strict"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site", COLOURS.sub("", done.stdout + done.stderr)


def test_the_site_is_built_without_warnings(built: tuple[Path, str]) -> None:
    _, said = built
    assert "No issues found" in said
    assert "arning" not in said


def test_every_page_is_there_and_links_within_the_site(built: tuple[Path, str]) -> None:
    site, _ = built
    made = {path: Page(path) for path in site.rglob("*.html")}
    assert len(made) == len(PAGES) + 1  # and 404.html
    wrong = []
    for path, page in made.items():
        if path.name == "404.html":
            continue  # its links are absolute
        for link in [*page.links, *page.loaded]:
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = link.partition("#")
            target = (path.parent / name).resolve() if name else path
            if target.is_dir():
                target = target / "index.html"
            lost = anchor and target in made and anchor not in made[target].ids
            if not target.exists() or lost:
                wrong.append(f"{path.relative_to(site)}: {link}")
    assert wrong == []


def test_nothing_is_loaded_from_elsewhere(built: tuple[Path, str]) -> None:
    site, _ = built
    outside = {link for path in site.rglob("*.html") for link in Page(path).loaded
               if re.match(r"(https?:)?//", link)}  # fmt: skip
    assert outside == set()


def test_the_reference_is_made_of_the_code(built: tuple[Path, str]) -> None:
    site, _ = built
    page = (site / "reference" / "estimators.html").read_text(encoding="utf-8")
    assert 'id="reweigh.estimate.presets.mis"' in page
    assert "Marginalized importance sampling." in page


SHOWN = (
    "index",
    "tutorial",
    "howto/many-policies",
    "concepts/mis",
    "migrating",
    "reference/estimators",
    "reference/evaluating",
    "trust/README",
)
LONG = ("reference/estimators", "reference/evaluating")  # with long names
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice")
# What sticks out to the right, but for what scrolls or hides it.
STICKS_OUT = """() => {
  const wide = document.documentElement.clientWidth, found = [];
  const kept = (e) => e && e !== document.body &&
    (getComputedStyle(e).overflowX !== "visible" || kept(e.parentElement));
  for (const e of document.querySelectorAll(".md-content *")) {
    const outside = e.getBoundingClientRect().right > wide + 1;
    if (outside && !kept(e)) found.push(e.outerHTML.slice(0, 120));
  }
  return found;
}"""


@dataclass
class Opened:
    """What a page asked of others, complained about, and how it looks."""

    asked: list[str]
    errors: list[str]
    too_wide: int
    sticks_out: list[str]
    broken: list[tuple[str, list[str]]]
    passed: int


@pytest.mark.browser
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no Chromium: make browser")
@pytest.mark.parametrize(
    ("scheme", "width", "names"),
    [("light", 1280, SHOWN), ("dark", 380, SHOWN), ("dark", 1280, SHOWN[:2]), ("light", 390, LONG)],
)
def test_pages_open_in_a_browser_and_everyone_can_use_them(
    built: tuple[Path, str], scheme: str, width: int, names: tuple[str, ...]
) -> None:
    """Nothing is asked for, nothing is wider than the window, and axe-core finds nothing."""
    site, _ = built
    for name, opened in in_browser(site, names, scheme, width):
        assert (name, opened.asked, opened.errors) == (name, [], [])
        assert (name, opened.too_wide, opened.sticks_out) == (name, 0, [])
        assert (name, opened.broken) == (name, [])
        assert opened.passed > 20


def in_browser(
    site: Path, names: tuple[str, ...], scheme: str, width: int
) -> Iterator[tuple[str, Opened]]:
    api: Any = pytest.importorskip("playwright.sync_api")
    import axe_playwright_python

    axe = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for name in names:
            page = browser.new_page(
                viewport={"width": width, "height": 900}, color_scheme=scheme, has_touch=True
            )
            page.set_default_timeout(PATIENCE)
            asked: list[str] = []
            errors: list[str] = []
            page.on("request", lambda request, to=asked: to.append(request.url))
            page.on("pageerror", lambda error, to=errors: to.append(str(error)))
            page.goto(page_of(site, name).as_uri(), timeout=PATIENCE)
            root = "document.documentElement"
            wide = page.evaluate(f"Math.max(0, {root}.scrollWidth - {root}.clientWidth)")
            outside = page.evaluate(STICKS_OUT)
            page.evaluate(axe)
            rules = {"runOnly": {"type": "tag", "values": list(RULES)}}
            found = page.evaluate("rules => axe.run(document, rules)", rules)
            broken = [(v["id"], [n["html"][:120] for n in v["nodes"]]) for v in found["violations"]]
            elsewhere = [url for url in asked if url.startswith("http")]
            yield name, Opened(elsewhere, errors, wide, outside, broken, len(found["passes"]))
            page.close()
        browser.close()


def page_of(site: Path, name: str) -> Path:
    """A README is the index of its folder."""
    path = site / f"{name}.html"
    return path if path.exists() else path.with_name("index.html")
