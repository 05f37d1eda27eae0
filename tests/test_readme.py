"""The README and the guides are executed: what they show is what a reader gets."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import reweigh as rw

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
from readme import executed  # noqa: E402

GUIDES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("name", ["README.md", *GUIDES])
def test_every_output_of_a_page_is_real(name: str, tmp_path: Path) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    assert executed(page, tmp_path) == page


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200


def test_the_docs_list_every_estimator() -> None:
    page = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    table = page.split("## The estimators")[1].split("In Python:")[0]
    for name in rw.ESTIMATORS:
        assert f"`{name}`" in table


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_links_and_paths_exist(page: str) -> None:
    import re

    text = (ROOT / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert ((ROOT / page).parent / link).exists(), link
    for path in re.findall(r"`((?:src|tests|scripts)/[\w/.]+)`", text):
        assert (ROOT / path).exists(), path
