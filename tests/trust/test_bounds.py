"""Bounds that hold for every n: the theorem by enumeration, coverage, a slow twin, confseq."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from reweigh.errors import InputError, UsageError
from reweigh.trust import bounds

Floats = np.ndarray
TAIL = 20.0


def slow_capital(y: list[float], m: float, alpha: float) -> list[float]:
    """K_1(m) … K_n(m) as the module's words say it, value by value."""
    n, capital, found = len(y), 1.0, []
    for t in range(1, n + 1):
        past = y[: t - 1]
        V = sum((past[i] - sum(past[: i + 1]) / (i + 1)) ** 2 for i in range(t - 1))
        squares = sum(value**2 for value in past)
        effective = sum(past) ** 2 / squares if squares else 0.0
        variance = V / t + m**2 * (1 + n / 20) / (1 + effective) ** 2
        bet = min(math.sqrt(2 * math.log(1 / alpha) / (n * variance)), 0.75 / m)
        capital *= 1 + bet * (y[t - 1] - m)
        found.append(capital)
    return found


def drawn(kind: str, n: int, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    return {
        "uniform": lambda: rng.random(n),
        "rare": lambda: TAIL * (rng.random(n) < 1 / TAIL),
        "lognormal": lambda: rng.lognormal(-2, 2, n),
        "narrow": lambda: 0.5 + 0.01 * rng.random(n),
        "zeros first": lambda: np.arange(n) // (n // 2) * rng.random(n),
    }[kind]()


KINDS = ("uniform", "rare", "lognormal", "narrow", "zeros first")


def upper_bound(x: Floats, high: float, alpha: float = 0.05) -> float:
    """The other end: that of what is left to `high`."""
    return high - bounds.lower_bound(high - np.asarray(x), 0.0, alpha)


def interval(x: Floats, low: float, high: float, alpha: float = 0.05) -> tuple[float, float]:
    """One bettor on either side, with half of the money each."""
    return bounds.lower_bound(x, low, alpha / 2), upper_bound(x, high, alpha / 2)


@pytest.fixture
def as_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The values in the given order."""
    monkeypatch.setattr(bounds, "_shuffled", lambda x, seed: x)


# The theorem ---------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.025, 0.3])
@pytest.mark.parametrize(
    ("values", "chances"), [((0.0, 1.0), (0.7, 0.3)), ((0.0, 0.5, 20.0), (0.8, 0.15, 0.05))]
)
def test_the_capital_of_a_fair_game_keeps_its_mean(
    values: tuple[float, ...], chances: tuple[float, ...], alpha: float
) -> None:
    """Over all sequences Σ P K_t(m) = 1 for every t, m being the mean: bets know only the past."""
    n, mean = 5, math.fsum(v * p for v, p in zip(values, chances, strict=True))
    total = np.zeros(n)
    for sequence in itertools.product(range(len(values)), repeat=n):
        chance = math.prod(chances[i] for i in sequence)
        total += chance * np.array(slow_capital([values[i] for i in sequence], mean, alpha))
    np.testing.assert_allclose(total, 1, rtol=1e-12)


@pytest.mark.usefixtures("as_given")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("alpha", [0.05, 0.4])
def test_the_capital_is_that_of_the_slow_twin(kind: str, alpha: float) -> None:
    y = drawn(kind, 30, seed=3)
    for m in y.max() * np.array([1e-6, 0.01, 0.1, 0.3, 0.6, 0.99]):
        richest = max([1.0, *slow_capital(y.tolist(), float(m), alpha)])
        found = bounds.p_value_at_most(y, float(m), 0.0, alpha)
        assert found == pytest.approx(1 / richest, rel=1e-10)


@pytest.mark.usefixtures("as_given")
@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_is_where_a_grid_of_means_finds_it(kind: str) -> None:
    y, alpha = drawn(kind, 30, seed=3), 0.05
    grid = y.max() * np.arange(1, 201) / 200
    kept = [m for m in grid.tolist() if max(slow_capital(y.tolist(), m, alpha)) < 1 / alpha]
    low = bounds.lower_bound(y, 0.0, alpha)
    assert kept[0] - grid[0] - 1e-9 <= low <= kept[0]
    assert len(kept) == 200 - round(kept[0] / grid[0]) + 1, "what is rejected has no gaps"


@pytest.mark.parametrize("kind", KINDS)
def test_p_values_rise_with_the_mean_and_agree_with_the_bounds(kind: str) -> None:
    x, alpha = drawn(kind, 200, seed=5), 0.02
    means = np.linspace(0, x.max(), 60)
    p = np.array([bounds.p_value_at_most(x, float(m), 0.0, alpha) for m in means])
    assert np.all(np.diff(p) >= -1e-12)
    assert p[0] == 0
    assert p[-1] == 1
    low = bounds.lower_bound(x, 0.0, alpha)
    assert bounds.p_value_at_most(x, low, 0.0, alpha) == pytest.approx(alpha, rel=1e-6)
    assert bounds.p_value_at_most(x, low * (1 - 1e-9), 0.0, alpha) <= alpha


# Coverage ------------------------------------------------------------------------------------


def all_bounds(alpha: float) -> Iterator[tuple[str, Callable[[Floats], tuple[float, float]]]]:
    yield "lower", lambda x: (bounds.lower_bound(x, 0, alpha), math.inf)
    yield "upper", lambda x: (-math.inf, upper_bound(x, 1, alpha))
    yield "interval", lambda x: interval(x, 0, 1, alpha)
    yield "hoeffding", lambda x: bounds.hoeffding_interval(x, 0, 1, alpha)
    yield "bernstein", lambda x: bounds.bernstein_interval(x, 0, 1, alpha)


@pytest.mark.parametrize("alpha", [0.05, 0.3])
@pytest.mark.parametrize("name", [name for name, _ in all_bounds(0.5)])
def test_exact_coverage_of_a_chance(name: str, alpha: float) -> None:
    """All 2^8 outcomes of eight tosses, for 99 chances: coverage without Monte-Carlo error."""
    found, n = dict(all_bounds(alpha))[name], 8
    outcomes = np.array(list(itertools.product((0.0, 1.0), repeat=n)))
    ends = np.array([found(x) for x in outcomes])
    ones = outcomes.sum(axis=1)
    missed = []
    for p in np.arange(1, 100) / 100:
        chance = p**ones * (1 - p) ** (n - ones)
        covered = (ends[:, 0] <= p) & (p <= ends[:, 1])
        missed.append(float(chance[~covered].sum()))
    assert max(missed) <= alpha
    if name != "bernstein":  # whose intervals are the whole range at n = 8
        assert max(missed) > alpha / 30, "a bound that never misses says too little"


WORLDS: dict[str, tuple[Callable[[np.random.Generator, int], Floats], float]] = {
    "chance 0.01": (lambda rng, n: (rng.random(n) < 0.01) * 1.0, 0.01),
    "chance 0.99": (lambda rng, n: (rng.random(n) < 0.99) * 1.0, 0.99),
    "rare and large": (lambda rng, n: 1000.0 * (rng.random(n) < 1e-3), 1.0),
    "log-normal, sd 2": (lambda rng, n: rng.lognormal(-2, 2, n), 1.0),
    "Pareto without variance": (lambda rng, n: rng.pareto(1.5, n), 2.0),
    "weights of 6 coins": (lambda rng, n: 1.5 ** (2 * rng.binomial(6, 0.5, n) - 6), (13 / 12) ** 6),
    "sorted": (lambda rng, n: np.sort(rng.random(n) ** 4), 0.2),
}


@pytest.mark.parametrize("n", [20, 300])
@pytest.mark.parametrize("name", WORLDS)
def test_coverage_of_nasty_values(name: str, n: int) -> None:
    """A bound misses exactly where the truth has p ≤ α (tested above). In 1,500 samples at most
    α + 3 Monte-Carlo errors (0.017) may miss; where values are at most 1, on either side."""
    draw, mean = WORLDS[name]
    rng, runs, alpha = np.random.default_rng(8), 1500, 0.05
    most = (alpha + 3 * math.sqrt(alpha * (1 - alpha) / runs)) * runs
    samples = [draw(rng, n) for _ in range(runs)]
    assert sum(bounds.p_value_at_most(x, mean, 0.0, alpha) <= alpha for x in samples) <= most
    if name.startswith(("chance", "sorted")):
        below = [bounds.p_value_at_most(1 - x, 1 - mean, 0.0, alpha) for x in samples]
        assert sum(p <= alpha for p in below) <= most


def test_p_values_of_a_true_mean_are_seldom_small() -> None:
    rng, runs = np.random.default_rng(9), 1000
    p = np.array(
        [bounds.p_value_at_most(rng.exponential(size=100), 1.0, 0.0, 0.05) for _ in range(runs)]
    )
    for level in (0.01, 0.05, 0.2):
        assert np.mean(p <= level) <= level + 3 * math.sqrt(level * (1 - level) / runs)
    assert np.mean(p <= 0.2) > 0.03


# What it is worth ----------------------------------------------------------------------------


@pytest.mark.parametrize("n", [100, 1000])
def test_betting_is_narrow_where_values_vary_little(n: int) -> None:
    x = 0.5 + 0.05 * (drawn("uniform", n, seed=10) - 0.5)
    widths = [
        high - low
        for low, high in (
            interval(x, 0, 1),
            bounds.bernstein_interval(x, 0, 1),
            bounds.hoeffding_interval(x, 0, 1),
        )
    ]
    assert widths[0] < widths[1] / 2
    assert widths[0] < widths[2] / (2 if n == 100 else 5)


@pytest.mark.parametrize("kind", ["uniform", "rare", "lognormal"])
def test_the_margin_is_close_to_the_best_that_betting_gives(kind: str) -> None:
    """With a known variance and normal values the best margin is √(2 log(1/α)) σ/√n = 2.45 σ/√n
    at α = 0.05; the plug-in comes within a fifth of it on average over 40 samples of 2,000."""
    n, alpha = 2000, 0.05
    margins = []
    for seed in range(40):
        x = drawn(kind, n, seed=100 + seed)
        margins.append((x.mean() - bounds.lower_bound(x, 0.0, alpha)) / (x.std() / math.sqrt(n)))
    assert np.mean(margins) < 1.2 * math.sqrt(2 * math.log(1 / alpha))


# Invariances ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_scale_shift_and_reflection(kind: str) -> None:
    x = drawn(kind, 80, seed=11)
    low, high = interval(x, 0.0, float(x.max()))
    moved = interval(3.7 * x - 11, -11.0, float((3.7 * x - 11).max()))
    assert moved == pytest.approx((3.7 * low - 11, 3.7 * high - 11), rel=1e-9)
    assert bounds.lower_bound(2.0**-900 * x, 0.0) == 2.0**-900 * bounds.lower_bound(x, 0.0)
    assert bounds.lower_bound(2.0**900 * x, 0.0) == 2.0**900 * bounds.lower_bound(x, 0.0)
    assert upper_bound(-x, 0.0) == -bounds.lower_bound(x, 0.0)


def test_the_order_is_made_of_the_number_and_the_seed() -> None:
    x = drawn("lognormal", 500, seed=12)
    first = bounds.lower_bound(x, 0.0)
    assert bounds.lower_bound(x.copy(), 0.0) == first
    assert bounds.lower_bound(x, 0.0, seed=1) != first
    # the generator's bits, and so the order, are the same for good
    assert bounds._shuffled(np.arange(8.0), 0).tolist() == [3, 2, 1, 6, 0, 7, 4, 5]


def test_a_million_values_take_few_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    made, passes = bounds._capital, 0

    def counted(y: Floats, alpha: float) -> Callable[[float], float]:
        capital = made(y, alpha)

        def once(m: float) -> float:
            nonlocal passes
            passes += 1
            return capital(m)

        return once

    monkeypatch.setattr(bounds, "_capital", counted)
    for kind in KINDS:
        passes = 0
        bounds.lower_bound(drawn(kind, 20_000, seed=13), 0.0)
        assert 0 < passes < 30


# Edges ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.2])
def test_one_value_and_equal_values(alpha: float) -> None:
    # n = 1: the boldest bet, 1/4 + 3/4 y/m = 1/α
    assert bounds.lower_bound([2.0], 0.0, alpha) == pytest.approx(1.5 / (1 / alpha - 0.25))
    assert bounds.lower_bound([0.0, 0.0], 0.0, alpha) == 0
    assert upper_bound([1.0] * 50, 1.0, alpha) == 1
    assert bounds.bernstein_interval([0.5], 0, 1) == (0, 1)
    for n in (1, 2, 50, 5000):
        low, high = interval([0.3] * n, 0.0, 1.0, alpha)
        assert 0 < low < 0.3 < high < 1
        assert n < 5000 or high - low < 0.01


def test_p_values_at_the_ends() -> None:
    x = [0.2, 0.5]
    assert bounds.p_value_at_most(x, -0.1, 0.0) == 0, "no values ≥ 0 have this mean"
    assert bounds.p_value_at_most(x, 0.0, 0.0) == 0
    assert bounds.p_value_at_most([0.0, 0.0], 0.0, 0.0) == 1
    assert bounds.p_value_at_most(x, 0.5, 0.0) == 1
    assert 0 < bounds.p_value_at_most([5e-324, 1e300], 1e-300, 0.0) < 1e-100


@pytest.mark.parametrize(
    "x",
    [
        [1e308, 1.7e308, 0.0],
        [5e-324, 0.0, 5e-324],
        [1e-300, 1e300] * 20,
        [0.0] * 5000 + [1e-200],
        np.geomspace(1e-300, 1e300, 3000),
        np.concatenate([np.zeros(10**5), [1e-200], np.geomspace(1e-300, 1, 40)]),
    ],
)
def test_a_wide_spread_keeps_the_bound_between_the_ends(x: list[float]) -> None:
    found = bounds.lower_bound(np.array(x), 0.0)
    assert 0 <= found <= np.max(x)
    assert bounds.lower_bound(np.array(x), 0.0, 0.5) >= found


def test_refusals_name_what_is_wrong() -> None:
    with pytest.raises(
        InputError, match=r"value 1 is 1\.5, outside .* \[0, 1\] \(2 of 3 values are\)"
    ):
        bounds.hoeffding_interval([0.5, 1.5, -1.0], 0, 1)
    with pytest.raises(InputError, match=r"value 0 is -0\.1, outside the declared range \[0, inf"):
        bounds.lower_bound([-0.1], 0)
    with pytest.raises(InputError, match="value 1 is nan"):
        bounds.lower_bound([0.1, math.nan], 0)
    with pytest.raises(InputError, match="value 0 is inf"):
        bounds.lower_bound([math.inf], 0)
    with pytest.raises(InputError, match="too far from the end"), np.errstate(over="ignore"):
        bounds.lower_bound([1.7e308], -1.7e308)
    for low, high in ((1.0, 1.0), (2.0, 1.0), (0.0, math.inf), (math.nan, 1.0)):
        for found in (bounds.hoeffding_interval, bounds.bernstein_interval):
            with pytest.raises(UsageError, match="the range must be two numbers"):
                found([0.5], low, high)
    with pytest.raises(UsageError, match="end of a range must be a number"):
        bounds.lower_bound([0.5], math.nan)
    with pytest.raises(UsageError, match="at least one number"):
        bounds.lower_bound([], 0)
    for alpha in (0, 1, -0.1, math.nan):
        with pytest.raises(UsageError, match="'alpha' must be a number between 0 and 1"):
            bounds.lower_bound([0.5], 0, alpha)
    with pytest.raises(UsageError, match="'seed'"):
        bounds.lower_bound([0.5], 0, seed=-1)
    with pytest.raises(UsageError, match="'mean' must be a number"):
        bounds.p_value_at_most([0.5], math.nan, 0)


# Other people's numbers ----------------------------------------------------------------------


def test_against_confseq() -> None:
    """Made once with confseq 0.0.11 (its `betting_mart` and `betting_cs` with our bets handed in as
    its `lambdas_fns`, trunc_scale 3/4, on the shuffled values; a grid of 2,000 means, whose ends it
    moves outwards by one) and with its own bets (`betting_ci`)."""
    x = ((np.arange(1, 61) * 0.6180339887498949) % 1) ** 3
    richest = {
        0.05: 666070.3833347916,
        0.10: 9709.16557549665,
        0.15: 233.76212828333882,
        0.20: 7.166137378332476,
        0.25: 2.470971563001664,
    }
    for m, capital in richest.items():
        assert 1 / bounds.p_value_at_most(x, m, 0, 0.025) == pytest.approx(capital, rel=1e-12)
    low, high = interval(x, 0, 1, 0.05)
    assert 0.174 <= low <= 0.1745
    assert 0.3615 <= high <= 0.362
    # confseq's own bets: about as wide, by no more than a tenth on either side
    assert (low, high) == pytest.approx((0.166, 0.3645), abs=0.1 * (0.3645 - 0.166))


def test_hoeffding_and_bernstein_by_hand() -> None:
    x = np.tile([0.0, 1.0, 2.0, 1.0], 100)
    # 2 √(log 40 / 800)
    assert bounds.hoeffding_interval(x, 0, 2) == pytest.approx(
        (1 - 0.135810, 1 + 0.135810), abs=1e-6
    )
    # variance 200/399, log 80 = 4.382027: √(2·0.501253·4.382027/400) + 7·2·4.382027/(3·399)
    assert bounds.bernstein_interval(x, 0, 2) == pytest.approx(
        (1 - 0.156049, 1 + 0.156049), abs=1e-6
    )
    assert bounds.hoeffding_interval([0.1], 0, 1) == (0, 1)


# Weights -------------------------------------------------------------------------------------


def test_weights_are_scaled_in_logarithms() -> None:
    x = np.array([0.2, 0.9, 0.4, 0.7])
    found = bounds.weighted(np.array([-1e4, -math.inf, 0.0, 1e4]), x)
    assert found[:3].tolist() == [0, 0, 0.4]
    assert found[3] == math.exp(bounds.MOST_LOG_WEIGHT) * 0.7
    with pytest.raises(InputError, match="log weight 1 is nan"):
        bounds.weighted(np.array([0.0, math.nan, 0, 0]), x)
    with pytest.raises(InputError, match="log weight 2 is inf"):
        bounds.weighted(np.array([0.0, 0.0, math.inf, 0]), x)
    with pytest.raises(UsageError, match=r"4 values, but log weights with shape \(2,\)"):
        bounds.weighted(np.zeros(2), x)
