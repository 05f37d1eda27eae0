"""Policies: what the target would do, and what the behaviour did."""

from reweigh.policies.base import Policy
from reweigh.policies.behavior import FittedBehavior, fit_behavior
from reweigh.policies.column import ColumnPolicy
from reweigh.policies.function import FunctionPolicy
from reweigh.policies.table import TablePolicy, read_policy

__all__ = [
    "ColumnPolicy",
    "FittedBehavior",
    "FunctionPolicy",
    "Policy",
    "TablePolicy",
    "fit_behavior",
    "read_policy",
]
