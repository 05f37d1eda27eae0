"""A log from arrays: (n, H+1) states and (n, H) actions, rewards and probabilities."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reweigh.errors import Place, UsageError, check, check_threads, hints, must_be
from reweigh.kernels import COMPILED_FROM
from reweigh.log import rules
from reweigh.log.large_arrays import ArrayRows, BorrowedArrays, Pairs, read_columns, read_pairs
from reweigh.log.log import Columns, EpisodeLog, check_options
from reweigh.log.states import (
    END,
    HIDDEN,
    UNKNOWN,
    Codes,
    Labels,
    combine,
    encode_array,
    exact_array,
    label_array,
)
from reweigh.log.steps import LazySteps, Steps

Array = npt.NDArray[Any]
QUICK_FROM = COMPILED_FROM  # numbers in an array
THREADS_FROM = 10_000_000  # rows


@dataclass(frozen=True, eq=False)
class ArraySource:
    """Arrays in the order of the steps: row k of step t is that of episode order[k]. `held` makes
    the columns that are not there."""

    columns: dict[str, Array]
    order: Array
    offsets: Array
    compact: Pairs | BorrowedArrays | None = None

    @property
    def names(self) -> list[str]:
        compact_columns = () if self.compact is None else self.compact.names
        return [*self.columns, *(name for name in compact_columns if name != "reward")]

    def describe(self) -> str:
        return "arrays"

    def column(self, name: str) -> pa.ChunkedArray:
        values = self.columns.get(name)
        if values is None:
            assert self.compact is not None
            values = self.compact.column(name)
        return pa.chunked_array([pa.array(values)])

    def place(self, row: int) -> Place:
        step = int(np.searchsorted(self.offsets, row, side="right")) - 1
        episode = int(self.order[row - int(self.offsets[step])])
        return Place(None, episode=episode, step=step)


@dataclass(frozen=True, eq=False)
class Episodes:
    """How the (n, H) arrays become rows: the longest episodes first. `cut` and `short` (n,) are in
    that order."""

    order: Array
    offsets: Array
    cut: Array
    short: Array

    @classmethod
    def of(cls, n: int, horizon: int, lengths: Any, truncated: Any) -> Episodes:
        cut = np.zeros(n, bool)
        if truncated is not None:
            array, nulls = _values("truncated", truncated)
            truths = array.dtype.kind in "biu" and nulls is None and np.all(np.isin(array, (0, 1)))
            check(
                array.shape == (n,) and truths,
                "truncated",
                f"one truth value per episode ({n})",
                truncated,
            )
            cut = array.astype(bool)
        if lengths is None:
            return cls(np.arange(n), n * np.arange(horizon + 1), cut, np.zeros(n, bool))
        length, nulls = _values("lengths", lengths)
        check(
            length.shape == (n,) and length.dtype.kind in "iu" and nulls is None,
            "lengths",
            f"{n} whole numbers",
            lengths,
        )
        check(
            np.all((length >= 1) & (length <= horizon)),
            "lengths",
            f"whole numbers from 1 to the horizon {horizon}",
            length,
        )
        length = length.astype(np.int64)
        order = np.argsort(-length, kind="stable")
        alive = n - np.cumsum(np.bincount(length, minlength=horizon + 1))[:horizon]
        offsets = np.concatenate([[0], np.cumsum(alive)]).astype(np.int64)
        return cls(order, offsets, cut[order], length[order] < horizon)

    @property
    def alive(self) -> Array:
        """(H, n) whether an episode has a row at a step."""
        return np.arange(len(self.order))[None, :] < np.diff(self.offsets)[:, None]

    def log(self, read: ArrayRows, given: tuple[Any, ...], discount: float) -> EpisodeLog:
        """The log from the content of a user's arrays."""
        columns = dict(read.columns)
        target_prob = columns.pop("target_prob", None)
        named = {"behavior_prob": columns.get("behavior_prob"), "target_prob": target_prob}
        ending = np.where(read.last == HIDDEN, UNKNOWN, read.last)
        ending[self.short] = np.where(self.cut[self.short], UNKNOWN, END)
        held = columns.get("pairs") or columns.get("borrowed")
        make = Steps if held is None else LazySteps.of
        return EpisodeLog(
            steps=make(
                offsets=self.offsets,
                ending=ending.astype(np.int32, copy=False),
                truncated=self.short & self.cut,
                episode=self.order,
                source_rows=None,
                start_value=None,
                **columns,
            ),
            states=read.states,
            actions=read.actions,
            discount=discount,
            columns=Columns(
                behavior_prob=None if given[3] is None else "behavior_prob",
                target_prob=None if given[4] is None else "target_prob",
            ),
            source=ArraySource(
                {name: values for name, values in named.items() if values is not None},
                self.order,
                self.offsets,
                held,
            ),
        )


@hints
def log_from_arrays(
    states: npt.ArrayLike | None,
    actions: npt.ArrayLike,
    rewards: npt.ArrayLike,
    behavior_prob: npt.ArrayLike | None,
    target_prob: npt.ArrayLike | None = None,
    *,
    hidden: Literal["error", "allow"] = "error",
    continuous_actions: bool = False,
    lengths: npt.ArrayLike | None = None,
    truncated: npt.ArrayLike | None = None,
    discount: float = 1.0,
    threads: int | None = None,
    copy: bool = True,
    cluster: npt.ArrayLike | None = None,
    weight: npt.ArrayLike | None = None,
    features: npt.ArrayLike | None = None,
) -> EpisodeLog:
    """Make a log of n episodes from arrays; the episodes get the ids 0..n-1.

    states (n, H+1), or (n, H) when the state after the last step is not known; a further axis holds
    the columns of a state made of several. A masked state is hidden (`hidden="allow"`). The other
    arrays are (n, H). `lengths` (n,) counts the steps before END of each episode (later values are
    ignored), and `truncated` (n,) marks the shorter episodes that were cut off rather than ended.
    `target_prob` becomes the column "target_prob". `threads` read large arrays of 64-bit numbers
    side by side (one below ten million rows, unless chosen); the log does not depend on them.

    `cluster` (n,) names what several episodes share, such as the site: errors are then by cluster.
    `weight` (n,) are sampling weights, above 0. `features` (n, H) or (n, H, k) are numbers that say
    where an episode is, beside `states` or, with `states=None`, instead of them.

    With `copy=False` rewards and probabilities stay where they are, which may be a file
    (`np.load(..., mmap_mode="r")`), and must not change while the log is in use. `mis` with
    `ColumnPolicy("target_prob")` reads them there; what needs a whole column copies it.
    """
    threads = None if threads is None else check_threads(threads)
    check_options(hidden, discount)
    check(isinstance(copy, bool), "copy", "True or False", copy)
    alone = states is None
    if alone:
        if features is None:
            raise must_be("states", "an array, or None with features=…", None)
        states = np.zeros(np.shape(rewards), np.int64)
    given = (states, actions, rewards, behavior_prob, target_prob)
    log = None
    if not continuous_actions and (copy or hidden == "error"):
        log = _log_from_plain_arrays(given, lengths, truncated, float(discount), threads, copy=copy)
    if log is None:  # small, unusual or faulty logs: check every rule
        log = _log_from_any_arrays(
            given, lengths, truncated, float(discount), hidden == "allow", continuous_actions
        )
        if not copy:
            raise UsageError(
                "copy=False needs (n, H) arrays in row-major memory: states (n, H+1) and "
                "actions as int64, whole numbers from 0 without large gaps, none masked; "
                f"rewards and probabilities as float64; got {', '.join(map(_kind, given))}. "
                "Convert them, or omit copy=False"
            )
    log = log if cluster is None and weight is None else _with_shared(log, cluster, weight)
    if features is None:
        return log
    from reweigh.log.features import with_features

    return with_features(log, features, alone=alone)


def _with_shared(log: EpisodeLog, cluster: Any, weight: Any) -> EpisodeLog:
    """The log, which is new, with the clusters and weights of its episodes."""
    from reweigh.log.of_episodes import WEIGHT_RANGE

    steps, faults = log.steps, rules.Faults(log.source.place, log.n_episodes)
    for role, given in (("cluster", cluster), ("weight", weight)):
        if given is None:
            continue
        values, nulls = _values(role, given) if role == "cluster" else _numbers(role, given)
        check(
            values.shape == (log.n_episodes,),
            role,
            f"an array of shape ({log.n_episodes},)",
            values.shape,
        )
        values = values[steps.episode]
        known = np.ones(len(values), bool) if nulls is None else ~nulls[steps.episode]
        faults.rows(rules.NULL, role, ~known)
        if role == "weight":
            finite = np.isfinite(values)
            faults.rows(rules.NOT_FINITE, role, rules.NOT_FINITE.broken(known, finite), values)
            bad = WEIGHT_RANGE.broken(values, known & finite)
            faults.rows(WEIGHT_RANGE, role, bad, values)
        elif known.all():
            codes, labels = encode_array(role, values)
            values = label_array(labels.values)[codes]
        vars(steps)[role] = values
    faults.raise_if_any("the arrays")
    given = {"cluster": cluster, "weight": weight}
    names = {role: None if values is None else role for role, values in given.items()}
    return replace(log, columns=replace(log.columns, **names))  # type: ignore[arg-type]


def _log_from_any_arrays(
    given: tuple[Any, ...],
    lengths: npt.ArrayLike | None,
    truncated: npt.ArrayLike | None,
    discount: float,
    allow_hidden: bool,
    continuous_actions: bool,
) -> EpisodeLog:
    """Arrays of any kind, checked by every rule."""
    states, actions, rewards, *probabilities = given
    shape = _numbers("rewards", rewards)[0].shape
    check(len(shape) == 2 and 0 not in shape, "rewards", "an (n, H) array with n, H >= 1", shape)
    episodes = Episodes.of(shape[0], shape[1], lengths, truncated)
    alive = episodes.alive
    source = ArraySource({}, episodes.order, episodes.offsets)
    faults = rules.Faults(source.place, int(episodes.offsets[-1]))

    def rows(name: str, values: Array, nulls: Array | None) -> tuple[Array, Array | None]:
        """Values and nulls, time-major."""
        check(values.shape == shape, name, f"an array of shape {shape}", values.shape)
        values = np.ascontiguousarray(values[episodes.order].T)[alive]
        return values, None if nulls is None else nulls[episodes.order].T[alive]

    state, last, labels = _states(states, shape[1], episodes.order, alive)
    if not allow_hidden:
        fix = 'unmask the state, or pass hidden="allow"'
        faults.rows(rules.NULL, "state", state == HIDDEN, fix=fix)
    columns: dict[str, Any] = {"state": state.astype(np.int32), "behavior_prob": None}
    action_labels: Labels | None = None
    if not continuous_actions:
        values, nulls = rows("actions", *_values("actions", actions))
        faults.rows(rules.NULL, "action", nulls)
        known = np.ones(len(values), bool) if nulls is None else ~nulls
        columns["action"] = np.full(len(values), HIDDEN, np.int32)
        columns["action"][known], action_labels = _encode("actions", values[known])
    numbers = {
        "action": ("actions", actions if continuous_actions else None),
        "reward": ("rewards", rewards),
        "behavior_prob": ("behavior_prob", probabilities[0]),
        "target_prob": ("target_prob", probabilities[1]),
    }
    for role, (name, array) in numbers.items():
        if array is not None:
            columns[role], nulls = rows(name, *_numbers(name, array))
            faults.numbers(role, role, columns[role], nulls, density=continuous_actions)
    faults.raise_if_any("the arrays")
    return episodes.log(ArrayRows(columns, last, labels, action_labels), given, discount)


def _kind(array: Any) -> str:
    if array is None:
        return "None"
    values = np.asarray(array)
    strided = "" if values.flags.c_contiguous else ", not in one piece"
    return f"{values.dtype} {values.shape}{strided}"


def _log_from_plain_arrays(
    arrays: tuple[Any, ...],
    lengths: npt.ArrayLike | None,
    truncated: npt.ArrayLike | None,
    discount: float,
    threads: int | None = None,
    *,
    copy: bool = True,
) -> EpisodeLog | None:
    """The same log from large arrays of 64-bit numbers, each of them read once, in tiles.

    None where the arrays are small or of another kind, or where anything is wrong with them.
    """
    if not copy:
        arrays = tuple(a.view(np.ndarray) if isinstance(a, np.memmap) else a for a in arrays)
    states, actions, rewards, behavior_prob, target_prob = arrays
    if not _plain(rewards, np.float64) or 0 in rewards.shape:
        return None
    if copy and rewards.size < QUICK_FROM:
        return None
    n, horizon = rewards.shape
    fits = (
        _plain(states, np.int64, (n, horizon), (n, horizon + 1))
        and _plain(actions, np.int64, (n, horizon))
        and all(
            array is None or _plain(array, np.float64, (n, horizon))
            for array in (behavior_prob, target_prob)
        )
    )
    if not fits:
        return None
    episodes = Episodes.of(n, horizon, lengths, truncated)
    order, offsets = episodes.order, episodes.offsets
    workers = threads or (1 if offsets[-1] < THREADS_FROM else os.cpu_count() or 1)
    read = None
    if copy and behavior_prob is not None:
        read = read_pairs(
            states, actions, rewards, behavior_prob, target_prob, order, offsets, workers
        )
    read = read or read_columns(arrays, order, offsets, workers, copy=copy)
    if read is None:
        return None
    log = episodes.log(read, arrays, discount)
    log._cache["has_hidden"] = False
    if target_prob is not None:  # read and checked: no policy need do it again
        log._cache["checked target_prob"] = True
        if "target_prob" in read.columns:
            log._cache["column target_prob"] = read.columns["target_prob"]
    return log


def _plain(array: Any, kind: type, *shapes: tuple[int, ...]) -> bool:
    """An (n, H) array that lies in memory as it reads, of one of these shapes if any are given."""
    return (
        type(array) is np.ndarray
        and array.dtype == kind
        and array.ndim == 2
        and array.flags.c_contiguous
        and (not shapes or array.shape in shapes)
    )


def _values(name: str, given: npt.ArrayLike) -> tuple[Array, Array | None]:
    """An array as it was given, and where it has no value (masked, or None), if anywhere."""
    try:
        values: Array = np.ma.getdata(given) if np.ma.isMA(given) else exact_array(given)
    except ValueError as error:
        raise must_be(name, "an array whose rows have one length", given) from error
    nulls = np.array(np.ma.getmaskarray(given)) if np.ma.isMA(given) else np.zeros((), bool)
    if values.dtype.kind == "O":
        nulls = nulls | np.frompyfunc(lambda value: value is None, 1, 1)(values).astype(bool)
    return values, nulls if np.any(nulls) else None


def _numbers(name: str, given: npt.ArrayLike) -> tuple[Array, Array | None]:
    """The same of numbers, as float64."""
    values, nulls = _values(name, given)
    try:
        if values.dtype.kind not in "iufbO":
            raise TypeError(values.dtype)
        filled = values if nulls is None else np.where(nulls, 0, values)
        return filled.astype(np.float64, copy=False), nulls
    except (TypeError, ValueError) as error:
        raise must_be(name, "an array of numbers", values) from error


def _states(
    states: npt.ArrayLike, horizon: int, order: Array, alive: Array
) -> tuple[Codes, Codes, Labels]:
    """Row codes, the code at H of the complete episodes (HIDDEN if not given), labels.

    Past an episode's length the arrays are padding, so that nothing is read there: the state
    after a cut episode is not known.
    """
    n = len(order)
    values, nulls = _values("states", states)
    check(
        values.ndim in (2, 3) and values.shape[0] == n and values.shape[1] - horizon in (0, 1),
        "states",
        f"an array of shape ({n}, {horizon + 1})",
        values.shape,
    )
    known = np.concatenate([alive, alive[-1:]])[: values.shape[1]]  # (H+1, n)
    if nulls is not None:
        hidden = np.logical_or.reduce(nulls, axis=2) if values.ndim == 3 else nulls
        known = known & ~hidden[order].T
    picked = np.swapaxes(values[order], 0, 1)[known]
    columns = picked.reshape(len(picked), math.prod(picked.shape[1:])).T
    codes, labels = combine([_encode("states", column) for column in columns])
    grid = np.full((horizon + 1, n), HIDDEN, np.int64)
    grid[: values.shape[1]][known] = codes
    return grid[:horizon][alive], grid[horizon], labels


def _encode(name: str, values: Array) -> tuple[Codes, Labels]:
    if values.dtype.kind == "f":
        raise UsageError(
            f"{name} must be integers or texts; got {values.dtype} "
            "(continuous actions: continuous_actions=True; continuous states: round or bin them)"
        )
    return encode_array(name, values)
