"""Do the policies look at more than the state?

Within a (t, s, a) the ratio is then not the same: sqrt(Σ(ρ - ρ̄)²/Σρ²), the deviations being those
within the (t, s, a), of the steps by themselves and of all. The place is that of the largest
Σ(ρ - ρ̄)². "hidden policies" is the same of the rows whose state is hidden, which a fitted Q takes
for one state.
"""

from __future__ import annotations

import math

import numpy as np

from reweigh.estimate.estimator import Place
from reweigh.estimate.standard_error import OVERFLOW
from reweigh.kernels.groups import group_by, tally
from reweigh.system.arithmetic import divided
from reweigh.trust.gates.gate import (
    ROUNDING,
    Context,
    Gate,
    GateResult,
    Limit,
    limits_by,
    place_in_words,
)


class Policies(
    Gate,
    name="policies",
    question="Do the policies look at more than the state?",
    fault="states-shuffled",
    needs={"model"},
    limits=limits_by(Limit(0.01, 0.10)),
    assumption=True,
    # A fitted V(s) = Σ_a π(a|s) Q(s,a) is only right where π follows from the state.
    of={"states", "fitted control"},
):
    at_hidden = False
    keys = "step, state and action"
    advice = (
        "the policies look at something that the state leaves out: add it to the state, or use "
        "wis, which needs no state"
    )

    def measure(self, context: Context) -> GateResult:
        return context.once(self.name, lambda: self.of_ratios(context))

    def of_ratios(self, context: Context) -> GateResult:
        sums, no_rows = context.sums, self.unknown("no state is observed")
        if self.at_hidden:
            no_rows = self.judge(0.0, "no state is hidden")
            if not sums.hidden:
                return no_rows
        if sums.about.continuous_actions:
            return self.unknown("actions are numbers: no two are alike")
        cells = sums.by_action
        if cells is None:
            return self.unknown(context.lacking("model", "the actions"))
        hidden = np.array([value is None for value in sums.states.values], bool)
        cells = cells.where(hidden[cells.s] == self.at_hidden)
        if not len(cells):
            return no_rows
        groups = group_by([cells.t, cells.s, cells.a])
        n, rho, rho2 = (groups.sum(values) for values in (cells.n, cells.rho, cells.rho2))
        total = float(rho2.sum())
        if not total > 0:
            return self.unknown("no ratio is above 0")
        if not math.isfinite(total):
            return self.unknown(OVERFLOW)
        within = np.maximum(rho2 - rho**2 / n, 0.0)
        by_step = [tally(groups.keys[0], v, sums.about.horizon) for v in (within, rho2)]
        per_step, spread = np.sqrt(divided(*by_step)), math.sqrt(float(within.sum()) / total)
        if spread <= ROUNDING:
            none = np.where(per_step <= ROUNDING, 0.0, per_step)
            text = f"the ratios follow from {self.keys.rstrip(',')}"
            return self.judge(0.0, text, per_step=none)
        worst = int(np.argmax(within))
        place = context.place(Place(*(int(key[worst]) for key in groups.keys)))
        if self.at_hidden:
            place["state"] = None
        return self.judge(
            spread,
            f"the ratios differ by {spread:.1%} (root mean square) where {self.keys} are the same, "
            f"most at {place_in_words(place['step'], place['state'])}",
            self.advice,
            per_step=per_step,
            **place,
        )


class HiddenPolicies(
    Policies,
    name="hidden policies",
    question="Do the policies see what is hidden from the state?",
    fault="states-lost",
    needs={"model"},
    limits=limits_by(Limit(None, 0.01)),  # what a fitted Q says of hidden states is wrong then
    assumption=True,
    # Others do not look at a hidden state, or have a gate that is red there.
    of={"fitted control"},
):
    at_hidden = True
    keys = "step and action, the state being hidden,"
    advice = "Q takes all hidden states for one, the policies do not: use mis, which fits no Q"
