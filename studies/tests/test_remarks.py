"""The paper's example and remarks on the horizon, as exact numbers of small worlds."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from reweigh_studies import theorems
from reweigh_studies.theorems import tilted_world
from scipy.stats import binom, norm

from reweigh import theory
from reweigh.worlds import ModelFail, ModelWin, TabularMDP, TimeVarying, random_mdp


def growth(world: Callable[[int], TabularMDP], quantity: str, H: int = 400) -> float:
    """The exponent k of quantity ~ H^k, between H and 2H."""
    short, long = (getattr(theory.quantities(world(h)), quantity) for h in (H, 2 * H))
    return math.log2(long / short)


def on_policy(world: TabularMDP) -> TabularMDP:
    mu = world.behavior_array
    return TabularMDP(world.initial, world.transition, world.reward, mu, mu, world.reward_sd)


# --- the remark on π ≈ μ, and the dependence on H -------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_on_policy_bound(seed: int) -> None:
    """Remark on π ≈ μ: for π = μ the leading term, then the variance of a return, is at most
    3V_max² + Hσ², if V_max ≥ R_max."""
    world = on_policy(random_mdp(seed, 3, 2, 1 + 3 * seed, reward_sd=0.5))
    q = theory.quantities(world)
    v_max = max(float(q.V.max()), q.reward_max)
    assert q.leading == pytest.approx(q.is_variance, rel=1e-10)
    assert q.leading <= 3 * v_max**2 + q.horizon * q.noise**2


def test_on_policy_bound_needs_values_above_rewards() -> None:
    """The remark's last step takes R_max V_max ≤ V_max². With a rare reward V_max, as the largest
    value, is far below R_max, and 3V_max² + Hσ² is less than the variance of a return."""
    P = np.array([[[0.99, 0.01]], [[0.0, 1.0]]])
    r = np.zeros((2, 1, 2))
    r[0, 0, 1] = 1
    q = theory.quantities(TabularMDP([1, 0], P, r, [[1]] * 2, [[1]] * 2, horizon=1))
    assert q.leading == pytest.approx(0.01 * 0.99, rel=1e-12)
    assert q.leading > 3 * float(q.V.max()) ** 2
    assert q.leading <= 3 * max(float(q.V.max()), q.reward_max) ** 2


def telescoped(world: TabularMDP, q: theory.Quantities) -> tuple[float, float]:
    """Σ_{h,s'} (Σ_{s,a} d^π(s,a,s')²/d^μ(s,a,s') - d^π(s')²/d^μ(s')) V(s')², and
    Σ d^π(s,a,s')²/d^μ(s,a,s') (r² + σ² + 2rV(s'))."""
    d_pi, d_mu = q.d_pi[:-1, :, None, None], q.d_mu[:-1, :, None, None]
    pi, mu = world.target_array[..., None], world.behavior_array[..., None]
    weight = theorems.divided((d_pi * pi * world.transition) ** 2, d_mu * mu * world.transition)
    after = weight.sum(axis=(1, 2)) - theorems.divided(q.d_pi[1:] ** 2, q.d_mu[1:])
    r, V = world.reward, q.V[1:, None, None, :]
    rewards = np.sum(weight * (r**2 + world.reward_sd**2 + 2 * r * V))
    return float(np.sum(after * q.V[1:] ** 2)), float(rewards)


@pytest.mark.parametrize("seed", range(4))
def test_telescoped_leading_term(seed: int) -> None:
    """The remark's display, called an upper bound, is the leading term plus v² exactly; its first
    sum goes away for π = μ."""
    world = random_mdp(seed, 3, 2, 4, reward_sd=0.4)
    q = theory.quantities(world)
    first, second = telescoped(world, q)
    assert first > 0.1
    assert q.leading == pytest.approx(first + second - q.value**2, rel=1e-10)
    same = on_policy(world)
    assert telescoped(same, theory.quantities(same))[0] == pytest.approx(0, abs=1e-12)


def test_growth_with_the_horizon() -> None:
    """Dependence on H, with a reward of 1 at each step: H³ for fixed ratios; H² for π = μ where an
    episode's fate is fixed at its start, and H where steps are independent; H² for ratios
    1 ± c/√H, the remark's condition O(1/H); less for ratios 1 ± c/H, as in the main text; with a
    reward at the end only, V_max is constant, and H."""
    ones = np.ones

    def at_the_end(H: int) -> TabularMDP:
        return tilted_world(np.eye(H)[-1])

    assert growth(lambda H: tilted_world(ones(H)), "leading") == pytest.approx(3, abs=0.02)
    assert growth(lambda H: tilted_world(ones(H), 0.0, fate=1.0), "leading") == pytest.approx(2)
    assert growth(lambda H: tilted_world(ones(H), 0.0, reward_sd=1.0), "leading") == pytest.approx(
        1
    )
    near = growth(lambda H: tilted_world(ones(H), 0.5 / math.sqrt(H)), "leading")
    assert near == pytest.approx(2, abs=0.02)
    nearer = growth(lambda H: tilted_world(ones(H), 0.5 / H), "leading")
    assert nearer == pytest.approx(1, abs=0.02)
    both = growth(lambda H: tilted_world(ones(H), 0.5 / H, fate=1.0), "leading")
    assert both == pytest.approx(2, abs=0.02)
    assert growth(at_the_end, "leading") == pytest.approx(1)


# --- the remark on the Cramér–Rao bound ----------------------------------------------------------


def late_rewards(H: int, **options: float) -> TabularMDP:
    """The remark's example: R_max/2 at each step of the second half, R_max = 1."""
    return tilted_world(np.where(np.arange(H) >= H // 2, 0.5, 0.0), **options)


@pytest.mark.parametrize("H", [4, 64, 256])
def test_cubic_example_in_closed_form(H: int) -> None:
    """Remark on Cramér–Rao: constant rewards in the second half. Q_t is H/4 in the first half and
    falls to 1/2 after it (the remark has (H-t)/2 for all t), so the display's H²/16 Var_μ[ρ] holds
    for the steps of the first half only; their sum is H³/32 Var_μ[ρ], still cubic. The bound of
    Cramér and Rao is 0: nothing is random but the actions."""
    q = theory.quantities(late_rewards(H))
    spread = 0.6**2  # Var_μ[ρ] with ρ = 1 ± 0.6
    half = H // 2
    tail = sum((k / 2) ** 2 for k in range(1, half + 1))
    assert q.leading == pytest.approx(spread * (half * (H / 4) ** 2 + tail), rel=1e-12)
    assert q.cramer_rao == pytest.approx(0, abs=1e-9)
    assert q.gap == pytest.approx(q.leading)
    parts = q.gap_parts[1:]
    assert np.all(parts[: half + 1] >= H**2 / 16 * spread - 1e-12)
    assert np.all(parts[half + 1 :] < H**2 / 16 * spread)
    assert q.leading >= H**3 / 32 * spread


def test_growth_of_both_in_the_cubic_example() -> None:
    """Leading ~ H³; Cramér–Rao ~ H with noisy rewards, ~ H² where an episode's fate is fixed."""
    noisy = {"reward_sd": 0.5}
    assert growth(lambda H: late_rewards(H, **noisy), "leading") == pytest.approx(3, abs=0.03)
    assert growth(lambda H: late_rewards(H, **noisy), "cramer_rao") == pytest.approx(1, abs=0.01)
    fated = {"reward_sd": 0.5, "fate": 0.5}
    assert growth(lambda H: late_rewards(H, **fated), "leading") == pytest.approx(3, abs=0.05)
    assert growth(lambda H: late_rewards(H, **fated), "cramer_rao") == pytest.approx(2, abs=0.05)


def test_the_simplex_has_no_cubic_part_in_the_cubic_example() -> None:
    """Beyond the paper: normalized, the one state has mass 1 at every step, and only the noise of
    each step's own mean ratio is left."""
    assert growth(late_rewards, "leading_simplex") == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    "world",
    [*(random_mdp(s, 3, 3, 2 + 2 * s, overlap=0.3, reward_sd=0.3) for s in range(6)),
     TimeVarying(64, 0).tabular(), late_rewards(64, fate=0.5)],
)  # fmt: skip
def test_cramer_rao_is_quadratic_at_most(world: TabularMDP) -> None:
    """Footnote in section 4: its sum is at most τ_a τ_s (H² R_max² + Hσ²), though each of its H
    terms alone may be as large as H²; and leading = Cramér–Rao + gap."""
    q = theory.quantities(world)
    H = q.horizon
    limit = q.tau_a * q.tau_s * (H**2 * q.reward_max**2 + H * q.noise**2)
    assert q.cramer_rao <= limit
    assert q.leading == pytest.approx(q.cramer_rao + q.gap, rel=1e-10)
    # the display without the start's variance is short of it
    assert q.leading - q.cramer_rao_parts[1:].sum() - q.gap == pytest.approx(
        q.cramer_rao_parts[0], abs=1e-9 * q.leading
    )


@pytest.mark.parametrize(("S", "A"), [(2, 2), (4, 3), (5, 5)])
def test_sample_complexity_with_few_actions(S: int, A: int) -> None:
    """Remark on finite actions: a behavior that is uniform over states and actions has
    τ_a τ_s ≤ SA, so H³SA/ε² episodes are enough: leading ≤ H³ SA R_max²."""
    rng = np.random.default_rng(S)
    H = 6
    target = np.eye(A)[rng.integers(0, A, (H, S))]  # the worst: it never mixes
    P = np.full((S, A, S), 1 / S)
    world = TabularMDP(np.full(S, 1 / S), P, rng.random((S, A, S)), target, np.full((S, A), 1 / A),
                       horizon=H)  # fmt: skip
    q = theory.quantities(world)
    assert q.tau_a * q.tau_s <= S * A
    assert q.leading <= H**3 * S * A * q.reward_max**2


# --- Example 1 ------------------------------------------------------------------------------------

RATIOS = np.array([0.4, 1.6])  # each with probability 1/2 under μ
E_LOG, V_LOG = float(np.log(RATIOS).mean()), float(np.log(RATIOS).var())


def constant_at_the_end(H: int) -> TabularMDP:
    return tilted_world(np.eye(H)[-1], tilt=0.3)


@pytest.mark.parametrize("H", [1, 5, 40])
def test_variance_of_the_product(H: int) -> None:
    """Example 1, exactly: Var[Π ρ_t] = (E_μ ρ²)^H - 1, which is IS's variance in the example's
    world, exponential in H; MIS's is H Var_μ[ρ], and that of one step on the simplex."""
    q = theory.quantities(constant_at_the_end(H))
    second = float(np.mean(RATIOS**2))
    assert second == pytest.approx(1.36)
    assert q.is_variance == pytest.approx(second**H - 1, rel=1e-10)
    assert q.leading == pytest.approx(H * (second - 1), rel=1e-12)
    assert q.leading_simplex == pytest.approx(second - 1, rel=1e-12)


def test_sum_of_log_ratios() -> None:
    """Example 1 set right: Σ log ρ has mean +H E_log, with E_log < 0 by Jensen, where the paper has
    -H E_log, and variance H V_log. It is asymptotically normal: the largest distance between the
    two distribution functions falls with H. So typical products vanish."""
    distance = []
    for H in (10, 40, 160, 640):
        k = np.arange(H + 1)  # how often the larger ratio comes up
        p = binom.pmf(k, H, 0.5)
        total = k * math.log(1.6) + (H - k) * math.log(0.4)
        assert p @ total == pytest.approx(H * E_LOG, rel=1e-9)
        assert p @ (total - H * E_LOG) ** 2 == pytest.approx(H * V_LOG, rel=1e-9)
        z = (total - H * E_LOG) / math.sqrt(H * V_LOG)
        # at the middle of each jump, where a lattice is compared fairly
        distance.append(float(np.abs(np.cumsum(p) - p / 2 - norm.cdf(z)).max()))
    assert E_LOG < 0
    assert distance[0] > distance[1] > distance[2] > distance[3]
    assert distance[-1] < 0.001
    assert p[total < 0].sum() > 0.999  # with the paper's sign it would be nearly 0


@pytest.mark.parametrize("H", [10, 50])
def test_lognormal_is_not_the_product(H: int) -> None:
    """The log-normal with parameters (H E_log, H V_log) has variance
    (exp(HV) - 1) exp(2HE + HV), not exp(HV) - 1; and neither is the product's. Its mean is
    exp(HE + HV/2), not 1: the central limit theorem is about typical products, while means and
    variances of products come from rare ones."""
    exact = float(np.mean(RATIOS**2)) ** H - 1
    mean = math.exp(H * E_LOG + H * V_LOG / 2)
    variance = math.expm1(H * V_LOG) * math.exp(2 * H * E_LOG + H * V_LOG)
    sample = np.exp(norm.ppf((np.arange(200_000) + 0.5) / 200_000) * math.sqrt(V_LOG) + E_LOG)
    assert sample.mean() == pytest.approx(math.exp(E_LOG + V_LOG / 2), rel=1e-4)
    single = math.expm1(V_LOG) * math.exp(2 * E_LOG + V_LOG)
    assert sample.var() == pytest.approx(single, rel=1e-2)
    assert mean > 1.01
    assert variance > 4 * exact
    assert math.expm1(H * V_LOG) > 4 * exact


def test_all_three_rates_agree_for_small_ratios() -> None:
    """For ratios near 1 the growth per step of the product's variance, log E_μ[ρ²], is V_log to
    first order, and so is the log-normal's, 2E_log + 2V_log: the example's message stands."""
    for e, close in ((0.3, 0.15), (0.1, 0.02), (0.03, 0.002)):
        ratios = np.array([1 - e, 1 + e])
        E, V = np.log(ratios).mean(), np.log(ratios).var()
        exact = math.log(np.mean(ratios**2))
        lognormal = 2 * E + 2 * V
        assert exact / V == pytest.approx(1, abs=close)
        assert lognormal / V == pytest.approx(1, abs=close)


# --- the paper's worlds --------------------------------------------------------------------------


def test_growth_in_the_papers_worlds() -> None:
    """Section 5: MIS's absolute error in the time-varying world grows as H^1.5, its relative error
    as H^0.5 (the appendix says H^1.5 for it); in ModelWin and ModelFail MIS on the simplex has an
    error of √H only, while IS's is exponential in all three."""

    def world(H: int) -> TabularMDP:
        return TimeVarying(H, 0).tabular()

    assert growth(world, "leading_simplex") == pytest.approx(3, abs=0.03)
    assert growth(world, "value") == pytest.approx(1, abs=0.01)
    assert growth(ModelWin, "leading_simplex", 100) == pytest.approx(1, abs=0.001)
    fail = growth(lambda H: ModelFail(H).checkpoints(), "leading_simplex", 100)
    assert fail == pytest.approx(1, abs=0.001)
    for make in (ModelWin, lambda H: ModelFail(H).checkpoints(), world):
        a, b, c = (theory.quantities(make(H)).is_variance for H in (60, 80, 100))
        assert b / a > 4
        assert c / b == pytest.approx(b / a, rel=0.5)
