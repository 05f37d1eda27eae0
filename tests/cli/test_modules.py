"""How much of the package one small command passes through."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MOST_MODULES = 61
HEAVY = ("numba", "ibis", "duckdb", "altair", "jinja2", "joblib", "pandas", "scipy.stats")


def test_a_small_evaluation_passes_few_modules(log: Path, policy: Path) -> None:
    code = (
        "import sys\n"
        "from reweigh.cli.app import run\n"
        "assert run(sys.argv[1:]) == 0\n"
        f"print('heavy', *[m for m in {HEAVY} if m in sys.modules])\n"
        "print('ours', sum(m.split('.')[0] == 'reweigh' for m in sys.modules))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, "evaluate", str(log), "--target", str(policy)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    *_, heavy, ours = ran.stdout.splitlines()
    assert heavy == "heavy"
    assert int(ours.split()[1]) <= MOST_MODULES
