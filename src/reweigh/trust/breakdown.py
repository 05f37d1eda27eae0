"""The parts of an estimate: the states the target visits, the states and steps that the value and
the variance come from, and what would lower the variance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError
from reweigh.estimate.estimator import Nodes, Recipe, Solution
from reweigh.estimate.influence import Parts
from reweigh.estimate.operators import OneStep
from reweigh.estimate.presets import mis
from reweigh.estimate.solution import Operators, solve_operator
from reweigh.kernels import tally
from reweigh.log.log import EpisodeLog
from reweigh.log.states import END, Labels
from reweigh.policy import Policy
from reweigh.sums.moments import Moments

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
LISTED = 20
DIGITS = 9  # of a share: less is rounding
MOST_FIELDS = 100  # columns of the heat map: beyond, steps are joined
MOST_CELLS = 20_000  # of the heat map: beyond, states are joined
NO_SUMS = "neither rows nor sums are available"


@dataclass(frozen=True, eq=False)
class StatePart:
    """A state's part of the value, or of the variance, with an episode's expected visits to the
    state: under the target, and in the log."""

    state: str
    amount: float
    target: float
    log: float


@dataclass(frozen=True, eq=False)
class Decomposition:
    """The variance of an estimate by (t, s), for K visited pairs, the largest share first.

    start    share of the variance that the first state's own spread has
    step     (K,) t
    state    K names
    share    (K,) share of the variance; with `start` they add up to 1
    target   (K,) d_t^π(s), the target's mass there
    visits   (K,) N_t(s)/n, the share of logged episodes there; d_t^μ(s) of a world
    wanted   (K,) wanted/logged: the step's visits at their best (Neyman's allocation, d_t(s) times
             the spread at s) over the visits as they are. None of a difference: other visits would
             be another behavior, and so another difference
    by_step  (H,) share of each step
    episodes how many were logged, None of a world
    """

    estimator: str
    start: float
    step: Ints
    state: list[str]
    share: Floats
    target: Floats
    visits: Floats
    wanted: Floats | None
    by_step: Floats
    episodes: int | None = None

    def by_state(self) -> dict[str, float]:
        """Share of each state, summed over the steps, the largest first."""
        return {part.state: part.amount for part in self.states()}

    def states(self) -> list[StatePart]:
        """The same, with the visits to each state."""
        place = {name: k for k, name in enumerate(dict.fromkeys(self.state))}
        row = [place[name] for name in self.state]
        columns = (self.share, self.target, self.visits)
        sums = [np.bincount(row, each, len(place)).tolist() for each in columns]
        parts = [StatePart(name, *values) for name, *values in zip(place, *sums, strict=True)]
        return sorted(parts, key=lambda part: -round(part.amount, DIGITS))

    def heaviest_steps(self, count: int) -> Ints:
        """The steps with the largest shares."""
        order = np.argsort(-np.round(self.by_step, DIGITS), kind="stable")
        return np.asarray(order[:count], np.int64)

    def rare_mass(self, episodes: int) -> float:
        """The target's mass on (t, s) that so many episodes would visit fewer than 10 times."""
        rare = episodes * self.visits < 10
        return float(self.target[rare].sum()) / len(self.by_step)

    def to_dict(self, listed: int = LISTED) -> dict[str, Any]:
        """Plain values: the `listed` largest pairs, the sum of the others, and every step."""
        names = ["step", "share", "target", "visits"] + ["wanted"] * (self.wanted is not None)
        columns = [getattr(self, name)[:listed].tolist() for name in names]
        return {
            "estimator": self.estimator,
            "start": self.start,
            "largest": [
                {"state": state, **dict(zip(names, values, strict=True))}
                for state, *values in zip(self.state[:listed], *columns, strict=True)
            ],
            "others": {
                "pairs": max(len(self.state) - listed, 0),
                "share": float(self.share[listed:].sum()),
            },
            "by_step": self.by_step.tolist(),
        }


def from_solution(
    estimator: str, solution: Solution, states: Labels, n: int
) -> Decomposition | None:
    """Of a value's SE², from the sums; None for estimators without a part per state."""
    nodes, start = solution.nodes, solution.variance_of_start
    if nodes is None or nodes.variance is None:
        return None
    assert start is not None
    at, visits = (nodes.t, nodes.s, nodes.target), nodes.visits / n
    return decomposed(
        estimator, start, nodes.variance, at, visits, states.name, len(solution.ess), episodes=n
    )


def from_parts(estimator: str, parts: Parts, states: Labels, horizon: int) -> Decomposition:
    """Of a difference's mean(ψ²), from influence values."""
    start, by_node = parts.variances()
    at = parts.node_t, parts.node_s, parts.target
    visits = np.bincount(parts.node, minlength=len(by_node)) / len(parts.start)
    return decomposed(estimator, start, by_node, at, visits, states.name, horizon, difference=True)


def decomposed(
    estimator: str,
    start: float,
    variance: Floats,
    at: tuple[Ints, Ints, Floats],
    visits: Floats,
    name: Callable[[int], str],
    horizon: int,
    *,
    difference: bool = False,
    episodes: int | None = None,
) -> Decomposition:
    """`at` are the step, the state's code and the target's mass of each part."""
    kept = np.flatnonzero((visits > 0) & (at[1] != END) & (at[0] < horizon))
    variance, visits = variance[kept], visits[kept]
    step, code, target = at[0][kept], at[1][kept], at[2][kept]
    total = start + float(variance.sum())
    # parts equal up to rounding are ordered by step
    order = np.lexsort((code, step, -np.round(variance / total, DIGITS)))
    return Decomposition(
        estimator=estimator,
        start=start / total,
        step=step[order],
        state=[name(one) for one in code[order].tolist()],
        share=variance[order] / total,
        target=target[order],
        visits=visits[order],
        wanted=None if difference else _wanted(variance, visits, step, horizon)[order],
        by_step=tally(step, variance, horizon) / total,
        episodes=episodes,
    )


def _wanted(variance: Floats, visits: Floats, step: Ints, horizon: int) -> Floats:
    """Σ_s A²/N is smallest, for a given Σ_s N of a step, at N ∝ A = γ^t d_t(s) sd_t(s), and the
    variance of (t, s) is A²/N: so A = sqrt(variance N). A step without variance keeps its
    visits."""
    A = np.sqrt(variance * visits)
    best, logged = tally(step, A, horizon)[step], tally(step, visits, horizon)[step]
    found = A / np.where(best > 0, best, 1.0) * logged / visits
    return np.where(best > 0, found, 1.0)


@dataclass(frozen=True)
class Missing:
    """A part that could not be computed, and why."""

    why: str


@dataclass(frozen=True, eq=False)
class Sources:
    """The data of a breakdown: the sums, and the rows if they are in memory.

    sums    all kinds that there are, None without propensities
    recipe  the estimator of the answer, None if every estimator refused
    """

    sums: Moments | None
    log: EpisodeLog | None = None
    target: Policy | None = None
    recipe: Recipe | None = None
    _solved: dict[str, tuple[Solution, OneStep] | Missing] = field(default_factory=dict, repr=False)

    @property
    def by_state(self) -> Recipe:
        """The estimator whose state distribution is shown: the answer's, where it has one per
        step, else MIS."""
        recipe = self.recipe
        if recipe is None or recipe.control is not None:
            return self._mis
        by_step = recipe.weights.has_operator and not recipe.weights.pools_steps
        return recipe if by_step else self._mis

    @property
    def marginal(self) -> Recipe:
        """The estimator whose weights are compared with running products: a MIS."""
        return self._mis if "model" in self.by_state.traits else self.by_state

    @property
    def _mis(self) -> Recipe:
        return mis(max_ratio=None if self.recipe is None else self.recipe.max_ratio)

    def solved(self, recipe: Recipe) -> tuple[Solution, OneStep] | Missing:
        """The estimator solved on the sums, and its operator; both are made once."""
        if recipe.name not in self._solved:
            self._solved[recipe.name] = self._solve(recipe)
        return self._solved[recipe.name]

    def _solve(self, recipe: Recipe) -> tuple[Solution, OneStep] | Missing:
        sums = self.sums
        if sums is None:
            return Missing(NO_SUMS)
        operators: dict[str, Operators] = {}

        def make(variant: Recipe) -> Operators:
            operators[variant.normalize] = variant.weights.operators(variant, sums)
            return operators[variant.normalize]

        try:
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                solution = solve_operator(recipe, make)
        except RefusedError as error:
            return Missing(error.reason)
        return solution, operators[recipe.normalize][0]


def node_of_each(nodes: Nodes, t: Ints, s: Ints) -> Ints:
    """(K,) the node of each (t, s), -1 where there is none."""
    span = 1 + max(int(codes.max(initial=0)) for codes in (nodes.s, s))
    keys = np.where(nodes.s >= 0, nodes.t * span + nodes.s, -1)
    order = np.argsort(keys, kind="stable")
    place = np.searchsorted(keys[order], t * span + s)
    at = order[np.minimum(place, len(order) - 1)]
    return np.where(keys[at] == t * span + s, at, -1)


@dataclass(frozen=True, eq=False)
class Heat:
    """State distributions of target and log: R states by C groups of steps.

    names            R names, those with the most mass first; the last may combine all others
    first, last      (C,) the steps of a field, both included
    target, behavior (R, C) mean share of the episodes over the steps of a field
    others           how many states the last row combines, 0 if it is a single state
    """

    estimator: str
    names: tuple[str, ...]
    first: Ints
    last: Ints
    target: Floats
    behavior: Floats
    others: int

    @property
    def n_states(self) -> int:
        return len(self.names) - 1 + self.others if self.others else len(self.names)

    @property
    def wide(self) -> int:
        """Steps of a field."""
        return int(self.last[0] - self.first[0]) + 1


@dataclass(frozen=True, eq=False)
class ValueParts:
    """Where the value comes from.

    per_step  γ^t times the mean reward of step t, under the target; `log` that of the log, None
              if it is unknown
    states    the largest part first; `states_by` names the estimator
    """

    estimator: str
    value: float
    per_step: Floats | None
    log: Floats | None
    states: list[StatePart]
    states_by: str


def state_distributions(sources: Sources) -> Heat | Missing:
    """d_t^π(s) and d_t^μ(s): the states with the most mass, the others as one row."""
    solved = sources.solved(sources.by_state)
    if isinstance(solved, Missing):
        return solved
    t, s, target, behavior = _inside(solved[0])
    assert sources.sums is not None
    horizon = len(solved[0].ess)
    wide = -(-horizon // MOST_FIELDS)
    columns = -(-horizon // wide)
    first = np.arange(columns, dtype=np.int64) * wide
    last = np.minimum(first + wide, horizon) - 1
    codes, row = np.unique(s, return_inverse=True)
    at, size = row * columns + t // wide, len(codes) * columns
    length = (last - first + 1).astype(np.float64)
    shares = [
        np.bincount(at, mass, size).reshape(-1, columns) / length for mass in (target, behavior)
    ]
    # END, which has no actions and in time holds most of the mass, comes last
    order = np.lexsort((-np.bincount(row, target + behavior, len(codes)), codes == END))
    most = max(MOST_CELLS // columns, 1)
    kept, left = np.split(order, [len(order) if len(order) <= most else most - 1])
    names = [sources.sums.states.name(int(codes[k])) for k in kept]
    here, there = (share[kept] for share in shares)
    if len(left):
        names.append(f"{len(left):,} other states together")
        here, there = (np.vstack([share[kept], share[left].sum(axis=0)]) for share in shares)
    return Heat(sources.by_state.name, tuple(names), first, last, here, there, others=len(left))


def _inside(solution: Solution) -> tuple[Ints, Ints, Floats, Floats]:
    """(t, s, d^π, d^μ) of the nodes before the horizon."""
    nodes = solution.nodes
    assert nodes is not None
    inside = nodes.t < len(solution.ess)
    return nodes.t[inside], nodes.s[inside], nodes.target[inside], nodes.behavior[inside]


def value_parts(
    sources: Sources, estimator: str, value: float, per_step: Floats | None
) -> ValueParts | Missing:
    """v̂ = Σ_t Σ_s γ^t d_t(s) r̂_t(s), summed over one or the other."""
    solved = sources.solved(sources.by_state)
    if isinstance(solved, Missing):
        return solved
    assert sources.sums is not None
    op = solved[1]
    t, s, target, behavior = _inside(solved[0])
    earned = op.discount**t * target * op.reward[op.node_t < op.horizon]
    codes, row = np.unique(s, return_inverse=True)
    columns = [np.bincount(row, each, len(codes)) for each in (earned, target, behavior)]
    order = np.argsort(-np.abs(columns[0]), kind="stable")
    states = [
        StatePart(sources.sums.states.name(int(codes[k])), *(float(x[k]) for x in columns))
        for k in order
        if codes[k] != END
    ]
    log = _logged_per_step(sources.sums)
    return ValueParts(estimator, value, per_step, log, states, sources.by_state.name)


def _logged_per_step(sums: Moments) -> Floats | None:
    """(H,) γ^t times the mean logged reward of step t; None where episodes were cut off."""
    cells = sums.model if sums.model is not None else sums.transitions
    if cells is None or sums.truncated or (sums.hidden and sums.model is None):
        return None
    horizon = sums.about.horizon
    powers = sums.about.discount ** np.arange(horizon)
    return np.asarray(powers * tally(cells.t, cells.y, horizon) / sums.n_episodes, np.float64)


def variance_parts(sources: Sources) -> Decomposition | Missing:
    """SE² by step and state."""
    name, solved, sums = sources.by_state.name, sources.solved(sources.by_state), sources.sums
    if isinstance(solved, Missing):
        return solved
    assert sums is not None
    error = solved[0].standard_error
    if error is None or not error > 0:
        return Missing(f"no standard error to split: {solved[0].error_method}")
    parts = from_solution(name, solved[0], sums.states, sums.n_episodes)
    return parts or Missing(f"the standard error of {name} cannot be split by state")
