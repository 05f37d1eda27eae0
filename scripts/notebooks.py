"""Turn the guides into Jupyter notebooks: the same words, the same code, ready to run.

    python scripts/notebooks.py build/notebooks docs/tutorial.md docs/howto/many-policies.md

Python blocks become code cells, and so do commands (`!reweigh …`); outputs are left out, since a
notebook makes its own. Everything else becomes Markdown.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$\n?", re.M | re.S)
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)\s]+)(?=\))")
Cell = dict[str, Any]


def notebook(page: str, name: str) -> dict[str, Any]:
    """The page as a notebook (nbformat 4.5)."""
    cells: list[Cell] = []
    at, after_code = 0, False
    words = ""
    for block in FENCE.finditer(page):
        language, body = block.group(1), block.group(2)
        before = page[at : block.start()]
        words += before
        at = block.end()
        if language in ("python", "console"):
            _add_words(cells, words)
            words = ""
            cells.append(_code(body if language == "python" else _commands(body)))
            after_code = language == "python"
        elif language == "text" and after_code and not before.strip():
            after_code = False  # what the cell before prints
        else:
            words += block.group(0)
    _add_words(cells, words + page[at:])
    for number, cell in enumerate(cells):
        content = f"{name} {number} {cell['source']}"
        cell["id"] = hashlib.sha256(content.encode()).hexdigest()[:12]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "cells": cells,
    }


def _commands(body: str) -> str:
    """The commands of a console block, as IPython runs them."""
    lines = (line[2:] for line in body.splitlines() if line.startswith("$ "))
    return "".join(f"!{line}\n" for line in lines)


def _code(source: str) -> Cell:
    lines = source.rstrip("\n").splitlines(keepends=True)
    return {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": [],
            "source": lines}  # fmt: skip


def _add_words(cells: list[Cell], words: str) -> None:
    if words.strip():
        lines = words.strip("\n").splitlines(keepends=True)
        cells.append({"cell_type": "markdown", "metadata": {}, "source": lines})


def with_links(page: str, path: Path, folder: Path) -> str:
    """The page with its links as they are seen from another folder."""

    def moved(match: re.Match[str]) -> str:
        target, mark, anchor = match.group(1).partition("#")
        place = Path(path.parent, target).resolve()
        return Path(os.path.relpath(place, folder.resolve())).as_posix() + mark + anchor

    return LINK.sub(moved, page)


def write(path: Path, folder: Path) -> Path:
    """Write the notebook of a page into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    made = notebook(with_links(path.read_text(encoding="utf-8"), path, folder), path.stem)
    out = folder / f"{path.stem}.ipynb"
    out.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return out


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    folder, *pages = map(Path, sys.argv[1:])
    for page in pages:
        print(write(page, folder))


if __name__ == "__main__":
    main()
