"""Simple logs, which compiled loops read, for all kinds of sums: they answer, and answer right.

`assert_same` holds it to the general path and to the log in memory; running products are also held
to a reference of their own, with exact fractions.
"""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any

import fixture
import numpy as np
import pyarrow as pa
import pytest
from population import population_log, random_world
from test_stream import FAULTY, FLAGGED, TWO_STATES, fast_answers, refusal, simple_table, streamed

import reweigh as rw

StreamEngine = importlib.import_module("reweigh.sums.engines.stream").StreamEngine
stream_simple = importlib.import_module("reweigh.sums.engines.stream_simple")
stream_sums = importlib.import_module("reweigh.sums.engines.stream_sums")
scan = importlib.import_module("reweigh.sums.scan")
__all__ = ["fast_answers"]

# what an estimator asks for: transitions, model, trajectories, and all of them
NAMES = (["mis"], ["dm"], ["is"], ["mis", "dm", "wis"])
ENDED = {"terminated": "terminated", "target_prob": "pi"}


def ragged(
    episodes: int = 60,
    horizon: int = 9,
    states: int = 5,
    actions: int = 3,
    seed: int = 0,
    **changes: Any,
) -> pa.Table:
    """Episodes of any length up to the horizon; a third of the ratios are 0; nothing is cut off."""
    rng = np.random.default_rng([seed, episodes])
    lengths = rng.integers(1, horizon + 1, episodes)
    lengths[rng.integers(episodes)] = horizon
    rows, first = int(lengths.sum()), np.cumsum(lengths) - lengths
    action = rng.integers(0, actions, rows)
    terminated = np.zeros(rows, bool)
    terminated[first + lengths - 1] = lengths < horizon
    columns = {
        "episode": np.repeat(rng.permutation(episodes) + 3, lengths),
        "step": np.arange(rows) - np.repeat(first, lengths),
        "state": rng.integers(0, states, rows),
        "action": action,
        "reward": np.where(rng.random(rows) < 0.3, 0.0, rng.normal(size=rows)),
        "behavior_prob": rng.uniform(0.1, 1.0, rows),
        "pi": np.where(action == 2, 0.0, rng.uniform(0.0, 1.0, rows)),
        "terminated": terminated,
    }
    return pa.table({name: pa.array(values) for name, values in {**columns, **changes}.items()})


def changed(table: pa.Table, **columns: Any) -> pa.Table:
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    return table


def table_of(states: int = 5, actions: int = 3, steps: int = 0) -> rw.TablePolicy:
    """π(a|s), or by step; the last action is never taken."""
    weights = np.random.default_rng(8).uniform(0.2, 1.0, (max(steps, 1), states, actions))
    weights[:, :, -1] = 0.0
    weights /= weights.sum(axis=2, keepdims=True)
    return rw.TablePolicy(weights if steps else weights[0])


POLICIES = {"table": table_of(), "steps": table_of(steps=9), "column": rw.ColumnPolicy("pi")}


# --- agreement -----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("names", NAMES, ids="+".join)
@pytest.mark.parametrize("batch", [7, 10_000])
def test_all_sums_are_those_of_the_general_path_and_of_the_log_in_memory(
    fast_answers, policy, names, batch
) -> None:
    table, target = ragged(), POLICIES[policy]
    reading = {**ENDED, "discount": 0.9}
    for blocks in (1, 4):
        # with gates every kind of cells is asked for, without them what the estimators need
        asked = {"blocks": blocks, "gates": blocks == 1}
        fast = rw.moments(streamed(table, batch, **reading), target, names, **asked)
        slow = rw.moments(streamed(table, 50, False, **reading), target, names, **asked)
        whole = rw.moments(rw.read_log(table, **reading), target, names, **asked)
        for other in (slow, whole):
            fixture.assert_same(fast, other)
            assert replace(fast.about, sources=()) == replace(other.about, sources=())
        assert fast.about == slow.about
    assert fast_answers == [True, True]


@pytest.mark.parametrize("names", NAMES, ids="+".join)
@pytest.mark.parametrize(("horizon", "short"), [(3, "error"), (9, "error"), (14, "terminal")])
def test_a_given_horizon_and_a_clipped_ratio(fast_answers, names, horizon, short) -> None:
    table = ragged()
    reading = {**ENDED, "horizon": horizon, "short_episodes": short}
    clipped = [
        {"mis": rw.mis, "dm": rw.dm, "is": rw.is_, "wis": rw.wis}[name](max_ratio=1.5)
        for name in names
        if name != "dm"
    ] or ["dm"]
    made = rw.moments(streamed(table, 23, **reading), POLICIES["table"], clipped)
    whole = rw.moments(rw.read_log(table, **reading), POLICIES["table"], clipped)
    fixture.assert_same(made, whole)
    assert fast_answers == [True]


@pytest.mark.parametrize("names", NAMES, ids="+".join)
def test_episodes_over_the_borders_of_what_is_looked_at_together(
    monkeypatch, fast_answers, names
) -> None:
    """Episodes longer than a chunk, than a batch and than a tile of what is put time-major."""
    monkeypatch.setattr(stream_simple, "PAGES", 700)
    horizon = 1900
    reading = {**ENDED, "discount": 0.999}
    table, rng = ragged(9, horizon, states=3), np.random.default_rng(4)
    mu = rng.uniform(0.4, 1.0, table.num_rows)
    table = changed(table, behavior_prob=mu, pi=mu * rng.uniform(0.97, 1.0, table.num_rows))
    target = rw.ColumnPolicy("pi")
    for batch in (900, 4000):
        made = rw.moments(streamed(table, batch, **reading), target, names)
        fixture.assert_same(made, rw.moments(rw.read_log(table, **reading), target, names))
    assert fast_answers == [True, True]


@pytest.mark.parametrize("names", NAMES, ids="+".join)
def test_sums_that_are_put_aside_are_not_lost(monkeypatch, fast_answers, names) -> None:
    monkeypatch.setattr(stream_sums, "FOLD", 1e-3)
    monkeypatch.setattr(stream_sums, "FEW_CELLS", 0)
    table = ragged(300)
    for target in POLICIES.values():
        made = rw.moments(streamed(table, 40, **ENDED), target, names, blocks=2)
        fixture.assert_same(made, rw.moments(rw.read_log(table, **ENDED), target, names, blocks=2))
    assert fast_answers == [True] * len(POLICIES)


def test_returns_of_many_chunks_do_not_pile_up(monkeypatch, fast_answers) -> None:
    """They are added up on the way: a billion rows would hold a gigabyte of them."""
    waiting, tables = [], scan.CompiledScan.tables

    def counted(one: scan.CompiledScan) -> dict[str, Any]:
        waiting.append(max(len(one.parts["ordered"]), len(one.parts["paced"])))
        return tables(one)

    monkeypatch.setattr(scan, "MOST_WAITING", 0)
    monkeypatch.setattr(scan.CompiledScan, "tables", counted)
    table, target = ragged(300), POLICIES["table"]
    made = rw.moments(streamed(table, 20, **ENDED), target, ["mis"])
    fixture.assert_same(made, rw.moments(rw.read_log(table, **ENDED), target, ["mis"]))
    assert fast_answers == [True]
    assert waiting == [waiting[0]]
    assert waiting[0] < 30  # of about 75 chunks


@pytest.mark.parametrize("names", NAMES, ids="+".join)
def test_room_is_made_for_words(fast_answers, names) -> None:
    """The row that waits for its successor moves with the cells."""
    rng = np.random.default_rng(2)
    words = [f"s{i}" for i in rng.permutation(40)]
    state = [words[int(i)] for i in np.minimum(rng.integers(0, 41, 120), np.arange(120) // 3)]
    action = [f"a{i % 20}" if i > 40 else "a0" for i in range(120)]
    table = simple_table(state=state, action=action).drop_columns(["next_state"])
    target = rw.TablePolicy({s: {f"a{i}": 1 / 20 for i in range(20)} for s in words})
    made = rw.moments(streamed(table, 11), target, names, blocks=2)
    fixture.assert_same(made, rw.moments(rw.read_log(table), target, names, blocks=2))
    assert fast_answers == [True]


@pytest.mark.parametrize("names", NAMES, ids="+".join)
def test_cut_off_episodes_have_cells_and_no_products(fast_answers, names) -> None:
    reading, target = fixture.READING["integers"], fixture.policies("integers")["steps"]
    made = rw.moments(streamed(fixture.table("integers"), **reading), target, names)
    whole = rw.moments(rw.read_log(fixture.table("integers"), **reading), target, names)
    assert made.trajectories is None
    fixture.assert_same(made, replace(whole, trajectories=None))
    assert fast_answers == [True]


# --- running products ----------------------------------------------------------------------------


def exact_products(table: pa.Table, horizon: int) -> tuple[list[Any], list[Any], list[Any]]:
    """By step the products of all episodes and their rewards (frozen and 0 once they have ended);
    and the whole products: fractions, from the numbers as they are stored."""
    products: list[list[Fraction]] = [[] for _ in range(horizon)]
    rewards: list[list[Fraction]] = [[] for _ in range(horizon)]
    rows = table.to_pylist()
    starts = [i for i, row in enumerate(rows) if row["step"] == 0] + [len(rows)]
    for begin, end in pairwise(starts):
        w = Fraction(1)
        for t in range(horizon):
            here = rows[begin + t] if begin + t < end else None
            if here is not None:
                w *= Fraction(here["pi"] / here["behavior_prob"])
            products[t].append(w)
            rewards[t].append(Fraction(0) if here is None else Fraction(here["reward"]))
    return products, rewards, products[-1]


def log_of(w: Fraction) -> float:
    """Of a fraction that no float may hold."""
    shift = w.numerator.bit_length() - w.denominator.bit_length()
    scaled = w / 2**shift if shift >= 0 else w * 2**-shift
    return math.log(scaled) + shift * math.log(2)


@pytest.mark.parametrize("size", [1e-6, 1e-3, 1.0])
@pytest.mark.parametrize("batch", [13, 10_000])
def test_products_that_no_float_holds_are_right(fast_answers, size, batch) -> None:
    """Down to 1e-1200 and up to 1e600: sums relative to the largest, by exact arithmetic."""
    horizon, rng = 200, np.random.default_rng(5)
    table = ragged(12, horizon, seed=3)
    mu = rng.uniform(1e-3, 1.0, table.num_rows)
    pi = np.where(rng.random(table.num_rows) < 0.002, 0.0, rng.uniform(0.5, 1.0, len(mu)) * size)
    table = changed(table, behavior_prob=mu, pi=pi)
    made = rw.moments(streamed(table, batch, **ENDED), rw.ColumnPolicy("pi"), ["is"]).trajectories
    assert fast_answers == [True]
    products, rewards, whole = exact_products(table, horizon)
    for t in range(horizon):
        largest = max(products[t])
        assert made.steps.log_scale[t] == pytest.approx(log_of(largest), abs=1e-10)
        w = [float(p / largest) for p in products[t]]
        y = [float(r) for r in rewards[t]]
        assert made.steps.w[t] == pytest.approx(math.fsum(w), rel=1e-11)
        assert made.steps.w2[t] == pytest.approx(math.fsum(v * v for v in w), rel=1e-11)
        wy = [v * r for v, r in zip(w, y, strict=True)]
        # what is smaller than the largest product by 200 orders of magnitude may lose digits
        assert made.steps.wy[t] == pytest.approx(
            math.fsum(wy), rel=1e-12, abs=1e-11 * math.fsum(map(abs, wy)) + 1e-200
        )
    assert made.steps.n.tolist() == [12] * horizon
    assert made.steps.wmax == pytest.approx(1.0)
    largest = max(whole)
    assert made.episodes.log_scale[0] == pytest.approx(log_of(largest), abs=1e-10)
    returns = [float(sum(r[k] for r in rewards)) for k in range(12)]
    w = [float(p / largest) for p in whole]
    assert made.episodes.wg[0] == pytest.approx(
        math.fsum(v * g for v, g in zip(w, returns, strict=True)), rel=1e-9
    )
    x = [float(sum(p[k] * r[k] for p, r in zip(products, rewards, strict=True))) for k in range(12)]
    assert made.episodes.x[0] == pytest.approx(math.fsum(x), rel=1e-9)
    assert made.episodes.ret[0] == pytest.approx(math.fsum(returns), rel=1e-12)


def test_where_every_ratio_is_zero_the_products_are_zero(fast_answers) -> None:
    table = changed(ragged(), pi=np.zeros(ragged().num_rows))
    target = rw.ColumnPolicy("pi")
    made = rw.moments(streamed(table, 20, **ENDED), target, ["is"])
    fixture.assert_same(made, rw.moments(rw.read_log(table, **ENDED), target, ["is"]))
    assert not made.trajectories.steps.w.any()
    assert fast_answers == [True]


def test_sums_that_overflow_are_those_of_the_general_path(fast_answers) -> None:
    table = ragged()
    table = changed(table, behavior_prob=np.full(table.num_rows, 1e-300))
    target = rw.ColumnPolicy("pi")
    with np.errstate(all="ignore"):
        made = rw.moments(streamed(table, 20, **ENDED), target, ["is"]).trajectories
        slow = rw.moments(streamed(table, 20, False, **ENDED), target, ["is"]).trajectories
    assert fast_answers == [True]
    for part in ("steps", "episodes"):
        for name in getattr(made, part).POWER:
            mine, other = (getattr(getattr(m, part), name) for m in (made, slow))
            np.testing.assert_array_equal(np.isfinite(mine), np.isfinite(other))
            np.testing.assert_allclose(mine, other, rtol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_a_log_of_every_trajectory_gives_the_exact_value(fast_answers, seed) -> None:
    world = random_world(seed, ends=1, discount=Fraction(9, 10), horizon=3)
    table = population_log(world, hide=False).to_table()
    flags = {f: f for f in ("terminated", "truncated") if f in table.column_names}
    log = streamed(
        table, 31, target_prob="target_prob", discount=0.9, horizon=world.horizon, **flags
    )
    exact = float(world.value(world.target))
    for result in rw.evaluate_all(log, rw.ColumnPolicy("target_prob"), ["mis", "is", "dm"]):
        assert result.value == pytest.approx(exact, rel=1e-12)
    assert fast_answers == [True]


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [["dm"], ["is"]], ids="+".join)
@pytest.mark.parametrize("what", FAULTY)
def test_faults_are_told_as_they_are_in_memory(names, what) -> None:
    data, reading = FAULTY[what]
    expected = refusal(lambda: rw.read_log(data, **reading))
    log = streamed(data, 1000, **reading)
    assert refusal(lambda: rw.moments(log, rw.TablePolicy(TWO_STATES), names)) == expected


@pytest.mark.parametrize("names", NAMES, ids="+".join)
def test_a_target_that_knows_too_little_is_refused(fast_answers, names) -> None:
    narrow = rw.TablePolicy({0: {0: 0.5, 1: 0.5}})
    expected = refusal(lambda: rw.moments(rw.read_log(simple_table()), narrow, names))
    log = streamed(simple_table(), 1000)
    assert refusal(lambda: rw.moments(log, narrow, names)) == expected
    assert fast_answers == [False]


def test_flags_may_stand_at_the_last_row_only(fast_answers) -> None:
    """At the border of two batches as well as within one."""
    good = {"terminated": "terminated", "truncated": "truncated"}
    for batch in (4, 5, 1000):
        rw.moments(streamed(FLAGGED, batch, **good), rw.TablePolicy(TWO_STATES), ["dm"])
    assert fast_answers == [True] * 3


@pytest.mark.parametrize("limit", ["MOST_CELLS", "FEW_LINES"])
def test_too_many_cells_are_summed_chunk_by_chunk(monkeypatch, fast_answers, limit) -> None:
    """Whatever the log, or for its number of rows."""
    monkeypatch.setattr(scan, limit, 100)
    in_lines: list[Any] = []
    lines_of = scan.lines_of
    monkeypatch.setattr(scan, "lines_of", lambda *a: in_lines.append(a) or lines_of(*a))
    table = ragged()
    for names in (["dm"], ["is"]):
        made = rw.moments(streamed(table, 50, **ENDED), POLICIES["table"], names, gates=False)
        whole = rw.moments(rw.read_log(table, **ENDED), POLICIES["table"], names, gates=False)
        fixture.assert_same(made, whole)
    assert fast_answers == [True, True]
    assert not in_lines


# --- the machine's own words ---------------------------------------------------------------------


def test_numbers_side_by_side_are_added_at_once() -> None:
    from reweigh.kernels.common import compiled, zeros_in_lines
    from reweigh.kernels.vectors import add_at, add_worth, prefetch

    @compiled
    def run(array: Any, worth: Any) -> None:
        prefetch(array, np.uint64(2))
        add_at(array, np.uint64(2), (1.0, 2.0, 3.0, 4.0))
        add_at(array, np.uint64(8), (0.5, 0.25))
        add_worth(array, np.uint64(10), worth, np.uint64(4), 3.0, 2.0)

    array, worth = zeros_in_lines(18), zeros_in_lines(8)
    array[:] = np.arange(18)
    worth[:] = 9, 9, 9, 9, 0, 0.5, -2, -0.5
    run(array, worth)
    # 2 ((1, 3, 1, 3) + (0, 0.5, -2, -0.5)) = 2, 7, -2, 5
    added = [12, 18, 10, 18, 14 + 4, 15 + 49, 16 + 4, 17 + 25]
    assert array.tolist() == [0, 1, 3, 5, 7, 9, 6, 7, 8.5, 9.25, *added]


@pytest.mark.parametrize("kind", [np.float64, np.uint16, np.int32])
def test_lines_are_turned_into_columns(kind: type) -> None:
    from reweigh.kernels.common import compiled
    from reweigh.kernels.vectors import turn

    @compiled
    def run(values: Any, at: Any, to: Any, by: Any) -> None:
        turn(
            values,
            (at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7]),
            to,
            (by[0], by[1], by[2], by[3], by[4], by[5], by[6], by[7]),
        )

    values = np.arange(200).astype(kind)
    places = np.array([3, 190, 12, 81, 20, 33, 60, 111], np.uint64)  # lines in no order
    starts = np.array([5, 90, 20, 30, 41, 50, 61, 71], np.uint64)
    made = np.zeros(100, kind)
    run(values, places, made, starts)
    meant = np.zeros(100, kind)
    for j, start in enumerate(starts.tolist()):
        meant[start : start + 8] = values[places.astype(int) + j]
    assert made.tolist() == meant.tolist()


def test_words_get_a_code_where_they_occur() -> None:
    """Also from dictionaries that hold words that do not, a word twice, or none."""
    words = stream_simple.TextCodes()
    parts = [
        pa.DictionaryArray.from_arrays([1, None, 3, 2, 1], ["unused", "b", None, "b"]),
        pa.DictionaryArray.from_arrays([1, 0], ["c", "b"]),
    ]
    codes = np.empty(7, np.int32)
    words.put(pa.chunked_array(parts), codes, null_allowed=True)
    assert codes.tolist() == [0, -1, 0, -1, 0, 0, 1]
    words.put(pa.chunked_array([["d", None], ["b"]]), codes[:3], null_allowed=True)
    assert codes[:3].tolist() == [2, -1, 0]
    assert words.labels.values == ("b", "c", "d")
    with pytest.raises(stream_simple.UnusualRowsError):
        words.put(pa.chunked_array([["d", None]]), codes[:2])


@pytest.mark.parametrize("batch", [7, 40, 10_000])
@pytest.mark.parametrize("fast", [True, False])
def test_the_number_of_threads_changes_no_bit(batch, fast) -> None:
    sums = []
    for threads in (1, 2, 5):
        log = streamed(ragged(300), batch, fast, **ENDED)
        engine = StreamEngine(batch=batch, fast=fast, threads=threads)
        sums.append(rw.moments(replace(log, scanner=engine), POLICIES["table"], blocks=2))
    for other in sums[1:]:
        for kind in ("start", "transitions", "model", "lagged", "ordered", "paced", "largest"):
            mine, theirs = (getattr(made, kind).arrays() for made in (sums[0], other))
            for name, values in mine.items():
                np.testing.assert_array_equal(values, theirs[name])


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_tasks_side_by_side_are_done_once_and_fail_together(threads) -> None:
    done: list[int] = []
    stream_sums.side_by_side([partial(done.append, k) for k in range(20)], threads)
    assert sorted(done) == list(range(20))
    with pytest.raises(ZeroDivisionError):
        stream_sums.side_by_side([partial(done.append, 20), lambda: 1 / 0], threads)
    assert 20 in done
