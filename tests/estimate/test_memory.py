"""MIS with a memory: what it equals, what it refuses, and what it says of itself.

Its values and errors against a slow reference are in `test_reference.py`, the common tests of
estimators in `test_table.py` and `tests/testing/test_estimators.py`."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

import reweigh as rw
from reweigh.errors import ResourceError
from reweigh.estimate.influence import influence_values
from reweigh.system import process
from reweigh.worlds import ModelFail, TimeVarying, random_mdp

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
WORLDS = {
    "ends-early": random_mdp(2, 3, 2, 5, overlap=0.7, reward_sd=0.5, discount=0.9, terminal=1),
    "complete": random_mdp(3, 3, 3, 6, overlap=0.6, reward_sd=0.5),
    "hidden": ModelFail(4),
    "continuous": TimeVarying(5, 3),
    "one-step": random_mdp(4, 3, 2, 1, overlap=0.7, reward_sd=0.5),
}


def value_of(log: rw.EpisodeLog, target: rw.Policy, memory: int) -> float:
    return rw.evaluate(log, target, rw.mis(memory=memory)).value


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("more", [0, 3])
def test_the_whole_episode_is_step_wise_wis(world: str, more: int) -> None:
    log, target = WORLDS[world].simulate(200, 1), WORLDS[world].target
    wis = rw.evaluate(log, target, rw.wis())
    found = rw.evaluate(log, target, rw.mis(memory=log.horizon - 1 + more))
    assert found.value == pytest.approx(wis.value, rel=1e-12)
    assert found.per_step == pytest.approx(wis.per_step, rel=1e-12)
    assert found.standard_error == pytest.approx(wis.standard_error, rel=1e-9)
    assert found.diagnostics.ess == pytest.approx(wis.diagnostics.ess, rel=1e-9)


@pytest.mark.parametrize("world", WORLDS)
def test_no_memory_has_the_marginals_of_the_paper(world: str) -> None:
    log, target = WORLDS[world].simulate(200, 1), WORLDS[world].target
    paper, found = (rw.evaluate(log, target, name) for name in ("mis", "mis-hajek"))
    assert paper.marginals is not None
    assert found.marginals is not None

    def by_place(m: rw.Marginals) -> dict[tuple[int, int], float]:
        # a hidden start is START to the one and the hidden state to the other
        seen = (m.codes >= 0) & (m.codes < len(log.states)) | (m.codes == -2)
        places = zip(m.step.tolist(), m.codes.tolist(), seen.tolist(), strict=True)
        target = m.target.tolist()
        return {(t, s): d for (t, s, ok), d in zip(places, target, strict=True) if ok}

    expected, shares = by_place(paper.marginals), by_place(found.marginals)
    for place, mass in expected.items():
        assert shares.get(place, 0.0) == pytest.approx(mass, rel=1e-12, abs=1e-15), place
    for name in ("worst_ess", "placebo", "rare_mass"):
        one, other = getattr(paper.diagnostics, name), getattr(found.diagnostics, name)
        assert other == pytest.approx(one, rel=1e-9, abs=1e-12), name
    if not log.has_hidden:
        assert found.diagnostics.unseen_mass == pytest.approx(paper.diagnostics.unseen_mass)
        assert found.diagnostics.total_mass == pytest.approx(paper.diagnostics.total_mass)
        error, other = found.diagnostics.placebo_error, paper.diagnostics.placebo_error
        assert error == pytest.approx(other, rel=1e-9)


@pytest.mark.parametrize("memory", [0, 1, 2, 9])
@pytest.mark.parametrize("world", ["complete", "hidden", "continuous", "one-step"])
def test_a_constant_reward_adds_exactly_itself(world: str, memory: int) -> None:
    log, target = WORLDS[world].simulate(100, 1), WORLDS[world].target
    more = log.with_rewards(log.steps.reward + 7.25, np.zeros(log.n_episodes))
    powers = float(np.sum(log.discount ** np.arange(log.horizon)))
    gained = value_of(more, target, memory) - value_of(log, target, memory)
    assert gained == pytest.approx(7.25 * powers, rel=1e-12)


@pytest.mark.parametrize("memory", [0, 1, 2, 4])
def test_an_episode_that_ended_goes_on_in_end(memory: int) -> None:
    """A log whose episodes are filled up with a state that nothing leaves gives the same, and there
    a constant of every step, END's included, adds exactly itself."""
    rng, n, H = np.random.default_rng(5), 60, 5
    states, actions = rng.integers(0, 3, (n, H + 1)), rng.integers(0, 2, (n, H))
    rewards, lengths = rng.normal(size=(n, H)), rng.integers(1, H + 1, n)
    mu, pi = np.full((n, H), 0.5), np.where(actions == 1, 0.7, 0.3)
    ended = rw.log_from_arrays(states, actions, rewards, mu, pi, lengths=lengths, discount=0.9)
    over = np.arange(H) >= lengths[:, None]
    states[:, :-1][over] = 3
    states[lengths == H, -1] = 0
    filled = [np.where(over, after, before) for before, after in ((rewards, 0), (mu, 1), (pi, 1))]

    def value(constant: float) -> float:
        log = rw.log_from_arrays(
            states, actions, filled[0] + constant, filled[1], filled[2], discount=0.9
        )
        return value_of(log, rw.ColumnPolicy("target_prob"), memory)

    found = value_of(ended, rw.ColumnPolicy("target_prob"), memory)
    assert found == pytest.approx(value(0.0), rel=1e-12)
    assert value(3.0) - found == pytest.approx(3 * float(np.sum(0.9 ** np.arange(H))), rel=1e-12)


def test_only_the_last_steps_count() -> None:
    """Where the past is independent of what is now, all memories estimate the same, and where an
    action pays one step later a memory of 1 is right and one of 0 is not."""
    rng, n, H = np.random.default_rng(0), 4000, 6
    action = rng.integers(0, 2, (n, H))
    reward = np.hstack([np.zeros((n, 1)), action[:, :-1]]) + 0.0
    log = rw.log_from_arrays(np.zeros((n, H + 1), int), action, reward, np.full((n, H), 0.5))
    target = rw.TablePolicy([[0.2, 0.8]])
    none, one = (rw.evaluate(log, target, rw.mis(memory=k)) for k in (0, 1))
    assert one.standard_error is not None
    assert abs(one.value - 0.8 * (H - 1)) < 4 * one.standard_error
    assert none.value == pytest.approx(float(reward.sum(axis=1).mean()), abs=0.05)


def test_the_analytic_error_without_memory_is_about_that_of_the_episodes() -> None:
    world = WORLDS["complete"]
    log = world.simulate(2000, 1)
    found = rw.evaluate(log, world.target, "mis-hajek")
    assert found.error_method == "analytic"
    psi = influence_values(log, world.target, rw.mis(memory=0))
    by_episodes = float(np.sqrt(np.mean(psi**2) / len(psi)))
    assert found.standard_error == pytest.approx(by_episodes, rel=0.1)
    parts = found.diagnostics.variance_by_step
    assert parts is not None
    assert found.standard_error == pytest.approx(float(np.sqrt(parts.sum())), rel=1e-12)


def cut_log(hidden: bool = False) -> tuple[rw.EpisodeLog, rw.Policy]:
    rng, n, H = np.random.default_rng(0), 80, 5
    states = rng.integers(0, 3, (n, H + 1))
    masked = np.ma.MaskedArray(states, rng.random((n, H + 1)) < 0.2)
    log = rw.log_from_arrays(
        masked if hidden else states,
        rng.integers(0, 2, (n, H)),
        rng.normal(size=(n, H)),
        np.full((n, H), 0.5),
        lengths=rng.integers(2, H + 1, n),
        truncated=rng.random(n) < 0.3,
        hidden="allow" if hidden else "error",
    )
    return log, rw.TablePolicy({s: {0: 0.3, 1: 0.7} for s in (0, 1, 2, None)})


def test_cut_off_episodes_are_used_up_to_there_and_it_says_so() -> None:
    log, target = cut_log()
    with pytest.warns(rw.SelectionWarning, match="windows of 2 steps are divided by those"):
        rw.evaluate(log, target, rw.mis(memory=1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rw.evaluate(log, target, rw.mis(memory=0))
    assert not [w for w in caught if "windows" in str(w.message)]


def test_the_whole_episode_refuses_cut_off_ones_as_wis_does() -> None:
    log, target = cut_log()
    for memory in (4, 10):
        with pytest.raises(rw.RefusedError, match="episodes were cut off") as caught:
            rw.evaluate(log, target, rw.mis(memory=memory))
        assert caught.value.code == "truncated"
    dropped = log.drop_truncated()
    wis = rw.evaluate(dropped, target, rw.wis()).value
    assert value_of(dropped, target, 4) == pytest.approx(wis, rel=1e-12)


@pytest.mark.parametrize("memory", [0, 1])
def test_cut_off_episodes_with_hidden_states_are_refused(memory: int) -> None:
    log, target = cut_log(hidden=True)
    with pytest.raises(rw.RefusedError) as caught:
        rw.evaluate(log, target, rw.mis(memory=memory))
    assert caught.value.code == "hidden-truncated"
    value_of(log.drop_truncated(), target, memory)


def test_a_step_that_no_window_reaches_is_named() -> None:
    log, _ = cut_log()
    log = log.drop_truncated()
    never = rw.TablePolicy({s: {0: 0.0, 1: 1.0} for s in (0, 1, 2)})
    few = log.select(np.arange(log.n_episodes) < 3)
    with pytest.raises(rw.SupportError, match="from step"):
        rw.evaluate(few, never, rw.mis(memory=4))


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "all"])
def test_a_memory_is_a_whole_number(wrong: object) -> None:
    with pytest.raises(rw.UsageError, match="memory"):
        rw.mis(memory=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("other", [{"normalize": "state"}, {"pooled": True}])
def test_a_memory_takes_no_other_variant(other: dict[str, object]) -> None:
    with pytest.raises(rw.UsageError, match="takes no normalize"):
        rw.mis(memory=1, **other)  # type: ignore[arg-type]


def test_names() -> None:
    for name, memory in (("mis-hajek", 0), ("mis-memory-12", 12)):
        assert rw.estimator(name).name == rw.mis(memory=memory).name == name
        assert rw.estimator(name).weights == rw.mis(memory=memory).weights
    for wrong in ("mis-memory-", "mis-memory-x", "mis-memory-01", "mis-memory--1"):
        with pytest.raises(rw.UsageError, match="there is no estimator"):
            rw.estimator(wrong)


def test_clipped_ratios_are_clipped_before_they_are_multiplied() -> None:
    world = WORLDS["complete"]
    log = world.simulate(200, 1)
    wis = rw.evaluate(log, world.target, rw.wis(max_ratio=1.2)).value
    found = rw.evaluate(log, world.target, rw.mis(memory=9, max_ratio=1.2)).value
    assert found == pytest.approx(wis, rel=1e-12)


def test_sums_of_parts_add_up_and_are_saved(tmp_path: Path) -> None:
    world, recipe = WORLDS["ends-early"], rw.mis(memory=2)
    log = world.simulate(300, 1)
    even = np.arange(300) % 2 == 0
    first, second = (rw.moments(log.select(k), world.target, recipe) for k in (even, ~even))
    first.save(tmp_path / "a.parquet")
    added = rw.load_moments(tmp_path / "a.parquet") + second
    found = rw.evaluate(added, world.target, recipe)
    assert found.value == pytest.approx(value_of(log, world.target, 2), rel=1e-12)
    assert found.error_method == "jackknife (50 blocks)"


def test_too_many_windows_are_refused_before_they_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, target = WORLDS["complete"].simulate(200, 1), WORLDS["complete"].target
    monkeypatch.setattr(process, "ALWAYS_THERE", 0)
    monkeypatch.setattr(process, "limit", lambda: 100_000)
    with pytest.raises(ResourceError, match=r"the windows of a memory of 2 steps \(1,200 of them"):
        rw.moments(log, target, rw.mis(memory=2))


@pytest.mark.parametrize("memory", [0, 1, 3])
@pytest.mark.parametrize("engine", ["stream", "duckdb"])
def test_every_engine_gives_the_same(engine: str, memory: int) -> None:
    world = WORLDS["ends-early"]
    log = world.simulate(200, 1)
    read = rw.read_log(
        log.to_table(),
        engine=engine,
        horizon=log.horizon,
        discount=0.9,
        terminated="terminated",
    )
    expected = rw.evaluate(log, world.target, rw.mis(memory=memory))
    found = rw.evaluate(read, world.target, rw.mis(memory=memory))
    assert found.value == pytest.approx(expected.value, rel=1e-12)
    one, other = (each.interval(method="cluster") for each in (found, expected))
    assert one is not None
    assert other is not None
    assert (one.low, one.high) == pytest.approx((other.low, other.high), rel=1e-9)
    assert found.verdict.level in ("green", "amber", "red")
