"""The gate of the history: does the estimate move when it remembers more?"""

from __future__ import annotations

import math
from dataclasses import replace

import ibis
import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

import reweigh as rw
from reweigh import kernels
from reweigh.estimate import memory_rows
from reweigh.estimate.influence import influence_values
from reweigh.estimate.memory_rows import (
    Comparison,
    Distance,
    PaddedEpisodes,
    Remembered,
    comparison,
    memories,
    remembered,
    sampled,
)
from reweigh.estimate.standard_error import p_of_difference, skewed_quantile
from reweigh.policy import Policy
from reweigh.sums.engines import second_scan
from reweigh.trust.gates import GateResult
from reweigh.trust.gates.states import History, moved
from reweigh.worlds import ModelFail, random_mdp

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
H, PAY = 8, 2
COIN = rw.TablePolicy([[0.3, 0.7]] * 2)


def delayed(n: int = 600, seed: int = 1) -> rw.EpisodeLog:
    """An action pays two steps later, and the state is noise."""
    rng = np.random.default_rng(seed)
    action = rng.integers(0, 2, (n, H))
    paid = np.hstack([np.zeros((n, PAY)), action[:, :-PAY]])
    reward = paid + 0.1 * rng.normal(size=(n, H))
    state = rng.integers(0, 2, (n, H + 1))
    return rw.log_from_arrays(state, action, reward, np.full((n, H), 0.5))


def padded(log: rw.EpisodeLog, target: Policy) -> PaddedEpisodes:
    pi, every = target.probabilities(log), np.arange(log.n_episodes)
    return PaddedEpisodes.of(log.steps, pi, len(log.states), every)


def history(data: object, name: rw.Recipe | str = "mis", target: Policy = COIN) -> GateResult:
    found = rw.evaluate(data, target, name)  # type: ignore[arg-type]
    [gate] = [gate for gate in found.verdict.gates if gate.name == "history"]
    return gate


COMPLETE, ENDING = (random_mdp(2, 4, 3, 6, terminal=terminal) for terminal in (0, 1))


def partly_hidden() -> rw.EpisodeLog:
    """Of episodes that end early a third of the states is hidden, the first of some too."""
    rng, n = np.random.default_rng(4), 400
    states = np.ma.MaskedArray(rng.integers(0, 4, (n, 7)), rng.random((n, 7)) < 1 / 3)
    mu, pi = rng.uniform(0.4, 0.6, (2, n, 6))
    action, lengths = rng.integers(0, 2, (n, 6)), rng.integers(1, 7, n)
    reward = rng.normal(size=(n, 6)) + action
    return rw.log_from_arrays(
        states, action, reward, mu, pi, lengths=lengths, discount=0.9, hidden="allow"
    )


LOGS = {
    "complete": (COMPLETE.simulate(400, 3), COMPLETE.target),
    "ends-early": (ENDING.simulate(400, 3), ENDING.target),
    "hidden": (partly_hidden(), rw.ColumnPolicy("target_prob")),
    "checkpoints": (ModelFail(5).simulate(400, 3), ModelFail(5).target),
}


@pytest.mark.parametrize("max_ratio", [None, 1.2])
@pytest.mark.parametrize("kind", LOGS)
def test_values_from_the_rows_are_those_of_the_estimators(
    kind: str, max_ratio: float | None
) -> None:
    """Value and influence values of every memory, also where episodes end early or states are
    hidden, the first of them too."""
    log, target = LOGS[kind]
    assert log.has_hidden == (kind in ("hidden", "checkpoints"))
    every = range(log.horizon)
    found = list(remembered(padded(log, target), every, log.discount, max_ratio))
    assert [each.memory for each in found] == list(every)
    for each in found:
        recipe = rw.mis(memory=each.memory, max_ratio=max_ratio)
        value = rw.evaluate(log, target, recipe).value
        assert each.value == pytest.approx(value, rel=1e-12)
        psi = influence_values(log, target, recipe)
        np.testing.assert_allclose(each.psi, psi, rtol=1e-9, atol=1e-11)


def test_a_memory_that_the_log_cannot_bear_ends_the_list() -> None:
    log = delayed(60)
    found = list(remembered(padded(log, COIN), memories(H), 1.0, None))
    assert [each.memory for each in found] == [0, 1, 2, 3, 5]
    assert [each.borne for each in found] == [each.size >= memory_rows.LEAST_SIZE for each in found]
    assert [each.borne for each in found] == [True] * 4 + [False]


@pytest.mark.parametrize("name", ["mis", "mis-hajek", "mis-state", "mis-plain", "dm", "mdr"])
def test_an_estimate_that_moves_with_the_memory_is_red(name: str) -> None:
    gate = history(delayed(), name)
    assert gate.level == "red"
    assert "the estimate moves when it remembers more" in gate.text
    assert "use mis(memory=2), which agrees with longer memories" in gate.advice


def test_the_memory_that_it_names_is_green() -> None:
    for memory in (PAY, "auto"):
        gate = history(delayed(), rw.mis(memory=memory))  # type: ignore[arg-type]
        assert gate.level == "green"
        assert "memories of up to 7 steps give the same" in gate.text
    assert history(delayed(), rw.mis(memory=1)).level == "red"


def test_an_estimate_of_whole_episodes_is_not_asked() -> None:
    found = rw.evaluate(delayed(), COIN, rw.mis(memory=H - 1))
    assert "history" not in {gate.name for gate in found.verdict.gates}


def distances(*numbers: tuple[int, float, float]) -> tuple[Distance, ...]:
    return tuple(Distance(k, 2.0 + k, 1.0, apart, 0.0, size) for k, apart, size in numbers)


LIMIT = History().limit()


def test_p_is_students_times_the_number_of_comparisons() -> None:
    far = distances((1, 1.0, 400.0), (2, 3.5, 150.0), (3, 2.0, 120.0))
    p, worst = moved(Comparison(far, (), 2, 1.0), LIMIT)
    assert worst.memory == 2
    assert p == pytest.approx(3 * 2 * stats.t.sf(3.5, 149))
    gate = History().of_comparison(Comparison(far, (), 2, 1.0))
    assert gate.level == "amber"
    assert gate.value == p
    few = moved(Comparison(distances((2, 3.5, 20.0)), (), 2, 1.0), LIMIT)
    assert few[0] == pytest.approx(2 * stats.t.sf(3.5, 19))
    none = Comparison(distances((1, 0.0, 400.0)), (), 1, 1.0)
    assert moved(none, LIMIT)[0] == 1.0


def test_p_follows_the_skewness_of_the_difference() -> None:
    """Of means of skewed values, those that are too low have too small an error."""
    rng = np.random.default_rng(0)
    x = rng.lognormal(sigma=1.2, size=(4000, 60))
    away = x - x.mean(axis=1, keepdims=True)
    square = np.sum(away**2, axis=1)
    apart = (x.mean(axis=1) - np.exp(0.72)) * np.sqrt(60 * 59 / square)
    skewness = np.sum(away**3, axis=1) / square**1.5
    pairs = list(zip(apart, skewness, strict=True))
    plain, corrected = (
        np.mean([p_of_difference(t, a * on, 59) <= 0.01 for t, a in pairs]) for on in (0, 1)
    )
    assert plain > 0.05
    assert 0.01 <= corrected < plain / 1.8
    # the inverse of the quantile of an interval, but for the rest of Student's t
    t = skewed_quantile(0.995, math.inf, 0.3)
    assert p_of_difference(t, 0.3, 1e9) == pytest.approx(0.01, rel=1e-6)
    assert p_of_difference(math.inf, 0.0, 10) == 0.0


def test_the_state_itself_is_compared_too() -> None:
    """An estimate whose own difference drowns in its error relies on a state that is not enough."""
    near, far = distances((1, 1.0, 400.0)), distances((1, 9.0, 400.0))
    p, worst = moved(Comparison(near, far, 1, 1.0), LIMIT)
    assert worst is far[0]
    assert p == pytest.approx(2 * 2 * stats.t.sf(9.0, 399))
    gate = History().of_comparison(Comparison(near, far, 1, 1.0))
    assert gate.level == "red"
    assert "the state is not enough: mis(memory=0) gives 1 and mis(memory=1) 3" in gate.text
    # its own difference is named where it says as much
    also = distances((1, 8.0, 400.0))
    assert moved(Comparison(also, far, 1, 1.0), LIMIT)[1] is also[0]


def test_it_names_the_shortest_memory_that_agrees_with_all_longer_ones() -> None:
    """Also where longer ones differ from each other: 1 is 1 error away from 3 and from 5, and these
    are 20 errors apart."""
    recipe = rw.mis()
    one, other = np.tile([1.0, -1.0], 200), np.repeat([1.0, -1.0], 200)
    x = replace(padded(delayed(400), COIN), psi={recipe: 5 * one})
    psi = {0: 5 * one, 1: one, 3: 0 * one, 5: 0.1 * other}
    values = {0: 0.0, 1: 2.0, 3: 2.05, 5: 1.95}
    every = [Remembered(k, values[k], psi[k], 400.0) for k in values]
    assert comparison(x, recipe, 0.0, every).agreeing == 1
    far = replace(every[1], value=1.5)
    assert comparison(x, recipe, 0.0, [every[0], far, *every[2:]]).agreeing == 5


def test_memories_that_cannot_be_checked_are_named() -> None:
    gate = History().of_comparison(Comparison(distances((1, 0.5, 90.0)), (), 1, 1.0, (2, 12.3)))
    assert gate.level == "green"
    assert gate.text.endswith("cannot be checked: a memory of 2 leaves 12 effective episodes")


def test_few_effective_episodes_test_memories_that_are_no_estimates() -> None:
    """Of 120 episodes the memory of 5 leaves fewer than 50 effective ones, and yet it shows that an
    action pays 4 steps later."""
    rng, n, pay = np.random.default_rng(1), 120, 4
    action = rng.integers(0, 2, (n, H))
    reward = np.hstack([np.zeros((n, pay)), action[:, :-pay]]) * 1.0
    log = rw.log_from_arrays(np.zeros((n, H + 1), int), action, reward, np.full((n, H), 0.5))
    for name in ("mis", "mis-hajek", "dm", "mdr"):
        gate = history(log, name, rw.TablePolicy([[0.25, 0.75]]))
        assert gate.level == "red", name
        assert "use mis(memory=5)" in gate.advice


def test_the_difference_is_paired_by_episode() -> None:
    log = delayed(300)
    x = padded(log, COIN)
    first, second = rw.mis(), rw.mis(memory=3)
    x.psi[first] = influence_values(log, COIN, first)
    value = rw.evaluate(log, COIN, first).value
    longer = list(remembered(x, [3], 1.0, None))
    [found] = comparison(x, first, value, longer).longer
    psi = x.psi[first] - influence_values(log, COIN, second)
    error = np.sqrt(np.sum(psi**2) / (300 * 299))
    assert found.apart == pytest.approx((value - longer[0].value) / error, rel=1e-9)
    assert found.skewness == pytest.approx(np.sum(psi**3) / np.sum(psi**2) ** 1.5, rel=1e-6)


@pytest.mark.parametrize("engine", ["arrays", "stream", "duckdb"])
def test_a_large_log_is_sampled_alike_by_every_engine(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_rows, "MOST_ROWS", 2400)
    expected = history(delayed(900))
    assert "on 33.3% of the episodes" in expected.text
    found = history(rw.read_log(delayed(900).to_table(), engine=engine))
    assert (found.level, found.text) == (expected.level, expected.text)
    which = sampled(delayed(900).steps, 1 / 3)
    assert 200 < len(which) < 400
    assert found.level == "red"


@pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")
@pytest.mark.parametrize("rows", [2400, 50_000])
@pytest.mark.parametrize("ids", ["numbers", "texts", "unsigned"])
def test_a_database_gives_the_episodes_that_are_sampled_alone(
    ids: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a log whose rows stay where they are, such as one on Spark: the same gate."""
    monkeypatch.setattr(memory_rows, "MOST_ROWS", rows)
    monkeypatch.setattr(second_scan, "can_scan_again", lambda log: False)
    table = delayed(900).to_table()
    number = table.column("episode").to_numpy()
    names = {
        "numbers": number,
        "texts": [f"patient {k}" for k in number],
        "unsigned": number.astype(np.uint64) + np.uint64(2**63 - 400),
    }
    at = table.schema.get_field_index("episode")
    table = table.set_column(at, "episode", pa.array(names[ids]))
    connection = ibis.duckdb.connect()
    connection.con.register("visits", table)
    for name in ("mis", "dm", "mdr", "mis-hajek", "mis-memory-2"):
        expected = history(rw.read_log(table), name)
        found = history(rw.read_log(connection.table("visits")), name)
        assert (found.level, found.text, found.advice) == (
            expected.level, expected.text, expected.advice,
        )  # fmt: skip
        assert ("of the episodes" in found.text) == (rows == 2400)


def test_on_a_sample_the_estimate_moves_with_its_episodes() -> None:
    """To first order the estimate on the sample is that of the log and their mean influence."""
    log = delayed(3000)
    which = sampled(log.steps, 0.5)
    keep = np.isin(np.arange(3000), which)
    whole = rw.evaluate(log, COIN, "mis")
    psi = influence_values(log, COIN, rw.mis())
    half = rw.evaluate(log.select(keep), COIN, "mis")
    assert half.standard_error is not None
    first_order = whole.value + float(psi[which].mean())
    assert abs(half.value - first_order) < 0.1 * half.standard_error
    assert abs(half.value - first_order) < 0.5 * abs(half.value - whole.value)


def test_where_it_cannot_compare_it_is_not_green() -> None:
    log = delayed(300)
    of_sums = history(rw.moments(log, COIN))
    assert of_sums.level == "unknown"
    assert "sums alone do not show how the episodes continue" in of_sums.text
    few = history(delayed(36, seed=2))
    assert few.level == "unknown"
    assert "the log supports no memory longer than 0: a memory of 1 leaves 25 effective" in few.text
    alone = rw.evaluate(delayed(36, seed=2), COIN, "mis")
    assert "history" in {gate.name for gate in alone.verdict.unchecked}


@pytest.mark.parametrize("hidden", [False, True])
def test_compiled_memories_are_those_of_numpy(hidden: bool) -> None:
    rng = np.random.default_rng(0)
    steps, n = 30, 200
    state, lengths = rng.integers(0, 7, (steps, n)), rng.integers(5, steps + 1, n)
    state[np.arange(steps)[:, None] >= lengths] = 7
    if hidden:
        state[1:][rng.random((steps - 1, n)) < 0.1] = -1
    ratio, reward = rng.uniform(0.5, 1.5, (2, steps, n))
    x = PaddedEpisodes(state, ratio, reward, 7, {})
    plain = list(remembered(x, memories(steps), 0.95, None))
    with kernels.compiled():
        fast = list(remembered(x, memories(steps), 0.95, None))
    assert len(plain) == len(fast) > 5
    for one, other in zip(plain, fast, strict=True):
        assert (one.memory, one.borne) == (other.memory, other.borne)
        if one.borne:
            assert other.value == pytest.approx(one.value, rel=1e-13)
            assert other.psi == pytest.approx(one.psi, rel=1e-12, abs=1e-12)
