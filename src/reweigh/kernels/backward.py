"""The backward recursions of MIS over the rows of a log, with the parts of the standard error."""

from __future__ import annotations

import math

import numpy as np

from reweigh.kernels.common import (
    END,
    Array,
    compiled,
    count_cut,
    covered,
    ratio,
    short_of_one,
    zeros_in_lines,
)
from reweigh.kernels.vectors import add_worth

U4, U8 = np.uint64(4), np.uint64(8)


@compiled
def _look_ahead(
    code: Array,
    following: Array,
    bits: int,
    rho: Array,
    by_code: bool,
    reward: Array,
    worth: Array,
    sums: Array,
) -> None:
    """The rows of one step that another follows."""
    if by_code:  # asked once: inside the loop it costs several times what the sums do
        for k in range(len(following)):
            s, to = U8 * (code[k] >> bits), U4 * (following[k] >> bits)
            add_worth(sums, s, worth, to, reward[k], rho[code[k]])
    else:
        for k in range(len(following)):
            s, to = U8 * (code[k] >> bits), U4 * (following[k] >> bits)
            add_worth(sums, s, worth, to, reward[k], rho[k])


@compiled
def _look_at_last(
    code: Array,
    ending: Array,
    bits: int,
    rho: Array,
    by_code: bool,
    reward: Array,
    worth: Array,
    final: bool,
    sums: Array,
) -> None:
    """The rows of one step that no other follows. What follows a row of the `final` step may not be
    known, and is worth nothing; one before it is cut off, and is for `_split`."""
    end = np.uint64(len(worth)) - U4
    if by_code:
        for k in range(len(code)):
            after = ending[k]
            to = U4 * np.uint64(after) if after >= 0 else end
            r = rho[code[k]] if after >= END or final else 0.0
            add_worth(sums, U8 * (code[k] >> bits), worth, to, reward[k], r)
    else:
        for k in range(len(code)):
            after = ending[k]
            to = U4 * np.uint64(after) if after >= 0 else end
            r = rho[k] if after >= END or final else 0.0
            add_worth(sums, U8 * (code[k] >> bits), worth, to, reward[k], r)


@compiled
def _split(
    code: Array,
    following: Array,
    bits: int,
    ending: Array,
    rho: Array,
    by_code: bool,
    reward: Array,
    worth: Array,
    more: Array,
) -> None:
    """Of a step with cut-off rows: by state, over the rows whose next state is known, the sums of
    z, z², x, x², zx and of the placebo's x, x², ρx; over the others those of z, z², ρ, ρ²."""
    more[:] = 0.0
    for k in range(len(code)):
        r, row = ratio(rho, by_code, code, k), more[code[k] >> bits]
        z = r * reward[k]
        if k >= len(following) and ending[k] < END:
            row[8] += z
            row[9] += z * z
            row[10] += r
            row[11] += r * r
            continue
        to = np.int64(len(more) - 1)
        if k < len(following):
            to = np.int64(following[k] >> bits)
        elif ending[k] >= 0:
            to = ending[k]
        x, x1 = r * worth[4 * to + 1], r * worth[4 * to + 2]
        row[0] += z
        row[1] += z * z
        row[2] += x
        row[3] += x * x
        row[4] += z * x
        row[5] += x1
        row[6] += x1 * x1
        row[7] += r * x1


@compiled
def _two_divisors(
    N: float, M: float, D: float, z: float, z2: float, x: float, x2: float, zx: float,
    cut_z: float, cut_z2: float,
) -> tuple[float, float, float]:  # fmt: skip
    """u, N Var(R) + M Var(T) + 2 M Cov_M(R, T) and the squares, with R = D z/N and T = D x/M."""
    a, b = D / N, D / M if M > 0 else 0.0
    each = 1.0 / M if M > 0 else 0.0
    r2, t2 = a * a * (z2 + cut_z2), b * b * x2
    spread = r2 - (a * (z + cut_z)) ** 2 / N + t2 - (b * x) ** 2 * each
    spread += 2.0 * a * b * (zx - z * x * each)
    return (z + cut_z) / N + x * each, spread, r2 + t2


@compiled
def _settle(
    sums: Array,
    some_cut: bool,
    cut: Array,
    d: Array,
    visits: Array,
    power: float,
    u: Array,
    variance: Array,
) -> tuple[float, float, float, float, float]:
    """What the sums of a step say of its states without cut-off rows, where R and T have the same
    divisor: u and the parts of SE²; returned are the squares, the placebo's parts added up, the
    mass that the log cannot carry on, and <d, u> of both. Hardly a branch, since states differ at
    random. The sums are 0 afterwards."""
    squares, placebo, missing, value, value_one = 0.0, 0.0, 0.0, 0.0, 0.0
    for s in range(len(sums)):
        if some_cut and cut[s] > 0:
            continue
        N, here = visits[s], d[s]
        each = 1.0 / max(N, 1.0)  # without a row all sums are 0
        per = (power * here * each) ** 2
        mean, mean_one = sums[s, 1] * each, sums[s, 2] * each
        u[s, 0], u[s, 1] = mean, mean_one
        own = per * (sums[s, 5] - sums[s, 1] * mean)
        one = per * (sums[s, 6] - sums[s, 2] * mean_one)
        variance[s] = 0.0 if own <= 0.0 else own
        placebo += 0.0 if one <= 0.0 else one
        squares += per * 0.5 * (sums[s, 5] + sums[s, 7])
        value += here * mean
        value_one += here * mean_one
        first, second = sums[s, 0], sums[s, 4]  # Σρ, Σρ²
        for j in range(8):
            sums[s, j] = 0.0
        if (not first > 0) | short_of_one(N, first, second):
            missing += here * (1.0 - covered(N, first, second))
    return squares, placebo, missing, value, value_one


@compiled
def backward(
    offsets: Array,
    code: Array,
    bits: int,
    ending: Array,
    rho: Array,
    by_code: bool,
    reward: Array,
    gamma: float,
    mode: int,
    d: Array,
    visits: Array,
    mass: Array,
    variance: Array,
    lost: Array,
    u: Array,
    ahead: Array,
    since: int,
    until: int,
) -> tuple[float, float]:
    """The backward recursion of plain and simplex MIS, with the variances within the states.

    Fills variance (H, width), the parts of SE² (estimate/variance.py); lost (H,), the share of
    d_t that the log cannot carry on; u (width, 2), what starting in a state is worth, and the same
    if every reward were 1. Returns the sum of squares that SE² is a difference of, and the
    placebo's parts of SE² added up. Of the steps from `since` to `until`, as in `forward`: `ahead`
    (width, 2) is γ times what arriving at `until` is worth, and then at `since`.
    """
    horizon, width = len(offsets) - 1, d.shape[1]
    end = width - 1
    cut = np.empty(width)
    flat = zeros_in_lines(8 * width)
    # What arriving in a state is worth, as `add_worth` reads it: (0, x, x₁, -x), with x₁ that of
    # the placebo.
    worth = zeros_in_lines(4 * width)
    for s in range(width):
        worth[4 * s + 1], worth[4 * s + 2], worth[4 * s + 3] = (
            ahead[s, 0],
            ahead[s, 1],
            -ahead[s, 0],
        )
    sums = flat.reshape((width, 8))
    more = np.zeros((width, 12))
    squares, placebo = 0.0, 0.0
    u[:] = 0.0
    for t in range(until - 1, since - 1, -1):
        low, high = offsets[t], offsets[t + 1]
        own = slice(low - offsets[since], high - offsets[since])
        here_code, y = code[low:high], reward[own]
        alive = high - low
        going = offsets[t + 2] - high if t + 1 < horizon else 0
        power = gamma**t
        cuts = 0
        if t + 1 < horizon:
            cuts = count_cut(ending, going, alive, low, code, bits, cut)
        ratios = rho if by_code else rho[own]
        # q = ρ (y + γ u'(s')): with N = M a row moves the value by γ^t d_t(s) q/N. A state's eight
        # sums are of ρ, q, the placebo's q and ρ (y - γ u'), which with q gives the squares of both
        # parts; then of their squares.
        _look_ahead(
            here_code,
            code[high : high + going],
            bits,
            ratios,
            by_code,
            y,
            worth,
            flat,
        )
        _look_at_last(
            here_code[going:],
            ending[going:alive],
            bits,
            ratios if by_code else ratios[going:],
            by_code,
            y[going:],
            worth,
            t + 1 == horizon,
            flat,
        )
        if cuts:
            _split(
                here_code,
                code[high : high + going],
                bits,
                ending,
                ratios,
                by_code,
                y,
                worth,
                more,
            )
        square, one, missing, mean, mean_one = _settle(
            sums[:end], cuts > 0, cut, d[t], visits[t], power, u, variance[t]
        )
        squares += square
        placebo += one
        for s in range(end if cuts else 0):
            if cut[s] > 0:
                N, m, M, D = visits[t, s], more[s], visits[t, s] - cut[s], power * d[t, s]
                first, second = sums[s, 0], sums[s, 4]  # Σρ, Σρ²
                u[s, 0], spread, square = _two_divisors(
                    N, M, D, m[0], m[1], m[2], m[3], m[4], m[8], m[9]
                )
                u[s, 1], one, _ = _two_divisors(
                    N, M, D, first, second, m[5], m[6], m[7], m[10], m[11]
                )
                squares += square
                missing += d[t, s] * (1.0 - covered(M, first, second))
                variance[t, s] = max(spread, 0.0)
                placebo += max(one, 0.0)
                mean += d[t, s] * u[s, 0]
                mean_one += d[t, s] * u[s, 1]
                sums[s] = 0.0
        lost[t] = missing
        u[end, 0], u[end, 1] = worth[4 * end + 1], 1.0 + worth[4 * end + 2]
        variance[t, end] = 0.0
        # γ times what arriving is worth: u_t, or (u_t - <d_t, u_t>)/c_t where d_t was divided
        divided = mode == 1 and t > 0
        mean = mean + d[t, end] * u[end, 0] if divided else 0.0
        mean_one = mean_one + d[t, end] * u[end, 1] if divided else 0.0
        per = gamma / mass[t] if divided else gamma
        for s in range(width):
            x = per * (u[s, 0] - mean)
            worth[4 * s + 1], worth[4 * s + 2] = x, per * (u[s, 1] - mean_one)
            worth[4 * s + 3] = -x
    for s in range(width):
        ahead[s, 0], ahead[s, 1] = worth[4 * s + 1], worth[4 * s + 2]
    return squares, placebo


@compiled
def backward_state(
    offsets: Array,
    code: Array,
    bits: int,
    ending: Array,
    rho: Array,
    by_code: bool,
    reward: Array,
    gamma: float,
    d: Array,
    visits: Array,
    variance: Array,
    lost: Array,
    u: Array,
    ahead: Array,
    since: int,
    until: int,
) -> float:
    """The same for MIS normalised within states, without a placebo; u, ahead are (width, 1).

    A row moves the value through R = D (z - r̂ρ)/Σρ and T = D ρ (γ u'(s') - mean)/Σρ, the latter
    over the rows whose next state is known: one sweep for the means, one for the squares.
    """
    horizon, width = len(offsets) - 1, d.shape[1]
    end = width - 1
    worth = np.empty(len(ending))
    mean, sums = np.empty((width, 5)), np.empty((width, 7))
    squares = 0.0
    u[:] = 0.0
    for t in range(until - 1, since - 1, -1):
        low, high = offsets[t], offsets[t + 1]
        own = slice(low - offsets[since], high - offsets[since])
        here_code, y = code[low:high], reward[own]
        ratios = rho if by_code else rho[own]
        alive = high - low
        going = offsets[t + 2] - high if t + 1 < horizon else 0
        power = gamma**t
        mean[:], sums[:] = 0.0, 0.0
        for k in range(alive):
            s, r = here_code[k] >> bits, ratio(ratios, by_code, here_code, k)
            mean[s, 0] += r
            mean[s, 1] += r * y[k]
            worth[k] = 0.0
            if k < going:
                worth[k] = ahead[code[high + k] >> bits, 0]
            elif ending[k] >= END:
                worth[k] = ahead[end if ending[k] == END else ending[k], 0]
            elif t + 1 < horizon:
                worth[k] = np.nan  # cut off
                continue
            mean[s, 2] += r
            mean[s, 3] += r * worth[k]
            mean[s, 4] += 1.0
            sums[s, 6] += r * r
        for s in range(end):
            mean[s, 1] = mean[s, 1] / mean[s, 0] if mean[s, 0] > 0 else 0.0
            mean[s, 3] = mean[s, 3] / mean[s, 2] if mean[s, 2] > 0 else 0.0
        for k in range(alive):
            s, r = here_code[k] >> bits, ratio(ratios, by_code, here_code, k)
            R = r * y[k] - mean[s, 1] * r
            sums[s, 0] += R
            sums[s, 1] += R * R
            if not math.isnan(worth[k]):
                T = r * (worth[k] - mean[s, 3])
                sums[s, 2] += R
                sums[s, 3] += T
                sums[s, 4] += T * T
                sums[s, 5] += R * T
        missing = 0.0
        for s in range(end):
            N, M, D = visits[t, s], mean[s, 4], power * d[t, s]
            u[s, 0] = mean[s, 1] + mean[s, 3]
            missing += d[t, s] * (1.0 - covered(M, mean[s, 2], sums[s, 6]))
            a = D / mean[s, 0] if mean[s, 0] > 0 else 0.0
            b = D / mean[s, 2] if mean[s, 2] > 0 else 0.0
            per_n, per_m = 1.0 / N if N > 0 else 0.0, 1.0 / M if M > 0 else 0.0
            r2, t2 = a * a * sums[s, 1], b * b * sums[s, 4]
            spread = r2 - (a * sums[s, 0]) ** 2 * per_n + t2 - (b * sums[s, 3]) ** 2 * per_m
            spread += 2.0 * a * b * (sums[s, 5] - sums[s, 2] * sums[s, 3] * per_m)
            variance[t, s] = 0.0 if spread < 0 else spread
            squares += r2 + t2
        lost[t] = missing
        u[end, 0] = ahead[end, 0]
        variance[t, end] = 0.0
        for s in range(width):
            ahead[s, 0] = gamma * u[s, 0]
    return squares
