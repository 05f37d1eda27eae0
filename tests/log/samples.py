"""Small logs for the tests of reading: as columns, as Arrow tables, as the text of a CSV file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import reweigh as rw

# two episodes of three steps, complete and without a fault
COLUMNS: dict[str, Sequence[Any]] = {
    "episode": ["a", "a", "a", "b", "b", "b"],
    "step": [0, 1, 2, 0, 1, 2],
    "state": ["x", "y", "z", "x", "z", "y"],
    "action": ["l", "r", "l", "r", "r", "l"],
    "reward": [1.0, 0.0, 2.0, 1.0, 0.5, 0.0],
    "behavior_prob": [0.5, 0.25, 0.5, 0.5, 0.75, 0.5],
}
# the same rows with every role that a log can have
EVERY_ROLE = COLUMNS | {
    "next_state": ["y", "z", "y", "z", "y", "x"],
    "target_prob": [0.5, 0.5, 0.25, 0.5, 0.0, 1.0],
    "terminated": [False, False, False, False, False, True],
    "truncated": [False] * 6,
}
ROLES = {
    "next_state": "next_state",
    "target_prob": "target_prob",
    "terminated": "terminated",
    "truncated": "truncated",
}


def table(columns: Mapping[str, Any] = COLUMNS, **changes: Any) -> pa.Table:
    """An Arrow table; a changed column may be an Arrow array, to say its type."""
    return pa.table({name: pa.array(values) for name, values in {**columns, **changes}.items()})


def csv_text(columns: Mapping[str, Sequence[Any]], delimiter: str = ",") -> str:
    """The columns as CSV: None is an empty cell, the empty text is quoted."""
    lines = [list(columns), *(list(row) for row in zip(*columns.values(), strict=True))]
    return "".join(delimiter.join(map(_cell, line)) + "\n" for line in lines)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    # at the start of a file, a bare U+FEFF would be its byte order mark
    if not text or any(sign in text for sign in '",;\r\n\ufeff'):
        return '"' + text.replace('"', '""') + '"'
    return text


def csv_file(path: Path, columns: Mapping[str, Sequence[Any]] = COLUMNS) -> Path:
    path.write_text(csv_text(columns), encoding="utf-8", newline="")
    return path


def with_cell(columns: Mapping[str, Sequence[Any]], name: str, row: int, value: Any) -> dict:
    """The columns with one cell changed."""
    changed = list(columns[name])
    changed[row] = value
    return {**columns, name: changed}


def assert_same_log(first: rw.EpisodeLog, second: rw.EpisodeLog) -> None:
    """The same content, whatever the rows' order and the file's format were."""
    for field in fields(first.steps):
        if field.name != "source_rows":
            np.testing.assert_array_equal(
                getattr(first.steps, field.name), getattr(second.steps, field.name), field.name
            )
    assert first.states == second.states
    assert first.actions == second.actions
    assert first.digest() == second.digest()
    about, other = first.describe(), second.describe()
    assert {**about, "source": None} == {**other, "source": None}


def states_by_row(log: rw.EpisodeLog) -> dict[tuple[str, int], str]:
    """{(episode, step): state} in words."""
    steps = log.steps
    ids = [str(e) for e in steps.episode[steps.episode_index].tolist()]
    return {
        (episode, step): log.states.name(code)
        for episode, step, code in zip(ids, steps.step.tolist(), steps.state.tolist(), strict=True)
    }
