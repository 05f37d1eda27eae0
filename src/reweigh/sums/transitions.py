"""TransitionMoments: sums of ratios and rewards by (block, t, s, [a,] t', s'). They add up."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.kernels.groups import group_by

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

KEYS = ("block", "t", "s", "a", "t_next", "s_next")
SUMS = ("n", "rho", "rho2", "z", "rhoz", "z2", "y", "y2", "one", "pi", "pi2", "mu")
NO_ACTION = -1


@dataclass(frozen=True, eq=False)
class TransitionMoments:
    """A table of cells in coordinate form; memory is O(observed transitions).

    Keys: block, step t, state s, action a (NO_ACTION where it is not in the key), the next
    observed step t' and the state s' there (or END, UNKNOWN). A hidden stretch is one long step.

    n      transitions                    rho, rho2  Σρ, Σρ²   (ρ the product over the stretch)
    y, y2  Σy, Σy²  (y the reward, over a stretch Σ_j γ^j y_{t+j})
    z, z2  Σz, Σz²  (z = ρ y, over a stretch Σ_j ρ_{t:t+j} γ^j y_{t+j})       rhoz   Σρz
    one    what z would be if every reward were 1 (the placebo)
    pi, pi2, mu  Σπ(a|s), Σπ², Σμ(a|s) of the logged actions, where the action is in the key
    """

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

    def __len__(self) -> int:
        return len(self.n)

    @property
    def has_action(self) -> bool:
        return len(self.a) > 0 and bool(self.a[0] != NO_ACTION)

    def __add__(self, other: TransitionMoments) -> TransitionMoments:
        return concatenate([self, other])

    def where(self, keep: npt.NDArray[np.bool_]) -> TransitionMoments:
        return TransitionMoments(**{f.name: getattr(self, f.name)[keep] for f in fields(self)})

    def forget(self, *keys: str) -> TransitionMoments:
        """Sum over some of the keys (they become 0, the action NO_ACTION)."""
        empty = {key: NO_ACTION if key == "a" else 0 for key in keys}
        if all(np.all(getattr(self, key) == value) for key, value in empty.items()):
            return self
        blank: dict[str, Any] = {
            key: np.full(len(self), value, np.int64) for key, value in empty.items()
        }
        return summed(replace(self, **blank))

    def recode(self, table: Ints) -> TransitionMoments:
        """The same cells with other codes for the states (special codes stay)."""
        return replace(self, s=_recoded(self.s, table), s_next=_recoded(self.s_next, table))


def summed(cells: TransitionMoments) -> TransitionMoments:
    """One cell per key."""
    groups = group_by([getattr(cells, key) for key in KEYS])
    columns: dict[str, Any] = dict(zip(KEYS, groups.keys, strict=True))
    columns |= {name: groups.sum(getattr(cells, name)) for name in SUMS}
    return TransitionMoments(**columns)


def concatenate(parts: list[TransitionMoments]) -> TransitionMoments:
    """The sum of several tables."""
    joined = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in (*KEYS, *SUMS)
    }
    return summed(TransitionMoments(**joined))


def _recoded(codes: Ints, table: Ints) -> Ints:
    return np.where(codes >= 0, table[np.maximum(codes, 0)], codes) if len(table) else codes


@dataclass(frozen=True, eq=False)
class StartMoments:
    """First states: by (block, s_0) their number, and Σg, Σg² of a control's start value."""

    block: Ints
    s: Ints
    n: Ints
    g: Floats
    g2: Floats

    def __add__(self, other: StartMoments) -> StartMoments:
        return StartMoments(
            **{
                f.name: np.concatenate([getattr(self, f.name), getattr(other, f.name)])
                for f in fields(self)
            }
        ).summed()

    def summed(self) -> StartMoments:
        groups = group_by([self.block, self.s])
        block, s = groups.keys
        return StartMoments(block, s, *(groups.sum(v) for v in (self.n, self.g, self.g2)))

    def where(self, keep: npt.NDArray[np.bool_]) -> StartMoments:
        return StartMoments(**{f.name: getattr(self, f.name)[keep] for f in fields(self)})

    def recode(self, table: Ints) -> StartMoments:
        return replace(self, s=_recoded(self.s, table))
