"""The page on other libraries is what its script makes of the measured numbers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from peers.environment import reason
from peers.page import page

DOCS = Path(__file__).parents[1] / "docs"


def test_the_page_is_made_of_the_numbers() -> None:
    found = json.loads((DOCS / "benchmarks-peers.json").read_text(encoding="utf-8"))
    assert page(found) == (DOCS / "benchmarks-peers.md").read_text(encoding="utf-8")


def test_a_peer_that_does_not_install_is_named_with_the_reason() -> None:
    build = "  error: subprocess-exited-with-error\n    ModuleNotFoundError: No module named 'x'\n"
    pip = "ERROR: Could not find it at https://host/simple/x/\nERROR: No matching distribution\n"
    setup = "  error: invalid command 'y'\nerror: metadata-generation-failed\n"
    assert reason(build) == "ModuleNotFoundError: No module named 'x'"
    assert reason(pip) == "No matching distribution"
    assert reason(setup) == "invalid command 'y'"
    assert reason("ERROR: No file /tmp/some/where here\n") == "No file … here"
    assert reason("") == "pip failed without an error message"


def test_a_missing_peer_and_a_missed_target_show() -> None:
    timing = {
        "estimator": "is",
        "rows": 1_000_000,
        "value": 1.0,
        "ours": 1.0,
        "difference": 0.0,
        "same": True,
        "seconds": 1.0,
        "ratios": {
            "is": 3.0,
            "mis": 6.9,
            "mis, target as a table": 7.1,
            "mis, value alone": 9.2,
            "mis, value alone, target as a table": 6.4,
        },
    }
    about = {"version": "1", "note": "", "processes": 1}
    found = {
        "machine": dict.fromkeys(("cores", "python", "numpy", "numba"), "1"),
        "cases": {},
        "ours": {},
        "peers": {
            "scope_rl": {**about, "name": "SCOPE-RL", "timings": [timing], "cases": {}},
            "other": {**about, "name": "Other", "missing": "does not install: no room"},
        },
    }
    text = page(found)
    whole, alone = "value, error and diagnosis", "value of `mis`"
    assert f"{whole}, target as a column, 1,000,000 rows | 7 | 6.90 | **no** |" in text
    assert f"{whole}, target as a table, 1,000,000 rows | 7 | 7.10 | yes |" in text
    assert f"{alone}, target as a column, 1,000,000 rows | 7 | 9.20 | yes |" in text
    assert f"{alone}, target as a table, 1,000,000 rows | 7 | 6.40 | **no** |" in text
    assert "- Other 1: does not install: no room." in text
