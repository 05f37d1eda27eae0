"""The forward recursion of MIS over the rows of a log, and the (t, s) that occur, out of arrays
over all of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from reweigh.kernels.common import (
    END,
    SEEN_ENOUGH,
    Array,
    compiled,
    greatest,
    inlined,
    total,
)
from reweigh.kernels.vectors import add_at

U1, U2 = np.uint64(1), np.uint64(2)
FEW = 1024  # states: both halves of the arriving mass fit in the cache
ROUNDING = 1e-9  # as in estimate/solution.py
SOME = 512  # states


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
    """See `_carry`; this flag is a constant in the code it is compiled into."""
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
    """The rows of one step that another follows, `going` from `low` on, in rho and reward from `at`
    on, the next ones from `high` on: d_t(s) ρ/N is carried on to s', and counted there: both
    numbers of s' in `arrived`, those of every other row `apart` from them: of few states the next
    row would often have to wait for the last. Returns their rewards and, if all sums are requested,
    those of their squares and of the logged rewards. Places, not slices: these count references,
    for which short steps would wait."""
    # Checked once: inside the loop it costs several times as much as the sums.
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
    any normalization, <d_t, r̂_t>, the same of a reward of 1, Σω, Σω² of the rows' weights, and
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


@compiled
def count(visits: Array, reached: Array) -> int:
    """How many (t, s) occur: as rows, as ended episodes, or as the state after a last row."""
    found = 0
    for t in range(visits.shape[0]):
        for s in range(visits.shape[1]):
            found += (visits[t, s] > 0) | (reached[t, s] > 0)
    return found


@compiled
def seldom(d: Array, visits: Array, variance: Array, rare: Array, at: Array) -> tuple[float, float]:
    """Fills rare (H,), the mass at (t, s) seen fewer than SEEN_ENOUGH times, and at (2,), the step
    and column of the first that has the most of it but for rounding, a state's if any has some;
    -1 without any. Returns, over those seen twice or more, the sums of C = V N/(N - 1) and of
    C²/(N - 1), with V the variance."""
    horizon, end = d.shape[0] - 1, d.shape[1] - 1
    corrected, spread, most, most_ended = 0.0, 0.0, 0.0, 0.0
    parts, squares, few = np.empty((3, SOME))
    greatest_of = np.zeros(horizon)  # the states of a step that have some, where it may be the most
    for t in range(horizon):
        rare[t] = 0.0
        for begin in range(0, end, SOME):  # as much as fits in the cache
            stop = min(begin + SOME, end)
            here, seen, own = d[t, begin:stop], visits[t, begin:stop], variance[t, begin:stop]
            many = stop - begin
            for s in range(many):  # nothing waits for anything here: four at a time
                N = seen[s]
                left = (1.0 if N > 1.0 else 0.0) / (N - 1.0 if N > 2.0 else 1.0)
                C = own[s] * N * left
                parts[s], squares[s] = C, C * C * left
                few[s] = here[s] if N < SEEN_ENOUGH else 0.0
            corrected += total(parts[:many])
            spread += total(squares[:many])
            seldom_here = total(few[:many])
            rare[t] += seldom_here
            if seldom_here >= most * (1.0 - ROUNDING):
                greatest_of[t] = greatest(few[:many], greatest_of[t])
        most = max(most, greatest_of[t])
        ended = d[t, end] if visits[t, end] < SEEN_ENOUGH else 0.0  # END has no variance
        rare[t] += ended
        most_ended = max(most_ended, ended)
    at[0] = at[1] = -1
    enough = (most if most > 0.0 else most_ended) * (1.0 - ROUNDING)
    for t in range(horizon):
        if most > 0.0 and greatest_of[t] >= enough:
            for s in range(end):
                if visits[t, s] < SEEN_ENOUGH and d[t, s] >= enough:
                    at[0], at[1] = t, s
                    return corrected, spread
        elif most == 0.0 and enough > 0.0 and rare[t] >= enough:
            at[0], at[1] = t, end
            return corrected, spread
    return corrected, spread


@compiled
def collect(
    d: Array,
    visits: Array,
    variance: Array,
    reached: Array,
    n_episodes: int,
    node_t: Array,
    node_s: Array,
    columns: Array,
) -> None:
    """Fills step and state of those that occur, in their order (END before the states), and
    columns (4, K): d_t^π, d_t^μ, visits, variance; all have room for one more."""
    steps, width = d.shape
    at = np.uint64(0)
    for t in range(steps):
        seen = total(visits[t])
        each = 1.0 / (seen if seen > 0 else float(n_episodes))
        for j in range(width):
            s = np.uint64(j - 1 if j > 0 else width - 1)
            N = visits[t, s]
            # Written always, kept if it occurs: a jump that cannot be foreseen would cost more.
            node_t[at] = t
            node_s[at] = j - 1 if j > 0 else END
            columns[0, at] = d[t, s]
            columns[1, at] = N * each
            columns[2, at] = N
            columns[3, at] = variance[t, s]
            at += np.uint64((N > 0) | (reached[t, s] > 0))
