"""estimator="auto": a rule that looks at states, ratios and the horizon, and never at rewards.

    1. MIS needs the target's mass to be on states with enough rows. Where at
       most RARE of it is on (step, state) pairs seen fewer than 10 times: mis.
    2. Otherwise the states are too fine for this log. If the running products keep at least ENOUGH
    effective episodes at every step: wis, which uses no state. 3. Otherwise mis, whose verdict
    names the problem.

Hidden states, continuous actions and one-step logs need no special case: mis treats a hidden
stretch as one long step, uses densities like probabilities, and is IS at H = 1.
The rule was fixed before the coverage study was run. It never compares the widths of intervals.

Several targets are compared by one estimator, otherwise a ranking would also compare estimators:
wis if the rule chooses wis for every target, else mis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reweigh.errors import UsageError
from reweigh.estimate.estimator import Recipe
from reweigh.estimate.presets import is_, mis, wis
from reweigh.evaluation.data import check_target
from reweigh.evaluation.evaluations import Evaluations
from reweigh.evaluation.result import Estimate, Refusal
from reweigh.log.log import EpisodeLog
from reweigh.policy import Policy
from reweigh.show.text import by_text

AUTO = "auto"
RARE, ENOUGH = 0.05, 100.0
Evaluate = Callable[[EpisodeLog, Policy, list[Recipe]], Sequence[Estimate | Refusal]]


@dataclass(frozen=True)
class Choice:
    """An estimator, and why it was chosen."""

    recipe: Recipe
    why: str


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
        alike = ", because wis does not suit every target" if self.differs else ""
        first = f"auto chose {self.recipe.name} for all targets{alike}:"
        return [first, *(f"  {', '.join(who)}: {why}" for why, who in names.items())]

    def to_dict(self) -> dict[str, Any]:
        return {
            "estimator": self.recipe.name,
            "why": {target: choice.why for target, choice in self.by_target.items()},
        }


def choose_common(
    log: EpisodeLog, targets: Mapping[str, Policy], evaluate_all: Evaluate
) -> CommonChoice:
    """The estimator for all of these targets: wis only if the rule chooses wis for each."""
    found = {name: choose(log, target, evaluate_all) for name, target in targets.items()}
    by_states = any(choice.recipe.name != wis().name for choice in found.values())
    return CommonChoice(mis() if by_states else wis(), found)


def choose(log: EpisodeLog, target: Policy, evaluate_all: Evaluate) -> Choice:
    """The estimator for this log and target, by the rule above. The rewards are put away first, so
    that the choice cannot depend on them."""
    blind = log.with_rewards(np.zeros(log.steps.n_rows), np.zeros(log.n_episodes))
    states, products = evaluate_all(blind, target, [mis(), is_()])
    if isinstance(states, Refusal):
        return Choice(mis(), f"mis: it refuses, and so does the only alternative ({states.error})")
    rare = states.diagnostics.rare_mass
    if rare is not None and rare <= RARE:
        share = "none" if rare == 0 else f"{rare:.1%}"
        return Choice(
            mis(), f"mis: {share} of the target's mass is on states seen fewer than 10 times"
        )
    size = None if isinstance(products, Refusal) else products.diagnostics.worst_ess
    if size is not None and size >= ENOUGH:
        return Choice(
            wis(),
            f"wis: {rare or 0:.0%} of the target's mass is on states seen fewer than 10 "
            f"times, and wis, which uses no states, keeps {size:,.0f} effective episodes",
        )
    return Choice(
        mis(),
        f"mis: {rare or 0:.0%} of the target's mass is on states seen fewer than 10 times, "
        "but wis, which uses no states, would keep too few effective episodes",
    )


def evaluate_chosen(
    data: Any,
    target: Policy | None,
    estimators: list[Recipe | str],
    blind: Evaluate,
    evaluate_all: Callable[..., Evaluations],
) -> Evaluations:
    """Several estimators, "auto" among them, whose result has the reason for the choice; `blind`
    evaluates without rewards."""
    if not isinstance(data, EpisodeLog):
        raise UsageError(
            "estimator='auto' needs the log in memory (engine='arrays'); name an estimator"
        )
    choice = choose(data, check_target(target), blind)
    named = [choice.recipe if estimator == AUTO else estimator for estimator in estimators]
    results = evaluate_all(data, target, named)
    return Evaluations(
        tuple(
            replace(result, chosen=choice.why)
            if estimator == AUTO and isinstance(result, Estimate)
            else result
            for estimator, result in zip(estimators, results, strict=True)
        )
    )
