"""SSD-IS: the stationary distribution of the pooled operator stands in for d_t at every step."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError, StationaryWarning
from reweigh.estimators.recipe import Recipe, Stationary
from reweigh.estimators.recursion import no_support, overflow
from reweigh.estimators.weights import Solution, model_cells
from reweigh.logs.states import END, UNKNOWN
from reweigh.sums.bundle import Moments
from reweigh.sums.groups import group_by, tally

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
DENSE_UP_TO = 400  # states; beyond it a sparse solver


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
    cells, _ = model_cells(moments)
    cells = cells.forget("a")
    n = moments.n_episodes
    to_end = cells.s_next == END
    ended = np.zeros(horizon + 1)
    np.add.at(ended, cells.t_next[to_end], cells.n[to_end])
    ended = np.cumsum(ended)[:horizon]  # (H,) episodes that have ended by step t

    early = (cells.t < horizon - 1) & (cells.s_next != UNKNOWN)
    seen = np.unique(np.concatenate([cells.s[early], cells.s_next[early], [END]]))
    src, dst = np.searchsorted(seen, cells.s[early]), np.searchsorted(seen, cells.s_next[early])
    end = int(np.searchsorted(seen, END))
    count = tally(src, cells.n[early], len(seen))
    stays = float(ended[: horizon - 1].sum())  # END → END with ratio 1
    absorbs = stays > 0 or bool(np.any(to_end[early]))
    count[end] = stays
    if not cells.rho[early].sum() + stays > 0:
        raise no_support(0)
    if not np.isfinite(cells.rho[early]).all():
        raise overflow()
    d_inf = _eigenvector(src, dst, cells.rho[early], count, end if absorbs else None)
    notes: list[Warning] = []
    end_share = float(d_inf[end])
    use = recipe.weights.use
    if end_share > 1 - 1e-6:
        text = (
            f"episodes end early, so {end_share:.0%} of the stationary mass is on END: the "
            "stationary distribution says nothing about this log. Use mis()"
        )
        if use == "selfnorm":  # 0/0 at every step before the first end
            raise RefusedError("stationary", text)
        notes.append(StationaryWarning(text))
    if np.any(d_inf < -1e-8):
        notes.append(
            StationaryWarning("the stationary vector has negative entries: too little data")
        )
    # dbar(s): average share of s over steps 0..H-2.  w(s) = d_inf(s)/dbar(s)
    dbar = count / (n * (horizon - 1))
    w = np.where(dbar > 0, d_inf / np.where(dbar > 0, dbar, 1.0), 0.0)

    at = group_by([cells.t, cells.s])
    t, s = at.keys
    place = np.minimum(np.searchsorted(seen, s), len(seen) - 1)
    in_chain = (seen[place] == s) & (count[place] > 0)
    dropped = len(np.unique(s[~in_chain]))
    if dropped:
        notes.append(
            StationaryWarning(f"{dropped} states are seen only in the last step and left out")
        )
    weight = np.where(in_chain, w[place], 0.0)
    share = np.where(in_chain, d_inf[place], 0.0)
    z, rho, rho2, visits = (at.sum(v) for v in (cells.z, cells.rho, cells.rho2, cells.n))
    powers = gamma ** np.arange(horizon)
    end_weight = w[end] * ended
    total = tally(t, weight * rho, horizon) + end_weight
    square = tally(t, weight**2 * rho2, horizon) + w[end] ** 2 * ended
    if use == "plugin":
        earned = tally(t, share * z / visits, horizon)
        ones = tally(t, share * rho / visits, horizon) + d_inf[end] * (ended > 0)
    else:
        earned, ones = tally(t, weight * z, horizon), total
        if use == "selfnorm":
            empty = np.flatnonzero(~(np.abs(total) > 0))
            if len(empty):
                raise RefusedError(
                    "stationary",
                    f"at step {empty[0]} no logged state has stationary mass to divide by. "
                    "Use mis()",
                )
            earned = earned / total
        else:
            earned = earned / n
        ones = ones / n  # of the weights before normalising
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


def _eigenvector(src: Ints, dst: Ints, rho: Floats, count: Floats, end: int | None) -> Floats:
    """The right eigenvector of P̂(s'|s) = Σρ(s,s')/N(s) for the eigenvalue closest to 1, sum 1."""
    from scipy.sparse import csc_matrix
    from scipy.sparse.linalg import ArpackNoConvergence, eigs

    size = len(count)
    if end is not None:  # END → END with ratio 1: an eigenvalue of exactly 1, its vector END alone
        return np.asarray(np.arange(size) == end, np.float64)
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
    if np.sum(distance < distance[best] + 1e-9) > 1 and distance[best] < 1e-9:
        raise RefusedError(
            "stationary",
            "the states fall into several closed classes, so that there is no one stationary "
            "distribution. Use mis()",
        )
    if abs(found[best].imag) > 1e-9:  # its vector has no direction of its own
        raise RefusedError(
            "stationary",
            f"the eigenvalue next to 1 is complex ({found[best]:.3g}): too little data for a "
            "stationary distribution. Use mis()",
        )
    vector = np.real(vectors[:, best])
    total = float(vector.sum())
    if abs(total) < 1e-12 * np.abs(vector).sum():
        raise RefusedError(
            "stationary", "the eigenvector next to 1 sums to 0: no stationary distribution"
        )
    return np.asarray(vector / total, np.float64)
