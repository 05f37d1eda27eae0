"""Conformance checks for what others add: the tests that the library's own parts pass."""

from reweigh.testing.engines import check_engine, engine_matrix
from reweigh.testing.estimators import check_estimator
from reweigh.testing.gates import check_gate

__all__ = ["check_engine", "check_estimator", "check_gate", "engine_matrix"]
