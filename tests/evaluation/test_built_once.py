"""In one evaluation ratios and sums are built once, whatever is asked of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import reweigh as rw
from reweigh import kernels
from reweigh.estimate import direct
from reweigh.sums import scan
from reweigh.sums.engines import ArraysEngine


def counted(monkeypatch: pytest.MonkeyPatch, calls: Counter[str], of: Any, name: str) -> None:
    inner = getattr(of, name)

    def call(*given: Any, **named: Any) -> Any:
        calls[name] += 1
        return inner(*given, **named)

    monkeypatch.setattr(of, name, call)


@pytest.mark.parametrize("differ", [False, True])
def test_the_whole_answer_builds_ratios_and_sums_once(
    monkeypatch: pytest.MonkeyPatch, differ: bool
) -> None:
    """Where ratios differ within a step, state and action, a second pass has other rewards."""
    pytest.importorskip("numba")
    monkeypatch.setattr(kernels, "COMPILED_FROM", 0)
    rng = np.random.default_rng(0)
    n, horizon = 400, 5
    mu = np.full((n, horizon), 0.5)
    state, action = rng.integers(0, 3, (n, horizon + 1)), rng.integers(0, 2, (n, horizon))
    ratio = rng.uniform(0.5, 1.5, (n, horizon)) if differ else np.array([0.5, 1.5])[action]
    log = rw.log_from_arrays(state, action, rng.random((n, horizon)), mu, mu * ratio)
    calls: Counter[str] = Counter()
    counted(monkeypatch, calls, direct.Rows, "of")
    counted(monkeypatch, calls, ArraysEngine, "moments")
    counted(monkeypatch, calls, scan.Cells, "add")
    estimate = rw.evaluate(log, rw.ColumnPolicy("target_prob"), rw.mis())
    assert estimate.interval() is not None
    assert any(gate.name == "history" for gate in estimate.verdict.gates)
    # cells by (t, s, a) alone: values and errors of MIS come from the rows
    assert calls == {"of": 1, "moments": 1 + differ, "add": 1 + differ}
