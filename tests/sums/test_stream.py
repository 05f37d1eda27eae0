"""The streaming engine gives what the engine in memory gives: sums, labels, refusals, words."""

from __future__ import annotations

import importlib
import random
import sys
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from typing import Any

import build
import fixture
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from population import population_log, random_world

import reweigh as rw
from reweigh import kernels
from reweigh.cli import progress
from reweigh.cli.terminal import Terminal

stream = importlib.import_module("reweigh.sums.engines.stream")
stream_rows = importlib.import_module("reweigh.sums.engines.stream_rows")
stream_chunks = importlib.import_module("reweigh.sums.engines.stream_chunks")
StreamEngine = stream.StreamEngine

# the fixture has about 250 rows per site: batches of 97 cut episodes, and sites into pieces
BATCH = 97
TWO_STATES = {0: {0: 0.3, 1: 0.7}, 1: {0: 0.6, 1: 0.4}}


def streamed(data: Any, batch: int = BATCH, fast: bool = True, **reading: Any) -> Any:
    log = rw.read_log(data, engine="stream", **reading)
    return replace(log, scanner=StreamEngine(batch=batch, fast=fast))


@pytest.fixture
def fast_answers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the fast path answered, of each time it was tried."""
    answers: list[bool] = []
    real = stream_chunks._simple_scan

    def watch(*args: Any) -> Any:
        answers.append(False)
        found = real(*args)
        answers[-1] = True
        return found

    monkeypatch.setattr(stream_chunks, "_simple_scan", watch)
    return answers


def simple_table(episodes: int = 30, horizon: int = 4, **changes: Any) -> pa.Table:
    """Complete episodes over two states and two actions, with a next_state column."""
    rng = np.random.default_rng(3)
    state = rng.integers(0, 2, (episodes, horizon + 1))
    columns = {
        "episode": np.repeat(np.arange(episodes) + 5, horizon),
        "step": np.tile(np.arange(horizon), episodes),
        "state": state[:, :-1].ravel(),
        "action": rng.integers(0, 2, episodes * horizon),
        "reward": rng.normal(size=episodes * horizon),
        "behavior_prob": rng.uniform(0.2, 0.9, episodes * horizon),
        "next_state": state[:, 1:].ravel(),
    }
    return pa.table({name: pa.array(values) for name, values in {**columns, **changes}.items()})


# --- agreement -----------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", fixture.VARIANTS)
@pytest.mark.parametrize("policy", ["table", "steps", "column", "function"])
def test_parquet_gives_the_sums_of_the_log_in_memory(tmp_path, variant, policy) -> None:
    reading, target = fixture.READING[variant], fixture.policies(variant)[policy]
    paths = fixture.write(tmp_path, variant, row_group_size=50)
    whole = rw.read_log(fixture.table(variant), **reading)
    log = streamed(paths, **reading)
    for names, blocks in ((None, 4), (["mis"], 1)):
        expected = rw.moments(whole, target, names, blocks=blocks)
        made = rw.moments(log, target, names, blocks=blocks)
        fixture.assert_same(made, expected)
        assert made.about == expected.about


@pytest.mark.parametrize("variant", fixture.VARIANTS)
@pytest.mark.parametrize("names", [None, ["mis"]])
def test_csv_gives_the_sums_of_the_log_in_memory(tmp_path, variant, names) -> None:
    reading, target = fixture.READING[variant], fixture.policies(variant)["function"]
    log = streamed(fixture.write(tmp_path, variant, "csv"), **reading)
    whole = rw.read_log(fixture.table(variant), **reading)
    fixture.assert_same(rw.moments(log, target, names), rw.moments(whole, target, names))


@pytest.mark.parametrize("variant", fixture.VARIANTS)
@pytest.mark.parametrize("batch", [7, 10_000])
def test_sums_do_not_depend_on_the_batches(variant, batch) -> None:
    """Batches shorter than two episodes, and one that holds the log."""
    reading, target = fixture.READING[variant], fixture.policies(variant)["table"]
    one = rw.moments(streamed(fixture.table(variant), batch, **reading), target, blocks=3)
    other = rw.moments(streamed(fixture.table(variant), 60, **reading), target, blocks=3)
    fixture.assert_same(one, other)
    assert one.about == other.about


@pytest.mark.parametrize("variant", fixture.VARIANTS)
def test_estimates_errors_and_refusals_are_those_of_the_moments_in_memory(variant) -> None:
    reading, target = fixture.READING[variant], fixture.policies(variant)["table"]
    names = ["mis", "mis-plain", "mis-state", "dm", "is", "wis", "trajectory-wis", "ssd-is"]
    log = streamed(fixture.table(variant), **reading)
    whole = rw.moments(rw.read_log(fixture.table(variant), **reading), target)
    for made, expected in zip(
        rw.evaluate_all(rw.moments(log, target), None, names),
        rw.evaluate_all(whole, None, names),
        strict=True,
    ):
        assert type(made) is type(expected)
        if isinstance(expected, rw.Estimate):
            assert made.value == pytest.approx(expected.value, rel=1e-10)
            assert made.error_method == expected.error_method
            if expected.standard_error is None:
                assert made.standard_error is None
            else:
                assert made.standard_error == pytest.approx(expected.standard_error, rel=1e-8)
        else:
            assert made.error.code == expected.error.code


@pytest.mark.parametrize("seed", range(25))
def test_random_logs_give_the_same_sums(seed) -> None:
    rng = random.Random(seed)
    table = build.to_reweigh(
        build.random_log(
            rng,
            ends=("complete", "terminated", "truncated"),
            hide=rng.choice([0.0, 0.4]),
            zeros=True,
            n=rng.randint(2, 9),
        )
    ).to_table()
    reading: dict[str, Any] = {
        "target_prob": "target_prob",
        "hidden": "allow",
        "discount": 0.8,
        **{flag: flag for flag in ("terminated", "truncated") if flag in table.column_names},
    }
    if rng.random() < 0.5:
        reading |= {"horizon": rng.randint(1, 5), "short_episodes": "truncated"}
    target = rw.ColumnPolicy("target_prob")
    whole = rw.read_log(table, **reading)
    for names in (None, ["mis"]):
        made = rw.moments(streamed(table, rng.randint(1, 6), **reading), target, names, blocks=2)
        fixture.assert_same(made, rw.moments(whole, target, names, blocks=2))


@pytest.mark.parametrize("short", ["terminal", "truncated"])
@pytest.mark.parametrize("horizon", [1, 3, 4, 7])
@pytest.mark.parametrize("fast", [True, False])
def test_a_given_horizon_cuts_and_a_longer_one_needs_the_rule_for_short_ones(
    short, horizon, fast
) -> None:
    table = simple_table()
    reading = {"horizon": horizon, "short_episodes": short, "next_state": "next_state"}
    target = rw.TablePolicy(TWO_STATES)
    clipped = [rw.mis(max_ratio=1.5)]
    made = rw.moments(streamed(table, fast=fast, **reading), target, clipped)
    whole = rw.moments(rw.read_log(table, **reading), target, clipped)
    fixture.assert_same(made, whole)
    assert made.about.horizon == horizon


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("hide", "ends"), [(False, 1), (True, 0)])
def test_a_log_of_every_trajectory_gives_the_exact_value(seed, hide, ends) -> None:
    """Engines cannot agree on a shared mistake: nothing here is left to chance."""
    world = random_world(seed, ends=ends, discount=Fraction(9, 10), horizon=2 if hide else 3)
    table = population_log(world, hide=hide).to_table()
    flags = {f: f for f in ("terminated", "truncated") if f in table.column_names}
    log = streamed(
        table, target_prob="target_prob", hidden="allow", discount=0.9, horizon=world.horizon,
        **flags,
    )  # fmt: skip
    exact = float(world.value(world.target))
    for result in rw.evaluate_all(log, rw.ColumnPolicy("target_prob"), ["mis", "is"]):
        assert result.value == pytest.approx(exact, rel=1e-12)


def test_abstractions_and_continuous_actions_work_batch_by_batch() -> None:
    rng = np.random.default_rng(1)
    table = simple_table(
        state=rng.normal(size=120), action=rng.normal(size=120), next_state=np.zeros(120),
        pi=rng.uniform(0.1, 3.0, 120),
    )  # fmt: skip
    for abstraction in (rw.Rounding(2.0), rw.Grid([-1.0, 0.0, 1.0]), lambda x: x[:, 0] > 0.3):
        reading = {"abstraction": abstraction, "continuous_actions": True}
        made = rw.moments(streamed(table, 30, **reading), rw.ColumnPolicy("pi"))
        fixture.assert_same(made, rw.moments(rw.read_log(table, **reading), rw.ColumnPolicy("pi")))
        assert made.about.abstraction == rw.read_log(table, **reading).abstraction


# --- the fast path -------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["table", "steps", "column"])
def test_the_fast_path_answers_for_simple_logs(fast_answers, tmp_path, policy) -> None:
    reading, target = fixture.READING["integers"], fixture.policies("integers")[policy]
    for kind in ("parquet", "csv"):
        log = streamed(fixture.write(tmp_path, "integers", kind), **reading)
        fast = rw.moments(log, target, ["mis"], blocks=5)
        slow = rw.moments(
            replace(log, scanner=StreamEngine(fast=False), _by_request={}),
            target,
            ["mis"],
            blocks=5,
        )
        fixture.assert_same(fast, slow)
        assert fast.about == slow.about
    assert fast_answers == [True, True]


def test_words_are_coded_as_they_come_and_room_is_made_for_them(fast_answers) -> None:
    """40 states and 20 actions are more than there is room for at first."""
    rng = np.random.default_rng(2)
    words = [f"s{i}" for i in rng.permutation(40)]
    state = [words[int(i)] for i in np.minimum(rng.integers(0, 41, 120), np.arange(120) // 3)]
    table = simple_table(
        state=state,
        action=[f"a{i % 20}" for i in range(120)],
        episode=[f"é{i // 4}" for i in range(120)],
    ).drop_columns(["next_state"])
    target = rw.TablePolicy({s: {f"a{i}": 1 / 20 for i in range(20)} for s in words})
    made = rw.moments(streamed(table, 11), target, ["mis"], blocks=3)
    fixture.assert_same(made, rw.moments(rw.read_log(table), target, ["mis"], blocks=3))
    assert fast_answers == [True]


@pytest.mark.parametrize(
    "episode",
    [
        np.repeat(np.arange(-15, 15), 4),
        np.repeat(np.arange(2**64 - 30, 2**64, dtype=np.uint64), 4),
        np.repeat([True, False], 60),
        [f"{i // 4:02d}" for i in range(120)],
    ],
    ids=["negative", "huge", "truth values", "texts"],
)
def test_blocks_follow_the_text_of_the_id_whatever_it_is(fast_answers, episode) -> None:
    step = np.tile(np.arange(60), 2) if len(set(np.asarray(episode).tolist())) == 2 else None
    table = simple_table(episode=episode, **({} if step is None else {"step": step}))
    target = rw.TablePolicy(TWO_STATES)
    made = rw.moments(streamed(table), target, ["mis"], blocks=7)
    fixture.assert_same(made, rw.moments(rw.read_log(table), target, ["mis"], blocks=7))
    assert fast_answers == [True]


def test_without_numba_the_sums_are_the_same(monkeypatch, fast_answers) -> None:
    table, target = simple_table(), rw.TablePolicy(TWO_STATES)
    fast = rw.moments(streamed(table), target, ["mis"])
    monkeypatch.setattr(kernels, "HAS_NUMBA", False)
    slow = rw.moments(streamed(table), target, ["mis"])
    fixture.assert_same(fast, slow)
    assert fast_answers == [True]


# --- any order -----------------------------------------------------------------------------------


def shuffled(table: pa.Table, seed: int = 0) -> pa.Table:
    return table.take(np.random.default_rng(seed).permutation(table.num_rows))


def sorting() -> Any:
    return pytest.warns(rw.InputWarning, match="DuckDB sorted the log")


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("variant", fixture.VARIANTS)
def test_rows_come_in_any_order(tmp_path, variant, fast) -> None:
    """All sums, also those that need what came before a row; of tables, Parquet and CSV."""
    reading, target = fixture.READING[variant], fixture.policies(variant)["steps"]
    table, names = fixture.table(variant), ["mis", "dm", "is"]
    whole = rw.moments(rw.read_log(table, **reading), target, names, blocks=3)
    whole = replace(whole, trajectories=None) if whole.truncated else whole
    data = {"table": shuffled(table), "parquet": str(tmp_path / "log.parquet")}
    pq.write_table(data["table"], data["parquet"], row_group_size=50)
    if variant == "integers":
        data["csv"] = str(tmp_path / "log.csv")
        pacsv.write_csv(data["table"], data["csv"])
    for given in data.values():
        with sorting():
            made = rw.moments(streamed(given, fast=fast, **reading), target, names, blocks=3)
        fixture.assert_same(made, whole)
    # the rows are known again
    in_order = rw.moments(streamed(table, **reading), target, names, blocks=3)
    assert made.about == in_order.about
    with pytest.raises(rw.InputError, match="count twice"):
        made + in_order


def rows_of(table: pa.Table, *keep: Any) -> pa.Table:
    return table.take(np.concatenate([np.asarray(k, np.int64) for k in keep]))


@pytest.mark.parametrize(
    "order",
    [
        # an episode comes back after the others
        [range(3), range(4, 120), [3]],
        # steps are out of order within an episode
        [[0, 2, 1, 3], range(4, 120)],
        [range(116), [117, 116, 118, 119]],
    ],
)
@pytest.mark.parametrize("batch", [16, 1000])
def test_one_row_out_of_order_is_noticed(order, batch) -> None:
    table, target = rows_of(simple_table(), *order), rw.TablePolicy(TWO_STATES)
    with sorting():
        made = rw.moments(streamed(table, batch), target, ["mis"])
    fixture.assert_same(made, rw.moments(rw.read_log(table), target, ["mis"]))


WRONG_NEXT = simple_table()["next_state"].to_pylist()
WRONG_NEXT[41] = 1 - WRONG_NEXT[41]


@pytest.mark.parametrize(
    ("table", "code"),
    [
        (rows_of(simple_table(), range(50), range(51, 120)), "missing-step"),
        (rows_of(simple_table(), range(120), [50]), "duplicate-step"),
        (rows_of(simple_table(), range(120), range(4)), "duplicate-step"),
        (simple_table(next_state=WRONG_NEXT), "next-state"),
        (simple_table(reward=[*range(119), None]), "null"),
    ],
)
@pytest.mark.parametrize("horizon", [None, 4, 2, 1])
@pytest.mark.parametrize("batch", [16, 1000])
def test_faults_of_rows_in_any_order_are_told_as_they_are_in_memory(
    table, code, horizon, batch
) -> None:
    """Those beyond the horizon, which are not used, too; the rows are named as they stand."""
    table, reading = shuffled(table), {"next_state": "next_state", "horizon": horizon}
    expected = refusal(lambda: rw.read_log(table, **reading))
    assert [fault[0] for fault in expected[1]] == [code]
    target = rw.TablePolicy(TWO_STATES)
    with sorting():
        found = refusal(lambda: rw.moments(streamed(table, batch, **reading), target, ["mis"]))
    # rows are named in the order of the episodes
    assert [[*fault[:5], sorted(fault[5])] for fault in found[1]] == [
        [*fault[:5], sorted(fault[5])] for fault in expected[1]
    ]


def test_what_the_reading_of_a_file_raises_is_not_put_into_words_of_duckdb(
    tmp_path, monkeypatch
) -> None:
    path, target = tmp_path / "log.parquet", rw.TablePolicy(TWO_STATES)
    pq.write_table(shuffled(simple_table()), path)
    real = stream_rows.sorted_rows

    def torn(rows: Any, tables: Any, *args: Any) -> Any:
        def until_torn() -> Any:
            yield next(tables)
            raise rw.InputError("the file is damaged: torn")

        return real(rows, until_torn(), *args)

    monkeypatch.setattr(stream_rows, "sorted_rows", torn)
    with sorting(), pytest.raises(rw.InputError, match=r"^the file is damaged: torn$"):
        rw.moments(streamed(path, 16), target, ["mis"])


@pytest.mark.parametrize("fast", [True, False])
def test_the_number_of_threads_does_not_change_a_bit(tmp_path, fast) -> None:
    """Of several row groups and batches, in order and in none."""
    reading, target = fixture.READING["integers"], fixture.policies("integers")["steps"]
    table = fixture.table("integers")
    for i, rows in enumerate((table, shuffled(table))):
        path = tmp_path / f"{i}.parquet"
        pq.write_table(rows, path, row_group_size=60)
        made = []
        for threads in (1, 2, 3):
            log = replace(
                rw.read_log(path, engine="stream", **reading),
                scanner=StreamEngine(batch=BATCH, fast=fast, threads=threads),
            )
            with sorting() if i else nullcontext():
                rw.moments(log, target, ["mis", "dm"]).save(tmp_path / f"{i}-{threads}.sums")
            made.append((tmp_path / f"{i}-{threads}.sums").read_bytes())
        assert made[0] == made[1] == made[2]


# --- refusals ------------------------------------------------------------------------------------


def changed(name: str, values: dict[int, Any], table: pa.Table | None = None) -> pa.Table:
    table = simple_table() if table is None else table
    cells = table[name].to_pylist()
    for row, value in values.items():
        cells[row] = value
    return table.set_column(table.column_names.index(name), name, pa.array(cells))


FLAGGED = simple_table(terminated=[i % 4 == 3 for i in range(120)], truncated=[False] * 120)
UUIDS = pa.ExtensionArray.from_storage(
    pa.uuid(), pa.array([(i // 4).to_bytes(16, "big") for i in range(120)], pa.binary(16))
)
UNSIGNED = pa.array([*np.tile(np.arange(4), 30)[:-1].tolist(), 2**64 - 1], pa.uint64())
FAULTY: dict[str, tuple[pa.Table, dict[str, Any]]] = {
    "reward null": (changed("reward", {30: None, 70: None}), {}),
    "reward nan": (changed("reward", {30: float("nan")}), {}),
    "reward text": (simple_table(reward=["1.0"] * 119 + ["x"]), {}),
    "probability": (changed("behavior_prob", {5: 1.5, 110: 0.0}), {}),
    "log-probability": (simple_table(behavior_prob=np.full(120, -0.5)), {}),
    "target probability": (simple_table(pi=np.full(120, 1.5)), {"target_prob": "pi"}),
    "id null": (changed("episode", {30: None}), {}),
    "step null": (changed("step", {30: None}), {}),
    "step negative": (changed("step", {30: -1}), {}),
    "step text": (simple_table(step=[str(i % 4) for i in range(119)] + ["three"]), {}),
    "all steps text": (simple_table(step=[str(i % 4) for i in range(120)]), {}),
    "step far": (changed("step", {31: 9}), {}),
    "step twice": (changed("step", {30: 1}), {}),
    "steps from 1": (changed("step", {28: 1, 29: 2, 30: 3, 31: 4}), {}),
    "state null": (changed("state", {30: None}), {}),
    "state float": (simple_table(state=np.linspace(0, 1, 120)), {}),
    "state whole float": (simple_table(state=[float(i % 2) for i in range(120)]), {}),
    "action null": (changed("action", {30: None}), {}),
    "action float": (simple_table(action=np.linspace(0, 1, 120)), {}),
    "next state": (changed("next_state", {29: 7}), {"next_state": "next_state"}),
    "next state null": (changed("next_state", {29: None}), {"next_state": "next_state"}),
    "short": (simple_table().slice(0, 118), {}),
    "flag null": (changed("terminated", {30: None}, FLAGGED), {"terminated": "terminated"}),
    "flag word": (
        FLAGGED.set_column(7, "terminated", pa.array(["true"] * 119 + ["perhaps"])),
        {"terminated": "terminated"},
    ),
    "rows after end": (changed("terminated", {29: True}, FLAGGED), {"terminated": "terminated"}),
    "rows after cut": (changed("truncated", {29: True}, FLAGGED), {"truncated": "truncated"}),
    "two faults": (changed("reward", {99: None}, changed("behavior_prob", {3: 2.0})), {}),
    "no such column": (simple_table(), {"terminated": "done"}),
    "no rows": (simple_table().slice(0, 0), {}),
    "id float": (simple_table(episode=np.repeat(np.arange(30.0) + 0.5, 4)), {}),
    "id uuid": (simple_table(episode=UUIDS), {}),
    "id list": (simple_table(episode=[[i // 4] for i in range(120)]), {}),
    "id struct": (simple_table(episode=[{"ward": i // 4} for i in range(120)]), {}),
    "id list and reward": (changed("reward", {30: None}, simple_table(episode=[[1]] * 120)), {}),
    "step too far": (changed("step", {31: 2**63 - 1}), {}),
    "step too far without sign": (simple_table(step=UNSIGNED), {}),
}


# a CSV has no types, and two files without rows would be copies of each other
NO_FAULT = {
    ("all steps text", "csv"),
    ("state whole float", "csv"),
    ("action float", "csv"),
    ("id float", "csv"),
    ("id uuid", "csv"),
    ("id list", "csv"),
    ("id struct", "csv"),
    ("id list and reward", "csv"),
    ("no rows", "parquet"),
}


def refusal(run: Any) -> tuple[Any, ...]:
    with pytest.raises((rw.InputError, rw.RefusedError)) as caught:
        run()
    error = caught.value
    if isinstance(error, rw.RefusedError):
        return type(error), error.code
    faults = sorted(error.faults, key=str)
    return type(error), [
        (f.code, f.rule, f.fix, f.count, f.total, [str(p) for p in f.places]) for f in faults
    ]


@pytest.mark.parametrize(
    ("what", "kind"),
    [(w, k) for w in FAULTY for k in ("table", "parquet", "csv") if (w, k) not in NO_FAULT],
)
def test_faults_are_told_as_they_are_in_memory(tmp_path, what, kind) -> None:
    """The same codes, rules, fixes, counts, rows, episodes, steps and values."""
    data, reading = FAULTY[what]
    given: Any = data
    if kind == "parquet":
        given = [str(tmp_path / f"{i}.parquet") for i in range(2)]
        pq.write_table(data.slice(0, 48), given[0], row_group_size=20)
        pq.write_table(data.slice(48), given[1], row_group_size=20)
    elif kind == "csv":
        given = str(tmp_path / "log.csv")
        pacsv.write_csv(data, given)
    target = rw.TablePolicy(TWO_STATES)
    expected = refusal(lambda: rw.read_log(given, **reading))
    # one batch, and many: a float column's distinct values are counted in the first chunk
    for batch in (1000,) if what.startswith("state") and "float" in what else (1000, 16):
        log = streamed(given, batch, **reading)
        assert refusal(lambda log=log: rw.moments(log, target, ["mis"])) == expected


def test_a_target_that_knows_too_little_is_refused_after_the_faults_of_the_log() -> None:
    narrow = rw.TablePolicy({0: {0: 0.5, 1: 0.5}})
    whole = refusal(lambda: rw.moments(rw.read_log(simple_table()), narrow, ["mis"]))
    log = streamed(simple_table(), 1000)
    assert refusal(lambda: rw.moments(log, narrow, ["mis"])) == whole
    _, faults = refusal(lambda: rw.moments(streamed(simple_table(), 16), narrow, ["mis"]))
    assert [fault[0] for fault in faults] == ["unknown-state"]
    faulty, _ = FAULTY["reward null"]
    _, faults = refusal(lambda: rw.moments(streamed(faulty, 16), narrow, ["mis"]))
    assert [fault[0] for fault in faults] == ["null"]


def test_a_column_of_the_target_is_checked_as_in_memory() -> None:
    table = changed("pi", {40: 1.5, 90: -1.0}, simple_table(pi=np.full(120, 0.5)))
    target = rw.ColumnPolicy("pi")
    expected = refusal(lambda: rw.moments(rw.read_log(table), target, ["mis"]))
    for batch in (16, 1000):
        assert refusal(lambda b=batch: rw.moments(streamed(table, b), target, ["mis"])) == expected
    with pytest.raises(rw.UsageError, match="the log has no column 'po'"):
        rw.moments(streamed(table), rw.ColumnPolicy("po"), ["mis"])


@pytest.mark.parametrize("blank", [" ", "\t", "  "])
def test_blanks_around_the_numbers_of_a_csv_are_read_as_in_memory(tmp_path, blank) -> None:
    table, path, target = simple_table(), tmp_path / "log.csv", rw.TablePolicy(TWO_STATES)
    cells = zip(*(column.to_pylist() for column in table.columns), strict=True)
    lines = [f"{e},{t},{s},{a},{blank}{y}{blank},{blank}{mu},{n}" for e, t, s, a, y, mu, n in cells]
    path.write_text("\n".join([",".join(table.column_names), *lines]) + "\n")
    expected = rw.moments(rw.read_log(table), target)
    for log in (rw.read_log(path), rw.read_log(path, engine="stream")):
        fixture.assert_same(rw.moments(log, target), expected)
    lines[29] = lines[29].replace(f",{blank}", f",{blank}x", 1)  # a bad cell is told, alone
    path.write_text("\n".join([",".join(table.column_names), *lines]) + "\n")
    whole = refusal(lambda: rw.read_log(path))
    log = rw.read_log(path, engine="stream")
    assert refusal(lambda: rw.moments(log, target)) == whole
    assert [fault[0] for fault in whole[1]] == ["not-a-number"]


def test_a_csv_with_a_ragged_row_names_its_line(tmp_path) -> None:
    path = tmp_path / "log.csv"
    pacsv.write_csv(simple_table(), path)
    lines = path.read_text().splitlines()
    lines[40] += ",1"
    path.write_text("\n".join(lines) + "\n")
    expected = refusal(lambda: rw.read_log(path))
    log = rw.read_log(path, engine="stream")
    assert refusal(lambda: rw.moments(log, rw.TablePolicy(TWO_STATES))) == expected


def test_a_file_that_changes_meanwhile_is_refused(tmp_path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(simple_table(), path)
    log = rw.read_log(path, engine="stream")
    pq.write_table(simple_table(40), path)
    with pytest.raises(rw.ResourceError, match="changed while it was being read"):
        rw.moments(log, rw.TablePolicy(TWO_STATES), ["mis"])


# --- what sums are of ----------------------------------------------------------------------------


def test_sites_add_up_to_the_whole_and_no_site_adds_twice(tmp_path) -> None:
    reading, target = fixture.READING["integers"], fixture.policies("integers")["table"]
    reading = {**reading, "horizon": fixture.HORIZON}
    sites = [
        rw.moments(streamed(path, **reading), target, ["mis", "dm"], blocks=2)
        for path in fixture.write(tmp_path, "integers")
    ]
    total = sites[0] + sites[1] + sites[2]
    whole = rw.moments(
        rw.read_log(fixture.table("integers"), **reading), target, ["mis", "dm"], blocks=2
    )
    for name in ("mis", "dm"):
        [mine], [other] = (rw.evaluate_all(m, None, [name]) for m in (total, whole))
        assert mine.value == pytest.approx(other.value, rel=1e-12)
    with pytest.raises(rw.InputError, match="count twice"):
        total + sites[1]
    again = fixture.write(tmp_path, "integers", "csv")[1]
    with pytest.raises(rw.InputError, match="count twice"):
        total + rw.moments(streamed(again, **reading), target, ["mis", "dm"], blocks=2)


@pytest.mark.parametrize("variant", fixture.VARIANTS)
def test_a_description_is_that_of_the_log_in_memory(variant) -> None:
    reading, table = fixture.READING[variant], fixture.table(variant)
    expected = rw.read_log(table, **reading).describe()
    made = streamed(table, **reading).describe()
    assert made.pop("mean_return") == pytest.approx(expected.pop("mean_return"), rel=1e-12)
    assert made == expected


def test_a_description_of_rows_in_any_order() -> None:
    reading, table = fixture.READING["integers"], fixture.table("integers")
    expected = rw.read_log(table, **reading).describe()
    with sorting():
        made = streamed(shuffled(table), **reading).describe()
    assert made.pop("mean_return") == pytest.approx(expected.pop("mean_return"), rel=1e-12)
    assert made == expected


def test_parquet_without_statistics_has_its_horizon_from_the_steps(tmp_path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(simple_table(), path, write_statistics=False)
    target = rw.TablePolicy(TWO_STATES)
    made = rw.moments(streamed(path), target, ["mis"])
    fixture.assert_same(made, rw.moments(rw.read_log(path), target, ["mis"]))


def test_ids_that_come_back_are_noticed_in_little_room() -> None:
    seen = stream_chunks.SeenIds()
    for start in range(0, 10_000, 100):
        seen.add(np.arange(start, start + 100, dtype=np.uint64))
    assert seen.held == 1
    assert not seen.repeated()
    seen.add(np.array([20_000, 5_000], np.uint64))
    assert seen.repeated()
    around_zero = stream_chunks.SeenIds()
    around_zero.add(np.arange(-3, 3).view(np.uint64))
    assert (around_zero.held, around_zero.repeated()) == (1, False)
    around_zero.add(np.array([-1]).view(np.uint64))
    assert around_zero.repeated()


@pytest.mark.parametrize("way", ["fast", "chunks"])
def test_ids_that_are_not_looked_for_are_told(way, fast_answers, monkeypatch, tmp_path) -> None:
    """Those of the last five episodes have been used before."""
    monkeypatch.setattr(stream_chunks, "KEPT_IDS", 20)
    ids = [*np.arange(25) * 2, *np.arange(1, 6) * 2]
    table, target = simple_table(episode=np.repeat(ids, 4)), rw.TablePolicy(TWO_STATES)
    engine = StreamEngine(batch=16, fast=way == "fast")
    log = replace(streamed(table, next_state="next_state"), scanner=engine)
    [estimate] = rw.evaluate_all(log, target, ["mis"])
    assert fast_answers == [True] * (way == "fast")
    [told] = [w for w in estimate.warnings if isinstance(w, rw.InputWarning)]
    assert "a later id used for two episodes would not be noticed" in str(told)
    assert "engine='duckdb' checks all ids" in str(told)
    with pytest.warns(rw.InputWarning, match="would not be noticed"):
        sums = rw.moments(log, target, ["mis"])
    assert any("would not be noticed" in note for note in log.describe()["notes"])
    # it stays with the sums
    sums.save(tmp_path / "sums.parquet")
    other = rw.moments(rw.read_log(simple_table(5), next_state="next_state"), target, ["mis"])
    assert (other + rw.load_moments(tmp_path / "sums.parquet")).unchecked == (str(told),)
    # all of them are checked where they are kept
    fewer = replace(streamed(table, next_state="next_state"), scanner=engine)
    monkeypatch.setattr(stream_chunks, "KEPT_IDS", 25)
    with sorting(), pytest.raises(rw.InputError, match="an id was used for two episodes"):
        rw.moments(fewer, target, ["mis"])


@pytest.mark.parametrize("batch", [1, 2, 3, 29])
def test_chunks_end_where_episodes_do(batch) -> None:
    """Also where a null id stands between batches: it is no end."""
    ids = [1, 1, 1, None, 1, 2, 3, 3, None, None, 3, 4]
    table = pa.table({"id": ids})
    pieces = [table.slice(i, batch) for i in range(0, len(ids), batch)]
    chunks = list(stream_chunks.whole_episodes(iter(pieces), "id"))
    assert [row for _, chunk in chunks for row in chunk["id"].to_pylist()] == ids
    assert [first for first, _ in chunks] == list(
        np.cumsum([0] + [chunk.num_rows for _, chunk in chunks])[:-1]
    )
    seen: set[int] = set()
    for _, chunk in chunks:
        shown = set(chunk["id"].to_pylist()) - {None}
        assert not shown & seen
        seen |= shown


def test_one_endless_episode_does_not_fill_the_memory(monkeypatch) -> None:
    monkeypatch.setattr(stream_chunks, "LONGEST_EPISODE", 100)
    table = simple_table(1, 120, state=[0] * 120, next_state=[0] * 120)
    with pytest.raises(rw.RefusedError, match="more than 100 rows") as caught:
        rw.moments(streamed(table, 10, fast=False), rw.TablePolicy(TWO_STATES), ["is"])
    assert caught.value.code == "long-episode"


def test_a_table_of_a_database_is_not_for_this_engine() -> None:
    log = rw.read_log("base.duckdb", table="steps", engine="stream")
    with pytest.raises(rw.UsageError, match="reads files and tables in memory"):
        rw.moments(log, rw.TablePolicy(TWO_STATES))


def test_a_scan_tells_how_far_it_is() -> None:
    told: list[tuple[int, int]] = []
    log = rw.read_log(simple_table(), engine="stream")
    scanner = StreamEngine(batch=50, report=lambda done, total: told.append((done, total)))
    log = replace(log, scanner=scanner)
    rw.moments(log, rw.TablePolicy(TWO_STATES), ["mis"])
    assert told == [(50, 120), (100, 120), (120, 120)]
    in_memory = rw.read_log(simple_table())
    with progress.bar_of("reading", in_memory) as data:
        assert data is in_memory


def test_progress_is_for_terminals(monkeypatch) -> None:
    log = rw.read_log(simple_table(), engine="stream")
    with Terminal().working("reading", log) as data:
        assert data is log
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Terminal(quiet=True).working("reading", log) as data:
        assert data is log
    with Terminal().working("reading", log) as data:
        data.scanner.report(10, 20)
    assert progress.pace(12_300_000) == "12.3 million rows/s"
    assert progress.pace(1234) == "1,234 rows/s"
