"""The delete-a-block jackknife: standard errors of any estimator, from its values without each
block of episodes; from sums alone, or from the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError
from reweigh.estimate.variance import LOST, OVERFLOW, nothing_left
from reweigh.sums.moments import Moments

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
LEAST_BLOCKS = 10
TOO_FEW, GONE = "the jackknife needs at least", "without one block of episodes there is no estimate"


def jackknife_error(
    moments: Moments, value: float, solve: Callable[[Moments], float]
) -> tuple[float | None, str]:
    """(error, method), or (None, why there is none), from sums by blocks."""
    blocks, sizes = moments.block_sizes()
    if len(blocks) < LEAST_BLOCKS:
        return None, _too_few(len(blocks))
    without, reasons = np.full(len(blocks), np.nan), {}
    for index, block in enumerate(blocks.tolist()):
        try:
            without[index] = solve(moments.without(block))
        except RefusedError as error:
            reasons[error.code] = 1
            break
    return error_of_blocks(value, without, sizes, reasons)


def error_of_blocks(
    value: float, without: Floats, sizes: Ints, reasons: Mapping[str, int]
) -> tuple[float | None, str]:
    """(error, method), or (None, why there is none), from the values (g,) without each block."""
    if len(sizes) < LEAST_BLOCKS:
        return None, _too_few(len(sizes))
    if not np.all(np.isfinite(without)):
        code = next(iter(reasons), "overflow")
        return None, f"{GONE} ({code})"
    with np.errstate(over="ignore"):
        found = block_error(value, without, sizes)
    if not np.isfinite(found):
        return None, OVERFLOW
    if nothing_left(found, value):
        return None, LOST
    return found, f"jackknife ({len(sizes)} blocks)"


def block_error(value: float, without: Floats, sizes: Ints) -> float:
    """Blocks come from a hash, so their sizes m_j differ. With h_j = n/m_j the pseudo-values are
    p_j = h_j v - (h_j - 1) v_(j), and Var = (1/g) Σ_j (p_j - v_J)²/(h_j - 1), where
    v_J = g v - Σ_j (1 - m_j/n) v_(j).
    """
    n, count = float(sizes.sum()), len(sizes)
    h = n / sizes
    center = count * value - float(np.sum((1 - sizes / n) * without))
    pseudo = h * value - (h - 1) * without
    return float(np.sqrt(np.mean((pseudo - center) ** 2 / (h - 1))))


def _too_few(blocks: int) -> str:
    return (
        f"{TOO_FEW} {LEAST_BLOCKS} blocks of episodes and there are {blocks}; make the moments "
        "with blocks=20"
    )
