"""What comes out of `compare`: estimates side by side, their differences, and which is best."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reweigh.results import Estimate, Interval, Refusal, number, rounded

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Difference:
    """How much more the first earns than the second, with what both have in common taken out.

    interval is simultaneous with the others of its family; p_value is one-sided: that of the
    first being no better than the second.
    """

    first: str
    second: str
    value: float
    standard_error: float
    interval: Interval
    p_value: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "first": self.first,
            "second": self.second,
            "value": self.value,
            "standard_error": self.standard_error,
            "interval": self.interval.to_dict(),
            "p_value": self.p_value,
        }


@dataclass(frozen=True, eq=False)
class Contender:
    """One target under one estimator.

    interval      of its value, simultaneous with all contenders: it holds for whichever is picked
    over_behavior target - behaviour, simultaneous over the contenders
    best          how likely it is the best target, among those of the same estimator
    """

    target: str
    result: Estimate | Refusal
    interval: Interval | None = None
    over_behavior: Difference | None = None
    best: float | None = None

    @property
    def estimator(self) -> str:
        return self.result.estimator

    @property
    def name(self) -> str:
        return f"{self.target}, {self.estimator}"

    def to_dict(self) -> dict[str, Any]:
        return self.result.to_dict() | {
            "target": self.target,
            "simultaneous_interval": None if self.interval is None else self.interval.to_dict(),
            "over_behavior": None if self.over_behavior is None else self.over_behavior.to_dict(),
            "probability_best": self.best,
        }


@dataclass(frozen=True, eq=False)
class Comparison:
    """Several targets and estimators on one log.

    pairs      differences between the targets, by the first estimator
    disagreeing  differences between estimators of one target beyond their joint error
    tried      policies and estimators tried on this log so far, these included
    held_out   with a holdout: the chosen target on the episodes that did not choose it
    """

    contenders: tuple[Contender, ...]
    behavior_value: float | None
    level: float
    pairs: tuple[Difference, ...]
    disagreeing: tuple[Difference, ...]
    tried: int
    seed: int
    n_episodes: int
    chosen: str | None = None
    held_out: Contender | None = None
    n_held_out: int = 0
    warnings: tuple[str, ...] = field(default=())

    @property
    def answered(self) -> tuple[Contender, ...]:
        return tuple(c for c in self.contenders if isinstance(c.result, Estimate))

    @property
    def ranking(self) -> tuple[Contender, ...]:
        """The targets under the first estimator, the largest value first."""
        ranked = [c for c in self.answered if c.best is not None]
        return tuple(sorted(ranked, key=lambda c: -_value(c)))

    @property
    def best(self) -> Contender | None:
        return self.ranking[0] if self.ranking else None

    def report(
        self, path: str | Path, *, title: str | None = None, overwrite: bool = False
    ) -> Path:
        """Write a report as one HTML file that needs nothing else: which target is best, with its
        corrected interval and probability, every target's verdict, paired differences, and how all
        of it was computed."""
        from reweigh.report.page import write_comparison

        return write_comparison(self, path, title=title, overwrite=overwrite)

    def to_dict(self) -> dict[str, Any]:
        return {
            "contenders": [c.to_dict() for c in self.contenders],
            "behavior_value": self.behavior_value,
            "level": self.level,
            "pairs": [d.to_dict() for d in self.pairs],
            "disagreeing": [d.to_dict() for d in self.disagreeing],
            "tried": self.tried,
            "seed": self.seed,
            "n_episodes": self.n_episodes,
            "chosen": self.chosen,
            "held_out": None if self.held_out is None else self.held_out.to_dict(),
            "n_held_out": self.n_held_out,
            "warnings": list(self.warnings),
        }

    def rows(self) -> list[tuple[str, ...]]:
        """(target, estimator, value, interval, over the behaviour, best, verdict) as printed."""
        found: list[tuple[str, ...]] = []
        for c in self.contenders:
            if not isinstance(c.result, Estimate):
                found.append((c.target, c.estimator, f"refused: {c.result.error.reason}"))
                continue
            over = c.over_behavior
            found.append(
                (
                    c.target,
                    c.estimator,
                    rounded(c.result.value, c.result.standard_error),
                    "none" if c.interval is None else str(c.interval),
                    "none"
                    if over is None
                    else f"{rounded(over.value, over.standard_error)} {over.interval}",
                    "" if c.best is None else f"{c.best:.0%}",
                    c.result.verdict.level,
                )
            )
        return found

    def __str__(self) -> str:
        level = f"{self.level:.4g}"
        lines = [f"{self.n_episodes:,} episodes, behaviour {number(self.behavior_value)}"]
        for row in self.rows():
            lines.append(f"  {row[0]}, {row[1]}: {row[2]}")
            if len(row) > 3:
                lines.append(f"    interval {row[3]} (all at once at level {level})")
                lines.append(f"    over the behaviour {row[4]}")
            if len(row) > 5 and row[5]:
                lines.append(f"    best with probability {row[5]}")
            if len(row) > 6:
                lines.append(f"    verdict {row[6]}")
        if self.held_out is not None and isinstance(self.held_out.result, Estimate):
            lines.append(
                f"chosen: {self.chosen}; on {self.n_held_out:,} other episodes "
                f"{rounded(self.held_out.result.value, self.held_out.result.standard_error)} "
                f"{self.held_out.interval}"
            )
        lines += [f"  warning  {text}" for text in self.warnings]
        return "\n".join(lines)

    __repr__ = __str__


def _value(contender: Contender) -> float:
    assert isinstance(contender.result, Estimate)
    return contender.result.value
