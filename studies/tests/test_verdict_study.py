"""The study of verdicts: its worlds, its tables by hand, its page, and a small run."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import verdict_study
from reweigh_studies.by_world.page import NOTHING
from reweigh_studies.by_world.study import HALVES
from reweigh_studies.coverage.goals import pick
from reweigh_studies.verdicts import makers
from reweigh_studies.verdicts.cells import ESTIMATORS, VerdictCell
from reweigh_studies.verdicts.page import VerdictStudy, goals, page
from reweigh_studies.verdicts.study import VERDICTS
from reweigh_studies.verdicts.tables import gate_rows, rows_of
from reweigh_studies.verdicts.worlds import KINDS, WORLDS, half_of

import reweigh as rw
from reweigh.evaluation.result import Estimate
from reweigh.paper.cells import CellResult, run_replicates, seed_sequence

DOCS = Path(__file__).parents[2] / "docs" / "trust"
pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")


# ---- worlds ------------------------------------------------------------------------------------


def test_there_are_enough_worlds_and_each_kind_is_in_both_halves() -> None:
    assert len(WORLDS) >= 40
    assert {world.group for world in WORLDS.values()} == set(KINDS)
    for kind in KINDS:
        halves = {half_of(name) for name, world in WORLDS.items() if world.group == kind}
        assert halves == set(HALVES)


@pytest.mark.parametrize("name", WORLDS)
def test_the_logs_are_those_of_the_behavior(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their mean return is the exact value of the behavior, or that of a simulation."""
    monkeypatch.setattr(makers, "TRUTH", makers.BATCH)
    world = WORLDS[name]
    tails = ("unseen event", "undeclared event", "heavy rewards")  # 4,000 episodes may lack them
    skewed = world.group in tails
    log, _ = world.log(200_000 if skewed else 4000, np.random.default_rng(5))
    powers = log.discount**log.steps.step
    returns = np.bincount(log.steps.episode_index, powers * log.steps.reward, log.n_episodes)
    error = returns.std() / math.sqrt(len(returns))
    if "sites" in name or "adaptive" in name:  # episodes of a site are alike; the logger changes
        error += 1.0
    truth = world.world().behavior_value()
    assert log.horizon == world.horizon
    assert abs(returns.mean() - float(truth)) < 4.5 * (error + truth.standard_error)


@pytest.mark.parametrize(
    "world",
    [
        makers.emergency(0.1, 0.3, 0.8, 10.0, 3),
        makers.event(-20, 10, 1.0, 3, mu=0.5),
        makers.lognormal(3, 0.5, 3),
        makers.logged_by(1, "mixed", 3),
        makers.logged_by(1, "adaptive", 3),
        makers.lake("4x4", 6, 0.4, 0.6),
        makers.thousand(1, 30, 3, 0.7, 1.0),
        makers.control("level", 4, 6, 1.0, 0.7),
        makers.control("lander", 6, 6, 1.0, 0.7),
    ],
)
def test_truths_are_those_of_is_which_uses_no_state(world: makers.Played) -> None:
    log = world.simulate(30_000, 1)
    found = rw.evaluate(log, world.target, rw.is_())
    assert found.standard_error is not None
    assert abs(found.value - float(world.value())) < 4 * found.standard_error


def test_an_emergency_is_worth_what_it_should_be() -> None:
    """H (share × wanted × worth + (1 - share) × 0.6 × 0.3)."""
    found = makers.emergency(0.006, 0.02, 0.9, 60.0, 5).value()
    assert float(found) == pytest.approx(5 * (0.006 * 0.9 * 60 + 0.994 * 0.6 * 0.3), rel=1e-12)


def test_a_confounder_biases_the_propensities_that_fit() -> None:
    """They fit in every state, and IS is off by Σ_t strength effect (π_1/μ_1 - π_0/μ_0)/2."""
    horizon, strength, effect = 2, 0.2, 0.5
    world = makers.confounded(horizon, strength, effect)
    log = world.simulate(100_000, 2)
    found = rw.evaluate(log, world.target, rw.is_())
    assert found.standard_error is not None
    per_step = sum((0.8 / m - 0.2 / (1 - m)) / 2 for m in (0.4, 0.6)) * strength * effect / 2
    assert float(world.value()) - found.value == pytest.approx(
        horizon * per_step, abs=5 * found.standard_error
    )
    assert found.verdict.level == "green"


# ---- cells and tables --------------------------------------------------------------------------


def test_a_cell_holds_what_evaluate_says() -> None:
    cell = VerdictCell("clean", 200)
    _, result = run_replicates(cell, cell.estimators, 7, range(2))
    log, target = cell.of.log(200, np.random.default_rng(seed_sequence(cell, 7, 1)))
    for name in ESTIMATORS:
        [one] = rw.evaluate_all(log, target, [name])
        assert isinstance(one, Estimate)
        assert result.values[f"{name}/value"][1] == pytest.approx(one.value, rel=1e-12)
        level = ("green", "amber", "red").index(one.verdict.level)
        assert result.values[f"{name}/level"][1] == level
        for gate in one.verdict.reasons:
            assert (
                result.values[f"{name}/fired {gate.name}"][1] == {"amber": 2, "red": 3}[gate.level]
            )


def test_rows_count_what_they_say() -> None:
    """Three logs: green and covered; amber and missed, by two gates; red by one, no interval."""
    cell = VerdictCell("clean", 200)
    truth, _ = cell.of.truth()
    values: dict[str, list[float | None]] = {
        "log/seconds": [1.0, 3.0, 2.0],
        "mis/value": [truth + 1, truth - 1, truth + 3],
        "mis/auto low": [truth - 1, truth - 2, None],
        "mis/auto high": [truth + 3, truth - 1, None],
        "mis/level": [0.0, 1.0, 2.0],
        "mis/fired support": [1.0, 2.0, 3.0],
        "mis/fired drift": [1.0, 2.0, 1.0],
        "mis/fired history": [1.0, 1.0, 1.0],
    }
    result = CellResult(values, {})
    [row] = pick(rows_of(cell, result), estimator="mis")
    assert (row["green"], row["amber"], row["red"]) == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    assert (row["green_replicates"], row["coverage_green"]) == (1, 1.0)
    assert (row["amber_replicates"], row["coverage_amber"]) == (1, 0.0)
    assert (row["red_replicates"], row["coverage_red"]) == (0, None)
    assert (row["bias"], row["seconds"], row["coverage"]) == (pytest.approx(1), 2.0, 0.5)
    [wis] = pick(rows_of(cell, result), estimator="wis")
    assert (wis["refused"], wis["bias"]) == (1.0, None)
    support, drift = gate_rows(cell, result)
    assert (support["gate"], drift["gate"]) == ("support", "drift")
    shares = [(g["amber"], g["red"], g["alone"]) for g in (support, drift)]
    assert shares[0] == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    assert shares[1] == pytest.approx((1 / 3, 0, 0))


def test_goals_follow_from_the_rows() -> None:
    published = VerdictStudy.read(DOCS)
    fine = {"green": 1.0, "green_replicates": 100, "coverage_green": 0.95,
            "amber_replicates": 100, "coverage_amber": 0.95}  # fmt: skip
    rows = [row | fine | {"mc_green": 0.02, "mc_amber": 0.02} for row in published.rows]
    wrong = [goal for goal in goals(replace(published, rows=rows)) if not goal.met]
    assert [goal.found for goal in wrong] == [NOTHING] * len(wrong)
    for changed, what in (
        ({"coverage_green": 0.80}, "green intervals"),
        ({"coverage_amber": 0.80}, "amber intervals"),
    ):
        found = goals(replace(published, rows=[row | changed for row in rows]))
        assert all(not goal.met for goal in found if f"no {what}" in goal.text)
    falling = [row | {"green": 300 / row["n"] if row["n"] > 200 else 1.0} for row in rows]
    found = goals(replace(published, rows=falling))
    assert all(not goal.met for goal in found if "less often" in goal.text)


def test_a_small_study_runs_goes_on_and_makes_its_page(tmp_path: Path) -> None:
    options = ["--small", "--backend", "sequential", "--folder", str(tmp_path)]
    run = verdict_study.STUDY.main
    assert run([*options, "--worlds", "clean", "--replicates", "2"]) == 0
    assert run([*options, "--replicates", "3"]) == 0
    found = VerdictStudy.read(tmp_path / "tables")
    assert {row["world"]: row["replicates"] for row in found.cells} == {"clean": 3, "emergency": 3}
    again: list[object] = []
    VERDICTS.run(VERDICTS.plan(small=True, replicates=3), tmp_path, report=again.append)
    assert not again  # what is there is not run again
    text = (tmp_path / "tables" / "verdicts.md").read_text(encoding="utf-8")
    assert text == page(found)
    assert "**Not run** at n = 5,000: all worlds." in text


def test_the_published_page_matches_its_tables() -> None:
    assert verdict_study.STUDY.main(["--check"]) == 0
