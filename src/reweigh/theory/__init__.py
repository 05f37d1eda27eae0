"""Exact quantities of known worlds, and the paper's bounds on them."""

from reweigh.theory.bounds import Bound, Condition, clipped, corollary_bound, theorem_bound
from reweigh.theory.decomposition import Decomposition
from reweigh.theory.exact import Quantities, quantities
from reweigh.theory.plan_records import Goal, Need, Plan
from reweigh.theory.planning import plan

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
