"""Actions that the target takes and the log never shows are told of on every engine."""

from __future__ import annotations

from typing import Any

import fixture
import numpy as np
import pyarrow as pa
import pytest

import reweigh as rw
from reweigh.log.states import HIDDEN
from reweigh.sums.moments import visits_of

ENGINES = ("arrays", "stream", "duckdb")
NEVER = "are not in the log"


def with_more(variant: str, policy: str) -> rw.TablePolicy:
    """The policy with a fifth of each state's probability on an action that no row shows, whose
    name is nearly that of one that rows do show."""
    rows = fixture.policies(variant)[policy].to_table()
    states = [name for name in rows.column_names if name.startswith("state")]
    keys = [name for name in (*states, "step") if name in rows.column_names]
    prob = pa.array(0.8 * rows.column("prob").to_numpy())
    less = rows.set_column(rows.column_names.index("prob"), "prob", prob)
    every = rows.group_by(keys).aggregate([])
    new: Any = 11 if variant == "integers" else "gehn"
    more = every.append_column("action", pa.array([new] * every.num_rows))
    more = more.append_column("prob", pa.array([0.2] * every.num_rows))
    return rw.TablePolicy(pa.concat_tables([less, more.select(less.column_names)]), state=states)


def remarks(result: Any) -> list[str]:
    assert isinstance(result, rw.Estimate), result
    return [str(warning) for warning in result.warnings if NEVER in str(warning)]


@pytest.mark.parametrize("policy", ["table", "steps"])
@pytest.mark.parametrize(
    ("variant", "estimator"),
    [("whole", "mis"), ("whole", "dm"), ("whole", "is"), ("integers", "mis"), ("pairs", "is")],
)
def test_every_engine_says_the_same(variant, estimator, policy) -> None:
    target, reading = with_more(variant, policy), fixture.READING[variant]
    said = {}
    for engine in ENGINES:
        log = rw.read_log(fixture.table(variant), engine=engine, **reading)
        [result] = rw.evaluate_all(log, target, [estimator])
        said[engine] = remarks(result)
    new = "'11'" if variant == "integers" else "'gehn' (20% of the time; did you mean 'gehen'?)"
    assert len(said["arrays"]) == 1
    assert new in said["arrays"][0]
    assert said == dict.fromkeys(ENGINES, said["arrays"])


def test_shares_are_those_of_the_rows() -> None:
    """Hidden rows count with what the target does there; sums of transitions hide them in steps
    over several rows."""
    states = [None, "wach", "müde", "schläft", "007", "7"]
    prob = {s: 0.1 * (1 + i) for i, s in enumerate(states)}
    target = rw.TablePolicy({s: {"gehen": 1 - prob[s], "fliegen": prob[s]} for s in states})
    rows = fixture.table("whole")
    share = float(np.mean([prob[s] for s in rows.column("state").to_pylist()]))
    for engine in ENGINES:
        log = rw.read_log(rows, engine=engine, **fixture.READING["whole"])
        [text] = remarks(rw.evaluate_all(log, target, ["mis"])[0])
        assert f"'fliegen' ({share:.0%} of the time" in text


@pytest.mark.parametrize("variant", fixture.VARIANTS)
@pytest.mark.parametrize("estimators", [["mis"], ["dm"]])
def test_the_sums_tell_how_often_a_state_was_seen(variant, estimators) -> None:
    log = rw.read_log(fixture.table(variant), **fixture.READING[variant])
    sums = rw.moments(log, fixture.policies(variant)["table"], estimators, blocks=2)
    visits = visits_of(sums)
    assert visits is not None
    found = np.zeros((log.horizon, len(log.states) + 1), np.int64)
    np.add.at(found, (visits.step, visits.state), visits.n)  # HIDDEN = -1 is the last column
    expected = np.zeros_like(found)
    np.add.at(expected, (log.steps.step, log.steps.state), 1)
    np.testing.assert_array_equal(found, expected)
    assert (found[:, HIDDEN].sum() > 0) == log.has_hidden


def test_a_policy_that_the_log_covers_is_not_warned_of() -> None:
    for engine in ENGINES:
        log = rw.read_log(fixture.table("pairs"), engine=engine, **fixture.READING["pairs"])
        for policy in ("table", "column"):
            [result] = rw.evaluate_all(log, fixture.policies("pairs")[policy], ["mis"])
            assert remarks(result) == []


def test_sums_with_their_target_say_it_too() -> None:
    target = with_more("pairs", "table")
    log = rw.read_log(fixture.table("pairs"), **fixture.READING["pairs"])
    sums = rw.moments(log, target)
    [told] = rw.evaluate_all(sums, target, ["mis"])
    assert remarks(told) == remarks(rw.evaluate_all(log, target, ["mis"])[0])
    [silent] = rw.evaluate_all(sums, None, ["mis"])  # sums alone do not know the target's actions
    assert remarks(silent) == []


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("estimator", ["mis", "is", "dm"])
def test_deterministic_logs_are_refused_whatever_is_asked_for(engine, estimator) -> None:
    rows = fixture.table("pairs")
    ones = pa.array(np.ones(rows.num_rows))
    rows = rows.set_column(rows.column_names.index("mu"), "mu", ones)
    log = rw.read_log(rows, engine=engine, **fixture.READING["pairs"])
    [result] = rw.evaluate_all(log, fixture.policies("pairs")["table"], [estimator])
    assert isinstance(result, rw.Refusal)
    assert result.error.code == "deterministic-log"
