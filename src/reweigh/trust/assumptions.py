"""Tests of what estimates assume: a Markov state, steps that are alike, a log without drift.

Each works on sums, so that it is the same on every engine and for merged sites, and returns a
`Outcome`: a p-value, or the reason why there is none. They can be wrong both ways: a small p-value
is a reason to look, and a large one proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reweigh.estimate.variance import OVERFLOW
from reweigh.estimate.weakest_places import largest
from reweigh.kernels.groups import group_by, tally
from reweigh.sums.diagnostic_tables import LaggedMoments, OrderedMoments, PacedMoments
from reweigh.sums.transitions import TransitionMoments
from reweigh.system.arithmetic import divided

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
SPARE_ROWS = 10  # rows of a (t, s) beyond its groups before its spread is known
LEAST_LOG_P = -1000.0  # one state must not make a sum of logarithms infinite
HALF = 10  # episodes in each half of the log
UNEVEN = (
    "the ids are so uneven that one range of them holds nearly all episodes: number the episodes "
    "in their order"
)
NO_SPREAD = 1e-12  # of a sum of squares
TINY = np.finfo(np.float64).tiny


@dataclass(frozen=True, eq=False)
class Outcome:
    """A test's outcome.

    p         None where the test cannot be made
    why       why there is none, or none by step
    per_step  (H,) p-values step by step, nan where a step has none
    step, state  where the sums are furthest from what they should be (codes)
    """

    p: float | None
    why: str = ""
    per_step: Floats | None = None
    step: int | None = None
    state: int | None = None


@dataclass(frozen=True, eq=False)
class Worth:
    """V_t(s) over the nodes (t, s), sorted; 0 elsewhere (END, and states that are not known)."""

    t: Ints
    s: Ints
    v: Floats

    def at(self, t: Ints, s: Ints) -> Floats:
        width = int(max(self.s.max(initial=0), s.max(initial=0))) + 1
        real = self.s >= 0  # others have no key of their own
        # A last key that none asks for: there may be no other, where every state is hidden.
        keys = np.append((self.t * width + self.s)[real], np.iinfo(np.int64).max)
        v, wanted = np.append(self.v[real], 0.0), t * width + s
        place = np.searchsorted(keys, wanted)
        return np.where((s >= 0) & (keys[place] == wanted), v[place], 0.0)


def history_test(lagged: LaggedMoments, worth: Worth, horizon: int, discount: float) -> Outcome:
    """Does the previous state or action still predict, given s?

    With q = ρ (y + γ V_{t+1}(s')), a Markov state makes E[q | s_t, the past] = V_t(s_t), however
    the behaviour chose. Within a (t, s) the rows are split by what came before, and
    F = (Σ_g N_g (q̄_g - q̄)²/(K-1)) / (Σ_g Σ(q - q̄_g)²/(N-K)). The p-values of the (t, s) add up
    by Fisher's method, once for the previous state and once for the previous action; the smaller
    of the two, doubled.
    """
    q, q2 = _worth_of_rows(lagged, discount * worth.at(lagged.t + 1, lagged.s_next))
    found = []
    for what, before in (("state", lagged.s_before), ("action", lagged.a_before)):
        why = f"no state is reached often enough from more than one previous {what}"
        cells = _Split(lagged.t, lagged.s, before, lagged.n, q, q2)
        found.append(_split_test(cells, horizon, why))
    known = [test for test in found if test.p is not None]
    if not known:
        return found[0]
    worst = min(known, key=lambda test: test.p if test.p is not None else 1.0)
    assert worst.p is not None
    return Outcome(
        min(len(known) * worst.p, 1.0),
        per_step=worst.per_step,
        step=worst.step,
        state=worst.state,
    )


def steadiness_test(
    cells: TransitionMoments, worth: Worth, horizon: int, discount: float
) -> Outcome:
    """Is the step of no matter, as estimators that pool all steps assume?

    With q = ρ (y + γ V(s')) and a V that does not depend on the step, E[q | s] is then the same at
    every step. The rows of a state are split by their step, as in `history_test` by what came
    before. V(s) is the mean of V_t(s) over the steps.
    """
    by_state = group_by([worth.s])
    mean = by_state.sum(worth.v) / by_state.count()
    same = Worth(np.zeros(len(mean), np.int64), by_state.keys[0], mean)
    inside = (cells.t_next - cells.t == 1) & (cells.t_next < horizon)
    all_one = np.zeros(len(cells), np.int64)  # stratum 0: a state is the same at every step
    q, q2 = _worth_of_rows(cells, discount * same.at(all_one, cells.s_next))
    columns = (all_one, cells.s, cells.t, cells.n, q, q2)
    split = _Split(*(column[inside] for column in columns))
    found = _split_test(split, 1, "no state is seen often enough at more than one step")
    return Outcome(found.p, found.why, state=found.state)


def _worth_of_rows(cells: LaggedMoments | TransitionMoments, v: Floats) -> tuple[Floats, Floats]:
    """Σq and Σq² of q = ρ (y + v) by cell, v being the same within it."""
    q = cells.z + v * cells.rho
    return q, cells.z2 + 2 * v * cells.rhoz + v * v * cells.rho2


@dataclass(frozen=True, eq=False)
class _Split:
    """Cells of strata (t, s), each split into groups: rows n, Σq and Σq²."""

    t: Ints
    s: Ints
    group: Ints
    n: Ints
    q: Floats
    q2: Floats


def _split_test(cells: _Split, horizon: int, why: str) -> Outcome:
    """Do the groups of a stratum have the same mean of q? `why` says that no stratum can tell."""
    from scipy import stats

    groups = group_by([cells.t, cells.s, cells.group])
    n, first, second = (groups.sum(values) for values in (cells.n, cells.q, cells.q2))
    if not np.isfinite(second).all():
        return Outcome(None, OVERFLOW)
    strata = group_by([groups.keys[0], groups.keys[1]])
    N, K = strata.sum(n).astype(np.float64), strata.count().astype(np.float64)
    mean_square = divided(strata.sum(first) ** 2, N)
    between = strata.sum(divided(first**2, n.astype(np.float64))) - mean_square
    within = strata.sum(second) - strata.sum(divided(first**2, n.astype(np.float64)))
    noise = 1e-10 * strata.sum(second)  # sums of squares carry no digits below this
    use = (K >= 2) & (N - K >= SPARE_ROWS) & ((within > noise) | (between > noise))
    if not use.any():
        return Outcome(None, why)
    # Without any spread within the groups a difference between them is beyond doubt.
    within = np.maximum(within, noise)
    f = (between[use] / (K[use] - 1)) / (within[use] / (N[use] - K[use]))
    log_p = np.maximum(stats.f.logsf(np.maximum(f, 0.0), K[use] - 1, N[use] - K[use]), LEAST_LOG_P)
    t, s = (values[use] for values in strata.keys)
    score, count = tally(t, -2 * log_p, horizon + 1), tally(t, np.ones(len(t)), horizon + 1)
    per_step = np.full(horizon, np.nan)
    told = np.flatnonzero(count[:horizon] > 0)
    per_step[told] = stats.chi2.sf(score[told], 2 * count[told])
    worst = int(np.argmin(log_p))
    p = float(stats.chi2.sf(-2 * log_p.sum(), 2 * len(log_p)))
    return Outcome(p, per_step=per_step, step=int(t[worst]), state=int(s[worst]))


def drift_test(ordered: OrderedMoments) -> Outcome:
    """Is the logged return the same in the first and in the second half of the log?

    The episodes are in the order of their ids; the halves are split at the bucket that comes
    nearest to the middle. Welch's test of the two means.
    """
    cut, why = _middle(ordered.n)
    if why:
        return Outcome(None, why)
    late = np.arange(len(ordered)) >= cut
    n, g, g2 = (tally(late, values, 2) for values in (ordered.n, ordered.g, ordered.g2))
    if np.sum(g2 - g * g / n) <= NO_SPREAD * g2.sum():
        return Outcome(None, "the returns of each half are all the same")
    found = _welch(n, g[:, None], g2[:, None])
    return Outcome(float(found.p[0]))


def drift_by_step(paced: PacedMoments, horizon: int) -> Outcome:
    """The same of the logged rewards, step by step: an episode that is over earns 0, and every one
    counts at every step. The halves are split at the same rule's bucket, but buckets by step are
    wider. p is None: what is judged is the return, and so many tests at once find something."""
    first = paced.t == 0  # every episode has a row there
    bucket, n = paced.bucket[first], paced.n[first]
    cut, why = _middle(n)
    if why:
        return Outcome(None, why)
    late = paced.bucket >= bucket[cut]
    sizes = tally(bucket >= bucket[cut], n, 2)
    place = late * horizon + paced.t
    y, y2 = (tally(place, v, 2 * horizon).reshape(2, horizon) for v in (paced.y, paced.y2))
    if not np.isfinite(y2).all():
        return Outcome(None, OVERFLOW)
    found = _welch(sizes, y, y2)
    told = np.isfinite(found.p)
    if not told.any():
        return Outcome(None, "the rewards of each step are all the same")
    # Where p is too small for a number, t still tells which is the smallest.
    score = np.where(found.p >= TINY, -np.log(np.maximum(found.p, TINY)), 1000 + np.abs(found.t))
    return Outcome(None, per_step=found.p, step=largest(np.where(told, score, 0.0)))


def _middle(n: Ints) -> tuple[int, str]:
    """Of buckets with so many episodes, the first of the second half; or why there is none."""
    below = np.cumsum(n)
    if len(below) < 2:
        return 0, "the episodes' ids do not tell an order"
    cut = int(np.argmin(np.abs(below[:-1] - below[-1] / 2))) + 1
    if below[-1] < 2 * HALF:
        return 0, f"a half of the log has fewer than {HALF} episodes"
    if min(below[cut - 1], below[-1] - below[cut - 1]) < HALF:
        return 0, UNEVEN
    return cut, ""


@dataclass(frozen=True, eq=False)
class _Welch:
    """(K,) t and p; nan where both halves show one and the same number."""

    t: Floats
    p: Floats


def _welch(n: Floats, first: Floats, second: Floats) -> _Welch:
    """Welch's test of two means, from n (2,), Σx and Σx² (2, K)."""
    from scipy import stats

    n = n[:, None]
    mean = first / n
    spread = np.maximum(second - n * mean**2, 0.0)
    noise = NO_SPREAD * second.sum(axis=0)  # sums of squares carry no digits below this
    off, spreads = mean[1] - mean[0], spread.sum(axis=0) > noise
    told = spreads | (off**2 * n.prod() / n.sum() > noise)
    # Without any spread within the halves a difference between them is beyond doubt.
    each = np.where(spreads, spread, noise)[:, told] / (n - 1) / n
    error = np.sqrt(each.sum(axis=0))
    t, p = np.full((2, len(off)), np.nan)
    t[told] = off[told] / error
    # df = (Σe)² / Σ e²/(n-1)
    df = 1 / np.sum((each / error**2) ** 2 / (n - 1), axis=0)
    p[told] = 2 * stats.t.sf(np.abs(t[told]), df)
    return _Welch(t, p)
