"""Running products of ratios, step by step, and what is summed of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
CHUNK = 1 << 13  # rows
UP, DOWN = 2.0**256, 2.0**-256
NOTHING = -(1 << 40)


def shifted(m: Array, e: Array) -> Array:
    """See `reweigh.kernels.products.shifted`."""
    return np.asarray(np.ldexp(m, np.clip(256 * e, -5000, 5000).astype(np.int32)))


def multiply(rho: Array, m: Array, e: Array) -> bool:
    """See `reweigh.kernels.products.multiply`; whether an exponent has changed."""
    before = m.copy()
    m *= rho
    if m.min() >= DOWN and m.max() <= UP:
        return False
    large = np.flatnonzero(np.isinf(m) & (rho < np.inf) & (before < np.inf))
    m[large] = before[large] * DOWN * rho[large]
    e[large] += 1
    out = np.flatnonzero(((m < DOWN) & (m > 0)) | ((m > UP) & (m < np.inf)))
    by = np.rint(np.frexp(m[out])[1] / 256).astype(np.int64)
    m[out] = np.ldexp(m[out], (-256 * by).astype(np.int32))
    e[out] += by
    return len(out) + len(large) > 0


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
    """See `reweigh.kernels.products.running`."""
    blocks = len(top)
    frozen, frozen_top = np.zeros((4, blocks)), np.full(blocks, NOTHING)
    moved = False  # until then every exponent is 0, and so is `top`
    for t in range(len(offsets) - 1):
        power, total = gamma**t, sums[:, :, t]
        for k, rows in chunks(offsets, t):
            moved |= multiply(rho[rows], m[k], e[k])
        if moved:
            top[:, t] = frozen_top
            for k, _ in chunks(offsets, t):
                _raise_top(top[:, t], block[k], m[k], e[k])
        for k, rows in chunks(offsets, t):
            y = reward[rows]
            w = m[k]
            if moved:
                w = shifted(w, e[k] - top[block[k], t])
            wy = w * y
            _add(total, block[k], w, wy)
            plain[k] += power * y
            if not moved and total[3].max() < np.inf:
                x[k] += power * wy
            else:  # a reward of 0 earns 0, also under a weight that overflows
                x[k] += power * np.where(y == 0, 0.0, shifted(m[k], e[k]) * np.where(y == 0, 1, y))
        if len(m) > offsets[t + 1] - offsets[t]:
            by = shifted(np.ones(blocks), frozen_top - top[:, t])
            total[:3] += frozen[:3] * np.stack([by, by * by, by])
            np.maximum(total[3], frozen[3] * by, out=total[3])
        over = slice(rows_after(offsets, t), int(offsets[t + 1] - offsets[t]))
        if over.stop > over.start and t + 2 < len(offsets):
            b, before = block[over], frozen_top.copy()
            _raise_top(frozen_top, b, m[over], e[over])
            by = shifted(np.ones(blocks), before - frozen_top)
            frozen *= np.stack([by, by * by, by, by])
            w = shifted(m[over], e[over] - frozen_top[b])
            _add(frozen, b, w, np.zeros(len(w)))


def episodes(
    block: Array, m: Array, e: Array, x: Array, plain: Array, g: Array, top: Array, sums: Array
) -> None:
    """See `reweigh.kernels.products.episodes`."""
    _raise_top(top, block, m, e)
    for start in range(0, len(m), CHUNK):
        k = slice(start, start + CHUNK)
        b, G = block[k], plain[k]
        W = shifted(m[k], e[k] - top[b])
        WG = W * G
        own = (x[k], x[k] ** 2, W, W * W, WG, WG * WG, W * WG, g[k], g[k] ** 2, G)
        for j, values in enumerate(own):
            sums[j] += np.bincount(b, values, len(top))
        np.maximum.at(sums[10], b, W)


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
    """See `reweigh.kernels.products.residuals`."""
    horizon, moved = len(offsets) - 1, False
    for t in range(horizon):
        for k, rows in chunks(offsets, t):
            moved |= multiply(rho[rows], m[k], e[k])
            w = m[k]
            if moved or exponent[t] != 0:
                w = shifted(w, e[k] + exponent[t])
            total[k] += scale[t] * w * (reward[rows] - center[t])
        over = slice(rows_after(offsets, t), int(offsets[t + 1] - offsets[t]))
        after = horizon + t + 1
        if over.stop > over.start and scale[after] != 0.0:
            total[over] += scale[after] * shifted(m[over], e[over] + exponent[after])


def chunks(offsets: Array, t: int) -> Iterator[tuple[slice, slice]]:
    """The episodes alive at step t, and their rows, in pieces that stay in a processor's cache."""
    low, high = int(offsets[t]), int(offsets[t + 1])
    for start in range(low, high, CHUNK):
        stop = min(start + CHUNK, high)
        yield slice(start - low, stop - low), slice(start, stop)


def rows_after(offsets: Array, t: int) -> int:
    """Rows of step t that another row follows."""
    return int(offsets[t + 2] - offsets[t + 1]) if t + 2 < len(offsets) else 0


def _raise_top(top: Array, block: Array, m: Array, e: Array) -> None:
    """top, by block, to the largest exponent of the products that are not 0."""
    counts = e if m.all() else np.where(m != 0, e, NOTHING)
    if len(top) == 1:
        top[0] = max(int(top[0]), int(counts.max()))
    else:
        np.maximum.at(top, block, counts)


def _add(total: Array, block: Array, w: Array, wy: Array) -> None:
    """Σw, Σw², Σwy and the largest w, by block."""
    if total.shape[1] == 1:
        total[:3, 0] += w.sum(), w @ w, wy.sum()
        total[3, 0] = max(total[3, 0], w.max())
        return
    for j, values in enumerate((w, w * w, wy)):
        total[j] += np.bincount(block, values, total.shape[1])
    np.maximum.at(total[3], block, w)
