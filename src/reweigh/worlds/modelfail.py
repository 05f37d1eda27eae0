"""ModelFail: two of three states look the same, so that a model of the transitions fails."""

from __future__ import annotations

import numpy as np

from reweigh.worlds.hidden import HiddenMDP
from reweigh.worlds.modelwin import BEHAVIOR, TARGET
from reweigh.worlds.tabular import TabularMDP
from reweigh.worlds.world import as_count


class ModelFail(HiddenMDP):
    """ModelFail of Thomas and Brunskill (2016), as in the paper's appendix.

    States 0, 1, 2 are s1, left, right; actions 0, 1 are a1, a2. From s1, where every episode
    starts, a1 leads left and a2 right; both lead back to s1. Arriving from the left pays 1, from
    the right -1. The log hides left and right: it shows s1 or nothing. Observing either, the
    target takes a1 with probability 0.2, the behavior with 0.5.
    """

    def __init__(self, horizon: int) -> None:
        H = as_count("horizon", horizon, least=1)
        P = np.zeros((3, 2, 3))
        P[0, 0, 1] = P[0, 1, 2] = 1
        P[1:, :, 0] = 1
        r = np.zeros((3, 2, 3))
        r[1, :, 0] = 1
        r[2, :, 0] = -1
        super().__init__([1, 0, 0], P, r, [TARGET] * 3, [BEHAVIOR] * 3, hidden=[1, 2], horizon=H)

    def __repr__(self) -> str:
        return f"ModelFail(horizon={self.horizon})"

    def checkpoints(self) -> TabularMDP:
        """The world as its checkpoints show it: s1 alone, an action being a pair of actions.

        Action 2 a + b is a in s1 and b in the hidden state after it, a step is two steps, and the
        horizon is H/2. MIS on it is MIS on the log of this world. With H odd the last step leaves
        s1 without coming back; it pays nothing and is left out.
        """
        H = as_count("horizon", self.horizon, least=2) // 2
        pays = np.array([1.0, 1.0, -1.0, -1.0]).reshape(1, 4, 1)
        pi, mu = (np.outer(policy, policy).reshape(1, 4) for policy in (TARGET, BEHAVIOR))
        return TabularMDP([1], np.ones((1, 4, 1)), pays, pi, mu, horizon=H)
