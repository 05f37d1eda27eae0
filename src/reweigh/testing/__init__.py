"""Conformance checks for what others add: the tests that the library's own parts pass."""

from reweigh.testing.gates import check_gate

__all__ = ["check_gate"]
