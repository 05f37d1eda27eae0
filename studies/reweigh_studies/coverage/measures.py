"""What the coverage study measures in one log: values, intervals, gates and verdicts.

This is the only module of the study that calls the library. A row's columns are named by the
estimator and a part: "mis/value", "mis/analytic low", "mis/gate support", "mis/level". Gates of the
log instead of an estimator are under "log". The results of MIS from the log's sums alone, as from a
stream or a database, are under "mis-sums".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reweigh.errors import RefusedError
from reweigh.estimate.estimator import Recipe
from reweigh.estimate.influence import behavior_values
from reweigh.estimate.presets import as_recipe
from reweigh.estimate.standard_error import error_of_blocks, same, t_interval
from reweigh.evaluation.evaluate import evaluate_in_study
from reweigh.evaluation.resampling import delete_blocks, resample
from reweigh.evaluation.result import Estimate, Interval, Refusal
from reweigh.kernels import compiled, tally
from reweigh.log.log import EpisodeLog
from reweigh.paper.cells import PART, Row
from reweigh.policy import Policy, RowsPolicy
from reweigh.sums.engines import ArraysEngine
from reweigh.sums.moments import Moments
from reweigh.trust.bootstrap import bootstrap_t, percentile
from reweigh.trust.gates import Context, GateResult, Verdict, measured, tables_needed
from reweigh.trust.intervals import IntervalRequest, from_error

LEVEL = 0.95
LOG, BEHAVIOR = "log", "behavior"  # columns beside estimators
MAIN, WIS = (
    "mis",
    "wis",
)  # the default estimator; one for histories
SUMS = "mis-sums"  # MIS from the sums of the log
ONE_BY_ONE = ("auto", "analytic", "cluster")
JACKKNIFE = "jackknife"
BOOTSTRAPS = ("percentile", "bootstrap-t")
LEVELS = ("green", "amber", "red")  # a verdict's level is stored as its place here
LOG_GATES = (
    "estimated propensities", "propensities", "policies", "hidden policies", "fitted values",
    "history", "steadiness", "drift", "marginal size", "marginal support", "Pareto k",
)  # fmt: skip
CUT, DEPENDENCE = "cut-off episodes", "dependence"  # gates that exist only if they react
VALUE, ERROR, SIZE, VERDICT, GATE = "value", "error", "effective size", "level", "gate"
APART = "apart from wis"  # in errors of the difference
# An earlier history test was excused within so many; published cells hold its p-values.
AGREES = 1.0


def column(estimator: str, *parts: str) -> str:
    return f"{estimator}{PART}{' '.join(parts)}"


def recipe_of(name: str) -> Recipe:
    """Of an estimator as the study names it."""
    return as_recipe(MAIN if name == SUMS else name)


@dataclass(frozen=True)
class Measure:
    """Which intervals are made. The jackknife of the `quick` estimators is made anyway, that of
    the others where `methods` names it."""

    methods: tuple[str, ...] = ONE_BY_ONE
    resamples: int = 399
    quick: tuple[str, ...] = ("mis", "mis-plain", "mis-state")
    gates: bool = True

    def row(self, log: EpisodeLog, policy: Policy, requested: Sequence[str], seed: int) -> Row:
        """All columns of one log. Estimators share its rows, and the resampled logs."""
        names = [name for name in requested if name not in (LOG, BEHAVIOR, SUMS)]
        found: dict[str, Any] = {}
        with compiled():
            # The target's probabilities are looked up once.
            target = RowsPolicy(policy, log)
            results = dict(zip(names, evaluate_in_study(log, target, names), strict=True))
            from_rows = {n: r for n, r in results.items() if isinstance(r, Estimate)}
            if self.gates or SUMS in requested:
                sums = ArraysEngine().moments(log, target, tables_needed(None))
            if SUMS in requested:
                [results[SUMS]] = evaluate_in_study(sums, target, [MAIN])
            for name, result in results.items():
                found |= self._of(name, result)
            if self.gates:
                other = from_rows.get(WIS) or evaluate_in_study(log, target, [WIS])[0]
                answered = {n: r for n, r in results.items() if isinstance(r, Estimate)}
                found |= _judged(sums, answered, other, tell_log=LOG in requested)
            found |= self._deleting(log, target, from_rows)
            found |= self._resampling(log, target, from_rows, seed)
        if BEHAVIOR in requested:
            found |= logged_mean(log)
        return {name: number(value) for name, value in found.items()}

    def _of(self, name: str, result: Estimate | Refusal) -> dict[str, Any]:
        if isinstance(result, Refusal):
            return {column(name, VALUE): result}
        error = result.standard_error
        found: dict[str, Any] = {column(name, VALUE): result.value, column(name, ERROR): error}
        for method in self.methods:
            if method in ONE_BY_ONE:
                try:
                    found |= interval_columns(name, method, result.interval(LEVEL, method))
                except RefusedError as why:
                    found[column(name, method, "low")] = _refused(result, why)
        return found

    def _deleting(
        self, log: EpisodeLog, target: Policy, answered: dict[str, Estimate]
    ) -> dict[str, Any]:
        """Jackknife intervals, as `Estimate.interval` makes them, from blocks deleted once."""
        every = JACKKNIFE in self.methods
        some = {n: e for n, e in answered.items() if every or n in self.quick}
        if not some or log.n_episodes < 2:
            return {}
        deleted = delete_blocks(log, _pairs(target, some))
        found: dict[str, Any] = {}
        for j, (name, estimate) in enumerate(some.items()):
            error, why = error_of_blocks(
                estimate.value, deleted.values[:, j], deleted.sizes, deleted.reasons[j]
            )
            if error is None:
                refusal = _refused(estimate, RefusedError("no-error", why))
                found[column(name, JACKKNIFE, "low")] = refusal
                continue
            df = len(deleted.sizes) - 1
            interval = from_error(estimate.value, error, df, IntervalRequest(LEVEL), JACKKNIFE)
            found |= interval_columns(name, JACKKNIFE, interval)
        return found

    def _resampling(
        self, log: EpisodeLog, target: Policy, answered: dict[str, Estimate], seed: int
    ) -> dict[str, Any]:
        """Bootstrap intervals, as `Estimate.interval` makes them, from logs resampled once."""
        if not set(self.methods) & set(BOOTSTRAPS) or not answered:
            return {}
        pairs = _pairs(target, answered)
        drawn = resample(log, pairs, self.resamples, seed=seed, errors=True)
        assert drawn.errors is not None
        found: dict[str, Any] = {}
        for j, (name, estimate) in enumerate(answered.items()):
            values, reasons = drawn.values[:, j], drawn.reasons[j]
            for method in BOOTSTRAPS:
                try:
                    if method == "percentile":
                        interval = percentile(values, seed, reasons, IntervalRequest(LEVEL))
                    elif estimate.standard_error is None:
                        raise RefusedError("no-error", estimate.error_method)
                    else:
                        interval = bootstrap_t(
                            estimate.value, estimate.standard_error, values, drawn.errors[:, j],
                            seed, reasons, IntervalRequest(LEVEL),
                        )  # fmt: skip
                    found |= interval_columns(name, method, interval)
                except RefusedError as error:
                    found[column(name, method, "low")] = _refused(estimate, error)
        return found


def _pairs(target: Policy, estimates: dict[str, Estimate]) -> list[tuple[Policy, Recipe]]:
    return [(target, as_recipe(name)) for name in estimates]


def interval_columns(name: str, method: str, interval: Interval | None) -> dict[str, Any]:
    if interval is None:
        return {}
    found = {"low": interval.low, "high": interval.high, "df": interval.df}
    return {column(name, method, part): value for part, value in found.items()}


def _refused(estimate: Estimate, error: RefusedError) -> Refusal:
    return Refusal(estimate.recipe, error, estimate.n_episodes, estimate.horizon)


def _judged(
    sums: Moments, answered: dict[str, Estimate], other: Estimate | Refusal, *, tell_log: bool
) -> dict[str, Any]:
    """Gates and verdicts; what gates compute from the sums alone is computed once for all
    estimators. `other` is WIS, which a verdict needs."""
    of_sums = Context(sums)
    found: dict[str, Any] = {}
    if tell_log:
        results = measured("sums", of_sums)
        found = {column(LOG, GATE, g.name): g.value for g in results if g.name in LOG_GATES}
    for name, estimate in answered.items():
        apart = _apart(estimate, other)
        judged = _measured(estimate, of_sums)
        level = LEVELS.index(Verdict(judged).level)
        found |= {
            column(name, SIZE): estimate.diagnostics.worst_ess,
            column(name, APART): apart,
            column(name, VERDICT): float(level),
        }
        nothing = set() if estimate.recipe.uses_trajectories else {CUT}
        nothing |= {DEPENDENCE} if name == SUMS else set()
        found |= {column(name, GATE, gate): 0.0 for gate in nothing}
        own = [gate for gate in judged if gate.name not in LOG_GATES]
        found |= {column(name, GATE, gate.name): gate.value for gate in own}
    return found


def _measured(estimate: Estimate, of_sums: Context) -> tuple[GateResult, ...]:
    """The gates of `Estimate.verdict`, but for that of the interval, which the cells hold."""
    context = replace(
        estimate.context(),
        sums=of_sums.sums,
        shared=of_sums.shared,
        has_interval=True,
    )
    return (*estimate.gates, *measured("sums", context))


def _apart(estimate: Estimate, other: Estimate | Refusal) -> float | None:
    """How far an estimate is from WIS, in errors of the difference; None without a state, or
    where one of the two has no error."""
    if estimate.recipe.uses_trajectories or not isinstance(other, Estimate):
        return None
    try:
        psi = estimate.uncertainty.influence() - other.uncertainty.influence()
    except RefusedError:
        return None
    m = estimate.n_episodes
    error = math.sqrt(float(np.mean(psi**2)) / len(psi) * m / (m - 1))
    if same(estimate.value, other.value):
        return 0.0
    return abs(estimate.value - other.value) / error if error > 0 else None


def logged_mean(log: EpisodeLog) -> dict[str, Any]:
    """The plain mean of the logged returns, as if the target were the behavior."""
    n, psi = log.n_episodes, behavior_values(log)
    powers = log.discount ** log.steps.step.astype(np.float64)
    value = float(tally(log.steps.episode_index, powers * log.steps.reward, n).mean())
    error = math.sqrt(float(np.sum(psi**2)) / (n * (n - 1)))
    ends = t_interval(value, error, LEVEL, n - 1)
    assert ends is not None
    interval = Interval(*ends, LEVEL, "t", error, n - 1.0)
    found = {column(BEHAVIOR, VALUE): value, column(BEHAVIOR, ERROR): error}
    return found | interval_columns(BEHAVIOR, "auto", interval)


def number(value: Any) -> float | Refusal | None:
    if value is None or isinstance(value, Refusal):
        return value
    return float(value) if math.isfinite(value) else None
