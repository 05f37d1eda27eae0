"""Numbers that every kernel knows: codes that are not states of a log, and those of marks.

END absorbs (reward 0, ratio 1); UNKNOWN is a next state that was not logged; START stands for a
hidden first state.
"""

HIDDEN, END, UNKNOWN, START = -1, -2, -3, -4

# Of the marks by which logs are told apart (log/steps.py).
SPREAD = 316.4334022399462  # 2^9 / golden ratio: fractions of its multiples lie everywhere
MIX = 648055.6077874098  # 2^20 / golden ratio
MARKS = 2.0**24  # values of a mark: 2^39 rows add up to less than 2^63
LARGE, FOLD = 2.0**20, 2.0**-30
