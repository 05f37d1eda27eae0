"""What comes out of `compare`: estimates side by side, their differences, and which is best."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from reweigh.estimate.estimator import Recipe
from reweigh.evaluation.result import Estimate, Interval, Refusal, number, rounded
from reweigh.show.record import NO_TRUST, Evaluation, rows_frame
from reweigh.show.text import by_text

if TYPE_CHECKING:
    from pathlib import Path

    from reweigh.evaluation.auto import CommonChoice
    from reweigh.trust.gates import GateResult

NOT_KNOWN = "not known"


def label_of(recipe: Recipe) -> str:
    """An estimator's name, with the clipping of its ratios where that changes the number."""
    if recipe.max_ratio is None or not recipe.weights.uses_ratios:
        return recipe.name
    return f"{recipe.name}, ratios at most {repr(float(recipe.max_ratio)).removesuffix('.0')}"


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

    interval      of its value, simultaneous with all contenders: it holds for whichever is picked;
                  None where its episodes show no spread, and `no_interval` says so
    over_behavior target - behaviour, simultaneous over the contenders; None where the difference
                  shows no spread
    best          how likely it is the best target, among those of the same estimator; None where
                  that is not known, and for estimators that do not rank
    called        what the estimator is called where its own name would not tell it from others
    """

    target: str
    result: Estimate | Refusal
    interval: Interval | None = None
    over_behavior: Difference | None = None
    best: float | None = None
    no_interval: str | None = None
    called: str | None = None

    @property
    def estimator(self) -> str:
        """Its name, with all that tells it from the others: "mis, ratios at most 2"."""
        return self.called or label_of(self.result.recipe)

    @property
    def name(self) -> str:
        return f"{self.target}, {self.estimator}"

    @property
    def value(self) -> float:
        return self.result.value if isinstance(self.result, Estimate) else math.nan

    @property
    def trusted(self) -> bool:
        """Whether its errors may be shown (`Estimate.trusted`)."""
        return isinstance(self.result, Estimate) and self.result.trusted

    @property
    def around(self) -> str:
        """Its interval in words, as far as it may be shown."""
        if self.interval is None:
            return "no interval"
        return str(self.interval) if self.trusted else NO_TRUST

    @property
    def gained(self) -> str:
        """What it earns beyond the behaviour, with the interval as far as that may be shown."""
        over = self.over_behavior
        if over is None:
            return "none"
        value = rounded(over.value, over.standard_error)
        return f"{value} {over.interval}" if self.trusted else value

    @property
    def reasons(self) -> tuple[GateResult, ...]:
        """The gates that speak against it, the worst first."""
        return self.result.verdict.reasons if isinstance(self.result, Estimate) else ()

    @cached_property
    def evaluation(self) -> Evaluation:
        """What a report shows of it, called by its target; intervals are simultaneous."""
        record, over = self.result.record_with(self.interval), self.over_behavior
        if isinstance(self.result, Refusal):
            return replace(record, label=self.target)
        around = None
        if over is not None and self.trusted:
            around = replace(over.interval, standard_error=over.standard_error)
        hidden = self.interval is not None and not self.trusted
        return replace(
            record,
            label=self.target,
            error=self.result.standard_error,
            no_interval=record.no_interval if hidden else self.no_interval or "",
            gain=None if over is None else over.value,
            gain_interval=around,
            best=self.best,
        )

    def to_dict(self) -> dict[str, Any]:
        return self.result.to_dict() | {
            "name": self.name,
            "target": self.target,
            "reasons": [f"{gate.level}: {gate.sentence}" for gate in self.reasons],
            "simultaneous_interval": None if self.interval is None else self.interval.to_dict(),
            "no_interval": self.no_interval,
            "over_behavior": None if self.over_behavior is None else self.over_behavior.to_dict(),
            "probability_best": self.best,
        }


@dataclass(frozen=True, eq=False)
class Comparison:
    """Several targets and estimators on one log.

    pairs      differences between the targets, by the first estimator
    disagreeing  differences between estimators of one target beyond their joint error
    tried      policies and estimators tried on this log so far, these included
    auto       what "auto" stands for, and why; None where it was not asked for
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
    auto: CommonChoice | None = None

    @property
    def answered(self) -> tuple[Contender, ...]:
        return tuple(c for c in self.contenders if isinstance(c.result, Estimate))

    @property
    def ranking(self) -> tuple[Contender, ...]:
        """The targets under the first estimator, the largest value first."""
        ranked = [c for c in self.answered if self.ranks(c)]
        return tuple(sorted(ranked, key=lambda c: -c.value))

    def ranks(self, contender: Contender) -> bool:
        """Whether it is one of the first estimator."""
        return contender.estimator == self.contenders[0].estimator

    @property
    def trusted_pairs(self) -> tuple[Difference, ...]:
        """The differences whose intervals may be shown: those of contenders that are trusted."""
        names = {c.name for c in self.answered if c.trusted}
        return tuple(d for d in self.pairs if {d.first, d.second} <= names)

    @property
    def best(self) -> Contender | None:
        return self.ranking[0] if self.ranking else None

    @property
    def reported(self) -> tuple[Contender, ...]:
        """What a decision would rest on: the best, with a holdout as the episodes set aside tell
        it; all contenders where there is no best."""
        if self.held_out is not None:
            return (self.held_out,)
        return self.contenders if self.best is None else (self.best,)

    def report(
        self, path: str | Path, *, title: str | None = None, overwrite: bool = False
    ) -> Path:
        """Write a report as one HTML file that needs nothing else: which target is best, with its
        corrected interval and probability, every target's verdict, paired differences, and how all
        of it was computed."""
        from reweigh.decide.comparison_report import write_comparison

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
            "auto": None if self.auto is None else self.auto.to_dict(),
            "warnings": list(self.warnings),
        }

    def to_frame(self) -> Any:
        """A pandas DataFrame, or an Arrow table where pandas is not installed: a row per target
        and estimator, with the simultaneous intervals of the value and of what it gains over the
        behaviour, and the probability of being best."""
        return rows_frame([
            {"target": c.target, **c.evaluation.row(), "estimator": c.estimator,
             "probability_best": c.best}
            for c in self.contenders
        ])  # fmt: skip

    def rows(self) -> list[tuple[str, ...]]:
        """(target, estimator, value, interval, over the behaviour, best, verdict) as printed."""
        return [
            (c.target, c.estimator, f"refused: {c.result.error.reason}")
            if isinstance(c.result, Refusal)
            else (
                c.target,
                c.estimator,
                c.result.value_text(c.result.standard_error),
                c.around.replace("no interval", "none"),
                c.gained,
                chance(c) if self.ranks(c) else "",
                c.result.verdict.level,
            )
            for c in self.contenders
        ]

    def __str__(self) -> str:
        at_once = f" (all at once at level {self.level:.4g})"
        lines = [f"{self.n_episodes:,} episodes, behaviour {number(self.behavior_value)}"]
        for target, estimator, value, *rest in self.rows():
            lines.append(f"  {target}, {estimator}: {value}")
            if rest:
                around, gained, best, verdict = rest
                lines.append(f"    interval {around}{'' if around.startswith('none') else at_once}")
                lines.append(f"    over the behaviour {gained}")
                lines += [f"    best with probability {best}"] if best else []
                lines.append(f"    verdict {verdict}")
        last = self.held_out
        if last is not None:
            others = f"{self.n_held_out:,} other episodes"
            if isinstance(last.result, Refusal):
                told = f"refused on {others}: {last.result.error.reason}"
            else:
                value = last.result.value_text(last.result.standard_error)
                told = f"on {others} {value} {last.around}, verdict {last.result.verdict.level}"
            lines.append(f"chosen: {self.chosen}; {told}")
        lines += [] if self.auto is None else self.auto.lines()
        lines += [f"  warning  {text}" for text in self.warnings]
        return "\n".join([*lines, *(f"  {text}" for text in self.remarks())])

    def remarks(self) -> list[str]:
        """The estimators' warnings, what speaks against the contenders, why one has no interval:
        each text once, with the contenders that it is said of."""
        texts = by_text((c.name, text) for c in self.answered for text in _remarks_on(c))
        everyone = [c.name for c in self.answered]
        lines = [
            f"{'all' if names == everyone and len(names) > 1 else '; '.join(names)}: {text}"
            for text, names in texts.items()
        ]
        if self.held_out is not None:
            lines += [
                f"{self.held_out.name}, on the episodes set aside: {text}"
                for text in _remarks_on(self.held_out)
            ]
        return lines

    __repr__ = __str__


def chance(contender: Contender | Evaluation) -> str:
    """How likely it is the best, in words."""
    return NOT_KNOWN if contender.best is None else f"{contender.best:.0%}"


def _remarks_on(contender: Contender) -> list[str]:
    """In the words of `reweigh evaluate`."""
    result = contender.result
    if not isinstance(result, Estimate):
        return []
    against = {gate.sentence: gate.level for gate in contender.reasons}
    lines = [f"! {warning}" for warning in result.warnings if str(warning) not in against]
    lines += [f"{level}: {text}" for text, level in against.items()]
    why = contender.no_interval
    if why is not None and not any(why in text for text in against):  # a gate may have said it
        lines.append(f"no interval: {why}")
    if contender.interval is not None and not contender.trusted:
        lines.append(result.not_to_trust)
    return lines + [f"not checked: {line}" for line in result.verdict.unchecked_lines()]
