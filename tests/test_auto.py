"""estimator="auto": the written rule, blind to rewards, and its reason printed."""

from __future__ import annotations

import numpy as np
import pytest

import reweigh as rw
from reweigh.auto import ENOUGH, RARE, choose

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")


def steps_with(n_states: int, n: int, tilt: float, seed: int = 0) -> tuple[rw.EpisodeLog, object]:
    """n episodes of three steps in states drawn anew at each; the target's ratios are 1 ± tilt."""
    rng = np.random.default_rng(seed)
    states, actions = rng.integers(0, n_states, (n, 4)), rng.integers(0, 2, (n, 3))
    pi = np.where(actions == 1, 0.5 + tilt / 2, 0.5 - tilt / 2)
    log = rw.log_from_arrays(states, actions, rng.normal(size=(n, 3)), np.full((n, 3), 0.5), pi)
    return log, rw.ColumnPolicy("target_prob")


CASES = {
    "states seen often": (3, 500, 0.5, "mis", "none of the target's mass"),
    "states too fine, mild ratios": (5000, 500, 0.2, "wis", "effective episodes are left"),
    "states too fine, strong ratios": (5000, 200, 0.95, "mis", "too few effective episodes"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_rule(case: str) -> None:
    n_states, n, tilt, expected, why = CASES[case]
    log, target = steps_with(n_states, n, tilt)
    states, products = (rw.evaluate(log, target, name).diagnostics for name in ("mis", "is"))
    # the case is what it says, by the numbers that the rule reads
    assert states.rare_mass is not None
    assert (states.rare_mass <= RARE) == (case == "states seen often")
    if case != "states seen often":
        assert products.worst_ess is not None
        assert (products.worst_ess >= ENOUGH) == (expected == "wis")
    found = rw.evaluate(log, target, "auto")
    assert found.estimator == expected
    assert found.chosen is not None
    assert found.chosen.startswith(f"{expected}: ")
    assert why in found.chosen
    assert found.value == rw.evaluate(log, target, expected).value
    assert found.to_dict()["chosen"] == found.chosen
    assert "chosen" in str(found)


@pytest.mark.parametrize("case", CASES)
def test_rewards_do_not_change_the_choice(case: str) -> None:
    """Rewards that would make any rule by errors or values choose otherwise: huge in the states
    that the target reaches, none elsewhere, and with a spread of their own."""
    n_states, n, tilt, expected, _ = CASES[case]
    log, target = steps_with(n_states, n, tilt)
    rng = np.random.default_rng(1)
    rho = target.probabilities(log) / log.steps.behavior_prob  # type: ignore[attr-defined]
    choices = set()
    for rewards in (1e6 * rho, -(rho**3), rng.standard_cauchy(len(rho)), np.zeros(len(rho))):
        other = log.with_rewards(rewards, np.zeros(log.n_episodes))
        found = choose(other, target, rw.evaluate_all)  # type: ignore[arg-type]
        choices.add((found.recipe.name, found.why))
    [(name, _)] = choices
    assert name == expected


def test_one_step_hidden_states_and_densities_need_no_case_of_their_own() -> None:
    bandit = rw.worlds.Bandit.random(1)
    assert rw.evaluate(bandit.simulate(5000, 0), bandit.target, "auto").estimator == "mis"
    hidden = rw.worlds.ModelFail(6)
    assert rw.evaluate(hidden.simulate(500, 0), hidden.target, "auto").estimator == "mis"


def test_it_answers_beside_others_in_order() -> None:
    log, target = steps_with(3, 200, 0.5)
    found = rw.evaluate_all(log, target, ["dm", "auto", "is"])  # type: ignore[arg-type]
    assert [result.estimator for result in found] == ["dm", "mis", "is"]
    assert [isinstance(r, rw.Estimate) and r.chosen is not None for r in found] == [
        False, True, False,
    ]  # fmt: skip


def test_it_needs_the_rows() -> None:
    log, target = steps_with(3, 50, 0.5)
    sums = rw.moments(log, target)  # type: ignore[arg-type]
    with pytest.raises(rw.UsageError, match=r"auto.*needs the log in memory"):
        rw.evaluate(sums, None, "auto")
