"""How much would actions earn that the log never shows? A fitted Q counts them as 0.

DR, WDR and MDR with Q of other episodes are right on average, because rows of such an action make
up for it in the logs that have some. A log without them says too little, and cannot see it in its
own spread. With π's probability ℓ_t(s) of the actions that (t, s) does not show, the mean ratio ρ̄,
and d and V of the model over the actions seen, what is missing is about

    Σ_t γ^t Σ_s d_t(s) V_t(s) min(max(1 - ρ̄_t(s), -ℓ_t(s)), ℓ_t(s)).

ρ̄ says how much of ℓ the rows of other actions leave open: with many actions of a few rows each
some are always missing, others are there too often, and nothing is lost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reweigh.errors import SupportError
from reweigh.estimate.estimator import Place
from reweigh.estimate.model import model_of
from reweigh.estimate.operators import cells_of, importance_operator
from reweigh.estimate.recursion import backward, forward
from reweigh.estimate.solution import most_left_out
from reweigh.kernels.groups import tally
from reweigh.sums.moments import Moments
from reweigh.trust.gates.gate import Context, Floats, Gate, GateResult, Limit, limits_by

ROUNDING = 1e-9  # of a sum of probabilities


@dataclass(frozen=True, eq=False)
class LeftOut:
    """(H,) the value that is missing, step by step, and where most of it is."""

    per_step: Floats
    place: Place | None


class UnseenActions(
    Gate,
    name="unseen actions",
    question="How much value is missing for want of actions?",
    fault="action-missing",
    needs={"model"},
    limits=limits_by(Limit(0.5, 1.0)),  # in errors: what is missing moves the whole interval
    of={"fitted control"},
    unless={"fitted in sample"},
):
    """What a Q of other episodes leaves out, in errors of the estimate. Of the same episodes it has
    a gate of its own, "fitted values", and a model "support"."""

    def measure(self, context: Context) -> GateResult:
        missing = context.once(self.name, lambda: left_out(context.sums))
        if missing is None:
            return self.unknown(
                "these sums hold no model of the actions, or one that ends before the horizon"
            )
        value, error = abs(float(missing.per_step.sum())), context.error
        if not value > 0:
            text = "no value is missing for want of actions"
            return self.judge(0.0, text, per_step=missing.per_step)
        if error is None or not error > 0:
            return self.unknown("the estimate has no error to compare with")
        return self.judge(
            value / error,
            f"actions that the log never shows there would earn about {value:.3g}, "
            f"{value / error:.1f} standard errors, which the fitted Q counts as 0",
            "use mis, which fits no Q, or log more of these actions",
            most="most",
            per_step=missing.per_step / error,
            **context.place(missing.place),
        )


def left_out(sums: Moments) -> LeftOut | None:
    """None where the sums hold no model of the actions, or one that ends before the horizon."""
    if sums.about.continuous_actions or sums.model is None or sums.start_model is None:
        return None
    about, (cells, start) = sums.about, cells_of(sums, "model")
    op = model_of(sums, renorm=True)
    unseen = np.where(1 - op.covered > ROUNDING, 1 - op.covered, 0.0)
    if not unseen.any():
        return LeftOut(np.zeros(about.horizon), None)
    try:
        d = forward(op, simplex=False).d
    except SupportError:
        return None
    # The same nodes: here a reward of 1 in every row has the mean ρ̄.
    mean_ratio = importance_operator(cells, start, about.horizon, about.discount).placebo
    missing = np.minimum(np.maximum(1 - mean_ratio, -unseen), unseen)
    each = about.discount**op.node_t * d * backward(op).u * missing
    per_step = tally(op.node_t, each, about.horizon + 1)[: about.horizon]
    return LeftOut(per_step, most_left_out(op, np.abs(each)))
