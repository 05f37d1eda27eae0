"""Identities of PAPER_NOTES that hold exactly, on random logs."""

from __future__ import annotations

import numpy as np
import pytest

import reweigh as rw
from reweigh.estimate.marginal import pooled_operator
from reweigh.estimate.operators import importance_operator
from reweigh.estimate.recursion import backward, forward
from reweigh.worlds import ModelFail, ModelWin, random_mdp

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
SEEDS = range(5)
MEAN_RETURN = ["is", "wis", "trajectory-is", "trajectory-wis", "mis", "mis-plain", "mis-state"]


def values(log: rw.EpisodeLog, target: object, names: list[str]) -> dict[str, float]:
    results = rw.evaluate_all(log, target, names)  # type: ignore[arg-type]
    return {r.estimator: r.value for r in results if isinstance(r, rw.Estimate)}


def log_of(seed: int, n: int = 50, **options: object) -> tuple[rw.EpisodeLog, object]:
    world = random_mdp(np.random.default_rng(seed), reward_sd=0.5, **options)
    return world.simulate(n, seed), world


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("terminal", [0, 1])
def test_on_policy_is_the_mean_return(seed: int, terminal: int) -> None:
    log, world = log_of(seed, terminal=terminal, discount=0.9)
    mean = log.describe()["mean_return"]
    found = values(log, world.behavior, MEAN_RETURN)
    assert len(found) == len(MEAN_RETURN)
    assert found == pytest.approx(dict.fromkeys(MEAN_RETURN, mean), rel=1e-12)


@pytest.mark.parametrize("name", MEAN_RETURN)
def test_swapping_the_policies_is_noticed(name: str) -> None:
    """The pair of the test above: with μ/π in place of π/μ the estimate leaves the truth."""
    world = random_mdp(np.random.default_rng(3), horizon=3, reward_sd=0.1)
    log = world.simulate(20_000, 0)
    steps = log.steps
    pi = log.column("target_prob")
    swapped = rw.ColumnPolicy("swapped")
    assert steps.behavior_prob is not None
    ratio = steps.behavior_prob / pi  # μ/π, as if the two had been exchanged
    log.source.columns["swapped"] = np.minimum(ratio * steps.behavior_prob, 1.0)
    right, wrong = rw.evaluate(log, world.target, name), rw.evaluate(log, swapped, name)
    assert right.standard_error is not None
    assert abs(right.value - world.value()) < 4 * right.standard_error
    assert abs(wrong.value - world.value()) > 6 * right.standard_error


@pytest.mark.parametrize("seed", SEEDS)
def test_one_episode_makes_plain_mis_step_wise_is(seed: int) -> None:
    log, world = log_of(seed, n=1, discount=0.8)
    found = values(log, world.target, ["is", "mis-plain"])
    assert found["mis-plain"] == pytest.approx(found["is"], rel=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_history_as_the_state_makes_plain_mis_step_wise_is(seed: int) -> None:
    world = random_mdp(np.random.default_rng(seed), n_states=2, n_actions=2, horizon=4)
    table = world.simulate(40, seed).to_table().to_pandas()
    said = table["state"].astype(str) + table["action"].astype(str)
    history = said.groupby(table["episode"]).transform(
        lambda s: ["".join(s[:k]) for k in range(len(s))]
    )
    table["state"] = history + "|" + table["state"].astype(str)
    log = rw.read_log(table, target_prob="target_prob")
    found = values(log, rw.ColumnPolicy("target_prob"), ["is", "mis-plain"])
    assert found["mis-plain"] == pytest.approx(found["is"], rel=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("per_state", [False, True])
@pytest.mark.parametrize("build", [importance_operator, pooled_operator])
def test_forward_equals_backward(seed: int, per_state: bool, build: object) -> None:
    log, world = log_of(seed, terminal=1, discount=0.9)
    sums = rw.moments(log, world.target, ["mis"])
    assert sums.transitions is not None
    op = build(sums.transitions, sums.start, 5, 0.9, per_state=per_state)  # type: ignore[operator]
    flow = forward(op, simplex=False)
    V = backward(op).u
    powers = 0.9**op.node_t
    ahead = np.sum((powers * flow.d * op.reward)[op.node_t < 5])
    assert op.initial @ V == pytest.approx(ahead, rel=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_averaged_reward_changes_nothing_step_by_step(seed: int) -> None:
    log, world = log_of(seed, n=300)
    for normalize in ("simplex", "none", "state"):
        logged = rw.evaluate(log, world.target, rw.mis(normalize))
        averaged = rw.evaluate(log, world.target, rw.mis(normalize, reward="averaged"))
        assert averaged.value == pytest.approx(logged.value, rel=1e-12)
        assert averaged.standard_error == pytest.approx(logged.standard_error, rel=1e-10)


def test_pooled_reward_does_change_the_estimate() -> None:
    log, world = log_of(1, n=300, time_varying=False)
    logged = rw.evaluate(log, world.target, rw.mis())
    pooled = rw.evaluate(log, world.target, rw.mis(reward="pooled"))
    assert abs(pooled.value - logged.value) > 1e-6
    assert abs(pooled.value - world.value()) < 5 * pooled.standard_error


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n", [3, 200])
def test_mdr_without_splitting_is_dm(seed: int, n: int) -> None:
    log, world = log_of(seed, n=n, terminal=1, discount=0.9)
    dm = rw.evaluate(log, world.target, rw.dm())
    mdr = rw.evaluate(log, world.target, rw.mdr("in-sample"))
    assert mdr.value == pytest.approx(dm.value, rel=1e-11)


def test_mis_equals_is_on_modelfail_with_two_steps() -> None:
    world = ModelFail(2)
    found = values(world.simulate(200, 0), world.target, ["is", "mis"])
    assert found["mis"] == pytest.approx(found["is"], rel=1e-12)


@pytest.mark.parametrize("world", [ModelWin(9), ModelFail(9)])
def test_simplex_weight_is_one_at_every_checkpoint(world: object) -> None:
    estimate = rw.evaluate(world.simulate(100, 1), world.target, rw.mis())  # type: ignore[attr-defined]
    marginals = estimate.marginals
    assert marginals is not None
    at_checkpoint = (marginals.step % 2 == 0) & (np.array(marginals.state) == "0")
    assert at_checkpoint.sum() == 5
    assert marginals.weight[at_checkpoint] == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_only_per_state_mis_and_wis_shift_with_the_reward(seed: int) -> None:
    log, world = log_of(seed, n=200, discount=0.9)
    shifted = log.with_rewards(log.steps.reward + 2, np.zeros(log.n_episodes))
    by = 2 * sum(0.9**t for t in range(log.horizon))
    before = values(log, world.target, ["wis", "mis-state", "mis", "mis-plain"])
    after = values(shifted, world.target, list(before))
    for name in ("wis", "mis-state"):
        assert after[name] == pytest.approx(before[name] + by, rel=1e-11)
    for name in ("mis", "mis-plain"):
        placebo = rw.evaluate(log, world.target, name).diagnostics.placebo
        assert after[name] == pytest.approx(before[name] + 2 * placebo, rel=1e-11)
        assert abs(placebo - by / 2) > 1e-9


def test_own_exact_q_leaves_only_the_noise_of_the_rewards() -> None:
    """With the true Q and no reward noise, DR, WDR and MDR have no variance beyond the start's."""
    world = random_mdp(np.random.default_rng(0), horizon=4, reward_sd=0.0, discount=0.9)
    V = world.state_values(world.target_array)
    # Q with the realized next state averaged out, and rewards that depend on (t, s, a) only
    mean = np.sum(world.transition * world.reward, axis=3)
    Q = mean + 0.9 * np.einsum("tsax,tx->tsa", world.transition, V[1:])
    log = world.simulate(400, 0)
    exact = float(world.value())
    for make in (rw.dr, rw.wdr, rw.mdr):
        own, fitted = make(Q), make("split")
        with_own = rw.evaluate(log, world.target, own)
        assert abs(with_own.value - exact) < 4 * with_own.standard_error
        assert with_own.standard_error < rw.evaluate(log, world.target, fitted).standard_error
    by_function = rw.dr(lambda s, a, t: Q[t, s, a])
    assert rw.evaluate(log, world.target, by_function).value == pytest.approx(
        rw.evaluate(log, world.target, rw.dr(Q)).value, rel=1e-12
    )


@pytest.mark.parametrize("q", ["in-sample", "split", "cross-fit"])
def test_mdr_from_sums_equals_mdr_from_rows(q: str) -> None:
    log, world = log_of(2, n=300, terminal=1, discount=0.9)
    rows = rw.evaluate(log, world.target, rw.mdr(q))
    sums = rw.evaluate(rw.moments(log, world.target, blocks=10), estimator=rw.mdr(q))
    assert sums.value == pytest.approx(rows.value, rel=1e-11)
    assert sums.standard_error == pytest.approx(rows.standard_error, rel=1e-9)
