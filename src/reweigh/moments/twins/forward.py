"""The forward recursion of MIS over the rows of a log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.logs.states import END
from reweigh.moments.groups import tally

Array = npt.NDArray[Any]
CHUNK = 1 << 13  # rows: pieces of 64 KiB, which a system hands out again without clearing them


def forward(
    offsets: Array,
    state: Array,
    ending: Array,
    pi: Array,
    mu: Array,
    reward: Array,
    max_ratio: float,
    mode: int,
    d: Array,
    visits: Array,
    steps: Array,
) -> int:
    """See `reweigh.moments.kernels.forward.forward`."""
    horizon, width = len(offsets) - 1, d.shape[1]
    end = width - 1
    visits[0] = np.bincount(state[: len(ending)], minlength=width)
    d[0] = visits[0] / len(ending)
    scale, ended = 1.0, 0.0

    def follow(rows: slice, t: int) -> Array:
        return next_columns(offsets, state, ending, t, end, rows)

    for t in range(horizon):
        going, alive = rows_after(offsets, t), int(offsets[t + 1] - offsets[t])
        here = d[t]
        visits[t, end] = ended
        c = float(here.sum())
        steps[0, t], steps[1, t] = 1.0, scale * c
        if mode == 1 and t > 0 and c > 0:
            steps[0, t] = c
            scale *= c
            here /= c
        by_visit = here / np.maximum(visits[t], 1.0)
        by_reward = by_move = by_visit
        if mode == 2 or np.any(ending[going:alive] < END):
            divisors = np.zeros((2, width))
            for rows in chunks(offsets, t):
                s, rho, after = state[rows], ratios(pi[rows], mu[rows], max_ratio), follow(rows, t)
                each = rho if mode == 2 else np.ones(len(s))
                known = (after >= 0) | (t + 1 == horizon)
                divisors += tally(s, each, width), tally(s[known], each[known], width)
            by_reward, by_move = here * inverse(divisors[0]), here * inverse(divisors[1])
        # d_{t+1}(s') = Σ_s P̂_t(s'|s) d_t(s): each row carries d_t(s) ρ/M on to its s'
        sums = np.zeros(4)
        for rows in chunks(offsets, t):
            s, rho, after = state[rows], ratios(pi[rows], mu[rows], max_ratio), follow(rows, t)
            w = by_reward[s] * rho
            omega = w if by_reward is by_visit else by_visit[s] * rho
            carried = w if by_move is by_reward else by_move[s] * rho
            sums += w @ reward[rows], w.sum(), omega.sum(), omega @ omega
            if rows.stop - offsets[t] > going:
                to = after >= 0
                after, carried = after[to], carried[to]
            d[t + 1] += tally(after, carried, width)
        if going:
            after = state[offsets[t + 1] : offsets[t + 1] + going]
            visits[t + 1] = np.bincount(after, minlength=width)
        ended += float(np.sum(ending[going:alive] == END))
        d[t + 1, end] += here[end]  # END stays END
        sums[1] += here[end]
        if visits[t, end] > 0:
            sums[2:] += here[end], here[end] ** 2 / visits[t, end]
        steps[2:, t] = sums
        if not sums[1] > 0:
            return t
    visits[horizon, end] = ended
    return -1


def chunks(offsets: Array, t: int) -> Iterator[slice]:
    """The rows of step t in pieces that stay in a processor's cache."""
    low, high = int(offsets[t]), int(offsets[t + 1])
    for start in range(low, high, CHUNK):
        yield slice(start, min(start + CHUNK, high))


def rows_after(offsets: Array, t: int) -> int:
    """Rows of step t that another row follows."""
    return int(offsets[t + 2] - offsets[t + 1]) if t + 2 < len(offsets) else 0


def ratios(pi: Array, mu: Array, max_ratio: float) -> Array:
    """ρ = π/μ, clipped."""
    rho = pi / mu
    return rho if max_ratio == np.inf else np.minimum(rho, max_ratio)


def next_columns(
    offsets: Array, state: Array, ending: Array, t: int, end: int, rows: slice
) -> Array:
    """The column of what follows these rows of step t, -1 where that is not known."""
    going, start = rows_after(offsets, t), int(offsets[t + 1])
    first, stop = rows.start - int(offsets[t]), rows.stop - int(offsets[t])
    after = state[start + first : start + min(stop, going)].astype(np.int64)
    if stop <= going:
        return after
    last = ending[max(first, going) : stop]
    last = np.where(last == END, end, np.where(last < 0, -1, last))
    return np.concatenate([after, last]) if first < going else last


def inverse(values: Array) -> Array:
    """1/x, and 0 where x is 0."""
    return np.where(values > 0, 1.0 / np.where(values > 0, values, 1.0), 0.0)
