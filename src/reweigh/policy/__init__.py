"""Policies: what the target would do, and what the behaviour did."""

from reweigh.policy.base import Policy
from reweigh.policy.behavior import FittedBehavior, fit_behavior
from reweigh.policy.column import ColumnPolicy
from reweigh.policy.function import FunctionPolicy
from reweigh.policy.table import TablePolicy, read_policy

__all__ = [
    "ColumnPolicy",
    "FittedBehavior",
    "FunctionPolicy",
    "Policy",
    "TablePolicy",
    "fit_behavior",
    "read_policy",
]
