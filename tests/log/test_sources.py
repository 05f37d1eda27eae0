"""One log, many ways in: files, lists, folders, patterns and tables give the same steps."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import reweigh as rw

from .samples import (
    COLUMNS,
    EVERY_ROLE,
    ROLES,
    assert_same_log,
    csv_file,
    csv_text,
    states_by_row,
    table,
)

SHUFFLED = [4, 0, 3, 2, 5, 1]


def _csv(data: pa.Table, folder: Path) -> Path:
    return csv_file(folder / "log.csv", data.to_pydict())


def _gzip(data: pa.Table, folder: Path) -> Path:
    path = folder / "log.csv.gz"
    path.write_bytes(gzip.compress(csv_text(data.to_pydict()).encode()))
    return path


def _parquet(data: pa.Table, folder: Path) -> Path:
    path = folder / "log.parquet"
    pq.write_table(data, path, row_group_size=2)
    return path


def _shards(data: pa.Table, folder: Path) -> list[Path]:
    paths = [folder / "b.parquet", folder / "a.parquet"]
    for path, part in zip(paths, (data.slice(0, 2), data.slice(2)), strict=True):
        pq.write_table(part, path)
    return paths


def _csv_shards(data: pa.Table, folder: Path) -> list[str]:
    parts = (data.slice(0, 2), data.slice(2))
    return [str(csv_file(folder / f"{i}.csv", p.to_pydict())) for i, p in enumerate(parts)]


def _directory(data: pa.Table, folder: Path) -> Path:
    (folder / "day=1").mkdir()
    pq.write_table(data.slice(0, 2), folder / "day=1" / "part.parquet")
    pq.write_table(data.slice(2), folder / "part.parquet")
    (folder / "_SUCCESS").touch()
    return folder


def _pattern(data: pa.Table, folder: Path) -> str:
    _shards(data, folder)
    pq.write_table(data.slice(0, 0), folder / "other.parquet")
    return str(folder / "[ab].parquet")


WAYS: dict[str, Callable[[pa.Table, Path], Any]] = {
    "csv": _csv,
    "csv path as text": lambda data, folder: str(_csv(data, folder)),
    "gzip": _gzip,
    "parquet": _parquet,
    "list of parquet": _shards,
    "list of csv": _csv_shards,
    "directory": _directory,
    "pattern": _pattern,
    "pandas": lambda data, folder: data.to_pandas(),
    "pandas with arrow types": lambda data, folder: data.to_pandas(types_mapper=pd.ArrowDtype),
    "polars": lambda data, folder: pl.from_arrow(data),
    "record batch": lambda data, folder: data.to_batches()[0],
    "chunked table": lambda data, folder: pa.concat_tables([data.slice(0, 2), data.slice(2)]),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("order", [list(range(6)), SHUFFLED], ids=["sorted", "shuffled"])
def test_every_way_in_gives_the_same_log(way: str, order: list[int], tmp_path: Path) -> None:
    data = table(EVERY_ROLE)
    expected = rw.read_log(data, **ROLES)
    log = rw.read_log(WAYS[way](data.take(order), tmp_path), **ROLES)
    assert_same_log(log, expected)
    np.testing.assert_array_equal(log.column("target_prob"), expected.column("target_prob"))


def test_the_numbers_of_the_description_are_those_of_the_rows() -> None:
    about = rw.read_log(table(EVERY_ROLE), **ROLES, discount=0.5).describe()
    expected = {
        "episodes": 2,
        "rows": 6,
        "horizon": 3,
        "discount": 0.5,
        "states": 3,
        "state_columns": ["state"],
        "abstraction": None,
        "actions": 2,
        "continuous_actions": False,
        "hidden_rows": 0,
        "terminated_early": 0,
        "truncated": 0,
        "reward_range": [0.0, 2.0],
        "behavior_prob_range": [0.25, 0.75],
        "behavior_prob_from": "logged",
        "mean_return": ((1 + 0 + 0.5) + (1 + 0.25 + 0)) / 2,
        "notes": [],
    }
    assert {name: about[name] for name in expected} == expected


def test_columns_without_a_role_are_left_alone_until_asked_for(tmp_path: Path) -> None:
    path = csv_file(tmp_path / "log.csv", {**COLUMNS, "pi": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]})
    log = rw.read_log(path)
    by_row = dict(zip(states_by_row(log), log.column("pi").tolist(), strict=True))
    assert by_row == {
        ("a", 0): 0.1,
        ("a", 1): 0.2,
        ("a", 2): 0.3,
        ("b", 0): 0.4,
        ("b", 1): 0.5,
        ("b", 2): 0.6,
    }


@pytest.mark.parametrize("name", ["reward", "behavior_prob", "step"])
@pytest.mark.parametrize("way", ["pyarrow", "polars", "pandas"])
def test_numbers_of_a_table_in_memory_are_not_copied(way: str, name: str) -> None:
    data = table()
    if way == "pyarrow":
        given, address = data, data.column(name).chunk(0).buffers()[1].address
    elif way == "polars":
        given = pl.from_arrow(data)
        address = given[name].to_arrow().buffers()[1].address
    else:
        given = data.to_pandas()
        address = given[name].to_numpy().ctypes.data
    kept = rw.read_log(given).source.column(name).chunk(0).buffers()[1]
    assert kept.address == address


def test_the_user_s_table_is_not_modified() -> None:
    frame = table(EVERY_ROLE).take(SHUFFLED).to_pandas()
    before = frame.copy(deep=True)
    rw.read_log(frame, **ROLES)
    pd.testing.assert_frame_equal(frame, before)


@pytest.mark.parametrize("name", ["log[1].csv", "log*.csv", "log?.csv", "{a,b}.csv"])
def test_a_file_whose_name_looks_like_a_pattern_is_that_file(name: str, tmp_path: Path) -> None:
    csv_file(tmp_path / name)
    other = {**COLUMNS, "reward": [9.0] * 6}
    for lure in ("log1.csv", "logs.csv", "a.csv"):
        csv_file(tmp_path / lure, other)
    assert_same_log(rw.read_log(str(tmp_path / name)), rw.read_log(table()))


def test_shards_of_which_one_has_texts_and_one_whole_numbers_are_one_log(tmp_path: Path) -> None:
    states = ["1", "2", "3", "1", "end", "2"]
    whole = csv_file(tmp_path / "whole.csv", {**COLUMNS, "state": states})
    parts = [
        csv_file(
            tmp_path / f"{i}.csv",
            {name: values[rows] for name, values in {**COLUMNS, "state": states}.items()},
        )
        for i, rows in enumerate((slice(0, 3), slice(3, 6)))
    ]
    assert states_by_row(rw.read_log(parts)) == states_by_row(rw.read_log(whole))


def test_a_shard_whose_optional_column_is_empty_is_read(tmp_path: Path) -> None:
    numbers = {**COLUMNS, "state": [1, 2, 3, 1, 3, 2]}
    first = {name: values[:3] for name, values in numbers.items()}
    second = {name: values[3:] for name, values in numbers.items()}
    parts = [
        csv_file(tmp_path / "1.csv", {**first, "next_state": [2, 3, 1]}),
        csv_file(tmp_path / "2.csv", {**second, "state": [None] * 3, "next_state": [None] * 3}),
    ]
    log = rw.read_log(parts, next_state="next_state", hidden="allow")
    assert list(states_by_row(log).values()) == ["1", "?", "2", "?", "3", "?"]


@pytest.mark.parametrize("wrong", [None, 3, {"state": [1]}, [], [1], b"log.csv"], ids=repr)
def test_what_is_no_table_and_no_path_is_a_usage_error(wrong: object) -> None:
    with pytest.raises(rw.UsageError) as error:
        rw.read_log(wrong)
    assert error.value.exit_code == 2


def test_a_fault_in_the_second_file_names_the_file_and_its_own_row(tmp_path: Path) -> None:
    first = {name: values[:3] for name, values in COLUMNS.items()}
    second = {name: values[3:] for name, values in COLUMNS.items()}
    parts = [
        csv_file(tmp_path / "one.csv", first),
        csv_file(tmp_path / "two.csv", {**second, "reward": [1.0, "inf", 0.0]}),
    ]
    with pytest.raises(rw.InputError) as error:
        rw.read_log(parts)
    [fault] = error.value.faults
    place = fault.places[0]
    assert (place.file, place.row, place.line, place.episode, place.step) == (
        "two.csv",
        2,
        3,
        "b",
        1,
    )
    assert "file 'two.csv', row 2 (line 3)" in str(error.value)


def test_an_unreadable_number_in_the_second_file_names_the_file_too(tmp_path: Path) -> None:
    first = {name: values[:3] for name, values in COLUMNS.items()}
    second = {name: values[3:] for name, values in COLUMNS.items()}
    parts = [
        csv_file(tmp_path / "one.csv", first),
        csv_file(tmp_path / "two.csv", {**second, "reward": [1.0, "oops", 0.0]}),
    ]
    with pytest.raises(rw.InputError) as error:
        rw.read_log(parts)
    assert "two.csv" in str(error.value)
    assert "'oops'" in str(error.value)
