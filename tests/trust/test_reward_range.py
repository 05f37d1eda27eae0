"""A value that the logged rewards do not allow: refused, amber, or said of estimators that may."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

import reweigh as rw
from reweigh.cli.app import run
from reweigh.estimate.estimator import Solution
from reweigh.evaluation.evaluate import evaluate_in_study
from reweigh.trust.gates import Context, GateResult
from reweigh.trust.gates.support import Allowed, RewardRange, value_range

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
UNBOUNDED = {"is", "trajectory-is", "mis-plain"}
TARGET = rw.TablePolicy({"a": {0: 0.2, 1: 0.8}})


def table(n: int = 60, factor: float = 1.0, seed: int = 0) -> pa.Table:
    """Rewards of 1 over 3 steps; propensities that are too small by a factor."""
    rng = np.random.default_rng(seed)
    action = rng.integers(0, 2, 3 * n)
    return pa.table(
        {
            "episode": np.repeat(np.arange(n), 3),
            "step": np.tile(np.arange(3), n),
            "state": np.full(3 * n, "a"),
            "action": action,
            "reward": np.ones(3 * n),
            "behavior_prob": np.full(3 * n, 0.5 * factor),
        }
    )


def gate_of(estimate: rw.Estimate):
    return next(gate for gate in estimate.verdict.gates if gate.name == "reward range")


def test_the_range_is_that_of_the_rewards_times_the_steps() -> None:
    assert value_range((1.0, 2.0), False, 3, 1.0) == (3.0, 6.0)
    assert value_range((1.0, 2.0), True, 3, 1.0) == (0.0, 6.0)  # END earns 0
    assert value_range((-2.0, -1.0), True, 2, 0.5) == (-3.0, 0.0)


def test_only_weights_that_nothing_normalizes_may_exceed_it() -> None:
    assert {name for name, make in rw.ESTIMATORS.items() if make().may_exceed_rewards} == UNBOUNDED


ALLOWED = Allowed((0.0, 1.0), (0.0, 10.0), 10, False)


def of_range(value: float, error: float | None, estimator: rw.Recipe) -> GateResult:
    none = np.zeros(10)
    solution = Solution(value, error, "", None, none + 100, none, 10.0, 1.0)
    target = rw.TablePolicy([[0.5, 0.5]])
    log = rw.log_from_arrays(
        np.zeros((4, 11), int), np.zeros((4, 10), int), np.ones((4, 10)), np.full((4, 10), 0.5)
    )
    context = Context(rw.moments(log, target), estimator, solution, error=error)
    return RewardRange().of_range(context, ALLOWED)


@pytest.mark.parametrize(
    ("value", "error", "level"),
    [
        (10.0, 1.0, "green"),
        (0.0, None, "green"),
        (10.0 + 5e-9, None, "green"),  # rounding
        (10.5, 1.0, "amber"),
        (-3.9, 1.0, "amber"),
        (14.1, 1.0, "refused"),
        (-4.1, 1.0, "refused"),
        (10.1, None, "refused"),
    ],
)
def test_levels(value: float, error: float | None, level: str) -> None:
    if level == "refused":
        with pytest.raises(rw.RefusedError, match="that the logged rewards allow") as caught:
            of_range(value, error, rw.mis())
        assert caught.value.code == "out-of-range"
    else:
        assert of_range(value, error, rw.mis()).level == level
    said = of_range(value, error, rw.is_())
    assert said.level == "green"
    assert ("can leave the range" in said.text) == (level != "green")


def test_evaluate_refuses_and_studies_do_not() -> None:
    """Ratios twice as large as they should be give 3 · 2 by mis, and each step more by dr."""
    log = rw.read_log(table(factor=0.5))
    refused = rw.evaluate_all(log, TARGET, ["mis", "mis-state", "wis", "is"])
    assert isinstance(refused[0], rw.Refusal)
    assert refused[0].error.code == "out-of-range"
    assert "every policy earns 3" in str(refused[0].error)
    for estimate in refused[1:3]:
        assert isinstance(estimate, rw.Estimate)
        assert estimate.value == pytest.approx(3)
    assert isinstance(refused[3], rw.Estimate)
    assert "can leave the range" in gate_of(refused[3]).text
    [value] = rw.point_values(log, TARGET, ["mis"])
    [studied] = evaluate_in_study(log, TARGET, ["mis"])
    assert isinstance(studied, rw.Estimate)
    assert studied.value == pytest.approx(value)
    with pytest.raises(rw.RefusedError, match="above the range that the logged rewards allow"):
        rw.evaluate(log, TARGET, rw.mis())


def test_right_propensities_are_amber_at_the_edge() -> None:
    """MIS is 3 but for the luck of the actions: outside, by less than its error explains."""
    estimate = rw.evaluate(rw.read_log(table(seed=1)), TARGET, rw.mis())
    found = gate_of(estimate)
    assert estimate.value != pytest.approx(3, rel=1e-6)
    assert found.level == "amber"
    assert estimate.verdict.level != "green"


@pytest.mark.parametrize("engine", ["arrays", "stream", "duckdb"])
def test_every_engine_knows_the_range(engine: str, tmp_path: Path) -> None:
    """With episodes that end early, and rows beyond the horizon, which do not count."""
    rng = np.random.default_rng(0)
    n, steps = 40, 4
    reward = rng.normal(size=(n, steps))
    reward[:, 3] = 100.0
    columns = {
        "episode": np.repeat(np.arange(n), steps),
        "step": np.tile(np.arange(steps), n),
        "state": np.full(n * steps, "a"),
        "action": rng.integers(0, 2, n * steps),
        "reward": reward.reshape(-1),
        "behavior_prob": np.full(n * steps, 0.5),
    }
    path = tmp_path / "log.csv"
    pyarrow.csv.write_csv(pa.table(columns), path)
    log = rw.read_log(path, horizon=3, short_episodes="terminal", engine=engine)
    sums = rw.moments(log, TARGET, ["mis"])
    assert sums.rewards == (reward[:, :3].min(), reward[:, :3].max())
    sums.save(tmp_path / "sums.parquet")
    assert rw.load_moments(tmp_path / "sums.parquet").rewards == sums.rewards
    assert (sums.without(0) if sums.about.blocks > 1 else sums).rewards == sums.rewards


def test_merged_sums_have_the_wider_range() -> None:
    first, second = table(), table(seed=1)
    second = second.set_column(0, "episode", pa.array(np.repeat(np.arange(100, 160), 3)))
    second = second.set_column(4, "reward", pa.array(np.full(180, -2.0)))
    both = rw.moments(rw.read_log(first), TARGET) + rw.moments(rw.read_log(second), TARGET)
    assert both.rewards == (-2.0, 1.0)


def test_the_command_exits_with_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, policy = tmp_path / "log.csv", tmp_path / "policy.csv"
    pyarrow.csv.write_csv(table(factor=0.5), log)
    pyarrow.csv.write_csv(TARGET.to_table(), policy)
    assert run(["evaluate", str(log), "--target", str(policy), "--estimators", "mis"]) == 4
    assert "that the logged rewards allow" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("name", ["dm", "dm-renorm"])
def test_the_placebo_is_a_gate_of_models_too(name: str) -> None:
    """Mass that a model lacks, with words of its own: the log shows one of two actions only."""
    data = table()
    shown = data.set_column(3, "action", pa.array(np.zeros(len(data), np.int64)))
    shown = shown.set_column(5, "behavior_prob", pa.array(np.full(len(data), 0.5)))
    [found] = evaluate_in_study(rw.read_log(shown), TARGET, [name])
    assert isinstance(found, rw.Estimate)
    placebo = next(gate for gate in found.verdict.gates if gate.name == "placebo")
    assert placebo.level == "red"
    assert "mass is too small" in placebo.text
    assert "does not have there" in placebo.advice
    [fine] = evaluate_in_study(rw.read_log(data), TARGET, [name])
    placebo = next(gate for gate in fine.verdict.gates if gate.name == "placebo")
    assert placebo.level == "green"


def test_the_placebo_has_words_for_both_directions() -> None:
    """Propensities that are too small gain mass, those that are too large lose it."""
    for factor, word in ((0.5, "mass is too large"), (1.6, "mass is too small")):
        [found] = evaluate_in_study(rw.read_log(table(600, factor)), TARGET, ["mis-plain"])
        assert isinstance(found, rw.Estimate)
        placebo = next(gate for gate in found.verdict.gates if gate.name == "placebo")
        assert placebo.level == "red"
        assert word in placebo.text
