"""Whether episodes depend on more than their states, told from sums."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from reweigh.estimate import variance
from reweigh.estimate.operators import importance_operator
from reweigh.estimate.recursion import backward, forward
from reweigh.estimate.solution import model_cells, over_blocks
from reweigh.sums.moments import Moments
from reweigh.trust import log_gates
from reweigh.trust.gain import no_returns
from reweigh.trust.gates import Gate

LUCK = 3.0  # errors of a standard deviation, 1/√(2n) of it each


def dependence(sums: Moments) -> list[Gate]:
    """Do whole episodes turn out good or bad for a reason that no state tells? The returns then
    spread more than the recursion says of the logged policy itself, where every ratio is 1. No
    gate where they do not."""
    ordered, n, about = sums.ordered, sums.n_episodes, sums.about
    if n < 2:
        return []
    if ordered is None:
        return [log_gates.maybe_dependent(no_returns(sums))]
    if sums.transitions is None and sums.model is None:
        return [log_gates.maybe_dependent("these sums hold no transitions")]
    if sums.transitions is not None:
        cells, start = sums.transitions.forget("block", "a"), over_blocks(sums.start)
    else:
        cells, start = model_cells(sums)
        cells = cells.forget("a")
    count = cells.n.astype(np.float64)
    logged = replace(cells, rho=count, rho2=count, z=cells.y, rhoz=cells.y, z2=cells.y2, one=count)
    op = importance_operator(logged, start, about.horizon, about.discount)
    op = replace(op, start=replace(op.start, g=0 * op.start.g, g2=0 * op.start.g2))
    flow, back = forward(op, simplex=False), backward(op)
    moved = variance.derivatives(op, flow, back)
    term = variance.logged_reward(op, moved.reward)
    explained = variance.squared_error(op, back, moved, term)
    spread = ordered.variance / n
    if not math.isfinite(spread + explained.total):
        return [log_gates.maybe_dependent(variance.OVERFLOW)]
    if explained.lost or not spread > 0:
        return []
    excess = math.sqrt(spread / explained.total) - 1 - LUCK / math.sqrt(2 * n)
    found = log_gates.dependence(max(excess, 0.0))
    return [] if found.level == "green" else [found]
