"""What the fast path checks of some rows: each in a loop over columns and without a way out of it,
which processors do several rows at a time. Which row it was, the general path finds out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from reweigh.kernels.common import compiled
from reweigh.log.rules import LEAST_PROBABILITY

Word = np.uint64


@compiled
def below(codes: Any, limit: Any) -> bool:
    """Whether all codes are in 0..limit-1."""
    bad = False
    for i in range(len(codes)):
        bad |= bool(Word(codes[i]) >= Word(limit))  # as unsigned numbers, those below 0 are large
    return not bad


@compiled
def proper(y: Any, mu: Any, most: float) -> bool:
    """Whether |y| ≤ most, and 0 < μ ≤ 1 as in the contract; written so that NaN fails."""
    bad = False
    for i in range(len(mu)):
        bad |= not ((mu[i] >= LEAST_PROBABILITY) & (mu[i] <= 1.0) & (abs(y[i]) <= most))
    return not bad


@compiled
def shares(pi: Any) -> bool:
    """Whether 0 ≤ π ≤ 1."""
    bad = False
    for i in range(len(pi)):
        bad |= not ((pi[i] >= 0.0) & (pi[i] <= 1.0))
    return not bad


@compiled
def linked(ep: Any, t: Any) -> bool:
    """Whether every row but the first takes the next step of an episode, or begins one."""
    bad = False
    for i in range(len(ep) - 1):
        same = ep[i + 1] == ep[i]
        bad |= not ((same & (t[i + 1] == t[i] + 1)) | ((not same) & (t[i + 1] == 0)))
    return not bad


@compiled
def last_rows(flags: Any, t: Any) -> bool:
    """Whether an episode begins after every row that has the flag."""
    bad = False
    for i in range(len(flags) - 1):
        bad |= flags[i] & (t[i + 1] != 0)
    return not bad


@compiled
def leads(nxt: Any, s: Any, t: Any, known: int) -> bool:
    """Whether the next states are those of the next rows; where an episode ends, any or none."""
    bad = False
    for i in range(len(nxt) - 1):
        bad |= (t[i + 1] != 0) & (nxt[i] != s[i + 1])
    for i in range(len(nxt)):
        bad |= nxt[i] >= known
    return not bad


@compiled
def mark(seen: Any, codes: Any) -> None:
    """Which codes there are; nothing to do once all have been seen."""
    if seen.all():
        return
    for i in range(len(codes)):
        if codes[i] >= 0:
            seen[Word(codes[i])] = True
