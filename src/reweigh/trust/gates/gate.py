"""What a gate is: one question about an estimate, with all that belongs to it. What it answers, and
the verdict, which is the worst of the answers.

Every gate is computed on un-normalised quantities, because normalising hides missing overlap. The
limits are those of `docs/trust`, set on one half of the study's worlds and checked on the other.
Two were not: a checking world without overlap showed that a placebo must be able to be red (a round
number, not tuned), and one with a rare action that a model needs an effective size too (the limit
of MIS). Such a world also showed the need of the gate of unseen actions, whose limits are of the
setting half. What the study has no world for (cut-off episodes, stationarity, dependence in sums,
no interval) is judged by what must be so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from reweigh.estimate.estimator import Place, Recipe, Solution
from reweigh.estimate.influence import Spread
from reweigh.estimate.operators import OneStep, marginal_operator
from reweigh.estimate.standard_error import OVERFLOW
from reweigh.log.log import EpisodeLog
from reweigh.sums.moments import Moments

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Level = Literal["green", "amber", "red", "unknown"]
ORDER: tuple[Level, ...] = ("unknown", "green", "amber", "red")  # by how much they matter
Reads = Literal["solution", "sums"]
Result = TypeVar("Result")
NO_TRANSITIONS = "these sums hold no transitions"
ROUNDING = 1e-6  # what it leaves of a spread, which is a difference of sums of squares


@dataclass(frozen=True)
class Limit:
    """From where on a value is amber, and red (None: it never is). `above`: large is bad."""

    amber: float | None
    red: float | None
    above: bool = True

    def judge(self, value: float) -> Level:
        def beyond(limit: float | None) -> bool:
            return limit is not None and (value > limit if self.above else value < limit)

        return "red" if beyond(self.red) else "amber" if beyond(self.amber) else "green"

    def __str__(self) -> str:
        sign = ">" if self.above else "<"
        parts = (("amber", self.amber), ("red", self.red))
        return ", ".join(f"{name} {sign} {at:g}" for name, at in parts if at is not None)


def limits_by(usual: Limit, **others: Limit) -> Mapping[str, Limit]:
    """A gate's limits: the usual one, and those of estimators with other limits
    (`Recipe.limits`, with _ for a space)."""
    return MappingProxyType({"": usual} | {k.replace("_", " "): v for k, v in others.items()})


@dataclass(frozen=True, eq=False)
class GateResult:
    """A gate's answer for one estimate.

    value     what was judged, None where it could not be computed (level "unknown", `text` why)
    per_step  (H,) the same step by step, where that has a meaning
    step, state, action  where it is worst
    limit     from where on it is amber or red
    text      what was found, in words; advice: what to do about it
    hint, assumption  as the gate declares them

    What is asked of the log or of the estimate as a whole belongs to no step: episodes, hidden
    states, cut-off episodes, estimated propensities, dependence, decisive episodes, interval, and
    steadiness, which compares the steps. Drift is judged by whole returns, and told of the rewards
    of each step. Pareto k is of the whole products, which the last step completes.
    """

    name: str
    level: Level
    value: float | None
    text: str
    advice: str = ""
    limit: str = ""
    per_step: Floats | None = None
    step: int | None = None
    state: str | None = None
    action: str | None = None
    hint: bool = False
    assumption: bool = False

    @property
    def sentence(self) -> str:
        """What was found, and what to do about it."""
        return f"{self.text}; {self.advice}" if self.advice else self.text

    def to_dict(self) -> dict[str, Any]:
        per_step = None
        if self.per_step is not None:
            per_step = [v if math.isfinite(v) else None for v in self.per_step.tolist()]
        names = [
            "name",
            "level",
            "value",
            "text",
            "advice",
            "limit",
            "per_step",
            "step",
            "state",
            "action",
        ]
        return {name: getattr(self, name) for name in names} | {"per_step": per_step}


@dataclass(frozen=True, eq=False)
class Verdict:
    """green: no gate speaks against the estimate; amber: use it with the reasons at hand; red: do
    not decide on it. Gates that could not be computed are told, and never make a verdict better."""

    gates: tuple[GateResult, ...]

    @property
    def level(self) -> Level:
        return self.reasons[0].level if self.reasons else "green"

    @property
    def reasons(self) -> tuple[GateResult, ...]:
        """The gates that speak against the estimate, the worst first."""
        against = [g for g in self.gates if g.level in ("amber", "red") and not g.hint]
        return tuple(sorted(against, key=lambda gate: -ORDER.index(gate.level)))

    @property
    def unchecked(self) -> tuple[GateResult, ...]:
        """The assumptions that could not be tested."""
        return tuple(g for g in self.gates if g.level == "unknown" and g.assumption)

    def unchecked_lines(self) -> list[str]:
        """These, each with the reason: a green verdict rests on what was checked."""
        return [f"{gate.name} ({gate.text})" for gate in self.unchecked]

    def __str__(self) -> str:
        names = ", ".join(gate.name for gate in self.reasons)
        return f"{self.level}: {names}" if names else self.level

    def to_dict(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "reasons": [gate.name for gate in self.reasons],
            "unchecked": {gate.name: gate.text for gate in self.unchecked},
            "gates": [gate.to_dict() for gate in self.gates],
        }


def place_in_words(step: int | None, state: str | None = None, action: str | None = None) -> str:
    """A place in words, as far as it is known."""
    text = f"step {step}" if state is None else f"step {step} in state {state}"
    return text if action is None else f"{text}, action {action}"


@dataclass(frozen=True, eq=False)
class Context:
    """What gates may look at.

    sums            of a gate that reads the solution: those that it was solved from; of others:
                    those that hold the tables which the gates need
    estimator       None where a log and a target are judged before any estimate
    solution        for gates that read it
    data            see `log` and `whole`; None where `sums` are all that there is
    error           the standard error, None where there is none, and `error_method` why
    within_rewards  whether a value that the logged rewards do not allow is refused
    has_interval    False where more than one episode has no default interval
    refused         why the interval that was asked for is not there
    spread          tells how the influence values of the episodes spread, or refuses; None where
                    there are no episodes to tell them of
    apart_from_wis  tells how far the value is from that of WIS, in errors of their difference; None
                    where it cannot be told
    state_values    (H+1, S) V_t(s) by MIS, and whether (t, s) was reached, where rows give them
    shared          what was computed from these sums before, whatever the estimator
    """

    sums: Moments
    estimator: Recipe | None = None
    solution: Solution | None = None
    data: EpisodeLog | Moments | None = None
    error: float | None = None
    error_method: str = ""
    within_rewards: bool = False
    has_interval: bool = True
    refused: str | None = None
    spread: Callable[[], Spread] | None = None
    apart_from_wis: Callable[[], float | None] = lambda: None
    state_values: Callable[[], tuple[Floats, npt.NDArray[np.bool_]]] | None = None
    shared: dict[str, Any] = field(default_factory=dict)

    @property
    def n_episodes(self) -> int:
        return self.sums.n_episodes

    @property
    def log(self) -> EpisodeLog | None:
        """The log in memory, None where only sums are at hand."""
        return self.data if isinstance(self.data, EpisodeLog) else None

    @property
    def whole(self) -> EpisodeLog | Moments:
        """The log in memory, or else the sums of all of it."""
        return self.sums if self.data is None else self.data

    @property
    def traits(self) -> frozenset[str]:
        return frozenset() if self.estimator is None else self.estimator.traits

    @property
    def limits(self) -> str:
        """Whose limits the estimator has."""
        return "" if self.estimator is None else self.estimator.limits

    @property
    def solved(self) -> Solution:
        """The solution, for gates that read it."""
        assert self.solution is not None, "this gate reads the solution"
        return self.solution

    def once(self, name: str, compute: Callable[[], Result]) -> Result:
        """What depends on the sums alone is computed once for all estimators."""
        if name not in self.shared:
            self.shared[name] = compute()
        result: Result = self.shared[name]
        return result

    def marginal_operator(self) -> OneStep | None:
        """The operator of MIS on these sums; None where they hold no transitions."""
        return None if self.sums.transitions is None else marginal_operator(self.sums)

    def place(self, place: Place | None) -> dict[str, Any]:
        """The `step`, `state` and `action` of a result; END is no state."""
        if place is None:
            return {}
        sums, action = self.sums, None
        state = sums.states.name(place.state) if place.state >= 0 else None
        if place.action is not None:
            assert sums.actions is not None
            action = sums.actions.name(place.action)
        return {"step": place.step, "state": state, "action": action}

    def lacking(self, table: str, what: str, why: str = "not asked for") -> str:
        """Why the sums do not hold a table."""
        reason = self.sums.left_out.get(table, f"{why}, or an older version made them")
        return f"these sums do not hold {what}: {reason}"


class Gate:
    """One question about an estimate: a subclass declares it, an instance stands in a table.

    name, question  what is asked
    fault           what it is meant to notice
    reads           "solution": measured with the estimate, whose numbers it reads; "sums": measured
                    when the verdict is asked for
    needs           tables of sums that it reads ("transitions", "model", "choices", "lagged",
                    "ordered", "paced", "largest"), or "state values"
    of_sums_alone   it has nothing to say where the log is in memory
    limits          by `Recipe.limits`; "" is for all others (`limits_by`)
    of, unless      traits of estimators that it concerns, one of these, and that it does not
                    (`Recipe.traits`); without them it concerns all
    softened        in which case its level is below that of its limit
    hint            shown, but never a reason of a verdict
    assumption      named beside the verdict where it could not be checked
    warning         the class of the warning for those who read no verdict, where it is red or, with
                    `warns_if_amber`, amber
    """

    name: str = ""
    question: str = ""
    fault: str = ""
    reads: Reads = "sums"
    needs: frozenset[str] = frozenset()
    limits: Mapping[str, Limit] = MappingProxyType({})
    of: frozenset[str] = frozenset()
    unless: frozenset[str] = frozenset()
    softened: str = ""
    hint: bool = False
    assumption: bool = False
    warning: type[Warning] | None = None
    warns_if_amber: bool = False
    of_sums_alone: bool = False

    def __init_subclass__(cls, **declared: Any) -> None:
        """A subclass declares these as keywords."""
        for name, value in declared.items():
            if not hasattr(cls, name):
                raise TypeError(f"a gate declares no {name!r}")
            setattr(cls, name, frozenset(value) if isinstance(value, set) else value)

    def concerns(self, traits: frozenset[str]) -> bool:
        """Whether it is asked of an estimator with these traits."""
        return bool(not self.of or self.of & traits) and not self.unless & traits

    def measure(self, context: Context) -> GateResult | None:
        """The answer; None where there is nothing to say."""
        raise NotImplementedError

    def limit(self, limits: str = "") -> Limit:
        """The limit of estimators with these limits (`Recipe.limits`)."""
        return self.limits.get(limits, self.limits[""])

    def result(self, level: Level, value: float | None, text: str, **more: Any) -> GateResult:
        return GateResult(
            self.name, level, value, text, hint=self.hint, assumption=self.assumption, **more
        )

    def unknown(self, why: str) -> GateResult:
        return self.result("unknown", None, why)

    def judge(
        self,
        value: float | None,
        text: str,
        advice: str = "",
        *,
        limit: Limit | None = None,
        at_most: Level = "red",
        most: str = "",
        **place: Any,
    ) -> GateResult:
        """The result by the limit; a value that is no number is unknown. `at_most` is the worst
        level that is told; with `most` the place is told where it speaks against the estimate."""
        if value is None or not math.isfinite(value):
            return self.unknown(text)
        limit = limit or self.limit()
        level = min(limit.judge(value), at_most, key=ORDER.index)
        against = level != "green"
        if against and most and place.get("step") is not None:
            at = place_in_words(place["step"], place.get("state"), place.get("action"))
            text = f"{text}, {most} at {at}"
        return self.result(
            level, value, text, advice=advice if against else "", limit=str(limit), **place
        )


@dataclass(frozen=True, eq=False)
class Outcome:
    """A test's outcome.

    p         None where the test cannot be made
    why       why there is none, or none by step
    per_step  (H,) p-values step by step, nan where a step has none
    step, state  where the sums are furthest from what they should be (codes)
    share     of the (t, s) that were tested
    """

    p: float | None
    why: str = ""
    per_step: Floats | None = None
    step: int | None = None
    state: int | None = None
    share: float = 1.0


class AssumptionGate(Gate):
    """A gate of a p-value: what it says where the assumption holds and where it fails, what to do
    then, and the word before its place, where that is told.

    The test works on sums, so that it is the same on every engine and for merged sites. It can be
    wrong both ways: a small p-value is a reason to look, and a large one proves nothing.
    """

    assumption = True
    holds: str = ""
    fails: str = ""
    advice: str = ""
    most: str = ""

    def test(self, context: Context) -> Outcome:
        raise NotImplementedError

    def measure(self, context: Context) -> GateResult:
        return self.of_outcome(*self.outcome(context))

    def outcome(self, context: Context) -> tuple[Outcome, str | None]:
        """The test's outcome, without a p-value where that is no number, and its state's name."""
        outcome = context.once(self.name, lambda: self.test(context))
        if outcome.p is not None and math.isnan(outcome.p):
            outcome = Outcome(None, OVERFLOW)
        code = -1 if outcome.state is None else outcome.state
        return outcome, context.sums.states.name(code) if code >= 0 else None

    def of_outcome(self, outcome: Outcome, state: str | None = None, **more: Any) -> GateResult:
        if outcome.p is None:
            return self.unknown(outcome.why)
        said = self.holds if self.limit().judge(outcome.p) == "green" else self.fails
        p = f"p = {outcome.p:.2g}" if outcome.p >= 1e-16 else "p < 1e-16"
        by_step = f"; by step it is not told: {outcome.why}" if outcome.why else ""
        if outcome.share < 1:
            one_in = f"1 of {1 / outcome.share:,.0f}"
            by_step += f"; tested at {one_in} (step, state) pairs, chosen by their hash"
        return self.judge(
            outcome.p,
            f"{said} ({p}{by_step})",
            self.advice,
            most=self.most,
            per_step=outcome.per_step,
            step=outcome.step,
            state=state,
            **more,
        )
