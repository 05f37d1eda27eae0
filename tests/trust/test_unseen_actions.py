"""What a Q of other episodes counts as 0 because the log never shows the action."""

from __future__ import annotations

import numpy as np
import pytest
from reweigh_studies.coverage.worlds import WORLDS

import reweigh as rw
from reweigh.log.log import EpisodeLog
from reweigh.policy import Policy
from reweigh.trust.gates import Context, GateResult, measured
from reweigh.trust.gates.support import UnseenActions, left_out

NAME = "unseen actions"


def missing(log: EpisodeLog, target: Policy) -> np.ndarray:
    found = left_out(rw.moments(log, target))
    assert found is not None
    return found.per_step


def estimate_of(data: EpisodeLog | rw.Moments, target: Policy | None, name: str) -> rw.Estimate:
    """Without the warnings, which are of the overlap."""
    [found] = rw.evaluate_all(data, target, [name])
    assert isinstance(found, rw.Estimate)
    return found


def gate_of(estimate: rw.Estimate) -> GateResult:
    [found] = [gate for gate in estimate.verdict.gates if gate.name == NAME]
    return found


def one_step(counts: dict[int, int], behavior: dict[int, float]) -> EpisodeLog:
    """One state and step; action a earns a + 1."""
    actions = np.repeat(list(counts), list(counts.values()))[:, None]
    probs = np.vectorize(behavior.__getitem__)(actions)
    return rw.log_from_arrays(np.zeros((len(actions), 2), int), actions, actions + 1.0, probs)


@pytest.mark.parametrize(
    ("behavior", "share"),
    [
        ({0: 0.8}, 1 - 0.6 / 0.8),  # the ratios leave a quarter open
        ({0: 0.5}, 1 - 0.6 / 0.5),  # they are too large: the value is too high
        ({0: 0.25}, -0.4),  # by no more than what is unseen
    ],
)
def test_one_action_of_two(behavior: dict[int, float], share: float) -> None:
    target = rw.TablePolicy({0: {0: 0.6, 1: 0.4}})
    assert missing(one_step({0: 50}, behavior), target) == pytest.approx([share])


def test_no_more_is_missing_than_is_unseen() -> None:
    """Action 1 is there half as often as its propensity says: that is luck, and no unseen
    action."""
    log = one_step({0: 90, 1: 10}, {0: 0.7, 1: 0.2})
    target = rw.TablePolicy({0: {0: 0.2, 1: 0.7, 2: 0.1}})
    mean_ratio = 0.9 * 0.2 / 0.7 + 0.1 * 0.7 / 0.2
    assert 1 - mean_ratio > 0.1
    value = (0.2 * 1 + 0.7 * 2) / 0.9  # of the actions seen
    assert missing(log, target) == pytest.approx([0.1 * value])


def test_nothing_is_missing_where_every_action_is_seen() -> None:
    log = one_step({0: 90, 1: 10}, {0: 0.7, 1: 0.3})
    assert missing(log, rw.TablePolicy({0: {0: 0.2, 1: 0.8}})) == pytest.approx([0.0], abs=0)


@pytest.mark.parametrize("world", ["rare-2-better", "many-actions", "discounted"])
def test_as_the_formula_says(world: str) -> None:
    """Against loops over the episodes, in worlds whose policies are tables."""
    log, target = WORLDS[world].log(60, np.random.default_rng(5))
    steps, gamma = log.steps, log.discount
    pi = target.probabilities(log)
    rows: dict[tuple[int, int], dict[int, list[tuple[float, float, int, float]]]] = {}
    horizon, n = log.horizon, log.n_episodes
    state_next = steps.next_state
    for i in range(len(steps.state)):
        t, s, a = int(steps.step[i]), int(steps.state[i]), int(steps.action[i])
        row = (float(steps.reward[i]), float(pi[i] / steps.behavior_prob[i]), int(state_next[i]))
        rows.setdefault((t, s), {}).setdefault(a, []).append((*row, float(pi[i])))
    v: dict[tuple[int, int], float] = {}
    d: dict[tuple[int, int], float] = {}
    for t in range(horizon - 1, -1, -1):
        for (u, s), by_action in rows.items():
            if u != t:
                continue
            seen = sum(r[0][3] for r in by_action.values())
            v[t, s] = sum(
                r[0][3] / seen * np.mean([y + gamma * v.get((t + 1, z), 0.0) for y, _, z, _ in r])
                for r in by_action.values()
            )
    starts = [int(s) for s, t in zip(steps.state, steps.step, strict=True) if t == 0]
    for s in starts:
        d[0, s] = d.get((0, s), 0.0) + 1 / n
    expected = np.zeros(horizon)
    for t in range(horizon):
        for (u, s), by_action in rows.items():
            if u != t or (t, s) not in d:
                continue
            seen = sum(r[0][3] for r in by_action.values())
            every = [ratio for r in by_action.values() for _, ratio, _, _ in r]
            open_share = np.clip(1 - np.mean(every), -(1 - seen), 1 - seen)
            if 1 - seen > 1e-9:
                expected[t] += gamma**t * d[t, s] * v[t, s] * open_share
            for r in by_action.values():
                for _, _, z, p in r:
                    after = (t + 1, z)
                    d[after] = d.get(after, 0.0) + d[t, s] * p / seen / len(r)
    assert np.abs(expected).sum() > 0
    assert missing(log, target) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def rare_log() -> tuple[EpisodeLog, Policy]:
    return WORLDS["rare-5-better"].log(200, np.random.default_rng(3))


def test_it_makes_mdr_red_and_is_told_in_errors() -> None:
    log, target = rare_log()
    estimate = estimate_of(log, target, "mdr")
    assert estimate.standard_error is not None
    gate = gate_of(estimate)
    total = abs(missing(log, target).sum())
    assert gate.value == pytest.approx(total / estimate.standard_error)
    assert gate.level == estimate.verdict.level == "red"
    assert gate.per_step is not None
    assert abs(gate.per_step.sum()) == pytest.approx(gate.value)
    assert f"step {gate.step} in state {gate.state}" in gate.text
    assert NAME in {reason.name for reason in estimate.verdict.reasons}


def test_rows_and_sums_say_the_same() -> None:
    log, target = rare_log()
    by_rows = gate_of(estimate_of(log, target, "mdr"))
    by_sums = gate_of(estimate_of(rw.moments(log, target, blocks=20), None, "mdr"))
    assert by_sums.value == pytest.approx(by_rows.value)
    assert (by_sums.level, by_sums.text) == (by_rows.level, by_rows.text)


@pytest.mark.parametrize("name", ["mdr", "mdr-crossfit", "dr-split", "dr-crossfit", "wdr-split"])
def test_it_speaks_where_q_is_of_other_episodes(name: str) -> None:
    assert gate_of(estimate_of(*rare_log(), name)).value is not None


@pytest.mark.parametrize("name", ["mis", "dm", "is", "dr", "wdr"])
def test_it_is_silent_of_the_others(name: str) -> None:
    found = estimate_of(*rare_log(), name).verdict.gates
    assert NAME not in {gate.name for gate in found}


def test_a_q_of_ones_own_leaves_nothing_out() -> None:
    log, target = rare_log()
    own = rw.mdr(q=np.zeros((log.horizon, len(log.states), len(log.actions))))
    context = Context(rw.moments(log, target), own, error=0.1)
    assert measured("sums", context, [UnseenActions()]) == ()


def test_without_an_error_it_is_unknown() -> None:
    log, target = rare_log()
    found = UnseenActions().measure(Context(rw.moments(log, target), rw.mdr()))
    assert (found.level, found.value) == ("unknown", None)
