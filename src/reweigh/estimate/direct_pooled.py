"""MIS pooled over time, straight from the rows of a log in memory.

Its operator needs the sums by (s, s') and a few by (t, s); the table of cells by (t, s, s'), which
is often as large as the log, is spared.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from reweigh.estimate import variance
from reweigh.estimate.direct import Rows, observed
from reweigh.estimate.operators import AtSteps
from reweigh.estimate.pooled import Pool, operator_of_pool
from reweigh.estimate.recipe import Marginal, Recipe
from reweigh.estimate.solution import Operators, Solution, solve_operator
from reweigh.kernels.choose import pick
from reweigh.log.log import EpisodeLog
from reweigh.log.states import END, UNKNOWN
from reweigh.policy.base import Policy
from reweigh.sums import cells
from reweigh.sums.transitions import NO_ACTION, TransitionMoments

Floats = npt.NDArray[np.float64]
CELLS_PER_ROW, FEW_CELLS = 1, 1 << 16


def solve_pooled(
    log: EpisodeLog, target: Policy, recipe: Recipe, *, errors: bool = True
) -> Solution | None:
    """The Solution of pooled MIS, or its value alone; None for other estimators, and where the
    cells are to be made: hidden states, averaged rewards, more pairs of states than rows."""
    if np.any(np.diff(log.steps.offsets) == 0):  # pooled moves lead on to steps without rows
        return None
    plain = recipe.reward == "logged" and recipe.control is None
    if recipe.weights != Marginal(pooled=True) or not plain or not observed(log):
        return None
    pairs = len(log.states) * (len(log.states) - UNKNOWN)
    if max(pairs, len(log.states) * log.horizon) > max(CELLS_PER_ROW * log.steps.n_rows, FEW_CELLS):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        pool = pool_rows(log, Rows.of(log, target, recipe.max_ratio).row_ratios)
    steps = log.steps
    start = cells.starts(steps, np.zeros(steps.n_episodes, np.int64), steps.state[steps.rows(0)])

    def make(wanted: Recipe) -> Operators:
        per_state = wanted.normalize == "state"
        op = operator_of_pool(pool, start, log.horizon, log.discount, per_state=per_state)
        return op, op, variance.logged_reward

    return solve_operator(recipe, make, errors=errors)


def pool_rows(log: EpisodeLog, rho: Floats) -> Pool:
    """The sums of all steps together. Moves of the last step count only if all of their next
    states are known, since they would otherwise be a selection."""
    steps, n_states = log.steps, len(log.states)
    last = steps.ending
    use_final = not np.any(last[: steps.rows(log.horizon - 1).stop - steps.offsets[-2]] == UNKNOWN)
    sums = np.zeros((8, n_states, n_states - UNKNOWN))
    at_steps = np.zeros((3, log.horizon, n_states))
    run = pick("sums.pool_rows", steps.n_rows)
    run(steps.offsets, steps.state, last, rho, steps.reward, use_final, sums, at_steps)
    s, after = np.nonzero(sums[0])
    n, rho1, rho2, z, rhoz, z2, y, y2 = sums[:, s, after]
    zero, none = np.zeros(len(s), np.int64), np.zeros(len(s))
    pooled = TransitionMoments(
        block=zero,
        t=zero,
        s=s,
        a=np.full(len(s), NO_ACTION),
        t_next=zero + 1,
        s_next=after + UNKNOWN,
        n=n.astype(np.int64),
        rho=rho1,
        rho2=rho2,
        z=z,
        rhoz=rhoz,
        z2=z2,
        y=y,
        y2=y2,
        one=rho1,
        pi=none,
        pi2=none,
        mu=none,
    )
    t, state = np.nonzero(at_steps[0])
    visits, first, second = at_steps[:, t, state]
    ended = np.bincount(steps.lengths[last == END], minlength=log.horizon + 1)
    return Pool(
        pooled,
        AtSteps(t, state, visits.astype(np.int64), first, second),
        np.cumsum(ended).astype(np.float64),
    )
