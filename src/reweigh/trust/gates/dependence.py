"""Do episodes depend on more than their states? Told from sums.

Whole episodes may turn out good or bad for a reason that no state tells. The returns then spread
more than the recursion says of the logged policy itself, where every ratio is 1. Where influence
values can be computed there is an error that does not mind.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from reweigh.estimate import recursion
from reweigh.estimate.operators import cells_of, importance_operator
from reweigh.estimate.recursion import backward, forward
from reweigh.estimate.standard_error import OVERFLOW
from reweigh.sums.moments import Moments
from reweigh.trust.gain import no_returns
from reweigh.trust.gates.gate import Context, Gate, GateResult, Limit, limits_by

LUCK = 3.0  # errors of a standard deviation, 1/√(2n) of it each
STATE_IS_ALL = "an error from sums takes the state for all that matters"
BY_BLOCKS = (
    "an interval by deleting blocks of episodes allows for it (jackknife), as does one from the "
    "log in memory (engine='arrays')"
)


class Dependence(
    Gate,
    name="dependence",
    question="Do episodes depend on more than their states, where only sums are at hand?",
    fault="fate",
    needs={"ordered", "transitions"},
    limits=limits_by(Limit(0.05, None)),
    of={"states"},
):
    """Where it cannot be told it is amber, as if it were so: then there is no interval but by
    deleting blocks."""

    def measure(self, context: Context) -> GateResult | None:
        if context.spread is not None or context.n_episodes < 2:
            return None
        excess = context.once(self.name, lambda: excess_spread(context.sums))
        if isinstance(excess, str):
            text = f"whether returns spread more than the states explain cannot be told ({excess})"
            return self.result("amber", None, f"{text}, and {STATE_IS_ALL}", advice=BY_BLOCKS)
        if self.limit().judge(excess) == "green":
            return None
        text = f"returns spread {excess:.0%} more than the states explain, luck allowed for"
        return self.judge(excess, f"{text}, and {STATE_IS_ALL}", BY_BLOCKS)


def excess_spread(sums: Moments) -> float | str:
    """By how much the returns spread more than the states explain, luck allowed for, as a share of
    that; or why it cannot be told."""
    ordered, n, about = sums.ordered, sums.n_episodes, sums.about
    if ordered is None:
        return no_returns(sums)
    if sums.transitions is not None:
        cells, start = sums.transitions.forget("block", "a"), sums.start.forget("block")
    elif sums.model is not None:
        cells, start = cells_of(sums, "model")
        cells = cells.forget("a")
    else:
        return "these sums hold no transitions"
    count = cells.n.astype(np.float64)
    logged = replace(cells, rho=count, rho2=count, z=cells.y, rhoz=cells.y, z2=cells.y2, one=count)
    op = importance_operator(logged, start, about.horizon, about.discount)
    op = replace(op, start=replace(op.start, g=0 * op.start.g, g2=0 * op.start.g2))
    flow, back = forward(op, simplex=False), backward(op)
    moved = recursion.derivatives(op, flow, back)
    term = recursion.logged_reward(op, moved.reward)
    explained = recursion.squared_error(op, back, moved, term)
    spread = ordered.variance / n
    if not math.isfinite(spread + explained.total):
        return OVERFLOW
    if explained.lost or not spread > 0:
        return 0.0
    return max(math.sqrt(spread / explained.total) - 1 - LUCK / math.sqrt(2 * n), 0.0)
