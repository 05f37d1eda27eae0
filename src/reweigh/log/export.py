"""Logs and labels back to Arrow tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reweigh.log.states import END, HIDDEN, Labels, label_array

if TYPE_CHECKING:
    from reweigh.log.log import EpisodeLog


def log_table(log: EpisodeLog) -> pa.Table:
    """One row per step, episode by episode; the columns carry the names of their roles."""
    steps = log.steps
    order = np.lexsort((steps.step, steps.episode_index))
    columns: dict[str, Any] = {
        "episode": pa.array(steps.episode[steps.episode_index][order]),
        "step": pa.array(steps.step[order]),
        **label_columns("state", log.states, steps.state[order]),
    }
    if log.actions is None:
        columns["action"] = pa.array(steps.action[order])
    else:
        columns |= label_columns("action", log.actions, steps.action[order])
    columns["reward"] = pa.array(steps.reward[order])
    if steps.behavior_prob is not None:
        columns["behavior_prob"] = pa.array(steps.behavior_prob[order])
    if log.columns.target_prob is not None:
        columns["target_prob"] = pa.array(log.column(log.columns.target_prob)[order])
    following = np.where(steps.next_state < 0, HIDDEN, steps.next_state)
    if np.any(steps.ending >= 0):
        columns |= label_columns("next_state", log.states, following[order])
    last = steps.step == steps.lengths[steps.episode_index] - 1
    flags = {"terminated": steps.ending == END, "truncated": steps.truncated}
    for name, flag in flags.items():
        if np.any(flag):
            columns[name] = pa.array((last & flag[steps.episode_index])[order])
    return pa.table(columns)


def label_columns(role: str, labels: Labels, codes: npt.NDArray[Any]) -> dict[str, pa.Array]:
    """A column of labels (null where hidden), or one per part of a state of several columns."""
    width = next((len(v) for v in labels.values if isinstance(v, tuple)), 0)
    index = pa.array(codes, mask=codes < 0)

    def column(values: list[Any]) -> pa.Array:
        # a label is its text: where numbers and texts meet, all are written as texts
        if len({type(v) for v in values if v is not None}) > 1:
            values = [None if v is None else str(v) for v in values]
        return pa.array(label_array(values)).take(index)

    if not width:
        return {role: column(list(labels.values))}
    parts = [[None if v is None else v[j] for v in labels.values] for j in range(width)]  # type: ignore[index]
    return {f"{role}_{j}": column(part) for j, part in enumerate(parts)}
