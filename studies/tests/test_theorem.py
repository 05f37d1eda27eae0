"""Theorem 4.1 and its corollary on random worlds, and n times the squared errors.

Where logs are drawn, a mean of R squares has a relative Monte-Carlo error of about sqrt(2/R); the
margins are four and more of them, and the seeds are fixed.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from reweigh_studies import theorems
from reweigh_studies.fictitious import cell_variance, fictitious, variance_parts

from reweigh import theory
from reweigh.worlds import TabularMDP, random_mdp

REPLICATES = 4_000
WORLDS = theorems.random_worlds()
each_world = pytest.mark.parametrize("name", WORLDS)


@cache
def drawn(
    name: str, n: int
) -> tuple[TabularMDP, theory.Quantities, theorems.Logs, theorems.Replicates]:
    world = WORLDS[name]
    logs = theorems.drawn_logs(world, n, REPLICATES, n)
    return world, theory.quantities(world), logs, theorems.replicates(world, logs)


@each_world
def test_leading_term_from_its_parts(name: str) -> None:
    """The leading term is Var[V_0(s_0)] + Σ_t Σ_s d^π²/d^μ Var_μ[ρ (r + V') | s]."""
    world, q = WORLDS[name], theory.quantities(WORLDS[name])
    reach = theorems.divided(q.d_pi**2, q.d_mu)[:-1]
    power = q.discount ** (2 * np.arange(q.horizon))
    steps = power @ np.sum(reach * cell_variance(world, q.V), axis=1)
    start = world.initial @ q.V[0] ** 2 - q.value**2
    assert q.leading == pytest.approx(start + steps, rel=1e-12)


@each_world
def test_error_of_plain_mis_tends_to_the_leading_term(name: str) -> None:
    """n·MSE/leading → 1, as Theorem 4.1 has it, on ten random worlds; and faster than its slack
    of n^{-1/2}: the excess falls like 1/n.

    As plain MIS has no bias and Lemma B.3 is about it, E[Σ d̂²/n_t(s) Var] is its MSE too, with a
    far smaller Monte-Carlo error than the squared errors have. Both are asked."""
    excess = []
    for n in (100, 1_000, 10_000):
        world, q, logs, found = drawn(name, n)
        squares = logs.mean(n * (found.plain - q.value) ** 2 / q.leading)
        same = fictitious(world, q, logs, np.nextafter(1, 0))
        parts = logs.mean(n * variance_parts(world, q, logs, same).sum(axis=1) / q.leading)
        np.testing.assert_allclose(same.values, found.plain, rtol=1e-9)
        assert abs(squares.value - parts.value) < 4.5 * squares.error
        assert abs(squares.value - 1) < 4.5 * squares.error + 0.05 * (n == 100)
        excess.append(parts.value - 1)
        assert -5 * parts.error < excess[-1] < 12 / n + 5 * parts.error
    assert excess[2] < 0.005


@each_world
def test_error_of_simplex_mis_tends_to_its_leading_term(name: str) -> None:
    """The experiments' MIS has another, smaller leading term where values differ little."""
    _, q, logs, found = drawn(name, 10_000)
    squares = logs.mean(10_000 * (found.simplex - q.value) ** 2)
    assert abs(squares.value - q.leading_simplex) < 4.5 * squares.error
    bias = logs.mean(found.simplex - q.value)
    assert abs(bias.value) < 5 * bias.error


@each_world
def test_the_direct_method_attains_cramer_rao(name: str) -> None:
    """n·MSE of DM tends to the Cramér–Rao bound, below the leading term of MIS. At n = 100 it is
    above it in most worlds, where actions are unseen."""
    _, q, logs, found = drawn(name, 10_000)
    squares = logs.mean(10_000 * (found.dm - q.value) ** 2)
    assert abs(squares.value - q.cramer_rao) < 4.5 * squares.error + 0.03 * q.cramer_rao
    assert squares.value < q.leading + 4.5 * squares.error
    assert q.cramer_rao <= q.leading


@pytest.mark.parametrize("world", theorems.mixing_worlds(), ids=str)
def test_bounds_hold_where_their_conditions_do(world: TabularMDP) -> None:
    """Theorem 4.1 and Corollary 1, for clipped plain MIS, whatever n their conditions allow."""
    q = theory.quantities(world)
    asked = 0
    for n in (250, 1_000, 4_000, 16_000):
        bounds = theory.theorem_bound(q, n), theory.corollary_bound(q, n)
        assert bounds[0].holds == bounds[1].holds
        if not bounds[0].holds:
            continue
        asked += 1
        logs = theorems.drawn_logs(world, n, 2_000, n)
        squares = logs.mean((theorems.replicates(world, logs).clipped - q.value) ** 2)
        for bound in bounds:
            assert squares.value + 5 * squares.error < bound.value
        # the measure is not of nothing; v = V_max in the world of one state, where half is cut
        assert squares.value > 0.3 * q.leading / n
    assert asked >= 2


def test_the_theorem_is_close_for_many_episodes() -> None:
    """Its leading term is not only an upper bound: the bound tends to leading/n."""
    q = theory.quantities(theorems.mixing_worlds()[0])
    ratios = [theory.theorem_bound(q, n).value * n / q.leading for n in (10**4, 10**6, 10**8)]
    assert ratios[0] > ratios[1] > ratios[2] > 1
    assert ratios[2] < 1.01


def test_without_its_conditions_the_bound_may_not_be_used() -> None:
    """With 30 episodes and rare states `holds` says no, and says which condition fails."""
    world = random_mdp(0)
    bound = theory.theorem_bound(theory.quantities(world), 30)
    assert not bound.holds
    assert bound.failing


def test_normalizing_to_the_simplex_costs_unbiasedness() -> None:
    """Plain MIS has no bias at any n, over all logs. On the simplex d̂ is a ratio, with a bias of
    order 1/n; clipping at V_max has one too; DM's comes from unseen actions."""
    world = random_mdp(3, n_states=2, n_actions=2, horizon=2)
    simplex, clipped, dm = [], [], []
    for n in (1, 2, 3, 4):
        logs = theorems.every_log(world, n)
        found = theorems.replicates(world, logs)
        assert logs.mean(found.plain).value == pytest.approx(found.value, rel=1e-12)
        simplex.append(logs.mean(found.simplex).value - found.value)
        clipped.append(logs.mean(found.clipped).value - found.value)
        dm.append(logs.mean(found.dm).value - found.value)
    assert all(abs(b) > 1e-4 for b in simplex)
    assert all(b < -0.01 for b in clipped)
    assert all(b < -0.1 for b in dm)
    assert np.all(np.diff(np.abs(dm)) < 0)


def test_the_bias_of_the_simplex_falls_like_one_over_n() -> None:
    """A world of two trajectories, so that all logs of 800 episodes are few. On the simplex
    v̂ = Σρy/Σρ, whose bias is -E[ρ²(y - v)]/n to first order; plain MIS has none."""
    P = np.zeros((3, 2, 3))
    P[0, 0, 2] = P[0, 1, 1] = P[1, :, 1] = P[2, :, 2] = 1
    r = np.zeros((2, 3, 2, 3))
    r[1, 1] = 1
    still = [1.0, 0.0]
    world = TabularMDP([1, 0, 0], P, r, [[0.1, 0.9], still, still], [[0.9, 0.1], still, still])
    first_order = -(0.1 * 9**2 * (1 - 0.9) + 0.9 * (1 / 9) ** 2 * (0 - 0.9))
    scaled = []
    for n in (50, 200, 800):
        logs = theorems.every_log(world, n)
        assert len(logs.probability) == n + 1
        found = theorems.replicates(world, logs)
        assert logs.mean(found.plain).value == pytest.approx(0.9, rel=1e-10)
        scaled.append(n * (logs.mean(found.simplex).value - 0.9) / first_order)
    assert scaled[0] > scaled[1] > scaled[2] > 1
    assert scaled[2] == pytest.approx(1, abs=0.05)
