"""The log's contract: every fault is named with its place, its rule and what to do."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import reweigh as rw

from .samples import COLUMNS, EVERY_ROLE, ROLES, csv_file, table, with_cell


@dataclass(frozen=True)
class Broken:
    """One cell of a good log, changed, and the fault that it must give."""

    column: str
    row: int  # of the data, from 0
    value: object
    code: str
    rule: str
    fix: str
    alone: bool = True  # no other fault follows from this one
    note: str = ""

    def __str__(self) -> str:
        return f"{self.column}={self.value!r}"


NAN, INF = float("nan"), float("inf")
BROKEN = [
    Broken("episode", 3, None, "null", "must not be null", "fill in", alone=False),
    Broken("step", 5, None, "null", "must not be null", "fill in", alone=False),
    Broken("state", 4, None, "null", "must not be null", 'hidden="allow"'),
    Broken("action", 4, None, "null", "must not be null", "fill in"),
    Broken("reward", 4, None, "null", "must not be null", "leave this episode out"),
    Broken("behavior_prob", 4, None, "null", "must not be null", "fill in"),
    Broken("target_prob", 4, None, "null", "must not be null", "fill in"),
    Broken("terminated", 4, None, "null", "must not be null", "fill in"),
    Broken("truncated", 4, None, "null", "must not be null", "fill in"),
    Broken("next_state", 0, None, "null", "must not be null", "state of the next row"),
    Broken("reward", 4, NAN, "not-finite", "finite number", "real number"),
    Broken("reward", 0, -INF, "not-finite", "finite number", "real number"),
    Broken("behavior_prob", 4, NAN, "not-finite", "finite number", "real number"),
    Broken("behavior_prob", 4, INF, "not-finite", "finite number", "real number"),
    Broken("target_prob", 4, NAN, "not-finite", "finite number", "real number"),
    Broken("behavior_prob", 4, 0.0, "probability-range", "(0, 1]", "cannot be 0"),
    Broken("behavior_prob", 4, 1e-310, "probability-range", "(0, 1]", "below 1e-300"),
    Broken("behavior_prob", 4, -0.25, "probability-range", "(0, 1]", "logged action"),
    Broken("behavior_prob", 4, 1.0432, "probability-range", "(0, 1]", "continuous_actions=True"),
    Broken("target_prob", 4, -1e-9, "probability-range", "[0, 1]", "logged action"),
    Broken("target_prob", 4, 1.5, "probability-range", "[0, 1]", "continuous_actions=True"),
    Broken("step", 5, 1, "duplicate-step", "one row per step", "distinct", note="as in row 5"),
    Broken("step", 5, 4, "missing-step", "no gap", "missing step", note="step 2 is missing"),
    Broken(
        "next_state", 3, "y", "next-state", "state of the next row", "aligned",
        note="the next row's state is 'z'",
    ),
]  # fmt: skip


@pytest.mark.parametrize("way", ["csv", "table"])
@pytest.mark.parametrize("case", BROKEN, ids=str)
def test_a_fault_names_column_row_episode_step_value_rule_and_fix(
    case: Broken, way: str, tmp_path: Path
) -> None:
    columns = with_cell(EVERY_ROLE, case.column, case.row, case.value)
    data: Any = table(columns) if way == "table" else csv_file(tmp_path / "log.csv", columns)
    with pytest.raises(rw.InputError) as error:
        rw.read_log(data, **ROLES)
    assert error.value.exit_code == 3
    codes = [fault.code for fault in error.value.faults]
    assert codes == [case.code] if case.alone else case.code in codes
    fault = next(
        f for f in error.value.faults if (f.code, f.places[0].column) == (case.code, case.column)
    )
    line = f" (line {case.row + 2})" if way == "csv" else ""
    parts = [
        f"{case.code}: ",
        f"column {case.column!r}, row {case.row + 1}{line}",
        f": value {case.value!r}",
        case.rule,
        case.note,
        "1 of 6 rows",
        "fix: ",
        case.fix,
    ]
    if case.column != "episode":
        parts.append(f", episode {columns['episode'][case.row]!r}")
    if case.column != "step":
        parts.append(f", step {columns['step'][case.row]}: value")
    for part in parts:
        assert part in str(fault)
        assert part in str(error.value)
    assert (fault.count, fault.total) == (1, 6)


@pytest.mark.parametrize("flag", ["terminated", "truncated"])
def test_rows_after_the_end_are_named(flag: str) -> None:
    with pytest.raises(rw.InputError) as error:
        rw.read_log(table(with_cell(EVERY_ROLE, flag, 3, True)), **ROLES)
    [fault] = error.value.faults
    assert (fault.code, fault.count) == ("rows-after-end", 2)
    assert [(p.row, p.episode, p.step) for p in fault.places] == [(5, "b", 1), (6, "b", 2)]
    assert "ended at step 0" in str(fault)


@pytest.mark.parametrize("state", ["x", "y", "z"])
@pytest.mark.parametrize("claimed", ["x", "y", "z", "elsewhere"])
def test_next_state_is_compared_with_every_state(state: str, claimed: str) -> None:
    columns = with_cell({**COLUMNS, "next_state": EVERY_ROLE["next_state"]}, "state", 1, state)
    data = table(with_cell(columns, "next_state", 0, claimed))
    if state == claimed:
        assert rw.read_log(data, next_state="next_state").n_episodes == 2
        return
    with pytest.raises(rw.InputError) as error:
        rw.read_log(data, next_state="next_state")
    [fault] = error.value.faults
    assert (fault.code, fault.places[0].row, fault.places[0].value) == ("next-state", 1, claimed)
    assert repr(state) in str(fault)


@pytest.mark.parametrize("first", [1, 2, 1000])
def test_steps_that_do_not_start_at_zero_are_named(first: int) -> None:
    steps = [0, 1, 2, first, first + 1, first + 2]
    with pytest.raises(rw.InputError) as error:
        rw.read_log(table(step=steps))
    [fault] = error.value.faults
    assert (fault.code, fault.count) == ("step-start", 1)
    place = fault.places[0]
    assert (place.column, place.row, place.episode, place.value) == ("step", 4, "b", first)


NO_SECOND_FAULT: dict[str, tuple[list[int], str]] = {
    "a late start": ([1, 2], "step-start"),
    "a gap": ([0, 2], "missing-step"),
    "a step twice": ([0, 0], "duplicate-step"),
}


@pytest.mark.parametrize("what", NO_SECOND_FAULT)
def test_an_episode_with_wrong_steps_is_not_blamed_for_what_follows_from_them(what: str) -> None:
    steps, code = NO_SECOND_FAULT[what]
    columns = {name: [*values[:3], *values[3:5]] for name, values in EVERY_ROLE.items()}
    columns |= {"step": [0, 1, 2, *steps], "next_state": ["y", "z", "y", "missing", "y"]}
    with pytest.raises(rw.InputError) as error:
        rw.read_log(table(columns), **ROLES)
    assert [fault.code for fault in error.value.faults] == [code]


def test_negative_steps_are_named() -> None:
    with pytest.raises(rw.InputError) as error:
        rw.read_log(table(step=[0, 1, 2, -1, 0, 1]))
    [fault] = error.value.faults  # and not that the episode is short
    assert (fault.code, fault.places[0].row, fault.places[0].value) == ("step-start", 4, -1)


def test_an_id_that_was_used_twice_shows_both_rows() -> None:
    with pytest.raises(rw.InputError) as error:
        rw.read_log(table(episode=["a"] * 6))
    [fault] = error.value.faults
    assert (fault.code, fault.count) == ("duplicate-step", 3)
    assert "row 4" in str(fault)
    assert "as in row 1" in str(fault)
    assert "ids distinct" in str(fault)


MANY_FAULTS = """\
episode,step,state,action,reward,behavior_prob,target_prob,terminated,truncated,next_state
g,0,x,l,1,0.5,0.5,false,false,y
g,1,y,l,1,0.5,0.5,false,false,x
a,0,x,l,nan,0,2,false,false,y
a,1,y,r,1,0.5,-1,false,false,x
b,1,x,l,1,0.5,0.5,false,false,y
b,2,y,l,1,0.5,0.5,false,false,x
c,0,x,l,1,0.5,0.5,false,false,x
c,0,x,l,1,0.5,0.5,false,false,x
d,0,x,,1,0.5,0.5,false,false,y
d,2,y,l,1,,0.5,false,false,x
e,0,,l,1,0.5,0.5,true,false,y
e,1,y,l,1,0.5,0.5,false,false,x
f,0,x,l,inf,0.5,0.5,false,false,z
f,1,y,l,1,0.5,0.5,false,false,x
,0,x,l,1,0.5,0.5,false,false,y
h,0,x,l,1,0.5,0.5,false,false,x
"""
ALL_OF_THEM = {
    ("null", "episode"): [15],
    ("null", "state"): [11],
    ("null", "action"): [9],
    ("null", "behavior_prob"): [10],
    ("not-finite", "reward"): [3, 13],
    ("probability-range", "behavior_prob"): [3],
    ("probability-range", "target_prob"): [3, 4],
    ("step-start", "step"): [5],
    ("duplicate-step", "step"): [8],
    ("missing-step", "step"): [10],
    ("rows-after-end", "terminated"): [12],
    ("next-state", "next_state"): [13],
    ("short-episode", "step"): [16],
}


def test_all_faults_of_a_log_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(MANY_FAULTS)
    with pytest.raises(rw.InputError) as error:
        rw.read_log(path, **ROLES)
    found = {(f.code, f.places[0].column): [p.row for p in f.places] for f in error.value.faults}
    assert found == ALL_OF_THEM
    assert "log.csv: 13 broken rules" in str(error.value)
    for code, column in ALL_OF_THEM:
        assert f"{code}: " in str(error.value)
        assert f"column {column!r}, row" in str(error.value)


def test_a_cell_that_is_no_number_is_told_with_all_other_faults(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(MANY_FAULTS.replace("g,0,x,l,1,0.5", "g,0,x,l,1,zero point five"))
    with pytest.raises(rw.InputError) as error:
        rw.read_log(path, **ROLES)
    codes = {(f.code, f.places[0].column) for f in error.value.faults}
    assert ("not-a-number", "behavior_prob") in codes
    assert codes >= {key for key in ALL_OF_THEM if key[1] != "behavior_prob"}
    assert "value 'zero point five'" in str(error.value)


def test_of_many_bad_rows_the_first_are_shown_and_all_are_counted() -> None:
    n = 50
    data = pa.table(
        {
            "episode": list(range(n)),
            "step": [0] * n,
            "state": [0] * n,
            "action": [0] * n,
            "reward": [NAN] * 40 + [1.0] * 10,
            "behavior_prob": [0.5] * n,
        }
    )
    with pytest.raises(rw.InputError) as error:
        rw.read_log(data)
    [fault] = error.value.faults
    assert (fault.count, fault.total, len(fault.places)) == (40, 50, 20)
    text = str(fault)
    assert "40 of 50 rows" in text
    assert [f"row {i}," in text for i in range(1, 7)] == [True] * 5 + [False]
    assert "…" in text


MISSING: list[tuple[dict[str, str], dict[str, Any], list[str]]] = [
    ({"state": "stat"}, {}, ["no column 'state'", "role state", "did you mean 'stat'?", "state=…"]),
    ({"episode": "Episode"}, {}, ["'episode'", "did you mean 'Episode'?", "'reward'"]),
    ({"behavior_prob": "mu"}, {}, ["'behavior_prob'", "'mu'", "fit_behavior"]),
    ({}, {"behavior_prob": "behaviour_prob"}, ["did you mean 'behavior_prob'?"]),
    ({}, {"terminated": "done"}, ["no column 'done' for the role terminated"]),
    ({}, {"state": ["state", "wards"], "next_state": ["a", "b"]}, ["'wards'", "'a'", "'b'"]),
    (
        {"state": "s", "action": "a", "reward": "r"},
        {},
        ["3 broken rules", "role state", "role action", "role reward"],
    ),
]


@pytest.mark.parametrize(("renamed", "options", "words"), MISSING)
@pytest.mark.parametrize("way", ["csv", "table"])
def test_missing_columns_are_all_named_with_the_nearest_name(
    renamed: dict[str, str], options: dict[str, Any], words: list[str], way: str, tmp_path: Path
) -> None:
    columns = {renamed.get(name, name): values for name, values in COLUMNS.items()}
    data: Any = table(columns) if way == "table" else csv_file(tmp_path / "log.csv", columns)
    with pytest.raises(rw.InputError) as error:
        rw.read_log(data, **options)
    assert {fault.code for fault in error.value.faults} == {"missing-column"}
    for word in words:
        assert word in str(error.value)


USAGE: dict[str, dict[str, Any]] = {
    "one column for two roles": {"episode": "step"},
    "one column twice in the state": {"state": ["state", "state"]},
    "state and next_state of unlike width": {"state": ["state", "action"], "next_state": "reward"},
    "no state": {"state": []},
    "a name that is no text": {"reward": 3},
    "an empty name": {"action": ""},
    "hidden": {"hidden": "maybe"},
    "short_episodes": {"short_episodes": "drop"},
    "delimiter": {"delimiter": ",,"},
    "decimal like the delimiter": {"decimal": ","},
}


@pytest.mark.parametrize("what", USAGE)
def test_wrong_options_are_usage_errors(what: str, tmp_path: Path) -> None:
    with pytest.raises(rw.UsageError) as error:
        rw.read_log(csv_file(tmp_path / "log.csv"), **USAGE[what])
    assert error.value.exit_code == 2


def test_one_column_may_be_both_probabilities() -> None:
    log = rw.read_log(table(), target_prob="behavior_prob")
    assert log.steps.behavior_prob is not None
    assert log.column("behavior_prob").tolist() == log.steps.behavior_prob.tolist()


DAY = datetime.datetime(2024, 1, 1)
WRONG_TYPES: dict[str, tuple[str, Any, list[str]]] = {
    "float ids": ("episode", [1.0, 1.0, 1.0, 2.0, 2.0, 2.0], ["integers or text", "float"]),
    "ids with a hole in pandas": ("episode", [1.0, 1.0, 1.0, NAN, 2.0, 2.0], ["missing value"]),
    "times as steps": ("step", [DAY] * 6, ["timestamp"]),
    "floats as steps": ("step", [0.0, 1.0, 2.0, 0.0, 1.0, 2.0], ["double"]),
    "texts as steps": ("step", ["0", "1", "2", "0", "1", "2"], []),
    "times as states": ("state", [DAY] * 6, ["timestamp"]),
    "lists as states": ("state", [[1]] * 6, ["list"]),
    "bytes as states": ("state", [b"x"] * 6, ["binary"]),
    "floats as actions": ("action", [0.1, 0.2, 0.1, 0.3, 0.1, 0.1], ["continuous_actions=True"]),
    "times as rewards": ("reward", [DAY] * 6, ["numbers"]),
    "texts as flags": ("terminated", ["no"] * 6, ["true/false"]),
    "counts as flags": ("terminated", [0, 1, 2, 0, 1, 2], ["true/false"]),
}


@pytest.mark.parametrize("what", WRONG_TYPES)
def test_a_column_of_the_wrong_type_is_named(what: str) -> None:
    column, values, words = WRONG_TYPES[what]
    with pytest.raises(rw.InputError) as error:
        rw.read_log(table({**EVERY_ROLE, column: values}), **ROLES)
    assert f"{column!r}" in str(error.value)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("flags", [["no", "no", "yes"] * 2, [False, False, None] * 2])
def test_a_fault_in_a_flag_is_not_a_short_episode_too(flags: list[Any]) -> None:
    columns = {name: values[:5] for name, values in COLUMNS.items()}
    with pytest.raises(rw.InputError) as error:
        rw.read_log(table({**columns, "over": [*flags[:3], *flags[4:6]]}), terminated="over")
    assert [fault.code for fault in error.value.faults] in (["type"], ["null"])


def test_a_step_beyond_64_bits_is_named() -> None:
    steps = pa.array([0, 1, 2, 0, 1, 2**64 - 1], pa.uint64())
    with pytest.raises(rw.InputError) as error:
        rw.read_log(table(step=steps))
    [fault] = error.value.faults
    assert (fault.code, fault.places[0].value) == ("not-a-step", 2**64 - 1)


@pytest.mark.parametrize("way", ["csv", pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_a_number_written_as_a_word_is_named_with_its_row(way: Any, tmp_path: Path) -> None:
    words = ["1", "0", "2", "1", "oops", "0"]
    if way == "csv":
        data: Any = csv_file(tmp_path / "log.csv", {**COLUMNS, "reward": words})
    else:
        data = table(reward=pa.array(words, way))
    with pytest.raises(rw.InputError) as error:
        rw.read_log(data)
    [fault] = error.value.faults
    assert "oops" in str(fault)
    place = fault.places[0]
    assert (place.row, place.episode, place.step, place.value) == (5, "b", 1, "oops")


@pytest.mark.parametrize("cell", ["two", "1.5", "01", "+1", "1e0", "12345678901234567890"])
def test_a_step_that_is_no_whole_number_is_named_with_its_row(cell: str, tmp_path: Path) -> None:
    path = csv_file(tmp_path / "log.csv", with_cell(COLUMNS, "step", 4, cell))
    with pytest.raises(rw.InputError) as error:
        rw.read_log(path)
    place = error.value.faults[0].places[0]
    assert (place.column, place.row, place.value) == ("step", 5, cell)


def test_log_probabilities_are_recognized() -> None:
    with pytest.raises(rw.InputError, match="log-probabilities: apply exp"):
        rw.read_log(table(behavior_prob=[-0.1, -2.0, 0.0, -1.0, -0.5, -3.0]))


@pytest.mark.parametrize(("prob", "fine"), [(2.5, True), (0.0, False), (-1.0, False)])
def test_densities_are_positive_and_may_exceed_one(prob: float, fine: bool) -> None:
    columns = with_cell({**COLUMNS, "action": [0.5] * 6}, "behavior_prob", 4, prob)
    if fine:
        rw.read_log(table(columns), continuous_actions=True)
        return
    with pytest.raises(rw.InputError) as error:
        rw.read_log(table(columns), continuous_actions=True)
    assert [(f.code, f.places[0].row) for f in error.value.faults] == [("probability-range", 5)]


def test_a_continuous_action_must_be_finite() -> None:
    columns = {**COLUMNS, "action": [0.5, 1.0, NAN, 0.5, None, 0.5]}
    with pytest.raises(rw.InputError) as error:
        rw.read_log(table(columns), continuous_actions=True)
    found = {(f.code, f.places[0].row) for f in error.value.faults}
    assert {row for _, row in found} == {3, 5}


def test_a_log_without_propensities_is_read_when_said_so() -> None:
    columns = {name: values for name, values in COLUMNS.items() if name != "behavior_prob"}
    log = rw.read_log(table(columns), behavior_prob=None)
    assert log.steps.behavior_prob is None
    assert log.describe()["behavior_prob_range"] is None
    with pytest.raises(rw.UsageError, match="fit_behavior"):
        rw.evaluate(log, rw.TablePolicy({s: {"l": 1.0} for s in "xyz"}), rw.mis())


def test_duplicate_names_of_a_table_are_refused_with_the_name(tmp_path: Path) -> None:
    names = [*COLUMNS, "state"]
    data = pa.table([pa.array(v) for v in [*COLUMNS.values(), list("pqrstu")]], names=names)
    pandas = table().to_pandas()
    pandas.columns = ["episode", "step", "state", "state", "reward", "behavior_prob"]
    pa.parquet.write_table(data, tmp_path / "log.parquet")
    for given in (data, pandas, tmp_path / "log.parquet"):
        with pytest.raises(rw.InputError, match="state"):
            rw.read_log(given)
