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
    code: Array,
    bits: int,
    ending: Array,
    rho: Array,
    by_code: bool,
    reward: Array,
    mode: int,
    d: Array,
    visits: Array,
    steps: Array,
) -> int:
    """See `reweigh.moments.kernels.forward.forward`."""
    horizon, width = len(offsets) - 1, d.shape[1]
    end = width - 1
    visits[0] = np.bincount(_columns(code[: len(ending)], bits), minlength=width)
    d[0] = visits[0] / len(ending)
    scale, ended, c = 1.0, 0.0, 1.0
    found, bounds = [], offsets.tolist()  # a number at a time, lists are faster than arrays
    first_step, columns, ratios = 0, np.empty((1, 0), np.intp), rho  # as `_together` made them
    for t in range(horizon):
        low, high = bounds[t], bounds[t + 1]
        going, alive = bounds[t + 2] - high if t + 1 < horizon else 0, high - low
        here, there = d[t], d[t + 1]
        visits[t, end] = ended
        divided_by, mass = 1.0, scale * c
        if mode == 1 and t > 0 and c > 0:
            divided_by = c
            scale *= c
            here /= c
        by_visit = here / np.maximum(visits[t], 1.0)
        # d_{t+1}(s') = Σ_s P̂_t(s'|s) d_t(s): each row carries d_t(s) ρ/M on to its s'
        if mode != 2 and going == alive <= CHUNK:
            at = t - first_step
            if at + 1 >= len(columns):
                at, first_step, columns = 0, t, _together(bounds, t, code, bits)
                visits[t + 1 : t + len(columns)] = _counts(columns[1:], width)
                ratios = _ratios(rho, by_code, code, slice(low, low + columns[1:].size))
                ratios = ratios.reshape(columns[1:].shape)
            w = by_visit.take(columns[at])
            w *= ratios[at]
            earned, second = float(w.dot(reward[low:high])), float(w.dot(w))
            there[:] = np.bincount(columns[at + 1], w, width)
            first = placebo = float(np.add.reduce(there))
        elif mode != 2 and going == alive:
            columns, earned, second = columns[:1], 0.0, 0.0
            for rows in chunks(offsets, t):
                after = _columns(code[rows.start + alive : rows.stop + alive], bits)
                w = by_visit.take(_columns(code[rows], bits))
                w *= _ratios(rho, by_code, code, rows)
                earned += float(w.dot(reward[rows]))
                second += float(w.dot(w))
                there += np.bincount(after, w, width)
                visits[t + 1] += np.bincount(after, None, width)
            first = placebo = float(np.add.reduce(there))
        else:
            columns = columns[:1]
            some, y = slice(low, high + going), reward[low:high]
            state, of_rows = unpacked(code[some], bits, rho if by_code else rho[some], by_code)
            places = offsets - low
            weights = by_visit, *_divided(t, places, state, ending, of_rows, here, by_visit, mode)
            sums = np.zeros(4)
            for rows in chunks(places, t):
                after = next_columns(places, state, ending, t, end, rows)
                omega, w, carried = (by[state[rows]] * of_rows[rows] for by in weights)
                sums += w @ y[rows], w.sum(), omega.sum(), omega @ omega
                to = after >= 0
                there += np.bincount(after[to], carried[to], width)
            earned, placebo, first, second = sums.tolist()
            if going:
                visits[t + 1] = np.bincount(state[alive:], minlength=width)
            ended += float(np.sum(ending[going:alive] == END))
        stay = float(here[end])  # END stays END
        there[end] += stay
        placebo += stay
        if ended > 0 and visits[t, end] > 0:
            first += stay
            second += stay * stay / float(visits[t, end])  # stay**2 raises where it overflows
        c = placebo if mode != 2 and going == alive else float(np.add.reduce(there))
        found.append((divided_by, mass, earned, placebo, first, second))
        if not placebo > 0:
            return t
    steps[:6] = np.array(found).T
    visits[horizon, end] = ended
    shown = np.diff(offsets) > 0  # up to the longest episode's end
    steps[6, shown] = np.add.reduceat(reward, offsets[:-1][shown])
    return -1


def _columns(code: Array, bits: int) -> Array:
    """The states of these codes, as places in an array."""
    return np.asarray(code >> code.dtype.type(bits) if bits else code, np.intp)


def _ratios(rho: Array, by_code: bool, code: Array, rows: slice) -> Array:
    return rho.take(code[rows]) if by_code else rho[rows]


def _together(bounds: list[int], t: int, code: Array, bits: int) -> Array:
    """(k + 1, m) the columns of the rows of step t, of the next steps that have as many, up to
    CHUNK rows, and of what follows them: where rows are few, calls cost more than they do."""
    low, m = bounds[t], bounds[t + 1] - bounds[t]
    k = 1
    while t + k + 2 < len(bounds) and (k + 1) * m <= CHUNK:
        if bounds[t + k + 2] - bounds[t + k + 1] != m:
            break
        k += 1
    return _columns(code[low : low + (k + 1) * m], bits).reshape(k + 1, m)


def _counts(columns: Array, width: int) -> Array:
    """(k, width) how often each occurs in each of k lines."""
    k = len(columns)
    keys = columns + width * np.arange(k)[:, None] if k > 1 else columns
    return np.bincount(keys.ravel(), minlength=k * width).reshape(k, width)


def _divided(
    t: int,
    offsets: Array,
    state: Array,
    ending: Array,
    rho: Array,
    here: Array,
    by_visit: Array,
    mode: int,
) -> tuple[Array, Array]:
    """d_t over the divisors of the rewards and of the moves: N and M, or Σρ over all rows and over
    those whose next state is known."""
    going, alive = rows_after(offsets, t), int(offsets[t + 1] - offsets[t])
    last = t + 2 == len(offsets)
    if mode != 2 and (last or not np.any(ending[going:alive] < END)):
        return by_visit, by_visit
    width = len(here)
    divisors = np.zeros((2, width))
    for rows in chunks(offsets, t):
        s, after = state[rows], next_columns(offsets, state, ending, t, width - 1, rows)
        each = rho[rows] if mode == 2 else np.ones(len(s))
        known = (after >= 0) | last
        divisors += tally(s, each, width), tally(s[known], each[known], width)
    return here * inverse(divisors[0]), here * inverse(divisors[1])


def unpacked(code: Array, bits: int, rho: Array, by_code: bool) -> tuple[Array, Array]:
    """(N,) states and ratios of the rows."""
    state = (code >> code.dtype.type(bits)).astype(np.intp) if bits else code
    return state, rho.take(code) if by_code else rho


def chunks(offsets: Array, t: int) -> Iterator[slice]:
    """The rows of step t in pieces that stay in a processor's cache."""
    low, high = int(offsets[t]), int(offsets[t + 1])
    for start in range(low, high, CHUNK):
        yield slice(start, min(start + CHUNK, high))


def rows_after(offsets: Array, t: int) -> int:
    """Rows of step t that another row follows."""
    return int(offsets[t + 2] - offsets[t + 1]) if t + 2 < len(offsets) else 0


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
