"""The forward recursion of MIS over the rows of a log."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.kernels.groups import tally
from reweigh.kernels.twins import common
from reweigh.kernels.twins.common import Rows, by_line, inverse
from reweigh.log.states import END

Array = npt.NDArray[Any]


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
    since: int,
    until: int,
    keep: bool,
) -> int:
    """See `reweigh.kernels.forward.forward`."""
    rows = Rows(offsets, code, bits, ending, rho, by_code, reward, since, until)
    if not keep:  # many steps at a time need a line each
        all_d, seen = np.zeros((2, rows.horizon + 1, d.shape[1]))
        all_d[since], seen[since] = d[since % 2], visits[since % 2]
        given = offsets, code, bits, ending, rho, by_code, reward, mode
        said = forward(*given, all_d, seen, steps, since, until, True)
        d[until % 2], visits[until % 2] = all_d[until], seen[until]
        steps[5:, since:until] = np.nan
        return said
    if since == 0:
        d[:], visits[:] = 0.0, 0.0
        visits[0] = np.bincount(rows.columns(slice(len(ending))), minlength=d.shape[1])
        d[0] = visits[0] / len(ending)
    c = np.ones(rows.horizon + 1)  # Σ_s d_t(s), before d_t is divided by it
    if since > 0:
        c[since] = d[since].sum()
    t = since
    while t < until:
        k = rows.alike(t) if mode != 2 else 0
        here = slice(t, t + max(k, 1))
        run = _one if not k else _large if rows.at(t) > common.BLOCK else _several
        run(rows, here, mode, d, visits, c, steps)
        t = here.stop
    failed = np.flatnonzero(~(steps[3, since:until] > 0))  # all after it is 0, or no number
    if len(failed):
        return since + int(failed[0])
    these = slice(since, until)
    steps[0, these] = np.where(c[these] > 0, c[these], 1.0) if mode == 1 else 1.0
    scale = np.cumprod(np.concatenate([[1.0], steps[0, : until - 1]]))
    steps[1, these] = c[these] * scale[these]
    shown = np.flatnonzero(np.diff(offsets[since : until + 1]))  # up to the longest episode's end
    steps[6, since + shown] = np.add.reduceat(
        reward, (offsets[since:until] - offsets[since])[shown]
    )
    return -1


# d_{t+1}(s') = Σ_s P̂_t(s'|s) d_t(s): each row carries d_t(s) ρ/M on to its s'


def _several(
    rows: Rows, at: slice, mode: int, d: Array, visits: Array, c: Array, steps: Array
) -> None:
    """Steps whose rows are all followed by another, with the same divisor for rewards and moves."""
    k, m, width = at.stop - at.start, rows.at(at.start), d.shape[1]
    columns, ratios, reward = rows.lines(at)
    after = slice(at.start + 1, at.stop + 1)
    ended = float(visits[at.start, -1])
    visits[after] = _counts(columns[1:], width)
    visits[after, -1] = ended
    per = np.maximum(visits[at], 1.0)
    carried, ones, total = np.empty((k, m)), np.ones(width), float(c[at.start])
    found = []
    for here, there, s, to, N, r, w in zip(
        d[at], d[after], columns, columns[1:], per, ratios, carried, strict=False
    ):
        if mode == 1 and total > 0:
            here /= total
        (here / N).take(s, out=w, mode="clip")
        w *= r
        there[:] = np.bincount(to, w, width)
        if ended:  # END stays END
            there[-1] += here[-1]
        total = float(there.dot(ones))
        found.append(total)
    c[after] = found
    stayed = d[at, -1] ** 2 / ended if ended else 0.0
    steps[2, at] = _products(carried, reward)
    steps[3, at] = steps[4, at] = found
    steps[5, at] = _products(carried, carried) + stayed


def _products(a: Array, b: Array) -> Array:
    """(k,) Σ ab of each of k lines."""
    return np.asarray((a[:, None, :] @ b[:, :, None])[:, 0, 0])


def _large(
    rows: Rows, at: slice, mode: int, d: Array, visits: Array, c: Array, steps: Array
) -> None:
    """The same of one step, some rows at a time."""
    t, width = at.start, d.shape[1]
    here, there, m = d[t], d[t + 1], rows.at(t)
    if mode == 1:
        here /= c[t] if c[t] > 0 else 1.0
    each, earned, second = here / np.maximum(visits[t], 1.0), 0.0, 0.0
    for part in rows.chunks(t):
        after = rows.columns(slice(part.start + m, part.stop + m))
        w = each.take(rows.columns(part))
        w *= rows.ratios(part)
        earned += float(w.dot(rows.rewards(part)))
        second += float(w.dot(w))
        there += np.bincount(after, w, width)
        visits[t + 1] += np.bincount(after, None, width)
    ended = visits[t + 1, -1] = visits[t, -1]
    there[-1] += here[-1]
    c[t + 1] = total = there.sum()
    stayed = here[-1] ** 2 / ended if ended else 0.0
    steps[2:6, t] = earned, total, total, second + stayed


def _one(rows: Rows, at: slice, mode: int, d: Array, visits: Array, c: Array, steps: Array) -> None:
    """Any step, some rows at a time."""
    t, width = at.start, d.shape[1]
    alive, going = rows.at(t), rows.at(t + 1)
    end, ended = width - 1, float(visits[t, -1])
    here, there = d[t], d[t + 1]
    if mode == 1 and t > 0 and c[t] > 0:
        here /= c[t]
    by_visit = here / np.maximum(visits[t], 1.0)
    weights = by_visit, *_divided(rows, t, here, by_visit, mode)
    sums = np.zeros(4)
    for part in rows.chunks(t):
        s, r, y = rows.columns(part), rows.ratios(part), rows.rewards(part)
        after = rows.after(t, part, end)
        omega, w, carried = (by[s] * r for by in weights)
        sums += w @ y, w.sum(), omega.sum(), omega @ omega
        to = after >= 0
        there += np.bincount(after[to], carried[to], width)
        if going:
            visits[t + 1] += np.bincount(
                after[: max(going - part.start + rows.bounds[t], 0)], None, width
            )
    stay = float(here[end])
    there[end] += stay
    sums[1] += stay
    if ended:
        sums[2:] += stay, stay * stay / ended
    c[t + 1] = there.sum()
    steps[2:6, t] = sums
    visits[t + 1, end] = ended + float(np.sum(rows.ending[going:alive] == END))


def _counts(columns: Array, width: int) -> Array:
    """(k, width) how often each occurs in each of k lines."""
    k = len(columns)
    return np.bincount(by_line(columns, width).ravel(), minlength=k * width).reshape(k, width)


def _divided(rows: Rows, t: int, here: Array, by_visit: Array, mode: int) -> tuple[Array, Array]:
    """d_t over the divisors of the rewards and of the moves: N and M, or Σρ over all rows and over
    those whose next state is known."""
    last = t + 1 == rows.horizon
    if mode != 2 and (last or not np.any(rows.ending[rows.at(t + 1) : rows.at(t)] < END)):
        return by_visit, by_visit
    width = len(here)
    divisors = np.zeros((2, width))
    for part in rows.chunks(t):
        s, after = rows.columns(part), rows.after(t, part, width - 1)
        each = rows.ratios(part) if mode == 2 else np.ones(len(s))
        known = (after >= 0) | last
        divisors += tally(s, each, width), tally(s[known], each[known], width)
    return here * inverse(divisors[0]), here * inverse(divisors[1])
