"""The study of efficiency: its worlds, a small run, its table, goals and page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import efficiency_study
import numpy as np
import pytest
from reweigh_studies.by_world.study import HALVES
from reweigh_studies.coverage.goals import pick
from reweigh_studies.coverage.measures import BEHAVIOR
from reweigh_studies.coverage.worlds import installed
from reweigh_studies.efficiency.cells import AUTO, CONTENDERS, STANDARD, EfficiencyCell
from reweigh_studies.efficiency.page import EfficiencyStudy, goals, page
from reweigh_studies.efficiency.study import EFFICIENCY
from reweigh_studies.efficiency.tables import best_of, bound, rows_of
from reweigh_studies.efficiency.worlds import KINDS, WORLDS, half_of, paying

import reweigh as rw
from reweigh.paper.cells import CellResult, run_replicates, seed_sequence

DOCS = Path(__file__).parents[2] / "docs" / "trust"
pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")


# ---- worlds ------------------------------------------------------------------------------------


def test_there_are_sixty_worlds_and_each_kind_is_in_both_halves() -> None:
    assert len(WORLDS) >= 60
    for kind in KINDS:
        halves = [half_of(name) for name, world in WORLDS.items() if world.group == kind]
        assert halves.count(HALVES[0]) == halves.count(HALVES[1])
    assert {world.group for world in WORLDS.values()} == set(KINDS)


def test_improved_targets_are_better() -> None:
    better = [w for name, w in WORLDS.items() if "improved" in name or w.group == "improved"]
    assert len(better) >= 20
    assert all(v > mu for v, mu in (world.truth() for world in better))


@pytest.mark.parametrize("options", [{}, {"tilt": 2.0}, {"rare": 0.05, "stakes": 3.0}])
def test_shifted_rewards_shift_the_value_by_every_step(options: dict[str, float]) -> None:
    """The policies stay, and the value moves by shift × H."""
    plain, shifted = (paying(5, 4, 3, 6, shift=shift, **options) for shift in (0.0, 120.0))
    assert np.allclose(plain.target_array, shifted.target_array, atol=1e-12)
    assert float(shifted.value()) == pytest.approx(float(plain.value()) + 720.0, rel=1e-12)
    assert np.allclose(plain.behavior_array.sum(axis=-1), 1)


def test_rewards_are_sparse_and_stakes_are_of_the_rare_action() -> None:
    sparse = paying(5, 8, 3, 6, sparse=0.05)
    assert 0 < (sparse.reward != 0).mean() < 0.1
    stakes = paying(5, 4, 3, 6, rare=0.05, stakes=4.0)
    assert np.allclose(stakes.behavior_array[..., 0], 0.05)
    assert stakes.reward[:, :, 0].min() >= 4.0 > stakes.reward[:, :, 1:].max()


# ---- cells and rows ----------------------------------------------------------------------------


def test_a_cell_has_what_evaluate_says() -> None:
    cell, logs = EfficiencyCell("random-small", 200), range(2)
    _, result = run_replicates(cell, cell.estimators, 7, logs)
    for k in logs:
        log, target = cell.of.log(200, np.random.default_rng(seed_sequence(cell, 7, k)))
        found = rw.evaluate(log, target)
        assert result.values["auto/value"][k] == pytest.approx(found.value, rel=1e-12)
        assert STANDARD[int(result.values["auto/taken"][k])] == found.estimator
        mean = log.steps.reward.sum() / 200
        assert result.values[f"{BEHAVIOR}/value"][k] == pytest.approx(mean, rel=1e-12)


def test_rows_count_what_they_say() -> None:
    """Two logs by hand: one covered and green, one neither."""
    cell = EfficiencyCell("random-small", 200)
    truth, _ = cell.of.truth()
    values: dict[str, list[float | None]] = {"log/seconds": [1.0, 3.0], "auto/taken": [6.0, 8.0]}
    for name in CONTENDERS:
        off = {"mis": 2.0, "mdr-loo": 0.5}.get(name, 1.0)
        values[f"{name}/value"] = [truth + off, truth - off]
        values[f"{name}/auto low"] = [truth - 1, truth - 2]
        values[f"{name}/auto high"] = [truth + 3, truth - 1]
        values[f"{name}/level"] = [0.0, 2.0]
    values["dm/value"] = [truth + 0.1, None]  # too often refused to be the best
    rows = rows_of(cell, CellResult(values, {}))
    [auto], [loo], [dm] = (pick(rows, estimator=name) for name in (AUTO, "mdr-loo", "dm"))
    assert (auto["relative"], auto["of_mis"], loo["relative"]) == (2.0, 0.5, 1.0)
    assert (loo["chosen"], auto["chosen"], dm["chosen"]) == (0.5, 0.5, 0.0)
    assert (auto["coverage"], auto["green"], auto["green_replicates"]) == (0.5, 0.5, 1)
    assert dm["refused"] == 0.5
    assert dm["relative"] is None
    least = bound(cell.world)
    assert least is not None
    assert auto["of_bound"] == pytest.approx(1 / np.sqrt(least / 200))
    errors = {name: np.full(3, 1.0) for name in STANDARD} | {"wis": np.array([0.1, 0.1, np.nan])}
    assert best_of(errors) != "wis"


def test_the_bound_is_that_of_theory_where_it_has_one() -> None:
    world = WORLDS["random-tiny"].world()
    assert bound("random-tiny") == rw.theory.quantities(world).cramer_rao
    assert bound("hidden-one") is None
    assert bound("timevarying-16") is None


# ---- running, table and page -------------------------------------------------------------------


def test_a_small_study_runs_goes_on_and_makes_its_page(tmp_path: Path) -> None:
    options = ["--small", "--backend", "sequential", "--folder", str(tmp_path)]
    worlds = ["--worlds", "improved-small"]
    assert efficiency_study.STUDY.main([*options, *worlds, "--replicates", "2"]) == 0
    assert efficiency_study.STUDY.main([*options, "--replicates", "4"]) == 0
    found = EfficiencyStudy.read(tmp_path / "tables")
    assert {row["world"]: row["replicates"] for row in found.cells} == {
        "random-small": 4, "improved-small": 4,
    }  # fmt: skip
    text = (tmp_path / "tables" / "efficiency.md").read_text(encoding="utf-8")
    assert text == page(found)
    assert "**Not run** at n = 5,000: all worlds." in text
    for cell in found.cells:
        taken = [found.of(cell, name)["chosen"] for name in (*STANDARD, AUTO)]
        assert sum(taken) == pytest.approx(1)
        assert min(found.of(cell, name)["relative"] for name in STANDARD) == 1


def test_goals_follow_from_the_rows() -> None:
    cells = EFFICIENCY.whole.cells
    fine = {"relative": 1.05, "mc_relative": 0.1, "of_bound": 1.02, "bias_over_sd": 0.1,
            "mc_bias_over_sd": 0.05, "green": 0.9, "green_replicates": 100,
            "coverage_green": 0.95, "mc_green": 0.02, "estimator": AUTO}  # fmt: skip
    rows = [fine | {"world": c.world, "n": c.n, "half": half_of(c.world)} for c in cells]
    study = EfficiencyStudy(rows, {})
    assert all(goal.met for goal in goals(study))
    for changed, count in (
        ({"relative": 1.11}, 2),
        ({"relative": 1.31}, 4),
        ({"of_bound": 1.06}, 2),
        ({"coverage_green": 0.80}, 2),
        ({"bias_over_sd": -0.7}, 2),
        ({"bias_over_sd": -0.7, "green": 0.1}, 2),  # nothing to judge is not met
    ):
        found = goals(replace(study, rows=[row | changed for row in rows]))
        assert sum(not goal.met for goal in found) == count


def test_the_published_page_matches_its_table() -> None:
    assert efficiency_study.STUDY.main(["--check"]) == 0


def test_the_halves_are_whole() -> None:
    for half in HALVES:
        every = {cell.world for cell in EFFICIENCY.plan(half=half).cells}
        assert every == {w for w in WORLDS if half_of(w) == half and installed(WORLDS[w])}
