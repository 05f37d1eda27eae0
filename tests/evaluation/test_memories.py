"""`memory="auto"`: the shortest memory that gives what longer ones give."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import reweigh as rw
from reweigh.estimate.influence import influence_values
from reweigh.estimate.memory_rows import LEAST_SIZE, memories
from reweigh.estimate.standard_error import p_of_difference
from reweigh.evaluation.memories import ALIKE, Difference, choose, paired_difference
from reweigh.worlds import ModelWin

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
PAY, H = 2, 8  # an action pays so many steps later
TARGET = rw.TablePolicy([[0.3, 0.7]] * 2)
TRUTH = 0.7 * (H - PAY)


def delayed(n: int = 800, seed: int = 1) -> rw.EpisodeLog:
    rng = np.random.default_rng(seed)
    action = rng.integers(0, 2, (n, H))
    paid = np.hstack([np.zeros((n, PAY)), action[:, :-PAY]])
    reward = paid + 0.1 * rng.normal(size=(n, H))
    state = rng.integers(0, 2, (n, H + 1))
    return rw.log_from_arrays(state, action, reward, np.full((n, H), 0.5))


@pytest.mark.parametrize(
    ("horizon", "expected"),
    [
        (1, (0,)),
        (2, (0, 1)),
        (4, (0, 1, 2, 3)),
        (8, (0, 1, 2, 3, 5, 7)),
        (9, (0, 1, 2, 3, 5, 7, 8)),
        (30, (0, 1, 2, 3, 5, 7, 11, 17, 26, 29)),
    ],
)
def test_candidates_reach_from_none_to_the_whole_episode(
    horizon: int, expected: tuple[int, ...]
) -> None:
    assert memories(horizon) == expected


def test_a_memory_that_is_too_short_is_not_taken() -> None:
    found = rw.evaluate(delayed(), TARGET, rw.mis(memory="auto"))
    assert found.memories is not None
    assert found.memories.memory == PAY
    assert found.estimator == f"mis-memory-{PAY}"
    assert found.value == rw.evaluate(delayed(), TARGET, rw.mis(memory=PAY)).value
    assert found.standard_error is not None
    assert abs(found.value - TRUTH) < 4 * found.standard_error
    trials = {trial.memory: trial for trial in found.memories.trials}
    assert list(trials) == sorted(memories(H), reverse=True)
    assert all(trials[k].p <= ALIKE and trials[k].why for k in range(PAY))
    assert trials[PAY - 1].why == found.memories.why
    assert all(trials[k].p > ALIKE for k in trials if PAY <= k < max(trials))
    assert trials[max(trials)].compared is None


def test_long_memories_that_differ_by_chance_do_not_keep_a_short_one_away() -> None:
    """Memory 2 agrees with both, memory 0 with neither."""
    recipes = [rw.mis(memory=k) for k in (0, 2, 5, 7)]
    results = rw.evaluate_all(delayed(), TARGET, recipes)
    far = {(0, 5), (0, 7), (5, 7)}

    def difference(first: rw.Estimate, second: rw.Estimate) -> Difference:
        pair = tuple(e.recipe.weights.remembers for e in (first, second))
        return Difference(9.0 if pair in far else 0.1, 1.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reweigh.evaluation.memories.paired_difference", difference)
        found = choose(recipes, results)
    assert isinstance(found, rw.Estimate)
    assert found.memories is not None
    assert found.memories.memory == 2
    assert found.memories.why.startswith("a memory of 0 gives")
    assert [bool(trial.why) for trial in found.memories.trials] == [False, True, False, True]


def test_the_errors_are_those_of_the_differences() -> None:
    log, recipes = delayed(300), [rw.mis(memory=k) for k in (0, 3)]
    first, second = rw.evaluate_all(log, TARGET, recipes)
    assert isinstance(first, rw.Estimate)
    assert isinstance(second, rw.Estimate)
    psi = [influence_values(log, TARGET, recipe) for recipe in recipes]
    n = log.n_episodes
    error = float(np.sqrt(np.mean((psi[0] - psi[1]) ** 2) / (n - 1)))
    found = paired_difference(first, second)
    assert found.error == pytest.approx(error, rel=1e-9)
    assert found.apart == pytest.approx(abs(first.value - second.value) / error, rel=1e-9)
    assert paired_difference(first, first).apart == 0.0
    away = psi[0] - psi[1]
    skewness = float(np.sum(away**3) / np.sum(away**2) ** 1.5)
    assert found.skewness == pytest.approx(skewness, rel=1e-6)
    t = (first.value - second.value) / error
    assert found.p(40.0) == pytest.approx(p_of_difference(t, skewness, 39), rel=1e-6)


def test_where_the_state_tells_all_no_memory_is_taken() -> None:
    world = ModelWin(10)
    log = world.simulate(1000, 3)
    found = rw.evaluate(log, world.target, rw.mis(memory="auto"))
    assert found.estimator == "mis-hajek"
    assert found.chosen is not None
    assert "it gives what memories of up to" in found.chosen


def test_a_memory_that_the_log_cannot_bear_is_not_taken() -> None:
    log = delayed(32)
    found = rw.evaluate(log, TARGET, rw.mis(memory="auto"))
    assert found.memories is not None
    for trial in found.memories.trials:
        assert (
            trial.borne == (trial.size is not None and trial.size >= LEAST_SIZE) or not trial.memory
        )
        if not trial.borne:
            assert "effective episodes, fewer than 30" in trial.why
    assert found.memories.memory == 0
    assert "the log supports no longer memory" in found.memories.why


def test_a_memory_is_borne_only_if_all_shorter_ones_are() -> None:
    """The largest products are missing where a longer memory seems to leave more episodes."""
    found = rw.evaluate_all(delayed(400), TARGET, [rw.mis(memory=k) for k in (0, 3, 7)])
    recipes = [rw.mis(memory=k) for k in (0, 3, 7)]
    sizes = {0: 80.0, 3: 20.0, 7: 40.0}

    def of(estimate: rw.Estimate) -> float:
        return sizes[estimate.recipe.weights.remembers]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reweigh.evaluation.memories.size_of_products", of)
        chosen = choose(recipes, found)
    assert isinstance(chosen, rw.Estimate)
    assert chosen.memories is not None
    assert [trial.borne for trial in chosen.memories.trials] == [False, False, True]
    assert chosen.memories.trials[0].why == "a memory of 3 leaves fewer than 30 effective episodes"


@pytest.mark.parametrize("scale", [-3.0, 1e6])
def test_the_scale_of_rewards_does_not_matter(scale: float) -> None:
    log = delayed()
    scaled = log.with_rewards(scale * log.steps.reward + 5, np.zeros(log.n_episodes))
    first, second = (rw.evaluate(each, TARGET, rw.mis(memory="auto")) for each in (log, scaled))
    assert first.memories is not None
    assert second.memories is not None
    assert first.memories.memory == second.memories.memory
    for one, other in zip(first.memories.trials, second.memories.trials, strict=True):
        assert other.apart == (None if one.apart is None else pytest.approx(one.apart, rel=1e-6))
        assert other.p == (None if one.p is None else pytest.approx(one.p, rel=1e-4))


@pytest.mark.parametrize("engine", ["stream", "duckdb"])
def test_every_engine_chooses_the_same(engine: str) -> None:
    log = delayed(400)
    expected = rw.evaluate(log, TARGET, rw.mis(memory="auto"))
    found = rw.evaluate(rw.read_log(log.to_table(), engine=engine), TARGET, rw.mis(memory="auto"))
    assert found.memories is not None
    assert expected.memories is not None
    assert found.value == pytest.approx(expected.value, rel=1e-12)
    for one, other in zip(expected.memories.trials, found.memories.trials, strict=True):
        assert (one.memory, one.borne, one.compared) == (other.memory, other.borne, other.compared)
        assert other.size == pytest.approx(one.size, rel=1e-9)
        assert other.apart == (None if one.apart is None else pytest.approx(one.apart, rel=1e-6))
        assert other.p == (None if one.p is None else pytest.approx(one.p, rel=1e-6))


def test_saved_sums_choose_by_blocks(tmp_path: Path) -> None:
    log = delayed()
    sums = rw.moments(log, TARGET, rw.mis(memory="auto"))
    assert set(sums.tables) == {f"windows_{k}" for k in memories(H)}
    sums.save(tmp_path / "sums.parquet")
    found = rw.evaluate(rw.load_moments(tmp_path / "sums.parquet"), TARGET, rw.mis(memory="auto"))
    assert found.memories is not None
    assert found.memories.memory == PAY
    assert found.error_method == "jackknife (50 blocks)"
    one = rw.moments(log, TARGET, rw.mis(memory=3))
    few = rw.evaluate(one, TARGET, rw.mis(memory="auto"))
    assert few.memories is not None
    assert [trial.memory for trial in few.memories.trials] == [3]
    with pytest.raises(rw.RefusedError, match="hold no windows to choose a memory from"):
        rw.evaluate(rw.moments(log, TARGET, ["mis"]), TARGET, rw.mis(memory="auto"))


def test_cut_off_episodes_leave_the_whole_episode_out() -> None:
    log = delayed(600)
    steps = log.steps
    cut = np.random.default_rng(0).random(600) < 0.1
    arrays = (
        np.random.default_rng(1).integers(0, 2, (600, H + 1)),
        np.random.default_rng(2).integers(0, 2, (600, H)),
        steps.reward.reshape(H, 600).T,
        np.full((600, H), 0.5),
    )
    log = rw.log_from_arrays(*arrays, lengths=np.where(cut, 4, H), truncated=cut)
    found = rw.evaluate(log, TARGET, rw.mis(memory="auto"))
    assert found.memories is not None
    longest = found.memories.trials[0]
    assert longest.memory == H - 1
    assert not longest.borne
    assert "it refuses" in longest.why
    assert found.memories.memory < H - 1


def test_it_is_told_in_json_text_and_beside_others() -> None:
    results = rw.evaluate_all(delayed(), TARGET, ["wis", rw.mis(memory="auto"), "mis"])
    names = [result.estimator for result in results]
    assert names == ["wis", f"mis-memory-{PAY}", "mis"]
    found = results[1]
    assert isinstance(found, rw.Estimate)
    entry = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert entry["memory"]["memory"] == PAY
    assert [trial["memory"] for trial in entry["memory"]["tried"]] == [7, 5, 3, 2, 1, 0]
    assert entry["chosen"] == f"mis-memory-{PAY}: {entry['memory']['why']}"
    assert "errors of the difference away from the" in " ".join(str(found).split())
    assert results[2].to_dict()["memory"] is None


def test_what_cannot_choose_says_so() -> None:
    log, auto = delayed(200), rw.mis(memory="auto")
    with pytest.raises(rw.UsageError, match="one estimator for all targets"):
        rw.compare(log, TARGET, auto, seed=0)
    with pytest.raises(rw.UsageError, match="a choice that evaluate makes"):
        rw.point_values(log, TARGET, auto)
    assert rw.estimator("mis-memory-auto").name == auto.name
