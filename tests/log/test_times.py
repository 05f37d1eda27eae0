"""The role `time`: what a time is, and how it orders the rows of an episode."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import reweigh as rw
from reweigh.log.times import time_values

from .samples import COLUMNS, assert_same_log, csv_file, table

SECOND = timedelta(microseconds=1)
START = datetime(1970, 1, 1)


def moments(count: int = 2_000, seed: int = 0) -> list[datetime]:
    """Any time from the year 1 on, leap days and the ends of the calendar among them."""
    rng = random.Random(seed)
    span = int((datetime.max - datetime.min) / timedelta(seconds=1))
    drawn = [
        datetime.min + timedelta(seconds=rng.randrange(span), microseconds=rng.randrange(10**6))
        for _ in range(count)
    ]
    leap = [datetime(y, 2, 29, 23, 59, 59) for y in (4, 1600, 1904, 2000, 2024)]
    return [datetime.min, datetime.max, datetime(1900, 3, 1), datetime(2100, 2, 28), *leap, *drawn]


def values_of(cells: Any, kind: Any = None) -> tuple[list, list, list]:
    column = pa.chunked_array([pa.array(cells, kind)])
    return tuple(part.tolist() for part in time_values(column))  # type: ignore[return-value]


def test_texts_are_the_microseconds_of_pythons_calendar() -> None:
    times = moments()
    values, known, zoned = values_of([t.isoformat() for t in times])
    assert values == [(t - START) // SECOND for t in times]
    assert all(known)
    assert not any(zoned)


@pytest.mark.parametrize("hours", [-11.5, -1, 0, 5.75, 14])
def test_an_offset_is_taken_off(hours: float) -> None:
    zone = timezone(timedelta(hours=hours))
    times = [t.replace(tzinfo=zone) for t in moments(200) if 1900 < t.year < 2200]
    values, known, zoned = values_of([t.isoformat() for t in times])
    assert values == [(t - START.replace(tzinfo=UTC)) // SECOND for t in times]
    assert all(known)
    assert all(zoned)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("2024-01-31", "2024-01-31T00:00:00"),
        ("2024-01-31 08:05", "2024-01-31T08:05:00"),
        ("2024-01-31 08:05:00.5", "2024-01-31T08:05:00.500000"),
        ("2024-01-31 08:05:00,123456789", "2024-01-31T08:05:00.123456"),
        ("2024-01-31T08:05:00Z", "2024-01-31T08:05:00+00:00"),
        ("2024-01-31 08:05:00 UTC", "2024-01-31T08:05:00+00:00"),
        ("2024-01-31 08:05:00+02", "2024-01-31T08:05:00+02:00"),
        ("2024-01-31 08:05:00-0330", "2024-01-31T08:05:00-03:30"),
    ],
)
def test_ways_to_write_one_time(text: str, same: str) -> None:
    assert values_of([text]) == values_of([same])


@pytest.mark.parametrize(
    "text",
    ["2023-02-29", "1900-02-29", "2024-04-31", "2024-13-01", "2024-1-5", "24:00", "31/01/2024",
     "2024-01-31 24:00", "2024-01-31 08:60", "2024-01-31T08", "yesterday", "", "1704067200",
     "2024-01-31 08:05:00 CET", "2024-01-31Z"],
)  # fmt: skip
def test_what_is_no_time(text: str) -> None:
    assert values_of([text, "2024-01-31"])[1] == [False, True]


def test_columns_of_every_type_count_up_alike() -> None:
    times = [datetime(2024, 5, 17, 1, 2, 3) + timedelta(seconds=k * k) for k in range(40)]
    seconds = [int((t - START).total_seconds()) for t in times]
    columns = [
        pa.array(times, pa.timestamp("s")),
        pa.array(times, pa.timestamp("ns")),
        pa.array([t.replace(tzinfo=UTC) for t in times], pa.timestamp("ms", "Europe/Berlin")),
    ]
    for column in columns:
        values, known, _ = time_values(pa.chunked_array([column]))
        assert (values // 1_000_000).tolist() == seconds
        assert known.all()
    days = [date(1969, 12, 31), date(1970, 1, 2)]
    for kind in (pa.date32(), pa.date64()):
        assert values_of(days, kind)[0] == [-86_400_000_000, 86_400_000_000]
    values, known, _ = values_of([0.5, np.nan, np.inf, -3.0])
    assert known == [True, False, False, True]
    assert values == [0.5, 0.0, 0.0, -3.0]
    large = values_of([2**63, 5, None], pa.uint64())
    assert large[1] == [False, True, False]


# --- logs in the order of time


def by_time(columns: Any = COLUMNS, seed: int = 3) -> pa.Table:
    """The rows of a log in any order, with a time in the place of the step."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(columns["episode"]))
    made = {name: [values[k] for k in rows] for name, values in columns.items() if name != "step"}
    made["when"] = [f"2024-01-0{1 + columns['step'][k]} 07:00" for k in rows]
    return table(made)


@pytest.mark.parametrize("seed", range(4))
def test_a_log_by_time_is_the_log_by_step(seed: int, tmp_path: Path) -> None:
    by_step = rw.read_log(table())
    log = rw.read_log(by_time(seed=seed), time="when")
    assert log.steps.began is not None
    assert_same_log(rw.read_log(log.to_table()), rw.read_log(by_step.to_table()))
    written = csv_file(tmp_path / "log.csv", by_time(seed=seed).to_pydict())
    assert_same_log(log, rw.read_log(written, time="when"))


def test_numbers_of_a_csv_are_compared_as_numbers(tmp_path: Path) -> None:
    """As texts 10 comes before 9, and 2e0 after 10."""
    for times in ([8, 9, 10, 1, 2, 3], [8.5, 9, 10.25, 1, 2.5, 3], ["8", "9.0", "1e1", 1, 2, 3]):
        columns = {n: v for n, v in COLUMNS.items() if n != "step"} | {"hours": times}
        log = rw.read_log(csv_file(tmp_path / "log.csv", columns), time="hours")
        np.testing.assert_array_equal(log.steps.reward, rw.read_log(table()).steps.reward)


def faults_of(changed: dict[int, Any], **more: Any) -> dict[str, Any]:
    when = ["2024-01-01", "2024-01-02", "2024-01-03"] * 2
    for row, value in changed.items():
        when[row] = value
    columns = {name: values for name, values in COLUMNS.items() if name != "step"}
    with pytest.raises(rw.InputError) as caught:
        rw.read_log(table({**columns, "when": when}), time="when", **more)
    return {fault.code: fault for fault in caught.value.faults}


def test_a_tie_is_an_error_that_names_both_rows() -> None:
    found = faults_of({5: "2024-01-02 00:00"})
    assert list(found) == ["tied-times"]
    fault = found["tied-times"]
    [place] = fault.places
    assert (place.column, place.row, place.episode) == ("when", 6, "b")
    assert place.value == "2024-01-02 00:00"
    assert "row 5" in place.note
    assert "number the rows" in fault.fix
    assert "same time 'when'" in fault.rule


def test_cells_that_are_no_times_are_named_and_blame_no_other_rule() -> None:
    found = faults_of({0: None, 4: "2024-02-30"})
    assert list(found) == ["null", "not-a-time"]
    assert [p.row for p in found["null"].places] == [1]
    assert [(p.row, p.value) for p in found["not-a-time"].places] == [(5, "2024-02-30")]


def test_offsets_in_some_rows_of_an_episode_alone() -> None:
    found = faults_of({1: "2024-01-01T23:30:00Z", 3: "2024-01-01", 4: "2024-01-01"})
    assert found["mixed-times"].places[0].row == 2
    assert found["tied-times"].places[0].row == 5
    whole = {
        k: f"2024-01-0{1 + k % 3}T00:00:00Z" for k in (3, 4, 5)
    }  # one episode with, one without
    columns = {name: values for name, values in COLUMNS.items() if name != "step"}
    when = [whole.get(k, f"2024-01-0{1 + k % 3}") for k in range(6)]
    assert rw.read_log(table({**columns, "when": when}), time="when").n_episodes == 2


def test_a_column_of_another_type_is_refused() -> None:
    columns = {name: values for name, values in COLUMNS.items() if name != "step"}
    with pytest.raises(rw.InputError, match=r"type: .*when.*time"):
        rw.read_log(table({**columns, "when": [True] * 6}), time="when")


def test_a_time_is_never_the_state() -> None:
    with pytest.raises(rw.UsageError, match="named for two roles: state, time"):
        rw.read_log(by_time(), time="when", state="when")
    for kind in (pa.timestamp("us"), pa.date32()):
        when = pa.array([datetime(2024, 1, 1 + k) for k in range(6)]).cast(kind)
        with pytest.raises(rw.InputError, match=r"type: .*when.*state"):
            rw.read_log(table(when=when), state="when")


def test_steps_that_are_named_go_before_the_time() -> None:
    """Then the time tells the order of the episodes alone."""
    log = rw.read_log(table(COLUMNS, when=[9, 9, 1, 4, 4, 4]), step="step", time="when")
    assert_equal_rows = rw.read_log(table())
    np.testing.assert_array_equal(log.steps.reward, assert_equal_rows.steps.reward)
    assert log.steps.began is not None
    assert log.steps.began.tolist() == [9, 4]
    assert log.select(np.array([False, True])).steps.began.tolist() == [4]


def test_the_longest_episode_is_the_horizon_and_short_ones_must_say_why() -> None:
    columns = {name: values[:5] for name, values in COLUMNS.items() if name != "step"}
    data = table({**columns, "when": [3, 4, 5, 1, 2]})
    with pytest.raises(rw.InputError, match="short-episode") as caught:
        rw.read_log(data, time="when")
    [fault] = caught.value.faults
    assert [(p.column, p.row, p.value) for p in fault.places] == [("when", 5, 2)]
    log = rw.read_log(data, time="when", short_episodes="terminal")
    assert (log.horizon, log.n_episodes) == (3, 2)
    assert rw.read_log(data, time="when", horizon=2).steps.n_rows == 4


# --- one row per episode


def test_a_bandit_log_needs_no_step() -> None:
    columns = {name: values for name, values in COLUMNS.items() if name != "step"}
    ids = list("fedcba")
    log = rw.read_log(table({**columns, "episode": ids}), bandit=True)
    by_step = rw.read_log(table({**columns, "episode": ids, "step": [0] * 6}))
    assert_same_log(log, by_step)
    assert log.horizon == 1


def test_an_id_that_comes_again_is_named() -> None:
    with pytest.raises(rw.InputError, match="repeated-episode") as caught:
        rw.read_log(table(), bandit=True)
    [fault] = caught.value.faults
    assert fault.count == 4
    place = fault.places[0]
    assert (place.column, place.row, place.value) == ("episode", 2, "a")
    assert "row 1" in place.note
    with pytest.raises(rw.UsageError, match="leave step out"):
        rw.read_log(table(), bandit=True, step="step")


def test_without_a_step_the_error_names_the_other_ways() -> None:
    columns = {name: values for name, values in COLUMNS.items() if name != "step"}
    with pytest.raises(rw.InputError, match="role step") as caught:
        rw.read_log(table(columns))
    for way in ("step=…", "time=…", "bandit=True"):
        assert way in caught.value.faults[0].fix
