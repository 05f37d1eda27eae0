"""reweigh plan, as a user types it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import reweigh as rw
from reweigh import theory

from .commands import Command, log_table, write_log

TABLE = re.compile(r"^  (\S+(?: !)?) +([\d,]+|refused)", re.M)


def needed(out: str) -> dict[str, str]:
    """{estimator: episodes} of the printed table."""
    first = out.split("Where the variance")[0]
    return {name.removesuffix(" !"): number for name, number in TABLE.findall(first)}


def test_a_half_width(command: Command, log: Path, policy: Path) -> None:
    ran = command("plan", log, "--target", policy, "--half-width", "0.1")
    assert ran.code == 0, ran.err
    own = theory.plan(rw.read_log(log), rw.read_policy(policy), half_width=0.1)
    assert needed(ran.out) == {n.estimator: f"{n.episodes:,}" for n in own.needs}
    assert "Episodes for a 95 % interval of half-width 0.1" in ran.out
    assert "from a pilot of 60 episodes (horizon 3)" in ran.out
    assert "wanted/logged" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


def test_a_difference(command: Command, log: Path) -> None:
    arguments = ("--difference", "0.4", "--power", "0.9", "--level", "0.9")
    ran = command("plan", log, "--target-prob", "pi", *arguments, "--estimators", "mis,wis,dm")
    assert ran.code == 0, ran.err
    own = theory.plan(
        rw.read_log(log, target_prob="pi"),
        rw.ColumnPolicy("pi"),
        difference=0.4,
        power=0.9,
        level=0.9,
        estimators=["mis", "wis", "dm"],
    )
    assert needed(ran.out) == {n.estimator: f"{n.episodes:,}" for n in own.needs}
    assert "a difference of 0.4 to the behavior (90 %, power 90 %)" in ran.out
    assert "wanted" not in ran.out


def test_a_refusal_is_a_row(command: Command, log: Path) -> None:
    arguments = ("--difference", "0.4", "--horizon", "1", "--estimators", "mis,ssd-is")
    ran = command("plan", log, "--target-prob", "pi", *arguments)
    assert ran.code == 0, ran.err
    assert needed(ran.out)["ssd-is"] == "refused"
    assert "ssd-is: refused (horizon)" in ran.out


def test_json(command: Command, log: Path, policy: Path) -> None:
    ran = command("plan", log, "--target", policy, "--half-width", "0.1", "--json")
    assert ran.code == 0, ran.err
    told = ran.json()
    assert set(told) == {
        "goal", "source", "pilot_episodes", "horizon", "reference", "episodes", "estimators",
        "decomposition", "warnings", "log", "version", "schema_version",
    }  # fmt: skip
    assert told["goal"] == {"half_width": 0.1, "difference": None, "power": None, "level": 0.95}
    assert told["pilot_episodes"] == 60
    for row in told["estimators"]:
        assert set(row) == {
            "estimator", "episodes", "variance", "times", "value", "difference", "now", "ess",
            "warnings",
        }  # fmt: skip
    assert told["estimators"][0]["episodes"] == told["episodes"]
    parts = told["decomposition"]
    assert parts["estimator"] == "mis"
    shares = [row["share"] for row in parts["largest"]]
    assert sum(shares) + parts["start"] + parts["others"]["share"] == pytest.approx(1)
    assert told["log"]["episodes"] == 60


def test_a_refusal_in_json(command: Command, log: Path, policy: Path) -> None:
    arguments = ("--difference", "0.1", "--horizon", "1", "--estimators", "ssd-is,mis", "--json")
    told = command("plan", log, "--target", policy, *arguments).json()
    assert told["reference"] == "mis"
    assert told["estimators"][0]["refused"]["code"] == "horizon"
    assert told["estimators"][0]["episodes"] is None
    assert all("wanted" not in row for row in told["decomposition"]["largest"])


def test_moments(command: Command, tmp_path: Path, log: Path, policy: Path) -> None:
    sums = tmp_path / "m.parquet"
    assert command("moments", log, "--target", policy, "-o", sums).code == 0
    by_sums = command("plan", sums, "--half-width", "0.1")
    by_log = command("plan", log, "--target", policy, "--half-width", "0.1")
    assert by_sums.code == 0, by_sums.err
    assert needed(by_sums.out) == needed(by_log.out)
    assert "from the sums of a pilot of 60 episodes" in by_sums.out
    ran = command("plan", sums, "--difference", "0.1")
    assert ran.code == 4
    assert "plan on the log itself, or ask for a --half-width" in ran.err
    ran = command("plan", sums, "--half-width", "0.1", "--target", policy)
    assert ran.code == 2
    assert "moments include their target" in ran.err


def test_max_ratio_clips(command: Command, log: Path, policy: Path) -> None:
    arguments = ("plan", log, "--target", policy, "--half-width", "0.1")
    assert needed(command(*arguments, "--max-ratio", "1.1").out) != needed(command(*arguments).out)


@pytest.mark.parametrize("ending", ["svg", "png", "html", "json"])
def test_a_chart(command: Command, tmp_path: Path, log: Path, policy: Path, ending: str) -> None:
    starts = {"svg": b"<svg", "png": b"\x89PNG", "html": b"<!DOCTYPE html>", "json": b"{"}
    out = tmp_path / f"plan.of.mine.{ending}"
    arguments = ("plan", log, "--target", policy, "--half-width", "0.1", "--chart", out)
    ran = command(*arguments)
    assert ran.code == 0, ran.err
    assert out.read_bytes().lstrip().startswith(starts[ending])
    assert "plan.of.mine" in ran.out
    assert [p.name for p in tmp_path.glob("*plan*")] == [out.name]  # no temporary file is left
    before = out.read_bytes()
    again = command(*arguments)
    assert again.code == 2
    assert "pass --overwrite" in again.err
    assert again.out == ""
    assert out.read_bytes() == before
    assert command(*arguments, "--overwrite").code == 0


def test_charts_that_cannot_be_written(
    command: Command, tmp_path: Path, log: Path, policy: Path
) -> None:
    arguments = ("plan", log, "--target", policy, "--half-width", "0.1", "--chart")
    ran = command(*arguments, tmp_path / "plan.gif")
    assert ran.code == 2
    assert ".svg, .png" in ran.err
    ran = command(*arguments, tmp_path / "no" / "plan.svg")
    assert ran.code == 6
    assert ran.out == ""  # told before there is a plan
    assert "there is no folder" in ran.err
    link = tmp_path / "link.svg"
    link.symlink_to(tmp_path / "elsewhere.svg")
    ran = command(*arguments, link, "--overwrite")
    assert ran.code == 2
    assert "symbolic link" in ran.err
    assert not (tmp_path / "elsewhere.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "--half-width or --difference (one of them)"),
        (["--half-width", "1", "--difference", "1"], 2, "--half-width or --difference"),
        (["--half-width", "0"], 2, "the option --half-width must be a positive number"),
        (["--half-width", "nan"], 2, "the option --half-width must be a positive number"),
        (["--half-width", "x"], 2, "--half-width"),
        (["--difference", "-1"], 2, "the option --difference must be a positive number"),
        (["--difference", "1", "--power", "1"], 2, "the option --power must be a number between"),
        (["--difference", "1", "--power", "0.01"], 2, "1 less the --level"),
        (["--half-width", "1", "--power", "0.9"], 2, "--power needs --difference"),
        (["--half-width", "1", "--level", "2"], 2, "the option --level must be a number"),
        (["--half-width", "1", "--estimators", "mips"], 2, "did you mean 'mis'?"),
        (["--half-width", "1", "--estimators", "mis,mis"], 2, "without repetitions"),
        (["--half-width", "1", "--max-ratio", "-1"], 2, "max-ratio"),
        (["--half-width", "1", "--overwrite"], 2, "--overwrite needs --chart"),
    ],
)
def test_wrong_options(command: Command, log: Path, policy: Path, arguments, code, words) -> None:
    ran = command("plan", log, "--target", policy, *arguments)
    assert ran.code == code
    assert ran.out == ""
    assert words in ran.err
    assert "half_width" not in ran.err


def test_wrong_options_are_told_before_the_log_is_read(command: Command) -> None:
    assert command("plan", "missing.csv", "--target", "x.csv", "--half-width", "0").code == 2
    assert command("plan", "missing.csv", "--target-prob", "pi", "--half-width", "1").code == 6
    arguments = ("--target", "x.csv", "--half-width", "1", "--chart", "nowhere/plan.svg")
    assert "no folder 'nowhere'" in command("plan", "missing.csv", *arguments).err


def test_no_target(command: Command, log: Path) -> None:
    ran = command("plan", log, "--half-width", "0.1")
    assert ran.code == 2
    assert "--target" in ran.err


def test_cut_off_episodes(command: Command, tmp_path: Path) -> None:
    table = log_table(80)
    keep = ~((np.arange(240) % 3 == 2) & (np.arange(240) < 60))
    cut = (np.arange(240) % 3 == 1) & (np.arange(240) < 60)
    table = table.append_column("cut", pa.array(cut)).filter(pa.array(keep))
    log = write_log(tmp_path / "cut.csv", table)
    arguments = ("plan", log, "--target-prob", "pi", "--truncated", "cut", "--half-width", "0.1")
    ran = command(*arguments)
    assert ran.code == 0, ran.err
    assert needed(ran.out)["is"] == "refused"
    assert "leave the cut ones out, in the log itself" in " ".join(ran.out.split())
    ran = command(*arguments, "--estimators", "is,wis")
    assert ran.code == 4
    assert "no estimator has a plan" in ran.err


def test_a_constant_log_has_nothing_to_plan(command: Command, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.csv", log_table(reward=np.ones(180), pi=np.full(180, 0.5)))
    ran = command("plan", log, "--target-prob", "pi", "--half-width", "0.1")
    assert ran.code == 4
    assert "the pilot gives no standard error: no variation" in ran.err


def test_estimated_propensities_and_small_pilots_are_told(command: Command, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.csv", log_table(20))
    ran = command("plan", log, "--target-prob", "pi", "--half-width", "0.1", "--fit-behavior")
    assert ran.code == 0, ran.err
    assert "the plan ignores that" in " ".join(ran.out.split())
    assert "the pilot has 20 episodes" in ran.out


def test_names_are_not_obeyed(command: Command, tmp_path: Path) -> None:
    states = np.where(np.arange(180) % 2, "\x1b[31mred", "blue")
    log = write_log(tmp_path / "log.csv", log_table(state=states))
    ran = command("plan", log, "--target-prob", "pi", "--half-width", "0.1")
    assert ran.code == 0, ran.err
    assert "\x1b" not in ran.out
    assert "\\x1b[31mred" in ran.out
