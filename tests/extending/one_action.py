"""A gate in a package of one's own: is nearly all of the log one action?"""

import numpy as np

from reweigh.trust.gates import Context, Gate, GateResult, Limit, limits_by


class OneAction(
    Gate,
    name="one action",
    question="Is nearly all of the log one action?",
    fault="one action in 95 % of the rows",
    needs={"model"},
    limits=limits_by(Limit(0.9, None)),
):
    def measure(self, context: Context) -> GateResult:
        cells, actions = context.sums.model, context.sums.actions
        if cells is None or actions is None:
            return self.unknown(context.lacking("model", "the actions"))
        rows = np.bincount(cells.a, cells.n)
        share, name = float(rows.max() / rows.sum()), actions.name(int(rows.argmax()))
        return self.judge(
            share, f"{share:.1%} of the rows took action {name}", "log more of the other actions"
        )


gate = OneAction()
