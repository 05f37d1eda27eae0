"""estimator="auto": a rule that looks at states, ratios and actions, never at the size of an error
or the sign of a gain.

    1. Every ratio is 1: the target is the policy that made the log, and mis is the mean return.
    2. States too fine: more than RARE of the target's mass is on (step, state) pairs seen fewer
       than 10 times. If the running products keep at least ENOUGH effective episodes at every step:
       wis, which uses no state.
    3. Otherwise the memory that `mis(memory="auto")` takes (`memories.py`). If it is more than 0,
       and a memory of 0 differs from it beyond chance (p ≤ CONTRADICTED), the state is not enough:
       mis with that memory. The walk over many memories alone stops somewhere in 1 of 25 logs
       whose state is enough, where the longer one is off by chance.
    4. With a memory of 0: mdr-loo, which comes close to the least error that is possible, where
       none of its gates HOLDS is red: the log covers what the target does, in the states that it
       reaches and for most of its actions (where they are amber, so is its verdict). Its sums
       must be enough too, which needs observed states, discrete actions, and ratios that follow
       from step, state and action: then every engine answers the same.
    5. Otherwise mis-hajek, which leans on no mean by action. Its verdict says what is missing.

Rewards enter only where memories are compared, by values in errors of their differences: neither
the sign of the rewards nor their scale, nor a constant added to them, changes the choice. No rule
compares the widths of intervals. CONTRADICTED, and that amber gates do not matter, were set on the
setting half of the study of efficiency (docs/trust/efficiency.md), before its reporting half was
run. Of saved sums the rule takes what they hold: without windows there is no memory to choose, and
mis stands for mis-hajek.

Several targets are compared by one estimator, otherwise a ranking would also compare estimators:
the one that the rule chooses for each of them, else mis with the longest memory that it chooses for
any.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reweigh.errors import RefusedError
from reweigh.estimate.estimator import Recipe
from reweigh.estimate.presets import estimator, is_, mis, usual_for, wis
from reweigh.evaluation.data import check_target
from reweigh.evaluation.evaluations import Evaluations
from reweigh.evaluation.memories import Memories, paired_difference
from reweigh.evaluation.result import Estimate, Refusal
from reweigh.policy import Policy
from reweigh.show.text import by_text
from reweigh.sums.moments import Moments

AUTO = "auto"
RARE, ENOUGH = 0.05, 600.0  # with fewer effective episodes the verdict on wis is red
ROUNDED = 1e-9  # of a sum of ratios
CONTRADICTED = 1e-4
HOLDS = ("support", "effective size", "rare states", "placebo", "cut-off episodes")
SHARPEST = "mdr-loo"
Evaluate = Callable[[Any, Policy | None, list[Recipe]], Sequence[Estimate | Refusal]]


@dataclass(frozen=True)
class Choice:
    """An estimator, and why it was chosen; the memories that were tried, if any; `on_policy`: the
    target is the policy that made the log, for which any estimator will do."""

    recipe: Recipe
    why: str
    memories: Memories | None = None
    on_policy: bool = False


@dataclass(frozen=True)
class CommonChoice:
    """One estimator for several targets. `by_target` has the choice for each target alone."""

    recipe: Recipe
    by_target: dict[str, Choice]

    @property
    def differs(self) -> bool:
        """Whether the choice differs for some target."""
        return any(choice.recipe.name != self.recipe.name for choice in self.by_target.values())

    def why(self, target: str) -> str:
        """Why this target has this estimator."""
        own = self.by_target[target]
        if own.recipe.name == self.recipe.name:
            return own.why
        return (
            f"{self.recipe.name}, the same for all targets; for this one alone it would "
            f"choose {own.why}"
        )

    def lines(self) -> list[str]:
        """The choice in words, each reason once with its targets."""
        names = by_text((target, choice.why) for target, choice in self.by_target.items())
        if len(names) == 1:
            return [f"auto chose {why}" for why in names]
        alike = ""
        if self.differs:
            others = {choice.recipe.name for choice in self.by_target.values()}
            others -= {self.recipe.name}
            alike = f", because {' and '.join(sorted(others))} does not suit every target"
        first = f"auto chose {self.recipe.name} for all targets{alike}:"
        return [first, *(f"  {', '.join(who)}: {why}" for why, who in names.items())]

    def to_dict(self) -> dict[str, Any]:
        return {
            "estimator": self.recipe.name,
            "why": {target: choice.why for target, choice in self.by_target.items()},
        }


def candidates() -> list[Recipe]:
    """The estimators whose sums the choice takes."""
    return [mis(), is_(), estimator(SHARPEST), mis(memory="auto")]


def choose_common(log: Any, targets: Mapping[str, Policy], evaluate_all: Evaluate) -> CommonChoice:
    """The estimator for all of these targets."""
    found = {name: choose(log, target, evaluate_all) for name, target in targets.items()}
    deciding = [choice for choice in found.values() if not choice.on_policy]
    recipes = {choice.recipe.name: choice.recipe for choice in deciding or found.values()}
    if len(recipes) == 1:
        return CommonChoice(next(iter(recipes.values())), found)
    longest = max(recipe.weights.remembers for recipe in recipes.values())
    return CommonChoice(mis(memory=longest), found)


@np.errstate(over="ignore", invalid="ignore")  # what overflows is refused by name
def choose(data: Any, target: Policy | None, evaluate_all: Evaluate) -> Choice:
    """The estimator for this log (or its sums) and target, by the rule above."""
    usual = usual_for(data)
    if usual.name != mis().name:
        return Choice(usual, f"{usual.name}: the log names features and no states")
    states, products, sharpest = evaluate_all(data, target, [mis(), is_(), estimator(SHARPEST)])
    if isinstance(states, Refusal):
        return Choice(mis(), f"mis: it refuses, and so do the alternatives ({states.error})")
    if _on_policy(states):
        why = (
            "mis: the target takes every logged action as often as the log's policy, so that it is "
        )
        return Choice(mis(), f"{why}the mean of the returns", on_policy=True)
    rare = states.diagnostics.rare_mass or 0.0
    share = "none" if rare == 0 else f"{rare:.1%}"
    seen = f"{share} of the target's mass is on states seen fewer than 10 times"
    if rare > RARE:
        size = None if isinstance(products, Refusal) else products.diagnostics.worst_ess
        if size is not None and size >= ENOUGH:
            keeps = f"wis, which uses no states, keeps {size:,.0f} effective episodes"
            return Choice(wis(), f"wis: {seen}, and {keeps}")
        seen += ", but wis, which uses no states, would keep too few effective episodes"
    memories, lacking = _memory(data, target, evaluate_all)
    if memories is not None and memories.memory:
        taken = mis(memory=memories.memory)
        return Choice(taken, f"{taken.name}: {memories.why}", memories)
    missing = _missing(sharpest)
    if missing is None:
        taken, why = estimator(SHARPEST), "and the log covers most of what the target does"
    else:
        taken = mis() if memories is None else mis(memory=0)
        why = f"but {SHARPEST} is not used, because {missing}"
    why = f"{taken.name}: {seen}, {why}"
    return Choice(taken, why if lacking is None else f"{why} ({lacking})", memories)


def _on_policy(states: Estimate) -> bool:
    """Whether every ratio is 1: Σρ and Σρ² are counts in every cell."""
    of = states.uncertainty
    cells = of.data.for_gates(states.recipe, of.dropped).by_action
    if cells is None:
        return False
    return all(np.allclose(sums, cells.n, rtol=ROUNDED, atol=0) for sums in (cells.rho, cells.rho2))


def _memory(
    data: Any, target: Policy | None, evaluate_all: Evaluate
) -> tuple[Memories | None, str | None]:
    """The choice of a memory, or why there is none."""
    try:
        [found] = evaluate_all(data, target, [mis(memory="auto")])
    except RefusedError as error:  # these sums hold no windows
        return None, error.reason
    if isinstance(found, Refusal):
        return None, found.error.reason
    memories = found.memories
    if memories is None or not memories.memory:
        return memories, None
    [state] = evaluate_all(data, target, [mis(memory=0)])
    if isinstance(state, Refusal):
        return memories, None
    size = next(trial.size for trial in memories.trials if trial.memory == memories.memory)
    p = paired_difference(state, found).p(size or math.inf)
    if p is None:
        return None, "how far memories are apart is not known: there is no error of the difference"
    return (memories if p <= CONTRADICTED else replace(memories, memory=0)), None


def _missing(sharpest: Estimate | Refusal) -> str | None:
    """Why the rule does not take mdr-loo, by gates that read no rewards; None where it does."""
    if isinstance(sharpest, Refusal):
        return sharpest.error.reason
    of = sharpest.uncertainty
    why = sharpest.recipe.weights.needs_rows(of.data.moments(sharpest.recipe, of.dropped))
    if why is not None:
        return why
    gates = [gate for gate in sharpest.gates if gate.name in HOLDS]
    failed = [gate.text for gate in gates if gate.level in ("red", "unknown")]
    return failed[0] if failed else None


def evaluate_chosen(
    data: Any,
    target: Policy | None,
    estimators: list[Recipe | str],
    for_choice: Evaluate,
    evaluate_all: Callable[..., Evaluations],
) -> Evaluations:
    """Several estimators, "auto" among them, whose result has the reason for the choice;
    `for_choice` evaluates candidates, also those whose value the rewards do not allow."""
    choice = choose(data, target if isinstance(data, Moments) else check_target(target), for_choice)
    named = [choice.recipe if each == AUTO else each for each in estimators]
    results = evaluate_all(data, target, named)
    return Evaluations(
        tuple(
            replace(result, chosen=choice.why, memories=choice.memories)
            if each == AUTO and isinstance(result, Estimate)
            else result
            for each, result in zip(estimators, results, strict=True)
        )
    )
