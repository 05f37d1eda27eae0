"""Gates of the weights: on how many episodes do the estimate and its error rest?

**Pareto k** is the shape of a generalised Pareto law, from the largest weights, fitted as in
Pareto-smoothed importance sampling (Vehtari, Simpson, Gelman, Yao and Gabry, "Pareto smoothed
importance sampling", JMLR 2024): to what the largest M = min(n/5, 3√n) weights exceed the next one
by, with the estimator of Zhang and Stephens (Technometrics 2009) and a prior at 1/2 worth ten
weights. Moments of order up to 1/k exist: with k > 1/2 the weights have no variance, with k > 1 no
mean that an average could find. arviz-stats gives the same number, and the tests hold this code to
it. Its fit asks for all n weights, and where weights are equal it divides 0 by 0 and gives a number
all the same; here the largest ones suffice, which is what sums of several logs hold.

**Decisive episodes.** An interval takes the sum of the influence values ψ_i for normal. It is not
where a few of them on one side make up most of it: one reward out of scale, or an event that the
log has seen twice. Of k equal ones among zeros the skewness of the sum, Σψ³/(Σψ²)^(3/2), is 1/√k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from reweigh.errors import LowOverlapWarning, RefusedError, SupportError
from reweigh.estimate.influence import Spread
from reweigh.estimate.recursion import forward
from reweigh.estimate.solution import effective_sizes, escaping, most_unseen
from reweigh.sums.diagnostic_tables import LargestWeights
from reweigh.sums.moments import Moments
from reweigh.trust.gates.gate import (
    NO_TRANSITIONS,
    Context,
    Floats,
    Gate,
    GateResult,
    Limit,
    limits_by,
)

NEARLY_ALL = 0.9  # of the episodes: then it is not the target that is far
LONG_STRETCH = 3  # hidden steps, from which on the limits are those of running products
LEAST = 5  # weights in the tail, as in the paper
PRIOR_SHAPE, PRIOR_WEIGHTS = 0.5, 10.0
FAR = 600.0  # e^600: what lies further from the lower quartile is set to there


class EffectiveSize(
    Gate,
    name="effective size",
    question="On how many episodes does the estimate effectively rest?",
    fault="logarithms",
    reads="solution",
    limits=limits_by(
        Limit(100, 30, above=False),
        products=Limit(1000, 600, above=False),  # a log may lack their tail by luck
        plain=Limit(300, 100, above=False),  # their mass is noise too
        model=Limit(100, None, above=False),  # by luck a rare action is no rare one
        pooled=Limit(300, 200, above=False),  # below, no test sees steps differ
    ),
    warning=LowOverlapWarning,
):
    """The smallest effective number of episodes over the steps."""

    def measure(self, context: Context) -> GateResult:
        ess, sums, n = context.solved.ess, context.sums, context.n_episodes
        if not np.any(np.isfinite(ess)):
            return self.unknown("no step has weights to judge")
        limits = context.limits
        if sums.hidden and limits != "model" and _mean_stretch(sums) > LONG_STRETCH:
            limits = "products"
        step = int(np.nanargmin(ess))
        return self.judge(
            float(ess[step]),
            f"{ess[step]:,.0f} of {n:,} episodes speak for the target at step {step}",
            "log more episodes"
            if ess[step] > NEARLY_ALL * n
            else "log more episodes, shorten the horizon, or ask for a target nearer to the "
            "behaviour",
            limit=self.limit(limits),
            per_step=ess,
            step=step,
        )


def _mean_stretch(sums: Moments) -> float:
    """Steps from one observed state to the next, on average: MIS multiplies as many ratios."""
    if sums.transitions is None:
        return 1.0
    cells = sums.transitions
    return float(cells.n @ (cells.t_next - cells.t)) / float(cells.n.sum())


class MarginalSize(
    Gate,
    name="marginal size",
    question="On how many episodes would marginal weights rest?",
    fault="logarithms",
    needs={"transitions"},
    limits=limits_by(Limit(300, 100, above=False)),
    of={"products"},
):
    """Products vary more than marginal weights, so that a larger size of theirs only says that the
    log does not show their tail."""

    def measure(self, context: Context) -> GateResult:
        weights = context.once("marginal weights", lambda: marginal_weights(context))
        if isinstance(weights, str):
            return self.unknown(weights)
        ess = weights[0]
        if not np.any(np.isfinite(ess)):
            return self.unknown("no step has weights to judge")
        step = int(np.nanargmin(ess))
        return self.judge(
            float(ess[step]),
            f"with marginal weights {ess[step]:,.0f} of {context.n_episodes:,} episodes speak for "
            f"the target at step {step}",
            "running products cannot have more: log more episodes, or use mis",
            per_step=ess,
            step=step,
        )


def marginal_weights(context: Context) -> tuple[Floats, Floats, dict[str, Any]] | str:
    """Of the marginal weights: (H,) effective sizes, (H,) mass that is lost, and the place that
    loses the most; or why there are none."""
    op = context.marginal_operator()
    if op is None:
        return NO_TRANSITIONS
    try:
        flow = forward(op, simplex=False)
    except SupportError as error:
        return str(error)
    lost = escaping(op, flow)
    place = context.place(most_unseen(op, flow, lost, from_model=False))
    return effective_sizes(op, flow), lost, place


class HeaviestEpisode(
    Gate,
    name="heaviest episode",
    question="How much of the weight does one episode hold?",
    fault="logarithms",
    reads="solution",
    limits=limits_by(Limit(None, 0.05)),
    warning=LowOverlapWarning,
    of={"products"},
):
    """Of estimators with running products, at the step with the fewest effective episodes."""

    def measure(self, context: Context) -> GateResult:
        share, ess = context.solved.heaviest, context.solved.ess
        if share is None or not np.any(np.isfinite(ess)):
            return self.unknown("no episode has a weight of its own here")
        step = int(np.nanargmin(ess))
        return self.judge(
            float(share[step]),
            f"one episode holds {share[step]:.1%} of the weight at the worst step, {step}",
            "the interval is not to be trusted: use mis, or certify() for a bound that holds",
            per_step=share,
            step=step,
        )


class ParetoK(
    Gate,
    name="Pareto k",
    question="How heavy is the tail of the weights?",
    fault="logarithms",
    needs={"largest"},
    limits=limits_by(Limit(0.7, 1.0)),
    assumption=True,
    of={"products"},
):
    """The tail of the whole products: above min(1 - 1/log10 n, 0.7) their mean is slow to
    settle."""

    def measure(self, context: Context) -> GateResult:
        largest = context.sums.largest
        if largest is None:
            return self.unknown(context.lacking("largest", "the largest weights"))
        k, why = context.once(self.name, lambda: shape(largest))
        if k is None or not math.isfinite(k):
            return self.unknown(why)
        amber = min(1 - 1 / math.log10(max(largest.n, 11)), 0.7)
        return self.judge(
            k,
            f"the weights' tail has the shape k = {k:.2f}",
            "their mean is slow to settle: use mis, or log more episodes",
            limit=Limit(amber, self.limit().red),
            step=context.sums.about.horizon - 1,
        )


def tail_length(n: int) -> int:
    """M = min(n/5, 3√n)."""
    return math.floor(min(n / 5, 3 * math.sqrt(n)))


def shape(largest: LargestWeights) -> tuple[float | None, str]:
    """(k, how many weights it rests on), or (None, why there is none).

    The tail is what lies strictly above the (M+1)-th largest weight: weights that equal it exceed
    it by nothing. Where parts of a log were put together and the list is complete only above a
    higher floor, it is what lies above the floor.
    """
    n, log_w = largest.n, largest.log_w
    wanted = tail_length(n)
    if wanted < LEAST:
        return None, (
            f"{n:,} episodes: the tail of the weights is its largest fifth, and a fit needs "
            f"{LEAST} weights in it, so {5 * LEAST} episodes"
        )
    cutoff = largest.floor  # -inf where all positive weights are listed: the rest is 0
    if len(log_w) > wanted:
        cutoff = max(cutoff, float(log_w[wanted]))
    tail = log_w[log_w > cutoff]
    if len(tail) < LEAST:
        return None, (
            f"{len(tail)} of the {n:,} weights stand above the others, which are equal, 0 or not "
            f"kept: a fit of the tail needs {LEAST}"
        )
    if tail[0] == tail[-1]:
        return None, f"the {len(tail):,} largest weights are equal: there is no tail to fit"
    return pareto_shape(log_excess(tail, cutoff)), f"from the {len(tail):,} largest weights"


def log_excess(log_w: Floats, cutoff: float) -> Floats:
    """log(w - c) from log w > log c."""
    return log_w + np.log(-np.expm1(cutoff - log_w))


def pareto_shape(log_x: Floats) -> float:
    """The shape k of a generalised Pareto law from the logarithms of what it gave, falling.

    With θ = -k/σ the law's density is (-θ/k)(1 - θx)^{-1-1/k}; given θ the likelihood is largest
    at k(θ), so that it is a function of θ alone, and θ̂ is its mean over a grid of m:

        θ_j = 1/x_max + (1 - √(m/(j - ½)))/(3 x_¼)        k(θ) = mean log(1 - θx)
        ℓ(θ) = M (log(-θ/k(θ)) - k(θ) - 1)                θ̂ = Σ_j θ_j e^{ℓ(θ_j)} / Σ_j e^{ℓ(θ_j)}
        k̂ = (M k(θ̂) + 10 · ½)/(M + 10)

    k does not depend on the scale of x: the quartile x_¼ is put at 1, so that neither end of a
    wide range is lost.
    """
    count = len(log_x)
    quartile = log_x[count - math.floor(count / 4 + 0.5)]
    x = np.exp(np.clip(log_x - quartile, -FAR, FAR))
    m = 30 + math.isqrt(count)
    theta = 1 / x[0] + (1 - np.sqrt(m / (np.arange(1, m + 1) - 0.5))) / 3
    theta[theta == 0] = np.finfo(float).eps  # an exponential law, the limit: no 0/0 there
    k = np.log1p(-theta[:, None] * x).mean(axis=1)
    likelihood = count * (np.log(-theta / k) - k - 1)
    weight = np.exp(likelihood - likelihood.max())
    k_hat = np.log1p(-x * (weight @ theta / weight.sum())).mean()
    return float((count * k_hat + PRIOR_WEIGHTS * PRIOR_SHAPE) / (count + PRIOR_WEIGHTS))


class DecisiveEpisodes(
    Gate,
    name="decisive episodes",
    question="On how many episodes does the error rest?",
    fault="outlier",
    limits=limits_by(Limit(20, 5, above=False)),  # a sum of so few is skewed
    assumption=True,
):
    def measure(self, context: Context) -> GateResult | None:
        if context.error is None:
            return None
        if context.spread is None:
            return self.unknown("sums hold no episodes: evaluated in memory it is told")
        try:
            decisive = heaviest(context.spread())
        except RefusedError as error:
            return self.unknown(str(error))
        if decisive is None:
            return None
        size = decisive.size
        share = f"episode {decisive.episode} has {decisive.share:.0%} of it"
        text = f"the error rests on many episodes: {share}"
        if self.limit().judge(size) != "green":
            few = f"{size:.0f} episode{'' if round(size) == 1 else 's'}"
            text = f"the error rests on about {few}: {share}, and without it the value would move "
            text += f"by about {decisive.moved:+.3g}"
        return self.judge(
            size,
            text,
            "an interval from so few is not to be trusted: check the rewards of that episode, or "
            "log more of what is rare",
        )


@dataclass(frozen=True)
class Decisive:
    """size     (Σψ²)³/(Σψ³)², at most n: as many equal values would be as skewed
    episode, share  the one with the largest ψ², and its share of Σψ²
    moved    by how much the value moves, about, without that episode
    """

    size: float
    episode: str
    share: float
    moved: float


def heaviest(psi: Spread) -> Decisive | None:
    """Of influence values; None where they have no spread."""
    if not 0 < abs(psi.top) < math.inf:
        return None
    size = float(psi.n)
    if abs(psi.third) > 1e-150:
        size = min(psi.second**3 / psi.third**2, size)
    return Decisive(size, psi.episode, 1 / psi.second, -psi.top / psi.n)
