"""What a person at a terminal gets: quick help, completion, tables that fit, quiet commands."""

from __future__ import annotations

import os
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import reweigh as rw
from reweigh.cli.app import app
from reweigh.cli.compare import comparison_table
from reweigh.cli.show import estimates_table

from .commands import Command, log_table, write_log

REWEIGH = str(Path(sys.executable).with_name("reweigh"))
COMMANDS = [
    "init", "check", "evaluate", "compare", "moments", "merge", "plan", "reproduce", "demo",
]  # fmt: skip


def drawn(table: Any, width: int) -> str:
    console = Console(width=width, file=StringIO(), highlight=False)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


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
def test_every_help_has_an_example(name: str, command: Command) -> None:
    ran = command(name, "--help")
    assert ran.code == 0
    assert f"Example: reweigh {name} " in " ".join(ran.out.split())


def test_the_list_of_commands_is_complete() -> None:
    assert [info.callback.__name__ for info in app.registered_commands] == COMMANDS  # type: ignore[union-attr]


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
def test_tables_fit_80_columns_and_lose_nothing(scale: float) -> None:
    """The longest names and very long numbers: an interval may take two lines, no cell is cut."""
    table = log_table()
    table = table.set_column(4, "reward", [table["reward"].to_numpy() * scale])
    log = rw.read_log(table)
    policies = {
        "a policy": rw.TablePolicy(np.array([[0.4, 0.6], [0.3, 0.7]])),
        "another one": rw.TablePolicy(np.array([[0.5, 0.5], [0.6, 0.4]])),
    }
    target = policies["a policy"]
    results = rw.evaluate_all(log, target, ["mis", "ssd-is-selfnorm", "trajectory-wis"])
    compared = rw.compare(log, policies, ["mis", "trajectory-wis"], seed=1)
    for made in (
        estimates_table(results),
        estimates_table(results, 1.0),
        comparison_table(compared),
    ):
        shown = drawn(made, 80)
        assert max(map(len, shown.splitlines())) <= 80
        assert "…" not in shown
        assert any(word in shown for word in ("green", "amber", "red"))  # not a colour alone


def test_no_colour_where_none_is_wanted(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.csv")
    environment = {**os.environ, "NO_COLOR": "1", "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    done = subprocess.run(
        [REWEIGH, "evaluate", str(log), "--target-prob", "pi"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "\x1b[3" not in done.stdout
    assert "mis" in done.stdout


def test_quiet_commands_print_nothing(
    command: Command, log: Path, policy: Path, tmp_path: Path
) -> None:
    other = write_log(tmp_path / "other.csv", log_table(seed=1, first=100))
    for source, sums in ((log, "a.parquet"), (other, "b.parquet")):
        ran = command("moments", source, "--target", policy, "-o", tmp_path / sums, "--quiet")
        assert (ran.code, ran.out) == (0, "")
    both = (tmp_path / "a.parquet", tmp_path / "b.parquet")
    ran = command("merge", *both, "-o", tmp_path / "all.parquet", "--quiet")
    assert (ran.code, ran.out) == (0, "")
    ran = command("init", log, "-o", tmp_path / "c.toml", "--quiet")
    assert (ran.code, ran.out) == (0, "")
    assert (tmp_path / "c.toml").exists()
