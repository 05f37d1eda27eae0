"""`mdr-loo` against an independent slow implementation in fractions, and what it promises."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from build import TARGET, random_log, to_reweigh
from loo_reference import leave_one_out

import reweigh as rw
from reweigh.estimate.influence import influence_values
from reweigh.evaluation.evaluate import evaluate_in_study
from reweigh.evaluation.resampling import THRESHOLDS, resample
from reweigh.kernels import draw
from reweigh.worlds import random_mdp

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


def prefers_its_side(state: object, action: object, step: object) -> np.ndarray:
    right = (np.asarray(action) == 1) == (np.asarray(state, float) > 0)
    return np.where(right, 0.9, 0.1)


def side_log(n: int, horizon: int) -> tuple[rw.EpisodeLog, dict[str, np.ndarray]]:
    """The policies follow the sign of x, of which the state is one cell."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(n, horizon))
    action = np.where(rng.random(x.shape) < 0.8, x > 0, x <= 0).astype(int)
    mu = np.where((action == 1) == (x > 0), 0.8, 0.2)
    reward = rng.normal(size=x.shape) + action * x
    ids, steps = np.repeat(np.arange(n), horizon), np.tile(np.arange(horizon), n)
    columns = {"episode": ids, "step": steps}
    columns |= {"x": x, "action": action, "reward": reward, "behavior_prob": mu}
    table = pa.table({name: pa.array(values.reshape(-1)) for name, values in columns.items()})
    log = rw.read_log(table, state="x", abstraction=rw.Grid([1e9]))
    assert isinstance(log, rw.EpisodeLog)
    return log, {"x": x, "a": action, "mu": mu, "r": reward}


def test_a_target_that_sees_more_than_the_state() -> None:
    """Row by row from the definition: m by the actions of the cell, π of what each row shows."""
    n, horizon = 12, 2
    log, rows = side_log(n, horizon)
    target, V = rw.FunctionPolicy(prefers_its_side), 0.0
    for t in (1, 0):
        x, a, y = rows["x"][:, t], rows["a"][:, t], rows["r"][:, t] + V
        pi = np.stack([prefers_its_side(x, np.full(n, k), t) for k in (0, 1)])
        rho = pi[a, np.arange(n)] / rows["mu"][:, t]
        M, phi = float(rho @ y / rho.sum()), []
        for i in range(n):
            others = np.arange(n) != i
            b = (float(rho[others] @ y[others]) + M) / (rho[others].sum() + 1)
            m = [(y[others & (a == k)].sum() + b) / ((others & (a == k)).sum() + 1) for k in (0, 1)]
            phi.append(pi[0, i] * m[0] + pi[1, i] * m[1] + rho[i] * (y[i] - m[a[i]]))
        means = [y[a == k].mean() for k in (0, 1)]
        V = float(np.clip(np.mean(phi), min(means), max(means)))
    assert rw.evaluate(log, target, LOO).value == pytest.approx(V, rel=CLOSE)


def test_sums_refuse_by_name_what_only_rows_tell() -> None:
    log, _ = side_log(40, 3)
    target = rw.FunctionPolicy(prefers_its_side)
    [refused] = rw.evaluate_all(rw.moments(log, target, [LOO], blocks=20), None, [LOO])
    assert isinstance(refused, rw.Refusal)
    assert refused.error.code == "needs-log"
    assert "the ratios differ between rows of the same step, state and action" in str(refused.error)
    interval = rw.evaluate(log, target, LOO).interval(method="percentile", replicates=399, seed=1)
    assert interval is not None
    assert interval.low < interval.high


def test_a_constant_added_to_every_reward_adds_exactly_that() -> None:
    world = random_mdp(3, 4, 3, 5, reward_sd=0.5, overlap=0.5)
    log = world.simulate(100, 0)
    moved = log.with_rewards(log.steps.reward + 1000, np.zeros(log.n_episodes))
    values = [rw.evaluate(each, world.target, LOO).value for each in (log, moved)]
    assert values[1] == pytest.approx(values[0] + 5000, rel=1e-12)


@pytest.mark.parametrize("errors", [False, True])
def test_replicates_are_the_estimates_of_the_repeated_log(errors: bool) -> None:
    """Solved together over sums, and one by one from the rows."""
    world = random_mdp(3, 4, 3, 4, reward_sd=0.5, terminal=1, overlap=0.5)
    log = world.simulate(60, 0)
    together = resample(log, [(world.target, LOO)], 20, seed=3, errors=errors)
    draws = np.empty((60, 64), np.uint8)
    draw(3, 0, THRESHOLDS, draws)
    for b in range(20):
        counts = draws[:, b].astype(np.int64)
        alone = replace(log, steps=log.steps.repeated(counts), _cache={})
        found = rw.evaluate(alone, world.target, LOO)
        assert together.values[b, 0] == pytest.approx(found.value, rel=1e-10)
        if errors:
            assert together.errors is not None
            assert together.errors[b, 0] == pytest.approx(found.standard_error, rel=1e-8)


def test_influence_values_are_nearly_what_leaving_an_episode_out_changes() -> None:
    world = random_mdp(3, 4, 3, 4, reward_sd=0.5, overlap=0.5)
    log, n = world.simulate(400, 0), 400
    psi = influence_values(log, world.target, LOO)
    value = rw.evaluate(log, world.target, LOO).value
    left = [np.arange(n) != i for i in range(0, n, 10)]
    [without] = np.transpose([rw.point_values(log.select(w), world.target, [LOO]) for w in left])
    changes = (n - 1) * (value - without)
    assert np.corrcoef(changes, psi[::10])[0, 1] > 0.98


def rare_action(n: int, seed: int, rate: float, wanted: float) -> tuple[rw.EpisodeLog, rw.Policy]:
    """Three steps, three states; the target likes an action that the log hardly shows."""
    rng, shape = np.random.default_rng(seed), (n, 3)
    action = (rng.random(shape) < rate).astype(int)
    log = rw.log_from_arrays(
        rng.integers(0, 3, (n, 4)),
        action,
        5 * action + rng.normal(size=shape),
        np.where(action == 1, rate, 1 - rate),
    )
    return log, rw.TablePolicy([[1 - wanted, wanted]] * 3)


@pytest.mark.parametrize(("rate", "level"), [(0.003, "red"), (0.01, "amber"), (0.2, "green")])
def test_an_action_that_states_hardly_show_is_never_green(rate: float, level: str) -> None:
    for seed in range(10):
        found = rw.evaluate(*rare_action(1000, seed, rate, 0.6), LOO)
        assert found.verdict != "green" if level != "green" else found.verdict == "green"


def test_every_engine_gives_the_same_value_error_and_verdict() -> None:
    world = random_mdp(3, 5, 3, 4, reward_sd=0.5, terminal=1, overlap=0.5, time_varying=False)
    log = world.simulate(300, 0)
    table, found = log.to_table(), {}
    for engine in ("arrays", "stream", "duckdb"):
        read = rw.read_log(table, engine=engine, horizon=log.horizon, terminated="terminated")
        found[engine] = rw.evaluate(read, world.target, LOO)
    for estimate in found.values():
        assert estimate.value == pytest.approx(found["arrays"].value, rel=1e-12)
        assert estimate.standard_error == pytest.approx(found["arrays"].standard_error, rel=1e-9)
        assert estimate.verdict.level == found["arrays"].verdict.level
        assert [g.level for g in estimate.gates] == [g.level for g in found["arrays"].gates]
