"""Gates and verdicts: judged at their limits, worst one wins, what is unknown is told."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import reweigh as rw
from reweigh.cli.app import run
from reweigh.estimate.estimator import Place, Solution
from reweigh.sums.diagnostic_tables import LargestWeights
from reweigh.trust.gates import LIMITS, Context, Gate, GateResult, Limit, Outcome, Verdict
from reweigh.trust.gates.episodes import Drift, Episodes, HiddenStates
from reweigh.trust.gates.gate import Floats
from reweigh.trust.gates.propensities import Propensities
from reweigh.trust.gates.states import History, Steadiness
from reweigh.trust.gates.support import Placebo, RareStates, Support, TotalMass
from reweigh.trust.gates.weights import EffectiveSize, HeaviestEpisode, ParetoK

ESS = np.array([200.0, 150.0, np.nan])


@pytest.mark.parametrize(
    ("limit", "value", "level"),
    [
        (Limit(1, 2), 1, "green"),
        (Limit(1, 2), 1.1, "amber"),
        (Limit(1, 2), 2.1, "red"),
        (Limit(100, 30, above=False), 100, "green"),
        (Limit(100, 30, above=False), 99, "amber"),
        (Limit(100, 30, above=False), 29, "red"),
        (Limit(None, 2), 1.9, "green"),
        (Limit(1, None), 1e9, "amber"),
    ],
)
def test_limits(limit: Limit, value: float, level: str) -> None:
    assert limit.judge(value) == level


SUMS = rw.moments(
    rw.log_from_arrays(
        np.zeros((1, 2), int), np.zeros((1, 1), int), np.ones((1, 1)), np.ones((1, 1))
    ),
    rw.TablePolicy([[1.0]]),
)
ESTIMATED = {"": rw.mis(), "model": rw.dm(), "within states": rw.mis(normalize="state")}


def of(gate: Gate, limits: str = "", n: int = 300, horizon: int = 10, **told: Any) -> GateResult:
    """A gate's answer on a solution that tells this, of n episodes."""
    usual = {"value": 0.0, "standard_error": 1.0, "error_method": "", "per_step": None}
    usual |= {"ess": ESS, "unseen_mass": None, "placebo": float(horizon)}
    start = replace(SUMS.start, n=np.array([n]))
    sums = replace(SUMS, start=start, about=replace(SUMS.about, horizon=horizon))
    context = Context(sums, ESTIMATED[limits], Solution(**(usual | told)))
    result = gate.measure(context)
    assert result is not None
    return result


def tail(k: float | None, n: int, why: str = "") -> GateResult:
    """Pareto k where the fit gave this."""
    largest = LargestWeights(np.zeros(0), -math.inf, n)
    sums = replace(SUMS, largest=largest)
    return ParetoK().measure(Context(sums, shared={"Pareto k": (k, why)}))


def steadiness(outcome: Outcome) -> GateResult:
    return Steadiness().measure(Context(SUMS, shared={"steadiness": outcome}))


def placebo(
    value: float, error: float | None, per_step: Floats | None = None, horizon: int = 10
) -> GateResult:
    told = {"placebo": value, "placebo_error": error, "placebo_by_step": per_step}
    return of(Placebo(), horizon=horizon, **told)


def rare(share: float, ess: Floats = ESS, limits: str = "") -> GateResult:
    return of(RareStates(), limits, ess=ess, rare_mass=share, rare_at=Place(3, 0))


CASES: dict[str, tuple[GateResult, str]] = {
    "all is seen": (of(Support(), unseen_mass=np.zeros(3)), "green"),
    "a little unseen": (of(Support(), unseen_mass=np.array([0.0, 0.02, 0.0])), "amber"),
    "much unseen, in small parts": (of(Support(), "model", unseen_mass=np.full(20, 0.006)), "red"),
    "no distribution": (of(Support()), "unknown"),
    "enough": (of(EffectiveSize()), "green"),
    "few": (of(EffectiveSize(), ess=np.array([99.0, 300.0])), "amber"),
    "too few": (of(EffectiveSize(), ess=np.array([300.0, 3.0])), "red"),
    "none": (of(EffectiveSize(), ess=np.array([np.nan])), "unknown"),
    "a model's rare pairs": (rare(0.21, limits="model"), "red"),
    "unseen by a model": (of(Support(), "model", unseen_mass=np.array([0.0, 0.02])), "red"),
    "none hidden": (of(HiddenStates(), "model"), "green"),
    "rare": (rare(0.02), "amber"),
    "rare, but many effective": (rare(0.2), "amber"),
    "rare, normalized within states": (rare(0.2, limits="within states"), "red"),
    "rare and few": (rare(0.2, np.array([10.0])), "red"),
    "mass": (of(TotalMass(), total_mass=np.array([1.0, 1.05, np.nan])), "green"),
    "mass is a hint only": (of(TotalMass(), total_mass=np.array([1.0, 9.0])), "amber"),
    "no mass": (of(TotalMass()), "unknown"),
    "heavy": (
        of(HeaviestEpisode(), heaviest=np.array([0.5, 0.06]), ess=np.array([40.0, 30.0])),
        "red",
    ),
    "light": (of(HeaviestEpisode(), heaviest=np.array([0.04]), ess=np.array([30.0])), "green"),
    "k": (tail(0.5, 1000), "green"),
    "k of few": (tail(0.5, 50), "amber"),
    "large k": (tail(1.2, 10**6), "red"),
    "no k": (tail(None, 3, "too few"), "unknown"),
    "p": (Propensities().of_outcome(Outcome(0.02)), "green"),
    "small p": (Propensities().of_outcome(Outcome(0.002), "s"), "red"),
    "history": (History().of_outcome(Outcome(0.005), "s"), "amber"),
    "drift never red": (Drift().of_outcome(Outcome(1e-30)), "amber"),
    "steps alike": (steadiness(Outcome(0.6)), "green"),
    "steps perhaps not alike": (steadiness(Outcome(0.4)), "amber"),
    "steps not alike": (steadiness(Outcome(0.14)), "red"),
    "one step": (steadiness(Outcome(None, "one step")), "unknown"),
    "no test": (Drift().of_outcome(Outcome(None, "no order")), "unknown"),
    "placebo": (placebo(10.1, 0.1), "green"),
    "placebo off": (placebo(10.31, 0.1), "amber"),
    "placebo far off": (placebo(10.7, 0.1), "red"),
    "placebo off, no spread": (placebo(5.0, 0.0), "red"),
    "placebo off by rounding": (placebo(9.9999998, 1e-9), "amber"),
    "placebo exact, no spread": (placebo(10.0, 0.0), "green"),
    "placebo without error": (placebo(10.0, None), "unknown"),
    "episodes": (of(Episodes(), n=30), "green"),
    "few episodes": (of(Episodes(), n=29), "amber"),
    "one episode": (of(Episodes(), n=1), "red"),
}


@pytest.mark.parametrize("name", CASES)
def test_levels(name: str) -> None:
    gate, level = CASES[name]
    assert gate.level == level
    assert gate.name in LIMITS
    json.dumps(gate.to_dict(), allow_nan=False)
    assert gate.text
    if level == "unknown":
        assert gate.value is None
    else:
        assert gate.value is not None
        assert math.isfinite(gate.value)
        assert gate.limit
    assert bool(gate.advice) == (level in ("amber", "red"))


def test_places_are_told() -> None:
    gate = of(Support(), unseen_mass=np.array([0.0, 0.3, 0.1]))
    assert gate.step == 1
    assert gate.per_step is not None
    assert "step 1" in gate.text
    assert of(EffectiveSize(), ess=np.array([5.0, 2.0])).step == 1


def test_steadiness_shows_no_p_value() -> None:
    """Red at p = 0.14 reads like a bug: the share of logs that differ less, beside its limit."""
    red = steadiness(Outcome(0.14, state=0))
    assert "more than in 86% of logs where the step does not matter" in red.text
    assert "p =" not in red.sentence
    assert red.to_dict()["value"] == pytest.approx(0.86)
    assert red.to_dict()["limit"] == "amber > 0.5, red > 0.8"
    assert "more than in more" not in steadiness(Outcome(1e-9)).text


def test_drift_tells_its_steps_or_why_not() -> None:
    each = np.array([0.3, 1e-9])
    moved = Drift().of_outcome(Outcome(1e-5, per_step=each, step=1))
    assert moved.text.endswith(" earned differently (p = 1e-05), strongest at step 1")
    assert moved.to_dict()["per_step"] == [0.3, 1e-9]
    steady = Drift().of_outcome(Outcome(0.3, per_step=each, step=1))
    assert "step" not in steady.text
    untold = Drift().of_outcome(Outcome(0.3, "no such sums"))
    assert untold.text.endswith("earned the same (p = 0.3; not available by step: no such sums)")


def test_the_worst_gate_is_the_verdict() -> None:
    found = {name: gate for name, (gate, _) in CASES.items()}
    green, amber, red, unknown = (
        found[name] for name in ("enough", "few", "too few", "no distribution")
    )
    assert Verdict(()).level == "green"
    assert Verdict((green, unknown)).level == "green"
    assert Verdict((green, amber)).level == "amber"
    hint = found["mass is a hint only"]
    assert Verdict((green, hint)).level == "green"
    assert Verdict((green, hint)).reasons == ()
    verdict = Verdict((amber, green, red, unknown))
    assert verdict.level == "red"
    assert verdict.reasons == (red, amber)
    assert verdict.unchecked == ()  # it has nothing to speak of
    untested = Drift().unknown("the log has no order")
    assert Verdict((green, unknown, untested)).unchecked == (untested,)
    assert str(verdict) == "red: effective size, effective size"
    assert str(Verdict((green,))) == "green"
    assert verdict.to_dict()["level"] == "red"


def test_a_placebo_that_is_off_tells_where() -> None:
    each = np.array([1.0, 0.4, 1.1])
    assert placebo(2.5, 0.1, each, 3).text.endswith(", furthest off at step 1")
    assert "step" not in placebo(2.95, 0.1, each, 3).text  # green
    exact = placebo(3.0, 0.1, np.ones(3), 3)
    assert (exact.step, exact.per_step.tolist()) == (None, [1.0, 1.0, 1.0])


@pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
def test_support_names_the_state_that_has_no_rows() -> None:
    """Every third episode is cut off in the state "far", of which no row tells more."""
    n = 90
    cut = np.arange(n) % 3 == 0
    columns = {
        "episode": np.repeat(np.arange(n), 2),
        "step": np.tile([0, 1], n),
        "state": ["near"] * (2 * n),
        "next_state": np.where(np.repeat(cut, 2), "far", "near").tolist(),
        "action": np.tile([0, 1], n),
        "reward": np.arange(2.0 * n),
        "behavior_prob": np.full(2 * n, 0.5),
        "pi": np.full(2 * n, 0.5),
        "truncated": np.repeat(cut, 2),
    }
    kept = ~(np.repeat(cut, 2) & (columns["step"] == 1))
    table = {name: np.asarray(values)[kept].tolist() for name, values in columns.items()}
    log = rw.read_log(
        pa.table(table), next_state="next_state", truncated="truncated", target_prob="pi"
    )
    found = {gate.name: gate for gate in rw.evaluate(log, rw.ColumnPolicy("pi"), rw.mis()).gates}
    support = found["support"]
    assert (support.level, support.step, support.state) == ("red", 1, "far")
    assert support.value == pytest.approx(1 / 3)


def test_few_episodes_are_amber_to_what_normalizes_within_states() -> None:
    assert of(Episodes(), n=200).level == "green"
    assert of(Episodes(), "within states", n=200).level == "amber"
    assert of(Episodes(), "within states", n=300).level == "green"
    assert rw.mis(normalize="state").limits == "within states"
    assert rw.mis().limits == "states"
    assert rw.mis(normalize="none").limits == "plain"
    assert rw.mdr().limits == "states"


def test_a_mass_that_is_1_but_for_rounding_has_no_worst_step() -> None:
    """Engines add up in other orders: each would name another step."""
    found = of(TotalMass(), total_mass=np.array([1.0, 1 + 1e-15, 1 - 1e-15]))
    assert (found.level, found.value, found.step) == ("green", 0.0, None)
    off = of(TotalMass(), total_mass=np.array([1.0, 1.2, 1.0]))
    assert (off.level, off.step) == ("amber", 1)


# --- what could not be checked stands beside the verdict


def episodes_of(ids: list[object]) -> pa.Table:
    """As many episodes of two steps as there are ids."""
    rng, n = np.random.default_rng(0), len(ids)
    s, a = rng.integers(0, 2, 2 * n), rng.integers(0, 2, 2 * n)
    columns = {
        "episode": np.repeat(np.array(ids), 2),
        "step": np.tile([0, 1], n),
        "state": s,
        "action": a,
        "reward": s + rng.normal(size=2 * n),
        "behavior_prob": np.full(2 * n, 0.5),
        "pi": np.array([0.4, 0.6])[a],
    }
    return pa.table(columns)


def cut_off(table: pa.Table) -> pa.Table:
    """Every fourth episode was cut off after its first step."""
    step, episode = table["step"].to_numpy(), table["episode"].to_numpy()
    whole = episode % 4 > 0
    return table.append_column("truncated", [~whole]).filter(pa.array(whole | (step == 0)))


NO_NUMBERS = (
    "the log has no order: the episode ids are not whole numbers (as text: 18 digits at most, "
    "no leading 0)"
)
UNORDERED = {
    "texts": (episodes_of([f"e{k}" for k in range(1000)]), NO_NUMBERS),
    "leading zeros": (episodes_of([f"{k:04}" for k in range(1000)]), NO_NUMBERS),
    "texts of 19 digits": (episodes_of([str(2**60 + k) for k in range(1000)]), NO_NUMBERS),
    "cut off": (
        cut_off(episodes_of(list(range(1000)))),
        "the log has no order: some episodes were cut off, so their returns are unknown",
    ),
}


@pytest.mark.filterwarnings("ignore::reweigh.SelectionWarning")
@pytest.mark.parametrize("engine", ["arrays", "stream", "duckdb"])
@pytest.mark.parametrize("kind", UNORDERED)
def test_a_log_without_an_order_says_so_beside_its_verdict(kind: str, engine: str) -> None:
    table, why = UNORDERED[kind]
    log = rw.read_log(table, engine=engine, truncated="truncated" if kind == "cut off" else None)
    estimate = rw.evaluate(log, rw.ColumnPolicy("pi"), rw.mis())
    verdict = estimate.verdict
    assert [gate.name for gate in verdict.unchecked if gate.name == "drift"] == ["drift"]
    assert verdict.to_dict()["unchecked"]["drift"].startswith(why)
    assert f"drift ({why}" in " ".join(str(estimate).split("not checked", 1)[1].split())
    if kind == "texts":
        assert verdict.level == "green"


@pytest.mark.parametrize("engine", ["arrays", "duckdb"])
def test_the_command_and_the_report_say_so_too(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, why = UNORDERED["texts"]
    pq.write_table(table, tmp_path / "log.parquet")
    call = ["evaluate", str(tmp_path / "log.parquet"), "--target-prob", "pi", "--engine", engine]
    page = tmp_path / "out.html"
    assert run([*call, "--explain", "--report", str(page)]) == 0
    assert f"not checked: drift ({why})" in capsys.readouterr().out
    beside = page.read_text("utf-8").split("verdict: green", 1)[1].split("</section>", 1)[0]
    assert f"Not checked: drift ({why})." in beside
    assert run([*call, "--quiet"]) == 0
    assert f"not checked: drift ({why})" in capsys.readouterr().err
    assert run([*call, "--json"]) == 0
    entry = json.loads(capsys.readouterr().out)["estimates"][0]
    assert entry["unchecked"].pop("drift") == why
    assert list(entry["unchecked"]) == ["unseen events"]  # no range is declared


def test_a_comparison_says_so_too() -> None:
    table, why = UNORDERED["texts"]
    targets = {"a": rw.ColumnPolicy("pi"), "b": rw.TablePolicy([[0.7, 0.3]] * 2)}
    found = rw.compare(rw.read_log(table), targets, ["mis"], seed=1)
    assert f"all: not checked: drift ({why})" in found.remarks()


@pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
@pytest.mark.parametrize("name", ["mis", "mis-plain", "mis-state", "wis", "is"])
def test_ratios_beyond_all_measure_are_red_and_no_number_is_told(name: str) -> None:
    """Their placebo has no error that a number could hold, and needs none."""
    rng = np.random.default_rng(0)
    action = rng.integers(0, 2, (200, 3))
    mu = np.where(action == 1, 1e-200, 1.0)
    given = rng.integers(0, 2, (200, 4)), action, rng.random((200, 3)), mu, np.full((200, 3), 0.5)
    target = rw.ColumnPolicy("target_prob")
    [found] = rw.evaluate_all(rw.log_from_arrays(*given), target, [name])
    if isinstance(found, rw.Refusal):
        return
    assert "placebo" in {gate.name for gate in found.verdict.reasons}
    assert found.verdict.level == "red"
    assert not re.search(r"\b(inf|nan)\b", str(found))
    json.dumps(found.to_dict(), allow_nan=False)
