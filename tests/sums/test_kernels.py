"""What the kernels do is what the slow ways do: ingest, its faults' words, look-ups."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from build import random_log, to_reweigh

import reweigh as rw
from reweigh import kernels as compute
from reweigh.log import arrays as arrays_module

N, H = 150, 140  # more than one tile both ways, and a rest


@pytest.fixture(autouse=True)
def small_logs_are_read_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays_module, "QUICK_FROM", 0)


def given(n: int = N, horizon: int = H, **changes: Any) -> dict[str, Any]:
    rng = np.random.default_rng(n)
    made = {
        "states": rng.integers(0, 7, (n, horizon + 1)),
        "actions": rng.integers(0, 3, (n, horizon)),
        "rewards": rng.normal(size=(n, horizon)),
        "behavior_prob": rng.uniform(0.1, 1, (n, horizon)),
        "target_prob": rng.uniform(0, 1, (n, horizon)),
    }
    return made | changes


def slow(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> rw.EpisodeLog:
    with monkeypatch.context() as patch:
        patch.setattr(arrays_module, "QUICK_FROM", 10**18)
        return rw.log_from_arrays(**options)


def quick(options: dict[str, Any]) -> rw.EpisodeLog | None:
    """What the quick way makes, None where it leaves the log to the other."""
    names = ("states", "actions", "rewards", "behavior_prob", "target_prob")
    return arrays_module._log_from_plain_arrays(
        tuple(options.get(name) for name in names),
        options.get("lengths"),
        options.get("truncated"),
        options.get("discount", 1.0),
    )


RNG = np.random.default_rng(1)
LENGTHS = RNG.integers(1, H + 1, N)
GOOD: dict[str, dict[str, Any]] = {
    "full": given(),
    "one step": given(3, 1),
    "one episode": given(1, 300),
    "a tile exactly": given(64, 128),
    "no last state": given(states=RNG.integers(0, 5, (N, H))),
    "no target": given(target_prob=None),
    "no behavior": given(behavior_prob=None),
    "lengths": given(lengths=LENGTHS),
    "one is whole": given(lengths=np.r_[H, RNG.integers(1, 5, N - 1)]),
    "none is whole": given(lengths=RNG.integers(1, 9, N)),
    "cut": given(lengths=LENGTHS, truncated=RNG.random(N) < 0.5, discount=0.9),
    "gaps": given(states=RNG.choice([0, 3, 900], (N, H + 1)), actions=RNG.choice([2, 5], (N, H))),
    "last state only": given(states=np.c_[np.zeros((N, H), int), RNG.integers(3, 9, (N, 1))]),
    "large codes": given(states=RNG.integers(0, 20_000, (N, H + 1))),
    "unlikely numbers": given(rewards=np.full((N, H), 1e60), behavior_prob=np.full((N, H), 1e-300)),
}


@pytest.mark.parametrize("name", GOOD)
def test_the_quick_log_is_the_slow_log(
    code: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, expected = quick(GOOD[name]), slow(monkeypatch, GOOD[name])
    assert found is not None
    assert rw.log_from_arrays(**GOOD[name]).digest() == expected.digest()
    assert (found.digest(), found.discount) == (expected.digest(), expected.discount)
    assert found.states == expected.states
    assert found.actions == expected.actions
    assert found.columns == expected.columns
    assert not found.has_hidden
    for field in ("offsets", "state", "action", "ending", "truncated", "episode", "source_row"):
        mine, theirs = getattr(found.steps, field), getattr(expected.steps, field)
        np.testing.assert_array_equal(mine, theirs)
        assert mine.dtype == theirs.dtype or field == "source_row"
    assert found.place(2, "reward", 1.0) == expected.place(2, "reward", 1.0)
    if GOOD[name]["target_prob"] is not None:
        np.testing.assert_array_equal(found.column("target_prob"), expected.column("target_prob"))
        part = np.arange(found.n_episodes) % 2 == 0
        np.testing.assert_array_equal(
            found.select(part).column("target_prob"), expected.select(part).column("target_prob")
        )


@pytest.mark.parametrize("threads", [2, 7])
def test_threads_do_not_change_the_log(code: str, threads: int) -> None:
    for options in GOOD.values():
        log = rw.log_from_arrays(**options, threads=threads)
        assert log.digest() == rw.log_from_arrays(**options).digest()
    for wrong in (0, 1.5, "2", True):
        for copy in (True, False):
            with pytest.raises(rw.UsageError, match="'threads' must be a whole number from 1 on"):
                rw.log_from_arrays(**given(), threads=wrong, copy=copy)


def test_the_log_is_a_copy(code: str) -> None:
    options = given()
    log = quick(options)
    assert log is not None
    before = log.digest()
    for name in ("states", "actions", "rewards", "behavior_prob", "target_prob"):
        options[name][:] = 1
    assert log.digest() == before


def changed(name: str, value: float, **more: Any) -> dict[str, Any]:
    array = given()[name].copy()
    array[131, 129] = value
    return given(**{name: array}, **more)


BAD: dict[str, dict[str, Any]] = {
    "nan reward": changed("rewards", np.nan),
    "infinite reward": changed("rewards", np.inf),
    "nan mu": changed("behavior_prob", np.nan),
    "zero mu": changed("behavior_prob", 0.0),
    "mu above 1": changed("behavior_prob", 1 + 1e-15),
    "negative pi": changed("target_prob", -1e-300),
    "nan pi": changed("target_prob", np.nan),
    "shape": given(actions=np.zeros((N, H + 2), int)),
    "states' shape": given(states=np.zeros((N, H + 2), int)),
    "lengths": given(lengths=np.zeros(N, int)),
    "flags": given(truncated=np.full(N, 2)),
}


@pytest.mark.parametrize("name", BAD)
def test_faults_have_the_same_words(code: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(rw.ReweighError) as expected:
        slow(monkeypatch, BAD[name])
    with pytest.raises(type(expected.value)) as found:
        rw.log_from_arrays(**BAD[name])
    assert str(found.value) == str(expected.value)


def test_what_is_past_an_episodes_end_is_not_read(code: str) -> None:
    options = given(lengths=LENGTHS)
    past = np.arange(H) >= LENGTHS[:, None]
    for name in ("rewards", "behavior_prob", "target_prob"):
        options[name] = np.where(past, np.nan, options[name])
    options["actions"] = np.where(past, -5, options["actions"])
    options["states"] = np.where(np.arange(H + 1) >= LENGTHS[:, None], -5, options["states"])
    options["states"][LENGTHS == H, H] = 1
    log = quick(options)
    assert log is not None
    assert np.isfinite(log.steps.reward).all()


@pytest.mark.parametrize(
    "options",
    [
        changed("states", -1),
        given(states=np.zeros((N, H + 1), np.int32)),
        given(rewards=np.asfortranarray(given()["rewards"])),
        given(states=np.ma.array(np.zeros((N, H + 1), int), mask=False)),
        given(states=np.full((N, H + 1), 10**9)),
    ],
    ids=["negative", "int32", "column-major", "masked", "huge"],
)
def test_what_is_not_plain_goes_the_other_way(
    code: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert quick(options) is None
    assert rw.log_from_arrays(**options).digest() == slow(monkeypatch, options).digest()


def policies() -> dict[str, rw.TablePolicy]:
    rng = np.random.default_rng(0)
    mapping = {
        s: dict(zip(("3", 1, 0, "x"), rng.dirichlet(np.ones(4)).tolist(), strict=True))
        for s in (None, 2, 1, 0, "other")
    }
    return {
        "mapping": rw.TablePolicy(mapping),
        "array": rw.TablePolicy(rng.dirichlet(np.ones(3), 3)),
        "by step": rw.TablePolicy(rng.dirichlet(np.ones(3), (7, 3))),
        "fewer actions": rw.TablePolicy(np.ones((4, 1))),
    }


@pytest.mark.parametrize("name", policies())
def test_a_dense_look_up_is_the_search(code: str, name: str) -> None:
    policy = policies()[name]
    rng = random.Random(name)
    for _ in range(10):
        hide = 0.3 if name == "mapping" else 0.0
        log = to_reweigh(random_log(rng, n=9, hide=hide, ends=("complete", "terminated")))
        assert policy.dense(log, log.actions) is not None
        steps, codes = log.steps, policy._entries.actions.translate(log.actions)
        searched, known = policy.find(log.states, steps.state, steps.step, codes[steps.action])
        assert known.all()
        np.testing.assert_array_equal(policy.probabilities(log), searched)


def test_a_policy_without_a_needed_row_is_left_to_the_search(code: str) -> None:
    log = rw.log_from_arrays(np.tile(np.arange(5) % 3, (4, 1)), *np.ones((3, 4, 4), int))
    short = rw.TablePolicy(np.full((2, 3, 2), 0.5))  # two steps of four
    few = rw.TablePolicy([[0.5, 0.5]])  # state 0 only
    for policy in (short, few):
        table = policy.dense(log, log.actions)
        assert table is None or np.isnan(table).any()
        with pytest.raises(rw.InputError, match="must cover every state"):
            policy.probabilities(log)


def test_kernels_are_for_many_rows() -> None:
    name, plain = "ingest.transpose_numbers", len
    assert compute.pick(name, 10, plain) is plain
    assert compute.pick(name, compute.COMPILED_FROM, plain).__module__ == "reweigh.kernels.ingest"


SMALL = """
import sys
import numpy as np
import reweigh as rw
zeros = np.zeros((300, 100), int)
log = rw.log_from_arrays(zeros, zeros, zeros + 1.0, zeros + 0.5, zeros + 0.5)
rw.evaluate(log, rw.ColumnPolicy("target_prob"))
assert "numba" not in sys.modules
"""


def test_small_logs_do_without_numba() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", SMALL], check=True)
