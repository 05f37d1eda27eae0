"""The example logs: what init writes runs, from an empty folder to a report."""

from __future__ import annotations

import csv
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from .commands import Command

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from examples import LOGS  # noqa: E402

MOST_BYTES = 150_000
ROLES: dict[str, dict[str, Any]] = {
    "hospital": {
        "episode": "patient_id", "time": "charttime", "state": ["ward", "map_bp", "lactate"],
        "action": "treatment", "reward": "outcome", "bins": [0, 5, 5], "fit_behavior": True,
        "short_episodes": "terminal",
    },
    "ads": {
        "episode": "impression_id", "time": "served_at", "state": ["segment", "device"],
        "action": "ad", "reward": "click", "behavior_prob": "propensity", "bandit": True,
    },
    "game": {
        "episode": "game_id", "time": "played_at", "state": ["room", "health"],
        "action": "action", "reward": "points", "behavior_prob": "action_prob",
        "terminated": "game_over",
    },
}  # fmt: skip
ABOUT = {  # episodes, rows, horizon
    "hospital": (420, 2_054, 6),
    "ads": (2_000, 2_000, 1),
    "game": (360, 1_997, 6),
}


@pytest.mark.parametrize("name", LOGS)
def test_the_committed_file_is_what_the_script_makes(name: str) -> None:
    text = (ROOT / "examples" / f"{name}.csv").read_text(encoding="utf-8")
    assert LOGS[name]() == text
    assert len(text.encode()) <= MOST_BYTES


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    return empty


@pytest.mark.parametrize("name", LOGS)
def test_from_an_empty_folder_to_a_report(name: str, command: Command, folder: Path) -> None:
    """init, check and evaluate --report, without an edit but the target's choice."""
    shutil.copy(ROOT / "examples" / f"{name}.csv", folder)
    ran = command("init", f"{name}.csv")
    assert ran.code == 0, ran.err
    config = tomllib.loads((folder / "reweigh.toml").read_text(encoding="utf-8"))
    assert config == {"log": [f"{name}.csv"], **ROLES[name]}
    for line in ran.out.splitlines():  # the terminal of a test has 80 columns
        assert "undecided" not in line
    ran = command("check", "--config", "reweigh.toml", "--write-policy", "own.csv", "--json")
    assert ran.code == 0, ran.err
    about = ran.json()["log"]
    assert (about["episodes"], about["rows"], about["horizon"]) == ABOUT[name]
    half_way("own.csv", "policy.csv")
    ran = command(
        "evaluate", "--config", "reweigh.toml", "--target", "policy.csv", "--report", "report.html",
        "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    estimate, *_ = ran.json()["estimates"]
    assert estimate["value"] is not None
    drift = next(gate for gate in estimate["gates"] if gate["name"] == "drift")
    assert drift["level"] == "green"
    assert "by time" in drift["text"]
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert f"{name}.csv" in page
    for kept in ("reweigh.toml", f"{name}.csv"):
        assert (folder / kept).exists()


def half_way(own: str, policy: str) -> None:
    """A target: each share half-way to that of an action drawn evenly."""
    with Path(own).open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    actions = len({tuple(row.values())[-2] for row in rows})
    for row in rows:
        row["prob"] = str((float(row["prob"]) + 1 / actions) / 2)
    with Path(policy).open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


@pytest.mark.parametrize("engine", ["stream", "duckdb"])
def test_the_hospital_is_the_same_on_every_engine(
    engine: str, command: Command, folder: Path
) -> None:
    """--time, --bins and the rest, as options; without --fit-behavior, which needs rows."""
    with (ROOT / "examples" / "hospital.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    with Path("log.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, [*rows[0], "mu", "pi"])
        writer.writeheader()
        writer.writerows(
            {**row, "mu": 0.5, "pi": 0.4 + 0.2 * (k % 2)} for k, row in enumerate(rows)
        )
    options = (
        "--episode", "patient_id", "--time", "charttime", "--state", "ward", "--state", "map_bp",
        "--state", "lactate", "--bins", "0", "--bins", "3", "--bins", "3", "--action", "treatment",
        "--reward", "outcome", "--behavior-prob", "mu", "--target-prob", "pi",
        "--short-episodes", "terminal",
    )  # fmt: skip
    told = {
        e: command("evaluate", "log.csv", *options, "--engine", e, "--json").json()
        for e in ("arrays", engine)
    }
    first, second = (told[e]["estimates"][0] for e in ("arrays", engine))
    assert second["value"] == pytest.approx(first["value"], rel=1e-12)
    assert second["verdict"] == first["verdict"]
    assert told[engine]["log"]["abstraction"] == told["arrays"]["log"]["abstraction"]
    printed = command("evaluate", "log.csv", *options, "--engine", engine).out
    edges = []
    for name in ("map_bp", "lactate"):
        values = sorted(float(row[name]) for row in rows)
        edges.append(f"{name} at {values[len(rows) // 3]:g}, {values[2 * len(rows) // 3]:g}")
    assert f"bins: {'; '.join(edges)}" in " ".join(printed.split())


def test_a_tie_is_named_on_the_command_line(command: Command, folder: Path) -> None:
    lines = (ROOT / "examples" / "hospital.csv").read_text(encoding="utf-8").splitlines()
    patient, time = lines[1].split(",")[:2]
    second = next(k for k, line in enumerate(lines[2:], 2) if line.startswith(patient))
    lines[second] = ",".join([patient, time, *lines[second].split(",")[2:]])
    Path("log.csv").write_text("\n".join(lines), encoding="utf-8")
    ran = command("init", "log.csv")
    assert "1 row has the same 'charttime'" in ran.err.replace("\n", " ") + ran.out.replace(
        "\n", " "
    )
    ran = command("check", "--config", "reweigh.toml")
    assert ran.code == 3
    assert f"column 'charttime', row {second} (line {second + 1}), episode '{patient}'" in ran.err
    assert "(as in row 1)" in ran.err
    assert "fix: log a finer time" in ran.err


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--bandit", "--step", "t"), "leave step out"),
        (("--bins", "3", "--grid", "1,2"), "one of them"),
        (("--bins", "1"), "--bins"),
    ],
)
def test_options_that_do_not_go_together(
    options: tuple[str, ...], word: str, command: Command, log: Path
) -> None:
    ran = command("check", log, *options)
    assert ran.code == 2
    assert word in ran.err


def test_a_bandit_log_is_told_to_be_one(command: Command, folder: Path) -> None:
    """A user's id that comes back makes episodes; --bandit says that every row is one."""
    text = (ROOT / "examples" / "ads.csv").read_text(encoding="utf-8").splitlines()
    rows = [f"{line},u{k % 400}" for k, line in enumerate(text[1:])]
    Path("log.csv").write_text("\n".join([f"{text[0]},user_id", *rows]), encoding="utf-8")
    told = command("init", "log.csv", "--json").json()
    assert told["roles"]["episode"]["columns"] == ["user_id"]
    assert told["roles"]["time"]["columns"] == ["served_at"]
    assert any("run init with --bandit" in text for text in told["doubts"])
    told = command("init", "log.csv", "--overwrite", "--bandit", "--json").json()
    assert told["roles"]["episode"]["columns"] == ["impression_id"]
    assert told["settings"]["bandit"] is True
    assert "user_id" not in told["roles"]["state"]["columns"]


def test_the_command_line_bandit_replaces_the_step_of_the_file(
    command: Command, log: Path, folder: Path
) -> None:
    Path("c.toml").write_text('step = "step"\nepisode = "reward"\n', encoding="utf-8")
    ran = command("check", log, "--config", "c.toml", "--bandit", "--reward", "pi")
    assert "leave step out" not in ran.err


# --- logs as people export them


def propose(command: Command, name: str, lines: list[str]) -> tuple[Any, Any]:
    Path(name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    said = command("init", name, "--overwrite", "--json").json()
    return said, tomllib.loads(Path("reweigh.toml").read_text(encoding="utf-8"))


def stays(ending: str, *, everywhere: bool) -> list[str]:
    """Stays of two or three hours, the shorter ones with this ending in their last row."""
    lines = ["patient_id,hour,unit,drug,mu,score,disposition"]
    for k in range(40):
        hours = 2 + k % 2
        for hour in range(hours):
            last = hour == hours - 1 and hours == 2
            word = ending if last or everywhere else ""
            lines.append(f"p{k},{hour},{'AB'[k % 3 // 2]},{'xy'[(k + hour) % 2]},0.5,{hour},{word}")
    return lines


def test_a_column_of_endings_explains_the_short_episodes(command: Command, folder: Path) -> None:
    said, config = propose(command, "log.csv", stays("discharged home", everywhere=False))
    assert config["short_episodes"] == "terminal"
    assert any(
        "every short episode ends with a value in 'disposition'" in d for d in said["doubts"]
    )
    assert not said["missing"]


def test_how_an_episode_will_end_is_no_state(command: Command, folder: Path) -> None:
    said, config = propose(command, "log.csv", stays("died", everywhere=True))
    assert "short_episodes" not in config
    assert "disposition" in said["unused"]
    assert any("'disposition' says how episodes ended" in text for text in said["doubts"])


def test_sessions_end_with_their_last_row(command: Command, folder: Path) -> None:
    """Those of a router's log without a flag; episodes of another kind are asked about."""
    text = (ROOT / "examples" / "router.jsonl").read_text(encoding="utf-8")
    lines = [line.replace(',"done":true', "").replace(',"done":false', "") for line in text.split()]
    _, config = propose(command, "log.jsonl", lines)
    assert config["short_episodes"] == "terminal"
    said, config = propose(command, "log.jsonl", [s.replace('"session"', '"case"') for s in lines])
    assert "short_episodes" not in config
    assert any("nothing says why" in text for text in said["missing"])


def test_where_the_reward_is_open_no_state_is_guessed(command: Command, folder: Path) -> None:
    lines = ["patient_id,charttime,unit,bp,lactate,treatment,mu"]
    for k in range(200):
        for hour in range(2):
            row = f"p{k},2024-01-{k % 28 + 1:02} 0{hour}:00:00,{'AB'[k % 2]}"
            lines.append(f"{row},{60 + (k * 7 + hour) % 30}.5,{k % 9}.25,{'xy'[k % 3 // 2]},0.5")
    said, config = propose(command, "log.csv", lines)
    assert said["undecided"] == {"state": ["unit", "bp", "lactate"], "reward": ["bp", "lactate"]}
    assert "bins" not in config
    assert "# bins = [0, 3, 3]" in Path("reweigh.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["litellm", "opentelemetry"])
def test_decision_logs_of_tools_go_to_a_report(name: str, command: Command, folder: Path) -> None:
    shutil.copy(ROOT / "examples" / f"{name}.jsonl", folder)
    ran = command("init", f"{name}.jsonl", "--json")
    assert ran.json()["undecided"] == {}
    ran = command("check", "--config", "reweigh.toml", "--write-policy", "policy.csv", "--quiet")
    assert ran.code == 0, ran.err
    more = ("--target", "policy.csv", "--report", "report.html", "--json")
    ran = command("evaluate", "--config", "reweigh.toml", *more)
    assert ran.code == 0, ran.err
    assert Path("report.html").stat().st_size > 0
