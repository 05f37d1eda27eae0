"""Student's t with effective degrees of freedom, and intervals within a declared range."""

from __future__ import annotations

import math

import numpy as np
import pytest

from reweigh.errors import UsageError
from reweigh.estimate.standard_error import (
    effective_df,
    range_interval,
    t_interval,
    t_p_value,
    t_quantile,
)

# Degrees of freedom --------------------------------------------------------------------------


def test_welch_and_satterthwaite_by_hand() -> None:
    # two samples: s²/n = 4/10 and 9/15, with 9 and 14 degrees of freedom
    expected = (0.4 + 0.6) ** 2 / (0.4**2 / 9 + 0.6**2 / 14)
    assert effective_df([0.4, 0.6], [9, 14]) == pytest.approx(expected)
    assert effective_df([2.0], [7]) == 7
    # equal parts of equal freedom add up
    assert effective_df(np.full(5, 3.0), np.full(5, 4.0)) == pytest.approx(20)


def test_welch_against_scipy() -> None:
    from scipy import stats

    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 1, 8), rng.normal(0.7, 5, 13)
    parts = [a.var(ddof=1) / 8, b.var(ddof=1) / 13]
    df = effective_df(parts, [7, 12])
    assert df is not None
    known = stats.ttest_ind(a, b, equal_var=False, alternative="greater")
    assert df == pytest.approx(known.df)
    error = math.sqrt(sum(parts))
    assert t_p_value(a.mean() - b.mean(), error, 0.0, df) == pytest.approx(known.pvalue)
    low, _ = t_interval(a.mean() - b.mean(), error, 0.9, df) or (0, 0)
    assert low == pytest.approx(known.confidence_interval(0.95).low)


@pytest.mark.parametrize("scale", [1e-300, 1.0, 5e307])
def test_the_size_of_the_parts_does_not_matter(scale: float) -> None:
    parts, df = np.array([1.0, 0.25, 0.0, 3.0]), np.array([3.0, 40.0, 0.0, 12.0])
    found = effective_df(scale * parts, df)
    assert found == pytest.approx(effective_df(parts, df))
    assert found is not None
    assert 3 <= found <= 55


def test_parts_without_say_and_parts_that_are_known() -> None:
    assert effective_df([0.0, 0.0], [3, 5]) is None
    assert effective_df([], []) is None
    assert effective_df([1.0, 0.0], [3, 0]) == 3
    assert effective_df([1.0, 2.0], [math.inf, math.inf]) == math.inf
    # a known part beside an estimated one of the same size: four times the freedom
    assert effective_df([1.0, 1.0], [5, math.inf]) == pytest.approx(20)


def test_coverage_with_few_degrees_of_freedom() -> None:
    """Two groups of 3 and 6 normal values, 6,000 seeded runs: t covers 95 % within 3 Monte-Carlo
    errors and 1 % (Welch's is an approximation); the normal quantile does not come near."""
    rng, runs = np.random.default_rng(1), 6000
    x, y = rng.normal(0, 1, (runs, 3)), rng.normal(0, 2, (runs, 6))
    parts = np.stack([x.var(axis=1, ddof=1) / 3, y.var(axis=1, ddof=1) / 6], axis=1)
    off = np.abs(x.mean(axis=1) + y.mean(axis=1)) / np.sqrt(parts.sum(axis=1))
    df = [effective_df(part, np.array([2.0, 5.0])) for part in parts]
    q = np.array([t_quantile(0.975, nu) for nu in df if nu is not None])
    assert abs(np.mean(off <= q) - 0.95) < 3 * math.sqrt(0.95 * 0.05 / runs) + 0.01
    assert np.mean(off <= 1.96) < 0.92


# Quantiles and p-values ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("probability", "df", "known"),
    [
        (0.975, 1, 12.7062),
        (0.975, 10, 2.2281),
        (0.95, 30, 1.6973),
        (0.975, math.inf, 1.959964),
        (0.975, 1e12, 1.959964),
        (0.5, 3, 0.0),
    ],
)
def test_quantiles_of_the_tables(probability: float, df: float, known: float) -> None:
    assert t_quantile(probability, df) == pytest.approx(known, abs=5e-5)
    assert t_quantile(1 - probability, df) == pytest.approx(-known, abs=5e-5)


def test_quantiles_between_whole_degrees_of_freedom() -> None:
    from scipy import stats

    for df in (0.5, 1.5, 2.7, 17.3, 400.2):
        for p in (1e-6, 0.2, 0.9, 0.9999):
            assert t_quantile(p, df) == pytest.approx(stats.t.ppf(p, df), rel=1e-9)


def test_p_values_mirror_intervals() -> None:
    for df in (2.5, math.inf):
        low, high = t_interval(1.3, 0.4, 0.9, df) or (0, 0)
        assert t_p_value(1.3, 0.4, low, df) == pytest.approx(0.05)
        assert t_p_value(1.3, 0.4, high, df) == pytest.approx(0.95)
    assert t_p_value(1.0, 0.0, 0.9) == 0
    assert t_p_value(1.0, 0.0, 1.0) == 1


# A declared range ----------------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["cut", "logit"])
@pytest.mark.parametrize("df", [1.0, 7.5, math.inf])
def test_intervals_stay_inside_and_hold_the_estimate(scale: str, df: float) -> None:
    for p in (0.001, 0.02, 0.5, 0.97, 0.9999):
        for error in (1e-9, 1e-4, 0.01, 0.3, 50.0):
            found, how = range_interval(p, error, 0, 1, 0.99, df, scale)  # type: ignore[arg-type]
            assert found is not None, how
            assert 0 <= found[0] <= p <= found[1] <= 1
            wider, _ = range_interval(p, 1.01 * error, 0, 1, 0.999, df, "cut")
            narrower, _ = range_interval(p, error, 0, 1, 0.99, df, "cut")
            assert wider is not None
            assert narrower is not None
            assert wider[0] <= narrower[0] <= narrower[1] <= wider[1]


@pytest.mark.parametrize("scale", ["cut", "logit"])
def test_far_from_the_ends_it_is_the_plain_interval(scale: str) -> None:
    plain = t_interval(4.0, 0.01, 0.95, 12) or (0, 0)
    found, _ = range_interval(4.0, 0.01, -100, 100, 0.95, 12, scale)  # type: ignore[arg-type]
    assert found == pytest.approx(plain, abs=1e-5)


def test_the_logit_by_hand() -> None:
    # p = 0.1, logit -2.197225, its error 0.03/0.09 = 1/3: ± 1.959964/3
    found, how = range_interval(0.1, 0.03, 0, 1, scale="logit")
    assert how == "t on the logit scale"
    assert found == pytest.approx([1 / (1 + math.exp(2.197225 + s * 0.653321)) for s in (1, -1)])
    # the same in other units, and seen from the other end
    moved, _ = range_interval(5 + 20 * 0.1, 20 * 0.03, 5, 25, scale="logit")
    mirrored, _ = range_interval(0.9, 0.03, 0, 1, scale="logit")
    assert found is not None
    assert moved == pytest.approx([5 + 20 * end for end in found])
    assert mirrored == pytest.approx([1 - found[1], 1 - found[0]])


def test_at_the_ends_and_outside() -> None:
    cut = "t, cut to the range: too close to an end for the logit scale"
    assert range_interval(0.0, 0.1, 0, 1, scale="logit") == (
        (0.0, pytest.approx(0.1959964)),
        cut,
    )
    assert range_interval(1e-9, 0.1, 0, 1, scale="logit")[1] == cut
    found, how = range_interval(1.1, 0.1, 0, 1)
    assert (found, how) == ((pytest.approx(0.9040036), 1.0), "t, cut to the range")
    found, how = range_interval(1.3, 0.1, 0, 1)
    assert found is None
    assert "estimate 1.3 with its margin 0.2 is outside the declared range [0, 1]" in how
    assert range_interval(1.3, 0.0, 0, 1)[0] is None
    assert range_interval(0.0, 0.0, 0, 1) == ((0.0, 0.0), "a standard error of 0")
    assert range_interval(0.4, 0.0, 0, 1, scale="logit") == ((0.4, 0.4), "a standard error of 0")
    assert range_interval(0.4, None, 0, 1) == (None, "there is no standard error")
    assert t_interval(0.4, None) is None
    # a quantile of 6e9 overflows nothing
    found, _ = range_interval(0.5, 0.3, 0, 1, 1 - 1e-10, 1.0, "logit")
    assert found == (0, 1)


def covered(v: np.ndarray, error: np.ndarray, truth: float, df: float) -> tuple[float, float]:
    """The share of intervals that hold the truth: cut, and on the logit scale."""
    shares = []
    for scale in ("cut", "logit"):
        ends = [
            range_interval(a, e, 0, 1, 0.95, df, scale)[0]  # type: ignore[arg-type]
            for a, e in zip(v.tolist(), error.tolist(), strict=True)
        ]
        shares.append(float(np.mean([x is not None and x[0] <= truth <= x[1] for x in ends])))
    return shares[0], shares[1]


@pytest.mark.parametrize(
    ("kind", "truth", "told"),
    [("mean", 0.1, (0.93, 0.95)), ("wis", 0.1, (0.89, 0.92)), ("is", 0.9, (0.93, 0.87))],
)
def test_the_coverage_that_the_words_tell(
    kind: str, truth: float, told: tuple[float, float]
) -> None:
    """4,000 runs; 3 Monte-Carlo errors are at most 0.016."""
    rng, runs, n = np.random.default_rng(2), 4000, 200
    y = (rng.random((runs, n)) < truth) * 1.0
    w = rng.lognormal(-0.5, 1, (runs, n)) if kind != "mean" else np.ones((runs, n))
    if kind == "wis":
        v = (w * y).sum(axis=1) / w.sum(axis=1)
        error = np.sqrt(((w * (y - v[:, None])) ** 2).sum(axis=1)) / w.sum(axis=1)
    else:
        v = (w * y).mean(axis=1)
        error = (w * y).std(axis=1, ddof=1) / math.sqrt(n)
    assert covered(v, error, truth, n - 1) == pytest.approx(told, abs=0.016)


def test_refusals() -> None:
    with pytest.raises(UsageError, match="the range must be two numbers, the first smaller"):
        range_interval(0.5, 0.1, 1, 1)
    with pytest.raises(UsageError, match="the range must be"):
        range_interval(0.5, 0.1, 0, math.inf)
    with pytest.raises(UsageError, match="'scale' must be 'cut' or 'logit'"):
        range_interval(0.5, 0.1, 0, 1, scale="probit")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="'level'"):
        t_interval(0.5, 0.1, 95)
    with pytest.raises(UsageError, match=r"'error' must be a number from 0 on; got -0\.1"):
        t_interval(0.5, -0.1)
    with pytest.raises(UsageError, match="'error'"):
        t_p_value(0.5, math.nan, 0.0)
    with pytest.raises(UsageError, match="'estimate'"):
        range_interval(math.inf, 0.1, 0, 1)
    with pytest.raises(UsageError, match="'at_most'"):
        t_p_value(0.5, 0.1, math.nan)
    for df in (0, -1, math.nan):
        with pytest.raises(UsageError, match="'df' must be positive"):
            t_quantile(0.9, df)
    with pytest.raises(UsageError, match="'probability'"):
        t_quantile(1.0, 3)
    with pytest.raises(UsageError, match="variance of part 1 must be a number from 0 on; got -2"):
        effective_df([1.0, -2.0], [3, 3])
    with pytest.raises(UsageError, match="variance of part 0"):
        effective_df([math.nan], [3])
    with pytest.raises(UsageError, match=r"degrees of freedom of part 1 must be positive .* got 0"):
        effective_df([1.0, 2.0], [3, 0])
    with pytest.raises(UsageError, match="shape"):
        effective_df([1.0, 2.0], [3])
