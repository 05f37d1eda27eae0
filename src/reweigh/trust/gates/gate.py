"""Gates, their results and the verdict. A gate is one question about an estimate together with its
limits and texts; the verdict is the worst result.

Every gate is computed on un-normalized quantities, because normalizing hides missing overlap. The
limits come from the study in `docs/trust`: they were set on one half of its worlds and checked on
the other half. Two limits were added after that check: the red limit of the placebo (a round
number, not tuned) for a world without overlap, and the effective size of models (the limit of MIS)
for a world with a rare action. The latter also led to the gate of unseen actions, whose limits were
set on the first half. The study has no world for cut-off episodes, stationarity, dependence in
sums, or a missing interval; their limits follow from the definition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from reweigh.estimate.estimator import Nodes, Place, Recipe, Solution
from reweigh.estimate.influence import Spread
from reweigh.estimate.memory_rows import Comparison
from reweigh.estimate.operators import OneStep, marginal_operator
from reweigh.estimate.solution import DenseNodes
from reweigh.estimate.standard_error import OVERFLOW
from reweigh.log.log import EpisodeLog
from reweigh.sums.keyed import TransitionMoments
from reweigh.sums.moments import Moments

if TYPE_CHECKING:
    from reweigh.estimate.clusters import Count

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Level = Literal["green", "amber", "red", "unknown"]
ORDER: tuple[Level, ...] = ("unknown", "green", "amber", "red")  # by how much they matter
Reads = Literal["solution", "sums"]
Result = TypeVar("Result")
NO_TRANSITIONS = "the sums have no transitions"
NO_EPISODES = "sums alone do not show how the episodes continue"
NOT_DECLARED = "no range of rewards is declared (reward_range)"
ONE_STEP = "one step"  # the trait of `Context.one_step`
ROUNDING = 1e-6  # of a spread, which is a difference of sums of squares


@dataclass(frozen=True)
class Limit:
    """The values beyond which a result is amber and red (None: never). `above`: large is bad."""

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
    """A gate's result for one estimate.

    value     the number compared with the limit; None if it could not be computed (level
              "unknown", and `text` says why)
    per_step  (H,) the same number by step, for gates that have one
    step, state, action  where it is worst
    limit     the values beyond which it is amber or red
    text      the finding in words
    advice    what to do about it
    hint, assumption  as the gate declares them

    Gates of the log or of the whole estimate have no step: episodes, hidden states, cut-off
    episodes, estimated propensities, dependence, decisive episodes, interval, and steadiness, which
    compares the steps. Drift tests whole returns and reports the rewards of each step. Pareto k is
    about complete running products, so it names the last step.
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
        """The finding, then the advice."""
        return f"{self.text}; {self.advice}" if self.advice else self.text

    def to_dict(self) -> dict[str, Any]:
        per_step = None
        if self.per_step is not None:
            per_step = [v if math.isfinite(v) else None for v in self.per_step.tolist()]
        names = ("name", "level", "value", "text", "advice", "limit")
        more = ("per_step", "step", "state", "action", "hint")
        return {name: getattr(self, name) for name in names + more} | {"per_step": per_step}


@dataclass(frozen=True, eq=False)
class Verdict:
    """green: every check passed; amber: use the estimate with care and read the reasons; red: do
    not base a decision on it. Gates that could not be computed are listed as "unknown" and never
    improve a verdict.

    A verdict equals its level (`verdict == "green"`), and another verdict of that level."""

    gates: tuple[GateResult, ...]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Verdict):
            return self.level == other.level
        return self.level == other if isinstance(other, str) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.level)

    @property
    def level(self) -> Level:
        return self.reasons[0].level if self.reasons else "green"

    @property
    def reasons(self) -> tuple[GateResult, ...]:
        """The amber and red gates, worst first; hints are left out."""
        failed = [g for g in self.gates if g.level in ("amber", "red") and not g.hint]
        return tuple(sorted(failed, key=lambda gate: -ORDER.index(gate.level)))

    @property
    def unchecked(self) -> tuple[GateResult, ...]:
        """The assumptions that could not be tested."""
        return tuple(g for g in self.gates if g.level == "unknown" and g.assumption)

    def unchecked_lines(self) -> list[str]:
        """The same with the reasons, but for what only a declaration could answer."""
        gates = [gate for gate in self.unchecked if gate.text != NOT_DECLARED]
        return [f"{gate.name} ({gate.text})" for gate in gates]

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
    """Step, state and action as text, as far as they are known."""
    text = f"step {step}" if state is None else f"step {step} in state {state}"
    return text if action is None else f"{text}, action {action}"


@dataclass(frozen=True, eq=False)
class Context:
    """What a gate can read.

    sums            those the estimate was solved from; for gates of sums those with their tables
    estimator       None if a log and a target are judged before any estimate
    solution        for gates that read it
    data            see `log` and `whole`; None if only `sums` are available
    error           the standard error; None if there is none, then `error_method` says why
    within_rewards  whether to refuse a value outside the range that the logged rewards allow
    has_interval    False if more than one episode has no default interval
    refused         why the requested interval is missing
    spread          computes that of the influence values, or refuses; None without episodes
    beside_longer_memories  computes how far those that remember more are, or says why not
    state_values    (H+1, S) V_t(s) by MIS, and whether (t, s) was reached; of rows
    clusters        how many clusters the error is made of; None of a log without clusters
    nodes           d_t(s) of the estimate, for gates that read sums; None without a distribution
    reward_range    the smallest and largest reward that can occur, as declared
    includes_fit    whether the error includes that the propensities were estimated
    with_model      makes the sums with `model` too, of a log in memory
    with_rewards    makes cells by action with other rewards (N,), of a large log in memory
    shared          results computed earlier from these sums, for any estimator
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
    beside_longer_memories: Callable[[], Comparison | str] = lambda: NO_EPISODES
    state_values: Callable[[], tuple[Floats, npt.NDArray[np.bool_]]] | None = None
    clusters: Count | None = None
    nodes: Nodes | DenseNodes | None = None
    reward_range: tuple[float, float] | None = None
    includes_fit: bool = False
    with_model: Callable[[], Moments] | None = None
    with_rewards: Callable[[Floats], TransitionMoments] | None = None
    shared: dict[str, Any] = field(default_factory=dict)

    @property
    def n_episodes(self) -> int:
        return self.sums.n_episodes

    @property
    def log(self) -> EpisodeLog | None:
        """The log in memory; None if only sums are available."""
        return self.data if isinstance(self.data, EpisodeLog) else None

    @property
    def whole(self) -> EpisodeLog | Moments:
        """The log in memory, or else the sums of all of it."""
        return self.sums if self.data is None else self.data

    @property
    def seen_rewards(self) -> tuple[float, float] | None:
        """The smallest and the largest reward of the log, None if the sums do not hold them."""
        whole = self.whole
        return whole.reward_range if isinstance(whole, EpisodeLog) else whole.rewards

    @property
    def one_step(self) -> bool:
        """Whether it is the mean of ρ y of a log with one step: `is` and `mis` are one number."""
        of = self.estimator
        if of is None or self.sums.about.horizon > 1:
            return False
        return of.normalize in of.weights.means and of.reward == "logged" and of.control is None

    @property
    def traits(self) -> frozenset[str]:
        if self.one_step:
            return frozenset({"ratios", ONE_STEP})
        return frozenset() if self.estimator is None else self.estimator.traits

    @property
    def limits(self) -> str:
        """The key of the estimator's limits."""
        return "" if self.estimator is None or self.one_step else self.estimator.limits

    @property
    def solved(self) -> Solution:
        """The solution, for gates that read it."""
        assert self.solution is not None, "this gate reads the solution"
        return self.solution

    def once(self, name: str, compute: Callable[[], Result]) -> Result:
        """A result that depends on the sums alone, computed once for all estimators."""
        if name not in self.shared:
            self.shared[name] = compute()
        result: Result = self.shared[name]
        return result

    def marginal_operator(self) -> OneStep | None:
        """The operator of MIS on these sums; None where they hold no transitions."""
        return None if self.sums.transitions is None else marginal_operator(self.sums)

    def place(self, place: Place | None) -> dict[str, Any]:
        """The `step`, `state` and `action` of a result; END is not a state."""
        if place is None:
            return {}
        sums, action = self.sums, None
        state = sums.states.name(place.state) if place.state >= 0 else None
        if place.action is not None:
            assert sums.actions is not None
            action = sums.actions.name(place.action)
        return {"step": place.step, "state": state, "action": action}

    def lacking(self, table: str, what: str, why: str = "not requested") -> str:
        """Why a table is missing from the sums."""
        reason = self.sums.left_out.get(table, f"{why}, or the sums come from an older version")
        return f"the sums do not include {what}: {reason}"


class Gate:
    """One question about an estimate: a subclass declares it, the table `GATES` lists an instance.

    name, question  what the gate checks
    fault           the fault it must detect
    reads           "solution": measured with the estimate, whose numbers it reads; "sums": measured
                    when the verdict is requested
    needs           tables of sums that it reads ("transitions", "model", "choices", "lagged",
                    "ordered", "paced", "largest"), or "state values"
    of_sums_alone   it applies only if the log is not in memory
    limits          by `Recipe.limits`; "" is for all others (`limits_by`)
    of, unless      it applies to estimators with any trait in `of` and none in `unless`
                    (`Recipe.traits`); an empty `of` means all estimators
    softened        when the level is milder than the limit says
    hint            shown, but never a reason of a verdict
    assumption      listed beside the verdict if it could not be checked
    warning         the class of the Python warning raised if the gate is red or, with
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
        """Whether the gate applies to an estimator with these traits."""
        return bool(not self.of or self.of & traits) and not self.unless & traits

    def measure(self, context: Context) -> GateResult | None:
        """The result; None if the gate does not apply."""
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
        """The result by the limit; a value that is not a number is unknown. `at_most` caps the
        level; with `most` the text of an amber or red result names the place."""
        if value is None or not math.isfinite(value):
            return self.unknown(text)
        limit = limit or self.limit()
        level = min(limit.judge(value), at_most, key=ORDER.index)
        failed = level != "green"
        if failed and most and place.get("step") is not None:
            at = place_in_words(place["step"], place.get("state"), place.get("action"))
            text = f"{text}, {most} at {at}"
        return self.result(
            level, value, text, advice=advice if failed else "", limit=str(limit), **place
        )


@dataclass(frozen=True, eq=False)
class Outcome:
    """A test's outcome.

    p         None if the test is not possible
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
    """A gate of a p-value: its text if the assumption holds and if it fails, the advice, and the
    word before the place, if it names one.

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
        """The test's outcome, without a p-value if that is not a number, and the name of its
        state."""
        outcome = context.once(self.name, lambda: self.test(context))
        if outcome.p is not None and math.isnan(outcome.p):
            outcome = Outcome(None, OVERFLOW)
        code = -1 if outcome.state is None else outcome.state
        return outcome, context.sums.states.name(code) if code >= 0 else None

    def of_outcome(self, outcome: Outcome, state: str | None = None, **more: Any) -> GateResult:
        if outcome.p is None:
            return self.unknown(outcome.why)
        text = self.holds if self.limit().judge(outcome.p) == "green" else self.fails
        p = f"p = {outcome.p:.2g}" if outcome.p >= 1e-16 else "p < 1e-16"
        by_step = f"; not available by step: {outcome.why}" if outcome.why else ""
        if outcome.share < 1:
            one_in = f"1 of {1 / outcome.share:,.0f}"
            by_step += f"; tested on {one_in} (step, state) pairs, sampled by hash"
        return self.judge(
            outcome.p,
            f"{text} ({p}{by_step})",
            self.advice,
            most=self.most,
            per_step=outcome.per_step,
            step=outcome.step,
            state=state,
            **more,
        )
