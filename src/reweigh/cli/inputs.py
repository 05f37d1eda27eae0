"""What a command runs on: a log with its target, or moments that know theirs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from reweigh.cli.options import LogOptions, TargetOptions
from reweigh.errors import UsageError


@dataclass(frozen=True)
class Given:
    """A log and its target, or moments (whose `policy` is None).

    named is the file of moments; behavior tells where the propensities come from.
    """

    data: Any
    policy: Any
    behavior: str
    named: str | None = None

    @cached_property
    def about(self) -> dict[str, Any]:
        """What is said of it as plain values. Asked for after the work, by which a log that is
        scanned is known: it would be read once more only to be described."""
        from reweigh.sums.scanned_log import ScannedLog

        if self.named is not None:
            return {"moments": self.named, "episodes": self.data.n_episodes}
        found: dict[str, Any] = (
            self.data.known() if isinstance(self.data, ScannedLog) else self.data.describe()
        )
        return found


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
    from reweigh.log.csv_files import CsvFormat
    from reweigh.log.sources import open_source
    from reweigh.sums.store import is_moments_file

    paths = files or []
    if not any(is_moments_file(path) for path in paths):
        log.check_source(paths)
        if target == TargetOptions() and paths and log.table is None:
            # moments need no target: if these are damaged ones, that is what there is to say
            _ = open_source(
                [str(path) for path in paths], CsvFormat(log.delimiter, log.decimal)
            ).names
        policy = target.read(log)
        data = log.read(paths, target.target_prob)
        return Given(data, policy, data.behavior_source)
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
    return Given(moments, None, moments.about.behavior, paths[0].name)
