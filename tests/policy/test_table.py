"""Policies as tables: every way to give one, and what a table must be."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import reweigh as rw


def log_of(states: Any, actions: Any, **more: Any) -> rw.EpisodeLog:
    """Episodes of two steps with these states and actions, row by row."""
    n = len(states)
    columns = {
        "episode": [i // 2 for i in range(n)],
        "step": [i % 2 for i in range(n)],
        "state": states,
        "action": actions,
        "reward": [1.0] * n,
        "behavior_prob": [0.5] * n,
    }
    state = "state"
    if states and isinstance(states[0], tuple):
        del columns["state"]
        state = [f"part{j}" for j in range(len(states[0]))]
        columns |= {name: [s[j] for s in states] for j, name in enumerate(state)}
    return rw.read_log(pa.table(columns), state=state, **more)


def by_row(policy: rw.TablePolicy, log: rw.EpisodeLog) -> list[float]:
    """π of the rows in the order in which they were given."""
    found = np.empty(log.steps.n_rows)
    found[log.steps.source_row] = policy.probabilities(log)
    return found.tolist()


LOG = log_of([0, 1, 1, 0], [0, 1, 0, 1])
EXPECTED = [0.25, 1.0, 0.0, 0.75]
ENTRIES = {"state": [0, 0, 1], "action": [0, 1, 1], "prob": [0.25, 0.75, 1.0]}


def written(folder: Path, name: str, columns: dict[str, list[Any]] = ENTRIES) -> Path:
    path = folder / name
    if name.endswith(".parquet"):
        pq.write_table(pa.table(columns), path)
    else:
        pd.DataFrame(columns).to_csv(path, index=False)
    return path


WAYS: dict[str, Any] = {
    "mapping of rows": {0: {0: 0.25, 1: 0.75}, 1: {1: 1.0}},
    "mapping of pairs": {(0, 0): 0.25, (0, 1): 0.75, (1, 1): 1.0},
    "mapping of texts": {"0": {"0": 0.25, "1": 0.75}, "1": {"1": 1.0}},
    "mapping of NumPy numbers": {np.int8(0): {np.int64(0): 0.25, 1: 0.75}, 1: {1: np.float64(1)}},
    "array": np.array([[0.25, 0.75], [0.0, 1.0]]),
    "array with states that the log lacks": np.array([[0.25, 0.75], [0, 1], [1, 0]]),
    "list of lists": [[0.25, 0.75], [0.0, 1.0]],
    "array by step": np.array([[[0.25, 0.75], [0.0, 1.0]]] * 2),
    "pandas": pd.DataFrame(ENTRIES),
    "polars": pl.DataFrame(ENTRIES),
    "pyarrow": pa.table(ENTRIES),
    "pandas of texts": pd.DataFrame(ENTRIES).astype({"state": str, "action": str}),
    "pandas of categories": pd.DataFrame(ENTRIES).astype({"state": "category"}),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_give_a_table_gives_the_same_probabilities(way: str) -> None:
    assert by_row(rw.TablePolicy(WAYS[way]), LOG) == EXPECTED


@pytest.mark.parametrize("name", ["policy.csv", "policy.parquet"])
def test_a_policy_is_read_from_a_file(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, name)
    assert by_row(rw.read_policy(path), LOG) == EXPECTED
    assert by_row(rw.read_policy(str(path)), LOG) == EXPECTED
    assert str(path) in rw.read_policy(path).name


def test_a_number_meets_the_same_number_as_text(tmp_path: Path) -> None:
    texts = log_of(["3", "x", "3", "x"], ["0", "1", "1", "0"])
    policy = rw.TablePolicy({3: {0: 0.5, 1: 0.5}, "x": {0: 1.0}})
    assert by_row(policy, texts) == [0.5, 0.0, 0.5, 1.0]


def test_texts_that_are_written_differently_are_different_states() -> None:
    log = log_of(["007", "7", "7", "007"], ["l", "l", "r", "r"])
    policy = rw.TablePolicy({"007": {"l": 1.0}, "7": {"l": 0.25, "r": 0.75}})
    assert by_row(policy, log) == [1.0, 0.25, 0.75, 0.0]


def test_columns_may_have_other_names(tmp_path: Path) -> None:
    names = {"state": "s", "action": "a", "prob": "p"}
    columns = {names[name]: values for name, values in ENTRIES.items()}
    for given in (pd.DataFrame(columns), written(tmp_path, "policy.csv", columns)):
        assert by_row(rw.read_policy(given, **names), LOG) == EXPECTED


@pytest.mark.parametrize("way", ["csv", "parquet", "array"])
def test_a_step_column_makes_the_policy_depend_on_the_step(way: str, tmp_path: Path) -> None:
    table = np.array([[[0.25, 0.75], [0.5, 0.5]], [[1.0, 0.0], [0.125, 0.875]]])
    t, s, a = np.indices(table.shape).reshape(3, -1).tolist()
    columns = {"step": t, "state": s, "action": a, "prob": table.reshape(-1).tolist()}
    if way == "array":
        policy = rw.TablePolicy(table)
    else:
        policy = rw.read_policy(written(tmp_path, f"policy.{way}", columns))
    assert by_row(policy, LOG) == [0.25, 0.875, 0.5, 0.0]


@pytest.mark.parametrize("way", ["mapping", "csv", "pandas"])
def test_several_columns_are_one_state(way: str, tmp_path: Path) -> None:
    log = log_of([("n", 1), ("s", 1), ("n", 2), ("n", 1)], [0, 1, 0, 1])
    columns = {
        "part0": ["n", "n", "s", "n"],
        "part1": [1, 1, 1, 2],
        "action": [0, 1, 1, 1],
        "prob": [0.25, 0.75, 1.0, 1.0],
    }
    state = ["part0", "part1"]
    if way == "mapping":
        rows = {("n", 1): {0: 0.25, 1: 0.75}, ("s", 1): {1: 1.0}, ("n", 2): {1: 1.0}}
        policy = rw.TablePolicy(rows)
    elif way == "csv":
        policy = rw.read_policy(written(tmp_path, "policy.csv", columns), state=state)
    else:
        policy = rw.TablePolicy(pd.DataFrame(columns), state=state)
    assert by_row(policy, log) == [0.25, 1.0, 0.0, 0.75]


@pytest.mark.parametrize("way", ["mapping", "csv", "polars"])
def test_the_hidden_state_has_a_row_of_its_own(way: str, tmp_path: Path) -> None:
    log = log_of([0, None, None, 0], [0, 0, 1, 1], hidden="allow")
    columns = {"state": [0, 0, None, None], "action": [0, 1, 0, 1], "prob": [0.25, 0.75, 0.5, 0.5]}
    if way == "mapping":
        policy = rw.TablePolicy({0: {0: 0.25, 1: 0.75}, None: {0: 0.5, 1: 0.5}})
    elif way == "polars":
        policy = rw.TablePolicy(pl.DataFrame(columns))
    else:
        path = tmp_path / "policy.csv"
        path.write_text("state,action,prob\n0,0,.25\n0,1,.75\n,0,.5\n,1,.5\n")
        policy = rw.read_policy(path)
    assert by_row(policy, log) == [0.25, 0.5, 0.5, 0.75]


def test_a_hidden_state_without_a_row_is_refused_with_the_way_out() -> None:
    log = log_of([0, None, None, 0], [0, 0, 1, 1], hidden="allow")
    with pytest.raises(rw.InputError, match="hidden state needs a row"):
        rw.TablePolicy({0: {0: 0.25, 1: 0.75}}).probabilities(log)


def test_an_action_that_a_row_does_not_list_has_probability_zero() -> None:
    log = log_of(["x", "x", "y", "y", "z", "z"], ["l", "new", "l", "new", "r", "new"])
    policy = rw.TablePolicy({s: {"l": 0.25, "r": 0.75} for s in "xy"} | {"z": {"l": 1.0}})
    assert by_row(policy, log) == [0.25, 0.0, 0.25, 0.0, 0.0, 0.0]


def test_the_probability_of_any_action_is_known() -> None:
    policy = rw.TablePolicy({0: {0: 0.25, 1: 0.75}, 1: {1: 1.0}})
    assert LOG.actions is not None
    found = np.empty(4)
    for code, action in enumerate(LOG.actions.values):
        found[LOG.steps.source_row] = policy.of_action(LOG, code)
        expected = {0: [0.25, 0.0, 0.0, 0.25], 1: [0.75, 1.0, 1.0, 0.75]}
        assert found.tolist() == expected[action]


def test_states_that_the_policy_does_not_know_are_listed() -> None:
    log = log_of(["x", "p", "q", "x"], [0, 0, 0, 0])
    with pytest.raises(rw.InputError) as error:
        rw.TablePolicy({"x": {0: 1.0}, "unused": {0: 1.0}}).probabilities(log)
    assert error.value.exit_code == 3
    [fault] = error.value.faults
    assert (fault.code, fault.count, fault.total) == ("unknown-state", 2, 3)
    assert [place.value for place in fault.places] == ["p", "q"]
    for part in ("column 'state'", "row 2, episode 0, step 1: value 'p'", "2 of 3 states", "add"):
        assert part in str(error.value)


def test_a_step_that_the_policy_does_not_know_is_refused() -> None:
    with pytest.raises(rw.InputError, match="every state and step") as error:
        rw.TablePolicy(np.full((1, 2, 2), 0.5)).probabilities(LOG)
    assert error.value.faults[0].places[0].step == 1


def test_a_table_has_no_densities() -> None:
    log = rw.log_from_arrays([[0, 0]], [[0.5]], [[1.0]], [[2.0]], continuous_actions=True)
    with pytest.raises(rw.UsageError, match="densities"):
        rw.TablePolicy({0: {0: 1.0}}).probabilities(log)


@pytest.mark.parametrize("off", [0.04, -0.04, 2e-6, -2e-6])
def test_rows_that_do_not_sum_to_one_are_refused(off: float) -> None:
    with pytest.raises(rw.InputError) as error:
        rw.TablePolicy({"x": {"l": 0.5, "r": 0.5 + off}, "y": {"l": 1.0}})
    [fault] = error.value.faults
    assert (fault.code, fault.count, fault.total) == ("row-sum", 1, 2)
    assert "state 'x'" in str(fault)
    assert str(1 + off)[:6] in str(fault)
    assert "sum to 1" in str(fault)


@pytest.mark.parametrize("off", [5e-7, -5e-7, 2e-9])
def test_rows_that_nearly_sum_to_one_are_normalized_with_a_warning(off: float) -> None:
    log = log_of(["x", "x"], ["l", "r"])
    with pytest.warns(rw.InputWarning, match="1 of 2 rows"):
        policy = rw.TablePolicy({"x": {"l": 0.5, "r": 0.5 + off}, "y": {"l": 1.0}})
    assert sum(by_row(policy, log)) == pytest.approx(1, abs=1e-15)
    assert by_row(policy, log)[0] == pytest.approx(0.5 / (1 + off), abs=1e-15)


@pytest.mark.parametrize("off", [0.0, 1e-10, -1e-10])
def test_rows_that_sum_to_one_up_to_rounding_are_left_alone(off: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy = rw.TablePolicy({"x": {"l": 0.5, "r": 0.5 + off}})
    assert by_row(policy, log_of(["x", "x"], ["l", "r"])) == [0.5, 0.5 + off]


@pytest.mark.parametrize("way", ["array", "pyarrow", "pandas"])
@pytest.mark.parametrize(("off", "fine"), [(5e-5, True), (5e-4, False)])
def test_single_precision_is_given_more_room(way: str, off: float, fine: bool) -> None:
    probs = np.array([0.5, 0.5 + off], np.float32)
    columns = {"state": [0, 0], "action": [0, 1], "prob": probs}
    table: Any = probs[None, :]
    if way != "array":
        table = pa.table(columns) if way == "pyarrow" else pd.DataFrame(columns)
    if fine:
        with pytest.warns(rw.InputWarning, match="normalized"):
            policy = rw.TablePolicy(table)
        assert sum(by_row(policy, log_of([0, 0], [0, 1]))) == pytest.approx(1, abs=1e-15)
    else:
        with pytest.raises(rw.InputError, match="sum to 1"):
            rw.TablePolicy(table)


NAN = float("nan")
BAD_TABLES: dict[str, tuple[Any, str, list[str]]] = {
    "negative": ({0: {0: -0.5, 1: 1.5}}, "probability-range", ["-0.5", "state 0, action 0"]),
    "above one": ({0: {0: 1.5}}, "probability-range", ["1.5", "[0, 1]"]),
    "not a number": ({0: {0: NAN, 1: 1.0}}, "probability-range", ["nan", "state 0"]),
    "nothing": ({0: {0: None, 1: 1.0}}, "probability-range", ["state 0"]),
    "infinite": (np.array([[np.inf, 0.0]]), "probability-range", ["inf"]),
    "twice in a mapping": ({0: {0: 1.0}, "0": {0: 1.0}}, "duplicate-entry", ["state 0"]),
    "twice in a frame": (
        pd.DataFrame({"state": [0, 0, 0], "action": [0, 1, 1], "prob": [0.5, 0.5, 0.5]}),
        "duplicate-entry",
        ["row 3", "state 0, action 1"],
    ),
    "null probability": (
        pa.table({"state": [0, 0], "action": [0, 1], "prob": [1.0, None]}),
        "probability-range",
        ["row 2"],
    ),
    "null action": (
        pa.table({"state": [0, 0], "action": [0, None], "prob": [0.5, 0.5]}),
        "null",
        ["'action'", "row 2"],
    ),
    "float states": (
        pd.DataFrame({"state": [0.5, 1.5], "action": [0, 0], "prob": [1.0, 1.0]}),
        "type",
        ["'state'", "integers or text"],
    ),
    "float steps": (
        pd.DataFrame({"state": [0], "action": [0], "prob": [1.0], "step": [0.5]}),
        "type",
        ["'step'"],
    ),
    "no column prob": (
        pd.DataFrame({"state": [0], "action": [0], "probability": [1.0]}),
        "missing-column",
        ["'prob'", "did you mean 'probability'?"],
    ),
    "no rows": (pa.table({"state": [], "action": [], "prob": []}), "empty", ["no rows"]),
    "one step wrong": (
        np.array([[[0.5, 0.5]], [[0.5, 0.4]]]),
        "row-sum",
        ["step 1", "0.9", "1 of 2"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_TABLES)
def test_a_broken_table_is_refused_with_the_place(what: str) -> None:
    table, code, words = BAD_TABLES[what]
    with pytest.raises(rw.InputError) as error:
        rw.TablePolicy(table)
    assert error.value.exit_code == 3
    assert code in [fault.code for fault in error.value.faults]
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("way", ["csv", "pandas", "polars"])
def test_a_probability_that_is_a_word_is_named_with_its_row(way: str, tmp_path: Path) -> None:
    columns: dict[str, list[Any]] = {
        "state": [0, 0],
        "action": [0, 1],
        "prob": ["0.5", "oops"],
    }
    table: Any = {"pandas": pd.DataFrame, "polars": pl.DataFrame}.get(way, dict)(columns)
    if way == "csv":
        table = written(tmp_path, "policy.csv", columns)
    with pytest.raises(rw.InputError) as error:
        rw.read_policy(table)
    assert "oops" in str(error.value)
    assert "row 2" in str(error.value)
    assert "policy" in str(error.value)


USAGE: dict[str, Any] = {
    "empty mapping": {},
    "mapping of numbers": {0: 1.0},
    "float states": {0.5: {0: 1.0}},
    "one axis": np.array([0.5, 0.5]),
    "four axes": np.full((1, 1, 1, 2), 0.5),
    "an array of texts": np.array([["a", "b"]]),
    "an empty array": np.zeros((0, 2)),
    "no table": 3,
    "words as probabilities": {0: {0: "one"}},
    "a ragged list": [[0.5, 0.5], [1.0]],
}


@pytest.mark.parametrize("what", USAGE)
def test_what_is_no_table_is_refused_on_purpose(what: str) -> None:
    with pytest.raises(rw.ReweighError) as error:
        rw.TablePolicy(USAGE[what])
    assert error.value.exit_code in (2, 3)


@pytest.mark.parametrize("steps", [[0, -1], [-1, -1]])
def test_negative_steps_of_a_policy_are_refused(steps: list[int]) -> None:
    columns = {"state": [0, 1], "action": [0, 0], "prob": [1.0, 1.0], "step": steps}
    with pytest.raises(rw.InputError, match="step"):
        rw.TablePolicy(pd.DataFrame(columns))


def test_a_missing_policy_file_is_a_resource_error(tmp_path: Path) -> None:
    with pytest.raises(rw.ResourceError) as error:
        rw.read_policy(tmp_path / "no.csv")
    assert error.value.exit_code == 6


# fingerprints

SAME: dict[str, Any] = {
    "the other order": {1: {1: 1.0}, 0: {1: 0.75, 0: 0.25}},
    "pairs": {(1, 1): 1.0, (0, 1): 0.75, (0, 0): 0.25},
    "texts": {"0": {"0": 0.25, "1": 0.75}, "1": {"1": 1.0}},
    "frame": pd.DataFrame(ENTRIES).sample(frac=1, random_state=1),
    "zeros written out": np.array([[0.25, 0.75], [0.0, 1.0]]),
}
OTHER: dict[str, Any] = {
    "another number": {0: {0: 0.5, 1: 0.5}, 1: {1: 1.0}},
    "another action": {0: {0: 0.25, 1: 0.75}, 1: {0: 1.0}},
    "another state": {0: {0: 0.25, 1: 0.75}, 2: {1: 1.0}},
    "states swapped": {1: {0: 0.25, 1: 0.75}, 0: {1: 1.0}},
    "one state more": {0: {0: 0.25, 1: 0.75}, 1: {1: 1.0}, 2: {1: 1.0}},
    "only the first step": np.array([[[0.25, 0.75], [0.0, 1.0]]]),
    "two steps": np.array([[[0.25, 0.75], [0.0, 1.0]]] * 2),
}
ORIGINAL = {0: {0: 0.25, 1: 0.75}, 1: {1: 1.0}}


@pytest.mark.parametrize("what", SAME)
def test_the_same_policy_has_the_same_fingerprint(what: str) -> None:
    assert rw.TablePolicy(SAME[what]).fingerprint() == rw.TablePolicy(ORIGINAL).fingerprint()


@pytest.mark.parametrize("what", OTHER)
def test_another_policy_has_another_fingerprint(what: str) -> None:
    assert rw.TablePolicy(OTHER[what]).fingerprint() != rw.TablePolicy(ORIGINAL).fingerprint()


def test_a_zero_entry_of_an_action_unseen_elsewhere_changes_no_policy() -> None:
    with_zero = rw.TablePolicy({0: {"a": 1.0, "b": 0.0}})
    assert with_zero.fingerprint() == rw.TablePolicy({0: {"a": 1.0}}).fingerprint()


def test_the_order_of_random_tables_does_not_show_in_their_fingerprint() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        table = rng.dirichlet(np.ones(3), size=(2, 4))
        t, s, a = np.indices(table.shape).reshape(3, -1)
        frame = pd.DataFrame({"step": t, "state": s, "action": a, "prob": table.reshape(-1)})
        mixed = rw.TablePolicy(frame.sample(frac=1, random_state=rng.integers(2**31)))
        assert mixed.fingerprint() == rw.TablePolicy(table).fingerprint()


@pytest.mark.parametrize(
    "table",
    [
        ORIGINAL,
        {None: {"l": 1.0}, "x": {"l": 0.5, "r": 0.5}},
        {("n", 1): {0: 1.0}, ("s", 2): {1: 1.0}},
        np.array([[[0.25, 0.75]], [[1.0, 0.0]]]),
    ],
    ids=["plain", "hidden", "pairs", "steps"],
)
def test_a_policy_comes_back_from_its_table(table: Any, tmp_path: Path) -> None:
    policy = rw.TablePolicy(table)
    out = policy.to_table()
    state = [name for name in out.column_names if name.startswith("state")]
    pq.write_table(out, tmp_path / "policy.parquet")
    again = rw.read_policy(tmp_path / "policy.parquet", state=state)
    assert again.fingerprint() == policy.fingerprint()


def test_a_table_says_what_it_is() -> None:
    assert repr(rw.TablePolicy(ORIGINAL)) == "TablePolicy(2 states, 2 actions)"
    assert "2 steps" in repr(rw.TablePolicy(np.full((2, 3, 2), 0.5)))
