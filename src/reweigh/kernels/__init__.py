"""The compiled kernels, which of them does the work over rows, and the same in NumPy for few rows.

Every module of this package imports Numba, which takes about 0.7 s to import and to load its
compiled kernels, once per process. Below COMPILED_FROM rows it would be loaded in vain more often
than not: `pick` and `kernel` import a module when a log is large enough.

Rows are time-major, the longest episodes first (`log/steps.py`), so row k of step t + 1 is what
follows row k of step t, and work vectors hold one step: O(S) memory beside the results. A state's
column is its code, and END's is the last, `width - 1`. Every sum is a float64 and is taken in the
order of the rows; nothing depends on threads.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
COMPILED_FROM = 100_000  # rows

# Codes that are not states of a log: END absorbs (reward 0, ratio 1); UNKNOWN is a next state that
# was not logged; START stands for a hidden first state.
HIDDEN, END, UNKNOWN, START = -1, -2, -3, -4

# Of the marks by which logs are told apart (log/steps.py).
SPREAD = 316.4334022399462  # 2^9 / golden ratio: fractions of its multiples lie everywhere
MIX = 648055.6077874098  # 2^20 / golden ratio
MARKS = 2.0**24  # values of a mark: 2^39 rows add up to less than 2^63
LARGE, FOLD = 2.0**20, 2.0**-30
GOLDEN, FIRST, SECOND = (
    np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


@contextmanager
def compiled(rows: int = 0) -> Iterator[None]:
    """Inside, compiled kernels are used from so many rows on: for work on many small logs."""
    global COMPILED_FROM
    before, COMPILED_FROM = COMPILED_FROM, rows
    try:
        yield
    finally:
        COMPILED_FROM = before


def pick(name: str, size: int, plain: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled function `module.function`, or this one in NumPy for few rows."""
    return kernel(name) if size >= COMPILED_FROM else plain


@cache
def kernel(name: str) -> Callable[..., Any]:
    """The compiled function `module.function`."""
    module, _, function = name.rpartition(".")
    found: Callable[..., Any]
    found = getattr(importlib.import_module(f"reweigh.kernels.{module}"), function)
    return found


def draw(seed: int, block: int, thresholds: Array, counts: Array) -> None:
    """See `reweigh.kernels.resample.draw`: the same draws, to the bit."""
    width = counts.shape[1]
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64
        key = _mixed(np.array([seed], np.uint64) + GOLDEN)
        key = _mixed(key + np.arange(len(counts), dtype=np.uint64))
        replicate = np.arange(block * width, (block + 1) * width, dtype=np.uint64)
        x = _mixed(key[:, None] + replicate[None, :] * GOLDEN)
    counts[:] = np.searchsorted(thresholds, x, side="right")


def _mixed(x: Array) -> Array:
    x = (x ^ (x >> np.uint64(30))) * FIRST
    x = (x ^ (x >> np.uint64(27))) * SECOND
    return np.asarray(x ^ (x >> np.uint64(31)))


def look_up(offsets: Array, state: Array, action: Array, table: Array, found: Array) -> None:
    """found = table[t, state, action] of the rows; table (1, S, A) is the same at every step. The
    last of the states is the hidden one."""
    steps, states, actions = table.shape
    for t in range(len(offsets) - 1):
        rows = slice(offsets[t], offsets[t + 1])
        s = np.where(state[rows] < 0, states - 1, state[rows]).astype(np.int64)
        here = table[t if steps > 1 else 0].reshape(-1)
        # The places are all inside the table: "wrap" spares the check that copies.
        np.take(here, s * actions + action[rows], out=found[rows], mode="wrap")
