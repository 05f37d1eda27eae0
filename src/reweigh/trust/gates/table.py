"""The gates, one line each, in the order in which a verdict tells them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.metadata import entry_points

import numpy as np

from reweigh.errors import UsageError
from reweigh.sums.engines.base import Request
from reweigh.trust.gates.cut_off import CutOff
from reweigh.trust.gates.decisive_episodes import DecisiveEpisodes
from reweigh.trust.gates.dependence import Dependence
from reweigh.trust.gates.drift import Drift
from reweigh.trust.gates.effective_size import EffectiveSize
from reweigh.trust.gates.episodes import Episodes
from reweigh.trust.gates.estimated_propensities import EstimatedPropensities
from reweigh.trust.gates.fitted_values import FittedValues
from reweigh.trust.gates.gate import Context, Gate, GateResult, Limit, Reads
from reweigh.trust.gates.heaviest_episode import HeaviestEpisode
from reweigh.trust.gates.hidden_states import HiddenStates
from reweigh.trust.gates.history import History
from reweigh.trust.gates.interval import HasInterval
from reweigh.trust.gates.pareto_k import ParetoK
from reweigh.trust.gates.placebo import Placebo
from reweigh.trust.gates.policies import HiddenPolicies, Policies
from reweigh.trust.gates.propensities import Propensities
from reweigh.trust.gates.rare_states import RareStates
from reweigh.trust.gates.reward_range import RewardRange
from reweigh.trust.gates.stationarity import Stationarity
from reweigh.trust.gates.steadiness import Steadiness
from reweigh.trust.gates.support import MarginalSize, MarginalSupport, Support
from reweigh.trust.gates.total_mass import TotalMass
from reweigh.trust.gates.unseen_actions import UnseenActions

ENTRY_POINTS = "reweigh.gates"
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


@cache
def all_gates() -> tuple[Gate, ...]:
    """These gates, and those that other packages offer as entry points of `reweigh.gates`."""
    gates = {gate.name: gate for gate in GATES}
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        gate = point.load()
        if not isinstance(gate, Gate):
            raise UsageError(
                f"the entry point {point.value} of {ENTRY_POINTS} is no Gate: {gate!r}"
            )
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
    """The sums that gates read when a verdict is asked for."""
    kinds = (gate.needs for gate in all_gates() if gate.reads == "sums")
    return Request(frozenset().union(*kinds), max_ratio=max_ratio, named=False)
