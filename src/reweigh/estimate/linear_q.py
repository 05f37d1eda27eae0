"""Linear fitted Q evaluation: Q_t(x, a) = φ(x)·θ_t(a), backward in time.

    θ_t(a) = (G_a + λ_a I)⁻¹ b_a + γ (G¹_a + λ_a I)⁻¹ C_a θ_{t+1},      θ_H = 0
    v = Σψ(x_0)·θ_0/n

with the sums of `sums/feature_sums.py`: G¹ and C are of the rows whose next state is known, and the
same for all steps if these are pooled. λ_a = ridge · tr(G_a)/d; with ridge 0 the inverse is the
pseudo-inverse, so that one-hot features give the model of counts (`dm`).

The dual has the target's distribution in place of the value: ν_0 = Σψ(x_0)/n, ν_{t+1} = Σ_a C_aᵀ
(G¹_a + λ_a I)⁻¹ ν_t(a), and w_t(x, a) = ν_t(a)·(G_a + λ_a I)⁻¹ φ(x) are the weights of rows: v =
Σ_t γ^t Σ_i w_t(i) r_i, to the last digit. With both, an episode's influence is the derivative of v
by how often it counts, the ridge growing with the log:

    ψ_i = ψ(x_0)·θ_0 - v + n Σ_rows Σ_t γ^t [w_t (r - φ·β) + γ w¹_t (ψ(x')·θ_{t+1} - φ·η_t)]

β = (G + λ)⁻¹ b, η_t = (G¹ + λ)⁻¹ C θ_{t+1}, w¹ as w with G¹. It takes the features as given.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reweigh.errors import RefusedError
from reweigh.kernels import Bools, Floats, Ints
from reweigh.sums.feature_sums import FeatureRows, FeatureSums, Part

RIDGE = 1e-3
TOLERANCE = 1e-12  # of the largest eigenvalue, below which the pseudo-inverse has none
LARGEST = 1e6  # times the largest return, beyond which the recursion has diverged


@dataclass(frozen=True, eq=False)
class LinearQ:
    """A fit: θ (H+1, A, d), β (T, A, d), the inverses (T, A, d, d) of G + λ and G¹ + λ, and K = γ
    (G¹ + λ)⁻¹ C (T, A, d, A d)."""

    theta: Floats
    beta: Floats
    inverse: Floats
    K: Floats
    inverse1: Floats
    sums: FeatureSums
    discount: float

    @classmethod
    def of(cls, sums: FeatureSums, horizon: int, discount: float, ridge: float) -> LinearQ:
        """Of sums of one fold."""
        G, G1, C, b = sums.G[0], sums.G1[0], sums.C[0], sums.b[0]
        d = sums.width
        scale = np.trace(G, axis1=-2, axis2=-1)[..., None, None] / d
        scale1 = np.trace(G1, axis1=-2, axis2=-1)[..., None, None] / d
        inverse = _inverse(G, ridge * scale, ridge)
        inverse1 = _inverse(G1, ridge * scale1, ridge)
        beta = (inverse @ b[..., None])[..., 0]
        K = discount * (inverse1 @ C)
        theta = np.zeros((horizon + 1, *beta.shape[1:]))
        for t in range(horizon - 1, -1, -1):
            k = t if len(beta) > 1 else 0
            theta[t] = beta[k] + K[k] @ theta[t + 1].ravel()
        if not np.all(np.isfinite(theta)) or np.abs(theta).max() > 1e200:
            raise diverged()
        return cls(theta, beta, inverse, K, inverse1, sums, discount)

    @property
    def horizon(self) -> int:
        return len(self.theta) - 1

    @property
    def value(self) -> float:
        return float(self.sums.start[0] @ self.theta[0].ravel() / self.sums.n[0])

    def occupancy(self) -> Floats:
        """ν (H, A, d)."""
        A, d = self.beta.shape[1:]
        nu = np.zeros((self.horizon, A, d))
        nu[0] = (self.sums.start[0] / self.sums.n[0]).reshape(A, d)
        for t in range(self.horizon - 1):
            k = t if len(self.beta) > 1 else 0
            ahead = np.einsum("ade,ad->e", self.K[k], nu[t]) / self.discount
            nu[t + 1] = ahead.reshape(A, d)
        return nu

    def steps_of(self, part: Part) -> slice:
        """The steps whose Q a part's rows are used for: all if they are pooled."""
        return slice(0, self.horizon) if len(self.beta) == 1 else slice(part.at, part.at + 1)

    def q_of(self, part: Part, which: slice | None = None) -> Floats:
        """(m, steps) Q_t of the logged actions."""
        return by_action(part, self.theta[which or self.steps_of(part)])

    def v_ahead(self, part: Part, which: slice | None = None) -> Floats:
        """(m, steps) V_{t+1} of what follows; 0 at the end."""
        of = which or self.steps_of(part)
        after = self.theta[of.start + 1 : of.stop + 1]
        return np.asarray(part.ahead @ after.reshape(len(after), -1).T, np.float64)


def by_action(part: Part, coefficients: Floats) -> Floats:
    """(m, steps) φ·c_t(a) of each row's action, for coefficients (steps, A, d)."""
    if coefficients.shape[1] == 1:
        return np.asarray(part.phi @ coefficients[:, 0].T, np.float64)
    values = np.empty((len(part.rows), len(coefficients)))
    for a in range(coefficients.shape[1]):
        mine = part.block == a
        values[mine] = part.phi[mine] @ coefficients[:, a].T
    return values


def _inverse(G: Floats, shift: Floats, ridge: float) -> Floats:
    if ridge == 0:
        return np.asarray(np.linalg.pinv(G, rcond=TOLERANCE, hermitian=True))
    # an action that no row takes has no sums: it is worth 0
    shift = np.where(shift > 0, shift, 1.0)
    return np.asarray(np.linalg.inv(G + shift * np.eye(G.shape[-1])))


def diverged() -> RefusedError:
    text = "fitted Q evaluation diverged: its features cannot represent this value. Use fewer or "
    return RefusedError("diverged", f"{text}other features, more ridge, or mis(clusters=True)")


@dataclass(frozen=True, eq=False)
class Examined:
    """What a pass over the rows shows: ψ (n,), the effective number of episodes by step (H,), and
    v by step (H,)."""

    psi: Floats
    ess: Floats
    per_step: Floats


def examine(rows: FeatureRows, fit: LinearQ) -> Examined:
    log, n, H = rows.log, rows.log.n_episodes, fit.horizon
    powers, nu = fit.discount ** np.arange(H), fit.occupancy()
    at = np.arange(H) if len(fit.beta) > 1 else np.zeros(H, np.int64)
    weight = np.einsum("tade,tae->tad", fit.inverse[at], nu)
    weight1 = np.einsum("tade,tae->tad", fit.inverse1[at], nu)
    eta = fit.theta[:-1] - fit.beta[at]  # γ η_t
    psi, of_episode = np.zeros(n), np.zeros((n, H))
    for part in rows.parts():
        which, reward = fit.steps_of(part), log.steps.reward[part.rows]
        w = by_action(part, weight[which])
        of_reward = reward[:, None] - by_action(part, fit.beta[at[which]])
        ahead = fit.discount * fit.v_ahead(part) - by_action(part, eta[which])
        w1 = by_action(part, weight1[which]) * part.known[:, None]
        terms = (w * of_reward + w1 * ahead) @ powers[which]
        episode = log.steps.episode_index[part.rows]
        np.add.at(psi, episode, n * terms)
        _add_rows(of_episode, episode, which, w)
    start = rows.starts() @ fit.theta[0].ravel()
    psi += start - start.mean()
    psi -= psi.mean()  # the ridge is a share of the sums
    per_step = powers * np.einsum("tad,tad->t", nu, fit.beta[at])
    return Examined(psi, effective(of_episode), per_step)


def _add_rows(total: Floats, episode: Ints, which: slice, values: Floats) -> None:
    """total[episode, which] += values, of rows in the order of their episodes."""
    starts = np.flatnonzero(np.diff(episode, prepend=-1))
    total[episode[starts], which] += np.add.reduceat(values, starts, axis=0)


def effective(of_episode: Floats) -> Floats:
    """(H,) (ΣW)²/ΣW² of the episodes' weights."""
    second = (of_episode**2).sum(axis=0)
    return np.where(second > 0, of_episode.sum(axis=0) ** 2 / np.maximum(second, 1e-300), np.nan)


def others(folds: int, fold: int) -> Bools:
    """The folds that a fold's Q is fitted to."""
    return np.asarray(np.arange(folds) != fold)
