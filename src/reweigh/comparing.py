"""compare(): several targets and estimators on one log, from their joint influence values."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

from reweigh.comparison import Comparison, Contender, Difference
from reweigh.errors import RefusedError, UsageError, must_be
from reweigh.estimators.presets import mis
from reweigh.estimators.recipe import Recipe
from reweigh.evaluate import as_recipe, evaluate_all
from reweigh.evidence import Truncated, check_target
from reweigh.inference.influence import behavior_values, influence_values
from reweigh.inference.joint import Joint, p_value
from reweigh.ledger import tried
from reweigh.logs.log import EpisodeLog
from reweigh.policies.base import Policy
from reweigh.progress import each
from reweigh.results import Estimate, Interval, Refusal

Floats = npt.NDArray[np.float64]
DRAWS = 9_999
BEHAVIOR = "behaviour"
FEW_PER_PART = 30


def compare(
    log: EpisodeLog,
    targets: Policy | Mapping[str, Policy] | Sequence[Policy],
    estimators: Sequence[Recipe | str] | Recipe | str | None = None,
    *,
    level: float = 0.95,
    holdout: float | None = None,
    truncated: Truncated = "refuse",
    seed: int | None = None,
) -> Comparison:
    """Compare targets with the behaviour and with each other, and estimators of one target.

    Differences are paired: what two estimates of one log have in common cancels. Intervals are
    simultaneous over all that is compared, so that they hold for the one that is picked because it
    looks best. The targets are ranked by the first of the estimators. With `holdout` (a share) that
    part of the episodes is set aside, the best target is chosen on the others, and its value is
    reported on those set aside. Randomness enters only the critical values; `seed` repeats them.
    """
    if not isinstance(log, EpisodeLog):
        raise must_be("log", "a log in memory (read_log with engine='arrays')", type(log).__name__)
    if not isinstance(level, int | float) or not 0 < level < 1:
        raise must_be("level", "a number between 0 and 1", level)
    if holdout is not None and (not isinstance(holdout, int | float) or not 0 < holdout < 1):
        raise must_be("holdout", "a share between 0 and 1", holdout)
    named = _named(targets)
    given = [mis()] if estimators is None else estimators
    if isinstance(given, Recipe | str):
        given = [given]
    recipes = [as_recipe(estimator) for estimator in given]
    if not recipes:
        raise must_be("estimators", "at least one estimator", list(given))
    drawn = secrets.randbits(32) if seed is None else seed
    ask = _Asking(named, recipes, float(level), truncated, drawn)
    trials = [(t.fingerprint(), r.name) for t in named.values() for r in recipes]
    count = tried(log, trials)
    if holdout is None:
        return ask.on(log, count)
    choosing, reporting = _parted(log, float(holdout))
    found = ask.on(choosing, count)
    if found.best is None:
        raise RefusedError("holdout", "no target was answered on the part that is to choose")
    name = found.best.target
    last = replace(ask, targets={name: named[name]}, recipes=recipes[:1]).on(reporting, count)
    return replace(found, chosen=name, held_out=last.contenders[0], n_held_out=reporting.n_episodes)


def _named(targets: Policy | Mapping[str, Policy] | Sequence[Policy]) -> dict[str, Policy]:
    if isinstance(targets, Policy):
        return {targets.name: targets}
    if isinstance(targets, Mapping):
        named = {str(name): check_target(target) for name, target in targets.items()}
    else:
        named = {}
        for target in targets:
            name, base = check_target(target).name, check_target(target).name
            while name in named:
                name = f"{base} {len(named) + 1}"
            named[name] = target
    if not named:
        raise must_be("targets", "at least one policy", targets)
    if BEHAVIOR in named:
        raise UsageError(f"no target may be called {BEHAVIOR!r}: the log's own policy is")
    return named


def _parted(log: EpisodeLog, share: float) -> tuple[EpisodeLog, EpisodeLog]:
    """The episodes that choose and those set aside, by the hash of their ids."""
    aside = log.steps.episode_hash % 10_000 < round(share * 10_000)
    parts = log.select(~aside), log.select(aside)
    least = min(part.n_episodes for part in parts)
    if least < FEW_PER_PART:
        raise RefusedError(
            "holdout", f"a part of the log has {least} episodes, and {FEW_PER_PART} are needed"
        )
    return parts


@dataclass(frozen=True, eq=False)
class _Asking:
    """What is compared, whatever the log."""

    targets: dict[str, Policy]
    recipes: list[Recipe]
    level: float
    truncated: Truncated
    seed: int

    def on(self, log: EpisodeLog, count: int) -> Comparison:
        contenders, psi = [], [behavior_values(log)]
        behavior: float | None = None

        def add(named: tuple[str, Policy]) -> None:
            nonlocal behavior
            name, target = named
            results = evaluate_all(log, target, self.recipes, truncated=self.truncated)
            for recipe, result in zip(self.recipes, results, strict=True):
                answer, values = _with_influence(log, target, recipe, result)
                contenders.append(Contender(name, answer))
                if isinstance(answer, Estimate):
                    behavior = answer.behavior_value
                    psi.append(values)

        each("targets", self.targets.items(), add)
        if len(psi) == 1:
            return self._made(log, contenders, None, (), (), count)
        if behavior is None:
            raise RefusedError(
                "behavior", "the behaviour's own value is unknown: every episode of some state "
                "was cut off"
            )  # fmt: skip
        joint = Joint.of(np.stack(psi, axis=1), DRAWS, self.seed)
        return self._judged(log, contenders, behavior, joint, count)

    def _judged(
        self,
        log: EpisodeLog,
        contenders: list[Contender],
        behavior: float,
        joint: Joint,
        count: int,
    ) -> Comparison:
        at = [i for i, c in enumerate(contenders) if isinstance(c.result, Estimate)]
        values = np.array([behavior, *(_value(contenders[i]) for i in at)])
        k = len(values)
        names = [BEHAVIOR, *(contenders[i].name for i in at)]
        own, over = np.eye(k)[1:], np.eye(k)[1:] - np.eye(k)[0]
        gains = _differences(joint, values, over, self.level, names)
        margins = joint.critical(own, self.level) * joint.errors(own)
        first = np.array([False, *(contenders[i].estimator == self.recipes[0].name for i in at)])
        chances = joint.best(values, first)
        for place, i in enumerate(at):
            low, high = values[place + 1] - margins[place], values[place + 1] + margins[place]
            contenders[i] = replace(
                contenders[i],
                interval=Interval(float(low), float(high), self.level, "simultaneous, max-t"),
                over_behavior=gains[place],
                best=float(chances[place + 1]) if first[place + 1] else None,
            )
        pairs = self._pairs(joint, values, names, list(combinations(np.flatnonzero(first), 2)))
        same = [
            (a + 1, b + 1)
            for a, b in combinations(range(len(at)), 2)
            if contenders[at[a]].target == contenders[at[b]].target
        ]
        beyond = [
            d
            for d in self._pairs(joint, values, names, same)
            if not d.interval.low <= 0 <= d.interval.high
        ]
        return self._made(log, contenders, behavior, pairs, tuple(beyond), count)

    def _pairs(
        self, joint: Joint, values: Floats, names: list[str], which: Sequence[tuple[int, int]]
    ) -> tuple[Difference, ...]:
        if not which:
            return ()
        rows = np.stack([np.eye(len(values))[a] - np.eye(len(values))[b] for a, b in which])
        return tuple(_differences(joint, values, rows, self.level, names))

    def _made(
        self,
        log: EpisodeLog,
        contenders: list[Contender],
        behavior: float | None,
        pairs: tuple[Difference, ...],
        beyond: tuple[Difference, ...],
        count: int,
    ) -> Comparison:
        said = [
            f"{d.first} and {d.second} differ by {d.value:.4g}, more than their joint error "
            f"({d.standard_error:.2g}) explains: one of them is biased here, or its error is not "
            "to be trusted (see the verdicts)"
            for d in beyond
        ]
        if count > len(contenders):
            said.append(
                f"{count} pairs of a policy and an estimator were tried on this log, and these "
                f"intervals are simultaneous over {len(contenders)}: set episodes aside (holdout)"
            )
        return Comparison(
            tuple(contenders), behavior, self.level, pairs, beyond, count, self.seed,
            log.n_episodes, warnings=tuple(said),
        )  # fmt: skip


def _with_influence(
    log: EpisodeLog, target: Policy, recipe: Recipe, result: Estimate | Refusal
) -> tuple[Estimate | Refusal, Floats]:
    """The result with its ψ; an estimator that has none is refused here."""
    if isinstance(result, Refusal):
        return result, np.zeros(0)
    try:
        return result, influence_values(log, target, recipe)
    except RefusedError as error:
        return Refusal(recipe, error, log.n_episodes, log.horizon), np.zeros(0)


def _differences(
    joint: Joint, values: Floats, contrasts: Floats, level: float, names: list[str]
) -> list[Difference]:
    errors, critical = joint.errors(contrasts), joint.critical(contrasts, level)
    found = []
    for row, error in zip(contrasts, errors.tolist(), strict=True):
        value = float(row @ values)
        if error == 0 and abs(value) <= 1e-9 * float(np.abs(row) @ np.abs(values)):
            value = 0.0  # the same estimate twice, to rounding
        low, high = value - critical * error, value + critical * error
        interval = Interval(low, high, level, "simultaneous, max-t")
        first, second = names[int(np.argmax(row))], names[int(np.argmin(row))]
        found.append(
            Difference(first, second, value, error, interval, p_value(value, error, joint.n))
        )
    return found


def _value(contender: Contender) -> float:
    assert isinstance(contender.result, Estimate)
    return contender.result.value
