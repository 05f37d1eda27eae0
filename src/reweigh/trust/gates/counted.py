"""Propensities that were estimated by counts: how many rows they rest on, and if the step matters.

Counts by state take it that the step does not matter. They fit the log in every state whatever the
behavior did, so that ratios average to 1; but if its actions changed with the step, they do not at
single steps. With E = n_t(s) μ̂(a|s) the counts n_t(s,a) give

    X² = Σ (n_t(s,a) - E)²/E,   about χ² of Σ_{t,s} (A_t(s) - 1) (1 - n_t(s)/n(s))

degrees of freedom, where actions of a (t, s) with E below LEAST_EXPECTED count as one.
"""

from __future__ import annotations

import numpy as np

from reweigh.estimate.operators import SEEN_ENOUGH
from reweigh.kernels import group_by, tally
from reweigh.sums.keyed import TransitionMoments, is_constant
from reweigh.system import divided
from reweigh.trust.gates.gate import Outcome
from reweigh.trust.gates.states import StateValues

NOTHING = 1e-9  # probability: less is rounding
LEAST_EXPECTED = 5.0  # rows, below which (n - E)²/E is far from χ²


def thin_counts(cells: TransitionMoments, mass: StateValues, per_step: bool) -> tuple[float, float]:
    """How often an episode of the target takes actions that were seen fewer than SEEN_ENOUGH times
    where their propensity was counted (in a state, or a step and state), and never.

    What π gives to the actions that a (t, s) lacks, ℓ, was never counted if the state lacks it
    too: where π is the same at every step the state's actions show it, and else it may be so
    unless the state shows every action."""
    step = cells.t if per_step else np.zeros(len(cells), np.int64)
    counted = group_by([step, cells.s, cells.a])
    n, total, total2 = (counted.sum(values) for values in (cells.n, cells.pi, cells.pi2))
    rows, places = counted.index(), group_by([counted.keys[0], counted.keys[1]])
    pairs = group_by([cells.t, cells.s])
    place = places.index()[rows]  # of the cells
    of_pair = np.zeros(len(pairs), np.int64)
    of_pair[pairs.index()] = place
    here = group_by([cells.t, cells.s, cells.a])
    pair = np.zeros(len(here), np.int64)
    pair[here.index()] = pairs.index()
    pi, rare = divided(here.sum(cells.pi), here.sum(cells.n)), np.zeros(len(here))
    rare[here.index()] = (n < SEEN_ENOUGH)[rows]
    lacks = np.maximum(1 - tally(pair, pi, len(pairs)), 0.0)
    if is_constant(n, total, total2):
        unseen = np.maximum(1 - places.sum(divided(total, n)), 0.0)[of_pair]
    else:
        every = len(np.unique(cells.a))
        all_counted, all_here = places.count()[of_pair] == every, tally(pair, 1.0 + 0 * pi) == every
        unseen = np.where(all_counted & ~all_here, 0.0, lacks)
    unseen = np.where(unseen > NOTHING, unseen, 0.0)
    few = tally(pair, pi * rare, len(pairs)) + np.minimum(unseen, lacks)
    d = mass.at(*pairs.keys)
    return float(d @ few), float(d @ unseen)


def change_by_step(cells: TransitionMoments, horizon: int) -> Outcome:
    """Are actions taken as often at every step as the state's counts say?"""
    from scipy.special import chdtrc

    here, places = group_by([cells.t, cells.s, cells.a]), group_by([cells.t, cells.s])
    pairs = group_by([cells.s, cells.a])
    place, pair = np.zeros(len(here), np.int64), np.zeros(len(here), np.int64)
    place[here.index()], pair[here.index()] = places.index(), pairs.index()
    states, n = group_by([pairs.keys[0]]), pairs.sum(cells.n).astype(np.float64)
    mu, rows = n / states.sum(n)[states.index()], places.sum(cells.n).astype(np.float64)
    E = rows[place] * mu[pair]
    alone = np.where(E >= LEAST_EXPECTED, E, 0.0)
    count = here.sum(cells.n) * (alone > 0)
    rest, others = (
        rows - tally(place, values, len(rows)) for values in (count.astype(np.float64), alone)
    )
    also = others >= LEAST_EXPECTED  # those without rows among them
    parts = tally(place, 1.0 * (alone > 0), len(rows)) + also
    each = tally(place, divided((count - alone) ** 2, alone), len(rows))
    each += np.where(also, divided((rest - others) ** 2, others), 0.0)
    used = (parts >= 2) & (parts * LEAST_EXPECTED <= rows)
    of_state = group_by([places.keys[1]])
    share = rows / of_state.sum(rows)[of_state.index()]
    df = float(np.sum(((parts - 1) * (1 - share))[used]))
    if not df >= 1:
        return Outcome(None, "no state is seen often enough at more than one step")
    worst = int(np.argmax(np.where(used, each - parts, -np.inf)))
    return Outcome(
        float(chdtrc(df, each[used].sum())),
        step=int(places.keys[0][worst]),
        state=int(places.keys[1][worst]),
    )
