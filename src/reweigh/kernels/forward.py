"""The forward recursion of MIS over the rows of a log."""

from __future__ import annotations

from typing import Any

import numpy as np

from reweigh.kernels.common import (
    END,
    Array,
    compiled,
    inlined,
    total,
)
from reweigh.kernels.vectors import add_at

U1, U2 = np.uint64(1), np.uint64(2)
FEW = 1024  # states: both halves of what arrives are at hand


@inlined
def _rows(
    code: Array,
    low: Any,
    high: Any,
    going: Any,
    bits: int,
    rho: Array,
    by_code: bool,
    reward: Array,
    at: Any,
    weight: Array,
    arrived: Array,
    apart: Any,
    all_sums: bool,
) -> tuple[float, float, float]:
    """See `_carry`; what is asked here is a constant where this is compiled into."""
    earned, second, logged, more, squared, paid = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for k in range(np.uint64(0), going - going % U2, U2):
        j = k + U1
        own, next_own, y, next_y = code[low + k], code[low + j], reward[at + k], reward[at + j]
        w = weight[own >> bits] * (rho[own] if by_code else rho[at + k])
        v = weight[next_own >> bits] * (rho[next_own] if by_code else rho[at + j])
        add_at(arrived, U2 * (code[high + k] >> bits), (w, 1.0))
        add_at(arrived, U2 * (code[high + j] >> bits) + apart, (v, 1.0))
        earned += w * y
        more += v * next_y
        if all_sums:
            second += w * w
            squared += v * v
            logged += y
            paid += next_y
    for k in range(going - going % U2, going):
        own, y = code[low + k], reward[at + k]
        w = weight[own >> bits] * (rho[own] if by_code else rho[at + k])
        add_at(arrived, U2 * (code[high + k] >> bits), (w, 1.0))
        earned += w * y
        if all_sums:
            second += w * w
            logged += y
    return earned + more, second + squared, logged + paid


@compiled
def _carry(
    code: Array,
    low: Any,
    high: Any,
    going: Any,
    bits: int,
    rho: Array,
    by_code: bool,
    reward: Array,
    at: Any,
    weight: Array,
    arrived: Array,
    apart: Any,
    all_sums: bool,
) -> tuple[float, float, float]:
    """The rows of one step that another follows, `going` from `low` on, in rho and reward from
    `at` on, the next ones from `high` on: d_t(s) ρ/N is carried on to s', and counted there: both
    numbers of s' in `arrived`, those of every other row `apart` from them: of few states the next
    row would often have to wait for the last. Returns what they earn and, if all sums are asked
    for, those of their squares and of the logged rewards. Places, not slices: these count
    references, for which short steps would wait."""
    # Asked once: inside the loop it costs several times what the sums do.
    where = code, low, high, going, bits, rho
    if by_code and all_sums:
        return _rows(*where, True, reward, at, weight, arrived, apart, True)
    if by_code:
        return _rows(*where, True, reward, at, weight, arrived, apart, False)
    if all_sums:
        return _rows(*where, False, reward, at, weight, arrived, apart, True)
    return _rows(*where, False, reward, at, weight, arrived, apart, False)


@compiled
def _carry_last(
    code: Array,
    low: int,
    going: int,
    alive: int,
    bits: int,
    ending: Array,
    rho: Array,
    by_code: bool,
    reward: Array,
    at: int,
    weight: Array,
    there: Array,
) -> tuple[float, float, float, float, float]:
    """The same of rows that no other follows: to what their episode ended in, if that is known."""
    earned, second, logged, first, ended = 0.0, 0.0, 0.0, 0.0, 0.0
    for k in range(going, alive):
        own, after, y = code[low + k], ending[k], reward[at + k]
        w = weight[own >> bits] * (rho[own] if by_code else rho[at + k])
        if after >= 0:
            there[np.uint32(after)] += w
        elif after == END:
            ended += 1.0
            there[len(there) - 1] += w
        earned += w * y
        second += w * w
        logged += y
        first += w
    return earned, second, logged, first, ended


@compiled
def forward(
    offsets: Array, code: Array, bits: int, ending: Array, rho: Array, by_code: bool, reward: Array,
    simplex: bool, d: Array, visits: Array, steps: Array, since: int, until: int, keep: bool,
) -> int:  # fmt: skip
    """The forward recursion of MIS, plain or on the simplex, of a log without cut-off episodes.

    A row's state is its code >> bits; rho is that of every row, or `by_code` of every code. From
    step `since` on, before which it was run already, up to `until`: reward, and rho by row, are
    those of these steps alone.

    Fills d, visits (H+1, width) and steps (7, H): mass c_t before dividing by it, Σ_s d_t without
    any normalisation, <d_t, r̂_t>, the same of a reward of 1, Σω, Σω² of the rows' weights, and
    the sum of the logged rewards. Unless all is to be kept, for which the value has no use, d and
    visits have two lines, for a step and the next, and the last two sums are nan. Returns the first
    step at which no row is possible under the target, or -1.
    """
    horizon, width, lines = len(offsets) - 1, d.shape[1], len(d)
    n, end = len(ending), width - 1
    per_row = np.empty(width)
    apart = 2 * width if width <= FEW else 0
    arrived = np.zeros(2 * width + apart)
    if since == 0:
        visits[0] = 0.0
        for k in range(n):
            visits[0, code[k] >> bits] += 1.0
        for s in range(width):
            d[0, s] = visits[0, s] / n
    scale, ended = 1.0, visits[since % lines, end]
    for t in range(since):
        scale *= steps[0, t]
    for t in range(since, until):
        low, high = offsets[t], offsets[t + 1]
        first_row, alive = low - offsets[since], high - low
        going = offsets[t + 2] - high if t + 1 < horizon else 0
        here, seen = d[t % lines], visits[t % lines]
        there, arriving = d[(t + 1) % lines], visits[(t + 1) % lines]
        seen[end] = ended
        c = total(here)
        steps[0, t], steps[1, t] = 1.0, scale * c
        if simplex and t > 0 and c > 0:
            steps[0, t] = c
            scale *= c
        each = 1.0 / steps[0, t]
        for s in range(width):
            here[s] *= each
            per_row[s] = here[s] / max(seen[s], 1.0)
        # d_{t+1}(s') = Σ_s P̂_t(s'|s) d_t(s): each row carries d_t(s) ρ/N on to its s'
        earned, second, logged = _carry(
            code, np.uint64(low), np.uint64(high), np.uint64(going), bits, rho, by_code, reward,
            np.uint64(first_row), per_row, arrived, np.uint64(apart), keep,
        )  # fmt: skip
        for s in range(apart):
            arrived[s] += arrived[apart + s]
            arrived[apart + s] = 0.0
        for s in range(width):
            there[s], arriving[s] = arrived[2 * s], arrived[2 * s + 1]
            arrived[2 * s] = arrived[2 * s + 1] = 0.0
        mass = total(there)
        more, squared, paid, weight, over = _carry_last(
            code, low, going, alive, bits, ending, rho, by_code, reward, first_row, per_row, there
        )
        ended += over
        there[end] += here[end]  # END stays END
        first, second = mass + weight, second + squared
        placebo = first + here[end]
        if seen[end] > 0:
            first += here[end]
            second += here[end] ** 2 / seen[end]
        steps[2, t], steps[3, t], steps[4, t] = earned + more, placebo, first
        steps[5, t], steps[6, t] = (second, logged + paid) if keep else (np.nan, np.nan)
        if not placebo > 0:
            return t
    visits[until % lines, end] = ended
    return -1
