"""Logs from arrays: shapes, masks, lengths, and errors that name episode and step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import reweigh as rw
from reweigh.log.states import END, HIDDEN, UNKNOWN

N, H = 3, 4
NAN = float("nan")


def arrays(**changes: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    made = {
        "states": rng.integers(0, 5, (N, H + 1)),
        "actions": rng.integers(0, 2, (N, H)),
        "rewards": rng.normal(size=(N, H)),
        "behavior_prob": rng.uniform(0.1, 1, (N, H)),
    }
    return {**made, **changes}


def changed(name: str, episode: int, step: int, value: float) -> dict[str, Any]:
    array = np.array(arrays()[name], float)
    array[episode, step] = value
    return arrays(**{name: array})


def test_rows_are_the_arrays_by_step() -> None:
    given = arrays()
    log = rw.log_from_arrays(**given)
    assert (log.n_episodes, log.horizon, log.steps.n_rows) == (N, H, N * H)
    for t in range(H):
        rows = log.steps.rows(t)
        np.testing.assert_array_equal(log.steps.reward[rows], given["rewards"][:, t])
        np.testing.assert_array_equal(log.steps.behavior_prob[rows], given["behavior_prob"][:, t])
        np.testing.assert_array_equal(log.raw_states()[rows], given["states"][:, t])
        np.testing.assert_array_equal(log.raw_actions()[rows], given["actions"][:, t])
    names = [log.states.values[code] for code in log.steps.ending]
    assert names == given["states"][:, H].tolist()
    assert log.steps.episode.tolist() == [0, 1, 2]


def test_arrays_and_the_table_of_their_rows_are_the_same_log() -> None:
    log = rw.log_from_arrays(**arrays(), discount=0.9)
    again = rw.read_log(log.to_table(), next_state="next_state", discount=0.9)
    assert log.digest() == again.digest()


def test_the_state_after_the_last_step_may_be_left_out() -> None:
    given = arrays()
    log = rw.log_from_arrays(**{**given, "states": given["states"][:, :H]})
    assert log.steps.ending.tolist() == [UNKNOWN] * N


def test_lists_texts_and_several_columns_are_states() -> None:
    texts = [["007", "7", "x", "", "y"]] * N
    log = rw.log_from_arrays(**arrays(states=texts))
    assert log.states.values == ("", "007", "7", "x", "y")
    pairs = np.stack([np.full((N, H + 1), 2), np.tile(np.arange(H + 1), (N, 1))], axis=2)
    log = rw.log_from_arrays(**arrays(states=pairs))
    assert log.states.values == tuple((2, t) for t in range(H + 1))


def test_lists_of_texts_keep_their_nulls_and_are_not_mixed_with_numbers() -> None:
    log = rw.log_from_arrays(**arrays(states=[["a", "a\0", "b", "b", "b"]] * N))
    assert log.states.values == ("a", "a\0", "b")
    with pytest.raises(rw.UsageError, match="states"):
        rw.log_from_arrays(**arrays(states=[["a", 1, "b", "b", "b"]] * N))


@pytest.mark.parametrize("flags", [["no"] * N, [0, 2, 1], [None] * N])
def test_flags_that_are_no_truth_values_are_refused(flags: list[Any]) -> None:
    with pytest.raises(rw.UsageError, match="'truncated' must be"):
        rw.log_from_arrays(**arrays(truncated=flags))


def test_large_unsigned_states_keep_their_value() -> None:
    states = np.full((N, H + 1), 2**63 + 5, np.uint64)
    assert rw.log_from_arrays(**arrays(states=states)).states.values == (2**63 + 5,)


def test_lengths_end_episodes_and_what_is_past_them_is_ignored() -> None:
    lengths = np.array([2, 4, 1])
    past = np.arange(H) >= lengths[:, None]
    given = arrays()
    padded = {
        name: np.where(past, NAN, given[name]) for name in ("rewards", "behavior_prob")
    } | {"target_prob": np.where(past, NAN, 0.5)}  # fmt: skip
    states = np.where(np.arange(H + 1) >= lengths[:, None], 99, given["states"])
    states[1] = given["states"][1]
    actions = np.where(past, 77, given["actions"])
    log = rw.log_from_arrays(states, actions, **padded, lengths=lengths)
    assert log.steps.episode.tolist() == [1, 0, 2]
    assert log.steps.lengths.tolist() == [4, 2, 1]
    assert log.steps.n_rows == 7
    assert log.steps.ending.tolist()[1:] == [END, END]
    assert not log.steps.truncated.any()
    assert 99 not in log.states.values
    assert 77 not in log.actions.values
    assert np.isfinite(log.steps.reward).all()
    assert log.describe()["terminated_early"] == 2


def test_truncated_says_which_short_episodes_were_cut_off() -> None:
    log = rw.log_from_arrays(**arrays(), lengths=[2, 4, 1], truncated=[True, True, False])
    by_id = dict(zip(log.steps.episode.tolist(), log.steps.truncated.tolist(), strict=True))
    assert by_id == {0: True, 1: False, 2: False}  # episode 1 is complete
    ends = dict(zip(log.steps.episode.tolist(), log.steps.ending.tolist(), strict=True))
    assert (ends[0], ends[2]) == (UNKNOWN, END)
    assert log.describe()["truncated"] == 1


def test_a_masked_state_is_refused_or_hidden() -> None:
    states = np.ma.array(arrays()["states"], mask=False)
    states[1, 2] = np.ma.masked
    states[2, H] = np.ma.masked  # what follows the last step need not be known
    with pytest.raises(rw.InputError) as error:
        rw.log_from_arrays(**arrays(states=states))
    [fault] = error.value.faults
    assert (fault.code, fault.count) == ("null", 1)
    assert "episode 1, step 2" in str(fault)
    assert 'hidden="allow"' in str(fault)
    log = rw.log_from_arrays(**arrays(states=states), hidden="allow")
    assert np.flatnonzero(log.steps.state == HIDDEN).tolist() == [2 * N + 1]
    assert log.steps.ending[2] == UNKNOWN


def test_a_masked_state_past_the_length_is_no_hidden_state() -> None:
    states = np.ma.array(arrays()["states"], mask=False)
    states[0, 2:] = np.ma.masked
    log = rw.log_from_arrays(**arrays(states=states), lengths=[2, 4, 4])
    assert not log.has_hidden


@pytest.mark.parametrize("name", ["rewards", "behavior_prob", "actions", "target_prob"])
def test_a_masked_value_that_is_needed_is_a_fault(name: str) -> None:
    given = arrays(target_prob=np.full((N, H), 0.5))
    given[name] = np.ma.array(given[name], mask=False)
    given[name][1, 2] = np.ma.masked
    with pytest.raises(rw.InputError, match="episode 1, step 2"):
        rw.log_from_arrays(**given)


def test_an_action_of_none_is_a_fault() -> None:
    actions = np.array([["l", "r", "l", "r"]] * N, object)
    actions[1, 2] = None
    with pytest.raises(rw.InputError, match="episode 1, step 2"):
        rw.log_from_arrays(**arrays(actions=actions))


FAULTS: list[tuple[str, float, str]] = [
    ("rewards", NAN, "not-finite"),
    ("rewards", -np.inf, "not-finite"),
    ("behavior_prob", NAN, "not-finite"),
    ("behavior_prob", 0.0, "probability-range"),
    ("behavior_prob", -1.0, "probability-range"),
    ("behavior_prob", 1.25, "probability-range"),
]


@pytest.mark.parametrize(("name", "value", "code"), FAULTS)
def test_a_fault_names_episode_step_and_value(name: str, value: float, code: str) -> None:
    with pytest.raises(rw.InputError) as error:
        rw.log_from_arrays(**changed(name, 2, 1, value))
    assert error.value.exit_code == 3
    [fault] = error.value.faults
    place = fault.places[0]
    assert (fault.code, fault.count, fault.total) == (code, 1, N * H)
    assert (place.episode, place.step) == (2, 1)
    assert f"episode 2, step 1: value {value!r}" in str(error.value)


@pytest.mark.parametrize("value", [-0.1, 1.5, NAN])
def test_a_target_probability_outside_its_range_is_a_fault(value: float) -> None:
    target = np.full((N, H), 0.0)
    target[0, 3] = value
    with pytest.raises(rw.InputError, match=r"'target_prob', episode 0, step 3"):
        rw.log_from_arrays(**arrays(), target_prob=target)


def test_all_faults_of_the_arrays_are_told_at_once() -> None:
    given = changed("rewards", 0, 0, NAN)
    given["behavior_prob"][1, 1] = 7.0
    states = np.ma.array(given["states"], mask=False)
    states[2, 2] = np.ma.masked
    with pytest.raises(rw.InputError) as error:
        rw.log_from_arrays(**{**given, "states": states})
    assert {fault.code for fault in error.value.faults} == {
        "null",
        "not-finite",
        "probability-range",
    }


WRONG: dict[str, dict[str, Any]] = {
    "rewards of one axis": {"rewards": np.zeros(H)},
    "no episode": {"rewards": np.zeros((0, H))},
    "no step": {"rewards": np.zeros((N, 0))},
    "states too long": {"states": np.zeros((N, H + 2), int)},
    "states of other episodes": {"states": np.zeros((N + 1, H + 1), int)},
    "states of one axis": {"states": np.zeros(H + 1, int)},
    "states that are floats": {"states": np.full((N, H + 1), 0.5)},
    "states of mixed types": {"states": np.array([[1, "a", 2, 3, 4]] * N, object)},
    "states that are times": {"states": np.zeros((N, H + 1), "datetime64[s]")},
    "actions too short": {"actions": np.zeros((N, H - 1), int)},
    "actions that are floats": {"actions": np.full((N, H), 0.5)},
    "probabilities too short": {"behavior_prob": np.full((N, H - 1), 0.5)},
    "target too long": {"target_prob": np.full((N, H + 1), 0.5)},
    "lengths of other episodes": {"lengths": [1, 2]},
    "a length of zero": {"lengths": [0, 2, 2]},
    "a length beyond the horizon": {"lengths": [H + 1, 2, 2]},
    "lengths that are floats": {"lengths": [1.5, 2.0, 2.0]},
    "truncated of other episodes": {"truncated": [True]},
    "discount": {"discount": 1.5},
    "hidden": {"hidden": "yes"},
    "ragged rewards": {"rewards": [[1.0, 2.0], [1.0], [1.0]]},
    "rewards that are words": {"rewards": [["one"] * H] * N},
    "probabilities that are words": {"behavior_prob": [["half"] * H] * N},
    "continuous actions that are words": {
        "actions": [["left"] * H] * N,
        "continuous_actions": True,
    },
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_arrays_are_refused_with_the_argument_s_name(what: str) -> None:
    with pytest.raises(rw.ReweighError) as error:
        rw.log_from_arrays(**arrays(**WRONG[what]))
    assert error.value.exit_code in (2, 3)
    [name, *_] = WRONG[what]
    assert name in str(error.value)


def test_continuous_actions_are_kept_as_numbers() -> None:
    actions = np.random.default_rng(1).normal(size=(N, H))
    given = arrays(actions=actions, behavior_prob=np.full((N, H), 2.5))
    with pytest.raises(rw.ReweighError):
        rw.log_from_arrays(**given)
    log = rw.log_from_arrays(**given, continuous_actions=True)
    assert log.actions is None
    np.testing.assert_array_equal(log.steps.action, actions.T.reshape(-1))
    actions[1, 1] = NAN
    with pytest.raises(rw.InputError, match="'action', episode 1, step 1"):
        rw.log_from_arrays(**{**given, "actions": actions}, continuous_actions=True)


def test_the_target_s_probability_becomes_a_column() -> None:
    target = np.random.default_rng(1).uniform(size=(N, H))
    log = rw.log_from_arrays(**arrays(), target_prob=target)
    np.testing.assert_array_equal(log.column("target_prob"), target.T.reshape(-1))
    policy = rw.ColumnPolicy("target_prob")
    np.testing.assert_array_equal(policy.probabilities(log), target.T.reshape(-1))


def test_later_changes_of_the_arrays_do_not_reach_the_log() -> None:
    given = arrays()
    log = rw.log_from_arrays(**given)
    before = log.digest()
    reward = log.steps.reward.copy()
    for array in given.values():
        array[:] = 0
    np.testing.assert_array_equal(log.steps.reward, reward)
    assert rw.log_from_arrays(**arrays()).digest() == before
