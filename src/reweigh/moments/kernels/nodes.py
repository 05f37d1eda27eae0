"""The (t, s) that occur, out of arrays over all of them."""

from __future__ import annotations

import numpy as np

from reweigh.moments.kernels.common import END, SEEN_ENOUGH, Array, compiled, total


@compiled
def count(visits: Array, reached: Array) -> int:
    """How many (t, s) occur: as rows, as ended episodes, or as the state after a last row."""
    found = 0
    for t in range(visits.shape[0]):
        for s in range(visits.shape[1]):
            found += (visits[t, s] > 0) | (reached[t, s] > 0)
    return found


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
) -> tuple[float, float, float]:
    """Fills step and state of those that occur, in their order (END before the states), and
    columns (4, K): d_t^π, d_t^μ, visits, variance; all have room for one more. Returns the mass at
    (t, s) seen fewer than SEEN_ENOUGH times, before the horizon; and over those seen twice or more
    the sums of C = V N/(N - 1) and of C²/(N - 1), with V the variance."""
    steps, width = d.shape
    at, rare, corrected, spread = np.uint64(0), 0.0, 0.0, 0.0
    for t in range(steps):
        seen = total(visits[t])
        each, inside = 1.0 / (seen if seen > 0 else float(n_episodes)), t + 1 < steps
        for j in range(width):
            s = np.uint64(j - 1 if j > 0 else width - 1)
            N, mass = visits[t, s], d[t, s]
            occurs = (N > 0) | (reached[t, s] > 0)
            rare += mass if occurs & (N < SEEN_ENOUGH) & inside else 0.0
            left = (1.0 if N > 1.0 else 0.0) / max(N - 1.0, 1.0)
            C = variance[t, s] * N * left
            corrected += C
            spread += C * C * left
            # Written always, kept if it occurs: a jump that cannot be foreseen would cost more.
            node_t[at] = t
            node_s[at] = j - 1 if j > 0 else END
            columns[0, at] = mass
            columns[1, at] = N * each
            columns[2, at] = N
            columns[3, at] = variance[t, s]
            at += np.uint64(occurs)
    return rare, corrected, spread
