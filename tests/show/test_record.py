"""One record, many faces: the faces agree, and none of them reaches above the record."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import reweigh as rw
from reweigh.show.record import Evaluation

from .samples import compared_policies, sampled, without_overlap

SHOW = Path(rw.__file__).parent / "show"
ABOVE = ("evaluation", "decide", "theory", "cli", "worlds", "adapters", "paper")


def test_what_shows_does_not_import_what_is_shown() -> None:
    for path in SHOW.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                assert not node.module.startswith(tuple(f"reweigh.{room}" for room in ABOVE)), path


def test_the_faces_of_an_estimate_tell_the_same() -> None:
    for estimate in sampled(("mis", "wis", "dm"))[2]:
        assert isinstance(estimate, rw.Estimate)
        record = estimate.record()
        text, plain = dict(estimate.rows()), estimate.to_dict()
        assert text["value"] == record.text == estimate.value_text(record.error)
        assert text["verdict"].startswith(plain["verdict"])
        assert plain["verdict"] == record.level == estimate.verdict.level
        interval = estimate.interval()
        assert interval is not None
        assert plain["interval"] == interval.to_dict()
        if record.trusted:
            assert record.around is not None
            assert text["95 % interval"] == str(interval)
            assert record.better in text["better than behavior"]
        else:  # Python and JSON keep what no page shows
            assert record.around is None
            assert record.gain_interval is None
            assert text["95 % interval"] == record.no_interval
            assert plain["gain"]["value"] == record.gain


def test_a_record_has_the_interval_that_was_asked_for() -> None:
    [estimate] = sampled(("mis",))[2]
    assert isinstance(estimate, rw.Estimate)
    wide = estimate.interval(0.99)
    record = estimate.record_with(wide)
    assert record.interval is wide
    assert record.gain_interval is not None
    assert record.gain_interval.level == 0.99
    none = estimate.record_with(None)
    assert none.around is None
    assert none.no_interval == estimate.error_method


def test_a_refusal_is_a_record_too() -> None:
    for refusal in without_overlap()[2]:
        record = refusal.record()
        assert record.refused is not None
        assert (record.value, record.level, record.text) == (None, None, "")
        assert refusal.to_dict()["refused"]["reason"] == record.refused.reason


def test_a_contender_is_called_by_its_target() -> None:
    contender: Any = compared_policies().contenders[0]
    record: Evaluation = contender.evaluation
    assert record.label == contender.target
    assert record.interval is contender.interval
    assert record.gain == contender.over_behavior.value
    assert record.best == contender.best
