"""Influence values by a second scan: the same verdict, gain and cluster error on every engine that
can scan a log twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import golden
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import reweigh as rw
from reweigh.evaluation.beside import disagreement
from reweigh.evaluation.uncertainty import BEHAVIOR
from reweigh.kernels import compiled
from reweigh.sums import gather
from reweigh.sums.engines import second_scan, stream
from reweigh.worlds import random_mdp

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
ENGINES = ("arrays", "stream", "duckdb")
CASES = ("complete", "ragged", "hidden", "cut", "continuous", "zeros", "coarse column")


def told(result: rw.Estimate) -> dict[str, Any]:
    """What an estimate says by its influence values: numbers and words, refusals among these."""
    numbers: dict[str, float] = {}
    words: dict[str, Any] = {"verdict": result.verdict.level}
    for gate in result.verdict.gates:
        words[gate.name] = gate.level
        if gate.name == "decisive episodes" and gate.value is not None:
            numbers[gate.name] = gate.value
    try:
        numbers["cluster"] = result.uncertainty.cluster_error()
    except rw.RefusedError as error:
        words["cluster"] = str(error)
    try:
        gain = result.gain()
        numbers |= {"gain": gain.value, "error": gain.standard_error, "p": gain.p_value}
    except rw.RefusedError as error:
        words["gain"] = str(error)
    return {"numbers": numbers, "words": words}


@pytest.mark.parametrize("case", CASES)
def test_every_engine_says_the_same(case: str, tmp_path: Path) -> None:
    chosen = golden.cases()[case]
    answers: dict[str, dict[str, Any]] = {}
    for engine in ENGINES:
        log = chosen.log(engine, tmp_path)
        for result in rw.evaluate_all(log, chosen.target, list(rw.ESTIMATORS)):
            if isinstance(result, rw.Estimate):
                answers.setdefault(result.estimator, {})[engine] = told(result)
    scanned = {name: of for name, of in answers.items() if len(of) == len(ENGINES)}
    assert len(scanned) >= 6
    for name, of in scanned.items():
        for engine in ENGINES[1:]:
            numbers, words = of["arrays"]["numbers"], of["arrays"]["words"]
            assert of[engine]["words"] == words, (name, engine)
            assert of[engine]["numbers"] == pytest.approx(numbers, rel=1e-9, abs=1e-12), name


def table_of(rewards: np.ndarray, seed: int = 0) -> pa.Table:
    """Episodes of random states and actions, of which the target does what the log did."""
    rng, shape = np.random.default_rng(seed), rewards.shape
    mu = np.full(shape, 0.5)
    log = rw.log_from_arrays(
        rng.integers(0, 2, (shape[0], shape[1] + 1)), rng.integers(0, 2, shape), rewards, mu
    )
    return log.to_table()


TARGET = rw.TablePolicy({s: {0: 0.3, 1: 0.7} for s in (0, 1)})


@pytest.mark.parametrize("name", ["mis", "dm", "wis", "mdr", "mis-pooled"])
def test_one_absurd_reward_is_red_on_every_engine(name: str, tmp_path: Path) -> None:
    reward = np.random.default_rng(0).random((400, 3))
    reward[17, 1] = 1e5
    pq.write_table(table_of(reward), tmp_path / "log.parquet")
    for engine in ENGINES:
        found = rw.evaluate(rw.read_log(tmp_path / "log.parquet", engine=engine), TARGET, name)
        [gate] = [g for g in found.verdict.gates if g.name == "decisive episodes"]
        assert (gate.level, found.verdict.level) == ("red", "red"), engine
        assert "about 1 episode: episode 17 contributes" in gate.text


@pytest.mark.parametrize("engine", ["stream", "duckdb"])
def test_rows_in_any_order_too(engine: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    table = table_of(rng.random((300, 4)))
    expected = told(rw.evaluate(rw.read_log(table), TARGET, "mis"))
    shuffled = table.take(pa.array(rng.permutation(table.num_rows)))
    pq.write_table(shuffled, tmp_path / "log.parquet")
    log = rw.read_log(tmp_path / "log.parquet", engine=engine, next_state="next_state")
    found = told(rw.evaluate(log, TARGET, "mis"))
    assert found["numbers"] == pytest.approx(expected["numbers"], rel=1e-9)
    assert len(found["numbers"]) == 5


def test_a_policy_that_sees_more_than_the_state(tmp_path: Path) -> None:
    """A model's shares are then means over all rows, through which a row moves the value too."""
    case = golden.cases()["coarse function"]
    pq.write_table(case.table, tmp_path / "log.parquet")
    answers = []
    for engine in ("arrays", "stream"):
        log = rw.read_log(tmp_path / "log.parquet", engine=engine, **case.reading)
        results = rw.evaluate_all(log, case.target, ["dm", "dm-renorm", "mis", "mdr"])
        assert all(isinstance(result, rw.Estimate) for result in results)
        answers.append([result.uncertainty.cluster_error() for result in results])
    assert answers[1] == pytest.approx(answers[0], rel=1e-9)


def test_one_scan_is_for_all_estimators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scans = []
    visit = second_scan.visit_episodes

    def counted(*given: Any) -> None:
        scans.append(1)
        visit(*given)

    monkeypatch.setattr(second_scan, "visit_episodes", counted)
    pq.write_table(table_of(np.random.default_rng(2).random((200, 3))), tmp_path / "log.parquet")
    log = rw.read_log(tmp_path / "log.parquet", engine="stream")
    results = rw.evaluate_all(log, TARGET, ["mis", "dm", "wis", "mis-pooled"])
    assert not scans  # values and their errors need none
    for result in results:
        assert isinstance(result, rw.Estimate)
        _ = result.verdict, result.gain(), result.interval(method="cluster")
    disagreement(results)
    assert len(scans) == 1


def test_differences_of_estimators_have_the_same_joint_errors(tmp_path: Path) -> None:
    """An estimator that is far off: the words, with the joint error, are the same."""
    rng = np.random.default_rng(3)
    reward = rng.normal(size=(500, 3)) + np.arange(3)
    table = table_of(reward)
    pq.write_table(table, tmp_path / "log.parquet")
    texts = []
    by_engine = []
    for engine in ENGINES:
        log = rw.read_log(tmp_path / "log.parquet", engine=engine)
        results = rw.evaluate_all(log, TARGET, ["mis", "ssd-is", "mis-pooled", "wis", "is"])
        texts.append(disagreement(results))
        first, *others = [
            result.uncertainty for result in results if isinstance(result, rw.Estimate)
        ]
        by_engine.append([first.joint_error(other) for other in others])
        assert by_engine[-1] == pytest.approx(by_engine[0], rel=1e-9)
    assert texts[1:] == texts[:1] * 2


def test_the_behavior_itself_gains_nothing(tmp_path: Path) -> None:
    """Where ψ of the target and of the behavior are equal, rounding is no error."""
    pq.write_table(table_of(np.random.default_rng(4).random((200, 3))), tmp_path / "log.parquet")
    same = rw.TablePolicy({s: {0: 0.5, 1: 0.5} for s in (0, 1)})
    for engine in ENGINES:
        log = rw.read_log(tmp_path / "log.parquet", engine=engine)
        gain = rw.evaluate(log, same, "mis").gain()
        assert (gain.value, gain.standard_error, gain.p_value) == (0, 0, 1)


def test_a_log_that_changed_meanwhile_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(table_of(np.random.default_rng(5).random((200, 3))), path)
    estimate = rw.evaluate(rw.read_log(path, engine="stream"), TARGET, "mis")
    pq.write_table(table_of(np.random.default_rng(6).random((150, 3))), path)
    with pytest.raises(rw.ReweighError, match="changed"):
        estimate.gain()


@pytest.mark.parametrize("batch", [7, 1000])
@pytest.mark.parametrize("name", ["mis", "mis-plain", "mis-state", "dm", "mis-pooled"])
def test_the_compiled_second_scan_is_the_general_one(
    name: str, batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Integer labels and ids, episodes that end early, rows that wait for the next batch."""
    world = random_mdp(5, n_states=5, n_actions=2, horizon=6, terminal=1, discount=0.9)
    pq.write_table(world.simulate(300, 2).to_table(), tmp_path / "log.parquet")
    monkeypatch.setattr(stream.StreamEngine, "batch", batch)
    used: list[bool] = []
    by_rows = gather._gathered_by_rows
    monkeypatch.setattr(
        gather, "_gathered_by_rows", lambda *given: used.append(True) or by_rows(*given)
    )
    spreads = []
    for rows in (0, 10**18):
        with compiled(rows):
            log = rw.read_log(
                tmp_path / "log.parquet", engine="stream", discount=0.9, terminated="terminated"
            )
            estimate = rw.evaluate(log, world.target, name)
            spread, apart = (estimate.uncertainty.spread(m) for m in (None, BEHAVIOR))
        spreads.append([spread, apart])
    assert any(used)
    for quick, general in zip(*spreads, strict=True):
        assert (quick.n, quick.episode) == (general.n, general.episode)
        for field in ("top", "second", "third"):
            assert getattr(quick, field) == pytest.approx(getattr(general, field), rel=1e-9)


def test_other_labels_and_estimators_too(tmp_path: Path) -> None:
    table = table_of(np.random.default_rng(0).normal(size=(200, 3)))
    texts = table.set_column(
        table.column_names.index("state"), "state", pc.cast(table["state"], pa.string())
    )
    for made, names in ((texts, ["mis"]), (table, ["mis", "wis"])):
        answers = []
        for engine in ("arrays", "stream"):
            pq.write_table(made, tmp_path / "log.parquet")
            with compiled():
                log = rw.read_log(tmp_path / "log.parquet", engine=engine)
                answers.append([told(result) for result in rw.evaluate_all(log, TARGET, names)])
        for one, other in zip(*answers, strict=True):
            assert one["words"] == other["words"]
            assert one["numbers"] == pytest.approx(other["numbers"], rel=1e-9, abs=1e-12)


def test_rows_in_no_order_are_scanned_again_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the compiled loops have begun with them: they leave the whole log to DuckDB."""
    monkeypatch.setattr(stream.StreamEngine, "batch", 50)
    table = table_of(np.random.default_rng(0).normal(size=(200, 3)))
    order = np.r_[np.arange(300), 300 + np.random.default_rng(1).permutation(300)]
    answers = []
    for engine, rows in (("arrays", table), ("stream", table.take(order))):
        pq.write_table(rows, tmp_path / f"{engine}.parquet")
        with compiled():
            log = rw.read_log(tmp_path / f"{engine}.parquet", engine=engine)
            answers.append(told(rw.evaluate(log, TARGET, "mis")))
    assert answers[1]["words"] == answers[0]["words"]
    assert answers[1]["numbers"] == pytest.approx(answers[0]["numbers"], rel=1e-9, abs=1e-12)
