"""The backward recursions of MIS over the rows of a log, with the parts of the standard error."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.kernels.groups import tally
from reweigh.kernels.twins.common import Rows, by_line, inverse

Array = npt.NDArray[Any]
SEEN_ENOUGH, DEFICIT_ERRORS = 10, 4.0  # as in estimate/operators.py


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
    ahead: Array,
    since: int,
    until: int,
) -> tuple[float, float]:
    """See `reweigh.kernels.backward.backward`."""
    rows = Rows(offsets, code, bits, ending, rho, by_code, reward, since, until)
    worth = np.ascontiguousarray(ahead.T)  # by state along the lines here
    divide_by = np.where(np.arange(len(mass)) > 0, mass, 1.0) if mode == 1 else None
    squares = placebo = 0.0
    t = until
    while t > since:
        k = rows.alike_before(t)
        at = slice(t - max(k, 1), t)
        run = _several if k else _one
        worth, square, one = run(
            rows, at, gamma, divide_by, worth, d[at], visits[at], variance[at], lost[at], u
        )
        squares, placebo = squares + square, placebo + one
        t = at.start
    ahead[:] = worth.T
    return squares, placebo


def _arriving(
    t: int, u: Array, ahead: Array, gamma: float, divide_by: Array | None, d: Array
) -> Array:
    """(2, width) γ times what arriving at step t is worth: u_t, or (u_t - <d_t, u_t>)/c_t where d_t
    was divided. END's own u_t comes from `ahead`, of the step after it."""
    u[0, -1], u[1, -1] = ahead[0, -1], 1.0 + ahead[1, -1]
    if divide_by is None or t == 0:
        return gamma * u
    return np.asarray((u - (u @ d)[:, None]) * (gamma / divide_by[t]))


def _several(
    rows: Rows,
    at: slice,
    gamma: float,
    divide_by: Array | None,
    ahead: Array,
    d: Array,
    visits: Array,
    variance: Array,
    lost: Array,
    u: Array,
) -> tuple[Array, float, float]:
    """Steps whose rows are all followed by another: q = z + x with one divisor, see the kernel.
    Only x waits for the step after; all else is of all of the steps at once."""
    k, width = at.stop - at.start, ahead.shape[1]
    columns, r, reward = rows.lines(at)
    z, key = r * reward, by_line(columns[:-1], width).ravel()

    def added(values: Array) -> Array:
        return np.bincount(key, values.ravel(), k * width).reshape(k, width)

    own = np.stack([added(z), added(r)], axis=1)
    both = columns[:-1, None, :] + np.array([[0], [width]])  # as places in (2, width)
    N = visits.copy()
    N[:, -1] = 0.0
    per = inverse(N)
    x, sums = np.empty((k, 2, columns.shape[1])), np.empty((k, 2, width))
    for j in range(k - 1, -1, -1):
        np.take(ahead, columns[j + 1], axis=1, out=x[j], mode="clip")
        x[j] *= r[j]
        sums[j] = np.bincount(both[j].ravel(), x[j].ravel(), 2 * width).reshape(2, width)
        sums[j] += own[j]
        worth = sums[j] * per[j]
        ahead = _arriving(at.start + j, worth, ahead, gamma, divide_by, d[j])
    u[:] = worth.T
    x, x1 = x[:, 0], x[:, 1]
    D = (gamma ** np.arange(at.start, at.stop)[:, None] * d * per) ** 2
    q, q1 = z + x, r + x1
    one = D * (added(q1 * q1) - sums[:, 1] ** 2 * per)
    variance[:] = np.maximum(D * (added(q * q) - sums[:, 0] ** 2 * per), 0.0)
    lost[:] = _missing(d, np.stack([N, own[:, 1], added(r * r)]))
    return ahead, float(np.sum(D * added(z * z + x * x))), float(np.maximum(one, 0.0).sum())


def _one(
    rows: Rows,
    at: slice,
    gamma: float,
    divide_by: Array | None,
    ahead: Array,
    d: Array,
    visits: Array,
    variance: Array,
    lost: Array,
    u: Array,
) -> tuple[Array, float, float]:
    """Any step, some rows at a time."""
    t, width, last = at.start, ahead.shape[1], at.stop == rows.horizon
    sums = np.zeros((len(SUMS), width))
    for part in rows.chunks(t):
        s, r = rows.columns(part), rows.ratios(part)
        after = rows.after(t, part, width - 1)
        sums += _step_sums(s, r, r * rows.rewards(part), after, ahead, last)
    z, x, r, x1, M = sums[[0, 2, 5, 7, 10]]
    per_n, per_m = inverse(visits[0]), inverse(M)
    worth = np.stack([z * per_n + x * per_m, r * per_n + x1 * per_m])
    ahead = _arriving(t, worth, ahead, gamma, divide_by, d[0])
    u[:] = worth.T
    variance[:], lost[:], square, of_placebo = _parts(sums[None], d, visits, gamma, t)
    return ahead, square, of_placebo


# By state, over all rows, x being 0 where the next state is not known: Σz, Σz², Σx, Σx², Σzx; the
# placebo's, for which z is ρ; and over the rows whose next state is known their number, Σρ, Σρ², Σz
SUMS = ("z", "z2", "x", "x2", "zx", "r", "r2", "x1", "x12", "rx1", "M", "rho", "rho2", "known z")
OF_KNOWN = [SUMS.index(name) for name in ("r", "r2", "z")]  # what the last three are of all rows


def _step_sums(s: Array, r: Array, z: Array, after: Array, ahead: Array, last: bool) -> Array:
    """(14, width) SUMS of some rows of a step."""
    width = ahead.shape[1]
    known = after >= 0
    all_known = bool(known.all())
    x, x1 = ahead.take(after, axis=1, mode="wrap") * r
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
    ahead: Array,
    since: int,
    until: int,
) -> float:
    """See `reweigh.kernels.backward.backward_state`."""
    given = Rows(offsets, code, bits, ending, rho, by_code, reward, since, until)
    horizon, width = len(offsets) - 1, d.shape[1]
    end = width - 1
    squares = 0.0
    for t in range(until - 1, since - 1, -1):
        means, seen = np.zeros((4, width)), np.zeros((3, width))
        moved = np.zeros((6, width))
        by_reward, by_move, mean_reward, mean_worth = np.zeros((4, width))
        for sweep in range(2):  # the means, then what the rows differ by
            for rows in given.chunks(t):
                s, r, y = given.columns(rows), given.ratios(rows), given.rewards(rows)
                after = given.after(t, rows, end)
                known = (after >= 0) | (t + 1 == horizon)
                own = np.where(known, r, 0.0)
                worth = np.where(after >= 0, ahead[after, 0], 0.0)
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
        ahead[:] = gamma * u
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
