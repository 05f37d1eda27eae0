"""Numbers as text: as many digits as they deserve, and never zeros for what is small."""

from __future__ import annotations

import pytest

import reweigh as rw
from reweigh.system import rounded
from reweigh.worlds import random_mdp


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (2.30712, 0.0416, "2.307"),
        (12345.678, 250.0, "12,346"),
        (0.0, 1e-40, "0.000000000000"),
        (2.30712e-100, 4.16e-102, "2.307e-100"),
        (-2.30712e-13, 4.16e-15, "-2.307e-13"),
        (1e-30, 3e-20, "1.0e-30"),
        (1.5, 3e-20, "1.5000000000000000e+00"),
        (1.5, None, "1.5"),
    ],
)
def test_digits_are_those_that_the_error_supports(
    value: float, error: float | None, text: str
) -> None:
    assert rounded(value, error) == text


@pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
@pytest.mark.parametrize("name", ["mis", "dm", "mis-pooled", "wis"])
def test_an_interval_of_tiny_rewards_is_that_of_the_others_made_small(name: str) -> None:
    world = random_mdp(1)
    log = world.simulate(400, 0)
    small = log.with_rewards(log.steps.reward * 1e-100, None)
    usual = rw.evaluate(log, world.target, name).interval()
    tiny = rw.evaluate(small, world.target, name).interval()
    assert usual is not None
    assert tiny is not None
    # A square of a square is lost below 1e-154: there the error comes from the influence values.
    assert (tiny.high - tiny.low) * 1e100 == pytest.approx(usual.high - usual.low, rel=0.05)
    assert "e-100" in str(tiny)
