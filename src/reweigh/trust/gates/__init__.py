"""Gates: what must hold before an estimate is to be believed, one file each."""

from reweigh.trust.gates.gate import (
    Context,
    Gate,
    GateResult,
    Level,
    Limit,
    limits_by,
    place_in_words,
)
from reweigh.trust.gates.p_values import AssumptionGate, Outcome
from reweigh.trust.gates.table import GATES, LIMITS, all_gates, measured, tables_needed

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
    "all_gates",
    "limits_by",
    "measured",
    "place_in_words",
    "tables_needed",
]
