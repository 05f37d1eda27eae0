"""EpisodeLog: logged episodes, checked and described; and the roles of the columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reweigh.errors import (
    Place,
    RefusedError,
    UsageError,
    check,
    check_whole,
    must_be,
    no_column,
)
from reweigh.log.states import HIDDEN, Labels, is_number
from reweigh.log.steps import Identity, Steps, identity_of
from reweigh.system.files import digest_of

if TYPE_CHECKING:
    from reweigh.system.frames import FrameKind

Names = str | Sequence[str]
ROLES = (
    "episode", "step", "state", "action", "reward", "next_state",
    "behavior_prob", "target_prob", "terminated", "truncated", "time", "cluster", "weight",
    "features",
)  # fmt: skip
ShortEpisodes = Literal["error", "terminal", "truncated"]
Value = TypeVar("Value")


@dataclass(frozen=True)
class Columns:
    """The roles of a log's columns; `None` means that the log does not have that role. Without a
    step the rows of an episode are in the order of their times, or of `bandit` logs alone."""

    episode: str = "episode"
    step: str | None = "step"
    state: tuple[str, ...] = ("state",)
    action: str = "action"
    reward: str = "reward"
    behavior_prob: str | None = "behavior_prob"
    next_state: tuple[str, ...] | None = None
    target_prob: str | None = None
    terminated: str | None = None
    truncated: str | None = None
    time: str | None = None
    bandit: bool = False
    cluster: str | None = None
    weight: str | None = None
    features: tuple[str, ...] | None = None

    @property
    def clock(self) -> str:
        """The column that orders the rows of an episode."""
        return self.step or (None if self.bandit else self.time) or self.episode

    @property
    def ordered_by(self) -> str:
        """In whose order the episodes are."""
        return "id" if self.time is None else "time"

    @property
    def order(self) -> tuple[str, ...]:
        """The columns by which the rows stand episode by episode, step by step."""
        return tuple(dict.fromkeys((self.episode, self.clock)))

    def by_role(self) -> list[tuple[str, str]]:
        """(role, column) pairs, in the order in which faults are reported."""
        pairs: list[tuple[str, str]] = []
        for role in ROLES:
            names = getattr(self, role)
            if names is not None:
                pairs += [(role, n) for n in (names if isinstance(names, tuple) else (names,))]
        return pairs


def check_options(hidden: str, discount: float, short: str = "error") -> None:
    """The options that every way of making a log shares, and how short episodes are read."""
    check(hidden in ("error", "allow"), "hidden", '"error" or "allow"', hidden)
    number = isinstance(discount, int | float | np.integer | np.floating)
    check(number and 0 < discount <= 1, "discount", "a number in (0, 1]", discount)
    listed = '"error", "terminal" or "truncated"'
    check(short in ("error", "terminal", "truncated"), "short_episodes", listed, short)


class Source(Protocol):
    """Where the rows came from; columns without a role are read again only on use."""

    @property
    def names(self) -> list[str]: ...

    def describe(self) -> str: ...

    def column(self, name: str) -> pa.ChunkedArray: ...

    def place(self, row: int) -> Place: ...


class Behavior(Protocol):
    """An estimate of μ, such as `fit_behavior` makes. One that has `influence(log, slopes)` and
    `fitted_on(log)` says how the episodes that it was estimated from move an estimate through it
    (see `FittedBehavior`)."""

    def probabilities(self, log: EpisodeLog) -> npt.NDArray[np.float64]: ...

    def describe(self) -> str: ...


@dataclass(frozen=True, eq=False)
class EpisodeLog:
    """A checked log of episodes. Build it with `read_log` or `log_from_arrays`."""

    steps: Steps
    states: Labels
    actions: Labels | None  # None: continuous actions
    discount: float
    columns: Columns
    source: Source
    abstraction: str | None = None
    notes: tuple[str, ...] = ()
    behavior_source: str = "logged"
    behavior_fit: Any = (
        None  # a `Behavior` that was estimated from these episodes and has influence
    )
    feature_names: tuple[str, ...] = ()
    _cache: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def horizon(self) -> int:
        return self.steps.horizon

    @property
    def n_episodes(self) -> int:
        return self.steps.n_episodes

    @property
    def continuous_actions(self) -> bool:
        return self.actions is None

    @property
    def reward_range(self) -> tuple[float, float]:
        """The smallest and the largest reward."""
        return self._once("rewards", self._reward_range)

    def _reward_range(self) -> tuple[float, float]:
        borrowed = self.steps.borrowed
        whole = self.steps.n_complete == self.n_episodes
        rewards = (
            borrowed.numbers["reward"] if borrowed is not None and whole else self.steps.reward
        )
        return float(rewards.min()), float(rewards.max())

    @property
    def has_hidden(self) -> bool:
        return self._once("has_hidden", lambda: self.steps.has_hidden)

    @property
    def n_truncated(self) -> int:
        return int(self.steps.truncated.sum())

    @property
    def features(self) -> npt.NDArray[np.float64]:
        """(N, k) the feature columns, in the order of the steps."""
        if self.steps.features is None:
            raise RefusedError(
                "no-features",
                "the log has no features: name numeric columns of it with features=[…] "
                "(--features on the command line)",
            )
        return self.steps.features

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that it was read from."""
        return tuple(getattr(self.source, "paths", ()))

    def column(self, name: str) -> npt.NDArray[np.float64]:
        """A numeric column of the source, in the order of the steps."""
        return self._once(f"column {name}", lambda: self._read_column(name))

    def _read_column(self, name: str) -> npt.NDArray[np.float64]:
        pairs = self.steps.pairs
        if pairs is not None and name in pairs.columns:
            return pairs.column(name)
        if name not in self.source.names:
            raise no_column(name, self.source.names)
        from reweigh.log.roles import not_numbers, numbers
        from reweigh.log.rules import Faults

        column = self.source.column(name)
        faults = Faults(self._source_place, len(column))
        if not is_number(column.type):
            not_numbers(faults, name, column)
        faults.raise_if_any(self.source.describe())
        return numbers(column, name)[self.steps.source_row]

    def _source_place(self, row: int) -> Place:
        """How to name a row of the source, which the log may not use."""
        used = np.flatnonzero(self.steps.source_row == row)
        return self.place(int(used[0]), None, None) if len(used) else self.source.place(row)

    def raw_states(self) -> npt.NDArray[Any]:
        """The state as logged, before any abstraction: (N,) or (N, k); None where hidden."""
        return self._once("raw_states", self._read_raw_states)

    def _read_raw_states(self) -> npt.NDArray[Any]:
        if not self.columns.state:
            return self.features
        if self.abstraction is not None:
            parts = [
                self.source.column(name).to_numpy(zero_copy_only=False)[self.steps.source_row]
                for name in self.columns.state
            ]
            return parts[0] if len(parts) == 1 else np.stack(parts, axis=1)
        values = self.states.array()
        if self.has_hidden:  # None is the last, which the code HIDDEN = -1 takes
            values = np.concatenate([values.astype(object), np.full((1, *values.shape[1:]), None)])
        return np.asarray(values[self.steps.state])

    def raw_actions(self) -> npt.NDArray[Any]:
        """(N,) the actions as logged."""
        if self.actions is None:
            return self.steps.action
        return np.asarray(self.actions.array()[self.steps.action])

    def place(self, row: int, column: str | None, value: object) -> Place:
        """How to name a row (of the time-major order) in a message."""
        steps = self.steps
        where = self.source.place(int(steps.source_row[row]))
        episode = steps.episode[int(steps.episode_index[row])]
        return replace(
            where,
            column=column,
            value=value,
            episode=episode.item() if hasattr(episode, "item") else episode,
            step=int(steps.step[row]),
        )

    def select(self, keep: npt.NDArray[np.bool_]) -> EpisodeLog:
        """The log of some of the episodes (a mask over `steps.episode`)."""
        if not np.any(keep):
            raise UsageError("no episode is left: the selection is empty")
        steps = self.steps.select(np.asarray(keep, bool))
        return replace(self, steps=steps, behavior_fit=None, _cache={})

    def with_rewards(
        self, reward: npt.NDArray[np.float64], start_value: npt.NDArray[np.float64] | None
    ) -> EpisodeLog:
        """The same log with the shaped reward y = r + f and the start value g of a control."""
        steps = replace(self.steps, reward=reward, start_value=start_value)
        kept = {key: value for key, value in self._cache.items() if key != "rewards"}
        return replace(self, steps=steps, _cache=kept)

    def with_behavior(self, behavior: Behavior) -> EpisodeLog:
        """The same log with estimated behavior probabilities (see `fit_behavior`)."""
        steps = replace(self.steps, behavior_prob=behavior.probabilities(self))
        fitted_on = getattr(behavior, "fitted_on", None)
        return replace(
            self,
            steps=steps,
            behavior_source=behavior.describe(),
            behavior_fit=behavior if fitted_on is not None and fitted_on(self) else None,
            _cache=dict(self._cache),
        )

    def drop_truncated(self) -> EpisodeLog:
        """The log without the episodes that were cut off."""
        return self.select(~self.steps.truncated)

    def identity(self) -> Identity:
        """Which episodes these are, however their states are read and whatever engine does it."""
        return identity_of(self.steps)

    def episodes_digest(self) -> str:
        """A name for the episodes."""
        return self.identity().digest()

    def digest(self) -> str:
        """A name for the content of the log."""
        steps = self.steps
        coded = (steps.state, steps.action, steps.ending)
        parts: list[str | bytes] = [np.ascontiguousarray(column).tobytes() for column in coded]
        parts += [steps.digest, self.states.digest()]
        if steps.features is not None:
            parts += ["\0".join(self.feature_names), steps.features.tobytes()]
        if self.actions is not None:
            parts.append(self.actions.digest())
        return digest_of(*parts)

    def __len__(self) -> int:
        """How many rows (steps of all episodes); `n_episodes` counts the episodes."""
        return self.steps.n_rows

    def to_table(self) -> pa.Table:
        """The log as a pyarrow table with one row per step, which `read_log` reads back."""
        from reweigh.log.read import log_table

        return log_table(self)

    def to_frame(self, kind: FrameKind | None = None) -> Any:
        """The same as a frame. `kind` is "pandas", "polars" or "arrow"; without it pandas, or Arrow
        where pandas is not installed."""
        from reweigh.system.frames import frame_of

        return frame_of(self.to_table(), kind)

    def head(self, rows: int = 5, kind: FrameKind | None = None) -> Any:
        """The first rows of `to_frame`."""
        from reweigh.system.frames import frame_of

        rows = check_whole("rows", rows, 1)
        first = np.arange(self.n_episodes) <= np.searchsorted(np.cumsum(self.steps.lengths), rows)
        return frame_of(self.select(first).to_table().slice(0, rows), kind)

    def describe(self) -> dict[str, Any]:
        """What the log is, as plain values."""
        steps, rewards, behavior = self.steps, self.steps.reward, self.steps.behavior_prob
        ended = (steps.lengths < self.horizon) & ~steps.truncated
        from reweigh.log.read import log_description

        return log_description(
            self.source.describe(),
            self.columns,
            self.abstraction,
            self.states,
            self.actions,
            visited=int(np.count_nonzero(np.bincount(steps.state[steps.state >= 0]))),
            horizon=self.horizon,
            discount=self.discount,
            episodes=self.n_episodes,
            rows=steps.n_rows,
            hidden_rows=int(np.sum(steps.state == HIDDEN)),
            terminated_early=int(np.sum(ended)),
            truncated=self.n_truncated,
            reward_range=(float(rewards.min()), float(rewards.max())),
            behavior_range=None
            if behavior is None
            else (float(behavior.min()), float(behavior.max())),
            behavior_source=self.behavior_source,
            total_return=float(np.dot(rewards, self.discount ** steps.step.astype(float))),
            notes=self.notes,
        )

    def __repr__(self) -> str:
        return (
            f"EpisodeLog({self.n_episodes:,} episodes, {self.steps.n_rows:,} rows, "
            f"horizon {self.horizon}, {len(self.states):,} states)"
        )

    def _once(self, key: str, compute: Callable[[], Value]) -> Value:
        """Compute once: the record is frozen, derived values are cached."""
        if key not in self._cache:
            self._cache[key] = compute()
        value: Value = self._cache[key]
        return value


def columns_of(
    *,
    step: str | None,
    state: Names | None,
    next_state: Names | None,
    time: str | None = None,
    bandit: bool = False,
    features: Names | None = None,
    **roles: Any,
) -> Columns:
    """Check the names that a user gave for the roles."""
    if bandit and step is not None:
        raise UsageError("a bandit log has one row per episode and no step: leave step out")
    feature_names = None if features is None else _names("features", features)
    usual = () if feature_names else ("state",)
    state_names = usual if state is None else _names("state", state)
    next_names = None if next_state is None else _names("next_state", next_state)
    if next_names is not None and len(next_names) != len(state_names):
        raise UsageError(
            f"next_state names {len(next_names)} columns and state names {len(state_names)}; "
            "they must name the same number of columns, in the same order"
        )
    if step is None and time is None and not bandit:
        step = "step"
    columns = Columns(
        step=step,
        state=state_names,
        next_state=next_names,
        time=time,
        bandit=bandit,
        features=feature_names,
        **roles,
    )
    seen: dict[str, str] = {}
    for role, name in columns.by_role():
        if not isinstance(name, str) or not name:
            if hasattr(name, "__array__") or hasattr(name, "to_numpy"):
                raise UsageError(
                    f"{role}= takes the name of a column of the log, not its values: add them to "
                    "the rows as a column and give its name, or use log_from_arrays"
                )
            raise must_be(role, "the name of a column", name)
        # π = μ is a legitimate question: one column may be both probabilities.
        if name in seen and {role, seen[name]} != {"behavior_prob", "target_prob"}:
            raise UsageError(f"the column {name!r} is named for two roles: {seen[name]}, {role}")
        seen[name] = role
    return columns


def _names(role: str, names: Names) -> tuple[str, ...]:
    if isinstance(names, str):
        return (names,)
    names = tuple(names)
    check(names, role, "a column name or a list of them", names)
    return names
