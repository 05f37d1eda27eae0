"""How much of the target's mass is on states that the log seldom shows?"""

from __future__ import annotations

import numpy as np

from reweigh.errors import LowOverlapWarning
from reweigh.trust.gates.effective_size import EffectiveSize
from reweigh.trust.gates.gate import Context, Gate, GateResult, Limit, limits_by


class RareStates(
    Gate,
    name="rare states",
    question="How much of the target's mass is on states seen fewer than 10 times?",
    fault="fine-states",
    reads="solution",
    limits=limits_by(Limit(0.01, 0.05), model=Limit(0.01, 0.20)),
    softened="amber at most with enough effective episodes, but for models and weights that are "
    "normalised within states",
    warning=LowOverlapWarning,
):
    """Target mass on (t, s), of a model on (t, s, a), seen fewer than 10 times: the mean over the
    steps. Without a model, and without weights that are normalised within a state, which few rows
    bias, it is red only with few effective episodes."""

    def measure(self, context: Context) -> GateResult:
        solution, ess = context.solved, context.solved.ess
        share = solution.rare_mass
        if share is None:
            return self.unknown("this estimator has no state distribution")
        from_model = context.limits == "model"
        what = "states and actions" if from_model else "states"
        least = float(np.nanmin(ess)) if np.any(np.isfinite(ess)) else 0.0
        few = EffectiveSize().limit().judge(least) == "red"
        strict = from_model or few or "within states" in context.traits
        return self.judge(
            share,
            f"{share:.1%} of the target's mass is on {what} seen fewer than 10 times at their step",
            "a coarser state would help",
            limit=self.limit(context.limits),
            at_most="red" if strict else "amber",
            most="most",
            per_step=solution.rare_by_step,
            **context.place(solution.rare_at),
        )
