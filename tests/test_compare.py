"""compare: paired differences, families of intervals, the best of many, parts set aside."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
from scipy import stats

import reweigh as rw
from reweigh.cli.app import run
from reweigh.inference.influence import influence_values
from reweigh.inference.joint import Joint
from reweigh.ledger import noted
from reweigh.results import Estimate

WORLD = rw.worlds.random_mdp(1, 4, 3, 5, reward_sd=0.3)
MIXED = rw.TablePolicy(0.5 * WORLD.target_array + 0.5 * WORLD.behavior_array, name="half")
TARGETS = {"a": WORLD.target, "b": MIXED}


@pytest.fixture(autouse=True)
def _quietly() -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rw.ReweighWarning)
        yield


def per_episode(log: rw.EpisodeLog, target: rw.Policy) -> tuple[np.ndarray, np.ndarray]:
    """Σ_t ρ_{0:t} r_t and the return, by hand."""
    steps, rho = log.steps, target.probabilities(log) / log.steps.behavior_prob
    weight, x, g = np.ones(log.n_episodes), np.zeros(log.n_episodes), np.zeros(log.n_episodes)
    for t in range(log.horizon):
        rows = steps.rows(t)
        weight *= rho[rows]
        x += weight * steps.reward[rows]
        g += steps.reward[rows]
    return x, g


def test_is_against_the_behaviour_is_the_paired_t_test() -> None:
    log = WORLD.simulate(200, 0)
    found = rw.compare(log, WORLD.target, "is", seed=0)
    x, g = per_episode(log, WORLD.target)
    paired = stats.ttest_rel(x, g, alternative="greater")
    over = found.contenders[0].over_behavior
    assert over is not None
    assert over.value == pytest.approx(np.mean(x - g), rel=1e-12)
    assert over.standard_error == pytest.approx(stats.sem(x - g), rel=1e-9)
    assert over.p_value == pytest.approx(paired.pvalue, rel=1e-9)
    low, high = stats.ttest_rel(x, g).confidence_interval(0.95)
    # one contrast: the bootstrap's quantile is that of |t| up to its Monte-Carlo error
    assert over.interval.low <= low + 1e-12
    assert over.interval.high - over.interval.low == pytest.approx(high - low, rel=0.05)


def test_pairs_take_out_what_two_estimates_share() -> None:
    log = WORLD.simulate(400, 1)
    found = rw.compare(log, TARGETS, ["mis", "wis"], seed=0)
    [pair] = found.pairs
    assert (pair.first, pair.second) == ("a, mis", "b, mis")
    psi = [influence_values(log, target, rw.mis()) for target in TARGETS.values()]
    assert pair.standard_error == pytest.approx(stats.sem(psi[0] - psi[1]), rel=1e-9)
    a, _, b, _ = found.contenders
    assert isinstance(a.result, Estimate)
    assert isinstance(b.result, Estimate)
    assert pair.value == pytest.approx(a.result.value - b.result.value)
    assert pair.standard_error < 0.7 * np.hypot(a.result.standard_error, b.result.standard_error)
    assert found.behavior_value == a.result.behavior_value
    chances = [c.best for c in found.ranking]
    assert sum(chances) == pytest.approx(1.0)
    assert found.best is found.ranking[0]
    assert {c.best for c in found.contenders if c.estimator == "wis"} == {None}


def test_critical_values_of_known_families() -> None:
    """Independent estimates: the largest of k |t| is known. Monte-Carlo error of the quantile with
    9,999 draws is below 0.03."""
    rng = np.random.default_rng(0)
    n, k = 5000, 10
    psi = rng.normal(size=(n, k))
    joint = Joint.of(psi, 9_999, 1)
    exact = stats.norm.isf((1 - 0.95 ** (1 / k)) / 2)
    assert joint.critical(np.eye(k), 0.95) == pytest.approx(exact, abs=0.06)
    one_sided = stats.norm.isf(1 - 0.95 ** (1 / k))
    assert joint.critical(np.eye(k), 0.95, two_sided=False) == pytest.approx(one_sided, abs=0.06)
    same = Joint.of(np.repeat(psi[:, :1], k, axis=1), 9_999, 1)
    assert same.critical(np.eye(k), 0.95) == pytest.approx(stats.norm.isf(0.025), abs=0.04)
    np.testing.assert_allclose(joint.errors(np.eye(k)), stats.sem(psi), rtol=1e-9)


def test_the_same_policy_twice_differs_by_nothing() -> None:
    log = WORLD.simulate(100, 3)
    found = rw.compare(log, {"a": WORLD.target, "same": WORLD.target}, seed=0)
    [pair] = found.pairs
    assert (pair.value, pair.standard_error) == (0.0, 0.0)
    on_policy = rw.compare(log, WORLD.behavior, "wis", seed=0).contenders[0].over_behavior
    assert on_policy is not None
    assert (on_policy.value, on_policy.standard_error) == (0.0, 0.0)


def test_the_seed_repeats_and_randomness_enters_only_the_critical_values() -> None:
    log = WORLD.simulate(150, 3)
    one, two = (rw.compare(log, TARGETS, seed=5).to_dict() for _ in range(2))
    assert one == two
    other = rw.compare(log, TARGETS, seed=6)
    assert [c["value"] for c in one["contenders"]] == [
        c["value"] for c in other.to_dict()["contenders"]
    ]
    drawn = rw.compare(log, TARGETS)
    assert rw.compare(log, TARGETS, seed=drawn.seed).to_dict() == drawn.to_dict()


def test_best_of_many_equal_policies_is_covered() -> None:
    """Picking the best of 20 policies that are worth the same: the plain interval of the winner
    misses, the simultaneous one holds. 150 logs: Monte-Carlo error 0.018."""
    rng = np.random.default_rng(0)
    world = rw.worlds.TabularMDP(
        initial=np.array([1.0]), transition=np.ones((1, 8, 1)), reward=np.zeros((1, 8, 1)),
        target=np.full((1, 8), 1 / 8), behavior=np.full((1, 8), 1 / 8), reward_sd=1.0, horizon=1,
    )  # fmt: skip
    policies = {
        str(j): rw.TablePolicy(rng.dirichlet(np.ones(8), 1), name=str(j)) for j in range(20)
    }
    plain = held = 0
    for seed in range(150):
        found = rw.compare(world.simulate(200, seed), policies, seed=seed)
        best = found.best
        assert best is not None
        assert best.interval is not None
        assert isinstance(best.result, Estimate)
        own = best.result.interval()
        assert own is not None
        held += best.interval.low <= 0 <= best.interval.high
        plain += own.low <= 0 <= own.high
    assert held / 150 >= 0.95 - 3 * 0.018
    assert plain / 150 < 0.9


def test_a_part_is_set_aside() -> None:
    log = WORLD.simulate(400, 2)
    found = rw.compare(log, TARGETS, holdout=0.3, seed=0)
    assert found.held_out is not None
    assert found.chosen == found.held_out.target == found.ranking[0].target
    assert found.n_episodes + found.n_held_out == 400
    assert found.n_held_out == pytest.approx(120, abs=40)
    aside = log.steps.episode_hash % 10_000 < 3000
    alone = rw.evaluate(log.select(aside), TARGETS[found.chosen])
    assert isinstance(found.held_out.result, Estimate)
    assert found.held_out.result.value == alone.value
    with pytest.raises(rw.RefusedError, match="episodes"):
        rw.compare(WORLD.simulate(40, 0), TARGETS, holdout=0.1)


def test_estimators_that_disagree_are_told() -> None:
    """What is earned at step 1 is the action of step 0, and the state forgets it: MIS earns what
    the behaviour would, WIS what the target would."""
    rng = np.random.default_rng(0)
    actions = rng.integers(0, 2, (2000, 2))
    rewards = np.stack([np.zeros(2000), actions[:, 0]], axis=1)
    states, mu = np.zeros((2000, 3), np.int64), np.full((2000, 2), 0.5)
    log = rw.log_from_arrays(states, actions, rewards, mu)
    target = rw.TablePolicy(np.array([[0.1, 0.9]]))
    found = rw.compare(log, target, ["mis", "wis"], seed=0)
    mis, wis = (c.result for c in found.contenders)
    assert isinstance(mis, Estimate)
    assert isinstance(wis, Estimate)
    assert mis.value == pytest.approx(0.5, abs=0.1)
    assert wis.value == pytest.approx(0.9, abs=0.1)
    [difference] = found.disagreeing
    assert difference.value == pytest.approx(mis.value - wis.value)
    assert "one of them is biased" in str(found)


def test_refusals_are_told_and_the_others_answer() -> None:
    log = WORLD.simulate(60, 0)
    far = rw.TablePolicy({s: {"elsewhere": 1.0} for s in range(4)}, name="far")
    found = rw.compare(log, {"a": WORLD.target, "far": far}, seed=0)
    assert [isinstance(c.result, rw.Refusal) for c in found.contenders] == [False, True]
    assert "refused" in str(found)
    only = rw.compare(log, {"far": far}, seed=0)
    assert only.best is None
    json.dumps(only.to_dict())
    json.dumps(found.to_dict())


def test_what_was_tried_is_counted_once_per_log(tmp_path: Path) -> None:
    log = WORLD.simulate(60, 0)
    assert rw.compare(log, TARGETS, seed=0).tried == 2
    assert rw.compare(log, TARGETS, ["mis", "wis"], seed=0).tried == 4
    again = rw.compare(log, WORLD.target, seed=0)
    assert again.tried == 4
    assert "were tried" in again.warnings[0]
    book = tmp_path / "ledger.json"
    assert noted(book, "log", [("a", "mis")]) == 1
    assert noted(book, "log", [("a", "mis"), ("b", "mis")]) == 2
    assert noted(book, "other", [("a", "mis")]) == 1
    book.write_text('{"format": 7}')
    with pytest.raises(rw.InputError, match="ledger"):
        noted(book, "log", [])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"level": 1.0}, "level"),
        ({"level": "x"}, "level"),
        ({"holdout": 0}, "holdout"),
        ({"holdout": 1.0}, "holdout"),
        ({"estimators": []}, "estimators"),
    ],
)
def test_wrong_questions(options: dict[str, object], words: str) -> None:
    with pytest.raises(rw.UsageError, match=words):
        rw.compare(WORLD.simulate(20, 0), WORLD.target, **options)  # type: ignore[arg-type]


def test_wrong_targets() -> None:
    log = WORLD.simulate(20, 0)
    for targets in ({}, [], {"behaviour": WORLD.target}, {"a": 3}):
        with pytest.raises(rw.UsageError):
            rw.compare(log, targets)  # type: ignore[arg-type]
    found = rw.compare(log, [WORLD.target, WORLD.target], seed=0)
    assert len({c.target for c in found.contenders}) == 2


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    pq.write_table(WORLD.simulate(200, 0).to_table(), "log.parquet")
    for name, policy in TARGETS.items():
        pc.write_csv(policy.to_table(), f"{name}.csv")
    return tmp_path


CALL = ["compare", "log.parquet", "--target", "a.csv", "--target", "b.csv"]


def test_the_command(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*CALL, "--estimators", "mis,wis", "--seed", "3"]) == 0
    shown = capsys.readouterr().out
    assert "a, mis - b, mis" in shown
    assert "seed 3" in shown
    assert all(len(line) <= 100 for line in shown.splitlines())
    assert run([*CALL, "--json", "--seed", "3", "--holdout", "0.4", "--ledger", "l.json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tried"] == 2
    assert found["chosen"] in ("a", "b")
    assert run(["compare", "log.parquet", "--target", "a.csv", "--ledger", "l.json"]) == 0
    assert "tried on this log by now" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (["compare", "log.parquet"], 2, "--target FILE"),
        ([*CALL, "--target", "a.csv"], 2, "twice"),
        ([*CALL, "--engine", "stream"], 2, "in memory"),
        ([*CALL, "--cut-episodes", "x"], 2, "--cut-episodes"),
        ([*CALL, "--level", "2"], 2, "level"),
        (["compare", "log.parquet", "--target", "missing.csv"], 6, "missing.csv"),
    ],
)
def test_wrong_commands(
    files: Path, capsys: pytest.CaptureFixture[str], more: list[str], code: int, words: str
) -> None:
    assert run(more) == code
    assert words in " ".join(capsys.readouterr().err.split())


def test_draws_have_the_covariance_of_the_influence_values() -> None:
    """200,000 draws: a covariance of them has an error of about 0.3 % of the variances."""
    rng = np.random.default_rng(0)
    psi = rng.normal(size=(500, 4)) @ rng.normal(size=(4, 4))
    psi = np.column_stack([psi, psi[:, 0]])  # two of the estimates are one
    joint = Joint.of(psi, 200_000, seed=1)
    assert joint.covariance == pytest.approx(np.cov(psi.T) / 500)
    found, scale = np.cov(joint.draws.T), np.diag(joint.covariance)
    assert np.abs(found - joint.covariance).max() < 0.015 * scale.max()
    assert joint.draws[:, 0] == pytest.approx(joint.draws[:, 4], abs=1e-12)
    few = Joint.of(psi[:3], 10, seed=1)  # fewer episodes than estimates
    assert few.draws.shape == (10, 5)
