"""Codes that are not states of a log, known to every kernel.

END absorbs (reward 0, ratio 1); UNKNOWN is a next state that was not logged; START stands for a
hidden first state.
"""

HIDDEN, END, UNKNOWN, START = -1, -2, -3, -4
