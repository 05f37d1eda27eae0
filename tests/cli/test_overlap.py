"""No output is an input: `--overwrite` must not destroy what a command reads."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reweigh.cli.app import COMMANDS as NAMES
from reweigh.cli.app import function_of
from reweigh.cli.options import WRITES

from .commands import POLICY, Command, log_table, write_log, write_policy

FILLED = {  # what a command needs beside the two parameters under test
    "paths": ["log.csv"],
    "target": ["--target", "policy.csv"],
    "output": ["-o", "other.out"],
}
FLAGS = {"output": "-o", "paths": ""}
COMMANDS = {name: function_of(name) for name in NAMES}


def path_parameters(command: Callable[..., Any]) -> Iterator[tuple[str, bool]]:
    """Every path of a command, and whether it writes there."""
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        kinds = str(typing.get_args(parameter.annotation)[:1] or parameter.annotation)
        if "Path" in kinds:
            yield name, WRITES in parameter.annotation.__metadata__


PAIRS = [
    (command, output, source)
    for command, function in COMMANDS.items()
    for output, writes in path_parameters(function)
    for source, also in path_parameters(function)
    if writes and not also
]


def test_the_pairs_are_those_of_the_command_line() -> None:
    assert len(COMMANDS) == 12
    assert {pair[0] for pair in PAIRS} == {
        "init", "check", "evaluate", "compare", "moments", "merge", "plan",
    }  # fmt: skip  # the others read no file, or write none
    assert ("evaluate", "report", "config") in PAIRS
    assert ("evaluate", "ledger", "target") in PAIRS
    assert ("plan", "chart", "paths") in PAIRS
    assert len(PAIRS) >= 17


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_log(tmp_path / "log.csv")
    write_policy(tmp_path / "policy.csv")
    (tmp_path / "options.toml").write_text('log = ["log.csv"]\n')
    return tmp_path


def given(name: str, path: str) -> list[str]:
    flag = FLAGS.get(name, f"--{name.replace('_', '-')}")
    return [flag, path] if flag else [path]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


LINKS: dict[str, Callable[[Path, Path], None]] = {
    "the same name": lambda source, path: None,
    "another spelling": lambda source, path: None,
    "a hard link": lambda source, path: os.link(source, path),
    "a symbolic link": lambda source, path: path.symlink_to(source),
}


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize(("name", "output", "source"), PAIRS)
def test_no_output_of_any_command_is_one_of_its_inputs(
    name: str, output: str, source: str, link: str, folder: Path, command: Command
) -> None:
    read = {"paths": "log.csv", "target": "policy.csv", "config": "options.toml"}[source]
    suffix = {"tidy": ".parquet", "chart": ".svg"}.get(output, "")
    if suffix:  # these refuse other endings, whatever the file
        Path(read).rename(read + suffix)
        read += suffix
    written = {"the same name": read, "another spelling": f"../{folder.name}/{read}"}.get(link)
    if written is None:
        written = f"linked{suffix}"
        LINKS[link](folder / read, folder / written)
    needed = set(inspect.signature(COMMANDS[name]).parameters)
    call = [name, *given(source, read), *given(output, written)]
    for other, more in FILLED.items():
        if other in needed and other not in (source, output):
            call += more
    if name == "merge":
        call.append("second.parquet")
    if "overwrite" in needed:
        call.append("--overwrite")
    before = content(folder)
    ran = command(*call)
    assert ran.code == 2, ran.err
    assert "same file" in ran.err
    assert read in ran.err
    assert written in ran.err
    assert content(folder) == before


@pytest.mark.parametrize("given_as", [".", "*.csv", "[l]og.csv"])
def test_directories_and_patterns_are_expanded(
    given_as: str, folder: Path, command: Command
) -> None:
    before = content(folder)
    call = ["evaluate", given_as, "--target-prob", "pi", "--report", "log.csv", "--overwrite"]
    ran = command(*call)
    assert ran.code == 2, ran.err
    assert "--report 'log.csv' and LOG 'log.csv' are the same file" in ran.err
    assert content(folder) == before


def test_an_output_of_a_configuration_is_checked_too(folder: Path, command: Command) -> None:
    (folder / "options.toml").write_text(
        'log = ["log.csv"]\ntarget = "policy.csv"\n[evaluate]\nreport = "policy.csv"\n'
        "overwrite = true\n"
    )
    ran = command("evaluate", "--config", "options.toml")
    assert ran.code == 2, ran.err
    assert "--report 'policy.csv' and --target 'policy.csv' are the same file" in ran.err
    assert (folder / "policy.csv").read_text() == POLICY


def test_a_database_is_an_input(folder: Path, command: Command) -> None:
    duckdb = pytest.importorskip("duckdb")
    log = log_table()
    with duckdb.connect(str(folder / "log.duckdb")) as home:
        home.register("rows", log)
        home.execute("CREATE TABLE log AS SELECT * FROM rows")
    before = (folder / "log.duckdb").read_bytes()
    call = ["moments", "log.duckdb", "--engine", "duckdb", "--table", "log", "--target-prob", "pi"]
    ran = command(*call, "-o", "log.duckdb", "--overwrite")
    assert ran.code == 2, ran.err
    assert (folder / "log.duckdb").read_bytes() == before


TWICE = {
    "report and ledger": ["evaluate", "log.csv", "--target", "policy.csv", "--report", "OUT",
                          "--ledger", "OUT"],
    "configuration and copy": ["init", "log.csv", "-o", "OUT.parquet", "--tidy", "OUT.parquet"],
    "two charts": ["plan", "log.csv", "--target", "policy.csv", "--half-width", "1",
                   "--chart", "OUT.svg", "--chart", "./OUT.svg"],
}  # fmt: skip


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("what", TWICE)
def test_two_outputs_are_two_files(what: str, there: bool, folder: Path, command: Command) -> None:
    call = TWICE[what]
    if there:
        for name in {Path(part).name for part in call if "OUT" in part}:
            (folder / name).write_bytes(b"old")
    before = content(folder)
    ran = command(*call, "--overwrite")
    assert ran.code == 2, ran.err
    assert "are the same file; give each output its own name" in ran.err
    assert content(folder) == before


def test_a_log_is_not_appended_to_by_the_shell(folder: Path) -> None:
    before = content(folder)
    with (folder / "log.csv").open("ab") as stream:
        ran = subprocess.run(
            [
                sys.executable, "-c", "from reweigh.cli.app import main; main()",
                "evaluate", "log.csv", "--target", "policy.csv", "--json",
            ],
            stdout=stream, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert ran.returncode == 2, ran.stderr
    assert "standard output" in ran.stderr
    assert content(folder) == before


def test_what_is_no_input_is_replaced(folder: Path, command: Command) -> None:
    """The file that an output replaces may be anything else, a copy of the input too."""
    (folder / "copy.csv").write_bytes((folder / "log.csv").read_bytes())
    call = ["evaluate", "log.csv", "--target", "policy.csv", "--report", "copy.csv", "--overwrite"]
    assert command(*call).code == 0
    assert (folder / "copy.csv").read_bytes()[:15].lower() == b"<!doctype html>"
