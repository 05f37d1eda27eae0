"""What a report says: by identities, and against slow loops over the rows."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import reweigh as rw
from reweigh.evaluation.report import main_of, report_of, sources_of
from reweigh.show.charts import steps
from reweigh.show.html import figures
from reweigh.show.html.sections import answer_of, page_of
from reweigh.show.record import Report
from reweigh.sums.engines import ratios
from reweigh.system import rounded
from reweigh.trust import breakdown
from reweigh.trust.breakdown import (
    Decomposition,
    Heat,
    Missing,
    ValueParts,
    state_distributions,
    value_parts,
    variance_parts,
)
from reweigh.trust.overlap import (
    MARGINAL,
    PRODUCTS,
    Unlogged,
    Weights,
    steps_text,
    unlogged,
    weight_curves,
)

from .samples import sampled, without_overlap, world


@pytest.fixture(scope="module")
def made() -> tuple[rw.EpisodeLog, Any, list[Any]]:
    return sampled()


def part(found: Any, kind: type) -> Any:
    assert isinstance(found, kind), found
    return found


def only_moves(log: rw.EpisodeLog, target: Any) -> rw.Moments:
    """Sums without actions and products."""
    return replace(rw.moments(log, target, ["mis"]), model=None, start_model=None)


def value_of(estimate: Any) -> Any:
    return value_parts(sources_of(estimate), estimate.estimator, estimate.value, estimate.per_step)


def computed(report: Report) -> dict[str, str]:
    return dict(page_of(report).sections[-1].facts)


# the parts of the value and of the variance


@pytest.mark.parametrize("name", ["mis", "mis-plain", "mis-state", "dm", "dm-renorm"])
def test_parts_of_the_value_add_up_to_it(name: str) -> None:
    _, _, [estimate] = sampled((name,))
    parts = part(value_of(estimate), ValueParts)
    states = sum(part.amount for part in parts.states)
    assert states == pytest.approx(estimate.value, rel=1e-12)
    assert parts.per_step.sum() == pytest.approx(estimate.value, rel=1e-12)
    assert parts.log.sum() == pytest.approx(estimate.behavior_value, rel=1e-12)
    # an episode is in one state at each step, under either policy
    if name in ("mis", "dm-renorm"):
        assert sum(p.target for p in parts.states) == pytest.approx(estimate.horizon)
    assert sum(p.log for p in parts.states) == pytest.approx(estimate.horizon)


def test_parts_of_the_value_with_a_discount() -> None:
    made = world()
    table = made.simulate(200, 1).to_table()
    log = rw.read_log(table, discount=0.8, target_prob="target_prob")
    estimate = rw.evaluate(log, rw.ColumnPolicy("target_prob"), rw.mis())
    parts = part(value_of(estimate), ValueParts)
    assert sum(p.amount for p in parts.states) == pytest.approx(estimate.value, rel=1e-12)
    assert parts.log.sum() == pytest.approx(estimate.behavior_value, rel=1e-12)


def test_an_estimator_without_states_borrows_those_of_mis() -> None:
    _, _, [wis, mis] = sampled(("wis", "mis"))
    parts = part(value_of(wis), ValueParts)
    assert (parts.estimator, parts.states_by) == ("wis", "mis")
    assert parts.per_step.sum() == pytest.approx(wis.value)
    assert sum(p.amount for p in parts.states) == pytest.approx(mis.value)


@pytest.mark.parametrize("name", ["mis", "dm"])
def test_shares_of_the_variance_add_up_to_one(name: str) -> None:
    _, _, [estimate] = sampled((name,))
    parts = part(variance_parts(sources_of(estimate)), Decomposition)
    assert parts.start + parts.by_step.sum() == pytest.approx(1)
    states = sum(part.amount for part in parts.states())
    assert parts.start + states == pytest.approx(1)
    steps = estimate.diagnostics.variance_by_step
    assert parts.by_step == pytest.approx(steps[1:] / steps.sum())


def test_states_beyond_those_listed_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, [estimate] = sampled(("mis",), states=6)
    parts = part(value_of(estimate), ValueParts)
    monkeypatch.setattr(steps, "LISTED_STATES", 2)
    figure = figures.value_states(parts)
    assert figure is not None
    rows = figure.table.rows
    assert [row[0] for row in rows] == [*(p.state for p in parts.states[:2]), "4 others"]
    assert float(rows[2][1]) == pytest.approx(sum(p.amount for p in parts.states[2:]), abs=1e-3)
    assert "4 other states" in figure.text
    [data] = figure.draw().to_dict()["datasets"].values()
    assert len(data) == 2


# the heat map


def test_the_heat_map_holds_both_distributions(made: Any) -> None:
    _, _, results = made
    heat = part(state_distributions(sources_of(results[0])), Heat)
    marginals = results[0].marginals
    for t, name, target, behavior in zip(
        marginals.step, marginals.state, marginals.target, marginals.behavior, strict=True
    ):
        row = heat.names.index(name)
        assert heat.target[row, t] == pytest.approx(target)
        assert heat.behavior[row, t] == pytest.approx(behavior)
    assert heat.target.sum(axis=0) == pytest.approx(1)
    assert heat.others == 0
    assert heat.n_states == 4


def test_a_large_heat_map_joins_steps_and_states_and_loses_no_mass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, _, [estimate] = sampled(("mis",), horizon=10, states=6)
    whole = part(state_distributions(sources_of(estimate)), Heat)
    monkeypatch.setattr(breakdown, "MOST_FIELDS", 4)
    monkeypatch.setattr(breakdown, "MOST_CELLS", 12)
    heat = part(state_distributions(sources_of(estimate)), Heat)
    assert heat.wide == 3
    assert heat.last.tolist() == [2, 5, 8, 9]  # the last field has the one step that is left
    assert heat.target.shape == (3, 4)
    assert heat.names[:2] == whole.names[:2]
    assert (heat.others, heat.n_states) == (4, 6)
    assert heat.target.sum(axis=0) == pytest.approx(1)
    assert heat.target[0, 0] == pytest.approx(whole.target[0, :3].mean())
    assert heat.behavior[2, 3] == pytest.approx(whole.behavior[2:, 9].sum())
    assert heat.names[2] == "4 other states together"


# the weights


def test_weights_are_those_of_a_loop_over_the_rows(made: Any) -> None:
    log, target, results = made
    weights = part(weight_curves(sources_of(results[0])), Weights)
    products, marginal = weights.curves
    assert (products.name, marginal.name) == (PRODUCTS, MARGINAL)
    _, rho = ratios(log, target, None)
    n, marginals = log.n_episodes, results[0].marginals
    weight = {
        (t, code): d_pi / d_mu
        for t, code, d_pi, d_mu in zip(
            marginals.step, marginals.codes, marginals.target, marginals.behavior, strict=True
        )
    }
    running = np.ones(n)
    for t in range(log.horizon):
        rows = log.steps.rows(t)
        running = running * rho[rows]
        assert products.ess[t] == pytest.approx(running.sum() ** 2 / (running**2).sum())
        assert products.largest[t] == pytest.approx(running.max() / running.mean())
        own = np.array([weight[t, s] for s in log.steps.state[rows]]) * rho[rows]
        assert marginal.ess[t] == pytest.approx(own.sum() ** 2 / (own**2).sum())
        assert marginal.largest[t] == pytest.approx(own.max() / own.mean())


def test_weights_from_sums_are_those_from_rows(made: Any, tmp_path: Any) -> None:
    log, target, results = made
    rows = part(weight_curves(sources_of(results[0])), Weights)
    sums = rw.moments(log, target, ["mis", "is", "dm"])
    sums.save(tmp_path / "m.parquet")
    stored = rw.evaluate(rw.load_moments(tmp_path / "m.parquet"), estimator=rw.mis())
    again = part(weight_curves(sources_of(stored)), Weights)
    for one, other in zip(rows.curves, again.curves, strict=True):
        assert other.ess == pytest.approx(one.ess)
        assert other.largest == pytest.approx(one.largest)


def test_ended_episodes_count_with_the_weight_of_end() -> None:
    """Half of the episodes end after the first step: they weigh d(END)/N(END) from then on."""
    states = np.zeros((4, 3), int)
    actions = np.array([[0, 0], [1, 0], [0, 1], [1, 1]])
    log = rw.log_from_arrays(
        states, actions, np.ones((4, 2)), np.full((4, 2), 0.5), lengths=np.array([1, 1, 2, 2])
    )
    target = rw.TablePolicy({0: {0: 0.8, 1: 0.2}})
    with pytest.warns(rw.SmallSampleWarning):
        estimate = rw.evaluate(log, target, rw.mis())
    marginal = part(weight_curves(sources_of(estimate)), Weights).curves[1]
    # d_1(0) = d_1(END) = 1/2; at step 1 both living episodes take action 1: ρ = 0.4
    living, ended = 0.5 * 0.4 / 2, 0.5 / 2
    total = 2 * living + 2 * ended
    assert marginal.largest[1] == pytest.approx(4 * ended / total)


def test_weights_that_are_not_there_say_why(made: Any) -> None:
    log, target, _ = made
    estimate = rw.evaluate(only_moves(log, target), estimator=rw.mis())
    weights = part(weight_curves(sources_of(estimate)), Weights)
    assert [curve.name for curve in weights.curves] == [MARGINAL]
    assert weights.curves[0].largest is None
    assert "largest ratio" in weights.curves[0].why
    assert "is or wis" in weights.missing[0]


# holes


def test_holes_are_those_of_a_loop_over_steps_states_and_actions() -> None:
    made = world(horizon=4, states=5, actions=4, seed=9)
    log = made.simulate(25, 3)
    estimate = rw.evaluate_all(log, made.target, ["mis"])[0]
    assert isinstance(estimate, rw.Estimate)
    holes = part(unlogged(sources_of(estimate)), Unlogged)
    d = {
        (t, s): mass
        for t, s, mass in zip(
            estimate.marginals.step, estimate.marginals.state, estimate.marginals.target,
            strict=True,
        )
    }  # fmt: skip
    steps = log.steps
    seen = {
        (int(t), log.states.name(int(s)), log.actions.name(int(a)))
        for t, s, a in zip(steps.step, steps.state, steps.action, strict=True)
    }
    table = made.target.to_table().to_pylist()
    pi = {(row.get("step"), str(row["state"]), str(row["action"])): row["prob"] for row in table}
    wanted: dict[tuple[str, str], float] = {}
    for (t, s), mass in d.items():
        if not any(key[:2] == (t, s) for key in seen):
            continue
        for a in map(str, range(4)):
            prob = pi.get((t, s, a), pi.get((None, s, a), 0.0))
            if (t, s, a) not in seen and prob * mass > 1e-9:
                wanted[s, a] = wanted.get((s, a), 0.0) + mass * prob
    found = {(h.state, h.action): h.mass for h in holes.rows if h.action is not None}
    assert wanted
    assert found == pytest.approx(wanted)
    assert [h.mass for h in holes.rows] == sorted((h.mass for h in holes.rows), reverse=True)
    shown = {(s, a) for _, s, a in seen}
    bare = sum(h.mass for h in holes.rows if h.action is None)
    assert holes.never == pytest.approx(
        bare + sum(mass for pair, mass in wanted.items() if pair not in shown)
    )
    assert holes.mass == pytest.approx(bare + sum(wanted.values()))
    one = next(h for h in holes.rows if h.action is not None)
    rows = [(t, s, a) for t, s, a in zip(steps.step, steps.state, steps.action, strict=True)]
    assert one.logged == sum(
        log.states.name(int(s)) == one.state and log.actions.name(int(a)) == one.action
        for _, s, a in rows
    )


def test_holes_of_sums_and_of_a_column_name_no_actions() -> None:
    made = world(horizon=4, states=5, actions=4, seed=9)
    log = made.simulate(25, 3)
    rows = part(unlogged(sources_of(main_of(rw.evaluate_all(log, made.target, ["mis"])))), Unlogged)
    column = rw.ColumnPolicy("target_prob")
    logged = rw.read_log(log.to_table(), target_prob="target_prob")
    by_column = part(
        unlogged(sources_of(main_of(rw.evaluate_all(logged, column, ["mis"])))), Unlogged
    )
    sums = rw.moments(log, made.target, ["mis", "dm"])
    by_sums = part(unlogged(sources_of(main_of(rw.evaluate_all(sums, None, ["mis"])))), Unlogged)
    for other in (by_column, by_sums):
        assert other.mass == pytest.approx(rows.mass)
        assert {hole.action for hole in other.rows} == {None}
        assert "are unknown" in other.note


def test_holes_without_an_estimate_are_weighed_by_the_log() -> None:
    log, target, _ = without_overlap()
    holes = part(unlogged(sources_of(None, log, target)), Unlogged)
    assert holes.by == "log"
    assert {hole.action for hole in holes.rows} == {"7"}
    assert holes.mass == pytest.approx(3)  # one unlogged action at each of three steps
    assert holes.never == pytest.approx(3)
    assert sum(hole.visits for hole in holes.rows) == log.steps.n_rows


@pytest.mark.parametrize(
    ("steps", "text"), [([3], "3"), ([2, 3, 4], "2–4"), ([0, 4, 4], "2 of 0–4")]
)
def test_steps_in_words(steps: list[int], text: str) -> None:
    assert steps_text(np.array(steps)) == text


# the answer


def test_the_answer_is_never_chosen_by_its_value(made: Any) -> None:
    log, target, results = made
    assert main_of(results).estimator == "mis"
    assert main_of(results[1:]).estimator == "wis"
    chosen = rw.evaluate_all(log, target, ["dm", "mis", "auto"])
    assert main_of(chosen) is chosen[2]
    assert main_of(without_overlap()[2]) is None


def test_the_answer_in_words(made: Any) -> None:
    _, _, results = made
    content = report_of(results)
    estimate = results[0]
    assert f"{estimate.n_episodes:,} logged episodes" in answer_of(content).question
    value, low, high = re.findall(
        r"would earn ([\d.]+) per episode \(95 % interval ([\d.]+) to ([\d.]+)\)",
        answer_of(content).sentence,
    )[0]
    assert float(value) == pytest.approx(estimate.value, abs=0.001)
    assert float(low) == pytest.approx(estimate.interval().low, abs=0.001)
    assert float(high) == pytest.approx(estimate.interval().high, abs=0.001)
    assert answer_of(content).verdict == estimate.verdict.level
    assert answer_of(content).table.rows[0][:2] == ("mis", estimate.verdict.level)
    assert any("four times" in line for line in answer_of(content).better)
    assert content.rows[0].estimator == "mis"  # the answer first, the red ones last
    levels = [row.level for row in content.rows[1:]]
    assert levels == sorted(levels, key=("green", "amber", "red").index)


def test_the_gain_is_that_of_a_paired_comparison(made: Any) -> None:
    log, target, results = made
    row = report_of(results[:1]).rows[0]
    [contender] = rw.compare(log, target, [rw.mis()], seed=0).contenders
    assert row.gain == pytest.approx(contender.over_behavior.value)
    error = contender.over_behavior.standard_error
    n = log.n_episodes
    assert row.gain_interval.standard_error == pytest.approx(error, rel=1 / n)
    assert row.gain_interval.low < row.gain < row.gain_interval.high


def test_the_gain_from_sums_is_told_with_the_most_that_its_error_can_be(made: Any) -> None:
    log, target, results = made
    paired = report_of(results[:1])
    sums = report_of([rw.evaluate(rw.moments(log, target), estimator=rw.mis())])
    row, wide = paired.rows[0], sums.rows[0]
    assert wide.gain == pytest.approx(row.gain)
    assert wide.gain_interval.low < row.gain_interval.low < row.gain_interval.high
    gain = rounded(row.gain, max(row.error, row.gain_error))
    assert f"(difference {gain}, interval " in answer_of(paired).sentence
    assert row.better.startswith(("p = ", "p < "))
    assert wide.tested_gain.at_most
    figure = figures.gains(sums)
    assert figure is not None
    assert "at most that of both values" in figure.text
    assert figure.table.rows[0][-1] == wide.better


def test_an_error_that_is_not_to_be_trusted_is_not_shown(made: Any) -> None:
    _, _, results = made
    rows = {row.estimator: row for row in report_of(results).rows}
    for name in ("wis", "is"):
        assert rows[name].level == "red"
        assert rows[name].around is None
        assert rows[name].gain_interval is None
        assert rows[name].better == ""
    assert rows["mis"].around is not None
    [wis] = [result for result in results if result.estimator == "wis"]
    alone = report_of([wis])
    assert answer_of(alone).sentence.startswith("Not reliable: ")
    assert "interval" not in answer_of(alone).sentence
    assert "interval" not in computed(alone)
    assert wis.interval() is not None


def test_a_refused_question_is_explained() -> None:
    log, target, results = without_overlap()
    content = report_of(results, log=log, target=target)
    assert answer_of(content).verdict == "refused"
    assert content.main is None
    assert "elsewhere" in answer_of(content).question
    [reason] = answer_of(content).reasons
    assert reason.names == ("mis", "wis")
    assert "no logged episode is possible" in reason.text
    assert all(row.refused for row in content.rows)
    for missing in (content.heat, content.value, content.variance, content.changes):
        assert isinstance(missing, Missing)
        assert missing.why


def test_sums_say_what_they_do_not_hold(made: Any) -> None:
    log, target, _ = made
    sums = replace(only_moves(log, target), ordered=None)
    content = report_of([rw.evaluate(sums, estimator=rw.mis())])
    assert content.rows[0].gain_interval is None
    assert "variance of the logged returns" in content.rows[0].gain_why
    assert isinstance(content.unlogged, Missing)
    assert "dm" in content.unlogged.why
    assert isinstance(content.changes, Missing)
    assert isinstance(content.heat, Heat)
    assert content.log["episodes"] == 400


def test_rows_and_sums_name_the_log_alike(made: Any) -> None:
    log, target, results = made
    rows = computed(report_of(results))
    sums = computed(report_of([rw.evaluate(rw.moments(log, target), estimator=rw.mis())]))
    assert rows["hash of the log"] == sums["hash of the log"]
    assert rows["hash of the target"] == sums["hash of the target"]


def test_every_estimator_has_a_formula() -> None:
    recipes = {name: make() for name, make in rw.ESTIMATORS.items()}
    found = {name: (recipe.formula, recipe.description) for name, recipe in recipes.items()}
    assert all(text and variant for text, variant in found.values())
    for one in ("mis", "mis-plain", "mis-state", "is", "wis", "dm", "dr"):
        same = [name for name, pair in found.items() if pair == found[one]]
        assert same == [one]


def test_cut_off_episodes_have_no_products_but_the_rest() -> None:
    made = world()
    log = made.simulate(300, 1)
    table = log.to_table()
    keep = ~((np.asarray(table["episode"]) % 5 == 0) & (np.asarray(table["step"]) > 3))
    cut = rw.read_log(
        table.filter(keep), next_state="next_state", short_episodes="truncated",
        target_prob="target_prob",
    )  # fmt: skip
    assert cut.n_truncated == 60
    results = rw.evaluate_all(cut, rw.ColumnPolicy("target_prob"), ["mis", "wis"])
    content = report_of(results)
    weights = part(content.weights, Weights)
    assert "cut off" in weights.missing[0]
    assert part(content.value, ValueParts).log is None
    assert content.rows[1].refused
