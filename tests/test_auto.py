"""estimator="auto": the written rule, and its reason printed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import reweigh as rw
from reweigh.evaluation.auto import CONTRADICTED, ENOUGH, RARE, choose
from reweigh.evaluation.evaluate import evaluate_in_study
from reweigh.evaluation.memories import paired_difference

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")


def steps_with(n_states: int, n: int, tilt: float, seed: int = 0) -> tuple[rw.EpisodeLog, object]:
    """n episodes of three steps in states drawn anew at each; the target's ratios are 1 ± tilt."""
    rng = np.random.default_rng(seed)
    states, actions = rng.integers(0, n_states, (n, 4)), rng.integers(0, 2, (n, 3))
    pi = np.where(actions == 1, 0.5 + tilt / 2, 0.5 - tilt / 2)
    log = rw.log_from_arrays(states, actions, rng.normal(size=(n, 3)), np.full((n, 3), 0.5), pi)
    return log, rw.ColumnPolicy("target_prob")


CASES = {
    "states seen often": (3, 500, 0.5, "mdr-loo", "none of the target's mass"),
    "states too fine, mild ratios": (5000, 1000, 0.2, "wis", "keeps "),
    "states too fine, strong ratios": (5000, 200, 0.95, "mis-hajek", "too few effective episodes"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_rule(case: str) -> None:
    n_states, n, tilt, expected, why = CASES[case]
    log, target = steps_with(n_states, n, tilt)
    states, products = (rw.evaluate(log, target, name).diagnostics for name in ("mis", "is"))
    # the case is what it says, by the numbers that the rule reads
    assert states.rare_mass is not None
    assert (states.rare_mass <= RARE) == (case == "states seen often")
    if case != "states seen often":
        assert products.worst_ess is not None
        assert (products.worst_ess >= ENOUGH) == (expected == "wis")
    found = rw.evaluate(log, target, "auto")
    assert found.estimator == expected
    assert found.chosen is not None
    assert found.chosen.startswith(f"{expected}: ")
    assert why in found.chosen
    assert found.value == rw.evaluate(log, target, expected).value
    assert found.to_dict()["chosen"] == found.chosen
    assert "chosen" in str(found)


@pytest.mark.parametrize("case", CASES)
def test_rewards_do_not_change_the_choice(case: str) -> None:
    """Rewards that make a rule by the size of errors choose otherwise: huge in the states that
    the target reaches, none elsewhere, and with a spread of their own."""
    n_states, n, tilt, expected, _ = CASES[case]
    log, target = steps_with(n_states, n, tilt)
    rng = np.random.default_rng(1)
    rho = target.probabilities(log) / log.steps.behavior_prob  # type: ignore[attr-defined]
    choices = set()
    for rewards in (1e6 * rho, -(rho**3), rng.standard_cauchy(len(rho)), np.zeros(len(rho))):
        other = log.with_rewards(rewards, np.zeros(log.n_episodes))
        found = choose(other, target, evaluate_in_study)  # type: ignore[arg-type]
        choices.add((found.recipe.name, found.why))
    [(name, _)] = choices
    assert name == expected


@pytest.mark.parametrize("seed", range(3))
def test_sign_scale_and_origin_of_rewards_do_not_change_the_choice(seed: int) -> None:
    """Of logs whose state is not enough, too, where memories are compared by their values."""
    for world in (rw.worlds.ModelFail(4), rw.worlds.random_mdp(seed, 4, 3, 4, reward_sd=0.5)):
        log = world.simulate(400, seed)
        choices = {
            choose(
                log.with_rewards(scale * log.steps.reward + shift, np.zeros(400)),
                world.target, evaluate_in_study,
            ).recipe.name
            for scale, shift in ((1, 0), (-1, 0), (1e4, 0), (-3, 50))
        }  # fmt: skip
        assert len(choices) == 1


def test_one_step_hidden_states_and_densities_need_no_case_of_their_own() -> None:
    bandit = rw.worlds.Bandit.random(1)
    assert rw.evaluate(bandit.simulate(20000, 0), bandit.target, "auto").estimator == "mdr-loo"
    hidden = rw.worlds.ModelFail(6)
    found = rw.evaluate(hidden.simulate(500, 0), hidden.target, "auto")
    assert found.estimator == "mis-hajek"
    assert "some states are hidden" in found.chosen
    drawn = rw.worlds.TimeVarying(6, 3)
    found = rw.evaluate(drawn.simulate(500, 0), drawn.target, "auto")
    assert found.estimator == "mis-hajek"
    assert "actions are continuous" in found.chosen


def test_a_state_that_is_not_enough_gets_a_memory() -> None:
    """What an action earns comes a step later, and the state does not show it."""
    rng = np.random.default_rng(0)
    actions = rng.integers(0, 2, (2000, 3))
    rewards = np.zeros((2000, 3))
    rewards[:, 1:] = 2.0 * actions[:, :-1] + rng.normal(size=(2000, 2))
    log = rw.log_from_arrays(
        rng.integers(0, 2, (2000, 4)), actions, rewards, np.full((2000, 3), 0.5)
    )
    found = rw.evaluate(log, rw.TablePolicy([[0.2, 0.8]] * 2), "auto")
    assert found.estimator == "mis-memory-1"
    assert found.memories is not None
    assert found.value == pytest.approx(2 * 2 * 0.8, abs=0.3)


def test_an_action_that_the_log_hardly_shows_is_left_to_mis() -> None:
    rng, n = np.random.default_rng(0), 1000
    actions = (rng.random((n, 3)) < 0.003).astype(int)
    mu = np.where(actions == 1, 0.003, 0.997)
    log = rw.log_from_arrays(rng.integers(0, 3, (n, 4)), actions, rng.normal(size=(n, 3)), mu)
    found = rw.evaluate(log, rw.TablePolicy([[0.6, 0.4]] * 3), "auto")
    assert found.estimator == "mis-hajek"
    assert "mdr-loo is not used, because" in found.chosen


def test_it_answers_beside_others_in_order() -> None:
    log, target = steps_with(3, 200, 0.5)
    found = rw.evaluate_all(log, target, ["dm", "auto", "is"])  # type: ignore[arg-type]
    assert [result.estimator for result in found] == ["dm", "mdr-loo", "is"]
    assert [isinstance(r, rw.Estimate) and r.chosen is not None for r in found] == [
        False, True, False,
    ]  # fmt: skip


WORLDS = {
    "enough": (rw.worlds.random_mdp(3, 4, 3, 4, reward_sd=0.5, terminal=1), 400, "mdr-loo"),
    "rare": (
        rw.worlds.random_mdp(3, 4, 6, 4, reward_sd=0.5, terminal=1, overlap=0.02), 100, "mis-hajek",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WORLDS)
def test_every_engine_and_saved_sums_choose_the_same(name: str, tmp_path: Path) -> None:
    """By default, with mis and wis beside the choice, which differ from it by the same."""
    world, n, expected = WORLDS[name]
    log = world.simulate(n, 0)
    memory = rw.evaluate(log, world.target)
    assert memory.estimator == expected
    assert memory.chosen == rw.evaluate(log, world.target, "auto").chosen
    assert [other.estimator for other in memory.beside] == ["mis", "wis"]
    for engine in ("stream", "duckdb"):
        read = rw.read_log(log.to_table(), engine=engine, horizon=4, terminated="terminated")
        found = rw.evaluate(read, world.target)
        assert found.chosen == memory.chosen
        assert found.value == pytest.approx(memory.value, rel=1e-12)
        for one, other in zip(found.record().beside, memory.record().beside, strict=True):
            assert one.difference == pytest.approx(other.difference, rel=1e-9)
            assert one.error == pytest.approx(other.error, rel=1e-6)
            assert one.beyond == other.beyond
    rw.moments(log, world.target, "auto", blocks=20).save(tmp_path / "sums.parquet")
    found = rw.evaluate(rw.load_moments(tmp_path / "sums.parquet"))
    assert (found.estimator, found.value) == (expected, pytest.approx(memory.value, rel=1e-12))
    assert all(one.at_most and one.error > 0 for one in found.record().beside)


def test_sums_without_windows_have_no_memory_to_choose() -> None:
    for name, chosen in (("rare", "mis"), ("enough", "mdr-loo")):
        world, n, _ = WORLDS[name]
        found = rw.evaluate(rw.moments(world.simulate(n, 0), world.target))
        assert found.estimator == chosen
        assert "these moments hold no windows" in found.chosen


def test_sums_of_mis_alone_answer_and_say_what_they_lack() -> None:
    world, n, _ = WORLDS["enough"]
    found = rw.evaluate(rw.moments(world.simulate(n, 0), world.target, ["mis"], gates=False))
    assert found.estimator == "mis"
    assert "mdr-loo is not used, because these moments have no" in found.chosen
    [wis] = found.record().beside
    assert wis.why.startswith("these moments have no sums")


def test_what_the_default_says_of_the_papers_estimators() -> None:
    """A state that is not enough: mis, which relies on it, is off by more than chance explains."""
    rng = np.random.default_rng(0)
    actions = rng.integers(0, 2, (2000, 3))
    rewards = np.zeros((2000, 3))
    rewards[:, 1:] = 2.0 * actions[:, :-1] + rng.normal(size=(2000, 2))
    half = np.full((2000, 3), 0.5)
    log = rw.log_from_arrays(rng.integers(0, 2, (2000, 4)), actions, rewards, half)
    found = rw.evaluate(log, rw.TablePolicy([[0.2, 0.8]] * 2))
    mis, wis = found.record().beside
    assert (mis.beyond, wis.beyond) == (True, False)
    assert mis.value == rw.evaluate(log, rw.TablePolicy([[0.2, 0.8]] * 2), rw.mis()).value
    assert mis.difference == pytest.approx(mis.value - found.value, rel=1e-12)
    assert "less: more than chance explains" in " ".join(str(found).split())


def test_a_choice_that_refuses_stands_alone() -> None:
    states = np.full((50, 3), 0)
    log = rw.log_from_arrays(states, np.zeros((50, 2), int), np.ones((50, 2)), np.ones((50, 2)))
    with pytest.raises(rw.RefusedError):
        rw.evaluate(log, rw.TablePolicy([[0.0, 1.0]]))


def test_a_memory_counts_only_where_memory_0_differs_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    actions = rng.integers(0, 2, (500, 3))
    rewards = np.pad(2.0 * actions[:, :-1], ((0, 0), (1, 0))) + rng.normal(size=(500, 3))
    log = rw.log_from_arrays(np.zeros((500, 4), int), actions, rewards, np.full((500, 3), 0.5))
    target = rw.TablePolicy([[0.2, 0.8]])
    found = rw.evaluate(log, target)
    assert found.estimator == "mis-memory-1"
    apart = paired_difference(rw.evaluate(log, target, rw.mis(memory=0)), found)
    assert apart.p(500) <= CONTRADICTED
    monkeypatch.setattr("reweigh.evaluation.auto.CONTRADICTED", 0.0)
    assert rw.evaluate(log, target).estimator == "mdr-loo"


# Several targets


def tilted(tilt: float, states: int = 5000) -> rw.TablePolicy:
    return rw.TablePolicy(np.tile([0.5 - tilt / 2, 0.5 + tilt / 2], (states, 1)))


@pytest.mark.parametrize(
    ("tilts", "expected", "alike"),
    [
        ((0.2, 0.1), "wis", True),
        ((0.2, 0.95), "mis-hajek", False),
        ((0.95, 0.97), "mis-hajek", True),
    ],
)
def test_compared_targets_have_one_estimator(
    tilts: tuple[float, ...], expected: str, alike: bool
) -> None:
    """wis only where the rule says wis of every target; the rule's own word is told of each."""
    log, _ = steps_with(5000, 1000, 0.0)
    targets = {f"by {tilt}": tilted(tilt) for tilt in tilts}
    alone = {name: rw.evaluate(log, target, "auto") for name, target in targets.items()}
    found = rw.compare(log, targets, "auto", seed=1)
    assert {c.estimator for c in found.contenders} == {expected}
    assert found.auto is not None
    assert found.auto.differs == (not alike)
    assert (len({est.estimator for est in alone.values()}) == 1) == alike
    named = rw.compare(log, targets, expected, seed=1)
    for contender, other in zip(found.contenders, named.contenders, strict=True):
        assert contender.result.value == other.result.value
        assert contender.interval == other.interval
        own = alone[contender.target].chosen
        assert own == found.auto.by_target[contender.target].why
        assert contender.result.chosen.startswith(expected)
        assert contender.result.chosen.endswith(own)
        assert own in str(found)
    assert f"auto chose {expected}" in str(found)
    assert ("wis does not suit every target" in str(found)) == (not alike)
    told = found.to_dict()["auto"]
    assert told == {"estimator": expected, "why": {n: est.chosen for n, est in alone.items()}}
    assert named.auto is None
    assert named.to_dict()["auto"] is None


def test_rewards_do_not_change_the_common_choice() -> None:
    log, _ = steps_with(5000, 1000, 0.0)
    targets = [tilted(0.2), tilted(0.95)]
    choices = {
        rw.compare(
            log.with_rewards(rewards, np.zeros(1000)), targets, "auto", seed=1
        ).auto.to_dict()["estimator"]
        for rewards in (log.steps.reward, 1e6 * log.steps.reward**3, log.steps.reward - 100)
    }
    assert choices == {"mis-hajek"}


def test_what_auto_chooses_is_asked_once() -> None:
    log, target = steps_with(3, 500, 0.5)
    for names in (["auto", "mis", "dm"], ["mis", "auto", "dm"]):
        found = rw.compare(log, target, names, seed=1)
        assert {c.estimator: c.result.chosen is not None for c in found.contenders} == {
            "mis": False, "mdr-loo": True, "dm": False,
        }  # fmt: skip
        assert found.tried == 3
    found = rw.compare(log, target, ["auto", "mdr-loo"], seed=1)
    assert [c.estimator for c in found.contenders] == ["mdr-loo"]
    with pytest.raises(rw.UsageError, match="'auto' is given twice"):
        rw.compare(log, target, ["auto", "auto"])
    with pytest.raises(rw.UsageError, match="no estimator 'misss'"):
        rw.compare(log, target, ["auto", "misss"])


def test_the_part_that_chooses_a_target_chooses_the_estimator() -> None:
    log, _ = steps_with(3, 500, 0.5)
    targets = {"a": tilted(0.1, 3), "b": tilted(0.4, 3)}
    found = rw.compare(log, targets, "auto", holdout=0.5, seed=1)
    assert found.auto is not None
    assert found.held_out is not None
    assert found.held_out.estimator == "mdr-loo"
    assert found.held_out.result.chosen == found.auto.why(found.held_out.target)
