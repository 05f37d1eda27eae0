"""Exact quantities of known worlds, and the paper's bounds on them."""

from reweigh.theory.bounds import Bound, Condition, clipped, corollary_bound, theorem_bound
from reweigh.theory.exact import Quantities, quantities
from reweigh.theory.plan_result import Goal, Need, Plan
from reweigh.theory.planning import plan
from reweigh.trust.variance_parts import Decomposition

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
