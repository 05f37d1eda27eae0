"""Is there an interval?"""

from __future__ import annotations

from reweigh.trust.gates.gate import Context, Gate, GateResult, Limit, limits_by


class HasInterval(
    Gate,
    name="interval",
    question="Is there an interval?",
    fault="no-spread",
    limits=limits_by(Limit(0.0, None)),
):
    """Without one nobody can say how sure the value is; a refusal says itself what to do."""

    def measure(self, context: Context) -> GateResult | None:
        why = context.refused
        if why is None and not context.has_interval:
            why = context.error_method
        if why is None:
            return None
        advice = "do not take the value for exact: what was not seen has no spread"
        if context.refused is not None:
            advice = ""
        return self.judge(1.0, f"there is no interval: {why}", advice)
