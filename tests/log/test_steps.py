"""The steps in memory: time-major, longest episode first; and the way back to a table."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reweigh as rw
from reweigh.log import steps as steps_module
from reweigh.log.states import END, HIDDEN, UNKNOWN

from .samples import assert_same_log, table

FLAGS = {"terminated": "terminated", "truncated": "truncated"}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """A log with episodes of any length, ended or cut off, with hidden states."""
    rows: dict[str, list[Any]] = {
        name: []
        for name in (
            "episode",
            "step",
            "state",
            "action",
            "reward",
            "behavior_prob",
            "next_state",
            "terminated",
            "truncated",
        )
    }
    state = st.one_of(st.none(), st.sampled_from(["s", "007", "7", "t"]))
    for e in range(draw(st.integers(1, 5))):
        length = draw(st.integers(1, 4))
        end = draw(st.sampled_from(["terminated", "truncated"]))
        states = [draw(state) for _ in range(length + 1)]
        for t in range(length):
            last = t == length - 1
            for name, value in {
                "episode": f"e{e}",
                "step": t,
                "state": states[t],
                "action": draw(st.integers(0, 2)),
                "reward": draw(st.floats(-5, 5)),
                "behavior_prob": draw(st.floats(0.1, 1)),
                "next_state": states[t + 1],
                "terminated": last and end == "terminated",
                "truncated": last and end == "truncated",
            }.items():
                rows[name].append(value)
    types = {"state": pa.string(), "next_state": pa.string()}
    return pa.table({name: pa.array(values, types.get(name)) for name, values in rows.items()})


def read(data: pa.Table, **options: Any) -> rw.EpisodeLog:
    return rw.read_log(data, next_state="next_state", hidden="allow", **FLAGS, **options)


def assert_steps_match(first: rw.EpisodeLog, second: rw.EpisodeLog) -> None:
    for field in fields(first.steps):
        if field.name not in ("source_rows", "state", "ending"):
            np.testing.assert_array_equal(
                getattr(first.steps, field.name), getattr(second.steps, field.name), field.name
            )
    for name in ("state", "ending"):
        words = [
            [log.states.name(c) for c in getattr(log.steps, name).tolist()]
            for log in (first, second)
        ]
        assert words[0] == words[1]


@settings(deadline=None, max_examples=60)
@given(tables(), st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(data: pa.Table, random: Any) -> None:
    order = list(range(data.num_rows))
    random.shuffle(order)
    assert_same_log(read(data.take(order)), read(data))


@settings(deadline=None, max_examples=60)
@given(tables())
def test_steps_are_time_major_with_the_longest_episode_first(data: pa.Table) -> None:
    log = read(data)
    steps = log.steps
    assert steps.offsets[0] == 0
    assert steps.offsets[-1] == steps.n_rows == data.num_rows
    alive = np.diff(steps.offsets)
    assert (np.diff(alive) <= 0).all()
    assert alive[0] == steps.n_episodes
    assert (np.diff(steps.lengths) <= 0).all()
    rows = {(r["episode"], r["step"]): r for r in data.to_pylist()}
    for t in range(log.horizon):
        part = steps.rows(t)
        assert (steps.step[part] == t).all()
        assert steps.episode_index[part].tolist() == list(range(alive[t]))
    for i in range(steps.n_rows):
        k = int(steps.episode_index[i])
        row = rows[str(steps.episode[k]), int(steps.step[i])]
        code = int(steps.state[i])
        assert (None if code == HIDDEN else log.states.values[code]) == row["state"]
        assert steps.reward[i] == row["reward"]
        assert steps.behavior_prob is not None
        assert steps.behavior_prob[i] == row["behavior_prob"]
        assert log.raw_actions()[i] == row["action"]
        after = int(steps.next_state[i])
        last = steps.step[i] == steps.lengths[k] - 1
        if last:
            assert after == steps.ending[k]
        if last and row["terminated"]:
            assert after == END
        elif after >= 0:
            assert log.states.values[after] == row["next_state"]
        else:
            assert after == (UNKNOWN if last else HIDDEN)
            assert row["next_state"] is None
    for k, episode in enumerate(steps.episode.tolist()):
        length = sum(e == episode for e, _ in rows)
        assert steps.lengths[k] == length
        cut = rows[episode, length - 1]["truncated"] and length < log.horizon
        assert steps.truncated[k] == cut


@settings(deadline=None, max_examples=40)
@given(tables(), st.data())
def test_selected_episodes_are_as_if_the_others_had_never_been_read(
    data: pa.Table, more: st.DataObject
) -> None:
    log = read(data)
    keep = more.draw(st.lists(st.booleans(), min_size=log.n_episodes, max_size=log.n_episodes))
    if not any(keep):
        keep[0] = True
    chosen = set(log.steps.episode[np.array(keep)].tolist())
    mask = [episode in chosen for episode in data.column("episode").to_pylist()]
    alone = read(data.filter(pa.array(mask)), horizon=log.horizon)
    part = log.select(np.array(keep))
    assert part.horizon == log.horizon
    for field in fields(alone.steps):
        mine, theirs = getattr(part.steps, field.name), getattr(alone.steps, field.name)
        if field.name in ("state", "ending"):  # codes of the larger vocabulary
            mine = [part.states.name(code) for code in mine.tolist()]
            theirs = [alone.states.name(code) for code in theirs.tolist()]
        if field.name == "action":
            mine, theirs = part.raw_actions(), alone.raw_actions()
        if field.name != "source_rows":
            np.testing.assert_array_equal(mine, theirs, field.name)
    np.testing.assert_array_equal(part.column("reward"), part.steps.reward)


@settings(deadline=None, max_examples=40)
@given(tables())
def test_a_log_comes_back_from_its_table(data: pa.Table) -> None:
    log = read(data)
    out = log.to_table()
    options = {name: name for name in FLAGS if name in out.column_names}
    if "next_state" in out.column_names:
        options["next_state"] = "next_state"
    again = rw.read_log(out, **options, hidden="allow", horizon=log.horizon)
    assert_steps_match(again, log)


def test_the_table_of_a_log_goes_episode_by_episode() -> None:
    lengths = np.array([1, 3, 2])
    log = rw.log_from_arrays(
        np.zeros((3, 4), int), np.zeros((3, 3), int), np.ones((3, 3)), np.ones((3, 3)),
        lengths=lengths,
    )  # fmt: skip
    out = log.to_table()
    assert out.column("episode").to_pylist() == [1, 1, 1, 2, 2, 0]
    assert out.column("step").to_pylist() == [0, 1, 2, 0, 1, 0]


def test_a_log_of_arrays_with_everything_comes_back_from_its_table() -> None:
    rng = np.random.default_rng(0)
    states = np.ma.array(rng.integers(0, 4, (9, 6, 2)), mask=False)
    states[3, 2] = np.ma.masked
    log = rw.log_from_arrays(
        states,
        rng.integers(0, 3, (9, 5)),
        rng.normal(size=(9, 5)),
        rng.uniform(0.1, 1, (9, 5)),
        rng.uniform(size=(9, 5)),
        hidden="allow",
        lengths=[5, 5, 2, 5, 1, 3, 5, 5, 4],
        truncated=[False, False, True, False, False, True, False, False, False],
    )
    again = rw.read_log(
        log.to_table(),
        state=["state_0", "state_1"],
        next_state=["next_state_0", "next_state_1"],
        target_prob="target_prob",
        hidden="allow",
        **FLAGS,
    )
    assert_steps_match(log, again)
    np.testing.assert_array_equal(log.column("target_prob"), again.column("target_prob"))


def test_continuous_actions_come_back_from_the_table() -> None:
    rng = np.random.default_rng(0)
    log = rw.log_from_arrays(
        np.zeros((4, 3), int),
        rng.normal(size=(4, 2)),
        rng.normal(size=(4, 2)),
        rng.uniform(0.1, 3, (4, 2)),
        continuous_actions=True,
    )
    again = rw.read_log(log.to_table(), next_state="next_state", continuous_actions=True)
    assert log.digest() == again.digest()


@pytest.mark.parametrize(
    "change",
    [
        {"reward": [9.0, 0.0, 2.0, 1.0, 0.5, 0.0]},
        {"behavior_prob": [0.4, 0.25, 0.5, 0.5, 0.75, 0.5]},
        {"action": ["r", "r", "l", "r", "r", "l"]},
        {"state": ["y", "y", "z", "x", "z", "y"]},
        {"state": ["X", "y", "z", "X", "z", "y"]},
        {"episode": ["a", "a", "a", "c", "c", "c"]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_digest_changes_with_the_content(change: dict[str, Any]) -> None:
    assert rw.read_log(table(**change)).digest() != rw.read_log(table()).digest()


@pytest.mark.parametrize("side_by_side", [1, 3, 8, 1 << 13])
@pytest.mark.parametrize("seed", range(10))
def test_columns_come_into_order_however_many_episodes_are_taken_together(
    monkeypatch: pytest.MonkeyPatch, side_by_side: int, seed: int
) -> None:
    monkeypatch.setattr(steps_module, "SIDE_BY_SIDE", side_by_side)
    monkeypatch.setattr(steps_module, "IN_CACHE", 7)
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 12, int(rng.integers(1, 40)))
    episode = np.repeat(np.arange(len(lengths)), lengths).astype(np.int32)
    step = np.concatenate([np.arange(length) for length in lengths]).astype(np.int32)
    shuffled = rng.permutation(len(step))
    rows = steps_module.time_major(episode[shuffled], step[shuffled], len(lengths))
    assert rows is not None
    values = rng.random(len(step))
    for horizon in (1, rows.longest, rows.longest + 5):
        used = rows.until(horizon, episode[shuffled], step[shuffled])
        assert np.array_equal(steps_module.in_order(values, used), values[used.order])
