"""Spread: what is kept of influence values ψ. It adds up over parts of a log."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Spread:
    """Sums of ψ over n episodes, relative to the largest of them so that nothing overflows.

    top            the ψ with the largest |ψ|; `episode` is the id of its episode
    second, third  Σ(ψ/|top|)², Σ(ψ/|top|)³
    """

    n: int
    top: float
    episode: str
    second: float
    third: float

    @classmethod
    def of(cls, psi: Floats, episodes: npt.NDArray[np.generic]) -> Spread:
        """Of (n,) influence values of these episodes."""
        if len(psi) == 0:
            return cls(0, 0.0, "", 0.0, 0.0)
        most = int(np.argmax(np.abs(psi)))
        top = float(psi[most])
        scaled = psi / abs(top) if 0 < abs(top) < np.inf else np.zeros(len(psi))
        squares = scaled * scaled
        episode = str(episodes[most])
        return cls(len(psi), top, episode, float(squares.sum()), float((squares * scaled).sum()))

    def __add__(self, other: Spread) -> Spread:
        larger, smaller = (self, other) if abs(self.top) >= abs(other.top) else (other, self)
        by = abs(smaller.top / larger.top) if larger.top else 0.0
        return Spread(
            self.n + other.n,
            larger.top,
            larger.episode,
            larger.second + by**2 * smaller.second,
            larger.third + by**3 * smaller.third,
        )

    def __neg__(self) -> Spread:
        return replace(self, top=-self.top, third=-self.third)

    @property
    def square(self) -> float:
        """mean(ψ²)/n, infinite where it is beyond what a number can hold."""
        return self.top * self.top * self.second / (self.n * self.n) if self.n else 0.0
