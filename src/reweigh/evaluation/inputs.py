"""What a user gives `evaluate` as the log and as the target, made a log and a policy."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from reweigh.errors import (
    Fault,
    InputError,
    ResourceError,
    UsageError,
    input_error,
    must_be,
    refuse_unknown,
)
from reweigh.estimate.estimator import Recipe
from reweigh.estimate.presets import is_preset
from reweigh.evaluation.data import LogData, SumsData
from reweigh.log.log import EpisodeLog
from reweigh.policy import ColumnPolicy, FunctionPolicy, Policy, policy_from
from reweigh.sums.moments import Moments
from reweigh.sums.read import ScannedLog, is_moments_file, read_log
from reweigh.trust.gates.support import allowed_by, value_range

Data = EpisodeLog | ScannedLog | Moments
Range = tuple[float, float]
MOST_PLACES = 5
OUTSIDE = "declare a range that holds for every reward that can occur"
KNOWN = (EpisodeLog, ScannedLog, Moments)


@cache
def reading_options() -> tuple[str, ...]:
    """The arguments of `read_log` beside the log."""
    code = read_log.__wrapped__.__code__  # type: ignore[attr-defined]
    return tuple(code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount])


def data_of(source: Any, options: Mapping[str, Any], others: Sequence[str]) -> Data:
    """The log, or the sums. A path or a frame is read with these options, which are those of
    `read_log`; `others` are the other arguments of the function that was called."""
    refuse_unknown("evaluate", options, [*reading_options(), *others])
    if isinstance(source, KNOWN):
        for name in options:
            raise UsageError(
                f"{name}= says how rows are read, and this log has been read: give it to "
                f"read_log(…, {name}=…), or give evaluate the file or the frame"
            )
        return source
    if (
        isinstance(source, str | os.PathLike)
        and Path(source).is_file()
        and is_moments_file(Path(source))
    ):
        if options:
            raise UsageError(
                f"{Path(source).name} holds moments, which know how their log was read: leave "
                f"{next(iter(options))}= out"
            )
        from reweigh.sums.store import load_moments

        return load_moments(Path(source))
    rows = isinstance(source, str | os.PathLike | list | tuple) or (
        hasattr(source, "columns")
        or hasattr(source, "__arrow_c_stream__")
        or hasattr(source, "schema")
    )
    if not rows:
        what = "a log (read_log, log_from_arrays), moments, a path or a frame"
        raise must_be("data", what, type(source).__name__)
    return read_log(source, **options)


def target_of(source: Any, data: Data, options: Mapping[str, Any]) -> Policy | None:
    """The policy: a file, a frame, a mapping and an array are tables of it, a function is called
    for all rows. Without one the log's column `target_prob`, where that was named."""
    column = options.get("target_prob")
    if source is None and column is not None:
        return ColumnPolicy(column)
    if source is None or isinstance(source, Policy):
        return source
    if isinstance(source, Recipe) or is_preset(source):
        raise UsageError(
            "the second argument is the target policy, the third the estimator: "
            "evaluate(log, target, rw.mis())"
        )
    if isinstance(source, Mapping | np.ndarray | list | tuple):
        from reweigh.policy.table import TablePolicy

        return TablePolicy(source)
    if callable(source):
        return FunctionPolicy(source)
    if isinstance(source, str | os.PathLike) and not Path(source).exists():
        name = str(source)
        raise ResourceError(
            f"there is no policy file {name!r} (resolved: {Path(source).resolve()}); a column of "
            f"the log that holds the target's probabilities is ColumnPolicy({name!r})"
        )
    if isinstance(source, str | os.PathLike) or hasattr(source, "columns"):
        if isinstance(data, Moments):
            return policy_from(source, ["state"], "action")
        columns = data.columns if isinstance(data, EpisodeLog) else data.reading.columns
        return policy_from(source, columns.state, columns.action)
    what = "a policy: TablePolicy, ColumnPolicy, FunctionPolicy or read_policy(…)"
    raise must_be("target", what, type(source).__name__)


# ---- the range of rewards


def check_range(reward_range: Range) -> Range:
    fine = isinstance(reward_range, tuple | list) and len(reward_range) == 2
    fine = fine and all(isinstance(end, int | float | np.number) for end in reward_range)
    if not fine or not -math.inf < reward_range[0] < reward_range[1] < math.inf:
        raise must_be("reward_range", "two numbers, the smaller first", reward_range)
    return float(reward_range[0]), float(reward_range[1])


def check_rewards(log: EpisodeLog, reward_range: Range) -> None:
    """InputError with the rows whose reward is outside the declared range."""
    low, high = reward_range
    reward = log.steps.reward
    outside = np.flatnonzero(~((reward >= low) & (reward <= high)))
    if not len(outside):
        return
    # the order of the source is the reader's
    first = outside[np.argsort(log.steps.source_row[outside], kind="stable")][: MOST_PLACES + 1]
    rule = f"rewards must lie within the declared range [{low:g}, {high:g}]"
    places = tuple(log.place(int(row), log.columns.reward, float(reward[row])) for row in first)
    fault = Fault("reward-range", rule, OUTSIDE, places, len(outside), len(reward))
    raise input_error("the log", [fault])


def checked_range(reward_range: Range, data: LogData) -> Range:
    """The declared range; InputError where the log has a reward outside of it."""
    low, high = check_range(reward_range)
    if data.log is not None:
        check_rewards(data.log, (low, high))
        return low, high
    seen = data.stored.rewards if isinstance(data, SumsData) else None
    if seen is not None and not low <= seen[0] <= seen[1] <= high:
        raise InputError(
            f"rewards must lie within the declared range [{low:g}, {high:g}], and the log has some "
            f"from {seen[0]:g} to {seen[1]:g}; {OUTSIDE}"
        )
    return low, high


def range_of_values(declared: Range, data: LogData, dropped: bool) -> Range:
    """What the value can be if every reward lies within the declared range."""
    whole = data.log_used(dropped) or (data.stored if isinstance(data, SumsData) else None)
    assert whole is not None
    allowed = allowed_by(whole)
    ends = allowed is None or allowed.ends_early  # then 0 belongs to what a step can earn
    if isinstance(whole, EpisodeLog):
        return value_range(declared, ends, whole.horizon, whole.discount)
    return value_range(declared, ends, whole.about.horizon, whole.about.discount)
