"""Exit codes: 0 ok, 1 bug, 2 usage, 3 input, 4 statistics, 6 file or resource, 130 interrupted."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import reweigh as rw

from .commands import Command, log_table, write_log, write_policy

REWEIGH = Path(sys.executable).parent / "reweigh"

# {name: (arguments, code, words of the message)}; LOG, POLICY, OUT and FOLDER stand for paths
CASES: dict[str, tuple[list[str], int, list[str]]] = {
    "check": (["check", "LOG"], 0, []),
    "evaluate": (["evaluate", "LOG", "--target", "POLICY"], 0, []),
    "moments": (["moments", "LOG", "--target", "POLICY", "-o", "OUT"], 0, []),
    "no such command": (["evaluat", "LOG"], 2, ["evaluat"]),
    "no such option": (["check", "LOG", "--stat", "s"], 2, ["--stat"]),
    "no log": (["check"], 2, ["LOG"]),
    "no target": (["evaluate", "LOG"], 2, ["--target"]),
    "two targets": (
        ["evaluate", "LOG", "--target", "POLICY", "--target-prob", "pi"],
        2,
        ["one of them"],
    ),
    "no output": (["moments", "LOG", "--target", "POLICY"], 2, ["-o"]),
    "no such estimator": (
        ["evaluate", "LOG", "--target", "POLICY", "--estimators", "mips"],
        2,
        ["did you mean 'mis'?"],
    ),
    "no estimator": (["evaluate", "LOG", "--target", "POLICY", "--estimators", ","], 2, ["empty"]),
    "a horizon of zero": (["check", "LOG", "--horizon", "0"], 2, ["horizon"]),
    "a horizon that is no number": (["check", "LOG", "--horizon", "x"], 2, ["--horizon"]),
    "a discount above one": (["check", "LOG", "--discount", "1.5"], 2, ["discount"]),
    "a negative clip": (
        ["evaluate", "LOG", "--target", "POLICY", "--max-ratio", "-1"],
        2,
        ["max-ratio"],
    ),
    "a clip that nothing obeys": (
        ["evaluate", "LOG", "--target", "POLICY", "--estimators", "dm", "--max-ratio", "2"],
        2,
        ["max-ratio", "dm uses none"],
    ),
    "auto with a clip in a comparison": (
        ["compare", "LOG", "--target", "POLICY", "--estimators", "auto", "--max-ratio", "2"],
        2,
        ["--max-ratio needs a named estimator"],
    ),
    "auto in a plan": (
        ["plan", "LOG", "--target", "POLICY", "--half-width", "1", "--estimators", "auto"],
        2,
        ["auto is not an estimator", "Give a name here"],
    ),
    "a clip that is no number": (
        ["evaluate", "LOG", "--target", "POLICY", "--max-ratio", "nan"],
        2,
        ["max-ratio"],
    ),
    "no block": (["moments", "LOG", "--target", "POLICY", "--blocks", "0", "-o", "OUT"], 2, []),
    "a wrong choice": (["check", "LOG", "--short-episodes", "drop"], 2, ["short-episodes"]),
    "another wrong choice": (["check", "LOG", "--hidden", "maybe"], 2, ["hidden"]),
    "cut episodes": (
        ["evaluate", "LOG", "--target", "POLICY", "--cut-episodes", "keep"],
        2,
        ["--cut-episodes"],
    ),
    "a grid that is none": (["check", "LOG", "--grid", "0,x"], 2, ["--grid"]),
    "a grid that falls": (["check", "LOG", "--grid", "1,0"], 2, ["--grid must be increasing"]),
    "a rounding to nothing": (
        ["check", "LOG", "--round", "0"],
        2,
        ["the option --round must be a positive number"],
    ),
    "a grid and a rounding": (
        ["check", "LOG", "--grid", "0", "--round", "1"],
        2,
        ["give --round, --grid or --bins, one of them"],
    ),
    "one column for two roles": (["check", "LOG", "--episode", "step"], 2, ["two roles"]),
    "a target column that is not there": (
        ["evaluate", "LOG", "--target-prob", "pie"],
        3,
        ["did you mean 'pi'?"],
    ),
    "a missing column": (["check", "LOG", "--behavior-prob", "mu"], 3, ["'mu'"]),
    "a broken log": (["check", "BROKEN"], 3, ["not-finite"]),
    "a broken log to evaluate": (["evaluate", "BROKEN", "--target", "POLICY"], 3, ["not-finite"]),
    "a log as the policy": (["evaluate", "LOG", "--target", "LOG"], 3, ["'prob'"]),
    "a policy that lacks a state": (["evaluate", "LOG", "--target", "SMALL"], 3, ["unknown-state"]),
    "a continuous state": (["check", "CONTINUOUS"], 4, ["60 of 60", "--round"]),
    "an impossible target": (["evaluate", "LOG", "--target", "IMPOSSIBLE"], 4, ["no logged"]),
    "a comparison without an answer": (
        ["compare", "LOG", "--target", "IMPOSSIBLE"],
        4,
        ["no target has an estimate"],
    ),
    "no such log": (["check", "FOLDER/no.csv"], 6, ["no.csv"]),
    "no such policy": (["evaluate", "LOG", "--target", "FOLDER/no.csv"], 6, ["no.csv"]),
    "no such folder for the output": (
        ["moments", "LOG", "--target", "POLICY", "-o", "FOLDER/no/m.parquet"],
        6,
        ["m.parquet"],
    ),
    "a file as the folder of the output": (
        ["moments", "LOG", "--target", "POLICY", "-o", "LOG/m.parquet"],
        6,
        ["m.parquet"],
    ),
    "a folder as the output": (["moments", "LOG", "--target", "POLICY", "-o", "FOLDER"], 2, []),
    "a file as the demo's folder": (["demo", "-o", "LOG"], 6, ["log.csv"]),
}  # fmt: skip


def arguments_of(case: str, tmp_path: Path) -> list[str]:
    """The arguments of a case, with its files made."""
    places = {
        "LOG": write_log(tmp_path / "log.csv"),
        "POLICY": write_policy(tmp_path / "policy.csv"),
        "BROKEN": write_log(tmp_path / "broken.csv", log_table(1, reward=[1.0, float("nan"), 2.0])),
        "CONTINUOUS": write_log(
            tmp_path / "continuous.csv", log_table(20, state=[i / 7 for i in range(60)])
        ),
        "SMALL": write_policy(tmp_path / "small.csv", "state,action,prob\n0,0,1\n"),
        "IMPOSSIBLE": write_policy(tmp_path / "no.csv", "state,action,prob\n0,7,1\n1,7,1\n"),
        "OUT": tmp_path / "m.parquet",
        "FOLDER": tmp_path,
    }
    if case in ("no such log", "no such policy"):
        places["IMPOSSIBLE"].unlink()
    found = []
    for word in CASES[case][0]:
        head, _, tail = word.partition("/")
        place = places.get(head)
        found.append(word if place is None else str(place / tail if tail else place))
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_command_exits_with_the_code_of_its_cause(
    case: str, command: Command, tmp_path: Path
) -> None:
    _, code, words = CASES[case]
    ran = command(*arguments_of(case, tmp_path))
    assert ran.code == code, ran.err
    assert "Traceback" not in ran.err
    if code == 0:
        assert ran.err == ""
        return
    assert ran.err.startswith("error: ")
    for word in words:
        assert word in ran.err


def reweigh(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """The installed command, as a user's shell runs it."""
    return subprocess.run(
        [REWEIGH, *arguments], capture_output=True, text=True, timeout=60, check=False, **more
    )


@pytest.mark.parametrize(
    "case", ["evaluate", "no such estimator", "a broken log", "an impossible target", "no such log"]
)
def test_the_installed_command_exits_with_the_same_code(case: str, tmp_path: Path) -> None:
    _, code, words = CASES[case]
    ran = reweigh(*arguments_of(case, tmp_path))
    assert ran.returncode == code, ran.stderr
    assert "Traceback" not in ran.stderr
    for word in words:
        assert word in ran.stderr


def test_a_warning_is_a_line_for_people_and_not_a_place_in_the_source(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.csv")
    policy = write_policy(tmp_path / "p.csv", "state,action,prob\n0,0,0.4000001\n0,1,0.6\n1,0,1\n")
    ran = reweigh("moments", str(log), "--target", str(policy), "-o", str(tmp_path / "m.parquet"))
    assert ran.returncode == 0
    assert "normalized" in ran.stdout + ran.stderr
    assert ".py:" not in ran.stderr


# outputs


def write_moments(command: Command, folder: Path, out: Path, *more: str) -> Any:
    log = write_log(folder / "log.csv")
    policy = write_policy(folder / "policy.csv")
    return command("moments", log, "--target", policy, "-o", out, *more)


def test_an_output_that_exists_is_kept_unless_asked(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "m.parquet"
    out.write_text("mine")
    ran = write_moments(command, tmp_path, out)
    assert ran.code == 2
    assert "exists" in ran.err
    assert out.read_text() == "mine"
    assert write_moments(command, tmp_path, out, "--overwrite").code == 0
    assert rw.load_moments(out).n_episodes == 60
    ran = command("merge", out, out, "-o", out)
    assert ran.code != 0
    assert rw.load_moments(out).n_episodes == 60


@pytest.mark.parametrize("dangling", [True, False], ids=["dangling", "to a file"])
@pytest.mark.parametrize("more", [[], ["--overwrite"]], ids=["plain", "overwrite"])
def test_an_output_that_is_a_link_is_refused(
    dangling: bool, more: list[str], command: Command, tmp_path: Path
) -> None:
    target, out = tmp_path / "target", tmp_path / "m.parquet"
    if not dangling:
        target.write_text("mine")
    out.symlink_to(target)
    ran = write_moments(command, tmp_path, out, *more)
    assert ran.code == 2
    assert "link" in ran.err
    assert out.is_symlink()
    assert target.exists() != dangling
    if not dangling:
        assert target.read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_a_resource_error(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    assert write_moments(command, tmp_path, folder / "m.parquet").code == 6


def test_a_full_disk_is_a_resource_error_and_leaves_the_old_file(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "m.parquet").write_text("mine")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    ran = write_moments(command, tmp_path, folder / "m.parquet", "--overwrite")
    assert ran.code == 6
    assert "No space left" in ran.err
    assert "m.parquet" in ran.err
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("m.parquet", "mine")]


# what is not the user's doing


def test_a_bug_saves_its_traceback_and_asks_for_a_report(
    command: Command, log: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(saved))

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the \x1b[31mflux\x1b[0m is broken")

    monkeypatch.setattr(rw, "read_log", broken)
    ran = command("check", log)
    assert ran.code == 1
    assert "bug" in ran.err
    assert "report" in ran.err
    assert "\x1b" not in ran.err
    assert "Traceback" not in ran.err
    [path] = saved.iterdir()
    assert str(path) in ran.err
    text = path.read_text()
    assert "Traceback" in text
    assert "RuntimeError" in text
    assert "in broken" in text


def test_an_interrupt_exits_with_130(
    command: Command, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rw, "read_log", interrupted)
    ran = command("check", log)
    assert ran.code == 130
    assert "Traceback" not in ran.err


WAITING = """
import sys, time
import reweigh
from reweigh.cli.app import main
def wait(*_, **__):
    print("ready", flush=True)
    time.sleep(60)
reweigh.read_log = wait
main()
"""


def test_control_c_ends_a_running_command_with_130(log: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING, "check", str(log)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err


# the terminal

PIPES = {
    "check": ["check", "LOG"],
    "check as json": ["check", "LOG", "--json"],
    "evaluate": ["evaluate", "LOG", "--target", "POLICY"],
    "evaluate as json": ["evaluate", "LOG", "--target", "POLICY", "--json"],
}


@pytest.mark.parametrize("what", PIPES)
def test_a_reader_that_went_away_is_no_error(
    what: str, log: Path, policy: Path, tmp_path: Path
) -> None:
    places = {"LOG": str(log), "POLICY": str(policy)}
    reader, writer = os.pipe()
    os.close(reader)
    try:
        process = subprocess.run(
            [REWEIGH, *(places.get(word, word) for word in PIPES[what])],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)
    assert process.stderr == ""
    assert process.returncode == 0


def test_the_interpreter_is_not_taken_apart(tmp_path: Path) -> None:
    """What threads of libraries do at that time can abort it; what was registered still runs."""
    code = (
        "import atexit, os, sys, threading, time\n"
        "from reweigh.cli.app import main\n"
        "class Last:\n"
        "    def __del__(self): os.abort()\n"
        "kept = Last()\n"
        "atexit.register(print, 'good bye')\n"
        "def late(): time.sleep(0.2); print('a thread is waited for')\n"
        "threading.Thread(target=late).start()\n"
        "main()\n"
    )
    for arguments, expected in ((["--version"], 0), (["check", str(tmp_path / "none.csv")], 6)):
        ran = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60
        )
        assert ran.returncode == expected, ran.stderr
        assert ran.stdout.endswith("a thread is waited for\ngood bye\n")
        assert ran.stdout.startswith("reweigh ") == (expected == 0)
        assert ("error: " in ran.stderr) == (expected == 6)


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["table", "json"])
def test_a_terminal_without_unicode_is_no_error(more: list[str], tmp_path: Path) -> None:
    log = write_log(tmp_path / "lög.csv")
    ran = reweigh("check", str(log), *more, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert ran.returncode == 0, ran.stderr
    assert "episodes" in ran.stdout


CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
EVIL = "a\x1b[31m\x07\x9b2J\u202eb\r"


def assert_harmless(ran: Any) -> None:
    assert CONTROLS.findall(ran.out) == []
    assert CONTROLS.findall(ran.err) == []


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["table", "json"])
def test_names_in_a_good_log_are_not_obeyed_by_the_terminal(
    more: list[str], command: Command, tmp_path: Path
) -> None:
    table = log_table()
    table = table.rename_columns([EVIL if name == "state" else name for name in table.column_names])
    path = write_log(tmp_path / f"{EVIL}.csv", table)
    ran = command("check", path, "--state", EVIL, *more)
    assert ran.code == 0, ran.err
    assert_harmless(ran)
    assert r"\x1b" in ran.out or "\\u001b" in ran.out


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["table", "json"])
def test_values_in_a_broken_log_are_not_obeyed_by_the_terminal(
    more: list[str], command: Command, tmp_path: Path
) -> None:
    table = log_table(2, episode=[EVIL] * 3 + ["b"] * 3, reward=[float("nan"), 1, 2, 1, 2, 3.0])
    ran = command("check", write_log(tmp_path / "log.csv", table), *more)
    assert ran.code == 3
    assert_harmless(ran)
    ran = command("check", tmp_path / f"{EVIL}.csv", *more)
    assert ran.code == 6
    assert_harmless(ran)


def test_unknown_states_are_not_obeyed_by_the_terminal(
    command: Command, tmp_path: Path, policy: Path
) -> None:
    table = log_table(1, state=[EVIL, "0", "1"])
    path = write_log(tmp_path / "log.csv", table)
    ran = command("evaluate", path, "--target", policy)
    assert ran.code == 3
    assert_harmless(ran)


def test_the_name_of_an_output_is_not_obeyed_by_the_terminal(
    command: Command, tmp_path: Path
) -> None:
    ran = write_moments(command, tmp_path, tmp_path / f"{EVIL}.parquet")
    assert ran.code == 0
    assert_harmless(ran)


def test_markup_in_names_is_shown_as_it_is(command: Command, tmp_path: Path) -> None:
    path = write_log(tmp_path / "[red]x[bold].csv")
    ran = command("check", path)
    assert ran.code == 0
    assert "[red]x[bold].csv" in ran.out
