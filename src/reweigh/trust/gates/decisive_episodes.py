"""On how many episodes does the error rest?

An interval takes the sum of the influence values ψ_i for normal. It is not where a few of them on
one side make up most of it: one reward out of scale, or an event that the log has seen twice. Of k
equal ones among zeros the skewness of the sum, Σψ³/(Σψ²)^(3/2), is 1/√k.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reweigh.errors import RefusedError
from reweigh.trust.gates.gate import Context, Floats, Gate, GateResult, Limit, limits_by


class DecisiveEpisodes(
    Gate,
    name="decisive episodes",
    question="On how many episodes does the error rest?",
    fault="outlier",
    limits=limits_by(Limit(20, 5, above=False)),  # a sum of so few is skewed
    assumption=True,
):
    def measure(self, context: Context) -> GateResult | None:
        if context.error is None:
            return None
        if context.log is None or context.influence is None:
            return self.unknown("sums hold no episodes: evaluated in memory it is told")
        try:
            decisive = heaviest(context.influence())
        except RefusedError as error:
            return self.unknown(str(error))
        if decisive is None:
            return None
        size, name = decisive.size, context.log.steps.episode[decisive.episode]
        share = f"episode {name} has {decisive.share:.0%} of it"
        text = f"the error rests on many episodes: {share}"
        if self.limit().judge(size) != "green":
            few = f"{size:.0f} episode{'' if round(size) == 1 else 's'}"
            text = f"the error rests on about {few}: {share}, and without it the value would move "
            text += f"by about {decisive.moved:+.3g}"
        return self.judge(
            size,
            text,
            "an interval from so few is not to be trusted: check the rewards of that episode, or "
            "log more of what is rare",
        )


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
