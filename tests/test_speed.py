"""Nothing became slower: ratios of CPU time on small data, against the recorded ones.

`benchmarks/speed.py` measures and compares; it also says why ratios, and records new ones.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from reweigh.estimate import direct

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import kernels
import speed

pytestmark = pytest.mark.filterwarnings("ignore")  # random data have little to say


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> speed.Tasks:
    return speed.tasks(tmp_path_factory.mktemp("stream"))


def measured(tasks: speed.Tasks, *names: str, repeats: int = speed.REPEATS) -> speed.Times:
    chosen = {name: tasks[name] for name in names or tasks}
    return kernels.interleaved(chosen, repeats)


def test_every_ratio_is_recorded() -> None:
    assert set(speed.recorded()) == set(speed.RATIOS)


def test_nothing_became_slower(tasks: speed.Tasks) -> None:
    assert speed.slower(lambda: measured(tasks), speed.recorded()) == {}


def test_a_core_that_runs_three_times_is_found(
    tasks: speed.Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check can fail: a bound is twice what is recorded, and a slow core is over it."""
    name = "core / read"
    now = speed.ratios(measured(tasks, "core", "read", repeats=20), [name])
    forward = direct.forward

    def again(*arguments: object, **options: object) -> object:
        return [forward(*arguments, **options) for _ in range(3)]

    monkeypatch.setattr(direct, "forward", again)
    found = speed.slower(lambda: measured(tasks, "core", "read"), now)
    assert set(found) == {name}
    assert found[name] > speed.FACTOR * now[name]


def test_one_bad_measurement_does_not_count() -> None:
    name = "core / read"
    turns = iter([{"core": 9.0, "read": 1.0}, {"core": 2.0, "read": 1.5}])
    assert speed.slower(lambda: next(turns), {name: 1.1}) == {}


def test_a_slowness_that_stays_counts() -> None:
    name = "core / read"
    calls: list[int] = []

    def measure() -> speed.Times:
        calls.append(1)
        return {"core": 3.0, "read": 1.0}

    assert speed.slower(measure, {name: 1.4}) == {name: 3.0}
    assert len(calls) == speed.TRIES
    assert speed.slower(measure, {name: 1.5}) == {}
