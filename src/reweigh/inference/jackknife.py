"""The delete-a-block jackknife: standard errors from sums alone, for any estimator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from reweigh.errors import RefusedError
from reweigh.inference.variance import LOST, nothing_left
from reweigh.moments.bundle import Moments

LEAST_BLOCKS = 10


def jackknife_error(
    moments: Moments, value: float, solve: Callable[[Moments], float]
) -> tuple[float | None, str]:
    """(error, method), or (None, why there is none).

    Blocks come from a hash, so their sizes m_j differ. With h_j = n/m_j the pseudo-values are
    p_j = h_j v - (h_j - 1) v_(j), and Var = (1/g) Σ_j (p_j - v_J)²/(h_j - 1), where
    v_J = g v - Σ_j (1 - m_j/n) v_(j).
    """
    blocks, sizes = moments.block_sizes()
    if len(blocks) < LEAST_BLOCKS:
        return None, (
            f"the jackknife needs at least {LEAST_BLOCKS} blocks of episodes and there are "
            f"{len(blocks)}; make the moments with blocks=20"
        )
    without = np.empty(len(blocks))
    for index, block in enumerate(blocks.tolist()):
        try:
            without[index] = solve(moments.without(block))
        except RefusedError as error:
            return None, f"without one block of episodes there is no estimate ({error.code})"
    n, count = float(sizes.sum()), len(blocks)
    h = n / sizes
    center = count * value - float(np.sum((1 - sizes / n) * without))
    pseudo = h * value - (h - 1) * without
    found = float(np.sqrt(np.mean((pseudo - center) ** 2 / (h - 1))))
    if nothing_left(found, value):
        return None, LOST
    return found, f"jackknife ({count} blocks)"
