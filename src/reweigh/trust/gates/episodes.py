"""Gates of the log as a whole: are there enough episodes, are they complete, and are they alike?

**Dependence.** Whole episodes can turn out good or bad for a reason that is not in any state. The
returns then vary more than the recursion predicts for the logged policy, where every ratio is 1.
The standard error from influence values is right all the same.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from reweigh.errors import InputWarning, SmallSampleWarning
from reweigh.estimate import recursion
from reweigh.estimate.operators import cells_of, importance_operator
from reweigh.estimate.recursion import backward, forward
from reweigh.estimate.solution import largest
from reweigh.estimate.standard_error import OVERFLOW, no_returns
from reweigh.kernels import tally
from reweigh.log.log import EpisodeLog
from reweigh.log.states import END, UNKNOWN
from reweigh.sums.diagnostic_tables import OrderedMoments, PacedMoments
from reweigh.sums.moments import Moments
from reweigh.trust.gates.gate import (
    NO_TRANSITIONS,
    AssumptionGate,
    Context,
    Floats,
    Gate,
    GateResult,
    Ints,
    Limit,
    Outcome,
    limits_by,
)

HALF = 10  # episodes in each half of the log
LIGHT = Limit(30, 2, above=False)  # of weighted episodes: that of "episodes"
UNEVEN = (
    "the ids are so uneven that nearly all episodes fall into one range: number the episodes "
    "in their order"
)
NO_NUMBERS = "the episode ids are not whole numbers (as text: 18 digits at most, no leading 0)"
NO_SPREAD = 1e-12  # of a sum of squares
TINY = np.finfo(np.float64).tiny
CHANCE = 3.0  # standard errors of a standard deviation, each 1/√(2n) of it
STATE_IS_ALL = "the standard error from sums assumes that the state explains all of it"
BY_BLOCKS = (
    "use a jackknife interval, which deletes blocks of episodes (method='jackknife'), or "
    "keep the log in memory (engine='arrays'); both allow for this"
)


class Episodes(
    Gate,
    name="episodes",
    question="Are there enough episodes for an interval?",
    fault="few-episodes",
    reads="solution",
    limits=limits_by(
        Limit(30, 2, above=False),
        within_states=Limit(300, 2, above=False),  # few rows in a state bias it
    ),
    warning=SmallSampleWarning,
    warns_if_amber=True,
):
    def measure(self, context: Context) -> GateResult:
        n = context.n_episodes
        return self.judge(
            float(n),
            f"{n:,} episodes" if n != 1 else "one episode",
            "too few episodes for a reliable interval: log more",
            limit=self.limit(context.limits),
        )


class Clusters(
    Gate,
    name="clusters",
    question="Are there enough clusters (sites, patients, days) for an interval?",
    fault="few-clusters",
    limits=limits_by(Limit(10, 2, above=False)),
):
    """Only of logs with a column of clusters. Of unequal ones fewer count."""

    def measure(self, context: Context) -> GateResult | None:
        of = context.clusters
        if of is None:
            return None
        like = f", which count for {of.effective:.1f} of equal size"
        if not of.column:
            like = f", which count for {of.effective:.1f} of equal weight"
        what = "clusters" if of.column else "episodes"
        return self.judge(
            of.effective,
            f"{of}{like if of.effective < of.number - 0.05 else ''}",
            f"too few {what} for a reliable interval: log more of them"
            + (", or make the sums with more blocks" if of.of_blocks else ""),
            limit=self.limit() if of.column else LIGHT,
        )


class CutOff(
    Gate,
    name="cut-off episodes",
    question="Were some episodes cut off before an unknown state while others ended?",
    fault="cut-off",
    reads="solution",
    limits=limits_by(Limit(0.0, 0.05)),
    of={"states"},
):
    """Episodes cut off before an unknown state while others end: ends are overestimated."""

    def measure(self, context: Context) -> GateResult | None:
        share = cut_beside_ends(context.whole)
        if not share > 0:
            return None
        return self.judge(
            share,
            f"{share:.1%} of the episodes were cut off before an unknown state while others "
            "ended: the probability of ending is overestimated",
            "give next_state, the state after the last row too",
        )


def cut_beside_ends(data: EpisodeLog | Moments) -> float:
    """The share of the episodes that were cut off before an unknown state while others ended. The
    unknown transition is left out although it was not an end, so ends are overestimated."""
    if isinstance(data, EpisodeLog):
        steps = data.steps
        return steps.unknown_before_horizon() / data.n_episodes if steps.ends_early else 0.0
    cells = data.transitions if data.transitions is not None else data.model
    if cells is None or not data.truncated:
        return 0.0
    early = cells.t_next < data.about.horizon
    if not np.any(early & (cells.s_next == END)):
        return 0.0
    return float(cells.n[early & (cells.s_next == UNKNOWN)].sum()) / data.n_episodes


class HiddenStates(
    Gate,
    name="hidden states",
    question="Are there hidden states that a model treats as one state?",
    fault="states-lost",
    reads="solution",
    limits=limits_by(Limit(None, 0.0)),
    warning=InputWarning,
    of={"model", "stationary"},
):
    """A model treats the hidden state as a state like any other; MIS and running products do not
    use it."""

    def measure(self, context: Context) -> GateResult:
        hidden = context.sums.hidden
        return self.judge(
            float(hidden),
            "some states are hidden, and a model treats them all as one state"
            if hidden
            else "no state is hidden",
            "use mis, which treats a hidden stretch as one long step, or log the hidden states",
        )


class HasInterval(
    Gate,
    name="interval",
    question="Is there an interval?",
    fault="no-spread",
    limits=limits_by(Limit(0.0, None)),
):
    """Without an interval the uncertainty is unknown; a refusal brings its own advice."""

    def measure(self, context: Context) -> GateResult | None:
        why = context.refused
        if why is None and not context.has_interval:
            why = context.error_method
        if why is None:
            return None
        advice = (
            "do not read the value as exact: the log shows no variation to compute an interval from"
        )
        if context.refused is not None:
            advice = ""
        return self.judge(1.0, f"there is no interval: {why}", advice)


class Drift(
    AssumptionGate,
    name="drift",
    question="Did the first and the second half of the log (by id) earn the same?",
    fault="drift",
    needs={"ordered", "paced"},
    limits=limits_by(Limit(0.01, None, above=False)),
    holds="both halves of the log (by id) earned the same",
    fails="the two halves of the log (by id) earned differently",
    advice="evaluate recent episodes alone, or each period separately",
    most="strongest",
):
    """The halves are those of the episodes' ids, or of their first rows' times where a log has
    times."""

    def measure(self, context: Context) -> GateResult:
        result = super().measure(context)
        if context.sums.about.ordered_by == "id":
            return result
        return replace(result, text=result.text.replace("by id", "by time"))

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
    """Is the mean logged return the same in both halves of the log?

    The episodes are ordered by id and split at the bucket nearest to the middle. Welch's test of
    the two means.
    """
    cut, why = _middle(ordered.n)
    if why:
        return Outcome(None, why)
    late = np.arange(len(ordered)) >= cut
    n, g, g2 = (tally(late, values, 2) for values in (ordered.n, ordered.g, ordered.g2))
    if np.sum(g2 - g * g / n) <= NO_SPREAD * g2.sum():
        return Outcome(None, "all returns within a half are equal")
    return Outcome(float(_welch(n, g[:, None], g2[:, None])[1][0]))


def drift_by_step(paced: PacedMoments, horizon: int) -> Outcome:
    """The same for the logged rewards, step by step: an episode that is over earns 0, and every
    episode counts at every step. The halves are split by the same rule, but buckets by step are
    wider. p is None: the verdict tests the return, because many tests at once find something."""
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
        return Outcome(None, "all rewards within a step are equal")
    # Where p underflows, t still shows which one is the smallest.
    score = np.where(p >= TINY, -np.log(np.maximum(p, TINY)), 1000 + np.abs(t))
    return Outcome(None, per_step=p, step=largest(np.where(known, score, 0.0)))


def _middle(n: Ints) -> tuple[int, str]:
    """The first bucket of the second half, from the episodes by bucket; or why there is none."""
    below = np.cumsum(n)
    if len(below) < 2:
        return 0, "the episode ids (or times) do not define an order"
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
    # Without any spread within the halves, any difference between them is significant.
    each = np.where(spreads, spread, noise)[:, known] / (n - 1) / n
    error = np.sqrt(each.sum(axis=0))
    t, p = np.full((2, len(off)), np.nan)
    t[known] = off[known] / error
    # df = (Σe)² / Σ e²/(n-1)
    df = 1 / np.sum((each / error**2) ** 2 / (n - 1), axis=0)
    p[known] = 2 * stdtr(df, -np.abs(t[known]))
    return t, p


class Dependence(
    Gate,
    name="dependence",
    question="Are episodes dependent beyond their states, if only sums are available?",
    fault="fate",
    needs={"ordered", "transitions"},
    limits=limits_by(Limit(0.05, None)),
    of={"states"},
):
    """Amber also if it cannot be computed: then only deleting blocks gives an interval."""

    of_sums_alone = True

    def measure(self, context: Context) -> GateResult | None:
        clustered = context.sums.about.cluster is not None  # blocks of them give the error
        if context.spread is not None or context.n_episodes < 2 or clustered:
            return None
        excess = context.once(self.name, lambda: excess_spread(context.sums))
        if isinstance(excess, str):
            text = f"it is unknown whether returns vary more than the states explain ({excess})"
            return self.result("amber", None, f"{text}; {STATE_IS_ALL}", advice=BY_BLOCKS)
        if self.limit().judge(excess) == "green":
            return None
        text = f"returns vary {excess:.0%} more than the states explain, after allowing for chance"
        return self.judge(excess, f"{text}; {STATE_IS_ALL}", BY_BLOCKS)


def excess_spread(sums: Moments) -> float | str:
    """How much more the returns vary than the states explain, relative to that and after allowing
    for chance; or why it cannot be computed."""
    ordered, n, about = sums.ordered, sums.n_episodes, sums.about
    if ordered is None:
        return no_returns(sums)
    if sums.transitions is not None:
        cells, start = sums.transitions.forget("block", "a"), sums.start.forget("block")
    elif sums.model is not None:
        cells, start = cells_of(sums, "model")
        cells = cells.forget("a")
    else:
        return NO_TRANSITIONS
    count = cells.n.astype(np.float64)
    logged = replace(cells, rho=count, rho2=count, z=cells.y, rhoz=cells.y, z2=cells.y2, one=count)
    op = importance_operator(logged, start, about.horizon, about.discount)
    op = replace(op, start=replace(op.start, g=0 * op.start.g, g2=0 * op.start.g2))
    flow, back = forward(op, simplex=False), backward(op)
    moved = recursion.derivatives(op, flow, back)
    term = recursion.logged_reward(op, moved.reward)
    explained = recursion.squared_error(op, back, moved, term)
    spread = ordered.variance / n
    if not math.isfinite(spread + explained.total):
        return OVERFLOW
    if explained.lost or not spread > 0:
        return 0.0
    return max(math.sqrt(spread / explained.total) - 1 - CHANCE / math.sqrt(2 * n), 0.0)
