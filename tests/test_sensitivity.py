"""Sensitivity: each change is what it says, and the table tells by how much the number moves."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

import reweigh as rw
from reweigh.evaluation.sensitivity import of_log, of_sites, shortened, with_previous

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
WORLD = rw.worlds.random_mdp(1, 4, 3, 5, reward_sd=0.3, terminal=1)


def changes(log: rw.EpisodeLog, target: rw.Policy, name: str) -> dict[str, float | None]:
    found = of_log(log, target, rw.estimator(name), rw.evaluate_all)
    for change in found.changes:
        if change.value is not None:
            assert change.moved == change.value - found.value
        else:
            assert change.why
    json.dumps(found.to_dict(), allow_nan=False)
    assert found.estimator in str(found)
    return {change.change: change.value for change in found.changes}


@pytest.mark.parametrize("name", rw.ESTIMATORS)
def test_every_estimator_has_a_table(name: str) -> None:
    world = rw.worlds.random_mdp(2, 4, 3, 5, reward_sd=0.3)  # SSD-IS wants no early ends
    assert changes(world.simulate(80, 0), world.target, name)


def test_the_changes_are_what_they_say() -> None:
    log = WORLD.simulate(200, 0)
    found = changes(log, WORLD.target, "mis")
    rho = WORLD.target.probabilities(log) / log.steps.behavior_prob
    for quantile in (0.999, 0.99):
        at = float(np.quantile(rho, quantile))
        if at < rho.max():
            expected = rw.evaluate(log, WORLD.target, rw.mis(max_ratio=at)).value
            assert found[f"ratios clipped at {at:.3g}"] == expected
    assert found["the first 4 of 5 steps"] == pytest.approx(
        rw.evaluate(shortened(log, 4), WORLD.target, rw.mis()).value
    )
    assert len([name for name in found if "largest effect" in name]) == 1


def test_a_shortened_log_is_the_log_that_was_never_longer() -> None:
    """Simulated, then read with the shorter horizon: the same rows and the same states after."""
    log = WORLD.simulate(50, 3)
    short = shortened(log, 3)
    assert short.horizon == 3
    keep = log.steps.step < 3
    np.testing.assert_array_equal(short.steps.reward, log.steps.reward[keep])
    np.testing.assert_array_equal(short.steps.next_state, log.steps.next_state[keep])
    assert short.steps.lengths.max() == 3
    # the steps before are those of the whole: per-step values of IS do not know what comes after
    whole = rw.evaluate(log, WORLD.target, "is").per_step
    part = rw.evaluate(short, WORLD.target, "is").per_step
    assert whole is not None
    assert part is not None
    np.testing.assert_allclose(part, whole[:3], rtol=1e-12)


def test_states_with_the_one_before_are_pairs() -> None:
    log = WORLD.simulate(60, 3)
    paired = with_previous(log).steps
    steps = log.steps
    seen: dict[int, tuple[int, int]] = {}
    for k in range(log.n_episodes):
        before = -1
        for t in range(int(steps.lengths[k])):
            row = int(steps.offsets[t]) + k
            pair = (before, int(steps.state[row]))
            assert seen.setdefault(int(paired.state[row]), pair) == pair
            before = pair[1]
    assert len(set(seen.values())) == len(seen)


def test_a_state_that_forgets_moves_when_it_remembers() -> None:
    """Step 1 earns the action of step 0; only the pair of states knows of it."""
    rng = np.random.default_rng(0)
    actions = rng.integers(0, 2, (3000, 3))
    states = np.zeros((3000, 4), np.int64)
    states[:, 1] = actions[:, 0]  # seen at step 1, forgotten at step 2
    rewards = np.stack([np.zeros(3000), np.zeros(3000), actions[:, 0]], axis=1)
    log = rw.log_from_arrays(states, actions, rewards, np.full((3000, 3), 0.5))
    target = rw.TablePolicy(np.array([[0.1, 0.9], [0.1, 0.9]]))
    found = of_log(log, target, rw.mis(), rw.evaluate_all)
    assert found.value == pytest.approx(0.5, abs=0.1)
    [paired] = [c for c in found.changes if "one before" in c.change]
    assert paired.value == pytest.approx(0.9, abs=0.1)
    assert found.largest is not None


def test_columns_and_bins_of_a_state() -> None:
    rng = np.random.default_rng(0)
    n = 100
    parts = rng.integers(0, 3, (n, 4, 2))
    log = rw.log_from_arrays(
        parts, rng.integers(0, 2, (n, 3)), rng.random((n, 3)), np.full((n, 3), 0.5),
        np.full((n, 3), 0.4),
    )  # fmt: skip
    found = changes(log, rw.ColumnPolicy("target_prob"), "mis")
    alone = rw.log_from_arrays(
        parts[:, :, 1], log_actions := rng.integers(0, 2, (n, 3)), np.zeros((n, 3)),
        np.full((n, 3), 0.5), np.full((n, 3), 0.4),
    )  # fmt: skip
    assert log_actions.shape == (n, 3)
    assert len(alone.states) == 3
    assert {name for name in found if name.startswith("states without")} == {
        "states without part 1",
        "states without part 2",
    }


def test_sites_are_left_out_in_turn() -> None:
    logs = [WORLD.simulate(60, seed) for seed in range(3)]
    sums = [rw.moments(log, WORLD.target, ["mis"]) for log in logs]
    found = of_sites(sums, rw.mis(), rw.evaluate_all)
    assert [c.value for c in found.changes] == [
        pytest.approx(rw.evaluate(a + b, estimator=rw.mis()).value)
        for a, b in ((sums[1], sums[2]), (sums[0], sums[2]), (sums[0], sums[1]))
    ]
    with pytest.raises(rw.RefusedError, match="only one"):
        of_sites(sums[:1], rw.mis(), rw.evaluate_all)


def test_ratios_that_many_rows_share_are_clipped_at_the_next_ones() -> None:
    n = 300
    actions = (np.arange(n) % 3)[:, None]
    log = rw.log_from_arrays(np.zeros((n, 2), int), actions, actions * 1.0, np.full((n, 1), 1 / 3))
    moved = changes(log, rw.TablePolicy([[0.1, 0.4, 0.5]]), "is")
    assert moved["ratios clipped at 1.2"] == pytest.approx((0.3 * 0 + 1.2 * 1 + 1.2 * 2) / 3)
    below_one = changes(log, rw.TablePolicy([[0.1, 0.3, 0.6]]), "is")
    assert not any("clipped" in change for change in below_one)


def test_what_could_not_be_changed_is_said() -> None:
    log = WORLD.simulate(60, 0)
    said = {
        name: rw.evaluate(log, WORLD.target, name).sensitivity().untried
        for name in ("mis", "dm", "mdr", "wis")
    }
    assert said["mis"] == "no coarser states are known: the state is one column, without bins"
    assert said["dm"] == "other states are not tried with dm"
    assert "with mdr" in said["mdr"]
    assert said["wis"] == ""


def test_ratios_that_cannot_be_clipped_are_said() -> None:
    """Two ratios, one of them below 1: clipping the other at 1 would say nothing."""
    rng = np.random.default_rng(0)
    actions = rng.integers(0, 2, (60, 1))
    log = rw.log_from_arrays(
        np.zeros((60, 2), int), actions, rng.normal(size=(60, 1)), np.full((60, 1), 0.5)
    )
    found = rw.evaluate(log, rw.TablePolicy([[0.4, 0.6]]), "mis").sensitivity()
    assert found.untried.startswith(
        "clipping is not tried: no ratio is between 1 and the largest; "
    )
    assert not any("clipped" in row.change for row in found.changes)


@pytest.mark.parametrize("columns", [["x"], ["x", "y"]])
def test_made_states_are_split_at_the_medians_of_what_they_were_made_of(columns: list[str]) -> None:
    """The same as reading the log again with cells that end there."""
    rng = np.random.default_rng(3)
    n, horizon = 400, 3
    rows = {
        "episode": np.repeat(np.arange(n), horizon),
        "step": np.tile(np.arange(horizon), n),
        "x": rng.normal(size=n * horizon),
        "y": rng.normal(size=n * horizon),
        "action": rng.integers(0, 2, n * horizon),
        "behavior_prob": np.full(n * horizon, 0.5),
    }
    rows["reward"] = rows["x"] * rows["action"]
    rows["pi"] = np.where((rows["x"] > 0) == rows["action"], 0.8, 0.2)
    coarse = rw.Grid([[0.0]] * len(columns))
    log = rw.read_log(pa.table(rows), state=columns, abstraction=coarse)
    target = rw.ColumnPolicy("pi")
    made = np.stack([rows[c] > 0 for c in columns], axis=1)

    def by_hand(values: np.ndarray) -> np.ndarray:
        cells = values > 0
        kinds = np.unique(cells, axis=0)
        finer = np.zeros(values.shape, int)
        for kind in kinds:
            inside = (made == kind).all(axis=1)
            logged = np.stack([rows[c][inside] for c in columns], axis=1)
            # the lower of two in the middle
            middle = np.sort(logged, axis=0)[(len(logged) - 1) // 2]
            here = (cells == kind).all(axis=1)
            finer[here] = 2 * kind + (values[here] > middle)
        return finer

    fine = rw.read_log(pa.table(rows), state=columns, abstraction=by_hand)
    found = changes(log, target, "mis")
    expected = rw.evaluate(fine, target, "mis").value
    assert found["states split at their medians"] == pytest.approx(expected, rel=1e-12)
    assert abs(expected - rw.evaluate(log, target, "mis").value) > 1e-6
    plain = rw.read_log(pa.table({**rows, "x": made[:, 0].astype(int)}), state="x")
    assert "states split at their medians" not in changes(plain, target, "mis")
