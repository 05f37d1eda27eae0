"""Exact quantities of known worlds, and the paper's bounds on them."""

from reweigh.theory.exact import (
    Bound,
    Condition,
    Quantities,
    clipped,
    corollary_bound,
    quantities,
    theorem_bound,
)
from reweigh.theory.plan_result import Goal, Need, Plan
from reweigh.theory.planning import plan
from reweigh.trust.breakdown import Decomposition

__all__ = [
    "Bound",
    "Condition",
    "Decomposition",
    "Goal",
    "Need",
    "Plan",
    "Quantities",
    "clipped",
    "corollary_bound",
    "plan",
    "quantities",
    "theorem_bound",
]
