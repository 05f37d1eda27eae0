"""How much of the weight does one episode hold?"""

from __future__ import annotations

import numpy as np

from reweigh.errors import LowOverlapWarning
from reweigh.trust.gates.gate import Context, Gate, GateResult, Limit, limits_by


class HeaviestEpisode(
    Gate,
    name="heaviest episode",
    question="How much of the weight does one episode hold?",
    fault="logarithms",
    reads="solution",
    limits=limits_by(Limit(None, 0.05)),
    warning=LowOverlapWarning,
    of={"products"},
):
    """Of estimators with running products, at the step with the fewest effective episodes."""

    def measure(self, context: Context) -> GateResult:
        share, ess = context.solved.heaviest, context.solved.ess
        if share is None or not np.any(np.isfinite(ess)):
            return self.unknown("no episode has a weight of its own here")
        step = int(np.nanargmin(ess))
        return self.judge(
            float(share[step]),
            f"one episode holds {share[step]:.1%} of the weight at the worst step, {step}",
            "the interval is not to be trusted: use mis, or certify() for a bound that holds",
            per_step=share,
            step=step,
        )
