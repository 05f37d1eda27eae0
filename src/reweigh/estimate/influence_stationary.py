"""Influence values of SSD-IS, whose weights rest on an eigenvector.

P̂(s'|s) = Σρ(s,s')/c(s) over the c(s) rows of steps 0..H-2, and P̂ d = λ d with Σ d = 1. The value is

    ratio     v = Σ_t γ^t Σ_s w(s) z_t(s)/n                       w(s) = d(s) n (H-1)/c(s)
    selfnorm  v = G A/D,  A = Σ_t γ^t Σ_s w(s) z_t(s),  D = Σ_t γ^t Σ_s w(s) ρ_t(s),  G = Σ_t γ^t
    plugin    v = Σ_t γ^t Σ_s d(s) z_t(s)/N_t(s)

with z_t(s), ρ_t(s) the sums of ρy and ρ at (t, s). With h(s) = ∂v/∂w(s) and k(s) = ∂v/∂d(s), which
is h(s) n (H-1)/c(s) but for plugin, a row at (t, s) moves v

    directly       γ^t w(s) z/n,  or  γ^t w(s) (G z - v ρ)/D,  or  γ^t d(s) (z - r̂_t(s))/N_t(s)
    through c(s)   - h(s) w(s)/c(s)               (t < H-1; not with plugin)
    through P̂      - d(s) (ρ x(s') - Σ P̂ x)/c(s)  (t < H-1)

where x solves the adjoint of the eigenvector's equations, the bordered system

    ⎡ (P̂ - λ)ᵀ  1 ⎤ ⎡ x ⎤   ⎡ k ⎤
    ⎣  - dᵀ     0 ⎦ ⎣ · ⎦ = ⎣ 0 ⎦

since (P̂ - λ) δd - d δλ = - δP̂ d and Σ δd = 0. What n does as a divisor cancels. Episodes that end
early put all stationary mass on END whatever their weights: the value is 0 and has no influence
to speak of, so that it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError
from reweigh.estimate.influence_moves import ranked, single_moves
from reweigh.estimate.recipe import Recipe, Stationary
from reweigh.estimate.stationary import DENSE_UP_TO, _eigenvector, solve_stationary
from reweigh.kernels.groups import tally
from reweigh.log.log import EpisodeLog
from reweigh.log.states import END
from reweigh.policy.base import Policy
from reweigh.sums.engines.arrays import ArraysEngine
from reweigh.sums.engines.base import Request
from reweigh.system.arithmetic import divided

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
SOLVED = 1e-9  # residual of the bordered system, relative to its right side


def stationary_values(
    log: EpisodeLog, target: Policy, recipe: Recipe, pi: Floats, rho: Floats
) -> Floats:
    """(n,) ψ of SSD-IS, not yet centred."""
    assert isinstance(recipe.weights, Stationary)
    request = Request(frozenset({"model"}), 1, recipe.max_ratio, named=False)
    solve_stationary(recipe, ArraysEngine().moments(log, target, request))  # refuses what it must
    chain = Chain.of(log, pi, rho)
    s, early = chain.s[chain.early], chain.early
    if recipe.weights.use == "plugin":
        found = _by_share(log, chain, rho)
    else:
        found = _by_weight(log, chain, rho, recipe.weights.use)
    x = chain.adjoint(found.k)
    through_p = divided(chain.d, chain.count)[s] * (
        rho[early] * x[chain.s_next] - (chain.P.T @ x[:-1])[s]
    )
    terms = np.where(chain.inside, found.direct, 0.0)
    terms[early] -= found.through_count[s] + through_p
    return log.n_episodes * tally(log.steps.episode_index, terms, log.n_episodes)


@dataclass(frozen=True, eq=False)
class Derivatives:
    """k (S+1,) ∂v/∂d(s); direct (N,) by the row itself; through_count (S+1,) h(s) w(s)/c(s)."""

    k: Floats
    direct: Floats
    through_count: Floats


def _by_share(log: EpisodeLog, chain: Chain, rho: Floats) -> Derivatives:
    """plugin: v = Σ_t γ^t Σ_s d(s) z_t(s)/N_t(s)."""
    steps, d = log.steps, chain.d
    z, power = rho * steps.reward, log.discount ** steps.step.astype(np.float64)
    at, _ = ranked([steps.step, chain.s])
    N = np.bincount(at).astype(np.float64)
    mean = tally(at, z) / N
    k = tally(chain.s, np.where(chain.inside, power * z / N[at], 0.0), len(d))
    return Derivatives(k, power * d[chain.s] * (z - mean[at]) / N[at], np.zeros(len(d)))


def _by_weight(log: EpisodeLog, chain: Chain, rho: Floats, use: str) -> Derivatives:
    """ratio and selfnorm: w(s) = d(s)/dbar(s), dbar(s) = c(s)/(n (H-1))."""
    s, t, d = chain.s, log.steps.step, chain.d
    z, power = rho * log.steps.reward, log.discount ** t.astype(np.float64)
    per_mass = divided(np.full(len(d), log.n_episodes * (log.horizon - 1.0)), chain.count)
    w = d * per_mass
    if use == "ratio":
        each = power * z / log.n_episodes
    else:  # γ^t (G z - v ρ)/D; a row of a state outside the chain has w = 0
        D = np.sum(power * w[s] * rho)
        G = np.sum(log.discount ** np.arange(log.horizon, dtype=np.float64))
        each = power * (G * z - G * np.sum(power * w[s] * z) / D * rho) / D
    h = tally(s, np.where(chain.inside, each, 0.0), len(d))
    return Derivatives(h * per_mass, w[s] * each, divided(h * w, chain.count))


@dataclass(frozen=True, eq=False)
class Chain:
    """The pooled operator and its eigenvector.

    P, lam    (S, S) sparse, P̂(s'|s) in column s; λ
    d, count  (S+1,) eigenvector and c(s); 0 in the last place, which is for states outside of the
              chain: those that only the last step shows
    s         (N,) state of each row                 s_next  (early rows,) state after them
    early     rows of the steps 0..H-2               inside  (N,) whether the state is of the chain
    """

    P: Any
    lam: float
    d: Floats
    count: Floats
    s: Ints
    early: slice
    s_next: Ints
    inside: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, log: EpisodeLog, pi: Floats, rho: Floats) -> Chain:
        from scipy.sparse import csc_matrix

        moves = single_moves(log, pi, rho, action=False)
        early = slice(0, int(log.steps.offsets[log.horizon - 1]))
        after = moves.s_next[early]
        if np.any(after == END):
            raise _ends_early()
        seen = np.zeros(len(log.states) + 1, bool)  # the last is the hidden state
        seen[moves.s[early]] = True
        size = int(seen.sum())
        place = np.where(seen, np.cumsum(seen) - 1, size)
        s, s_next = place[moves.s], place[after]
        count = tally(s[early], np.ones(len(after)), size + 1)
        stay = s_next < size
        src, dst, ratio = s[early][stay], s_next[stay], rho[early][stay]
        P = csc_matrix((ratio / count[src], (dst, src)), shape=(size, size))
        d = _eigenvector(src, dst, ratio, count[:-1])
        lam = float((P @ d).sum())  # as Σ d = 1
        return cls(P, lam, np.append(d, 0.0), count, s, early, s_next, s < size)

    def adjoint(self, k: Floats) -> Floats:
        """(S+1,) x of the bordered system, 0 outside; refused where it has no solution."""
        from scipy.sparse import bmat, csr_matrix, identity
        from scipy.sparse.linalg import gmres

        size = len(self.d) - 1
        B = bmat(
            [
                [(self.P - self.lam * identity(size)).T, np.ones((size, 1))],
                [csr_matrix(-self.d[None, :-1]), None],
            ],
            format="csr",
        )
        right = np.append(k[:-1], 0.0)
        scale = float(np.abs(right).max())
        if scale == 0:
            return np.zeros(size + 1)
        if size <= DENSE_UP_TO:
            try:
                x = np.linalg.solve(B.toarray(), right)
            except np.linalg.LinAlgError as error:
                raise _not_alone() from error
        else:
            x, _ = gmres(B, right, rtol=SOLVED / 10, restart=100, maxiter=20)
        if not float(np.abs(B @ x - right).max()) <= SOLVED * scale:
            raise _not_alone()
        return np.append(x[:size], 0.0)


def _ends_early() -> RefusedError:
    return RefusedError(
        "stationary",
        "episodes end early, so that all stationary mass is on END and the value is 0 whatever "
        "they earned: no episode has an influence on it. Use mis()",
    )


def _not_alone() -> RefusedError:
    return RefusedError(
        "stationary",
        "the stationary distribution is not the only one nearly so: how much an episode moves it "
        "cannot be told. Use the jackknife's error, or mis()",
    )
