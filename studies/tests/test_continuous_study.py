"""The study of continuous states: its simulators, a small seeded run, and its page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from reweigh_studies.by_world.command import DOCS, Published
from reweigh_studies.continuous.study import CONTENDERS, CONTINUOUS, page, tables
from reweigh_studies.continuous.tasks import LEAST, TASKS, Task

import reweigh as rw


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_a_task_is_simulated_and_its_policies_are_distributions(task: Task) -> None:
    found = task.simulate(40, np.random.default_rng(0), target=False)
    seen = found["features"][:, 0]
    for target in (False, True):
        shares = task.probabilities(seen, target=target)
        assert np.allclose(shares.sum(axis=1), 1)
        assert shares.min() >= (0 if target else LEAST - 1e-12)
    assert found["behavior_prob"].min() >= LEAST - 1e-12
    log, policy = task.log(40, np.random.default_rng(0))
    assert log.horizon == task.horizon
    by_action = sum(policy.of_action(log, a) for a in log.actions.values)
    assert by_action.max() <= 1 + 1e-9
    again = task.simulate(40, np.random.default_rng(0), target=False)
    assert np.array_equal(found["rewards"], again["rewards"])


def test_the_target_differs_from_the_behavior_in_value() -> None:
    """In the linear system by simulation: many of the behavior's errors apart."""
    task, rng = TASKS["linear"], np.random.default_rng(1)
    of = {t: task.simulate(4000, rng, target=t)["rewards"].sum(axis=1) for t in (False, True)}
    error = np.hypot(*(values.std() / np.sqrt(4000) for values in of.values()))
    assert of[True].mean() - of[False].mean() > 5 * error


def test_halves_are_by_turns_within_each_kind() -> None:
    halves = {name: CONTINUOUS.half_of(name) for name in TASKS}
    assert sorted(halves.values()).count("setting") == 5
    assert halves["cartpole"] != halves["mountain-car"]


def test_a_small_run_makes_a_page(tmp_path: Path) -> None:
    plan = CONTINUOUS.plan(small=True)
    assert not CONTINUOUS.run(plan, tmp_path / "cells", seed=3)
    published = Published("continuous", CONTINUOUS, tables, page)
    published.publish(tmp_path / "cells", tmp_path / "page", 3, [])
    text = (tmp_path / "page" / "continuous.md").read_text(encoding="utf-8")
    assert "2 of its 30 cells" in text
    assert all(name in text for name in CONTENDERS)
    results = CONTINUOUS.finished(tmp_path / "cells", seed=3)
    assert {of.replicates for of in results.values()} == {2}
    again = next(iter(plan.cells)).replicate(CONTENDERS, np.random.SeedSequence(5))
    same = next(iter(plan.cells)).replicate(CONTENDERS, np.random.SeedSequence(5))
    for name in CONTENDERS:
        key = next(column for column in again if column.startswith(name))
        assert again[key] == same[key]
        assert not isinstance(again[key], rw.Refusal)


def test_the_published_page_follows_from_its_table() -> None:
    assert (DOCS / "continuous.md").read_text(encoding="utf-8") == page(DOCS)
