"""Expectations over all logs of two episodes of a tiny world: unbiasedness, exactly."""

from __future__ import annotations

import itertools
from fractions import Fraction as F

import numpy as np
import pyarrow as pa
import pytest
from population import TARGET, TinyWorld, random_world

import reweigh as rw
from reweigh.estimate.operators import importance_operator
from reweigh.evaluation.evaluate import evaluate_in_study

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")


def logs_of_two(world: TinyWorld) -> list[tuple[float, rw.EpisodeLog]]:
    """Every log of two episodes and its probability (order does not matter: halves are merged)."""
    one = list(world.trajectories())
    found = []
    for i, j in itertools.combinations_with_replacement(range(len(one)), 2):
        p = one[i][0] * one[j][0] * (1 if i == j else 2)
        rows = [
            (e, t, s, a, float(r), float(world.behavior[t][s][a]), float(world.target[t][s][a]), x)
            for e, k in enumerate((i, j))
            for t, (s, a, r, x) in enumerate(one[k][1])
        ]
        names = ("episode", "step", "state", "action", "reward", "behavior_prob", "target_prob")
        names += ("next_state",)
        columns = [pa.array(column) for column in zip(*rows, strict=True)]
        table = pa.table(dict(zip(names, columns, strict=True)))
        log = rw.read_log(
            table,
            target_prob="target_prob",
            next_state="next_state",
            horizon=world.horizon,
            discount=float(world.discount),
        )
        found.append((float(p), log))
    assert sum(p for p, _ in found) == pytest.approx(1)
    return found


WORLD = random_world(21, horizon=2, discount=F(1, 2))


@pytest.fixture(scope="module")
def logs() -> list[tuple[float, rw.EpisodeLog]]:
    return logs_of_two(WORLD)


def expectation(logs: list[tuple[float, rw.EpisodeLog]], recipe: rw.Recipe) -> float:
    total = 0.0
    for p, log in logs:
        [result] = evaluate_in_study(log, TARGET, [recipe])
        assert isinstance(result, rw.Estimate)
        total += p * result.value
    return total


def test_importance_sampling_is_unbiased(logs) -> None:
    truth = float(WORLD.value(WORLD.target))
    assert expectation(logs, rw.is_()) == pytest.approx(truth, rel=1e-11)
    assert expectation(logs, rw.trajectory_is()) == pytest.approx(truth, rel=1e-11)


def test_plain_mis_is_unbiased(logs) -> None:
    """d̂_t has mass only where the log has rows, so no state is ever missed: the bias that the
    paper guards against with its fictitious estimator does not arise without truncation."""
    truth = float(WORLD.value(WORLD.target))
    assert expectation(logs, rw.mis("none")) == pytest.approx(truth, rel=1e-11)


def test_doubly_robust_is_unbiased_with_any_fixed_q(logs) -> None:
    """Q is wrong on purpose. V needs every action's probability, so the target is a table."""
    rng = np.random.default_rng(0)
    Q = rng.normal(size=(2, 2, 2))
    target = rw.TablePolicy(np.array(WORLD.target, dtype=float))
    truth = float(WORLD.value(WORLD.target))
    total = 0.0
    for p, log in logs:
        [found] = evaluate_in_study(log, target, [rw.dr(Q)])
        assert isinstance(found, rw.Estimate)
        total += p * found.value
    assert total == pytest.approx(truth, rel=1e-11)


def test_self_normalized_estimators_are_biased_with_two_episodes(logs) -> None:
    """The test above would pass for an expectation that is blind: these must differ."""
    truth = float(WORLD.value(WORLD.target))
    for recipe in (rw.wis(), rw.mis(), rw.mis("state"), rw.trajectory_wis()):
        assert abs(expectation(logs, recipe) - truth) > 1e-4, recipe.name


def _exact(t: int, s: int) -> tuple[np.ndarray, float]:
    """P^π_t(·|s) and r^π_t(s)."""
    move, earn = np.zeros(2), 0.0
    for a in range(2):
        for x in range(2):
            p = float(WORLD.target[t][s][a] * WORLD.transition[t][s][a][x])
            move[x] += p
            earn += p * float(WORLD.reward[t][s][a][x])
    return move, earn


def test_the_fictitious_estimator_is_unbiased_in_all_its_pieces(logs) -> None:
    """Where a state was not visited, the truth takes the place of the estimate (δ → 1): then
    E[r̃_t(s)] = r^π_t(s), E[P̃_t(·|s)] = P^π_t(·|s) given the past, and E[ṽ] = v."""
    truth = float(WORLD.value(WORLD.target))
    value = 0.0
    reward, move = np.zeros((2, 2)), np.zeros((2, 2, 2))
    for p, log in logs:
        sums = rw.moments(log, TARGET, ["mis"])
        assert sums.transitions is not None
        op = importance_operator(sums.transitions, sums.start, 2, float(WORLD.discount))
        P, r = np.zeros((2, 2, 2)), np.zeros((2, 2))
        for t in range(2):
            for s in range(2):
                P[t, s], r[t, s] = _exact(t, s)
        label = np.array(sums.states.values)
        for node in np.unique(op.src):
            t, s = op.node_t[node], label[op.node_s[node]]
            r[t, s] = op.reward[node]
            P[t, s] = 0
            for e in np.flatnonzero(op.src == node):
                P[t, s, label[op.node_s[op.dst[e]]]] += op.prob[e]
        d = np.zeros(2)
        for node in np.flatnonzero(op.node_t == 0):
            d[label[op.node_s[node]]] = op.initial[node]
        v = 0.0
        for t in range(2):
            v += float(WORLD.discount) ** t * d @ r[t]
            d = d @ P[t]
        value += p * v
        reward += p * r
        move += p * P
    assert value == pytest.approx(truth, rel=1e-11)
    for t in range(2):
        for s in range(2):
            exact_move, exact_reward = _exact(t, s)
            assert reward[t, s] == pytest.approx(exact_reward, rel=1e-11)
            assert move[t, s] == pytest.approx(exact_move, rel=1e-11)
