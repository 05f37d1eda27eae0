"""The log's own policy as a file: what a target policy can be written from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pacsv

from reweigh.errors import UsageError
from reweigh.log.log import label_columns
from reweigh.system.files import write_atomically

if TYPE_CHECKING:
    from reweigh.log.log import EpisodeLog

PARTS = 10_000  # shares are written with four decimals


def own_policy(log: EpisodeLog) -> pa.Table:
    """How often each action was taken in each state, rounded so that every state's add up to 1."""
    if log.actions is None:
        raise UsageError("--write-policy needs actions that can be listed, not continuous ones")
    steps, width = log.steps, len(log.actions)
    code = steps.state.astype(np.int64) + 1  # 0 is the hidden state
    counts = np.bincount(code * width + steps.action, minlength=(len(log.states) + 1) * width)
    counts = counts.reshape(-1, width)
    seen = np.flatnonzero(counts.sum(axis=1))
    parts = _to_parts(counts[seen])
    states = label_columns("state", log.states, np.repeat(seen - 1, width))
    names = log.columns.state if len(states) == len(log.columns.state) else tuple(states)
    columns: dict[str, Any] = dict(zip(names, states.values(), strict=True))
    [actions] = label_columns("action", log.actions, np.tile(np.arange(width), len(seen))).values()
    columns[log.columns.action] = actions
    return pa.table(columns | {"prob": pa.array(parts.reshape(-1) / PARTS)})


def _to_parts(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Rows of counts as whole parts that add up to PARTS: what rounding down leaves goes to the
    largest remainders."""
    exact = PARTS * counts / counts.sum(axis=1, keepdims=True)
    parts = np.floor(exact).astype(np.int64)
    rank = np.argsort(np.argsort(parts - exact, axis=1, kind="stable"), axis=1, kind="stable")
    more: npt.NDArray[np.int64] = (rank < (PARTS - parts.sum(axis=1))[:, None]).astype(np.int64)
    whole: npt.NDArray[np.int64] = parts + more
    return whole


def write_own_policy(log: EpisodeLog, path: Path) -> None:
    table = own_policy(log)
    write_atomically(path, lambda stream: pacsv.write_csv(table, stream))
