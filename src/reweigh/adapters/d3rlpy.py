"""d3rlpy's `MDPDataset` and `ReplayBuffer` as logs. d3rlpy itself (and PyTorch) is not imported."""

from __future__ import annotations

from typing import Any

import numpy as np

from reweigh.adapters.episodes import Episode, Features, log_of
from reweigh.errors import InputError, must_be
from reweigh.log.log import EpisodeLog
from reweigh.log.states import AnyAbstraction

HELD = ("observations", "actions", "rewards", "terminated")


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
    held = list(getattr(dataset, "episodes", dataset))
    for found in held:
        lacks = [name for name in HELD if not hasattr(found, name)]
        if lacks:
            raise must_be(
                "dataset",
                f"a d3rlpy dataset, or a list of episodes with {', '.join(HELD)}",
                type(found).__name__,
            )
    lengths = [len(found.rewards) for found in held]
    probabilities = _split(behavior_prob, lengths)
    episodes = [
        Episode(
            id=k,
            observations=_single(found.observations),
            actions=found.actions,
            rewards=found.rewards,
            behavior_prob=probability,
            terminated=_at_end(length, bool(found.terminated)),
            truncated=_at_end(length, not found.terminated),
        )
        for k, (found, length, probability) in enumerate(
            zip(held, lengths, probabilities, strict=True)
        )
    ]
    return log_of(
        episodes,
        "d3rlpy dataset",
        features=features,
        abstraction=abstraction,
        horizon=horizon,
        discount=discount,
        continuous_actions=continuous_actions,
    )


def _single(observations: Any) -> Any:
    """Observations of several parts are a list or a tuple of arrays."""
    if isinstance(observations, list) and observations and np.ndim(observations[0]) > 0:
        return tuple(observations)
    return observations


def _split(given: Any, lengths: list[int]) -> list[Any]:
    """The probabilities of each episode."""
    if given is None:
        return [None] * len(lengths)
    if isinstance(given, list | tuple) and len(given) and np.ndim(given[0]) > 0:
        if len(given) != len(lengths):
            raise InputError(f"behavior_prob has {len(given)} arrays for {len(lengths)} episodes")
        return list(given)
    flat = np.asarray(given).reshape(-1)
    if len(flat) != sum(lengths):
        raise InputError(f"behavior_prob has {len(flat)} values for {sum(lengths)} steps")
    return np.split(flat, np.cumsum(lengths)[:-1]) if lengths else []


def _at_end(length: int, flag: bool) -> Any:
    flags = np.zeros(length, bool)
    flags[-1:] = flag
    return flags
