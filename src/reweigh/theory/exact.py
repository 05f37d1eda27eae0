"""The quantities of the paper's theory, computed exactly on a tabular world: marginals and values,
variances of estimators and where they come from, Theorem 4.1 and its corollary as numbers.

All variances are asymptotic per-episode variances: divide by n for the variance of an estimate.

An estimate moves by martingale differences under μ, one per step, so that its variance (times n)
is a sum over (t, s). For the difference to the behavior's own value the same holds:

    X_t = w_t(s_t) ρ_t (y_t + γ u'_{t+1}(s_{t+1}) - b_t(s_t, a_t)) - (y_t + γ V^μ_{t+1}(s_{t+1}))
    σ²  = Var[u_0(s_0) - V^μ_0(s_0)] + Σ_t γ^{2t} Σ_s d_t^μ(s) Var_μ[X_t | s_t = s]

where the parts with V^μ stand only in the difference. The value of the next state (u') and the
baseline (b) differ between the estimators:

    mis-plain   u' = V                b = 0       (the leading term of Theorem 4.1)
    mis         u' = V - <d^π, V>     b = 0       (normalizing centers V)
    mis-state   u' = V                b = V(s)
    dm          u' = V                b = Q(s,a)  (the Cramér–Rao bound)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError, SupportError, UsageError, check, check_whole
from reweigh.log.states import END
from reweigh.system import divided
from reweigh.trust.breakdown import Decomposition, decomposed
from reweigh.worlds.tabular import TabularMDP

Floats = npt.NDArray[np.float64]
Return = tuple[Floats, Floats]  # ratios (H,S,A) and mean rewards (H,S,A,S)
MARGINAL = ("mis", "mis-plain", "mis-state", "dm", "dm-renorm")
PRODUCTS = ("is", "wis")


@dataclass(frozen=True, eq=False)
class Quantities:
    """The exact quantities of one world. Arrays of H+1 parts: the start first, then every step.

    d_pi, d_mu              (H+1, S) state distributions of target and behavior
    V, Q                    (H+1, S), (H, S, A) values under the target
    tau_a, tau_s            largest π/μ, largest d^π/d^μ
    leading                 leading term of Theorem 4.1 (n times the MSE of plain MIS)
    leading_simplex         the same for MIS normalized to the simplex
    cramer_rao              Cramér–Rao bound (DM attains it), the start's variance included
    gap                     leading - cramer_rao: Var_μ[ρ Q]
    is_variance             exact variance of one episode's step-wise IS (may be infinite)
    wis_variance            asymptotic variance of step-wise WIS (may be infinite)
    """

    world: TabularMDP
    value: float
    behavior_value: float
    horizon: int
    discount: float
    d_pi: Floats
    d_mu: Floats
    V: Floats
    Q: Floats
    tau_a: float
    tau_s: float
    reward_max: float
    reward_min: float
    noise: float

    @cached_property
    def leading_parts(self) -> Floats:
        return spread(self, "mis-plain").parts

    @cached_property
    def leading_simplex_parts(self) -> Floats:
        return spread(self, "mis").parts

    @cached_property
    def cramer_rao_parts(self) -> Floats:
        return spread(self, "dm").parts

    @cached_property
    def gap_parts(self) -> Floats:
        X = _weights(self)[..., None] * self.Q[..., None]
        return np.append(0.0, _variance_by_state(self, X, 0.0).sum(axis=1))

    @property
    def leading(self) -> float:
        return float(self.leading_parts.sum())

    @property
    def leading_simplex(self) -> float:
        return float(self.leading_simplex_parts.sum())

    @property
    def cramer_rao(self) -> float:
        return float(self.cramer_rao_parts.sum())

    @property
    def gap(self) -> float:
        return float(self.gap_parts.sum())

    @property
    def is_variance(self) -> float:
        return spread(self, "is").total

    @property
    def wis_variance(self) -> float:
        return spread(self, "wis").total


def quantities(mdp: TabularMDP) -> Quantities:
    """Exact quantities of a world that is fully observed."""
    if type(mdp)._observe is not TabularMDP._observe:
        raise UsageError(
            f"{type(mdp).__name__} hides states; the theory covers only observed states"
        )
    T, r, H = mdp.transition, mdp.reward, mdp.horizon
    pi, mu = mdp.target_array, mdp.behavior_array
    d_pi, d_mu = mdp.state_marginals(pi), mdp.state_marginals(mu)
    # The behavior must visit every state and action of the target (assumptions A2 and A3).
    unsupported = (d_pi[:H] > 0)[:, :, None] & (pi > 0) & ~(mu > 0)
    if np.any(unsupported):
        t, s, a = (int(i[0]) for i in np.nonzero(unsupported))
        raise SupportError(
            "no-overlap",
            f"the target takes action {a} in state {s} at step {t}, but the behavior never "
            "does: no estimator is consistent here",
        )
    V = mdp.state_values(pi)
    alive = np.broadcast_to(T > 0, r.shape) & (mu[..., None] > 0) & (d_mu[:H, :, None, None] > 0)
    return Quantities(
        world=mdp,
        value=float(mdp.initial @ V[0]),
        behavior_value=float(mdp.behavior_value()),
        horizon=H,
        discount=mdp.discount,
        d_pi=d_pi,
        d_mu=d_mu,
        V=V,
        Q=np.sum(T * (r + mdp.discount * V[1:, None, None, :]), axis=3),
        tau_a=float(divided(pi, mu)[d_mu[:H] > 0].max()),
        tau_s=float(divided(d_pi, d_mu)[:H].max()),
        reward_max=float(r[alive].max()),
        reward_min=float(r[alive].min()),
        noise=float(mdp.reward_sd.max()),
    )


# Variances of estimators


@dataclass(frozen=True, eq=False)
class Spread:
    """The asymptotic variance of √n times an estimate.

    total     σ²
    start     part of the first state
    by_state  (H, S) parts of the (t, s); None where no state owns a part (running products)
    """

    total: float
    start: float = 0.0
    by_state: Floats | None = None

    @property
    def parts(self) -> Floats:
        """(H+1,): that of the first state, then of every step."""
        assert self.by_state is not None
        return np.append(self.start, self.by_state.sum(axis=1))


def spread(q: Quantities, estimator: str, *, difference: bool = False) -> Spread:
    """σ² of an estimator's value, or of its difference to the behavior's mean return."""
    if estimator in MARGINAL:
        return _marginal(q, estimator, difference)
    if estimator in PRODUCTS:
        return Spread(_products(q, estimator == "wis", difference))
    raise RefusedError(
        "no-exact-variance",
        f"the exact variance of {estimator} is not available; it is for "
        f"{', '.join((*MARGINAL, *PRODUCTS))}. Plan from a simulated log instead: "
        "plan(world.simulate(n, rng), world.target, …)",
    )


def _marginal(q: Quantities, estimator: str, difference: bool) -> Spread:
    mdp, gamma = q.world, q.discount
    minus = 1.0 if difference else 0.0
    V_mu = mdp.state_values(mdp.behavior_array) * minus
    arriving, base = q.V, np.zeros_like(q.Q)
    if estimator == "mis":
        arriving = q.V - np.sum(q.d_pi * q.V, axis=1, keepdims=True)
    elif estimator == "mis-state":
        base = np.broadcast_to(q.V[:-1, :, None], q.Q.shape)
    elif estimator != "mis-plain":
        base = q.Q
    w = _weights(q)
    X = w[..., None] * (mdp.reward + gamma * arriving[1:, None, None, :] - base[..., None])
    X = X - minus * mdp.reward - gamma * V_mu[1:, None, None, :]
    # the reward's own noise enters with its weight in X
    by_state = _variance_by_state(q, X, ((w - minus)[..., None] * mdp.reward_sd) ** 2)
    at_start = q.V[0] - V_mu[0]
    start = float(mdp.initial @ (at_start - mdp.initial @ at_start) ** 2)
    return Spread(start + float(by_state.sum()), start, by_state)


def _weights(q: Quantities) -> Floats:
    """w_t(s) ρ_t(s,a), (H,S,A)."""
    rho = divided(q.world.target_array, q.world.behavior_array)
    return divided(q.d_pi, q.d_mu)[:-1, :, None] * rho


def _variance_by_state(q: Quantities, X: Floats, noise: Floats | float) -> Floats:
    """γ^{2t} d_t^μ(s) Var_μ[X_t | s_t = s], (H,S), where X_t has noise of this variance."""
    mu, P = q.world.behavior_array, q.world.transition
    first = np.sum(mu * np.sum(P * X, axis=3), axis=2)
    second = np.sum(mu * np.sum(P * (X**2 + noise), axis=3), axis=2)
    power = q.discount ** (2 * np.arange(q.horizon))[:, None]
    by_state: Floats = power * q.d_mu[:-1] * np.maximum(second - first**2, 0.0)
    return by_state


def _products(q: Quantities, weighted: bool, difference: bool) -> float:
    """Var(X) of an episode's term, or with its return G: Var(X) - 2 Cov(X, G) + Var(G).

    To step-wise IS it adds Σ_t γ^t ρ_{0:t} y_t, to WIS the same with y_t - E_π[y_t].
    """
    mdp = q.world
    rho, r = divided(mdp.target_array, mdp.behavior_array), mdp.reward
    if weighted:
        joint = mdp.target_array[..., None] * mdp.transition
        mean = np.einsum("ts,tsax->t", q.d_pi[: mdp.horizon], joint * r)
        r = r - mean[:, None, None, None]
    total = covariance(mdp, (rho, r), (rho, r))
    if difference:
        plain = np.ones_like(mdp.behavior_array), mdp.reward
        total += covariance(mdp, plain, plain) - 2 * covariance(mdp, (rho, r), plain)
    return max(total, 0.0)


def covariance(mdp: TabularMDP, one: Return, other: Return) -> float:
    """Cov of two returns X_t = α_t (r_t + γ X_{t+1}), Y_t = β_t (r'_t + γ Y_{t+1}) of one episode:

    E[X_t Y_t|s] = Σ_a μ α β Σ_{s'} P [ r r' + sd² + γ r E[Y'|s'] + γ r' E[X'|s'] + γ² E[X'Y'|s'] ]

    Of IS with itself it is the curse of horizon in one number; beyond what a number can hold it
    is infinite.
    """
    gamma, mu, d = mdp.discount, mdp.behavior_array, mdp.initial
    X, Y, XY = np.zeros((3, mdp.n_states))
    with np.errstate(over="ignore", invalid="ignore"):
        for t in reversed(range(mdp.horizon)):
            P, a, b, x, y = mdp.transition[t], one[0][t], other[0][t], one[1][t], other[1][t]
            inner = x * y + mdp.reward_sd[t] ** 2 + gamma * (x * Y + y * X) + gamma**2 * XY
            XY = _weighted(mu[t] * a * b, _weighted(P, inner).sum(axis=2)).sum(axis=1)
            X = np.sum(mu[t] * a * np.sum(P * (x + gamma * X), axis=2), axis=1)
            Y = np.sum(mu[t] * b * np.sum(P * (y + gamma * Y), axis=2), axis=1)
        return float(_weighted(d, XY).sum()) - float(d @ X) * float(d @ Y)


def _weighted(weight: Floats, value: Floats) -> Floats:
    """Products in which an infinite value of no weight counts for nothing."""
    return np.where(weight > 0, weight * value, 0.0)


def decomposition(
    estimator: str, q: Quantities, exact: Spread, *, difference: bool
) -> Decomposition | None:
    """The exact variance by step and state; terminal states are END, which has none. None where no
    state owns a part."""
    if exact.by_state is None:
        return None
    step, state = (index.reshape(-1) for index in np.indices(exact.by_state.shape))
    d_pi, d_mu = (d[: q.horizon].reshape(-1) for d in (q.d_pi, q.d_mu))
    at = step, np.where(np.isin(state, q.world.terminal), END, state), d_pi
    variance = exact.by_state.reshape(-1)
    return decomposed(
        estimator, exact.start, variance, at, d_mu, str, q.horizon, difference=difference
    )


# Theorem 4.1 and its corollary


@dataclass(frozen=True)
class Condition:
    """One condition of the theorem: `n` must exceed `needed`."""

    name: str
    needed: float
    holds: bool


@dataclass(frozen=True)
class Bound:
    """A bound on the mean squared error of clipped plain MIS, and whether it may be used."""

    value: float
    n: int
    conditions: tuple[Condition, ...]

    @property
    def holds(self) -> bool:
        return all(condition.holds for condition in self.conditions)

    @property
    def failing(self) -> tuple[str, ...]:
        """The conditions that fail; empty where the bound holds."""
        return tuple(condition.name for condition in self.conditions if not condition.holds)


def theorem_bound(q: Quantities, n: int, *, v_max: float | None = None) -> Bound:
    """Theorem 4.1: E[(P v̂ - v)²] ≤ (leading/n) (1 + sqrt(16 log n/(n d_m)))
    + 19 τ_a² τ_s² S H² (σ² + R_max² + V_max²)/n².

    d_m is the smallest d_t^μ(s) where d_t^π(s) > 0, the logarithm is natural, and V_max is the
    largest value unless given. The paper's rewards are not negative (shift the world if not).
    """
    d_m = _check(q, n)
    states = q.d_pi.shape[1]
    v_max = float(q.V.max()) if v_max is None else v_max
    slack = math.sqrt(16 * math.log(n) / (n * d_m)) if n > 1 else math.inf
    rest = 19 * q.tau_a**2 * q.tau_s**2 * states * q.horizon**2
    rest *= q.noise**2 + q.reward_max**2 + v_max**2
    return Bound(q.leading / n * (1 + slack) + rest / n**2, n, _conditions(q, n, d_m))


def corollary_bound(q: Quantities, n: int) -> Bound:
    """Corollary 1, for V_max = H R_max: MSE ≤ (4/n) τ_a τ_s (H σ² + H³ R_max²)."""
    d_m = _check(q, n)
    H = q.horizon
    value = 4 / n * q.tau_a * q.tau_s * (H * q.noise**2 + H**3 * q.reward_max**2)
    return Bound(value, n, _conditions(q, n, d_m))


def clipped(values: npt.ArrayLike, low: float, high: float) -> npt.NDArray[np.float64]:
    """The clipped estimate of the theorem; for one estimate or many."""
    check(low < high, "low, high", "a range with low < high", (low, high))
    return np.clip(np.asarray(values, np.float64), low, high)


def _check(q: Quantities, n: int) -> float:
    check_whole("n", n, 1)
    if q.reward_min < 0:
        raise UsageError(
            "the theorem assumes rewards of at least 0; shift the rewards of the world (the "
            f"smallest is {q.reward_min:g}) and try again"
        )
    reached = q.d_pi[: q.horizon] > 0
    return float(q.d_mu[: q.horizon][reached].min())


def _conditions(q: Quantities, n: int, d_m: float) -> tuple[Condition, ...]:
    """n > 16 log n/d_m, and n > 4 t τ_a τ_s / min max{d^π, d^μ} for t = 2..H (the paper counts)."""
    reached = q.d_pi[: q.horizon] > 0
    larger = np.maximum(q.d_pi, q.d_mu)[: q.horizon]
    smallest = float(larger[reached].min())
    visits = 16 * math.log(n) / d_m
    spread = 4 * q.horizon * q.tau_a * q.tau_s / smallest if q.horizon >= 2 else 0.0
    return (
        Condition("n > 16 log n / min d^mu", visits, n > visits),
        Condition("n > 4 H tau_a tau_s / min max(d^pi, d^mu)", spread, n > spread),
    )
