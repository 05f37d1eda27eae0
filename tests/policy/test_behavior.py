"""Estimating the behavior: counts, by hand and by reweigh."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import reweigh as rw


def make_log(seed: int = 0, n: int = 40, states: str = "xyz", actions: str = "lr", **more: Any):
    rng = np.random.default_rng(seed)
    rows: dict[str, list[Any]] = {"episode": [], "step": [], "state": [], "action": []}
    for e in range(n):
        for t in range(3):
            rows["episode"].append(f"e{e}")
            rows["step"].append(t)
            rows["state"].append(str(rng.choice(list(states))))
            rows["action"].append(str(rng.choice(list(actions))))
    rows["reward"] = rng.normal(size=3 * n).tolist()
    rows |= more
    return rw.read_log(pa.table(rows), behavior_prob=None, hidden="allow")


def rows_of(log: rw.EpisodeLog) -> list[tuple[str, int, Any, str]]:
    """(episode, step, state, action) in the order of the steps."""
    steps = log.steps
    assert log.actions is not None
    return list(
        zip(
            map(str, steps.episode[steps.episode_index].tolist()),
            steps.step.tolist(),
            [None if s < 0 else log.states.values[s] for s in steps.state.tolist()],
            [log.actions.values[a] for a in steps.action.tolist()],
            strict=True,
        )
    )


def fold(episode: str, folds: int) -> int:
    return int(hashlib.md5(episode.encode()).hexdigest()[:8], 16) % folds


def by_hand(
    log: rw.EpisodeLog,
    source: rw.EpisodeLog,
    smoothing: float = 0.0,
    folds: int = 1,
    per_step: bool = False,
) -> list[float]:
    """(n(s,a) + α) / (n(s) + α A), counted over the other folds, row by row."""
    assert source.actions is not None
    found = []
    for episode, step, state, action in rows_of(log):
        others = [
            row
            for row in rows_of(source)
            if folds == 1 or fold(row[0], folds) != fold(episode, folds)
        ]
        here = [row for row in others if row[2] == state and (not per_step or row[1] == step)]
        hits = Counter(row[3] for row in here)[action]
        found.append((hits + smoothing) / (len(here) + smoothing * len(source.actions)))
    return found


OPTIONS: dict[str, dict[str, Any]] = {
    "counts": {},
    "smoothing": {"smoothing": 1.5},
    "per step": {"per_step": True},
    "cross-fit": {"cross_fit": 2, "smoothing": 0.5},
    "cross-fit in five": {"cross_fit": 5},
    "all": {"cross_fit": 3, "smoothing": 0.25, "per_step": True},
}


@pytest.mark.parametrize("hidden", [False, True], ids=["seen", "hidden"])
@pytest.mark.parametrize("what", OPTIONS)
def test_the_estimate_is_the_share_of_the_counts(what: str, hidden: bool) -> None:
    options = OPTIONS[what]
    log = make_log()
    if hidden:
        rng = np.random.default_rng(1)
        states = [None if rng.random() < 0.2 else str(rng.choice(["x", "y"])) for _ in range(120)]
        log = make_log(state=states)
    fitted = log.with_behavior(rw.fit_behavior(log, **options))
    expected = by_hand(
        log,
        log,
        options.get("smoothing", 0.0),
        options.get("cross_fit", 1),
        options.get("per_step", False),
    )
    assert fitted.steps.behavior_prob == pytest.approx(expected, rel=1e-14)


def test_the_probabilities_of_a_state_sum_to_one() -> None:
    log = make_log()
    found = log.with_behavior(rw.fit_behavior(log, smoothing=2.0)).steps.behavior_prob
    cells = {row[2:]: p for row, p in zip(rows_of(log), found, strict=True)}
    assert len(cells) == 6
    assert [cells[s, "l"] + cells[s, "r"] for s in "xyz"] == pytest.approx([1.0] * 3)


def test_the_description_says_how_the_behavior_was_found() -> None:
    log = make_log()
    fitted = log.with_behavior(rw.fit_behavior(log, smoothing=1, cross_fit=2, per_step=True))
    text = fitted.describe()["behavior_prob_from"]
    for word in ("estimated", "per step", "smoothing 1", "2 folds"):
        assert word in text
    assert log.describe()["behavior_prob_from"] is None
    assert log.steps.behavior_prob is None  # the log itself did not change


def test_a_fit_is_used_on_another_log_with_other_codes() -> None:
    source = make_log(0)
    other = make_log(1, n=10, states="zy", actions="r")  # other codes for the same labels
    mu = rw.fit_behavior(source)
    found = other.with_behavior(mu).steps.behavior_prob
    assert found == pytest.approx(by_hand(other, source), rel=1e-14)


def test_numbers_meet_their_texts_on_another_log() -> None:
    source = make_log(0, states="12", actions="34")
    table = pa.table(
        {"episode": [0, 0], "step": [0, 1], "state": [2, 1], "action": [3, 4], "reward": [0.0, 0.0]}
    )
    other = rw.read_log(table, behavior_prob=None)
    shares = {row[2:]: p for row, p in zip(rows_of(source), by_hand(source, source), strict=True)}
    found = other.with_behavior(rw.fit_behavior(source)).steps.behavior_prob
    assert found == pytest.approx([shares["2", "3"], shares["1", "4"]])


def test_what_the_fit_never_saw_is_refused_with_the_row() -> None:
    other = make_log(1, n=5, states="q")
    with pytest.raises(rw.InputError) as error:
        other.with_behavior(rw.fit_behavior(make_log(0)))
    [fault] = error.value.faults
    assert (fault.code, fault.count, fault.total) == ("behavior-zero", 15, 15)
    assert "smoothing" in str(fault)
    assert "episode 'e0', step 0" in str(fault)


def test_smoothing_spreads_an_unseen_state_evenly() -> None:
    mu = rw.fit_behavior(make_log(0), smoothing=1.0)
    found = make_log(1, n=5, states="q").with_behavior(mu).steps.behavior_prob
    assert found == pytest.approx([0.5] * 15)


def test_smoothed_probabilities_never_sum_to_more_than_one() -> None:
    mu = rw.fit_behavior(make_log(0), smoothing=1.0)
    other = make_log(1, n=30, states="x", actions="lrm")  # the fit never saw the action m
    try:
        found = other.with_behavior(mu).steps.behavior_prob
    except rw.InputError:
        return  # a refusal is fine
    assert found is not None
    by_action = {row[3]: p for row, p in zip(rows_of(other), found, strict=True)}
    assert set(by_action) == {"l", "r", "m"}
    assert sum(by_action.values()) <= 1 + 1e-12


def test_a_cross_fit_belongs_to_its_log() -> None:
    mu = rw.fit_behavior(make_log(0), cross_fit=2, smoothing=1.0)
    with pytest.raises(rw.UsageError, match="log it was fitted on"):
        make_log(1).with_behavior(mu)


def test_a_cross_fit_without_the_action_in_the_other_folds_is_refused() -> None:
    log = make_log(0, n=40, action=["m"] + ["l", "r"] * 59 + ["l"])
    with pytest.raises(rw.InputError, match="behavior-zero"):
        log.with_behavior(rw.fit_behavior(log, cross_fit=2))


def test_continuous_actions_are_refused() -> None:
    log = rw.log_from_arrays([[0, 0]], [[0.5]], [[1.0]], None, continuous_actions=True)
    with pytest.raises(rw.RefusedError, match="density") as error:
        rw.fit_behavior(log)
    assert error.value.exit_code == 4


@pytest.mark.parametrize(
    "options",
    [{"smoothing": -1}, {"smoothing": float("nan")}, {"smoothing": float("inf")},
     {"smoothing": "1"}, {"cross_fit": 0}, {"cross_fit": -2}, {"cross_fit": 1.5}],
    ids=repr,
)  # fmt: skip
def test_wrong_options_are_usage_errors(options: dict[str, Any]) -> None:
    with pytest.raises(rw.UsageError, match=next(iter(options))):
        rw.fit_behavior(make_log(), **options)


def test_a_deterministic_log_is_warned_about() -> None:
    log = make_log(actions="l")
    with pytest.warns(rw.InputWarning, match="only one action"):
        rw.fit_behavior(log)


@pytest.mark.parametrize("name", ["mis", "is", "wis", "dm", "wdr"])
def test_counts_that_equal_the_logged_propensities_give_the_same_estimate(name: str) -> None:
    rng = np.random.default_rng(0)
    n, horizon = 200, 3
    states, actions = rng.integers(0, 2, (n, horizon)), rng.integers(0, 2, (n, horizon))
    counts = np.zeros((2, 2))
    np.add.at(counts, (states, actions), 1)
    mu = (counts / counts.sum(axis=1, keepdims=True))[states, actions]
    rewards = rng.normal(size=(n, horizon)) + states + actions
    target = rw.TablePolicy([[0.3, 0.7], [0.6, 0.4]])
    logged = rw.log_from_arrays(states, actions, rewards, mu)
    without = rw.log_from_arrays(states, actions, rewards, None)
    fitted = without.with_behavior(rw.fit_behavior(without))
    first, second = (rw.evaluate(log, target, name) for log in (logged, fitted))
    assert second.value == pytest.approx(first.value, rel=1e-13)
    if name == "dm":  # the others' errors are those of estimated propensities, which differ
        assert second.standard_error == pytest.approx(first.standard_error, rel=1e-10)
    else:
        assert second.standard_error < first.standard_error


@pytest.mark.filterwarnings("ignore::reweigh.PlaceboWarning")
def test_an_earlier_evaluation_leaves_nothing_behind_in_the_fitted_log() -> None:
    rng = np.random.default_rng(0)
    states, actions = rng.integers(0, 2, (100, 3)), rng.integers(0, 2, (100, 3))
    log = rw.log_from_arrays(states, actions, states + actions + 0.0, np.full((100, 3), 0.25))
    target = rw.TablePolicy([[0.3, 0.7], [0.6, 0.4]])
    before = rw.evaluate(log, target, "is").value
    fitted = log.with_behavior(rw.fit_behavior(log))
    after = rw.evaluate(fitted, target, "is").value
    assert after < before / 2  # the logged propensities were half of the real ones
    assert rw.evaluate(log, target, "is").value == before


def test_moments_of_logged_and_estimated_propensities_are_not_added() -> None:
    first, second = (
        rw.log_from_arrays([[0, 1]] * 2, [[0], [1]], rewards, [[0.5], [0.5]])
        for rewards in ([[1.0], [2.0]], [[3.0], [4.0]])
    )
    target = rw.TablePolicy([[0.5, 0.5]])
    fitted = second.with_behavior(rw.fit_behavior(second))
    with pytest.raises(rw.InputError, match="behavior"):
        rw.moments(first, target) + rw.moments(fitted, target)
