"""The tail's shape: arviz-stats' numbers, laws whose shape is known, ties, parts put together."""

from __future__ import annotations

import math

import numpy as np
import pytest

from reweigh.sums.diagnostic_tables import LargestWeights
from reweigh.trust.gates import weights

Floats = np.ndarray


def shape_of(log_w: Floats) -> float:
    k, why = weights.shape(LargestWeights.of(log_w))
    assert k is not None, why
    return k


def log_weights(name: str, n: int) -> Floats:
    """Quantiles of a law at (i - 1/2)/n, as logarithms: the same on every machine."""
    from scipy.special import ndtri

    u = (np.arange(1, n + 1) - 0.5) / n
    made = {
        "lognormal sd 0.5": 0.5 * ndtri(u),
        "lognormal sd 2": 2 * ndtri(u),
        "pareto 0.7": -0.7 * np.log1p(-u),
        "pareto 1.5": -1.5 * np.log1p(-u),
        "uniform": np.log(u),
    }
    return np.asarray(made[name])


# arviz-stats 0.8.0, `arviz_stats.base.array_stats.psislw(-log_w)[1]`
ARVIZ = {
    ("lognormal sd 0.5", 25): 0.37902499265775447,
    ("lognormal sd 2", 25): 0.5921760948780705,
    ("pareto 0.7", 25): 0.5532443137866409,
    ("pareto 1.5", 25): 0.7565502974807063,
    ("uniform", 25): 0.12653389959211356,
    ("lognormal sd 0.5", 100): 0.2214301910678553,
    ("lognormal sd 2", 100): 0.6630862410596653,
    ("pareto 0.7", 100): 0.6062891118970053,
    ("pareto 1.5", 100): 1.064675269886348,
    ("uniform", 100): -0.404621480355229,
    ("lognormal sd 2", 225): 0.7148562687943552,
    ("lognormal sd 2", 226): 0.714371206006309,
    ("uniform", 226): -0.6675569668165919,
    ("lognormal sd 0.5", 1000): 0.10856919694406433,
    ("lognormal sd 2", 1000): 0.6648671180631174,
    ("pareto 0.7", 1000): 0.6699004120429909,
    ("pareto 1.5", 1000): 1.3631576134362233,
    ("lognormal sd 0.5", 20000): 0.07647012357840599,
    ("lognormal sd 2", 20000): 0.5790009654972745,
    ("pareto 0.7", 20000): 0.6928147396548348,
    ("pareto 1.5", 20000): 1.4667877984500264,
    ("uniform", 20000): -0.9377193222006284,
}


@pytest.mark.parametrize(("name", "n"), ARVIZ)
def test_the_numbers_of_arviz_stats(name: str, n: int) -> None:
    assert shape_of(log_weights(name, n)) == pytest.approx(ARVIZ[name, n], rel=1e-11)


@pytest.mark.parametrize("n", [30, 777, 5000])
def test_arviz_stats_where_it_is_installed(n: int) -> None:
    base = pytest.importorskip("arviz_stats.base")
    log_w = np.random.default_rng(n).normal(size=n) * 1.5
    assert shape_of(log_w) == pytest.approx(float(base.array_stats.psislw(-log_w)[1]), rel=1e-10)


@pytest.mark.parametrize("k", [-0.5, 0.2, 0.7, 1.0, 1.8])
def test_laws_whose_shape_is_known(k: float) -> None:
    """What a generalized Pareto law exceeds a cutoff by has the same shape. The prior moves it to
    (Mk + 5)/(M + 10); the mean of 300 fits lies within 3 Monte-Carlo errors and 0.02 (the bias of
    the fit at M = 300) of that."""
    n, runs = 10_000, 300
    rng = np.random.default_rng(round(100 * (k + 1)))
    found = [shape_of(np.log(np.expm1(-k * np.log(rng.random(n))) / k)) for _ in range(runs)]
    M = weights.tail_length(n)
    assert M == 300
    error = float(np.std(found)) / math.sqrt(runs)
    assert abs(np.mean(found) - (M * k + 5) / (M + 10)) < 3 * error + 0.02


def test_scale_and_order_do_not_matter() -> None:
    log_w = log_weights("lognormal sd 2", 1000)
    k = shape_of(log_w)
    for moved in (log_w + 5000, log_w - 5000, np.random.default_rng(0).permutation(log_w)):
        assert shape_of(moved) == pytest.approx(k, rel=1e-9)


def test_products_too_wide_for_floating_point() -> None:
    """log w ~ i: the weights' tail has the shape of 1/u^c with a c in the hundreds."""
    for spread in (1.0, 10.0, 200.0):
        k = shape_of(np.arange(10_000) * spread)
        assert math.isfinite(k)
        assert k > 50


def test_the_limit_of_an_exponential_law() -> None:
    """A θ_j of the grid may be 0 in floating point; the likelihood there is 0/0, and its limit is
    used. With M = 5 (m = 32, x_¼ the smallest) that is so for j = 4 and this largest value."""
    log_x = np.array([0.3936769699915374, 0.3, 0.2, 0.1, 0.0])
    theta = 1 / np.exp(log_x[0]) + (1 - np.sqrt(32 / (np.arange(1, 33) - 0.5))) / 3
    near = log_x + np.array([1e-9, 0, 0, 0, 0])
    assert weights.pareto_shape(log_x) == pytest.approx(weights.pareto_shape(near), rel=1e-6)
    assert theta[3] == 0


# Parts of a log ------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [2, 7])
def test_parts_put_together_give_the_whole(parts: int) -> None:
    log_w = np.random.default_rng(2).normal(size=30_000) * 2
    log_w[::3] = -np.inf
    pieces = [LargestWeights.of(piece) for piece in np.array_split(log_w, parts)]
    merged = pieces[0]
    for piece in pieces[1:]:
        merged = merged + piece
    assert merged.n == 30_000
    assert weights.shape(merged) == weights.shape(LargestWeights.of(log_w))


def test_a_list_that_ends_above_the_cutoff_uses_what_it_holds() -> None:
    """A small site with heavy weights beside a large one: complete only above the floor."""
    heavy = np.sort(log_weights("pareto 0.7", 20_000))[::-1]
    cut = LargestWeights(heavy[:100], float(heavy[100]), 20_000)
    k, why = weights.shape(cut)
    assert "100 largest" in why
    assert k == pytest.approx(weights.pareto_shape(weights.log_excess(heavy[:100], heavy[100])))
    assert k == pytest.approx(0.7, abs=0.1)


# Where there is none -------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 5, 24])
def test_too_few_episodes(n: int) -> None:
    k, why = weights.shape(LargestWeights.of(np.arange(float(n))))
    assert k is None
    assert why.startswith(f"{n} episodes")
    assert "25 episodes" in why


def test_equal_weights_have_no_tail() -> None:
    k, why = weights.shape(LargestWeights.of(np.zeros(1000)))
    assert k is None
    assert why.startswith("only 0 of the 1,000 weights exceed the rest")
    # a target that never chances: products are 2^6 or 0
    k, why = weights.shape(LargestWeights.of(np.where(np.arange(1000) % 64 == 0, 6.0, -np.inf)))
    assert (k, why) == (None, "the 16 largest weights are equal, so there is no tail to fit")
    k, why = weights.shape(LargestWeights.of(np.full(1000, -np.inf)))
    assert k is None


def test_weights_equal_to_the_cutoff_are_not_of_the_tail() -> None:
    """100 weights, a tail of 20 wanted; 12 stand above 30 that are equal."""
    above = np.linspace(1, 3, 12)
    log_w = np.concatenate([above, np.zeros(30), np.linspace(-3, -1, 58)])
    k, why = weights.shape(LargestWeights.of(log_w))
    assert why == "from the 12 largest weights"
    assert k == weights.pareto_shape(weights.log_excess(above[::-1], 0.0))
    k, why = weights.shape(LargestWeights.of(np.concatenate([above[:4], np.zeros(96)])))
    assert k is None
    assert why.startswith("only 4 of the 100 weights exceed the rest")


def test_most_weights_zero() -> None:
    """The tail is then every positive weight, above a cutoff of 0."""
    log_w = np.full(1000, -np.inf)
    log_w[:40] = log_weights("pareto 0.7", 40)
    k, why = weights.shape(LargestWeights.of(log_w))
    assert why == "from the 40 largest weights"
    assert k == weights.pareto_shape(np.sort(log_w[:40])[::-1])
