"""TransitionMoments: sums of ratios and rewards by (block, t, s, [a,] t', s'). They add up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reweigh.sums.keyed import NO_ACTION, KeyedTable
from reweigh.sums.tables import BUILT_IN

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

KEYS = BUILT_IN["model"].keys
SUMS = ("n", *BUILT_IN["model"].columns)
__all__ = ["KEYS", "NO_ACTION", "SUMS", "StartMoments", "TransitionMoments", "summed"]


@dataclass(frozen=True, eq=False)
class TransitionMoments(KeyedTable):
    """A table of cells in coordinate form; memory is O(observed transitions).

    Keys: block, step t, state s, action a (NO_ACTION where it is not in the key), the next
    observed step t' and the state s' there (or END, UNKNOWN). A hidden stretch is one long step.

    n      transitions                    rho, rho2  Σρ, Σρ²   (ρ the product over the stretch)
    y, y2  Σy, Σy²  (y the reward, over a stretch Σ_j γ^j y_{t+j})
    z, z2  Σz, Σz²  (z = ρ y, over a stretch Σ_j ρ_{t:t+j} γ^j y_{t+j})       rhoz   Σρz
    one    what z would be if every reward were 1 (the placebo)
    pi, pi2, mu  Σπ(a|s), Σπ², Σμ(a|s) of the logged actions, where the action is in the key
    """

    TABLE = BUILT_IN["model"]

    block: Ints
    t: Ints
    s: Ints
    a: Ints
    t_next: Ints
    s_next: Ints
    n: Ints
    rho: Floats
    rho2: Floats
    z: Floats
    rhoz: Floats
    z2: Floats
    y: Floats
    y2: Floats
    one: Floats
    pi: Floats
    pi2: Floats
    mu: Floats

    @property
    def has_action(self) -> bool:
        return len(self.a) > 0 and bool(self.a[0] != NO_ACTION)


def summed(cells: TransitionMoments) -> TransitionMoments:
    """One cell per key."""
    return cells.summed()


@dataclass(frozen=True, eq=False)
class StartMoments(KeyedTable):
    """First states: by (block, s_0) their number, and Σg, Σg² of a control's start value."""

    TABLE = BUILT_IN["start"]

    block: Ints
    s: Ints
    n: Ints
    g: Floats
    g2: Floats
