"""Rows held as pairs of (state, action): the same log, the same estimates, in 10 bytes a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import reweigh as rw
from reweigh import kernels
from reweigh.log import arrays as module
from reweigh.log.large_arrays import Pairs
from reweigh.log.states import END, UNKNOWN

N, H, S, A = 150, 7, 6, 3
TARGET = rw.ColumnPolicy("target_prob")
NAN = float("nan")
ALL_ONES = float(np.array(-1).view(np.float64))  # a NaN of all bits


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small arrays are read as large ones are."""
    monkeypatch.setattr(module, "QUICK_FROM", 0)


def tables(seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(A, 5.0), S), rng.dirichlet(np.full(A, 5.0), S)


def given(**changes: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    mu, pi = tables()
    states = rng.integers(0, S, (N, H + 1))
    actions = (rng.random((N, H, 1)) > np.cumsum(mu, axis=1)[states[:, :H]]).sum(axis=2)
    made = {
        "states": states,
        "actions": actions,
        "rewards": rng.normal(size=(N, H)),
        "behavior_prob": mu[states[:, :H], actions],
        "target_prob": pi[states[:, :H], actions],
    }
    return {**made, **changes}


def ragged(**changes: Any) -> dict[str, Any]:
    lengths = np.random.default_rng(2).integers(1, H + 1, N)
    return given(lengths=lengths, **changes)


def cut() -> dict[str, Any]:
    return ragged(truncated=np.random.default_rng(3).random(N) < 0.3)


def with_gaps() -> dict[str, Any]:
    """Labels that are not 0, 1, 2, …, and one that only an ending has."""
    made = given()
    states = made["states"] * 3 + 2
    states[100, H] = 40  # further on than is looked to guess how many there are
    return {**made, "states": states, "actions": made["actions"] * 2 + 1}


def without_ends() -> dict[str, Any]:
    made = given()
    return {**made, "states": np.ascontiguousarray(made["states"][:, :H])}


CASES = {
    "complete": given,
    "ragged": ragged,
    "cut off": cut,
    "gaps": with_gaps,
    "no ends": without_ends,
    "no target": lambda: given(target_prob=None),
}


def in_columns(made: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> rw.EpisodeLog:
    with monkeypatch.context() as patch:
        patch.setattr(module, "read_pairs", lambda *_: None)
        log = rw.log_from_arrays(**made)
    assert log.steps.pairs is None
    return log


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("threads", [1, 3])
def test_the_log_is_the_same(
    case: str, threads: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = CASES[case]()
    log = rw.log_from_arrays(**made, threads=threads)
    assert isinstance(log.steps.pairs, Pairs)
    plain = in_columns(made, monkeypatch)
    for name in ("state", "action", "reward", "behavior_prob", "ending", "truncated", "episode"):
        mine, theirs = getattr(log.steps, name), getattr(plain.steps, name)
        np.testing.assert_array_equal(mine, theirs, err_msg=name)
        assert mine.dtype == theirs.dtype, name
    assert log.states.values == plain.states.values
    assert log.actions is not None
    assert plain.actions is not None
    assert log.actions.values == plain.actions.values
    assert log.digest() == plain.digest()
    assert log.to_table().equals(plain.to_table())
    if made["target_prob"] is not None:
        np.testing.assert_array_equal(log.column("target_prob"), plain.column("target_prob"))


ESTIMATORS = ("mis", "mis-plain", "mis-state", "mis-pooled", "dm", "is", "wis", "dr", "wdr", "mdr")


@pytest.mark.parametrize("case", ["complete", "ragged", "gaps", "no ends"])
def test_the_estimates_are_the_same(case: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = CASES[case]()
    plain = in_columns(made, monkeypatch)
    pi = tables()[1]
    names = plain.states.values
    named = {
        names[s]: dict(zip(plain.actions.values, pi[s % S], strict=True)) for s in range(len(names))
    }
    targets = {
        TARGET: ("mis", "mis-plain", "mis-state", "is", "wis"),
        rw.TablePolicy(named): ESTIMATORS,
        rw.FunctionPolicy(lambda states, actions, steps: np.full(len(states), 0.3)): ("mis", "wis"),
    }
    for target, estimators in targets.items():
        recipes = [rw.estimator(name) for name in estimators]
        recipes.append(rw.mis(max_ratio=1.2))
        log = rw.log_from_arrays(**made)
        mine = rw.evaluate_all(log, target, recipes)
        theirs = rw.evaluate_all(plain, target, recipes)
        for own, other in zip(mine, theirs, strict=True):
            assert isinstance(own, rw.Estimate)
            assert own.value == pytest.approx(other.value, rel=1e-12)
            assert own.standard_error == pytest.approx(other.standard_error, rel=1e-9)
            assert own.behavior_value == pytest.approx(other.behavior_value, rel=1e-12)
            assert own.verdict.level == other.verdict.level


def test_mis_reads_the_pairs_and_makes_no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "COMPILED_FROM", 0)
    log = rw.log_from_arrays(**given())
    for target in (TARGET, rw.TablePolicy(tables()[1])):
        rw.evaluate(log, target, rw.mis())
    assert not {"state", "action", "behavior_prob"} & set(vars(log.steps))


@pytest.mark.filterwarnings("ignore::reweigh.LowOverlapWarning")
def test_the_mean_return_is_found_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "COMPILED_FROM", 0)
    made = ragged()
    estimate = rw.evaluate(rw.log_from_arrays(**made), TARGET, rw.mis())
    alive = np.arange(H) < made["lengths"][:, None]
    returns = (made["rewards"] * alive).sum(axis=1)
    assert estimate.behavior_value == pytest.approx(returns.mean(), rel=1e-12)


def test_a_state_that_the_table_does_not_know_is_refused(code: str) -> None:
    log = rw.log_from_arrays(**given())
    with pytest.raises(rw.InputError, match="must cover every state"):
        rw.evaluate(log, rw.TablePolicy(tables()[1][: S - 1]), rw.mis())


@pytest.mark.parametrize("name", ["behavior_prob", "target_prob"])
@pytest.mark.parametrize("threads", [1, 2])
def test_propensities_of_their_own_are_columns(name: str, threads: int, code: str) -> None:
    made = given()
    made[name] = made[name].copy()
    made[name][-1, -1] /= 2  # the last row alone
    log = rw.log_from_arrays(**made, threads=threads)
    assert log.steps.pairs is None
    values = log.steps.behavior_prob if name == "behavior_prob" else log.column(name)
    assert values is not None
    assert values[-1] == made[name][-1, -1]


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("rewards", NAN, "reward"),
        ("behavior_prob", 0.0, "behavior_prob"),
        ("behavior_prob", 1.5, "behavior_prob"),
        ("target_prob", -0.1, "target_prob"),
        ("behavior_prob", NAN, "behavior_prob"),
        ("behavior_prob", ALL_ONES, "behavior_prob"),
        ("target_prob", ALL_ONES, "target_prob"),
    ],
)
@pytest.mark.parametrize("threads", [1, 3])
def test_what_is_wrong_is_named(
    name: str, value: float, rule: str, threads: int, code: str
) -> None:
    made = given()
    states, actions = made["states"][:, :H], made["actions"]
    same = (states == states[3, 2]) & (actions == actions[3, 2])
    made[name] = np.where(same, value, made[name])  # a function of the pair, and yet wrong
    with pytest.raises(rw.InputError, match=rule):
        rw.log_from_arrays(**made, threads=threads)
    if name != "target_prob":
        del made["target_prob"]
        with pytest.raises(rw.InputError, match=rule):
            rw.log_from_arrays(**made, threads=threads)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", ["behavior_prob", "target_prob"])
def test_a_nan_in_an_episode_of_pairs_not_seen_before_is_named(
    name: str, threads: int, code: str
) -> None:
    """Its bits were once those that marked a pair as not yet seen."""
    made = given()
    made["states"][0] = S  # a state of this episode alone, in the first thread's part
    made[name] = made[name].copy()
    made[name][0] = ALL_ONES
    if name == "behavior_prob":
        del made["target_prob"]
    with pytest.raises(rw.InputError, match=name):
        rw.log_from_arrays(**made, threads=threads)


def test_many_labels_in_the_part_that_was_not_looked_at(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = given()
    made["states"][-1, 2] = 900  # beyond the bits that the first episodes need
    made["behavior_prob"][-1, 2] = 0.5
    log = rw.log_from_arrays(**made)
    assert log.steps.pairs is not None
    assert log.digest() == in_columns(made, monkeypatch).digest()
    made["states"][-1, 2] = 1 << 20
    assert rw.log_from_arrays(**made).steps.pairs is None


def test_a_deterministic_log_is_hopeless_in_pairs_too(code: str) -> None:
    made = given(behavior_prob=np.ones((N, H)))
    with pytest.raises(rw.RefusedError, match="behavior_prob is 1 in every row"):
        rw.evaluate(rw.log_from_arrays(**made), TARGET, rw.mis())


def test_ten_bytes_a_row(code: str) -> None:
    pairs = rw.log_from_arrays(**given()).steps.pairs
    assert pairs is not None
    held = pairs.code.base
    assert held is not None
    assert held.nbytes == 10 * N * H


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_is_changed_holds_columns(code: str) -> None:
    log = rw.log_from_arrays(**cut())
    kept = log.select(np.arange(N) % 2 == 0)
    assert kept.steps.pairs is None
    np.testing.assert_array_equal(kept.steps.first_states(), kept.steps.state[: kept.n_episodes])
    assert {END, UNKNOWN} < set(kept.steps.ending.tolist())
    value = rw.evaluate(kept, TARGET, rw.mis()).value
    whole = cut()
    chosen = np.isin(np.arange(N), kept.steps.episode)
    again = rw.log_from_arrays(**{name: values[chosen] for name, values in whole.items()})
    assert value == pytest.approx(rw.evaluate(again, TARGET, rw.mis()).value, rel=1e-12)
