"""Estimators and adapters that another package adds through its metadata."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import reweigh as rw
from reweigh import system as entry_points
from reweigh.cli.app import run

MODULE = '''
from dataclasses import replace

import reweigh as rw


def clipped():
    return replace(rw.mis(max_ratio=2.0), name="clipped-mis")


def from_pairs(pairs, target_prob):
    """Episodes of one step: (action, reward), drawn by a fair coin."""
    states = [[0]] * len(pairs)
    actions, rewards = ([[pair[k]] for pair in pairs] for k in (0, 1))
    return rw.log_from_arrays(states, actions, rewards, [[0.5]] * len(pairs), target_prob)
'''
ENTRIES = """[reweigh.estimators]
clipped-mis = its_estimators:clipped
broken-mis = its_estimators:nothing

[reweigh.adapters]
from_pairs = its_estimators:from_pairs
broken = its_estimators:nothing
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "its_estimators.py").write_text(MODULE)
    folder = tmp_path / "its_estimators-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: its-estimators\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(str(tmp_path))
    entry_points.forget()
    yield
    entry_points.forget()


def test_an_added_estimator_has_a_name_like_ours(package: None) -> None:
    recipe = rw.estimator("clipped-mis")
    assert (recipe.name, recipe.max_ratio) == ("clipped-mis", 2.0)
    with pytest.raises(rw.UsageError, match=r"no estimator 'clipped-mi'.*clipped-mis"):
        rw.estimator("clipped-mi")


def test_one_that_cannot_be_loaded_names_its_package(package: None) -> None:
    with pytest.raises(rw.UsageError, match=r"'its-estimators' adds to reweigh\.estimators"):
        rw.estimator("broken-mis")


def test_the_command_line_takes_it(
    package: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, policy = tmp_path / "log.csv", tmp_path / "policy.csv"
    rows = [f"{e},{t},{(e + t) % 2},{e % 2},{t},0.5" for e in range(60) for t in range(2)]
    log.write_text("\n".join(["episode,step,state,action,reward,behavior_prob", *rows]) + "\n")
    policy.write_text("state,action,prob\n0,0,0.4\n0,1,0.6\n1,0,0.3\n1,1,0.7\n")
    assert run(["evaluate", str(log), "--target", str(policy), "--estimators", "clipped-mis"]) == 0
    assert "clipped-mis" in capsys.readouterr().out


def test_without_such_packages_the_names_are_ours() -> None:
    entry_points.forget()
    with pytest.raises(rw.UsageError, match="there is no estimator 'clipped-mis'"):
        rw.estimator("clipped-mis")


def test_an_added_adapter_is_an_attribute_like_ours(package: None) -> None:
    pairs = [(k % 2, float(k % 2)) for k in range(40)]
    log = rw.adapters.from_pairs(pairs, [[0.25], [0.75]] * 20)
    assert log.n_episodes == 40
    assert rw.evaluate(log, rw.ColumnPolicy("target_prob"), "is").value == pytest.approx(0.75)
    assert rw.adapters.load("from_pairs") is rw.adapters.from_pairs
    assert "from_pairs" in dir(rw.adapters)
    assert rw.adapters.load("from_minari") is rw.adapters.from_minari


def test_adapters_that_are_not_there(package: None) -> None:
    with pytest.raises(AttributeError, match="no attribute 'from_nothing'"):
        rw.adapters.from_nothing  # noqa: B018
    with pytest.raises(rw.UsageError, match=r"no adapter 'from_pair'; did you mean 'from_pairs'"):
        rw.adapters.load("from_pair")
    with pytest.raises(rw.UsageError, match=r"'its-estimators' adds to reweigh\.adapters"):
        rw.adapters.load("broken")
