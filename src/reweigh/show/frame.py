"""Records as data frames: pandas where it is installed, else an Arrow table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reweigh.show.record import Diagnostics, Evaluation, Floats
from reweigh.trust.intervals import Interval


def frame_of(columns: Mapping[str, Any]) -> Any:
    """Columns of one length as a pandas DataFrame, or an Arrow table without pandas."""
    try:
        import pandas as pd
    except ImportError:
        import pyarrow as pa

        return pa.table(dict(columns))
    return pd.DataFrame(dict(columns))


def rows_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """The same of rows that share their names."""
    return frame_of({name: [row[name] for row in rows] for name in rows[0]})


def steps_frame(per_step: Floats | None, d: Diagnostics) -> Any:
    """A row per step: what it adds to the value, and what the estimate rests on there."""
    columns = {
        "value": per_step,
        "effective_episodes": d.ess,
        "unseen_mass": d.unseen_mass,
        "total_mass": d.total_mass,
        "variance": None if d.variance_by_step is None else d.variance_by_step[1:],
    }
    known = {name: values for name, values in columns.items() if values is not None}
    return frame_of({"step": range(len(d.ess)), **known})


def evaluation_row(e: Evaluation) -> dict[str, Any]:
    """An estimate as one row of plain values; None where there is none."""
    gain = ends(e.gain_interval)
    return {
        "estimator": e.estimator,
        "value": e.value,
        "standard_error": e.error,
        **dict(zip(("low", "high", "level"), ends(e.interval), strict=True)),
        "trusted": e.trusted,
        "verdict": e.level,
        "reasons": ", ".join(e.reasons),
        "behavior_value": e.behavior_value,
        "gain": e.gain,
        "gain_low": gain[0],
        "gain_high": gain[1],
        "effective_episodes": e.ess,
        "n_episodes": e.n_episodes,
        "horizon": e.horizon,
        "refused": None if e.refused is None else e.refused.reason,
    }


def ends(interval: Interval | None) -> tuple[float | None, float | None, float | None]:
    """Low, high and level."""
    return (None, None, None) if interval is None else (interval.low, interval.high, interval.level)
