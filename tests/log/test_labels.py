"""States, actions and ids as users have them: integers, texts, truth values, several columns."""

from __future__ import annotations

import random
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import reweigh as rw
from reweigh.log.roles import numbers

from .samples import COLUMNS, csv_file, csv_text, states_by_row, table

KEYS = [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("b", 2)]

# (what the cells are, the words that the six rows must have)
CSV_STATES = {
    "whole numbers": ("1,2,10,1,-3,2", ["1", "2", "10", "1", "-3", "2"]),
    "leading zeros": ("007,7,07,007,7,7", ["007", "7", "07", "007", "7", "7"]),
    "signs": ("+1,1,-0,0,+1,1", ["+1", "1", "-0", "0", "+1", "1"]),
    "decimals as texts": ("1.0,1,1e0,1,1,1", ["1.0", "1", "1e0", "1", "1", "1"]),
    "words for nothing": ("nan,NA,null,None,NaN,N/A", ["nan", "NA", "null", "None", "NaN", "N/A"]),
    "truth words": ("true,false,True,1,0,t", ["true", "false", "True", "1", "0", "t"]),
    "spaces": ("a, a,a ,a,a,a", ["a", " a", "a ", "a", "a", "a"]),
    "case": ("a,A,a,A,a,A", ["a", "A", "a", "A", "a", "A"]),
    "look-alikes": (
        "a,\u0430,\u00e9,e\u0301,a,a",
        ["a", "\u0430", "\u00e9", "e\u0301", "a", "a"],
    ),
    "a comment sign": ("#1,1,#1,1,1,1", ["#1", "1", "#1", "1", "1", "1"]),
}


@pytest.mark.parametrize("what", CSV_STATES)
def test_states_of_a_csv_file_are_kept_as_they_are_written(what: str, tmp_path: Path) -> None:
    cells, words = CSV_STATES[what]
    path = csv_file(tmp_path / "log.csv", {**COLUMNS, "state": cells.split(",")})
    log = rw.read_log(path)
    assert [states_by_row(log)[key] for key in KEYS] == words
    assert len(log.states) == len(set(words))


@pytest.mark.parametrize("what", CSV_STATES)
def test_states_of_a_parquet_file_are_kept_as_they_are_written(what: str, tmp_path: Path) -> None:
    cells, words = CSV_STATES[what]
    pq.write_table(table(state=cells.split(",")), tmp_path / "log.parquet")
    log = rw.read_log(tmp_path / "log.parquet")
    assert [states_by_row(log)[key] for key in KEYS] == words


def test_a_quoted_empty_cell_is_a_state_and_an_empty_cell_is_null(tmp_path: Path) -> None:
    path = csv_file(tmp_path / "log.csv", {**COLUMNS, "state": ["", "x", None, "x", "", "x"]})
    log = rw.read_log(path, hidden="allow")
    assert [states_by_row(log)[key] for key in KEYS] == ["", "x", "?", "x", "", "x"]
    with pytest.raises(rw.InputError) as error:
        rw.read_log(path)
    assert [(f.code, f.count) for f in error.value.faults] == [("null", 1)]


ARROW_STATES: dict[str, tuple[Any, list[str]]] = {
    "int8": (pa.array([-128, 127, 0, 1, 2, 3], pa.int8()), ["-128", "127", "0", "1", "2", "3"]),
    "uint8": (pa.array([255, 0, 1, 2, 3, 4], pa.uint8()), ["255", "0", "1", "2", "3", "4"]),
    "far int64": (
        pa.array([-(2**63), 2**63 - 1, 0, 2**53, 2**53 + 1, 1]),
        [str(-(2**63)), str(2**63 - 1), "0", str(2**53), str(2**53 + 1), "1"],
    ),
    "large uint64": (
        pa.array([2**63 + i for i in range(6)], pa.uint64()),
        [str(2**63 + i) for i in range(6)],
    ),
    "wide uint64": (
        pa.array([0, 2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1, 5], pa.uint64()),
        [str(v) for v in (0, 2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1, 5)],
    ),
    "large text": (pa.array(list("abcabc"), pa.large_string()), list("abcabc")),
    "text view": (pa.array(list("abcabc"), pa.string_view()), list("abcabc")),
    "dictionary of texts": (pa.array(list("abcabc")).dictionary_encode(), list("abcabc")),
    "dictionary of numbers": (
        pa.array([3, 10, 3, 2, 10, 2]).dictionary_encode(),
        ["3", "10", "3", "2", "10", "2"],
    ),
    "dictionary of uint32 keys": (
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 0, 1, 0, 1], pa.uint32()), ["p", "q"]),
        ["p", "q", "p", "q", "p", "q"],
    ),
    "dictionary with a word unused and one twice": (
        pa.DictionaryArray.from_arrays(pa.array([0, 2, 0, 2, 3, 3]), ["p", "unused", "q", "p"]),
        ["p", "q", "p", "q", "p", "p"],
    ),
}


@pytest.mark.parametrize("what", ARROW_STATES)
def test_states_of_any_arrow_type_keep_their_value(what: str) -> None:
    column, words = ARROW_STATES[what]
    log = rw.read_log(table(state=column))
    assert [states_by_row(log)[key] for key in KEYS] == words
    assert len(log.states) == len(set(words))


@pytest.mark.parametrize("what", ["polars categorical", "polars enum", "pandas categorical"])
def test_categories_of_frames_are_states(what: str) -> None:
    if what == "pandas categorical":
        frame: Any = table().to_pandas().astype({"state": "category"})
    else:
        kind = pl.Categorical if what == "polars categorical" else pl.Enum(["z", "y", "x"])
        frame = pl.from_arrow(table()).with_columns(pl.col("state").cast(kind))
    assert states_by_row(rw.read_log(frame)) == states_by_row(rw.read_log(table()))


@pytest.mark.parametrize("way", ["pandas", "polars", "pandas categorical"])
def test_truth_values_are_the_same_two_states_from_every_frame(way: str) -> None:
    truths = [True, False, False, True, True, False]
    expected = rw.read_log(table(state=truths))
    assert [str(value) for value in expected.states.values] == ["0", "1"]
    frame = table(state=truths).to_pandas()
    if way == "pandas categorical":
        frame["state"] = pd.Categorical(truths)
    log = rw.read_log(pl.from_pandas(frame) if way == "polars" else frame)
    assert log.steps.state.tolist() == expected.steps.state.tolist()
    assert log.digest() == expected.digest()


IDS: dict[str, list[Any]] = {
    "text": ["007", "7"],
    "spaces": ["a", "a "],
    "look-alikes": ["\u00e9", "e\u0301"],
    "far apart": [-(2**63), 2**63 - 1],
    "beyond floats": [2**53, 2**53 + 1],
    "one NUL more": ["a", "a\0"],
}


@pytest.mark.parametrize("what", IDS)
def test_episode_ids_are_kept_apart_and_exact(what: str) -> None:
    ids = IDS[what]
    log = rw.read_log(table(episode=[ids[0]] * 3 + [ids[1]] * 3))
    assert sorted(log.steps.episode.tolist()) == sorted(ids)
    assert len(set(log.to_table().column("episode").to_pylist())) == 2


@pytest.mark.parametrize("ids", [[2**63 + 1, 2**63 + 2], [1, 2**64 - 1]], ids=["near", "far"])
def test_unsigned_episode_ids_are_kept_exact(ids: list[int]) -> None:
    log = rw.read_log(table(episode=pa.array([ids[0]] * 3 + [ids[1]] * 3, pa.uint64())))
    assert sorted(log.steps.episode.tolist()) == ids


STEPS: dict[str, Any] = {
    **{str(kind): pa.array([0, 1, 2, 0, 1, 2], kind) for kind in (pa.int8(), pa.int16())},
    **{
        str(kind): pa.array([0, 1, 2, 0, 1, 2], kind)
        for kind in (pa.uint8(), pa.uint32(), pa.uint64())
    },
    "dictionary": pa.array([0, 1, 2, 0, 1, 2]).dictionary_encode(),
}


@pytest.mark.parametrize("kind", STEPS)
def test_steps_may_be_whole_numbers_of_any_type(kind: str) -> None:
    log = rw.read_log(table(step=STEPS[kind]))
    assert log.steps.step.tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("name", ["reward", "behavior_prob"])
@pytest.mark.parametrize(
    "kind", [pa.int32(), pa.uint8(), pa.float32(), pa.decimal128(21, 2)], ids=str
)
def test_numbers_of_any_type_are_read_as_numbers(kind: pa.DataType, name: str) -> None:
    log = rw.read_log(table(**{name: pa.array([1, 1, 1, 1, 1, 1]).cast(kind, safe=False)}))
    assert getattr(log.steps, name).dtype == np.float64
    assert getattr(log.steps, name).tolist() == [1.0] * 6


@pytest.mark.parametrize("scale", [-40, -2, 0, 1, 4, 17, 38, 60])
@pytest.mark.parametrize("digits", [3, 12, 19, 38])
def test_decimals_are_read_as_the_nearest_float(digits: int, scale: int) -> None:
    rng = random.Random(digits * 100 + scale)
    whole = [rng.randrange(-(10**digits) + 1, 10**digits) for _ in range(200)]
    column = pa.array([Decimal(v) for v in whole], pa.decimal128(38)).view(pa.decimal128(38, scale))
    exact = [float(Decimal(v).scaleb(-scale, Context(prec=50))) for v in whole]
    assert numbers(pa.chunked_array([column]), "reward").tolist() == exact


SEVERAL = {
    name: values for name, values in COLUMNS.items() if name != "state"
} | {"ward": ["n", "n", "s", "s", "n", "s"], "beds": [1, 2, 1, 2, 1, 11]}  # fmt: skip


@pytest.mark.parametrize("way", ["csv", "table"])
def test_several_columns_make_one_state(way: str, tmp_path: Path) -> None:
    data: Any = table(SEVERAL) if way == "table" else csv_file(tmp_path / "log.csv", SEVERAL)
    log = rw.read_log(data, state=["ward", "beds"])
    assert log.describe()["state_columns"] == ["ward", "beds"]
    assert set(log.states.values) == {("n", 1), ("n", 2), ("s", 1), ("s", 2), ("s", 11)}
    assert states_by_row(log)["b", 2] == "('s', 11)"


def test_pairs_of_texts_that_join_to_the_same_text_are_two_states() -> None:
    first = ["a", "a,b", "a", "a,b", "a", "a"]
    second = ["b,c", "c", "b,c", "c", "b,c", "b,c"]
    data = table({**SEVERAL, "ward": first, "beds": second})
    assert len(rw.read_log(data, state=["ward", "beds"]).states) == 2


def test_a_state_is_hidden_where_any_of_its_columns_is_null() -> None:
    data = table(
        {**SEVERAL, "ward": ["n", None, "s", "s", "n", "s"], "beds": [1, 2, 1, None, 1, 1]}
    )
    log = rw.read_log(data, state=["ward", "beds"], hidden="allow")
    hidden = {key for key, name in states_by_row(log).items() if name == "?"}
    assert hidden == {("a", 1), ("b", 0)}
    assert log.describe()["hidden_rows"] == 2


def test_a_function_sees_numbers_and_texts_of_a_state_of_several_columns() -> None:
    seen: list[Any] = []

    def half(state: Any, action: Any, step: Any) -> Any:
        seen.append(state)
        return np.full(len(action), 0.5)

    log = rw.read_log(table(SEVERAL), state=["ward", "beds"])
    rw.FunctionPolicy(half).probabilities(log)
    assert tuple(seen[0][0].tolist()) == ("n", 1)


@pytest.mark.parametrize("actions", [[0, 1, 0, 2, 0, 1], ["007", "7", "7", "007", "7", "7"]])
def test_actions_are_integers_or_texts(actions: list[Any], tmp_path: Path) -> None:
    for data in (
        table(action=actions),
        csv_file(tmp_path / "log.csv", {**COLUMNS, "action": actions}),
    ):
        log = rw.read_log(data)
        assert log.describe()["actions"] == len(set(actions))
        assert sorted(log.raw_actions().tolist()) == sorted(actions)


@pytest.mark.parametrize("way", ["csv", "table"])
def test_continuous_actions_are_numbers_with_densities(way: str, tmp_path: Path) -> None:
    columns = {
        **COLUMNS,
        "action": [0.25, -1.5, 3.0, 2.0, 0.125, 7.0],
        "behavior_prob": [0.5, 2.5, 11.0, 1.0, 1e-9, 3.0],
    }
    data: Any = table(columns) if way == "table" else csv_file(tmp_path / "log.csv", columns)
    log = rw.read_log(data, continuous_actions=True)
    assert log.continuous_actions
    assert log.describe()["actions"] is None
    assert log.steps.action.tolist() == [0.25, 2.0, -1.5, 0.125, 3.0, 7.0]
    assert log.describe()["behavior_prob_range"] == [1e-9, 11.0]


@pytest.mark.parametrize("way", ["csv", "table"])
def test_continuous_states_say_that_an_abstraction_is_needed(way: str, tmp_path: Path) -> None:
    columns = {**COLUMNS, "state": [0.125, 0.25, 0.375, -0.5, 1e-9, 0.625]}
    data: Any = table(columns) if way == "table" else csv_file(tmp_path / "log.csv", columns)
    with pytest.raises(rw.RefusedError) as error:
        rw.read_log(data)
    assert error.value.exit_code == 4
    for part in ("'state'", "6 of 6", "Rounding", "Grid"):
        assert part in str(error.value)


def test_whole_numbers_among_the_fractions_of_a_csv_file_make_no_table_either(
    tmp_path: Path,
) -> None:
    columns = {**COLUMNS, "state": ["0.125", "1", "0.375", "2", "1e-9", ".625"]}
    with pytest.raises(rw.RefusedError, match="6 of 6"):
        rw.read_log(csv_file(tmp_path / "log.csv", columns))


def test_a_late_change_of_type_in_a_csv_file_changes_no_cell(tmp_path: Path) -> None:
    n = 3000
    rows = {
        "episode": [str(i) for i in range(n)],
        "step": [0] * n,
        "state": ["1"] * (n - 1) + ["1.5"],
        "action": ["0"] * n,
        "reward": ["1"] * (n - 1) + ["0.4"],
        "behavior_prob": ["1"] * n,
    }
    path = tmp_path / "log.csv"
    path.write_text(csv_text(rows))
    log = rw.read_log(path)
    assert log.states.values == ("1", "1.5")
    assert log.steps.reward.min() == 0.4
