"""Does a model take hidden states for one state?"""

from __future__ import annotations

from reweigh.errors import InputWarning
from reweigh.trust.gates.gate import Context, Gate, GateResult, Limit, limits_by


class HiddenStates(
    Gate,
    name="hidden states",
    question="Are states hidden that a model takes for one?",
    fault="states-lost",
    reads="solution",
    limits=limits_by(Limit(None, 0.0)),
    warning=InputWarning,
    of={"model", "stationary"},
):
    """A model takes the hidden state for a state like any other; MIS and running products do not
    look at it."""

    def measure(self, context: Context) -> GateResult:
        hidden = context.sums.hidden
        return self.judge(
            float(hidden),
            "some states are hidden, and a model takes them for one state"
            if hidden
            else "no state is hidden",
            "use mis, which sees a hidden stretch as one long step",
        )
