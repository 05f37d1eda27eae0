"""`mdr-loo` against an independent slow implementation in fractions, and what it promises."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from build import TARGET, random_log, to_reweigh
from loo_reference import leave_one_out

import reweigh as rw
from reweigh.estimate.influence import influence_values
from reweigh.evaluation.evaluate import evaluate_in_study

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
LOGS, LOO = 150, rw.mdr("leave-one-out")
CLOSE = 1e-10
KINDS = {
    "plain": {},
    "zeros": {"zeros": True},
    "ends": {"ends": ("complete", "terminated")},
    "cut off": {"ends": ("complete", "terminated", "truncated"), "with_next": True},
    "one step": {"horizon": 1, "n": 8},
    "larger": {"n": 25, "horizon": 3, "zeros": True},
}


def answer(log: rw.EpisodeLog) -> rw.Estimate | None:
    [found] = evaluate_in_study(log, TARGET, [LOO])
    if isinstance(found, rw.Refusal):
        assert found.error.code in ("no-overlap",), found.error
        return None
    return found


def check(log: object, *, by_action: bool) -> bool:
    """Value, error and influence values; False where MIS refuses too, since no row is possible
    under the target."""
    read = to_reweigh(log)
    found = answer(read)
    if found is None:
        assert isinstance(evaluate_in_study(read, TARGET, ["mis"])[0], rw.Refusal)
        return False
    slow = leave_one_out(log, by_action=by_action)
    assert found.value == pytest.approx(float(slow.value), rel=CLOSE, abs=CLOSE)
    if found.standard_error is not None:
        assert found.standard_error == pytest.approx(math.sqrt(slow.square), rel=1e-8, abs=1e-9)
    psi = influence_values(read, TARGET, LOO)
    order = np.argsort(read.steps.episode.astype(int))
    np.testing.assert_allclose(psi[order], [float(p) for p in slow.psi], rtol=1e-9, atol=1e-9)
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_value_error_and_influence_are_those_of_the_definition(kind: str) -> None:
    rng = random.Random(kind)
    compared = sum(check(random_log(rng, **KINDS[kind]), by_action=True) for _ in range(LOGS))
    assert compared > LOGS // 3


BY_ROWS = {
    "ratios differ": ({"function_ratios": False}, True),
    "ratios differ, cut off": (
        {"function_ratios": False, "ends": ("terminated", "truncated"), "with_next": True},
        True,
    ),
    "hidden": ({"hide": 0.4, "ends": ("complete", "terminated")}, False),
    "larger": ({"n": 25, "horizon": 3, "function_ratios": False}, True),
}


@pytest.mark.parametrize("kind", BY_ROWS)
def test_rows_tell_it_where_sums_do_not(kind: str) -> None:
    arguments, by_action = BY_ROWS[kind]
    rng, compared = random.Random(kind), 0
    for _ in range(LOGS):
        log = random_log(rng, **arguments)
        compared += check(log, by_action=by_action or not log.hidden)
    assert compared > LOGS // 3
