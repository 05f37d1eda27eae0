"""Policies: what the target would do, and what the behavior did."""
