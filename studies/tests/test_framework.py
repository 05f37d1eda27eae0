"""Appendix C: the marginalized framework, over all trajectories and all logs of tiny worlds.

With a control variate y = r + f and a start value g, framework (C.1) weighs y_t by the running
product of ratios and (C.2) by w_t(s_t) ρ_t.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction as F

import numpy as np
import pytest
from population import TARGET, population_log, random_world
from reweigh_studies import theorems

import reweigh as rw
from reweigh import theory
from reweigh.worlds import TabularMDP, random_mdp

WORLDS = {
    "two-steps": random_mdp(3, n_states=2, n_actions=2, horizon=2),
    "three-steps": random_mdp(7, n_states=2, n_actions=2, horizon=3, overlap=0.2),
    "early-end": random_mdp(6, n_states=3, n_actions=2, horizon=2, terminal=1),
}
each_world = pytest.mark.parametrize("name", WORLDS)


def control(world: TabularMDP, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """g(s) = V̂_0(s) and f_t(s,a,s') = -Q̂_t(s,a) + V̂_{t+1}(s') of a wrong Q̂; V̂ = 0 at the end."""
    H, S, A = world.horizon, world.n_states, world.n_actions
    Q = np.random.default_rng(seed).normal(size=(H, S, A))
    Q[:, list(world.terminal)] = 0
    V = np.zeros((H + 1, S))
    V[:H] = np.sum(world.target_array * Q, axis=2)
    return V[0], V[1:, None, None, :] - Q[..., None]


@each_world
def test_frameworks_are_equal_in_expectation(name: str) -> None:
    """Lemma C.1: E[w_t ρ_t (r_t + f_t)] = E[ρ_{0:t} (r_t + f_t)] at every step, for any Q̂, and both
    frameworks give v."""
    world = WORLDS[name]
    q = theory.quantities(world)
    g, f = control(world)
    p, path = theorems.every_trajectory(world)
    step = np.arange(world.horizon)
    s, a, x = np.moveaxis(path, 2, 0)
    y = (world.reward + f)[step, s, a, x]
    rho = theorems.action_ratio(world)[step, s, a]
    w = theorems.divided(q.d_pi, q.d_mu)[step, s]
    marginal, product = p @ (w * rho * y), p @ (np.cumprod(rho, axis=1) * y)
    np.testing.assert_allclose(marginal, product, rtol=1e-11, atol=1e-14)
    assert world.initial @ g + marginal.sum() == pytest.approx(q.value, rel=1e-11)
    assert np.abs(p @ (rho * y) - product)[1:].max() > 1e-3  # without w_t they differ


def test_control_variates_have_mean_zero_together_only() -> None:
    """The appendix notes E f_t = 0. It is g + Σ_t f_t whose mean under π is 0; with the true Q
    each f_t has mean -E_π[r_t]."""
    world = WORLDS["three-steps"]
    q = theory.quantities(world)
    joint = q.d_pi[:-1, :, None, None] * world.target_array[..., None] * world.transition
    f = q.V[1:, None, None, :] - q.Q[..., None]
    each = np.sum(joint * f, axis=(1, 2, 3))
    np.testing.assert_allclose(each, -np.sum(joint * world.reward, axis=(1, 2, 3)), rtol=1e-10)
    assert np.all(each < -0.1)
    g, f = control(world)
    assert world.initial @ g + np.sum(joint * f) == pytest.approx(0, abs=1e-13)


def shaped(world: TabularMDP, logs: theorems.Logs) -> tuple[theorems.Logs, np.ndarray]:
    """The logs with rewards r + f, and the mean of g over the starts of each."""
    g, f = control(world)
    rewards = logs.rewards + np.einsum("trsax,tsax->trsa", logs.moves, f)
    return replace(logs, rewards=rewards), logs.visits[0] @ g / logs.n


@each_world
def test_marginalized_estimators_are_unbiased(name: str) -> None:
    """Theorem C.1, first part, over all logs of two episodes: MIS and MDR with a fixed wrong Q̂ and
    the weights of plain MIS, which are unbiased given s_t; on the simplex they are not."""
    world = WORLDS[name]
    logs = theorems.every_log(world, 2)
    other, start = shaped(world, logs)
    truth = float(world.value())
    plain = theorems.replicates(world, logs)
    mdr = theorems.replicates(world, other)
    assert logs.mean(plain.plain).value == pytest.approx(truth, rel=1e-12)
    assert logs.mean(start + mdr.plain).value == pytest.approx(truth, rel=1e-12)
    assert abs(logs.mean(start + mdr.simplex).value - truth) > 1e-4


@each_world
def test_unbiased_weights_must_mean_given_the_state(name: str) -> None:
    """Theorem C.1's proof takes E[ŵ_t(s) | s_t^(i) = s] = w_t(s). Plain MIS has that, though not
    E[ŵ_t(s)] = w_t(s): a state without visits has weight 0. And E[ŵ_t(s)] = w_t(s) would not be
    enough: ŵ_t(s) = w_t(s) + k (n_t(s)/n - d_t^μ(s)) has it, and a bias."""
    world = WORLDS[name]
    q = theory.quantities(world)
    logs = theorems.every_log(world, 2)
    steps = theorems.importance_steps(world, logs)
    d = theorems.forward(world, logs, steps).marginals
    share = logs.visits / logs.n
    w_hat = theorems.divided(d, share)
    w = theorems.divided(q.d_pi, q.d_mu)
    # Pr(s_t^(i) = s) E[ŵ | s_t^(i) = s] = E[share ŵ]
    given = theorems.divided(np.einsum("trs,r->ts", share * w_hat, logs.probability), q.d_mu)
    np.testing.assert_allclose(given, w, rtol=1e-11)
    assert np.abs(np.einsum("trs,r->ts", w_hat, logs.probability) - w)[0].max() > 0.01
    skewed = w[:, None] + 3 * (share - q.d_mu[:, None])
    np.testing.assert_allclose(
        np.einsum("trs,r->ts", skewed, logs.probability), w, rtol=1e-11, atol=1e-13
    )
    # (1/n) Σ_i Σ_t ŵ_t(s_t) ρ_t r_t = Σ_t Σ_s ŵ_t(s) (n_t(s)/n) r̂_t(s)
    value = np.einsum("trs,trs,trs->r", skewed[:-1], share[:-1], steps.reward)
    assert abs(logs.mean(value).value - q.value) > 0.01


@pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
def test_marginalized_estimators_are_consistent() -> None:
    """Theorem C.1, second part: on a log that is the population, the weights are the true ones,
    and MIS and MDR with a wrong Q̂ are exact, in each normalization; as IS and DR are."""
    world = random_world(1, discount=F(1, 2))
    log = population_log(world)
    truth = float(world.value(world.target))
    for name in ("mis-plain", "mis", "mis-state", "is"):
        assert rw.evaluate(log, TARGET, name).value == pytest.approx(truth, rel=1e-10)
    Q = np.random.default_rng(0).normal(size=(3, 2, 2))
    target = rw.TablePolicy(np.array(world.target, dtype=float))
    for recipe in (rw.mdr(Q), rw.dr(Q), rw.wdr(Q)):
        assert rw.evaluate(log, target, recipe).value == pytest.approx(truth, rel=1e-10)
