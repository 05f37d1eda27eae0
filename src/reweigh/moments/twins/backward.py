"""The backward recursions of MIS over the rows of a log, with the parts of the standard error."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.moments.groups import tally
from reweigh.moments.twins.forward import chunks, inverse, next_columns, unpacked

Array = npt.NDArray[Any]
SEEN_ENOUGH, DEFICIT_ERRORS = 10, 4.0  # as in estimators/operators.py
STEPS = 64  # whose sums are kept before they are used


def backward(
    offsets: Array,
    code: Array,
    bits: int,
    ending: Array,
    rho: Array,
    by_code: bool,
    reward: Array,
    gamma: float,
    mode: int,
    d: Array,
    visits: Array,
    mass: Array,
    variance: Array,
    lost: Array,
    u: Array,
) -> tuple[float, float]:
    """See `reweigh.moments.kernels.backward.backward`."""
    state, rho = unpacked(code, bits, rho, by_code)
    horizon, width = len(offsets) - 1, d.shape[1]
    end = width - 1
    ahead = np.zeros((width, 2))
    squares = placebo = 0.0
    kept: list[Array] = []
    for t in range(horizon - 1, -1, -1):
        sums = np.zeros((len(SUMS), width))
        for rows in chunks(offsets, t):
            s, r = state[rows], rho[rows]
            after = next_columns(offsets, state, ending, t, end, rows)
            sums += _step_sums(s, r, r * reward[rows], after, ahead, t + 1 == horizon)
        kept.append(sums)
        z, x, r, x1, M = sums[[0, 2, 5, 7, 10]]
        per_n, per_m = inverse(visits[t]), inverse(M)
        u[:, 0], u[:, 1] = z * per_n + x * per_m, r * per_n + x1 * per_m
        u[end] = ahead[end] + [0.0, 1.0]
        ahead = gamma * u
        if mode == 1 and t > 0:
            ahead = (gamma / mass[t]) * (u - d[t] @ u)
        if len(kept) == STEPS or t == 0:  # what nothing waits for, of some steps at once
            some = slice(t, t + len(kept))
            found = _parts(np.array(kept[::-1]), d[some], visits[some], gamma, t)
            variance[some], lost[some], square, of_placebo = found
            squares, placebo = squares + square, placebo + of_placebo
            kept = []
    return squares, placebo


# By state, over all rows, x being 0 where the next state is not known: Σz, Σz², Σx, Σx², Σzx; the
# placebo's, for which z is ρ; and over the rows whose next state is known their number, Σρ, Σρ², Σz
SUMS = ("z", "z2", "x", "x2", "zx", "r", "r2", "x1", "x12", "rx1", "M", "rho", "rho2", "known z")
OF_KNOWN = [SUMS.index(name) for name in ("r", "r2", "z")]  # what the last three are of all rows


def _step_sums(s: Array, r: Array, z: Array, after: Array, ahead: Array, last: bool) -> Array:
    """(14, width) SUMS of some rows of a step."""
    width = len(ahead)
    known = after >= 0
    all_known = bool(known.all())
    x, x1 = ahead.T.take(after, axis=1, mode="wrap") * r
    if not all_known:
        x, x1 = np.where(known, x, 0.0), np.where(known, x1, 0.0)
    values = [z, z * z, x, x * x, z * x, r, r * r, x1, x1 * x1, r * x1]
    if not (all_known or last):
        one = known.astype(np.float64)
        values += [one, one * r, one * values[6], one * z]
    key = s + width * np.arange(len(values))[:, None]
    stacked = np.concatenate(values)
    found = np.bincount(key.ravel(), stacked, len(values) * width).reshape(-1, width)
    if len(found) == len(SUMS):
        return found
    count = np.bincount(s, minlength=width)
    return np.concatenate([found, count[None, :], found[OF_KNOWN]])


def _parts(
    sums: Array, d: Array, visits: Array, gamma: float, first: int
) -> tuple[Array, Array, float, float]:
    """Of some steps: the parts of SE² by state, the mass that is lost, the squares that SE² is a
    difference of, and the placebo's parts added up."""
    z, z2, x, x2, zx, r, r2, x1, x12, rx1, M, rho, rho2, known_z = np.swapaxes(sums, 0, 1)
    N = visits.copy()
    N[:, -1] = 0.0
    D = gamma ** np.arange(first, first + len(d))[:, None] * d
    a, b = D * inverse(N), D * inverse(M)
    variance, square = _spread(np.stack([z, z2, x, x2, zx, known_z]), N, M, a, b)
    of_placebo = _spread(np.stack([r, r2, x1, x12, rx1, rho]), N, M, a, b)[0]
    return variance, _missing(d, np.stack([M, rho, rho2])), square, float(of_placebo.sum())


def backward_state(
    offsets: Array,
    code: Array,
    bits: int,
    ending: Array,
    rho: Array,
    by_code: bool,
    reward: Array,
    gamma: float,
    d: Array,
    visits: Array,
    variance: Array,
    lost: Array,
    u: Array,
) -> float:
    """See `reweigh.moments.kernels.backward.backward_state`."""
    state, rho = unpacked(code, bits, rho, by_code)
    horizon, width = len(offsets) - 1, d.shape[1]
    end = width - 1
    ahead = np.zeros(width)
    squares = 0.0
    for t in range(horizon - 1, -1, -1):
        means, seen = np.zeros((4, width)), np.zeros((3, width))
        moved = np.zeros((6, width))
        by_reward, by_move, mean_reward, mean_worth = np.zeros((4, width))
        for sweep in range(2):  # the means, then what the rows differ by
            for rows in chunks(offsets, t):
                s, r, y = state[rows], rho[rows], reward[rows]
                after = next_columns(offsets, state, ending, t, end, rows)
                known = (after >= 0) | (t + 1 == horizon)
                own = np.where(known, r, 0.0)
                worth = np.where(after >= 0, ahead[after], 0.0)
                if sweep == 0:
                    seen += _seen(s, r, known, width)
                    means += [tally(s, v, width) for v in (r, own, r * y, own * worth)]
                else:
                    R, T = r * y - mean_reward[s] * r, own * (worth - mean_worth[s])
                    moved += _moved(s, R, T, known, width)
            if sweep == 0:
                by_reward, by_move = inverse(means[0]), inverse(means[1])
                mean_reward, mean_worth = means[2] * by_reward, means[3] * by_move
        N, D = np.where(np.arange(width) == end, 0.0, visits[t]), gamma**t * d[t]
        lost[t] = _missing(d[t], seen)
        variance[t], square = _spread(moved, N, seen[0], D * by_reward, D * by_move)
        squares += square
        u[:, 0] = mean_reward + mean_worth
        u[end] = ahead[end]
        ahead = gamma * u[:, 0]
    return squares


def _seen(s: Array, rho: Array, known: Array, width: int) -> Array:
    """By state M, Σρ, Σρ² of the rows whose next state is known."""
    if not known.all():
        s, rho = s[known], rho[known]
    return np.stack(
        [np.bincount(s, minlength=width), tally(s, rho, width), tally(s, rho * rho, width)]
    )


def _moved(s: Array, z: Array, x: Array, known: Array, width: int) -> Array:
    """By state Σz, Σz², Σx, Σx², Σzx, and Σz of the rows whose next state is known; elsewhere x
    is 0."""
    sums = [tally(s, values, width) for values in (z, z * z, x, x * x, z * x)]
    of_known = sums[0] if known.all() else tally(s[known], z[known], width)
    return np.stack([*sums, of_known])


def _spread(sums: Array, N: Array, M: Array, a: Array, b: Array) -> tuple[Array, float]:
    """N Var(R) + M Var(T) + 2 M Cov_M(R, T) with R = a z and T = b x, and the squares that it is
    a difference of."""
    z, z2, x, x2, zx, known_z = sums
    per_n, per_m = inverse(N), inverse(M)
    r2, t2 = a**2 * z2, b**2 * x2
    spread = r2 - (a * z) ** 2 * per_n + t2 - (b * x) ** 2 * per_m
    spread += 2 * a * b * (zx - known_z * x * per_m)
    return np.maximum(spread, 0.0), float(r2.sum() + t2.sum())


def _missing(d: Array, seen: Array) -> Array:
    """Σ_s d_t(s) (1 - covered), see `estimators.operators`; END loses nothing."""
    M, per_row = seen[0], inverse(seen[0])
    mean, second = seen[1] * per_row, seen[2] * per_row
    error = np.sqrt(np.maximum(second - mean**2, 0.0) * per_row)
    covered = np.where(M >= SEEN_ENOUGH, np.minimum(mean + DEFICIT_ERRORS * error, 1.0), 1.0)
    covered = np.where(mean > 0, covered, 0.0)
    return np.asarray((d[..., :-1] * (1.0 - covered[..., :-1])).sum(axis=-1))
