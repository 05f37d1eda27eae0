"""Cells that are run later stand beside published ones as if all had been run at once."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reweigh_studies.coverage import goals, tables
from reweigh_studies.coverage import study as coverage
from reweigh_studies.coverage.cells import TrustCell
from reweigh_studies.coverage.measures import Measure, recipe_of
from reweigh_studies.coverage.published import (
    ABOUT,
    Study,
    about,
    joined,
    key_of,
    lacking,
    write_about,
)
from reweigh_studies.coverage.verdicts import GREEN, verdicts
from reweigh_studies.coverage.worlds import WORLDS

import reweigh as rw
from reweigh.paper.cells import run_replicates
from reweigh.paper.sweep import Backend
from reweigh.trust.gates import LIMITS, Limit

DOCS = Path(__file__).parents[2] / "docs" / "trust"
NAMES = ("coverage", "gates", "best_of_many", "bins", "worlds")


def run(folder: Path, n: int, *, replicates: int = 4) -> coverage.Tables:
    parts = [
        replace(part, cells=dict(list(part.cells.items())[:2]))
        for part in coverage.plan(["tiny-better"], sizes=[n], replicates=replicates)
        if part.name in ("coverage", "jackknife", "faults")
    ]
    found, failed = coverage.run(parts, folder / f"cells {n}", backend=Backend("sequential"))
    assert failed == {}
    return found


def published(found: coverage.Tables, folder: Path) -> Path:
    found.write(folder)
    write_about(folder, 0)
    return folder


def texts(folder: Path) -> list[str]:
    return [(folder / f"{name}.csv").read_text() for name in NAMES]


def test_cells_run_later_are_put_beside_the_published_ones(tmp_path: Path) -> None:
    small, large = run(tmp_path, 50), run(tmp_path, 200)
    docs = published(small, tmp_path / "docs")
    both = published(joined(large, docs, 0), tmp_path / "both")
    again = published(joined(large, both, 0), tmp_path / "again")  # nothing counts twice
    at_once = coverage.Tables()
    at_once.add(small)
    at_once.add(large)
    for row in tables.bin_rows(at_once.bins):
        assert row["replicates"] <= 8
    assert texts(both) == texts(published(at_once, tmp_path / "at once")) == texts(again)


def test_counts_of_a_gate_that_is_new_are_added(tmp_path: Path) -> None:
    found = run(tmp_path, 50)
    older = replace(found, bins=[row for row in found.bins if row["gate"] != "drift"])
    docs = published(older, tmp_path / "docs")
    assert "drift" not in (docs / "bins.csv").read_text()
    both = published(joined(found, docs, 0), tmp_path / "both")
    assert texts(both) == texts(published(found, tmp_path / "at once"))


def test_only_what_is_not_published_is_lacking(tmp_path: Path) -> None:
    docs = published(run(tmp_path, 50), tmp_path / "docs")
    parts = coverage.plan(["tiny-better"], replicates=4, sizes=[50, 200])
    left = {part.name: {key_of(cell) for cell in part.cells} for part in lacking(parts, docs, 0)}
    assert left["coverage"] == left["jackknife"] == {("tiny-better", 200, None)}
    for fault in (None, "propensities-low"):  # those that `run` runs, clean logs first
        assert ("tiny-better", 50, fault) not in left["faults"]
        assert ("tiny-better", 200, fault) in left["faults"]
    assert ("tiny-better", 50, "fate") in left["faults"]
    assert left["best"] == {(None, 200, None)}
    more = coverage.plan(["tiny-better"], parts=["coverage", "jackknife"], replicates=5, sizes=[50])
    [part] = lacking(more, docs, 0)  # what could not be joined is not run
    assert part.name == "jackknife"
    with pytest.raises(rw.UsageError, match="seed differ"):
        lacking(more, docs, 1)


def test_rows_of_fewer_logs_replace_none(tmp_path: Path) -> None:
    docs = published(run(tmp_path, 50, replicates=6), tmp_path / "docs")
    fewer = run(tmp_path / "fewer", 50, replicates=2)
    fewer.bins = []
    both = published(joined(fewer, docs, 0), tmp_path / "both")
    assert texts(both) == texts(docs)


def test_an_estimator_that_always_refuses_has_its_row(tmp_path: Path) -> None:
    parts = coverage.plan(["none-two-actions"], parts=["jackknife"], sizes=[50], replicates=2)
    found, _ = coverage.run(parts, tmp_path, backend=Backend("sequential"))
    assert {row["method"] for row in found.coverage} == {"jackknife"}
    assert {row["refused"] for row in found.coverage if row["estimator"] == "wis"} == {1.0}
    assert lacking(parts, published(found, tmp_path / "docs"), 0) == []


def test_tables_by_other_limits_or_of_other_logs_are_not_joined(tmp_path: Path) -> None:
    found = run(tmp_path, 50)
    docs = published(found, tmp_path / "docs")
    with pytest.raises(rw.UsageError, match="published with 4 logs and here with 6"):
        joined(run(tmp_path, 50, replicates=6), docs, 0)
    with pytest.raises(rw.UsageError, match="seed differ"):
        joined(found, docs, 1)
    told = about(0)
    told["limits"]["support"] = str(Limit(0.02, 0.2))
    (docs / ABOUT).write_text(json.dumps(told))
    with pytest.raises(rw.UsageError, match=r"another study \(limits differ\)"):
        joined(found, docs, 0)


def test_the_page_names_the_limits_that_changed_since_its_tables_were_made() -> None:
    recorded, now = json.loads((DOCS / ABOUT).read_text()), about(0)
    assert {name: recorded[name] for name in now if name != "limits"} == {
        name: value for name, value in now.items() if name != "limits"
    }
    page = " ".join((DOCS / "README.md").read_text().split())
    study = Study.read(DOCS)
    assert study.limits == recorded["limits"]
    for name, limit in now["limits"].items():
        before = recorded["limits"].get(name)
        if before is None:
            assert name in study.newer_gates
            assert f"*{name.partition(',')[0]}*" in page
        elif before != limit:
            assert f"*{name}* ({before}; now {limit})" in page
    assert Study.read(DOCS).logs("coverage")["tiny", 5000, None] == 1000


# Cells that were run since a history is excused where WIS agrees within one error. Before, it was
# excused within 2.6: logs of the others may be red now that are amber in the tables.
AT_200 = (
    "apart", "apart-better", "bandit", "bandit-many", "close", "default", "default-better",
    "discounted", "discounted-better", "fitted", "fitted-bandit", "fitted-better",
    "further-apart", "hidden", "hidden-better", "hidden-two", "icu-better", "icu-softened",
    "long", "long-better", "longer", "longer-better", "many-actions", "many-actions-better",
    "many-states", "many-states-better", "noisy", "noisy-better", "rare-5", "rare-5-better",
    "sparse-better", "steady", "steady-better",
)  # fmt: skip
# Among them all in which more than MORE of the logs have a doubtful history.
DOUBTFUL = {
    50: (
        "many-actions", "long", "apart", "further-apart", "steady", "discounted-better",
        "sparse-better", "rare-5", "rare-2", "rare-1", "rare-half", "rare-2-better", "coarse",
        "modelfail-naive",
    ),
    200: ("rare-2", "rare-1", "rare-half", "modelfail-naive"),
    1000: (
        "many-states", "rare-5", "rare-2", "rare-half", "rare-2-better", "modelfail-naive",
        "icu-random",
    ),
    5000: (
        "rare-2", "rare-1", "rare-half", "coarse-better", "modelfail-naive", "icu-softened",
        "icu-random",
    ),
}  # fmt: skip
MORE = 0.025
SINCE = {
    *((world, n) for n, worlds in DOUBTFUL.items() for world in worlds),
    *((world, n) for world in ("ending", "ending-better") for n in (50, 200, 1000, 5000)),
    *((world, n) for world in ("coarse", "mountaincar") for n in (1000, 5000)),
    *((world, 200) for world in AT_200),
    ("rare-5-better", 50),
    ("rare-2-better", 200),
    ("rare-1", 1000),
    ("icu-better", 1000),
    ("icu-better", 5000),
}
BY_STATE = ("mis", "mdr", "dm", "ssd")  # whose history is asked for


def test_no_goal_hangs_on_histories_that_were_excused_more_easily() -> None:
    """As if every log with a doubtful history (p < 0.01) were red now, and its interval right: what
    is left amber covers as often as promised in every cell."""
    history = {
        (row["world"], row["n"], row["estimator"]): row["amber"] + row["red"]
        for row in goals.read_csv(DOCS / "gates.csv")
        if row["gate"] == "history" and row["fault"] == "clean"
    }
    judged = 0
    for row in goals.pick(goals.read_csv(DOCS / "coverage.csv"), method=tables.DEFAULT):
        cell, name, amber = (row["world"], row["n"]), row["estimator"], row["amber_replicates"] or 0
        if cell in SINCE or not name.startswith(BY_STATE) or amber < goals.ENOUGH:
            continue
        share = history[*cell, "dm" if name.startswith("dm") else "mis"]
        assert share <= MORE, (cell, name)
        most = min(round(share * row["replicates"]), amber - goals.ENOUGH)
        hits = round(row["coverage_amber"] * amber)
        for left in range(amber - most, amber + 1):
            covered = (hits - (amber - left)) / left
            assert goals.within(covered, left, goals.LEAST_AMBER), (cell, name)
        judged += 1
    assert judged > 150


# Cells whose rows of mdr were judged by the gate of unseen actions; those of 200 episodes all were
# in which an action may be missing.
GATED = {
    200: [*AT_200, "ending", "ending-better", "rare-2-better", "mountaincar"],
    1000: (
        "bandit", "bandit-many", "discounted", "discounted-better", "ending",
        "fitted-bandit", "icu-better", "icu-softened", "long-better",
        "many-actions-better", "many-states", "many-states-better", "rare-2",
        "rare-2-better", "rare-5", "rare-5-better", "sparse-better", "steady",
    ),
    5000: (
        "bandit", "bandit-many", "fitted-bandit", "icu-better", "icu-softened",
        "many-actions-better", "many-states", "rare-1", "rare-2", "sparse-better",
    ),
}  # fmt: skip


def test_no_goal_hangs_on_rows_that_are_older_than_the_gate_of_unseen_actions() -> None:
    """As if every log in which a model lacks some of the target's mass had lost its color, the
    intervals of these being all right or all wrong, or had become amber with a wrong one."""
    lacking = {
        (row["world"], row["n"]): round((row["amber"] + row["red"]) * row["replicates"])
        for row in goals.read_csv(DOCS / "gates.csv")
        if (row["gate"], row["fault"], row["estimator"]) == ("support", "clean", "dm")
    }
    judged = 0
    rows = goals.read_csv(DOCS / "coverage.csv")
    for row in goals.pick(rows, method=tables.DEFAULT, estimator="mdr"):
        cell = row["world"], row["n"]
        gated = (*GATED.get(cell[1], ()), *DOUBTFUL[cell[1]])
        if cell[0] in gated or cell not in lacking:
            continue
        green, amber = (row[f"{name}_replicates"] or 0 for name in ("green", "amber"))
        green_hits, amber_hits = (
            round((row[f"coverage_{name}"] or 0) * of)
            for name, of in (("green", green), ("amber", amber))
        )
        for gone in range(lacking[cell] + 1):
            for hits in (green_hits - gone, min(green_hits, green - gone)):
                left = green - gone
                if left >= goals.ENOUGH:
                    assert goals.within(hits / left, left, goals.LOW, goals.HIGH), cell
            for left, hits in (
                (amber - gone, amber_hits - gone),
                (amber + min(gone, green), amber_hits),
            ):
                if left >= goals.ENOUGH:
                    assert goals.within(hits / left, left, goals.LEAST_AMBER), cell
        judged += green + amber > 0
    assert judged > 20


# Gates that are newer than the rows of coverage.csv.
NEWER = ("decisive episodes", "hidden policies", "propensities, model")


@pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
def test_newer_gates_hardly_change_a_verdict_on_clean_logs() -> None:
    """Of a log of every well-overlapped world, of 1,000 episodes: what is green without them stays
    green, but for one in a hundred. A seed of its own for each, so that luck decides nothing."""
    older = LIMITS | dict.fromkeys(NEWER, Limit(None, None))
    before = after = 0
    for number, world in enumerate(w for w in WORLDS.values() if w.group == "well"):
        cell = TrustCell(world.name, 1000, measure=Measure(("auto",), quick=()))
        _, result = run_replicates(cell, (*coverage.ESTIMATORS, "log"), number, range(1))
        columns = tables.columns_of(result)
        for name in coverage.ESTIMATORS:
            known = columns
            if recipe_of(name).uses_trajectories:  # whose placebo was a warning
                known = {key: v for key, v in columns.items() if key != f"{name}/gate placebo"}
            before += int(verdicts(known, name, 1000, older)[0] == GREEN)
            after += int(verdicts(columns, name, 1000)[0] == GREEN)
    assert before > 100
    assert before - after <= before / 100


@pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
def test_one_step_does_not_loosen_the_limits_of_products() -> None:
    """With one step `is` is `mis`: in the bandit's logs of 200 episodes neither was green, as their
    symmetric intervals covered too seldom, and both have one verdict now."""
    with (DOCS / "coverage.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    chosen = {"world": "bandit", "n": "200", "method": "auto"}
    found = {
        row["estimator"]: row for row in rows if chosen.items() <= row.items() and row["coverage"]
    }
    assert float(found["is"]["coverage"]) < 0.93
    assert float(found["is"]["green"]) == float(found["mis"]["green"]) == 0
    levels = set()
    for seed in range(20):
        log, target = WORLDS["bandit"].log(200, np.random.default_rng(seed))
        mis, plain = rw.evaluate_all(log, target, ["mis", "is"])
        assert isinstance(mis, rw.Estimate)
        assert isinstance(plain, rw.Estimate)
        assert plain.value == pytest.approx(mis.value, rel=1e-12)
        assert plain.verdict.level == mis.verdict.level
        levels.add(mis.verdict.level)
    assert levels == {"green", "amber"}
