"""Appendix B of the paper, statement by statement, over all logs of tiny worlds.

The fictitious estimator ṽ knows the truth wherever a state has fewer than (1-δ) n d_t^μ(s) visits.
Expectations are sums over every log with its probability, so equalities are equalities.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from reweigh_studies import theorems
from reweigh_studies.fictitious import (
    covariance_bound,
    fictitious,
    propagation,
    variance_parts,
)
from scipy.stats import binom

from reweigh import theory
from reweigh.worlds import TabularMDP, random_mdp

DELTAS = (-0.5, 0.0, 0.25, 0.5, 0.8, 0.999)
CASES = {
    "two-steps": (random_mdp(3, n_states=2, n_actions=2, horizon=2), 3),
    "three-states": (random_mdp(5, n_states=3, n_actions=2, horizon=2), 2),
    "three-steps": (random_mdp(7, n_states=2, n_actions=2, horizon=3, overlap=0.2), 2),
    "early-end": (random_mdp(6, n_states=3, n_actions=2, horizon=3, terminal=1), 2),
    "discounted": (random_mdp(9, n_states=2, n_actions=2, horizon=2, discount=0.5), 4),
}
each_case = pytest.mark.parametrize("case", CASES)


@cache
def every(case: str) -> tuple[TabularMDP, theory.Quantities, theorems.Logs]:
    world, n = CASES[case]
    return world, theory.quantities(world), theorems.every_log(world, n)


@each_case
@pytest.mark.parametrize("delta", DELTAS)
def test_unbiased_value(case: str, delta: float) -> None:
    """Lemma B.2: E[ṽ] = v for all δ < 1, negative ones too."""
    world, q, logs = every(case)
    found = fictitious(world, q, logs, delta)
    assert logs.mean(found.values).value == pytest.approx(q.value, rel=1e-12)


@each_case
@pytest.mark.parametrize("delta", DELTAS)
def test_unbiased_marginals(case: str, delta: float) -> None:
    """Lemma on d̃: E[d̃_t] = d_t^π."""
    world, q, logs = every(case)
    d = fictitious(world, q, logs, delta).marginals
    np.testing.assert_allclose(np.einsum("trs,r->ts", d, logs.probability), q.d_pi, atol=1e-13)


@each_case
@pytest.mark.parametrize("delta", DELTAS)
def test_variance_decomposition(case: str, delta: float) -> None:
    """Lemma B.3: the variance of ṽ is that of the start plus one term per step and state."""
    world, q, logs = every(case)
    found = fictitious(world, q, logs, delta)
    variance = logs.mean((found.values - q.value) ** 2).value
    parts = logs.mean(variance_parts(world, q, logs, found).sum(axis=1)).value
    assert variance == pytest.approx(parts, rel=1e-11)


@each_case
@pytest.mark.parametrize("delta", DELTAS)
def test_covariance_of_the_marginals(case: str, delta: float) -> None:
    """Lemma on Cov(d̃_h), in the order of semidefinite matrices, and Corollary B.1, its diagonal;
    at the first step Var[d̃_1(s)] = (d_1 - d_1²)/n exactly. The bound's factor is needed: half of
    it is below the covariance somewhere."""
    world, q, logs = every(case)
    d = fictitious(world, q, logs, delta).marginals
    covariance = np.array([logs.covariance(x) for x in d])
    variance = np.diagonal(covariance, axis1=1, axis2=2)
    bound = covariance_bound(world, q, logs.n, delta, variance)
    assert np.linalg.eigvalsh(bound - covariance).min() > -1e-14
    assert np.all(np.diagonal(bound, axis1=1, axis2=2) >= variance - 1e-14)
    first = (world.initial - world.initial**2) / logs.n
    np.testing.assert_allclose(variance[0], first, rtol=1e-12, atol=1e-15)
    assert np.linalg.eigvalsh(bound / 2 - covariance).min() < 0


@each_case
@pytest.mark.parametrize("delta", [0.4, 0.5, 0.8])
def test_equal_to_mis_where_every_state_is_visited_enough(case: str, delta: float) -> None:
    """By construction (proof of Lemma B.1): ṽ = v̂ outside of the event E. Logs of 20 episodes."""
    world, q, _ = every(case)
    logs = theorems.drawn_logs(world, 20, 2_000, 3)
    found, plain = fictitious(world, q, logs, delta), theorems.replicates(world, logs).plain
    real = found.real > 0
    assert real.any()
    assert not real.all()
    np.testing.assert_allclose(found.values[real], plain[real], rtol=1e-12)


@each_case
def test_equal_to_mis_on_every_log_for_large_delta(case: str) -> None:
    """Beyond the paper. If (1-δ) n d_t^μ(s) ≤ 1 everywhere, only states without visits are
    replaced, and d̃ has no mass there: a move into a state is a visit of it. So ṽ = v̂ on every
    log, v̂ has no bias, and Lemma B.3 is about v̂ itself. A smaller δ makes them differ."""
    world, q, logs = every(case)
    plain = theorems.replicates(world, logs).plain
    delta = 1 - 1 / (logs.n * q.d_mu[:-1].max())
    found = fictitious(world, q, logs, delta)
    assert found.real.min() == 0  # though some states are missed
    np.testing.assert_allclose(found.values, plain, rtol=1e-11)
    unlike = fictitious(world, q, logs, 0.0)
    assert np.abs(unlike.values - plain).max() > 0.01


@each_case
@pytest.mark.parametrize("delta", [0.1, 0.5, 0.9])
def test_approximation_by_the_fictitious_estimator(case: str, delta: float) -> None:
    """Lemma B.1: E[(P v̂ - v)²] ≤ E[(ṽ - v)²] + 3H³S R_max² exp(-δ² n d_m/2), and the sharper line
    of its proof with 3H²R_max² Pr[E]."""
    world, q, logs = every(case)
    high = q.horizon * q.reward_max
    clipped = theorems.replicates(world, logs, v_max=high).clipped
    found = fictitious(world, q, logs, delta)
    left = logs.mean((clipped - q.value) ** 2).value
    right = logs.mean((found.values - q.value) ** 2).value
    assert left <= right + 3 * high**2 * (1 - logs.mean(found.real).value)
    d_m = q.d_mu[:-1][q.d_pi[:-1] > 0].min()
    rest = 3 * q.horizon * world.n_states * high**2 * math.exp(-(delta**2) * logs.n * d_m / 2)
    assert left <= right + rest


def test_approximation_where_its_last_term_is_small() -> None:
    """Lemma B.1 by 20,000 drawn logs of 400 episodes: the last term is below 1e-8, the difference
    of the squared errors is paired, and Pr[E] ≤ HS exp(-δ² n d_m/2)."""
    world, n, delta = random_mdp(2, 3, 2, 4, concentration=8), 400, 0.9
    q = theory.quantities(world)
    logs = theorems.drawn_logs(world, n, 20_000, 1)
    high = q.horizon * q.reward_max
    found = fictitious(world, q, logs, delta)
    left = (theorems.replicates(world, logs, v_max=high).clipped - q.value) ** 2
    gap = logs.mean(left - (found.values - q.value) ** 2)
    seldom = math.exp(-(delta**2) * n * q.d_mu[:-1].min() / 2)
    assert 3 * q.horizon * world.n_states * high**2 * seldom < 1e-8
    assert gap.value <= 1e-8 + 5 * gap.error
    rough = fictitious(world, q, logs, 0.25)
    seldom = math.exp(-(0.25**2) * n * q.d_mu[:-1].min() / 2)
    missed = 1 - logs.mean(rough.real).value
    assert 0 < missed <= q.horizon * world.n_states * seldom


@each_case
def test_clipping_only_improves(case: str) -> None:
    """Footnote to Theorem 4.1: on every log, whatever the range that holds the true value."""
    world, q, logs = every(case)
    for high in (q.value, float(q.V.max()), q.horizon * q.reward_max):
        found = theorems.replicates(world, logs, v_max=high)
        assert np.all(np.abs(found.clipped - q.value) <= np.abs(found.plain - q.value) + 1e-15)
        if high <= q.V.max():  # the widest range may hold every estimate
            assert np.any(np.abs(found.clipped - q.value) < np.abs(found.plain - q.value))


def test_error_propagation_exactly() -> None:
    """Theorem on error propagation, at the second step over all logs of 12 episodes of a world
    that is random at the first step only, where its condition holds (and not for 5 episodes)."""
    P = np.zeros((2, 2, 2, 2))
    P[0] = [[[0.6, 0.4], [0.5, 0.5]], [[0.4, 0.6], [0.5, 0.5]]]
    P[1, 0, :, 0] = P[1, 1, :, 1] = 1
    still = [[1.0, 0.0]] * 2
    world = TabularMDP(
        [0.5, 0.5], P, np.ones((2, 2, 2, 2)), [[[0.6, 0.4]] * 2, still], [[[0.5, 0.5]] * 2, still]
    )
    q, delta = theory.quantities(world), 0.05
    assert not propagation(q, 5, delta).holds
    limit = propagation(q, 12, delta)
    assert limit.holds
    logs = theorems.every_log(world, 12)
    d = fictitious(world, q, logs, delta).marginals
    variance = np.array([np.diag(logs.covariance(x)) for x in d])[:2]
    assert np.all(variance <= limit.bound)
    assert np.all(variance > 0.05 * limit.bound)


@pytest.mark.parametrize("seed", range(4))
def test_error_propagation_over_more_steps(seed: int) -> None:
    """The same over six steps by 4,000 drawn logs; a variance has a relative error of
    sqrt(2/4000) = 2 %, and the bound is met with room. The error grows linearly, at most."""
    world = random_mdp(seed, 3, 2, 6, concentration=10, overlap=0.8)
    q, delta = theory.quantities(world), 0.2
    n = 400
    limit = propagation(q, n, delta)
    assert limit.holds
    logs = theorems.drawn_logs(world, n, 4_000, seed)
    d = fictitious(world, q, logs, delta).marginals
    variance = np.array([np.diag(logs.covariance(x)) for x in d])[:-1]
    assert np.all(variance <= 0.9 * limit.bound)


def test_error_propagation_needs_the_largest_ratios() -> None:
    """The proof sketch's display, Var[d̃_h(s)] ≤ 2h d_h^π(s)/((1-δ) n), lacks τ_a τ_s. One start
    state and a rare action: d̃_2(s) is a mean of n ratios, so n Var is exact for every n."""
    P = np.zeros((2, 2, 2))
    P[:, 0, 1] = P[:, 1, 0] = 1
    world = TabularMDP([1, 0], P, np.ones((2, 2, 2)), [[0.5, 0.5]] * 2, [[0.02, 0.98]] * 2,
                       horizon=2)  # fmt: skip
    q = theory.quantities(world)
    n, delta = 3, 0.0
    logs = theorems.every_log(world, n)
    d = fictitious(world, q, logs, delta).marginals
    variance = logs.covariance(d[1])[1, 1]
    assert n * variance == pytest.approx(0.5**2 / 0.02 - 0.25, rel=1e-10)
    assert n * variance > 2 * 2 * q.d_pi[1, 1]
    assert n * variance < n * propagation(q, n, delta).bound[1, 1]
    assert propagation(q, 10**6, delta).holds  # there the same n Var is under the condition


@pytest.mark.parametrize("p", [0.01, 0.3, 0.9])
@pytest.mark.parametrize("n", [5, 100, 3000])
def test_multiplicative_chernoff(n: int, p: float) -> None:
    """Lemma A.1, exactly: both tails, and the weaker form; for the lower tail δ must be below 1,
    which the lemma does not say."""
    delta = np.linspace(0.02, 0.98, 49)
    above = binom.logsf(np.floor((1 + delta) * p * n + 1e-9), n, p)
    below = binom.logcdf(np.ceil((1 - delta) * p * n - 1e-9) - 1, n, p)
    upper = (delta - (1 + delta) * np.log1p(delta)) * n * p
    lower = (-delta - (1 - delta) * np.log1p(-delta)) * n * p
    assert np.all(above < upper)
    assert np.all(below < lower)
    assert np.all(lower <= -(delta**2) * p * n / 2)
    chosen = math.sqrt(20 * math.log(n) / (p * n))
    if chosen < 1:
        assert binom.logcdf(math.ceil((1 - chosen) * p * n) - 1, n, p) < -10 * math.log(n)
