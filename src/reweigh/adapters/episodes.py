"""Episodes as arrays, one after the other, to one checked log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reweigh.errors import InputError, UsageError
from reweigh.log.log import EpisodeLog
from reweigh.log.sources import TableSource
from reweigh.log.states import AnyAbstraction
from reweigh.sums.read import read_log

Array = npt.NDArray[Any]
Features = Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode of L steps, as its library holds it.

    observations (L,) or (L, k), with one more row where what followed the last step is known;
    actions, rewards, behavior_prob (L,) or (L, 1); terminated, truncated (L,) truth values.
    """

    id: int
    observations: Any
    actions: Any
    rewards: Any
    behavior_prob: Any | None
    terminated: Array
    truncated: Array


def log_of(
    episodes: Sequence[Episode],
    what: str,
    *,
    features: Features | None,
    abstraction: AnyAbstraction | None,
    horizon: int | None,
    discount: float,
    continuous_actions: bool,
) -> EpisodeLog:
    """The log of the episodes; `what` names them in messages.

    An episode whose last step says neither that it ended nor that it was cut off was cut off:
    the recording stopped there.
    """
    if not episodes:
        raise InputError(f"{what}: there are no episodes")
    rewards = [_column(what, e, "rewards", e.rewards) for e in episodes]
    lengths = np.array([len(r) for r in rewards])
    if np.any(lengths == 0):
        empty = episodes[int(np.argmin(lengths))].id
        raise InputError(f"{what}: episode {empty} has no steps")
    last = np.zeros(int(lengths.sum()), bool)
    last[np.cumsum(lengths) - 1] = True

    def joined(name: str) -> Array:
        parts = [_column(what, e, name, getattr(e, name)) for e in episodes]
        _same_lengths(what, episodes, name, [len(part) for part in parts], lengths)
        return np.concatenate(parts)

    terminated = joined("terminated").astype(bool)
    truncated = joined("truncated").astype(bool) & ~terminated
    columns: dict[str, Any] = {
        "episode": np.repeat([e.id for e in episodes], lengths),
        "step": np.concatenate([np.arange(length) for length in lengths]),
        "action": _actions(what, joined("actions"), continuous_actions),
        "reward": np.concatenate(rewards),
        "terminated": terminated,
        "truncated": truncated | (last & ~terminated),
    }
    logged = episodes[0].behavior_prob is not None
    if logged:
        columns["behavior_prob"] = joined("behavior_prob")
    states, following = _states(what, episodes, lengths, features)
    names = _named("state", states)
    columns |= names
    next_names = {}
    if following is not None:
        # what follows the end is no state of the log
        next_names = {
            name: pa.array(values, mask=terminated)
            for name, values in _named("next_state", following).items()
        }
    log = read_log(
        pa.table(columns | next_names),
        state=list(names),
        next_state=list(next_names) or None,
        behavior_prob="behavior_prob" if logged else None,
        terminated="terminated",
        truncated="truncated",
        horizon=horizon,
        discount=discount,
        continuous_actions=continuous_actions,
        abstraction=abstraction,
        engine="arrays",
    )
    assert isinstance(log, EpisodeLog)
    assert isinstance(log.source, TableSource)
    return replace(log, source=replace(log.source, kind=what))


def _states(
    what: str, episodes: Sequence[Episode], lengths: Array, features: Features | None
) -> tuple[Array, Array | None]:
    """The observations before each step, and after it where they are known: (N,) or (N, k)."""
    parts = [_observations(what, e, features) for e in episodes]
    more = np.array([len(part) for part in parts]) - lengths
    usual = 1 if np.sum(more == 1) >= np.sum(more == 0) else 0
    wrong = np.flatnonzero(more != usual)
    if len(wrong):
        k = int(wrong[0])
        raise InputError(
            f"{what}: episode {episodes[k].id} has {len(parts[k])} observations for {lengths[k]} "
            "steps; every episode has one per step, or every episode one more"
        )
    before = np.concatenate([part[:length] for part, length in zip(parts, lengths, strict=True)])
    if usual == 0:
        return before, None
    return before, np.concatenate([part[1:] for part in parts])


def _observations(what: str, episode: Episode, features: Features | None) -> Array:
    given = episode.observations if features is None else features(episode.observations)
    if isinstance(given, dict | tuple):
        raise UsageError(
            f"{what}: an observation has several parts ({type(given).__name__}): make one array "
            "of them with features=…, a function of an episode's observations"
        )
    array = np.asarray(given)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim not in (1, 2) or (array.ndim == 2 and array.shape[1] == 0):
        raise UsageError(
            f"{what}: an episode's observations have the shape {array.shape}; a state is one value "
            "or a few: choose them with features=…, which returns (steps,) or (steps, k)"
        )
    return array


def _column(what: str, episode: Episode, name: str, given: Any) -> Array:
    if given is None:
        raise InputError(f"{what}: episode {episode.id} has no {name}, and others have")
    array = np.asarray(given)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        hint = (
            ": an action of several parts; give each combination a number of its own"
            if name == "actions"
            else ""
        )
        raise UsageError(
            f"{what}, episode {episode.id}: {name} have the shape {array.shape}, not one value per "
            f"step{hint}"
        )
    return array


def _same_lengths(
    what: str, episodes: Sequence[Episode], name: str, found: Sequence[int], lengths: Array
) -> None:
    wrong = np.flatnonzero(np.asarray(found) != lengths)
    if len(wrong):
        first = int(wrong[0])
        raise InputError(
            f"{what}: episode {episodes[first].id} has {found[first]} {name} for "
            f"{lengths[first]} rewards; each step has one of both"
        )


def _actions(what: str, actions: Array, continuous: bool) -> Array:
    if continuous or actions.dtype.kind != "f":
        return actions
    if np.all(np.rint(actions) == actions):  # d3rlpy may hold codes as floats
        return actions.astype(np.int64)
    raise UsageError(
        f"{what}: the actions are fractions, such as {actions[0]}: continuous_actions=True reads "
        "them, with logged densities as behavior_prob"
    )


def _named(role: str, values: Array) -> dict[str, Array]:
    if values.ndim == 1:
        return {role: values}
    return {f"{role}_{j}": np.ascontiguousarray(values[:, j]) for j in range(values.shape[1])}
