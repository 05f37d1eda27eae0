"""The fast path's inner loops: rows of whole numbers into dense cells.

`follow` goes through the rows once, in their order, checks them and puts a record of each into the
waiting line of its step; `drain` adds a line's records to the cells of that step. A log of episodes
changes the step with every row, so adding at once would fetch two lines of memory per row from a
table that no cache holds; the cells of one step fit, and the records come in sequence.

A row is recorded when the next one is seen, for that row says where it led; the last row of a batch
waits in `Carry`. What is out of the ordinary (a fault, a null, an unknown state) only stops the
loop: the general path then does the whole log, and finds the words for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

AFTER_UNKNOWN, AFTER_END, AFTER_STATES = 0, 1, 2  # places of UNKNOWN, END and state 0 in s'
IN_LINE, BESIDE = 8, 2  # sums per cell: one cache line, and two more in a table of their own
RECORD = 4  # numbers per record: place of the cell in its step, y, π, μ
LARGEST = np.finfo(np.float64).max
ONE, TWO = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
THREE, FOUR = np.uint64(0x94D049BB133111EB), np.uint64(0xD6E8FEB86659FD93)
BY_29, BY_32 = np.uint64(29), np.uint64(32)


@numba.njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def touch(line: Any, beside: Any) -> float:
    """Read the cells in sequence, which fetches them faster than in the order of the records."""
    total = 0.0
    for k in range(line.shape[0]):
        total += line[k, 0]
    for k in range(0, beside.shape[0], 64 // (8 * BESIDE)):
        total += beside[k, 0]
    return total


@numba.njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def drain(records: Any, count: int, max_ratio: float, line: Any, beside: Any) -> None:
    """Add the records of one step to its cells: line (cells, 8), beside (cells, 2)."""
    if 2 * count > line.shape[0] and touch(line, beside) < 0.0:
        return  # never: counts and probabilities; the comparison keeps the reads from vanishing
    for i in range(count):
        k = np.uint64(records[i, 0])  # unsigned: no look at indices from the end
        y, pi, mu = records[i, 1], records[i, 2], records[i, 3]
        rho = pi / mu
        if rho > max_ratio:
            rho = max_ratio
        z = rho * y
        line[k, 0] += 1.0
        line[k, 1] += rho
        line[k, 2] += rho * rho
        line[k, 3] += z
        line[k, 4] += rho * z
        line[k, 5] += z * z
        line[k, 6] += y
        line[k, 7] += y * y
        beside[k, 0] += pi
        beside[k, 1] += mu


@numba.njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def ending(
    t: int, ended: bool, cut: bool, after: int, horizon: int, short: int, hashes: Any
) -> int:
    """What follows the last row of an episode; -1 if nothing says why it is the last."""
    early = t < horizon - 1
    if early and not ended and not cut and short == 0:
        return -1
    if ended or (early and not cut and short == 1):
        return AFTER_END
    if early:
        hashes[1] += np.uint64(1)
    return after + AFTER_STATES if after >= 0 else AFTER_UNKNOWN


@numba.njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def follow(
    ep: Any, t: Any, s: Any, a: Any, y: Any, y_bits: Any, mu: Any, mu_bits: Any, pi: Any,
    table: Any, nxt: Any, ended: Any, cut: Any, run_block: Any,
    horizon: int, capacity: int, short: int, max_ratio: float,
    records: Any, waiting: Any, line: Any, beside: Any,
    start: Any, shown: Any, acted: Any, begun: Any, state: Any, number: Any, hashes: Any,
) -> bool:  # fmt: skip
    """Go through the rows of a batch (of none: the log is over). False if one is out of the
    ordinary.

    records, waiting  (block·H + t, room, 4) lines of records, and how many wait in each
    line, beside      sums by block·H + t and s·(capacity + 2) + s'
    table             π(a|s) by (step or 0, s, a), NaN where the policy knows no state; or empty
    short             what a short episode without a flag is: 0 a fault, 1 END, 2 cut off
    run_block         block of each episode that begins; empty: all are in block 0
    begun             gets the episodes that begin
    state, number     the row before (see Carry); hashes: the sum of the rows', and the cut-offs
    """
    n = len(ep)
    by_table = table.size > 0
    by_step = table.shape[0] > 1
    has_next, has_ended, has_cut = len(nxt) > 0, len(ended) > 0, len(cut) > 0
    pending, p_ep, p_t, p_s = state[0] != 0, state[1], state[2], state[3]
    p_ended, p_cut, p_next, block = state[4] != 0, state[5] != 0, state[6], state[7]
    p_y, p_pi, p_mu = number[0], number[1], number[2]
    width = capacity + AFTER_STATES
    n_states, n_actions = np.uint64(capacity), np.uint64(len(acted))
    room = records.shape[1]
    total = hashes[0]
    run = 0
    for i in range(n):
        ti, si, ai, yi, mui = t[i], s[i], a[i], y[i], mu[i]
        # as unsigned numbers, those below 0 are large
        if (np.uint64(si) >= n_states) | (np.uint64(ai) >= n_actions):
            return False
        after = si + AFTER_STATES
        if pending and ep[i] == p_ep:
            if (ti != p_t + 1) | p_ended | p_cut:
                return False
            if has_next and p_next != si:
                return False
        else:
            if pending:
                after = ending(p_t, p_ended, p_cut, p_next, horizon, short, hashes)
            if ti != 0 or after < 0:
                return False
        if pending and p_t < horizon:
            slot = block * horizon + p_t
            at = waiting[slot]
            records[slot, at, 0] = p_s * width + after
            records[slot, at, 1] = p_y
            records[slot, at, 2] = p_pi
            records[slot, at, 3] = p_mu
            waiting[slot] = at + 1
            if at + 1 == room:
                drain(records[slot], room, max_ratio, line[slot], beside[slot])
                waiting[slot] = 0
        if ti == 0:
            block = run_block[run] if len(run_block) > 0 else 0
            begun[run] = ep[i]
            run += 1
            start[block, si] += 1
        shown[si] = True
        acted[ai] = True
        pii = 0.0
        if ti < horizon:
            h = np.uint64(ep[i]) * ONE + np.uint64(ti) * TWO + y_bits[i] * THREE + mu_bits[i] * FOUR
            h = (h ^ (h >> BY_29)) * TWO
            total += h ^ (h >> BY_32)
            if by_step:
                if ti >= table.shape[0]:
                    return False
                pii = table[ti, si, ai]
            elif by_table:
                pii = table[0, si, ai]
        if not by_table:
            pii = pi[i]
        # written so that NaN fails
        fine = (mui > 0.0) & (mui <= 1.0) & (abs(yi) <= LARGEST) & (pii >= 0.0) & (pii <= 1.0)
        if not fine:
            return False
        pending, p_ep, p_t, p_s = True, ep[i], ti, si
        p_y, p_pi, p_mu = yi, pii, mui
        if has_ended:
            p_ended = ended[i]
        if has_cut:
            p_cut = cut[i]
        if has_next:
            p_next = nxt[i]
            if p_next >= capacity:
                return False
    if n == 0 and pending:
        after = ending(p_t, p_ended, p_cut, p_next, horizon, short, hashes)
        if after < 0:
            return False
        if p_t < horizon:
            slot = block * horizon + p_t
            at = waiting[slot]  # there is room: a full line was drained at once
            records[slot, at, 0] = p_s * width + after
            records[slot, at, 1] = p_y
            records[slot, at, 2] = p_pi
            records[slot, at, 3] = p_mu
            waiting[slot] = at + 1
        pending = False
    state[0], state[1], state[2], state[3] = pending, p_ep, p_t, p_s
    state[4], state[5], state[6], state[7] = p_ended, p_cut, p_next, block
    state[8] = run
    number[0], number[1], number[2] = p_y, p_pi, p_mu
    hashes[0] = total
    return True


def _nothing() -> Ints:
    return np.array([0, 0, 0, 0, 0, 0, -1, 0, 0])


@dataclass
class Carry:
    """The row before the next batch: pending, episode, t, s, ended, cut, next state, block, how
    many episodes the batch began; and y, π, μ of it.

    `hashes`: the sum of the rows' hashes, and the number of episodes that were cut off.
    """

    state: Ints = field(default_factory=_nothing)
    number: Floats = field(default_factory=lambda: np.zeros(3))
    hashes: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros(2, np.uint64))


def aligned(shape: tuple[int, ...]) -> Floats:
    """Zeros that begin where a cache line does."""
    size = int(np.prod(shape))
    room = np.zeros(size + 8)
    offset = (-room.ctypes.data % 64) // 8
    return room[offset : offset + size].reshape(shape)
