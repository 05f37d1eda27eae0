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
from scipy.special import ndtr, stdtr, stdtrit

from reweigh.decide.contenders import NOT_KNOWN, Comparison, Contender, Difference, label_of
from reweigh.decide.ledger import WHOLE, key_of, trial, tried
from reweigh.errors import (
    RefusedError,
    SelectionWarning,
    UsageError,
    check,
    check_fraction,
    check_whole,
    hints,
    must_be,
)
from reweigh.estimate.estimator import Recipe
from reweigh.estimate.influence import behavior_values
from reweigh.estimate.presets import Estimators, MemoryChoice, as_recipe, estimator_list
from reweigh.estimate.standard_error import nothing_left
from reweigh.evaluation.auto import CommonChoice, choose_common
from reweigh.evaluation.data import Truncated, check_target
from reweigh.evaluation.evaluate import AUTO, evaluate_all, evaluate_in_study
from reweigh.evaluation.result import Estimate, Interval, Refusal
from reweigh.log.log import EpisodeLog
from reweigh.policy import Policy
from reweigh.system.process import each

Floats = npt.NDArray[np.float64]
DRAWS = 9_999
BEHAVIOR = "behavior"
FEW_PER_PART = 30
NO_SPREAD = "all episodes have the same influence"
SAME = 1e-9  # of a value: what two sums of the same numbers may differ by


@hints
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
    """Compare targets with the behavior and with each other, and estimators of one target.

    Differences are paired: the common noise of two estimates on one log cancels. Intervals are
    simultaneous over all comparisons, so they hold for the target picked because it looks best; the
    interval of a value is never narrower than the estimate's own (`Estimate.interval`). An estimate
    whose episodes show no variation has none. The targets are ranked by the first of the
    estimators.

    "auto", the default, is one for all targets, by the rule of `evaluation/auto.py`: the one
    that the rule chooses for every target, else mis with the longest memory that it chooses.
    `Comparison.auto` has the reason.

    With `holdout` (a share) that part of the episodes is set aside, the best target is chosen on
    the others, and its value is reported on those set aside. With `truncated="drop"` cut-off
    episodes are left out of the log, with a warning, for all estimators: all are to see the same
    episodes. Randomness enters only the critical values; `seed` repeats them.
    """
    check(
        isinstance(log, EpisodeLog),
        "log",
        "a log in memory (read_log with engine='arrays')",
        type(log).__name__,
    )
    level = check_fraction("level", level)
    check(truncated in ("refuse", "drop"), "truncated", '"refuse" or "drop"', truncated)
    seed = secrets.randbits(32) if seed is None else check_whole("seed", seed, 0)
    share = WHOLE
    if holdout is not None:
        share = check_fraction("holdout", holdout, "a share between 0 and 1")
    policies, listed = _policies(targets), _listed(estimators)
    warnings: list[str] = []
    used = _without_cut(log, warnings) if truncated == "drop" and log.n_truncated else log
    if used.n_episodes < 2:
        raise RefusedError(
            "one-episode", "one episode shows no variation, and a comparison needs standard errors"
        )
    choosing, aside = (used, None) if holdout is None else _parted(used, share)
    auto = choose_common(choosing, policies, evaluate_in_study) if AUTO in listed else None
    recipes = _recipes(listed, auto)
    trials = [trial(target, recipe) for target in policies.values() for recipe in recipes.values()]
    tally = tried(log, trials, share)
    task = _Task(policies, recipes, level, seed, auto)
    comparison = task.on(choosing, tally.tried)
    warnings += [*comparison.warnings, *tally.simultaneous_warnings(len(trials), share)]
    comparison = replace(comparison, warnings=tuple(warnings))
    if aside is None:
        return comparison
    if comparison.best is None:
        raise RefusedError("holdout", "no target has an estimate on the episodes used for choosing")
    name, first = comparison.best.target, dict([next(iter(recipes.items()))])
    again = replace(task, targets={name: policies[name]}, recipes=first).on(aside, tally.tried)
    return replace(
        comparison, chosen=name, held_out=again.contenders[0], n_held_out=aside.n_episodes
    )


def _policies(targets: Policy | Mapping[str, Policy] | Sequence[Policy]) -> dict[str, Policy]:
    """The targets by name; of several policies of one name the later ones are numbered."""
    if isinstance(targets, Policy):
        targets = [targets]
    named: dict[str, Policy] = {}
    if isinstance(targets, Mapping):
        named = {str(name): check_target(target) for name, target in targets.items()}
    elif isinstance(targets, Iterable):
        for target in targets:
            named[_distinct(check_target(target).name, named)] = target
    else:
        raise must_be("targets", "a policy, a list of policies, or policies by name", targets)
    check(named, "targets", "at least one policy", targets)
    if BEHAVIOR in named:
        raise UsageError(f"no target may be called {BEHAVIOR!r}: that is the log's own policy")
    return named


def _distinct(name: str, known: Mapping[str, object]) -> str:
    """The name, with a number where it is known."""
    base = name
    while name in known:
        name = f"{base} {len(known) + 1}"
    return name


def _listed(estimators: Estimators | None) -> list[Recipe | str]:
    """The estimators, checked; "auto" stays a name."""
    given = estimator_list(AUTO if estimators is None else estimators)
    listed = [one if one == AUTO else as_recipe(one) for one in given]
    check(listed, "estimators", "at least one estimator", given)
    keys: set[str] = set()
    for one in listed:
        if isinstance(one, Recipe) and isinstance(one.weights, MemoryChoice):
            raise UsageError(
                "a comparison needs one estimator for all targets, and memory='auto' chooses for "
                "each: choose with evaluate, and name the longest here, such as mis(memory=3)"
            )
        key, name = (one, one) if isinstance(one, str) else (key_of(one), label_of(one))
        if key in keys:
            raise UsageError(f"the estimator {name!r} is given twice")
        keys.add(key)
    return listed


def _recipes(listed: list[Recipe | str], auto: CommonChoice | None) -> dict[str, Recipe]:
    """The estimators by distinct labels. If the choice of auto is also named, it is evaluated
    once."""
    named: dict[str, Recipe] = {}
    for one in listed:
        recipe = as_recipe(one) if auto is None or one != AUTO else auto.recipe
        if key_of(recipe) not in map(key_of, named.values()):
            named[_distinct(label_of(recipe), named)] = recipe
    return named


def _without_cut(log: EpisodeLog, warnings: list[str]) -> EpisodeLog:
    """The log without cut-off episodes, with the warning of `evaluate`."""
    if log.n_truncated == log.n_episodes:
        raise RefusedError("truncated", "every episode was cut off, so none is left")
    warning = SelectionWarning(
        f"{log.n_truncated:,} of {log.n_episodes:,} episodes were cut off and left out; if "
        "the cut depends on the outcome, the estimate is biased"
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
            "holdout", f"one part of the log has {least} episodes; {FEW_PER_PART} are needed"
        )
    return parts


@dataclass(frozen=True, eq=False)
class _Task:
    """The comparison, for any log; recipes by label."""

    targets: dict[str, Policy]
    recipes: dict[str, Recipe]
    level: float
    seed: int
    auto: CommonChoice | None

    def on(self, log: EpisodeLog, count: int) -> Comparison:
        """Compared on this log; `count` is how much was tried on it."""
        by_target = each("targets", self.targets.items(), lambda named: self._of(log, *named))
        contenders = [contender for some in by_target for contender, _ in some]
        psi = [values for some in by_target for _, values in some]  # None without an interval
        answered = [c.result for c in contenders if isinstance(c.result, Estimate)]
        behavior = answered[-1].behavior_value if answered else None
        if behavior is None and answered:
            raise RefusedError(
                "behavior", (
                    "the behavior's value is unknown: every episode of some state was cut "
                    "off. Leave the cut episodes out (truncated='drop')"
                )
            )  # fmt: skip
        pairs: list[Difference] = []
        beyond: list[Difference] = []
        known = [values for values in psi if values is not None]
        if behavior is not None and known:
            every = np.stack([behavior_values(log), *known], axis=1)
            joint = Joint.of(every, DRAWS, self.seed, log)
            at = [i for i, values in enumerate(psi) if values is not None]
            pairs, beyond = self._judged(contenders, behavior, at, joint)
        warnings = [
            f"{d.first} and {d.second} differ by {d.value:.4g}, more than their joint "
            f"standard error ({d.standard_error:.2g}) explains: one of them is biased, or "
            "its standard error is not reliable (see the verdicts)"
            for d in beyond
        ]
        ranked = [c for c in contenders if c.estimator == next(iter(self.recipes))]
        bare = [c.target for c in ranked if c.no_interval is not None]
        if bare and len(ranked) > 1:
            warnings.append(
                f"the probability that each target is the best is {NOT_KNOWN}: "
                f"{', '.join(bare)} {'has' if len(bare) == 1 else 'have'} no interval"
            )
        return Comparison(
            tuple(contenders), behavior, self.level, tuple(pairs), tuple(beyond), count, self.seed,
            log.n_episodes, warnings=tuple(warnings), auto=self.auto,
        )  # fmt: skip

    def _of(
        self, log: EpisodeLog, name: str, target: Policy
    ) -> list[tuple[Contender, Floats | None]]:
        """The estimates of one target, each with its own interval, or why there is none, and its
        ψ; an estimator that has no ψ is refused here."""
        results = evaluate_all(log, target, list(self.recipes.values()))
        contenders = []
        for estimator, result in zip(self.recipes, results, strict=True):
            if self.auto is not None and isinstance(result, Estimate):
                chosen = key_of(result.recipe) == key_of(self.auto.recipe)
                result = replace(result, chosen=self.auto.why(name)) if chosen else result
            contenders.append(self._with_interval(Contender(name, estimator, result)))
        return contenders

    def _with_interval(self, contender: Contender) -> tuple[Contender, Floats | None]:
        result = contender.result
        if isinstance(result, Refusal):
            return contender, None
        interval = result.interval(self.level)
        if interval is None:
            why = result.error_method if result.standard_error is None else NO_SPREAD
            return replace(contender, no_interval=why), None
        try:
            psi = result.uncertainty.influence()
        except RefusedError as error:
            refused = Refusal(result.recipe, error, result.n_episodes, result.horizon)
            return replace(contender, result=refused), None
        if nothing_left(float(np.std(psi)) / math.sqrt(len(psi)), result.value):
            return replace(contender, no_interval=NO_SPREAD), None
        return replace(contender, interval=interval), psi

    def _judged(
        self, contenders: list[Contender], behavior: float, at: list[int], joint: Joint
    ) -> tuple[list[Difference], list[Difference]]:
        """The contenders get their joint intervals and probabilities in place; what the targets
        differ by, and estimators of one target that differ beyond chance. `at` are the contenders
        with an interval, in the order of `joint` after the behavior."""
        values = np.array([behavior, *(contenders[i].value for i in at)])
        names = [BEHAVIOR, *(contenders[i].name for i in at)]
        unit = np.eye(len(values))

        def differences(pairs: Iterable[tuple[int, int]]) -> list[Difference | None]:
            rows = np.array([unit[a] - unit[b] for a, b in pairs]).reshape(-1, len(unit))
            return _differences(joint, values, rows, self.level, names)

        gains = differences((k, 0) for k in range(1, len(values)))
        margins = joint.critical(unit[1:], self.level) * joint.errors(unit[1:])
        ranking = {
            i for i, c in enumerate(contenders)
            if c.estimator == next(iter(self.recipes)) and isinstance(c.result, Estimate)
        }  # fmt: skip
        first = np.array([False, *(i in ranking for i in at)])
        chances = joint.best(values, first)
        known = ranking <= set(at)  # else one would count as free of error
        for k, i in enumerate(at, 1):
            value, interval = values[k], contenders[i].interval
            assert interval is not None
            # the simultaneous interval, nowhere within the estimate's own
            low = min(value - margins[k - 1], interval.low)
            high = max(value + margins[k - 1], interval.high)
            contenders[i] = replace(
                contenders[i],
                interval=Interval(float(low), float(high), self.level, "simultaneous, max-t"),
                over_behavior=gains[k - 1],
                best=float(chances[k]) if known and first[k] else None,
            )
        target = [None, *(contenders[i].target for i in at)]
        everyone = range(len(values))
        same = differences((a, b) for a, b in combinations(everyone, 2) if target[a] == target[b])
        ranked = differences(combinations(np.flatnonzero(first).tolist(), 2))
        beyond = [d for d in same if d is not None and d.differs_clearly]
        return [d for d in ranked if d is not None], beyond


def _differences(
    joint: Joint, values: Floats, contrasts: Floats, level: float, names: list[str]
) -> list[Difference | None]:
    """None if two estimates differ but all influence values are equal."""
    if not len(contrasts):
        return []
    errors, critical = joint.errors(contrasts), joint.critical(contrasts, level)
    differences: list[Difference | None] = []
    for row, error in zip(contrasts, errors.tolist(), strict=True):
        value = float(row @ values)
        if error == 0 and abs(value) <= 1e-9 * float(np.abs(row) @ np.abs(values)):
            value = 0.0  # the same estimate twice, to rounding
        elif error == 0:
            differences.append(None)
            continue
        margin = critical * error
        interval = Interval(value - margin, value + margin, level, "simultaneous, max-t")
        first, second = names[int(np.argmax(row))], names[int(np.argmin(row))]
        p = p_value(value, error, joint.n)
        differences.append(Difference(first, second, value, error, interval, p))
    return differences


@dataclass(frozen=True, eq=False)
class Joint:
    """Draws of what k estimates are off by, together: (draws, k), in units of the value.

    With ψ (n, k) the influence values of k estimates, the error of a contrast c is that of ψc: what
    two estimates share cancels. Families of contrasts get one critical value from the multiplier
    bootstrap: with independent standard normal ξ, the largest of

        |(1/n) Σ_i ξ_i ψ_i c_j| / SE_j       over j

    is as large as the largest t-statistic of the family, whatever the estimates have in common.
    Given ψ, the k sums Σ_i ξ_i ψ_i are normal with the covariance ψᵀψ, so that they are drawn as
    such: with ψ = QR the rows of ξR, for ξ with k entries instead of n.
    """

    covariance: Floats  # (k, k) of the estimates
    draws: Floats
    n: int

    @classmethod
    def of(cls, psi: Floats, draws: int, seed: int, log: EpisodeLog | None = None) -> Joint:
        """n/(n-1) corrects for the means that ψ was centered with. Of a log with clusters these are
        what n counts (`estimate/clusters.py`)."""
        n = len(psi)
        centered = (psi - psi.mean(axis=0)) / math.sqrt(n * max(n - 1, 1))
        if log is not None and log.steps.cluster is not None:
            from reweigh.estimate.clusters import Clustering, deviations

            of = Clustering.of(log)
            centered, n = deviations(of.sums(psi), of.sizes), len(of.names)
        root = np.linalg.qr(centered, mode="r")  # (min(n, k), k)
        draws_of_errors = np.random.default_rng(seed).standard_normal((draws, len(root))) @ root
        return cls(centered.T @ centered, draws_of_errors, n)

    def errors(self, contrasts: Floats) -> Floats:
        """(m,) standard errors of the contrasts, (m, k)."""
        square: Floats = np.sum(contrasts @ self.covariance * contrasts, axis=1)
        # Equal estimates differ by rounding: the rest of their squares is not an error.
        apart = np.abs(contrasts) ** 2 @ np.diag(self.covariance)
        return np.sqrt(np.where(square > 1e-14 * apart, square, 0.0))

    def critical(self, contrasts: Floats, level: float, *, two_sided: bool = True) -> float:
        """The number of errors within which all contrasts are with probability `level`.

        The larger of the bootstrap's quantile and of Student's t for one contrast: the draws use
        known errors, the data does not.
        """
        errors = self.errors(contrasts)
        kept = errors > 0
        alone = float(stdtrit(max(self.n - 1, 1), 0.5 + level / 2 if two_sided else level))
        if not kept.any():
            return alone
        t = self.draws @ contrasts[kept].T / errors[kept]
        largest = np.abs(t).max(axis=1) if two_sided else t.max(axis=1)
        # Normal draws, t-distributed data: the quantile's tail probability is kept.
        normal = float(np.quantile(largest, level, method="higher"))
        widened = -float(stdtrit(max(self.n - 1, 1), ndtr(-normal)))
        return max(widened, alone)

    def best(self, values: Floats, among: npt.NDArray[np.bool_]) -> Floats:
        """(k,) how often each is the best of those `among`, if the true values were the estimates
        and the errors were drawn again; 0 for the others. Equal ones share."""
        if not among.any():
            return np.zeros(len(values))
        shown = np.where(among, values + self.draws, -np.inf)
        highest = shown.max(axis=1, keepdims=True)
        best = shown >= highest - SAME * np.abs(highest)
        return np.asarray((best / best.sum(axis=1, keepdims=True)).mean(axis=0), np.float64)


def p_value(difference: float, error: float, n: int) -> float:
    """P(t ≥ difference/error): small where the difference is above 0 beyond chance."""
    if error <= 0:
        return 0.5 if difference == 0 else float(difference < 0)
    return float(stdtr(max(n - 1, 1), -difference / error))
