"""reweigh check --diagnose and --sensitivity: gates without an estimate, and what moves one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import reweigh as rw
from reweigh.evaluation.sensitivity import of_sites

from .commands import Command, log_table, write_log

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")


def test_the_gates_are_those_of_the_verdicts(command: Command, log: Path, policy: Path) -> None:
    ran = command("check", log, "--diagnose", "--target", policy, "--json")
    assert ran.code == 0
    found = ran.json()["diagnoses"]
    assert [entry["estimator"] for entry in found] == ["mis", "wis", "dm"]
    for entry in found:
        estimate = rw.evaluate(rw.read_log(log), rw.read_policy(policy), entry["estimator"])
        assert entry["verdict"] == estimate.verdict.level
        assert entry["gates"] == estimate.verdict.to_dict()["gates"]


def test_no_value_is_told(command: Command, log: Path, policy: Path) -> None:
    """Neither the estimate nor what the behavior earned: the decision comes first."""
    value = rw.evaluate(rw.read_log(log), rw.read_policy(policy), "mis").value
    ran = command("check", log, "--diagnose", "--target", policy)
    assert ran.code == 0
    assert f"{value:.2f}" not in ran.out
    assert f"{value:.1f}" not in ran.out
    assert "propensities" in ran.out
    assert "mis: amber: effective size" in ran.out  # 60 episodes
    asked = command("check", log, "--diagnose", "--target-prob", "pi", "--json")
    assert not {"value", "behavior_value", "interval"} & set(asked.json()["diagnoses"][0])


def test_estimators_and_levels(command: Command, tmp_path: Path, policy: Path) -> None:
    """A target that the log cannot show is red, and the exit code tells with --strict."""
    table = log_table(n=300)
    pi = np.where(np.arange(table.num_rows) % 300 == 0, 0.9, 0.0001)
    path = write_log(tmp_path / "far.csv", table.set_column(6, "pi", [pi.tolist()]))
    asked = ("check", path, "--diagnose", "--target-prob", "pi", "--estimators", "wis")
    ran = command(*asked)
    assert ran.code == 0
    assert "wis: red: " in ran.out
    assert "log more episodes" in ran.out
    ran = command(*asked, "--strict")
    assert ran.code == 4
    assert "a verdict is red" in ran.err


def test_no_advice_of_diagnose_leads_to_what_cannot_answer(
    command: Command, tmp_path: Path
) -> None:
    """The log's states say nothing of its rewards, and products of 40 ratios have no overlap."""
    rng = np.random.default_rng(0)
    n, horizon = 200, 40
    action = rng.integers(0, 2, (n, horizon))
    hidden = np.hstack([np.zeros((n, 1), int), action[:, :-1]])
    table = pa.table(
        {
            "episode": np.repeat(np.arange(n), horizon),
            "step": np.tile(np.arange(horizon), n),
            "state": np.tile(np.arange(horizon) % 2, n),
            "action": action.ravel(),
            "reward": (2.0 * hidden - 1 + rng.normal(0, 0.1, (n, horizon))).ravel(),
            "behavior_prob": np.full(n * horizon, 0.5),
        }
    )
    pq.write_table(table, tmp_path / "log.parquet")
    asked = ("check", tmp_path / "log.parquet", "--diagnose", "--rule", "0=0.05, 1=0.95")
    ran = command(*asked)
    assert ran.code == 0, ran.err
    assert "None of the 3 estimators tried (mis, wis, dm) can answer" in " ".join(ran.out.split())
    below = ran.out.partition("mis: red")[2]
    assert "use mis" not in below
    assert "use wis" not in below


def test_moments_are_diagnosed(command: Command, tmp_path: Path, log: Path, policy: Path) -> None:
    sums = tmp_path / "sums.parquet"
    assert command("moments", log, "--target", policy, "-o", sums).code == 0
    ran = command("check", sums, "--diagnose", "--json")
    assert ran.code == 0
    gates = {gate["name"]: gate for gate in ran.json()["diagnoses"][0]["gates"]}
    assert gates["propensities"]["value"] is not None


def test_options_of_diagnose_alone_are_refused(command: Command, log: Path, policy: Path) -> None:
    for extra in (("--target", policy), ("--estimators", "mis"), ("--strict",)):
        ran = command("check", log, *extra)
        assert ran.code == 2
        assert f"{extra[0]} needs --diagnose" in ran.err
    assert command("check", log, "--diagnose").code == 2  # no target
    assert command("check", log, "--target-prob", "pi").code == 0


def test_sensitivity_is_that_of_python(command: Command, log: Path, policy: Path) -> None:
    asked = ("evaluate", log, "--target", policy, "--estimators", "mis,wis", "--sensitivity")
    found = rw.evaluate(rw.read_log(log), rw.read_policy(policy), "mis").sensitivity()
    assert found.changes
    ran = command(*asked, "--json")
    entries = {entry["estimator"]: entry for entry in ran.json()["estimates"]}
    assert entries["mis"]["sensitivity"] == found.to_dict()
    ran = command(*asked)
    assert "moves by" in ran.out
    for what, value, moved in found.rows():
        assert what in ran.out
        assert value in ran.out
        assert moved in ran.out
    plain = command("evaluate", log, "--target", policy, "--json")
    assert "sensitivity" not in plain.json()["estimates"][0]


def test_sensitivity_needs_the_rows(
    command: Command, tmp_path: Path, log: Path, policy: Path
) -> None:
    sums = tmp_path / "sums.parquet"
    command("moments", log, "--target", policy, "-o", sums)
    ran = command("evaluate", sums, "--sensitivity")
    assert ran.code == 2
    assert "--sensitivity needs the log in memory" in ran.err


def test_sites_are_left_out_in_turn(command: Command, tmp_path: Path, policy: Path) -> None:
    parts = []
    for site in range(3):
        log = write_log(tmp_path / f"{site}.csv", log_table(seed=site, first=1000 * site))
        parts.append(tmp_path / f"{site}.parquet")
        command("moments", log, "--target", policy, "-o", parts[-1])
    ran = command("merge", *parts, "-o", tmp_path / "all.parquet", "--leave-out", "mis")
    assert ran.code == 0
    loaded = [rw.load_moments(part) for part in parts]
    found = of_sites(loaded, rw.mis(), rw.evaluate_all)
    for part, (_, value, moved) in zip(parts, found.rows(), strict=True):
        assert f"without {part.name} (60 episodes)" in ran.out
        assert value in ran.out
        assert moved in ran.out
    ran = command("merge", *parts, "-o", tmp_path / "b.parquet", "--leave-out", "mos")
    assert ran.code == 2
    assert not (tmp_path / "b.parquet").exists()
