"""On how many episodes does the estimate effectively rest?"""

from __future__ import annotations

import numpy as np

from reweigh.errors import LowOverlapWarning
from reweigh.sums.moments import Moments
from reweigh.trust.gates.gate import Context, Gate, GateResult, Limit, limits_by

NEARLY_ALL = 0.9  # of the episodes: then it is not the target that is far
LONG_STRETCH = 3  # hidden steps, from which on the limits are those of running products


class EffectiveSize(
    Gate,
    name="effective size",
    question="On how many episodes does the estimate effectively rest?",
    fault="logarithms",
    reads="solution",
    limits=limits_by(
        Limit(100, 30, above=False),
        products=Limit(1000, 600, above=False),  # a log may lack their tail by luck
        plain=Limit(300, 100, above=False),  # their mass is noise too
        model=Limit(100, None, above=False),  # by luck a rare action is no rare one
        pooled=Limit(300, 200, above=False),  # below, no test sees steps differ
    ),
    warning=LowOverlapWarning,
):
    """The smallest effective number of episodes over the steps."""

    def measure(self, context: Context) -> GateResult:
        ess, sums, n = context.solved.ess, context.sums, context.n_episodes
        if not np.any(np.isfinite(ess)):
            return self.unknown("no step has weights to judge")
        limits = context.limits
        if sums.hidden and limits != "model" and _mean_stretch(sums) > LONG_STRETCH:
            limits = "products"
        step = int(np.nanargmin(ess))
        return self.judge(
            float(ess[step]),
            f"{ess[step]:,.0f} of {n:,} episodes speak for the target at step {step}",
            "log more episodes"
            if ess[step] > NEARLY_ALL * n
            else "log more episodes, shorten the horizon, or ask for a target nearer to the "
            "behaviour",
            limit=self.limit(limits),
            per_step=ess,
            step=step,
        )


def _mean_stretch(sums: Moments) -> float:
    """Steps from one observed state to the next, on average: MIS multiplies as many ratios."""
    if sums.transitions is None:
        return 1.0
    cells = sums.transitions
    return float(cells.n @ (cells.t_next - cells.t)) / float(cells.n.sum())
