"""On how many episodes does the error rest?

An interval takes the sum of the influence values ψ_i for normal. It is not where a few of them on
one side make up most of it: one reward out of scale, or an event that the log has seen twice. Of k
equal ones among zeros the skewness of the sum, Σψ³/(Σψ²)^(3/2), is 1/√k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from reweigh.errors import RefusedError
from reweigh.estimate.influence import Spread
from reweigh.trust.gates.gate import Context, Gate, GateResult, Limit, limits_by


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
        if context.spread is None:
            return self.unknown("sums hold no episodes: evaluated in memory it is told")
        try:
            decisive = heaviest(context.spread())
        except RefusedError as error:
            return self.unknown(str(error))
        if decisive is None:
            return None
        size = decisive.size
        share = f"episode {decisive.episode} has {decisive.share:.0%} of it"
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
