"""Did the log earn the same throughout?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from reweigh.estimate.solution import largest
from reweigh.estimate.standard_error import OVERFLOW
from reweigh.kernels.groups import tally
from reweigh.sums.diagnostic_tables import OrderedMoments, PacedMoments
from reweigh.trust.gain import no_returns
from reweigh.trust.gates.gate import Context, Limit, limits_by
from reweigh.trust.gates.p_values import AssumptionGate, Floats, Ints, Outcome

HALF = 10  # episodes in each half of the log
UNEVEN = (
    "the ids are so uneven that one range of them holds nearly all episodes: number the episodes "
    "in their order"
)
NO_NUMBERS = (
    "the ids of its episodes are no whole numbers (in texts: 18 digits at most, no leading 0)"
)
NO_SPREAD = 1e-12  # of a sum of squares
TINY = np.finfo(np.float64).tiny


class Drift(
    AssumptionGate,
    name="drift",
    question="Did both halves of the log, by id, earn the same?",
    fault="drift",
    needs={"ordered", "paced"},
    limits=limits_by(Limit(0.01, None, above=False)),
    holds="both halves of the log, by id, earned the same",
    fails="the two halves of the log, by id, earned differently",
    advice="evaluate recent episodes alone, or each period apart",
    most="strongest",
):
    def test(self, context: Context) -> Outcome:
        sums = context.sums
        if sums.ordered is None:
            return Outcome(None, f"the log has no order: {no_returns(sums)}")
        if not sums.ordered.has_order:
            return Outcome(None, f"the log has no order: {NO_NUMBERS}")
        whole = drift_test(sums.ordered)
        if whole.p is None:
            return whole
        if sums.paced is None:
            return replace(whole, why=context.lacking("paced", "the rewards by step"))
        return replace(drift_by_step(sums.paced, sums.about.horizon), p=whole.p)


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
    return Outcome(float(_welch(n, g[:, None], g2[:, None])[1][0]))


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
    t, p = _welch(sizes, y, y2)
    known = np.isfinite(p)
    if not known.any():
        return Outcome(None, "the rewards of each step are all the same")
    # Where p is too small for a number, t still tells which is the smallest.
    score = np.where(p >= TINY, -np.log(np.maximum(p, TINY)), 1000 + np.abs(t))
    return Outcome(None, per_step=p, step=largest(np.where(known, score, 0.0)))


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


def _welch(n: Floats, first: Floats, second: Floats) -> tuple[Floats, Floats]:
    """Welch's test of two means, from n (2,), Σx and Σx² (2, K): (K,) t and p, nan where both
    halves show one and the same number."""
    from scipy.special import stdtr

    n = n[:, None]
    mean = first / n
    spread = np.maximum(second - n * mean**2, 0.0)
    noise = NO_SPREAD * second.sum(axis=0)  # sums of squares carry no digits below this
    off, spreads = mean[1] - mean[0], spread.sum(axis=0) > noise
    known = spreads | (off**2 * n.prod() / n.sum() > noise)
    # Without any spread within the halves a difference between them is beyond doubt.
    each = np.where(spreads, spread, noise)[:, known] / (n - 1) / n
    error = np.sqrt(each.sum(axis=0))
    t, p = np.full((2, len(off)), np.nan)
    t[known] = off[known] / error
    # df = (Σe)² / Σ e²/(n-1)
    df = 1 / np.sum((each / error**2) ** 2 / (n - 1), axis=0)
    p[known] = 2 * stdtr(df, -np.abs(t[known]))
    return t, p
