"""What a command runs on: a log with its target, or moments that know theirs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reweigh.cli.options import LogOptions, TargetOptions
from reweigh.errors import UsageError


@dataclass(frozen=True)
class Given:
    """A log and its target, or moments (whose `policy` is None).

    about is what is said of it as plain values; behavior tells where the propensities come from.
    """

    data: Any
    policy: Any
    about: dict[str, Any]
    behavior: str


def read_given(
    files: list[Path] | None,
    log: LogOptions,
    target: TargetOptions,
    *,
    for_logs_only: bool = False,
) -> Given:
    """Read the files; without any, a table of Spark.

    `for_logs_only`: an option was given that moments cannot obey.
    """
    import reweigh as rw
    from reweigh.logs.scanned import ScannedLog
    from reweigh.moments.store import is_moments_file

    paths = files or []
    if not any(is_moments_file(path) for path in paths):
        log.check_source(paths)
        policy = target.read(log)
        data = log.read(paths, target.target_prob)
        # A log that is scanned would be read once more only to be described.
        scanned = isinstance(data, ScannedLog)
        about = {"source": repr(data)} if scanned else data.describe()
        return Given(data, policy, about, data.behavior_source)
    if len(paths) > 1:
        raise UsageError("these are moments; add them first: reweigh merge … -o all.parquet")
    if for_logs_only:
        raise UsageError(
            "moments hold sums and no episodes: --reward-range and --cut-episodes need the log"
        )
    if target != TargetOptions() or log != LogOptions():
        raise UsageError(
            "moments already know their target and their log: give no target and no options of "
            "the log with them"
        )
    moments = rw.load_moments(paths[0])
    about = {"moments": paths[0].name, "episodes": moments.n_episodes}
    return Given(moments, None, about, moments.about.behavior)
