"""What the coverage study has no world for is never green: it says why instead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import reweigh as rw
from reweigh.trust.gates import GateResult

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
TARGET = rw.TablePolicy([[0.4, 0.6], [0.3, 0.7], [0.5, 0.5]])


def log_of(n: int = 600, horizon: int = 4, seed: int = 0, **more: Any) -> rw.EpisodeLog:
    rng = np.random.default_rng(seed)
    states = rng.integers(0, 3, (n, horizon + 1))
    given: dict[str, Any] = {
        "states": states,
        "actions": rng.integers(0, 2, (n, horizon)),
        "rewards": rng.normal(size=(n, horizon)) + states[:, :horizon],
        "behavior_prob": np.full((n, horizon), 0.5),
    }
    return rw.log_from_arrays(**(given | more))


def gate(estimate: rw.Estimate, name: str) -> GateResult | None:
    return next((g for g in estimate.verdict.gates if g.name == name), None)


@pytest.mark.parametrize(("share", "level"), [(0.3, "red"), (0.02, "amber"), (0.0, None)])
def test_cut_off_episodes_beside_ended_ones(share: float, level: str | None) -> None:
    """Neither the rows nor the sums, of memory or of a stream, let it pass."""
    rng = np.random.default_rng(1)
    n, horizon = 600, 4
    lengths = rng.integers(1, horizon + 1, n)
    cut = (np.arange(n) < share * n) & (lengths < horizon)
    log = log_of(states=rng.integers(0, 3, (n, horizon)), lengths=lengths, truncated=cut)
    stream = rw.read_log(log.to_table(), engine="stream", **flags(log))
    for data in (log, rw.moments(log, TARGET), stream):
        for name in ("mis", "dm"):
            found = gate(rw.evaluate(data, TARGET, name), "cut-off episodes")
            if level is None:
                assert found is None
                continue
            assert found is not None
            assert (found.level, found.value) == (level, cut.sum() / n)
            assert "probability of ending is overestimated" in found.text


def flags(log: rw.EpisodeLog) -> dict[str, str]:
    names = log.to_table().column_names
    return {name: name for name in ("terminated", "truncated") if name in names}


@pytest.mark.parametrize("name", ["ssd-is", "ssd-is-plugin", "ssd-is-selfnorm"])
def test_stationary_estimators_are_red_where_steps_differ_and_never_green(name: str) -> None:
    steady = rw.evaluate(log_of(40_000), TARGET, name)
    found = gate(steady, "stationarity")
    assert found is not None
    assert found.level == "amber"
    assert steady.verdict.level != "green"
    states = np.random.default_rng(2).integers(0, 3, (600, 5))
    states[:, 0] = 0  # every episode begins in one state
    first = rw.evaluate(log_of(states=states), TARGET, name)
    assert first.verdict.level == "red"
    # d_0 is on one state, the others on all three: 3 of 4 steps are 1/6 from the mean, one 1/2
    found = gate(first, "stationarity")
    assert found is not None
    assert found.value == pytest.approx((3 / 6 + 1 / 2) / 4, abs=0.02)


def test_a_long_hidden_stretch_is_judged_as_a_product() -> None:
    n, horizon = 2000, 8
    rng = np.random.default_rng(3)
    states = rng.integers(0, 3, (n, horizon)).astype(object)
    short = states.copy()
    states[:, 1:] = None
    short[:, 3] = None
    uniform = rw.TablePolicy({s: {0: 0.35, 1: 0.65} for s in (0, 1, 2, None)})
    found = {
        name: rw.evaluate(log_of(n, horizon, states=shown, rewards=rng.normal(size=(n, horizon)),
                                 hidden="allow"), uniform, "mis")
        for name, shown in (("long", states), ("short", short))
    }  # fmt: skip
    limits = {name: gate(estimate, "effective size") for name, estimate in found.items()}
    assert limits["long"] is not None
    assert limits["short"] is not None
    assert limits["long"].limit == "amber < 1000, red < 600"
    assert limits["short"].limit == "amber < 100, red < 30"


def test_those_who_have_ended_do_not_speak_for_a_hidden_step() -> None:
    n, horizon = 2000, 4
    states = np.random.default_rng(4).integers(0, 3, (n, horizon)).astype(object)
    states[:, 2] = None
    lengths = np.full(n, horizon)
    lengths[:5] = 1
    policy = rw.TablePolicy({s: {0: 0.4, 1: 0.6} for s in (0, 1, 2, None)})
    estimate = rw.evaluate(log_of(n, horizon, states=states, lengths=lengths, hidden="allow"),
                           policy, "mis")  # fmt: skip
    ess = estimate.diagnostics.ess
    assert np.isnan(ess[2])
    assert np.nanmin(ess) > 1000


def test_a_value_without_an_interval_is_not_green() -> None:
    nothing = rw.evaluate(log_of(rewards=np.zeros((600, 4))), TARGET, "mis")
    assert nothing.interval() is None
    assert nothing.verdict.level == "amber"
    found = gate(nothing, "interval")
    assert found is not None
    assert "no variation" in found.text
    assert gate(rw.evaluate(log_of(), TARGET, "mis"), "interval") is None


def test_sums_tell_that_episodes_depend_on_more_than_the_state() -> None:
    """A reward that the whole episode shares: no state explains it."""
    n, horizon = 1500, 4
    rng = np.random.default_rng(5)
    shared = rng.normal(size=(n, 1)) + rng.normal(size=(n, horizon))
    log = log_of(n, horizon, rewards=shared)
    rows = rw.evaluate(log, TARGET, "mis")
    wide = rows.interval()
    assert wide is not None
    assert wide.method.startswith("cluster")
    estimate = rw.evaluate(rw.moments(log, TARGET, blocks=20), TARGET, "mis")
    assert estimate.interval() is None
    assert estimate.verdict.level == "amber"
    found = gate(estimate, "dependence")
    assert found is not None
    # sd of the sum: √(4² + 4) to √(4·2) if the steps were independent
    luck = 3 / np.sqrt(2 * n)
    assert found.value == pytest.approx(np.sqrt(20 / 8) - 1 - luck, abs=0.08)
    jackknife = estimate.interval(method="jackknife")
    assert jackknife is not None
    assert jackknife.standard_error == pytest.approx(wide.standard_error, rel=0.4)
    plain = rw.evaluate(rw.moments(log_of(n), TARGET), TARGET, "mis")
    assert plain.interval() is not None
    assert gate(plain, "dependence") is None


@pytest.mark.parametrize("kind", ["text ids", "hidden states"])
def test_sums_tell_it_whatever_the_ids_and_where_states_are_hidden(kind: str) -> None:
    n, horizon = 1500, 4
    rng = np.random.default_rng(5)
    given: dict[str, Any] = {"states": rng.integers(0, 3, (n, horizon + 1))}
    if kind == "hidden states":
        at = np.broadcast_to(np.arange(horizon + 1) == 2, (n, horizon + 1))
        given = {"states": np.ma.masked_array(given["states"], at), "hidden": "allow"}
    shared, alone = rng.normal(size=(n, 1)), rng.normal(size=(n, horizon))
    rows = {s: [0.4, 0.6] for s in (0, 1, 2, None)}
    target = rw.TablePolicy({s: dict(enumerate(row)) for s, row in rows.items()})
    told = set()
    for name, rewards in (("shared", shared + alone), ("alone", alone)):
        table = log_of(n, horizon, rewards=rewards, **given).to_table()
        if kind == "text ids":
            ids = [f"visit {i}" for i in table["episode"].to_pylist()]
            table = table.set_column(table.column_names.index("episode"), "episode", [ids])
        reading = {"hidden": given.get("hidden", "error"), "discount": 0.9}
        log = rw.read_log(table, **reading)
        for data in (rw.moments(log, target), rw.read_log(table, engine="stream", **reading)):
            found = rw.evaluate(data, target, "mis")
            interval = found.interval()
            how = "none" if interval is None else interval.method.split(",")[0]
            told.add((name, type(data).__name__, how, gate(found, "dependence") is None))
    assert told == {
        ("shared", "Moments", "none", False),
        ("shared", "ScannedLog", "cluster", True),  # by a second scan, as in memory
        ("alone", "Moments", "analytic", True),
        ("alone", "ScannedLog", "analytic", True),
    }


def test_where_it_cannot_be_told_there_is_no_interval_but_by_blocks() -> None:
    """The return of an episode that was cut off is not known."""
    lengths = np.full(600, 4)
    cut = np.arange(600) < 6
    lengths[cut] = 2
    states = np.random.default_rng(1).integers(0, 3, (600, 4))
    log = log_of(states=states, lengths=lengths, truncated=cut)
    assert rw.evaluate(log, TARGET, "mis").interval() is not None
    sums = rw.evaluate(rw.moments(log, TARGET, blocks=20), TARGET, "mis")
    found = gate(sums, "dependence")
    assert found is not None
    assert (found.level, found.value) == ("amber", None)
    assert "some episodes were cut off" in found.text
    assert sums.interval() is None
    assert sums.interval(method="jackknife") is not None


def test_the_error_that_is_told_is_that_of_the_interval() -> None:
    n, horizon = 1500, 4
    rng = np.random.default_rng(5)
    log = log_of(n, horizon, rewards=rng.normal(size=(n, 1)) + rng.normal(size=(n, horizon)))
    found = rw.evaluate(log, TARGET, "mis")
    interval = found.interval()
    assert interval is not None
    assert found.standard_error is not None
    assert interval.standard_error is not None
    assert interval.standard_error > 1.3 * found.standard_error
    assert found.error_beside(interval) == interval.standard_error
    assert "of the episodes" in str(found)
    assert found.to_dict()["interval"]["standard_error"] == interval.standard_error
    usual = rw.evaluate(log_of(), TARGET, "mis")
    assert usual.error_beside(usual.interval()) == usual.standard_error


def test_history_is_excused_where_longer_memories_are_the_same_number() -> None:
    """Of the behavior itself all memories are the mean return, but for rounding, and the error of
    their difference is rounding too."""
    rng = np.random.default_rng(0)
    n = 2000
    actions = rng.integers(0, 2, (n, 3))
    rewards = np.zeros((n, 3))
    rewards[:, 1:] = actions[:, :2]  # what came before tells what is earned
    log = log_of(n, 3, states=np.zeros((n, 4), int), actions=actions, rewards=rewards)
    found = rw.evaluate(log, rw.TablePolicy([[0.5, 0.5]]), "mis")
    history = gate(found, "history")
    assert history is not None
    assert history.level == "amber"
    assert history.text.endswith(
        "but memories of up to 2 steps give the same within chance (p = 1)"
    )
