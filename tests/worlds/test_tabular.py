from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from reweigh.errors import UsageError
from reweigh.worlds import TabularMDP, TrueValue, World, random_mdp
from reweigh.worlds.tabular import RowSampler

from . import enumeration
from .enumeration import Tables, random_tables


def world(tables: Tables, **options: Any) -> TabularMDP:
    return TabularMDP(
        tables.initial,
        tables.transition,
        tables.reward,
        tables.target,
        tables.behavior,
        terminal=tables.terminal,
        **options,
    )


def z_scores(sample: NDArray[Any], expected: Any) -> NDArray[Any]:
    """How many standard errors the sample means (over axis 0) are off."""
    error = sample.std(axis=0) / np.sqrt(len(sample))
    scores: NDArray[Any] = np.abs(sample.mean(axis=0) - expected) / np.maximum(error, 1e-12)
    return scores


@pytest.mark.parametrize("discount", [1.0, 0.7])
@pytest.mark.parametrize("terminal", [0, 1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_values_equal_the_sum_over_all_trajectories(
    seed: int, terminal: int, discount: float
) -> None:
    tables = random_tables(seed, terminal=terminal)
    mdp = world(tables, discount=discount)
    assert mdp.value() == pytest.approx(
        enumeration.value(tables, tables.target, discount), abs=1e-12
    )
    assert mdp.behavior_value() == pytest.approx(
        enumeration.value(tables, tables.behavior, discount), abs=1e-12
    )
    assert mdp.value().standard_error == 0.0


def test_tables_without_time_are_repeated() -> None:
    tables = random_tables(5, H=1)
    H = 3
    once = TabularMDP(
        tables.initial,
        tables.transition[0],
        tables.reward[0],
        tables.target[0],
        tables.behavior[0],
        reward_sd=0.3,
        horizon=H,
    )
    again = tables.map(lambda table: np.repeat(table, H, axis=0))
    spelt_out = world(again, reward_sd=0.3)
    assert once.value() == pytest.approx(enumeration.value(again, again.target), abs=1e-12)
    a, b = once._rollout(50, 1), spelt_out._rollout(50, 1)
    np.testing.assert_array_equal(a.states, b.states)
    np.testing.assert_array_equal(a.rewards, b.rewards)
    np.testing.assert_array_equal(a.target_prob, b.target_prob)


def test_a_time_axis_of_length_one_is_a_horizon_of_one() -> None:
    assert world(random_tables(0, H=1)).horizon == 1
    with pytest.raises(UsageError, match="'transition' must be a table of 4 steps"):
        world(random_tables(0, H=1), horizon=4)


@pytest.mark.parametrize("terminal", [0, 1])
def test_simulated_frequencies_and_rewards_match_the_exact_ones(terminal: int) -> None:
    tables = random_tables(11, terminal=terminal)
    mdp = world(tables, reward_sd=0.5, discount=0.9)
    n = 40_000
    rollout = mdp._rollout(n, 0)
    d_mu = enumeration.marginals(tables, tables.behavior)
    # the largest of 12 binomial scores with fixed seed; 5 standard errors are never chance
    frequencies = (rollout.states[:, :, None] == np.arange(3)).astype(float)
    assert z_scores(frequencies, d_mu).max() < 5
    assert z_scores(rollout.returns(0.9), mdp.behavior_value()) < 5
    rho = (rollout.target_prob / rollout.behavior_prob).cumprod(axis=1)
    discounts = 0.9 ** np.arange(3)
    assert z_scores((rho * rollout.rewards) @ discounts, mdp.value()) < 5
    living = np.ones((n, 3), bool) if rollout.lengths is None else _living(rollout.lengths, 3)
    t, s, a = np.arange(3), rollout.states[:, :-1], rollout.actions
    noise = (rollout.rewards - mdp.reward[t, s, a, rollout.states[:, 1:]])[living]
    assert z_scores(noise, 0.0) < 5
    assert z_scores(noise**2, 0.25) < 5


def _living(lengths: NDArray[Any], horizon: int) -> NDArray[Any]:
    return np.arange(horizon) < lengths[:, None]


def test_transitions_given_state_and_action_match_the_table() -> None:
    tables = random_tables(3)
    rollout = world(tables)._rollout(60_000, 2)
    for t in range(3):
        for s in range(3):
            here = rollout.states[:, t] == s
            chosen = rollout.actions[here, t]
            assert z_scores((chosen == 0).astype(float), tables.behavior[t, s, 0]) < 5
            for a in range(2):
                there = rollout.states[here, t + 1][chosen == a]
                one_hot = (there[:, None] == np.arange(3)).astype(float)
                assert z_scores(one_hot, tables.transition[t, s, a]).max() < 5


def test_logged_probabilities_are_the_policies() -> None:
    tables = random_tables(4)
    rollout = world(tables)._rollout(30, 2)
    t, s, a = np.arange(3), rollout.states[:, :-1], rollout.actions
    np.testing.assert_array_equal(rollout.behavior_prob, tables.behavior[t, s, a])
    np.testing.assert_array_equal(rollout.target_prob, tables.target[t, s, a])
    np.testing.assert_array_equal(rollout.rewards, tables.reward[t, s, a, rollout.states[:, 1:]])


def test_a_terminal_state_ends_the_episode() -> None:
    tables = random_tables(8, S=4, H=6, terminal=2)
    rollout = world(tables, reward_sd=1.0)._rollout(500, 0)
    assert rollout.lengths is not None
    ended = rollout.states >= 2
    for length, states, over, rewards in zip(
        rollout.lengths, rollout.states, ended, rollout.rewards, strict=True
    ):
        assert not over[:length].any()
        assert length == 6 or over[length]
        assert (states[length:] == states[length]).all()
        assert (rewards[:length] != 0).all()  # the reward of the arriving transition counts
        assert (rewards[length:] == 0).all()
    assert 1 <= rollout.lengths.min() < rollout.lengths.max() == 6


def test_what_tables_say_of_terminal_states_does_not_matter() -> None:
    tables = random_tables(8, terminal=1)
    odd = tables.map(np.copy)
    for table in (odd.transition, odd.reward, odd.target, odd.behavior):
        table[:, 2] = np.nan
    assert world(odd).value() == world(tables).value()
    assert np.isnan(odd.transition[:, 2]).all()  # what the caller gave is left alone
    mdp = world(odd, reward_sd=2.0)
    assert (mdp.transition[:, 2, :, 2] == 1).all()
    assert (mdp.reward_sd[:, 2] == 0).all()
    assert (mdp.reward_sd[:, :2] == 2).all()


def test_same_seed_same_episodes() -> None:
    mdp = random_mdp(0, terminal=1, reward_sd=1.0)
    a, b = mdp._rollout(20, 7), mdp._rollout(20, np.random.default_rng(7))
    np.testing.assert_array_equal(a.states, b.states)
    np.testing.assert_array_equal(a.rewards, b.rewards)
    rng = np.random.default_rng(7)
    mdp._rollout(20, rng)
    assert (mdp._rollout(20, rng).rewards != a.rewards).any()  # a generator goes on


def test_what_has_no_probability_is_never_drawn() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.dirichlet(np.ones(6), 200)
    matrix[rng.random(matrix.shape) < 0.5] = 0.0
    matrix[:, 3] += 1e-3
    matrix /= matrix.sum(axis=1, keepdims=True)
    rows = np.repeat(np.arange(200), 500)
    columns = RowSampler.of(matrix).draw(rows, rng)
    assert (matrix[rows, columns] > 0).all()


class Constant(np.random.Generator):
    """A generator whose uniform numbers are all the same."""

    def __init__(self, u: float) -> None:
        super().__init__(np.random.PCG64(0))
        self.u = u

    def random(self, size: Any = None, *args: Any, **kwargs: Any) -> Any:
        return np.full(size, self.u)


@pytest.mark.parametrize(("u", "column"), [(0.0, 1), (np.nextafter(1.0, 0.0), 2)])
def test_draws_stay_in_their_row_at_the_ends_of_the_unit_interval(u: float, column: int) -> None:
    rows = np.arange(1_000_003)
    matrix = np.broadcast_to([0.0, 0.5, 0.5, 0.0], (len(rows), 4))
    assert (RowSampler.of(matrix).draw(rows, Constant(u)) == column).all()


def test_arrays_are_read_only_views() -> None:
    mdp = random_mdp(1, horizon=200, time_varying=False)
    for view in (mdp.transition, mdp.reward, mdp.target_array, mdp.behavior_array, mdp.reward_sd):
        assert view.shape[0] == 200
        assert view.strides[0] == 0
        assert not view.flags.writeable
    assert len(pickle.dumps(mdp)) < 20_000
    assert pickle.loads(pickle.dumps(mdp)).value() == mdp.value()
    with pytest.raises(AttributeError):
        mdp.horizon = 3  # type: ignore[misc]


def test_state_values_of_any_policy() -> None:
    tables = random_tables(2)
    mdp = world(tables)
    V = mdp.state_values(np.full((3, 2), 0.5))
    assert V.shape == (4, 3)
    expected = enumeration.value(tables, np.full((3, 3, 2), 0.5))
    assert tables.initial @ V[0] == pytest.approx(expected, abs=1e-12)
    with pytest.raises(UsageError, match="policy_array"):
        mdp.state_values(np.ones((2, 3)))


@pytest.mark.parametrize(("terminal", "discount"), [(0, 1.0), (1, 0.7)])
def test_action_values_and_marginals_of_any_policy(terminal: int, discount: float) -> None:
    tables = random_tables(6, terminal=terminal)
    mdp = world(tables, discount=discount)
    pi = tables.target
    np.testing.assert_allclose(
        mdp.state_marginals(pi), enumeration.marginals(tables, pi), atol=1e-14
    )
    Q, V = mdp.action_values(pi), mdp.state_values(pi)
    np.testing.assert_allclose((mdp.target_array * Q).sum(axis=2), V[:-1], atol=1e-14)
    for s, a in np.ndindex(3, 2):
        first = pi.copy()
        first[0, s] = np.eye(2)[a]
        start = replace(tables, initial=np.eye(3)[s])
        assert Q[0, s, a] == pytest.approx(enumeration.value(start, first, discount), abs=1e-12)
    with pytest.raises(UsageError, match="policy_array"):
        mdp.state_marginals(np.ones((2, 3)))


def test_it_is_a_world_and_prints_itself() -> None:
    mdp = random_mdp(1, terminal=1, discount=0.9)
    assert isinstance(mdp, World)
    assert repr(mdp) == (
        "TabularMDP(n_states=4, n_actions=3, horizon=5, discount=0.9, terminal=(3,))"
    )


@pytest.mark.parametrize("concentration", [0.1, 1.0, 10.0])
def test_random_worlds_have_bounded_ratios(concentration: float) -> None:
    mdp = random_mdp(3, concentration=concentration, overlap=0.25)
    ratio = mdp.target_array / mdp.behavior_array
    assert ratio.max() <= 1 + 3 * 0.75 / 0.25
    uniform = random_mdp(3, overlap=1.0)
    np.testing.assert_allclose(uniform.target_array, uniform.behavior_array)


def test_random_worlds_follow_their_seed() -> None:
    assert random_mdp(5).value() == random_mdp(np.random.default_rng(5)).value()
    assert random_mdp(5).value() != random_mdp(6).value()


GOOD: dict[str, Any] = {
    "initial": [1.0, 0.0],
    "transition": np.full((2, 2, 2), 0.5),
    "reward": np.zeros((2, 2, 2)),
    "target": np.full((2, 2), 0.5),
    "behavior": np.full((2, 2), 0.5),
    "horizon": 3,
}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"horizon": None}, "'horizon' must be given where no table has a time axis"),
        ({"horizon": 0}, "'horizon' must be .*from 1 on"),
        ({"horizon": 2.0}, "'horizon'"),
        ({"horizon": True}, "'horizon'"),
        ({"initial": [0.5, 0.4]}, "'initial' must be rows of probabilities .*sums to 0.9"),
        ({"initial": [1.0]}, r"'initial' must be of shape \(2,\)"),
        ({"transition": np.full((2, 2, 2), 0.4)}, r"'transition' .*row \(0, 0, 0\).*sums to 0.8"),
        ({"transition": np.full((2, 2, 3), 1 / 3)}, "'transition' must be"),
        ({"transition": np.ones((2, 2))}, r"'transition' must be a table of shape \(S,A,S\)"),
        ({"transition": [[["a"]]]}, "'transition' must be an array of numbers"),
        ({"reward": np.zeros((2, 2))}, "'reward' must be a table of shape"),
        ({"reward": np.full((2, 2, 2), np.inf)}, "'reward' must be finite"),
        ({"reward": np.zeros((4, 2, 2, 2))}, "'reward' must be a table of 3 steps"),
        ({"target": [[0.5, 0.5]]}, "'target' must be"),
        ({"target": [[1.5, -0.5], [1, 0]]}, "'target' must be rows of probabilities"),
        ({"behavior": np.full((3, 2, 3), 1 / 3)}, "'behavior' must be"),
        ({"reward_sd": -1.0}, "'reward_sd' must be finite and at least 0"),
        ({"reward_sd": np.ones(5)}, "'reward_sd' must be a number, or an array that broadcasts"),
        ({"discount": 0.0}, r"'discount' must be a number in \(0, 1\]"),
        ({"discount": "1"}, "'discount'"),
        ({"terminal": [0]}, "'initial' must put no mass on a terminal state; got 1 on state 0"),
        ({"terminal": [2]}, "'terminal' must be"),
        ({"terminal": [0, 1]}, "'terminal' must be"),
        ({"terminal": 1}, "'terminal' must be"),
    ],
)
def test_errors_name_the_parameter(bad: dict[str, Any], message: str) -> None:
    TabularMDP(**GOOD)
    with pytest.raises(UsageError, match=message):
        TabularMDP(**{**GOOD, **bad})


@pytest.mark.parametrize(("n", "rng"), [(0, 0), (2.5, 0), (True, 0), (5, -1), (5, "seed")])
def test_simulate_checks_its_arguments(n: Any, rng: Any) -> None:
    with pytest.raises(UsageError, match="'n'" if n != 5 else "'rng'"):
        TabularMDP(**GOOD).simulate(n, rng)


@pytest.mark.parametrize(
    "bad", [{"overlap": 0.0}, {"concentration": 0.0}, {"terminal": 4}, {"n_states": 0}]
)
def test_random_mdp_checks_its_arguments(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"'{next(iter(bad))}'"):
        random_mdp(0, **bad)


def test_true_values_are_floats_that_know_their_error() -> None:
    exact, simulated = TrueValue(2.5), TrueValue(-84.25, 0.0125)
    assert exact == 2.5
    assert f"{exact} {exact:.3f}" == "2.5 2.500"
    assert str(simulated) == "-84.25 ± 0.013"
    assert repr(simulated) == "TrueValue(-84.25, standard_error=0.0125)"
    copy = pickle.loads(pickle.dumps(simulated))
    assert (copy, copy.standard_error) == (-84.25, 0.0125)
