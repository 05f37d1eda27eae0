"""Names and values that try to be something else: they are kept, apart, and harmless."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import reweigh as rw

from .samples import COLUMNS, csv_file, states_by_row, table

HOSTILE = [
    "'; DROP TABLE log; --",
    '" OR 1=1 --',
    "a,b",
    'say "x"',
    "line\nend",
    "carriage\rreturn",
    "tab\tulator",
    "<script>alert(1)</script>",
    "=cmd|' /C calc'!A0",
    "\x1b[31mred",
    "\x9b31m",
    "a\u202eb",
    "a\u200bb",
    "{0}%s${x}",
    "../../etc/passwd",
    "é",
    "e\u0301",
    "a",
    "а",  # Cyrillic
    " a",
    "a ",
    "NULL",
    "nan",
    "007",
    "7",
    "+7",
    "1e3",
    "true",
    "\\N",
    "#a",
    "'a'",
    "😀",
    "\ufeffa",
]
# NUL is refused in CSV, and kept in Arrow and Parquet
TEXT = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1),
)


def log_of(values: list[str]) -> dict[str, Any]:
    """One episode per value: its state, action and id are all that text."""
    n = len(values)
    return {
        "episode": values,
        "step": [0] * n,
        "state": values,
        "action": values,
        "reward": [float(i) for i in range(n)],
        "behavior_prob": [0.5] * n,
    }


def assert_kept(log: rw.EpisodeLog, values: list[str]) -> None:
    assert log.n_episodes == len(log.states) == len(set(values))
    found = {
        (str(episode), str(log.states.values[code]), str(action)): reward
        for episode, code, action, reward in zip(
            log.steps.episode.tolist(),
            log.steps.state.tolist(),
            log.raw_actions().tolist(),
            log.steps.reward.tolist(),
            strict=True,
        )
    }
    assert found == {(v, v, v): float(i) for i, v in enumerate(values)}


@settings(deadline=None, max_examples=60)
@given(st.lists(TEXT, min_size=1, max_size=8, unique=True))
@example(HOSTILE)
def test_hostile_values_survive_a_csv_file(values: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = csv_file(Path(folder) / "log.csv", log_of(values))
        assert_kept(rw.read_log(path), values)


@settings(deadline=None, max_examples=60)
@given(st.lists(TEXT | st.just("a\0"), min_size=1, max_size=8, unique=True))
@example([*HOSTILE, "", "a\0", "\0"])
def test_hostile_values_survive_parquet_and_the_way_back(values: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.parquet"
        pq.write_table(table(log_of(values)), path)
        log = rw.read_log(path)
    assert_kept(log, values)
    assert_kept(rw.read_log(log.to_table()), values)


@settings(deadline=None, max_examples=60)
@given(st.lists(TEXT, min_size=6, max_size=6, unique=True))
@example(HOSTILE[:6])
@example(["line\nend", 'q"', "\x1b[0m", "<b>", "a;b", "\u202e"])
def test_hostile_names_of_columns_survive_a_csv_file(names: list[str]) -> None:
    roles = dict(zip(COLUMNS, names, strict=True))
    columns = {roles[name]: values for name, values in COLUMNS.items()}
    expected = states_by_row(rw.read_log(table()))
    with tempfile.TemporaryDirectory() as folder:
        log = rw.read_log(csv_file(Path(folder) / "log.csv", columns), **roles)
    assert states_by_row(log) == expected
    assert log.describe()["state_columns"] == [roles["state"]]


@settings(deadline=None, max_examples=40)
@given(st.lists(TEXT, min_size=6, max_size=6, unique=True))
def test_hostile_names_of_columns_survive_arrow(names: list[str]) -> None:
    roles = dict(zip(COLUMNS, names, strict=True))
    data = pa.table([pa.array(v) for v in COLUMNS.values()], names=names)
    log = rw.read_log(data, **roles)
    assert states_by_row(log) == states_by_row(rw.read_log(table()))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(TEXT, TEXT), min_size=2, max_size=6, unique=True))
@example([("a", "b,c"), ("a,b", "c"), ("('a', 'b,c')", ""), ("a", "b"), ("a'", "'b")])
def test_states_of_two_hostile_columns_are_kept_apart(pairs: list[tuple[str, str]]) -> None:
    data = log_of([str(i) for i in range(len(pairs))])
    del data["state"]
    data |= {"left": [a for a, _ in pairs], "right": [b for _, b in pairs]}
    log = rw.read_log(table(data), state=["left", "right"])
    assert {log.states.values[code] for code in log.steps.state.tolist()} == set(pairs)
    # a policy table finds each of them again
    policy = rw.TablePolicy({pair: {str(i): 1.0} for i, pair in enumerate(pairs)})
    assert policy.probabilities(log).tolist() == [1.0] * len(pairs)


@pytest.mark.parametrize("value", HOSTILE)
def test_a_message_shows_a_hostile_value_in_quotes(value: str) -> None:
    columns = {**log_of([value]), "reward": [float("nan")]}
    with pytest.raises(rw.InputError) as error:
        rw.read_log(table(columns))
    assert f"episode {value!r}" in str(error.value)
    assert "\x1b" not in str(error.value)
    # the lines are those of the message: its head, the rule, the place and the fix
    assert len(str(error.value).split("\n")) == 4
