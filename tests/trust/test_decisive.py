"""On how many episodes an error rests: by hand, in worlds of rare rewards, and in words."""

from __future__ import annotations

from functools import reduce
from operator import add

import numpy as np
import pytest

import reweigh as rw
from reweigh.estimate.influence import Spread
from reweigh.trust.gates import GateResult
from reweigh.trust.gates.weights import heaviest

TARGET = rw.ColumnPolicy("target_prob")


def spread_of(psi: np.ndarray, parts: int = 1) -> Spread:
    """Of these values, added up over so many parts of them."""
    every = [Spread.of(psi[k::parts], np.arange(len(psi))[k::parts]) for k in range(parts)]
    return reduce(add, every)


@pytest.mark.parametrize("k", [1, 2, 7, 50])
@pytest.mark.parametrize("scale", [1e-200, -3.0, 1e200])
def test_k_equal_values_among_zeros_are_k(k: int, scale: float) -> None:
    psi = np.zeros(100)
    psi[:k] = scale
    for parts in (1, 3):
        found = heaviest(spread_of(psi, parts))
        assert found is not None
        assert found.size == pytest.approx(k)
        assert (found.episode, found.share) == ("0", pytest.approx(1 / k))
        assert found.change == pytest.approx(-scale / 100)


def test_what_is_not_skewed_rests_on_all() -> None:
    found = heaviest(spread_of(np.array([1.0, -1.0, 2.0, -2.0])))
    assert found is not None
    assert found.size == 4
    assert heaviest(spread_of(np.zeros(5))) is None
    assert heaviest(spread_of(np.empty(0))) is None


def clicks(n: int, rng: np.random.Generator) -> rw.EpisodeLog:
    """The target takes half of the time what the log shows once in a hundred; both earn seldom."""
    rare = rng.random((n, 1)) < 0.01
    reward = (rng.random((n, 1)) < np.where(rare, 0.05, 0.02)).astype(float)
    mu = np.where(rare, 0.01, 0.99)
    return rw.log_from_arrays(
        np.zeros((n, 2), int), rare.astype(int), reward, mu, np.full((n, 1), 0.5)
    )


def gate_of(estimate: rw.Estimate) -> GateResult:
    [found] = [gate for gate in estimate.verdict.gates if gate.name == "decisive episodes"]
    return found


@pytest.mark.parametrize("name", ["mis", "dm", "mis-state", "mis-plain"])
def test_an_error_of_few_events_is_not_green(name: str) -> None:
    """Two or three clicks of the rare action make the error. Where there is none at all, no spread
    can tell that they are missing."""
    rng = np.random.default_rng(4)
    for _ in range(12):
        log = clicks(3000, rng)
        events = int(log.steps.reward[log.steps.action == 1].sum())
        level = gate_of(rw.evaluate(log, TARGET, name)).level
        assert level == ("red" if events == 1 else "green" if events == 0 else "amber"), events


def test_one_reward_in_another_unit_is_named_with_its_episode() -> None:
    rng = np.random.default_rng(0)
    reward = rng.random((400, 3))
    reward[17, 1] = 1e5
    half = np.full((400, 3), 0.5)
    given = rng.integers(0, 2, (400, 4)), rng.integers(0, 2, (400, 3))
    log = rw.log_from_arrays(*given, reward, half, half)
    found = rw.evaluate(log, TARGET, "mis")
    gate = gate_of(found)
    assert (gate.level, found.verdict.level) == ("red", "red")
    assert gate.value == pytest.approx(1.0, rel=0.02)
    assert "about 1 episode: episode 17 contributes 100% of it" in gate.text
    without = rw.evaluate(log.select(log.steps.episode != 17), TARGET, "mis").value
    told = float(gate.text.rsplit(" ", 1)[1])
    assert told == pytest.approx(without - found.value, rel=0.01)


def test_sums_say_that_they_cannot_tell() -> None:
    log = clicks(3000, np.random.default_rng(1))
    found = rw.evaluate(rw.moments(log, TARGET), estimator="mis")
    assert gate_of(found).level == "unknown"
    assert "decisive episodes" in found.verdict.to_dict()["unchecked"]
