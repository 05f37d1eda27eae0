"""compare(): several targets and estimators on one log, from their joint influence values."""

from __future__ import annotations

import math
import secrets
import warnings as python_warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

from reweigh.decide.comparison_result import NOT_KNOWN, Comparison, Contender, Difference, label_of
from reweigh.decide.ledger import WHOLE, key_of, trial, tried
from reweigh.errors import RefusedError, SelectionWarning, UsageError, must_be
from reweigh.estimate.estimator import Recipe
from reweigh.estimate.influence import behavior_values
from reweigh.estimate.presets import Estimators, as_recipe, estimator_list, mis
from reweigh.estimate.standard_error import nothing_left
from reweigh.evaluation.auto import CommonChoice, choose_common
from reweigh.evaluation.evaluate import AUTO, evaluate_all
from reweigh.evaluation.inputs import Truncated, check_target
from reweigh.evaluation.result import Estimate, Interval, Refusal
from reweigh.log.log import EpisodeLog
from reweigh.policy.base import Policy
from reweigh.system.process import each
from reweigh.trust.joint import Joint, p_value

Floats = npt.NDArray[np.float64]
DRAWS = 9_999
BEHAVIOR = "behaviour"
FEW_PER_PART = 30
NO_SPREAD = "the episodes do not differ in their influence"


def compare(
    log: EpisodeLog,
    targets: Policy | Mapping[str, Policy] | Sequence[Policy],
    estimators: Estimators | None = None,
    *,
    level: float = 0.95,
    holdout: float | None = None,
    truncated: Truncated = "refuse",
    seed: int | None = None,
) -> Comparison:
    """Compare targets with the behaviour and with each other, and estimators of one target.

    Differences are paired: what two estimates of one log have in common cancels. Intervals are
    simultaneous over all that is compared, so that they hold for the one that is picked because it
    looks best; the interval of a value is never narrower than the estimate's own
    (`Estimate.interval`). An estimate whose episodes show no spread has none. The targets are
    ranked by the first of the estimators.

    "auto" among the estimators is one for all targets, by the rule of `evaluation/auto.py`, which
    looks at no reward: wis where the rule says wis of every target, else mis. `Comparison.auto`
    tells why.

    With `holdout` (a share) that part of the episodes is set aside, the best target is chosen on
    the others, and its value is reported on those set aside. With `truncated="drop"` cut-off
    episodes are left out of the log, with a warning, for all estimators: all are to see the same
    episodes. Randomness enters only the critical values; `seed` repeats them.
    """
    if not isinstance(log, EpisodeLog):
        raise must_be("log", "a log in memory (read_log with engine='arrays')", type(log).__name__)
    if not isinstance(level, int | float | np.number) or not 0 < level < 1:
        raise must_be("level", "a number between 0 and 1", level)
    if holdout is not None and (
        not isinstance(holdout, int | float | np.number) or not 0 < holdout < 1
    ):
        raise must_be("holdout", "a share between 0 and 1", holdout)
    if truncated not in ("refuse", "drop"):
        raise must_be("truncated", '"refuse" or "drop"', truncated)
    if seed is not None and (not isinstance(seed, int | np.integer) or seed < 0):
        raise must_be("seed", "a whole number from 0 on", seed)
    named, given = _named(targets), _listed(estimators)
    drawn = secrets.randbits(32) if seed is None else int(seed)
    warnings: list[str] = []
    used = log
    if truncated == "drop" and log.n_truncated:
        used = _without_cut(log, warnings)
    if used.n_episodes < 2:
        raise RefusedError(
            "one-episode", "one episode has no spread, and a comparison needs the errors"
        )
    share = WHOLE if holdout is None else float(holdout)
    parts = None if holdout is None else _parted(used, share)
    auto = None
    if AUTO in given:
        auto = choose_common(used if parts is None else parts[0], named, evaluate_all)
    recipes = _recipes(given, auto)
    task = _Task(named, recipes, float(level), drawn, auto)
    trials = [trial(target, recipe) for target in named.values() for recipe in recipes.values()]
    count = tried(log, trials, share)
    comparison = task.on(used if parts is None else parts[0], count.tried)
    warnings += [*comparison.warnings, *count.says(len(trials), share)]
    comparison = replace(comparison, warnings=tuple(warnings))
    if parts is None:
        return comparison
    if comparison.best is None:
        raise RefusedError("holdout", "no target was answered on the part that is to choose")
    name = comparison.best.target
    first = dict([next(iter(recipes.items()))])
    last = replace(task, targets={name: named[name]}, recipes=first).on(parts[1], count.tried)
    held_out = last.contenders[0]
    return replace(comparison, chosen=name, held_out=held_out, n_held_out=parts[1].n_episodes)


def _named(targets: Policy | Mapping[str, Policy] | Sequence[Policy]) -> dict[str, Policy]:
    if isinstance(targets, Policy):
        targets = [targets]
    if isinstance(targets, Mapping):
        named = {str(name): check_target(target) for name, target in targets.items()}
    elif isinstance(targets, Iterable):
        named = {}
        for target in targets:
            name, base = check_target(target).name, check_target(target).name
            while name in named:
                name = f"{base} {len(named) + 1}"
            named[name] = target
    else:
        raise must_be("targets", "a policy, a list of policies, or policies by name", targets)
    if not named:
        raise must_be("targets", "at least one policy", targets)
    if BEHAVIOR in named:
        raise UsageError(f"no target may be called {BEHAVIOR!r}: the log's own policy is")
    return named


def _listed(estimators: Estimators | None) -> list[Recipe | str]:
    """The estimators, checked; "auto" stays a name."""
    given = estimator_list(mis() if estimators is None else estimators)
    listed = [one if one == AUTO else as_recipe(one) for one in given]
    if not listed:
        raise must_be("estimators", "at least one estimator", given)
    keys = [AUTO if isinstance(one, str) else key_of(one) for one in listed]
    for place, (one, key) in enumerate(zip(listed, keys, strict=True)):
        if key in keys[:place]:
            called = one if isinstance(one, str) else label_of(one)
            raise UsageError(f"the estimator {called!r} was given twice")
    return listed


def _recipes(listed: list[Recipe | str], auto: CommonChoice | None) -> dict[str, Recipe]:
    """The estimators by what they are called here, which tells them apart. What auto chose may
    also have been named: it is asked once."""
    named: dict[str, Recipe] = {}
    for one in listed:
        recipe = as_recipe(one) if auto is None or one != AUTO else auto.recipe
        if key_of(recipe) in map(key_of, named.values()):
            continue
        name = label_of(recipe)
        while name in named:
            name = f"{label_of(recipe)} {len(named) + 1}"
        named[name] = recipe
    return named


def _without_cut(log: EpisodeLog, warnings: list[str]) -> EpisodeLog:
    """The log without cut-off episodes, which is told as `evaluate` tells it."""
    if log.n_truncated == log.n_episodes:
        raise RefusedError("truncated", "every episode was cut off: none is left")
    warning = SelectionWarning(
        f"{log.n_truncated:,} of {log.n_episodes:,} episodes were cut off and left out; if being "
        "cut off has to do with the outcome, the estimate is biased"
    )
    warnings.append(str(warning))
    python_warnings.warn(warning, stacklevel=3)
    return log.drop_truncated()


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
class _Task:
    """What is compared, whatever the log."""

    targets: dict[str, Policy]
    recipes: dict[str, Recipe]  # by what they are called
    level: float
    seed: int
    auto: CommonChoice | None = None

    def on(self, log: EpisodeLog, count: int) -> Comparison:
        """Compared on this log; `count` is how much was tried on it."""
        asked = each("targets", self.targets.items(), lambda named: self._alone(log, *named))
        contenders = [contender for one in asked for contender, _ in one]
        psi = [values for one in asked for _, values in one]  # None without an interval
        answered = [c.result for c in contenders if isinstance(c.result, Estimate)]
        behavior = answered[-1].behavior_value if answered else None
        if behavior is None and answered:
            raise RefusedError(
                "behavior", "the behaviour's own value is unknown: every episode of some state "
                "was cut off. Leave the cut ones out (truncated='drop')"
            )  # fmt: skip
        at = [i for i, values in enumerate(psi) if values is not None]
        pairs: tuple[Difference, ...] = ()
        beyond: tuple[Difference, ...] = ()
        if behavior is not None and at:
            columns = [behavior_values(log), *(values for values in psi if values is not None)]
            joint = Joint.of(np.stack(columns, axis=1), DRAWS, self.seed)
            pairs, beyond = self._judged(contenders, behavior, at, joint)
        warnings = [
            f"{d.first} and {d.second} differ by {d.value:.4g}, more than their joint error "
            f"({d.standard_error:.2g}) explains: one of them is biased here, or its error is not "
            "to be trusted (see the verdicts)"
            for d in beyond
        ]
        ranked = [c for c in contenders if c.estimator == next(iter(self.recipes))]
        bare = [c.target for c in ranked if c.no_interval is not None]
        if bare and len(ranked) > 1:
            warnings.append(
                f"how likely each target is the best is {NOT_KNOWN}: {', '.join(bare)} "
                f"{'has' if len(bare) == 1 else 'have'} no interval"
            )
        return Comparison(
            tuple(contenders), behavior, self.level, pairs, beyond, count, self.seed,
            log.n_episodes, warnings=tuple(warnings), auto=self.auto,
        )  # fmt: skip

    def _alone(
        self, log: EpisodeLog, name: str, target: Policy
    ) -> list[tuple[Contender, Floats | None]]:
        """The estimates of one target, each with its own interval, or why there is none, and its
        ψ; an estimator that has no ψ is refused here."""
        results = evaluate_all(log, target, list(self.recipes.values()))
        return [
            self._with_interval(Contender(name, self._with_reason(name, result), called=called))
            for called, result in zip(self.recipes, results, strict=True)
        ]

    def _with_reason(self, target: str, result: Estimate | Refusal) -> Estimate | Refusal:
        """With the reason for its estimator, where that is what auto chose."""
        if self.auto is None or isinstance(result, Refusal):
            return result
        chosen = key_of(result.recipe) == key_of(self.auto.recipe)
        return replace(result, chosen=self.auto.why(target)) if chosen else result

    def _with_interval(self, contender: Contender) -> tuple[Contender, Floats | None]:
        result = contender.result
        if isinstance(result, Refusal):
            return contender, None
        own = result.interval(self.level)
        if own is None:
            why = result.error_method if result.standard_error is None else NO_SPREAD
            return replace(contender, no_interval=why), None
        try:
            psi = result.grounds.influence()
        except RefusedError as error:
            refused = Refusal(result.recipe, error, result.n_episodes, result.horizon)
            return replace(contender, result=refused), None
        if nothing_left(float(np.std(psi)) / math.sqrt(len(psi)), result.value):
            return replace(contender, no_interval=NO_SPREAD), None
        return replace(contender, interval=own), psi

    def _judged(
        self, contenders: list[Contender], behavior: float, at: list[int], joint: Joint
    ) -> tuple[tuple[Difference, ...], tuple[Difference, ...]]:
        """The contenders get their joint intervals and probabilities in place; what the targets
        differ by, and estimators of one target that differ beyond chance. `at` are the contenders
        with an interval, in the order of `joint` after the behaviour."""
        values = np.array([behavior, *(contenders[i].value for i in at)])
        names = [BEHAVIOR, *(contenders[i].name for i in at)]
        unit = np.eye(len(values))
        gains = _differences(joint, values, unit[1:] - unit[0], self.level, names)
        margins = joint.critical(unit[1:], self.level) * joint.errors(unit[1:])
        leading = next(iter(self.recipes))
        ranking = {
            i for i, c in enumerate(contenders)
            if c.estimator == leading and isinstance(c.result, Estimate)
        }  # fmt: skip
        first = np.array([False, *(i in ranking for i in at)])
        chances = joint.best(values, first)
        known = ranking <= set(at)  # else one would be taken for free of error
        for place, i in enumerate(at):
            contenders[i] = replace(
                contenders[i],
                interval=self._widened(contenders[i], float(margins[place])),
                over_behavior=gains[place],
                best=float(chances[place + 1]) if known and first[place + 1] else None,
            )
        target = [None, *(contenders[i].target for i in at)]
        same = [(a, b) for a, b in combinations(range(len(values)), 2) if target[a] == target[b]]
        alike = self._pairs(joint, values, names, same)
        beyond = tuple(d for d in alike if not d.interval.low <= 0 <= d.interval.high)
        ranked = list(combinations(np.flatnonzero(first).tolist(), 2))
        return self._pairs(joint, values, names, ranked), beyond

    def _widened(self, contender: Contender, margin: float) -> Interval:
        """The simultaneous interval, nowhere within the estimate's own."""
        own, value = contender.interval, contender.value
        assert own is not None
        low, high = min(value - margin, own.low), max(value + margin, own.high)
        return Interval(low, high, self.level, "simultaneous, max-t")

    def _pairs(
        self, joint: Joint, values: Floats, names: list[str], which: Sequence[tuple[int, int]]
    ) -> tuple[Difference, ...]:
        if not which:
            return ()
        rows = np.stack([np.eye(len(values))[a] - np.eye(len(values))[b] for a, b in which])
        found = _differences(joint, values, rows, self.level, names)
        return tuple(d for d in found if d is not None)


def _differences(
    joint: Joint, values: Floats, contrasts: Floats, level: float, names: list[str]
) -> list[Difference | None]:
    """None where two estimates differ and no episode tells by how much."""
    errors, critical = joint.errors(contrasts), joint.critical(contrasts, level)
    found: list[Difference | None] = []
    for row, error in zip(contrasts, errors.tolist(), strict=True):
        value = float(row @ values)
        if error == 0 and abs(value) <= 1e-9 * float(np.abs(row) @ np.abs(values)):
            value = 0.0  # the same estimate twice, to rounding
        elif error == 0:
            found.append(None)
            continue
        low, high = value - critical * error, value + critical * error
        interval = Interval(low, high, level, "simultaneous, max-t")
        first, second = names[int(np.argmax(row))], names[int(np.argmin(row))]
        found.append(
            Difference(first, second, value, error, interval, p_value(value, error, joint.n))
        )
    return found
