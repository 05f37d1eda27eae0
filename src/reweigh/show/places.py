"""Where the target goes, where its value comes from, and where the variance comes from."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from reweigh.estimate.solution import Solution
from reweigh.kernels.groups import tally
from reweigh.log.states import END
from reweigh.show.basis import Basis, Missing
from reweigh.show.records import Heat, Place, ValueParts, VarianceParts
from reweigh.sums.moments import Moments
from reweigh.theory.decomposition import from_solution

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
MOST_FIELDS = 100  # columns of the heat map: beyond, steps are joined
MOST_CELLS = 20_000  # of the heat map: beyond, states are joined
LISTED_STATES, LISTED_PAIRS = 15, 20


def heat_of(basis: Basis) -> Heat | Missing:
    """d_t^π(s) and d_t^μ(s): the states with the most mass, the others as one row."""
    solution = basis.solution(basis.by_state)
    if isinstance(solution, Missing):
        return solution
    t, s, target, behavior, _ = _nodes(solution)
    assert basis.sums is not None
    horizon = len(solution.ess)
    wide = -(-horizon // MOST_FIELDS)
    columns = -(-horizon // wide)
    first = np.arange(columns, dtype=np.int64) * wide
    last = np.minimum(first + wide, horizon) - 1
    codes, row = np.unique(s, return_inverse=True)
    size = len(codes) * columns
    at = row * columns + t // wide
    length = (last - first + 1).astype(np.float64)
    shares = [
        np.bincount(at, mass, size).reshape(-1, columns) / length for mass in (target, behavior)
    ]
    # END, which is no state to act in and in time holds most of the mass, comes last
    order = np.lexsort((-np.bincount(row, target + behavior, len(codes)), codes == END))
    most = max(MOST_CELLS // columns, 1)
    kept, left = (
        (order, order[:0]) if len(order) <= most else (order[: most - 1], order[most - 1 :])
    )
    names = [basis.sums.states.name(int(codes[k])) for k in kept]
    tables = [share[kept] for share in shares]
    if len(left):
        names.append(f"{len(left):,} other states together")
        tables = [np.vstack([table, share[left].sum(axis=0)])
                  for table, share in zip(tables, shares, strict=True)]  # fmt: skip
    return Heat(
        basis.by_state.name, tuple(names), first, last, tables[0], tables[1], others=len(left)
    )


def _nodes(solution: Solution) -> tuple[Ints, Ints, Floats, Floats, Floats]:
    """(t, s, d^π, d^μ, N) of the nodes before the horizon."""
    nodes = solution.nodes
    assert nodes is not None
    inside = nodes.t < len(solution.ess)
    each = (nodes.t, nodes.s, nodes.target, nodes.behavior, nodes.visits)
    return tuple(array[inside] for array in each)  # type: ignore[return-value]


def value_of(basis: Basis) -> ValueParts | Missing:
    """v̂ = Σ_t Σ_s γ^t d_t(s) r̂_t(s), summed over one or the other."""
    solution = basis.solution(basis.by_state)
    main = basis.main
    if main is None:
        return Missing("there is no estimate")
    if isinstance(solution, Missing):
        return solution
    assert basis.sums is not None
    op = basis.operator(basis.by_state)
    t, s, target, behavior, _ = _nodes(solution)
    reward = op.reward[op.node_t < op.horizon]
    earned = op.discount**t * target * reward
    codes, row = np.unique(s, return_inverse=True)
    amount, visits, logged = (
        np.bincount(row, each, len(codes)) for each in (earned, target, behavior)
    )
    order = np.argsort(-np.abs(amount), kind="stable")
    order = order[codes[order] != END]
    shown = order[:LISTED_STATES] if len(order) > LISTED_STATES + 1 else order
    states = tuple(
        Place(basis.sums.states.name(int(codes[k])), float(amount[k]), float(visits[k]),
              float(logged[k]))
        for k in shown
    )  # fmt: skip
    rest = order[len(shown) :]
    return ValueParts(
        estimator=main.estimator,
        value=main.value,
        per_step=main.per_step,
        log=_logged_per_step(basis.sums),
        states=states,
        others=(len(rest), float(amount[rest].sum())),
        states_by=basis.by_state.name,
    )


def _logged_per_step(sums: Moments) -> Floats | None:
    """(H,) γ^t times the mean logged reward of step t; None where episodes were cut off."""
    cells = sums.model if sums.model is not None else sums.transitions
    if cells is None or sums.truncated or (sums.hidden and sums.model is None):
        return None
    horizon = sums.about.horizon
    powers = sums.about.discount ** np.arange(horizon)
    return np.asarray(powers * tally(cells.t, cells.y, horizon) / sums.n_episodes, np.float64)


def variance_of(basis: Basis) -> VarianceParts | Missing:
    """SE² by step and by state."""
    recipe = basis.by_state
    solution = basis.solution(recipe)
    if isinstance(solution, Missing):
        return solution
    if solution.standard_error is None or not solution.standard_error > 0:
        return Missing(f"there is no error to take apart: {solution.error_method}")
    assert basis.sums is not None
    parts = from_solution(recipe.name, solution, basis.sums.states, basis.sums.n_episodes)
    if parts is None:
        return Missing(f"the error of {recipe.name} has no parts per state")
    where = {name: np.zeros(2) for name in dict.fromkeys(parts.state)}
    for name, target, visits in zip(parts.state, parts.target, parts.visits, strict=True):
        where[name] += (target, visits)
    totals = list(parts.by_state().items())
    count = LISTED_STATES if len(totals) > LISTED_STATES + 1 else len(totals)
    wanted = parts.wanted
    return VarianceParts(
        estimator=recipe.name,
        start=parts.start,
        by_step=parts.by_step,
        states=tuple(
            Place(name, share, float(where[name][0]), float(where[name][1]))
            for name, share in totals[:count]
        ),
        others=(len(totals) - count, float(sum(share for _, share in totals[count:]))),
        pairs=tuple(
            (
                int(parts.step[k]),
                parts.state[k],
                float(parts.share[k]),
                float(parts.visits[k] * basis.sums.n_episodes),
                None if wanted is None else float(wanted[k]),
            )
            for k in range(min(LISTED_PAIRS, len(parts.state)))
        ),
    )
