"""The backward recursions of MIS over the rows of a log, with the parts of the standard error."""

from __future__ import annotations

import numpy as np

from reweigh.kernels.common import (
    Array,
    compiled,
    covered,
    short_of_one,
    zeros_in_lines,
)
from reweigh.kernels.vectors import add_at, add_worth

U2, U4, U8 = np.uint64(2), np.uint64(4), np.uint64(8)


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
    if by_code:  # checked once: inside the loop it costs several times as much as the sums
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
    sums: Array,
) -> None:
    """The rows of one step that no other follows. The state after the last step may be unknown; its
    value is 0, like that of END."""
    end = np.uint64(len(worth)) - U4
    if by_code:
        for k in range(len(code)):
            to = U4 * np.uint64(ending[k]) if ending[k] >= 0 else end
            add_worth(sums, U8 * (code[k] >> bits), worth, to, reward[k], rho[code[k]])
    else:
        for k in range(len(code)):
            to = U4 * np.uint64(ending[k]) if ending[k] >= 0 else end
            add_worth(sums, U8 * (code[k] >> bits), worth, to, reward[k], rho[k])


@compiled
def _settle(
    sums: Array, d: Array, visits: Array, power: float, u: Array, variance: Array
) -> tuple[float, float, float, float, float]:
    """From the sums of a step: u and the parts of SE² of its states; returned are the squares,
    the placebo's parts added up, the mass without data, and <d, u> of both. Hardly
    a branch, since states differ at random. The sums are 0 afterwards."""
    squares, placebo, missing, value, value_one = 0.0, 0.0, 0.0, 0.0, 0.0
    for s in range(len(sums)):
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
    simplex: bool,
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
    """The backward recursion of MIS, with the variances within the states.

    Fills variance (H, width), the parts of SE² (estimate/recursion.py); lost (H,), the share of
    d_t that the log cannot carry on; u and ahead (H+1, width, 2): what being in a state is worth,
    and γ times what arriving there is worth, and both if every reward were 1. Returns the sum of
    squares that SE² is a difference of, and the placebo's parts of SE² added up. Of the steps from
    `since` to `until`, as in `forward`: `until` is the horizon, or was `since` before.
    """
    horizon, width = len(offsets) - 1, d.shape[1]
    end = width - 1
    flat = zeros_in_lines(8 * width)
    # What arriving in a state is worth, as `add_worth` reads it: (0, x, x₁, -x), with x₁ that of
    # the placebo.
    worth = zeros_in_lines(4 * width)
    for s in range(width):
        x = ahead[until, s, 0]
        worth[4 * s + 1], worth[4 * s + 2], worth[4 * s + 3] = x, ahead[until, s, 1], -x
    sums = flat.reshape((width, 8))
    squares, placebo = 0.0, 0.0
    for t in range(until - 1, since - 1, -1):
        low, high = offsets[t], offsets[t + 1]
        rows = slice(low - offsets[since], high - offsets[since])
        here, y = code[low:high], reward[rows]
        going = offsets[t + 2] - high if t + 1 < horizon else 0
        ratios = rho if by_code else rho[rows]
        # q = ρ (y + γ u'(s')): a row moves the value by γ^t d_t(s) q/N. A state's eight sums are of
        # ρ, q, the placebo's q and ρ (y - γ u'), which with q gives the squares of both parts; then
        # of their squares.
        _look_ahead(here, code[high : high + going], bits, ratios, by_code, y, worth, flat)
        _look_at_last(
            here[going:], ending[going : high - low], bits,
            ratios if by_code else ratios[going:], by_code, y[going:], worth, flat,
        )  # fmt: skip
        square, one, lost[t], mean, mean_one = _settle(
            sums[:end], d[t], visits[t], gamma**t, u[t], variance[t]
        )
        squares += square
        placebo += one
        u[t, end, 0], u[t, end, 1] = worth[4 * end + 1], 1.0 + worth[4 * end + 2]
        variance[t, end] = 0.0
        # γ times what arriving is worth: u_t, or (u_t - <d_t, u_t>)/c_t where d_t was divided
        divided = simplex and t > 0
        mean = mean + d[t, end] * u[t, end, 0] if divided else 0.0
        mean_one = mean_one + d[t, end] * u[t, end, 1] if divided else 0.0
        per = gamma / mass[t] if divided else gamma
        for s in range(width):
            x, x_one = per * (u[t, s, 0] - mean), per * (u[t, s, 1] - mean_one)
            worth[4 * s + 1], worth[4 * s + 2], worth[4 * s + 3] = x, x_one, -x
            ahead[t, s, 0], ahead[t, s, 1] = x, x_one
    return squares, placebo


@compiled
def influence(
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
    u: Array,
    ahead: Array,
    psi: Array,
    since: int,
    until: int,
) -> None:
    """Adds to psi (n,) what the rows of these steps move the value by, with u and ahead of
    `backward`:  ψ_i += γ^t n d_t(s)/N_t(s) [ρ (y + γ u'(s')) - u_t(s)]."""
    horizon, width, n = len(offsets) - 1, d.shape[1], len(ending)
    weight, own, worth = np.empty((3, width))
    for t in range(since, until):
        low, high, at = offsets[t], offsets[t + 1], offsets[t] - offsets[since]
        going = offsets[t + 2] - high if t + 1 < horizon else 0
        for s in range(width):
            weight[s] = gamma**t * n * d[t, s] / max(visits[t, s], 1.0)
            own[s], worth[s] = weight[s] * u[t, s, 0], ahead[t + 1, s, 0]
        ratios = _ratios(code[low:high], rho, by_code, at)
        here, after, y = code[low:high], code[high : high + going], reward[at : at + high - low]
        for k in range(going):
            s = here[k] >> bits
            psi[k] += weight[s] * ratios[k] * (y[k] + worth[after[k] >> bits]) - own[s]
        for k in range(going, high - low):
            s, to = here[k] >> bits, ending[k] if ending[k] >= 0 else width - 1
            psi[k] += weight[s] * ratios[k] * (y[k] + worth[to]) - own[s]


@compiled
def _ratios(code: Array, rho: Array, by_code: bool, at: int) -> Array:
    """Those of the rows of one step, which begin at `at`."""
    if not by_code:
        return rho[at : at + len(code)]
    found = np.empty(len(code))
    for k in range(len(code)):
        found[k] = rho[code[k]]
    return found


@compiled
def state_values(
    offsets: Array, code: Array, bits: int, ending: Array, rho: Array, by_code: bool, reward: Array,
    gamma: float, values: Array, visits: Array, since: int, until: int,
) -> None:  # fmt: skip
    """Fills values, visits (H+1, width): V_t(s) = Σ ρ (y + γ V_{t+1}(s'))/N over the N rows at
    (t, s), without any normalization; END and unknown states have the value 0. Steps as above."""
    horizon, width = len(offsets) - 1, values.shape[1]
    sums, worth = np.zeros(2 * width), np.zeros(width)
    for s in range(width):
        worth[s] = gamma * values[until, s]
    for t in range(until - 1, since - 1, -1):
        low, high, at = offsets[t], offsets[t + 1], offsets[t] - offsets[since]
        going = offsets[t + 2] - high if t + 1 < horizon else 0
        ratios = _ratios(code[low:high], rho, by_code, at)
        here, after, y = code[low:high], code[high : high + going], reward[at : at + high - low]
        for k in range(going):
            q = ratios[k] * (y[k] + worth[after[k] >> bits])
            add_at(sums, U2 * (here[k] >> bits), (q, 1.0))
        for k in range(going, high - low):
            q = ratios[k] * (y[k] + (worth[ending[k]] if ending[k] >= 0 else 0.0))
            add_at(sums, U2 * (here[k] >> bits), (q, 1.0))
        for s in range(width):
            visits[t, s] = sums[2 * s + 1]
            values[t, s] = sums[2 * s] / max(sums[2 * s + 1], 1.0)
            worth[s] = gamma * values[t, s]
        sums[:] = 0.0
