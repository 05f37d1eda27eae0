"""MIS pooled over time: the operator of all steps together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError
from reweigh.estimate.operators import (
    AtSteps,
    OneStep,
    covered_share,
    ended_by,
    rows_of,
)
from reweigh.kernels.groups import group_by, rowwise, tally
from reweigh.log.states import END, UNKNOWN
from reweigh.sums.transitions import StartMoments, TransitionMoments, summed

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def pooled_operator(
    cells: TransitionMoments,
    start: StartMoments,
    horizon: int,
    discount: float,
    *,
    per_state: bool = False,
    reward_sums: Floats | None = None,
) -> OneStep:
    """MIS pooled over time: one P̂(s'|s) and one r̂(s) from all steps, run for H steps.

    Transitions of the last step count only if all of their next states are known, since they
    would otherwise be a selection.
    """
    if np.any(cells.t_next - cells.t != 1):
        raise RefusedError(
            "hidden", "pooling over time needs every state observed; use mis() without pooled"
        )
    final = cells.t == horizon - 1
    use_final = not np.any(final & (cells.s_next == UNKNOWN))
    # From here on a cell is (s, [a,] s') at any step: the work of a step is that of the states.
    followed = (cells.s_next != UNKNOWN) & (use_final | ~final)
    key = [cells.s, cells.a, np.where(followed, cells.s_next, UNKNOWN)]
    if reward_sums is not None:
        reward_sums = group_by(key).sum(reward_sums)
    zero = np.zeros(len(cells), np.int64)
    at_steps = AtSteps(cells.t, cells.s, cells.n, cells.rho, cells.rho2)
    ended = ended_by(cells, np.arange(horizon + 1)) if cells.n.ndim == 1 else None
    cells = summed(replace(cells, block=zero, t=zero, t_next=zero + 1, s_next=key[2]))
    to = cells.s_next != UNKNOWN
    known = rowwise(to, cells.n)
    seen = np.unique(np.concatenate([cells.s, cells.s_next[to], start.s, [END]]))
    n_states = len(seen)
    src = np.searchsorted(seen, cells.s)
    dst = np.where(to, np.searchsorted(seen, cells.s_next), -1)
    groups = rows_of(cells, group_by([src]).index(), None, known, per_state)
    prob, scale = groups.weigh(cells, known)
    rewards = cells.z if reward_sums is None else reward_sums
    placebo = tally(src, cells.one * scale, n_states)
    end = int(np.searchsorted(seen, END))
    placebo[end] = 1.0
    start_node, steps = np.searchsorted(seen, start.s), horizon + 1
    visits = covered = np.zeros((0, 0))
    if ended is not None:
        covered = _covered(cells, src, prob, end, (steps, n_states))
        node = at_steps.t * n_states + np.searchsorted(seen, at_steps.s)
        visits = tally(node, at_steps.n, steps * n_states).reshape(steps, n_states)
        visits[:, end] = ended
    first = tally(start_node, start.n / start.n.sum(axis=0), n_states)
    initial = np.zeros((steps * n_states, *first.shape[1:]))
    initial[:n_states] = first
    every_step = (steps, *(1 for _ in first.shape[1:]))
    return OneStep(
        horizon=horizon,
        discount=discount,
        node_t=np.repeat(np.arange(steps), n_states),
        node_s=np.tile(seen, steps),
        offsets=np.arange(horizon + 2) * n_states,
        initial=initial,
        start=start,
        start_node=start_node,
        reward=np.tile(tally(src, rewards * scale, n_states), every_step),
        placebo=np.tile(placebo, every_step),
        visits=visits.reshape(-1),
        covered=covered.reshape(-1),
        cells=cells,
        groups=groups,
        known=known,
        src=src,
        dst=dst,
        prob=prob,
        gap=np.ones(len(cells), np.int64),
        edge_offsets=None,
        ended_to=np.arange(steps) * n_states + end,
        complete=np.ones(steps, bool),
        self_normalized=per_state,
        conserves=per_state,
        at_steps=at_steps,
    )


def _covered(
    cells: TransitionMoments, src: Ints, prob: Floats, end: int, shape: tuple[int, int]
) -> Floats:
    """(H+1, S) `OneStep.covered`. At the last step nothing needs to be carried on; before it a
    state without moves loses all."""
    last = covered_share(cells, np.ones(len(cells), bool), src, shape[1])
    covered = np.tile(np.where(tally(src, prob, shape[1]) > 0, last, 0.0), (shape[0], 1))
    covered[-2] = last
    covered[:, end] = covered[-1] = 1.0
    return covered
