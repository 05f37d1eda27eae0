"""Links lead somewhere, every page is in the navigation, every public name is in the reference."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import reweigh as rw

from .pages import DOCS, PAGES, ROOT, broken

TOP = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")]
DOCUMENTED = re.compile(r"^::: (reweigh[\w.]*)$", re.M)


@pytest.mark.parametrize("page", [*TOP, *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# One\n\n[x](b.md) [y](#two) [z](#one) ![p](p.svg)\n")
    wrong = broken(tmp_path / "a.md")
    assert wrong == ["b.md: no such file", "#two: no such heading", "p.svg: no such file"]


def navigation(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [page for part in parts for page in navigation(part)]


def test_the_navigation_holds_every_page_once() -> None:
    config = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))
    listed = navigation(config["project"]["nav"])
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in PAGES)


def test_the_reference_documents_every_public_name() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
    documented = [path.rpartition(".")[2] for path in DOCUMENTED.findall(text)]
    modules = {"adapters", "features", "theory", "worlds"}
    members = [name for module in modules for name in getattr(rw, module).__all__]
    wanted = {*rw.__all__, *members} - modules
    assert wanted <= set(documented)
    assert len(documented) == len(set(documented))


def test_the_reference_has_the_formula_of_every_estimator() -> None:
    page = (DOCS / "reference" / "estimators.md").read_text(encoding="utf-8")
    tables = page.split("## Letters")[1].split("## Standard errors")[0]
    first = [line.split("|")[1] for line in tables.splitlines() if line.startswith("| `")]
    names = [name for cell in first for name in re.findall(r"`([\w-]+)`", cell)]
    names = [name for name in names if not name.startswith("mis-memory-")]  # a family
    assert sorted(names) == sorted(rw.ESTIMATORS)
