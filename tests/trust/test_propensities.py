"""The test of propensities: exact on tiny logs, quiet on sparse clean ones, loud on wrong ones."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from reweigh_studies.sparse_logs import SETTINGS, WRONG, p_value
from scipy import stats

import reweigh as rw
from reweigh.log.states import Labels
from reweigh.sums.engines import ArraysEngine, Request
from reweigh.sums.keyed import TransitionMoments
from reweigh.trust.gates import propensities
from reweigh.trust.gates.propensities import _counts, _groups, ratio_test

KINDS = Request(frozenset({"transitions", "model"}))
LOGS = 40  # of each sparse setting


def test_clean_sparse_logs_are_seldom_red() -> None:
    """Nominally 1 %; of 760 logs a test whose size is 2 % has at most 29 red with probability
    0.9995 (Monte-Carlo error 0.5 points). Before the mend 20 of 100 were."""
    found = [p_value(name, k, seed=1) for name in SETTINGS for k in range(LOGS)]
    assert len(SETTINGS) >= 10
    red = sum(p is not None and p < 0.01 for p in found)
    assert red <= stats.binom.ppf(1 - 5e-4, len(found), 0.02)
    assert sum(p is None for p in found) == 0


@pytest.mark.parametrize("setting", [*list(SETTINGS)[:3], "Taxi", "CartPole in bins"])
@pytest.mark.parametrize("fault", sorted(set(WRONG) - {"propensities-noisy"}))
def test_wrong_propensities_of_sparse_logs_are_red(setting: str, fault: str) -> None:
    """In at least 70 % of a fault's logs; `docs/trust` has shares of 90 % and more."""
    found = [p_value(setting, k, fault, seed=2) for k in range(10)]
    assert sum(p is not None and p < 0.01 for p in found) >= 7


def cells_of(log: rw.EpisodeLog, target: rw.Policy, *, actions: bool = True) -> TransitionMoments:
    m = ArraysEngine().moments(log, target, KINDS)
    cells = m.model if actions else m.transitions
    assert cells is not None
    return cells


def test_dense_counts_are_the_sums_of_ratios_with_their_exact_variance() -> None:
    """D = Σ(ρ - 1) and V = N (Σ π²/μ - 1) by state, for policies that change with the step and for
    those that do not."""
    for time_varying in (True, False):
        world = rw.worlds.random_mdp(1, 4, 3, 6, time_varying=time_varying)
        log = world.simulate(3000, 7)
        mu, pi = world.behavior_array, world.target_array
        rho = world.target.probabilities(log) / log.steps.behavior_prob
        t, s = log.steps.step, log.steps.state
        each = (np.sum(pi**2 / mu, axis=2) - 1)[t, s]
        found = ratio_test(cells_of(log, world.target), 6, log.states)
        D, V = (np.bincount(s, values) for values in (rho - 1, each))
        p = min(
            stats.chi2.sf(np.sum(D**2 / V), 4), 2 * stats.norm.sf(abs(D.sum()) / V.sum() ** 0.5)
        )
        assert found.p == pytest.approx(min(2 * p, 1.0), rel=1e-3)
        assert found.state == int(np.argmax(D**2 / V))
        D, V = (np.bincount(t, values) for values in (rho - 1, each))
        assert found.per_step == pytest.approx(2 * stats.norm.sf(np.abs(D) / np.sqrt(V)), rel=1e-3)
        assert found.step == int(np.argmax(np.abs(D) / np.sqrt(V)))


def test_averages_are_the_products_of_different_rows() -> None:
    """Without the actions: Σ over pairs of rows of a state (ρ - 1)(ρ' - 1), by N v."""
    world = rw.worlds.random_mdp(1, 5, 3, 8, reward_sd=0.3)
    log = world.simulate(400, 7)
    x = world.target.probabilities(log) / log.steps.behavior_prob - 1
    n, D, V = (np.bincount(log.steps.state, v) for v in (np.ones(len(x)), x, x * x))
    scale = n * V.sum() / n.sum()
    weight = V / scale
    a = np.sum(weight**3) / np.sum(weight**2)
    df = np.sum(weight**2) / a**2
    by_state = stats.chi2.sf(df + np.sum((D**2 - V) / scale) / a, df)
    p = min(by_state, 2 * stats.norm.sf(abs(D.sum()) / np.sqrt(V.sum())))
    found = ratio_test(cells_of(log, world.target, actions=False), 8, log.states)
    assert found.p == pytest.approx(min(2 * p, 1.0), rel=1e-9)
    assert found.state == int(np.argmax(D**2 / scale))


def one_state(counts: tuple[int, ...], mu: np.ndarray, pi: np.ndarray) -> TransitionMoments:
    """The cells of a bandit's log in which the actions occur so many times."""
    action = np.repeat(np.arange(len(counts)), counts)
    log = rw.log_from_arrays(
        states=np.zeros((len(action), 1), int),
        actions=action[:, None],
        rewards=np.zeros((len(action), 1)),
        behavior_prob=mu[action][:, None],
        target_prob=pi[action][:, None],
    )
    m = ArraysEngine().moments(log, rw.ColumnPolicy("target_prob"), KINDS)
    assert m.model is not None
    return m.model


def test_deviations_have_mean_0_and_their_variance_by_enumeration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All logs of ten rows with three actions, seen or not: the mean is 0 whatever the chance to be
    seen; the variance, whose covariances are approximate, is right to 3 %."""
    monkeypatch.setattr(propensities, "EXPECTED", 0.0)
    monkeypatch.setattr(propensities, "LIKELY", 0.0)
    n, mu, pi = 10, np.array([0.6, 0.3, 0.1]), np.array([0.3, 0.4, 0.3])
    mean = square = variance = 0.0
    for first, second in product(range(n + 1), repeat=2):
        counts = (first, second, n - first - second)
        if counts[2] >= 0:
            chance = float(stats.multinomial.pmf(counts, n, mu))
            nodes = _counts(one_state(counts, mu, pi), Labels((0,)), steps_alike=False).nodes
            mean += chance * nodes.D[0]
            square += chance * nodes.D[0] ** 2
            variance += chance * nodes.V[0]
    assert mean == pytest.approx(0, abs=1e-12)
    assert variance == pytest.approx(square, rel=0.03)


def test_actions_known_beforehand_count_where_they_are_missing() -> None:
    """A policy that is the same at every step: the first step lacks an action that others show."""
    rng = np.random.default_rng(0)
    action = rng.integers(2, size=(200, 5))
    action[:, 0] = 0
    log = rw.log_from_arrays(
        states=np.zeros((200, 5), int),
        actions=action,
        rewards=np.zeros((200, 5)),
        behavior_prob=np.full((200, 5), 0.5),
        target_prob=np.where(action == 0, 0.2, 0.8),
    )
    found = ratio_test(cells_of(log, rw.ColumnPolicy("target_prob")), 5, log.states)
    assert found.p is not None
    assert found.p < 1e-4
    assert found.step == 0


def test_propensities_that_contradict_the_log_are_beyond_doubt() -> None:
    """Logged as certain, and still other actions were taken: no variance, and no doubt."""
    action = np.arange(140)[:, None] % 2
    log = rw.log_from_arrays(
        states=np.zeros((140, 1), int),
        actions=action,
        rewards=np.zeros((140, 1)),
        behavior_prob=np.ones((140, 1)),
        target_prob=np.full((140, 1), 0.5),
    )
    found = ratio_test(cells_of(log, rw.ColumnPolicy("target_prob")), 1, log.states)
    assert found.p is not None
    assert found.p < 1e-12


def test_hidden_rows_do_not_decide_how_the_others_are_compared() -> None:
    world = rw.worlds.random_mdp(3, 4, 3, 6)
    log = world.simulate(500, 0)
    cells = cells_of(log, world.target)
    mixed = cells.select(cells.s == 3)
    mixed = replace(mixed, rho2=1.5 * mixed.rho2)  # ratios that differ within (t, s, a)
    together = cells.select(cells.s != 3) + mixed
    named = Labels((0, 1, 2, None))
    at = together.s == 3
    parts = [propensities._compare(together.select(rows), named) for rows in (~at, at)]
    whole = propensities._compare(cells.select(cells.s != 3), log.states)
    assert parts[0].chi2 == whole.chi2
    assert parts[1].df > 0
    p = stats.chi2.sf(parts[0].chi2 + parts[1].chi2, parts[0].df + parts[1].df)
    q = stats.chi2.sf(parts[0].overall() + parts[1].overall(), 2)
    assert ratio_test(together, 6, named).p == pytest.approx(min(2 * min(p, q), 1.0), rel=1e-12)


def test_small_states_are_merged_by_their_names() -> None:
    """Whatever their codes are, and every group but one has the rows that it needs."""
    rng = np.random.default_rng(5)
    s = np.repeat(np.arange(300), 4)
    N = rng.integers(1, 40, len(s)).astype(float)
    group = _groups(s, N, Labels(tuple(range(300))))
    rows = np.bincount(group, N)
    assert np.sum(rows < 100) <= 1
    assert len(rows) > 50
    assert np.array_equal(group[::4], group[3::4])  # a state is in one group
    large = np.bincount(s, N) >= 100
    assert all(np.sum(group[::4] == group[4 * state]) == 1 for state in np.flatnonzero(large))
    code = rng.permutation(300)  # of each state, in another log
    names = Labels(tuple(np.argsort(code).tolist()))
    order = np.argsort(code[s], kind="stable")
    other = _groups(code[s][order], N[order], names)
    pairs = np.unique(np.stack([other, group[order]]), axis=1)
    assert pairs.shape[1] == len(rows)  # the same states are together


def test_merged_sites_have_one_p_value_in_any_order() -> None:
    world = rw.worlds.random_mdp(6, 40, 3, 5)
    sites = [ArraysEngine().moments(world.simulate(100, k), world.target, KINDS) for k in range(2)]
    # the second site met the states in another order
    codes = np.random.default_rng(1).permutation(len(sites[1].states))
    other = replace(
        sites[1],
        states=Labels(tuple(sites[1].states.values[c] for c in np.argsort(codes))),
        **{
            name: getattr(sites[1], name).recode(codes)
            for name in ("transitions", "model", "start", "start_model")
        },
    )
    one, two = sites[0] + other, other + sites[0]
    assert one.states.values != two.states.values
    p, q = (ratio_test(m.model, 5, m.states).p for m in (one, two) if m.model is not None)
    assert p is not None
    assert p == pytest.approx(q, rel=1e-9)


@pytest.mark.parametrize("steps", [True, False])
def test_rare_actions_raise_no_alarm_and_wrong_propensities_do(steps: bool) -> None:
    """An action that is logged once in 1,000 rows and taken in three of ten; by table or step."""
    rng = np.random.default_rng(3)
    n, horizon = 150, 4
    mu = np.array([[0.6, 0.399, 0.001], [0.45, 0.549, 0.001]])
    pi = np.array([[0.3, 0.4, 0.3], [0.4, 0.3, 0.3]])
    alarms = {"right": 0, "without actions": 0, "wrong": 0}
    for _ in range(100):
        action = rng.choice(3, (n, horizon), p=mu[0])
        if steps:
            action[:, 1::2] = rng.choice(3, (n, horizon // 2), p=mu[1])
        which = (np.arange(horizon) % 2) * steps
        given = mu[which, action]
        for name, logged in (("right", given), ("wrong", np.where(action == 0, 0.8, 1.0) * given)):
            log = rw.log_from_arrays(
                states=np.zeros((n, horizon), int),
                actions=action,
                rewards=np.zeros((n, horizon)),
                behavior_prob=np.minimum(logged, 1.0),
                target_prob=pi[which, action],
            )
            m = ArraysEngine().moments(log, rw.ColumnPolicy("target_prob"), KINDS)
            assert m.model is not None
            assert m.transitions is not None
            p = ratio_test(m.model, horizon, m.states).p
            assert p is not None
            alarms[name] += p < 0.01
            if name == "right":
                plain = ratio_test(m.transitions, horizon, m.states).p
                assert plain is not None
                alarms["without actions"] += plain < 0.01
    # Of 100 logs with a chance of 1 in 100 each, more than 5 are alarmed once in 2,000 times.
    assert alarms["right"] <= 5
    assert alarms["wrong"] >= 90
    assert alarms["without actions"] >= 20  # what the actions are asked for
