"""Policies that were logged in a column, and policies that are functions of batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pytest

import reweigh as rw

NAN = float("nan")
ROWS: dict[str, Any] = {
    "episode": ["b", "b", "a", "a"],
    "step": [0, 1, 0, 1],
    "state": ["x", "y", "x", "z"],
    "action": [0, 1, 1, 0],
    "reward": [1.0, 2.0, 3.0, 4.0],
    "behavior_prob": [0.5] * 4,
    "pi": [0.1, 0.2, 0.3, 0.4],
}


def read(**changes: Any) -> rw.EpisodeLog:
    return rw.read_log(pa.table({**ROWS, **changes}))


@pytest.mark.parametrize("way", ["csv", "table"])
def test_a_column_is_the_probability_of_each_row(way: str, tmp_path: Path) -> None:
    pacsv.write_csv(pa.table(ROWS), tmp_path / "log.csv")
    log = read() if way == "table" else rw.read_log(tmp_path / "log.csv")
    # time-major, a before b
    assert rw.ColumnPolicy("pi").probabilities(log).tolist() == [0.3, 0.1, 0.4, 0.2]
    kept = log.select(np.array([False, True]))
    assert rw.ColumnPolicy("pi").probabilities(kept).tolist() == [0.1, 0.2]


BAD_COLUMNS: dict[str, tuple[Any, str, list[str]]] = {
    "above one": ([0.1, 1.5, 0.3, 0.4], "probability-range", ["row 2", "'b', step 1: value 1.5"]),
    "negative": ([0.1, 0.2, -0.3, 0.4], "probability-range", ["row 3", "'a', step 0: value -0.3"]),
    "not a number": ([0.1, 0.2, 0.3, NAN], "not-finite", ["row 4", "'a', step 1"]),
    "null": ([None, 0.2, 0.3, 0.4], "", ["row 1", "'b', step 0"]),
    "a word": (["0.1", "oops", "0.3", "0.4"], "", ["row 2", "oops"]),
}


@pytest.mark.parametrize("what", BAD_COLUMNS)
def test_a_bad_probability_in_the_column_is_named(what: str) -> None:
    values, code, words = BAD_COLUMNS[what]
    with pytest.raises(rw.InputError) as error:
        rw.ColumnPolicy("pi").probabilities(read(pi=values))
    assert error.value.exit_code == 3
    assert code in "".join(fault.code for fault in error.value.faults)
    assert "'pi'" in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_a_missing_column_is_a_usage_error_with_the_nearest_name() -> None:
    with pytest.raises(rw.UsageError, match="did you mean 'pi'"):
        rw.ColumnPolicy("pie").probabilities(read())


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_column_policy_needs_a_name(name: Any) -> None:
    with pytest.raises(rw.UsageError):
        rw.ColumnPolicy(name)


def test_a_density_may_exceed_one_when_actions_are_continuous() -> None:
    table = pa.table({**ROWS, "action": [0.1, 0.2, 0.3, 0.4], "pi": [5.0, 0.0, 2.0, 1.0]})
    log = rw.read_log(table, continuous_actions=True)
    assert rw.ColumnPolicy("pi").probabilities(log).tolist() == [2.0, 5.0, 1.0, 0.0]


@pytest.mark.parametrize("target", [rw.ColumnPolicy("pi"), rw.FunctionPolicy(lambda s, a, t: a)])
def test_the_log_must_know_the_behavior(target: Any) -> None:
    table = pa.table(ROWS).drop_columns(["behavior_prob"])
    with pytest.raises(rw.UsageError, match="fit_behavior"):
        rw.evaluate(rw.read_log(table, behavior_prob=None), target, rw.mis())


def test_columns_of_different_names_are_different_policies() -> None:
    assert rw.ColumnPolicy("a").fingerprint() != rw.ColumnPolicy("b").fingerprint()
    assert rw.ColumnPolicy("a").fingerprint() == rw.ColumnPolicy("a").fingerprint()


# functions


class Spy:
    """Remembers what it was called with, and answers with what it was told."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.calls: list[tuple[Any, Any, Any]] = []

    def __call__(self, state: Any, action: Any, step: Any) -> Any:
        self.calls.append((state, action, step))
        return np.full(len(action), 0.5) if self.answer is None else self.answer


def seen(log: rw.EpisodeLog) -> tuple[Any, Any, Any]:
    spy = Spy()
    assert rw.FunctionPolicy(spy).probabilities(log).tolist() == [0.5] * log.steps.n_rows
    [call] = spy.calls
    return call


def test_a_function_gets_states_actions_and_steps_as_logged() -> None:
    state, action, step = seen(read())
    assert state.tolist() == ["x", "x", "z", "y"]
    assert action.tolist() == [1, 0, 0, 1]
    assert step.tolist() == [0, 0, 1, 1]


def test_a_function_gets_none_where_the_state_is_hidden() -> None:
    log = rw.read_log(pa.table({**ROWS, "state": ["x", None, None, "z"]}), hidden="allow")
    assert seen(log)[0].tolist() == [None, "x", "z", None]


@pytest.mark.parametrize("way", ["csv", "table"])
def test_a_function_gets_the_states_before_their_abstraction(way: str, tmp_path: Path) -> None:
    table = pa.table({**ROWS, "state": [0.11, 0.22, 0.33, 0.44], "k": [1.5, 2.5, 3.5, 4.5]})
    data: Any = table
    if way == "csv":
        data = tmp_path / "log.csv"
        pacsv.write_csv(table, data)
    one = rw.read_log(data, abstraction=rw.Rounding(1))
    assert one.states.values == (0,)
    assert seen(one)[0].tolist() == [0.33, 0.11, 0.44, 0.22]
    two = rw.read_log(data, state=["state", "k"], abstraction=rw.Rounding(1))
    assert seen(two)[0].tolist() == [[0.33, 3.5], [0.11, 1.5], [0.44, 4.5], [0.22, 2.5]]


def test_a_function_gets_texts_before_their_abstraction_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    pacsv.write_csv(pa.table(ROWS), path)
    log = rw.read_log(path, abstraction=lambda v: np.array([w == "x" for w in v[:, 0]]))
    assert seen(log)[0].tolist() == ["x", "x", "z", "y"]


def test_a_function_gets_continuous_actions_as_numbers() -> None:
    log = rw.read_log(pa.table({**ROWS, "action": [0.1, 0.2, 0.3, 0.4]}), continuous_actions=True)
    assert seen(log)[1].tolist() == [0.3, 0.1, 0.4, 0.2]


def test_a_function_is_asked_for_each_action_when_a_model_needs_it() -> None:
    log = read()
    spy = Spy()
    assert log.actions is not None
    rw.FunctionPolicy(spy).of_action(log, log.actions.values.index(1))
    assert spy.calls[0][1].tolist() == [1, 1, 1, 1]


WRONG_ANSWERS: dict[str, Any] = {
    "a scalar": 0.5,
    "nothing": None,
    "too few": np.full(3, 0.5),
    "a column": np.full((4, 1), 0.5),
    "all actions": np.full((4, 2), 0.5),
    "words": ["half"] * 4,
}


@pytest.mark.parametrize("what", WRONG_ANSWERS)
def test_an_answer_of_the_wrong_shape_is_refused(what: str) -> None:
    answer = WRONG_ANSWERS[what]
    policy = rw.FunctionPolicy(lambda s, a, t: answer, name="mine")
    with pytest.raises(rw.ReweighError, match="mine") as error:
        policy.probabilities(read())
    assert error.value.exit_code in (2, 3)


@pytest.mark.parametrize("value", [1.5, -0.5, NAN, np.inf])
def test_an_answer_outside_its_range_is_refused_with_the_row(value: float) -> None:
    answer = np.array([0.5, 0.5, value, 0.5])
    with pytest.raises(rw.InputError) as error:
        rw.FunctionPolicy(Spy(answer), name="mine").probabilities(read())
    place = error.value.faults[0].places[0]
    assert (place.row, place.episode, place.step) == (4, "a", 1)
    assert "mine" in str(error.value)


def test_what_cannot_be_called_is_a_usage_error() -> None:
    with pytest.raises(rw.UsageError, match=r"f\(state, action, step\)"):
        rw.FunctionPolicy({"x": 0.5})  # type: ignore[arg-type]


def always(probability: float) -> Any:
    return lambda state, action, step: np.full(len(action), probability)


def half(state: Any, action: Any, step: Any) -> Any:
    return np.full(len(action), 0.5)


PAIRS: dict[str, tuple[Any, Any]] = {
    "constants": (lambda s, a, t: a * 0.1, lambda s, a, t: a * 0.2),
    "operations": (lambda s, a, t: a + t, lambda s, a, t: a - t),
    "what is called": (lambda s, a, t: np.sin(a), lambda s, a, t: np.cos(a)),
    "what is closed over": (always(0.1), always(0.9)),
    "defaults": (lambda s, a, t, e=0.1: a * e, lambda s, a, t, e=0.9: a * e),
}


@pytest.mark.parametrize("what", PAIRS)
def test_functions_that_differ_have_different_fingerprints(what: str) -> None:
    first, second = (rw.FunctionPolicy(f, name="pi").fingerprint() for f in PAIRS[what])
    assert first != second


def test_the_same_function_has_the_same_fingerprint() -> None:
    assert rw.FunctionPolicy(half).fingerprint() == rw.FunctionPolicy(half).fingerprint()
    assert rw.FunctionPolicy(always(0.5)).fingerprint() == (
        rw.FunctionPolicy(always(0.5)).fingerprint()
    )


def test_the_same_policy_as_table_column_and_function_gives_the_same_estimate() -> None:
    rng = np.random.default_rng(0)
    states, actions = rng.integers(0, 3, (50, 4)), rng.integers(0, 2, (50, 4))
    table = np.array([[0.3, 0.7], [0.5, 0.5], [0.9, 0.1]])
    log = rw.log_from_arrays(
        states, actions, rng.normal(size=(50, 4)), np.full((50, 4), 0.5), table[states, actions]
    )
    targets = [
        rw.TablePolicy(table),
        rw.ColumnPolicy("target_prob"),
        rw.FunctionPolicy(lambda s, a, t: table[s, a]),
    ]
    values = [rw.evaluate(log, target, rw.mis()).value for target in targets]
    assert values == [values[0]] * 3
