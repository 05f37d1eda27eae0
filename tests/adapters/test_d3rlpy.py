"""d3rlpy's datasets as logs: by their looks, and (`make d3rlpy`) d3rlpy's own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reweigh as rw
from reweigh.adapters import from_d3rlpy

PI = rw.TablePolicy(np.array([[0.6, 0.4], [0.5, 0.5], [0.3, 0.7]]))


@dataclass
class Episode:
    """As d3rlpy holds one: observations (L, k), actions and rewards (L, 1)."""

    observations: Any
    actions: Any
    rewards: Any
    terminated: bool


@dataclass
class Dataset:
    episodes: list[Episode]


def arrays(n: int = 40, seed: int = 0, shortest: int = 1) -> dict[str, Any]:
    """Rows of n episodes of up to 5 steps, one after the other; odd ones are cut off."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(shortest, 6, n)
    lengths[0] = 5
    rows, last = int(lengths.sum()), np.cumsum(lengths) - 1
    action = rng.integers(0, 2, rows)
    ends = np.arange(n) % 2 == 0
    terminal, timeout = np.zeros((2, rows))
    terminal[last[ends]] = timeout[last[~ends]] = 1
    return {
        "episode": np.repeat(np.arange(n), lengths),
        "state": rng.integers(0, 3, rows),
        "action": action,
        "reward": rng.normal(size=rows).astype(np.float32),
        "mu": np.where(action == 1, 0.7, 0.3),
        "terminal": terminal,
        "timeout": timeout,
    }


def looks_like(a: dict[str, Any]) -> Dataset:
    made = []
    for k in range(int(a["episode"].max()) + 1):
        at = a["episode"] == k
        made.append(
            Episode(
                a["state"][at].astype(np.float32)[:, None],
                a["action"][at][:, None],
                a["reward"][at][:, None],
                bool(a["terminal"][at][-1]),
            )
        )
    return Dataset(made)


def codes(observations: Any) -> Any:
    return observations[:, 0].astype(int)


def by_hand(a: dict[str, Any]) -> Any:
    """The same log through `read_log`."""
    import pandas as pd

    frame = pd.DataFrame(a)
    frame["step"] = frame.groupby("episode").cumcount()
    return rw.read_log(frame, behavior_prob="mu", terminated="terminal", truncated="timeout")


def same(log: Any, other: Any) -> None:
    def sort(one: Any) -> Any:
        return one.to_table().sort_by([("episode", "ascending"), ("step", "ascending")])

    assert sort(log).equals(sort(other))


def test_every_value_arrives() -> None:
    a = arrays()
    same(from_d3rlpy(looks_like(a), behavior_prob=a["mu"], features=codes), by_hand(a))
    by_episode = [a["mu"][a["episode"] == k] for k in range(40)]
    log = from_d3rlpy(looks_like(a).episodes, behavior_prob=by_episode, features=codes)
    same(log, by_hand(a))
    assert log.describe()["source"] == f"d3rlpy dataset of {len(a['mu'])} rows"


def test_actions_may_be_held_as_floats() -> None:
    a = arrays()
    held = looks_like(a)
    for episode in held.episodes:
        episode.actions = episode.actions.astype(np.float32)
    same(from_d3rlpy(held, behavior_prob=a["mu"], features=codes), by_hand(a))


def test_propensities_are_estimated_where_there_are_none() -> None:
    a = arrays()
    log = from_d3rlpy(looks_like(a), features=codes)
    with pytest.raises(rw.ReweighError, match="fit_behavior"):
        rw.evaluate(log, PI, rw.mis())
    fitted = log.with_behavior(rw.fit_behavior(log))
    chosen = (a["state"] == 2) & (a["action"] == 1)
    share = chosen.sum() / (a["state"] == 2).sum()
    rows = (fitted.raw_states() == 2) & (fitted.raw_actions() == 1)
    assert fitted.steps.behavior_prob is not None
    assert fitted.steps.behavior_prob[rows] == pytest.approx(share)


def test_what_does_not_fit() -> None:
    a = arrays()
    held = looks_like(a)
    with pytest.raises(rw.InputError, match="abstraction=Quantiles"):
        from_d3rlpy(held)  # observations are floats
    with pytest.raises(rw.InputError, match=f"has 3 values for {len(a['mu'])} steps"):
        from_d3rlpy(held, behavior_prob=[0.5] * 3, features=codes)
    with pytest.raises(rw.InputError, match="has 1 arrays for 40 episodes"):
        from_d3rlpy(held, behavior_prob=[a["mu"]], features=codes)
    with pytest.raises(rw.UsageError, match="'dataset' must be a d3rlpy dataset"):
        from_d3rlpy([1, 2])
    with pytest.raises(rw.InputError, match="no episodes"):
        from_d3rlpy(Dataset([]))
    held.episodes[0].observations = [np.zeros((5, 2)), np.zeros((5, 1))]
    with pytest.raises(rw.UsageError, match="several parts"):
        from_d3rlpy(held)


@pytest.mark.heavy
def test_the_example_of_the_guide_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "adapters.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^```py\n(.*?)^```$", page, re.M | re.S)
    exec(compile(block, "docs/adapters.md", "exec"), {})


@pytest.mark.heavy
def test_datasets_of_d3rlpy_itself() -> None:
    from d3rlpy.dataset import MDPDataset, create_infinite_replay_buffer

    a = arrays(shortest=2)  # it leaves out episodes that were cut off after one step
    dataset = MDPDataset(
        observations=a["state"].astype(np.float32)[:, None],
        actions=a["action"],
        rewards=a["reward"],
        terminals=a["terminal"],
        timeouts=a["timeout"],
    )
    same(from_d3rlpy(dataset, behavior_prob=a["mu"], features=codes), by_hand(a))
    buffer = create_infinite_replay_buffer(episodes=dataset.episodes)
    same(from_d3rlpy(buffer, behavior_prob=a["mu"], features=codes), by_hand(a))
