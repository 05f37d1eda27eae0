"""Does the log show what the target does?

Target mass that reaches what the log never shows, summed over the steps. Running products cannot
tell it of themselves: "marginal support" is that of the marginal weights on the same log, as
"marginal size" is their effective number of episodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from reweigh.errors import LowOverlapWarning, SupportError
from reweigh.estimate.recursion import forward
from reweigh.estimate.solution import effective_sizes, escaping, most_unseen
from reweigh.trust.gates.gate import (
    Context,
    Floats,
    Gate,
    GateResult,
    Limit,
    limits_by,
    place_in_words,
)
from reweigh.trust.gates.p_values import importance_weights


class _LostMass(Gate):
    """A gate of the mass that reaches what the log does not show."""

    def of_mass(self, unseen: Floats, context: Context, **place: Any) -> GateResult:
        """By the (H,) mass that is lost, and the place that loses the most at the worst step."""
        total = float(unseen.sum())
        if total <= 0:
            text = "the log shows all that the target does"
            return self.judge(0.0, text, per_step=unseen)
        place |= {"step": int(np.argmax(unseen))}
        why = "the log does not show what it would do there"
        if context.limits != "model":
            why += ", or the propensities are too large"
            if context.sums.about.max_ratio is not None:
                clipped = f"the clipping of ratios at {context.sums.about.max_ratio:g}"
                why += f", or {clipped} has cut it away"
        return self.judge(
            total,
            f"{total:.1%} of the target's mass is lost, most of it at "
            f"{place_in_words(**place)} ({why})",
            "the value cannot speak for that part; ask for a target nearer to the behaviour, a "
            "coarser state, or log more there",
            limit=self.limit(context.limits),
            per_step=unseen,
            **place,
        )


class Support(
    _LostMass,
    name="support",
    question="Does the log show what the target does?",
    fault="action-missing",
    reads="solution",
    limits=limits_by(
        Limit(0.01, 0.10),
        model=Limit(0.0001, 0.001),  # what a model has not seen counts as 0
    ),
    warning=LowOverlapWarning,
    warns_if_amber=True,
):
    def measure(self, context: Context) -> GateResult:
        unseen = context.solved.unseen_mass
        if unseen is None:
            return self.unknown("this estimator has no state distribution; see marginal support")
        return self.of_mass(unseen, context, **context.place(context.solved.unseen_at))


class MarginalSupport(
    _LostMass,
    name="marginal support",
    question="Does the log show what the target does, by the marginal weights?",
    fault="action-missing",
    reads="sums",
    needs={"transitions"},
    limits=limits_by(Limit(0.01, 0.10)),
    of={"products"},
):
    def measure(self, context: Context) -> GateResult:
        weights = context.once("marginal weights", lambda: _marginal(context))
        if isinstance(weights, str):
            return self.unknown(weights)
        return self.of_mass(weights[1], context, **weights[2])


class MarginalSize(
    Gate,
    name="marginal size",
    question="On how many episodes would marginal weights rest?",
    fault="logarithms",
    needs={"transitions"},
    limits=limits_by(Limit(300, 100, above=False)),
    of={"products"},
):
    """Products vary more than marginal weights, so that a larger size of theirs only says that the
    log does not show their tail."""

    def measure(self, context: Context) -> GateResult:
        weights = context.once("marginal weights", lambda: _marginal(context))
        if isinstance(weights, str):
            return self.unknown(weights)
        ess = weights[0]
        if not np.any(np.isfinite(ess)):
            return self.unknown("no step has weights to judge")
        step = int(np.nanargmin(ess))
        return self.judge(
            float(ess[step]),
            f"with marginal weights {ess[step]:,.0f} of {context.n_episodes:,} episodes speak for "
            f"the target at step {step}",
            "running products cannot have more: log more episodes, or use mis",
            per_step=ess,
            step=step,
        )


def _marginal(context: Context) -> tuple[Floats, Floats, dict[str, Any]] | str:
    """Of the marginal weights: (H,) effective sizes, (H,) mass that is lost, and the place that
    loses the most; or why there are none."""
    op = importance_weights(context)
    if op is None:
        return "these sums hold no transitions"
    try:
        flow = forward(op, simplex=False)
    except SupportError as error:
        return str(error)
    lost = escaping(op, flow)
    place = context.place(most_unseen(op, flow, lost, from_model=False))
    return effective_sizes(op, flow), lost, place
