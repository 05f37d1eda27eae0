"""The value with a memory of k steps, and how much each episode moves it (`memory_rows.py`)."""

from __future__ import annotations

import numpy as np

from reweigh.kernels.common import Array, compiled


@compiled
def remember(
    own: Array, begin: Array, bounds: Array, count: Array, products: Array, reward: Array, k: int,
    gamma: float,
) -> tuple[float, Array]:  # fmt: skip
    """v̂ and ψ (n,): see `memory_rows.with_influence`, which has the equations. All arrays but
    bounds (H+1,) and count (V,) are (H, n)."""
    horizon, n = own.shape
    m, u, arrived = np.ones(len(count)), np.zeros(len(count)), np.zeros(len(count))
    weight, slope, psi = np.empty(own.shape), np.empty(n), np.zeros(n)
    total, earned, scale = np.empty(horizon), np.empty(horizon), np.zeros(horizon)
    for t in range(horizon):
        total[t] = earned[t] = 0.0
        since, following, unseen = begin[max(t - k, 0)], own[min(t + 1, horizon - 1)], 0
        for i in range(n):
            w = m[since[i]] * products[t, i]
            weight[t, i] = w
            total[t] += w
            earned[t] += w * reward[t, i]
            if following[i] >= 0:
                arrived[following[i]] += w
            else:
                unseen += 1
        if t + 1 < horizon:  # normalized where every episode is observed: there scale > 0
            scale[t] = n / total[t] if unseen == 0 else 0.0
            for j in range(bounds[t + 1], bounds[t + 2]):
                m[j] = arrived[j] / count[j] * (scale[t] if unseen == 0 else 1.0)
    value = 0.0
    for t in range(horizon - 1, -1, -1):
        power = gamma**t
        share, along = power * earned[t] / total[t], 0.0
        value += share
        if t + 1 < horizon:
            for j in range(bounds[t + 1], bounds[t + 2]):
                along += u[j] * m[j] if scale[t] > 0 else 0.0
        since, following = begin[max(t - k, 0)], own[min(t + 1, horizon - 1)]
        for i in range(n):
            slope[i] = (power * reward[t, i] - share - along) / total[t]  # ∂v̂/∂w_t
            psi[i] += along / n
            j = following[i]
            if t + 1 < horizon and j >= 0:
                slope[i] += (scale[t] if scale[t] > 0 else 1.0) * u[j] / count[j]
                psi[i] -= u[j] / count[j] * m[j]
            psi[i] += weight[t, i] * slope[i]
        for i in range(n):
            u[since[i]] += slope[i] * products[t, i]
    return value, n * psi
