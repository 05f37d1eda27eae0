"""Horizon, discount, how episodes end, and what is hidden."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import reweigh as rw
from reweigh.log.states import END, UNKNOWN

from .samples import COLUMNS, assert_same_log, csv_file, states_by_row, table


def ragged(**more: Any) -> pa.Table:
    """Episode a has three steps, b two, c one."""
    rows = {
        "episode": list("aaabbc"),
        "step": [0, 1, 2, 0, 1, 0],
        "state": list("xyzxyz"),
        "action": [0, 1, 0, 1, 0, 1],
        "reward": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        "behavior_prob": [0.5] * 6,
    }
    return table(rows, **more)


def ends(log: rw.EpisodeLog) -> dict[str, tuple[str, bool]]:
    """{episode: (what follows its last row, whether it was cut off)}"""
    return {
        str(episode): (log.states.name(code), cut)
        for episode, code, cut in zip(
            log.steps.episode.tolist(),
            log.steps.ending.tolist(),
            log.steps.truncated.tolist(),
            strict=True,
        )
    }


def test_the_horizon_is_the_longest_episode() -> None:
    log = rw.read_log(ragged(), short_episodes="terminal")
    assert log.horizon == 3
    assert log.describe()["horizon"] == 3


@pytest.mark.parametrize("horizon", [1, 2])
def test_a_shorter_horizon_cuts_and_says_so(horizon: int) -> None:
    log = rw.read_log(table(), horizon=horizon)
    assert (log.horizon, log.steps.n_rows) == (horizon, 2 * horizon)
    assert log.steps.reward.tolist() == [1.0, 1.0, 0.0, 0.5][: 2 * horizon]
    note = log.describe()["notes"][0]
    assert f"horizon {horizon}" in note
    assert f"{6 - 2 * horizon} later rows" in note
    # the row after the horizon tells the state that follows
    assert ends(log) == {
        "a": ({1: "y", 2: "z"}[horizon], False),
        "b": ({1: "z", 2: "y"}[horizon], False),
    }


def test_a_horizon_that_cuts_nothing_says_nothing() -> None:
    assert rw.read_log(table(), horizon=3).describe()["notes"] == []


def test_a_cut_makes_episodes_complete_that_were_short() -> None:
    log = rw.read_log(ragged(), horizon=1)
    assert (log.horizon, log.n_episodes, log.n_truncated) == (1, 3, 0)


def test_a_longer_horizon_makes_all_episodes_short() -> None:
    with pytest.raises(rw.InputError) as error:
        rw.read_log(table(), horizon=4)
    [fault] = error.value.faults
    assert (fault.code, fault.count) == ("short-episode", 2)
    log = rw.read_log(table(), horizon=5, short_episodes="terminal")
    assert (log.horizon, log.steps.n_rows) == (5, 6)
    assert log.steps.offsets.tolist() == [0, 2, 4, 6, 6, 6]
    assert log.describe()["terminated_early"] == 2


@pytest.mark.parametrize("horizon", [0, -1, 2.0, "3"])
def test_a_horizon_is_a_whole_number_from_one_on(horizon: Any) -> None:
    with pytest.raises(
        rw.UsageError, match="'horizon' must be a whole number from 1 to 2,147,483,647"
    ):
        rw.read_log(table(), horizon=horizon)


@pytest.mark.parametrize("discount", [0, -0.5, 1.0001, 2, float("nan"), float("inf"), "1", None])
def test_a_discount_outside_its_range_is_a_usage_error(discount: Any) -> None:
    with pytest.raises(rw.UsageError, match=r"'discount' must be a number in \(0, 1\]"):
        rw.read_log(table(), discount=discount)


@pytest.mark.parametrize("discount", [1, 1.0, 0.9, 1e-6])
def test_a_discount_in_its_range_is_kept(discount: float) -> None:
    assert rw.read_log(table(), discount=discount).describe()["discount"] == discount


def test_numpy_numbers_are_numbers() -> None:
    log = rw.read_log(table(), horizon=np.int64(2), discount=np.float32(0.5))
    assert (log.horizon, log.discount) == (2, 0.5)


def test_short_episodes_without_a_flag_are_refused_with_the_ways_out() -> None:
    with pytest.raises(rw.InputError) as error:
        rw.read_log(ragged())
    [fault] = error.value.faults
    assert (fault.code, fault.count) == ("short-episode", 2)
    assert [(p.row, p.episode, p.step) for p in fault.places] == [(5, "b", 1), (6, "c", 0)]
    for part in ("terminated", "truncated", "short_episodes='terminal'"):
        assert part in str(fault)


def test_a_column_that_looks_like_the_flag_is_pointed_out() -> None:
    with pytest.raises(rw.InputError, match="the log has a column 'terminated'"):
        rw.read_log(ragged(terminated=[False, False, True, False, True, True]))


# flags per row of `ragged`, options, and how a, b, c end
T, F = True, False
ENDINGS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, tuple[str, bool]]]] = {
    "all short are over": (
        {},
        {"short_episodes": "terminal"},
        {"a": ("UNKNOWN", F), "b": ("END", F), "c": ("END", F)},
    ),
    "all short are cut": (
        {},
        {"short_episodes": "truncated"},
        {"a": ("UNKNOWN", F), "b": ("UNKNOWN", T), "c": ("UNKNOWN", T)},
    ),
    "flags decide": (
        {"over": [F, F, F, F, T, F], "cut": [F, F, F, F, F, T]},
        {"terminated": "over", "truncated": "cut"},
        {"a": ("UNKNOWN", F), "b": ("END", F), "c": ("UNKNOWN", T)},
    ),
    "a flag of 0 and 1": (
        {"over": [0, 0, 1, 0, 1, 1]},
        {"terminated": "over"},
        {"a": ("END", F), "b": ("END", F), "c": ("END", F)},
    ),
    "a complete episode is complete whatever its flag says": (
        {"over": [F, F, F, F, T, T], "cut": [F, F, T, F, F, F]},
        {"terminated": "over", "truncated": "cut"},
        {"a": ("UNKNOWN", F), "b": ("END", F), "c": ("END", F)},
    ),
    "the option is for those without a flag": (
        {"over": [F, F, F, F, T, F]},
        {"terminated": "over", "short_episodes": "truncated"},
        {"a": ("UNKNOWN", F), "b": ("END", F), "c": ("UNKNOWN", T)},
    ),
    "cut flags are stronger than the option": (
        {"cut": [F, F, F, F, T, F]},
        {"truncated": "cut", "short_episodes": "terminal"},
        {"a": ("UNKNOWN", F), "b": ("UNKNOWN", T), "c": ("END", F)},
    ),
    "the next state of a cut episode is kept": (
        {"cut": [F, F, F, F, T, T], "after": ["y", "z", "x", "y", "z", None]},
        {"truncated": "cut", "next_state": "after"},
        {"a": ("x", F), "b": ("z", T), "c": ("UNKNOWN", T)},
    ),
    "the next state of an episode that is over is END": (
        {"over": [F, F, T, F, T, T], "after": ["y", "z", "x", "y", "z", "new"]},
        {"terminated": "over", "next_state": "after"},
        {"a": ("END", F), "b": ("END", F), "c": ("END", F)},
    ),
}


@pytest.mark.parametrize("what", ENDINGS)
@pytest.mark.parametrize("way", ["csv", "table"])
def test_episodes_end_as_their_flags_and_options_say(what: str, way: str, tmp_path: Path) -> None:
    flags, options, expected = ENDINGS[what]
    data: Any = ragged(**flags)
    if way == "csv":
        data = csv_file(tmp_path / "log.csv", data.to_pydict())
    log = rw.read_log(data, **options)
    assert ends(log) == expected
    about = log.describe()
    assert about["truncated"] == sum(cut for _, cut in expected.values())
    assert about["terminated_early"] == sum(expected[e][0] == "END" for e in "bc")


def test_a_short_episode_that_no_flag_explains_is_refused_beside_those_explained() -> None:
    with pytest.raises(rw.InputError) as error:
        rw.read_log(ragged(over=[F, F, F, F, T, F]), terminated="over")
    [fault] = error.value.faults
    assert [(p.row, p.episode) for p in fault.places] == [(6, "c")]


def test_dropping_cut_episodes_leaves_the_others() -> None:
    log = rw.read_log(ragged(), short_episodes="truncated").drop_truncated()
    assert log.steps.episode.tolist() == ["a"]
    with pytest.raises(rw.UsageError, match="empty"):
        log.select(np.array([False]))


def test_a_next_state_that_agrees_changes_only_what_follows_the_last_row() -> None:
    plain = rw.read_log(table())
    log = rw.read_log(table(after=["y", "z", "y", "z", "y", "x"]), next_state="after")
    assert ends(log) == {"a": ("y", False), "b": ("x", False)}
    assert ends(plain) == {"a": ("UNKNOWN", False), "b": ("UNKNOWN", False)}
    assert states_by_row(log) == states_by_row(plain)


def test_next_states_may_be_of_several_columns() -> None:
    columns = {**COLUMNS, "k": [1, 2, 1, 1, 1, 2]}
    after = {"after": ["y", "z", "q", "z", "y", "q"], "k2": [2, 1, 7, 1, 2, 7]}
    options = {"state": ["state", "k"], "next_state": ["after", "k2"]}
    log = rw.read_log(table({**columns, **after}), **options)
    assert set(ends(log)) == {"a", "b"}
    assert {end for end, _ in ends(log).values()} == {"('q', 7)"}
    with pytest.raises(rw.InputError) as error:
        rw.read_log(table({**columns, **after, "k2": [2, 1, 7, 1, 3, 7]}), **options)
    [fault] = error.value.faults
    assert (fault.code, fault.places[0].row) == ("next-state", 5)
    assert "('y', 3)" in str(fault)
    assert "('y', 2)" in str(fault)


def test_a_next_state_written_as_text_meets_the_number(tmp_path: Path) -> None:
    columns = {**COLUMNS, "state": [1, 2, 3, 1, 3, 2], "after": [2, 3, 9, 3, 2, "gone"]}
    log = rw.read_log(csv_file(tmp_path / "log.csv", columns), next_state="after")
    assert ends(log) == {"a": ("9", False), "b": ("gone", False)}


HIDDEN_STATES = [None, "y", None, "x", None, "y"]


@pytest.mark.parametrize("way", ["csv", "table", "pandas"])
def test_null_states_are_refused_or_hidden(way: str, tmp_path: Path) -> None:
    columns = {**COLUMNS, "state": HIDDEN_STATES}
    data: Any = table(columns)
    if way == "csv":
        data = csv_file(tmp_path / "log.csv", columns)
    elif way == "pandas":
        data = data.to_pandas()
    with pytest.raises(rw.InputError) as error:
        rw.read_log(data)
    [fault] = error.value.faults
    assert (fault.code, fault.count, fault.places[0].row) == ("null", 3, 1)
    assert 'hidden="allow"' in str(fault)
    log = rw.read_log(data, hidden="allow")
    assert log.has_hidden
    assert log.describe()["hidden_rows"] == 3
    assert log.describe()["states"] == 2
    assert list(states_by_row(log).values()) == ["?", "x", "y", "?", "?", "y"]


def test_hidden_states_agree_with_any_next_state() -> None:
    data = table({**COLUMNS, "state": HIDDEN_STATES, "after": ["y", "q", None, None, "y", None]})
    log = rw.read_log(data, hidden="allow", next_state="after")
    assert log.describe()["hidden_rows"] == 3
    with pytest.raises(rw.InputError) as error:
        rw.read_log(
            table({**COLUMNS, "state": HIDDEN_STATES, "after": ["x", "q", None, None, "y", None]}),
            hidden="allow",
            next_state="after",
        )
    assert [(f.code, f.places[0].row) for f in error.value.faults] == [("next-state", 1)]


def test_a_log_whose_states_are_all_hidden_is_read() -> None:
    log = rw.read_log(table(state=pa.nulls(6, pa.string())), hidden="allow")
    assert log.describe()["states"] == 0
    assert log.describe()["hidden_rows"] == 6
    again = rw.read_log(log.to_table(), hidden="allow")
    assert again.digest() == log.digest()


def test_one_episode_of_one_step_is_a_log() -> None:
    log = rw.read_log(table({name: values[:1] for name, values in COLUMNS.items()}))
    assert (log.n_episodes, log.horizon, log.steps.n_rows) == (1, 1, 1)


def test_the_same_rows_cut_by_the_user_or_by_the_horizon_are_the_same_steps() -> None:
    cut = rw.read_log(table(), horizon=2)
    kept = table().filter(pa.compute.less(table().column("step"), 2))
    after = pa.array(["y", "z", "z", "y"])
    by_hand = rw.read_log(kept.append_column("after", after), next_state="after")
    assert cut.digest() == by_hand.digest()
    assert_same_log(replace(cut, notes=()), by_hand)


def test_the_description_shows_how_states_and_actions_are_spelled() -> None:
    about = rw.read_log(table(state=["007", "7", "x", "y", "z", "zz"])).describe()
    assert about["state_examples"] == ["007", "7", "x", "y", "z"]
    assert about["action_examples"] == ["l", "r"]


def test_notes_say_what_the_numbers_do_not() -> None:
    about = rw.read_log(ragged(state=list("pqrstu")), short_episodes="truncated").describe()
    assert about["notes"] == [
        "6 states for 6 rows: most occur once; bin them (abstraction=Rounding or Grid)",
        "mean_return counts only the logged rewards of the 2 cut-off episodes",
    ]


def test_special_codes_are_no_states() -> None:
    log = rw.read_log(ragged(), short_episodes="terminal")
    assert set(log.steps.ending.tolist()) == {END, UNKNOWN}
    assert min(END, UNKNOWN) < 0
    assert log.steps.state.min() >= 0
