"""Notebooks are made from the guides: whole, valid, and with the guides' own code."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from .pages import DOCS, ROOT

sys.path.insert(0, str(ROOT / "scripts"))
from notebooks import write

GUIDES = [DOCS / "tutorial.md", *sorted((DOCS / "howto").glob("*.md"))]


def made(page: Path, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(write(page, folder).read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_the_code_cells_are_the_guide_s_blocks(page: Path, tmp_path: Path) -> None:
    cells = made(page, tmp_path)["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```(python|console)\n(.*?)^```$", text, re.M | re.S)
    assert len(code) == len(blocks)
    for source, (language, body) in zip(code, blocks, strict=True):
        if language == "python":
            assert source == body.rstrip("\n")
            compile(source, page.name, "exec")
        else:
            commands = [line[2:] for line in body.splitlines() if line.startswith("$ ")]
            assert source.splitlines() == [f"!{command}" for command in commands]


def test_a_notebook_has_the_format_s_structure(tmp_path: Path) -> None:
    found = made(DOCS / "tutorial.md", tmp_path)
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    assert found["metadata"]["kernelspec"]["name"] == "python3"
    ids = [cell["id"] for cell in found["cells"]]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in ids)
    for cell in found["cells"]:
        wanted = {"cell_type", "metadata", "source", "id"}
        if cell["cell_type"] == "code":
            wanted |= {"execution_count", "outputs"}
            assert (cell["execution_count"], cell["outputs"]) == (None, [])
        else:
            assert cell["cell_type"] == "markdown"
        assert set(cell) == wanted
        assert all(isinstance(line, str) for line in cell["source"])
        assert all(line.endswith("\n") for line in cell["source"][:-1])


def test_words_are_kept_outputs_are_not_and_links_still_lead_somewhere(tmp_path: Path) -> None:
    page = DOCS / "howto" / "many-policies.md"
    cells = made(page, tmp_path)["cells"]
    words = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    assert "# I want to choose among 20 policies" in words
    assert "reweigh compare log.parquet" in words  # a block that is not run stays a block
    assert "how likely it is the best:    " not in words  # an output
    links = re.findall(r"\]\(([^)#]+)", words)
    assert links
    assert all((tmp_path / link).exists() for link in links)
