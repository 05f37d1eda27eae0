"""SSD-IS: the stationary distribution of the pooled operator replaces d_t at every step.

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

from reweigh.errors import RefusedError, StationaryWarning
from reweigh.estimate.estimator import JACKKNIFE_BLOCKS, Recipe, Solution, Weights
from reweigh.estimate.operators import cells_of
from reweigh.estimate.refusals import no_support, overflow
from reweigh.kernels import Bools, Floats, Ints, group_by, tally
from reweigh.log.states import END, UNKNOWN
from reweigh.sums.gather import CellGradient
from reweigh.sums.keyed import TransitionMoments
from reweigh.sums.moments import Moments
from reweigh.system import divided

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
    further_traits = frozenset({"stationary"})

    @property
    def pools_steps(self) -> bool:
        return True

    def description(self, recipe: Recipe) -> str:
        return f"importance sampling with stationary distributions, read as “{self.use}”"

    def solve(self, recipe: Recipe, sums: Moments, *, errors: bool = True) -> Solution:
        return _solve(sums, self.use)

    def gradient(self, recipe: Recipe, sums: Moments) -> CellGradient:
        return _gradient(sums, self.use)


@dataclass(frozen=True, eq=False)
class Chain:
    """The chain of the S states of steps 0..H-2; one that only the last step shows is left out.

    cells      of rows, without the action
    early      (E,) whether a cell's transition belongs to the chain
    s, s_next  (E,) its states, S being one outside of the chain
    count      (S+1,) rows of the chain's transitions
    d          (S+1,) the stationary distribution; 0 where all of it is on END, and outside
    ended      (H,) episodes that have ended by step t; END goes to END with ratio 1
    """

    cells: TransitionMoments
    early: Bools
    s: Ints
    s_next: Ints
    count: Floats
    d: Floats
    ended: Floats
    notes: tuple[Warning, ...] = ()

    @property
    def transitions(self) -> Any:
        """(S, S) P̂, sparse."""
        from scipy.sparse import csc_matrix

        size = len(self.count) - 1
        stay = self.early & (self.s_next < size)
        src, dst = self.s[stay], self.s_next[stay]
        share = self.cells.rho[stay] / self.count[src]
        return csc_matrix((share, (dst, src)), shape=(size, size))

    @classmethod
    def of(cls, sums: Moments, use: str) -> Chain:
        horizon = sums.about.horizon
        if horizon < 2:
            raise RefusedError("horizon", "a stationary distribution needs a horizon of at least 2")
        if sums.truncated:
            raise RefusedError(
                "truncated",
                f"{sums.truncated:,} episodes were cut off, and this estimator needs "
                "complete episodes; use mis(), or leave these out (truncated='drop')",
            )
        cells = cells_of(sums, "model")[0].forget("a")
        to_end = cells.s_next == END
        ended = np.cumsum(tally(cells.t_next[to_end], cells.n[to_end], horizon + 1))[:horizon]
        early = (cells.t < horizon - 1) & (cells.s_next != UNKNOWN)
        if not cells.rho[early].sum() + ended[:-1].sum() > 0:
            raise no_support(0)
        if not np.isfinite(cells.rho[early]).all():
            raise overflow()
        states = np.unique(cells.s[early])
        s, s_next = (
            np.where(np.isin(codes, states), np.searchsorted(states, codes), len(states))
            for codes in (cells.s, cells.s_next)
        )
        count = tally(s[early], cells.n[early], len(states) + 1)
        chain = cls(cells, early, s, s_next, count, np.zeros(len(count)), ended)
        dropped = len(np.unique(cells.s[s == len(states)]))
        last = f"{dropped} states occur only in the last step and are left out"
        notes = [last] if dropped else []
        if ended[:-1].sum() > 0 or np.any(to_end[early]):
            # an eigenvalue of exactly 1, whose vector is END alone
            text = (
                "episodes end early, so all stationary mass is on END and the stationary "
                "distribution does not describe this log. Use mis()"
            )
            if use == "selfnorm":  # no logged row has any of the mass: 0/0
                raise RefusedError("stationary", text)
            notes.insert(0, text)
        else:
            chain = replace(chain, d=np.append(_eigenvector(chain.transitions), 0.0))
            if np.any(chain.d < -1e-8):
                notes.insert(0, "too little data: the stationary vector has negative entries")
        return replace(chain, notes=tuple(map(StationaryWarning, notes)))


def _solve(sums: Moments, use: str) -> Solution:
    """The value from d_∞; its error comes from the block jackknife (see evaluate)."""
    chain, horizon, n = Chain.of(sums, use), sums.about.horizon, sums.n_episodes
    cells, s, ended = chain.cells, chain.s, chain.ended
    # dbar(s): average share of s over steps 0..H-2.  w(s) = d_inf(s)/dbar(s)
    moves, stays = n * (horizon - 1), float(ended[:-1].sum())
    w_end = moves / stays if stays > 0 else 0.0
    weight = divided(chain.d * moves, chain.count)[s]
    powers = sums.about.discount ** np.arange(horizon)
    total = tally(cells.t, weight * cells.rho, horizon) + w_end * ended
    square = tally(cells.t, weight**2 * cells.rho2, horizon) + w_end**2 * ended
    if use == "plugin":
        at = group_by([cells.t, cells.s])
        share = chain.d[s] / at.sum(cells.n)[at.index()]
        earned = tally(cells.t, share * cells.z, horizon)
        ones = tally(cells.t, share * cells.rho, horizon) + (ended > 0)
    else:
        # of weights before normalizing
        earned, ones = tally(cells.t, weight * cells.z, horizon), total / n
        # "selfnorm": v = (Σ_t γ^t) Σ γ^t w ρ r / Σ γ^t w ρ, one divisor for all rows (Liu et al.
        # 2018); else v = Σ γ^t w ρ r / n
        mass = float(powers @ total) / float(powers.sum()) if use == "selfnorm" else float(n)
        if not abs(mass) > 0:
            raise RefusedError(
                "stationary",
                "the weights of all rows sum to 0: no logged row has stationary mass. Use mis()",
            )
        earned = earned / mass
    per_step = powers * earned
    value = float(per_step.sum())
    nothing = chain.notes and not abs(value) > 0
    return Solution(
        value=value,
        standard_error=None,
        error_method="all stationary mass is on END" if nothing else "jackknife",
        per_step=per_step,
        ess=np.where(square > 0, total**2 / np.where(square > 0, square, 1.0), np.nan),
        unseen_mass=None,
        placebo=float((powers * ones).sum()),
        warnings=chain.notes,
    )


def _eigenvector(matrix: Any) -> Floats:
    """The right eigenvector of P̂(s'|s) = Σρ(s,s')/N(s) for the eigenvalue closest to 1, sum 1."""
    from scipy.sparse.linalg import ArpackNoConvergence, eigs

    size = matrix.shape[0]
    if size <= DENSE_UP_TO:
        eigenvalues, vectors = np.linalg.eig(matrix.toarray())
    else:
        # From a fixed start, so that the same sums give the same result; of the eigenvalues with
        # the largest real parts, since factorising for the ones next to 1 would fill the matrix.
        try:
            eigenvalues, vectors = eigs(matrix, k=6, which="LR", v0=np.ones(size))
        except ArpackNoConvergence as error:
            raise RefusedError(
                "stationary",
                ("the stationary distribution could not be computed: the states hardly mix"),
            ) from error
    distance = np.abs(eigenvalues - 1)
    best = int(np.argmin(distance))
    if abs(eigenvalues[best].imag) > 1e-9:  # its eigenvector is not unique
        raise RefusedError(
            "stationary",
            "too little data for a stationary distribution: the eigenvalue next to 1 is "
            f"complex ({eigenvalues[best]:.3g}). Use mis()",
        )
    if abs(eigenvalues[best]) < 1e-9:
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
            f"{eigenvalues[best].real:.3g}"
        )
        raise RefusedError(
            "stationary", f"{why}, so the stationary distribution is not unique. Use mis()"
        )
    vector = np.real(vectors[:, best])
    total = float(vector.sum())
    if abs(total) < 1e-12 * np.abs(vector).sum():
        raise RefusedError(
            "stationary", "there is no stationary distribution: the eigenvector next to 1 sums to 0"
        )
    return np.asarray(vector / total, np.float64)


def _gradient(sums: Moments, use: str) -> CellGradient:
    """By the cells of rows, without the action."""
    _solve(sums, use)  # raises the refusals
    chain, horizon, n = Chain.of(sums, use), sums.about.horizon, sums.n_episodes
    cells, early, s, s_next, count, d = (
        chain.cells, chain.early, chain.s, chain.s_next, chain.count, chain.d,
    )  # fmt: skip
    if np.any(cells.s_next[early] == END):
        raise RefusedError(
            "stationary",
            "episodes end early, so all stationary mass is on END and the value is 0 "
            "whatever the rewards: no episode has an influence on it. Use mis()",
        )
    size, P = len(count) - 1, chain.transitions
    lam = float((P @ d[:-1]).sum())  # as Σ d = 1

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
        "the stationary distribution is nearly not unique, so the influence of an episode "
        "cannot be computed. Use the jackknife's error, or mis()",
    )
