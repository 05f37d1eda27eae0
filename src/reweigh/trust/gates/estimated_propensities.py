"""Were the propensities estimated?"""

from __future__ import annotations

from reweigh.trust.gates.gate import Context, Gate, GateResult, Limit, limits_by


class EstimatedPropensities(
    Gate,
    name="estimated propensities",
    question="Were the propensities logged, or estimated from this log?",
    fault="fitted-behavior",
    limits=limits_by(Limit(0.0, None)),
    of={"ratios"},
):
    """Errors take estimated propensities for the truth."""

    def measure(self, context: Context) -> GateResult:
        estimated = context.sums.about.behavior != "logged"
        return self.judge(
            float(estimated),
            "the propensities were estimated from this log, and the error takes them for the truth"
            if estimated
            else "the propensities were logged",
            "log the propensities; until then the interval can be off, mostly too wide",
        )
