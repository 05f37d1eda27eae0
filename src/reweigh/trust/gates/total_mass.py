"""Is the target's mass 1 before it is normalised?"""

from __future__ import annotations

import math

import numpy as np

from reweigh.trust.gates.gate import ROUNDING, Context, Gate, GateResult, Limit, limits_by


class TotalMass(
    Gate,
    name="total mass",
    question="Is the target's mass 1 before it is normalised?",
    fault="propensities-low",
    reads="solution",
    limits=limits_by(Limit(0.10, 0.50)),
    softened="amber at most: it fires on clean logs with large weights",
    hint=True,
    unless={"products", "model"},
):
    """Σ_s d_t(s) of the un-normalised recursion, which should be 1: a hint, never more, since it
    fires on clean logs with large weights."""

    def measure(self, context: Context) -> GateResult:
        mass = context.solved.total_mass
        if mass is None or not np.any(np.isfinite(mass)):
            return self.unknown("this estimator has no state distribution")
        off = np.abs(mass - 1)
        step = int(np.nanargmax(off))
        if not math.isfinite(off[step]):
            return self.unknown(
                f"the target's mass at step {step} is beyond what a number can hold"
            )
        if off[step] <= ROUNDING:  # that of a recursion that is normalised within states
            return self.judge(0.0, "the target's mass is 1 at every step", per_step=mass)
        return self.judge(
            float(off[step]),
            f"before normalising, the target's mass at step {step} is {mass[step]:.3g} instead of "
            "1",
            "large weights, or propensities that are not those of the log",
            at_most="amber",
            per_step=mass,
            step=step,
        )
