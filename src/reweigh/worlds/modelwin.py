"""ModelWin: a fully observed world in which a model of the transitions wins."""

from __future__ import annotations

import numpy as np

from reweigh.worlds.tabular import TabularMDP
from reweigh.worlds.world import as_count

TARGET = (0.2, 0.8)
BEHAVIOR = (0.5, 0.5)
P_COURSE = 0.4  # p, the probability that a1 leads to s2 and a2 to s3


class ModelWin(TabularMDP):
    """ModelWin of Thomas and Brunskill (2016), as in the paper's appendix.

    States 0, 1, 2 are s1, s2, s3; actions 0, 1 are a1, a2. From s1, where every episode starts,
    a1 leads to s2 with probability 0.4 and to s3 otherwise, a2 the other way round; s2 and s3 lead
    back to s1. Arriving in s2 pays 1, in s3 -1. At every state the target takes a1 with
    probability 0.2, the behavior with 0.5.
    """

    def __init__(self, horizon: int) -> None:
        H = as_count("horizon", horizon, least=1)
        p = P_COURSE
        P = np.zeros((3, 2, 3))
        P[0, 0, 1:] = p, 1 - p
        P[0, 1, 1:] = 1 - p, p
        P[1:, :, 0] = 1
        r = np.zeros((3, 2, 3))
        r[0, :, 1:] = 1, -1
        super().__init__([1, 0, 0], P, r, [TARGET] * 3, [BEHAVIOR] * 3, horizon=H)

    def __repr__(self) -> str:
        return f"ModelWin(horizon={self.horizon})"
