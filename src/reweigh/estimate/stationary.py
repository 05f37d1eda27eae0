"""SSD-IS: the stationary distribution of the pooled operator stands in for d_t at every step.

Its gradient rests on an eigenvector.
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

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError, StationaryWarning
from reweigh.estimate.estimator import (
    JACKKNIFE_BLOCKS,
    LogAndTarget,
    Recipe,
    Solution,
    Weights,
    no_support,
    overflow,
)
from reweigh.estimate.operators import cells_of
from reweigh.kernels.groups import group_by, tally
from reweigh.log.states import END, UNKNOWN
from reweigh.sums.gather import CellGradient
from reweigh.sums.moments import Moments
from reweigh.sums.transitions import TransitionMoments
from reweigh.system.numbers import divided

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
DENSE_UP_TO = 400  # states; beyond it a sparse solver
SOLVED = 1e-9  # residual of the bordered system, relative to its right side


@dataclass(frozen=True)
class Stationary(Weights):
    """d_∞^π(s)/d̄^μ(s), from the eigenvector of the pooled operator (SSD-IS)."""

    use: Literal["ratio", "plugin", "selfnorm"] = "ratio"
    kinds = frozenset({"model"})
    formula = "the stationary distribution d^π of the pooled model against that of the log, d^μ"
    whole_episodes = True
    blocks = JACKKNIFE_BLOCKS
    only_jackknife = True
    solves_replicates = False
    own_traits = frozenset({"stationary"})

    @property
    def pools_steps(self) -> bool:
        return True

    def description(self, recipe: Recipe) -> str:
        return f"importance sampling with stationary distributions, read as “{self.use}”"

    def solve(self, recipe: Recipe, sums: Moments, *, errors: bool = True) -> Solution:
        return _solve(sums, self.use)

    def gradient(self, recipe: Recipe, sums: Moments) -> CellGradient:
        return _gradient(sums, self.use)

    def with_error(
        self, recipe: Recipe, solution: Solution, sums: Moments, rows: LogAndTarget | None
    ) -> Solution:
        if solution.warnings and not abs(solution.value) > 0:
            return replace(solution, error_method="all stationary mass is on END")
        from reweigh.estimate.influence import with_estimated_error

        return with_estimated_error(recipe, solution, sums, None)


@dataclass(frozen=True, eq=False)
class Chain:
    """The chain of the states of steps 0..H-2; one that the log shows only as the last is left out.

    states  (S,) their codes
    count   (S,) rows, END's being `stays`
    d_inf   (S,) the stationary distribution; 0 where all of it is on END
    ended   (H,) episodes that have ended by step t
    """

    states: Ints
    count: Floats
    d_inf: Floats
    ended: Floats
    notes: tuple[Warning, ...]

    @property
    def stays(self) -> float:
        """LogAndTarget of END, which goes to END with ratio 1."""
        return float(self.ended[:-1].sum())


def _solve(moments: Moments, use: str) -> Solution:
    """The value from d_∞; its error comes from the block jackknife (see evaluate)."""
    horizon, gamma = moments.about.horizon, moments.about.discount
    if horizon < 2:
        raise RefusedError("horizon", "a stationary distribution needs a horizon of 2 or more")
    if moments.truncated:
        raise RefusedError(
            "truncated",
            f"{moments.truncated:,} episodes were cut off, and this estimator averages over whole "
            "ones; use mis(), or leave the cut ones out (truncated='drop')",
        )
    cells, n = cells_of(moments, "model")[0].forget("a"), moments.n_episodes
    chain = _chain(cells, horizon, use)
    # dbar(s): average share of s over steps 0..H-2.  w(s) = d_inf(s)/dbar(s)
    moves = n * (horizon - 1)
    w_end = moves / chain.stays if chain.stays > 0 else 0.0
    at = group_by([cells.t, cells.s])
    t, s = at.keys
    place = np.minimum(np.searchsorted(chain.states, s), len(chain.states) - 1)
    in_chain = chain.states[place] == s
    notes = list(chain.notes)
    dropped = len(np.unique(s[~in_chain]))
    if dropped:
        notes.append(
            StationaryWarning(f"{dropped} states are seen only in the last step and left out")
        )
    weight = np.where(in_chain, (chain.d_inf * moves / chain.count)[place], 0.0)
    share = np.where(in_chain, chain.d_inf[place], 0.0)
    z, rho, rho2, visits = (at.sum(v) for v in (cells.z, cells.rho, cells.rho2, cells.n))
    powers = gamma ** np.arange(horizon)
    total = tally(t, weight * rho, horizon) + w_end * chain.ended
    square = tally(t, weight**2 * rho2, horizon) + w_end**2 * chain.ended
    if use == "plugin":
        earned = tally(t, share * z / visits, horizon)
        ones = tally(t, share * rho / visits, horizon) + (chain.ended > 0)
    else:
        earned, ones = tally(t, weight * z, horizon), total / n  # of weights before normalising
        # "selfnorm": v = (Σ_t γ^t) Σ γ^t w ρ r / Σ γ^t w ρ, one divisor for all rows (Liu et al.
        # 2018); else v = Σ γ^t w ρ r / n
        mass = float(powers @ total) / float(powers.sum()) if use == "selfnorm" else float(n)
        if not abs(mass) > 0:
            raise RefusedError(
                "stationary",
                "the weights of all rows add up to 0: no logged row has stationary mass to "
                "divide by. Use mis()",
            )
        earned = earned / mass
    per_step = powers * earned
    return Solution(
        value=float(per_step.sum()),
        standard_error=None,
        error_method="jackknife",
        per_step=per_step,
        ess=np.where(square > 0, total**2 / np.where(square > 0, square, 1.0), np.nan),
        unseen_mass=None,
        placebo=float((powers * ones).sum()),
        warnings=tuple(notes),
    )


def _chain(cells: TransitionMoments, horizon: int, use: str) -> Chain:
    to_end = cells.s_next == END
    ended = np.cumsum(tally(cells.t_next[to_end], cells.n[to_end], horizon + 1))[:horizon]
    early = (cells.t < horizon - 1) & (cells.s_next != UNKNOWN)
    stays = float(ended[: horizon - 1].sum())
    if not cells.rho[early].sum() + stays > 0:
        raise no_support(0)
    if not np.isfinite(cells.rho[early]).all():
        raise overflow()
    states = np.unique(cells.s[early])
    src = np.searchsorted(states, cells.s[early])
    count = tally(src, cells.n[early], len(states))
    if stays > 0 or np.any(to_end[early]):  # an eigenvalue of exactly 1, whose vector is END alone
        text = (
            "episodes end early, so all of the stationary mass is on END: the stationary "
            "distribution says nothing about this log. Use mis()"
        )
        if use == "selfnorm":  # no logged row has any of the mass: 0/0
            raise RefusedError("stationary", text)
        note = StationaryWarning(text)
        return Chain(states, count, np.zeros(len(states)), ended, (note,))
    stay = np.isin(cells.s_next[early], states)
    dst = np.searchsorted(states, cells.s_next[early][stay])
    d_inf = _eigenvector(src[stay], dst, cells.rho[early][stay], count)
    if not np.any(d_inf < -1e-8):
        return Chain(states, count, d_inf, ended, ())
    note = StationaryWarning("the stationary vector has negative entries: too little data")
    return Chain(states, count, d_inf, ended, (note,))


def _eigenvector(src: Ints, dst: Ints, rho: Floats, count: Floats) -> Floats:
    """The right eigenvector of P̂(s'|s) = Σρ(s,s')/N(s) for the eigenvalue closest to 1, sum 1."""
    from scipy.sparse import csc_matrix
    from scipy.sparse.linalg import ArpackNoConvergence, eigs

    size = len(count)
    matrix = csc_matrix((rho / count[src], (dst, src)), shape=(size, size))
    if size <= DENSE_UP_TO:
        found, vectors = np.linalg.eig(matrix.toarray())
    else:
        # From a fixed start, so that the same sums give the same answer; of the eigenvalues with
        # the largest real parts, since factorising for the ones next to 1 would fill the matrix.
        try:
            found, vectors = eigs(matrix, k=6, which="LR", v0=np.ones(size))
        except ArpackNoConvergence as error:
            raise RefusedError(
                "stationary", "the stationary distribution was not found: the states hardly mix"
            ) from error
    distance = np.abs(found - 1)
    best = int(np.argmin(distance))
    if abs(found[best].imag) > 1e-9:  # its vector has no direction of its own
        raise RefusedError(
            "stationary",
            f"the eigenvalue next to 1 is complex ({found[best]:.3g}): too little data for a "
            "stationary distribution. Use mis()",
        )
    if abs(found[best]) < 1e-9:
        raise RefusedError(
            "stationary",
            "the states of the first steps never return, so there is no stationary distribution. "
            "Use mis()",
        )
    if np.sum(distance < distance[best] + 1e-9) > 1:
        why = (
            "the states fall into several closed classes"
            if distance[best] < 1e-9
            else "several eigenvalues of the transitions are equally close to 1, the nearest being "
            f"{found[best].real:.3g}"
        )
        raise RefusedError(
            "stationary", f"{why}, so there is no one stationary distribution. Use mis()"
        )
    vector = np.real(vectors[:, best])
    total = float(vector.sum())
    if abs(total) < 1e-12 * np.abs(vector).sum():
        raise RefusedError(
            "stationary", "the eigenvector next to 1 sums to 0: no stationary distribution"
        )
    return np.asarray(vector / total, np.float64)


def _gradient(sums: Moments, use: str) -> CellGradient:
    """By the cells of rows, without the action."""
    from scipy.sparse import csc_matrix

    _solve(sums, use)  # refuses what it must
    cells, horizon, n = cells_of(sums, "model")[0].forget("a"), sums.about.horizon, sums.n_episodes
    early = cells.t < horizon - 1
    if np.any(cells.s_next[early] == END):
        raise RefusedError(
            "stationary",
            "episodes end early, so that all stationary mass is on END and the value is 0 whatever "
            "they earned: no episode has an influence on it. Use mis()",
        )
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
    if use == "plugin":
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
        if use == "selfnorm":  # γ^t (G z - v ρ)/D
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


def _not_alone() -> RefusedError:
    return RefusedError(
        "stationary",
        "the stationary distribution is not the only one nearly so: how much an episode moves it "
        "cannot be told. Use the jackknife's error, or mis()",
    )
