"""Minari datasets as logs."""

from __future__ import annotations

from typing import Any

import numpy as np

from reweigh.adapters.episodes import Episode, Features, log_of
from reweigh.adapters.extras import need
from reweigh.errors import InputError, must_be, nearest
from reweigh.log.log import EpisodeLog
from reweigh.log.states import AnyAbstraction


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
    ("a/b" for a field b inside a); None reads the log without, for `fit_behavior`. Minari puts
    the info of reset before those of the steps: that of step t stands at t + `info_offset`, 1
    unless your fields were written without it or before the step. Discrete observations are
    states; a box of numbers needs an `abstraction`, and observations of several parts `features`,
    a function of an episode's observations that returns (steps,) or (steps, k).

    Episodes that end in neither a termination nor a truncation were cut off.
    """
    if info_offset not in (0, 1):
        raise must_be("info_offset", "0 or 1", info_offset)
    if isinstance(dataset, str):
        dataset = need("minari", "minari", "a Minari dataset").load_dataset(dataset)
    name = f"Minari dataset {getattr(getattr(dataset, 'spec', None), 'dataset_id', '')}".strip()
    episodes = [
        Episode(
            id=int(found.id),
            observations=found.observations,
            actions=found.actions,
            rewards=found.rewards,
            behavior_prob=None
            if behavior_prob is None
            else _info(name, found, behavior_prob, info_offset),
            terminated=np.asarray(found.terminations),
            truncated=np.asarray(found.truncations),
        )
        for found in dataset.iterate_episodes()
    ]
    return log_of(
        episodes,
        name,
        features=features,
        abstraction=abstraction,
        horizon=horizon,
        discount=discount,
        continuous_actions=continuous_actions,
    )


def _info(name: str, episode: Any, field: str, offset: int) -> Any:
    """The values of a field at the steps."""
    found = episode.infos
    for part in field.split("/"):
        if not isinstance(found, dict) or part not in found:
            known = sorted(_fields(episode.infos or {}))
            listed = ", ".join(map(repr, known)) or "none"
            raise InputError(
                f"{name}, episode {episode.id}: the infos have no field {field!r}"
                f"{nearest(field, known)} (fields: {listed}); name it with behavior_prob=…, or "
                "pass behavior_prob=None and estimate it with fit_behavior(log)"
            )
        found = found[part]
    values, steps = np.asarray(found), len(episode.rewards)
    if len(values) == steps:  # without the info of reset
        return values
    if len(values) != steps + 1:
        raise InputError(
            f"{name}, episode {episode.id}: the info {field!r} has {len(values)} values for "
            f"{steps} steps; it needs one per step, or one more for reset"
        )
    return values[offset : offset + steps]


def _fields(infos: dict[str, Any], above: str = "") -> list[str]:
    found: list[str] = []
    for name, value in infos.items():
        found += _fields(value, f"{above}{name}/") if isinstance(value, dict) else [above + name]
    return found
