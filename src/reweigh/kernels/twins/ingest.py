"""Checking and transposing a user's (n, H) arrays into time-major rows, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
READ, TOO_LARGE, WRONG = 0, 1, 2  # as in the kernel


def transpose_numbers(
    values: Array, order: Array, offsets: Array, low: float, high: float, rows: Array
) -> bool:
    """See `reweigh.kernels.ingest.transpose_numbers`."""
    _transpose(values, order, offsets, rows)
    return bool(rows.min() >= low and rows.max() <= high)  # a NaN fails both


def within(values: Array, order: Array, offsets: Array, low: float, high: float) -> bool:
    """See `reweigh.kernels.ingest.within`."""
    for t, alive in enumerate(np.diff(offsets).tolist()):
        here = values[order[:alive], t]
        if alive and not (here.min() >= low and here.max() <= high):  # a NaN fails both
            return False
    return True


def some_steps(
    mu: Array,
    pi: Array,
    rewards: Array,
    order: Array,
    offsets: Array,
    since: int,
    until: int,
    limit: float,
    ratios: Array,
    rows: Array,
) -> None:
    """See `reweigh.kernels.ingest.some_steps`."""
    for t in range(since, until):
        here = slice(int(offsets[t] - offsets[since]), int(offsets[t + 1] - offsets[since]))
        of = order[: here.stop - here.start]
        with np.errstate(over="ignore"):
            ratios[here] = np.minimum(pi[of, t] / mu[of, t], limit)
        rows[here] = rewards[of, t]


def transpose_codes(
    values: Array, order: Array, offsets: Array, rows: Array, last: Array, present: Array
) -> bool:
    """See `reweigh.kernels.ingest.transpose_codes`."""
    horizon = len(offsets) - 1
    whole = np.empty(len(rows), values.dtype)  # the check is of what was given, before the cast
    _transpose(values, order, offsets, whole)
    if whole.min() < 0 or whole.max() >= len(present):
        return False
    rows[:] = whole
    present[rows] = 1
    if values.shape[1] > horizon:
        complete = int(offsets[horizon] - offsets[horizon - 1])
        final = values[order[:complete], horizon]
        if complete and (final.min() < 0 or final.max() >= len(present)):
            return False
        last[:complete] = final
        present[final] = 1
    return True


def pairs(
    states: Array,
    actions: Array,
    rewards: Array,
    mu: Array,
    pi: Array,
    order: Array,
    offsets: Array,
    bits: int,
    low: float,
    high: float,
    codes: Array,
    rows: Array,
    table: Array,
    first: int,
    stop: int,
) -> int:
    """See `reweigh.kernels.ingest.pairs`; the first call reads all episodes."""
    if first > 0:
        return READ
    _transpose(rewards, order, offsets, rows)
    if not (rows.min() >= low and rows.max() <= high):  # a NaN fails both
        return WRONG
    given = np.empty((2, len(rows)), np.int64)
    for values, place in ((states, given[0]), (actions, given[1])):
        _transpose(values, order, offsets, place)
    if given.min() < 0:
        return WRONG
    if given[0].max() >= len(table) >> bits or given[1].max() >= 1 << bits:
        return TOO_LARGE
    codes[:] = (given[0] << bits) | given[1]
    probability = given[0].view(np.float64)
    for j, values in enumerate((mu, pi) if len(pi) else (mu,)):
        _transpose(values, order, offsets, probability)
        table[codes, j] = probability
        if np.any(table[codes, j] != probability):  # as a NaN always is
            return WRONG
    return READ


def _transpose(values: Array, order: Array, offsets: Array, rows: Array) -> None:
    horizon, n = len(offsets) - 1, len(order)
    if len(rows) == horizon * n:  # no episode ends early, and their order is the user's
        rows.reshape(horizon, n)[:] = values[:, :horizon].T
        return
    for t in range(horizon):
        start, stop = offsets[t], offsets[t + 1]
        rows[start:stop] = values[order[: stop - start], t]
