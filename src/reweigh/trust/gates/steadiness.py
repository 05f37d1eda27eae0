"""Is the world the same at every step?"""

from __future__ import annotations

import numpy as np

from reweigh.kernels.groups import group_by
from reweigh.sums.transitions import TransitionMoments
from reweigh.trust.gates.gate import Context, GateResult, Limit, limits_by
from reweigh.trust.gates.p_values import (
    NO_TRANSITIONS,
    AssumptionGate,
    Outcome,
    Split,
    StateValues,
    split_test,
    state_values,
    sums_of_q,
)

SURE = 0.999  # of logs: a larger share is printed as this one, after "more than"


class Steadiness(
    AssumptionGate,
    name="steadiness",
    question="Is the world the same at every step, as pooling takes it to be?",
    fault="states-renamed",
    needs={"transitions"},
    limits=limits_by(Limit(0.5, 0.8)),  # of little power, so no p-value; mis costs little more
    of={"pooled steps"},
):
    """Whether steps differ, for estimators that pool them. The test has little power, so it speaks
    up long before a p-value would be small; the value is the share of logs of a steady world whose
    steps differ less than these, 1 - p, which nobody compares with 0.05."""

    def test(self, context: Context) -> Outcome:
        cells, values, about = context.sums.transitions, state_values(context), context.sums.about
        if cells is None or values is None:
            return Outcome(None, NO_TRANSITIONS)
        return steadiness_test(cells, values, about.horizon, about.discount)

    def measure(self, context: Context) -> GateResult:
        outcome, state = self.outcome(context)
        if outcome.p is None:
            return self.unknown(outcome.why)
        share = 1 - outcome.p
        shown = f"{SURE:.1%}" if share > SURE else f"{share:.0%}"
        return self.judge(
            share,
            f"what follows a state differs between steps more than in {shown} of logs where the "
            "step does not matter; this estimator pools all steps",
            "use mis, which does not pool",
            state=state,
        )


def steadiness_test(
    cells: TransitionMoments, values: StateValues, horizon: int, discount: float
) -> Outcome:
    """Is the step of no matter, as estimators that pool all steps assume?

    With q = ρ (y + γ V(s')) and a V that does not depend on the step, E[q | s] is then the same at
    every step. The rows of a state are split by their step. V(s) is the mean of V_t(s) over the
    steps.
    """
    by_state = group_by([values.s])
    mean = by_state.sum(values.v) / by_state.count()
    same = StateValues(np.zeros(len(mean), np.int64), by_state.keys[0], mean)
    inside = (cells.t_next - cells.t == 1) & (cells.t_next < horizon)
    all_one = np.zeros(len(cells), np.int64)  # stratum 0: a state is the same at every step
    q, q2 = sums_of_q(cells, discount * same.at(all_one, cells.s_next))
    columns = (all_one, cells.s, cells.t, cells.n, q, q2)
    split = Split(*(column[inside] for column in columns))
    outcome = split_test(split, 1, "no state is seen often enough at more than one step")
    return Outcome(outcome.p, outcome.why, state=outcome.state)
