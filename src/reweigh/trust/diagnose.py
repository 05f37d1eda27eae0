"""All gates of an estimate, and those of a log and target before any estimate.

Two kinds. Those of a solution come with it (`of_solution`). Those of the log and target
(`of_sums`) need sums of their own, `KINDS`, and are the same for every estimator; which of them
speak about an estimator follows from its weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from reweigh.errors import SupportError
from reweigh.estimate import variance
from reweigh.estimate.operators import OneStep, importance_operator
from reweigh.estimate.recipe import Marginal, Model, Recipe, Stationary
from reweigh.estimate.recursion import backward, forward
from reweigh.estimate.solution import (
    Solution,
    effective_sizes,
    escaping,
    model_cells,
    model_of,
    rare_mass,
)
from reweigh.estimate.weakest_places import (
    Place,
    largest,
    most_unfounded,
    most_unseen,
    rare_share,
    worst_node,
)
from reweigh.kernels.groups import group_by, tally
from reweigh.sums.engines.base import Request
from reweigh.sums.moments import Moments
from reweigh.system.arithmetic import divided
from reweigh.trust import gates, log_gates, tails
from reweigh.trust.assumptions import (
    Outcome,
    Worth,
    drift_by_step,
    drift_test,
    history_test,
    steadiness_test,
)
from reweigh.trust.gain import no_returns
from reweigh.trust.gates import Gate
from reweigh.trust.limits import kind_of, limit_of
from reweigh.trust.propensities import ratio_test
from reweigh.trust.unseen_actions import concerns, left_out

KINDS = frozenset({"transitions", "model", "lagged", "ordered", "paced", "largest"})
RATIOS, STATES, PRODUCTS, STEADY = "propensities", "history", "Pareto k", "steadiness"
DRIFT, MARGINAL, UNSEEN = "drift", "marginal size", "marginal support"
ESTIMATED, POLICIES, FITTED = "estimated propensities", "policies", "fitted values"
HIDDEN_POLICIES = "hidden policies"
UNSEEN_ACTIONS = "unseen actions"


LONG_STRETCH = 3  # hidden steps, from which on the limits are those of running products


def request(max_ratio: float | None) -> Request:
    """The sums that `of_sums` reads."""
    return Request(KINDS, max_ratio=max_ratio, named=False)


def of_solution(solution: Solution, used: Moments, recipe: Recipe) -> tuple[Gate, ...]:
    """The gates that a solution's own numbers pass or fail."""
    n = used.n_episodes
    from_model, (lost_in, lost_by) = solution.from_model, _names(solution.unseen_at, used)
    lost = gates.support(
        solution.unseen_mass,
        from_model=from_model,
        max_ratio=used.about.max_ratio,
        state=lost_in,
        action=lost_by,
    )
    kind, products = kind_of(recipe), recipe.uses_trajectories
    found = [gates.episodes(n, kind), lost]
    if used.hidden and kind != "model" and _mean_stretch(used) > LONG_STRETCH:
        kind = "products"
    found.append(gates.effective_size(solution.ess, n, kind))
    state, action = _names(solution.rare_at, used)
    found.append(
        gates.rare_states(
            solution.rare_mass,
            solution.ess,
            state,
            None if solution.rare_at is None else solution.rare_at.step,
            from_model=from_model,
            per_state=recipe.normalize == "state",
            per_step=solution.rare_by_step,
            action=action,
        )
    )
    if isinstance(recipe.weights, Model | Stationary) and recipe.control is None:
        found.append(gates.hidden(used.hidden))
    if isinstance(recipe.weights, Stationary):
        found.append(_stationarity(used))
    if products:
        found.append(gates.heaviest_episode(solution.heaviest, solution.ess))
    elif not from_model:
        found.append(gates.total_mass(solution.total_mass))
    found.append(_placebo(solution, used))
    return tuple(found)


def _names(place: Place | None, used: Moments) -> tuple[str | None, str | None]:
    """What a place's state and action are called; END is no state."""
    if place is None:
        return None, None
    state = used.states.name(place.state) if place.state >= 0 else None
    if place.action is None:
        return state, None
    assert used.actions is not None
    return state, used.actions.name(place.action)


def _where(place: Place | None, used: Moments) -> dict[str, Any]:
    """A gate's `step`, `state` and `action`."""
    state, action = _names(place, used)
    return {"step": None if place is None else place.step, "state": state, "action": action}


def _placebo(solution: Solution, used: Moments) -> Gate:
    powers = used.about.discount ** np.arange(used.about.horizon)
    each, step = solution.placebo_by_step, None
    if each is not None:
        step = largest(np.abs(each - powers))
    expected = float(np.sum(powers))
    return gates.placebo(
        solution.placebo,
        solution.placebo_error,
        expected,
        each,
        step,
        from_model=solution.from_model,
    )


def _mean_stretch(used: Moments) -> float:
    """Steps from one observed state to the next, on average: MIS multiplies as many ratios."""
    if used.transitions is None:
        return 1.0
    cells = used.transitions
    return float(cells.n @ (cells.t_next - cells.t)) / float(cells.n.sum())


def _stationarity(used: Moments) -> Gate:
    """How far the target's distributions of states at the steps are from their mean: in total
    variation, averaged over the steps."""
    cells, start = model_cells(used)
    op = importance_operator(cells.forget("a"), start, used.about.horizon, used.about.discount)
    try:
        flow = forward(op, simplex=True)
    except SupportError:
        return gates.stationarity(1.0)
    inside = op.node_t < op.horizon
    names, place = np.unique(op.node_s[inside], return_inverse=True)
    d = np.zeros((op.horizon, len(names)))
    d[op.node_t[inside], place] = flow.d[inside]
    off = np.abs(d - d.mean(axis=0))
    per_step = off.sum(axis=1) / 2
    step = largest(per_step)
    state = worst_node(names, off[step])
    worst = None if state is None else Place(step, int(names[state]))
    gap = float(off.sum()) / (2 * op.horizon)
    return gates.stationarity(gap, per_step=per_step, **_where(worst, used))


def of_sums(sums: Moments, silent: Set[str] = frozenset()) -> dict[str, Gate]:
    """The gates of a log and target, by name, but for those that nobody listens to."""
    worth = None
    if sums.transitions is not None and not {STATES, STEADY} <= silent:
        worth = _worth(sums)
    marginal = cache(lambda: _marginal(sums))
    makers: dict[str, Callable[[], Gate]] = {
        ESTIMATED: lambda: log_gates.estimated_propensities(sums.about.behavior != "logged"),
        RATIOS: lambda: _assumption(RATIOS, sums, _ratios(sums)),
        POLICIES: lambda: _policies(sums),
        HIDDEN_POLICIES: lambda: _policies(sums, at_hidden=True),
        FITTED: lambda: _fitted_values(sums),
        STATES: lambda: _assumption(STATES, sums, _history(sums, worth)),
        STEADY: lambda: log_gates.steadiness(*_with_state_name(sums, _steadiness(sums, worth))),
        DRIFT: lambda: _assumption(DRIFT, sums, _drift(sums)),
        MARGINAL: lambda: marginal()[0],
        UNSEEN: lambda: marginal()[1],
        PRODUCTS: lambda: _tail(sums),
    }
    return {name: make() for name, make in makers.items() if name not in silent}


NO_NUMBERS = (
    "the ids of its episodes are no whole numbers (in texts: 18 digits at most, no leading 0)"
)
NO_TRANSITIONS = Outcome(None, "these sums hold no transitions")


def _assumption(name: str, sums: Moments, outcome: Outcome) -> Gate:
    return gates.assumption(name, *_with_state_name(sums, outcome))


def _with_state_name(sums: Moments, outcome: Outcome) -> tuple[Outcome, str | None]:
    """An outcome, without a p-value where it is no number, and the name of its state."""
    if outcome.p is not None and math.isnan(outcome.p):
        outcome = Outcome(None, variance.OVERFLOW)
    code = -1 if outcome.state is None else outcome.state
    return outcome, sums.states.name(code) if code >= 0 else None


def _ratios(sums: Moments) -> Outcome:
    if sums.transitions is None:
        return NO_TRANSITIONS
    if sums.about.max_ratio is not None:
        return Outcome(None, "the ratios were clipped, and clipped ones need not average to 1")
    if sums.about.behavior != "logged":
        return Outcome(None, "the propensities were estimated from this log: they fit it")
    return ratio_test(sums.model or sums.transitions, sums.about.horizon, sums.states)


def _steadiness(sums: Moments, worth: Worth | None) -> Outcome:
    if sums.transitions is None or worth is None:
        return NO_TRANSITIONS
    return steadiness_test(sums.transitions, worth, sums.about.horizon, sums.about.discount)


def _drift(sums: Moments) -> Outcome:
    if sums.ordered is None:
        return Outcome(None, f"the log has no order: {no_returns(sums)}")
    if not sums.ordered.has_order:
        return Outcome(None, f"the log has no order: {NO_NUMBERS}")
    whole = drift_test(sums.ordered)
    if whole.p is None:
        return whole
    if sums.paced is None:
        return replace(whole, why=_lacking(sums, "paced", "the rewards by step", "not asked for"))
    steps = drift_by_step(sums.paced, sums.about.horizon)
    return replace(whole, why=steps.why, per_step=steps.per_step, step=steps.step)


def speaking_of(found: dict[str, Gate], recipe: Recipe) -> tuple[Gate, ...]:
    """Of these gates those that concern an estimator, as it hears them."""
    silent = silent_on(recipe)
    return tuple(_heard(gate, recipe) for name, gate in found.items() if name not in silent)


def _heard(gate: Gate, recipe: Recipe) -> Gate:
    """A model has no ratios, but where the logged actions deny their propensities altogether, the
    target's probabilities may be those of the behaviour."""
    if gate.name != RATIOS or gate.value is None or not isinstance(recipe.weights, Model):
        return gate
    limit = limit_of(RATIOS, "model")
    level = limit.judge(gate.value)
    text, advice = gate.text, ""
    if level == "amber":
        text = f"{text}: a model needs no propensities, but the columns may have been swapped"
        advice = gate.advice
    return replace(gate, level=level, limit=str(limit), text=text, advice=advice)


def silent_on(recipe: Recipe) -> set[str]:
    """Gates of the log that do not concern an estimator: running products need no state, only some
    pool the steps, or fit what they subtract, or fit it on the same episodes."""
    control = recipe.control
    fitted = control is not None and not control.own
    silent = set()
    if isinstance(recipe.weights, Model):
        silent |= {ESTIMATED}
    if recipe.uses_trajectories:
        # A fitted V(s) = Σ_a π(a|s) Q(s,a) is only right where π follows from the state.
        silent |= {STATES} if fitted else {STATES, POLICIES}
    else:
        silent |= {PRODUCTS, MARGINAL, UNSEEN}
    if not pools_steps(recipe):
        silent |= {STEADY}
    if control is None or control.own or control.q != "in-sample":
        silent |= {FITTED}
    if not fitted:  # others do not look at a hidden state, or have a gate that is red there
        silent |= {HIDDEN_POLICIES}
    return silent


def pools_steps(recipe: Recipe) -> bool:
    """Whether an estimator takes the world for the same at every step."""
    weights = recipe.weights
    return isinstance(weights, Stationary) or (isinstance(weights, Marginal) and weights.pooled)


def _marginal(sums: Moments) -> tuple[Gate, Gate]:
    """What running products cannot tell of themselves, from the marginal weights on the log: their
    size, and their support."""
    why = "these sums hold no transitions"
    if sums.transitions is not None:
        op = _importance(sums)
        try:
            flow = forward(op, simplex=False)
        except SupportError as error:
            why = str(error)
        else:
            lost, limit = escaping(op, flow), sums.about.max_ratio
            state, _ = _names(most_unseen(op, flow, lost, from_model=False), sums)
            return (
                gates.marginal_size(effective_sizes(op, flow), sums.n_episodes),
                gates.support(lost, from_model=False, max_ratio=limit, name=UNSEEN, state=state),
            )
    return gates.unknown(MARGINAL, why), gates.unknown(UNSEEN, why)


def _policies(sums: Moments, *, at_hidden: bool = False) -> Gate:
    """Do the policies look at more than the state? Within a (t, s, a) the ratio is then not the
    same: sqrt(Σ(ρ - ρ̄)²/Σρ²), the deviations being those within the (t, s, a), of the steps by
    themselves and of all. The place is that of the largest Σ(ρ - ρ̄)². `at_hidden`: the same of the
    rows whose state is hidden, which a fitted Q takes for one state."""
    name = HIDDEN_POLICIES if at_hidden else POLICIES
    none_hidden = gates.gate(name, 0.0, "no state is hidden", "") if at_hidden else None
    if none_hidden is not None and not sums.hidden:
        return none_hidden
    if sums.about.continuous_actions:
        return gates.unknown(name, "actions are numbers: no two are alike")
    if sums.model is None:
        return gates.unknown(name, _lacking(sums, "model", "the actions", "not asked for"))
    hidden = np.array([value is None for value in sums.states.values], bool)
    cells = sums.model.where(hidden[sums.model.s] == at_hidden)
    if not len(cells):
        return none_hidden or gates.unknown(name, "no state is observed")
    groups = group_by([cells.t, cells.s, cells.a])
    n, rho, rho2 = (groups.sum(values) for values in (cells.n, cells.rho, cells.rho2))
    total = float(rho2.sum())
    if not total > 0:
        return gates.unknown(name, "no ratio is above 0")
    if not math.isfinite(total):
        return gates.unknown(name, variance.OVERFLOW)
    within = np.maximum(rho2 - rho**2 / n, 0.0)
    worst = int(np.argmax(within))
    step, state, action = (int(key[worst]) for key in groups.keys)
    assert sums.actions is not None
    by_step = [tally(groups.keys[0], v, sums.about.horizon) for v in (within, rho2)]
    per_step, spread = np.sqrt(divided(*by_step)), math.sqrt(float(within.sum()) / total)
    shown = None if at_hidden else sums.states.name(state)
    return log_gates.policies(spread, step, shown, sums.actions.name(action), per_step)


def _fitted_values(sums: Moments) -> Gate:
    """How much of what a model would say rests on few rows: the target's mass, as the model has
    it, on (t, s, a) that were seen fewer than 10 times (on average over the steps) or never (all
    that is lost). Per step what it adds to that."""
    if sums.about.continuous_actions or sums.model is None or sums.start_model is None:
        return gates.unknown(FITTED, "these sums hold no model of the actions")
    op = model_of(sums)
    try:
        flow = forward(op, simplex=False)
    except SupportError:
        return log_gates.fitted_values(1.0)
    rare = rare_share(op)
    share = min(rare_mass(op, flow, rare) + float(escaping(op, flow).sum()), 1.0)
    per_step, worst = most_unfounded(op, flow, rare)
    return log_gates.fitted_values(share, per_step=per_step, **_where(worst, sums))


def unseen_actions(sums: Moments, recipe: Recipe, error: float | None) -> list[Gate]:
    """What a Q of other episodes leaves out, in errors of the estimate; no gate where the estimator
    has none."""
    if not concerns(recipe):
        return []
    found = left_out(sums)
    if found is None:
        why = "these sums hold no model of the actions, or one that ends before the horizon"
        return [gates.unknown(UNSEEN_ACTIONS, why)]
    missing = abs(float(found.per_step.sum()))
    if not missing > 0:
        text = "no value is missing for want of actions"
        return [gates.gate(UNSEEN_ACTIONS, 0.0, text, "", per_step=found.per_step)]
    if error is None or not error > 0:
        return [gates.unknown(UNSEEN_ACTIONS, "the estimate has no error to compare with")]
    errors, per_step = missing / error, found.per_step / error
    made = gates.gate(
        UNSEEN_ACTIONS,
        errors,
        f"actions that the log never shows there would earn about {missing:.3g}, {errors:.1f} "
        "standard errors, which the fitted Q counts as 0",
        "use mis, which fits no Q, or log more of these actions",
        per_step=per_step,
        **_where(found.place, sums),
    )
    return [gates.with_place(made)]


def _worth(sums: Moments) -> Worth:
    """V_t(s) by MIS."""
    op = _importance(sums)
    return Worth(op.node_t, op.node_s, backward(op).u)


def _importance(sums: Moments) -> OneStep:
    assert sums.transitions is not None
    about = sums.about
    return importance_operator(sums.transitions, sums.start, about.horizon, about.discount)


def _history(sums: Moments, worth: Worth | None) -> Outcome:
    if worth is None:
        return NO_TRANSITIONS
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


def _tail(sums: Moments) -> Gate:
    if sums.largest is None:
        what = "the largest weights"
        return gates.unknown(PRODUCTS, _lacking(sums, "largest", what, "not asked for"))
    k, why = tails.shape(sums.largest)
    k = k if k is None or math.isfinite(k) else None
    return gates.pareto_k(k, sums.largest.n, why, sums.about.horizon - 1)
