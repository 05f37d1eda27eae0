"""Is Q fitted to few rows, of the episodes that it is subtracted from?"""

from __future__ import annotations

from typing import Any

from reweigh.errors import SupportError
from reweigh.estimate.model import model_of
from reweigh.estimate.recursion import forward
from reweigh.estimate.solution import escaping, most_unfounded, rare_mass, rare_share
from reweigh.trust.gates.gate import Context, Gate, GateResult, Limit, limits_by


class FittedValues(
    Gate,
    name="fitted values",
    question="Is Q fitted to few rows, of the episodes that it is subtracted from?",
    fault="action-missing",
    needs={"model"},
    limits=limits_by(Limit(0.01, 0.05)),
    of={"fitted in sample"},
):
    """How much of what a model would say rests on few rows: the target's mass, as the model has it,
    on (t, s, a) that were seen fewer than 10 times (on average over the steps) or never (all that
    is lost). Per step what it adds to that."""

    def measure(self, context: Context) -> GateResult:
        return context.once(self.name, lambda: self.of_model(context))

    def of_model(self, context: Context) -> GateResult:
        sums = context.sums
        if sums.about.continuous_actions or sums.model is None or sums.start_model is None:
            return self.unknown("these sums hold no model of the actions")
        op = model_of(sums)
        try:
            flow = forward(op, simplex=False)
        except SupportError:
            return self._judge(1.0)
        rare = rare_share(op)
        share = min(rare_mass(op, flow, rare) + float(escaping(op, flow).sum()), 1.0)
        per_step, worst = most_unfounded(op, flow, rare)
        return self._judge(share, per_step=per_step, **context.place(worst))

    def _judge(self, share: float, **where: Any) -> GateResult:
        return self.judge(
            share,
            f"Q is fitted on the same episodes, and {share:.1%} of the target's mass is on (step, "
            "state, action) seen fewer than 10 times",
            "use the cross-fitted variant (dr-crossfit, wdr-crossfit, mdr-crossfit), or mis",
            most="most",
            **where,
        )
