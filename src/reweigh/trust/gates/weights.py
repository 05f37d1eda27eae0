"""Gates of the weights: on how many episodes do the estimate and its error rest?

**Pareto k** is the shape of a generalized Pareto distribution fitted to the largest weights, as in
Pareto-smoothed importance sampling (Vehtari, Simpson, Gelman, Yao and Gabry, "Pareto smoothed
importance sampling", JMLR 2024): to the excess of the largest M = min(n/5, 3√n) weights over the
next one, with the estimator of Zhang and Stephens (Technometrics 2009) and a prior at 1/2 worth ten
weights. Moments of order up to 1/k exist: with k > 1/2 the weights have no variance, with k > 1 no
mean. The tests compare with arviz-stats, which gives the same number but needs all n weights, and
divides 0 by 0 where weights are equal. Here the largest weights are enough, so sums of several logs
can be fitted too.

**Decisive episodes.** An interval assumes that the sum of the influence values ψ_i is normal. It is
not if a few of them on one side make up most of it: one reward out of scale, or an event that
occurs twice in the log. For k equal values among zeros the skewness of the sum, Σψ³/(Σψ²)^(3/2), is
1/√k. Intervals follow that skewness: what they miss is what the log does not show. By luck a log
may lack the largest values of a heavy tail, and then looks well-behaved. The many values of medium
size are in every log: a generalized Pareto distribution fitted to either tail of ψ, with a prior at
0 worth ten values, shows the tail whether or not its largest values are there. Where its shape is
above 0.3, more episodes are needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from reweigh.errors import LowOverlapWarning, RefusedError, SupportError
from reweigh.estimate.influence import TAIL, Spread
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
HEAVY_SIZE = 100.0  # episodes on which an error then must rest
HEAVY = 0.3  # the shape of a tail whose largest values a log may lack by chance
FAR = 600.0  # e^600: what lies further from the lower quartile is set to there


class EffectiveSize(
    Gate,
    name="effective size",
    question="On how many episodes does the estimate effectively rest?",
    fault="logarithms",
    reads="solution",
    limits=limits_by(
        Limit(100, 30, above=False),
        products=Limit(1000, 600, above=False),  # a log may lack their tail by chance
        plain=Limit(300, 100, above=False),  # their total mass is noisy too
        model=Limit(100, None, above=False),  # a rare action may look common by chance
        pooled=Limit(300, 200, above=False),  # with fewer, no test detects that steps differ
    ),
    warning=LowOverlapWarning,
):
    """The smallest effective number of episodes over the steps."""

    def measure(self, context: Context) -> GateResult:
        ess, sums, n = context.solved.ess, context.sums, context.n_episodes
        if not np.any(np.isfinite(ess)):
            return self.unknown("no step has weights to check")
        limits = context.limits
        if sums.hidden and limits != "model" and _mean_stretch(sums) > LONG_STRETCH:
            limits = "products"
        step = int(np.nanargmin(ess))
        return self.judge(
            float(ess[step]),
            f"at step {step} the estimate effectively rests on {ess[step]:,.0f} of {n:,} episodes",
            "log more episodes"
            if ess[step] > NEARLY_ALL * n
            else (
                "log more episodes, shorten the horizon, or choose a target closer to the "
                "logged policy"
            ),
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
    question="On how many episodes would marginal weights effectively rest?",
    fault="logarithms",
    needs={"transitions"},
    limits=limits_by(Limit(300, 100, above=False)),
    of={"products", "memory"},
):
    """Products vary more than marginal weights. If their effective size is larger, the log lacks
    their tail."""

    def measure(self, context: Context) -> GateResult:
        weights = context.once("marginal weights", lambda: marginal_weights(context))
        if isinstance(weights, str):
            return self.unknown(weights)
        ess = weights[0]
        if not np.any(np.isfinite(ess)):
            return self.unknown("no step has weights to check")
        step = int(np.nanargmin(ess))
        return self.judge(
            float(ess[step]),
            f"at step {step} even marginal weights effectively rest on {ess[step]:,.0f} of "
            f"{context.n_episodes:,} episodes",
            "running products cannot do better: log more episodes, or choose a target closer "
            "to the logged policy",
            per_step=ess,
            step=step,
        )


def marginal_weights(context: Context) -> tuple[Floats, Floats, dict[str, Any]] | str:
    """Marginal weights: (H,) effective sizes, (H,) lost mass, and the place that loses the most; or
    why there are none."""
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
    question="How much of the weight does one episode carry?",
    fault="logarithms",
    reads="solution",
    limits=limits_by(Limit(None, 0.05)),
    warning=LowOverlapWarning,
    of={"products"},
):
    """The largest share of one episode, at the step with the fewest effective episodes."""

    def measure(self, context: Context) -> GateResult:
        share, ess = context.solved.heaviest, context.solved.ess
        if share is None or not np.any(np.isfinite(ess)):
            return self.unknown("no episode has its own weight here")
        step = int(np.nanargmin(ess))
        return self.judge(
            float(share[step]),
            f"one episode carries {share[step]:.1%} of the weight at the worst step, {step}",
            "the interval is not reliable: use mis, log more episodes, or use certify() for a "
            "bound that holds",
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
    """Complete products: above min(1 - 1/log10 n, 0.7) their mean converges slowly."""

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
            f"{'heavy-tailed weights' if k > amber else 'weights without a heavy tail'} "
            f"(Pareto k = {k:.2f}){': the estimate is unstable' if k > amber else ''}",
            "log more episodes, choose a target closer to the logged policy, or use mis",
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
            f"{n:,} episodes are too few: a fit of the tail needs {LEAST} weights in the "
            f"largest fifth, so {5 * LEAST} episodes"
        )
    cutoff = largest.floor  # -inf where all positive weights are listed: the rest is 0
    if len(log_w) > wanted:
        cutoff = max(cutoff, float(log_w[wanted]))
    tail = log_w[log_w > cutoff]
    if len(tail) < LEAST:
        return None, (
            f"only {len(tail)} of the {n:,} weights exceed the rest, which are equal, 0 or "
            f"not kept: a fit of the tail needs {LEAST}"
        )
    if tail[0] == tail[-1]:
        return None, f"the {len(tail):,} largest weights are equal, so there is no tail to fit"
    return pareto_shape(log_excess(tail, cutoff)), f"from the {len(tail):,} largest weights"


def log_excess(log_w: Floats, cutoff: float) -> Floats:
    """log(w - c) from log w > log c."""
    return log_w + np.log(-np.expm1(cutoff - log_w))


def pareto_shape(log_x: Floats, prior: float = PRIOR_SHAPE) -> float:
    """The shape k of a generalized Pareto distribution from the falling logarithms of a sample.

    With θ = -k/σ the density is (-θ/k)(1 - θx)^{-1-1/k}; given θ the likelihood is largest
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
    theta[theta == 0] = np.finfo(float).eps  # the exponential limit, without 0/0
    k = np.log1p(-theta[:, None] * x).mean(axis=1)
    likelihood = count * (np.log(-theta / k) - k - 1)
    weight = np.exp(likelihood - likelihood.max())
    k_hat = np.log1p(-x * (weight @ theta / weight.sum())).mean()
    return float((count * k_hat + PRIOR_WEIGHTS * prior) / (count + PRIOR_WEIGHTS))


class DecisiveEpisodes(
    Gate,
    name="decisive episodes",
    question="On how many episodes does the standard error rest?",
    fault="outlier",
    # a sum of so few is skewed; 100 where the tail is heavy
    limits=limits_by(Limit(20, 2, above=False)),
    assumption=True,
):
    def measure(self, context: Context) -> GateResult | None:
        if context.error is None:
            return None
        if context.spread is None:
            return self.unknown("needs individual episodes; rerun with engine='arrays'")
        try:
            psi = context.spread()
        except RefusedError as error:
            return self.unknown(str(error))
        decisive = heaviest(psi)
        if decisive is None:
            return None
        size, k, limit = decisive.size, tail_shape(psi), self.limit()
        if k is not None and k > HEAVY:
            limit = Limit(HEAVY_SIZE, limit.red, above=False)
        share = f"episode {decisive.episode} contributes {decisive.share:.0%} of it"
        text = f"the standard error rests on many episodes: {share}"
        if limit.judge(size) != "green":
            few = f"{size:.0f} episode{'' if round(size) == 1 else 's'}"
            text = (
                f"the standard error rests on about {few}: {share}, and without it the value "
                "would change "
            )
            text += f"by about {decisive.change:+.3g}"
            if limit is not self.limit():
                text += (
                    f"; the contributions have a heavy tail (Pareto k = {k:.2f}), of which the log "
                    "may lack the largest by chance"
                )
        return self.judge(
            size,
            text,
            "too few episodes for a reliable interval: check the rewards of that episode, or "
            "log more of the rare events",
            limit=limit,
        )


def tail_shape(psi: Spread) -> float | None:
    """The larger shape of both tails of ψ, with a prior at 0; None where neither can be fitted."""
    wanted, found = min(tail_length(psi.n), TAIL - 1), []
    for values in (psi.up, psi.down):
        cutoff = max(float(values[wanted]) if len(values) > wanted else 0.0, 0.0)
        tail = values[values > cutoff]
        if len(tail) >= LEAST and tail[0] > tail[-1] and math.isfinite(tail[0]):
            found.append(pareto_shape(np.log(tail - cutoff), prior=0.0))
    return max(found, default=None)


@dataclass(frozen=True)
class Decisive:
    """size     (Σψ²)³/(Σψ³)², at most n: this many equal values would be as skewed
    episode, share  the one with the largest ψ², and its share of Σψ²
    change   the approximate change of the value without that episode
    """

    size: float
    episode: str
    share: float
    change: float


def heaviest(psi: Spread) -> Decisive | None:
    """Of influence values; None where they have no spread."""
    if not 0 < abs(psi.top) < math.inf:
        return None
    size = float(psi.n)
    if abs(psi.third) > 1e-150:
        size = min(psi.second**3 / psi.third**2, size)
    return Decisive(size, psi.episode, 1 / psi.second, -psi.top / psi.n)
