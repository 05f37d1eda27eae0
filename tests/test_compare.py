"""compare: paired differences, families of intervals, the best of many, parts set aside."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
from scipy import stats

import reweigh as rw
from reweigh.cli.app import run
from reweigh.decide.compare import Joint
from reweigh.decide.ledger import key_of, noted
from reweigh.estimate.influence import influence_values
from reweigh.evaluation.result import Estimate

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


def test_is_against_the_behavior_is_the_paired_t_test() -> None:
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
    assert isinstance(found.held_out.result, Estimate)
    recipe = found.held_out.result.recipe
    alone = rw.evaluate(log.select(aside), TARGETS[found.chosen], recipe)
    assert found.held_out.result.value == alone.value
    with pytest.raises(rw.RefusedError, match="episodes"):
        rw.compare(WORLD.simulate(40, 0), TARGETS, holdout=0.1)


def test_estimators_that_disagree_are_told() -> None:
    """What is earned at step 1 is the action of step 0, and the state forgets it: MIS earns what
    the behavior would, WIS what the target would."""
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
    assert rw.compare(log, TARGETS, "mis", seed=0).tried == 2
    assert rw.compare(log, TARGETS, ["mis", "wis"], seed=0).tried == 4
    again = rw.compare(log, WORLD.target, "mis", seed=0)
    assert again.tried == 4
    assert "have been tried" in again.warnings[0]
    book = tmp_path / "ledger.json"
    assert noted(book, "log", [("a", "mis")]).tried == 1
    assert noted(book, "log", [("a", "mis"), ("b", "mis")]).tried == 2
    assert noted(book, "other", [("a", "mis")]).tried == 1
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
        ({"estimators": 3}, "estimators"),
        ({"estimators": ["mis", rw.mis()]}, "given twice"),
        ({"seed": -1}, "seed"),
        ({"seed": "x"}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"truncated": "x"}, '\'truncated\' must be "refuse" or "drop"'),
    ],
)
def test_wrong_questions(options: dict[str, object], words: str) -> None:
    with pytest.raises(rw.UsageError, match=words):
        rw.compare(WORLD.simulate(20, 0), WORLD.target, **options)  # type: ignore[arg-type]


def test_wrong_targets() -> None:
    log = WORLD.simulate(20, 0)
    for targets in ({}, [], {"behavior": WORLD.target}, {"a": 3}, 3, None, "a"):
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
    _, *table = shown.partition("seed 3")[0].splitlines()  # a sentence is not broken in a file
    assert all(len(line) <= 100 for line in table)
    assert run([*CALL, "--json", "--seed", "3", "--holdout", "0.4", "--ledger", "l.json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tried"] == 2
    assert found["chosen"] in ("a", "b")
    assert run(["compare", "log.parquet", "--target", "a.csv", "--ledger", "l.json"]) == 0
    assert "tried on this log" in " ".join(capsys.readouterr().out.split())
    assert run([*CALL, "--estimators", "auto", "--seed", "3", "--report", "out.html"]) == 0
    shown = capsys.readouterr().out
    assert "auto chose mdr-loo: " in shown
    assert "auto chose mdr-loo: " in (files / "out.html").read_text("utf-8")
    assert run([*CALL, "--estimators", "auto", "--json", "--ledger", "other.json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["auto"]["estimator"] == "mdr-loo"
    assert set(found["auto"]["why"]) == {"a", "b"}
    assert found["tried"] == 2


def test_what_may_not_be_trusted_is_not_shown(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """200 episodes are too few for running products; the JSON has what is not shown."""
    given = [*CALL, "--estimators", "wis,mis", "--seed", "3"]
    assert run([*given, "--report", "out.html"]) == 0
    shown = capsys.readouterr().out
    rows = [line.split() for line in shown.splitlines() if line.startswith(("a  ", "b  "))]
    assert [("reliable" in row) for row in rows] == [True, False, True, False]
    assert "a, wis - b, wis: not reliable\n" in shown
    assert "probability" not in shown
    page = (files / "out.html").read_text("utf-8")
    assert '<p class="sentence">Not reliable: ' in page
    assert "All pairs" not in page
    assert run([*given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(c["simultaneous_interval"] for c in found["contenders"])
    assert found["pairs"][0]["interval"]["low"] < found["pairs"][0]["interval"]["high"]
    assert run([*given, "--quiet"]) == 0
    assert "not reliable red" in capsys.readouterr().out
    told = str(rw.compare(rw.read_log("log.parquet"), TARGETS["a"], "wis", seed=3))
    assert "interval not reliable\n" in told


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (["compare", "log.parquet"], 2, "--target FILE"),
        ([*CALL, "--target", "a.csv"], 2, "twice"),
        ([*CALL, "--engine", "stream"], 2, "in memory"),
        ([*CALL, "--cut-episodes", "x"], 2, "--cut-episodes"),
        ([*CALL, "--level", "2"], 2, "level"),
        ([*CALL, "--seed", "-1"], 2, "--seed must be a whole number"),
        ([*CALL, "--holdout", "0.3", "--seed", "-1"], 2, "--seed must be a whole number"),
        ([*CALL, "--estimators", "mis,mis"], 2, "given twice"),
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


# --- what has no variation

EVEN = np.full((200, 1), 0.5)


def one_step(rewards: np.ndarray, actions: np.ndarray) -> rw.EpisodeLog:
    """One state, two actions, one step."""
    n = len(actions)
    return rw.log_from_arrays(np.zeros((n, 2), int), actions[:, None], rewards[:, None], EVEN[:n])


def doing(action: int) -> rw.TablePolicy:
    return rw.TablePolicy(np.eye(2)[[action]])


def test_one_episode_is_no_comparison() -> None:
    with pytest.raises(rw.RefusedError, match="one episode shows no variation"):
        rw.compare(WORLD.simulate(1, 0), TARGETS, ["mis", "is", "dm"], seed=0)
    assert rw.compare(WORLD.simulate(2, 0), TARGETS, seed=0).n_episodes == 2


@pytest.mark.parametrize("reward", [0.0, 0.7])
def test_rewards_that_do_not_vary_have_no_interval_and_no_best(reward: float) -> None:
    rng = np.random.default_rng(0)
    log = one_step(np.full(200, reward), rng.integers(0, 2, 200))
    targets = {"a": rw.TablePolicy([[0.3, 0.7]]), "b": rw.TablePolicy([[0.6, 0.4]])}
    found = rw.compare(log, targets, ["mis-state", "dm", "wis"], seed=0)
    for c in found.contenders:
        assert isinstance(c.result, Estimate)
        assert c.result.interval() is None
        assert (c.interval, c.over_behavior, c.best) == (None, None, None)
        assert c.no_interval
    assert (found.pairs, found.disagreeing) == ((), ())
    assert found.best is not None
    shown = str(found)
    assert "best with probability not known" in shown
    assert "%" not in shown.partition("warning")[0]
    [entry, *_] = found.to_dict()["contenders"]
    assert entry["simultaneous_interval"] is None
    assert entry["no_interval"]


def test_one_without_a_spread_is_judged_against_nobody(tmp_path: Path) -> None:
    """Action 0 earns 1 for sure, action 1 varies: DM knows what doing 0 earns without an error."""
    rng = np.random.default_rng(0)
    actions = rng.integers(0, 2, 200)
    rewards = np.where(actions == 0, 1.0, rng.normal(size=200))
    log = one_step(rewards, actions)
    found = rw.compare(log, {"sure": doing(0), "bold": doing(1)}, ["dm", "is"], seed=0)
    sure, _, bold, other = found.contenders
    assert (sure.interval, sure.over_behavior, sure.best) == (None, None, None)
    assert sure.no_interval
    assert bold.interval is not None
    assert bold.over_behavior is not None
    assert bold.best is None  # its rival's error is not known
    assert other.interval is not None
    assert not any("sure" in (d.first, d.second) for d in found.disagreeing)
    assert found.pairs == ()
    assert [c.target for c in found.ranking] == ["sure", "bold"]
    [told] = [text for text in found.warnings if "not known" in text]
    assert "sure has no interval" in told
    page = found.report(tmp_path / "out.html").read_text(encoding="utf-8")
    assert "How likely it is the best is not known" in page
    both = rw.compare(log, {"bold": doing(1), "bolder": doing(1)}, "dm", seed=0)
    assert both.best is not None
    assert both.best.best is not None


# --- cut-off episodes


def cut_log() -> rw.EpisodeLog:
    """Three steps; every fourth episode is cut off before the last."""
    rng = np.random.default_rng(0)
    n, H = 200, 3
    states, actions = rng.integers(0, 2, (n, H + 1)), rng.integers(0, 2, (n, H))
    rewards = actions + rng.normal(size=(n, H))
    cut = np.arange(n) % 4 == 0
    lengths = np.where(cut, 2, H)
    half = np.full((n, H), 0.5)
    return rw.log_from_arrays(states, actions, rewards, half, lengths=lengths, truncated=cut)


def test_dropping_leaves_cut_episodes_out_for_all() -> None:
    log, target = cut_log(), rw.TablePolicy([[0.3, 0.7], [0.4, 0.6]])
    refused = rw.compare(log, target, ["mis", "wis"], seed=0)
    assert refused.n_episodes == 200
    assert "truncated='drop'" in str(refused)
    with pytest.warns(rw.SelectionWarning, match="50 of 200 episodes were cut off"):
        found = rw.compare(log, target, ["mis", "wis"], truncated="drop", seed=0)
    assert found.n_episodes == 150
    whole = log.drop_truncated()
    for c in found.contenders:
        assert isinstance(c.result, Estimate)
        assert c.result.n_episodes == 150
        assert c.result.value == rw.evaluate(whole, target, c.estimator).value
    assert found.behavior_value == rw.evaluate(whole, target, rw.mis()).behavior_value
    alone = rw.evaluate(log, target, "wis", truncated="drop")
    assert found.warnings[0] in map(str, alone.warnings)
    only = log.select(log.steps.truncated)
    with pytest.raises(rw.RefusedError, match="none is left"):
        rw.compare(only, target, truncated="drop")


def test_the_command_drops_cut_episodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(cut_log().to_table(), "cut.parquet")
    pc.write_csv(rw.TablePolicy([[0.3, 0.7], [0.4, 0.6]]).to_table(), "a.csv")
    call = ["compare", "cut.parquet", "--target", "a.csv", "--estimators", "mis,wis"]
    call += ["--short-episodes", "truncated", "--seed", "1"]
    assert run([*call, "--explain"]) == 0
    assert "--cut-episodes drop" in capsys.readouterr().out
    assert run([*call, "--cut-episodes", "drop"]) == 0
    shown = capsys.readouterr().out
    assert "150 episodes; " in shown
    assert shown.count("50 of 200 episodes were cut off and left out") == 1
    assert "refused" not in shown


# --- what is said beside the numbers


def few_files(n: int) -> None:
    pq.write_table(WORLD.simulate(n, 0).to_table(), "few.parquet")


def test_warnings_and_reasons_are_told_once(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few_files(80)
    call = ["compare", "few.parquet", "--target", "a.csv", "--target", "b.csv"]
    call += ["--estimators", "mis,wis", "--seed", "1", "--holdout", "0.4", "--explain"]
    assert run(call) == 0
    shown = capsys.readouterr().out
    found = rw.compare(WORLD.simulate(80, 0), TARGETS, ["mis", "wis"], seed=1, holdout=0.4)
    told = [c for c in (*found.contenders, found.held_out) if c is not None]
    assert any(c.reasons for c in told)
    for c in told:
        assert isinstance(c.result, Estimate)
        for gate in c.reasons:
            assert f"{gate.level}: {gate.text}" in shown
            assert any(gate.sentence in text for text in c.to_dict()["reasons"])
        for warning in c.result.warnings:
            assert any(str(warning) in text for text in found.remarks())
    lines = [line for line in shown.partition("seed 1")[2].splitlines() if line]
    assert len(set(lines)) == len(lines)
    last = found.held_out
    assert last is not None
    assert isinstance(last.result, Estimate)
    more = "more than today's policy, " * last.trusted
    assert f"{more}verdict {last.result.verdict.level}" in shown
    assert f"verdict {last.result.verdict.level}" in str(found)
    assert "on the episodes set aside: " in shown


def test_strict_takes_a_red_best_for_a_refusal(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few_files(8)
    call = ["compare", "few.parquet", "--target", "a.csv", "--target", "b.csv", "--seed", "1"]
    assert run(call) == 0
    shown = capsys.readouterr().out
    assert run([*call, "--strict"]) == 4
    told = capsys.readouterr()
    assert told.out == shown
    assert "red, and --strict" in told.err
    assert run([*call, "--strict", "--json"]) == 4
    found = json.loads(capsys.readouterr().out)
    assert found["contenders"][0]["verdict"] == "red"
    # of others than the best a red verdict is no matter: those of WIS do not rank
    pq.write_table(WORLD.simulate(3000, 0).to_table(), "many.parquet")
    assert run(["compare", "many.parquet", *call[2:], "--strict", "--estimators", "mis,is"]) == 0
    pc.write_csv(rw.TablePolicy({s: {"elsewhere": 1.0} for s in range(4)}).to_table(), "far.csv")
    assert run(["compare", "few.parquet", "--target", "far.csv", "--strict"]) == 4


# --- never narrower than alone


@pytest.mark.parametrize("n", [30, 60, 200])
def test_no_interval_is_narrower_than_the_estimates_own(n: int) -> None:
    world = rw.worlds.random_mdp(5, n_states=3, n_actions=2, horizon=4, overlap=0.4)
    log = world.simulate(n, 3)
    found = rw.compare(log, world.target, ["mis", "wis", "is", "dm"], level=0.9, seed=1)
    narrower = 0
    for c in found.contenders:
        assert isinstance(c.result, Estimate)
        own = c.result.interval(0.9)
        assert own is not None
        assert c.interval is not None
        assert c.interval.low <= own.low
        assert c.interval.high >= own.high
        alone = rw.compare(log, world.target, c.estimator, level=0.9, seed=1).contenders[0]
        assert alone.interval is not None
        assert alone.interval.low <= own.low
        psi = influence_values(log, world.target, c.result.recipe)
        narrower += stats.t.isf(0.05, n - 1) * stats.sem(psi) < 0.95 * (own.high - own.low) / 2
    assert narrower or n > 60  # the rule had something to do


# --- the same estimator with another clipping


def test_clipped_ratios_make_another_estimator(tmp_path: Path) -> None:
    log = WORLD.simulate(100, 0)
    tight, loose = rw.mis(max_ratio=1.1), rw.mis(max_ratio=2)
    found = rw.compare(log, {"a": WORLD.target}, [rw.mis(), tight, loose], seed=0)
    assert found.tried == 3
    names = ["a, mis", "a, mis, ratios at most 1.1", "a, mis, ratios at most 2"]
    assert [c.name for c in found.contenders] == names
    assert [c["name"] for c in found.to_dict()["contenders"]] == names
    assert [c.name for c in found.ranking] == names[:1]
    assert found.contenders[0].best == 1.0
    assert found.pairs == ()
    for c in found.contenders:
        assert isinstance(c.result, Estimate)
        assert c.result.value == rw.evaluate(log, WORLD.target, c.result.recipe).value
    clipped = rw.compare(log, TARGETS, [tight, "mis"], seed=0)
    assert {d.first for d in clipped.pairs} == {"a, mis, ratios at most 1.1"}
    page = clipped.report(tmp_path / "out.html").read_text(encoding="utf-8")
    assert "The policies by mis<" in page
    assert key_of(rw.dm()) == key_of(replace(rw.dm(), max_ratio=2.0)) == "dm"  # it uses no ratio


def test_estimators_with_an_own_q_are_told_apart() -> None:
    log = WORLD.simulate(100, 0)
    zero, one = rw.dr(np.zeros((4, 3))), rw.dr(np.ones((4, 3)))
    found = rw.compare(log, WORLD.target, [zero, one], seed=0)
    assert len({c.name for c in found.contenders}) == 2
    assert found.tried == 2
    assert len(found.ranking) == 1
    assert key_of(zero) == key_of(rw.dr(np.zeros((4, 3)))) != key_of(one)


def test_the_ledger_knows_clippings_and_reads_old_files(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book = files / "l.json"
    log = rw.read_log("log.parquet").episodes_digest()
    a = rw.read_policy("a.csv").fingerprint()
    book.write_text(json.dumps({"format": 1, "logs": {log: [[a, "mis"], [a, "wis"]]}}))
    call = ["compare", "log.parquet", "--target", "a.csv", "--ledger", "l.json", "--json"]
    call += ["--estimators", "mis"]
    for more, tried in (([], 2), (["--max-ratio", "1.1"], 3), (["--max-ratio", "2"], 4)):
        assert run([*call, *more]) == 0
        assert json.loads(capsys.readouterr().out)["tried"] == tried
    assert [a, "mis, ratios at most 1.1"] in json.loads(book.read_text())["logs"][log]


def test_policies_evaluated_one_by_one_are_counted(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tenth policy's interval looks like the first one's; the ledger tells them apart."""

    def ran(name: str, *more: str) -> dict[str, Any]:
        call = ["evaluate", "log.parquet", "--target", f"{name}.csv", "--estimators", "mis"]
        assert run([*call, "--json", *more]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    def warned(found: dict[str, Any]) -> bool:
        return any("tried on this log" in text for text in found["warnings"])

    kept = ("--ledger", "l.json")
    assert ran("a")["tried"] == 1
    first = ran("a", *kept, "--estimators", "mis,wis")
    assert (first["tried"], warned(first)) == (2, False)
    again = ran("a", *kept)  # nothing new, but one of two
    assert (again["tried"], warned(again)) == (2, True)
    other = ran("b", *kept)
    assert (other["tried"], warned(other)) == (3, True)
    # the same book as that of compare, which had not tried wis on b; the holdout is not untouched
    call = [*CALL, "--estimators", "mis,wis", *kept, "--seed", "1", "--holdout", "0.4"]
    assert run(call) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "4 tried on this log" in shown
    assert "no longer unused" in shown
    once_more = ["evaluate", "log.parquet", "--target", "a.csv", "--estimators", "mis", *kept]
    assert run(once_more) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "; 4 tried on this log" in shown
    assert "compare them all at once" in shown
    assert run([*once_more, "--strict"]) == 4
    capsys.readouterr()


@pytest.mark.parametrize("engine", ["stream", "duckdb"])
def test_a_ledger_needs_the_log_in_memory(
    engine: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["evaluate", "log.parquet", "--target", "a.csv", "--ledger", "l.json"]
    assert run([*call, "--engine", engine]) == 2
    assert "--engine arrays" in capsys.readouterr().err
    assert not (files / "l.json").exists()


# --- a part that was set aside before


def test_a_part_reported_on_before_is_no_longer_untouched(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["compare", "log.parquet", "--target", "a.csv", "--holdout", "0.4", "--seed", "1"]
    call += ["--ledger", "l.json"]
    assert run(call) == 0
    first = " ".join(capsys.readouterr().out.split())
    assert "untouched" not in first
    assert run([*call, "--target", "b.csv", "--estimators", "wis"]) == 0
    again = " ".join(capsys.readouterr().out.split())
    assert "the episodes set aside were reported on before" in again
    assert "no longer unused" in again
    assert "3 pairs" in again
    assert "--holdout" not in again
    assert run([*call, "--holdout", "0.5"]) == 0
    assert "some of the episodes set aside were reported" in capsys.readouterr().out
    assert run([*CALL, "--ledger", "l.json"]) == 0
    assert "(--holdout)" in capsys.readouterr().out


def test_the_same_in_memory() -> None:
    log = WORLD.simulate(400, 2)
    first = rw.compare(log, TARGETS, holdout=0.3, seed=0)
    assert not any("untouched" in text for text in first.warnings)
    more = rw.compare(log, TARGETS, ["wis"], holdout=0.3, seed=0)
    told = " ".join(more.warnings)
    assert "no longer unused" in told
    assert "4 pairs" in told
    assert "(holdout)" not in told
    whole = rw.compare(log, WORLD.target, seed=0)
    assert "set episodes aside (holdout)" in whole.warnings[-1]


def test_equal_policies_share_the_chance_of_being_best() -> None:
    log = WORLD.simulate(300, 0)
    found = rw.compare(log, {"one": WORLD.target, "two": WORLD.target}, seed=1)
    assert [c.best for c in found.contenders] == [0.5, 0.5]
