"""What every face says first: one sentence made from the record, and reasons without circles."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import reweigh as rw
from reweigh.errors import RefusedError
from reweigh.log.abstractions import state_in_words
from reweigh.show.first_screen import (
    answer_sentence,
    help_after,
    policy_in_words,
    reason_lines,
    reasons_of,
)
from reweigh.show.record import Evaluation
from reweigh.show.text import check_unit, one_of, several, wrapped
from reweigh.trust.gates import GateResult, Verdict
from reweigh.trust.intervals import Interval

from .samples import compared_policies, sampled, without_overlap


def gate(level: Any, text: str, advice: str = "", name: str = "effective size") -> GateResult:
    return GateResult(name, level, 1.0, text, advice=advice)


@pytest.fixture(scope="module")
def record() -> Evaluation:
    [estimate] = sampled(("mis",))[2]
    assert isinstance(estimate, rw.Estimate)
    return replace(
        estimate.record(), value=17.8312, error=0.1, behavior_value=15.1313, gain=2.69991,
        interval=Interval(17.62, 18.03, 0.95, "analytic"), no_interval="",
        gain_interval=Interval(2.56, 2.83, 0.95, "paired", 0.067), verdict=Verdict(()),
    )  # fmt: skip


def judged(record: Evaluation, name: str, *gates: GateResult) -> Evaluation:
    return replace(record, label=name, recipe=rw.estimator(name), verdict=Verdict(gates))


def test_a_reliable_gain(record: Evaluation) -> None:
    assert answer_sentence(record) == (
        "The new policy would earn 17.83 per episode (95 % interval 17.62 to 18.03), 2.70 more "
        "than today's 15.13. Reliable: every check passed."
    )
    assert "17.83 per patient (" in answer_sentence(record, "per patient")
    named = replace(record, policy=policy_in_words("/tmp/more fluids.csv"))
    assert answer_sentence(named).startswith("The policy “more fluids” would earn")


def test_what_was_not_checked_is_said(record: Evaluation) -> None:
    lacking = replace(gate("unknown", "no order", name="drift"), assumption=True)
    text = answer_sentence(judged(record, "mis", lacking))
    assert text.endswith("Reliable as far as it was checked; not checked: drift.")


def test_a_difference_around_0_is_no_clear_one(record: Evaluation) -> None:
    unclear = replace(record, gain=-0.1, gain_interval=Interval(-0.3, 0.1, 0.95, "paired", 0.1))
    assert answer_sentence(unclear).startswith("No clear difference: the new policy would earn")
    assert "(difference -0.10, interval -0.30 to 0.10)" in answer_sentence(unclear)


def test_a_bound_and_an_unknown_gain(record: Evaluation) -> None:
    lower = replace(record, interval=Interval(17.6, np.inf, 0.9, "analytic", 0.1))
    assert "(90 % lower bound 17.60)" in answer_sentence(lower)
    unknown = replace(record, gain_interval=None, gain_why="there are only sums")
    assert "is not known (there are only sums)." in answer_sentence(unknown)


def test_amber_gives_the_number_and_the_first_reason(record: Evaluation) -> None:
    amber = judged(record, "mis", gate("amber", "0.1 % of the mass is lost"))
    assert answer_sentence(amber).endswith("Use with caution: 0.1 % of the mass is lost.")
    assert "17.83" in answer_sentence(amber)


def test_red_says_why_and_nothing_else(record: Evaluation) -> None:
    text = "at step 22 the estimate effectively rests on 3 of 2,000 episodes"
    red = judged(record, "mis", gate("amber", "other"), gate("red", text))
    assert answer_sentence(red) == f"Not reliable: {text}."
    assert not red.reliable


def test_a_refusal(record: Evaluation) -> None:
    refused = replace(record, refused=RefusedError("x", "no episode is possible."), value=None)
    assert answer_sentence(refused) == "No answer: no episode is possible."


def test_no_face_of_a_red_estimate_shows_an_interval(record: Evaluation) -> None:
    """Python's text and the notebook's card; JSON keeps every number, marked."""
    _, _, results = sampled(("wis",), n=60)
    [estimate] = results
    assert isinstance(estimate, rw.Estimate)
    assert estimate.verdict.level == "red"
    interval, gain = estimate.interval(), estimate.gain()
    assert interval is not None
    for text in (str(estimate), estimate._repr_html_()):
        assert "Not reliable: " in text
        assert str(interval) not in text
        assert not re.search(r"p [=<≤] ", text.split("verdict")[0])
        assert f"{gain.value:.3g}" not in text
    plain = estimate.to_dict()
    assert plain["reliable"] is False
    assert plain["interval"] == interval.to_dict()
    assert plain["p_value"] == gain.p_value
    assert sampled(("mis",))[2][0].to_dict()["reliable"] is True
    assert without_overlap()[2][0].to_dict()["reliable"] is False


def test_advice_never_leads_in_a_circle(record: Evaluation) -> None:
    mis = judged(record, "mis", gate("red", "history", "use wis, which needs no state", "history"))
    wis = judged(record, "wis", gate("red", "few", "use mis, or log more"))
    fine = judged(record, "mdr")
    assert {r.advice for r in reasons_of([mis, wis])} == {""}
    told = help_after([mis, wis])
    assert told.startswith("None of the 2 estimators tried (mis, wis) can answer this question")
    assert "a longer memory, or features" in told
    assert "more episodes" in told
    assert help_after([mis], [wis]) == told
    assert {r.advice for r in reasons_of([mis], [wis])} == {""}
    # towards what can answer it stays
    assert reasons_of([wis, judged(record, "mis")])[0].advice == "use mis, or log more"
    assert help_after([mis, wis, fine]) == "What can answer instead: mdr (green)."
    assert help_after([fine, mis]) == ""


def test_an_estimate_in_memory_tries_what_its_advice_names() -> None:
    _, _, [estimate] = sampled(("wis",), n=60)
    assert isinstance(estimate, rw.Estimate)
    tried = {e.estimator: e.reliable for e in estimate.tried()}
    advised = {e for g in estimate.verdict.reasons for e in re.findall(r"\bmis\b", g.advice)}
    assert set(tried) == advised
    assert estimate.tried() is estimate.tried()  # once


def test_reasons_of_the_answer_come_first_and_names_stand_once(record: Evaluation) -> None:
    mis = judged(record, "mis", gate("amber", "rare states", "use a coarser state"))
    same = [gate("red", "few episodes", "log more"), gate("amber", "heavy tail")]
    rows = [mis, judged(record, "wis", *same), judged(record, "is", *same)]
    assert reason_lines(reasons_of(rows)) == [
        "mis (amber):",
        "- Rare states.",
        "  What to do: Use a coarser state.",
        "wis, is (red):",
        "- Few episodes.",
        "  What to do: Log more.",
        "- amber: Heavy tail.",
    ]


def test_names_stand_under_their_verdict_not_under_that_of_a_reason(record: Evaluation) -> None:
    few = gate("amber", "few episodes", "log more")
    mis = judged(record, "mis", gate("red", "history", "use wis"), few)
    rows = [mis, judged(record, "dm", few)]
    reasons = reasons_of(rows)
    assert reason_lines(reasons) == [
        "mis (red):",
        "- History.",
        "mis (red), dm (amber):",
        "- amber: Few episodes.",
        "  What to do: Log more.",
    ]
    assert reason_lines(reasons, alone=True)[0] == "Why:"


def test_a_comparison_says_its_answer_first_too() -> None:
    compared = compared_policies()
    said = compared.sentence()
    for text in (compared.summary(), str(compared)):
        assert " ".join(text.split()).startswith(said)
    assert html.escape(said) in compared._repr_html_()
    assert compared._mime_() == ("text/html", compared._repr_html_())


def test_lines_are_broken_between_words_and_hang() -> None:
    line = "- What came before reweigh-demo/log.parquet predicts what follows; log more of it."
    shown = wrapped(line, 30)
    assert " ".join(part.strip() for part in shown) == line
    assert all(part.startswith("  ") for part in shown[1:])
    assert all(len(part) <= 30 for part in shown)
    assert wrapped("  " + "x" * 50, 30) == ["  " + "x" * 50]


@pytest.mark.parametrize(
    ("unit", "one", "many"),
    [
        ("per episode", "episode", "episodes"),
        ("dollars per visit", "visit", "visits"),
        ("per story", "story", "stories"),
        ("per day", "day", "days"),
        ("per bus", "bus", "buses"),
    ],
)
def test_units(unit: str, one: str, many: str) -> None:
    assert (check_unit(unit), one_of(unit), several(unit)) == (unit, one, many)


@pytest.mark.parametrize("unit", ["patients", "per", "per ", ""])
def test_what_is_no_unit(unit: str) -> None:
    with pytest.raises(rw.UsageError, match="per patient"):
        check_unit(unit)


BINS = repr(
    rw.Quantiles((0, 5, 5), edges=(None, (61.2, 65.7, 69.0, 73.3), (1.26, 1.69, 2.14, 2.72)))
)
GRID = repr(rw.Grid([[65, 80], [-4, 4]]))


@pytest.mark.parametrize(
    ("state", "columns", "abstraction", "words"),
    [
        ("(1, 2)", ("map_bp", "lactate"), GRID, "map_bp 65–80, lactate ≥ 4"),
        ("(0, 1)", ("map_bp", "lactate"), GRID, "map_bp < 65, lactate -4 to 4"),
        ("2", ("map_bp",), repr(rw.Grid([65, 80])), "map_bp ≥ 80"),
        ("(7, 3)", ("a", "b"), repr(rw.Rounding((0.1, 10))), "a about 70, b about 0.3"),
        ("7", ("a",), repr(rw.Rounding(0.1)), "a about 70"),
        (
            "('icu', 4, 3)",
            ("ward", "bp", "lactate"),
            BINS,
            "ward icu, bp ≥ 73.3, lactate 2.14–2.72",
        ),
        ("('icu', 0, 0)", ("ward", "bp", "lactate"), BINS, "ward icu, bp < 61.2, lactate < 1.26"),
        ("('x', 3)", ("ward", "day"), None, "ward x, day 3"),
        ("5", ("state",), None, "5"),
        ("(1, 2)", ("state",), None, "(1, 2)"),
        ("END", ("a", "b"), GRID, "END"),
        ("(1, 2)", ("a", "b"), "<lambda> (0123456789ab)", "(1, 2)"),
        ("12 other states together", ("a", "b"), GRID, "12 other states together"),
    ],
)
def test_states_by_column_and_range(
    state: str, columns: tuple[str, ...], abstraction: str | None, words: str
) -> None:
    assert state_in_words(state, columns, abstraction) == words
