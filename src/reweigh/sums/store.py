"""Moments as one Parquet file: a `kind` column, the sums, and what they are of as metadata."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from reweigh.errors import InputError, ResourceError
from reweigh.logs.states import Labels
from reweigh.output import write_atomically
from reweigh.sums.bundle import About, Moments
from reweigh.sums.extras import (
    VERSIONS,
    LaggedMoments,
    LargestWeights,
    OrderedMoments,
    PacedMoments,
)
from reweigh.sums.policy import PolicyMoments
from reweigh.sums.trajectories import EpisodeSums, StepMoments, StepSums
from reweigh.sums.transitions import StartMoments, TransitionMoments

FORMAT = 1
KEY = b"reweigh"
KINDS: dict[str, Any] = {
    "start": StartMoments,
    "start_model": StartMoments,
    "transitions": TransitionMoments,
    "model": TransitionMoments,
    "policy": PolicyMoments,
    "steps": StepSums,
    "episodes": EpisodeSums,
}
EXTRAS: dict[str, Any] = {
    "lagged": LaggedMoments,
    "ordered": OrderedMoments,
    "paced": PacedMoments,
    "largest": LargestWeights,
}


def save(moments: Moments, path: str | Path, *, overwrite: bool) -> None:
    parts: dict[str, Any] = {
        name: getattr(moments, name)
        for name in ("start", "start_model", "transitions", "model", "policy")
    }
    if moments.trajectories is not None:
        parts["steps"] = moments.trajectories.steps
        parts["episodes"] = moments.trajectories.episodes
    extras = {name: getattr(moments, name) for name in VERSIONS}
    tables = [
        pa.table({"kind": pa.array([kind] * len(columns[0][1]), pa.string())} | dict(columns))
        for kind, part in (parts | extras).items()
        if part is not None
        for columns in [_columns(part)]
    ]
    about = {
        "format": FORMAT,
        "about": asdict(moments.about),
        "states": moments.states.values,
        "actions": None if moments.actions is None else moments.actions.values,
        "truncated": moments.truncated,
        "hidden": moments.hidden,
        "left_out": moments.left_out,
        "unchecked": moments.unchecked,
        "rewards": moments.rewards,
        "kinds": [kind for kind, part in parts.items() if part is not None],
        "extras": {
            name: {"version": VERSIONS[name]} | _scalars(part)
            for name, part in extras.items()
            if part is not None
        },
    }
    table = pa.concat_tables(tables, promote_options="default").replace_schema_metadata(
        {KEY: json.dumps(about).encode()}
    )
    write_atomically(
        path, lambda stream: pq.write_table(table, stream, compression="zstd"), overwrite=overwrite
    )


def load_moments(path: str | Path) -> Moments:
    """Read sums that `Moments.save` wrote."""
    path = Path(path)
    if not path.is_file():
        raise ResourceError(f"there is no file {str(path)!r}")
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{str(path)!r} is not a whole Parquet file: {error}") from error
    head = (table.schema.metadata or {}).get(KEY)
    if head is None:
        raise InputError(
            f"{str(path)!r} holds no moments of reweigh; make them with `reweigh moments`"
        )
    about = json.loads(head)
    if about.get("format") != FORMAT:
        raise InputError(
            f"{str(path)!r} has format {about.get('format')!r}, and this version reads {FORMAT}"
        )
    kind = np.asarray(table.column("kind").to_numpy(zero_copy_only=False))
    parts = {name: _part(table, kind == name, KINDS[name], path) for name in about["kinds"]}
    parts |= {
        name: _part(table, kind == name, EXTRAS[name], path, _restored(told))
        for name, told in about.get("extras", {}).items()
        if told.pop("version") == VERSIONS.get(name)  # another version's are as good as none
    }
    trajectories = None
    if "steps" in parts:
        trajectories = StepMoments(parts.pop("steps"), parts.pop("episodes"))
    meta = about["about"]
    return Moments(
        about=About(
            **meta
            | {
                "state_columns": tuple(meta["state_columns"]),
                "sources": tuple(meta["sources"]),
            }
        ),
        states=_labels(about["states"]),
        actions=None if about["actions"] is None else _labels(about["actions"]),
        trajectories=trajectories,
        truncated=about["truncated"],
        hidden=about["hidden"],
        left_out=about.get("left_out", {}),
        unchecked=tuple(about.get("unchecked", ())),
        rewards=None if about.get("rewards") is None else tuple(about["rewards"]),
        **parts,
    )


def is_moments_file(path: str | Path) -> bool:
    """True for a Parquet file that `Moments.save` wrote."""
    try:
        with Path(path).open("rb") as stream:
            if stream.read(4) != b"PAR1":
                return False
        return KEY in (pq.read_schema(path).metadata or {})
    except (OSError, pa.ArrowInvalid):
        return False


def _columns(part: Any) -> list[tuple[str, Any]]:
    values = [(f.name, getattr(part, f.name)) for f in fields(part)]
    return [(name, value) for name, value in values if isinstance(value, np.ndarray)]


def _scalars(part: Any) -> dict[str, Any]:
    """What is no column; JSON has no infinity."""
    values = {f.name: getattr(part, f.name) for f in fields(part)}
    return {
        name: None if value == -math.inf else value
        for name, value in values.items()
        if not isinstance(value, np.ndarray)
    }


def _restored(scalars: dict[str, Any]) -> dict[str, Any]:
    return {name: -math.inf if value is None else value for name, value in scalars.items()}


def _part(
    table: pa.Table, rows: Any, record: Any, path: Path, scalars: dict[str, Any] | None = None
) -> Any:
    chosen = table.filter(pa.array(rows))
    columns: dict[str, Any] = dict(scalars or {})
    for f in fields(record):
        if f.name in columns:
            continue
        if f.name == "pi2" and f.name not in chosen.column_names:  # sums made before it was kept
            columns["pi2"] = columns["pi"] ** 2 / np.maximum(columns["n"], 1)
            continue
        column = chosen.column(f.name)
        values = column.to_numpy(zero_copy_only=False)
        if column.null_count or (values.dtype.kind == "f" and np.any(np.isnan(values))):
            raise InputError(f"{str(path)!r} is damaged: column {f.name!r} has holes")
        columns[f.name] = values
    if np.any(np.asarray(columns["n"]) < 0):
        raise InputError(f"{str(path)!r} is damaged: negative counts")
    return record(**columns)


def _labels(values: list[Any]) -> Labels:
    return Labels(tuple(tuple(v) if isinstance(v, list) else v for v in values))
