"""`--memory` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import reweigh as rw

from .commands import Command

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
H = 6


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """An action pays one step later."""
    folder, rng = tmp_path_factory.mktemp("memory"), np.random.default_rng(0)
    action = rng.integers(0, 2, (600, H))
    paid = np.hstack([np.zeros((600, 1)), action[:, :-1]]) + 0.1 * rng.normal(size=(600, H))
    log = rw.log_from_arrays(np.zeros((600, H + 1), int), action, paid, np.full((600, H), 0.5))
    pq.write_table(log.to_table(), folder / "log.parquet")
    (folder / "policy.csv").write_text("state,action,prob\n0,0,0.3\n0,1,0.7\n", encoding="utf-8")
    return str(folder / "log.parquet"), str(folder / "policy.csv")


def answered(command: Command, *words: str, code: int = 0) -> str:
    ran = command(*words)
    assert ran.code == code, ran.err
    return ran.err.replace("\n", " ") if code else ran.out


@pytest.mark.parametrize("engine", ["arrays", "stream", "duckdb"])
def test_auto_is_told(command: Command, files: tuple[str, str], engine: str) -> None:
    log, policy = files
    asked = ["evaluate", log, "--target", policy, "--memory", "auto", "--engine", engine]
    [entry] = json.loads(answered(command, *asked, "--json"))["estimates"]
    assert entry["estimator"] == "mis-memory-1"
    assert entry["memory"]["memory"] == 1
    assert [trial["memory"] for trial in entry["memory"]["tried"]] == [5, 3, 2, 1, 0]
    assert entry["value"] == pytest.approx(0.7 * (H - 1), abs=0.2)
    assert "auto chose mis-memory-1: a memory of 0 gives" in answered(command, *asked)


def test_a_number_stands_beside_wis(command: Command, files: tuple[str, str]) -> None:
    log, policy = files
    text = answered(
        command,
        "evaluate",
        log,
        "--target",
        policy,
        "--memory",
        "5",
        "--estimators",
        "mis,wis",
        "--json",
    )
    first, second = json.loads(text)["estimates"]
    assert (first["estimator"], second["estimator"]) == ("mis-memory-5", "wis")
    assert first["value"] == pytest.approx(second["value"], rel=1e-12)


@pytest.mark.parametrize("name", ["dm", "dr", "mdr", "ssd-is", "mis-plain", "mis,wdr"])
def test_others_take_none(command: Command, files: tuple[str, str], name: str) -> None:
    log, policy = files
    asked = ["evaluate", log, "--target", policy, "--memory", "2", "--estimators", name]
    assert f"{name.removeprefix('mis,')} takes none" in answered(command, *asked, code=2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--memory", "some"], "a whole number of steps"),
        (["--memory", "-1"], "a whole number of steps"),
        (["--memory", "2", "--estimators", "wis"], "multiplies all ratios anyway"),
        (["--memory", "2", "--estimators", "auto"], "not to auto"),
    ],
)
def test_what_is_no_memory_is_refused(
    command: Command, files: tuple[str, str], options: list[str], words: str
) -> None:
    log, policy = files
    text = answered(command, "evaluate", log, "--target", policy, *options, code=2)
    assert words in text


def test_moments_hold_all_candidates(
    command: Command, files: tuple[str, str], tmp_path: Path
) -> None:
    log, policy = files
    sums = str(tmp_path / "sums.parquet")
    answered(command, "moments", log, "--target", policy, "--memory", "auto", "-o", sums)
    [entry] = json.loads(answered(command, "evaluate", sums, "--memory", "auto", "--json"))[
        "estimates"
    ]
    assert entry["memory"]["memory"] == 1


def test_a_comparison_takes_a_number(command: Command, files: tuple[str, str]) -> None:
    log, policy = files
    asked = ["compare", log, "--target", policy, "--memory"]
    assert "mis-memory-1" in answered(command, *asked, "1")
    assert "one estimator for all targets" in answered(command, *asked, "auto", code=2)
