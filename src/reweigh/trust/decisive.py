"""How many episodes an error rests on.

An interval takes the sum of the influence values ψ_i for normal. It is not where a few of them on
one side make up most of it: one reward out of scale, or an event that the log has seen twice. Of k
equal ones among zeros the skewness of the sum, Σψ³/(Σψ²)^(3/2), is 1/√k.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Decisive:
    """size     (Σψ²)³/(Σψ³)², at most n: as many equal values would be as skewed
    episode, share  the one with the largest ψ², and its share of Σψ²
    moved    by how much the value moves, about, without that episode
    """

    size: float
    episode: int
    share: float
    moved: float


def heaviest(psi: Floats) -> Decisive | None:
    """Of (n,) influence values; None where they have no spread."""
    top = float(np.max(np.abs(psi), initial=0.0))
    if not 0 < top < np.inf:
        return None
    scaled = psi / top
    second, third = float(np.sum(scaled**2)), float(np.sum(scaled**3))
    most = int(np.argmax(np.abs(psi)))
    size = min(second**3 / third**2, len(psi)) if abs(third) > 1e-150 else float(len(psi))
    return Decisive(size, most, float(scaled[most] ** 2) / second, -float(psi[most]) / len(psi))
