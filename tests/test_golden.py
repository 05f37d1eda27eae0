"""Every result is as it was: see `golden.py`, which makes `golden.json` anew."""

from __future__ import annotations

import json
import math
from typing import Any

import golden
import pytest

CLOSE, NEARLY = 1e-12, 1e-8  # of values, and of errors and what is made of them
EXPECTED: dict[str, Any] = json.loads(golden.FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", list(golden.cases()))
def test_results_are_as_they_were(case: str) -> None:
    found = dict(golden.results([case]))
    expected = {key: value for key, value in EXPECTED.items() if key.split("/")[0] == case}
    assert list(found) == list(expected)
    off = [key for key in found if not same(found[key], expected[key])]
    shown = "\n".join(f"{key}\n  was {expected[key]}\n  is  {found[key]}" for key in off[:5])
    assert not off, f"{len(off)} of {len(found)} results changed:\n{shown}"


def same(found: Any, expected: Any, tolerance: float = NEARLY) -> bool:
    if isinstance(expected, dict):
        if not isinstance(found, dict) or list(found) != list(expected):
            return False
        return all(
            same(found[key], value, CLOSE if key == "value" else NEARLY)
            for key, value in expected.items()
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, float) and isinstance(found, float):
        return math.isclose(found, expected, rel_tol=tolerance, abs_tol=tolerance)
    return bool(found == expected)


def test_there_are_enough_of_them() -> None:
    assert len(EXPECTED) >= 300
    words = json.dumps(list(EXPECTED))
    assert all(engine in words for engine in golden.ENGINES)


@pytest.mark.parametrize("case", list(golden.cases()))
def test_every_engine_chooses_the_same(case: str) -> None:
    """The same estimator, with its numbers; the reason may say what sums lack."""
    choices = {
        k: v for k, v in EXPECTED.items() if k.startswith(f"{case}/") and k.endswith("/auto")
    }
    assert len({(choice["estimator"], choice.get("refused")) for choice in choices.values()}) == 1
    for key, choice in choices.items():
        own = EXPECTED.get(f"{key.removesuffix('auto')}{choice['estimator']}")
        assert own is None or same(choice.get("value"), own.get("value"), CLOSE)


def test_a_changed_result_is_noticed() -> None:
    one = next(value for value in EXPECTED.values() if "value" in value)
    assert same(one, one)
    assert not same(one | {"value": one["value"] * (1 + 1e-11) + 1e-11}, one)
    assert not same(one | {"verdict": "other"}, one)
    assert not same({"refused": "other"}, one)
