"""Bounds under the marginal sensitivity model: identities, slow versions, exact worlds."""

from __future__ import annotations

import warnings
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

import reweigh as rw
from reweigh.evaluation.confounding import SensitivityModel, outcomes_of_sums
from reweigh.worlds import random_mdp

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
COLUMN = rw.ColumnPolicy("target_prob")
GAMMAS = (1.2, 2.0, 7.0)


def drawn(seed: int, n: int = 40, horizon: int = 3, **more: Any) -> tuple[rw.EpisodeLog, rw.Policy]:
    world = random_mdp(np.random.default_rng(seed), 3, 2, horizon, **{"reward_sd": 0.5} | more)
    return world.simulate(n, np.random.default_rng(seed + 100)), world.target


def by_linear_programs(log: rw.EpisodeLog, target: rw.Policy, gamma: float, side: int) -> float:
    """The recursion, one linear program per (t, s, a) on its rows: max E[w y], E[w] = 1."""
    steps, horizon = log.steps, log.horizon
    pi = target.probabilities(log)
    V: dict[tuple[int, int], float] = {}
    for t in range(horizon - 1, -1, -1):
        rows = np.arange(steps.n_rows)[steps.rows(t)]
        for s in np.unique(steps.state[rows]):
            total = 0.0
            for a in range(len(log.actions or ())):
                here = [i for i in rows if steps.state[i] == s and steps.action[i] == a]
                if not here:
                    continue
                y = [
                    steps.reward[i]
                    + log.discount
                    * V.get((t + 1, int(steps.next_state[i])), 0.0)
                    * (t < horizon - 1)
                    for i in here
                ]
                mu = float(steps.behavior_prob[here[0]])
                ends = (mu + (1 - mu) / gamma, mu + gamma * (1 - mu))
                n = len(here)
                found = linprog(-side * np.array(y) / n, A_eq=[[1 / n] * n], b_eq=[1.0],
                                bounds=[ends] * n)  # fmt: skip
                assert found.success
                total += float(pi[here[0]]) * -side * float(found.fun)
            V[t, int(s)] = total
    return float(np.mean([V[0, int(s)] for s in steps.first_states()]))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("more", [{}, {"terminal": 1}, {"discount": 0.8}], ids=str)
def test_against_linear_programs(seed: int, more: dict[str, Any]) -> None:
    log, target = drawn(seed, **more)
    bounds = rw.evaluate(log, target, "mis").confounding(GAMMAS)
    assert bounds.gammas.tolist() == [1.0, *GAMMAS]
    for k, gamma in enumerate(bounds.gammas.tolist()):
        low, high = (by_linear_programs(log, target, gamma, side) for side in (-1, 1))
        assert bounds.low[k] == pytest.approx(low, abs=1e-8)
        assert bounds.high[k] == pytest.approx(high, abs=1e-8)


def test_against_all_corners() -> None:
    """By brute force at one step: of all weights at their ends, with one between them."""
    rng = np.random.default_rng(3)
    n, mu, gamma = 7, 0.3, 2.5
    y = rng.standard_normal(n)
    state, ones = np.zeros((n + 1, 1), int), np.ones((n + 1, 1))
    action = np.zeros((n + 1, 1), int)
    action[n] = 1
    log = rw.log_from_arrays(state, action, np.append(y, 0.0)[:, None], mu * ones)
    found = rw.evaluate(log, rw.TablePolicy({0: {0: 1.0}}), "dm").confounding([gamma])
    low, high = mu + (1 - mu) / gamma, mu + gamma * (1 - mu)
    values = []
    for between, ends in product(range(n), product((low, high), repeat=n)):
        w = np.array(ends)
        w[between] += n - w.sum()
        if low - 1e-12 <= w[between] <= high + 1e-12:
            values.append(float(w @ y) / n)
    assert (found.low[-1], found.high[-1]) == pytest.approx((min(values), max(values)), abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["table", "column", "sees more"])
def test_gamma_one_is_dm(seed: int, kind: str) -> None:
    log, target = drawn(seed, 200, 5, discount=0.9)
    if kind == "column":
        target = COLUMN
    if kind == "sees more":

        def by_state(state: np.ndarray, action: int, step: np.ndarray) -> np.ndarray:
            return np.where(action == 0, 0.3 + 0.1 * (state % 3), 0.7 - 0.1 * (state % 3))

        target = rw.FunctionPolicy(by_state)
    for name in ("mis", "dm", "wis"):
        estimate = rw.evaluate(log, target, name)
        bounds = estimate.confounding()
        dm = rw.evaluate(log, target, "dm").value
        assert bounds.value == pytest.approx(dm, rel=1e-12, abs=1e-12)
        assert bounds.low[0] == bounds.high[0] == bounds.value


def test_one_step_is_the_closed_form() -> None:
    """α ȳ + (1 - α) T, T the mean of the largest share 1/(1 + Γ) of the rows, in every cell."""
    log, target = drawn(5, 400, 1)
    steps, gamma = log.steps, 3.0
    pi = target.probabilities(log)
    expected = 0.0
    for s, a in product(range(3), range(2)):
        here = np.flatnonzero((steps.state == s) & (steps.action == a))
        y, mu = np.sort(steps.reward[here])[::-1], float(steps.behavior_prob[here[0]])
        k = len(y) / (1 + gamma)
        top = (y[: int(k)].sum() + (k - int(k)) * y[int(k)]) / k
        alpha = mu + (1 - mu) / gamma
        share = float(np.mean(steps.state == s)) * float(pi[here[0]])
        expected += share * (alpha * float(y.mean()) + (1 - alpha) * top)
    assert rw.evaluate(log, target, rw.mis()).confounding([gamma]).high[-1] == pytest.approx(
        expected
    )


def test_bounds_widen_with_gamma_and_stay_within_what_was_seen() -> None:
    log, target = drawn(7, 300, 4)
    bounds = rw.evaluate(log, target, rw.mis()).confounding(np.geomspace(1, 1000, 20))
    assert np.all(np.diff(bounds.low) <= 1e-12)
    assert np.all(np.diff(bounds.high) >= -1e-12)
    least, most = log.reward_range
    assert bounds.low[-1] >= 4 * least
    assert bounds.high[-1] <= 4 * most


def confounded(gamma: float) -> tuple[rw.EpisodeLog, rw.Policy, float]:
    """Two steps and a hidden u in {0, 1} at each, with the exact frequencies of a population:
    u moves the odds of action 1 by γ up or down, the reward and the next state. The true value of
    always taking action 1."""
    weights, rows = [], []
    # the true P(a=1|u) = o/(1 + o) with the logged odds times γ or 1/γ, mixed so that the mean is μ
    mu = 0.5
    p = {1: gamma / (1 + gamma), 0: 1 / (1 + gamma)}
    for u0, a0, u1, a1 in product((0, 1), repeat=4):
        s1 = int(u0 == 1 and a0 == 1)
        chance = 0.25 * (p[u0] if a0 else 1 - p[u0]) * (p[u1] if a1 else 1 - p[u1])
        weights.append(chance)
        rows.append(((0, s1), (a0, a1), (u0 + 0.5 * a0, 2 * u1 * a1 + s1)))
    count = np.rint(np.array(weights) * 4 * (1 + round(gamma)) ** 2).astype(int)
    np.testing.assert_allclose(count, np.array(weights) * 4 * (1 + gamma) ** 2, atol=1e-9)
    every = [row for row, k in zip(rows, count, strict=True) for _ in range(k)]
    states, actions, rewards = (np.array([row[j] for row in every]) for j in range(3))
    log = rw.log_from_arrays(states, actions, rewards, np.full(actions.shape, mu))
    # u is even at both steps: (1/2 + 1/2) + (2 · 1/2 + P(s1 = 1)) with P(s1 = 1) = 1/2
    return log, rw.TablePolicy({0: {1: 1.0}, 1: {1: 1.0}}), 1.0 + 1.5


@pytest.mark.parametrize("gamma", [2.0, 3.0, 5.0])
def test_the_truth_of_a_confounded_world_is_within_its_bounds(gamma: float) -> None:
    """And at its end: u decides the rewards, so that the worst weights are the true ones."""
    log, target, truth = confounded(gamma)
    bounds = rw.evaluate(log, target, "dm").confounding([gamma - 0.5, gamma])
    assert bounds.value > truth + 0.1
    assert bounds.low[-1] == pytest.approx(truth, abs=1e-12)
    assert bounds.low[-2] > truth


def test_the_tipping_point() -> None:
    log, target = drawn(11, 400, 4)
    estimate = rw.evaluate(log, target, rw.mis())
    bounds = estimate.confounding()
    assert bounds.tipping is not None
    at = estimate.confounding([bounds.tipping / 1.001, bounds.tipping])
    side = at.low if bounds.value > estimate.behavior_value else at.high
    before, after = (x - estimate.behavior_value for x in side[-2:])
    assert before * (bounds.value - estimate.behavior_value) > 0
    assert after * (bounds.value - estimate.behavior_value) <= 0
    assert "may be gone if hidden causes change the odds" in bounds.sentence
    certain = log.with_rewards(log.steps.action.astype(float), None)
    always = rw.TablePolicy({int(s): {1: 1.0} for s in log.states.values})
    sure = rw.evaluate(certain, always, rw.mis()).confounding()
    assert sure.tipping is None
    assert "stays if the odds of the logged actions are off by 100 times" in sure.sentence


@pytest.mark.parametrize("engine", ["stream", "duckdb"])
@pytest.mark.parametrize("rewards", ["of state and action", "two values"])
def test_sums_that_hold_the_distribution(engine: str, rewards: str) -> None:
    log, _ = drawn(2, 200, 4)
    rng = np.random.default_rng(0)
    y = 0.3 * log.steps.state + log.steps.action
    if rewards == "two values":
        y = np.where(rng.random(log.steps.n_rows) < 0.3 + 0.2 * log.steps.action, 2.5, -1.0)
    log = log.with_rewards(y.astype(float), None)
    expected = rw.evaluate(log, COLUMN, rw.mis()).confounding(GAMMAS)
    there = rw.read_log(log.to_table(), engine=engine, behavior_prob="behavior_prob",
                        target_prob="target_prob")  # fmt: skip
    found = rw.evaluate(there, COLUMN, rw.mis()).confounding(GAMMAS)
    saved = rw.evaluate(rw.moments(there, COLUMN), estimator=rw.mis()).confounding(GAMMAS)
    for other in (found, saved):
        np.testing.assert_allclose(other.low, expected.low, rtol=1e-9)
        np.testing.assert_allclose(other.high, expected.high, rtol=1e-9)
        assert other.tipping == pytest.approx(expected.tipping, rel=1e-6)


def test_what_is_refused() -> None:
    log, target = drawn(2, 200, 4)
    with pytest.raises(rw.RefusedError, match=r"needs? the distribution of the rewards.*at step"):
        rw.evaluate(rw.moments(log, target), estimator=rw.mis()).confounding()
    with pytest.raises(rw.RefusedError, match="no sums of the kind 'model'"):
        rw.evaluate(rw.moments(log, target, ["mis"], gates=False), estimator=rw.mis()).confounding()
    with pytest.raises(rw.UsageError, match=r"gammas.*finite numbers from 1 on"):
        rw.evaluate(log, target, rw.mis()).confounding([0.5])
    rng = np.random.default_rng(1)
    mu, a = rng.uniform(0.3, 0.7, (100, 2)), rng.integers(0, 2, (100, 2))
    varying = rw.log_from_arrays(0 * a, a, rng.random(a.shape), mu, 0.5 + 0 * mu)
    with pytest.raises(rw.RefusedError, match="the propensities differ at step 0 in state 0"):
        rw.evaluate(varying, COLUMN, rw.mis()).confounding()
    numbers = rw.log_from_arrays(0 * a, rng.random(a.shape), mu, mu, mu, continuous_actions=True)
    with pytest.raises(rw.RefusedError, match="actions are continuous"):
        rw.evaluate(numbers, COLUMN, rw.mis()).confounding()
    cut = rw.log_from_arrays(0 * a, a, rng.random(a.shape), 0.5 + 0 * mu, 0.5 + 0 * mu,
                             lengths=np.where(np.arange(100) < 5, 1, 2),
                             truncated=np.arange(100) < 5)  # fmt: skip
    with pytest.raises(rw.RefusedError, match="cut off before a state that is not known"):
        rw.evaluate(cut, COLUMN, rw.mis()).confounding()


def test_unseen_actions_are_named() -> None:
    log, _ = drawn(2, 200, 2)
    never = rw.TablePolicy({int(s): {"other": 0.25, 1: 0.75} for s in log.states.values})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bounds = rw.evaluate(log, never, "dm").confounding()
    assert bounds.unseen == pytest.approx(1 - 0.75**2)
    assert "43.8% of the target's behavior is not in the log" in str(bounds)


def test_the_record() -> None:
    log, target = drawn(1, 200, 3)
    bounds = rw.evaluate(log, target, rw.mis()).confounding([1, 2])
    frame = bounds.to_frame("arrow")
    assert frame.column_names == ["gamma", "low", "high"]
    assert bounds.to_dict()["bounds"] == frame.to_pylist()
    assert str(bounds).splitlines()[1].split() == ["Γ", "at", "least", "at", "most"]
    outcomes, constant = outcomes_of_sums(
        rw.moments(log.with_rewards(np.ones(log.steps.n_rows), None), target)
    )
    assert constant.all()
    model = SensitivityModel.of(rw.moments(log, target), outcomes, constant)
    assert model.value(5.0, 1) == pytest.approx(3.0)


def test_the_chart() -> None:
    log, target = drawn(1, 200, 3)
    estimate = rw.evaluate(log, target, rw.mis())
    chart = estimate.plot.confounding([1.05, 1.5, 2]).to_dict()
    assert "How wrong may the logged propensities be?" in str(chart)
    assert "today’s policy" in str(chart)
