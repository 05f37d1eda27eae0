"""The model of the direct method over the rows of a log, some steps at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.kernels.groups import tally

Array = npt.NDArray[Any]
CHUNK = 1 << 14  # rows, and groups


def count(
    offsets: Array,
    state: Array,
    action: Array,
    last: Array,
    shift: Array,
    pi: Array,
    reward: Array,
    n_actions: int,
    sums: Array,
) -> None:
    """See `reweigh.kernels.model.count`."""
    horizon, groups = sums.shape[1:]
    moved = shift if shift.any() else None
    for steps in pieces(offsets, groups):
        rows = _rows(offsets, steps)
        group = _groups(offsets, steps, state, action, moved, n_actions, groups)
        size = (steps.stop - steps.start) * groups
        known = following(offsets, steps, state, last) >= 0
        if steps.stop == horizon:  # after the last step nothing needs to be known
            known[offsets[horizon - 1] - rows.start :] = True
        visits = np.bincount(group, minlength=size)
        moves = visits if known.all() else np.bincount(group[known], minlength=size)
        own = pi[rows], reward[rows], pi[rows] ** 2
        columns = visits, moves, *(tally(group, values, size) for values in own)
        for j, column in enumerate(columns):
            sums[j, steps] = column.reshape(-1, groups)


def forward(
    offsets: Array,
    state: Array,
    action: Array,
    last: Array,
    sums: Array,
    share: Array,
    d: Array,
) -> None:
    """See `reweigh.kernels.model.forward`."""
    width, groups = d.shape[1], share.shape[1]
    n_actions = groups // width
    for t in range(len(offsets) - 1):
        steps = slice(t, t + 1)
        M = sums[1, t]
        carried = np.repeat(d[t], n_actions) * share[t] / np.maximum(M, 1.0)
        carried[M == 0] = 0.0
        flow = carried[_groups(offsets, steps, state, action, None, n_actions, groups)]
        to = following(offsets, steps, state, last)
        if not _follows_all(offsets, t):
            flow, to = flow[to >= 0], to[to >= 0]
        d[t + 1] += tally(to, flow, width)
        d[t + 1, width - 1] += d[t, width - 1]


def backward(
    offsets: Array,
    state: Array,
    action: Array,
    last: Array,
    shift: Array,
    gamma: float,
    sums: Array,
    share: Array,
    reward: Array,
    v: Array,
    v1: Array,
) -> None:
    """See `reweigh.kernels.model.backward`."""
    horizon, columns, groups = len(offsets) - 1, v.shape[1], share.shape[1]
    n_actions = groups // columns
    shifts = bool(shift.any())
    v[:], v1[:] = 0.0, 0.0
    for t in range(horizon - 1, -1, -1):
        steps = slice(t, t + 1)
        group = _groups(offsets, steps, state, action, shift if shifts else None, n_actions, groups)
        to = following(offsets, steps, state, last)
        if shifts:
            to = np.where(to >= 0, to + shift[: len(to)], to)
        if not _follows_all(offsets, t):
            group, to = group[to >= 0], to[to >= 0]
        N, by = sums[0, t], gamma / np.maximum(sums[1, t], 1.0)
        reward[t] += by * tally(group, v[t + 1][to], groups)
        v[t] = (share[t] * reward[t]).reshape(columns, n_actions).sum(axis=1)
        if len(v1):
            one = share[t] * ((N > 0) + by * tally(group, v1[t + 1][to], groups))
            v1[t] = one.reshape(columns, n_actions).sum(axis=1)
            v1[t, -1] = 1.0 + gamma * v1[t + 1, -1]


def spread(
    offsets: Array,
    state: Array,
    action: Array,
    last: Array,
    reward: Array,
    gamma: float,
    sums: Array,
    share: Array,
    d: Array,
    v: Array,
    v1: Array,
    variance: Array,
) -> tuple[float, float, float, float]:
    """See `reweigh.kernels.model.spread`."""
    horizon, width = len(offsets) - 1, d.shape[1]
    groups = share.shape[1]
    n_actions = groups // width
    squares, placebo, corrected, spread = 0.0, 0.0, 0.0, 0.0
    for steps in pieces(offsets, groups):
        rows = _rows(offsets, steps)
        many = steps.stop - steps.start
        group = _groups(offsets, steps, state, action, None, n_actions, groups)
        y, to = reward[rows], following(offsets, steps, state, last)
        # Where the next state is not known V' counts as 0, and as known after the last step.
        at = (_step_of_row(offsets, steps) + steps.start + 1) * width + to
        x, x1 = (gamma * np.where(to >= 0, values.reshape(-1)[at], 0.0) for values in (v, v1))
        known = y
        if np.any(to < 0):
            seen = to >= 0
            if steps.stop == horizon:
                seen[offsets[horizon - 1] - rows.start :] = True
            known = np.where(seen, y, 0.0)
        columns = (y * y, x, x * x, x * y, known, x1, x1 * x1)
        y2, x, x2, xy, known, x1, x12 = (
            tally(group, values, many * groups).reshape(many, groups) for values in columns
        )
        N, M, Y = sums[0, steps], sums[1, steps], sums[3, steps]
        powers = gamma ** np.arange(steps.start, steps.stop)
        D = powers[:, None] * np.repeat(d[steps], n_actions, axis=1) * share[steps]
        per_n, per_m = 1.0 / np.maximum(N, 1.0), 1.0 / np.maximum(M, 1.0)
        a, b = D * per_n, np.where(M > 0, D * per_m, 0.0)
        r2, t2 = a * a * y2, b * b * x2
        own = r2 - (a * Y) ** 2 * per_n + t2 - (b * x) ** 2 * per_m
        own += 2.0 * a * b * (xy - known * x * per_m)
        one = b * b * (x12 - x1 * x1 * per_m)
        variance[steps] = np.maximum(own, 0.0).reshape(many, width, n_actions).sum(axis=2)
        placebo += float(np.maximum(one, 0.0).sum())
        squares += float(r2.sum() + t2.sum())
        left = np.maximum(N - 1.0, 1.0)
        own = np.where(N > 1.0, np.maximum(own, 0.0) * N / left, 0.0)
        corrected += float(own.sum())
        spread += float(np.sum(own * own / left))
    return squares, placebo, corrected, spread


def shape(
    offsets: Array,
    state: Array,
    action: Array,
    last: Array,
    shift: Array,
    reward: Array,
    gamma: float,
    q: Array,
    v: Array,
    shaped: Array,
) -> None:
    """See `reweigh.kernels.model.shape`."""
    groups, columns = q.shape[1], v.shape[1]
    n_actions = groups // columns
    shifts = bool(shift.any())
    for steps in pieces(offsets, 1):
        rows = _rows(offsets, steps)
        group = _groups(offsets, steps, state, action, shift if shifts else None, n_actions, groups)
        to = following(offsets, steps, state, last)
        at = (_step_of_row(offsets, steps) + steps.start + 1) * columns + to
        if shifts:
            at += _of_rows(offsets, steps, shift)
        ahead = np.where(to >= 0, v.reshape(-1)[at], 0.0)
        own = q[steps].reshape(-1)[group]
        shaped[rows] = reward[rows] - own + gamma * ahead


def pieces(offsets: Array, groups: int) -> Iterator[slice]:
    """Consecutive steps of at most CHUNK rows and groups together, one step at least."""
    horizon = len(offsets) - 1
    most = max(CHUNK // groups, 1)
    start = 0
    while start < horizon:
        fits = int(np.searchsorted(offsets, offsets[start] + CHUNK, side="right")) - 1
        stop = min(max(fits, start + 1), start + most, horizon)
        yield slice(start, stop)
        start = stop


def following(offsets: Array, steps: slice, state: Array, last: Array) -> Array:
    """The columns after the rows of these steps, -1 where they are not known."""
    low, high = int(offsets[steps.start]), int(offsets[steps.stop])
    if all(_follows_all(offsets, t) for t in range(steps.start, steps.stop)):
        alive = int(offsets[steps.start + 1]) - low
        return state[low + alive : high + alive].astype(np.int64)
    found = np.empty(high - low, np.int64)
    for t in range(steps.start, steps.stop):
        start, stop = int(offsets[t]), int(offsets[t + 1])
        going = int(offsets[t + 2]) - stop if t + 2 < len(offsets) else 0
        found[start - low : start - low + going] = state[stop : stop + going]
        found[start - low + going : stop - low] = last[going : stop - start]
    return found


def _follows_all(offsets: Array, t: int) -> bool:
    """Whether every row of step t has another after it."""
    if t + 2 == len(offsets):
        return False
    return bool(offsets[t + 2] - offsets[t + 1] == offsets[t + 1] - offsets[t])


def _rows(offsets: Array, steps: slice) -> slice:
    return slice(int(offsets[steps.start]), int(offsets[steps.stop]))


def _step_of_row(offsets: Array, steps: slice) -> Array:
    """The step of each row, counted from the first of these steps."""
    return np.repeat(np.arange(steps.stop - steps.start), _alive(offsets, steps))


def _alive(offsets: Array, steps: slice) -> Array:
    return np.diff(offsets[steps.start : steps.stop + 1])


def _of_rows(offsets: Array, steps: slice, values: Array) -> Array:
    """What an episode has, by row."""
    return np.concatenate([values[:alive] for alive in _alive(offsets, steps).tolist()])


def _groups(
    offsets: Array,
    steps: slice,
    state: Array,
    action: Array,
    shift: Array | None,
    n_actions: int,
    groups: int,
) -> Array:
    """The group of each row; those of the next step follow those of this one."""
    rows = _rows(offsets, steps)
    column = state[rows].astype(np.int64)
    if shift is not None:
        column += _of_rows(offsets, steps, shift)
    column *= n_actions
    column += action[rows]
    if steps.stop - steps.start > 1:
        column += _step_of_row(offsets, steps) * groups
    return column
