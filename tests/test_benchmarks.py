"""docs/benchmarks.md says what docs/benchmarks.json says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from page import page

DOCS = Path(__file__).parents[1] / "docs"


def test_the_page_is_that_of_its_numbers() -> None:
    found = json.loads((DOCS / "benchmarks.json").read_text(encoding="utf-8"))
    assert page(found) == (DOCS / "benchmarks.md").read_text(encoding="utf-8")
