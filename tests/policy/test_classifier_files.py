"""Classifiers saved with skops as targets; what could run code is refused."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import reweigh as rw

pd = pytest.importorskip("pandas")
linear = pytest.importorskip("sklearn.linear_model")


def table(n: int = 600) -> pa.Table:
    rng = np.random.default_rng(0)
    bp = rng.normal(70, 10, n)
    return pa.table(
        {
            "episode": np.arange(n) // 3,
            "step": np.arange(n) % 3,
            "state": (bp > 70).astype(int),
            "bp": bp,
            "action": np.where(rng.random(n) < 0.5, "a", "b"),
            "reward": rng.random(n),
            "behavior_prob": np.full(n, 0.5),
        }
    )


def fitted() -> Any:
    rows = table().to_pandas()
    return linear.LogisticRegression().fit(rows[["bp"]], np.where(rows["bp"] > 70, "a", "b"))


@pytest.mark.parametrize("engine", ["arrays", "stream"])
def test_a_saved_model_is_the_model(engine: str, tmp_path: Path) -> None:
    skops = pytest.importorskip("skops.io")
    path = tmp_path / "model.skops"
    skops.dump(fitted(), path)
    target = rw.read_policy(path)
    assert (target.name, target.files) == (str(path), (path,))  # type: ignore[attr-defined]
    for recipe in (rw.mis(), rw.dm()):
        here = rw.evaluate(rw.read_log(table()), rw.adapters.ClassifierPolicy(fitted()), recipe)
        there = rw.evaluate(rw.read_log(table(), engine=engine), target, recipe)
        assert there.value == pytest.approx(here.value, rel=1e-9)


def test_types_that_are_not_trusted_are_named(tmp_path: Path, monkeypatch: Any) -> None:
    skops = pytest.importorskip("skops.io")
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    def shouts(x: Any) -> Any:
        raise AssertionError("it ran")

    shouts.__module__, shouts.__qualname__ = "elsewhere", "shouts"
    monkeypatch.setitem(sys.modules, "elsewhere", ModuleType("elsewhere"))
    sys.modules["elsewhere"].shouts = shouts  # type: ignore[attr-defined]
    model = make_pipeline(FunctionTransformer(shouts), fitted())
    skops.dump(model, tmp_path / "model.skops")
    with pytest.raises(rw.InputError, match=r"not trusted, .*: elsewhere\.shouts\."):
        rw.read_policy(tmp_path / "model.skops")


def test_what_is_no_classifier(tmp_path: Path) -> None:
    skops = pytest.importorskip("skops.io")
    skops.dump(linear.LinearRegression().fit([[1.0], [2.0]], [1, 2]), tmp_path / "model.skops")
    with pytest.raises(rw.InputError, match="LinearRegression, which has no predict_proba"):
        rw.read_policy(tmp_path / "model.skops")
    (tmp_path / "model.skops").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(rw.InputError, match="cannot be read as a skops file"):
        rw.read_policy(tmp_path / "model.skops")


@pytest.mark.parametrize("name", ["model.pkl", "model.pickle", "model.joblib"])
def test_pickles_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(pickle.dumps({}))
    with pytest.raises(rw.InputError, match=r"Save the model with skops\.io\.dump"):
        rw.read_policy(tmp_path / name)


def test_a_pickle_by_another_name_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("skops.io")
    (tmp_path / "model.skops").write_bytes(pickle.dumps({}))
    with pytest.raises(rw.InputError, match=r"Save the model with skops\.io\.dump"):
        rw.read_policy(tmp_path / "model.skops")
