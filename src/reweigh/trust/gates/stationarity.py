"""Do all steps have one distribution of states?"""

from __future__ import annotations

from typing import Any

import numpy as np

from reweigh.errors import SupportError
from reweigh.estimate.estimator import Place
from reweigh.estimate.operators import cells_of, importance_operator
from reweigh.estimate.recursion import forward
from reweigh.estimate.solution import largest, worst_node
from reweigh.trust.gates.gate import Context, Gate, GateResult, Limit, limits_by


class Stationarity(
    Gate,
    name="stationarity",
    question="Do all steps have one distribution of states?",
    fault="states-renamed",
    reads="solution",
    needs={"model"},
    limits=limits_by(Limit(0.0, 0.02)),  # not in the study: never green
    of={"stationary"},
):
    """SSD-IS gives every step the distribution of the long run. By how much those of the steps
    differ MIS tells, luck included: without a great many episodes this is red. In total variation,
    averaged over the steps."""

    def measure(self, context: Context) -> GateResult:
        if context.sums.model is None or context.sums.start_model is None:
            return self.unknown(context.lacking("model", "the actions"))
        about, (cells, start) = context.sums.about, cells_of(context.sums, "model")
        op = importance_operator(cells.forget("a"), start, about.horizon, about.discount)
        try:
            flow = forward(op, simplex=True)
        except SupportError:
            return self._judge(1.0)
        inside = op.node_t < op.horizon
        names, index = np.unique(op.node_s[inside], return_inverse=True)
        d = np.zeros((op.horizon, len(names)))
        d[op.node_t[inside], index] = flow.d[inside]
        off = np.abs(d - d.mean(axis=0))
        per_step = off.sum(axis=1) / 2
        step = largest(per_step)
        state = worst_node(names, off[step])
        worst = None if state is None else Place(step, int(names[state]))
        gap = float(off.sum()) / (2 * op.horizon)
        return self._judge(gap, per_step=per_step, **context.place(worst))

    def _judge(self, gap: float, **where: Any) -> GateResult:
        return self.judge(
            gap,
            "every step is taken to have the same distribution of states, and by mis they are "
            f"{gap:.1%} from their mean (total variation, on average over the steps)",
            "use mis, which needs no such assumption",
            most="most",
            **where,
        )
