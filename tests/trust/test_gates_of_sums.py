"""Gates of a log and target: which speak of which estimator, and that they see what they should."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from reweigh_studies.coverage.faults import FAULTS, Grid
from reweigh_studies.coverage.worlds import WORLDS

import reweigh as rw
from reweigh.evaluation.evaluate import evaluate_in_study
from reweigh.log.states import HIDDEN
from reweigh.sums.engines import ArraysEngine
from reweigh.trust.gates import GATES, Context, GateResult, measured, tables_needed

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")


def gates_of(log: rw.EpisodeLog, target: rw.Policy) -> dict[str, GateResult]:
    sums = ArraysEngine().moments(log, target, tables_needed(None))
    return {gate.name: gate for gate in measured("sums", Context(sums))}


def study_log(name: str, n: int, seed: int = 0) -> tuple[rw.EpisodeLog, rw.Policy]:
    return WORLDS[name].log(n, np.random.default_rng(seed))


def test_policies_that_look_at_more_than_the_state_are_seen() -> None:
    """Two of the true states look the same in this log, and both policies tell them apart."""
    log, target = study_log("coarse-better", 500)
    found = gates_of(log, target)["policies"]
    assert found.level == "red"
    assert found.step is not None
    assert found.state is not None
    assert found.action is not None
    # the same by hand: the spread of the ratios within (t, s, a)
    steps = log.steps
    rho = target.probabilities(log) / steps.behavior_prob
    keys = np.stack([steps.step, steps.state, steps.action], axis=1)
    _, where = np.unique(keys, axis=0, return_inverse=True)
    mean = np.bincount(where, rho) / np.bincount(where)
    expected = np.sqrt(np.sum((rho - mean[where]) ** 2) / np.sum(rho**2))
    assert found.value == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", ["default", "hidden", "modelfail-10", "icu-better", "bandit"])
def test_policies_of_the_state_are_not_suspected(name: str) -> None:
    """Hidden states aside: there the ratios differ, and the log says so."""
    found = gates_of(*study_log(name, 300))["policies"]
    assert (found.level, found.value) == ("green", 0.0)


@pytest.mark.parametrize("sums", [False, True])
def test_a_log_without_any_observed_state_is_told(sums: bool) -> None:
    rng = np.random.default_rng(0)
    states = np.ma.masked_all((60, 3), int)
    actions, rewards = rng.integers(0, 2, (60, 3)), rng.random((60, 3))
    log = rw.log_from_arrays(states, actions, rewards, np.full((60, 3), 0.5), hidden="allow")
    target = rw.TablePolicy({None: {0: 0.4, 1: 0.6}})
    used = rw.moments(log, target) if sums else log
    for name in ("ssd-is", "mis", "dm"):
        verdict = rw.evaluate(used, None if sums else target, name).verdict
        gates = {g.name: g for g in verdict.gates}
        assert gates["policies"].text == "no state is observed"
        assert gates.get("steadiness", gates["policies"]).level == "unknown"


@pytest.mark.parametrize("size", [1e160, 1e300, 1e-162])
@pytest.mark.parametrize("sums", [False, True])
def test_rewards_whose_squares_no_number_holds_are_told(sums: bool, size: float) -> None:
    log, target = study_log("default", 100)
    log = log.with_rewards(size * log.steps.reward, np.zeros(100))
    with np.errstate(over="ignore"):
        used = rw.moments(log, target) if sums else log
    for name in ("mis", "dm", "ssd-is"):
        found = rw.evaluate(used, None if sums else target, name)
        gates = {g.name: g for g in found.verdict.gates}
        assert found.verdict.level != "green"
        for gate in {"history", "steadiness", "drift"} & set(gates):
            assert gates[gate].level == "unknown"
            assert "overflow" in gates[gate].text
        if sums and size > 1:
            assert "it is unknown whether" in gates["dependence"].text
        if size > 1:
            assert "not known" in " ".join(str(found).split())
            with pytest.raises(rw.RefusedError, match="overflow"):
                found.gain()
        assert not re.search(r"\b(nan|inf)\b", f"{found} {found.verdict.gates}")
        json.dumps(found.to_dict(), allow_nan=False)


def test_no_two_continuous_actions_are_alike() -> None:
    found = gates_of(*study_log("timevarying-16", 100))
    assert found["policies"].level == "unknown"
    assert found["fitted values"].level == "unknown"


def test_fitted_values_are_the_mass_on_what_is_seldom_seen() -> None:
    """One step, one state: the target's probability of the actions seen fewer than 10 times."""
    actions = np.repeat([0, 1, 2], [50, 9, 1])[:, None]
    states = np.zeros((60, 2), int)
    log = rw.log_from_arrays(states, actions, np.ones((60, 1)), np.full((60, 1), 0.25))
    target = rw.TablePolicy({0: {0: 0.6, 1: 0.2, 2: 0.1, 3: 0.1}})
    found = gates_of(log, target)["fitted values"]
    assert found.value == pytest.approx(0.2 + 0.1 + 0.1)
    assert found.level == "red"


def test_the_models_rare_mass_counts_actions() -> None:
    """The same log: what DM and MIS call rare, by the compiled way and over sums."""
    actions = np.repeat([0, 1, 2], [150, 9, 41])[:, None]
    states = np.zeros((200, 2), int)
    log = rw.log_from_arrays(states, actions, np.ones((200, 1)), np.full((200, 1), 1 / 3))
    target = rw.TablePolicy({0: {0: 0.7, 1: 0.2, 2: 0.1}})
    by_hand = {"dm": 0.2, "mis": 0.0}
    sums = rw.moments(log, target)
    for name, expected in by_hand.items():
        for data, policy in ((log, target), (sums, None)):
            [found] = evaluate_in_study(data, policy, [name])  # actions are no draws from 1/3 here
            assert isinstance(found, rw.Estimate)
            rare = found.diagnostics.rare_mass
            assert rare == pytest.approx(expected, abs=1e-12)


def test_estimated_propensities_are_told() -> None:
    log, target = study_log("fitted", 500)
    found = gates_of(log, target)
    assert found["estimated propensities"].level == "amber"  # sums do not know the fit
    assert "ignores" in found["estimated propensities"].text
    assert found["propensities"].level == "unknown"
    from_rows = {gate.name: gate for gate in rw.evaluate(log, target, rw.mis()).verdict.gates}
    assert from_rows["estimated propensities"].level == "green"
    assert from_rows["propensities"].level == "green"  # that the step does not matter
    part = log.select(np.arange(500) % 5 > 0)  # counted in other episodes too
    assert rw.evaluate(part, target, rw.mis()).verdict.level == "amber"
    spoken = {gate.name for gate in rw.evaluate(log, target, "dm").verdict.gates}
    assert "estimated propensities" not in spoken  # it uses none
    assert gates_of(*study_log("default", 100))["estimated propensities"].level == "green"


SPEAKS = {
    "propensities": {"mis", "mis-pooled", "dm", "is", "dr", "dr-crossfit", "mdr", "ssd-is"},
    "estimated propensities": {"mis", "mis-pooled", "is", "dr", "dr-crossfit", "mdr", "ssd-is"},
    "policies": {"mis", "mis-pooled", "dm", "dr", "dr-crossfit", "mdr", "ssd-is"},
    "hidden policies": {"dr", "dr-crossfit", "mdr"},
    "fitted values": {"dr"},
    "history": {"mis", "mis-pooled", "dm", "mdr", "ssd-is"},
    "steadiness": {"mis-pooled", "ssd-is"},
    "drift": {"mis", "mis-pooled", "dm", "is", "dr", "dr-crossfit", "mdr", "ssd-is"},
    "marginal size": {"is", "dr", "dr-crossfit"},
    "marginal support": {"is", "dr", "dr-crossfit"},
    "Pareto k": {"is", "dr", "dr-crossfit"},
}


def test_which_gate_concerns_which_estimator() -> None:
    rules = {gate.name: gate for gate in GATES}
    assert set(SPEAKS) <= set(gates_of(*study_log("default", 200)))
    for name in ("mis", "mis-pooled", "dm", "is", "dr", "dr-crossfit", "mdr", "ssd-is"):
        traits = rw.estimator(name).traits
        concerned = {gate for gate in SPEAKS if rules[gate].concerns(traits)}
        assert concerned == {gate for gate, of in SPEAKS.items() if name in of}


@pytest.mark.parametrize("name", ["mis", "mis-pooled", "is", "wis", "dr", "dm", "mdr", "ssd-is"])
@pytest.mark.parametrize("world", ["none", "none-long"])
def test_a_log_without_overlap_is_red_for_every_estimator(name: str, world: str) -> None:
    """Actions that the target takes and the log cannot show: there is much of everything else."""
    log, target = study_log(world, 5000)
    [found] = rw.evaluate_all(log, target, [name])
    assert isinstance(found, rw.Refusal) or found.verdict.level == "red"


def test_the_support_of_products_is_that_of_the_marginal_weights() -> None:
    log, target = study_log("none", 1000)
    own = {g.name: g for g in rw.evaluate(log, target, "mis-plain").gates}["support"]
    found = gates_of(log, target)["marginal support"]
    assert found.value == pytest.approx(own.value, rel=1e-9)
    assert found.level == own.level == "red"
    assert (found.step, found.text) == (own.step, own.text)


def test_a_model_of_hidden_states_is_red() -> None:
    log, target = study_log("modelfail-10", 200)
    assert rw.evaluate(log, target, "dm").verdict.level == "red"
    hidden = {g.name: g for g in rw.evaluate(log, target, "dm").gates}["hidden states"]
    assert hidden.level == "red"
    assert "hidden states" not in {g.name for g in rw.evaluate(log, target, "mis").gates}


@pytest.mark.parametrize("name", ["mis", "mis-state", "dm"])
def test_auto_takes_the_larger_error_where_episodes_depend(name: str) -> None:
    """Whole episodes are good or bad, and no column tells: rows are not independent given s."""
    found = rw.evaluate(*study_log("fate", 1000), name)
    automatic, cluster = found.interval(), found.interval(method="cluster")
    analytic = found.interval(method="analytic")
    assert automatic is not None
    assert cluster is not None
    assert analytic is not None
    assert (automatic.low, automatic.high) == (cluster.low, cluster.high)
    assert automatic.method.startswith("cluster")
    assert cluster.high - cluster.low > 1.1 * (analytic.high - analytic.low)


@pytest.mark.parametrize("name", ["mis", "dm", "wis"])
def test_auto_is_analytic_where_they_do_not(name: str) -> None:
    found = rw.evaluate(*study_log("default", 1000), name)
    assert found.interval() == found.interval(method="analytic")


@pytest.mark.parametrize("name", ["default", "rare-half", "hidden", "ending"])
def test_the_marginal_size_is_that_of_mis(name: str) -> None:
    """Running products are held to it as well: their own size is no larger but by luck."""
    log, target = study_log(name, 500)
    found = gates_of(log, target)["marginal size"]
    assert found.value == pytest.approx(
        rw.evaluate(log, target, rw.mis()).diagnostics.worst_ess, rel=1e-9
    )
    assert found.value <= log.n_episodes


def states_seen_by_policies(n: int, rng: np.random.Generator) -> rw.EpisodeLog:
    """Both policies look at the state, a quarter of which is not in the log."""
    state = rng.integers(0, 2, (n, 4))
    mu, pi = np.array([[0.7, 0.3], [0.4, 0.6]]), np.array([[0.3, 0.7], [0.8, 0.2]])
    action = (rng.random((n, 3)) < mu[state[:, :3], 1]).astype(int)
    reward = (1.0 + state[:, :3]) * action
    shown = np.ma.masked_array(state, rng.random(state.shape) < 0.25)
    given = (p[state[:, :3], action] for p in (mu, pi))
    return rw.log_from_arrays(shown, action, reward, *given, hidden="allow")


@pytest.mark.parametrize("name", ["dr", "dr-crossfit", "wdr", "mdr", "mdr-crossfit"])
def test_a_fitted_q_of_hidden_states_that_policies_see_is_red(name: str) -> None:
    """What it says of a hidden state is a mean over what is hidden, not what the target would do
    there. With shares that add up to 1 the estimates are off by less than 1 % (by 20 errors with π
    of the rows that took the action). A step earns π(1|0)/2 + π(1|1), 0.55."""
    log = states_seen_by_policies(20_000, np.random.default_rng(3))
    found = rw.evaluate(log, rw.ColumnPolicy("target_prob"), name)
    assert abs(found.value - 1.65) < 0.01 * 1.65
    [gate] = [gate for gate in found.verdict.gates if gate.name == "hidden policies"]
    assert (gate.level, found.verdict.level) == ("red", "red")
    right = rw.evaluate(log, rw.ColumnPolicy("target_prob"), "mis")
    assert abs(right.value - 1.65) < 3 * right.standard_error
    assert right.verdict.level == "green"


def test_hidden_states_that_policies_do_not_see_are_no_fault() -> None:
    log, target = study_log("hidden", 1000)
    assert gates_of(log, target)["hidden policies"].value == 0.0
    assert rw.evaluate(log, target, "mdr").verdict.level == "green"


@pytest.mark.parametrize("estimator", [rw.is_, rw.wis, rw.trajectory_is])
def test_products_answer_for_ratios_that_do_not_average_to_one(estimator: Any) -> None:
    """Clipped, the ratios cannot be tested by state: the placebo is all that tells."""
    log, target = study_log("tiny", 5000)
    assert rw.evaluate(log, target, estimator()).verdict.level == "green"
    found = rw.evaluate(log, target, estimator(max_ratio=1.1))
    assert "placebo" in {gate.name for gate in found.verdict.reasons}


def test_a_model_is_told_of_propensities_that_the_actions_deny() -> None:
    log, target = study_log("long-better", 2000)
    right = rw.evaluate(log, target, "dm")
    assert right.verdict.level == "green"
    swapped = FAULTS["swapped"](Grid.of(log), np.random.default_rng(0)).log()
    found = rw.evaluate(swapped, rw.ColumnPolicy("target_prob"), "dm")
    [gate] = [gate for gate in found.verdict.gates if gate.name == "propensities"]
    # a model reads no propensities, so that estimates which do are far from it
    assert [g.name for g in found.verdict.reasons] == ["history", "propensities"]
    assert (gate.level, found.verdict.level) == ("amber", "red")
    assert "may have been swapped" in gate.text


def test_only_what_follows_the_last_step_is_hidden() -> None:
    """No row has a hidden state: that is known, and nothing is left unchecked."""
    log, _ = study_log("default", 300)
    grid = Grid.of(log)
    states = grid.states.copy()
    states[:, -1] = HIDDEN
    found = gates_of(replace(grid, states=states).log(), rw.ColumnPolicy("target_prob"))
    assert (found["hidden policies"].level, found["hidden policies"].value) == ("green", 0.0)
