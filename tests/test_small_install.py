"""What an installation without the optional packages does: the same answers, and a word on what to
install where that is not enough."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# What `fast` and `sql` bring cannot be imported, as if it were not installed.
WITHOUT = """
import importlib.util, sys, warnings
hidden = ("numba", "duckdb", "ibis")
before = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: (
    None if name.split(".")[0] in hidden else before(name, package)
)
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Hidden())
import numpy as np
import reweigh as rw
from reweigh import kernels
from reweigh.worlds import random_mdp
world = random_mdp(1)
"""


def run(code: str) -> str:
    command = [sys.executable, "-c", WITHOUT + code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_the_packages_of_the_extras_are_not_in_the_core() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    core = " ".join(project["dependencies"])
    for package in ("numba", "duckdb", "ibis"):
        assert package not in core
    assert "altair" in core  # `reweigh demo` writes a report


def test_a_large_log_gives_the_same_answer_without_numba() -> None:
    code = (
        "log = world.simulate(30_000, 0)\n"
        "assert log.steps.n_rows >= kernels.LARGE_LOG\n"
        "estimates = rw.evaluate(log, world.target, ['mis', 'wis', 'dm'])\n"
        "print(*(x for e in estimates for x in (repr(e.value), repr(e.standard_error))))\n"
        "print(*(e.verdict.level for e in estimates), 'numba' in sys.modules)"
    )
    small, large = (
        subprocess.run(
            [sys.executable, "-c", start + code], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        for start in (WITHOUT, WITHOUT.replace('("numba", "duckdb", "ibis")', "()"))
    )
    numbers = [[float(x) for x in lines[0].split()] for lines in (small, large)]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-9)
    assert small[1] == large[1].replace("True", "False")
    assert large[1].endswith("True")


def test_a_very_large_log_is_advised_to_use_numba() -> None:
    out = run(
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    kernels.advise_numba(999_999)\n"
        "    kernels.advise_numba(1_000_000)\n"
        "print(*(w.message for w in caught))"
    )
    assert out == (
        "a log of 1,000,000 rows is read faster, and in less memory, with Numba: "
        "pip install 'reweigh[fast]'"
    )


@pytest.mark.parametrize("engine", ["duckdb", "local[2]"])
def test_sql_says_what_to_install(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("episode,step,state,action,reward,behavior_prob\n0,0,a,x,1,0.5\n")
    out = run(
        "try:\n"
        f"    rw.read_log({str(path)!r}, engine={engine!r})\n"
        "except rw.UsageError as error:\n"
        "    print(error)"
    )
    assert "pip install 'reweigh[sql]'" in out
