"""The study of memory: its worlds, the rule for many logs at once, the tables and the page."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import memory_study
import numpy as np
import pytest
from reweigh_studies.by_world.study import HALVES
from reweigh_studies.coverage.goals import pick
from reweigh_studies.coverage.measures import VALUE, column
from reweigh_studies.coverage.tables import columns_of
from reweigh_studies.coverage.worlds import installed
from reweigh_studies.memory import worlds
from reweigh_studies.memory.cells import SIZE, MemoryCell, P, name_of
from reweigh_studies.memory.page import MemoryStudy, goals, page
from reweigh_studies.memory.rule import Tried, chosen, ratio_of_rmse, taken_of
from reweigh_studies.memory.study import MEMORY
from reweigh_studies.memory.tables import AUTO, rows_of
from reweigh_studies.memory.worlds import KINDS, WORLDS, half_of

import reweigh as rw
from reweigh.errors import UsageError
from reweigh.estimate.memory_rows import LEAST_SIZE
from reweigh.evaluation.memories import ALIKE
from reweigh.paper.cells import CellResult, run_replicates, seed_sequence

DOCS = Path(__file__).parents[2] / "docs" / "trust"
pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")


# ---- worlds ------------------------------------------------------------------------------------


def test_there_are_enough_worlds_and_each_kind_is_in_both_halves() -> None:
    assert len(WORLDS) >= 16
    for kind in KINDS:
        halves = [half_of(name) for name, world in WORLDS.items() if world.group == kind]
        assert halves.count("setting") == halves.count("reporting")
    assert {world.group for world in WORLDS.values()} == set(KINDS)


@pytest.mark.parametrize(
    ("world", "shown"),
    [
        (worlds.delayed(2, 5), 2),
        (worlds.treated_twice(4), 1),
        (worlds.second_order(1, 4), 3),
        (worlds.types(3, "rewards", 4), 3),
        (worlds.types(5, "transitions", 4), 3),
        (worlds.binned(2, 4, "x"), 2),
        (worlds.binned(4, 3, "cell"), 4),
    ],
)
def test_values_are_those_of_the_logs(world: worlds.Seen, shown: int) -> None:
    """Of the behavior the mean return, of the target that of IS, which uses no state."""
    log = world.simulate(40_000, 1)
    assert len(log.states) == shown
    by_behavior = np.bincount(log.steps.episode_index, log.steps.reward)
    error = by_behavior.std() / math.sqrt(len(by_behavior))
    assert abs(by_behavior.mean() - float(world.behavior_value())) < 4 * error
    found = rw.evaluate(log, world.target, rw.is_())
    assert found.standard_error is not None
    assert abs(found.value - float(world.value())) < 4 * found.standard_error
    assert abs(float(world.value()) - float(world.behavior_value())) > 4 * error


def test_a_delayed_action_pays_when_it_should() -> None:
    """Σ_t 0.3 Pr(s_t = 1) + Σ_{t ≥ d} Pr(a_{t-d} = 1), step by step."""
    d, H, up, value = 3, 7, 0.5, 0.0
    acts = []
    for t in range(H):
        acts.append((1 - up) * 0.7 + up * 0.75)
        value += 0.3 * up + (acts[t - d] if t >= d else 0.0)
        up = 0.3 + 0.4 * acts[t]
    assert float(worlds.delayed(d, H).value()) == pytest.approx(value, rel=1e-12)


# ---- the rule ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("world", "n"), [("delayed-3", 1000), ("random", 200)])
def test_the_rule_chooses_what_evaluate_chooses(world: str, n: int) -> None:
    cell, logs = MemoryCell(world, n), range(3)
    _, result = run_replicates(cell, cell.estimators, 7, logs)
    found = chosen(cell, columns_of(result), LEAST_SIZE, ALIKE)
    for k in logs:
        rng = np.random.default_rng(seed_sequence(cell, 7, k))
        log, target = cell.of.log(n, rng)
        one = rw.evaluate(log, target, rw.mis(memory="auto"))
        assert one.memories is not None
        assert found[k] == one.memories.memory
        of_it = columns_of(result)[column(name_of(int(found[k])), VALUE)][k]
        assert of_it == pytest.approx(one.value, rel=1e-12)


def columns(sizes: dict[int, float], p: dict[tuple[int, int], float]) -> dict[str, np.ndarray]:
    found = {}
    for k, size in sizes.items():
        found[column(name_of(k), VALUE)] = np.array([float(k)])
        found[column(name_of(k), SIZE)] = np.array([size])
    for (k, longer), value in p.items():
        found[column(name_of(k), P, str(longer))] = np.array([value])
    return found


@pytest.mark.parametrize(
    ("sizes", "far", "expected"),
    [
        ({0: 200, 1: 180, 2: 150, 3: 120, 4: 110}, {}, 0),
        ({0: 200, 1: 180, 2: 150, 3: 120, 4: 110}, {(0, 3): 1e-9, (1, 4): 1e-9}, 2),
        ({0: 200, 1: 180, 2: 150, 3: 120, 4: 110}, {(3, 4): 1e-9}, 0),  # 0 agrees with both
        ({0: 200, 1: 180, 2: 150, 3: 120, 4: 60}, {(0, 4): 1e-9}, 0),  # 4 is not borne
        ({0: 200, 1: 180, 2: 150, 3: 60, 4: 120}, {(0, 4): 1e-9}, 0),  # nor if 3 is not
        ({0: 200, 1: 180, 2: 150, 3: 120, 4: 110}, {(0, 3): math.nan}, 1),  # unknown is far
        ({0: 20, 1: 15, 2: 10, 3: 5, 4: 2}, {(0, 1): 1e-9}, 0),  # 0 is always borne
    ],
)
def test_what_it_takes(
    sizes: dict[int, float], far: dict[tuple[int, int], float], expected: int
) -> None:
    pairs = {(k, longer): 0.3 for k in range(5) for longer in range(k + 1, 5)}
    cell = MemoryCell("random", 200)
    assert cell.memories == (0, 1, 2, 3, 4)
    assert chosen(cell, columns(sizes, pairs | far), 100, 0.01).tolist() == [expected]


def test_the_error_of_a_ratio_is_its_spread_over_logs() -> None:
    rng = np.random.default_rng(0)
    pairs = rng.normal(size=(4000, 60, 1)) + rng.normal(size=(4000, 60, 2)) * [1.0, 0.5]
    found = np.array([ratio_of_rmse(*pair.T) for pair in pairs])
    assert found[:, 0].mean() == pytest.approx(math.sqrt(2 / 1.25), rel=0.02)
    assert found[:, 1].mean() == pytest.approx(found[:, 0].std(), rel=0.08)
    assert ratio_of_rmse(pairs[0, :, 0], pairs[0, :, 0]) == (1.0, 0.0)


def test_the_limit_is_the_most_cautious_of_those_that_are_about_the_best() -> None:
    worse, cautious = Tried(0.01, 30, 1.2, "a", 1.01), Tried(0.003, 30, 1.04, "b", 1.058)
    smaller_p, other_size = replace(cautious, alike=0.001), replace(cautious, least=50, alike=0.01)
    on_average = Tried(0.02, 30, 1.0, "b", 1.08)
    best = Tried(0.0003, 30, 1.02, "b", 1.05)
    pairs = [worse, smaller_p, cautious, other_size, on_average, best]
    assert taken_of(pairs, 30) == cautious


# ---- running, tables and page ------------------------------------------------------------------


def test_a_small_study_runs_goes_on_and_makes_its_page(tmp_path: Path) -> None:
    options = ["--small", "--backend", "sequential", "--folder", str(tmp_path)]
    assert memory_study.STUDY.main([*options, "--worlds", "random", "--replicates", "2"]) == 0
    first = MemoryStudy.read(tmp_path / "tables")
    assert memory_study.STUDY.main([*options, "--replicates", "4"]) == 0
    found = MemoryStudy.read(tmp_path / "tables")
    assert {row["world"]: row["replicates"] for row in found.cells} == {"delayed-3": 4, "random": 4}
    assert [row["replicates"] for row in first.cells] == [2]
    again: list[object] = []
    MEMORY.run(MEMORY.plan(small=True, replicates=4), tmp_path, report=again.append)
    assert not again  # what is there is not run again
    text = (tmp_path / "tables" / "memory.md").read_text(encoding="utf-8")
    assert text == page(found)
    assert "**Not run** at n = 5,000: all worlds." in text
    assert "2 of the 2 cells have fewer logs than that" in text
    [row] = pick(found.rows, world="random", estimator=AUTO)
    by_memory = [r for r in pick(found.rows, world="random") if r["memory"] is not None]
    assert sum(r["chosen"] for r in by_memory) == pytest.approx(1)
    assert min(r["relative"] for r in by_memory) == 1
    assert row["relative"] >= 1 - 1e-9


def test_a_cell_does_not_depend_on_the_order_of_its_logs() -> None:
    cell = MemoryCell("random", 200)
    _, both = run_replicates(cell, cell.estimators, 0, range(2))
    _, second = run_replicates(cell, cell.estimators, 0, range(1, 2))
    for name, values in second.values.items():
        if not name.startswith("log/"):  # what it took
            assert values == both.values[name][1:]


def test_rows_count_what_they_say() -> None:
    """One log that is covered and green, one that is neither, by hand."""
    cell = MemoryCell("random", 200)
    truth, _ = cell.of.truth()
    values: dict[str, list[float | None]] = {"log/seconds": [1.0, 3.0]}
    for name in (*map(name_of, cell.memories), "mis", "wis"):
        off = 2.0 if name == "mis" else 1.0
        values |= {
            f"{name}/value": [truth + off, truth - off],
            f"{name}/auto low": [truth - 1, truth - 2],
            f"{name}/auto high": [truth + 3, truth - 1],
            f"{name}/level": [0.0, 2.0],
            f"{name}/size": [150.0, 50.0],
        }
        values |= {f"{name}/p {k}": [1.0, 1.0] for k in cell.memories}
    rows = rows_of(cell, CellResult(values, {}), 100, 0.01)
    [auto] = pick(rows, estimator=AUTO)
    assert auto["rmse"] == pytest.approx(1)
    assert auto["of_mis"] == pytest.approx(0.5)
    assert (auto["coverage"], auto["green"], auto["red"]) == (0.5, 0.5, 0.5)
    assert (auto["green_replicates"], auto["coverage_green"]) == (1, 1.0)
    assert (auto["seconds"], auto["refused"], auto["bias"]) == (2.0, 0.0, pytest.approx(0))


def test_goals_follow_from_the_rows() -> None:
    published = MemoryStudy.read(DOCS)
    fine = {"relative": 1.05, "mc_relative": 0.1, "of_mis": 1.0, "mc_of_mis": 0.1,
            "green_replicates": 100, "coverage_green": 0.95, "mc_green": 0.02}  # fmt: skip
    rows = [row | fine for row in published.rows]
    assert all(goal.met for goal in goals(replace(published, rows=rows)))
    for changed, count in (
        ({"relative": 1.31}, 2),
        ({"of_mis": 1.11}, 2),
        ({"coverage_green": 0.80}, 3),
        ({"green_replicates": 5, "coverage_green": 0.8}, 3),  # nothing to judge is not met
    ):
        found = goals(replace(published, rows=[row | changed for row in rows]))
        assert sum(not goal.met for goal in found) == count


def test_the_published_page_matches_its_tables() -> None:
    assert memory_study.STUDY.main(["--check"]) == 0


def test_published_cells_are_not_replaced_by_fewer_logs(tmp_path: Path) -> None:
    options = ["--small", "--worlds", "random", "--replicates", "2", "--backend", "sequential"]
    before = (DOCS / "memory.csv").read_bytes()
    with pytest.raises(UsageError, match=r"is published with \d+ logs, and the folder has"):
        memory_study.STUDY.main([*options, "--folder", str(tmp_path), "--write"])
    assert (DOCS / "memory.csv").read_bytes() == before


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UsageError, match="no world 'delayed-9'"):
        MEMORY.plan(["delayed-9"])
    with pytest.raises(UsageError, match="no half 'checking'"):
        MEMORY.plan(half="checking")
    with pytest.raises(UsageError, match="no logs of 50 episodes"):
        MEMORY.plan(sizes=[50])
    every = {cell.world for cell in MEMORY.plan(half="setting").cells}
    assert every == {w for w in WORLDS if half_of(w) == HALVES[0] and installed(WORLDS[w])}
