"""Estimates and comparisons as data frames."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import reweigh as rw

from .samples import compared_policies, sampled, without_overlap


@pytest.fixture(scope="module")
def estimate() -> Any:
    return sampled(("mis",))[2][0]


def test_an_estimate_is_one_row(estimate: Any) -> None:
    pytest.importorskip("pandas")
    [row] = estimate.to_frame().to_dict("records")
    interval, plain = estimate.interval(), estimate.to_dict()
    assert (row["estimator"], row["estimate"], row["verdict"]) == (
        "mis",
        estimate.value,
        plain["verdict"],
    )
    assert (row["conf_low"], row["conf_high"], row["level"]) == (interval.low, interval.high, 0.95)
    assert row["gain"] == plain["gain"]["value"]
    assert row["gain_low"] < row["gain"] < row["gain_high"]
    assert row["n_episodes"] == 400


def test_steps_states_and_gates_are_tables(estimate: Any) -> None:
    pytest.importorskip("pandas")
    steps = estimate.to_frame("step")
    assert steps["step"].tolist() == list(range(estimate.horizon))
    assert steps["value"].sum() == pytest.approx(estimate.value)
    assert steps["effective_episodes"].min() == estimate.diagnostics.worst_ess
    states = estimate.to_frame("state")
    assert states.groupby("step")["target"].sum().to_numpy() == pytest.approx(1)
    assert states["weight"].to_numpy() == pytest.approx(estimate.marginals.weight)
    gates = estimate.to_frame("gate")
    assert gates["name"].tolist() == [gate.name for gate in estimate.verdict.gates]
    with pytest.raises(rw.UsageError, match="by"):
        estimate.to_frame("episode")


def test_an_estimator_without_states_has_no_table_of_them() -> None:
    [wis] = sampled(("wis",))[2]
    assert isinstance(wis, rw.Estimate)
    with pytest.raises(rw.RefusedError, match="no state distribution"):
        wis.to_frame("state")


def test_without_pandas_it_is_an_arrow_table(
    estimate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    table = estimate.to_frame()
    assert isinstance(table, pa.Table)
    assert table["estimate"].to_pylist() == [estimate.value]
    assert estimate.to_frame("step").num_rows == estimate.horizon
    assert compared_policies().to_frame().num_rows == 6


def test_a_comparison_has_a_row_per_target_and_estimator() -> None:
    pytest.importorskip("pandas")
    comparison = compared_policies()
    frame = comparison.to_frame()
    assert list(zip(frame["target"], frame["estimator"], strict=True)) == [
        (c.target, c.estimator) for c in comparison.contenders
    ]
    first, c = frame.iloc[0], comparison.contenders[0]
    assert c.interval is not None
    assert c.over_behavior is not None
    assert (first["conf_low"], first["conf_high"]) == (c.interval.low, c.interval.high)
    assert first["gain"] == c.over_behavior.value
    assert first["probability_best"] == c.best
    refused = rw.compare(*_refused(), seed=1).to_frame()
    assert refused["estimate"].isna().all()
    assert refused["refused"].str.contains("no logged episode is possible").all()
    assert not np.any(refused["verdict"].notna())


def _refused() -> tuple[Any, Any]:
    log, target, _ = without_overlap()
    return log, {"elsewhere": target}
