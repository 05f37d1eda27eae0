"""The (t, s) that occur, out of arrays over all of them."""

from __future__ import annotations

import numpy as np

from reweigh.kernels.common import END, SEEN_ENOUGH, Array, compiled, greatest, total

ROUNDING = 1e-9  # as in estimate/solution.py
SOME = 512  # states


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
        for begin in range(0, end, SOME):  # as much as a processor has at hand
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
