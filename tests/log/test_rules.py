"""The rules of a log: one condition, asked of NumPy arrays and of a table in a database."""

import string

import ibis
import numpy as np
import pyarrow as pa
import pytest

from reweigh.log import rules
from reweigh.log.rules import CONTRACT, Range

REWARD = np.array([0.0, 1e60, -1e60, 1.1e60, -1e61, 5.0])
PROBABILITY = np.array([0.5, 0.0, 1.0, 1.5, -0.1, 1e-301])
STEPS = np.array([0, 3, 1, 1, 4, -2])
BEFORE = np.array([0, 0, 0, 1, 1, 0])
YES = np.array([True, False, True, False, False, True])
NO = np.array([False, False, True, True, False, False])
ARGUMENTS = {  # a column for each argument of a condition, by rule
    rules.NULL_NEXT_STATE: (YES, NO),
    rules.NOT_FINITE: (YES, NO),
    rules.REWARD_RANGE: (REWARD, YES),
    rules.NOT_A_STEP: (STEPS,),
    rules.NEGATIVE_STEP: (STEPS,),
    rules.NOT_A_TIME: (YES, NO),
    rules.MIXED_TIMES: (STEPS, BEFORE),
    rules.TIED_TIMES: (STEPS, BEFORE, NO),
    rules.REPEATED_EPISODE: (STEPS, YES),
    rules.STEP_START: (STEPS, BEFORE, YES),
    rules.DUPLICATE_STEP: (STEPS, BEFORE, YES),
    rules.MISSING_STEP: (STEPS, BEFORE, NO),
    rules.ROWS_AFTER_END: (STEPS, BEFORE),
    rules.NEXT_STATE: (YES, NO, YES),
    rules.SHORT_EPISODE: (YES, NO, NO),
}


@pytest.mark.parametrize("rule", ARGUMENTS, ids=lambda rule: rule.code)
def test_a_condition_is_the_same_in_numpy_and_in_sql(rule) -> None:
    columns = {f"c{i}": column for i, column in enumerate(ARGUMENTS[rule])}
    table = ibis.memtable(pa.table(columns | {"row": np.arange(len(STEPS))}))
    bad = rule.broken(*(table[name] for name in columns))
    answer = table.select("row", bad=bad).order_by("row").to_pyarrow()["bad"].to_pylist()
    assert answer == rule.broken(*columns.values()).tolist()


@pytest.mark.parametrize("role", ["behavior_prob", "target_prob"])
@pytest.mark.parametrize("density", [False, True])
def test_ranges_of_probabilities(role, density) -> None:
    allowed = rules.probability_range(role, density)
    outside = rules.PROBABILITY_RANGE.broken(PROBABILITY, True, allowed)
    zero = role == "target_prob"
    assert outside.tolist() == [False, not zero, False, not density, True, not (zero or density)]
    table = ibis.memtable(pa.table({"p": PROBABILITY}))
    assert table.select(bad=allowed.outside(table["p"])).to_pyarrow()["bad"].to_pylist() == list(
        outside
    )
    assert [allowed.holds(PROBABILITY[i : i + 1]) for i in range(6)] == (~outside).tolist()


def test_a_range_holds_no_nan_and_no_infinity() -> None:
    for number in (np.nan, np.inf, -np.inf):
        assert not rules.REWARDS.holds(np.array([0.5, number]))
        assert not Range(0.0, above=True).holds(np.array([0.5, number]))


def test_every_condition_of_rows_is_compared() -> None:
    never = rules.NULL.broken  # told by null cells and by regular expressions
    declared = {rule for rule in CONTRACT if rule.broken is not never}
    assert declared - {rules.PROBABILITY_RANGE} == set(ARGUMENTS)


def test_rules_are_declared_once() -> None:
    for rule in CONTRACT:
        fields = {name for _, name, _, _ in string.Formatter().parse(rule.sentence) if name}
        assert rule.message("x", **dict.fromkeys(fields - {"column"}, 7)).strip(), rule
    assert len({(rule.code, rule.sentence, rule.fix) for rule in CONTRACT}) == len(CONTRACT)


def test_a_name_with_braces_stands_as_it_is() -> None:
    assert rules.NULL.message("{column}") == "'{column}' must not be null"
