"""check_estimator: does an estimator meet the requirements of every estimator?

    from reweigh.testing import check_estimator
    check_estimator(my_estimator())

Every check raises AssertionError with a sentence that names the fault.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError, ReweighWarning
from reweigh.estimate.estimator import Recipe
from reweigh.estimate.influence import influence_values
from reweigh.estimate.presets import ESTIMATORS, as_recipe, mis
from reweigh.evaluation.evaluate import Data, evaluate_in_study, moments, point_values
from reweigh.evaluation.result import Estimate, Refusal
from reweigh.log.arrays import log_from_arrays
from reweigh.log.log import EpisodeLog
from reweigh.policy import Policy
from reweigh.policy.table import TablePolicy
from reweigh.sums.moments import Moments
from reweigh.sums.read import read_log
from reweigh.sums.store import load_moments
from reweigh.sums.tables import BUILT_IN
from reweigh.trust.gates import all_gates
from reweigh.worlds import TabularMDP, random_mdp

ENGINES = ("arrays", "stream", "duckdb")
TOLERANCE = 1e-10  # engines add up in other orders
COPIES = 30  # of a log, to which an episode more or less is a small change
REPLICATES = 399
SHORTEST_REASON = 40  # characters
LIKE_JACKKNIFE = (0.6, 1.6)  # allowed ratio of its error to the jackknife's, for 300 episodes


def check_estimator(estimator: Recipe | str, *, mean_return: bool | None = None) -> None:
    """Check its declaration; that its needs suffice, and that sums by blocks, of parts, from a
    file and of every engine give the same value; that its influence values are its derivative, and
    agree with the jackknife; its bootstraps; and that it gives a reason where it refuses.

    `mean_return`: whether its value for the behavior policy is the mean return; without it
    that is expected of estimators that weigh rows with ratios and neither pool steps nor learn a Q
    from other episodes.
    """
    recipe = as_recipe(estimator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReweighWarning)
        check_declaration(recipe)
        log, target = _world().simulate(300, 0), _world().target
        value = _value(log, target, recipe)
        if mean_return is None:
            pools = recipe.weights.pools_steps or recipe.reward == "pooled"
            plain = recipe.control is None and not recipe.weights.holds_others
            plain &= (recipe.max_ratio or 1.0) >= 1
            mean_return = recipe.weights.uses_ratios and plain and not pools
        if mean_return:
            check_identity(recipe)
        check_sums(recipe, log, target, value)
        check_engines(recipe, log, target)
        check_influence(recipe)
        check_errors(recipe, log, target)
        check_refusals(recipe)


def check_declaration(recipe: Recipe) -> None:
    """Its declaration is complete; the tables, traits and limits it names exist."""
    for what in ("name", "formula", "description"):
        assert getattr(recipe, what), f"{recipe!r} declares no {what}"
    assert "{" not in recipe.formula, f"{recipe.name}: the formula is not filled in"
    own = {table.name for table in recipe.needs.tables}
    unknown = recipe.needs.all_kinds - {*BUILT_IN, "trajectories"} - own
    assert not unknown, f"{recipe.name} needs tables that do not exist: {sorted(unknown)}"
    assert recipe.needs.all_kinds or recipe.control is not None, f"{recipe.name} needs no sums"
    every = [*(make() for make in ESTIMATORS.values()), mis(memory=1)]
    known = frozenset().union(*(gate.of | gate.unless for gate in all_gates()))
    unknown = recipe.traits - known.union(*(other.traits for other in every))
    assert not unknown, f"{recipe.name} has traits that no gate uses: {sorted(unknown)}"
    assert recipe.limits in {other.limits for other in every}, (
        f"{recipe.name} has the limits of {recipe.limits!r}, which no gate has"
    )


def check_identity(recipe: Recipe) -> None:
    """Where the target is the behavior every ratio is 1, and the value is the mean return."""
    log, target = _world().simulate(50, 0), _world().behavior
    powers = log.discount ** log.steps.step.astype(np.float64)
    mean = float(np.sum(powers * log.steps.reward)) / log.n_episodes
    _same(f"{recipe.name} of the behavior itself", _value(log, target, recipe), mean)


def check_sums(recipe: Recipe, log: EpisodeLog, target: Policy, value: float) -> None:
    """The value from the sums that it needs and no others: by blocks, of two parts of the log that
    are added, and from a file."""
    if recipe.control is not None and (
        recipe.control.is_array_or_function or recipe.uses_trajectories
    ):
        return  # shaped rewards need the log itself

    def sums_of(part: EpisodeLog, blocks: int) -> Moments:
        return moments(part, target, [recipe], blocks=blocks, gates=False)

    needed = recipe.needs.blocks
    whole, by_blocks = sums_of(log, needed), sums_of(log, 4 * needed)
    _same(f"{recipe.name} from the sums that it needs", _value(whole, None, recipe), value)
    _same(f"{recipe.name} from sums by blocks", _value(by_blocks, None, recipe), value)
    first = np.arange(log.n_episodes) < log.n_episodes // 3
    added = sums_of(log.select(first), needed) + sums_of(log.select(~first), needed)
    _same(f"{recipe.name} from the sums of two parts", _value(added, None, recipe), value)
    with TemporaryDirectory() as folder:
        whole.save(Path(folder) / "sums.parquet")
        read = load_moments(Path(folder) / "sums.parquet")
    _same(f"{recipe.name} from sums of a file", _value(read, None, recipe), value)
    bare = replace(whole, transitions=None, model=None, trajectories=None, tables={})
    assert isinstance(_answer(bare, None, recipe), Refusal), (
        f"{recipe.name} has a value from sums without the tables it needs"
    )


def check_engines(recipe: Recipe, log: EpisodeLog, target: Policy) -> None:
    """Every engine gives the same value of the same rows, or refuses with a reason."""
    table = log.to_table()
    values = {}
    for engine in ENGINES:
        read = read_log(table, engine=engine, horizon=log.horizon, discount=log.discount)
        answer = _answer(read, target, recipe)
        if isinstance(answer, Refusal):
            assert engine != "arrays", f"{recipe.name} refuses a log: {answer.error}"
        else:
            values[engine] = answer.value
    for engine, value in values.items():
        _same(f"{recipe.name} by {engine}", value, values["arrays"])


def check_influence(recipe: Recipe) -> None:
    """ψ_i is the derivative by the number of times that episode i counts; their mean is 0."""
    log, target = _world().simulate(40, 0), _world().target
    psi = influence_values(log, target, recipe)
    assert psi.shape == (log.n_episodes,), f"{recipe.name} has {psi.shape} influence values"
    largest = float(np.abs(psi).max())
    assert abs(psi.mean()) <= 1e-8 * (1 + largest), f"{recipe.name}: ψ has the mean {psi.mean()}"
    if recipe.holds_parts:
        return  # what other episodes say is held as it is
    by = np.arange(log.n_episodes) % 2
    by_differences = _derivative(lambda part: _value(part, target, recipe), log, by)
    total = float(by @ psi) / log.n_episodes
    assert math.isclose(total, by_differences, rel_tol=1e-4, abs_tol=1e-5), (
        f"{recipe.name}: its influence values give {total}, differences {by_differences}"
    )


def check_errors(recipe: Recipe, log: EpisodeLog, target: Policy) -> None:
    """The error of its influence values is about that of the jackknife; both bootstraps and the
    jackknife give intervals around the value."""
    estimate = _answer(log, target, recipe)
    assert isinstance(estimate, Estimate), f"{recipe.name} refuses: {estimate}"
    json.dumps(estimate.to_dict(), allow_nan=False)
    psi = influence_values(log, target, recipe)
    deleted = estimate.interval(method="jackknife")
    assert deleted is not None, f"{recipe.name} has no jackknife interval"
    by_blocks = deleted.standard_error or math.nan
    ratio = float(np.sqrt(np.mean(psi**2) / len(psi))) / by_blocks
    low, high = LIKE_JACKKNIFE
    assert low < ratio < high, f"{recipe.name}: its error is {ratio:.2f} of the jackknife's"
    for method in ("percentile", "bootstrap-t"):
        try:
            interval = estimate.interval(method=method, replicates=REPLICATES, seed=1)
        except RefusedError:
            assert method == "bootstrap-t", f"{recipe.name} has no {method} interval"
            assert recipe.weights.only_jackknife, f"{recipe.name} has no {method} interval"
            continue
        assert interval is not None, f"{recipe.name} has no {method} interval"
        assert interval.low < interval.high, f"{recipe.name}: {method} gives {interval}"
        near = interval.low - 3 * by_blocks < estimate.value < interval.high + 3 * by_blocks
        assert near, f"{recipe.name}: {method} gives {interval} for {estimate.value}"


def check_refusals(recipe: Recipe) -> None:
    """On logs with little data it gives a number, or a reason why there is none."""
    for what, (log, target) in _hard_logs().items():
        answer, [value] = _answer(log, target, recipe), point_values(log, target, [recipe])
        case = f"{recipe.name} on a log {what}"
        refused = isinstance(answer, Refusal)
        assert isinstance(value, Refusal) == refused, f"{case}: {answer} and {value}"
        if isinstance(answer, Refusal):
            assert answer.error.code, f"{case} gives no code"
            assert len(answer.error.reason) > SHORTEST_REASON, f"{case} gives no reason"
        else:
            assert math.isfinite(answer.value), f"{case} gives {answer.value}"


@cache
def _world() -> TabularMDP:
    return random_mdp(1, 4, 2, 4, reward_sd=0.3, discount=0.9, overlap=0.7, time_varying=False)


def _hard_logs() -> dict[str, tuple[EpisodeLog, Policy]]:
    """Logs without overlap, of one episode, with cut-off episodes, with huge ratios."""
    rng, shape = np.random.default_rng(0), (30, 4)
    states, reward = rng.integers(0, 2, (30, 5)), rng.normal(size=shape)
    action = rng.integers(0, 2, shape)
    target = TablePolicy([[0.3, 0.7]] * 2)
    half = np.full(shape, 0.5)
    one = tuple(column[:1] for column in (states, action, reward, half))
    cut = rng.random(30) < 0.3
    lengths = np.where(cut, 2, 4)
    return {
        "without overlap": (
            log_from_arrays(states, 0 * action, reward, half),
            TablePolicy([[0, 1]] * 2),
        ),
        "of one episode": (log_from_arrays(*one), target),
        "with cut-off episodes": (
            log_from_arrays(states, action, reward, half, lengths=lengths, truncated=cut),
            target,
        ),
        "with huge ratios": (
            log_from_arrays(states, action, reward, np.where(action == 1, 1e-290, 0.5)),
            target,
        ),
    }


def _answer(data: Data, target: Policy | None, recipe: Recipe) -> Estimate | Refusal:
    return evaluate_in_study(data, target, [recipe])[0]


def _value(data: Data, target: Policy | None, recipe: Recipe) -> float:
    answer = _answer(data, target, recipe)
    assert isinstance(answer, Estimate), f"{recipe.name} refuses: {answer}"
    return answer.value


def _same(what: str, value: float, expected: float) -> None:
    close = math.isclose(value, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    assert close, f"{what} is {value}, and should be {expected}"


def _derivative(
    value: Callable[[EpisodeLog], float], log: EpisodeLog, by: npt.NDArray[np.int64]
) -> float:
    """Σ_i by_i ∂v/∂ω_i at ω = 1: episodes count 1 ± by/K times, K = COPIES and twice as many, and
    Richardson's extrapolation takes the error of 1/K²."""

    def central(copies: int) -> float:
        above, below = (
            value(replace(log, steps=log.steps.repeated(copies + sign * by), _cache={}))
            for sign in (1, -1)
        )
        return (above - below) * copies / 2

    coarse, fine = central(COPIES), central(2 * COPIES)
    return fine + (fine - coarse) / 3
