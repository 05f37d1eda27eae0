"""All gates of an estimate, and those of a log and target before any estimate.

Two kinds. Those of a solution come with it (`of_solution`). Those of the log and target
(`of_sums`) need sums of their own, `KINDS`, and are the same for every estimator; which of them
speak about an estimator follows from its weights.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from reweigh.estimators.operators import importance_operator
from reweigh.estimators.recipe import Marginal, Model, Recipe, Stationary
from reweigh.estimators.recursion import backward
from reweigh.estimators.weights import Solution
from reweigh.inference import gates, tails
from reweigh.inference.assumptions import (
    Outcome,
    Worth,
    drift_test,
    history_test,
    ratio_test,
    steadiness_test,
)
from reweigh.inference.gates import Gate
from reweigh.moments.bundle import Moments
from reweigh.moments.engines.base import Request

KINDS = frozenset({"transitions", "lagged", "ordered", "largest"})
RATIOS, STATES, PRODUCTS, STEADY = "propensities", "history", "Pareto k", "steadiness"


def request(max_ratio: float | None) -> Request:
    """The sums that `of_sums` reads."""
    return Request(KINDS, max_ratio=max_ratio, named=False)


def of_solution(solution: Solution, used: Moments, recipe: Recipe) -> tuple[Gate, ...]:
    """The gates that a solution's own numbers pass or fail."""
    n = used.n_episodes
    lost = gates.support(solution.unseen_mass, from_model=solution.from_model)
    found = [gates.episodes(n), replace(lost, state=_unvisited(solution, used, lost.step))]
    if not solution.from_model:
        found.append(gates.effective_size(solution.ess, n))
    step, state = _rarest(solution, used)
    found.append(
        gates.rare_states(
            solution.rare_mass, solution.ess, state, step, from_model=solution.from_model
        )
    )
    if isinstance(recipe.weights, Model | Stationary) and recipe.control is None:
        found.append(gates.hidden(used.hidden))
    if recipe.uses_trajectories:
        found.append(gates.heaviest_episode(solution.heaviest))
    elif not solution.from_model:
        found.append(gates.total_mass(solution.total_mass))
        expected = float(np.sum(used.about.discount ** np.arange(used.about.horizon)))
        found.append(gates.placebo(solution.placebo, solution.placebo_error, expected))
    if recipe.uses_trajectories:
        # With few effective episodes running products give narrow intervals that are wrong.
        found = [
            replace(gate, level="red")
            if gate.name == "effective size" and gate.level == "amber"
            else gate
            for gate in found
        ]
    return tuple(found)


def _unvisited(solution: Solution, used: Moments, step: int | None) -> str | None:
    """The state without any row at this step that holds the most of the target's mass; None where
    mass is lost for want of actions, or of large enough ratios."""
    if step is None or solution.visits is None or solution.target is None:
        return None
    assert solution.node_t is not None
    assert solution.node_s is not None
    here = (solution.node_t == step) & (solution.visits == 0) & (solution.node_s >= 0)
    mass = np.where(here, solution.target, 0.0)
    if not mass.any():
        return None
    return used.states.name(int(solution.node_s[np.argmax(mass)]))


def _rarest(solution: Solution, used: Moments) -> tuple[int | None, str | None]:
    """The (t, s) with the most of the target's mass among those seen fewer than 10 times."""
    if solution.node_t is None or solution.node_s is None:
        return None, None
    if solution.target is None or solution.visits is None:
        return None, None
    mass = np.where((solution.visits < 10) & (solution.node_s >= 0), solution.target, 0.0)
    if not mass.any():
        return None, None
    worst = int(np.argmax(mass))
    return int(solution.node_t[worst]), used.states.name(int(solution.node_s[worst]))


def of_sums(sums: Moments) -> dict[str, Gate]:
    """The gates of a log and target, by name: propensities, history, steadiness, drift, the
    weights' tail."""
    about = sums.about
    ratio = history = steady = Outcome(None, "these sums hold no transitions")
    if sums.transitions is not None:
        ratio = ratio_test(sums.transitions, about.horizon)
        if about.max_ratio is not None:
            ratio = Outcome(None, "the ratios were clipped, and clipped ones need not average to 1")
        elif about.behavior != "logged":
            ratio = Outcome(None, "the propensities were estimated from this log: they fit it")
        worth = _worth(sums)
        history = _history(sums, worth)
        steady = steadiness_test(sums.transitions, worth, about.horizon, about.discount)
    no_order = "the ids are no numbers, or episodes are cut off"
    drift = Outcome(None, _lacking(sums, "ordered", "the order of the episodes", no_order))
    if sums.ordered is not None:
        drift = drift_test(sums.ordered)
    found = [
        gates.assumption(RATIOS, ratio, _state(sums, ratio)),
        gates.assumption(STATES, history, _state(sums, history)),
        gates.assumption(STEADY, steady, _state(sums, steady)),
        gates.assumption("drift", drift, None),
        _tail(sums),
    ]
    return {gate.name: gate for gate in found}


def speaking_of(found: dict[str, Gate], recipe: Recipe) -> tuple[Gate, ...]:
    """Of these gates those that concern an estimator: a model has no ratios, running products
    need no state, and only some pool the steps."""
    left = dict(found)
    if not pools_steps(recipe):
        left.pop(STEADY, None)
    if isinstance(recipe.weights, Model) and recipe.control is None:
        left.pop(RATIOS, None)
    if recipe.uses_trajectories:
        left.pop(STATES, None)
    else:
        left.pop(PRODUCTS, None)
    return tuple(left.values())


def pools_steps(recipe: Recipe) -> bool:
    """Whether an estimator takes the world for the same at every step."""
    weights = recipe.weights
    return isinstance(weights, Stationary) or (isinstance(weights, Marginal) and weights.pooled)


def _worth(sums: Moments) -> Worth:
    """V_t(s) by MIS."""
    assert sums.transitions is not None
    about = sums.about
    op = importance_operator(sums.transitions, sums.start, about.horizon, about.discount)
    return Worth(op.node_t, op.node_s, backward(op).u)


def _history(sums: Moments, worth: Worth) -> Outcome:
    if sums.lagged is None:
        what = "what came before a state"
        return Outcome(None, _lacking(sums, "lagged", what, "they were not asked for"))
    if not len(sums.lagged):
        return Outcome(None, "no state has one before it")
    return history_test(sums.lagged, worth, sums.about.horizon, sums.about.discount)


def _lacking(sums: Moments, kind: str, what: str, why: str) -> str:
    if kind in sums.left_out:
        return f"these sums do not hold {what}: {sums.left_out[kind]}"
    return f"these sums do not hold {what}: {why}, or an older version made them"


def _state(sums: Moments, outcome: Outcome) -> str | None:
    return None if outcome.state is None or outcome.state < 0 else sums.states.name(outcome.state)


def _tail(sums: Moments) -> Gate:
    if sums.largest is None:
        what = "the largest weights"
        return gates.unknown(PRODUCTS, _lacking(sums, "largest", what, "not asked for"))
    k, why = tails.shape(sums.largest)
    return gates.pareto_k(k if k is None or math.isfinite(k) else None, sums.largest.n, why)
