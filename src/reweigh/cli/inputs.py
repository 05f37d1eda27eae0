"""What a command runs on: a log with its target, or moments that know theirs; and the estimators
by their names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import reweigh as rw
from reweigh.cli.options import LogOptions, TargetOptions
from reweigh.errors import UsageError

if TYPE_CHECKING:
    from reweigh.estimate.estimator import Recipe


@dataclass(frozen=True)
class Inputs:
    """A log and its target, or moments (whose `policy` is None).

    behavior tells where the propensities come from; moments_file names the file of moments.
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
        facts: dict[str, Any] = self.data.describe() if in_memory else self.data.known()
        return facts


def read_inputs(
    files: list[Path] | None,
    log: LogOptions,
    target: TargetOptions,
    *,
    for_logs_only: bool = False,
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
            # moments need no target: if these are damaged ones, that is what there is to say
            form = CsvFormat(log.delimiter, log.decimal)
            _ = open_source([str(path) for path in paths], form).names
        policy = target.read(log)
        data = log.read(paths, target.target_prob)
        return Inputs(data, policy, data.behavior_source)
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
    return Inputs(moments, None, moments.about.behavior, paths[0].name)


def estimators_named(names: str, max_ratio: float | None, *, auto: bool = False) -> list[Any]:
    """Recipes from the names that the user gave; "auto" stays a name where it may be given."""

    listed = list(rw.ESTIMATORS) if names == "all" else [n.strip() for n in names.split(",")]
    recipes: list[Recipe | str] = [
        name if auto and name == "auto" else rw.estimator(name) for name in listed if name
    ]
    if not recipes:
        raise UsageError("--estimators is empty; give names such as mis,wis")
    if max_ratio is None:
        return recipes
    if "auto" in recipes:
        raise UsageError("--max-ratio belongs to an estimator that is named, not to auto")
    without = [r.name for r in recipes if isinstance(r, rw.Recipe) and not r.weights.uses_ratios]
    if len(without) == len(recipes):
        raise UsageError(f"--max-ratio clips ratios, and {', '.join(without)} uses none")
    return [
        replace(r, max_ratio=max_ratio) if isinstance(r, rw.Recipe) and r.name not in without else r
        for r in recipes
    ]
