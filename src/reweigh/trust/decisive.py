"""How many episodes an error rests on.

An interval takes the sum of the influence values ψ_i for normal. It is not where a few of them on
one side make up most of it: one reward out of scale, or an event that the log has seen twice. Of k
equal ones among zeros the skewness of the sum, Σψ³/(Σψ²)^(3/2), is 1/√k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from reweigh.estimate.spread import Spread


@dataclass(frozen=True)
class Decisive:
    """size     (Σψ²)³/(Σψ³)², at most n: as many equal values would be as skewed
    episode, share  the one with the largest ψ², and its share of Σψ²
    moved    by how much the value moves, about, without that episode
    """

    size: float
    episode: str
    share: float
    moved: float


def heaviest(psi: Spread) -> Decisive | None:
    """Of influence values; None where they have no spread."""
    if not 0 < abs(psi.top) < math.inf:
        return None
    size = float(psi.n)
    if abs(psi.third) > 1e-150:
        size = min(psi.second**3 / psi.third**2, size)
    return Decisive(size, psi.episode, 1 / psi.second, -psi.top / psi.n)
