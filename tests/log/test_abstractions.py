"""State abstraction: what makes states of columns, what it must return, how it is remembered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reweigh as rw

from .samples import COLUMNS, csv_file, states_by_row, table

XY = {name: values for name, values in COLUMNS.items() if name != "state"} | {
    "x": [0.04, 0.26, -0.74, 0.25, 1.06, 0.95],
    "y": [10.0, 19.0, 21.0, 30.0, 10.0, 20.0],
}
NAN = float("nan")


class Bins:
    """As scikit-learn's transformers are: no call, but transform()."""

    def transform(self, values: Any) -> Any:
        return (values[:, :1] > 0.5).astype(int)

    def __repr__(self) -> str:
        return "Bins(0.5)"


def halves(values: Any) -> Any:
    return np.where(values[:, 0] > 0.5, "high", "low")


# abstraction, state columns, the states of the six rows, what the description says
CASES: dict[str, tuple[Any, Any, list[str], str]] = {
    "rounding": (rw.Rounding(10), "x", ["0", "3", "-7", "2", "11", "10"], "Rounding(scale=10"),
    "rounding two columns alike": (
        rw.Rounding(0.1),
        ["x", "y"],
        ["(0, 1)", "(0, 2)", "(0, 2)", "(0, 3)", "(0, 1)", "(0, 2)"],
        "Rounding(scale=0.1)",
    ),
    "rounding each column": (
        rw.Rounding([1, 0.1]),
        ["x", "y"],
        ["(0, 1)", "(0, 2)", "(-1, 2)", "(0, 3)", "(1, 1)", "(1, 2)"],
        "Rounding(scale=(1.0, 0.1))",
    ),
    "grid": (rw.Grid([0.0, 0.25, 1]), "x", ["1", "2", "0", "2", "3", "2"], "Grid(edges="),
    "grid per column": (
        rw.Grid([[0.5], [20, 30]]),
        ["x", "y"],
        ["(0, 0)", "(0, 0)", "(0, 1)", "(0, 2)", "(1, 0)", "(1, 1)"],
        "Grid(edges=((0.5,), (20.0, 30.0)))",
    ),
    "function": (halves, "x", ["low", "low", "low", "low", "high", "high"], "halves"),
    "transformer": (Bins(), "x", ["0", "0", "0", "0", "1", "1"], "Bins(0.5)"),
    "truth values": (lambda v: v[:, 0] > 0.5, "x", ["0", "0", "0", "0", "1", "1"], "lambda"),
    "whole floats": (lambda v: np.sign(v[:, 0]), "x", ["1", "1", "-1", "1", "1", "1"], "lambda"),
}
KEYS = [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("b", 2)]


@pytest.mark.parametrize("what", CASES)
@pytest.mark.parametrize("way", ["csv", "table"])
def test_an_abstraction_makes_the_states_and_is_remembered(
    what: str, way: str, tmp_path: Path
) -> None:
    abstraction, columns, states, text = CASES[what]
    data: Any = table(XY) if way == "table" else csv_file(tmp_path / "log.csv", XY)
    log = rw.read_log(data, state=columns, abstraction=abstraction)
    assert [states_by_row(log)[key] for key in KEYS] == states
    assert text in log.describe()["abstraction"]
    assert log.describe()["states"] == len(set(states))
    assert log.describe()["state_columns"] == ([columns] if isinstance(columns, str) else columns)


def test_integers_and_texts_can_be_abstracted_too() -> None:
    log = rw.read_log(table(state=[10, 25, 31, 11, 39, 20]), abstraction=lambda v: v[:, 0] // 10)
    assert log.states.values == (1, 2, 3)
    log = rw.read_log(table(), abstraction=lambda v: np.array([w.upper() for w in v[:, 0]]))
    assert log.states.values == ("X", "Y", "Z")


def test_next_states_are_abstracted_alike() -> None:
    after = {"x2": [0.3, -0.7, 5.0, 1.1, 1.0, 7.0]}
    log = rw.read_log(
        table({**XY, **after}), state="x", next_state="x2", abstraction=rw.Rounding(10)
    )
    ends = dict(zip(log.steps.episode.tolist(), log.steps.ending.tolist(), strict=True))
    assert {e: log.states.name(code) for e, code in ends.items()} == {"a": "50", "b": "70"}
    with pytest.raises(rw.InputError) as error:
        rw.read_log(
            table({**XY, **after}), state="x", next_state="x2", abstraction=rw.Rounding(100)
        )
    assert [f.code for f in error.value.faults] == ["next-state"]


@pytest.mark.parametrize("bad", [NAN, float("inf"), None])
def test_a_value_that_is_no_number_is_a_fault_before_it_is_abstracted(bad: Any) -> None:
    data = table({**XY, "x": [0.1, 0.2, bad, 0.4, 0.5, 0.6]})
    with pytest.raises(rw.InputError) as error:
        rw.read_log(data, state="x", abstraction=rw.Grid([0.3]))
    [fault] = error.value.faults
    assert (fault.places[0].column, fault.places[0].row) == ("x", 3)


def test_null_values_are_hidden_when_that_is_allowed() -> None:
    data = table({**XY, "x": [0.1, 0.2, None, 0.4, 0.5, 0.6]})
    log = rw.read_log(data, state="x", abstraction=rw.Grid([0.3]), hidden="allow")
    assert [states_by_row(log)[key] for key in KEYS] == ["0", "0", "?", "1", "1", "1"]


WRONG: dict[str, tuple[Any, Any]] = {
    "fewer rows": (lambda v: v[:2, 0].astype(int), "x"),
    "a single state": (lambda v: 3, "x"),
    "no column": (lambda v: np.zeros((len(v), 0), int), "x"),
    "three axes": (lambda v: np.zeros((len(v), 1, 1), int), "x"),
    "fractions": (lambda v: v, "x"),
    "fractions as objects": (lambda v: v[:, 0].astype(object), "x"),
    "infinity": (lambda v: np.where(v[:, 0] > 0.5, np.inf, 0.0), "x"),
    "not a number": (lambda v: np.where(v[:, 0] > 0.5, NAN, 0.0), "x"),
    "none for some rows": (
        lambda v: np.array([None if x > 0.5 else "low" for x in v[:, 0]], object),
        "x",
    ),
    "numbers and texts mixed": (
        lambda v: np.array([1 if x > 0.5 else "low" for x in v[:, 0]], object),
        "x",
    ),
    "times": (lambda v: np.zeros(len(v), "datetime64[s]"), "x"),
    "no function": ("Rounding", "x"),
    "more edges than columns": (rw.Grid([[0.5], [0.5]]), "x"),
    "fewer edges than columns": (rw.Grid([0.5]), ["x", "y"]),
    "more scales than columns": (rw.Rounding([10, 1]), "x"),
    "fewer scales than columns": (rw.Rounding([10]), ["x", "y"]),
    "three scales for two columns": (rw.Rounding([10, 1, 1]), ["x", "y"]),
    "rounding of texts": (rw.Rounding(10), "word"),
    "grid of texts": (rw.Grid([0.5]), "word"),
}


@pytest.mark.parametrize("what", WRONG)
def test_an_abstraction_that_makes_no_states_is_refused(what: str) -> None:
    abstraction, columns = WRONG[what]
    data = table({**XY, "word": list("pqrstu")})
    with pytest.raises(rw.ReweighError) as error:
        rw.read_log(data, state=columns, abstraction=abstraction)
    assert error.value.exit_code in (2, 3)


def test_values_too_large_for_a_whole_number_are_not_merged_silently() -> None:
    data = table({**XY, "x": [1e300, 2e300, -1e300, 1.0, 2.0, 3.0]})
    with pytest.raises(rw.ReweighError):
        rw.read_log(data, state="x", abstraction=rw.Rounding(10))


@pytest.mark.parametrize("scale", [0, -1, NAN, float("inf"), [1, 0], [[1, 2]]])
def test_a_scale_is_positive(scale: Any) -> None:
    with pytest.raises(rw.UsageError, match="'scale' must be"):
        rw.Rounding(scale)


@pytest.mark.parametrize("edges", [[], [2, 1], [1, 1], [0, NAN], [[], [1]], [[1, 0], [1]]])
def test_edges_increase(edges: Any) -> None:
    with pytest.raises(rw.UsageError, match="'edges' must be"):
        rw.Grid(edges)


@pytest.mark.parametrize("scale", [10, np.float64(10), np.int64(10)], ids=repr)
def test_equal_abstractions_have_equal_descriptions(scale: Any) -> None:
    first = rw.read_log(table(XY), state="x", abstraction=rw.Rounding(scale))
    second = rw.read_log(table(XY), state="x", abstraction=rw.Rounding(10.0))
    assert first.describe()["abstraction"] == second.describe()["abstraction"]


def test_a_description_holds_no_address_in_memory() -> None:
    class Plain:
        def transform(self, values: Any) -> Any:
            return values[:, 0] > 0.5

    logs = [rw.read_log(table(XY), state="x", abstraction=Plain()) for _ in range(2)]
    first, second = (log.describe()["abstraction"] for log in logs)
    assert first == second
    assert "Plain" in first
    assert "0x" not in first


def test_moments_of_different_abstractions_are_not_added() -> None:
    target = rw.FunctionPolicy(lambda s, a, t: np.full(len(a), 0.5))
    halves_of = [
        rw.read_log(
            table({**XY, "episode": [f"{scale}{e}" for e in XY["episode"]]}),
            state="x",
            abstraction=rw.Rounding(scale),
        )
        for scale in (10, 1)
    ]
    first, second = (rw.moments(log, target) for log in halves_of)
    with pytest.raises(rw.InputError, match="abstraction"):
        first + second


def test_an_abstracted_log_comes_back_from_its_table_with_its_states() -> None:
    log = rw.read_log(table(XY), state=["x", "y"], abstraction=rw.Rounding([1, 0.1]))
    again = rw.read_log(log.to_table(), state=["state_0", "state_1"])
    assert again.steps.state.tolist() == log.steps.state.tolist()
    assert again.states == log.states
