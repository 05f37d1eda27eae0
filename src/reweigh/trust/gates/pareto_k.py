"""How heavy is the tail of the weights: the shape k of a generalised Pareto law, from the largest.

Fitted as in Pareto-smoothed importance sampling (Vehtari, Simpson, Gelman, Yao and Gabry, "Pareto
smoothed importance sampling", JMLR 2024): to what the largest M = min(n/5, 3√n) weights exceed
the next one by, with the estimator of Zhang and Stephens (Technometrics 2009) and a prior at 1/2
worth ten weights. Moments of order up to 1/k exist: with k > 1/2 the weights have no variance,
with k > 1 no mean that an average could find.

arviz-stats gives the same number, and the tests hold this code to it. Its fit asks for all n
weights, and where weights are equal it divides 0 by 0 and gives a number all the same; here the
largest ones suffice, which is what sums of several logs hold.
"""

from __future__ import annotations

import math

import numpy as np

from reweigh.sums.diagnostic_tables import LargestWeights
from reweigh.trust.gates.gate import Context, Floats, Gate, GateResult, Limit, limits_by

LEAST = 5  # weights in the tail, as in the paper
PRIOR_SHAPE, PRIOR_WEIGHTS = 0.5, 10.0
FAR = 600.0  # e^600: what lies further from the lower quartile is set to there


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
