"""A small evaluation with interval, verdict and gain looks up the target's probabilities once, and
builds every table of sums and the operator once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import reweigh as rw
from reweigh.estimate import operators
from reweigh.estimate.operators import OneStep
from reweigh.sums.engines import ArraysEngine
from reweigh.sums.numpy_scan import NumpyScan
from reweigh.worlds import random_mdp

WORLD = random_mdp(1, 4, 2, 5, reward_sd=0.3)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    calls: Counter[str] = Counter()

    def counted(owner: Any, name: str, what: str = "") -> None:
        real = getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            calls[what or str(args[1])] += 1
            return real(*args, **options)

        monkeypatch.setattr(owner, name, call)

    counted(rw.TablePolicy, "probabilities", "ratios")
    counted(NumpyScan, "cells")
    counted(NumpyScan, "lagged", "lagged")
    counted(operators, "importance_operator", "operator")
    counted(ArraysEngine, "moments", "requests")
    return calls


@pytest.mark.parametrize("name", ["mis", "mis-plain", "mis-state"])
def test_ratios_cells_and_operator_are_built_once(name: str, built: Counter[str]) -> None:
    found = rw.evaluate(WORLD.simulate(300, 0), WORLD.target, name)
    # the placebo of weights that are normalized by state, and gates, read those that are not
    operators_built = 2 if name == "mis-state" else 1
    first = {"ratios": 1, "transitions": 1, "operator": operators_built, "requests": 1}
    assert built == first
    assert found.interval() is not None
    assert found.gain().p_value < 1
    assert built == first
    assert isinstance(found.verdict.level, str)
    assert built == first | {"choices": 1, "lagged": 1, "requests": 2}


def test_several_estimators_share_them(built: Counter[str]) -> None:
    names = ["mis", "mis-plain", "dm", "wis", "is"]
    results = rw.evaluate_all(WORLD.simulate(300, 0), WORLD.target, names)
    for result in results:
        assert isinstance(result, rw.Estimate)
        assert result.interval() is not None
        assert isinstance(result.verdict.level, str)
        assert isinstance(result.gain().p_value, float)
    # sums of the model's cells would be those of the choices but for their last bits
    tables = ("ratios", "transitions", "model", "choices", "lagged", "operator")
    assert {table: built[table] for table in tables} == dict.fromkeys(tables, 1)


def test_an_operator_belongs_to_its_cells() -> None:
    sums = rw.moments(WORLD.simulate(50, 0), WORLD.target)
    op = operators.marginal_operator(sums)
    assert isinstance(op, OneStep)
    assert operators.marginal_operator(sums) is op
    assert operators.marginal_operator(sums, per_state=True) is not op
    other = rw.moments(WORLD.simulate(50, 1), WORLD.target)
    assert operators.marginal_operator(other) is not op
