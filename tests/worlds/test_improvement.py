from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from reweigh.errors import UsageError
from reweigh.worlds import TabularMDP, random_mdp
from reweigh.worlds import improvement as better

from . import enumeration
from .enumeration import Tables


def tables_of(mdp: TabularMDP) -> Tables:
    return Tables(
        mdp.initial,
        mdp.transition,
        mdp.reward,
        mdp.target_array,
        mdp.behavior_array,
        mdp.terminal,
    )


@pytest.mark.parametrize(("terminal", "discount"), [(0, 1.0), (1, 0.8)])
def test_advantages_are_what_one_other_action_changes(terminal: int, discount: float) -> None:
    mdp = random_mdp(4, 3, 2, 3, terminal=terminal, discount=discount)
    mu = mdp.behavior_array
    A = better.advantage(mdp, mu)
    np.testing.assert_allclose((mu * A).sum(axis=2), 0, atol=1e-14)
    d = mdp.state_marginals(mu)
    for t, s, a in np.ndindex(*mu.shape):
        changed = mu.copy()
        changed[t, s] = np.eye(2)[a]
        # only the visits of s at t are changed, and each by A_t(s,a)
        gain = enumeration.value(tables_of(mdp), changed, discount) - float(mdp.behavior_value())
        assert gain == pytest.approx(discount**t * d[t, s] * A[t, s, a], abs=1e-13)


def test_tilted_policies_follow_their_formula() -> None:
    rng = np.random.default_rng(0)
    mu, A = rng.dirichlet(np.ones(4), (2, 3)), rng.normal(size=(2, 3, 4))
    mu[0, 0] = 0.5, 0.5, 0.0, 0.0
    A[0, 0] = 1.0, -1.0, 900.0, 0.0  # what is never taken has no say
    pi = better.tilted(mu, A, 2.0)
    expected = mu * np.exp(np.where(mu > 0, 2.0 * A, 0.0))
    np.testing.assert_allclose(pi, expected / expected.sum(axis=-1, keepdims=True), rtol=1e-12)
    np.testing.assert_array_equal(better.tilted(mu, A, 0.0) > 0, mu > 0)
    np.testing.assert_allclose(better.tilted(mu, A, 0.0), mu)
    steep = better.tilted(mu, A, 1e6)  # no overflow: all on the best of what is taken
    best = np.where(mu > 0, A, -np.inf).argmax(axis=-1)
    np.testing.assert_allclose(steep, np.eye(4)[best], atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_tilting_by_the_advantage_never_lowers_the_value(seed: int) -> None:
    mdp = random_mdp(seed, 4, 3, 6, terminal=seed % 2, discount=1 - 0.1 * (seed % 3))
    mu = mdp.behavior_array
    A = better.advantage(mdp, mu)
    values = [mdp.initial @ mdp.state_values(better.tilted(mu, A, b))[0] for b in (0, 0.5, 2, 9)]
    assert values[0] == pytest.approx(mdp.behavior_value())
    assert (np.diff(values) > 0).all()


def test_softened_and_epsilon_soft_policies() -> None:
    mu = np.array([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])
    np.testing.assert_allclose(
        better.softened(mu, 0.3), [[0.5, 0.5, 0.0], [0.24, 0.31, 0.45]], atol=1e-15
    )
    np.testing.assert_allclose(
        better.epsilon_soft(mu, 0.3), [[0.45, 0.45, 0.1], [0.24, 0.31, 0.45]], atol=1e-15
    )


@pytest.mark.parametrize(("terminal", "discount"), [(1, 1.0), (0, 0.9), (2, 0.95)])
def test_lasting_values_are_those_of_a_long_horizon(terminal: int, discount: float) -> None:
    settings: dict[str, Any] = {"terminal": terminal, "discount": discount, "time_varying": False}
    mdp = random_mdp(2, 5, 3, 400, **settings)
    mu = mdp.behavior_array[0]
    np.testing.assert_allclose(
        better.lasting_values(mdp, mu), mdp.state_values(mu)[0], rtol=1e-10, atol=1e-12
    )
    np.testing.assert_allclose(
        better.lasting_advantage(mdp, mu), better.advantage(mdp, mu)[0], rtol=1e-9, atol=1e-10
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("terminal", [0, 1])
def test_the_best_policy_is_the_best_of_all(seed: int, terminal: int) -> None:
    mdp = random_mdp(seed, 4, 3, 1, terminal=terminal, discount=0.9, time_varying=False)
    allowed = np.random.default_rng(seed).random((4, 3)) < 0.7
    allowed[:, seed % 3] = True
    best = better.best_policy(mdp, allowed)
    V = better.lasting_values(mdp, best)
    living = 4 - terminal
    assert (best[:living].max(axis=1) == 1).all()
    assert not best[:living][~allowed[:living]].any()
    np.testing.assert_array_equal(best[living:], np.full((terminal, 3), 1 / 3))
    for actions in itertools.product(*(np.flatnonzero(row) for row in allowed)):
        other = better.lasting_values(mdp, np.eye(3)[list(actions)])
        assert (other <= V + 1e-9).all()


def test_of_equal_actions_the_best_policy_takes_the_first() -> None:
    P = np.zeros((2, 3, 2))
    P[:, :, 1] = 1
    r = np.zeros((2, 3, 2))
    r[0, :, 1] = 0.1, 0.3, 0.1 + 0.2  # the last two differ by rounding alone
    even = np.full((2, 3), 1 / 3)
    mdp = TabularMDP([1, 0], P, r, even, even, horizon=1, terminal=[1])
    assert better.best_policy(mdp)[0].tolist() == [0, 1, 0]


def test_what_never_ends_has_no_lasting_value() -> None:
    P = np.zeros((3, 2, 3))
    P[0, 0, 2] = P[0, 1, 1] = P[1, :, 1] = P[2, :, 2] = 1
    even = np.full((3, 2), 0.5)
    mdp = TabularMDP([1, 0, 0], P, np.ones((3, 2, 3)), even, even, horizon=1, terminal=[2])
    with pytest.raises(UsageError, match=r"must end, but from state 1 it never does"):
        better.lasting_values(mdp, even)
    changing = random_mdp(0, discount=0.9)
    with pytest.raises(UsageError, match="do not depend on time"):
        better.lasting_values(changing, changing.behavior_array[0])


def test_wrong_arguments_are_named() -> None:
    mdp = random_mdp(0, discount=0.9, time_varying=False)
    mu = mdp.behavior_array[0]
    with pytest.raises(UsageError, match="'share' must be"):
        better.softened(mu, 1.5)
    with pytest.raises(UsageError, match="'epsilon' must be"):
        better.epsilon_soft(mu, float("nan"))
    with pytest.raises(UsageError, match="'beta' must be"):
        better.tilted(mu, mu, float("inf"))
    for allowed in (np.zeros((4, 3), bool), np.ones((3, 3), bool)):
        with pytest.raises(UsageError, match="'allowed' must be"):
            better.best_policy(mdp, allowed)
