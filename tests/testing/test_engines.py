"""The conformance check of engines, on our own; and it notices an engine that is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reweigh.sums.engines.sql import IbisEngine
from reweigh.sums.engines.stream import StreamEngine
from reweigh.sums.tables import BUILT_IN
from reweigh.testing import check_engine, engine_matrix

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "moments.md"
OWN = {"own_rows", "own_stretches", "own_episodes", "own_windows", "own_long_windows"}


@pytest.mark.parametrize(
    ("engine", "lacks"),
    [
        ("arrays", set()),
        ("stream", set()),
        (StreamEngine(fast=False), set()),
        (StreamEngine(batch=64), set()),
        ("duckdb", {"policy"}),
    ],
    ids=["arrays", "stream", "stream-general", "stream-batches", "duckdb"],
)
def test_every_table_is_as_declared(engine, lacks) -> None:
    assert set(check_engine(engine)) == (BUILT_IN.keys() | OWN) - lacks


class Doubling(IbisEngine):
    """Counts every reward twice in one table."""

    def moments(self, data, reading, target, request):
        sums = super().moments(data, reading, target, request)
        return replace(sums, model=replace(sums.model, y=2 * sums.model.y))


class Losing(StreamEngine):
    """Leaves a cell out."""

    def moments(self, data, reading, target, request):
        sums = super().moments(data, reading, target, request)
        cells = sums.transitions
        return replace(sums, transitions=cells.select(cells.t < 5))


@pytest.mark.parametrize(
    ("engine", "words"), [(Doubling("duckdb"), "model.y is off by"), (Losing(), "transitions")]
)
def test_an_engine_that_is_wrong_is_noticed(engine, words) -> None:
    with pytest.raises(AssertionError, match=words):
        check_engine(engine)


def test_the_page_shows_what_engines_answer() -> None:
    """It is what `engine_matrix` prints."""
    assert engine_matrix() in PAGE.read_text()
