"""Gates of what was logged, and how: propensities, policies, returns, what is fitted to them."""

from __future__ import annotations

from typing import Any

import numpy as np

from reweigh.trust.assumptions import Outcome
from reweigh.trust.gates import (
    ROUNDING,
    Floats,
    Gate,
    gate,
    place_in_words,
    unknown,
    with_place,
)

STATE_IS_ALL = "an error from sums takes the state for all that matters"
BY_BLOCKS = (
    "an interval by deleting blocks of episodes allows for it (jackknife), as does one from the "
    "log in memory (engine='arrays')"
)


def dependence(excess: float) -> Gate:
    """Episodes whose returns spread more than their states explain."""
    text = f"returns spread {excess:.0%} more than the states explain, luck allowed for"
    return gate("dependence", excess, f"{text}, and {STATE_IS_ALL}", BY_BLOCKS)


def maybe_dependent(why: str) -> Gate:
    """The same, where it cannot be told: never green, as if it were so."""
    text = f"whether returns spread more than the states explain cannot be told ({why}), and "
    return Gate("dependence", "amber", None, text + STATE_IS_ALL, BY_BLOCKS)


def estimated_propensities(there: bool) -> Gate:
    """Errors take estimated propensities for the truth."""
    return gate(
        "estimated propensities",
        float(there),
        "the propensities were estimated from this log, and the error takes them for the truth"
        if there
        else "the propensities were logged",
        "log the propensities; until then the interval can be off, mostly too wide",
    )


SURE = 0.999  # of logs: a larger share is printed as this one, after "more than"


def steadiness(test: Outcome, state: str | None = None) -> Gate:
    """Whether steps differ, for estimators that pool them. The test has little power, so it speaks
    up long before a p-value would be small; the value is the share of logs of a steady world whose
    steps differ less than these, 1 - p, which nobody compares with 0.05."""
    if test.p is None:
        return unknown("steadiness", test.why)
    share = 1 - test.p
    shown = f"{SURE:.1%}" if share > SURE else f"{share:.0%}"
    return gate(
        "steadiness",
        share,
        f"what follows a state differs between steps more than in {shown} of logs where the step "
        "does not matter; this estimator pools all steps",
        "use mis, which does not pool",
        state=state,
    )


SEEN_BY_POLICIES = (
    "the policies look at something that the state leaves out: add it to the state, or use wis, "
    "which needs no state"
)


def policies(
    spread: float, step: int, state: str | None, action: str, per_step: Floats | None = None
) -> Gate:
    """Ratios that differ where (t, s, a) is the same; without a state where it is hidden, of a Q
    that is fitted to the log."""
    name, where = "policies", "step, state and action"
    if state is None:
        name, where = "hidden policies", "step and action, the state being hidden,"
    if spread <= ROUNDING:
        none = None if per_step is None else np.where(per_step <= ROUNDING, 0.0, per_step)
        text = f"the ratios follow from {where.rstrip(',')}"
        return gate(name, 0.0, text, "", per_step=none)
    return gate(
        name,
        spread,
        f"the ratios differ by {spread:.1%} (root mean square) where {where} are the same, most at "
        f"{place_in_words(step, state)}",
        SEEN_BY_POLICIES
        if state is not None
        else "Q takes all hidden states for one, the policies do not: use mis, which fits no Q",
        per_step=per_step,
        step=step,
        state=state,
        action=action,
    )


def fitted_values(share: float, **where: Any) -> Gate:
    """A control variate that is fitted on the episodes that it is then subtracted from."""
    found = gate(
        "fitted values",
        share,
        f"Q is fitted on the same episodes, and {share:.1%} of the target's mass is on (step, "
        "state, action) seen fewer than 10 times",
        "use the cross-fitted variant (dr-crossfit, wdr-crossfit, mdr-crossfit), or mis",
        **where,
    )
    return with_place(found)
