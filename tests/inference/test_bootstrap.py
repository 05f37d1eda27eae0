"""The Poisson bootstrap: replicates are MIS on repeated episodes, whatever threads and blocks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import reweigh as rw
from reweigh.inference.bootstrap import BLOCK, THRESHOLDS, bootstrap_values
from reweigh.moments import compute
from reweigh.worlds import ModelFail, random_mdp

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
NAMES = ("mis", "mis-plain", "mis-state")
TARGET = rw.ColumnPolicy("target_prob")


@pytest.fixture(params=["kernels", "twins"])
def code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both codes, whatever the size."""
    if request.param == "kernels":
        pytest.importorskip("numba")
    monkeypatch.setattr(compute, "COMPILED_FROM", 0 if request.param == "kernels" else 10**18)
    return str(request.param)


def arrays(n: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    horizon = 6
    return {
        "states": rng.integers(0, 3, (n, horizon)),
        "actions": rng.integers(0, 2, (n, horizon)),
        "rewards": rng.normal(size=(n, horizon)),
        "behavior_prob": rng.uniform(0.2, 1, (n, horizon)),
        "target_prob": rng.uniform(0, 1, (n, horizon)) * (rng.random((n, horizon)) < 0.8),
        "lengths": rng.integers(1, horizon + 1, n),
        "truncated": rng.random(n) < 0.3,
    }


def draws(log: rw.EpisodeLog, seed: int, block: int) -> np.ndarray:
    counts = np.empty((log.n_episodes, BLOCK), np.uint8)
    compute.pick("resample.draw", 0)(seed, block, THRESHOLDS, counts)
    return counts


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [3, 40])
def test_a_replicate_is_the_estimate_on_repeated_episodes(code: str, n: int, name: str) -> None:
    given = arrays(n, seed=n)
    log = rw.log_from_arrays(**given, discount=0.9)
    found = bootstrap_values(log, TARGET, rw.estimator(name), 2 * BLOCK, seed=5)
    told = refused = 0
    for b in range(0, 2 * BLOCK, 3):
        counts = draws(log, 5, b // BLOCK)[:, b % BLOCK]
        again = np.repeat(log.steps.episode, counts)
        if len(again) == 0:
            assert np.isnan(found[b])
            continue
        repeated = {role: values[again] for role, values in given.items()}
        # The horizon is the log's, also where no long episode was drawn.
        whole = rw.log_from_arrays(**repeated, discount=0.9)
        [expected] = rw.evaluate_all(whole, TARGET, [name])
        if isinstance(expected, rw.Refusal):
            refused += 1
            assert np.isnan(found[b])
        else:
            told += 1
            assert found[b] == pytest.approx(expected.value, rel=1e-12, abs=1e-12)
    assert told > 5
    assert refused > 0 or n > 3


def test_kernel_and_twin_draw_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    log = rw.log_from_arrays(**arrays(500, 0))
    for seed, block in ((0, 0), (7, 3), (2**62, 11)):
        monkeypatch.setattr(compute, "COMPILED_FROM", 0)
        first = draws(log, seed, block)
        monkeypatch.setattr(compute, "COMPILED_FROM", 10**18)
        np.testing.assert_array_equal(first, draws(log, seed, block))


def test_draws_are_poisson_and_independent(code: str) -> None:
    counts = np.empty((20_000, BLOCK), np.uint8)
    compute.pick("resample.draw", 0)(1, 0, THRESHOLDS, counts)
    size = counts.size
    for k in range(6):
        p = math.exp(-1) / math.factorial(k)
        assert np.mean(counts == k) == pytest.approx(p, abs=5 * math.sqrt(p / size))
    x = counts - 1.0
    assert np.mean(x) == pytest.approx(0, abs=5 / math.sqrt(size))
    # Var[(X - 1)²] = 3
    assert np.mean(x**2) == pytest.approx(1, abs=5 * math.sqrt(3 / size))
    for other in (np.roll(x, 1, axis=0), np.roll(x, 1, axis=1)):  # episodes, replicates
        assert np.mean(x * other) == pytest.approx(0, abs=5 / math.sqrt(size))


def test_replicates_do_not_depend_on_their_number_or_on_threads(code: str) -> None:
    log = rw.log_from_arrays(**arrays(60, 1))
    many = bootstrap_values(log, TARGET, rw.mis(), 3 * BLOCK + 5, seed=3)
    assert many.shape == (3 * BLOCK + 5,)
    np.testing.assert_array_equal(many[:10], bootstrap_values(log, TARGET, rw.mis(), 10, seed=3))
    np.testing.assert_array_equal(
        many, bootstrap_values(log, TARGET, rw.mis(), len(many), seed=3, threads=3)
    )
    other = bootstrap_values(log, TARGET, rw.mis(), 10, seed=4)
    assert not np.any(many[:10] == other)


def test_the_spread_is_the_standard_error(code: str) -> None:
    world = random_mdp(2, terminal=1, reward_sd=0.3, discount=0.9)
    log = world.simulate(1500, 0)
    found = rw.evaluate(log, world.target, rw.mis())
    values = bootstrap_values(log, world.target, rw.mis(), 512)
    # 512 replicates: the spread's own relative error is about 1/sqrt(2·512) = 3 %
    assert np.std(values) == pytest.approx(found.standard_error, rel=0.15)
    assert np.mean(values) == pytest.approx(found.value, abs=0.3 * found.standard_error)


def test_a_controls_start_value_is_averaged_over_the_drawn(code: str) -> None:
    log = rw.log_from_arrays(**arrays(30, 2))
    g = np.random.default_rng(0).normal(size=30)
    shaped = log.with_rewards(log.steps.reward, g)
    counts = draws(log, 0, 0)[:, :8]
    difference = bootstrap_values(shaped, TARGET, rw.mis(), 8) - bootstrap_values(
        log, TARGET, rw.mis(), 8
    )
    np.testing.assert_allclose(difference, (g @ counts) / counts.sum(axis=0), rtol=1e-9)


def test_what_it_refuses() -> None:
    log = rw.log_from_arrays(**arrays(30, 2))
    for recipe in (rw.wis(), rw.dm(), rw.mis(pooled=True), rw.mdr()):
        with pytest.raises(rw.RefusedError, match="not"):
            bootstrap_values(log, TARGET, recipe)
    hidden = ModelFail(4)
    with pytest.raises(rw.RefusedError, match="observed"):
        bootstrap_values(hidden.simulate(30, 0), hidden.target, rw.mis())
    for options in ({"replicates": 0}, {"seed": -1}, {"threads": 0}, {"threads": 1.5}):
        with pytest.raises(rw.UsageError, match=next(iter(options))):
            bootstrap_values(log, TARGET, rw.mis(), **options)  # type: ignore[arg-type]
