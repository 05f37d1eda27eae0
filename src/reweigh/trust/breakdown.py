"""What an estimate is made of: where the target goes, and where value and variance come from."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError
from reweigh.estimate.estimator import Nodes, Recipe, Solution
from reweigh.estimate.operators import OneStep
from reweigh.estimate.presets import mis
from reweigh.estimate.solution import Operators, solve_operator
from reweigh.kernels.groups import tally
from reweigh.log.log import EpisodeLog
from reweigh.log.states import END
from reweigh.policy.base import Policy
from reweigh.sums.moments import Moments
from reweigh.trust.variance_parts import Decomposition, StatePart, from_solution

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
MOST_FIELDS = 100  # columns of the heat map: beyond, steps are joined
MOST_CELLS = 20_000  # of the heat map: beyond, states are joined
NO_SUMS = "there are neither rows nor sums to look at"


@dataclass(frozen=True)
class Missing:
    """A part that was not computed, and why."""

    why: str


@dataclass(frozen=True, eq=False)
class Sources:
    """What may be looked at: the sums, and the rows where they are in memory.

    sums    all kinds that there are, None without propensities
    recipe  the estimator of the answer, None where every estimator refused
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
        """The estimator whose weights stand against the running products: a MIS."""
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
    """Where the target goes and where the log went: R states by C fields of steps.

    names            R names, those with the most mass first; the last may stand for all others
    first, last      (C,) the steps of a field, both included
    target, behavior (R, C) mean share of the episodes over the steps of a field
    others           how many states the last row stands for, 0 where it is a state of its own
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
              where it cannot be told
    states    the largest part first; `states_by` whose they are
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
    # END, which is no state to act in and in time holds most of the mass, comes last
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
        return Missing(f"there is no error to take apart: {solved[0].error_method}")
    parts = from_solution(name, solved[0], sums.states, sums.n_episodes)
    return parts or Missing(f"the error of {name} has no parts per state")
