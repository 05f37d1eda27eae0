"""Bins at the quantiles of a log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reweigh as rw
from reweigh.log import abstractions
from reweigh.log.abstractions import edges_of, in_sample, sample_level

from .samples import csv_file, table

numbers = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60)


@given(numbers, st.integers(2, 8))
def test_edges_are_the_values_at_the_ranks(values: list[float], bins: int) -> None:
    """A slow twin: the value below which ⌊jn/bins⌋ of the sorted values stand, one by one."""
    in_order = sorted(values)
    expected: list[float] = []
    for j in range(1, bins):
        edge = in_order[j * len(values) // bins]
        if edge > in_order[0] and edge not in expected:
            expected.append(edge)
    assert list(edges_of(np.array(values), bins)) == expected


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=60, unique=True), st.integers(2, 8))
def test_different_values_fill_bins_alike(values: list[int], bins: int) -> None:
    edges = edges_of(np.array(values, float), bins)
    sizes = np.bincount(np.searchsorted(edges, values, side="right"))
    if len(values) >= bins:
        assert len(sizes) == bins
        assert sizes.max() - sizes.min() <= 1


def log_of(x: Any, **more: Any) -> dict[str, Any]:
    n = len(x)
    return {
        "episode": [k // 3 for k in range(n)], "step": [k % 3 for k in range(n)], "x": list(x),
        "action": [k % 2 for k in range(n)], "reward": [k / n for k in range(n)],
        "behavior_prob": [0.5] * n, **more,
    }  # fmt: skip


X = np.random.default_rng(0).permutation(300) / 8 + 1 / 16  # different fractions


def test_a_log_in_bins_is_the_log_on_the_grid_of_its_edges() -> None:
    log = rw.read_log(table(log_of(X)), state="x", abstraction=rw.Quantiles(5))
    edges = edges_of(X, 5)
    grid = rw.read_log(table(log_of(X)), state="x", abstraction=rw.Grid([list(edges)]))
    np.testing.assert_array_equal(log.steps.state, grid.steps.state)
    assert log.states == grid.states
    assert np.bincount(log.steps.state).tolist() == [60] * 5
    assert log.abstraction == f"Quantiles(bins=5, edges=({edges!r},))"
    [note] = log.describe()["notes"]
    assert note == f"bins: x at {', '.join(f'{edge:.6g}' for edge in edges)}"


def test_edges_can_be_given_to_another_log() -> None:
    first = rw.read_log(table(log_of(X[:150])), state="x", abstraction=rw.Quantiles(3))
    edges = edges_of(X[:150], 3)
    other = rw.Quantiles(3, edges=[edges])
    second = rw.read_log(table(log_of(X[150:])), state="x", abstraction=other)
    assert second.abstraction == first.abstraction
    alone = rw.read_log(table(log_of(X[150:])), state="x", abstraction=rw.Quantiles(3))
    assert alone.abstraction != first.abstraction


def test_labels_stay_beside_bins(tmp_path: Path) -> None:
    """One number is for the columns of floats; one per column says which."""
    columns = log_of(X, ward=["icu", "ed"] * 150, hr=[60 + k % 50 for k in range(300)])
    for data in (table(columns), csv_file(tmp_path / "log.csv", columns)):
        log = rw.read_log(data, state=["ward", "x", "hr"], abstraction=rw.Quantiles(2))
        above = (np.median(X) <= X).astype(int).tolist()
        assert set(log.states.values) == set(
            zip(columns["ward"], above, columns["hr"], strict=True)
        )
        log = rw.read_log(data, state=["ward", "x", "hr"], abstraction=rw.Quantiles([0, 2, 5]))
        assert len(log.states) == 2 * 2 * 5
        log = rw.read_log(data, state="hr", abstraction=rw.Quantiles([5]))
        assert len(log.states) == 5


def test_one_value_is_one_bin_and_nulls_are_hidden() -> None:
    log = rw.read_log(table(log_of([0.5] * 6)), state="x", abstraction=rw.Quantiles(4))
    assert log.states.values == (0,)
    columns = log_of([0.5, None, 1.5, 2.5, 3.5, 4.5])
    with pytest.raises(rw.InputError, match="'x' must not be null"):
        rw.read_log(table(columns), state="x", abstraction=rw.Quantiles(2))
    log = rw.read_log(table(columns), state="x", abstraction=rw.Quantiles(2), hidden="allow")
    assert np.bincount(log.steps.state + 1).tolist() == [1, 2, 3]


@pytest.mark.parametrize("bins", [1, 0, -2, 2.5, [0], [], [1, 2], "5"])
def test_what_are_no_bins(bins: Any) -> None:
    with pytest.raises((rw.UsageError, TypeError)):
        rw.Quantiles(bins)


@pytest.mark.parametrize(
    ("columns", "state", "bins", "word"),
    [
        (log_of([1, 2, 3]), "x", 2, "no state column holds floats"),
        (log_of(X), "x", [2, 2], "bins for 2 columns"),
        (log_of(["a", "b", "c"]), "x", [2], "must be a number"),
        (log_of([1.5, np.inf, 2.0]), "x", 2, "must be a finite number"),
    ],
)
def test_what_cannot_be_put_into_bins(columns: Any, state: Any, bins: Any, word: str) -> None:
    with pytest.raises((rw.UsageError, rw.InputError), match=word):
        rw.read_log(table(columns), state=state, abstraction=rw.Quantiles(bins))


def test_large_logs_are_sampled_by_the_hash_of_their_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [sample_level(n) for n in (1, 1 << 20, (1 << 20) + 1, 1 << 21, 1 << 24)] == [
        0,
        0,
        1,
        1,
        4,
    ]
    monkeypatch.setattr(abstractions, "SAMPLE", 100)
    log = rw.read_log(table(log_of(X)), state="x", abstraction=rw.Quantiles(4))
    held = in_sample(map(str, range(100)), 2)  # 300 rows: 1 in 4 episodes
    assert 10 < held.sum() < 45
    edges = edges_of(X[np.repeat(held, 3)], 4)
    assert log.abstraction == f"Quantiles(bins=4, edges=({edges!r},))"
    # the blocks of a jackknife are made of the same hashes
    ids = log.steps.episode
    assert (log.steps.blocks(4) == 0).tolist() == held[ids].tolist()
    one = log_of(X, episode=[7] * 300, step=range(300))
    with pytest.raises(rw.RefusedError, match="too few episodes"):
        rw.read_log(table(one), state="x", abstraction=rw.Quantiles(2))


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_every_engine_has_the_same_edges(
    sampled: bool, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.parquet as pq

    from reweigh.sums.engines import stream

    if sampled:
        monkeypatch.setattr(abstractions, "SAMPLE", 100)
    monkeypatch.setattr(stream, "BATCH", 64)
    columns = log_of(X, ward=["icu", "ed"] * 150, hr=[60 + k % 50 for k in range(300)])
    columns["episode"] = [f"p{k // 3}" for k in range(300)]
    path = tmp_path / f"log.{kind}"
    if kind == "csv":
        csv_file(path, columns)
    else:
        pq.write_table(pa.table(columns), path)
    reading: dict[str, Any] = {"state": ["ward", "x", "hr"], "abstraction": rw.Quantiles([0, 3, 2])}
    target = rw.TablePolicy({(w, x, h): {0: 0.3, 1: 0.7} for w in ("icu", "ed")
                             for x in range(3) for h in range(2)})  # fmt: skip
    described, values = [], []
    for engine in ("arrays", "stream", "duckdb"):
        log = rw.read_log(path, engine=engine, **reading)
        about = log.describe()
        described.append(
            {k: about[k] for k in ("abstraction", "states", "state_examples", "notes")}
        )
        values.append(rw.evaluate_all(log, target, [rw.mis()])[0].value)
    assert described[1] == described[0]
    assert described[2] == described[0]
    np.testing.assert_allclose(values, values[0], rtol=1e-12)


def test_an_engine_of_others_that_finds_none_says_so() -> None:
    from reweigh.sums.read import _with_bins

    class Foreign:
        name = "foreign"

    reading = type("Reading", (), {"abstraction": rw.Quantiles(5)})()
    with pytest.raises(rw.UsageError, match="foreign does not find quantiles"):
        _with_bins(None, reading, Foreign())  # type: ignore[arg-type]
