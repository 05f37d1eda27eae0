"""Random worlds by their description, with hidden states, rare actions and better targets."""

from __future__ import annotations

import json
import pickle
from dataclasses import FrozenInstanceError, asdict, replace
from typing import Any

import numpy as np
import pytest

from reweigh.errors import UsageError
from reweigh.worlds import HiddenMDP, ModelFail, RandomWorld, TabularMDP, random_mdp
from reweigh.worlds.improvement import advantage, tilted

from . import enumeration
from .test_improvement import tables_of

ARRAYS = ("initial", "transition", "reward", "reward_sd", "target_array", "behavior_array")


def same(one: TabularMDP, other: TabularMDP) -> None:
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one.terminal == other.terminal
    assert (one.horizon, one.discount) == (other.horizon, other.discount)


PLAIN: list[dict[str, Any]] = [
    {},
    {"n_states": 3, "n_actions": 2, "horizon": 7, "time_varying": False, "reward_sd": 0.4},
    {"terminal": 2, "discount": 0.9, "overlap": 0.2, "concentration": 3.0, "reward_sd": 0.4},
    {"horizon": 1, "n_states": 1},
]


@pytest.mark.parametrize("settings", PLAIN)
def test_without_more_it_is_a_random_mdp(settings: dict[str, Any]) -> None:
    same(RandomWorld(5, **settings).build(), random_mdp(5, **settings))


FULL = RandomWorld(
    3,
    n_states=6,
    horizon=4,
    terminal=1,
    discount=0.9,
    reward_sd=0.5,
    hidden=2,
    rare=0.05,
    tilt=3.0,
)


def test_a_description_is_written_down_and_built_again() -> None:
    text = json.dumps(asdict(FULL))
    again = RandomWorld(**json.loads(text))
    assert again == FULL
    assert hash(again) == hash(FULL)
    same(again.build(), FULL.build())
    same(pickle.loads(pickle.dumps(FULL)).build(), FULL.build())
    assert FULL.build().simulate(30, 1).digest() == again.build().simulate(30, 1).digest()
    assert replace(FULL, seed=4).build().value() != FULL.build().value()
    with pytest.raises(FrozenInstanceError):
        FULL.seed = 4  # type: ignore[misc]
    # the world that it was when studies began to be written down
    assert FULL.build().value() == pytest.approx(1.309128577450565, abs=1e-12)
    assert FULL.name == (
        "random-seed3-n_states6-horizon4-reward_sd0.5-discount0.9-terminal1-hidden2-rare0.05-tilt3"
    )
    assert RandomWorld(0, time_varying=False).name == "random-seed0-time_varying0"
    assert RandomWorld(12_345_678, tilt=0.12345678).name == "random-seed12345678-tilt0.12345678"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "settings",
    [
        {"tilt": 2.0},
        {"rare": 0.1},
        {"hidden": 1, "tilt": 2.0},
        {"terminal": 1, "rare": 0.1, "tilt": 1.0, "discount": 0.8},
        {"hidden": 1, "terminal": 1, "time_varying": False, "tilt": 2.0},
    ],
)
def test_values_equal_the_sum_over_all_trajectories(seed: int, settings: dict[str, Any]) -> None:
    mdp = RandomWorld(seed, 3, 2, 3, **settings).build()
    tables = tables_of(mdp)
    for truth, policy in (
        (mdp.value(), mdp.target_array),
        (mdp.behavior_value(), mdp.behavior_array),
    ):
        expected = enumeration.value(tables, policy, mdp.discount)
        assert truth == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("tilt", [1.0, 4.0])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"horizon": 12, "n_states": 6, "overlap": 0.2},
        {"time_varying": False, "horizon": 10},
        {"hidden": 2},
        {"hidden": 2, "terminal": 1, "time_varying": False, "discount": 0.9},
        {"rare": 0.02},
        {"terminal": 2, "concentration": 0.3},
    ],
)
def test_a_tilted_target_is_better_than_the_behavior(settings: dict[str, Any], tilt: float) -> None:
    for seed in range(20):
        mdp = RandomWorld(seed, **settings, tilt=tilt).build()
        assert mdp.value() > mdp.behavior_value()
        assert (mdp.behavior_array[mdp.target_array > 0] > 0).all()
    drawn = [RandomWorld(seed, **settings).build() for seed in range(20)]
    better = sum(mdp.value() > mdp.behavior_value() for mdp in drawn)
    assert 0 < better < 20  # without a tilt it is a matter of chance


def test_the_tilt_is_by_the_behavior_s_own_advantage() -> None:
    mdp = RandomWorld(1, terminal=1, discount=0.9, tilt=3.0).build()
    A = advantage(mdp, mdp.behavior_array)
    np.testing.assert_array_equal(mdp.target_array, tilted(mdp.behavior_array, A, 3.0))
    same(
        RandomWorld(1, terminal=1, discount=0.9, tilt=0.0).build(),
        TabularMDP(
            mdp.initial,
            mdp.transition,
            mdp.reward,
            tilted(mdp.behavior_array, A, 0.0),
            mdp.behavior_array,
            discount=0.9,
            terminal=mdp.terminal,
        ),
    )


@pytest.mark.parametrize("settings", [{"hidden": 2}, {"time_varying": False}])
def test_rows_that_serve_several_states_follow_the_rise_of_the_value(
    settings: dict[str, Any],
) -> None:
    """The slope of v at β = 0 by the derivative's formula for exactly such shared rows."""
    step = 1e-5
    up, down = (
        RandomWorld(2, discount=0.9, tilt=beta, **settings).build() for beta in (step, -step)
    )
    slope = (up.value() - down.value()) / (2 * step)
    mu, H = up.behavior_array, up.horizon
    A = advantage(up, mu)
    weight = 0.9 ** np.arange(H)[:, None] * up.state_marginals(mu)[:-1]
    rows: dict[Any, list[tuple[int, int]]] = {}
    for t, s in np.ndindex(H, 4):
        seen = "hidden" if isinstance(up, HiddenMDP) and s in up.hidden else s
        rows.setdefault((seen, 0 if not settings.get("time_varying", True) else t), []).append(
            (t, s)
        )
    expected = 0.0
    for served in rows.values():
        w = np.array([weight[place] for place in served])
        shared = sum(weight[place] * A[place] for place in served) / w.sum()
        chances = mu[served[0]]
        # d/dβ π = μ (Ā - μ·Ā), and the value rises by Σ w A dπ = w Ā dπ
        expected += w.sum() * float(shared @ (chances * (shared - chances @ shared)))
    assert slope == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("rare", [0.0, 0.02])
def test_a_rare_action_is_rare_and_the_rest_stays_in_proportion(rare: float) -> None:
    plain, mdp = RandomWorld(4).build(), RandomWorld(4, rare=rare).build()
    mu, before = mdp.behavior_array, plain.behavior_array
    np.testing.assert_array_equal(mu[..., 0], rare)
    np.testing.assert_allclose(mu.sum(axis=-1), 1)
    np.testing.assert_allclose(mu[..., 1] / mu[..., 2], before[..., 1] / before[..., 2])
    np.testing.assert_array_equal(mdp.target_array, plain.target_array)
    assert mdp.target_array[..., 0].min() >= 0.5 / 3  # the target goes on: overlap/A at least
    assert mdp.value() == plain.value()
    rollout = mdp._rollout(4_000, 0)
    assert (rollout.actions == 0).mean() == pytest.approx(rare, abs=0.007)


def test_hidden_states_are_hidden_and_no_policy_tells_them_apart() -> None:
    mdp = FULL.build()
    assert isinstance(mdp, HiddenMDP)
    assert mdp.hidden == (3, 4)
    assert mdp.terminal == (5,)
    for policy in (mdp.target_array, mdp.behavior_array):
        np.testing.assert_array_equal(policy[:, 3], policy[:, 4])
    log = mdp.simulate(200, 0)
    assert log.has_hidden
    rollout = mdp._rollout(200, 0)
    shown = mdp._observe(rollout.states)
    np.testing.assert_array_equal(np.ma.getmaskarray(shown), np.isin(rollout.states, (3, 4)))
    for name, policy in (("target_prob", mdp.target), ("behavior_prob", mdp.behavior)):
        found = policy.probabilities(log)
        logged = np.asarray(log.to_table()[name])
        np.testing.assert_allclose(np.sort(found), np.sort(logged), rtol=1e-12)


def test_model_fail_is_a_world_with_hidden_states() -> None:
    fail = ModelFail(5)
    tables = (fail.initial, fail._transition[0], fail._reward[0], fail._target[0])
    mdp = HiddenMDP(*tables, fail._behavior[0], horizon=5, hidden=[1, 2])
    assert mdp.value() == fail.value()
    assert mdp.simulate(100, 3).digest() == fail.simulate(100, 3).digest()
    log = mdp.simulate(100, 3)
    np.testing.assert_array_equal(mdp.target.probabilities(log), fail.target.probabilities(log))


EVEN = np.full((3, 2), 0.5)
CHAIN: dict[str, Any] = {
    "initial": [1, 0, 0],
    "transition": np.full((3, 2, 3), 1 / 3),
    "reward": np.zeros((3, 2, 3)),
    "target": EVEN,
    "behavior": EVEN,
    "horizon": 2,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": []}, "'hidden' must be"),
        ({"hidden": [3]}, "'hidden' must be"),
        ({"hidden": [0.5]}, "'hidden' must be"),
        ({"hidden": [0, 1, 2]}, "'hidden' must be .* leave a living one out"),
        ({"hidden": [0, 1], "terminal": [2], "initial": [1, 0, 0]}, "leave a living one out"),
        ({"hidden": [2], "terminal": [2]}, "'hidden' must be without the terminal states"),
        ({"hidden": [0, 1], "target": [[1, 0], [0, 1], [1, 0]]}, "'target' must have one row"),
        ({"hidden": [0, 1], "behavior": [[1, 0], [0, 1], [1, 0]]}, "'behavior' must have one"),
    ],
)
def test_hidden_worlds_check_their_arguments(change: dict[str, Any], message: str) -> None:
    HiddenMDP(**CHAIN, hidden=[1, 2])
    with pytest.raises(UsageError, match=message):
        HiddenMDP(**{**CHAIN, **change})


@pytest.mark.parametrize(
    "bad",
    [
        {"seed": -1},
        {"seed": 0.5},
        {"hidden": 4},
        {"hidden": -1},
        {"rare": 1.0},
        {"rare": -0.1},
        {"tilt": float("inf")},
    ],
)
def test_descriptions_check_their_numbers(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"'{next(iter(bad))}' must be"):
        RandomWorld(**{"seed": 0, **bad})
    with pytest.raises(UsageError, match="'rare' must be"):
        RandomWorld(0, n_actions=1, rare=0.1)
