"""Continuous states: do features give right values, and honest verdicts?"""
