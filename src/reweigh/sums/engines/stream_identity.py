"""The marks of `log/identity.py` as compiled code, episode by episode."""

from __future__ import annotations

from typing import Any

import numpy as np

from reweigh.kernels.common import compiled
from reweigh.log.identity import FOLD, LARGE, MARKS, MIX, SPREAD


@compiled
def fraction(x: Any) -> Any:
    return x - np.floor(x)


@compiled
def folded(x: float) -> Any:
    """f(x) = [c(x) · SPREAD]"""
    x = x if abs(x) < LARGE else x * FOLD
    x = x if abs(x) < LARGE else x * FOLD
    return fraction((x if abs(x) < LARGE else 0.0) * SPREAD)


@compiled
def base(y: float, mu: float, t: float) -> Any:
    """d = [(f(y) + 1) · (f(μ) + t + 2) · SPREAD]"""
    return fraction((folded(y) + 1.0) * (folded(mu) + (t + 2.0)) * SPREAD)


@compiled
def row_marks(t: Any, y: Any, mu: Any, horizon: int) -> np.int64:
    """Σ of the marks of the rows before the horizon, of which 0 < μ ≤ 1."""
    total = np.int64(0)
    for k in range(len(t)):
        of_mu = fraction(mu[k] * SPREAD)
        # by way of 32 bits, which processors convert several at a time
        d = fraction((folded(y[k]) + 1.0) * (of_mu + (float(np.int32(t[k])) + 2.0)) * SPREAD)
        mark = np.int64(np.int32(fraction(d * d * MIX) * MARKS))
        total += mark if t[k] < horizon else np.int64(0)
    return total


@compiled
def episode_mark(key: int, y: float, mu: float) -> int:
    """The mark of an episode, by the key of its id and its first row."""
    g = fraction((folded(float(key)) + 1.0) * (base(y, mu, 0.0) + 2.0) * SPREAD)
    return int(fraction(g * g * MIX) * MARKS)
