"""Arrays that are read where they lie: the same answers as from a copy, in little memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reweigh as rw
from reweigh import kernels as compute
from reweigh.estimate import direct
from reweigh.log import large_arrays as borrowed

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
TARGET = rw.ColumnPolicy("target_prob")
N, H, S, A = 700, 30, 9, 4


def arrays(n: int = N, horizon: int = H, seed: int = 3) -> tuple[np.ndarray, ...]:
    """Every row has propensities of its own, so that rows cannot be held as pairs."""
    rng = np.random.default_rng(seed)
    state = rng.integers(0, S, (n, horizon + 1))
    mu = rng.uniform(0.2, 0.9, (n, horizon))
    pi = np.minimum(mu * rng.uniform(0.6, 1.4, mu.shape), 1.0)
    pi[rng.random(mu.shape) < 0.05] = 0.0
    return state, rng.integers(0, A, mu.shape), rng.normal(1.0, 1.0, mu.shape), mu, pi


def shapes() -> dict[str, dict[str, Any]]:
    rng = np.random.default_rng(4)
    lengths = rng.integers(1, H + 1, N)
    return {
        "whole": {},
        "ragged": {"lengths": lengths},
        "cut off": {"lengths": lengths, "truncated": rng.random(N) < 0.3},
        "never as long": {"lengths": np.minimum(lengths, H - 5), "discount": 0.9},
    }


def assert_alike(one: Any, other: Any) -> None:
    if one is None or other is None:
        assert one is other
    else:
        assert one == pytest.approx(other, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("together", [1, 7, 8])
@pytest.mark.parametrize("shape", shapes())
def test_recursions_over_some_steps_at_a_time_are_those_over_all(
    code: str, shape: str, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(borrowed, "TOGETHER", together)
    monkeypatch.setattr(borrowed, "SHARE", 1)
    given, options = arrays(), shapes()[shape]
    copied, read = (rw.log_from_arrays(*given, **options, copy=copy) for copy in (True, False))
    assert read.steps.borrowed is not None
    for name in ("mis", "mis-plain", "mis-state"):
        for limit in (None, 1.1):
            one, other = (
                direct.solve_rows(direct.Rows.of(log, TARGET, limit), rw.estimator(name))
                for log in (read, copied)
            )
            for told in ("value", "standard_error", "placebo", "placebo_error", "rare_mass"):
                assert_alike(getattr(one, told), getattr(other, told))
            assert_alike(one.per_step, other.per_step)
            assert_alike(one.ess, other.ess)
            assert_alike(one.unseen_mass, other.unseen_mass)
            assert_alike(one.variance_by_step, other.variance_by_step)
            assert one.unseen_at == other.unseen_at
            assert one.rare_at == other.rare_at
    assert not {"reward", "behavior_prob"} & set(vars(read.steps)), "a column was copied"


@pytest.mark.parametrize("shape", ["whole", "ragged"])
def test_every_estimator_answers_as_from_a_copy(shape: str) -> None:
    given, options = arrays(), shapes()[shape]
    read, copied = (rw.log_from_arrays(*given, **options, copy=copy) for copy in (False, True))
    both = (rw.evaluate_all(log, TARGET, list(rw.ESTIMATORS)) for log in (read, copied))
    for one, other in zip(*both, strict=True):
        if isinstance(other, rw.Refusal) or isinstance(one, rw.Refusal):
            assert str(one) == str(other)
            continue
        assert_alike(one.value, other.value)
        assert_alike(one.standard_error, other.standard_error)
        for mine, theirs in zip(one.verdict.gates, other.verdict.gates, strict=True):
            assert (mine.name, mine.level, mine.text) == (theirs.name, theirs.level, theirs.text)
            assert_alike(mine.value, theirs.value)
    assert read.digest() == copied.digest()
    assert read.describe() == copied.describe()
    assert read.to_table().equals(copied.to_table())
    assert_alike(
        rw.evaluate(read, TARGET, rw.mis()).interval(method="bootstrap-t", seed=1).low,
        rw.evaluate(copied, TARGET, rw.mis()).interval(method="bootstrap-t", seed=1).low,
    )


def test_a_log_without_propensities_is_read_in_place_too() -> None:
    state, action, reward, _, _ = arrays()
    log = rw.log_from_arrays(state, action, reward, None, copy=False)
    assert not log.steps.has_propensities
    assert log.steps.behavior_prob is None
    assert log.describe() == rw.log_from_arrays(state, action, reward, None).describe()


def test_arrays_in_files_are_read_there(tmp_path: Path, code: str) -> None:
    given = arrays()
    for k, array in enumerate(given):
        np.save(tmp_path / f"{k}.npy", array)
    mapped = [np.load(tmp_path / f"{k}.npy", mmap_mode="r") for k in range(len(given))]
    read = rw.log_from_arrays(*mapped, copy=False)
    assert np.shares_memory(read.steps.borrowed.numbers["reward"], mapped[2])  # type: ignore[union-attr]
    assert_alike(
        rw.evaluate(read, TARGET, rw.mis()).value,
        rw.evaluate(rw.log_from_arrays(*given), TARGET, rw.mis()).value,
    )


def test_it_needs_twelve_bytes_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    monkeypatch.setattr(compute, "COMPILED_FROM", 0)
    given = arrays(4000, 100)

    def run() -> float | None:
        log = rw.log_from_arrays(*given, copy=False)
        return rw.evaluate(log, TARGET, rw.mis()).standard_error

    run()  # compiles
    tracemalloc.start()
    try:
        assert run() is not None
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak / given[2].size < 12


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (2, np.nan, "reward"),
        (3, 0.0, "behavior_prob"),
        (3, 1.5, "behavior_prob"),
        (4, -0.1, "target_prob"),
    ],
)
def test_faults_are_told_as_always(code: str, place: int, value: float, words: str) -> None:
    given = arrays()
    given[place][17, 4] = value
    with pytest.raises(rw.InputError, match=words) as found:
        rw.log_from_arrays(*given, copy=False)
    with pytest.raises(rw.InputError) as other:
        rw.log_from_arrays(*given)
    assert str(found.value) == str(other.value)


def test_what_cannot_be_read_in_place_is_an_error() -> None:
    state, action, reward, mu, pi = arrays()
    for given, options in (
        ((state, action, reward.astype(np.float32), mu, pi), {}),
        ((state, action, np.asfortranarray(reward), mu, pi), {}),
        ((state - 3, action, reward, mu, pi), {}),
        ((np.ma.masked_equal(state, 2), action, reward, mu, pi), {"hidden": "allow"}),
        ((state, action, reward, mu.tolist(), pi), {}),
    ):
        with pytest.raises(rw.UsageError, match="copy=False needs"):
            rw.log_from_arrays(*given, copy=False, **options)  # type: ignore[arg-type]
    with pytest.raises(rw.UsageError, match="'copy' must be True or False"):
        rw.log_from_arrays(state, action, reward, mu, pi, copy=None)  # type: ignore[arg-type]
