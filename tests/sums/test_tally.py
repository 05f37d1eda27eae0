"""Sums by index, of one column and of many."""

from __future__ import annotations

import numpy as np
import pytest

from reweigh.kernels import tally


@pytest.mark.parametrize("columns", [1, 2, 5])
def test_columns_add_up_as_each_alone_to_the_last_bit(columns: int) -> None:
    rng = np.random.default_rng(0)
    index, weights = rng.integers(0, 7, 500), rng.normal(size=(500, columns)) * 1e8
    found = tally(index, weights, 9)
    assert found.shape == (9, columns)
    for column in range(columns):
        assert np.array_equal(found[:, column], tally(index, weights[:, column], 9))
        assert found[3, column] == pytest.approx(weights[index == 3, column].sum(), rel=1e-9)
    assert tally(index[:0], weights[:0], 3).tolist() == [[0.0] * columns] * 3
