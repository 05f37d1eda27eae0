"""The coverage study: its worlds, faults, cells, verdicts and tables."""

from __future__ import annotations

import csv
import inspect
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reweigh_studies.coverage import study as coverage
from reweigh_studies.coverage import tables
from reweigh_studies.coverage.cells import BestCell, TrustCell, equal_policies
from reweigh_studies.coverage.faults import FAULTS, SHARE, Grid
from reweigh_studies.coverage.measures import (
    BOOTSTRAPS,
    JACKKNIFE,
    LEVEL,
    LEVELS,
    SUMS,
    Measure,
    column,
)
from reweigh_studies.coverage.verdicts import REFUSED, gate_levels, verdicts
from reweigh_studies.coverage.worlds import GROUPS, SIZES, WORLDS, installed

import reweigh as rw
from reweigh.log.states import END, HIDDEN
from reweigh.paper import sweep
from reweigh.paper.cells import CellResult, Setting, in_order, run_replicates
from reweigh.paper.sweep import Backend
from reweigh.trust.gates import LIMITS, Limit
from reweigh.worlds import RandomWorld

RNG = np.random.default_rng


# Worlds


def test_there_are_enough_worlds_of_every_group_in_both_halves() -> None:
    assert len(WORLDS) >= 40
    halves = Counter(world.half for world in WORLDS.values())
    assert min(halves.values()) >= 0.4 * len(WORLDS)
    for group in GROUPS:
        assert {w.half for w in WORLDS.values() if w.group == group} == {"setting", "checking"}
    assert {world.group for world in WORLDS.values()} == set(GROUPS)
    assert SIZES == (50, 200, 1000, 5000)


def test_the_half_follows_from_the_name_alone() -> None:
    world = WORLDS["default"]
    assert replace(world, group="rare", base=RandomWorld(99)).half == world.half
    assert len({replace(world, name=f"w{k}").half for k in range(20)}) == 2


def test_half_of_the_random_worlds_have_a_better_target() -> None:
    drawn = [w for w in WORLDS.values() if w.group == "well" and isinstance(w.base, RandomWorld)]
    better = [w for w in drawn if w.base.tilt is not None]  # type: ignore[union-attr]
    assert abs(len(drawn) - 2 * len(better)) <= 1
    for world in better:
        target, behavior = world.truth()
        assert target > behavior
    gains = [(w.truth()[0] - w.truth()[1]) / abs(w.truth()[1]) for w in better]
    assert min(gains) > 0.04


@pytest.mark.parametrize("name", [n for n, w in WORLDS.items() if installed(w)])
def test_every_world_makes_logs(name: str) -> None:
    world = WORLDS[name]
    log, target = world.log(60, RNG(0))
    assert log.n_episodes == 60
    assert np.all(np.isfinite(world.truth()))
    [result] = rw.evaluate_all(log, target, ["is"])
    # with two actions of which one is never taken the behavior is deterministic
    assert isinstance(result, rw.Estimate) == (name != "none-two-actions")
    if world.reading == "fitted":
        assert log.behavior_source != "logged"


def test_worlds_without_overlap_have_none() -> None:
    for name in ("none", "none-two-actions", "none-long"):
        world = WORLDS[name].world()
        mu, pi = world.behavior_array, world.target_array  # type: ignore[attr-defined]
        assert np.all(mu[..., 0] == 0)
        assert np.all(pi[..., 0] > 0.05)


def test_readings_that_leave_something_out() -> None:
    coarse, _ = WORLDS["coarse"].log(50, RNG(1))
    true = WORLDS["coarse"].world().simulate(50, RNG(1))
    assert len(coarse.states) == 3
    assert np.array_equal(coarse.steps.state, true.steps.state // 2)
    assert np.array_equal(coarse.steps.reward, true.steps.reward)
    naive, _ = WORLDS["modelfail-naive"].log(50, RNG(1))
    assert not naive.has_hidden
    assert len(naive.states) == 2
    blind, _ = WORLDS["fate"].log(50, RNG(1))
    assert len(blind.states) == 1


# Faults


@pytest.fixture(scope="module")
def grid() -> Grid:
    return Grid.of(WORLDS["default"].world().simulate(400, RNG(2)))


def test_a_grid_is_the_log(grid: Grid) -> None:
    for name in ("default", "ending", "hidden"):
        world = WORLDS[name].world()
        log = world.simulate(80, RNG(3))
        back = Grid.of(log).log()
        column_policy = rw.ColumnPolicy("target_prob")
        for estimator in ("mis", "is"):
            [one] = rw.evaluate_all(log, world.target, [estimator])
            [other] = rw.evaluate_all(back, column_policy, [estimator])
            assert isinstance(one, rw.Estimate)
            assert isinstance(other, rw.Estimate)
            assert one.value == pytest.approx(other.value, rel=1e-12)
        assert np.array_equal(log.steps.episode, back.steps.episode)
    with pytest.raises(rw.UsageError, match="discrete actions"):
        Grid.of(WORLDS["timevarying-16"].world().simulate(5, RNG(0)))


def test_faults_of_propensities(grid: Grid) -> None:
    low = FAULTS["propensities-low"](grid, RNG(0))
    assert np.allclose(low.behavior_prob, 0.9 * grid.behavior_prob)
    noisy = FAULTS["propensities-noisy"](grid, RNG(0))
    factor = noisy.behavior_prob / grid.behavior_prob
    assert set(np.round(factor.ravel(), 9)) == {0.9, 1.1}
    for s in range(4):
        for a in range(3):
            mine = (grid.states[:, :-1] == s) & (grid.actions == a)
            assert len(set(np.round(factor[mine], 9))) == 1
    swapped = FAULTS["swapped"](grid, RNG(0))
    assert np.array_equal(swapped.behavior_prob, grid.target_prob)
    assert np.array_equal(swapped.target_prob, grid.behavior_prob)
    logs = FAULTS["logarithms"](grid, RNG(0)).behavior_prob
    order = np.argsort(grid.behavior_prob.ravel())
    assert np.all(np.diff(logs.ravel()[order]) >= -1e-12)  # as logarithms are: in the same order
    assert logs.min() > 0
    assert logs.max() <= 1


def test_faults_of_rows_and_states(grid: Grid) -> None:
    rows = FAULTS["rows-shuffled"](grid, RNG(0))
    assert rows.states.shape == grid.rewards.shape  # what followed is not known any more
    packed = [
        {tuple(x) for x in np.stack([g.states[i, :5], g.actions[i], g.rewards[i]], axis=1)}
        for g in (grid, rows)
        for i in range(10)
    ]
    assert packed[:10] == packed[10:]
    assert np.mean(rows.states == grid.states[:, :5]) < 0.8
    states = FAULTS["states-shuffled"](grid, RNG(0))
    assert np.array_equal(np.sort(states.states, axis=0), np.sort(grid.states, axis=0))
    assert np.array_equal(states.actions, grid.actions)
    ended = Grid.of(WORLDS["ending"].world().simulate(100, RNG(2)))
    for name in ("rows-shuffled", "states-shuffled"):
        log = FAULTS[name](ended, RNG(1)).log()
        assert np.array_equal(np.sort(log.steps.lengths), np.sort(ended.lengths))
    coarse = FAULTS["coarse"](grid, RNG(0))
    assert set(np.unique(coarse.states)) == {0, 1}


def test_faults_of_episodes(grid: Grid) -> None:
    drift = FAULTS["drift"](grid, RNG(0))
    assert np.array_equal(drift.rewards[:200], grid.rewards[:200])
    assert np.array_equal(drift.rewards[200:], grid.rewards[200:] / 2)
    twice = FAULTS["duplicates"](grid, RNG(0))
    assert len(twice.rewards) == round((1 + SHARE) * 400)
    assert len(np.unique(twice.rewards, axis=0)) == len(np.unique(grid.rewards, axis=0))
    kept = FAULTS["selection"](grid, RNG(0))
    assert len(kept.rewards) == round((1 - SHARE) * 400)
    assert kept.returns.min() >= np.sort(grid.returns)[round(SHARE * 400)] - 1e-12
    assert FAULTS["clean"](grid, RNG(0)) is grid


def test_cut_off_episodes_are_shorter_and_lose_nothing_else() -> None:
    whole = Grid.of(WORLDS["ending"].world().simulate(2000, RNG(2)))
    cut = FAULTS["cut-off"](whole, RNG(0))
    assert np.array_equal(cut.truncated, cut.lengths < whole.lengths)
    assert cut.lengths.min() >= 1
    could = whole.lengths > 1  # of one row nothing can be left
    assert not cut.truncated[~could].any()
    assert cut.truncated[could].mean() == pytest.approx(SHARE, abs=4 * 0.4 / math.sqrt(could.sum()))
    log, before = cut.log(), whole.log()
    assert log.n_truncated == cut.truncated.sum()
    left = before.steps.step < cut.lengths[before.steps.episode[before.steps.episode_index]]
    for name in ("state", "action", "reward", "behavior_prob"):
        kept, was = getattr(log.steps, name), getattr(before.steps, name)[left]
        assert np.array_equal(np.sort(kept), np.sort(was))
    ended = whole.lengths < log.horizon
    assert np.array_equal(np.sort(log.steps.ending == END), np.sort(ended & ~cut.truncated))


def test_luck_is_shared_by_an_episode_and_moves_nothing_else(grid: Grid) -> None:
    lucky = FAULTS["fate"](grid, RNG(0))
    luck = lucky.rewards - grid.rewards
    assert np.allclose(luck, luck[:, :1])
    assert luck[:, 0].std() == pytest.approx(grid.rewards.std(), rel=4 / math.sqrt(2 * 400))
    assert abs(luck[:, 0].mean()) < 4 * grid.rewards.std() / math.sqrt(400)
    for name in ("states", "actions", "behavior_prob", "target_prob", "lengths", "truncated"):
        assert getattr(lucky, name) is getattr(grid, name)


def test_states_that_are_renamed_move_no_estimate_by_step() -> None:
    """Names differ between the steps, and estimators that look at steps one by one do not mind."""
    grid = Grid.of(WORLDS["steady"].world().simulate(400, RNG(2)))
    renamed = FAULTS["states-renamed"](grid, RNG(0))
    half = grid.rewards.shape[1] // 2
    assert np.array_equal(renamed.states[:, :half], grid.states[:, :half])
    pairs = set(zip(grid.states[:, half:].ravel(), renamed.states[:, half:].ravel(), strict=True))
    assert pairs == {(s, (s + 1) % 4) for s in range(4)}
    target = rw.ColumnPolicy("target_prob")
    asked = ["mis", "dm", "wis", "mis-pooled"]
    before, after = (rw.evaluate_all(g.log(), target, asked) for g in (grid, renamed))
    off = [abs(b.value / a.value - 1) for a, b in zip(before, after, strict=True)]  # type: ignore[union-attr]
    assert max(off[:3]) < 1e-12
    assert off[3] > 1e-4


def test_states_that_are_lost_are_hidden(grid: Grid) -> None:
    lost = FAULTS["states-lost"](grid, RNG(0))
    gone = lost.states == HIDDEN
    assert gone.mean() == pytest.approx(SHARE, abs=4 * 0.4 / math.sqrt(gone.size))
    assert np.array_equal(lost.states[~gone], grid.states[~gone])
    log = lost.log()
    assert log.has_hidden
    assert np.array_equal(log.steps.reward, grid.log().steps.reward)


def test_the_action_that_is_missing_is_the_targets(grid: Grid) -> None:
    kept = FAULTS["action-missing"](grid, RNG(0))
    left, all_actions = set(kept.actions[:, 0]), set(grid.actions[:, 0])
    [gone] = all_actions - left
    assert np.array_equal(kept.rewards, grid.rewards[grid.actions[:, 0] != gone])
    world = WORLDS["default"].world()
    first = world.initial @ world.target_array[0]  # type: ignore[attr-defined]
    assert gone == np.argmax(first)


@pytest.mark.parametrize(
    ("fault", "gate", "world", "estimator"),
    [
        ("swapped", "propensities", "long-better", "mis"),
        ("logarithms", "propensities", "long-better", "mis"),
        ("propensities-low", "propensities", "long-better", "mis"),
        ("drift", "drift", "long-better", "mis"),
        ("clean", "history", "modelfail-naive", "mis"),  # its hidden state is read as a state
        ("action-missing", "support", "default", "mis"),
        ("action-missing", "marginal support", "default", "wis"),
        ("action-missing", "fitted values", "default", "dr"),
        ("action-missing", "unseen actions", "default", "mdr"),
        ("states-lost", "hidden states", "default", "dm"),
        ("cut-off", "cut-off episodes", "ending", "mis"),
        ("cut-off", "cut-off episodes", "ending", "mis-sums"),
        ("fate", "dependence", "default", "mis-sums"),
        ("states-renamed", "steadiness", "steady", "mis-pooled"),
        ("states-renamed", "stationarity", "steady", "ssd-is"),
        ("states-lost", "hidden policies", "default", "dr"),
        ("outlier", "decisive episodes", "default", "dr"),
        ("outlier", "decisive episodes", "default", "mis"),
        ("swapped", "propensities", "long-better", "dm"),
    ],
)
def test_gates_notice_what_they_are_for(fault: str, gate: str, world: str, estimator: str) -> None:
    cell = TrustCell(world, 1000, fault, Measure(("auto",), quick=()))
    _, result = run_replicates(cell, [estimator, "log"], 0, range(3))
    [row] = [r for r in tables.gate_rows(cell, result) if r["gate"] == gate]
    assert row["amber"] + row["red"] == 1.0
    clean = replace(cell, fault="clean")
    if gate in ("unseen actions", "cut-off episodes", "dependence", "decisive episodes") or (
        gate.startswith("hidden")
    ):
        _, result = run_replicates(clean, [estimator, "log"], 0, range(3))
        [row] = [r for r in tables.gate_rows(clean, result) if r["gate"] == gate]
        assert row["amber"] + row["red"] == 0.0


# Cells


def test_intervals_are_those_of_the_estimate() -> None:
    """Jackknife and bootstraps are made for all estimators at once, to the same numbers."""
    measure = Measure(("analytic", "cluster", JACKKNIFE, *BOOTSTRAPS))
    log, target = WORLDS["tiny"].log(60, RNG(4))
    row = measure.row(log, target, coverage.ESTIMATORS, seed=7)
    for result in rw.evaluate_all(log, target, list(coverage.ESTIMATORS)):
        assert isinstance(result, rw.Estimate)
        name = result.estimator
        assert row[column(name, "value")] == pytest.approx(result.value, rel=1e-12)
        for method in measure.methods:
            interval = result.interval(LEVEL, method, replicates=399, seed=7)
            assert interval is not None
            for end in ("low", "high"):
                found = row[column(name, method, end)]
                assert found == pytest.approx(getattr(interval, end), rel=1e-7), (name, method)


def test_the_logged_mean_is_a_contender() -> None:
    log, target = WORLDS["tiny"].log(50, RNG(4))
    row = Measure(gates=False).row(log, target, ["behavior"], seed=0)
    returns = Grid.of(log).returns
    assert row["behavior/value"] == pytest.approx(returns.mean())
    assert row["behavior/error"] == pytest.approx(returns.std(ddof=1) / math.sqrt(50))


def test_the_default_method_is_that_of_interval() -> None:
    default = inspect.signature(rw.Estimate.interval).parameters["method"].default
    assert default == tables.DEFAULT


def test_refusals_are_kept_by_code() -> None:
    cell = TrustCell("timevarying-16", 50, measure=Measure(quick=()))
    _, result = run_replicates(cell, ["mis", "dm", "log"], 0, range(2))
    assert result.refused == {"dm/value": {"continuous-actions": 2}}
    assert result.values["dm/value"] == [None, None]
    rows = [r for r in tables.coverage_rows(cell, result) if r["method"] == tables.DEFAULT]
    assert {(row["estimator"], row["refused"]) for row in rows} == {("mis", 0.0), ("dm", 1.0)}
    assert [row["coverage"] for row in rows if row["estimator"] == "dm"] == [None]


def test_no_gate_is_told_of_an_estimator_that_always_refuses() -> None:
    cell = TrustCell("ending", 50, "cut-off", Measure(("auto",), quick=()))
    _, result = run_replicates(cell, ("mis", "wis", "log"), 0, range(2))
    rows = tables.gate_rows(cell, result)
    assert [row["gate"] for row in rows if row["estimator"] == "wis"] == ["verdict"]
    assert {"cut-off episodes", "history"} < {r["gate"] for r in rows if r["estimator"] == "mis"}


STUDY = {
    TrustCell("tiny", 50): ("mis", "is", "log", "behavior"),
    TrustCell("tiny", 50, "drift", Measure(("auto",), quick=())): ("mis", "log"),
    BestCell(120, policies=3): ("mis",),
}


def test_cells_run_through_the_sweep_and_resume(tmp_path: Path) -> None:
    setting = Setting(6, seed=2)
    run = sweep.run(STUDY, tmp_path / "one", setting, backend=Backend("sequential"))
    sweep.run(STUDY, tmp_path / "two", setting, backend=Backend("loky", 2))
    files = sorted(path.name for path in (tmp_path / "one").glob("*.gz"))
    assert files == ["best-of-3-n120.json.gz", "tiny-n50-drift.json.gz", "tiny-n50.json.gz"]
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    again = sweep.run(STUDY, tmp_path / "one", setting, resume=True)
    assert set(again.existing) == set(STUDY)
    for cell in STUDY:
        assert again.results[cell].values == run.results[cell].values
    more = {TrustCell("tiny", 50): ("mis", "wis", "log")}  # another estimator, later
    added = sweep.run(more, tmp_path / "one", setting, backend=Backend("sequential"), resume=True)
    [result] = added.results.values()
    assert {"mis", "is", "wis", "behavior", "log"} == result.estimators
    assert result.values["mis/value"] == run.results[TrustCell("tiny", 50)].values["mis/value"]


def test_more_replicates_go_on_from_fewer(tmp_path: Path) -> None:
    """Byte for byte what a run of that many would have written."""
    cells = {TrustCell("tiny", 50, measure=Measure(("auto",), quick=())): ("mis", "log")}
    backend = Backend("sequential")

    def run(folder: str, replicates: int) -> bytes:
        sweep.run(
            cells,
            tmp_path / folder,
            Setting(replicates, 0),
            backend=backend,
            resume=True,
            extend=True,
        )
        [path] = (tmp_path / folder).glob("*.gz")
        return path.read_bytes()

    few, whole = run("a", 4), run("b", 10)
    assert few != whole
    assert run("a", 10) == whole
    assert run("a", 10) == whole  # nothing is left to do
    with pytest.raises(rw.UsageError, match="replicates was 10 and is 4"):
        run("a", 4)  # what was computed is not thrown away


def test_a_changed_world_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = TrustCell("tiny", 50)
    sweep.run({cell: ("mis",)}, tmp_path, Setting(2), backend=Backend("sequential"))
    changed = replace(WORLDS["tiny"], base=RandomWorld(3))
    monkeypatch.setitem(WORLDS, "tiny", changed)
    with pytest.raises(rw.UsageError, match="another configuration"):
        sweep.run({cell: ("mis",)}, tmp_path, Setting(2), resume=True)


def test_parts_of_a_cell_that_lack_a_column() -> None:
    """A jackknife that no replicate of a part could make."""
    one = CellResult({"a": [1.0, 2.0]}, {"b": {"x": 2}})
    other = CellResult({"a": [3.0], "b": [4.0]}, {})
    joined = in_order([(range(2, 3), other), (range(2), one)])
    assert joined.values == {"a": [1.0, 2.0, 3.0], "b": [None, None, 4.0]}
    assert joined.refused == {"b": {"x": 2}}


def test_equal_policies_are_equal() -> None:
    world, policies = equal_policies(3)
    truth = float(world.value())
    assert BestCell(50, 3).truth == truth
    values = [world.state_values(np.asarray(p)) for p in _arrays(policies, world)]
    assert [float(world.initial @ V[0]) for V in values] == pytest.approx([truth] * 3)
    assert len({p.fingerprint() for p in policies.values()}) == 3


def _arrays(policies: dict[str, rw.TablePolicy], world: rw.worlds.TabularMDP) -> list[np.ndarray]:
    log = world.simulate(2000, RNG(0))
    found = []
    for policy in policies.values():
        pi = np.zeros((world.horizon, world.n_states, world.n_actions))
        steps = log.steps
        pi[steps.step, steps.state, steps.action] = policy.probabilities(log)
        assert np.allclose(pi.sum(axis=2), 1)
        found.append(pi)
    return found


# Verdicts


@pytest.mark.parametrize(
    ("world", "n", "fault"),
    [("default", 50, "clean"), ("rare-1", 200, "clean"), ("none", 50, "clean"),
     ("ending", 200, "clean"), ("hidden", 200, "clean"), ("modelfail-naive", 200, "clean"),
     ("many-states", 50, "clean"), ("ending", 200, "cut-off"), ("default", 200, "fate"),
     ("steady", 200, "states-renamed")],
)  # fmt: skip
def test_verdicts_at_once_are_those_of_the_library(world: str, n: int, fault: str) -> None:
    measure = Measure(("auto",), quick=())
    cell = TrustCell(world, n, fault, measure)
    asked = list(coverage.ESTIMATORS)
    if world in coverage.POOLED_IN["ssd-is"]:
        asked.append("ssd-is")
    rows, levels = [], []
    for seed in range(3):
        log, target = cell.log(*np.random.SeedSequence(seed).spawn(2))
        rows.append(measure.row(log, target, (*asked, SUMS, "log"), seed))
        results = [*rw.evaluate_all(log, target, asked)]
        results += rw.evaluate_all(rw.moments(log, target), target, ["mis"])
        levels.append([LEVELS.index(r.verdict.level) if isinstance(r, rw.Estimate) else REFUSED
                       for r in results])  # fmt: skip
    columns = {
        name: np.array([_number(row.get(name)) for row in rows])
        for name in {name for row in rows for name in row}
    }
    for name, expected in zip((*asked, SUMS), zip(*levels, strict=True), strict=True):
        stored = np.nan_to_num(columns.get(column(name, "level"), np.full(3, np.nan)), nan=REFUSED)
        assert tuple(stored) == expected, name
        assert tuple(verdicts(columns, name, n)) == expected, name


def test_sums_that_tell_of_dependence_have_no_interval() -> None:
    cell = TrustCell("default", 200, "fate", Measure(("auto",), quick=()))
    _, result = run_replicates(cell, ("mis", SUMS, "log"), 0, range(3))
    rows = {(r["gate"], r["estimator"]): r for r in tables.gate_rows(cell, result)}
    assert rows["dependence", SUMS]["amber"] == 1.0
    assert rows["dependence", SUMS]["coverage"] is None
    assert rows["support", "mis"]["coverage"] is not None
    assert ("dependence", "mis") not in rows
    sums, log = (result.values[column(name, "value")] for name in (SUMS, "mis"))
    assert sums == pytest.approx(log)


def test_what_sums_cannot_tell_is_dependence_and_its_reason_is_told_once() -> None:
    found = gate_levels(
        {
            column(SUMS, "value"): np.array([1.0, 1.0, 1.0, 1.0, math.nan]),
            column(SUMS, "gate", "dependence"): np.array([0.2, 0.0, math.nan, 0.0, math.nan]),
            column(SUMS, "auto", "low"): np.array([math.nan, 0.5, math.nan, math.nan, math.nan]),
        },
        SUMS,
        200,
    )
    assert found["dependence"].tolist() == [1, 0, 1, 0, 0]  # the last one was refused
    assert found["interval"].tolist() == [0, 0, 0, 1, 1]


def _number(found: object) -> float:
    return found if isinstance(found, float) else math.nan


def test_other_limits_need_no_other_run() -> None:
    cell = TrustCell("tiny", 50, measure=Measure(("auto",), quick=()))
    _, result = run_replicates(cell, ("mis", "log"), 0, range(4))
    columns = tables.columns_of(result)
    assert set(verdicts(columns, "mis", 50)) == {1}  # too few episodes for green
    few = {
        "effective size": Limit(10, 5, above=False),
        "decisive episodes": Limit(2, 1, above=False),
    }
    loose = LIMITS | few
    assert set(verdicts(columns, "mis", 50, loose)) == {0}
    rows = tables.coverage_rows(cell, result, loose)
    assert [row["green"] for row in rows] == [1.0]


# Tables


def made(values: dict[str, list[float | None]]) -> CellResult:
    return CellResult(values, {})


def test_coverage_of_a_made_up_cell() -> None:
    cell = TrustCell("tiny", 50)
    truth, behavior = cell.of.truth()
    low = [truth - 1, truth - 1, truth + 1, truth - 3, None]
    high = [truth + 1, truth + 1, truth + 3, truth - 1, None]
    values = {
        "mis/value": [truth, truth + 0.5, truth + 2, truth - 2, None],
        "mis/effective size": [120.0, 50.0, 120.0, 120.0, None],
        "mis/apart from wis": [0.0, 0.0, 0.0, 0.0, None],
        "mis/gate effective size": [120.0, 50.0, 120.0, 20.0, None],
        "mis/analytic low": low,
        "mis/analytic high": high,
        "mis/analytic df": [1e9] * 4 + [None],
    }
    [row] = tables.coverage_rows(cell, made(values))
    assert row["coverage"] == 0.5
    assert row["mc_error"] == pytest.approx(math.sqrt(2.5 * 2.5 / 125))
    assert (row["truth_below"], row["truth_above"]) == (0.25, 0.25)
    assert row["mean_width"] == pytest.approx(2.0)
    sd = np.std([0, 0.5, 2, -2], ddof=1)
    assert row["se_over_sd"] == pytest.approx(1 / 1.959964 / sd, rel=1e-5)
    assert row["bias_over_sd"] == pytest.approx(0.125 / sd)
    assert row["refused"] == pytest.approx(0.2)
    assert (row["green"], row["amber"], row["red"]) == (0.4, 0.2, 0.2)
    assert (row["green_replicates"], row["coverage_green"]) == (2, 0.5)
    assert (row["amber_replicates"], row["coverage_amber"]) == (1, 1.0)
    assert (row["v_target"], row["v_behavior"]) == (truth, behavior)


def test_bins_add_up() -> None:
    cell = TrustCell("tiny", 50)
    truth, _ = cell.of.truth()
    values: dict[str, list[float | None]] = {
        "mis/value": [truth] * 4,
        "mis/effective size": [60.0] * 4,
        "mis/apart from wis": [0.0] * 4,
        "mis/gate effective size": [60.0, 60.0, 400.0, 30.0],
        "mis/auto low": [truth - 1, truth + 1, truth - 1, truth - 1],
        "mis/auto high": [truth + 1, truth + 2, truth + 1, truth + 1],
    }
    counts = tables.bin_counts(cell, made(values))
    rows = {(r["from"], r["to"]): r for r in tables.bin_rows([*counts, *counts])}
    assert rows[50.0, 70.0]["replicates"] == 4
    assert rows[50.0, 70.0]["coverage"] == 0.5
    assert rows[20.0, 30.0]["replicates"] == 2  # a limit belongs to the bin below it
    assert rows[300.0, 500.0]["coverage"] == 1.0


def test_a_monte_carlo_error_is_never_nothing() -> None:
    assert tables.mc_error(950, 1000) == pytest.approx(math.sqrt(0.95 * 0.05 / 1000), rel=0.01)
    assert tables.mc_error(1000, 1000) > 0
    assert tables.share(np.zeros(0, bool)) == (None, None)


# The plan


def test_the_plan_is_what_the_study_promises() -> None:
    at_hand = [name for name, world in WORLDS.items() if installed(world)]
    parts = {part.name: part for part in coverage.plan(at_hand)}
    assert parts["coverage"].replicates == 1000
    worlds = {cell.world for cell in parts["coverage"].cells if isinstance(cell, TrustCell)}
    assert len(worlds) >= 40
    assert len(parts["coverage"].cells) == 4 * len(worlds)
    bootstrap = [cell for cell in parts["bootstrap"].cells if isinstance(cell, TrustCell)]
    assert len({cell.world for cell in bootstrap}) == 10
    assert max(cell.n for cell in bootstrap) == 1000
    assert parts["bootstrap"].replicates == 300
    assert {cell.measure.resamples for cell in bootstrap} == {399}
    assert set(parts["bootstrap"].cells.values()) == {coverage.ESTIMATORS}
    faults = [cell for cell in parts["faults"].cells if isinstance(cell, TrustCell)]
    assert {cell.fault for cell in faults} == set(FAULTS)
    asked = {name for part in parts.values() for names in part.cells.values() for name in names}
    assert {*coverage.ESTIMATORS, "ssd-is", SUMS, "log", "behavior"} == asked
    names = [cell.name for part in parts.values() for cell in part.cells if part.name == "coverage"]
    assert len(set(names)) == len(names)


def test_no_row_of_clean_logs_is_made_by_two_parts() -> None:
    parts = coverage.cells_of(["steady"], [50])
    [told] = [cell for cell in parts["faults"] if cell.name == "steady-n50"]
    assert not set(parts["faults"][told]) & set(coverage.JUDGED)
    both = coverage.Tables()
    for name in ("coverage", "faults"):
        [cell] = [cell for cell in parts[name] if cell.name == "steady-n50"]
        _, result = run_replicates(cell, parts[name][cell], 0, range(2))
        both.add(coverage.KEEP[name](cell, result))
    keys = [(row["gate"], row["estimator"]) for row in both.gates]
    assert len(set(keys)) == len(keys)
    own = coverage.ALSO | coverage.POOLING
    assert {(gate, name) for name, gates in own.items() for gate in (*gates, "verdict")} == {
        key for key in keys if key[1] in own
    }


def test_a_slice_of_the_plan() -> None:
    [part] = coverage.plan(["tiny"], parts=["coverage"], replicates=5)
    assert part.replicates == 5
    assert {cell.world for cell in part.cells if isinstance(cell, TrustCell)} == {"tiny"}
    with pytest.raises(rw.UsageError, match=r"there is no world 'tinny'.*'tiny'"):
        coverage.plan(["tinny"])
    with pytest.raises(rw.UsageError, match="there is no part 'faultz'"):
        coverage.plan(parts=["faultz"])


def test_tables_on_disk(tmp_path: Path) -> None:
    parts = [
        replace(part, cells=dict(list(part.cells.items())[:2]))
        for part in coverage.plan(["tiny-better"], replicates=4)
        if part.name in ("coverage", "faults")
    ]
    found, failed = coverage.run(parts, tmp_path, backend=Backend("sequential"))
    assert failed == {}
    again, there, of = coverage.finished(parts, tmp_path)
    assert (there, of) == (4, 4)
    found.write(tmp_path / "a")
    again.write(tmp_path / "b")
    for name in ("coverage", "gates", "best_of_many", "bins", "worlds"):
        text = (tmp_path / "a" / f"{name}.csv").read_text()
        assert text == (tmp_path / "b" / f"{name}.csv").read_text()
    with (tmp_path / "a" / "coverage.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert tuple(rows[0]) == tables.COVERAGE
    assert {row["estimator"] for row in rows} == {*coverage.ESTIMATORS, "behavior"}
    assert {row["method"] for row in rows} == {"auto", "analytic", "cluster", "jackknife"}


def test_some_sizes_can_be_run_first() -> None:
    cheap = coverage.plan(["default", "rare-5"], sizes=[50, 200])
    assert {cell.n for part in cheap for cell in part.cells} == {50, 200}
    with pytest.raises(rw.UsageError, match="no logs of 300 episodes"):
        coverage.plan(sizes=[300])
