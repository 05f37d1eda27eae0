"""Exact quantities of known worlds, and the paper's bounds on them."""

from reweigh.theory.bounds import Bound, Condition, clipped, corollary_bound, theorem_bound
from reweigh.theory.exact import Quantities, quantities

__all__ = [
    "Bound",
    "Condition",
    "Quantities",
    "clipped",
    "corollary_bound",
    "quantities",
    "theorem_bound",
]
