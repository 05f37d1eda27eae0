"""Estimates that differ by more than chance allows are named."""

from __future__ import annotations

import numpy as np
import pytest

import reweigh as rw
from reweigh.evaluation.beside import disagreement

TARGET = rw.TablePolicy([[0.3, 0.7]])
pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")


def results(
    *, remembers: bool, names: list[str], blocks: int = 0
) -> list[rw.Estimate | rw.Refusal]:
    """What is earned at the second step follows from the first action, or from the second. With
    `blocks`, from sums."""
    n = 4000
    rng = np.random.default_rng(0)
    actions = rng.integers(0, 2, (n, 2))
    rewards = np.zeros((n, 2))
    rewards[:, 1] = actions[:, 0 if remembers else 1] + rng.normal(size=n)
    half = np.full((n, 2), 0.5)
    log = rw.log_from_arrays(np.zeros((n, 3), int), actions, rewards, half)
    if blocks:
        return rw.evaluate_all(rw.moments(log, TARGET, blocks=blocks), None, names)
    return rw.evaluate_all(log, TARGET, names)


def test_an_estimator_that_takes_the_state_for_all_is_told_apart_from_one_that_does_not() -> None:
    found = results(remembers=True, names=["mis", "wis", "dm"])
    said = disagreement(found)
    assert said is not None
    assert "differ from mis by more than chance allows: wis by +0.19" in said  # 0.7 against 0.5
    assert "dm by" not in said


def test_nothing_is_said_where_they_agree_or_cannot_be_asked() -> None:
    agreeing = results(remembers=False, names=["mis", "wis", "is", "dm"])
    assert disagreement(agreeing) is None
    assert disagreement(agreeing[:1]) is None
    log = rw.log_from_arrays([[0, 0]] * 9, [[0]] * 9, [[1.0]] * 9, [[0.5]] * 9)
    sums = rw.moments(log, TARGET)
    assert disagreement(rw.evaluate_all(sums, TARGET, ["mis", "dm"])) is None


def test_sums_tell_what_is_beyond_both_errors() -> None:
    """Without episodes a joint error is not known, but it is at most the two together."""
    found = results(remembers=True, names=["mis", "wis", "dm"], blocks=20)
    said = disagreement(found)
    assert said is not None
    assert "differ from mis by more than chance allows: wis by +0.19" in said
    assert "joint error at most" in said
    assert "dm by" not in said
    assert disagreement(results(remembers=False, names=["mis", "wis", "dm"], blocks=20)) is None
