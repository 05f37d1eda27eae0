"""The verdict on an estimate: the worst of its gates, with the reasons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reweigh.trust.gates.gate import ORDER, GateResult, Level


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
