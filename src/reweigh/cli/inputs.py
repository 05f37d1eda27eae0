"""What the options of a command name: a log with its target, or moments, and estimators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import reweigh as rw
from reweigh.cli.options import LogOptions, TargetOptions
from reweigh.errors import UsageError


@dataclass(frozen=True)
class Inputs:
    """A log and its target, or moments (whose `policy` is None).

    behavior: the source of the propensities; moments_file: the file of moments.
    """

    data: Any
    policy: Any
    behavior: str
    moments_file: str | None = None

    @cached_property
    def about(self) -> dict[str, Any]:
        """What is said of it as plain values. Asked for after the work, by which a log that is
        scanned is known: it would be read once more only to be described."""
        if self.moments_file is not None:
            return {"moments": self.moments_file, "episodes": self.data.n_episodes}
        in_memory = isinstance(self.data, rw.EpisodeLog)
        facts: dict[str, Any] = self.data.describe() if in_memory else self.data.description()
        return facts


def read_inputs(
    files: list[Path] | None, log: LogOptions, target: TargetOptions, *, for_logs_only: bool = False
) -> Inputs:
    """Read the files; without any, a table of Spark.

    `for_logs_only`: an option was given that moments cannot obey.
    """
    from reweigh.log.csv_files import CsvFormat
    from reweigh.log.sources import open_source
    from reweigh.sums.read import is_moments_file

    paths = files or []
    if not any(is_moments_file(path) for path in paths):
        log.check_source(paths)
        if target == TargetOptions() and paths and log.table is None:
            # moments need no target: if the file is damaged, report that
            form = CsvFormat(log.delimiter, log.decimal)
            _ = open_source([str(path) for path in paths], form).names
        policy = target.read(log)
        data = log.read(paths, target.target_prob)
        return Inputs(data, policy, data.behavior_source)
    from reweigh.cli.moments import read_moments

    settings = target != TargetOptions() or log != LogOptions()
    return read_moments(paths, for_logs_only=for_logs_only, settings=settings)


def estimators_named(
    names: str | None, max_ratio: float | None, memory: str | None = None, auto: Sequence[str] = ()
) -> list[Any]:
    """Recipes of these names; without any, those of `auto` (which allows "auto" itself), or mis."""
    if names is None:
        names = ",".join(auto if memory is None and max_ratio is None else ("mis",))
    every = ["auto", *rw.ESTIMATORS][0 if auto else 1 :]
    listed = every if names == "all" else [n.strip() for n in names.split(",")]
    recipes: list[Any] = [n if auto and n == "auto" else rw.estimator(n) for n in listed if n]
    if not recipes:
        raise UsageError("--estimators is empty; give names such as mis,wis")
    if memory is None and max_ratio is None:
        return recipes
    from reweigh.cli.details import with_settings

    return with_settings(recipes, memory, max_ratio)
