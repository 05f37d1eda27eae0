"""Running commands in this process, and the files that they run on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pytest

from reweigh.cli.app import run


@dataclass(frozen=True)
class Ran:
    """What a command printed and returned."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The printed object; NaN and Infinity are no JSON."""
        return json.loads(self.out, parse_constant=_no_constant)


def _no_constant(word: str) -> NoReturn:
    raise AssertionError(f"{word} is no JSON")


class Command:
    """`command("check", path)` runs `reweigh check path`."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: object) -> Ran:
        self.capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        out, err = self.capsys.readouterr()
        return Ran(code, out, err)


def log_table(n: int = 60, seed: int = 0, first: int = 0, **changes: Any) -> pa.Table:
    """n complete episodes of three steps, two states, two actions, μ = 1/2."""
    rng = np.random.default_rng(seed)
    rows = 3 * n
    state, action = rng.integers(0, 2, rows), rng.integers(0, 2, rows)
    columns: dict[str, Any] = {
        "episode": np.repeat(np.arange(first, first + n), 3),
        "step": np.tile(np.arange(3), n),
        "state": state,
        "action": action,
        "reward": state + action + rng.normal(size=rows).round(2),
        "behavior_prob": np.full(rows, 0.5),
        "pi": np.array([[0.4, 0.6], [0.3, 0.7]])[state, action],
    }
    return pa.table({**columns, **changes})


POLICY = "state,action,prob\n0,0,0.4\n0,1,0.6\n1,0,0.3\n1,1,0.7\n"


def write_log(path: Path, table: pa.Table | None = None) -> Path:
    pacsv.write_csv(log_table() if table is None else table, path)
    return path


def write_policy(path: Path, text: str = POLICY) -> Path:
    path.write_text(text)
    return path
