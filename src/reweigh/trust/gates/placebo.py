"""Does a constant reward of 1 give what it must?"""

from __future__ import annotations

import math

import numpy as np

from reweigh.errors import PlaceboWarning
from reweigh.estimate.solution import largest
from reweigh.trust.gates.gate import Context, Gate, GateResult, Limit, limits_by
from reweigh.trust.gates.support import Support

MATERIAL = 0.01  # of what the placebo should be: by less it is amber, however small its error
ABSURD = 1e3  # times what it should be: no luck, whatever its error is
LOST = (
    "check that the log shows what the target does, and that the propensities are not too large; "
    "clipped ratios lose mass too"
)
GAINED = "check that the propensities are those of the logged actions: some are too small"
LOST_BY_MODEL = "the target takes actions that the log never shows there: log them, or use mis"


class Placebo(
    Gate,
    name="placebo",
    question="Does a constant reward of 1 give what it must?",
    fault="swapped",
    reads="solution",
    limits=limits_by(Limit(3.0, 6.0)),  # six errors from a number that is known are no luck
    softened="amber at most where it is off by less than 1 % of what it should be",
    warning=PlaceboWarning,
    warns_if_amber=True,
):
    """The value if every reward were 1, END included, which is known: off by how many errors? Per
    step what it adds to that value, which should be γ^t."""

    def measure(self, context: Context) -> GateResult:
        about, solution = context.sums.about, context.solved
        powers = about.discount ** np.arange(about.horizon)
        value, error, expected = solution.placebo, solution.placebo_error, float(np.sum(powers))
        per_step, from_model = solution.placebo_by_step, context.limits == "model"
        off, lost = abs(value - expected), value < expected
        if error is None or not math.isfinite(value) or not math.isfinite(error):
            if not off > ABSURD * expected:
                return self.unknown("the placebo has no error here")
            number = "a number beyond all measure" if not math.isfinite(value) else f"{value:.2g}"
            text = f"the target gains mass: a constant reward of 1 gives {number} instead of "
            limit = str(self.limit())
            return self.result("red", None, f"{text}{expected:g}", advice=GAINED, limit=limit)
        # What a model has not seen is known to be missing, without luck: "support" judges it.
        fine = Support().limit("model").amber if from_model else None
        if off <= max(fine or 0.0, 1e-9) * expected:
            text = f"a constant reward of 1 gives {value:.4g}, as it must"
            return self.judge(0.0, text, per_step=per_step)
        errors = off / max(error, 1e-9 * expected)  # without any spread only rounding is luck
        text = f"a constant reward of 1 gives {value:.4g} instead of {expected:g} "
        text += f"(error {error:.2g})"
        if self.limit().judge(errors) != "green":
            text = f"the target {'loses' if lost else 'gains'} mass: {text}"
        return self.judge(
            errors,
            text,
            GAINED if not lost else LOST_BY_MODEL if from_model else LOST,
            # Many episodes find what rounded propensities do: to be red, it must also matter.
            at_most="amber" if off < MATERIAL * expected else "red",
            most="furthest off",
            per_step=per_step,
            step=None if per_step is None else largest(np.abs(per_step - powers)),
        )
