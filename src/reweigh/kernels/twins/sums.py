"""Sums by key within the steps of a log, some steps at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.kernels.codes import HIDDEN, START, UNKNOWN
from reweigh.kernels.groups import stable_order

Array = npt.NDArray[Any]
CHUNK = 1 << 15  # rows


def order_rows(
    offsets: Array, key: Array, places: int, blocks: int, order: Array, counts: Array
) -> None:
    """See `reweigh.kernels.sums.order_rows`."""
    most = max((1 << 62) // (places * blocks), 1)  # steps whose keys fit into one number
    for steps in _pieces(offsets, most):
        rows = slice(int(offsets[steps.start]), int(offsets[steps.stop]))
        alive = np.diff(offsets[steps.start : steps.stop + 1])
        step = np.repeat(np.arange(steps.stop - steps.start), alive)
        code = key[rows] + step * (places * blocks)
        place = stable_order(code, (steps.stop - steps.start) * places * blocks)
        order[rows] = place - np.repeat(offsets[steps.start : steps.stop] - rows.start, alive)
        code = code[place]
        cells = code[np.concatenate([[True], code[1:] != code[:-1]])]
        t, cells = np.divmod(cells, places * blocks)
        found = np.bincount(t * blocks + cells // places, minlength=len(alive) * blocks)
        counts[:, steps] = found.reshape(-1, blocks).T


def sum_rows(
    offsets: Array,
    key: Array,
    places: int,
    order: Array,
    starts: Array,
    rho: Array,
    y: Array,
    z: Array,
    one: Array,
    pi: Array,
    mu: Array,
    first: Array,
    n: Array,
    sums: Array,
) -> None:
    """See `reweigh.kernels.sums.sum_rows`: the same sums to the bit."""
    blocks = len(starts)
    for steps in _pieces(offsets, len(offsets)):
        rows = slice(int(offsets[steps.start]), int(offsets[steps.stop]))
        alive = np.diff(offsets[steps.start : steps.stop + 1])
        row = order[rows] + np.repeat(offsets[steps.start : steps.stop], alive)
        step = np.repeat(np.arange(steps.start, steps.stop), alive)
        keys = key[row]
        new = np.concatenate([[True], (keys[1:] != keys[:-1]) | (step[1:] != step[:-1])])
        index = np.cumsum(new) - 1
        at = np.flatnonzero(new)
        block = keys[at] // places if blocks > 1 else np.zeros(len(at), np.int64)
        # the cells of a block and step stand one after the other
        group = step[at] * blocks + block
        opens = np.concatenate([[True], group[1:] != group[:-1]])
        within = np.arange(len(at)) - np.flatnonzero(opens)[np.cumsum(opens) - 1]
        cell = starts[block, step[at]] + within
        first[cell] = row[at]
        n[cell] = np.bincount(index)
        r, reward = rho[row], y[row]
        value = z[row] if len(z) else r * reward
        ones = one[row] if len(one) else r
        each = [r, r * r, value, r * value, value * value, reward, reward * reward, ones]
        each += [pi[row], pi[row] ** 2, mu[row]] if len(pi) else []
        for j, values in enumerate(each):
            sums[j, cell] = np.bincount(index, values)


def stretches(
    offsets: Array,
    state: Array,
    ending: Array,
    rho: Array,
    reward: Array,
    gamma: float,
    begins: Array,
    episode: Array,
    s: Array,
    t_next: Array,
    s_next: Array,
    values: Array,
) -> None:
    """See `reweigh.kernels.sums.stretches`."""
    n = len(ending)
    after_t, after_s = np.empty(n, np.int64), np.empty(n, np.int64)
    work = np.empty((4, n))
    fresh = np.array([[1.0], [0.0], [0.0], [0.0]])
    for t in range(len(offsets) - 2, -1, -1):
        low, alive = int(offsets[t]), int(offsets[t + 1] - offsets[t])
        going = int(offsets[t + 2] - offsets[t + 1]) if t + 2 < len(offsets) else 0
        after_t[going:alive] = t + 1
        after_s[going:alive] = np.where(ending[going:alive] == HIDDEN, UNKNOWN, ending[going:alive])
        work[:, going:alive] = fresh
        r, y = rho[low : low + alive], reward[low : low + alive]
        product, z, plain, one = work[:, :alive]
        # R ← ρ_t R,   z ← ρ_t (y_t + γ z); what cannot happen counts 0, however large the rest
        work[0, :alive] = np.where(r != 0, r * product, 0.0)
        work[1, :alive] = np.where(r != 0, r * (y + gamma * z), 0.0)
        work[2, :alive] = y + gamma * plain
        work[3, :alive] = np.where(r != 0, r * (1.0 + gamma * one), 0.0)
        here = state[low : low + alive]
        k = np.arange(alive) if t == 0 else np.flatnonzero(here != HIDDEN)
        at = slice(int(begins[t]), int(begins[t + 1]))
        episode[at], s[at] = k, np.where(here[k] == HIDDEN, START, here[k])
        t_next[at], s_next[at] = after_t[k], after_s[k]
        values[:, at] = work[:, k]
        after_t[k], after_s[k] = t, here[k]
        work[:, k] = fresh


def _pieces(offsets: Array, most: int) -> Iterator[slice]:
    """Consecutive steps, so many at most and of at most CHUNK rows together, or one; without those
    that have no rows."""
    horizon, start = len(offsets) - 1, 0
    while start < horizon:
        fits = int(np.searchsorted(offsets, offsets[start] + CHUNK, side="right")) - 1
        stop = min(max(fits, start + 1), start + most, horizon)
        if offsets[stop] > offsets[start]:
            yield slice(start, stop)
        start = stop
