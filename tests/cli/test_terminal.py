"""What a person at a terminal gets: quick help, completion, tables that fit, quiet commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

import reweigh as rw
from reweigh.cli import app
from reweigh.cli.compare import print_comparison
from reweigh.cli.evaluate import print_estimates
from reweigh.cli.terminal import Terminal

from .commands import Command, log_table, write_log

REWEIGH = str(Path(sys.executable).with_name("reweigh"))
COMMANDS = [
    "init", "check", "evaluate", "compare", "moments", "merge", "plan", "reproduce", "demo",
]  # fmt: skip
TEXTS = ["explain", "schema", "skill"]  # what they print is the answer: there is no --quiet


class Screen(StringIO):
    def isatty(self) -> bool:
        return True


def test_help_is_quick() -> None:
    """Half a second of processor time at most (the least of five), and nothing that computes."""
    heavy = ("numpy", "scipy", "pyarrow", "numba", "duckdb", "ibis", "altair")
    code = (
        "import sys, time, io, contextlib\n"
        "from reweigh.cli.app import run\n"
        "with contextlib.redirect_stdout(io.StringIO()): run(['--help'])\n"
        f"assert not [m for m in {heavy} if m in sys.modules]\n"
        "print(time.process_time())"
    )
    taken = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for _ in range(5)
    ]
    assert min(taken) < 0.5


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_quiet(name: str, command: Command) -> None:
    assert "--quiet" in command(name, "--help").out


@pytest.mark.parametrize("name", COMMANDS + TEXTS)
def test_every_help_has_an_example(name: str, command: Command) -> None:
    ran = command(name, "--help")
    assert ran.code == 0
    assert f"Example: reweigh {name}" in " ".join(ran.out.split())


def test_the_list_of_commands_is_complete() -> None:
    assert list(app.COMMANDS) == COMMANDS + TEXTS


def test_completion_knows_commands_and_options() -> None:
    def completed(words: str, at: int) -> list[str]:
        asked = {"_REWEIGH_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(at)}
        done = subprocess.run(
            [REWEIGH], env={**os.environ, **asked}, capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    assert completed("reweigh ev", 1) == ["evaluate"]
    assert completed("reweigh evaluate --target", 2) == ["--target", "--target-prob"]


@pytest.mark.parametrize("scale", [1.0, 1e6, 1e-6])
def test_tables_fit_80_columns_and_lose_nothing(
    scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest names and very long numbers: an interval may take two lines, no cell is cut."""
    table = log_table()
    table = table.set_column(4, "reward", [table["reward"].to_numpy() * scale])
    log = rw.read_log(table)
    policies = {
        "a policy": rw.TablePolicy(np.array([[0.4, 0.6], [0.3, 0.7]])),
        "another one": rw.TablePolicy(np.array([[0.5, 0.5], [0.6, 0.4]])),
    }
    target = policies["a policy"]
    names = ["mis", "ssd-is-selfnorm", "trajectory-wis"]
    records = [result.record() for result in rw.evaluate_all(log, target, names)]
    compared = rw.compare(log, policies, ["mis", "trajectory-wis"], seed=1)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal()
    for show in (
        lambda: print_estimates(records, terminal),
        lambda: print_estimates(records, terminal, truth=1.0),
        lambda: print_comparison(compared, terminal),
    ):
        screen = Screen()
        monkeypatch.setattr(sys, "stdout", screen)
        show()
        shown = screen.getvalue()
        assert max(map(len, shown.splitlines())) <= 80
        assert "…" not in shown
        assert any(word in shown for word in ("green", "amber", "red"))  # not a color alone


def test_no_color_where_none_is_wanted(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.csv")
    environment = {**os.environ, "NO_COLOR": "1", "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    done = subprocess.run(
        [REWEIGH, "evaluate", str(log), "--target-prob", "pi"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "\x1b[3" not in done.stdout
    assert "mis" in done.stdout


def test_commands_that_write_are_quiet_when_asked(
    command: Command, log: Path, policy: Path, tmp_path: Path
) -> None:
    other = write_log(tmp_path / "other.csv", log_table(seed=1, first=100))
    for source, sums in ((log, "a.parquet"), (other, "b.parquet")):
        ran = command("moments", source, "--target", policy, "-o", tmp_path / sums, "--quiet")
        assert (ran.code, ran.out, ran.err) == (0, "", "")
    both = (tmp_path / "a.parquet", tmp_path / "b.parquet")
    ran = command("merge", *both, "-o", tmp_path / "all.parquet", "-q")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    ran = command("init", log, "-o", tmp_path / "c.toml", "--quiet")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert (tmp_path / "c.toml").exists()
    ran = command("demo", "-o", tmp_path / "demo", "--quiet")
    assert (ran.code, ran.out, ran.err) == (0, f"{tmp_path / 'demo' / 'report.html'}\n", "")


def test_what_is_doubtful_is_told_quietly_too(command: Command, tmp_path: Path) -> None:
    (tmp_path / "odd.csv").write_text("a,b\n1,2\n2,3\n")
    ran = command("init", tmp_path / "odd.csv", "-o", tmp_path / "c.toml", "--quiet")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.startswith(("!", "?"))
    assert "not used" not in ran.err


NUMBER = r"-?[0-9.]+"
INTERVAL = rf"\[{NUMBER}, {NUMBER}\]"
LEVEL = "(green|amber|red)"
# what --quiet leaves of each command's answer, line by line
ANSWERS: dict[str, tuple[list[str], list[str]]] = {
    "evaluate": (
        ["--estimators", "mis,wis,dr"],
        [
            rf"mis {NUMBER} {INTERVAL} {LEVEL}",
            rf"wis {NUMBER} no interval red",
            rf"dr {NUMBER} ({INTERVAL}|no interval) {LEVEL}",
        ],
    ),
    "evaluate --sensitivity": (
        ["--sensitivity"],
        [rf"mdr-loo {NUMBER} {INTERVAL} {LEVEL}", rf"mdr-loo moves most by {NUMBER}: .+"],
    ),
    "evaluate --reward-range": (
        ["--reward-range", "-9", "9"],
        [rf"mdr-loo {NUMBER} {INTERVAL} {LEVEL}", rf"certificate: {INTERVAL}"],
    ),
    "check": ([], []),
    "check --diagnose": (
        ["--diagnose", "--estimators", "mis,wis"],
        [rf"mis: {LEVEL}.*", rf"wis: {LEVEL}.*"],
    ),
    "compare": ([], [rf"best: policy {NUMBER} {INTERVAL} {LEVEL}, probability 100%"]),
    "plan": (["--half-width", "0.1"], ["mis [0-9,]+", "is [0-9,]+"]),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_quiet_leaves_the_answer(name: str, command: Command, log: Path, policy: Path) -> None:
    options, lines = ANSWERS[name]
    target = [] if name == "check" else ["--target", str(policy)]
    given = [name.split()[0], str(log), *target, *options]
    ran = command(*given, "--quiet")
    assert ran.code == command(*given).code == 0
    assert len(ran.out.splitlines()) == len(lines)
    for line, wanted in zip(ran.out.splitlines(), lines, strict=True):
        assert re.fullmatch(wanted, line), line
    as_json = command(*given, "--quiet", "--json")
    assert (as_json.code, as_json.err) == (0, "")
    assert as_json.json() == command(*given, "--json").json() or name == "compare"  # its seed
    assert as_json.json()


def test_quiet_warns_on_the_standard_error(
    command: Command, tmp_path: Path, policy: Path, log: Path
) -> None:
    few = write_log(tmp_path / "few.csv", log_table(n=5))
    told = command("evaluate", few, "--target", policy)
    ran = command("evaluate", few, "--target", policy, "--quiet")
    assert ran.code == told.code == 0
    assert ran.out.endswith("red\n")
    assert "mis-hajek: red: " not in ran.out
    assert "mis-hajek: red: " in ran.err
    assert "mis-hajek: not checked: history" in ran.err
    assert told.out.startswith("Not reliable: ")
    strict = command("evaluate", few, "--target", policy, "--quiet", "--strict")
    assert strict.code == 4
    assert strict.out == ran.out


def test_quiet_tells_of_faults_and_refusals(
    command: Command, tmp_path: Path, log: Path, policy: Path
) -> None:
    broken = write_log(tmp_path / "broken.csv", log_table(behavior_prob=np.zeros(180)))
    ran = command("check", broken, "--quiet")
    assert (ran.code, ran.out) == (3, "")
    assert "behavior_prob" in ran.err
    away = tmp_path / "away.csv"
    away.write_text("state,action,prob\n0,0,0\n0,1,0\n0,2,1\n1,0,0\n1,1,0\n1,2,1\n")
    ran = command("evaluate", log, "--target", away, "--quiet")
    assert ran.code == 4
    assert ran.out == "mis refused\n"
    ran = command("compare", log, "--target", away, "--target", policy, "-q", "--seed", "1")
    assert ran.out.startswith("best: policy ")
    assert "away, mis-hajek refused: " in ran.err
