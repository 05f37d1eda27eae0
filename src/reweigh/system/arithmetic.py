"""Arithmetic that every part of the package may use."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def divided(numerator: Floats, denominator: Floats) -> Floats:
    """numerator/denominator, 0 where the denominator is 0: what was never seen has no share."""
    some = denominator > 0
    return np.where(some, numerator / np.where(some, denominator, 1.0), 0.0)
