"""The result of `compare`: estimates side by side, their differences, and which is best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from reweigh.estimate.estimator import Recipe
from reweigh.evaluation.result import Estimate, Interval, Refusal
from reweigh.show.first_screen import (
    MOST_REASONS,
    WIDTH,
    Card,
    Reason,
    answer_sentence,
    how_to_see,
    nothing_answers,
    reason_lines,
    reasons_of,
)
from reweigh.show.record import PER_EPISODE, Evaluation
from reweigh.show.text import by_text, remark_lines, wrapped
from reweigh.system import number, rounded
from reweigh.system.frames import FrameKind, rows_frame

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

    @property
    def differs_clearly(self) -> bool:
        return not self.interval.low <= 0 <= self.interval.high

    def reversed(self) -> Difference:
        """The same difference the other way round."""
        around = replace(self.interval, low=-self.interval.high, high=-self.interval.low)
        p = 1 - self.p_value
        return Difference(self.second, self.first, -self.value, self.standard_error, around, p)

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "interval": self.interval.to_dict()}


@dataclass(frozen=True, eq=False)
class Contender:
    """One target under one estimator.

    estimator     its name, with its settings: "mis, ratios at most 2"
    interval      of its value, simultaneous with all contenders: it holds for whichever is picked;
                  None if its episodes show no variation; then `no_interval` has the reason
    over_behavior target - behavior, simultaneous over the contenders; None if the difference has no
    variation
    best          how likely it is the best target, among those of the same estimator; None if
                  unknown, and for estimators that do not rank
    """

    target: str
    estimator: str
    result: Estimate | Refusal
    interval: Interval | None = None
    over_behavior: Difference | None = None
    best: float | None = None
    no_interval: str | None = None

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
        return str(self.interval) if self.trusted else "not reliable"

    @property
    def gained(self) -> str:
        """What it earns beyond the behavior, with its interval, as far as they may be shown."""
        over = self.over_behavior
        if over is None:
            return "none"
        value = rounded(over.value, over.standard_error)
        return f"{value} {over.interval}" if self.trusted else "not reliable"

    @property
    def chance(self) -> str:
        """How likely it is the best, in words."""
        return chance(self.best)

    @property
    def reasons(self) -> tuple[GateResult, ...]:
        """Its amber and red gates, worst first."""
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

    def remarks(self) -> list[str]:
        """Warnings, amber and red gates, and why it has no interval, in the words of `reweigh
        evaluate`."""
        result = self.result
        if not isinstance(result, Estimate):
            return []
        of_interval, why = [], self.no_interval
        if why is not None and not any(why in gate.sentence for gate in self.reasons):
            of_interval.append(f"no interval: {why}")  # no gate reports it
        if self.interval is not None and not self.trusted:
            of_interval.append(result.not_to_trust)
        return remark_lines(result.warnings, of_interval, result.verdict)

    def to_dict(self) -> dict[str, Any]:
        return self.result.to_dict() | {
            "name": self.name,
            "target": self.target,
            "reasons": [f"{gate.level}: {gate.sentence}" for gate in self.reasons],
            "simultaneous_interval": _plain(self.interval),
            "no_interval": self.no_interval,
            "over_behavior": _plain(self.over_behavior),
            "probability_best": self.best,
        }


@dataclass(frozen=True, eq=False)
class Comparison(Card):
    """Several targets and estimators on one log.

    pairs      differences between the targets, by the first estimator
    disagreeing  differences between estimators of one target beyond their joint error
    tried      policies and estimators tried on this log so far, these included
    auto       the choice of "auto" and why; None if not requested
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
    warnings: tuple[str, ...] = ()
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
        """The differences with a reliable interval: those of trusted contenders."""
        names = {c.name for c in self.answered if c.trusted}
        return tuple(d for d in self.pairs if {d.first, d.second} <= names)

    @property
    def best(self) -> Contender | None:
        return self.ranking[0] if self.ranking else None

    @property
    def reported(self) -> tuple[Contender, ...]:
        """The basis of a decision: the best one, with a holdout as evaluated on the episodes set
        aside; all contenders if there is no best."""
        if self.held_out is not None:
            return (self.held_out,)
        return self.contenders if self.best is None else (self.best,)

    def report(
        self, path: str | Path, *, title: str | None = None, overwrite: bool = False
    ) -> Path:
        """Write a report as one HTML file that needs nothing else: which target is best, with its
        corrected interval and probability, every target's verdict, paired differences, and how all
        of it was computed."""
        from reweigh.decide.report import write_comparison

        return write_comparison(self, path, title=title, overwrite=overwrite)

    def to_dict(self) -> dict[str, Any]:
        return {
            **vars(self),
            "contenders": [c.to_dict() for c in self.contenders],
            "pairs": [d.to_dict() for d in self.pairs],
            "disagreeing": [d.to_dict() for d in self.disagreeing],
            "held_out": _plain(self.held_out),
            "auto": _plain(self.auto),
            "warnings": list(self.warnings),
        }

    def to_frame(self, kind: FrameKind | None = None) -> Any:
        """A row per target and estimator, with the simultaneous intervals of the value and of what
        it gains over the behavior, and the probability of being best. `kind` is "pandas", "polars"
        or "arrow"; without it pandas, or Arrow where pandas is not installed."""
        rows = [
            {"target": c.target, **c.evaluation.row(), "estimator": c.estimator,
             "probability_best": c.best}
            for c in self.contenders
        ]  # fmt: skip
        return rows_frame(rows, kind)

    def rows(self) -> list[tuple[str, ...]]:
        """(target, estimator, value, interval, over the behavior, best, verdict) as printed."""
        return [
            (c.target, c.estimator, f"refused: {c.result.error.reason}")
            if isinstance(c.result, Refusal)
            else (
                c.target,
                c.estimator,
                c.evaluation.text,
                c.around.replace("no interval", "none"),
                c.gained,
                c.chance if self.ranks(c) and c.trusted else "",
                c.result.verdict.level,
            )
            for c in self.contenders
        ]

    def sentence(self) -> str:
        return best_sentence(self)

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        interval = f"{100 * self.level:.4g} % interval"
        columns = ("target", "estimator", "value", interval, "more than today", "best", "verdict")
        refused = ("refused", *[""] * 4)
        return columns, [row if len(row) > 3 else (*row[:2], *refused) for row in self.rows()]

    def below(self) -> list[str]:
        return self.reasons_below(".verdict.reasons")

    def reasons_below(self, rest: str) -> list[str]:
        """The reasons, three at most and how to see the `rest`, and what would help where none
        answers."""
        reasons, after = reasons_and_help(self)
        hidden = len(reasons) - MOST_REASONS
        noun = "reasons" if hidden > 1 else "reason"
        more = [f"{hidden} more {noun}: {how_to_see(rest, hidden)}"] if hidden > 0 else []
        return [*reason_lines(reasons[:MOST_REASONS]), *more, *([after] if after else [])]

    def __str__(self) -> str:
        at_once = f" (simultaneous at level {self.level:.4g})"
        lines = [*wrapped(self.sentence(), WIDTH), ""]
        lines.append(f"{self.n_episodes:,} episodes, behavior {number(self.behavior_value)}")
        for target, estimator, value, *rest in self.rows():
            lines.append(f"  {target}, {estimator}: {value}")
            if rest:
                around, gained, best, verdict = rest
                lines.append(f"    interval {around}{at_once if around[0] in '[≥≤' else ''}")
                lines.append(f"    over the behavior {gained}")
                lines += [f"    best with probability {best}"] if best else []
                lines.append(f"    verdict {verdict}")
        last = self.held_out
        if last is not None:
            others = f"{self.n_held_out:,} other episodes"
            if isinstance(last.result, Refusal):
                text = f"refused on {others}: {last.result.error.reason}"
            else:
                verdict = last.result.verdict.level
                text = f"on {others} {last.evaluation.text} {last.around}, verdict {verdict}"
            lines.append(f"chosen: {self.chosen}; {text}")
        lines += [] if self.auto is None else self.auto.lines()
        lines += [f"  warning  {text}" for text in self.warnings]
        return "\n".join([*lines, *(f"  {text}" for text in self.remarks())])

    __repr__ = __str__

    def remarks(self) -> list[str]:
        """Each remark once, with the contenders it is about."""
        texts = by_text((c.name, text) for c in self.answered for text in c.remarks())
        everyone = [c.name for c in self.answered]
        lines = [
            f"{'all' if names == everyone and len(names) > 1 else '; '.join(names)}: {text}"
            for text, names in texts.items()
        ]
        if self.held_out is not None:
            where = f"{self.held_out.name}, on the episodes set aside"
            lines += [f"{where}: {text}" for text in self.held_out.remarks()]
        return lines


def chance(best: float | None) -> str:
    """A probability of being the best, in words."""
    return NOT_KNOWN if best is None else f"{best:.0%}"


def ranked_rows(comparison: Comparison, estimator: str | None = None) -> list[Evaluation]:
    """The policies of one estimator, best first, refused last; their intervals are simultaneous."""
    name = estimator or comparison.contenders[0].estimator
    rows = [c.evaluation for c in comparison.contenders if c.estimator == name]
    return sorted(rows, key=lambda row: math.inf if row.value is None else -row.value)


def reported_on(comparison: Comparison) -> Contender | None:
    """The best policy as a decision would rest on it."""
    return comparison.best if comparison.held_out is None else comparison.held_out


def reasons_and_help(comparison: Comparison) -> tuple[list[Reason], str]:
    """The reasons, the best policy's before all others, and what would help where none answers."""
    rows, reported = ranked_rows(comparison), reported_on(comparison)
    if reported is not None:
        e = reported.evaluation
        rows = [e, *(row for row in rows if row.label != e.label)]
    return reasons_of(rows), nothing_answers(rows, what="policies")


def best_sentence(comparison: Comparison, unit: str = PER_EPISODE) -> str:
    """The answer of a comparison in one sentence."""
    reported = reported_on(comparison)
    if reported is None:
        return "No answer: no target could be evaluated."
    e, how, many = reported.evaluation, "", len(comparison.ranking)
    if comparison.held_out is not None:
        how = f" from {comparison.n_held_out:,} episodes set aside"
    elif many > 1:
        how = f", corrected for choosing the best of {many}"
    elif len(comparison.answered) > 1:
        how = ", corrected for asking several estimators"
    return answer_sentence(replace(e, policy=f"the policy “{e.label}”"), unit, how)


def _plain(record: Any) -> Any:
    return None if record is None else record.to_dict()
