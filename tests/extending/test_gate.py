"""A gate of another package: found by its entry point, and shown wherever gates are."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import reweigh as rw
from reweigh import system as entry_points
from reweigh.cli.app import run
from reweigh.testing import check_gate
from reweigh.trust.gates import GATES, all_gates

HERE = Path(__file__).parent
SOURCE = HERE / "one_action.py"
TARGET = rw.ColumnPolicy("target_prob")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path, as pip leaves it behind."""
    site = tmp_path / "site"
    site.mkdir()
    shutil.copy(SOURCE, site)
    offer(site, "one_action:gate")
    monkeypatch.syspath_prepend(str(site))
    entry_points.forget()
    yield site
    entry_points.forget()


def offer(site: Path, entry: str) -> None:
    about = site / "one_action-1.0.dist-info"
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: one-action\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[reweigh.gates]\none-action = {entry}\n")


def log_of(rng: np.random.Generator, share: float = 0.95, n: int = 200) -> rw.EpisodeLog:
    """A log with this share of one action."""
    action = (rng.random((n, 3)) > share).astype(int)
    mu = np.where(action == 1, 1 - share, share)
    states = rng.integers(0, 2, (n, 4))
    reward = action + rng.normal(size=(n, 3))
    return rw.log_from_arrays(states, action, reward, mu, np.where(action == 1, 0.1, 0.9))


def test_it_conforms(installed: Path) -> None:
    gate = importlib.import_module("one_action").gate
    check_gate(gate, lambda rng: (log_of(rng), TARGET), logs=3)


@pytest.mark.parametrize("engine", ["arrays", "stream", "duckdb"])
def test_it_is_shown_wherever_gates_are(
    installed: Path, engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = log_of(np.random.default_rng(0)).to_table()
    log = rw.read_log(table, engine=engine, target_prob="target_prob")
    estimate = rw.evaluate(log, TARGET)
    assert [gate.name for gate in estimate.verdict.reasons] == ["one action"]
    assert str(estimate.verdict) == "amber: one action"
    [entry] = [gate for gate in estimate.to_dict()["gates"] if gate["name"] == "one action"]
    assert (entry["level"], entry["limit"]) == ("amber", "amber > 0.9")
    assert "of the rows took action 0" in estimate.report(tmp_path / "page.html").read_text("utf-8")
    log_from = tmp_path / "log.parquet"

    pq.write_table(table, log_from)
    call = ["evaluate", str(log_from), "--target-prob", "target_prob", "--engine", engine]
    assert run(call) == 0
    assert "of the rows took action 0" in " ".join(capsys.readouterr().out.split())
    assert run([*call, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["estimates"][0]
    assert entry["text"] in [gate["text"] for gate in told["gates"]]


def test_without_the_package_it_is_gone() -> None:
    assert all_gates() == GATES


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("one_action:OneAction", "one_action:OneAction of reweigh.gates is not a Gate"),
        ("reweigh.trust.gates:GATES", "is not a Gate"),
        ("one_action:nothing", "'one-action' adds to reweigh.gates, cannot be loaded"),
    ],
)
def test_what_is_no_gate_is_refused(installed: Path, entry: str, why: str) -> None:
    offer(installed, entry)
    importlib.invalidate_caches()
    with pytest.raises(rw.UsageError, match=why):
        rw.evaluate(log_of(np.random.default_rng(0)), TARGET)


def test_two_gates_of_one_name_are_refused(installed: Path) -> None:
    source = (installed / "one_action.py").read_text("utf-8")
    other = installed / "another_drift.py"
    other.write_text(source.replace('name="one action"', 'name="drift"'), "utf-8")
    offer(installed, "another_drift:gate")
    with pytest.raises(rw.UsageError, match="a gate named 'drift' exists already"):
        rw.evaluate(log_of(np.random.default_rng(0)), TARGET)


def test_contributing_shows_this_code() -> None:
    guide = (HERE.parents[1] / "CONTRIBUTING.md").read_text("utf-8")
    assert f"```python\n{SOURCE.read_text('utf-8')}```" in guide
