"""reweigh demo icu-sepsis, with fewer patients than it has."""

from __future__ import annotations

import re
import shlex
from importlib import util
from pathlib import Path
from typing import Any

import pytest
from worlds.extras import needs

import reweigh as rw
from reweigh.cli import demo
from reweigh.evaluation.result import rounded

from .commands import Command


@needs("icu_sepsis")
def test_the_demo_evaluates_compares_plans_and_reports(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "ICU_EPISODES", 1500)
    monkeypatch.setattr(demo, "ICU_PILOT", 500)
    folder = tmp_path / "an icu"
    ran = command("demo", "icu-sepsis", "-o", folder)
    assert ran.code == 0, ran.err
    names = {"log.parquet", "softened.csv", "tilted.csv", "optimal-mix.csv", "report.html"}
    assert {path.name for path in folder.iterdir()} == names | {
        "comparison.html",
        ".reweigh-demo.json",
    }
    for name in ("softened", "tilted", "optimal-mix"):
        truth = float(rw.worlds.ICUSepsis(20, name).value())
        assert f"in truth {truth:.4f}" in ran.out
    assert "Which one is better?" in ran.out
    assert "Episodes to detect a difference of 0.01" in ran.out
    assert "from a pilot of 500 episodes" in ran.out
    for name in ("report.html", "comparison.html"):
        assert (folder / name).stat().st_size < 2.5e6
    # the commands that it names give the same numbers
    joined = re.sub(r" \\\n\s*", " ", ran.out)  # a long command goes on over several lines
    lines = [line.strip() for line in joined.splitlines() if line.startswith("  reweigh ")]
    again = command(*shlex.split(lines[0])[1:], "--json").json()
    for entry in again["estimates"]:
        assert rounded(entry["value"], entry["standard_error"]) in ran.out
    assert command(*shlex.split(lines[1])[1:], "--json").code == 0


def test_nothing_is_written_where_one_of_its_files_exists(command: Command, tmp_path: Path) -> None:
    (tmp_path / "tilted.csv").write_text("mine")
    ran = command("demo", "icu-sepsis", "-o", tmp_path)
    assert ran.code == 2
    assert "tilted.csv" in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["tilted.csv"]


def test_without_the_package_it_says_what_to_install(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reweigh.worlds import benchmark_worlds

    real = util.find_spec

    def find_spec(name: str, *more: Any) -> Any:
        return None if name == "icu_sepsis" else real(name, *more)

    monkeypatch.setattr(benchmark_worlds, "find_spec", find_spec)
    benchmark_worlds._icu_tables.cache_clear()
    benchmark_worlds._icu_policy.cache_clear()
    ran = command("demo", "icu-sepsis", "-o", tmp_path)
    assert ran.code == 2
    assert "pip install --no-deps 'icu-sepsis>=2,<3'" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_another_world_is_no_demo(command: Command, tmp_path: Path) -> None:
    ran = command("demo", "taxi", "-o", tmp_path)
    assert ran.code == 2
    assert "there is no demo 'taxi'; give icu-sepsis, or nothing" in ran.err
