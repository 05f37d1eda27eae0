"""What a plan is: its goal, what every estimator needs, and the plan that prints itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from reweigh.errors import RefusedError, must_be
from reweigh.theory.decomposition import Decomposition

NORMAL = NormalDist()


@dataclass(frozen=True)
class Goal:
    """What is asked for: a half-width, or a difference that is to be found with some power."""

    level: float
    half_width: float | None = None
    difference: float | None = None
    power: float | None = None

    @property
    def quantile(self) -> float:
        return NORMAL.inv_cdf(0.5 + self.level / 2)

    def episodes(self, variance: float) -> int:
        """n, at least 1."""
        z, size = self.quantile, self.half_width
        if size is None:
            assert self.difference is not None
            assert self.power is not None
            z, size = z + NORMAL.inv_cdf(self.power), self.difference
        root = math.sqrt(variance) * z / size
        if not root < 1e150:
            raise RefusedError("too-many", "more episodes than a number can hold would be needed")
        return max(math.ceil(root * root), 1)

    def reached(self, variance: float, n: float) -> float:
        """What n episodes give: the half-width, or the power (of both sides)."""
        error = math.sqrt(variance / n)
        if self.difference is None:
            return self.quantile * error
        if error == 0:
            return 1.0
        z, shift = self.quantile, self.difference / error
        return NORMAL.cdf(shift - z) + NORMAL.cdf(-shift - z)

    def to_dict(self) -> dict[str, Any]:
        names = ("half_width", "difference", "power", "level")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, eq=False)
class Need:
    """What one estimator needs; without an answer, `refused` tells why.

    episodes    n
    variance    σ², per episode: of the value, or of the difference to the behaviour
    times       n as a multiple of the reference's
    value       of the pilot, or exact
    difference  value less the behaviour's own (None where it cannot be told)
    now         half-width or power that the pilot itself has; None for a world
    ess         effective number of the pilot's episodes at the worst step
    """

    estimator: str
    episodes: int | None = None
    variance: float | None = None
    times: float | None = None
    value: float | None = None
    difference: float | None = None
    now: float | None = None
    ess: float | None = None
    refused: RefusedError | None = None
    warnings: tuple[Warning, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        names = ("estimator", "episodes", "variance", "times", "value", "difference", "now", "ess")
        found = {name: getattr(self, name) for name in names}
        found["warnings"] = [str(warning) for warning in self.warnings]
        if self.refused is not None:
            found["refused"] = {"code": self.refused.code, "reason": self.refused.reason}
        return found


@dataclass(frozen=True, eq=False)
class Plan:
    """How many episodes every estimator needs, and where the variance comes from.

    reference       the estimator that the others are compared with: mis, or the first that answered
    source          "log", "moments" or "world"
    pilot_episodes  None for a world
    """

    goal: Goal
    needs: tuple[Need, ...]
    reference: str
    source: str
    pilot_episodes: int | None
    horizon: int
    decomposition: Decomposition | None
    warnings: tuple[Warning, ...] = ()

    def need(self, estimator: str) -> Need:
        for need in self.needs:
            if need.estimator == estimator:
                return need
        listed = ", ".join(need.estimator for need in self.needs)
        raise must_be("estimator", f"one of {listed}", estimator)

    @property
    def episodes(self) -> int:
        """What the reference needs."""
        found = self.need(self.reference).episodes
        assert found is not None
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `reweigh plan --json` prints them."""
        return {
            "goal": self.goal.to_dict(),
            "source": self.source,
            "pilot_episodes": self.pilot_episodes,
            "horizon": self.horizon,
            "reference": self.reference,
            "episodes": self.episodes,
            "estimators": [need.to_dict() for need in self.needs],
            "decomposition": None if self.decomposition is None else self.decomposition.to_dict(),
            "warnings": [str(warning) for warning in self.warnings],
        }

    def chart(self) -> Any:
        """An Altair chart: what n episodes give, and where the variance comes from."""
        from reweigh.theory.plan_chart import plan_chart

        return plan_chart(self)

    def __str__(self) -> str:
        from reweigh.theory.plan_text import plan_text

        return plan_text(self)

    __repr__ = __str__
