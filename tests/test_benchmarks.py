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


def test_the_readme_tells_what_was_measured() -> None:
    found = json.loads((DOCS / "benchmarks.json").read_text(encoding="utf-8"))
    whole, cores = found["billion"], found["kernels"]["machine"]["cores"]
    told = " ".join((DOCS.parent / "README.md").read_text(encoding="utf-8").split())
    assert whole["rows"] == 10**9
    assert (
        f"A billion rows take {whole['stream']['cpu']:.0f} s of CPU time and "
        f"{whole['stream']['peak_gib']:.2f} GiB for value, error and the sums of the checks on a "
        f"machine with {cores} cores"
    ) in told
