"""reweigh evaluate: levels, methods, bounds, seeds, and the certificate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reweigh as rw

from .commands import Command, log_table, write_log

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
METHODS = ("analytic", "cluster", "jackknife", "percentile", "bootstrap-t")
DRAWN = {"percentile": ("--replicates", 399, "--seed", 5)}
DRAWN["bootstrap-t"] = DRAWN["percentile"]


def in_python(log: Path, policy: Path, name: str = "mis") -> rw.Estimate:
    return rw.evaluate(rw.read_log(log), rw.read_policy(policy), name)


@pytest.mark.parametrize("method", METHODS)
def test_intervals_are_those_of_python(
    command: Command, log: Path, policy: Path, method: str
) -> None:
    drawn = DRAWN.get(method, ())
    ran = command(
        "evaluate", log, "--target", policy, "--estimators", "mis,wis", "--json", "--level", 0.9,
        "--interval", method, *drawn,
    )  # fmt: skip
    assert ran.code == 0
    for entry in ran.json()["estimates"]:
        found = in_python(log, policy, entry["estimator"])
        interval = found.interval(0.9, method, replicates=399, seed=5)
        assert interval is not None
        assert entry["interval"] == pytest.approx(interval.to_dict())
    assert ran.json()["seed"] == (5 if drawn else None)
    assert ran.json()["certificate"] is None


def test_the_table_tells_level_method_and_seed(command: Command, log: Path, policy: Path) -> None:
    ran = command("evaluate", log, "--target", policy, "--level", 0.8)
    assert "80 % interval" in ran.out
    assert "seed" not in ran.out
    ran = command(
        "evaluate", log, "--target", policy, "--level", 0.9, "--one-sided", "lower",
        "--interval", "percentile", "--replicates", 199,
    )  # fmt: skip
    assert ran.code == 0
    assert "90 % lower bound" in ran.out
    assert "≥ " in ran.out
    assert "intervals: percentile of 199 resampled logs, seed " in ran.out
    assert "(drawn)" in ran.out
    seed = ran.out.split("seed ")[1].split()[0]
    again = command(
        "evaluate", log, "--target", policy, "--level", 0.9, "--one-sided", "lower",
        "--interval", "percentile", "--replicates", 199, "--seed", seed, "--json",
    )  # fmt: skip
    bound = again.json()["estimates"][0]["interval"]
    assert bound["high"] is None
    assert f"{bound['low']:.2f}" in ran.out


def test_an_interval_that_is_refused_says_why(command: Command, log: Path, policy: Path) -> None:
    given = ("evaluate", log, "--target", policy, "--estimators", "mis,ssd-is", "--level", 0.8,
             "--interval", "bootstrap-t", "--replicates", 99)  # fmt: skip
    ran = command(*given)
    assert ran.code == 0
    assert (
        "There is no interval: bootstrap-t needs a standard error, and ssd-is has only that of its"
        in ran.out + command(*given, "--explain").out
    )
    assert "use --interval percentile" in command(*given, "--explain").out
    ran = command(*given, "--json")
    entries = {entry["estimator"]: entry for entry in ran.json()["estimates"]}
    assert entries["ssd-is"]["interval"] is None
    assert entries["ssd-is"]["interval_refused"]["code"] == "no-error"
    assert "interval_refused" not in entries["mis"]


def test_sums_have_no_bootstrap(command: Command, log: Path, policy: Path, tmp_path: Path) -> None:
    sums = tmp_path / "sums.parquet"
    command("moments", log, "--target", policy, "--blocks", 20, "-o", sums)
    ran = command("evaluate", sums, "--interval", "percentile")
    assert ran.code == 0
    assert "(no interval: the bootstrap needs individual episodes" in ran.out
    assert "--interval analytic or --interval jackknife" in ran.out
    ran = command("evaluate", sums, "--interval", "jackknife", "--json")
    assert ran.json()["estimates"][0]["interval"]["method"].startswith("jackknife (")


def test_no_verdict_is_green_without_the_interval_that_was_asked_for(
    command: Command, policy: Path, tmp_path: Path
) -> None:
    log, page = write_log(tmp_path / "many.csv", log_table(400)), tmp_path / "report.html"
    sums = tmp_path / "sums.parquet"
    command("moments", log, "--target", policy, "-o", sums)
    given = ("evaluate", sums)
    usual, *_ = command(*given, "--json").json()["estimates"]
    assert usual["verdict"] == "green"
    asked = (*given, "--interval", "cluster")
    entry, *_ = command(*asked, "--json", "--report", page).json()["estimates"]
    assert entry["verdict"] == "amber"
    assert entry["interval"] is None
    [gate] = [gate for gate in entry["gates"] if gate["name"] == "interval"]
    assert entry["interval_refused"]["reason"] in gate["text"]
    assert "influence values need individual episodes" in gate["text"]
    assert "(no interval: influence values need individual episodes" in page.read_text("utf-8")
    judged = ("interval", "verdict", "gates")
    assert all(entry[name] == value for name, value in usual.items() if name not in judged)
    ran = command(*asked, "--quiet")
    assert ran.out.endswith("no interval amber\n")
    assert ran.err.count("influence values") == 1


def test_the_gain_over_the_behavior_is_told(
    command: Command, log: Path, policy: Path, tmp_path: Path
) -> None:
    given = ("evaluate", log, "--target", policy, "--estimators", "mis,dm")
    given = (*given, "--explain")
    ran, entries = command(*given), command(*given, "--json").json()["estimates"]
    for entry in entries:
        gain = in_python(log, policy, entry["estimator"]).gain()
        assert f"{entry['estimator']}: better than today's policy? {gain}\n" in ran.out
        assert str(gain).startswith("p = ")
        around = entry["gain"].pop("interval")
        assert entry["gain"] == pytest.approx(gain.to_dict())
        assert (around["low"] + around["high"]) / 2 == pytest.approx(gain.value)
        half_width = (around["high"] - around["low"]) / 2
        assert 1.96 < half_width / gain.standard_error < 2.1
    assert "better than" not in command(*given, "--quiet").out
    told = [line for line in ran.out.splitlines() if "better than" in line]
    scanned = command(*given, "--engine", "stream").out.splitlines()
    assert [line for line in scanned if "better than" in line] == told
    sums = tmp_path / "sums.parquet"
    command("moments", log, "--target", policy, "-o", sums)
    ran = command("evaluate", sums, "--estimators", "mis,dm", "--explain")
    assert ran.out.count("better than today's policy? p ≤ ") == 2
    assert "at most)" in ran.out


def test_a_gain_that_is_refused_says_why_once(
    command: Command, policy: Path, tmp_path: Path
) -> None:
    table = log_table()[:-1]  # of the last episode the return is not known
    cut = np.arange(len(table)) == len(table) - 1
    log = write_log(tmp_path / "cut.csv", table.append_column("cut", [cut]))
    sums = tmp_path / "sums.parquet"
    command("moments", log, "--target", policy, "--truncated", "cut", "-o", sums)
    ran = command("evaluate", sums, "--estimators", "mis,dm", "--explain")
    refused = "mis, dm: better than today's policy? not known: the sums do not include the variance"
    assert ran.out.count(refused) == 1
    assert "--engine arrays" in ran.out


def test_the_interval_of_a_red_wis_is_not_shown(
    command: Command, log: Path, policy: Path, tmp_path: Path
) -> None:
    """Sixty episodes are too few for running products: JSON has the interval, and the verdict."""
    page = tmp_path / "report.html"
    given = ("evaluate", log, "--target", policy, "--estimators", "wis,trajectory-is,dr,mis")
    ran = command(*given, "--report", page)
    entries = {e["estimator"]: e for e in command(*given, "--json").json()["estimates"]}
    rows = {line.split()[0]: line for line in ran.out.splitlines() if line.startswith(" ")}
    for name in ("wis", "trajectory-is"):
        assert entries[name]["verdict"] == "red"
        assert entries[name]["interval"]["low"] < entries[name]["value"]
        assert "not reliable" in rows[name]
        assert f"{name}: better than" not in ran.out
        shown = str(in_python(log, policy, name))
        assert shown.startswith("Not reliable: ")
        assert "not known: the verdict is red" in shown
        assert entries[name]["reliable"] is False
    assert entries["dr"]["verdict"] == "red"
    assert "not reliable" in rows["dr"]
    assert "not reliable" not in rows["mis"]
    assert page.read_text("utf-8").count('<td class="n">not reliable</td>') == 6  # in two tables
    ran = command("evaluate", log, "--target", policy, "--estimators", "wis", "--quiet")
    assert ran.out.endswith("no interval red\n")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--interval", "normal"), "--interval must be one of auto, analytic"),
        (("--level", 1), "--level must be a number between 0 and 1"),
        (("--level", 0.4, "--one-sided", "lower"), "above 0.5"),
        (("--one-sided", "left"), "--one-sided must be lower or upper"),
        (("--replicates", 500), "--replicates needs --interval percentile"),
        (("--seed", 5), "--seed needs --interval"),
        (("--interval", "percentile", "--seed", -1), "--seed must be a whole number"),
        (("--interval", "percentile", "--replicates", 398), "--replicates must be at least 399"),
        (("--interval", "bootstrap-t", "--level", 0.999), "at least 19,999"),
        (("--reward-range", 1, 0), "--reward-range must be two numbers"),
    ],
)
def test_usage(
    command: Command, log: Path, policy: Path, options: tuple[Any, ...], words: str
) -> None:
    ran = command("evaluate", log, "--target", policy, *options)
    assert ran.code == 2
    assert words in ran.err
    assert ran.out == ""


# A declared range


@pytest.fixture
def bounded(tmp_path: Path) -> Path:
    table = log_table()
    reward = np.clip(table["reward"].to_numpy(), 0, 2)
    return write_log(tmp_path / "bounded.csv", log_table(reward=reward))


def test_a_declared_range_gives_a_certificate(
    command: Command, bounded: Path, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    given = ("evaluate", bounded, "--target", policy, "--estimators", "mis,wis", "--reward-range",
             0, 2)  # fmt: skip
    ran = command(*given)
    assert ran.code == 0
    assert "95 % certificate" in ran.out
    for part in ("finite-sample", "within [0, 2], as declared", "propensities are right"):
        assert part in ran.out
    certificate = ran.out[ran.out.index("95 % certificate") :]
    assert max(map(len, certificate.splitlines())) <= 80
    found = command(*given, "--one-sided", "lower", "--json").json()
    log, target = rw.read_log(bounded), rw.read_policy(policy)
    expected = rw.certify(log, target, (0, 2), side="lower")
    assert found["certificate"] == expected.to_dict()
    methods = [entry["interval"]["method"] for entry in found["estimates"]]
    assert "cut to the range" in methods[0]
    assert "on the logit scale" in methods[1]


def test_a_reward_outside_the_range_is_an_input_error(
    command: Command, log: Path, policy: Path
) -> None:
    ran = command("evaluate", log, "--target", policy, "--reward-range", 0, 2)
    assert ran.code == 3
    assert "reward-range: rewards must lie within the declared range [0, 2]" in ran.err
    assert "column 'reward', row " in ran.err
    assert "episode" in ran.err


def test_a_certificate_that_is_refused_says_why(
    command: Command, bounded: Path, policy: Path
) -> None:
    given = ("evaluate", bounded, "--target", policy, "--fit-behavior", "--reward-range", 0, 2)
    ran = command(*given)
    assert ran.code == 0
    assert "no certificate: the propensities were estimated" in ran.out
    refused = command(*given, "--json").json()["certificate"]["refused"]
    assert refused["code"] == "estimated-behavior"


def test_a_declared_range_without_the_rows_gives_all_but_a_certificate(
    command: Command, bounded: Path, policy: Path, tmp_path: Path
) -> None:
    sums = tmp_path / "sums.parquet"
    command("moments", bounded, "--target", policy, "-o", sums)
    streamed = ("evaluate", bounded, "--target", policy, "--engine", "stream")
    for given in (streamed, ("evaluate", sums)):
        found = command(*given, "--reward-range", 0, 2, "--json").json()
        assert found["certificate"]["refused"]["code"] == "needs-log"
        entry, *_ = found["estimates"]
        assert "unseen events" not in entry["unchecked"]
        assert entry["interval"]["low"] >= 0
        ran = command(*given, "--reward-range", 0, 0.5)
        assert ran.code == 3
        assert "rewards must lie within the declared range [0, 0.5]" in ran.err


def test_help_tells_the_options(command: Command) -> None:
    ran = command("evaluate", "--help")
    for option in ("--level", "--interval", "--one-sided", "--replicates", "--seed",
                   "--reward-range"):  # fmt: skip
        assert option in ran.out
