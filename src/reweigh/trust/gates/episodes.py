"""Are there enough episodes?"""

from __future__ import annotations

from reweigh.errors import SmallSampleWarning
from reweigh.trust.gates.gate import Context, Gate, GateResult, Limit, limits_by


class Episodes(
    Gate,
    name="episodes",
    question="Are there enough episodes for an interval?",
    fault="few-episodes",
    reads="solution",
    limits=limits_by(
        Limit(30, 2, above=False),
        within_states=Limit(300, 2, above=False),  # its bias is one of few rows by state
    ),
    warning=SmallSampleWarning,
    warns_if_amber=True,
):
    def measure(self, context: Context) -> GateResult:
        n = context.n_episodes
        return self.judge(
            float(n),
            f"{n:,} episodes" if n != 1 else "one episode",
            "an interval from so few is not to be trusted: log more episodes",
            limit=self.limit(context.limits),
        )
