"""The Poisson bootstrap of MIS, one replicate after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.kernels.groups import tally
from reweigh.kernels.twins.common import Rows, inverse

Array = npt.NDArray[Any]
GOLDEN, FIRST, SECOND = (
    np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


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


def replicate(
    offsets: Array,
    state: Array,
    ending: Array,
    rho: Array,
    reward: Array,
    gamma: float,
    mode: int,
    width: int,
    counts: Array,
    values: Array,
    kept_d: Array,
    kept_n: Array,
    kept_mass: Array,
) -> None:
    """See `reweigh.kernels.resample.replicate`."""
    given = Rows(offsets, state, 0, ending, rho, False, reward, 0, len(offsets) - 1)
    horizon, end, n_values = len(offsets) - 1, width - 1, len(values)
    drawn = counts.astype(np.float64)
    first = state[: len(ending)]
    total = drawn.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):  # no episode drawn: 0/0 is the NaN told
        d = [tally(first, drawn[:, b], width) / total[b] for b in range(n_values)]
    values[:] = 0.0
    for t in range(horizon):
        rows = slice(int(offsets[t]), int(offsets[t + 1]))
        s, r, y = state[rows], rho[rows], reward[rows]
        after = given.after(t, rows, end)
        known = (after >= 0) | (t + 1 == horizon)
        to = after >= 0
        for b in range(n_values):
            n = drawn[: len(s), b]
            c = float(d[b].sum()) if mode == 1 and t > 0 and d[b].sum() > 0 else 1.0
            d[b] = d[b] / c
            if len(kept_d):
                kept_d[t, :, b], kept_mass[t, b] = d[b], 1 / c
                kept_n[t, :, b] = tally(s, n, width)
            per_row = n * r if mode == 2 else n
            by_reward = d[b] * inverse(tally(s, per_row, width))
            by_move = d[b] * inverse(tally(s[known], per_row[known], width))
            w = by_reward[s] * r * n
            moved = by_move[s] * r * n
            values[b] += gamma**t * float(w @ y)
            if not float(w.sum()) + d[b][end] > 0:
                values[b] = np.nan
            ended = d[b][end]
            d[b] = tally(after[to], moved[to], width)
            d[b][end] += ended  # END stays END


def spread(
    offsets: Array,
    state: Array,
    ending: Array,
    rho: Array,
    reward: Array,
    gamma: float,
    mode: int,
    width: int,
    counts: Array,
    d: Array,
    seen: Array,
    by_mass: Array,
    start: Array,
    variances: Array,
) -> None:
    """See `reweigh.kernels.resample.spread`."""
    given = Rows(offsets, state, 0, ending, rho, False, reward, 0, len(offsets) - 1)
    horizon, end = len(offsets) - 1, width - 1
    first = state[: len(ending)]
    for b in range(len(variances)):
        drawn = counts[:, b].astype(np.float64)
        ahead, square = np.zeros(width), 0.0
        for t in range(horizon - 1, -1, -1):
            rows = slice(int(offsets[t]), int(offsets[t + 1]))
            s, r, y = state[rows], rho[rows], reward[rows]
            after = given.after(t, rows, end)
            x = y + np.where(after >= 0, ahead[after], 0.0)
            n = drawn[: len(s)]
            own = r if mode == 2 else np.ones(len(s))
            x = x if mode == 2 else r * x
            each = inverse(tally(s, n * own, width))
            u = tally(s, n * own * x, width) * each
            parts = tally(s, n * (own * (x - u[s])) ** 2, width)
            square += float(np.sum((gamma**t * d[t, :, b] * each) ** 2 * parts))
            u[end] = ahead[end]
            mean = float(d[t, :, b] @ u) if mode == 1 and t > 0 else 0.0
            ahead = gamma * by_mass[t, b] * (u - mean)
        with np.errstate(invalid="ignore", divide="ignore"):  # no episode drawn: NaN
            total = drawn.sum()
            moved = u[first] + start
            mean = float(drawn @ moved) / total
            variances[b] = square + float(drawn @ (moved - mean) ** 2) / total**2
