"""The compiled kernels.

Importing one of these package imports Numba: `kernels/choose.py` does it, when a log is large
enough.

Rows are time-major, the longest episodes first (`log/steps.py`), so row k of step t + 1 is what
follows row k of step t, and work vectors hold one step: O(S) memory beside the results. A state's
column is its code, and END's is the last, `width - 1`. Every sum is a float64 and is taken in the
order of the rows; nothing depends on threads.
"""
