"""Running commands in this process, and the files that they run on."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import jsonschema
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pytest

from reweigh.cli.app import run
from reweigh.cli.outputs import OUTPUTS
from reweigh.cli.schema import schema_of


@dataclass(frozen=True)
class Ran:
    """What a command printed and returned."""

    code: int
    out: str
    err: str
    command: str

    def json(self) -> Any:
        """The printed object, which has the shape that `reweigh schema` prints; NaN and Infinity
        are no JSON."""
        found = json.loads(self.out, parse_constant=_no_constant)
        validator(self.command).validate(found)
        return found


@functools.cache
def validator(command: str) -> Any:
    """Checks an output of this command."""
    schema = schema_of(command, OUTPUTS[command])
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def _no_constant(word: str) -> NoReturn:
    raise AssertionError(f"{word} is not valid JSON")


class Command:
    """`command("check", path)` runs `reweigh check path`."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: object) -> Ran:
        self.capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        out, err = self.capsys.readouterr()
        return Ran(code, out, err, str(arguments[0]) if arguments else "")


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
