"""Gates: what must hold before an estimate is to be believed. The table has one line for each, in
the order in which a verdict tells them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reweigh.errors import UsageError
from reweigh.estimate.estimator import Recipe
from reweigh.sums.engines.base import Request
from reweigh.system.entry_points import added, declared
from reweigh.trust.gates.episodes import (
    CutOff,
    Dependence,
    Drift,
    Episodes,
    EstimatedPropensities,
    HasInterval,
    HiddenStates,
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
from reweigh.trust.gates.propensities import Propensities
from reweigh.trust.gates.states import (
    FittedValues,
    HiddenPolicies,
    History,
    Policies,
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
from reweigh.trust.gates.weights import (
    DecisiveEpisodes,
    EffectiveSize,
    HeaviestEpisode,
    MarginalSize,
    ParetoK,
)

__all__ = [
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
    "tables_for",
    "tables_needed",
]
GATES: tuple[Gate, ...] = (
    Episodes(),
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
    UnseenActions(),
    EstimatedPropensities(),
    Propensities(),
    Policies(),
    HiddenPolicies(),
    FittedValues(),
    History(),
    Steadiness(),
    Drift(),
    MarginalSize(),
    MarginalSupport(),
    ParetoK(),
    DecisiveEpisodes(),
)
LIMITS: dict[str, Limit] = {
    f"{gate.name}, {kind}" if kind else gate.name: limit
    for gate in GATES
    for kind, limit in gate.limits.items()
}


def all_gates() -> tuple[Gate, ...]:
    """These gates, and those that other packages offer as entry points of `reweigh.gates`."""
    gates = {gate.name: gate for gate in GATES}
    for name, point in sorted(declared("gates").items()):
        gate = added("gates", name)
        if not isinstance(gate, Gate):
            where = f"the entry point {point.value} of reweigh.gates"
            raise UsageError(f"{where} is no Gate: {gate!r}")
        if gate.name in gates:
            raise UsageError(
                f"the entry point {point.value}: there is a gate {gate.name!r} already"
            )
        gates[gate.name] = gate
    return tuple(gates.values())


def measured(
    reads: Reads, context: Context, gates: Sequence[Gate] | None = None
) -> tuple[GateResult, ...]:
    """The answers of the gates that read this and concern the estimator, if there is one."""
    results = []
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # no number: unknown
        for gate in all_gates() if gates is None else gates:
            concerned = context.estimator is None or gate.concerns(context.traits)
            if gate.reads == reads and concerned:
                results.append(gate.measure(context))
    return tuple(result for result in results if result is not None)


def tables_needed(max_ratio: float | None) -> Request:
    """The sums that gates read when a verdict is asked for, whatever the estimator."""
    kinds = (gate.needs for gate in all_gates() if gate.reads == "sums")
    wanted = frozenset().union(*kinds) - {"choices", "state values"}
    return Request(wanted | {"model", "transitions"}, max_ratio=max_ratio, named=False)


def tables_for(recipes: Sequence[Recipe], *, values_from_rows: bool) -> frozenset[str]:
    """The kinds of sums that the gates of these estimators read, of a log in memory; where its rows
    give the values of states, these need no table."""
    kinds: set[str] = set()
    for gate in all_gates():
        concerned = any(gate.concerns(recipe.traits) for recipe in recipes)
        if gate.reads == "sums" and concerned and not gate.of_sums_alone:
            kinds |= gate.needs
    if "state values" in kinds:
        kinds.remove("state values")
        kinds |= set() if values_from_rows else {"transitions"}
    return frozenset(kinds)
