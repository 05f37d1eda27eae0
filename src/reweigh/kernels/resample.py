"""The Poisson bootstrap of MIS: BLOCK replicates in one pass over the rows, and a second pass back
for their standard errors."""

from __future__ import annotations

import numpy as np

from reweigh.kernels.common import END, Array, compiled
from reweigh.kernels.vectors import DRAWN, add_drawn

BLOCK = 64
GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@compiled
def _mixed(x: np.uint64) -> np.uint64:
    """SplitMix64's finalizer: every bit of x moves every bit of the result."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(FIRST)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(SECOND)
    return x ^ (x >> np.uint64(31))


@compiled
def draw(seed: int, block: int, thresholds: Array, counts: Array) -> None:
    """counts (n, BLOCK): Poisson(1) draws, each a function of (seed, episode, replicate) alone."""
    a, b, c, d = thresholds[0], thresholds[1], thresholds[2], thresholds[3]
    bits = np.empty(BLOCK, np.uint64)
    for k in range(len(counts)):
        key = _mixed(_mixed(np.uint64(seed) + np.uint64(GOLDEN)) + np.uint64(k))
        own, many = counts[k], False
        for j in range(BLOCK):  # without a branch; one in fifty is 4 or more, and counted on below
            x = _mixed(key + np.uint64(block * BLOCK + j) * np.uint64(GOLDEN))
            count = np.uint8(x >= a) + np.uint8(x >= b) + np.uint8(x >= c) + np.uint8(x >= d)
            bits[j], own[j] = x, count
            many |= x >= d
        if many:
            for j in range(BLOCK):
                while own[j] >= 4 and own[j] < len(thresholds) and bits[j] >= thresholds[own[j]]:
                    own[j] += 1


@compiled
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
    """values (BLOCK,): MIS of the log in which episode k occurs counts[k, b] times, NaN where that
    log has no data on the target. Modes as in `forward`.

    For `spread` it keeps d_t(s) and N_t(s), (H, width, BLOCK), and 1/c_t, (H, BLOCK), where these
    arrays have a length.
    """
    horizon, end = len(offsets) - 1, width - 1
    d, after = np.zeros((width, BLOCK)), np.zeros((width, BLOCK))
    seen, seen_next = np.zeros((width, BLOCK), np.int32), np.zeros((width, BLOCK), np.int32)
    by_reward, by_move = np.empty((width, BLOCK)), np.empty((width, BLOCK))
    mass, earned = np.empty(BLOCK), np.empty(BLOCK)
    _begin(state, counts, d, seen)
    values[:] = 0.0
    power = 1.0
    for t in range(horizon):
        low, high = offsets[t], offsets[t + 1]
        alive = high - low
        going = offsets[t + 2] - high if t + 1 < horizon else 0
        ratios = rho[low:high]
        _normalize(d, mode == 1 and t > 0, mass)
        if len(kept_d) > 0:
            kept_d[t], kept_n[t], kept_mass[t] = d, seen, mass
        plain = _divisors(
            state[low:high], ending, ratios, counts, going, t + 1 == horizon, mode, d, seen,
            by_reward, by_move,
        )  # fmt: skip
        after[:], seen_next[:] = 0.0, 0
        earned[:], mass[:] = 0.0, 0.0
        first = 0
        if plain:
            first = going
            _carry(
                state[low:high], state[high : high + going], ratios, reward[low:high], counts,
                by_reward, after, seen_next, earned,
            )  # fmt: skip
            for s in range(end):  # the rows' weights, before END and the ends of episodes join
                for b in range(BLOCK):
                    mass[b] += after[s, b]
        for k in range(first, alive):
            s, r, y = state[low + k], ratios[k], reward[low + k]
            to = np.int64(state[high + k]) if k < going else np.int64(ending[k])
            for b in range(BLOCK):
                each = r * counts[k, b]
                if to >= END:
                    moved = by_reward[s, b] if plain else by_move[s, b]
                    after[end if to == END else to, b] += moved * each
                if k < going:
                    seen_next[to, b] += counts[k, b]
                earned[b] += by_reward[s, b] * each * y
                mass[b] += by_reward[s, b] * each
        for b in range(BLOCK):
            after[end, b] += d[end, b]  # END stays END
            values[b] += power * earned[b]
            if not mass[b] + d[end, b] > 0:
                values[b] = np.nan
        d, after = after, d
        seen, seen_next = seen_next, seen
        power *= gamma


@compiled
def _begin(state: Array, counts: Array, d: Array, seen: Array) -> None:
    """d_0 and N_0 of the replicates."""
    total = np.zeros(BLOCK)
    for k in range(len(counts)):
        for b in range(BLOCK):
            seen[state[k], b] += counts[k, b]
            total[b] += counts[k, b]
    for s in range(len(d) - 1):
        for b in range(BLOCK):
            d[s, b] = seen[s, b] / total[b]


@compiled
def _normalize(d: Array, simplex: bool, by_mass: Array) -> None:
    """by_mass = 1/Σ_s d(s), by which d is multiplied, where it is on the simplex; else 1."""
    by_mass[:] = 1.0
    if not simplex:
        return
    by_mass[:] = 0.0
    for s in range(len(d)):
        for b in range(BLOCK):
            by_mass[b] += d[s, b]
    for b in range(BLOCK):
        by_mass[b] = 1.0 / by_mass[b] if by_mass[b] > 0 else 1.0
    for s in range(len(d)):
        for b in range(BLOCK):
            d[s, b] *= by_mass[b]


@compiled
def _divisors(
    state: Array,
    ending: Array,
    rho: Array,
    counts: Array,
    going: int,
    last: bool,
    mode: int,
    d: Array,
    seen: Array,
    by_reward: Array,
    by_move: Array,
) -> bool:
    """by_reward = d/N and by_move = d/M of the states, M being the rows whose next state is known,
    in mode 2 the sums of their ratios. True where by_reward serves for both."""
    width = len(d)
    plain = mode != 2
    for k in range(going, len(state)):
        plain = plain and (last or ending[k] >= END)
    N, M = np.zeros((1, BLOCK)), np.zeros((1, BLOCK))
    if not plain:
        N, M = np.zeros((width, BLOCK)), np.zeros((width, BLOCK))
        for k in range(len(state)):
            known = k < going or ending[k] >= END or last
            weight = rho[k] if mode == 2 else 1.0
            for b in range(BLOCK):
                N[state[k], b] += weight * counts[k, b]
                M[state[k], b] += weight * counts[k, b] if known else 0.0
    for s in range(width - 1):
        for b in range(BLOCK):
            rows = np.float64(seen[s, b]) if plain else N[s, b]
            by_reward[s, b] = d[s, b] / rows if rows > 0 else 0.0
            if not plain:
                by_move[s, b] = d[s, b] / M[s, b] if M[s, b] > 0 else 0.0
    return plain


@compiled
def _carry(
    state: Array,
    following: Array,
    rho: Array,
    reward: Array,
    counts: Array,
    weight: Array,
    after: Array,
    seen_next: Array,
    earned: Array,
) -> None:
    """The rows of one step that another follows: all of them for some replicates, whose sums then
    fit in the cache, and again for the next ones. Every other row earns apart, so that the next
    does not wait for it."""
    w, to, seen, drawn = weight.ravel(), after.ravel(), seen_next.ravel(), counts.ravel()
    paid = np.zeros(2 * BLOCK)
    for some in range(np.uint64(0), np.uint64(BLOCK), np.uint64(DRAWN)):
        for k in range(np.uint64(len(following))):
            add_drawn(
                w, np.uint64(BLOCK) * state[k] + some,
                to, seen, np.uint64(BLOCK) * following[k] + some,
                drawn, np.uint64(BLOCK) * k + some,
                rho[k], reward[k],
                paid, np.uint64(BLOCK) * (k & np.uint64(1)) + some,
            )  # fmt: skip
    for b in range(BLOCK):
        earned[b] += paid[b] + paid[BLOCK + b]


@compiled
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
    """variances (BLOCK,): SE² of the replicates whose forward recursion `replicate` has kept
    (by_mass is 1/c_t). start (n,) is a control's start value. No episode may be cut off.

    x = ρ (y + γ u'(s')) and u = mean of x by state, SE² = Σ (γ^t d/N)² Σ_i c_i (x_i - u)²; within
    states normalized, x = y + γ u'(s') and u = Σ c ρ x/Σ c ρ, SE² = Σ (γ^t d/Σcρ)² Σ_i c_i ρ_i²
    (x_i - u)².
    """
    horizon, end = len(offsets) - 1, width - 1
    ahead, u = np.zeros((width, BLOCK)), np.zeros((width, BLOCK))
    sums = np.zeros((5, width, BLOCK))
    nothing, mean, total = np.zeros(BLOCK), np.empty(BLOCK), np.zeros(BLOCK)
    variances[:] = 0.0
    for t in range(horizon - 1, -1, -1):
        low, high = offsets[t], offsets[t + 1]
        going = offsets[t + 2] - high if t + 1 < horizon else 0
        sums[:] = 0.0
        for k in range(high - low):
            s, r, y = state[low + k], rho[low + k], reward[low + k]
            worth = nothing
            if k < going:
                worth = ahead[state[high + k]]
            elif ending[k] >= END:
                worth = ahead[end if ending[k] == END else ending[k]]
            if mode == 2:
                _add_ratio(sums[:, s], counts[k], r, y, worth)
            else:
                _add(sums[0, s], sums[1, s], counts[k], r, y, worth)
        power = gamma**t
        for s in range(end):
            for b in range(BLOCK):
                N = sums[2, s, b] if mode == 2 else np.float64(seen[t, s, b])
                each = 1.0 / N if N > 0 else 0.0
                first, second = sums[0, s, b], sums[1, s, b]
                u[s, b] = first * each
                part = second - first * u[s, b]
                if mode == 2:
                    part = second - 2.0 * u[s, b] * sums[3, s, b] + u[s, b] ** 2 * sums[4, s, b]
                variances[b] += (power * d[t, s, b] * each) ** 2 * max(part, 0.0)
        u[end] = ahead[end]
        mean[:] = 0.0
        if mode == 1 and t > 0:
            for s in range(width):
                for b in range(BLOCK):
                    mean[b] += d[t, s, b] * u[s, b]
        for s in range(width):
            for b in range(BLOCK):
                ahead[s, b] = gamma * by_mass[t, b] * (u[s, b] - mean[b])
    # Var[u_0(s_0) + g(s_0)]/n
    mean[:] = 0.0
    for k in range(len(ending)):
        for b in range(BLOCK):
            mean[b] += counts[k, b] * (u[state[k], b] + start[k])
            total[b] += counts[k, b]
    mean /= total
    sums[0, 0] = 0.0
    for k in range(len(ending)):
        for b in range(BLOCK):
            sums[0, 0, b] += counts[k, b] * (u[state[k], b] + start[k] - mean[b]) ** 2
    for b in range(BLOCK):
        variances[b] += sums[0, 0, b] / total[b] ** 2


@compiled
def _add(first: Array, second: Array, count: Array, r: float, y: float, worth: Array) -> None:
    for b in range(BLOCK):
        x = r * (y + worth[b])
        first[b] += count[b] * x
        second[b] += count[b] * x * x


@compiled
def _add_ratio(sums: Array, count: Array, r: float, y: float, worth: Array) -> None:
    for b in range(BLOCK):
        x, each = y + worth[b], r * count[b]
        sums[0, b] += each * x
        sums[1, b] += each * r * x * x
        sums[2, b] += each
        sums[3, b] += each * r * x
        sums[4, b] += each * r
