"""EpisodeLog: what was logged, checked and described; and which column plays which role."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reweigh.errors import Place, UsageError, must_be, nearest
from reweigh.log.states import END, HIDDEN, Labels, is_number, label_array
from reweigh.log.steps import Identity, Steps, identity_of
from reweigh.system.files import digest_of

Names = str | Sequence[str]
ShortEpisodes = Literal["error", "terminal", "truncated"]
ROLES = (
    "episode", "step", "state", "action", "reward", "next_state",
    "behavior_prob", "target_prob", "terminated", "truncated",
)  # fmt: skip
SHOWN_LABELS = 5
Value = TypeVar("Value")


@dataclass(frozen=True)
class Columns:
    """The roles of a log's columns; `None` means that the log does not have that role."""

    episode: str = "episode"
    step: str = "step"
    state: tuple[str, ...] = ("state",)
    action: str = "action"
    reward: str = "reward"
    behavior_prob: str | None = "behavior_prob"
    next_state: tuple[str, ...] | None = None
    target_prob: str | None = None
    terminated: str | None = None
    truncated: str | None = None

    def by_role(self) -> list[tuple[str, str]]:
        """(role, column) pairs, in the order in which faults are reported."""
        pairs: list[tuple[str, str]] = []
        for role in ROLES:
            names = getattr(self, role)
            if names is not None:
                pairs += [(role, n) for n in (names if isinstance(names, tuple) else (names,))]
        return pairs


def columns_of(
    *,
    episode: str,
    step: str,
    state: Names,
    action: str,
    reward: str,
    behavior_prob: str | None,
    next_state: Names | None,
    target_prob: str | None,
    terminated: str | None,
    truncated: str | None,
) -> Columns:
    """Check the names that a user gave for the roles."""
    state_names = _names("state", state)
    next_names = None if next_state is None else _names("next_state", next_state)
    if next_names is not None and len(next_names) != len(state_names):
        raise UsageError(
            f"next_state names {len(next_names)} columns and state names {len(state_names)}; "
            "they must name the same number of columns, in the same order"
        )
    columns = Columns(
        episode=episode,
        step=step,
        state=state_names,
        action=action,
        reward=reward,
        behavior_prob=behavior_prob,
        next_state=next_names,
        target_prob=target_prob,
        terminated=terminated,
        truncated=truncated,
    )
    seen: dict[str, str] = {}
    for role, name in columns.by_role():
        if not isinstance(name, str) or not name:
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
    if not names:
        raise must_be(role, "a column name or a list of them", names)
    return names


def check_options(hidden: str, discount: float) -> None:
    """The options that every way of making a log shares."""
    if hidden not in ("error", "allow"):
        raise must_be("hidden", '"error" or "allow"', hidden)
    number = isinstance(discount, int | float | np.integer | np.floating)
    if not number or not 0 < discount <= 1:
        raise must_be("discount", "a number in (0, 1]", discount)


class Source(Protocol):
    """Where the rows came from; columns without a role are read again only when asked for."""

    @property
    def names(self) -> list[str]: ...

    def describe(self) -> str: ...

    def column(self, name: str) -> pa.ChunkedArray: ...

    def place(self, row: int) -> Place: ...


class Behavior(Protocol):
    """An estimate of μ, such as `fit_behavior` makes."""

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
            raise UsageError(
                f"the log has no column {name!r}{nearest(name, self.source.names)} "
                f"(columns: {', '.join(map(repr, self.source.names))})"
            )
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
        return replace(self, steps=self.steps.select(np.asarray(keep, bool)), _cache={})

    def with_rewards(
        self, reward: npt.NDArray[np.float64], start_value: npt.NDArray[np.float64]
    ) -> EpisodeLog:
        """The same log with the shaped reward y = r + f and the start value g of a control."""
        steps = replace(self.steps, reward=reward, start_value=start_value)
        kept = {key: value for key, value in self._cache.items() if key != "rewards"}
        return replace(self, steps=steps, _cache=kept)

    def with_behavior(self, behavior: Behavior) -> EpisodeLog:
        """The same log with estimated behaviour probabilities (see `fit_behavior`)."""
        steps = replace(self.steps, behavior_prob=behavior.probabilities(self))
        return replace(
            self, steps=steps, behavior_source=behavior.describe(), _cache=dict(self._cache)
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
        if self.actions is not None:
            parts.append(self.actions.digest())
        return digest_of(*parts)

    def to_table(self) -> pa.Table:
        """The log as a pyarrow table with one row per step, which `read_log` reads back."""
        return log_table(self)

    def describe(self) -> dict[str, Any]:
        """What the log is, as plain values."""
        steps = self.steps
        short = steps.lengths < self.horizon
        rewards = steps.reward
        behavior = steps.behavior_prob
        return {
            "source": self.source.describe(),
            "episodes": self.n_episodes,
            "rows": steps.n_rows,
            "horizon": self.horizon,
            "discount": self.discount,
            "states": len(self.states),
            "state_examples": _examples(self.states),
            "state_columns": list(self.columns.state),
            "abstraction": self.abstraction,
            "actions": None if self.actions is None else len(self.actions),
            "action_examples": None if self.actions is None else _examples(self.actions),
            "continuous_actions": self.continuous_actions,
            "hidden_rows": int(np.sum(steps.state == HIDDEN)),
            "terminated_early": int(np.sum(short & ~steps.truncated)),
            "truncated": self.n_truncated,
            "reward_range": [float(rewards.min()), float(rewards.max())],
            "behavior_prob_range": None
            if behavior is None
            else [float(behavior.min()), float(behavior.max())],
            "behavior_prob_from": self.behavior_source if behavior is not None else None,
            "mean_return": float(
                np.dot(rewards, self.discount ** steps.step.astype(float)) / self.n_episodes
            ),
            "notes": [*self.notes, *self._remarks()],
        }

    def _remarks(self) -> list[str]:
        """What a reader of the numbers should know about the rows as they are."""
        steps = self.steps
        states = np.count_nonzero(np.bincount(steps.state[steps.state >= 0]))
        remarks = []
        if 2 * states > steps.n_rows:
            remarks.append(
                f"{states:,} states for {steps.n_rows:,} rows: most are seen once; "
                "bin them (abstraction=Rounding or Grid)"
            )
        if self.n_truncated:
            remarks.append(
                f"mean_return counts only what was logged of the {self.n_truncated:,} cut-off "
                f"episode{'s' if self.n_truncated != 1 else ''}"
            )
        return remarks

    def __repr__(self) -> str:
        return (
            f"EpisodeLog({self.n_episodes:,} episodes, {self.steps.n_rows:,} rows, "
            f"horizon {self.horizon}, {len(self.states):,} states)"
        )

    def _once(self, key: str, compute: Callable[[], Value]) -> Value:
        """Compute once: the record is frozen, what is derived from it is kept."""
        if key not in self._cache:
            self._cache[key] = compute()
        value: Value = self._cache[key]
        return value


def _examples(labels: Labels) -> list[str]:
    """How the first labels are spelled."""
    return [labels.name(code) for code in range(min(SHOWN_LABELS, len(labels)))]


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
