"""n ∂v/∂(sum) of SSD-IS, whose weights rest on an eigenvector.

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
early put all stationary mass on END whatever their weights: the value is 0 and has no influence, so
that it is refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError
from reweigh.estimate.recipe import Recipe, Stationary
from reweigh.estimate.solution import model_cells
from reweigh.estimate.stationary import DENSE_UP_TO, _eigenvector, solve_stationary
from reweigh.kernels.groups import group_by, tally
from reweigh.log.states import END
from reweigh.sums.gather import CellGradient
from reweigh.sums.moments import Moments
from reweigh.system.numbers import divided

Floats = npt.NDArray[np.float64]
SOLVED = 1e-9  # residual of the bordered system, relative to its right side


def stationary_gradient(recipe: Recipe, sums: Moments) -> CellGradient:
    """By the cells of rows, without the action."""
    from scipy.sparse import csc_matrix

    assert isinstance(recipe.weights, Stationary)
    solve_stationary(recipe, sums)  # refuses what it must
    cells, horizon, n = model_cells(sums)[0].forget("a"), sums.about.horizon, sums.n_episodes
    early = cells.t < horizon - 1
    if np.any(cells.s_next[early] == END):
        raise _ends_early()
    # The last place is for states outside of the chain: those that only the last step shows.
    chain = np.unique(cells.s[early])
    size = len(chain)
    s, s_next = (
        np.where(np.isin(codes, chain), np.searchsorted(chain, codes), size)
        for codes in (cells.s, cells.s_next)
    )
    count = tally(s[early], cells.n[early], size + 1)
    stay = early & (s_next < size)
    src, dst, rho = s[stay], s_next[stay], cells.rho[stay]
    P = csc_matrix((rho / count[src], (dst, src)), shape=(size, size))
    d = _eigenvector(src, dst, rho, count[:-1])
    lam = float((P @ d).sum())  # as Σ d = 1
    d = np.append(d, 0.0)

    power = sums.about.discount ** cells.t.astype(np.float64)
    inside = s < size
    by_rho = constant = np.zeros(len(cells))
    if recipe.weights.use == "plugin":
        at = group_by([cells.t, cells.s])
        N, z = at.sum(cells.n)[at.index()], at.sum(cells.z)[at.index()]
        by_z = power * d[s] / N
        constant = -by_z * z / N
        k = tally(s, np.where(inside, power * cells.z / N, 0.0), size + 1)
        through_count = np.zeros(size + 1)
    else:
        per_mass = divided(np.full(size + 1, n * (horizon - 1.0)), count)
        w = d * per_mass
        each_z, each_rho = power / n, by_rho
        if recipe.weights.use == "selfnorm":  # γ^t (G z - v ρ)/D
            D = np.sum(power * w[s] * cells.rho)
            G = np.sum(sums.about.discount ** np.arange(horizon, dtype=np.float64))
            each_z = power * G / D
            each_rho = -power * G * np.sum(power * w[s] * cells.z) / D / D
        each = each_z * cells.z + each_rho * cells.rho
        h = tally(s, np.where(inside, each, 0.0), size + 1)
        by_z, by_rho = w[s] * each_z, w[s] * each_rho
        k, through_count = h * per_mass, divided(h * w, count)
    x = _adjoint(P, lam, d, k)
    per_row = divided(d, count)[s]
    constant = constant + np.where(
        early, per_row * np.append(P.T @ x[:-1], 0.0)[s] - through_count[s], 0.0
    )
    return CellGradient(
        "rows",
        cells,
        one=n * constant,
        rho=n * (by_rho - np.where(early, per_row * x[np.where(early, s_next, size)], 0.0)),
        z=n * by_z,
        y=np.zeros(len(cells)),
        start=np.zeros(len(cells)),
    )


def _adjoint(P: Any, lam: float, d: Floats, k: Floats) -> Floats:
    """(S+1,) x of the bordered system, 0 outside; refused where it has no solution."""
    from scipy.sparse import bmat, csr_matrix, identity
    from scipy.sparse.linalg import gmres

    size = len(d) - 1
    B = bmat(
        [
            [(P - lam * identity(size)).T, np.ones((size, 1))],
            [csr_matrix(-d[None, :-1]), None],
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
