"""What people try first: paths and frames as the log, sequences, frames, notebooks, wrong names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest

import reweigh as rw

TARGET = {s: {0: 0.3, 1: 0.7} for s in range(2)}
ARRAY = np.array([[0.3, 0.7], [0.3, 0.7]])


def chosen(state: Any, action: Any, step: Any) -> Any:
    return np.where(action == 1, 0.7, 0.3)


@pytest.fixture(scope="module")
def table() -> pa.Table:
    rng, n, steps = np.random.default_rng(5), 400, 3
    action = rng.integers(0, 2, n * steps)
    return pa.table({
        "episode": np.repeat(np.arange(n), steps),
        "step": np.tile(np.arange(steps), n),
        "state": rng.integers(0, 2, n * steps),
        "action": action,
        "reward": action + rng.normal(0, 0.5, n * steps),
        "behavior_prob": np.full(n * steps, 0.5),
        "ward": np.repeat(np.where(np.arange(n) < 150, "ER", "ICU"), steps),
    })  # fmt: skip


@pytest.fixture(scope="module")
def log(table: pa.Table) -> Any:
    return rw.read_log(table)


@pytest.fixture(scope="module")
def results(log: Any) -> Any:
    return rw.evaluate(log, TARGET, [rw.mis(), "wis", "dm"])


def test_a_log_is_a_path_or_a_frame_and_a_target_what_makes_a_policy(
    table: pa.Table, log: Any, tmp_path: Path
) -> None:
    expected = rw.evaluate(log, rw.TablePolicy(TARGET)).value
    pa_csv.write_csv(table, tmp_path / "log.csv")
    rows = [(s, a, p) for s, row in TARGET.items() for a, p in row.items()]
    columns = dict(
        zip(("state", "action", "prob"), map(list, zip(*rows, strict=True)), strict=True)
    )
    pa_csv.write_csv(pa.table(columns), tmp_path / "policy.csv")
    for data in (table, tmp_path / "log.csv", str(tmp_path / "log.csv"), log):
        for target in (TARGET, ARRAY, ARRAY.tolist(), chosen, tmp_path / "policy.csv"):
            assert rw.evaluate(data, target).value == pytest.approx(expected, abs=1e-12)
    renamed = table.rename_columns(["e", *table.column_names[1:]])
    assert rw.evaluate(renamed, TARGET, episode="e").value == pytest.approx(expected)
    with_column = table.append_column("pi", pa.array(chosen(0, np.array(table["action"]), 0)))
    assert rw.evaluate(with_column, target_prob="pi").value == pytest.approx(expected)
    rw.moments(log, rw.TablePolicy(TARGET)).save(tmp_path / "sums.parquet")
    assert rw.evaluate(tmp_path / "sums.parquet").value == pytest.approx(expected)


def test_several_estimators_are_a_sequence(results: Any) -> None:
    mis, wis, dm = results
    assert [result.estimator for result in results] == ["mis", "wis", "dm"]
    assert len(results) == 3
    assert (results[0], results[-1], results["wis"]) == (mis, dm, wis)
    assert results == [mis, wis, dm]
    assert results != [mis, wis]
    assert results[1:] == [wis, dm]
    assert results.answer is mis
    with pytest.raises(TypeError):
        results[0] = dm
    with pytest.raises(rw.UsageError, match="no result of 'mi'; did you mean 'mis'"):
        results["mi"]
    lines = str(results).splitlines()
    at = lines.index("")
    assert " ".join(lines[:at]) == results.sentence()
    assert lines[at + 1].split()[:2] == ["estimator", "value"]
    assert [line.split()[0] for line in lines[at + 2 : at + 5]] == ["mis", "wis", "dm"]
    assert [entry["estimator"] for entry in results.to_dict()] == ["mis", "wis", "dm"]


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow"])
def test_frames_have_the_names_of_broom(results: Any, log: Any, kind: Any) -> None:
    if kind != "arrow":
        pytest.importorskip(kind)
    frame = results.to_frame(kind)
    assert type(frame).__module__.split(".")[0] == {"arrow": "pyarrow"}.get(kind, kind)
    names = list(frame.column_names if kind == "arrow" else frame.columns)
    assert {"estimate", "std_error", "conf_low", "conf_high", "p_value", "ess", "verdict"} <= set(
        names
    )
    values = frame["estimate"].to_pylist() if kind == "arrow" else list(frame["estimate"])
    assert values == [result.value for result in results]
    assert type(results[0].to_frame(kind, "step")) is type(frame)
    assert type(log.to_frame(kind)) is type(frame)
    assert len(log.to_frame(kind)) == len(log) == 1200


def test_a_kind_of_frame_that_is_none_is_refused(results: Any, monkeypatch: Any) -> None:
    import sys

    with pytest.raises(rw.UsageError, match=r'"pandas", "polars" or "arrow"'):
        results.to_frame("duck")
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(rw.UsageError, match="pip install polars"):
        results.to_frame("polars")


def test_the_head_of_a_log(log: Any) -> None:
    head = log.head(4, "arrow")
    assert head == log.to_frame("arrow").slice(0, 4)
    assert log.head(kind="arrow").num_rows == 5
    assert log.head(5000, "arrow").num_rows == len(log)


def test_verdicts_and_intervals_are_plain(results: Any) -> None:
    mis = results[0]
    assert mis.verdict == mis.verdict.level
    assert mis.verdict != "blue"
    assert hash(mis.verdict) == hash(mis.verdict.level)
    assert {"green": 1, "amber": 1, "red": 1}[mis.verdict] == 1
    with pytest.raises(TypeError):
        _ = mis.verdict < "red"
    low, high = mis.interval()
    assert low < mis.value < high


def test_notebooks_show_the_answer(results: Any, log: Any) -> None:
    summary = results[0].summary()
    assert repr(summary) == str(summary)
    assert summary.startswith("The new policy would earn")
    for one in (results, results[0], results[0].by("ward")):
        kind, html = one._mime_()
        assert kind == "text/html"
        assert html == one._repr_html_()
        assert "<table" in html
    refused = rw.evaluate(log, {0: {7: 1.0}, 1: {7: 1.0}}, ["mis"])
    assert "No answer" in refused._repr_html_()
    assert refused.summary().startswith("No answer")


WRONG: dict[str, tuple[Any, str]] = {
    "gamma": (lambda log: rw.evaluate(log, TARGET, gamma=0.9), "use discount="),
    "gamma of read_log": (lambda log: rw.read_log("x", gamma=0.9), "use discount="),  # type: ignore[call-arg]
    "behavior_prob of a log": (
        lambda log: rw.evaluate(log, TARGET, behavior_prob="mu"),
        r"has been read: give it to read_log\(…, behavior_prob=…\)",
    ),
    "behavior_prob by values": (
        lambda log: rw.read_log(log.to_frame("arrow"), behavior_prob=np.ones(3)),  # type: ignore[arg-type]
        "takes the name of a column of the log, not its values",
    ),
    "no parentheses": (lambda log: rw.evaluate(log, TARGET, rw.mis), r"write rw.mis\(\)"),  # type: ignore[call-overload]
    "none in a list": (lambda log: rw.evaluate(log, TARGET, [rw.wis]), r"write rw.wis\(\)"),  # type: ignore[list-item]
    "an estimator as the target": (lambda log: rw.evaluate(log, rw.mis()), "the third the estim"),
    "alpha": (lambda log: rw.evaluate(log, TARGET).interval(alpha=0.05), "use level="),  # type: ignore[call-arg]
    "a column as a file": (
        lambda log: rw.evaluate(log, "target_prob"),
        r"no policy file .* ColumnPolicy\('target_prob'\)",
    ),
    "a typing error": (lambda log: rw.evaluate(log, TARGET, truncatd="drop"), "did you mean 'trun"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_names_are_told_the_right_one(log: Any, what: str) -> None:
    call, said = WRONG[what]
    with pytest.raises(rw.ReweighError, match=said):
        call(log)


def test_an_unknown_argument_is_a_type_error_too(log: Any) -> None:
    with pytest.raises(TypeError, match="no argument 'gamma'"):
        rw.evaluate(log, TARGET, gamma=0.9)
