"""One log, one verdict: whichever code reads the log, and whatever else is asked of it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import reweigh as rw
from reweigh.estimate import direct
from reweigh.estimate.marginal import from_rows
from reweigh.kernels import compiled
from reweigh.trust.gates.gate import Context
from reweigh.trust.gates.states import state_values

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
TARGET = rw.ColumnPolicy("pi")
FLAGS = {"terminated": "terminated", "truncated": "truncated", "next_state": "next_state"}
KINDS = ("plain", "ended", "cut off", "varying", "zeros")
ESTIMATORS = ("mis", "mis-plain", "mis-state", "mis-pooled", "wis", "trajectory-is", "dm", "ssd-is")
TABLE = rw.TablePolicy({s: {0: 0.5, 1: 0.3 - s / 20, 2: 0.2 + s / 20} for s in range(4)})


@cache
def table(kind: str, n: int = 400, horizon: int = 5) -> pa.Table:
    """Episodes of a Markov chain over four states, which end early or are cut off by kind;
    "varying" policies see more than the state, and "zeros" are of actions that the target never
    takes."""
    rng = np.random.default_rng(KINDS.index(kind))
    mu, pi = rng.dirichlet(np.full(3, 4.0), (2, 4))
    if kind == "zeros":
        pi = pi * [1, 1, 0] / pi[:, :2].sum(axis=1, keepdims=True)
    lengths = np.full(n, horizon)
    if kind in ("ended", "cut off"):
        lengths = np.minimum(rng.geometric(0.2, n), horizon)
    rows: dict[str, list[Any]] = {}
    for episode, length in enumerate(lengths.tolist()):
        cut = kind == "cut off" and length < horizon and bool(rng.random() < 0.5)
        state = int(rng.integers(4))
        for t in range(length):
            action = int(rng.choice(3, p=mu[state]))
            after = int(rng.choice(4, p=np.roll([0.4, 0.3, 0.2, 0.1], state + action)))
            last = t == length - 1
            seen = rng.uniform(0.7, 1.0) if kind == "varying" else 1.0
            ended = last and length < horizon and not cut
            row = {
                "episode": episode,
                "step": t,
                "state": state,
                "action": action,
                "reward": float(rng.normal(state, 0.5)),
                "behavior_prob": mu[state, action],
                "pi": pi[state, action] * seen,
                "next_state": None if ended else after,
                "terminated": ended,
                "truncated": last and cut,
            }
            for name, value in row.items():
                rows.setdefault(name, []).append(value)
            state = after
    return pa.table(rows)


def read(kind: str, engine: str = "arrays") -> Any:
    return rw.read_log(table(kind), engine=engine, discount=0.9, **FLAGS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_ratio", [None, 1.2])
def test_values_of_states_are_the_same_from_rows_and_from_sums(
    kind: str, max_ratio: float | None
) -> None:
    """At the same (t, s), those that only follow an episode's last row included."""
    pytest.importorskip("numba")
    log = read(kind)
    sums = rw.moments(log, TARGET, [rw.mis(max_ratio=max_ratio)])
    with compiled(0):
        assert from_rows(log)
        reached = direct.state_values(log, TARGET, max_ratio)
        of_rows = state_values(Context(sums, state_values=lambda: reached))
    of_sums = state_values(Context(sums))
    assert of_rows is not None
    assert of_sums is not None
    seen = of_sums.s >= 0
    np.testing.assert_array_equal(of_rows.t, of_sums.t[seen])
    np.testing.assert_array_equal(of_rows.s, of_sums.s[seen])
    np.testing.assert_allclose(of_rows.v, of_sums.v[seen], rtol=1e-12, atol=1e-14)


def verdicts(kind: str, way: str) -> list[dict[str, Any] | str]:
    """By estimator the verdict, or why there is none."""
    engine = way if way in ("stream", "duckdb") else "arrays"
    with compiled(0 if way == "compiled" else 10**9):
        found = rw.evaluate_all(read(kind, engine), TARGET, ESTIMATORS)
        return [e.error.code if isinstance(e, rw.Refusal) else e.verdict.to_dict() for e in found]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["compiled", "stream", "duckdb"])
def test_every_code_gives_the_same_verdict(kind: str, way: str) -> None:
    """Every gate, its level and words to the letter, and its numbers but for rounding."""
    if way == "compiled":
        pytest.importorskip("numba")
    for mine, other in zip(verdicts(kind, way), verdicts(kind, "numpy"), strict=True):
        if isinstance(mine, str) or isinstance(other, str):
            assert mine == other
            continue
        numbers = [numbers_of(verdict) for verdict in (mine, other)]
        assert mine == other
        np.testing.assert_allclose(*numbers, rtol=1e-9, atol=1e-10)


def numbers_of(verdict: dict[str, Any]) -> list[float]:
    """What the gates judged, and that step by step, nan where there is none; it is taken out."""
    found = []
    for gate in verdict["gates"]:
        found += [gate.pop("value"), *(gate.pop("per_step") or ())]
    return [np.nan if number is None else number for number in found]


@pytest.mark.parametrize("rows", [0, 10**9], ids=["compiled", "numpy"])
@pytest.mark.parametrize("target", [TARGET, TABLE], ids=["column", "table"])
@pytest.mark.parametrize("kind", ["plain", "varying"])
def test_other_estimators_change_no_bit_of_an_answer(
    kind: str, target: rw.Policy, rows: int
) -> None:
    """Neither those with other tables (dm) nor with other blocks (ssd-is, dr-crossfit)."""
    if not rows:
        pytest.importorskip("numba")
    log, names = read(kind), ("mis", "mis-pooled", "wis", "dm", "dr", "ssd-is", "dr-crossfit")
    with compiled(rows):
        for name, found in zip(names, rw.evaluate_all(log, target, names), strict=True):
            alone = rw.evaluate(log, target, name)
            assert found.verdict.to_dict() == alone.verdict.to_dict()
            assert (found.value, found.standard_error) == (alone.value, alone.standard_error)
