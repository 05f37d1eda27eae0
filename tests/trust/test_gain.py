"""The gain over the behavior and its p-value: paired from rows, bounded from sums."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

import reweigh as rw
from reweigh.estimate.influence import behavior_values
from reweigh.estimate.standard_error import Gain, bounded, paired
from reweigh.worlds import random_mdp

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
WORLD = random_mdp(np.random.default_rng(5), 3, 2, 4, reward_sd=0.5)


@pytest.mark.parametrize("name", ["mis", "dm", "is", "wis"])
@pytest.mark.parametrize("sign", [1, -1])
def test_sums_tell_the_largest_p_that_the_two_errors_allow(name: str, sign: int) -> None:
    log = WORLD.simulate(400, 1)
    log = log.with_rewards(sign * log.steps.reward, np.zeros(400))
    rows = rw.evaluate(log, WORLD.target, name).gain()
    sums = rw.evaluate(rw.moments(log, WORLD.target, blocks=50), None, name)
    found, own = sums.gain(), sums.interval()
    assert own is not None
    assert own.standard_error is not None
    returns = float(np.std(behavior_values(log), ddof=1)) / math.sqrt(400)
    assert found.at_most
    assert not rows.at_most
    assert found.value == pytest.approx(rows.value)
    assert found.standard_error == pytest.approx(own.standard_error + returns)
    assert found.standard_error > rows.standard_error
    assert found.p_value >= rows.p_value
    assert found.p_value == sums.p_value() == sums.to_dict()["p_value"]
    assert (found.p_value > 0.5) == (found.value < 0)


def test_no_correlation_of_the_two_errors_has_a_larger_p() -> None:
    """All errors of a difference that two errors allow, for a gain and for a loss."""
    a, b, n = 0.3, 0.2, 100
    errors = np.sqrt(a * a + b * b - 2 * np.linspace(-1, 1, 201) * a * b)
    for value in (0.7, -0.7):
        found = bounded(value, a, n - 1, 0.0, b, n)
        assert found.standard_error == pytest.approx(a + b)
        assert found.p_value == pytest.approx(stats.t.sf(value / errors, n - 1).max())


def test_few_degrees_of_freedom_only_raise_p() -> None:
    gains = [bounded(1.0, 0.3, df, 0.0, 0.2, 100).p_value for df in (3, 30, 99, 3000)]
    assert gains == sorted(gains, reverse=True)
    assert gains[-1] == gains[-2], "the returns are those of 100 episodes"
    assert len({bounded(-1.0, 0.3, df, 0.0, 0.2, 100).p_value for df in (3, 3000)}) == 1


def test_equal_values_are_not_better() -> None:
    assert paired(2.0, 2.0 + 1e-15, 1e-18, 50) == Gain(0.0, 0.0, 1.0, 49)
    assert bounded(2.0, 0.3, 49, 2.0, 0.2, 50).p_value == 1
    with pytest.raises(rw.RefusedError, match="has no variation"):
        paired(2.0, 1.0, 0.0, 50)


def test_gains_in_words() -> None:
    assert str(Gain(0.42, 0.19, 0.0134, 99)) == "p = 0.013 (gain +0.42 ± 0.19)"
    assert str(Gain(-0.42, 0.19, 0.98, 99)) == "p = 0.98 (gain -0.42 ± 0.19)"
    assert str(Gain(0.42, 0.25, 0.05, 99, at_most=True)) == "p ≤ 0.05 (gain +0.42 ± 0.25 at most)"
    assert str(Gain(9.0, 0.1, 1e-30, 99)) == "p < 1e-16 (gain +9.00 ± 0.10)"
    assert str(Gain(0.0, 0.0, 1.0, 99)) == "p = 1 (gain 0)"


def test_sums_without_squares_of_returns_say_why() -> None:
    log = WORLD.simulate(100, 1)
    bare = rw.evaluate(rw.moments(log, WORLD.target, [rw.mis()], gates=False), estimator=rw.mis())
    with pytest.raises(
        rw.RefusedError, match=r"variance of the logged returns.*engine='arrays'"
    ) as caught:
        bare.gain()
    assert caught.value.code == "needs-log"
    entry = bare.to_dict()
    assert entry["p_value"] is None
    assert entry["gain"]["refused"]["code"] == "needs-log"
    assert "Whether that is a gain is not known" in " ".join(str(bare).split())


def test_a_value_without_an_interval_has_no_gain() -> None:
    """Whole episodes are good or bad: sums then have no interval, and no p-value either."""
    rng = np.random.default_rng(0)
    luck = rng.choice([-1.0, 1.0], (300, 1))
    actions = rng.integers(0, 2, (300, 5))
    log = rw.log_from_arrays(
        np.zeros((300, 6), int), actions, luck + 0.1 * actions, np.full((300, 5), 0.5),
        np.where(actions == 1, 0.6, 0.4),
    )  # fmt: skip
    target = rw.ColumnPolicy("target_prob")
    sums = rw.evaluate(rw.moments(log, target), estimator=rw.mis())
    assert sums.interval() is None
    with pytest.raises(rw.RefusedError, match="no default interval: returns vary"):
        sums.gain()
    assert 0 < rw.evaluate(log, target, rw.mis()).p_value() < 1
