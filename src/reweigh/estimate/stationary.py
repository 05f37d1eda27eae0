"""SSD-IS: the stationary distribution of the pooled operator stands in for d_t at every step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError, StationaryWarning
from reweigh.estimate.recipe import Recipe, Stationary
from reweigh.estimate.recursion import no_support, overflow
from reweigh.estimate.solution import Solution, model_cells
from reweigh.kernels.groups import group_by, tally
from reweigh.log.states import END, UNKNOWN
from reweigh.sums.moments import Moments
from reweigh.sums.transitions import TransitionMoments

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
DENSE_UP_TO = 400  # states; beyond it a sparse solver


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
        """Rows of END, which goes to END with ratio 1."""
        return float(self.ended[:-1].sum())


def solve_stationary(recipe: Recipe, moments: Moments) -> Solution:
    """The value from d_∞; its error comes from the block jackknife (see evaluate)."""
    assert isinstance(recipe.weights, Stationary)
    horizon, gamma = moments.about.horizon, moments.about.discount
    if horizon < 2:
        raise RefusedError("horizon", "a stationary distribution needs a horizon of 2 or more")
    if moments.truncated:
        raise RefusedError(
            "truncated",
            f"{moments.truncated:,} episodes were cut off, and this estimator averages over whole "
            "ones; use mis(), or leave the cut ones out (truncated='drop')",
        )
    cells, n, use = model_cells(moments)[0].forget("a"), moments.n_episodes, recipe.weights.use
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
