"""Minari datasets as logs, through Minari's own files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worlds.extras import needs

import reweigh as rw
from reweigh.adapters import from_minari

pytestmark = [needs("minari"), needs("gymnasium")]
N, H = 30, 6


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))


def episodes(seed: int = 0) -> list[dict[str, Any]]:
    """Episodes of 2 to 6 steps; those with an even number ended, the others were cut off."""
    rng = np.random.default_rng(seed)
    made = []
    for k in range(N):
        length = int(rng.integers(2, H + 1))
        action = rng.integers(0, 2, length)
        made.append(
            {
                "observations": rng.integers(0, 3, length + 1),
                "actions": action,
                "rewards": rng.normal(size=length),
                "behavior_prob": np.where(action == 1, 0.75, 0.25),
                "ended": k % 2 == 0,
            }
        )
    return made


def in_order(log: Any) -> Any:
    return log.to_table().sort_by([("episode", "ascending"), ("step", "ascending")])


def dataset(made: list[dict[str, Any]], infos: str = "reset", **spaces: Any) -> Any:
    """Written by Minari and read back; `infos` has a value for reset, or none."""
    import gymnasium
    import minari
    from minari.data_collector import EpisodeBuffer

    buffers = []
    for k, episode in enumerate(made):
        length = len(episode["rewards"])
        at_end = np.arange(length) == length - 1
        mu = episode["behavior_prob"]
        values = np.append(np.nan, mu) if infos == "reset" else mu
        buffers.append(
            EpisodeBuffer(
                id=k,
                observations=episode["observations"],
                actions=episode["actions"],
                rewards=episode["rewards"].tolist(),
                terminations=(at_end & episode["ended"]).tolist(),
                truncations=(at_end & (not episode["ended"])).tolist(),
                infos={"policy": {"mu": values}},
            )
        )
    return minari.create_dataset_from_buffers(
        dataset_id="test/log-v0",
        buffer=buffers,
        observation_space=spaces.get("observations", gymnasium.spaces.Discrete(3)),
        action_space=spaces.get("actions", gymnasium.spaces.Discrete(2)),
        algorithm_name="a", author="a", author_email="a", code_permalink="a",
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # of Minari, about what the dataset's author left out
@pytest.mark.parametrize("infos", ["reset", "steps"])
def test_every_value_arrives(infos: str) -> None:
    made = episodes()
    dataset(made, infos)
    log = from_minari("test/log-v0", behavior_prob="policy/mu", horizon=H)  # by its name
    rows = in_order(log)
    for role, key in (("action", "actions"), ("reward", "rewards"), ("behavior_prob",) * 2):
        assert rows[role].to_pylist() == np.concatenate([e[key] for e in made]).tolist(), role
    assert (
        rows["state"].to_pylist() == np.concatenate([e["observations"][:-1] for e in made]).tolist()
    )
    lengths = np.array([len(e["rewards"]) for e in made])
    ended = np.array([e["ended"] for e in made])
    last = np.cumsum(lengths) - 1
    assert np.array_equal(np.flatnonzero(rows["terminated"].to_numpy()), last[ended])
    cut = last[~ended & (lengths < H)]  # one that has all H steps is complete
    assert np.array_equal(np.flatnonzero(rows["truncated"].to_numpy()), cut)
    # what followed is known where the episode was cut off, and the end is no state
    after = np.array([e["observations"][-1] for e in made])
    assert rows["next_state"].take(last[~ended]).to_pylist() == after[~ended].tolist()
    assert rows["next_state"].take(last[ended]).to_pylist() == [None] * int(ended.sum())
    assert log.describe()["source"].startswith("Minari dataset test/log-v0")


@pytest.mark.filterwarnings("ignore")
def test_a_log_that_was_exported_comes_back() -> None:
    """reweigh → Minari → reweigh: the same episodes, the same estimates."""
    world = rw.worlds.ModelWin(5)
    log = world.simulate(50, 0)
    rows = log.to_table().to_pydict()
    made = []
    for k in range(50):
        at = [i for i, e in enumerate(rows["episode"]) if e == k]
        states = [rows["state"][i] for i in at] + [rows["next_state"][at[-1]]]
        made.append(
            {
                "observations": np.array(states),
                "actions": np.array([rows["action"][i] for i in at]),
                "rewards": np.array([rows["reward"][i] for i in at]),
                "behavior_prob": np.array([rows["behavior_prob"][i] for i in at]),
                "ended": False,
            }
        )
    back = from_minari(dataset(made), behavior_prob="policy/mu")
    recipes = [rw.mis(), rw.wis(), rw.dm()]
    first, second = (rw.evaluate_all(one, world.target, recipes) for one in (log, back))
    assert [e.value for e in first] == [e.value for e in second]  # type: ignore[union-attr]


@pytest.mark.filterwarnings("ignore")
def test_without_propensities() -> None:
    made = episodes()
    held = dataset(made)
    with pytest.raises(rw.InputError, match=r"no field 'mu'.*fields: 'policy/mu'.*fit_behavior"):
        from_minari(held, behavior_prob="mu")
    log = from_minari(held, behavior_prob=None)
    assert log.steps.behavior_prob is None
    fitted = log.with_behavior(rw.fit_behavior(log))
    action = np.concatenate([e["actions"] for e in made])
    assert fitted.steps.behavior_prob is not None
    assert fitted.steps.behavior_prob.mean() == pytest.approx(
        np.mean([action.mean(), 1 - action.mean()]), abs=0.1
    )


@pytest.mark.filterwarnings("ignore")
def test_boxes_need_an_abstraction() -> None:
    import gymnasium

    made = episodes()
    rng = np.random.default_rng(1)
    for episode in made:
        shape = (len(episode["rewards"]) + 1, 2)
        episode["observations"] = rng.normal(size=shape).astype(np.float32)
    box = gymnasium.spaces.Box(-9, 9, (2,), np.float32)
    held = dataset(made, observations=box)
    with pytest.raises(rw.InputError, match="abstraction=Quantiles"):
        from_minari(held, behavior_prob="policy/mu")
    log = from_minari(held, behavior_prob="policy/mu", abstraction=rw.Rounding(1.0))
    assert all(isinstance(value, tuple) for value in log.states.values)
    one = from_minari(
        held, behavior_prob="policy/mu", features=lambda o: np.rint(o[:, 0]).astype(int)
    )
    assert set(one.states.values) == {value[0] for value in log.states.values}


@pytest.mark.filterwarnings("ignore")
def test_actions_of_other_kinds() -> None:
    import gymnasium

    made = episodes()
    for episode in made:
        episode["actions"] = np.linspace(0, 1.5, len(episode["rewards"])).astype(np.float32)[
            :, None
        ]
    held = dataset(made, actions=gymnasium.spaces.Box(0, 2, (1,), np.float32))
    with pytest.raises(rw.UsageError, match="continuous_actions=True"):
        from_minari(held, behavior_prob="policy/mu")
    log = from_minari(held, behavior_prob="policy/mu", continuous_actions=True)
    assert log.continuous_actions
    for episode in made:
        episode["actions"] = np.zeros((len(episode["rewards"]), 2), int)
    many = Fake(made)
    with pytest.raises(rw.UsageError, match="an action with several parts"):
        from_minari(many, behavior_prob="policy/mu")


class Found:
    def __init__(self, k: int, made: dict[str, Any]) -> None:
        self.id, self.observations, self.actions = k, made["observations"], made["actions"]
        self.rewards = made["rewards"]
        self.terminations = made.get("terminations", np.zeros(len(self.rewards), bool))
        self.truncations = np.zeros(len(self.rewards), bool)
        self.infos = {"policy": {"mu": made["behavior_prob"]}}


class Fake:
    """What a dataset looks like, with contents that Minari itself would not write."""

    def __init__(self, made: list[dict[str, Any]]) -> None:
        self.made = made

    def iterate_episodes(self) -> list[Found]:
        return [Found(k, one) for k, one in enumerate(self.made)]


def test_broken_datasets_are_refused() -> None:
    def broken(**changes: Any) -> Fake:
        made = episodes()
        length = len(made[3]["rewards"])
        made[3] |= {key: change(made[3][key], length) for key, change in changes.items()}
        return Fake(made)

    short = broken(observations=lambda o, n: o[: n - 1])
    with pytest.raises(rw.InputError, match=r"episode 3 has \d observations for \d steps"):
        from_minari(short, behavior_prob="policy/mu")
    with pytest.raises(rw.InputError, match=r"episode 3 has \d actions for \d rewards"):
        from_minari(broken(actions=lambda a, n: a[1:]), behavior_prob="policy/mu")
    with pytest.raises(rw.InputError, match=r"'policy/mu' has \d values for \d steps"):
        from_minari(broken(behavior_prob=lambda p, n: p[1:]), behavior_prob="policy/mu")
    with pytest.raises(rw.InputError, match=r"probability-range[\s\S]*episode 3, step 0"):
        from_minari(broken(behavior_prob=lambda p, n: p * 0), behavior_prob="policy/mu")
    made = episodes()
    made[3]["terminations"] = np.arange(len(made[3]["rewards"])) == 0
    with pytest.raises(rw.InputError, match=r"rows-after-end[\s\S]*episode 3"):
        from_minari(Fake(made), behavior_prob="policy/mu")
    with pytest.raises(rw.InputError, match="no episodes"):
        from_minari(Fake([]), behavior_prob="policy/mu")
    with pytest.raises(rw.UsageError, match="'info_offset' must be 0 or 1"):
        from_minari(Fake(episodes()), info_offset=2)
    dicts = episodes()
    for episode in dicts:
        episode["observations"] = {"a": episode["observations"]}
    with pytest.raises(rw.UsageError, match="features="):
        from_minari(Fake(dicts), behavior_prob="policy/mu")
    log = from_minari(Fake(dicts), behavior_prob="policy/mu", features=lambda o: o["a"])
    assert log.n_episodes == N


def test_an_episode_without_flags_was_cut_off() -> None:
    log = from_minari(Fake(episodes()), behavior_prob="policy/mu")
    lengths = np.array([len(e["rewards"]) for e in episodes()])
    assert log.n_truncated == int(np.sum(lengths < lengths.max()))
    with pytest.raises(rw.RefusedError, match="cut"):
        rw.evaluate(log, rw.TablePolicy(np.full((3, 2), 0.5)), rw.is_())


def test_the_info_of_a_step_may_stand_at_its_own_place() -> None:
    made = episodes()
    for episode in made:
        episode["behavior_prob"] = np.append(episode["behavior_prob"], np.nan)
    log = from_minari(Fake(made), behavior_prob="policy/mu", info_offset=0)
    given = np.concatenate([e["behavior_prob"][:-1] for e in made])
    assert in_order(log)["behavior_prob"].to_pylist() == given.tolist()


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(rw.UsageError, match=r"pip install 'reweigh\[minari\]'"):
        from_minari("any/name-v0")
