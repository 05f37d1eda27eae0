"""Running products of ratios, step by step, and their sums.

A product is held as m·2^(256 e) with a float m and a whole number e, the whole part of its
logarithm: nothing over- or underflows, a ratio of 0 makes m = 0 from then on, and no row costs a
logarithm or an exponential. One pass; work vectors over the episodes.
"""

from __future__ import annotations

import numpy as np

from reweigh.kernels.common import Array, compiled

UP, DOWN = 2.0**256, 2.0**-256
NOTHING = -(1 << 40)  # exponent of a sum in which every product is 0


@compiled
def shifted(m: float, e: int) -> float:
    """m·2^(256 e), for m ≥ 0; NaN stays NaN."""
    if m == 0.0 or not m < np.inf:
        return m
    if e < -8:
        return 0.0
    if e > 8:
        return np.inf
    while e > 0:
        m *= UP
        e -= 1
    while e < 0:
        m *= DOWN
        e += 1
    return m


@compiled
def multiply(rho: Array, m: Array, e: Array) -> None:
    """The rows of one step: m·2^(256 e) times ρ, with m kept within [2^-256, 2^256]."""
    for k in range(len(rho)):
        product = m[k] * rho[k]
        if product == np.inf and rho[k] < np.inf and m[k] < np.inf:
            product = m[k] * DOWN * rho[k]
            e[k] += 1
        while product > UP and product < np.inf:
            product *= DOWN
            e[k] += 1
        while product < DOWN and product > 0.0:
            product *= UP
            e[k] -= 1
        m[k] = product


@compiled
def _earn(y: float, power: float, m: float, e: int) -> float:
    """γ^t ρ_{0:t} y; a reward of 0 earns 0, also under a weight that overflows."""
    if y == 0.0:
        return 0.0
    return power * (m if e == 0 else shifted(m, e)) * y


@compiled
def _sums(
    reward: Array, power: float, block: Array, m: Array, e: Array, top: Array, x: Array,
    plain: Array, sums: Array,
) -> None:  # fmt: skip
    """Adds to sums (4, B) Σw, Σw², Σwy and the largest w of one step's rows, by runs of one block;
    to x and plain what the rows earn."""
    k = 0
    while k < len(reward):
        b, largest = block[k], 0.0
        first = second = earned = 0.0
        shift = top[b]
        while k < len(reward) and block[k] == b:
            y, product, exponent = reward[k], m[k], e[k]
            w = product if exponent == shift else shifted(product, exponent - shift)
            first += w
            second += w * w
            earned += w * y
            largest = max(largest, w)
            plain[k] += power * y
            x[k] += _earn(y, power, product, exponent)
            k += 1
        sums[0, b] += first
        sums[1, b] += second
        sums[2, b] += earned
        sums[3, b] = max(sums[3, b], largest)


@compiled
def running(
    offsets: Array,
    rho: Array,
    reward: Array,
    gamma: float,
    block: Array,
    m: Array,
    e: Array,
    x: Array,
    plain: Array,
    top: Array,
    sums: Array,
) -> None:
    """Fills by (block, step) top (B, H), the exponent to which sums (4, B, H) are relative: Σw,
    Σw², Σwy and the largest w, over all episodes; w is ρ_{0:t}, frozen once an episode has ended.

    m, e (n,) hold 1·2^0 before and the whole product after; to x (n,) Σ_t γ^t ρ_{0:t} y_t is
    added, to plain (n,) Σ_t γ^t y_t.
    """
    horizon, blocks = len(offsets) - 1, len(top)
    frozen = np.zeros((3, blocks))  # Σw, Σw² and the largest w of ended episodes
    frozen_top = np.full(blocks, NOTHING)
    for t in range(horizon):
        low, alive, power = offsets[t], offsets[t + 1] - offsets[t], gamma**t
        # the active ones; after the last step the sums of the ended ones are not needed
        going = offsets[t + 2] - offsets[t + 1] if t + 1 < horizon else alive
        multiply(rho[low : low + alive], m, e)
        here = top[:, t]
        here[:] = frozen_top
        for k in range(alive):
            if m[k] != 0.0 and e[k] > here[block[k]]:
                here[block[k]] = e[k]
        rows = slice(low, low + alive)
        _sums(reward[rows], power, block, m, e, here, x, plain, sums[:, :, t])
        for b in range(blocks):
            by = shifted(1.0, frozen_top[b] - here[b])
            sums[0, b, t] += frozen[0, b] * by
            sums[1, b, t] += frozen[1, b] * by * by
            sums[3, b, t] = max(sums[3, b, t], frozen[2, b] * by)
        for k in range(going, alive):
            b = block[k]
            if m[k] != 0.0 and e[k] > frozen_top[b]:
                by = shifted(1.0, frozen_top[b] - e[k])
                frozen[0, b] *= by
                frozen[1, b] *= by * by
                frozen[2, b] *= by
                frozen_top[b] = e[k]
            w = shifted(m[k], e[k] - frozen_top[b])
            frozen[0, b] += w
            frozen[1, b] += w * w
            frozen[2, b] = max(frozen[2, b], w)


@compiled
def episodes(
    block: Array, m: Array, e: Array, x: Array, plain: Array, g: Array, top: Array, sums: Array
) -> None:
    """Fills top (B,), the exponent of the largest product of a block, and adds to sums (11, B) what
    its episodes add up to: x, x², W, W², WG, (WG)², W²G, g, g², G, and the largest W, with W the
    whole product relative to `top`, G the return `plain`."""
    n = len(m)
    for k in range(n):
        if m[k] != 0.0 and e[k] > top[block[k]]:
            top[block[k]] = e[k]
    k = 0
    while k < n:  # by runs of one block, which are added up before they go to memory
        b, largest = block[k], 0.0
        x1 = x2 = w1 = w2 = wg = wg2 = w2g = g1 = g2 = returns = 0.0
        while k < n and block[k] == b:
            G, weighted, start = plain[k], x[k], g[k]
            W = m[k] if e[k] == top[b] else shifted(m[k], e[k] - top[b])
            WG = W * G
            x1 += weighted
            x2 += weighted * weighted
            w1 += W
            w2 += W * W
            wg += WG
            wg2 += WG * WG
            w2g += W * WG
            g1 += start
            g2 += start * start
            returns += G
            largest = max(largest, W)
            k += 1
        for j, value in enumerate((x1, x2, w1, w2, wg, wg2, w2g, g1, g2, returns)):
            sums[j, b] += value
        sums[10, b] = max(sums[10, b], largest)


@compiled
def residuals(
    offsets: Array,
    rho: Array,
    reward: Array,
    center: Array,
    scale: Array,
    exponent: Array,
    m: Array,
    e: Array,
    total: Array,
) -> None:
    """Adds to total (n,) Σ_t scale_t ρ_{0:t} (y_t - center_t), where scale_t is scale[t] times
    2^(256 exponent[t]). At an episode's end, its last product is multiplied by scale[H+t] and
    exponent[H+t], the total of all steps from t on. m, e hold 1·2^0 before.
    """
    horizon = len(offsets) - 1
    for t in range(horizon):
        low, alive = offsets[t], offsets[t + 1] - offsets[t]
        going = offsets[t + 2] - offsets[t + 1] if t + 1 < horizon else 0
        multiply(rho[low : low + alive], m, e)
        by, shift, mean = scale[t], exponent[t], center[t]
        for k in range(alive):
            w = m[k] if e[k] + shift == 0 else shifted(m[k], e[k] + shift)
            total[k] += by * w * (reward[low + k] - mean)
        by, shift = scale[horizon + t + 1], exponent[horizon + t + 1]
        for k in range(going if by != 0.0 else alive, alive):
            total[k] += by * shifted(m[k], e[k] + shift)
