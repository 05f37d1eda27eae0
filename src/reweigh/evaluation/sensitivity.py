"""How far the number moves when a choice behind it is changed: clipping, episodes, horizon, states.

A change that should not matter and moves the number by more than its error is a reason to doubt it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError
from reweigh.estimate.estimator import Recipe
from reweigh.estimate.influence import influence_values
from reweigh.evaluation.result import Estimate, Refusal
from reweigh.kernels import group_by
from reweigh.log.log import EpisodeLog
from reweigh.log.states import HIDDEN, UNKNOWN, Label, Labels
from reweigh.policy import Floats, Policy, WrappedPolicy, no_other_actions
from reweigh.show.record import Change
from reweigh.show.text import change_cells
from reweigh.sums.engines import ratios
from reweigh.sums.moments import Moments
from reweigh.system import rounded
from reweigh.system.process import each

CLIPPED = (0.999, 0.99)  # quantiles of the ratios
LEFT_OUT = 0.01  # of the episodes
SHORTER = 0.9  # of the horizon
MOST_CHANGES = len(CLIPPED) + 5  # and one for each column of the state
# the change, the log or its sums, the target, the estimator
Variant = tuple[str, EpisodeLog | Moments, Policy | None, Recipe]
Evaluate = Callable[[Any, Policy | None, list[Recipe]], Sequence[Estimate | Refusal]]


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """The value, and the values after each change; `untried` lists changes that were not
    possible."""

    estimator: str
    value: float
    standard_error: float | None
    changes: tuple[Change, ...]
    untried: str = ""

    @property
    def largest(self) -> Change | None:
        known = [change for change in self.changes if change.moved is not None]
        return max(known, key=lambda change: abs(change.moved or 0.0), default=None)

    def to_dict(self) -> dict[str, Any]:
        return {
            "estimator": self.estimator,
            "value": self.value,
            "standard_error": self.standard_error,
            "changes": [change.to_dict() for change in self.changes],
            "untried": self.untried,
        }

    def rows(self) -> list[tuple[str, str, str]]:
        """(change, value, moved by) as they are printed."""
        return [change_cells(change, self.standard_error) for change in self.changes]

    def __str__(self) -> str:
        width = max((len(change) for change, _, _ in self.rows()), default=0)
        lines = [f"{self.estimator}: {rounded(self.value, self.standard_error)}"]
        lines += [f"  {c:<{width}}  {v:>10}  {m}" for c, v, m in self.rows()]
        return "\n".join([*lines, f"  {self.untried}"] if self.untried else lines)

    __repr__ = __str__


def of_log(log: EpisodeLog, target: Policy, recipe: Recipe, evaluate_all: Evaluate) -> Sensitivity:
    """Every change that this log and estimator allow."""
    at_most = MOST_CHANGES + len(log.columns.state)
    variants = _variants(log, target, recipe)
    found = _changed_value("other choices", (log, target, recipe), variants, evaluate_all, at_most)
    return replace(found, untried="; ".join(_untried(log, target, recipe)))


def of_sites(
    sites: Sequence[Moments],
    recipe: Recipe,
    evaluate_all: Evaluate,
    names: Sequence[str] | None = None,
) -> Sensitivity:
    """Each site's sums left out in turn."""
    if len(sites) < 2:
        raise RefusedError("sites", "no site can be left out: there is only one")

    def without(i: int) -> Variant:
        rest = reduce(add, [site for j, site in enumerate(sites) if j != i])
        name = f"site {i + 1}" if names is None else names[i]
        return f"without {name} ({sites[i].n_episodes:,} episodes)", rest, None, recipe

    whole, variants = (reduce(add, sites), None, recipe), map(without, range(len(sites)))
    return _changed_value("sites", whole, variants, evaluate_all, len(sites))


def _changed_value(
    what: str,
    whole: tuple[Any, Policy | None, Recipe],
    variants: Iterable[Variant],
    evaluate_all: Evaluate,
    at_most: int,
) -> Sensitivity:
    """The value of the whole, and by how much it moves with each variant."""
    data, target, recipe = whole
    [base] = evaluate_all(data, target, [recipe])
    if isinstance(base, Refusal):
        raise base.error
    value = base.value

    def change(variant: Variant) -> Change:
        name, other_data, other_target, other_recipe = variant
        [result] = evaluate_all(other_data, other_target, [other_recipe])
        if isinstance(result, Refusal):
            return Change(name, None, None, result.error.reason)
        return Change(name, result.value, result.value - value)

    changes = tuple(each(what, variants, change, at_most))
    return Sensitivity(recipe.name, value, base.standard_error, changes)


def _variants(log: EpisodeLog, target: Policy, recipe: Recipe) -> Iterator[Variant]:
    yield from _clipped(log, target, recipe)
    yield from _lighter(log, target, recipe)
    shorter = math.floor(SHORTER * log.horizon)
    if 1 <= shorter < log.horizon:
        yield f"the first {shorter} of {log.horizon} steps", shortened(log, shorter), target, recipe
    if _by_state(recipe) and not log.has_hidden:
        given = RowPolicy(target, target.probabilities(log))
        for what, states, labels in _other_states(log):
            yield what, _with_states(log, states, labels), given, recipe
        finer = _halved(log)
        if finer is not None:
            yield "states split at their medians", finer, given, recipe
        if log.horizon > 1:
            yield "states together with the one before", with_previous(log), given, recipe


def _by_state(recipe: Recipe) -> bool:
    """Whether another state is another estimate with the ratios that there are."""
    return "transitions" in recipe.weights.kinds and recipe.control is None


def _untried(log: EpisodeLog, target: Policy, recipe: Recipe) -> Iterator[str]:
    """The changes that are not tried, and why: clipping, other states."""
    if "ratios" in recipe.traits and not any(_clipped(log, target, recipe)):
        yield "clipping is not tried: no ratio is between 1 and the largest"
    if recipe.uses_trajectories and recipe.control is None:
        return  # it has no states
    if not _by_state(recipe):
        yield f"other states are not tried with {recipe.name}"
    elif log.has_hidden:
        yield "other states are not tried where some are hidden"
    elif next(_other_states(log), None) is None:
        yield "no coarser states are known: the state is one column, without bins"


def _clipped(log: EpisodeLog, target: Policy, recipe: Recipe) -> Iterator[Variant]:
    """At quantiles; where many rows share the largest ratio, as with tables, at the next one."""
    if "ratios" not in recipe.traits:
        return
    _, rho = ratios(log, target, recipe.max_ratio)
    highest = float(rho.max())
    limits = [float(np.quantile(rho, quantile)) for quantile in CLIPPED]
    if min(limits) >= highest:
        limits = [float(rho.max(where=rho < highest, initial=0.0))]
    for limit in limits:
        if 1 < limit < highest:  # a mean of ratios is 1: below it nothing but the mean would move
            yield f"ratios clipped at {limit:.3g}", log, target, replace(recipe, max_ratio=limit)
            highest = limit


def _lighter(log: EpisodeLog, target: Policy, recipe: Recipe) -> Iterator[Variant]:
    """Without the episodes that move the number most, by their influence."""
    count = max(1, round(LEFT_OUT * log.n_episodes))
    if log.n_episodes - count < 2:
        return
    try:
        weight = np.abs(influence_values(log, target, recipe))
    except RefusedError:
        return
    kept = np.ones(log.n_episodes, bool)
    kept[np.argsort(-weight, kind="stable")[:count]] = False
    episodes = (
        "episode with the largest effect"
        if count == 1
        else f"{count:,} episodes with the largest effect"
    )
    yield f"without the {episodes}", log.select(kept), target, recipe


def shortened(log: EpisodeLog, horizon: int) -> EpisodeLog:
    """The first steps of a log; what then follows is the state there."""
    steps = log.steps
    rows = slice(0, int(steps.offsets[horizon]))
    after = steps.rows(horizon)
    ending = steps.ending.copy()
    ending[: after.stop - after.start] = steps.state[after]
    cut = steps.truncated & (steps.lengths < horizon)
    short = replace(
        steps,
        offsets=steps.offsets[: horizon + 1],
        state=steps.state[rows],
        action=steps.action[rows],
        reward=steps.reward[rows],
        behavior_prob=None if steps.behavior_prob is None else steps.behavior_prob[rows],
        ending=ending,
        truncated=cut,
        source_rows=steps.source_row[rows],
        features=None if steps.features is None else steps.features[rows],
    )
    return replace(log, steps=short, _cache={})


def _other_states(log: EpisodeLog) -> Iterator[tuple[str, npt.NDArray[np.int64], Labels]]:
    """(what, new code of each old state, labels) of coarser states."""
    values: tuple[Any, ...] = log.states.values
    tuples = [value if isinstance(value, tuple) else (value,) for value in values]
    parts = len(tuples[0]) if tuples else 1
    names = log.columns.state
    if parts > 1 and all(len(each) == parts for each in tuples):
        for j in range(parts):
            name = names[j] if len(names) == parts else f"part {j + 1}"
            yield (
                f"states without {name}",
                *_merged([each[:j] + each[j + 1 :] for each in tuples]),
            )
    numbers = [part for each in tuples for part in each]
    whole = all(isinstance(p, int | np.integer) and not isinstance(p, bool) for p in numbers)
    if log.abstraction is not None and whole:
        halves = [tuple(part // 2 for part in each) for each in tuples]
        yield ("states twice as coarse", *_merged(halves))


def _merged(labels: Sequence[tuple[Any, ...]]) -> tuple[npt.NDArray[np.int64], Labels]:
    known: dict[Any, int] = {}
    codes = np.array([known.setdefault(label, len(known)) for label in labels], np.int64)
    return codes, Labels(tuple(label[0] if len(label) == 1 else label for label in known))


def _with_states(log: EpisodeLog, codes: npt.NDArray[np.int64], labels: Labels) -> EpisodeLog:
    steps = log.steps

    def recode(old: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        return np.where(old >= 0, codes[np.maximum(old, 0)], old).astype(np.int32)

    other = replace(steps, state=recode(steps.state), ending=recode(steps.ending))
    return replace(log, steps=other, states=labels, _cache={})


def with_previous(log: EpisodeLog) -> EpisodeLog:
    """The same log whose state is the state together with the one before it, HIDDEN at step 0."""
    steps = log.steps
    before = np.full(steps.n_rows, HIDDEN, np.int64)
    for t in range(1, steps.horizon):
        rows, past = steps.rows(t), steps.rows(t - 1)
        before[rows] = steps.state[past.start : past.start + rows.stop - rows.start]
    return _refined(log, [before, steps.state])


def _halved(log: EpisodeLog) -> EpisodeLog | None:
    """The same log with each binned state split in two at the median of each of its numbers; None
    if there is nothing to split."""
    if log.abstraction is None:
        return None
    values = log.raw_states()
    if values.dtype.kind not in "iuf":
        return None
    state = log.steps.state
    first = np.concatenate([[0], np.cumsum(np.bincount(state))])
    middle = (first[:-1] + first[1:] - 1) // 2  # (S,) in the order of the states
    above = [x > x[np.lexsort([x, state])][middle[state]] for x in values.reshape(len(state), -1).T]
    if not np.any(above):
        return None
    return _refined(log, [state, *(half.astype(np.int64) for half in above)])


def _refined(log: EpisodeLog, keys: list[npt.NDArray[Any]]) -> EpisodeLog:
    """The same log whose state is all of these (N,) together."""
    groups = group_by(keys)
    parts = zip(*(key.tolist() for key in groups.keys), strict=True)
    labels = Labels(tuple("|".join(map(str, each)) for each in parts))
    # There is no such state after the last row; it is not needed after the horizon.
    steps = log.steps
    ending = np.where(steps.ending >= 0, UNKNOWN, steps.ending)
    other = replace(steps, state=groups.index().astype(np.int32), ending=ending.astype(np.int32))
    return replace(log, steps=other, states=labels, _cache={})


class RowPolicy(WrappedPolicy):
    """A policy's probabilities for the rows of one log, independent of state names."""

    def __init__(self, policy: Policy, target_prob: Floats) -> None:
        super().__init__(policy)
        self.target_prob = target_prob

    def probabilities(self, log: EpisodeLog) -> Floats:
        return self.target_prob.copy()

    def all_actions(self, log: EpisodeLog) -> Labels:
        raise no_other_actions(self.name)

    def of_action(self, log: EpisodeLog, action: Label) -> Floats:
        raise no_other_actions(self.name)

    def unlogged_actions(self, log: EpisodeLog) -> dict[str, float]:
        return {}
