"""The model of the direct method over the rows of a log, without a table of cells.

A state's column is its code, the hidden state's follows, and END's is the last of `width`; `last`
(n,) is the column after an episode's last row, -1 where it is not known. `shift` (n,) is added to
all columns of an episode: halves of a log get columns of their own, so that each has its own model.
A group is a column times n_actions plus the action.
"""

from __future__ import annotations

import numpy as np

from reweigh.kernels.common import Array, compiled


@compiled
def count(
    offsets: Array,
    state: Array,
    action: Array,
    last: Array,
    shift: Array,
    pi: Array,
    reward: Array,
    n_actions: int,
    sums: Array,
) -> None:
    """Fills sums (5, H, groups): N, M (rows whose next state is known), Σπ, Σy and Σπ²."""
    horizon = len(offsets) - 1
    for t in range(horizon):
        low, alive = offsets[t], offsets[t + 1] - offsets[t]
        going = offsets[t + 2] - offsets[t + 1] if t + 1 < horizon else 0
        N, M, P, Y, P2 = sums[0, t], sums[1, t], sums[2, t], sums[3, t], sums[4, t]
        for k in range(alive):
            g = np.uint64((state[low + k] + shift[k]) * n_actions + action[low + k])
            N[g] += 1.0
            M[g] += 1.0 if k < going or last[k] >= 0 or t + 1 == horizon else 0.0
            P[g] += pi[low + k]
            P2[g] += pi[low + k] * pi[low + k]
            Y[g] += reward[low + k]


@compiled
def forward(
    offsets: Array,
    state: Array,
    action: Array,
    last: Array,
    sums: Array,
    share: Array,
    d: Array,
) -> None:
    """d_{t+1}(s') = Σ_{s,a} d_t(s) share(s,a) n(s,a,s')/M(s,a) into d (H+1, width), from d[0]."""
    horizon, width = len(offsets) - 1, d.shape[1]
    groups = share.shape[1]
    n_actions = groups // width
    carried = np.empty(groups)
    for t in range(horizon):
        low, alive = offsets[t], offsets[t + 1] - offsets[t]
        going = offsets[t + 2] - offsets[t + 1] if t + 1 < horizon else 0
        for c in range(groups):
            M = sums[1, t, c]
            carried[c] = d[t, c // n_actions] * share[t, c] / M if M > 0 else 0.0
        for k in range(alive):
            to = state[low + alive + k] if k < going else last[k]
            if to >= 0:
                d[t + 1, to] += carried[state[low + k] * n_actions + action[low + k]]
        d[t + 1, width - 1] += d[t, width - 1]  # END stays END


@compiled
def backward(
    offsets: Array,
    state: Array,
    action: Array,
    last: Array,
    shift: Array,
    gamma: float,
    sums: Array,
    share: Array,
    reward: Array,
    v: Array,
    v1: Array,
) -> None:
    """Turns reward (H, groups), r̂_t(s,a), into Q_t(s,a) = r̂ + γ Σ_{s'} n(s,a,s')/M V_{t+1}(s'), and
    fills v (H+1, columns), V_t(s) = Σ_a share(s,a) Q_t(s,a); and v1, unless it is empty, with what
    V would be if every reward were 1, END's (the last column) too."""
    horizon, columns = len(offsets) - 1, v.shape[1]
    groups, placebo = share.shape[1], len(v1) > 0
    n_actions = groups // columns
    moved = np.empty((groups, 2))
    v[:] = 0.0
    v1[:] = 0.0
    for t in range(horizon - 1, -1, -1):
        low, alive = offsets[t], offsets[t + 1] - offsets[t]
        going = offsets[t + 2] - offsets[t + 1] if t + 1 < horizon else 0
        moved[:] = 0.0
        for k in range(alive):
            to = state[low + alive + k] if k < going else last[k]
            if to >= 0:
                g = np.uint64((state[low + k] + shift[k]) * n_actions + action[low + k])
                moved[g, 0] += v[t + 1, to + shift[k]]
                if placebo:
                    moved[g, 1] += v1[t + 1, to]
        for c in range(groups):
            N, M = sums[0, t, c], sums[1, t, c]
            if N == 0.0:
                continue
            by = gamma / M if M > 0 else 0.0
            reward[t, c] += by * moved[c, 0]
            v[t, c // n_actions] += share[t, c] * reward[t, c]
            if placebo:
                v1[t, c // n_actions] += share[t, c] * (1.0 + by * moved[c, 1])
        if placebo:
            v1[t, columns - 1] = 1.0 + gamma * v1[t + 1, columns - 1]


@compiled
def spread(
    offsets: Array,
    state: Array,
    action: Array,
    last: Array,
    reward: Array,
    gamma: float,
    sums: Array,
    share: Array,
    d: Array,
    v: Array,
    v1: Array,
    variance: Array,
) -> tuple[float, float, float, float]:
    """Fills variance (H, width), the parts of SE² by (t, s), see estimate/variance.py: a row moves
    the value by R = γ^t d share y/N and T = γ^t d share γ V'/M. Returns the sum of squares that SE²
    is a difference of, the parts of the placebo's SE² (every reward 1, V' = v1) added up, and the
    sums of C = V N/(N - 1) and of C²/(N - 1) over the groups (`variance.Freedom`)."""
    horizon, width = len(offsets) - 1, d.shape[1]
    groups = share.shape[1]
    n_actions = groups // width
    more = np.empty((groups, 7))
    squares, placebo, corrected, spread = 0.0, 0.0, 0.0, 0.0
    for t in range(horizon):
        low, alive = offsets[t], offsets[t + 1] - offsets[t]
        going = offsets[t + 2] - offsets[t + 1] if t + 1 < horizon else 0
        more[:] = 0.0
        for k in range(alive):
            to = state[low + alive + k] if k < going else last[k]
            g = np.uint64(state[low + k] * n_actions + action[low + k])
            y = reward[low + k]
            more[g, 0] += y * y
            if to >= 0:
                x, x1 = gamma * v[t + 1, to], gamma * v1[t + 1, to]
                more[g, 1] += x
                more[g, 2] += x * x
                more[g, 3] += x * y
                more[g, 4] += y
                more[g, 5] += x1
                more[g, 6] += x1 * x1
            elif t + 1 == horizon:  # known to be worth 0
                more[g, 4] += y
        power = gamma**t
        variance[t] = 0.0
        for c in range(groups):
            N, M, Y = sums[0, t, c], sums[1, t, c], sums[3, t, c]
            D = power * d[t, c // n_actions] * share[t, c]
            if N == 0.0 or D == 0.0:
                continue
            y2, x, x2, xy = more[c, 0], more[c, 1], more[c, 2], more[c, 3]
            known, x1, x12 = more[c, 4], more[c, 5], more[c, 6]
            a, b = D / N, D / M if M > 0 else 0.0
            each = 1.0 / M if M > 0 else 0.0
            r2, t2 = a * a * y2, b * b * x2
            own = r2 - (a * Y) ** 2 / N + t2 - (b * x) ** 2 * each
            own += 2.0 * a * b * (xy - known * x * each)
            one = b * b * (x12 - x1 * x1 * each)
            variance[t, c // n_actions] += max(own, 0.0)
            placebo += max(one, 0.0)
            squares += r2 + t2
            if N > 1.0 and own > 0.0:
                own *= N / (N - 1.0)
                corrected += own
                spread += own * own / (N - 1.0)
    return squares, placebo, corrected, spread


@compiled
def shape(
    offsets: Array,
    state: Array,
    action: Array,
    last: Array,
    shift: Array,
    reward: Array,
    gamma: float,
    q: Array,
    v: Array,
    shaped: Array,
) -> None:
    """shaped (N,) = y - Q_t(s,a) + γ V_{t+1}(s'), where V is 0 once the state is not known."""
    horizon = len(offsets) - 1
    n_actions = q.shape[1] // v.shape[1]
    for t in range(horizon):
        low, alive = offsets[t], offsets[t + 1] - offsets[t]
        going = offsets[t + 2] - offsets[t + 1] if t + 1 < horizon else 0
        for k in range(alive):
            to = state[low + alive + k] if k < going else last[k]
            ahead = v[t + 1, to + shift[k]] if to >= 0 else 0.0
            group = (state[low + k] + shift[k]) * n_actions + action[low + k]
            shaped[low + k] = reward[low + k] - q[t, group] + gamma * ahead
