"""The diagnostics' own sums and the verdicts that rest on them are the same on every engine."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import fixture
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from test_stream import BATCH, fast_answers, streamed

import reweigh as rw
from reweigh.cli.app import run
from reweigh.kernels import group_by
from reweigh.sums import diagnostic_tables as extras
from reweigh.sums.diagnostic_tables import LaggedMoments, LargestWeights
from reweigh.sums.engines.stream_sums import LargestSoFar
from reweigh.trust.gates import Verdict
from reweigh.trust.gates.states import History

__all__ = ["fast_answers"]
TARGET = rw.TablePolicy({f"s {s}": {f"a{a}": (0.5, 0.3, 0.2)[(s + a) % 3] for a in range(3)}
                         for s in range(4)})  # fmt: skip


def simulated(episodes: int = 400, horizon: int = 5, ids: Any = None) -> pa.Table:
    """Texts as states, numbers as ids; half of the episodes end early. Every a-priori path is
    Markov, and the ratios take few values, so that many products are equal."""
    rng = np.random.default_rng(12)
    lengths = np.where(rng.random(episodes) < 0.5, horizon, rng.integers(1, horizon, episodes))
    rows, first = int(lengths.sum()), np.cumsum(lengths) - lengths
    numbers = rng.permutation(episodes) * 37 - 2000 if ids is None else ids(episodes)
    state, action = rng.integers(0, 4, rows), rng.integers(0, 3, rows)
    terminated = np.zeros(rows, bool)
    terminated[first + lengths - 1] = lengths < horizon
    return pa.table(
        {
            "episode": pa.array(np.repeat(numbers, lengths)),
            "step": np.arange(rows) - np.repeat(first, lengths),
            "state": [f"s {s}" for s in state],
            "action": [f"a{a}" for a in action],
            "reward": state + rng.normal(size=rows).round(3),
            "behavior_prob": np.full(rows, 1 / 3),
            "terminated": terminated,
        }
    )


def engines(data: Any, **reading: Any) -> dict[str, Any]:
    """The same log on every engine, in memory first."""
    return {
        "arrays": rw.read_log(data, **reading),
        "fast": streamed(data, BATCH, **reading),
        "chunks": streamed(data, BATCH, False, **reading),
        "duckdb": rw.read_log(data, engine="duckdb", **reading),
    }


def all_same(data: Any, target: rw.Policy, **reading: Any) -> rw.Moments:
    logs = engines(data, **reading)
    sums = {name: rw.moments(log, target, ["mis"]) for name, log in logs.items()}
    for name in ("fast", "chunks", "duckdb"):
        fixture.assert_same(sums[name], sums["arrays"])
    return sums["arrays"]


# --- sums ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_files_of_texts_and_numbers(fast_answers, tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"log.{kind}"
    (pq.write_table if kind == "parquet" else pacsv.write_csv)(simulated(), path)
    sums = all_same(path, TARGET, terminated="terminated", discount=0.9)
    assert sums.lagged is not None
    assert sums.ordered is not None
    assert sums.ordered.shift == 2  # 400 ids, 37 apart: 14,763 of them span 4,096 buckets
    assert sums.paced is not None
    assert sums.paced.shift == 8  # of which 58 buckets are spanned
    assert sums.largest is not None
    assert len(sums.largest) < 200 < sums.largest.n  # equal ones are left out together
    assert sums.largest.floor > -np.inf
    assert fast_answers == [True]


IDS = {
    "texts of numbers": (lambda n: [str(i - 7) for i in range(n)], True),
    "far apart": (lambda n: np.arange(n) ** 2 * 10**12 - 10**15, True),
    "all of 64 bits": (lambda n: np.array([5, -(2**63), 2**63 - 1, *range(6, n + 3)]), True),
    "small unsigned": (lambda n: np.arange(n, dtype=np.uint64), True),
    "large unsigned": (lambda n: np.arange(n, dtype=np.uint64) + np.uint64(2**63), False),
    "one word": (lambda n: [*map(str, range(n - 1)), "x"], False),
    "leading zeros": (lambda n: [f"{i:05d}" for i in range(n)], False),
}


@pytest.mark.parametrize("what", IDS)
def test_the_order_is_known_where_ids_are_whole_numbers(what: str) -> None:
    ids, known = IDS[what]
    sums = all_same(simulated(120, ids=ids), TARGET, terminated="terminated")
    assert sums.ordered is not None
    assert sums.ordered.has_order == known
    assert (sums.paced is not None) == known
    if not known:  # how much the returns spread is told all the same
        assert (len(sums.ordered), int(sums.ordered.n[0])) == (1, 120)


def test_logs_with_and_without_an_order_add_up_to_one_without() -> None:
    numbers, words = (IDS[what][0] for what in ("small unsigned", "leading zeros"))
    parts = [
        rw.moments(rw.read_log(simulated(120, ids=ids), terminated="terminated"), TARGET).ordered
        for ids in (numbers, words)
    ]
    for one, other in (parts, parts[::-1]):
        assert one is not None
        assert other is not None
        both = one + other
        assert not both.has_order
        assert (len(both), int(both.n[0])) == (1, 240)
        assert both.g2[0] == pytest.approx(one.g2.sum() + other.g2.sum())


def test_cut_off_episodes_have_no_order_and_their_largest_weights(fast_answers) -> None:
    data = simulated().rename_columns(
        [{"terminated": "truncated"}.get(name, name) for name in simulated().column_names]
    )
    sums = all_same(data, TARGET, truncated="truncated")
    assert sums.truncated
    assert sums.ordered is None
    assert sums.paced is None
    assert sums.largest is not None
    assert fast_answers == [True]


def test_so_many_steps_that_rewards_are_not_told_by_step(monkeypatch, fast_answers) -> None:
    monkeypatch.setattr(extras, "MOST_STEPS", 4)
    sums = all_same(simulated(), TARGET, terminated="terminated")
    assert sums.left_out.keys() == {"paced"}
    assert sums.ordered is not None
    [gate] = [
        gate for gate in rw.evaluate(sums, estimator=rw.mis()).verdict.gates if gate.name == "drift"
    ]
    assert "do not include the rewards by step: the log has more than 4 steps" in gate.text
    assert gate.value is not None
    assert fast_answers == [True]


def test_ids_in_any_order_ask_for_wider_buckets(fast_answers) -> None:
    """Of more rows than are looked at together: the sums of narrow buckets go into wide ones."""

    def ids(episodes: int) -> np.ndarray:
        walk = np.cumsum(np.random.default_rng(5).integers(-40, 41, episodes))
        walk = walk * episodes + np.arange(episodes)  # no two are the same
        return np.r_[walk[: episodes // 2], walk[episodes // 2 :] * 1000]

    data = simulated(4000, ids=ids)
    logs = engines(data, terminated="terminated") | {
        "one batch": streamed(data, 1 << 18, terminated="terminated")
    }
    sums = {name: rw.moments(log, TARGET, ["mis"]) for name, log in logs.items()}
    for name in ("fast", "one batch", "duckdb"):
        fixture.assert_same(sums[name], sums["arrays"])
    assert sums["arrays"].paced.shift > 20
    assert fast_answers == [True, True]


@pytest.mark.parametrize("since", [0, 3])
def test_a_drift_is_told_at_its_steps_on_every_engine(since: int) -> None:
    """Rewards from a step on are halved in the second half of the ids."""
    rows = simulated(1200)
    late = np.asarray(rows.column("episode")) >= -2000 + 37 * 600
    drifts = late & (np.asarray(rows.column("step")) >= since)
    reward = np.asarray(rows.column("reward")) + 2.0
    halved = pa.array(np.where(drifts, reward / 2, reward))
    rows = rows.set_column(rows.column_names.index("reward"), "reward", halved)
    found = verdicts_agree(engines(rows, terminated="terminated"), TARGET)
    [gate] = [gate for gate in found["mis"].gates if gate.name == "drift"]
    assert gate.level == "amber"
    assert gate.step is not None
    assert gate.step >= since
    assert gate.text.endswith(f", strongest at step {gate.step}")
    assert gate.per_step is not None
    assert np.all(gate.per_step[since:] < 1e-3)
    assert np.all(gate.per_step[:since] > 0.01)
    assert gate.per_step[gate.step] == gate.per_step.min()


def test_of_too_many_cells_every_engine_holds_the_same_steps_and_states(
    monkeypatch, fast_answers
) -> None:
    logs = engines(simulated(), terminated="terminated")
    cells = rw.moments(logs["arrays"], TARGET).lagged
    assert cells is not None
    for part in (1, 2, 5):
        monkeypatch.setattr(extras, "MOST_LAGGED", len(cells) // part)
        sums = {name: rw.moments(log, TARGET) for name, log in fresh(logs).items()}
        whole = sums["arrays"].lagged
        assert (whole.level == 0) == (part == 1)
        assert len(cells) // (4 * part) < len(whole) <= len(cells) // part
        for name in ("fast", "chunks", "duckdb"):
            fixture.assert_same(sums[name], sums["arrays"])
            assert sums[name].lagged.level == whole.level
        # all rows of a (t, s), or none
        rows = {(t, s): n for t, s, n in by_state(cells)}
        assert all(rows[t, s] == n for t, s, n in by_state(whole))
        [gate] = [
            gate
            for gate in rw.evaluate(sums["fast"], estimator=rw.mis()).verdict.gates
            if gate.name == "history"
        ]
        # sums do not hold how episodes go on: history has only what the state before predicts
        assert gate.level == "unknown"
        outcome, _ = History().outcome(rw.evaluate(sums["fast"], estimator=rw.mis()).context())
        assert outcome.p is not None
        assert outcome.share == 1 / 2**whole.level
    assert fast_answers == [True] * 3


def fresh(logs: dict[str, Any]) -> dict[str, Any]:
    """The same logs, which remember no sums."""
    return {
        name: log if name == "arrays" else replace(log, _by_request={})
        for name, log in logs.items()
    }


def by_state(cells: LaggedMoments) -> list[tuple[int, int, int]]:
    groups = group_by([cells.t, cells.s])
    return list(zip(*(key.tolist() for key in groups.keys), groups.sum(cells.n), strict=True))


def test_sites_with_too_many_cells_add_up_to_those_of_the_whole(monkeypatch, tmp_path) -> None:
    rows, reading = simulated(), {"terminated": "terminated", "horizon": 5}
    whole = rw.moments(rw.read_log(rows, **reading), TARGET).lagged
    assert whole is not None
    monkeypatch.setattr(extras, "MOST_LAGGED", len(whole) // 5)
    site = np.asarray(rows.column("episode")) % 16 != 0  # of unequal size
    parts = []
    for i, engine in enumerate(("arrays", "stream")):
        log = rw.read_log(rows.filter(pa.array(site == i)), engine=engine, **reading)
        rw.moments(log, TARGET).save(tmp_path / f"{i}.parquet")
        parts.append(rw.load_moments(tmp_path / f"{i}.parquet"))
    levels = [part.lagged.level for part in parts]
    assert levels[0] < levels[1]
    expected = rw.moments(rw.read_log(rows, **reading), TARGET)
    for added in (parts[0] + parts[1], parts[1] + parts[0]):
        assert added.lagged.level == expected.lagged.level
        assert sorted(by_state(added.lagged), key=str) == sorted(by_state(expected.lagged), key=str)


def test_cells_with_actions_that_no_estimator_asked_for_are_spare(monkeypatch) -> None:
    """On a large log what the gates need of them is held by (t, s, a) alone; where an estimator
    asks for them they are made."""
    for name in ("stream_sums", "sql"):
        monkeypatch.setattr(
            importlib.import_module(f"reweigh.sums.engines.{name}"), "SPARE_CELLS", 100
        )
    logs = engines(simulated(), terminated="terminated")
    in_memory = rw.moments(logs["arrays"], TARGET, ["mis"])
    verdict = rw.evaluate(in_memory, estimator=rw.mis()).verdict
    for name in ("duckdb", "chunks", "fast"):
        made = rw.moments(logs[name], TARGET, ["mis"])
        assert made.kinds == ("transitions",)
        assert made.left_out.keys() == {"model"}
        assert made.lagged is not None
        assert rw.moments(logs[name], TARGET, ["mis", "dm"]).kinds == ("transitions", "model")
        expected = extras.choices_of(in_memory.model)
        fixture.assert_same(
            replace(made, transitions=made.choices, choices=None, left_out={}),
            replace(in_memory, transitions=expected, model=None, start_model=None),
        )
        # the verdict is that of the whole
        fixture.assert_alike(
            rw.evaluate(made, estimator=rw.mis()).verdict.to_dict(), verdict.to_dict()
        )
    # a site that leaves them out adds to one that does not
    other = rw.read_log(simulated(60), terminated="terminated", horizon=5)
    small = rw.moments(other, TARGET, ["mis"])
    for added in (small + made, made + small):
        assert added.kinds == ("transitions",)
        assert added.left_out.keys() == {"model"}
        assert added.n_episodes == 460
        assert added.choices.n.sum() == small.model.n.sum() + made.choices.n.sum()
        unchecked = {gate.name for gate in rw.evaluate(added, estimator=rw.mis()).verdict.unchecked}
        assert "policies" not in unchecked


# --- verdicts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", fixture.VARIANTS)
def test_verdicts_of_the_fixture_are_the_same_on_every_engine(variant: str) -> None:
    logs = engines(fixture.table(variant), **fixture.READING[variant])
    verdicts_agree(logs, fixture.policies(variant)["table"])


def test_verdicts_of_a_simulated_log_are_the_same_on_every_engine() -> None:
    found = verdicts_agree(engines(simulated(), terminated="terminated"), TARGET)
    names = {gate.name for gate in found["wis"].gates if gate.level != "unknown"}
    assert {"drift", "Pareto k"} <= names
    assert "history" in {gate.name for gate in found["mis"].gates if gate.level != "unknown"}


def test_places_are_the_same_on_every_engine() -> None:
    """Of few episodes: some (t, s, a) are rare, others were never seen."""
    found = verdicts_agree(engines(simulated(40), terminated="terminated"), TARGET)
    placed = {
        (name, gate.name): (gate.state is not None, gate.action is not None)
        for name, verdict in found.items()
        for gate in verdict.gates
        if gate.per_step is not None and gate.step is not None
    }
    assert placed["mis", "placebo"] == (False, False)
    assert placed["mis", "rare states"] == (True, False)
    assert placed["dm", "rare states"] == placed["dm", "support"] == (True, True)
    assert placed["ssd-is", "stationarity"] == (True, False)


BY_EPISODES = ("dependence", "decisive episodes")


def verdicts_agree(logs: dict[str, Any], target: rw.Policy) -> dict[str, Any]:
    asked = ["mis", "mis-state", "mis-pooled", "dm", "dm-renorm", "wis", "ssd-is"]
    results = {name: rw.evaluate_all(log, target, asked) for name, log in logs.items()}
    found = {}
    for i, estimator in enumerate(asked):
        expected = results["arrays"][i]
        for name in ("fast", "chunks", "duckdb"):
            mine = results[name][i]
            assert type(mine) is type(expected)
            if isinstance(expected, rw.Estimate):
                # from rows it is no question: the error can be that of the episodes; and only these
                # tell on how many of them it rests
                # and what is in errors is in those of a jackknife where wis is scanned
                apart = (*BY_EPISODES, "rare actions") if estimator == "wis" else BY_EPISODES
                own, rows = (
                    Verdict(tuple(gate for gate in verdict.gates if gate.name not in apart))
                    for verdict in (mine.verdict, expected.verdict)
                )
                fixture.assert_alike(own.to_dict(), rows.to_dict(), name)
                same = results["fast"][i].verdict.to_dict()
                fixture.assert_alike(mine.verdict.to_dict(), same, name)
                found[estimator] = expected.verdict
    assert found
    return found


def test_one_scan_serves_estimates_and_verdicts(monkeypatch) -> None:
    log = streamed(simulated(), terminated="terminated")
    scans = []
    real = type(log.scanner).moments
    monkeypatch.setattr(type(log.scanner), "moments", lambda *args: scans.append(1) or real(*args))
    for result in rw.evaluate_all(log, TARGET, ["mis", "dm", "is"]):
        unchecked = {gate.name for gate in result.verdict.unchecked}
        assert not unchecked & {"propensities", "history", "drift", "Pareto k"}
    assert len(scans) == 1


def test_only_the_products_of_wis_are_scanned_by_blocks(monkeypatch) -> None:
    """Cells by blocks are as many times more; of a large log they would not fit into memory."""
    log = streamed(simulated(), terminated="terminated")
    requests = []
    real = type(log.scanner).moments

    def noted(scanner, data, reading, target, request):
        requests.append(request)
        return real(scanner, data, reading, target, request)

    monkeypatch.setattr(type(log.scanner), "moments", noted)
    names = ["mis", "dm", "is", "wis"]
    found = rw.evaluate_all(log, TARGET, names)
    for result in found:
        unchecked = {gate.name for gate in result.verdict.unchecked}
        assert not unchecked & {"propensities", "history", "drift", "Pareto k"}
    assert [sorted(r.kinds) for r in requests if r.blocks > 1] == [["trajectories"]]
    assert len(requests) == 2
    alone = [rw.evaluate(streamed(simulated(), terminated="terminated"), TARGET, n) for n in names]
    for one, other in zip(found, alone, strict=True):
        assert one.value == pytest.approx(other.value, rel=1e-12)
        assert one.standard_error == pytest.approx(other.standard_error, rel=1e-9)
        mine, theirs = (e.interval(method="jackknife") for e in (one, other))
        assert (mine.low, mine.high) == pytest.approx((theirs.low, theirs.high), rel=1e-9)


def test_merged_sites_have_the_gates_of_the_whole(tmp_path: Path) -> None:
    rows = simulated()
    site = np.asarray(rows.column("episode")) % 3
    reading = {"terminated": "terminated", "horizon": 5}
    files = []
    for i, engine in enumerate(("arrays", "stream", "duckdb")):
        part = rw.read_log(rows.filter(pa.array(site == i)), engine=engine, **reading)
        files.append(str(tmp_path / f"{engine}.parquet"))
        rw.moments(part, TARGET).save(files[-1])
    assert run(["merge", *files, "-o", str(tmp_path / "all.parquet")]) == 0
    merged = rw.load_moments(tmp_path / "all.parquet")
    whole = rw.moments(rw.read_log(rows, **reading), TARGET)
    for estimator in ("mis", "mis-pooled", "dm"):
        verdicts = [rw.evaluate(sums, None, estimator).verdict for sums in (merged, whole)]
        fixture.assert_alike(*(verdict.to_dict() for verdict in verdicts))
    assert merged.largest is not None
    assert merged.largest.n == 400


@pytest.mark.parametrize("parts", [1, 7, 400])
@pytest.mark.parametrize("values", [3, 10**6])
def test_the_largest_weights_are_those_of_a_sort_whatever_the_parts(
    parts: int, values: int
) -> None:
    rng = np.random.default_rng(values)
    log_w = LargestWeights.even(rng.integers(0, values, 20_000) / 7.0)
    log_w[rng.random(len(log_w)) < 0.3] = -np.inf  # products of 0
    tail = LargestSoFar(len(log_w))
    for part in np.array_split(log_w, parts):
        tail.add(part)
    found, whole = tail.total(), LargestWeights.of(log_w)
    assert np.array_equal(found.log_w, whole.log_w)
    assert (found.floor, found.n) == (whole.floor, whole.n)
