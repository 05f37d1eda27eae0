"""Records as plain values, as --json prints them."""

from __future__ import annotations

from typing import Any

from reweigh.errors import RefusedError
from reweigh.show.record import Evaluation
from reweigh.system.numbers import finite_or_none
from reweigh.trust.gain import Gain


def evaluation_json(e: Evaluation) -> dict[str, Any]:
    """An estimate, or a refusal."""
    if e.refused is not None or e.verdict is None or e.diagnostics is None:
        assert e.refused is not None
        nothing = ("value", "standard_error", "interval", "verdict")
        size = {"warnings": [], "n_episodes": e.n_episodes, "horizon": e.horizon}
        entry = {"estimator": e.estimator, **dict.fromkeys(nothing), **size}
        return entry | refusal_json(e.refused)
    verdict, gain = e.verdict.to_dict(), e.tested
    assert gain is not None
    return {
        "estimator": e.estimator,
        "value": e.value,
        "standard_error": e.standard_error,
        "error_method": e.error_method,
        "interval": None if e.interval is None else e.interval.to_dict(),
        "p_value": finite_or_none(gain.p_value) if isinstance(gain, Gain) else None,
        "gain": gain.to_dict() if isinstance(gain, Gain) else refusal_json(gain),
        "chosen": e.chosen,
        "verdict": verdict["level"],
        "unchecked": verdict["unchecked"],
        "gates": verdict["gates"],
        "warnings": [str(warning) for warning in e.warnings],
        "n_episodes": e.n_episodes,
        "horizon": e.horizon,
        "discount": e.discount,
        "behavior_value": e.behavior_value,
        "diagnostics": e.diagnostics.to_dict(),
        "sql": e.sql,
    }


def refusal_json(error: RefusedError) -> dict[str, Any]:
    return {"refused": {"code": error.code, "reason": error.reason}}
