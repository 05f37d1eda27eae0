"""Episodes as arrays, Minari datasets and d3rlpy's `MDPDataset` and `ReplayBuffer` as logs.

d3rlpy itself (and PyTorch) is not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reweigh.errors import InputError, UsageError, check, must_be, nearest
from reweigh.log.abstractions import AnyAbstraction
from reweigh.log.log import EpisodeLog
from reweigh.log.sources import TableSource
from reweigh.sums.read import read_log
from reweigh.system import optional_module

Array = npt.NDArray[Any]
Features = Callable[[Any], Any]
D3RLPY_FIELDS = ("observations", "actions", "rewards", "terminated")


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode of L steps, as its library holds it.

    observations (L,) or (L, k), with one more row where what followed the last step is known;
    actions, rewards, behavior_prob (L,) or (L, 1); terminated, truncated (L,) truth values, or one
    for the last step.
    """

    id: int
    observations: Any
    actions: Any
    rewards: Any
    behavior_prob: Any | None
    terminated: Any
    truncated: Any


def from_minari(
    dataset: Any,
    *,
    behavior_prob: str | None = "behavior_prob",
    info_offset: int = 1,
    features: Features | None = None,
    abstraction: AnyAbstraction | None = None,
    horizon: int | None = None,
    discount: float = 1.0,
    continuous_actions: bool = False,
) -> EpisodeLog:
    """A log from a Minari dataset, or from the name of one on this machine.

    `behavior_prob` is the field of the infos with the probability of the action that was taken
    ("a/b" for a field b inside a); None reads the log without, for `fit_behavior`. Minari puts the
    info of reset before those of the steps: that of step t is at t + `info_offset`, 1 unless your
    fields were written without it or before the step. Discrete observations are states; a box of
    numbers needs an `abstraction`, and observations of several parts `features`, a function of an
    episode's observations that returns (steps,) or (steps, k).

    Episodes that end in neither a termination nor a truncation were cut off.
    """
    check(info_offset in (0, 1), "info_offset", "0 or 1", info_offset)
    if isinstance(dataset, str):
        dataset = optional_module("minari", "minari", "a Minari dataset").load_dataset(dataset)
    name = f"Minari dataset {getattr(getattr(dataset, 'spec', None), 'dataset_id', '')}".strip()
    episodes = [
        Episode(
            id=int(episode.id),
            observations=episode.observations,
            actions=episode.actions,
            rewards=episode.rewards,
            behavior_prob=None
            if behavior_prob is None
            else _info(name, episode, behavior_prob, info_offset),
            terminated=episode.terminations,
            truncated=episode.truncations,
        )
        for episode in dataset.iterate_episodes()
    ]
    return log_of(episodes, name, features, abstraction, horizon, discount, continuous_actions)


def _info(name: str, episode: Any, field: str, offset: int) -> Any:
    """The values of a field at the steps."""
    values = episode.infos
    for part in field.split("/"):
        if not isinstance(values, dict) or part not in values:
            known = sorted(_fields(episode.infos or {}))
            listed = ", ".join(map(repr, known)) or "none"
            raise InputError(
                f"{name}, episode {episode.id}: the infos have no field {field!r}"
                f"{nearest(field, known)} (fields: {listed}); name it with behavior_prob=…, or "
                "pass behavior_prob=None and estimate it with fit_behavior(log)"
            )
        values = values[part]
    steps = len(episode.rewards)
    if len(values) == steps:  # without the info of reset
        return values
    if len(values) != steps + 1:
        raise InputError(
            f"{name}, episode {episode.id}: the info {field!r} has {len(values)} values for "
            f"{steps} steps; it needs one per step, or one more for reset"
        )
    return values[offset : offset + steps]


def _fields(infos: dict[str, Any], above: str = "") -> list[str]:
    names: list[str] = []
    for name, value in infos.items():
        names += _fields(value, f"{above}{name}/") if isinstance(value, dict) else [above + name]
    return names


def from_d3rlpy(
    dataset: Any,
    *,
    behavior_prob: Any = None,
    features: Features | None = None,
    abstraction: AnyAbstraction | None = None,
    horizon: int | None = None,
    discount: float = 1.0,
    continuous_actions: bool = False,
) -> EpisodeLog:
    """A log from anything that has d3rlpy's `episodes`, or from a list of such episodes.

    d3rlpy keeps no propensities: give them as `behavior_prob`, an array over all steps in the
    order of the episodes or a list with one array per episode, or estimate them with
    `fit_behavior(log)`. Observations are usually floats: codes of states become whole with
    features=lambda o: o[:, 0].astype(int), measurements need an `abstraction`.

    An episode that did not terminate was cut off (d3rlpy's timeout): what followed is not known.
    d3rlpy itself leaves out episodes that were cut off after one step.
    """
    given = list(getattr(dataset, "episodes", dataset))
    for episode in given:
        if not all(hasattr(episode, name) for name in D3RLPY_FIELDS):
            rule = f"a d3rlpy dataset, or a list of episodes with {', '.join(D3RLPY_FIELDS)}"
            raise must_be("dataset", rule, type(episode).__name__)
    probabilities = _by_episode(behavior_prob, [len(episode.rewards) for episode in given])
    episodes = [
        Episode(
            id=k,
            observations=_parts(episode.observations),
            actions=episode.actions,
            rewards=episode.rewards,
            behavior_prob=probability,
            terminated=bool(episode.terminated),
            truncated=not episode.terminated,
        )
        for k, (episode, probability) in enumerate(zip(given, probabilities, strict=True))
    ]
    name = "d3rlpy dataset"
    return log_of(episodes, name, features, abstraction, horizon, discount, continuous_actions)


def _parts(observations: Any) -> Any:
    """Observations of several parts are a list or a tuple of arrays."""
    if isinstance(observations, list) and observations and np.ndim(observations[0]) > 0:
        return tuple(observations)
    return observations


def _by_episode(behavior_prob: Any, lengths: list[int]) -> list[Any]:
    """The probabilities of each episode."""
    if behavior_prob is None:
        return [None] * len(lengths)
    nested = isinstance(behavior_prob, list | tuple) and len(behavior_prob)
    if nested and np.ndim(behavior_prob[0]) > 0:
        arrays = len(behavior_prob)
        if arrays != len(lengths):
            raise InputError(f"behavior_prob has {arrays} arrays for {len(lengths)} episodes")
        return list(behavior_prob)
    flat = np.asarray(behavior_prob).reshape(-1)
    if len(flat) != sum(lengths):
        raise InputError(f"behavior_prob has {len(flat)} values for {sum(lengths)} steps")
    return np.split(flat, np.cumsum(lengths)[:-1]) if lengths else []


def log_of(
    episodes: Sequence[Episode],
    what: str,
    features: Features | None,
    abstraction: AnyAbstraction | None,
    horizon: int | None,
    discount: float,
    continuous_actions: bool,
) -> EpisodeLog:
    """The log of the episodes; `what` names them in messages.

    An episode whose last step is marked neither as ended nor as cut off was cut off:
    the recording stopped there.
    """
    if not episodes:
        raise InputError(f"{what}: there are no episodes")
    rewards = [_column(what, episode, "rewards") for episode in episodes]
    lengths = np.array([len(values) for values in rewards])
    if np.any(lengths == 0):
        empty = episodes[int(np.argmin(lengths))].id
        raise InputError(f"{what}: episode {empty} has no steps")
    last = np.zeros(int(lengths.sum()), bool)
    last[np.cumsum(lengths) - 1] = True

    def joined(name: str) -> Array:
        parts = [_column(what, episode, name) for episode in episodes]
        for episode, part, length in zip(episodes, parts, lengths, strict=True):
            if len(part) != length:
                raise InputError(
                    f"{what}: episode {episode.id} has {len(part)} {name} for {length} "
                    "rewards; each step needs one of each"
                )
        return np.concatenate(parts)

    terminated = joined("terminated").astype(bool)
    truncated = joined("truncated").astype(bool) & ~terminated
    columns: dict[str, Any] = {
        "episode": np.repeat([episode.id for episode in episodes], lengths),
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
    names, next_names = _by_part("state", states), _by_part("next_state", following)
    for name, values in next_names.items():  # the state after the end is not a state of the log
        next_names[name] = pa.array(values, mask=terminated)
    log = read_log(
        pa.table(columns | names | next_names),
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
    parts = [_observations(what, episode, features) for episode in episodes]
    more = np.array([len(part) for part in parts]) - lengths
    usual = 1 if np.sum(more == 1) >= np.sum(more == 0) else 0
    wrong = np.flatnonzero(more != usual)
    if len(wrong):
        k = int(wrong[0])
        raise InputError(
            f"{what}: episode {episodes[k].id} has {len(parts[k])} observations for "
            f"{lengths[k]} steps; every episode needs one per step, or every episode one more"
        )
    before = np.concatenate([part[:length] for part, length in zip(parts, lengths, strict=True)])
    return before, np.concatenate([part[1:] for part in parts]) if usual else None


def _observations(what: str, episode: Episode, features: Features | None) -> Array:
    given = episode.observations if features is None else features(episode.observations)
    if isinstance(given, dict | tuple):
        raise UsageError(
            f"{what}: an observation has several parts ({type(given).__name__}): combine "
            "them into one array with features=…, a function of an episode's observations"
        )
    array = _one_axis(given)
    if array.ndim not in (1, 2) or (array.ndim == 2 and array.shape[1] == 0):
        raise UsageError(
            f"{what}: an episode's observations have the shape {array.shape}, but a state is "
            "one value or a few: choose them with features=…, which returns (steps,) or "
            "(steps, k)"
        )
    return array


def _column(what: str, episode: Episode, name: str) -> Array:
    """One value per step; of one truth value, that of the last step."""
    given = getattr(episode, name)
    if given is None:
        raise InputError(f"{what}: episode {episode.id} has no {name}, but others have")
    if isinstance(given, bool):
        flags = np.zeros(len(episode.rewards), bool)
        flags[-1:] = given
        return flags
    array = _one_axis(given)
    if array.ndim != 1:
        hint = ": an action with several parts; number each combination"
        raise UsageError(
            f"{what}, episode {episode.id}: {name} have the shape {array.shape}, not one value per "
            f"step{hint if name == 'actions' else ''}"
        )
    return array


def _one_axis(values: Any) -> Array:
    """(L, 1) as (L,)."""
    array = np.asarray(values)
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


def _actions(what: str, actions: Array, continuous: bool) -> Array:
    if continuous or actions.dtype.kind != "f":
        return actions
    if np.all(np.rint(actions) == actions):  # d3rlpy may hold codes as floats
        return actions.astype(np.int64)
    raise UsageError(
        f"{what}: the actions are fractions, such as {actions[0]}: read them with "
        "continuous_actions=True, with logged densities as behavior_prob"
    )


def _by_part(role: str, values: Array | None) -> dict[str, Any]:
    """The columns of a role: one, or one for each part of a state."""
    if values is None:
        return {}
    if values.ndim == 1:
        return {role: values}
    return {f"{role}_{j}": np.ascontiguousarray(column) for j, column in enumerate(values.T)}
