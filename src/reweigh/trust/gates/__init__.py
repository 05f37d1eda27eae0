"""Gates: the checks behind a verdict. `GATES` has one line for each, in the order of the verdict's
reasons.

Also the warnings that follow from an estimate, and the questions that no estimator can answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reweigh.errors import (
    InputWarning,
    LowOverlapWarning,
    RefusedError,
    SelectionWarning,
    UsageError,
    nearest,
)
from reweigh.estimate.estimator import Recipe, Solution
from reweigh.log.log import EpisodeLog
from reweigh.log.states import Labels
from reweigh.policy import Policy
from reweigh.policy.table import TablePolicy
from reweigh.sums.engines import Request
from reweigh.sums.moments import Moments, visits_of
from reweigh.system import added, declared
from reweigh.trust.gates.episodes import (
    Clusters,
    CutOff,
    Dependence,
    Drift,
    Episodes,
    HasInterval,
    HiddenStates,
)
from reweigh.trust.gates.features import (
    BehaviorValue,
    BellmanResidual,
    ChoiceSpread,
    ThinClusters,
    UnprovenFeatures,
)
from reweigh.trust.gates.gate import (
    AssumptionGate,
    Context,
    Gate,
    GateResult,
    Level,
    Limit,
    Outcome,
    Reads,
    Verdict,
    limits_by,
    place_in_words,
)
from reweigh.trust.gates.propensities import HiddenPolicies, Policies, Propensities
from reweigh.trust.gates.states import (
    FittedValues,
    History,
    Stationarity,
    Steadiness,
)
from reweigh.trust.gates.support import (
    MarginalSupport,
    Placebo,
    RareStates,
    RewardRange,
    Support,
    TotalMass,
    UnseenActions,
)
from reweigh.trust.gates.unseen import (
    ActionsInGroups,
    EstimatedPropensities,
    IncompleteState,
    RareActions,
    UnseenEvents,
)
from reweigh.trust.gates.weights import (
    DecisiveEpisodes,
    EffectiveSize,
    HeaviestEpisode,
    MarginalSize,
    ParetoK,
)

__all__ = [
    "FEW_EPISODES",
    "GATES",
    "LIMITS",
    "AssumptionGate",
    "Context",
    "Gate",
    "GateResult",
    "Level",
    "Limit",
    "Outcome",
    "Verdict",
    "all_gates",
    "limits_by",
    "measured",
    "place_in_words",
    "remarks",
    "tables_for",
    "tables_needed",
    "unanswerable",
    "unanswerable_by_sums",
    "unlogged_actions",
    "unlogged_in_sums",
]
FEW_EPISODES = 30
NO_WEIGHTS = "the log has sampling weights, which this test does not take"
NO_STATES = "the log names features and no states"
BY_STATE = {"transitions", "model", "choices", "lagged", "state values"}  # tables of states
LONG_SINGLE_EPISODE = 1000  # rows
GATES: tuple[Gate, ...] = (
    Episodes(),
    Clusters(),
    Support(),
    EffectiveSize(),
    RareStates(),
    HiddenStates(),
    Stationarity(),
    HeaviestEpisode(),
    TotalMass(),
    Placebo(),
    CutOff(),
    RewardRange(),
    HasInterval(),
    Dependence(),
    RareActions(),
    UnseenActions(),
    EstimatedPropensities(),
    Propensities(),
    Policies(),
    HiddenPolicies(),
    FittedValues(),
    ActionsInGroups(),
    History(),
    IncompleteState(),
    Steadiness(),
    Drift(),
    MarginalSize(),
    MarginalSupport(),
    ParetoK(),
    DecisiveEpisodes(),
    UnseenEvents(),
    BehaviorValue(),
    BellmanResidual(),
    ThinClusters(),
    ChoiceSpread(),
    UnprovenFeatures(),
)
LIMITS: dict[str, Limit] = {
    f"{gate.name}, {kind}" if kind else gate.name: limit
    for gate in GATES
    for kind, limit in gate.limits.items()
}


def all_gates() -> tuple[Gate, ...]:
    """`GATES`, and the gates that other packages add as entry points of `reweigh.gates`."""
    gates = {gate.name: gate for gate in GATES}
    for name, point in sorted(declared("gates").items()):
        gate = added("gates", name)
        if not isinstance(gate, Gate):
            name = f"the entry point {point.value} of reweigh.gates"
            raise UsageError(f"{name} is not a Gate: {gate!r}")
        if gate.name in gates:
            raise UsageError(
                f"the entry point {point.value}: a gate named {gate.name!r} exists already"
            )
        gates[gate.name] = gate
    return tuple(gates.values())


def measured(
    reads: Reads, context: Context, gates: Sequence[Gate] | None = None
) -> tuple[GateResult, ...]:
    """The results of the gates that read `reads` and apply to the estimator, if there is one."""
    results: list[GateResult | None] = []
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # no number: unknown
        for gate in all_gates() if gates is None else gates:
            concerned = context.estimator is None or gate.concerns(context.traits)
            if gate.reads == reads and concerned:
                if gate.reads == "sums" and gate.needs & BY_STATE and _has_no_states(context):
                    results.append(gate.unknown(NO_STATES))
                    continue
                tests = isinstance(gate, AssumptionGate | Placebo) and _is_weighted(context)
                results.append(gate.unknown(NO_WEIGHTS) if tests else gate.measure(context))
    return tuple(result for result in results if result is not None)


def _has_no_states(context: Context) -> bool:
    return not context.sums.about.state_columns


def _is_weighted(context: Context) -> bool:
    return context.log is not None and context.log.columns.weight is not None


def tables_needed(max_ratio: float | None) -> Request:
    """The sums that gates read for a verdict, for any estimator."""
    kinds = (gate.needs for gate in all_gates() if gate.reads == "sums")
    wanted = frozenset().union(*kinds) - {"choices", "state values"}
    return Request(wanted | {"model", "transitions"}, max_ratio=max_ratio, named=False)


def tables_for(recipes: Sequence[Recipe], *, values_from_rows: bool) -> frozenset[str]:
    """The tables that the gates of these estimators read for a log in memory; state values that
    come from the rows need no table."""
    kinds: set[str] = set()
    for gate in all_gates():
        concerned = any(gate.concerns(recipe.traits) for recipe in recipes)
        if gate.reads == "sums" and concerned and not gate.of_sums_alone:
            kinds |= gate.needs
    if "state values" in kinds:
        kinds.remove("state values")
        kinds |= set() if values_from_rows else {"transitions"}
    return frozenset(kinds)


def unlogged_actions(log: EpisodeLog, target: Policy) -> list[Warning]:
    """Warns of target actions that the log does not contain: a misspelled name, or no support."""
    return _unlogged_remark(target.unlogged_actions(log), log.actions)


def unlogged_in_sums(moments: Moments, target: Policy) -> list[Warning]:
    """The same from sums; only a table policy lists its actions."""
    refuse = getattr(target, "refuse_unknown_actions", None)
    if refuse is not None:
        refuse(moments.actions)
    visits = visits_of(moments)
    if visits is None or moments.actions is None or not isinstance(target, TablePolicy):
        return []
    every = target._entries.actions
    shares = {}
    for code in np.flatnonzero(moments.actions.translate(every) < 0).tolist():
        action = np.full(len(visits.n), code)
        prob, _ = target.find(moments.states, visits.state, visits.step, action)
        shares[str(every.values[code])] = float(prob @ visits.n / visits.n.sum())
    return _unlogged_remark({a: share for a, share in shares.items() if share > 0}, moments.actions)


def _unlogged_remark(shares: dict[str, float], actions: Labels | None) -> list[Warning]:
    """`shares`: how often the target takes each action that is not in `actions`."""
    if not shares or actions is None:
        return []
    logged = [str(value) for value in actions.values]
    listed = ", ".join(
        f"{action!r} ({share:.0%} of the time{nearest(action, logged)})"
        for action, share in list(shares.items())[:5]
    )
    return [
        LowOverlapWarning(
            f"the target takes actions that are not in the log: {listed}; the log's actions "
            f"are {', '.join(map(repr, logged[:10]))}{', …' if len(logged) > 10 else ''}. "
            "Check the spelling, or give the target no probability for them"
        )
    ]


def unanswerable(log: EpisodeLog, target: Policy) -> RefusedError | None:
    """Questions that no estimator can answer."""
    rows = log.steps.n_rows
    if log.n_episodes == 1 and rows > LONG_SINGLE_EPISODE:
        return _one_episode(rows)
    if log.continuous_actions or not log.steps.always_probability_one():
        return None
    return None if np.all(target.probabilities(log) == 1.0) else _deterministic()


def unanswerable_by_sums(moments: Moments) -> RefusedError | None:
    """The same from sums: no probability exceeds 1, so a mean of 1 means that all are 1."""
    cells = moments.model if moments.model is not None else moments.transitions
    if cells is None:
        return None
    rows = int(cells.n.sum())
    if moments.n_episodes == 1 and rows > LONG_SINGLE_EPISODE:
        return _one_episode(rows)
    if moments.about.continuous_actions or float(cells.mu.sum()) != rows:
        return None
    return None if float(cells.pi.sum()) == rows else _deterministic()


def _one_episode(rows: int) -> RefusedError:
    return RefusedError(
        "one-episode",
        f"the log has 1 episode of {rows:,} rows. The episodes are the sample, so one "
        "episode gives no estimate. Check the episode column",
    )


def _deterministic() -> RefusedError:
    return RefusedError(
        "deterministic-log",
        "behavior_prob is 1 in every row: either the logged policy is deterministic, or the "
        "propensities were not logged. Log them, or estimate them with fit_behavior(log)",
    )


def remarks(solution: Solution, used: Moments, results: Sequence[GateResult]) -> list[Warning]:
    """Warnings for users who do not read verdicts: about the log, and about gates of the solution
    beyond the red limit, or beyond the amber one if the estimate may be completely wrong."""
    rules = {gate.name: gate for gate in all_gates()}
    few = used.n_episodes < FEW_EPISODES  # then the other gates mean little
    beyond = {result.name: _beyond(result, rules[result.name], solution) for result in results}
    warnings = _about_the_log(solution, used, ends_too="cut-off episodes" in beyond)
    for result in results:
        gate, level = rules[result.name], beyond[result.name]
        if gate.warning is None or (few and gate.name not in ("episodes", "support")):
            continue
        if gate.name == "placebo" and beyond["effective size"] == "red":
            continue  # its own error means nothing then
        if gate.name == "placebo" and solution.from_model and beyond["support"] != "green":
            continue  # the same mass: one warning is enough
        if level == "red" or (level == "amber" and gate.warns_if_amber):
            warnings.append(gate.warning(result.sentence))
    return warnings


def _beyond(result: GateResult, gate: Gate, solution: Solution) -> Level:
    """The level by the value alone; some gates are judged more strictly, or less, for others."""
    if result.value is None or not gate.limits:
        return result.level
    return gate.limit("model" if solution.from_model else "").judge(result.value)


def _about_the_log(solution: Solution, used: Moments, ends_too: bool) -> list[Warning]:
    found: list[Warning] = [InputWarning(rule) for rule in used.unchecked]
    if used.truncated:
        text = (
            f"{used.truncated:,} of {used.n_episodes:,} episodes were cut off; their rows "
            "before the cut are used. This is right only if the cut does not depend on what "
            "would have followed"
        )
        if ends_too:
            text += (
                ". Other episodes ended, and the state after a cut is unknown: the "
                "probability of ending is overestimated. Give next_state, the state after "
                "the last row too"
            )
        found.append(SelectionWarning(text))
    at = solution.normalized_at
    if at is not None and not at.all():
        found.append(
            InputWarning(
                "states are hidden: the target's state distribution is normalized at "
                f"{int(at.sum())} of {len(at)} steps, those where every active episode has an "
                "observed state"
            )
        )
    return found
